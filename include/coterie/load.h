/* Expert loads: how many tokens a recording sent to each expert of each layer, and from which ranks. Read from
 * routing traces, from the recorders of inference engines and from plain tables; placements are made for them. */
#ifndef COTERIE_LOAD_H
#define COTERIE_LOAD_H

#include "coterie/status.h"
#include "coterie/trace.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { COT_LOAD_MAX_SOURCES = 65536 };

/* Layers carry the model's own numbers. The arrays belong to the load; any number of threads may read one. All
 * zero is an empty load. A layer without any tokens is one of the model's dense layers, as engines record them. */
typedef struct cot_load_counts {
    int32_t n_layers;  // L, 1 .. COT_TRACE_MAX_LAYERS
    int32_t n_experts; // E, 1 .. COT_TRACE_MAX_EXPERTS
    int32_t n_sources; // S, ranks that sent the tokens, 1 .. COT_LOAD_MAX_SOURCES; 1 where they are not known
    bool sources_known;
    bool from_engine;   // an inference engine's recorder counted them: every rank sends tokens in every layer
    int32_t top_k;      // K, experts a token; 0 where not known
    int32_t hidden;     // H, columns of a token's row; 0 where not known
    const char *format; // which of cot_load_formats it was read from, a constant; NULL when made otherwise
    int32_t *layers;    // [L] ascending
    double *tokens;     // [L][S][E] (token, expert) activations, finite, >= 0
    uint64_t model_hash; // of the model's gates (see cot_engine_info), as a trace has it; 0: not known
} cot_load_counts;

/* A format that cot_load_counts_read reads. */
typedef struct cot_load_format {
    const char *name;
    const char *text; // what it is, one line
} cot_load_format;
/* All of them; ends with a NULL name. */
extern const cot_load_format cot_load_formats[];

/* What the files do not say themselves. */
typedef struct cot_load_options {
    size_t size; // sizeof(cot_load_options)
    /* The model's number of the first row, for formats that count MoE layers from 0. Default 0. */
    int32_t first_layer;
    int32_t top_k;      // K; 0: as the files say
    cot_trace_say *say; // told what a user should know (rows without load, ...), a line each; NULL: nobody
    void *context;      // passed to say
} cot_load_options;

/* Makes a load of zeros, layers numbered 0, 1, ... Errors: INVALID_ARGUMENT (a size out of range), OUT_OF_MEMORY.
 * The caller frees it. */
cot_status cot_load_counts_new(cot_load_counts *load, int32_t layers, int32_t sources, int32_t experts,
                               cot_error *error);
/* Frees the arrays and empties `*load`. An empty load is fine. */
void cot_load_counts_free(cot_load_counts *load);

/* Reads a load from `n_paths` files or folders of one recording: all files of a folder count, and several files
 * are the ranks of one per_token recording. The format is found from the content (see cot_load_formats).
 * `options` may be NULL. On success the caller frees `*load`; on failure it is empty. Errors: INVALID_ARGUMENT
 * (options), NOT_FOUND, IO, MALFORMED (also: negative or NaN loads, no load at all, files that disagree),
 * UNSUPPORTED (not recognised), OUT_OF_MEMORY. */
cot_status cot_load_counts_read(cot_load_counts *load, const char *const *paths, size_t n_paths,
                                const cot_load_options *options, cot_error *error);

#ifdef __cplusplus
}
#endif
#endif
