/* UTF-8 and the classes of characters that tokenizers ask for. */
#ifndef COT_TOKENIZER_UTF8_H
#define COT_TOKENIZER_UTF8_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COT_UTF8_REPLACEMENT "\xef\xbf\xbd" // U+FFFD

typedef enum cot_utf8_kind {
    COT_UTF8_VALID,   // a character
    COT_UTF8_INVALID, // the longest start of a character that what follows spoils, or a byte that starts none
    COT_UTF8_INCOMPLETE, // the text ends within a character
} cot_utf8_kind;

/* What `text` [bytes > 0] begins with, and its length. Unicode 3.9, table 3-7: no surrogates, nothing
 * overlong. */
cot_utf8_kind cot_utf8_scan(const char *text, size_t bytes, size_t *length);
/* Offset of the first byte that is not UTF-8; `bytes` when all is. */
size_t cot_utf8_check(const char *text, size_t bytes);
/* The character at `*at` of valid text; moves `*at` behind it. */
int32_t cot_utf8_next(const char *text, size_t *at);
/* The character before `*at` > 0 of valid text; moves `*at` before it. */
int32_t cot_utf8_previous(const char *text, size_t *at);
/* Writes a character, 1 to 4 bytes; returns how many. */
size_t cot_utf8_write(char out[4], int32_t character);
/* Bytes of the character that a byte of valid text leads. */
static inline size_t cot_utf8_length(char lead)
{
    unsigned char c = (unsigned char)lead;
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

/* Unicode's White_Space. */
bool cot_is_space(int32_t character);
/* \w as Unicode's regular expressions define it (UTS 18, annex C): letters, marks, digits, connectors,
 * joiners. */
bool cot_is_word(int32_t character);

#endif
