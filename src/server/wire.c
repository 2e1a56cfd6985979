#include "server/wire.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NO_TOKEN = -1 }; // an id without text

json_t *cot_wire_token(const cot_served_model *model, int32_t token)
{
    char *text = NULL;
    size_t bytes = 0;
    if ((size_t)token < cot_tokenizer_size(model->tokenizer))
        cot_tokenizer_decode(model->tokenizer, &text, &bytes, &token, 1, false, NULL);
    json_t *json = json_stringn(text ? text : "", bytes);
    free(text);
    return json;
}

json_t *cot_wire_ids(const int32_t *ids, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count && list; i++)
        if (json_array_append_new(list, json_integer(ids[i]))) {
            json_decref(list);
            return NULL;
        }
    return list;
}

/* ---- chances ---- */

/* JSON has no infinities: what cannot come at all is very unlikely. */
static json_t *chance(float logprob)
{
    return json_real(isfinite(logprob) ? logprob : -9999.0);
}

static json_t *bytes_of(const cot_served_model *model, int32_t id)
{
    json_t *list = json_array();
    char *own = NULL;
    size_t bytes = 0;
    cot_tokenizer_token_bytes(model->tokenizer, &own, &bytes, id,
                              NULL); // none of an id beyond the vocabulary
    for (size_t i = 0; own && i < bytes; i++)
        json_array_append_new(list, json_integer((unsigned char)own[i]));
    free(own);
    return list;
}

static json_t *name_of(const cot_wire_logprobs *l, const cot_served_model *model, int32_t id)
{
    return l->names_ids ? json_sprintf("token_id:%d", (int)id) : cot_wire_token(model, id);
}

static json_t *chat_token(const cot_wire_logprobs *l, const cot_served_model *model, int32_t id,
                          float logprob)
{
    return json_pack("{s:o,s:o,s:o}", "bytes", bytes_of(model, id), "token", name_of(l, model, id), "logprob",
                     chance(logprob));
}

static bool add_chat(cot_wire_logprobs *l, const cot_served_model *model, const cot_sampled *s)
{
    json_t *entry = chat_token(l, model, s->token, s->logprob), *top = json_array();
    for (size_t i = 0; i < s->top_count; i++)
        json_array_append_new(top, chat_token(l, model, s->top[i].token, s->top[i].logprob));
    if (json_object_set_new(entry, "top_logprobs", top)) {
        json_decref(entry);
        return false;
    }
    if (!l->content) l->content = json_array();
    return !json_array_append_new(l->content, entry);
}

