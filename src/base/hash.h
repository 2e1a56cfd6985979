/* Hashes of 64 bits as files hold them: hexadecimal digits, 16 where they are written. */
#ifndef COT_BASE_HASH_H
#define COT_BASE_HASH_H
#include <stdbool.h>
#include <stdint.h>

enum { COT_HASH_TEXT_BYTES = 17 }; // with its NUL
/* `text` [COT_HASH_TEXT_BYTES]. */
static inline void cot_hash_print(char *text, uint64_t hash)
{
    for (int i = 0; i < COT_HASH_TEXT_BYTES - 1; i++) text[i] = "0123456789abcdef"[hash >> (60 - 4 * i) & 15];
    text[COT_HASH_TEXT_BYTES - 1] = 0;
}

/* Whether `text` is 1 to 16 such digits and nothing else, which come in *hash. */
static inline bool cot_hash_parse(uint64_t *hash, const char *text)
{
    int digits = 0;
    for (*hash = 0; *text && digits < COT_HASH_TEXT_BYTES; text++, digits++) {
        const bool letter = *text >= 'a' && *text <= 'f';
        if (!letter && !(*text >= '0' && *text <= '9')) return false;
        *hash = *hash << 4 | (uint64_t)(letter ? *text - 'a' + 10 : *text - '0');
    }
    return digits > 0 && digits < COT_HASH_TEXT_BYTES;
}

#endif
