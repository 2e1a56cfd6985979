#include "tokenizer/utf8.h"

#include <utf8proc.h>

cot_utf8_kind cot_utf8_scan(const char *text, size_t bytes, size_t *length)
{
    const unsigned char *s = (const unsigned char *)text;
    unsigned char lead = s[0];
    // The second byte's range depends on the first; the others are 80..bf.
    unsigned char least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    unsigned char most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    size_t whole = lead < 0x80   ? 1
                   : lead < 0xc2 ? 0
                   : lead < 0xe0 ? 2
                   : lead < 0xf0 ? 3
                   : lead < 0xf5 ? 4
                                 : 0;
    *length = 1;
    if (!whole) return COT_UTF8_INVALID;
    while (*length < whole) {
        if (*length == bytes) return COT_UTF8_INCOMPLETE;
        if (s[*length] < least || s[*length] > most) return COT_UTF8_INVALID;
        least = 0x80;
        most = 0xbf;
        ++*length;
    }
    return COT_UTF8_VALID;
}

size_t cot_utf8_check(const char *text, size_t bytes)
{
    size_t at = 0, length;
    while (at < bytes) {
        if ((unsigned char)text[at] < 0x80) {
            at++;
            continue;
        }
        if (cot_utf8_scan(text + at, bytes - at, &length) != COT_UTF8_VALID) break;
        at += length;
    }
    return at;
}

int32_t cot_utf8_next(const char *text, size_t *at)
{
    const unsigned char *s = (const unsigned char *)text + *at;
    size_t length = cot_utf8_length(text[*at]);
    *at += length;
    if (length == 1) return s[0];
    int32_t character = s[0] & (0x7f >> length);
    for (size_t i = 1; i < length; i++) character = character << 6 | (s[i] & 0x3f);
    return character;
}

int32_t cot_utf8_previous(const char *text, size_t *at)
{
    do --*at;
    while (((unsigned char)text[*at] & 0xc0) == 0x80);
    size_t start = *at;
    return cot_utf8_next(text, &start);
}

size_t cot_utf8_write(char out[4], int32_t character)
{
    return (size_t)utf8proc_encode_char(character, (utf8proc_uint8_t *)out);
}

bool cot_is_space(int32_t c)
{
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
           c == 0x3000;
}

/* Other_Alphabetic that no general category of cot_is_word covers: circled, squared letters. */
static bool is_enclosed_letter(int32_t c)
{
    return (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
           (c >= 0x1f170 && c <= 0x1f189);
}

bool cot_is_word(int32_t c)
{
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return c == 0x200c || c == 0x200d || is_enclosed_letter(c);
    }
}
