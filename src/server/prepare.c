#include "server/prepare.h"

#include "base/json_load.h"
#include "base/json_weight.h"
#include "server/api_fields.h"
#include "server/wire.h"

#include <inttypes.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

/* A body from which on the memory that it took is given back to the system: JSON takes tens of times its text. */
enum { TRIMMED_BYTES = 1 << 20 };

static bool check_model(const cot_api_request *r, const cot_served_model *model, cot_api_error *error)
{
    if (!r->model) return true;
    for (size_t i = 0; i < model->name_count; i++)
        if (strcmp(r->model, model->names[i]) == 0) return true;
    return cot_api_fail(error, 404, "model_not_found", "model", "the model '%s' does not exist; here is '%s'",
                        r->model, model->names[0]);
}

/* Calls that nobody could read would be content, and a client's loop would end. */
static bool check_tools(const cot_api_request *r, const cot_served_model *model, cot_api_error *error)
{
    if (r->kind == COT_API_CHAT && r->thinking_token_budget >= 0 &&
        (model->dialects.end < 0 || !model->constraints))
        return cot_api_fail(error, 400, "unsupported_parameter", "thinking_token_budget",
                            "'thinking_token_budget' is not supported: %s",
                            model->constraints ? "no token is known that ends the model's reasoning"
                                               : "this worker computes nothing");
    if (r->kind != COT_API_CHAT || r->tools.choice != COT_API_TOOLS_AUTO || model->dialects.calls)
        return true;
    return cot_api_fail(
        error, 400, "unsupported_parameter", r->tools.legacy ? "functions" : "tools",
        "the model's chat template writes calls of tools in no format that is known: start the server with "
        "--tool-call-parser NAME, or let 'tool_choice' be 'required' or name a tool");
}

static int32_t added_token(void *context, const char *marker)
{
    return cot_tokenizer_added_token(context, marker);
}

static bool any_is_strict(const json_t *tools)
{
    size_t i;
    json_t *tool;
    json_array_foreach(tools, i, tool) if (json_is_true(json_object_get(json_object_get(tool, "function"),
                                                                        "strict"))) return true;
    return false;
}

/* Calls that the model begins by itself meet the schemas of strict tools, and answers that are none what `response_format` says; what
 * else is asked of the text alone may come, and no call. */
static bool hold_calls(cot_api_request *r, const cot_served_model *model, cot_api_error *error)
{
    cot_api_constraint *c = &r->constraint;
    cot_buffer grammar = {0};
    cot_error reason;
    if (r->kind != COT_API_CHAT || r->tools.choice != COT_API_TOOLS_AUTO || !model->constraints ||
        (c->text ? strcmp(c->name, "response_format") != 0 : !any_is_strict(r->tools.list)))
        return true;
    json_t *format = NULL;
    json_error_t unread;
    if (c->text && cot_json_weigh(c->text, strlen(c->text)).depth <= COT_CONSTRAINT_MAX_DEPTH)
        format = cot_json_load(c->text, strlen(c->text), JSON_DECODE_ANY, &unread);
    if (c->text && !json_is_object(format) && !json_is_true(format)) { // it is refused when it is compiled
        json_decref(format);
        return true;
    }
    const cot_status status = cot_dialect_grammar(&grammar, model->dialects.calls, r->tools.list, format,
                                                  added_token, (void *)(uintptr_t)model->tokenizer, &reason);
    json_decref(format);
    *c = (cot_api_constraint){.kind = COT_CONSTRAINT_LARK,
                              .name = "tools",
                              .text = grammar.data,
                              .format = c->text,
                              .is_of_calls = true,
                              .lets_text = !c->text};
    if (status == COT_OUT_OF_MEMORY) return cot_api_fail_of(error, 503, "tools", &reason);
    return status == COT_OK ||
           cot_api_fail(error, 400, "unsupported_parameter", "tools", "%s", reason.message);
}

/* ---- text to ids ---- */

static bool is_unwanted(void *context)
{
    return atomic_load(&((cot_preparation *)context)->unwanted);
}

