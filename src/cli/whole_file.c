#include "whole_file.h"

#include "command.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT_BYTES = 1 << 30 }; // what a tokenizer takes

static char *read_stream(FILE *file, size_t *bytes)
{
    char *text = NULL;
    size_t room = 0;
    *bytes = 0;
    do {
        if (*bytes + 65536 > room) {
            char *more = realloc(text, room = 2 * room + 65536);
            if (!more) {
                free(text);
                errno = ENOMEM;
                return NULL;
            }
            text = more;
        }
        *bytes += fread(text + *bytes, 1, room - *bytes, file);
    } while (!feof(file) && !ferror(file) && *bytes <= MAX_TEXT_BYTES);
    if (!ferror(file) && *bytes <= MAX_TEXT_BYTES) return text;
    if (!ferror(file)) errno = EFBIG;
    free(text);
    return NULL;
}

char *read_whole(const char *path, size_t *bytes)
{
    bool standard = strcmp(path, "-") == 0;
    FILE *file = standard ? stdin : fopen(path, "rb");
    char *text = file ? read_stream(file, bytes) : NULL;
    if (!text) cot_complain("cannot read '%s': %s", standard ? "standard input" : path, strerror(errno));
    if (file && !standard) fclose(file);
    return text;
}
