#include "tokenizer/normalize.h"

#include "base/error.h"

static cot_status load_step(void *context, const json_t *json, const char *type, cot_error *error)
{
    cot_normalizer *normalizer = context;
    cot_normalizer_step *step = normalizer->steps + normalizer->count;
    cot_status status = COT_OK;
    cot_text content = {0};
    *step = (cot_normalizer_step){0};
    if (!strcmp(type, "NFC")) {
        step->kind = COT_NORMALIZER_NFC;
    } else if (!strcmp(type, "Prepend")) {
        step->kind = COT_NORMALIZER_PREPEND;
        status = cot_field_text_needed(&content, json, "prepend", "normalizer", error);
    } else if (!strcmp(type, "Replace")) {
        step->kind = COT_NORMALIZER_REPLACE;
        status = cot_field_text_needed(&content, json, "content", "normalizer", error);
        if (status == COT_OK)
            status = cot_regex_load(&step->pattern, json_object_get(json, "pattern"), "normalizer", error);
    } else {
        return cot_fail(error, COT_UNSUPPORTED, "normalizer type '%s' is not supported", type);
    }
    normalizer->count++;
    if (status == COT_OK && content.data && !(step->content = cot_text_copy(content)).data)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    return status;
}

cot_status cot_normalizer_load(cot_normalizer *normalizer, const json_t *json, cot_error *error)
{
    normalizer->count = 0;
    return cot_field_steps(json, "normalizer", "normalizers", load_step, normalizer, error);
}

bool cot_normalizer_moves_start(const cot_normalizer *normalizer)
{
    for (size_t i = 0; i < normalizer->count; i++)
        if (normalizer->steps[i].kind != COT_NORMALIZER_NFC) return true;
    return false;
}

void cot_normalizer_close(cot_normalizer *normalizer)
{
    for (size_t i = 0; i < normalizer->count; i++) {
        cot_regex_close(normalizer->steps[i].pattern);
        free((char *)(uintptr_t)normalizer->steps[i].content.data);
    }
    normalizer->count = 0;
}

static cot_status run_step(const cot_normalizer_step *step, cot_regex_scratch *scratch, cot_buffer *text,
                           cot_buffer *spare, cot_error *error)
{
    if (step->kind == COT_NORMALIZER_NFC) return cot_nfc(text, error);
    cot_status status = COT_OK;
    spare->bytes = 0;
    if (step->kind == COT_NORMALIZER_REPLACE)
        status =
            cot_regex_replace(step->pattern, scratch, text->data, text->bytes, step->content, spare, error);
    else if (!cot_buffer_append(spare, step->content.data, step->content.bytes) ||
             !cot_buffer_append(spare, text->data, text->bytes))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    cot_buffer swapped = *text;
    *text = *spare;
    *spare = swapped;
    return status;
}

cot_status cot_normalizer_run(const cot_normalizer *normalizer, cot_regex_scratch *scratch, cot_buffer *text,
                              cot_buffer *spare, cot_error *error)
{
    cot_status status = COT_OK;
    for (size_t i = 0; i < normalizer->count && text->bytes && status == COT_OK; i++)
        status = run_step(normalizer->steps + i, scratch, text, spare, error);
    return status;
}

cot_text cot_text_copy(cot_text text)
{
    char *data = malloc(text.bytes + 1);
    if (!data) return (cot_text){0};
    memcpy(data, text.data, text.bytes);
    data[text.bytes] = 0;
    return (cot_text){data, text.bytes};
}
