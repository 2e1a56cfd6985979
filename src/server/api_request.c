#include "server/api_request.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json_load.h"
#include "server/api_fields.h"
#include "server/constraints.h"
#include "server/tools.h"

#include <float.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- defaults ---- */

static void default_real(double *out, const json_t *object, const char *name, double least, double most)
{
    cot_api_error unused; // a value that makes no sense is as if it were not there
    cot_api_get_real(out, object, name, least, most, &unused);
}

cot_status cot_api_defaults_read(cot_api_defaults *d, const char *folder, cot_error *error)
{
    *d = (cot_api_defaults){.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    if (!folder) return COT_OK;
    char *path = cot_path_join(folder, "generation_config.json"), *text = NULL;
    size_t bytes;
    cot_status status = COT_OUT_OF_MEMORY;
    if (path) status = cot_file_read(&text, &bytes, path, 1 << 20, error);
    free(path);
    if (status == COT_NOT_FOUND) return COT_OK;
    if (status != COT_OK) return status;
    json_error_t reason;
    json_t *object = cot_json_load(text, bytes, 0, &reason);
    free(text);
    if (!json_is_object(object)) {
        json_decref(object);
        return cot_fail(error, COT_MALFORMED, "generation_config.json of '%s' is no JSON object", folder);
    }
    cot_api_error unused;
    default_real(&d->temperature, object, "temperature", 0, 1e6);
    default_real(&d->top_p, object, "top_p", DBL_MIN, 1);
    default_real(&d->min_p, object, "min_p", 0, 1);
    default_real(&d->repetition_penalty, object, "repetition_penalty", 1e-6, 1e6);
    cot_api_get_integer(&d->top_k, object, "top_k", 0, INT32_MAX, &unused);
    cot_api_get_integer(&d->max_tokens, object, "max_new_tokens", 1, INT32_MAX, &unused);
    json_decref(object);
    return COT_OK;
}

/* ---- fields that are one value ---- */

typedef struct number_field {
    const char *name;
    size_t offset;
    bool whole;
    double least, most;
} number_field;

#define AT(field) offsetof(cot_api_request, field)
static const number_field numbers[] = {
    {"n", AT(n), true, 1, COT_API_MAX_N},
    {"min_tokens", AT(sampling.min_tokens), true, 0, INT32_MAX},
    {"thinking_token_budget", AT(thinking_token_budget), true, 0, INT32_MAX},
    {"truncate_prompt_tokens", AT(truncate_prompt_tokens), true, -1, INT32_MAX},
    {"temperature", AT(sampling.temperature), false, 0, 1e6},
    {"top_p", AT(sampling.top_p), false, DBL_MIN, 1},
    {"top_k", AT(sampling.top_k), true, -1, INT32_MAX},
    {"min_p", AT(sampling.min_p), false, 0, 1},
    {"presence_penalty", AT(sampling.presence_penalty), false, -2, 2},
    {"frequency_penalty", AT(sampling.frequency_penalty), false, -2, 2},
    {"repeat_penalty", AT(sampling.repetition_penalty), false, 1e-6, 1e6}, // llama.cpp's name for the next
    {"repetition_penalty", AT(sampling.repetition_penalty), false, 1e-6, 1e6},
};

typedef struct switch_field {
    const char *name;
    size_t offset;
} switch_field;

static const switch_field switches[] = {
    {"stream", AT(stream)},
    {"echo", AT(echo)},
    {"ignore_eos", AT(sampling.ignore_eos)},
    {"return_token_ids", AT(return_token_ids)},
    {"return_token_strs", AT(return_token_strs)},
    {"return_tokens_as_token_ids", AT(names_ids)},
    {"include_stop_str_in_output", AT(include_stop_str)},
    {"skip_special_tokens", AT(skip_special_tokens)},
    {"add_special_tokens", AT(add_special_tokens)},
    {"continue_final_message", AT(continue_final_message)},
    {"include_reasoning", AT(include_reasoning)},
};

/* Whether the number that is said under another's name of a field, and under ours too, is one. Both have been read. */
static bool check_both_names(const cot_api_request *r, const char *theirs, const char *ours,
                             cot_api_error *error)
{
    const json_t *one = cot_api_get(r->json, theirs), *other = cot_api_get(r->json, ours);
    return !one || !other || json_number_value(one) == json_number_value(other) ||
           cot_api_fail(error, 400, "invalid_value", theirs,
                        "'%s' is %.10g, '%s' is %.10g: they are one field", theirs, json_number_value(one),
                        ours, json_number_value(other));
}

static bool read_simple(cot_api_request *r, cot_api_error *error)
{
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const number_field *f = &numbers[i];
        void *at = (char *)r + f->offset;
        if (f->whole ? !cot_api_get_integer(at, r->json, f->name, (int64_t)f->least, (int64_t)f->most, error)
                     : !cot_api_get_real(at, r->json, f->name, f->least, f->most, error))
            return false;
    }
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++)
        if (!cot_api_get_bool((bool *)((char *)r + switches[i].offset), r->json, switches[i].name, error))
            return false;
    if (!check_both_names(r, "repeat_penalty", "repetition_penalty", error)) return false;
    if (r->sampling.top_k < 0) r->sampling.top_k = 0;
    int64_t seed = 0;
    if (!cot_api_get_integer(&seed, r->json, "seed", INT64_MIN, INT64_MAX, error)) return false;
    r->sampling.seed = (uint64_t)seed;
    r->seeded = cot_api_get(r->json, "seed") != NULL;
    return cot_api_get_text(&r->model, NULL, r->json, "model", error) &&
           cot_api_get_text(&r->cache_salt, &r->cache_salt_bytes, r->json, "cache_salt", error);
}

