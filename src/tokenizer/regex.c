#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/regex.h"

#include "base/error.h"
#include "tokenizer/oniguruma.h"
#include "tokenizer/utf8.h"

#include <pcre2.h>

/* A search may take this many backtracking steps and BACKTRACKS_A_BYTE for each byte of the text: enough for
 * a run of white space as long as the text under the hub's patterns, and an end for those that would take for
 * ever. */
enum { BACKTRACKS = 1000000, BACKTRACKS_A_BYTE = 8, HEAP_KIB = 256 * 1024, LONGEST_PATTERN = 1 << 16 };

struct cot_regex {
    pcre2_code *code;
};

void cot_regex_versions(char pcre2[64], char unicode[64])
{
    *pcre2 = *unicode = 0; // both are shorter than 24 bytes
    if (pcre2_config(PCRE2_CONFIG_VERSION, NULL) <= 64) pcre2_config(PCRE2_CONFIG_VERSION, pcre2);
    if (pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, NULL) <= 64)
        pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, unicode);
    pcre2[strcspn(pcre2, " ")] = 0; // the day of its release follows
}

static cot_status fail_pcre2(cot_error *error, const char *what, int code)
{
    char text[128];
    if (code == PCRE2_ERROR_NOMEMORY) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
    return cot_fail(error, COT_MALFORMED, "%s: %s", what, text);
}

static cot_status compile(cot_regex *regex, const char *pattern, size_t bytes, uint32_t options,
                          cot_error *error)
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_max_pattern_length(context, LONGEST_PATTERN);
    int code;
    PCRE2_SIZE offset;
    regex->code = pcre2_compile((PCRE2_SPTR)pattern, bytes, options, &code, &offset, context);
    pcre2_compile_context_free(context);
    if (!regex->code) return fail_pcre2(error, "a regular expression is wrong", code);
    pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE); // without it PCRE2 interprets
    return COT_OK;
}

cot_status cot_regex_open(cot_regex **regex, const char *pattern, size_t bytes, bool literal,
                          cot_error *error)
{
    cot_buffer translated = {0};
    cot_status status = COT_OK;
    *regex = calloc(1, sizeof **regex);
    if (!*regex) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    if (literal) {
        status = compile(*regex, pattern, bytes, PCRE2_UTF | PCRE2_LITERAL, error);
    } else {
        status = cot_oniguruma_translate(&translated, pattern, bytes, error);
        if (status == COT_OK)
            status = compile(*regex, translated.data, translated.bytes,
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, error);
        cot_buffer_free(&translated);
    }
    if (status != COT_OK) {
        cot_regex_close(*regex);
        *regex = NULL;
    }
    return status;
}

cot_status cot_regex_load(cot_regex **regex, const json_t *pattern, const char *where, cot_error *error)
{
    cot_text string, expression;
    *regex = NULL;
    cot_status status = cot_field_text(&string, pattern, "String", where, error);
    if (status == COT_OK) status = cot_field_text(&expression, pattern, "Regex", where, error);
    if (status != COT_OK) return status;
    if (!string.data == !expression.data)
        return cot_fail(error, COT_MALFORMED, "the pattern of the %s is neither a String nor a Regex", where);
    cot_text text = string.data ? string : expression;
    return cot_regex_open(regex, text.data, text.bytes, string.data, error);
}

void cot_regex_close(cot_regex *regex)
{
    if (!regex) return;
    pcre2_code_free(regex->code);
    free(regex);
}

static cot_status prepare(cot_regex_scratch *scratch, size_t bytes, cot_error *error)
{
    if (!scratch->data) scratch->data = pcre2_match_data_create(1, NULL);
    if (!scratch->context) scratch->context = pcre2_match_context_create(NULL);
    if (!scratch->data || !scratch->context) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    size_t limit = BACKTRACKS + BACKTRACKS_A_BYTE * bytes;
    pcre2_set_match_limit(scratch->context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    pcre2_set_heap_limit(scratch->context, HEAP_KIB);
    return COT_OK;
}

static cot_status add_span(cot_text_spans *spans, size_t start, size_t end, bool matched, cot_error *error)
{
    void *items = spans->items;
    bool grown = cot_grow(&items, &spans->capacity, spans->count + 1, sizeof *spans->items);
    spans->items = items;
    if (!grown) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    spans->items[spans->count++] = (cot_text_span){start, end, matched};
    return COT_OK;
}

/* Searches from `from` on; `*found` is false when there is no match. */
static cot_status search(const cot_regex *regex, cot_regex_scratch *scratch, const char *text, size_t bytes,
                         size_t from, cot_text_span *match, bool *found, cot_error *error)
{
    PCRE2_SPTR subject = (PCRE2_SPTR)(text ? text : "");
    int code =
        pcre2_match(regex->code, subject, bytes, from, PCRE2_NO_UTF_CHECK, scratch->data, scratch->context);
    if (code == PCRE2_ERROR_JIT_STACKLIMIT) // the interpreter takes its stack from the heap
        code = pcre2_match(regex->code, subject, bytes, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                           scratch->data, scratch->context);
    *found = code >= 0;
    if (code == PCRE2_ERROR_NOMATCH) return COT_OK;
    if (code < 0)
        return fail_pcre2(error, "a regular expression of the tokenizer does not end on this text", code);
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(scratch->data);
    *match = (cot_text_span){ends[0], ends[1], true};
    return COT_OK;
}

cot_status cot_regex_split(const cot_regex *regex, cot_regex_scratch *scratch, const char *text, size_t bytes,
                           size_t most, cot_error *error)
{
    cot_text_spans *spans = &scratch->spans;
    spans->count = 0;
    if (!bytes) return COT_OK;
    cot_status status = prepare(scratch, bytes, error);
    size_t from = 0, end = 0; // where to search next; where the last match ended
    bool any = false, found = true;
    while (status == COT_OK && from <= bytes) {
        cot_text_span match;
        status = search(regex, scratch, text, bytes, from, &match, &found, error);
        if (status != COT_OK || !found) break;
        if (match.start == match.end && any && match.end == end) {
            from += from < bytes ? cot_utf8_length(text[from]) : 1;
            continue;
        }
        if (end != match.start) status = add_span(spans, end, match.start, false, error);
        if (status == COT_OK) status = add_span(spans, match.start, match.end, true, error);
        from = end = match.end;
        any = true;
        if (spans->count > most) return status;
    }
    if (status == COT_OK && end != bytes) status = add_span(spans, end, bytes, false, error);
    return status;
}

cot_status cot_regex_replace(const cot_regex *regex, cot_regex_scratch *scratch, const char *text,
                             size_t bytes, cot_text content, cot_buffer *out, cot_error *error)
{
    cot_status status = cot_regex_split(regex, scratch, text, bytes, SIZE_MAX, error);
    for (size_t i = 0; i < scratch->spans.count && status == COT_OK; i++) {
        cot_text_span span = scratch->spans.items[i];
        bool appended = span.matched ? cot_buffer_append(out, content.data, content.bytes)
                                     : cot_buffer_append(out, text + span.start, span.end - span.start);
        if (!appended) status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
        if (out->bytes > COT_TOKENIZER_LONGEST_TEXT)
            status = cot_fail(error, COT_INVALID_ARGUMENT, "a Replace makes more than %d bytes of the text",
                              COT_TOKENIZER_LONGEST_TEXT);
    }
    return status;
}

void cot_regex_scratch_free(cot_regex_scratch *scratch)
{
    pcre2_match_data_free(scratch->data);
    pcre2_match_context_free(scratch->context);
    free(scratch->spans.items);
    *scratch = (cot_regex_scratch){0};
}
