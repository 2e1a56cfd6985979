/* A model in GGUF: one file, or parts NAME-00001-of-0000N.gguf, each with a table of its own. */
#include "checkpoint/shards.h"

#include "base/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_PARTS = 99999 };

static const char ending[] = ".gguf";

/* A whole number of the metadata; -1: there is none. */
static int64_t number_of(const cot_gguf *file, const char *key)
{
    const cot_gguf_pair *pair = cot_gguf_find(file, key);
    if (!pair || pair->array || pair->type == COT_GGUF_STRING) return -1;
    const double number = cot_gguf_number(pair, 0);
    return number >= 0 && number <= 1e15 ? (int64_t)number : -1;
}

/* The numbers in "-00002-of-00003.gguf": false where the name has no such end. */
static bool read_name(const char *path, int *part, int *parts)
{
    const size_t length = strlen(path), tail = strlen("-00001-of-00001.gguf");
    int end = 0;
    return length > tail && sscanf(path + length - tail, "-%5d-of-%5d.gguf%n", part, parts, &end) == 2 &&
           end == (int)tail;
}

static void write_name(char *path, int part, int parts)
{
    char tail[40];
    const int bytes = snprintf(tail, sizeof tail, "-%05d-of-%05d%s", part, parts, ending);
    memcpy(path + strlen(path) - (size_t)bytes, tail, (size_t)bytes);
}

/* Part `number`, from 0 on, of the first one's count. */
static cot_status check_part(const cot_gguf *part, const char *path, int64_t number, int64_t count,
                             cot_error *error)
{
    const int64_t own = number_of(part, "split.no"), own_count = number_of(part, "split.count");
    if (own == number && own_count == count) return COT_OK;
    return cot_fail(error, COT_MALFORMED,
                    "'%s' says that it is part %" PRId64 " of %" PRId64 ", its name that it is part %" PRId64
                    " of %" PRId64,
                    path, own + 1, own_count, number + 1, count);
}

static cot_status open_others(cot_shards *shards, const char *path, int parts, cot_error *error)
{
    char *name = strdup(path);
    cot_gguf *grown = realloc(shards->parts, (size_t)parts * sizeof *grown);
    if (grown) shards->parts = grown;
    cot_status status =
        name && grown ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory", path);
    for (int p = 1; p < parts && status == COT_OK; p++) {
        write_name(name, p + 1, parts);
        status = cot_gguf_open(&shards->parts[p], name, error);
        if (status != COT_OK) break;
        shards->file_count++;
        shards->tensor_count += shards->parts[p].count;
        status = check_part(&shards->parts[p], name, p, parts, error);
    }
    free(name);
    return status;
}

static cot_status open_parts(cot_shards *shards, const char *path, cot_error *error)
{
    int part = 1, parts = 1;
    const bool named = read_name(path, &part, &parts);
    const int64_t count = number_of(&shards->parts[0], "split.count");
    if (count <= 1) return COT_OK;
    if (!named || count > MOST_PARTS)
        return cot_fail(error, COT_MALFORMED,
                        "'%s' says that it is one of %" PRId64
                        " parts, its name does not: parts are called NAME-00001-of-%05" PRId64 ".gguf",
                        path, count, count);
    const cot_status status = check_part(&shards->parts[0], path, part - 1, parts, error);
    if (status != COT_OK) return status;
    if (part != 1)
        return cot_fail(error, COT_MALFORMED,
                        "'%s' is part %d of %d: give the first one, -00001-of-%05d.gguf", path, part, parts,
                        parts);
    return open_others(shards, path, parts, error);
}

cot_status cot_shards_open_gguf(cot_shards *shards, const char *path, cot_error *error)
{
    *shards = (cot_shards){.parts = calloc(1, sizeof *shards->parts)};
    cot_status status = shards->parts ? cot_gguf_open(&shards->parts[0], path, error)
                                      : cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory", path);
    if (status == COT_OK) {
        shards->file_count = 1;
        shards->tensor_count = shards->parts[0].count;
        status = open_parts(shards, path, error);
    }
    const int64_t tensors = status == COT_OK ? number_of(&shards->parts[0], "split.tensors.count") : -1;
    if (tensors >= 0 && tensors != (int64_t)shards->tensor_count)
        status =
            cot_fail(error, COT_MALFORMED, "'%s' says that there are %" PRId64 " tensors, its parts hold %zu",
                     path, tensors, shards->tensor_count);
    if (status == COT_OK) status = cot_shards_merge(shards, path, error);
    if (status != COT_OK) cot_shards_close(shards);
    return status;
}