/* llama.cpp's names of what chooses a token, in its own order but for temperature, which it has behind them. */
enum sampler { PENALTIES, DRY, TOP_N_SIGMA, TOP_K, TYP_P, TOP_P, MIN_P, XTC, SAMPLERS };
static const char *const sampler_names[SAMPLERS] = {"penalties", "dry",   "top_n_sigma", "top_k",
                                                    "typ_p",     "top_p", "min_p",       "xtc"};

/* What a list of samplers leaves out has no effect, whatever its value is. */
static void leave_out_samplers(cot_sampling *s, const bool has[SAMPLERS], bool heats)
{
    cot_sampling neutral;
    cot_sampling_init(&neutral);
    if (!has[PENALTIES]) {
        s->repetition_penalty = neutral.repetition_penalty;
        s->presence_penalty = neutral.presence_penalty;
        s->frequency_penalty = neutral.frequency_penalty;
    }
    if (!has[TOP_K]) s->top_k = neutral.top_k;
    if (!has[TOP_P]) s->top_p = neutral.top_p;
    if (!has[MIN_P]) s->min_p = neutral.min_p;
    if (!heats) s->temperature = 1; // 0, the default, is greedy
}

/* A list of llama.cpp's samplers, all or some, in an order that is also to be had here: its own, and with temperature before top_p and
 * min_p, where it is without a list. Others that the list may name are refused where they are on. */
static bool read_samplers(cot_api_request *r, cot_api_error *error)
{
    const json_t *list = cot_api_get(r->json, "samplers");
    bool has[SAMPLERS] = {false}, heats = false, cuts_before = false, good = json_is_array(list);
    size_t next = 0, i;
    json_t *name;
    if (!list || (!good && cot_api_is_off(list))) return true;
    json_array_foreach(list, i, name)
    {
        if (cot_api_is_text(name, "temperature")) {
            good = good && !heats;
            heats = true;
            cuts_before = has[TOP_P] || has[MIN_P];
            continue;
        }
        while (next < SAMPLERS && !cot_api_is_text(name, sampler_names[next])) next++;
        if (!(good = good && next < SAMPLERS)) break;
        const bool cuts = next == TOP_P || next == MIN_P;
        good = !heats || (next != PENALTIES && !(cuts && cuts_before));
        has[next++] = true;
    }
    if (!good)
        return cot_api_fail(error, 400, "unsupported_parameter", "samplers",
                            "'samplers' is not supported but as a list in llama.cpp's order, in which "
                            "temperature may also come before top_p and min_p");
    r->sampling.temperature_last = cuts_before;
    leave_out_samplers(&r->sampling, has, heats);
    return true;
}