static int64_t characters_of(const char *text, size_t bytes)
{
    int64_t n = 0;
    for (size_t i = 0; i < bytes; i++) n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

static bool prompt_goes_on(const cot_wire_logprobs *l, const char *text, size_t bytes)
{
    return bytes <= l->prompt_bytes && memcmp(l->prompt, text, bytes) == 0;
}

/* What a normaliser made of the prompt is not what is echoed: then a token has as many characters as its text, up to the
 * prompt's end. */
static int64_t characters_of_prompt(cot_wire_logprobs *l, const char *piece, size_t bytes)
{
    const int64_t left = l->prompt_characters - l->told, characters = characters_of(piece, bytes);
    if (!prompt_goes_on(l, piece, bytes)) return characters < left ? characters : left;
    l->prompt += bytes;
    l->prompt_bytes -= bytes;
    return characters;
}

/* Where in the text the token begins, in characters; -1 when memory runs out. */
static int64_t offset_of(cot_wire_logprobs *l, const cot_served_model *model, int32_t token)
{
    const char *piece;
    size_t bytes;
    const bool added = l->prompt && l->added > 0;
    l->added -= added;
    if (!l->text &&
        cot_detokenizer_open(&l->text, model->tokenizer, l->skip_special && !l->prompt, NULL) != COT_OK)
        return -1;
    const cot_status status = cot_detokenizer_push(l->text, added ? NO_TOKEN : token, &piece, &bytes, NULL);
    if (status != COT_OK && status != COT_INVALID_ARGUMENT) return -1;
    const int64_t offset = l->told + (int64_t)cot_detokenizer_start(l->text);
    l->told += l->prompt ? characters_of_prompt(l, piece, bytes) : characters_of(piece, bytes);
    return offset;
}

bool cot_wire_skip_logprob(cot_wire_logprobs *l, const cot_served_model *model, int32_t token)
{
    return l->chat || offset_of(l, model, token) >= 0;
}

void cot_wire_echo(cot_wire_logprobs *l, const char *text, size_t bytes, const char *given, size_t added)
{
    l->prompt = given;
    l->prompt_bytes = bytes;
    l->prompt_characters = characters_of(text, bytes);
    l->added = added;
}

void cot_wire_end_prompt(cot_wire_logprobs *l)
{
    cot_detokenizer_close(l->text);
    l->text = NULL;
    l->prompt = NULL;
    l->told = l->prompt_characters;
}

/* The likeliest, and the token itself, by their text: of several with the same text the likeliest. */
static json_t *top_by_text(const cot_wire_logprobs *l, const cot_served_model *model, const cot_sampled *s)
{
    json_t *top = json_object();
    for (size_t i = 0; i <= s->top_count; i++) {
        const cot_logprob one = i < s->top_count ? s->top[i] : (cot_logprob){s->token, s->logprob};
        json_t *token = name_of(l, model, one.token);
        const char *key = json_string_value(token);
        if (key && !json_object_getn(top, key, json_string_length(token)))
            json_object_setn_new(top, key, json_string_length(token), chance(one.logprob));
        json_decref(token);
    }
    return top;
}

bool cot_wire_add_logprob(cot_wire_logprobs *l, const cot_served_model *model, const cot_sampled *s,
                          bool known)
{
    if (l->chat) return add_chat(l, model, s);
    if (!l->tokens) {
        l->tokens = json_array();
        l->token_logprobs = json_array();
        l->top_logprobs = json_array();
        l->text_offset = json_array();
    }
    const int64_t offset = offset_of(l, model, s->token);
    const int failed =
        (offset < 0) | json_array_append_new(l->tokens, name_of(l, model, s->token)) |
        json_array_append_new(l->token_logprobs, known ? chance(s->logprob) : json_null()) |
        json_array_append_new(l->top_logprobs, known ? top_by_text(l, model, s) : json_null()) |
        json_array_append_new(l->text_offset, json_integer(offset));
    return !failed;
}

json_t *cot_wire_take_logprobs(cot_wire_logprobs *l)
{
    json_t *json = l->content ? json_pack("{s:o}", "content", l->content)
                   : l->tokens
                       ? json_pack("{s:o,s:o,s:o,s:o}", "text_offset", l->text_offset, "token_logprobs",
                                   l->token_logprobs, "tokens", l->tokens, "top_logprobs", l->top_logprobs)
                       : json_null();
    l->content = l->tokens = l->token_logprobs = l->top_logprobs = l->text_offset = NULL;
    return json;
}

void cot_wire_logprobs_clear(cot_wire_logprobs *l)
{
    json_decref(cot_wire_take_logprobs(l));
    cot_detokenizer_close(l->text);
    l->text = NULL;
}

/* ---- answers ---- */

json_t *cot_wire_usage_json(const cot_wire_usage *u)
{
    return json_pack("{s:I,s:I,s:I,s:{s:I}}", "prompt_tokens", (json_int_t)u->prompt_tokens, "total_tokens",
                     (json_int_t)(u->prompt_tokens + u->completion_tokens), "completion_tokens",
                     (json_int_t)u->completion_tokens, "prompt_tokens_details", "cached_tokens",
                     (json_int_t)u->cached_tokens);
}

/* Sets what there is; a value that could not be had fails the object. */
static bool set(json_t *object, const char *name, json_t *value)
{
    return !json_object_set_new(object, name, value);
}

json_t *cot_wire_choice_json(const cot_wire_head *head, const cot_wire_choice *c)
{
    json_t *json = json_object(), *said = head->chat ? c->message : json_stringn(c->text, c->bytes);
    const char *name = !head->chat ? "text" : head->stream ? "delta" : "message";
    bool good = json && said && set(json, "index", json_integer((json_int_t)c->index));
    good = set(json, name, said) && good;
    good = set(json, "logprobs", c->logprobs ? c->logprobs : json_null()) && good;
    good = good && set(json, "finish_reason", c->finish_reason ? json_string(c->finish_reason) : json_null());
    good = set(json, "stop_reason", c->stop_reason ? c->stop_reason : json_null()) && good;
    if (c->token_ids) good = set(json, "token_ids", c->token_ids) && good;
    if (c->prompt_token_ids) good = set(json, "prompt_token_ids", c->prompt_token_ids) && good;
    if (good) return json;
    json_decref(json);
    return NULL;
}

json_t *cot_wire_answer(const cot_wire_head *head, json_t *choices, json_t *usage)
{
    const char *object = !head->chat    ? "text_completion"
                         : head->stream ? "chat.completion.chunk"
                                        : "chat.completion";
    json_t *json = json_pack("{s:s,s:s,s:I,s:s,s:s,s:o}", "id", head->id, "object", object, "created",
                             (json_int_t)head->created, "model", head->model->names[0], "system_fingerprint",
                             head->model->fingerprint, "choices", choices);
    if (!json) { // it frees what it was given
        json_decref(usage);
        return NULL;
    }
    if (!usage || set(json, "usage", usage)) return json;
    json_decref(json);
    return NULL;
}
