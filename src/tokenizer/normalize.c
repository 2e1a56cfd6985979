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

static char least(const char *own, size_t from, size_t to)
{
    return !memchr(own + from, 0, to - from);
}

static bool append_marks(cot_buffer *own, char mark, size_t count)
{
    bool appended = true;
    for (size_t i = 0; i < count && appended; i++) appended = cot_buffer_append(own, &mark, 1);
    return appended;
}

/* NFC of a piece of text, and its marks: as they were where nothing changed. */
static cot_status append_nfc(cot_buffer *text, cot_buffer *own, const char *piece, const char *marks,
                             size_t bytes, cot_error *error)
{
    cot_buffer made = {0};
    bool appended = cot_buffer_append(&made, piece, bytes);
    cot_status status = appended ? cot_nfc(&made, error) : COT_OK;
    if (appended && status == COT_OK) {
        bool same = made.bytes == bytes && !memcmp(made.data, piece, bytes);
        appended = cot_buffer_append(text, made.data, made.bytes) &&
                   (same ? cot_buffer_append(own, marks, bytes)
                         : append_marks(own, least(marks, 0, bytes), made.bytes));
    }
    cot_buffer_free(&made);
    return appended ? status : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
}

/* In pieces that an ASCII character begins, since nothing before one changes it or what follows it. */
static cot_status nfc_marked(cot_buffer *text, cot_buffer *own, cot_error *error)
{
    cot_buffer made = {0}, marks = {0};
    cot_status status = COT_OK;
    for (size_t start = 0, end; start < text->bytes && status == COT_OK; start = end) {
        for (end = start + 1; end < text->bytes && (unsigned char)text->data[end] >= 0x80;) end++;
        status = append_nfc(&made, &marks, text->data + start, own->data + start, end - start, error);
    }
    cot_buffer_free(status == COT_OK ? text : &made);
    cot_buffer_free(status == COT_OK ? own : &marks);
    if (status != COT_OK) return status;
    *text = made;
    *own = marks;
    return COT_OK;
}

/* What replaces a match has the least mark of the match; what replaces nothing is nobody's own. */
static bool replace_marks(cot_buffer *own, const cot_text_spans *spans, size_t content_bytes)
{
    cot_buffer marks = {0};
    bool appended = true;
    for (size_t i = 0; i < spans->count && appended; i++) {
        cot_text_span span = spans->items[i];
        char mark = span.end > span.start && least(own->data, span.start, span.end);
        appended = span.matched ? append_marks(&marks, mark, content_bytes)
                                : cot_buffer_append(&marks, own->data + span.start, span.end - span.start);
    }
    cot_buffer_free(appended ? own : &marks);
    if (appended) *own = marks;
    return appended;
}

static bool prepend_marks(cot_buffer *own, size_t content_bytes)
{
    cot_buffer marks = {0};
    bool appended =
        append_marks(&marks, 1, content_bytes) && cot_buffer_append(&marks, own->data, own->bytes);
    cot_buffer_free(appended ? own : &marks);
    if (appended) *own = marks;
    return appended;
}

static cot_status run_step(const cot_normalizer_step *step, cot_regex_scratch *scratch, cot_buffer *text,
                           cot_buffer *own, cot_buffer *spare, cot_error *error)
{
    if (step->kind == COT_NORMALIZER_NFC) return own ? nfc_marked(text, own, error) : cot_nfc(text, error);
    cot_status status = COT_OK;
    bool appended = true;
    spare->bytes = 0;
    if (step->kind == COT_NORMALIZER_REPLACE) {
        status =
            cot_regex_replace(step->pattern, scratch, text->data, text->bytes, step->content, spare, error);
        if (status == COT_OK && own) appended = replace_marks(own, &scratch->spans, step->content.bytes);
    } else {
        appended = cot_buffer_append(spare, step->content.data, step->content.bytes) &&
                   cot_buffer_append(spare, text->data, text->bytes) &&
                   (!own || prepend_marks(own, step->content.bytes));
    }
    if (!appended) status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    cot_buffer swapped = *text;
    *text = *spare;
    *spare = swapped;
    return status;
}

cot_status cot_normalizer_run(const cot_normalizer *normalizer, cot_regex_scratch *scratch, cot_buffer *text,
                              cot_buffer *own, cot_buffer *spare, cot_error *error)
{
    cot_status status = COT_OK;
    for (size_t i = 0; i < normalizer->count && text->bytes && status == COT_OK; i++)
        status = run_step(normalizer->steps + i, scratch, text, own, spare, error);
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