/* vLLM's side that a prompt loses tokens on; llama.cpp's bound of what repeat_penalty looks back at, which is all here. */
static bool read_sides(cot_api_request *r, cot_api_error *error)
{
    const json_t *side = cot_api_get(r->json, "truncation_side");
    int64_t last = -1;
    if (side && !cot_api_is_text(side, "left") && !cot_api_is_text(side, "right"))
        return cot_api_fail(error, 400, "invalid_value", "truncation_side",
                            "'truncation_side' is 'left' or 'right'");
    r->truncates_right = cot_api_is_text(side, "right");
    if (!cot_api_get_integer(&last, r->json, "repeat_last_n", -1, INT32_MAX, error)) return false;
    return last < 0 || !cot_api_get(r->json, "repeat_penalty") || r->sampling.repetition_penalty == 1 ||
           cot_api_fail(error, 400, "unsupported_parameter", "repeat_last_n",
                        "'repeat_last_n' is not supported but for -1: 'repeat_penalty' looks at all tokens");
}

/* ---- fields of several values ---- */

static bool read_stream_options(cot_api_request *r, cot_api_error *error)
{
    const json_t *options = cot_api_get(r->json, "stream_options");
    if (!options) return true;
    if (!json_is_object(options)) return cot_api_mistyped(error, "stream_options", options, "an object");
    if (!r->stream)
        return cot_api_fail(error, 400, "invalid_value", "stream_options",
                            "'stream_options' goes with 'stream': true");
    return cot_api_get_bool(&r->include_usage, options, "include_usage", error) &&
           cot_api_get_bool(&r->continuous_usage_stats, options, "continuous_usage_stats", error);
}

static bool add_stop(cot_api_request *r, const json_t *value, cot_api_error *error)
{
    if (!json_is_string(value))
        return cot_api_mistyped(error, "stop", value, "a string or a list of strings");
    if (!json_string_length(value))
        return cot_api_fail(error, 400, "invalid_value", "stop", "'stop' holds an empty string");
    if (cot_api_has_nul(value))
        return cot_api_fail(error, 400, "invalid_value", "stop",
                            "'stop' holds a string with the character U+0000, which no text is searched for");
    if (json_string_length(value) > COT_API_MAX_STOP_BYTES)
        return cot_api_fail(error, 400, "invalid_value", "stop",
                            "'stop' holds a string of %zu bytes, at most %d may be",
                            json_string_length(value), COT_API_MAX_STOP_BYTES);
    r->stops[r->stop_count++] = json_string_value(value);
    return true;
}

static bool read_stops(cot_api_request *r, cot_api_error *error)
{
    const json_t *stop = cot_api_get(r->json, "stop"), *ids = cot_api_get(r->json, "stop_token_ids");
    if (stop) {
        const size_t count = json_is_array(stop) ? json_array_size(stop) : 1;
        if (count > COT_API_MAX_STOPS)
            return cot_api_fail(error, 400, "invalid_value", "stop",
                                "'stop' holds %zu strings, at most %d may be", count, COT_API_MAX_STOPS);
        r->stops = calloc(count + 1, sizeof *r->stops);
        if (!r->stops) return cot_api_fail(error, 503, NULL, "stop", "out of memory");
        for (size_t i = 0; i < count; i++)
            if (!add_stop(r, json_is_array(stop) ? json_array_get(stop, i) : stop, error)) return false;
    }
    if (!ids) return true;
    if (json_array_size(ids) > COT_API_MAX_STOPS)
        return cot_api_fail(error, 400, "invalid_value", "stop_token_ids",
                            "'stop_token_ids' holds %zu ids, at most %d may be", json_array_size(ids),
                            COT_API_MAX_STOPS);
    // ids that the vocabulary lacks never come: they are nobody's mistake
    if (!cot_api_read_ids(&r->stop_tokens, ids, "stop_token_ids", COT_API_ANY_ID, error)) return false;
    r->sampling.stop_tokens = r->stop_tokens.ids;
    r->sampling.stop_count = r->stop_tokens.count;
    return true;
}

/* A key of JSON that is a token id as everybody writes it: digits, no more of them than it takes. */
static bool read_id_key(int32_t *id, const char *key, int64_t vocab)
{
    const size_t digits = strspn(key, "0123456789");
    if (!digits || digits > 10 || key[digits] || (*key == '0' && digits > 1)) return false;
    const long long value = atoll(key);
    *id = (int32_t)value;
    return value < vocab;
}

