#include "server/api_fields.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

json_t *cot_api_get(const json_t *object, const char *name)
{
    json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

const char *cot_api_type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "a whole number";
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    default:
        return "null";
    }
}

bool cot_api_mistyped(cot_api_error *error, const char *name, const json_t *value, const char *expected)
{
    return cot_api_fail(error, 400, "invalid_type", name, "'%s' is %s, expected %s", name,
                        cot_api_type_name(value), expected);
}

bool cot_api_get_bool(bool *out, const json_t *object, const char *name, cot_api_error *error)
{
    const json_t *value = cot_api_get(object, name);
    if (!value) return true;
    if (!json_is_boolean(value)) return cot_api_mistyped(error, name, value, "true or false");
    *out = json_is_true(value);
    return true;
}

bool cot_api_get_integer(int64_t *out, const json_t *object, const char *name, int64_t least, int64_t most,
                         cot_api_error *error)
{
    const json_t *value = cot_api_get(object, name);
    if (!value) return true;
    const double real = json_number_value(value);
    const bool whole =
        json_is_integer(value) || (json_is_real(value) && real == floor(real) && fabs(real) < 0x1p53);
    if (!whole) return cot_api_mistyped(error, name, value, "a whole number");
    const int64_t integer = json_is_integer(value) ? json_integer_value(value) : (int64_t)real;
    if (integer < least || integer > most)
        return cot_api_fail(error, 400, "invalid_value", name,
                            "'%s' is %" PRId64 ", it must be in [%" PRId64 ", %" PRId64 "]", name, integer,
                            least, most);
    *out = integer;
    return true;
}

bool cot_api_get_real(double *out, const json_t *object, const char *name, double least, double most,
                      cot_api_error *error)
{
    const json_t *value = cot_api_get(object, name);
    if (!value) return true;
    if (!json_is_number(value)) return cot_api_mistyped(error, name, value, "a number");
    const double real = json_number_value(value);
    if (!(real >= least && real <= most))
        return cot_api_fail(error, 400, "invalid_value", name, "'%s' is %g, it must be in [%g, %g]", name,
                            real, least, most);
    *out = real;
    return true;
}

bool cot_api_has_nul(const json_t *text)
{
    return strlen(json_string_value(text)) < json_string_length(text);
}

bool cot_api_is_text(const json_t *value, const char *text)
{
    return json_is_string(value) && !cot_api_has_nul(value) && strcmp(json_string_value(value), text) == 0;
}

bool cot_api_get_text(const char **out, size_t *bytes, const json_t *object, const char *name,
                      cot_api_error *error)
{
    const json_t *value = cot_api_get(object, name);
    if (!value) return true;
    if (!json_is_string(value)) return cot_api_mistyped(error, name, value, "a string");
    if (!bytes && cot_api_has_nul(value))
        return cot_api_fail(error, 400, "invalid_value", name, "'%s' has the character U+0000", name);
    *out = json_string_value(value);
    if (bytes) *bytes = json_string_length(value);
    return true;
}

bool cot_api_read_ids(cot_api_ids *ids, const json_t *array, const char *name, int64_t vocab,
                      cot_api_error *error)
{
    if (!json_is_array(array)) return cot_api_mistyped(error, name, array, "a list of token ids");
    const size_t count = json_array_size(array);
    ids->count = 0;
    ids->ids = malloc((count + 1) * sizeof *ids->ids);
    if (!ids->ids) return cot_api_fail(error, 503, NULL, name, "out of memory");
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(array, i);
        if (!json_is_integer(item))
            return cot_api_mistyped(error, name, item, "a token id in every place of the list");
        const json_int_t id = json_integer_value(item);
        if (vocab == COT_API_ANY_ID && id < 0)
            return cot_api_fail(error, 400, "invalid_value", name,
                                "'%s': token %zu is %lld, ids are 0 or more", name, i, (long long)id);
        if (vocab != COT_API_ANY_ID && (id < 0 || id >= vocab))
            return cot_api_fail(error, 400, "invalid_value", name,
                                "'%s': token %zu is %lld, the vocabulary has %" PRId64, name, i,
                                (long long)id, vocab);
        ids->ids[ids->count++] = id < COT_API_ANY_ID ? (int32_t)id : COT_API_ANY_ID; // no model has either
    }
    return true;
}

/* ---- what is refused, what is known ---- */

enum { COMPLETION = 1, CHAT = 2, TOKENIZE = 4, DETOKENIZE = 8, BOTH = COMPLETION | CHAT };

static unsigned mask_of(cot_api_kind kind)
{
    static const unsigned masks[] = {[COT_API_COMPLETION] = COMPLETION,
                                     [COT_API_CHAT] = CHAT,
                                     [COT_API_TOKENIZE] = TOKENIZE,
                                     [COT_API_DETOKENIZE] = DETOKENIZE};
    return masks[kind];
}

bool cot_api_is_off(const json_t *value)
{
    return json_is_false(value) || (json_is_array(value) && !json_array_size(value)) ||
           (json_is_object(value) && !json_object_size(value)) || cot_api_is_text(value, "") ||
           cot_api_is_text(value, "none");
}

static bool says_one(const json_t *value)
{
    return json_is_number(value) && json_number_value(value) == 1;
}

static bool says_zero(const json_t *value)
{
    return json_is_number(value) && json_number_value(value) == 0;
}

static bool says_none_above_zero(const json_t *value)
{
    return json_is_number(value) && json_number_value(value) <= 0;
}

