/* What the readers and writers of maps share. */
#ifndef COT_PLACEMENT_FORMATS_H
#define COT_PLACEMENT_FORMATS_H
#include "coterie/placement.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* A map's file in memory. */
typedef struct cot_map_source {
    const char *path; // for messages
    const char *text; // [bytes] and a NUL
    size_t bytes;
    json_t *json; // the text, or its first line where it holds a value a line; NULL when it is no JSON object
    const cot_expert_map_options *options; // never NULL
} cot_map_source;

/* Each reads its format into an empty `*map`, which cot_expert_map_check has still to see; on failure the caller
 * frees what is there. */
typedef cot_status cot_map_reader(cot_expert_map *map, const cot_map_source *source, cot_error *error);
/* Writes a map that was checked; errors of the stream are found when the file is committed. `path` is for
 * messages. */
typedef cot_status cot_map_writer(FILE *stream, const cot_expert_map *map, const char *path,
                                  const cot_expert_map_options *options, cot_error *error);

cot_map_reader cot_map_read_coterie;
cot_map_writer cot_map_write_coterie;

/* Tells the caller's `say`, if any. */
void cot_map_note(const cot_expert_map_options *options, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
cot_status cot_map_no_memory(const char *path, cot_error *error);

/* Reading JSON; each names `path` and the key in its refusal (MALFORMED). */
/* The member `key`, a whole number in [least, most]. */
cot_status cot_map_json_integer(int32_t *value, const json_t *object, const char *key, int32_t least,
                                int32_t most, const char *path, cot_error *error);
/* Fills to[0 .. count) from an array of as many whole numbers in [least, most]; `name` says which it is. */
cot_status cot_map_json_row(int32_t *to, size_t count, const json_t *array, int32_t least, int32_t most,
                            const char *name, const char *path, cot_error *error);
/* `count` numbers as "[1, 2, 3]". */
void cot_map_print_row(FILE *stream, const int32_t *row, size_t count);

#endif