static bool read_bias(cot_api_request *r, int64_t vocab, cot_api_error *error)
{
    const json_t *bias = cot_api_get(r->json, "logit_bias");
    if (!bias) return true;
    if (!json_is_object(bias))
        return cot_api_mistyped(error, "logit_bias", bias, "an object of token ids and numbers");
    const size_t count = json_object_size(bias);
    if (count > COT_MAX_BIAS)
        return cot_api_fail(error, 400, "invalid_value", "logit_bias",
                            "'logit_bias' holds %zu tokens, at most %d may be", count, COT_MAX_BIAS);
    r->bias_tokens.ids = malloc((count + 1) * sizeof *r->bias_tokens.ids);
    r->bias = malloc((count + 1) * sizeof *r->bias);
    if (!r->bias_tokens.ids || !r->bias) return cot_api_fail(error, 503, NULL, "logit_bias", "out of memory");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)bias, key, value)
    {
        const double by = json_number_value(value);
        if (!read_id_key(&r->bias_tokens.ids[r->bias_tokens.count], key, vocab))
            return cot_api_fail(error, 400, "invalid_value", "logit_bias",
                                "'logit_bias': '%s' is no token id in [0, %" PRId64 "]", key, vocab - 1);
        if (!json_is_number(value))
            return cot_api_mistyped(error, "logit_bias", value, "a number for every token");
        if (!(by >= -100 && by <= 100))
            return cot_api_fail(error, 400, "invalid_value", "logit_bias",
                                "'logit_bias': %g is not in [-100, 100]", by);
        r->bias[r->bias_tokens.count++] = (float)by;
    }
    r->sampling.bias_tokens = r->bias_tokens.ids;
    r->sampling.bias = r->bias;
    r->sampling.bias_count = r->bias_tokens.count;
    return true;
}

static bool read_max_tokens(cot_api_request *r, cot_api_error *error)
{
    const int64_t least = r->kind == COT_API_CHAT ? 1 : 0;
    // llama.cpp's name, of which -1 and -2 are as many as there may be
    if (!cot_api_get_integer(&r->max_tokens, r->json, "n_predict", -2, INT32_MAX, error)) return false;
    const bool bounds = r->max_tokens >= 0;
    if (!bounds)
        r->max_tokens = -1;
    else if (r->max_tokens < least)
        return cot_api_fail(error, 400, "invalid_value", "n_predict",
                            "'n_predict' is 0, it must be 1 or more");
    const bool is_chat = r->kind == COT_API_CHAT;
    if (!cot_api_get_integer(&r->max_tokens, r->json, "max_tokens", least, INT32_MAX, error) ||
        (is_chat &&
         !cot_api_get_integer(&r->max_tokens, r->json, "max_completion_tokens", least, INT32_MAX, error)))
        return false;
    return (!is_chat || check_both_names(r, "max_tokens", "max_completion_tokens", error)) &&
           (!bounds || (check_both_names(r, "n_predict", "max_tokens", error) &&
                        (!is_chat || check_both_names(r, "n_predict", "max_completion_tokens", error))));
}

/* The tokens whose chances are told in place of the likeliest. */
static bool read_logprob_tokens(cot_api_request *r, int64_t vocab, cot_api_error *error)
{
    static const char name[] = "logprob_token_ids";
    const json_t *ids = cot_api_get(r->json, name);
    if (!ids || (json_is_array(ids) && !json_array_size(ids))) return true;
    if (json_array_size(ids) > COT_MAX_LOGPROB_TOKENS)
        return cot_api_fail(error, 400, "invalid_value", name, "'%s' holds %zu ids, at most %d may be", name,
                            json_array_size(ids), COT_MAX_LOGPROB_TOKENS);
    if (!cot_api_read_ids(&r->logprob_tokens, ids, name, vocab, error)) return false;
    if (r->logprobs >= 0) return true;
    return cot_api_fail(error, 400, "invalid_value", name, "'%s' goes with 'logprobs'%s", name,
                        r->kind == COT_API_CHAT ? ": true" : "");
}

static bool read_logprobs(cot_api_request *r, cot_api_error *error)
{
    if (r->kind == COT_API_COMPLETION)
        return cot_api_get_integer(&r->logprobs, r->json, "logprobs", 0, COT_API_MAX_LOGPROBS, error);
    bool wanted = false;
    int64_t top = 0;
    if (!cot_api_get_bool(&wanted, r->json, "logprobs", error) ||
        !cot_api_get_integer(&top, r->json, "top_logprobs", 0, COT_API_MAX_LOGPROBS, error))
        return false;
    if (top && !wanted)
        return cot_api_fail(error, 400, "invalid_value", "top_logprobs",
                            "'top_logprobs' goes with 'logprobs': true");
    if (wanted) r->logprobs = top;
    return true;
}