/* Bytes of memory that each byte of a text may take until all of it is ids: words of one byte, which are listed twice. */
enum { ENCODING_BYTES = 64 };

/* A text that does not fit the context is given up when that is certain, unless all of its ids are wanted. */
static bool encode(cot_preparation *preparation, cot_api_ids *ids, const char *text, size_t bytes,
                   const uint8_t *own, const cot_served_model *model)
{
    const cot_api_request *r = &preparation->request;
    const bool whole = r->truncate_prompt_tokens || preparation->kind == COT_API_TOKENIZE;
    const char *param = r->conversation ? "messages" : "prompt";
    const cot_tokenizer_limits limits = {whole ? 0 : model->max_model_len, is_unwanted, preparation};
    cot_error reason;
    if (whole && bytes > model->request_bytes / ENCODING_BYTES)
        return cot_api_fail(&preparation->error, 413, "request_too_large", param,
                            "the text has %zu bytes, at most %zu become ids as a whole", bytes,
                            model->request_bytes / ENCODING_BYTES);
    const cot_status status = cot_tokenizer_encode_within(
        model->tokenizer, &ids->ids, &ids->count, text, bytes, own, r->add_special_tokens, &limits, &reason);
    if (status == COT_TOO_LONG)
        return cot_api_fail(&preparation->error, 400, "context_length_exceeded", param,
                            "this model's context is %" PRId64 " tokens; the %s alone has more",
                            model->max_model_len, r->conversation ? "conversation" : "prompt");
    return status == COT_OK || cot_api_fail_of(&preparation->error, 400, param, &reason);
}

static bool encode_conversation(cot_preparation *preparation, const cot_served_model *model)
{
    cot_api_request *r = &preparation->request;
    cot_api_error *error = &preparation->error;
    if (!model->chat)
        return cot_api_fail(
            error, 400, "no_chat_template", NULL,
            "the model has no chat template: start the server with --chat-template FILE, or use "
            "/v1/completions");
    const cot_chat_options options = {.size = sizeof options,
                                      .add_generation_prompt = r->add_generation_prompt,
                                      .continue_final_message = r->continue_final_message,
                                      .openai = true,
                                      .chat_template_kwargs = r->chat_template_kwargs,
                                      .is_stopped = is_unwanted,
                                      .context = preparation};
    char *conversation = json_dumps(r->conversation, JSON_COMPACT);
    if (!conversation) return cot_api_fail(error, 503, NULL, NULL, "out of memory");
    cot_chat_text text = {0};
    cot_error reason;
    const cot_status status =
        cot_chat_render(model->chat, &text, conversation, strlen(conversation), &options, &reason);
    free(conversation);
    // without a token for its end nothing could be forced behind reasoning: there is none then
    const bool may_open = model->dialects.end >= 0 || !r->constraint.text || r->constraint.lets_text;
    if (status == COT_OK)
        r->opens_reasoning = may_open && cot_served_dialects_opens(model->dialects.reasoning, &text);
    const bool good = status == COT_OK
                          ? encode(preparation, &r->prompts->tokens, text.text, text.bytes, text.own, model)
                          : cot_api_fail_of(error, 400, "messages", &reason);
    cot_chat_text_free(&text);
    return good;
}

static bool decode(cot_preparation *p, const cot_served_model *model)
{
    const cot_api_ids *ids = &p->request.detokenize;
    cot_error reason;
    return cot_tokenizer_decode(model->tokenizer, &p->text, &p->text_bytes, ids->ids, ids->count, false,
                                &reason) == COT_OK ||
           cot_api_fail_of(&p->error, 400, "tokens", &reason);
}

/* ---- lengths ---- */

/* Keeps the last tokens, or the first, as many as the request wants. */
static void truncate_prompt(cot_api_ids *ids, int64_t most, bool right)
{
    if (most <= 0 || (int64_t)ids->count <= most) return;
    if (!right) memmove(ids->ids, ids->ids + ids->count - (size_t)most, (size_t)most * sizeof *ids->ids);
    ids->count = (size_t)most;
}

