/* Text that is gathered piece by piece; all zero is empty. */
#ifndef COT_CLI_FRAME_GROWING_TEXT_H
#define COT_CLI_FRAME_GROWING_TEXT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct cli_growing_text {
    char *text; // NUL-terminated; NULL until something is added; freed by its owner
    size_t bytes, room;
} cli_growing_text;

/* False when out of memory. */
static inline bool cli_growing_text_add(cli_growing_text *t, const char *piece, size_t bytes)
{
    if (t->bytes + bytes >= t->room) {
        const size_t room = 2 * (t->bytes + bytes) + 16;
        char *grown = realloc(t->text, room);
        if (!grown) return false;
        t->text = grown;
        t->room = room;
    }
    if (bytes) memcpy(t->text + t->bytes, piece, bytes);
    t->text[t->bytes += bytes] = 0;
    return true;
}

#endif