/* ---- prompts ---- */

static bool read_prompt(cot_api_prompt *p, const json_t *value, int64_t vocab, cot_api_error *error)
{
    if (json_is_array(value)) return cot_api_read_ids(&p->tokens, value, "prompt", vocab, error);
    if (!json_is_string(value))
        return cot_api_mistyped(error, "prompt", value, "a string, token ids, or a list of either");
    p->text = json_string_value(value);
    p->bytes = json_string_length(value);
    return true;
}

static bool read_prompts(cot_api_request *r, int64_t vocab, cot_api_error *error)
{
    const json_t *prompt = cot_api_get(r->json, "prompt"),
                 *ids = cot_api_get(r->json, "input_ids"); // SGLang's
    if (prompt && ids && r->kind == COT_API_COMPLETION)
        return cot_api_fail(error, 400, "invalid_value", "input_ids",
                            "'prompt' and 'input_ids' exclude one another");
    if (ids && r->kind == COT_API_COMPLETION) {
        const json_t *one = json_is_array(json_array_get(ids, 0)) ? json_array_get(ids, 0) : ids;
        if (!json_is_array(one) || !json_is_integer(json_array_get(one, 0)))
            return cot_api_mistyped(error, "input_ids", ids, "token ids, or a list of such lists");
        prompt = ids;
    }
    if (!prompt) return cot_api_fail(error, 400, "missing_parameter", "prompt", "'prompt' is missing");
    const json_t *first = json_array_get(prompt, 0);
    const bool several = json_is_array(prompt) && !json_is_integer(first);
    const size_t count = several ? json_array_size(prompt) : 1;
    if (!count || (json_is_array(prompt) && !first))
        return cot_api_fail(error, 400, "invalid_value", "prompt", "'prompt' is empty");
    if (count * (size_t)r->n > COT_API_MAX_CHOICES)
        return cot_api_fail(error, 400, "invalid_value", "prompt",
                            "%zu prompts of %" PRId64 " choices, at most %d choices may be", count, r->n,
                            COT_API_MAX_CHOICES);
    r->prompts = calloc(count, sizeof *r->prompts);
    if (!r->prompts) return cot_api_fail(error, 503, NULL, "prompt", "out of memory");
    for (; r->prompt_count < count; r->prompt_count++) {
        const json_t *one = several ? json_array_get(prompt, r->prompt_count) : prompt;
        if (!read_prompt(&r->prompts[r->prompt_count], one, vocab, error)) {
            r->prompt_count++;
            return false;
        }
    }
    return true;
}

static bool check_part(const json_t *part, size_t index, cot_api_error *error)
{
    const json_t *type = json_is_object(part) ? json_object_get(part, "type") : NULL;
    if (json_is_string(part)) return true;
    if (!json_is_string(type))
        return cot_api_fail(error, 400, "invalid_value", "messages",
                            "messages[%zu] has a part of 'content' without 'type'", index);
    if (!cot_api_is_text(type, "text") && !cot_api_is_text(type, "refusal"))
        return cot_api_fail(error, 400, "unsupported_parameter", "messages",
                            "messages[%zu] has content of type '%s', which is not supported", index,
                            json_string_value(type));
    if (cot_api_is_text(type, "refusal") && !json_is_string(json_object_get(part, "refusal")))
        return cot_api_fail(error, 400, "invalid_value", "messages",
                            "messages[%zu] has a part of type 'refusal' without its text", index);
    return true;
}

static bool check_message(const json_t *message, size_t index, cot_api_error *error)
{
    const json_t *role = json_object_get(message, "role"), *content = cot_api_get(message, "content"), *part;
    size_t i;
    if (!json_is_object(message))
        return cot_api_fail(error, 400, "invalid_type", "messages", "messages[%zu] is no object", index);
    if (!json_string_length(role)) // what roles there are is the template's to say
        return cot_api_fail(error, 400, "invalid_value", "messages", "messages[%zu] has no 'role'", index);
    if (cot_api_has_nul(role))
        return cot_api_fail(error, 400, "invalid_value", "messages",
                            "messages[%zu] has a role with the character U+0000", index);
    if (!content && !cot_api_get(message, "tool_calls") && !cot_api_get(message, "function_call") &&
        !cot_api_is_text(role, "assistant"))
        return cot_api_fail(error, 400, "invalid_value", "messages", "messages[%zu] has no 'content'", index);
    if (content && !json_is_string(content) && !json_is_array(content))
        return cot_api_fail(error, 400, "invalid_type", "messages",
                            "'content' of messages[%zu] is %s, expected a string or a list of parts", index,
                            cot_api_type_name(content));
    if (json_is_array(content))
        json_array_foreach(content, i, part) if (!check_part(part, index, error)) return false;
    return true;
}

