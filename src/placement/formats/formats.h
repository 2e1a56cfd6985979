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
    json_t *json;                          // the text; NULL when it is no JSON
    const cot_expert_map_options *options; // never NULL
} cot_map_source;

/* Each reads its format into an empty `*map`, which cot_expert_map_check has still to see; on failure the caller
 * frees what is there. */
typedef cot_status cot_map_reader(cot_expert_map *map, const cot_map_source *source, cot_error *error);
/* Writes a map that was checked; errors of the stream are found when the file is committed. `path` is for
 * messages. */
typedef cot_status cot_map_writer(FILE *stream, const cot_expert_map *map, const char *path,
                                  const cot_expert_map_options *options, cot_error *error);

cot_map_reader cot_map_read_coterie, cot_map_read_sglang, cot_map_read_vllm, cot_map_read_tensorrt,
    cot_map_read_ascend, cot_map_read_omni;
cot_map_writer cot_map_write_coterie, cot_map_write_sglang, cot_map_write_vllm, cot_map_write_tensorrt,
    cot_map_write_ascend, cot_map_write_omni;

/* cot_expert_map_read of a file's `bytes` at `text`, which a NUL follows. */
cot_status cot_expert_map_parse(cot_expert_map *map, const char *text, size_t bytes, const char *path,
                                const cot_expert_map_options *options, cot_error *error);

/* The place in cot_expert_map_formats of the format of that name. Errors: INVALID_ARGUMENT (an unknown one). Thread-safe. */
cot_status cot_map_find_format(size_t *place, const char *name, cot_error *error);
/* Tells the caller's `say`, if any. */
void cot_map_note(const cot_expert_map_options *options, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
cot_status cot_map_no_memory(const char *path, cot_error *error);

/* For formats that hold rows of slots in the order of ranks and do not say how many ranks or experts there are: makes a
 * map of `layers` rows of `slots` slots, split over the option's ranks. Once its slots are filled in,
 * cot_map_count_experts finds how many experts there are. */
cot_status cot_map_new_rows(cot_expert_map *map, size_t layers, size_t slots, const cot_map_source *source,
                            cot_error *error);
void cot_map_count_experts(cot_expert_map *map);
/* For rows that are MoE layers: numbers them as the options' model does, else from first_layer. Errors:
 * INVALID_ARGUMENT (the model has another number of MoE layers; numbers beyond int32). */
cot_status cot_map_number_moe_layers(cot_expert_map *map, const cot_map_source *source, cot_error *error);
/* For rows that are all layers: marks those that are dense in the options' model, if any, whose slots then hold what those
 * of a MoE layer do. Errors: INVALID_ARGUMENT (the model has another number of layers). */
cot_status cot_map_mark_dense_layers(cot_expert_map *map, const cot_map_source *source, cot_error *error);
/* Whether layer `l` is dense by the map or the options. */
bool cot_map_is_dense(const cot_expert_map *map, int32_t l, const cot_expert_map_options *options);
/* Refuses a map with empty slots in layers that are not dense, by layer and rank. Errors: UNSUPPORTED. */
cot_status cot_map_want_full(const cot_expert_map *map, const char *path,
                             const cot_expert_map_options *options, cot_error *error);

/* Refuses a map with an expert twice on a rank in a layer that is not dense, by layer and rank. Errors: UNSUPPORTED,
 * OUT_OF_MEMORY. */
cot_status cot_map_want_distinct(const cot_expert_map *map, const char *path,
                                 const cot_expert_map_options *options, cot_error *error);

/* Reads the member `key`, a whole number in [least, most]. Errors: MALFORMED, naming `path` and the key. */
cot_status cot_map_json_integer(int32_t *value, const json_t *object, const char *key, int32_t least,
                                int32_t most, const char *path, cot_error *error);
/* Fills to[0 .. count) from an array of as many whole numbers in [least, most]. Errors: MALFORMED, naming `path` and, by
 * `name`, which array it is. */
cot_status cot_map_json_row(int32_t *to, size_t count, const json_t *array, int32_t least, int32_t most,
                            const char *name, const char *path, cot_error *error);
/* Prints `count` numbers as "[1, 2, 3]". */
void cot_map_print_row(FILE *stream, const int32_t *row, size_t count);

#endif