static bool says_text(const json_t *value)
{
    const json_t *type = json_is_object(value) ? json_object_get(value, "type") : NULL;
    return cot_api_is_text(value, "text") || cot_api_is_text(type, "text") ||
           (json_is_array(value) && json_array_size(value) == 1 &&
            cot_api_is_text(json_array_get(value, 0), "text"));
}

static bool says_auto(const json_t *value)
{
    return cot_api_is_text(value, "auto");
}

/* Fields that would change the answer and are not supported. */
static const struct refused {
    const char *name;
    unsigned kinds;
    bool (*off)(const json_t *value); // further values that ask for nothing; NULL: none
} refused[] = {
    // vLLM's
    {"repetition_detection", BOTH, NULL},
    {"vllm_xargs", BOTH, NULL},
    // llama.cpp's
    {"n_probs", BOTH, says_zero},
    {"typical_p", BOTH, says_one},
    {"mirostat", BOTH, says_zero},
    {"dry_multiplier", BOTH, says_zero},
    {"xtc_probability", BOTH, says_zero},
    {"dynatemp_range", BOTH, says_zero},
    {"top_n_sigma", BOTH, says_none_above_zero},
    {"lora", BOTH, NULL},
    // SGLang's
    {"input_ids", CHAT, NULL},
    {"stop_regex", BOTH, NULL},
    {"custom_logit_processor", BOTH, NULL},
    {"custom_params", BOTH, NULL},
    {"lora_path", BOTH, NULL},
    {"return_hidden_states", BOTH, NULL},
    // OpenAI's
    {"reasoning", BOTH, NULL},
    {"tools", COMPLETION, NULL},
    {"tool_choice", COMPLETION, says_auto}, // without tools it chooses none
    {"functions", COMPLETION, NULL},
    {"function_call", COMPLETION, says_auto},
    {"structural_tag", BOTH, NULL},
    {"modalities", BOTH, says_text},
    {"audio", BOTH, NULL},
    {"web_search_options", BOTH, NULL},
    {"suffix", BOTH, NULL},
    {"best_of", BOTH, says_one},
    {"use_beam_search", BOTH, NULL},
    {"allowed_token_ids", BOTH, NULL},
    {"bad_words", BOTH, NULL},
    {"prompt_embeds", BOTH, NULL},
    {"prompt_logprobs", BOTH, NULL},
    {"logits_processors", BOTH, NULL},
    {"chat_template", CHAT | TOKENIZE, NULL},
    {"mm_processor_kwargs", CHAT | TOKENIZE, NULL},
    {"kv_transfer_params", BOTH, NULL},
};

bool cot_api_check_refused(const json_t *object, cot_api_kind kind, cot_api_error *error)
{
    const unsigned mask = mask_of(kind);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const json_t *value = refused[i].kinds & mask ? cot_api_get(object, refused[i].name) : NULL;
        if (value && !cot_api_is_off(value) && !(refused[i].off && refused[i].off(value)))
            return cot_api_fail(error, 400, "unsupported_parameter", refused[i].name, "'%s' is not supported",
                                refused[i].name);
    }
    return true;
}

/* What else a request may say; the last row's have no effect on the answer. */
static const struct known {
    unsigned kinds;
    const char *names; // each between blanks
} known[] = {
    {BOTH, " stream stream_options stop stop_token_ids include_stop_str_in_output n seed temperature top_p "
           "top_k min_p "
           "presence_penalty frequency_penalty repetition_penalty logit_bias logprobs max_tokens min_tokens "
           "ignore_eos "
           "skip_special_tokens truncate_prompt_tokens echo return_token_ids cache_salt continue_token_ids "
           "response_format structured_outputs json_schema regex ebnf grammar "
           "n_predict repeat_penalty repeat_last_n truncation_side return_tokens_as_token_ids "
           "logprob_token_ids verbosity "
           // of samplers, and which there are; some are refused where they are on
           "samplers mirostat_tau mirostat_eta dry_base dry_allowed_length dry_penalty_last_n "
           "dry_sequence_breakers "
           "xtc_threshold dynatemp_exponent "},
    {COMPLETION, " prompt input_ids "},
    {CHAT, " top_logprobs max_completion_tokens reasoning_effort include_reasoning thinking_token_budget "
           "tool_choice functions function_call "},
    {CHAT | TOKENIZE,
     " messages documents add_generation_prompt continue_final_message chat_template_kwargs "},
    {CHAT | TOKENIZE, " tools "},
    {TOKENIZE, " prompt return_token_strs tool_choice "},
    {BOTH | TOKENIZE, " add_special_tokens "},
    {DETOKENIZE, " tokens "},
    {BOTH | TOKENIZE | DETOKENIZE,
     " model user metadata store service_tier parallel_tool_calls priority request_id "
     "safety_identifier prompt_cache_key "},
};

static bool is_known(const char *name, unsigned mask)
{
    char word[66];
    if ((size_t)snprintf(word, sizeof word, " %s ", name) >= sizeof word) return false;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].kinds & mask && strstr(known[i].names, word)) return true;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (refused[i].kinds & mask && strcmp(refused[i].name, name) == 0) return true;
    return strncmp(name, "guided_", 7) == 0;
}

void cot_api_list_unknown(char *names, size_t bytes, const json_t *object, cot_api_kind kind)
{
    const char *name;
    json_t *value;
    size_t used = 0;
    *names = 0;
    json_object_foreach((json_t *)object, name, value)
    {
        if (is_known(name, mask_of(kind))) continue;
        const int more = snprintf(names + used, bytes - used, "%s%s", used ? ", " : "", name);
        if (more < 0 || (size_t)more >= bytes - used) break;
        used += (size_t)more;
    }
    names[used] = 0;
}
