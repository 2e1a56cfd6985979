/* The byte-level alphabet (Radford and others 2019): a visible character for each byte, so that any bytes are
 * text. Printable Latin-1 stands for itself; the 68 others are U+0100 and up, in order. */
#ifndef COT_TOKENIZER_BYTELEVEL_H
#define COT_TOKENIZER_BYTELEVEL_H
#include <stdint.h>

static inline int32_t cot_byte_character(uint8_t byte)
{
    if (byte <= 0x20) return 0x100 + byte;
    if (byte >= 0x7f && byte <= 0xa0) return 0x100 + 0x21 + byte - 0x7f;
    return byte == 0xad ? 0x143 : byte;
}

/* -1 for a character that stands for no byte. */
static inline int cot_character_byte(int32_t character)
{
    if (character >= 0x100 && character <= 0x120) return character - 0x100;
    if (character >= 0x121 && character <= 0x142) return character - 0x121 + 0x7f;
    if (character == 0x143) return 0xad;
    return character < 0x100 && cot_byte_character((uint8_t)character) == character ? character : -1;
}

#endif