/* Makes a refusal, as OpenAI's clients send back what they were told, text of its message: a part among the parts of `content`,
 * or a member beside none. False: memory ran out. */
static bool tell_refusals(json_t *messages)
{
    size_t i, j;
    json_t *message, *part;
    bool good = true;
    json_array_foreach(messages, i, message)
    {
        json_t *content = cot_api_get(message, "content"), *refusal = cot_api_get(message, "refusal");
        if (!content && json_is_string(refusal)) good = good && !json_object_set(message, "content", refusal);
        if (!json_is_array(content)) continue;
        json_array_foreach(content, j, part) if (cot_api_is_text(json_object_get(part, "type"), "refusal"))
            good = good && !json_array_set_new(content, j,
                                               json_pack("{s:s,s:O}", "type", "text", "text",
                                                         json_object_get(part, "refusal")));
    }
    return good;
}

/* What the template is given: messages, and what goes with them. */
static bool read_conversation(cot_api_request *r, cot_api_error *error)
{
    json_t *messages = cot_api_get(r->json, "messages");
    const json_t *kwargs = cot_api_get(r->json, "chat_template_kwargs");
    if (!messages) return cot_api_fail(error, 400, "missing_parameter", "messages", "'messages' is missing");
    if (!json_is_array(messages)) return cot_api_mistyped(error, "messages", messages, "a list of messages");
    if (!json_array_size(messages))
        return cot_api_fail(error, 400, "invalid_value", "messages", "'messages' is empty");
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!check_message(json_array_get(messages, i), i, error)) return false;
    if (kwargs && !json_is_object(kwargs))
        return cot_api_mistyped(error, "chat_template_kwargs", kwargs, "an object");

    if (tell_refusals(messages))
        r->conversation = json_pack("{s:o}", "messages", cot_api_tool_messages(messages));
    json_t *variables = kwargs ? json_copy((json_t *)kwargs) : json_object();
    const char *effort = NULL;
    bool good = r->conversation && variables;
    if (good && r->kind == COT_API_CHAT &&
        !cot_api_get_text(&effort, NULL, r->json, "reasoning_effort", error)) {
        json_decref(variables);
        return false;
    }
    if (good && effort) good = !json_object_set_new(variables, "reasoning_effort", json_string(effort));
    json_t *documents = cot_api_get(r->json, "documents");
    if (json_array_size(documents)) good = good && !json_object_set(r->conversation, "documents", documents);
    if (r->tools.list && r->tools.choice != COT_API_TOOLS_NONE)
        good = good && !json_object_set(r->conversation, "tools", r->tools.list);
    if (good && json_object_size(variables))
        good = (r->chat_template_kwargs = json_dumps(variables, 0)) != NULL;
    json_decref(variables);
    if (!good) return cot_api_fail(error, 503, NULL, NULL, "out of memory");

    r->add_generation_prompt = !r->continue_final_message;
    if (!cot_api_get_bool(&r->add_generation_prompt, r->json, "add_generation_prompt", error)) return false;
    if (r->add_generation_prompt && r->continue_final_message)
        return cot_api_fail(error, 400, "invalid_value", "continue_final_message",
                            "'continue_final_message' and 'add_generation_prompt' exclude one another");
    r->prompts = calloc(1, sizeof *r->prompts);
    r->prompt_count = r->prompts != NULL;
    return r->prompts || cot_api_fail(error, 503, NULL, NULL, "out of memory");
}

