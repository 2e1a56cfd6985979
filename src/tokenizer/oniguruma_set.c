#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/oniguruma_set.h"

#include "base/error.h"
#include "tokenizer/utf8.h"

#include <pcre2.h>
#include <stdio.h>

enum { CHARACTERS = 0x110000, FIRST_SURROGATE = 0xd800, BEHIND_SURROGATES = 0xe000 };

/* No text has surrogates, and no pattern may. */
static int32_t next_of(int32_t c)
{
    return c + 1 == FIRST_SURROGATE ? BEHIND_SURROGATES : c + 1;
}

static bool has(const cot_oniguruma_set *set, int32_t c)
{
    return set->words[c / 64] >> (c % 64) & 1;
}

/* Adds the characters from `first` to before `end`. */
static void add_range(cot_oniguruma_set *set, int32_t first, int32_t end)
{
    for (int32_t c = first; c < end; c = next_of(c)) set->words[c / 64] |= (uint64_t)1 << (c % 64);
}

/* All characters in their order, so that one search after another tells of each whether the class has it. */
static char *alphabet(size_t *bytes)
{
    char *text = malloc((size_t)4 * CHARACTERS);
    *bytes = 0;
    for (int32_t c = 0; text && c < CHARACTERS; c = next_of(c)) *bytes += cot_utf8_write(text + *bytes, c);
    return text;
}

/* Walks the alphabet in runs: of characters that the class has, then of those that it has not. */
static int add_matches(cot_oniguruma_set *set, const pcre2_code *code, pcre2_match_data *data,
                       const char *text, size_t bytes, bool negated)
{
    int32_t c = 0;
    for (size_t at = 0; at < bytes;) {
        const int found =
            pcre2_match(code, (PCRE2_SPTR)text, bytes, at, PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK, data, NULL);
        if (found < 0) return found;
        const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(data);
        const size_t middle = ends[3], end = ends[1];
        const int32_t first = c;
        while (at < middle) c = next_of(cot_utf8_next(text, &at));
        if (!negated) add_range(set, first, c);
        const int32_t behind = c;
        while (at < end) c = next_of(cot_utf8_next(text, &at));
        if (negated) add_range(set, behind, c);
    }
    return 0;
}

cot_status cot_oniguruma_set_add(cot_oniguruma_set *set, const char *items, size_t bytes, bool negated,
                                 cot_error *error)
{
    cot_buffer pattern = {0};
    const bool written = cot_buffer_text(&pattern, "([") && cot_buffer_append(&pattern, items, bytes) &&
                         cot_buffer_text(&pattern, "]*+)[^") && cot_buffer_append(&pattern, items, bytes) &&
                         cot_buffer_text(&pattern, "]*+");
    int code = PCRE2_ERROR_NOMEMORY;
    PCRE2_SIZE offset;
    size_t length = 0;
    pcre2_code *compiled = written ? pcre2_compile((PCRE2_SPTR)pattern.data, pattern.bytes,
                                                   PCRE2_UTF | PCRE2_UCP, &code, &offset, NULL)
                                   : NULL;
    cot_buffer_free(&pattern);
    if (compiled) {
        pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE); // without it PCRE2 interprets
        pcre2_match_data *data = pcre2_match_data_create(2, NULL);
        char *text = alphabet(&length);
        code = data && text ? add_matches(set, compiled, data, text, length, negated) : PCRE2_ERROR_NOMEMORY;
        free(text);
        pcre2_match_data_free(data);
        pcre2_code_free(compiled);
        if (!code) return COT_OK;
    }
    char why[128];
    if (code == PCRE2_ERROR_NOMEMORY) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
    return cot_fail(error, COT_MALFORMED, "a regular expression's set is wrong: %s", why);
}

void cot_oniguruma_set_unite(cot_oniguruma_set *set, const cot_oniguruma_set *other)
{
    for (size_t i = 0; i < sizeof set->words / sizeof *set->words; i++) set->words[i] |= other->words[i];
}

void cot_oniguruma_set_intersect(cot_oniguruma_set *set, const cot_oniguruma_set *other)
{
    for (size_t i = 0; i < sizeof set->words / sizeof *set->words; i++) set->words[i] &= other->words[i];
}

void cot_oniguruma_set_negate(cot_oniguruma_set *set)
{
    for (size_t i = 0; i < sizeof set->words / sizeof *set->words; i++) set->words[i] = ~set->words[i];
}

static bool write_character(cot_buffer *out, int32_t c)
{
    char text[16];
    size_t bytes =
        c < 0x80 ? (size_t)snprintf(text, sizeof text, "\\x{%x}", (unsigned)c) : cot_utf8_write(text, c);
    return cot_buffer_append(out, text, bytes);
}

bool cot_oniguruma_set_write(cot_buffer *out, const cot_oniguruma_set *set, bool negated)
{
    const size_t begin = out->bytes;
    bool good = cot_buffer_text(out, negated ? "[^" : "["), any = false;
    for (int32_t c = 0; c < CHARACTERS && good;) {
        if (!has(set, c)) {
            c = next_of(c);
            continue;
        }
        int32_t last = c, end = next_of(c);
        for (; end < CHARACTERS && has(set, end); end = next_of(end)) last = end;
        good = write_character(out, c) &&
               (last == c || (cot_buffer_text(out, "-") && write_character(out, last)));
        any = true;
        c = end;
    }
    if (good && !any) { // PCRE2 has no class without items
        out->bytes = begin;
        good = cot_buffer_text(out, negated ? "[\\x{0}-\\x{10ffff}" : "[^\\x{0}-\\x{10ffff}");
    }
    return good && cot_buffer_text(out, "]");
}