static bool check_vocabulary(const cot_api_ids *ids, int64_t vocab, cot_api_error *error)
{
    for (size_t i = 0; i < ids->count; i++)
        if (ids->ids[i] >= vocab)
            return cot_api_fail(error, 400, "invalid_value", "prompt",
                                "the tokenizer's token %d is beyond the model's vocabulary of %" PRId64,
                                ids->ids[i], vocab);
    return true;
}

/* Prompts must leave room for what is asked for. Where nothing is, output is as long as it can get, in a conversation, and
 * OpenAI's 16 tokens otherwise. */
static bool check_lengths(cot_api_request *r, const cot_served_model *model, cot_api_error *error)
{
    const int64_t context = model->max_model_len, asked = r->max_tokens, least = asked == 0 ? 0 : 1;
    int64_t longest = 0;
    for (size_t i = 0; i < r->prompt_count; i++) {
        cot_api_ids *ids = &r->prompts[i].tokens;
        truncate_prompt(ids,
                        r->truncate_prompt_tokens < 0 && asked <= context ? context - (asked < 0 ? 1 : asked)
                                                                          : r->truncate_prompt_tokens,
                        r->truncates_right);
        if (!ids->count)
            return cot_api_fail(error, 400, "invalid_value", "prompt", "the prompt has no tokens");
        if (!check_vocabulary(ids, model->vocab, error)) return false;
        if ((int64_t)ids->count > longest) longest = (int64_t)ids->count;
    }
    const int64_t room = context - longest;
    if (room < least || asked > room)
        return cot_api_fail(error, 400, "context_length_exceeded",
                            r->kind == COT_API_CHAT ? "messages" : "prompt",
                            "this model's context is %" PRId64 " tokens; %" PRId64 " were asked for: %" PRId64
                            " of the prompt and %" PRId64 " of output",
                            context, longest + (asked < 0 ? 1 : asked), longest, asked < 0 ? 1 : asked);
    if (asked < 0) r->max_tokens = r->kind == COT_API_CHAT || room < 16 ? room : 16;
    if (model->defaults.max_tokens && r->max_tokens > model->defaults.max_tokens)
        r->max_tokens = model->defaults.max_tokens;
    r->sampling.max_tokens = r->max_tokens;
    if (r->sampling.min_tokens > r->max_tokens)
        return cot_api_fail(error, 400, "invalid_value", "min_tokens",
                            "'min_tokens' is %" PRId64 ", 'max_tokens' %" PRId64, r->sampling.min_tokens,
                            r->max_tokens);
    const size_t choices = r->continued ? cot_api_choices(r) : 0;
    for (size_t i = 0; i < choices; i++)
        if ((int64_t)r->continued[i].count > r->max_tokens)
            return cot_api_fail(error, 400, "invalid_value", "continue_token_ids",
                                "'continue_token_ids' holds %zu tokens of a choice, 'max_tokens' is %" PRId64,
                                r->continued[i].count, r->max_tokens);
    return true;
}

/* ---- what is left of it ---- */

/* A request lives as long as its answer: what it brought in, and nobody reads any more, goes at once, and here: of a giant
 * body that takes seconds, which the loop does not have. */
static void drop_json(cot_api_request *r)
{
    static const char *const read[] = {"model", "cache_salt", "stop", "prompt"}; // pointed into
    json_t *rest = r->json ? json_object() : NULL;
    json_decref(r->conversation);
    r->conversation = NULL;
    if (!rest) return; // later, then
    for (size_t i = 0; i < sizeof read / sizeof *read - (r->echo ? 0 : 1); i++) {
        json_t *value = json_object_get(r->json, read[i]);
        if (value && json_object_set(rest, read[i], value) != 0) {
            json_decref(rest);
            return;
        }
    }
    json_decref(r->json);
    r->json = rest;
    for (size_t i = 0; i < r->prompt_count && !r->echo; i++) r->prompts[i].text = NULL;
}

