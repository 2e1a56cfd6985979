/* What the readers of loads share. */
#ifndef COT_ROUTING_LOAD_READER_H
#define COT_ROUTING_LOAD_READER_H
#include "coterie/load.h"
#include "base/file.h"
#include "base/safetensors.h"

/* The files of one recording, and what the caller said of them. */
typedef struct cot_load_files {
    const char *const *paths; // [count] regular files
    size_t count;
    const cot_load_options *options; // never NULL
} cot_load_files;

/* Each reads its format into an empty `*load`. What follows for every format is the caller's: to apply the option top_k,
 * to name the format, to refuse a load of nothing, and to free what is there on failure. */
typedef cot_status cot_load_reader(cot_load_counts *load, const cot_load_files *files, cot_error *error);
cot_load_reader cot_load_read_sglang, cot_load_read_vllm, cot_load_read_tensorrt, cot_load_read_csv,
    cot_load_read_logical_count;

/* Tells the caller's `say`, if any. */
void cot_load_note(const cot_load_files *files, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Numbers the layers from the option's first_layer, for formats that count MoE layers from 0; says so where nobody
 * gave it. Errors: INVALID_ARGUMENT (numbers beyond int32). */
cot_status cot_load_number_moe_layers(cot_load_counts *load, const cot_load_files *files, cot_error *error);
/* Refuses several files where a format has one. */
cot_status cot_load_want_one_file(const cot_load_files *files, cot_error *error);

/* Whether a file is a .npy array. */
bool cot_load_is_npy(const char *data, size_t bytes);
/* Whether a file's name is that of one rank's TensorRT-LLM statistics. */
bool cot_load_is_tensorrt(const char *name);

/* Files, and for each folder those of an engine's recording that lie in it, by name; or the folder itself where there
 * are none. */
typedef struct cot_load_paths {
    char **paths;
    size_t count;
} cot_load_paths;
cot_status cot_load_paths_open(cot_load_paths *list, const char *const *paths, size_t count,
                               cot_error *error);
void cot_load_paths_close(cot_load_paths *list);
/* Whether a folder holds a .pt. */
bool cot_load_has_torch(const char *folder);

#endif
