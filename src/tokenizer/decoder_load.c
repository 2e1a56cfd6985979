#include "tokenizer/decoder.h"

#include "base/error.h"
#include "tokenizer/utf8.h"

static cot_status take_content(cot_decoder_step *step, cot_text content, cot_error *error)
{
    step->content = cot_text_copy(content);
    return step->content.data ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
}

static bool is_one_character(cot_text text)
{
    return text.bytes && text.bytes == cot_utf8_length(text.data[0]);
}

static cot_status load_replace(cot_decoder_step *step, const json_t *json, cot_error *error)
{
    cot_text content;
    cot_status status = cot_field_text_needed(&content, json, "content", "Replace decoder", error);
    if (status == COT_OK) status = take_content(step, content, error);
    if (status != COT_OK) return status;
    return cot_regex_load(&step->pattern, json_object_get(json, "pattern"), "Replace decoder", error);
}

static cot_status load_metaspace(cot_decoder_step *step, const json_t *json, cot_error *error)
{
    static const char where[] = "Metaspace decoder";
    cot_text content, scheme;
    bool prefix;
    cot_status status = cot_field_text_needed(&content, json, "replacement", where, error);
    if (status == COT_OK) status = cot_field_text(&scheme, json, "prepend_scheme", where, error);
    if (status == COT_OK) status = cot_field_bool(&prefix, json, "add_prefix_space", true, where, error);
    if (status != COT_OK) return status;
    if (!is_one_character(content))
        return cot_fail(error, COT_MALFORMED, "the replacement of a Metaspace is not one character");
    step->strip_first = scheme.data ? !cot_text_is(scheme, "never") : prefix;
    return take_content(step, content, error);
}

static cot_status load_strip(cot_decoder_step *step, const json_t *json, cot_error *error)
{
    const json_t *start = json_object_get(json, "start"), *stop = json_object_get(json, "stop");
    cot_text content;
    cot_status status = cot_field_text_needed(&content, json, "content", "Strip decoder", error);
    if (status != COT_OK) return status;
    if (!is_one_character(content) || !json_is_integer(start) || !json_is_integer(stop) ||
        json_integer_value(start) < 0 || json_integer_value(stop) < 0)
        return cot_fail(error, COT_MALFORMED,
                        "a Strip needs one character as 'content', and 'start' and 'stop'");
    step->start = (size_t)json_integer_value(start);
    step->stop = (size_t)json_integer_value(stop);
    return take_content(step, content, error);
}

static cot_status load_step(void *context, const json_t *json, const char *type, cot_error *error)
{
    static const char *const types[] = {"ByteLevel", "ByteFallback", "Fuse", "Replace",
                                        "Metaspace", "Strip"}; // in the order of cot_decoder_kind
    cot_decoder *decoder = context;
    size_t kind = 0;
    while (kind < 6 && strcmp(type, types[kind])) kind++;
    if (kind == 6) return cot_fail(error, COT_UNSUPPORTED, "decoder type '%s' is not supported", type);
    cot_decoder_step *step = decoder->steps + decoder->count++;
    *step = (cot_decoder_step){.kind = (cot_decoder_kind)kind};
    switch (step->kind) {
    case COT_DECODER_REPLACE:
        return load_replace(step, json, error);
    case COT_DECODER_METASPACE:
        return load_metaspace(step, json, error);
    case COT_DECODER_STRIP:
        return load_strip(step, json, error);
    default:
        return COT_OK;
    }
}

cot_status cot_decoder_load(cot_decoder *decoder, const json_t *json, cot_error *error)
{
    decoder->count = 0;
    if (!json || json_is_null(json))
        decoder->steps[decoder->count++] = (cot_decoder_step){.kind = COT_DECODER_JOIN};
    return cot_field_steps(json, "decoder", "decoders", load_step, decoder, error);
}

void cot_decoder_close(cot_decoder *decoder)
{
    for (size_t i = 0; i < decoder->count; i++) {
        cot_regex_close(decoder->steps[i].pattern);
        free((char *)(uintptr_t)decoder->steps[i].content.data);
    }
    decoder->count = 0;
}