/* Of a refused request nothing is read any more but what the log is told. */
static void drop_all(cot_api_request *r)
{
    char unknown[sizeof r->unknown];
    memcpy(unknown, r->unknown, sizeof unknown);
    cot_api_request_clear(r);
    memcpy(r->unknown, unknown, sizeof unknown);
}

/* The reply to COT_API_TOKENIZE, which is as long as the text was. */
static bool write_tokens(cot_preparation *p, const cot_served_model *model)
{
    const cot_api_ids *ids = &p->request.prompts->tokens;
    json_t *json = json_pack("{s:I,s:I,s:o,s:n}", "count", (json_int_t)ids->count, "max_model_len",
                             (json_int_t)model->max_model_len, "tokens", cot_wire_ids(ids->ids, ids->count),
                             "token_strs");
    json_t *names = json && p->request.return_token_strs ? json_array() : NULL;
    for (size_t i = 0; names && i < ids->count; i++) {
        const char *name = cot_tokenizer_token(model->tokenizer, ids->ids[i]);
        json_array_append_new(names, json_string(name ? name : ""));
    }
    if (names) json_object_set_new(json, "token_strs", names);
    p->text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    if (!p->text) return cot_api_fail(&p->error, 503, NULL, NULL, "out of memory");
    p->text_bytes = strlen(p->text);
    return true;
}

/* The reply to COT_API_DETOKENIZE. */
static bool write_text(cot_preparation *p, const cot_served_model *model)
{
    if (!decode(p, model)) return false;
    json_t *json = json_pack("{s:s%}", "prompt", p->text, p->text_bytes);
    free(p->text);
    p->text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    if (!p->text) return cot_api_fail(&p->error, 503, NULL, NULL, "out of memory");
    p->text_bytes = strlen(p->text);
    return true;
}

/* ---- the whole ---- */

static bool prepare(cot_preparation *p, const cot_served_model *model)
{
    cot_api_request *r = &p->request;
    const int64_t vocab =
        p->kind == COT_API_DETOKENIZE ? (int64_t)cot_tokenizer_size(model->tokenizer) : model->vocab;
    json_t *json =
        is_unwanted(p) ? NULL : cot_api_read_json(p->body, p->bytes, model->request_bytes, &p->error);
    free(p->body);
    p->body = NULL;
    if (!json || !cot_api_parse(r, p->kind, json, &model->defaults, vocab, &p->error) ||
        !check_model(r, model, &p->error) || !check_tools(r, model, &p->error) ||
        !hold_calls(r, model, &p->error))
        return false;
    if (is_unwanted(p) || (r->conversation && !encode_conversation(p, model))) return false;
    for (size_t i = 0; i < r->prompt_count; i++) {
        cot_api_prompt *prompt = &r->prompts[i];
        if (prompt->text && !encode(p, &prompt->tokens, prompt->text, prompt->bytes, NULL, model))
            return false;
    }
    if (p->kind == COT_API_DETOKENIZE) return write_text(p, model);
    if (p->kind == COT_API_TOKENIZE) return write_tokens(p, model);
    return check_lengths(r, model, &p->error);
}

bool cot_prepare(cot_preparation *p, const cot_served_model *model)
{
    const size_t bytes = p->bytes;
    bool good = prepare(p, model);
    if (good && p->request.constraint.text && !model->constraints)
        good = cot_api_fail(&p->error, 400, "unsupported_parameter", p->request.constraint.name,
                            "'%s' is not supported by this worker, which computes nothing",
                            p->request.constraint.name);
    if (good) p->error.http_status = 0;
    if (good && (p->kind == COT_API_COMPLETION || p->kind == COT_API_CHAT))
        drop_json(&p->request);
    else
        drop_all(&p->request); // the reply is written
    if (bytes >= TRIMMED_BYTES) malloc_trim(0);
    return !p->request.constraint.text;
}

void cot_prepare_constraint(cot_preparation *p, const cot_served_model *model)
{
    cot_api_constraint *c = &p->request.constraint;
    if (is_unwanted(p) || !cot_served_constraints_compile(model->constraints, c, &p->error))
        drop_all(&p->request);
    free(c->text);
    free(c->format);
    c->text = c->format = NULL;
}