static bool read_continued(cot_api_request *r, int64_t vocab, cot_api_error *error)
{
    const json_t *lists = cot_api_get(r->json, "continue_token_ids");
    const size_t choices = cot_api_choices(r);
    if (!lists) return true;
    if (!json_is_array(lists))
        return cot_api_mistyped(error, "continue_token_ids", lists, "a list of token ids for each choice");
    const bool flat = choices == 1 && !json_is_array(json_array_get(lists, 0));
    if (!flat && json_array_size(lists) != choices)
        return cot_api_fail(error, 400, "invalid_value", "continue_token_ids",
                            "'continue_token_ids' holds %zu lists for %zu choices", json_array_size(lists),
                            choices);
    r->continued = calloc(choices, sizeof *r->continued);
    if (!r->continued) return cot_api_fail(error, 503, NULL, NULL, "out of memory");
    for (size_t i = 0; i < choices; i++)
        if (!cot_api_read_ids(&r->continued[i], flat ? lists : json_array_get(lists, i), "continue_token_ids",
                              vocab, error))
            return false;
    return true;
}

/* ---- whole requests ---- */

static bool read_generation(cot_api_request *r, int64_t vocab, cot_api_error *error)
{
    if (!read_samplers(r, error) || !read_sides(r, error) || !read_stream_options(r, error) ||
        !read_stops(r, error) || !read_bias(r, vocab, error) || !read_max_tokens(r, error) ||
        !read_logprobs(r, error) || !read_logprob_tokens(r, vocab, error) ||
        !cot_api_read_constraint(r, error) || (r->kind == COT_API_CHAT && !cot_api_read_tools(r, error)))
        return false;
    if (r->echo && r->kind == COT_API_CHAT)
        return cot_api_fail(error, 400, "unsupported_parameter", "echo",
                            "'echo' is not supported for conversations");
    if (!(r->kind == COT_API_CHAT ? read_conversation(r, error) : read_prompts(r, vocab, error)) ||
        !read_continued(r, vocab, error))
        return false;
    if (r->continued && r->echo)
        return cot_api_fail(error, 400, "invalid_value", "continue_token_ids",
                            "'continue_token_ids' does not go with 'echo'");
    return true;
}

bool cot_api_parse(cot_api_request *r, cot_api_kind kind, json_t *json, const cot_api_defaults *defaults,
                   int64_t vocab, cot_api_error *error)
{
    *r = (cot_api_request){.kind = kind,
                           .json = json,
                           .skip_special_tokens = true,
                           .include_reasoning = true,
                           .thinking_token_budget = -1,
                           // a template writes what begins a conversation
                           .add_special_tokens = kind == COT_API_COMPLETION ||
                                                 (kind == COT_API_TOKENIZE && !cot_api_get(json, "messages")),
                           .n = 1,
                           .max_tokens = -1,
                           .logprobs = -1};
    cot_sampling_init(&r->sampling);
    r->sampling.temperature = defaults->temperature;
    r->sampling.top_p = defaults->top_p;
    r->sampling.min_p = defaults->min_p;
    r->sampling.top_k = defaults->top_k;
    r->sampling.repetition_penalty = defaults->repetition_penalty;
    cot_api_list_unknown(r->unknown, sizeof r->unknown, json, kind);
    if (!cot_api_check_refused(json, kind, error) || !read_simple(r, error)) return false;
    switch (kind) {
    case COT_API_COMPLETION:
    case COT_API_CHAT:
        return read_generation(r, vocab, error);
    case COT_API_TOKENIZE:
        if (!cot_api_get(json, "messages")) return read_prompts(r, vocab, error);
        return cot_api_read_tools(r, error) && read_conversation(r, error);
    default: {
        const json_t *tokens = cot_api_get(json, "tokens");
        if (!tokens) return cot_api_fail(error, 400, "missing_parameter", "tokens", "'tokens' is missing");
        return cot_api_read_ids(&r->detokenize, tokens, "tokens", vocab, error);
    }
    }
}

void cot_api_request_clear(cot_api_request *r)
{
    const size_t choices = r->prompts ? cot_api_choices(r) : 0;
    for (size_t i = 0; i < r->prompt_count; i++) {
        free(r->prompts[i].owned_text);
        free(r->prompts[i].tokens.ids);
    }
    for (size_t i = 0; r->continued && i < choices; i++) free(r->continued[i].ids);
    free(r->prompts);
    free(r->continued);
    free(r->stop_tokens.ids);
    free(r->bias_tokens.ids);
    free(r->logprob_tokens.ids);
    free(r->bias);
    free(r->stops);
    free(r->detokenize.ids);
    free(r->chat_template_kwargs);
    free(r->constraint.text);
    free(r->constraint.format);
    cot_constraint_close(r->constraint.compiled);
    json_decref(r->tools.list);
    json_decref(r->conversation);
    json_decref(r->json);
    *r = (cot_api_request){0};
}
