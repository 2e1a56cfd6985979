#include "tokenizer/pretokenize.h"

#include "base/error.h"
#include "tokenizer/utf8.h"

/* GPT-2's words (Radford and others 2019). */
static const char gpt2_words[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static cot_pretokenizer_step *add(cot_pretokenizer *pretokenizer, cot_pretokenizer_kind kind)
{
    cot_pretokenizer_step *step = pretokenizer->steps + pretokenizer->count++;
    *step = (cot_pretokenizer_step){.kind = kind};
    return step;
}

static cot_status add_split(cot_pretokenizer *pretokenizer, const char *pattern, bool literal,
                            cot_split_behavior behavior, cot_error *error)
{
    cot_pretokenizer_step *step = add(pretokenizer, COT_PRETOKENIZER_SPLIT);
    step->behavior = behavior;
    return cot_regex_open(&step->pattern, pattern, strlen(pattern), literal, error);
}

static cot_status load_byte_level(cot_pretokenizer *pretokenizer, const json_t *json, cot_error *error)
{
    bool prefix, use_regex;
    cot_status status =
        cot_field_bool(&prefix, json, "add_prefix_space", true, "ByteLevel pre-tokenizer", error);
    if (status == COT_OK)
        status = cot_field_bool(&use_regex, json, "use_regex", true, "ByteLevel pre-tokenizer", error);
    if (status != COT_OK) return status;
    if (prefix) memcpy(add(pretokenizer, COT_PRETOKENIZER_PREFIX)->content, " ", 2);
    pretokenizer->start_moves |= prefix;
    if (use_regex) status = add_split(pretokenizer, gpt2_words, false, COT_SPLIT_ISOLATED, error);
    add(pretokenizer, COT_PRETOKENIZER_BYTES);
    return status;
}

static cot_status load_split(cot_pretokenizer *pretokenizer, const json_t *json, cot_error *error)
{
    static const char *const behaviors[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                            "Contiguous"}; // in the order of cot_split_behavior
    cot_text behavior;
    size_t b = 0;
    cot_pretokenizer_step *step = add(pretokenizer, COT_PRETOKENIZER_SPLIT);
    cot_status status = cot_field_text_needed(&behavior, json, "behavior", "Split pre-tokenizer", error);
    if (status == COT_OK)
        status = cot_field_bool(&step->invert, json, "invert", false, "Split pre-tokenizer", error);
    if (status != COT_OK) return status;
    while (b < 5 && !cot_text_is(behavior, behaviors[b])) b++;
    if (b == 5)
        return cot_fail(error, COT_UNSUPPORTED, "behavior '%s' of a Split is not supported", behavior.data);
    step->behavior = (cot_split_behavior)b;
    return cot_regex_load(&step->pattern, json_object_get(json, "pattern"), "Split pre-tokenizer", error);
}

static cot_status load_digits(cot_pretokenizer *pretokenizer, const json_t *json, cot_error *error)
{
    bool individual;
    cot_status status =
        cot_field_bool(&individual, json, "individual_digits", false, "Digits pre-tokenizer", error);
    if (status != COT_OK) return status;
    return add_split(pretokenizer, "\\p{N}", false, individual ? COT_SPLIT_ISOLATED : COT_SPLIT_CONTIGUOUS,
                     error);
}

static cot_status load_metaspace(cot_pretokenizer *pretokenizer, const json_t *json, cot_error *error)
{
    static const char where[] = "Metaspace pre-tokenizer";
    cot_text replacement, scheme;
    bool prefix, split = true;
    cot_status status = cot_field_text_needed(&replacement, json, "replacement", where, error);
    if (status == COT_OK) status = cot_field_text(&scheme, json, "prepend_scheme", where, error);
    if (status == COT_OK) status = cot_field_bool(&prefix, json, "add_prefix_space", true, where, error);
    if (status == COT_OK) status = cot_field_bool(&split, json, "split", true, where, error);
    if (status != COT_OK) return status;
    if (!replacement.bytes || replacement.bytes != cot_utf8_length(replacement.data[0]) ||
        !replacement.data[0])
        return cot_fail(error, COT_MALFORMED, "the replacement of a Metaspace is not one character");
    // Old files say add_prefix_space, new ones prepend_scheme.
    bool never = scheme.data ? cot_text_is(scheme, "never") : !prefix, first = cot_text_is(scheme, "first");
    if (scheme.data && !never && !first && !cot_text_is(scheme, "always"))
        return cot_fail(error, COT_UNSUPPORTED, "prepend_scheme '%s' of a Metaspace is not supported",
                        scheme.data);
    if (first && pretokenizer->start_moves)
        return cot_fail(
            error, COT_UNSUPPORTED,
            "prepend_scheme 'first' of a Metaspace is not supported behind what moves the text's start");
    cot_pretokenizer_step *replace = add(pretokenizer, COT_PRETOKENIZER_REPLACE);
    memcpy(replace->content, replacement.data, replacement.bytes);
    status = cot_regex_open(&replace->pattern, " ", 1, true, error);
    if (!never) {
        cot_pretokenizer_step *step = add(pretokenizer, COT_PRETOKENIZER_PREFIX);
        memcpy(step->content, replacement.data, replacement.bytes);
        step->first_only = first;
        pretokenizer->start_moves = true;
    }
    if (split && status == COT_OK)
        status = add_split(pretokenizer, replace->content, true, COT_SPLIT_MERGED_WITH_NEXT, error);
    return status;
}

static cot_status load_step(void *context, const json_t *json, const char *type, cot_error *error)
{
    if (!strcmp(type, "ByteLevel")) return load_byte_level(context, json, error);
    if (!strcmp(type, "Split")) return load_split(context, json, error);
    if (!strcmp(type, "Digits")) return load_digits(context, json, error);
    if (!strcmp(type, "Metaspace")) return load_metaspace(context, json, error);
    return cot_fail(error, COT_UNSUPPORTED, "pre-tokenizer type '%s' is not supported", type);
}

cot_status cot_pretokenizer_load(cot_pretokenizer *pretokenizer, const json_t *json, bool start_moves,
                                 cot_error *error)
{
    pretokenizer->count = 0;
    pretokenizer->start_moves = start_moves;
    return cot_field_steps(json, "pre-tokenizer", "pretokenizers", load_step, pretokenizer, error);
}

void cot_pretokenizer_close(cot_pretokenizer *pretokenizer)
{
    for (size_t i = 0; i < pretokenizer->count; i++) cot_regex_close(pretokenizer->steps[i].pattern);
    pretokenizer->count = 0;
}
