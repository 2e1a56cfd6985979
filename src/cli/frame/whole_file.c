#include "cli/frame/whole_file.h"

#include "cli/frame/command.h"
#include "coterie/start.h"
#include "coterie/started.h"

#include <errno.h>
#include <stdint.h>
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
        *bytes += fread(text + *bytes, 1, room - 1 - *bytes, file);
    } while (!feof(file) && !ferror(file) && *bytes <= MAX_TEXT_BYTES);
    text[*bytes] = 0;
    if (!ferror(file) && *bytes <= MAX_TEXT_BYTES) return text;
    if (!ferror(file)) errno = EFBIG;
    free(text);
    return NULL;
}

/* The first rank's standard input is everybody's; text NULL: it could not be read. */
static char *share_text(char *text, size_t *bytes)
{
    cot_error error;
    uint64_t size = text ? *bytes : UINT64_MAX;
    cot_status status = cot_launch_share(&size, sizeof size, &error);
    if (status == COT_OK && size == UINT64_MAX) return NULL;
    if (status == COT_OK && cli_is_other_rank()) text = malloc(*bytes = (size_t)size + 1);
    if (status == COT_OK && text) {
        *bytes = (size_t)size;
        status = cot_launch_share(text, *bytes, &error);
    }
    if (status == COT_OK && text) {
        text[*bytes] = 0;
        return text;
    }
    if (status != COT_OK) cli_complain_of(&error);
    free(text);
    return NULL;
}

static char *read_file(const char *path, size_t *bytes)
{
    bool standard = strcmp(path, "-") == 0;
    FILE *file = standard ? stdin : fopen(path, "rb");
    char *text = file ? read_stream(file, bytes) : NULL;
    if (!text) cli_complain("cannot read '%s': %s", standard ? "standard input" : path, strerror(errno));
    if (file && !standard) fclose(file);
    return text;
}

char *cli_read_whole(const char *path, size_t *bytes)
{
    if (!cli_is_rank() || strcmp(path, "-") != 0) return read_file(path, bytes);
    cot_start_wait_for_input(true);
    char *text = share_text(cli_is_other_rank() ? NULL : read_file(path, bytes), bytes);
    cot_start_wait_for_input(false);
    return text;
}
