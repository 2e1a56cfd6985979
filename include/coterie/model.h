/* Models: which architectures this build runs, and what can be read of a checkpoint. */
#ifndef COTERIE_MODEL_H
#define COTERIE_MODEL_H

#include "coterie/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An architecture as config.json spells it, the models that have it in one line, and what this build was tried with of it. */
typedef struct cot_architecture {
    const char *name, *description, *tested;
} cot_architecture;

/* The architectures this build runs; a NULL name ends. Constant; thread-safe. */
const cot_architecture *cot_architectures(void);

/* What a configuration says of a model. */
typedef struct cot_model_info {
    char architecture[64]; /* as config.json spells it */
    int64_t vocab, hidden, layers, heads, kv_heads, experts, top_k, context_tokens;
    int64_t parameters; /* numbers in all weights; a tied output matrix counts once */
    int64_t
        active_parameters; /* of those that a token uses: top_k of a layer's routed experts, all of the rest */
    int64_t moe_layers;
    int32_t *moe_layer; /* [moe_layers] the model's numbers of its MoE layers, ascending */
    const char *
        context_field; /* the field of config.json that context_tokens is cut to, beyond which attention would be sparse; NULL: none */
} cot_model_info;

/* Whether `folder` looks like a model's: a folder with a config.json, or a GGUF file, which may stand wherever a model's folder is
 * asked for. Errors: NOT_FOUND, IO, MALFORMED (another file), whose message says what is there instead. */
cot_status cot_model_check(const char *folder, cot_error *error);

/* Describes the model of a folder (its config.json alone is read), or of a config.json's text. The caller clears `*info`;
 * on failure it is empty. Errors: NOT_FOUND, IO, MALFORMED, UNSUPPORTED, INVALID_ARGUMENT, OUT_OF_MEMORY. */
cot_status cot_model_describe(cot_model_info *info, const char *folder, cot_error *error);
cot_status cot_model_describe_config(cot_model_info *info, const char *config_json, size_t bytes,
                                     cot_error *error);
void cot_model_info_clear(cot_model_info *info); /* an empty one is fine */

/* What the files of a model hold, and what becomes of it. */
typedef struct cot_model_type {
    const char *name; /* as the files' format spells it: "BF16", "Q4_K" */
    const char *
        memory; /* the form that matrices of it keep in memory, if all that are multiplied together have it: "int8"; NULL:
                           numbers, which become those that the engine computes in */
    size_t bytes;
} cot_model_type;
enum { COT_MODEL_TYPES = 48 };
typedef struct cot_model_files {
    char name[128]; /* general.name of GGUF; "": the files have none */
    bool gguf;      /* else safetensors */
    size_t files, bytes;
    size_t type_count;
    cot_model_type types[COT_MODEL_TYPES]; /* the most bytes first */
} cot_model_files;
/* Reads the files' tables. Errors: NOT_FOUND (also: there are no weights), IO, MALFORMED, UNSUPPORTED, OUT_OF_MEMORY. */
cot_status cot_model_describe_files(cot_model_files *files, const char *folder, cot_error *error);

/* Reads the embeddings of a checkpoint's vocabulary: `*row` [*n_ids][*width] in fp32, which the caller frees; NULL on
 * failure. `folder` is a model folder. Errors: NOT_FOUND, IO, MALFORMED, UNSUPPORTED, INVALID_ARGUMENT (a value that is
 * not finite), OUT_OF_MEMORY. */
cot_status cot_model_embedding(float **row, int64_t *n_ids, int64_t *width, const char *folder,
                               cot_error *error);

/* How a checkpoint is written again. */
typedef struct cot_model_convert_options {
    size_t size; /* sizeof this structure */
    /* What matrices of networks become: "int4", "int8" or "mxfp4"; of a GGUF file also "as-stored", the file's own numbers, or "bf16".
     * NULL, the default: "int4", of a GGUF file "as-stored". */
    const char *weights;
    /* The same of attention's projections (but kv_b) and of the head; "as-stored": nothing, they stay as they lie. NULL, the
     * default: "int8" of attention, but "as-stored" where gpt-oss's layout is written, which has no other; "as-stored" of the
     * head; both as `weights` where that is "as-stored" or "bf16". Networks of dense layers and shared experts become what `weights` says if attention (where that stays, the
     * head) is of that kind too or stays, else they stay: readers take one kind for all that is no expert's. */
    const char *weights_attention, *weights_head;
    int threads; /* 1 to 1024; 0, the default: as many as cores (cot_cores) */
    int64_t
        file_bytes; /* of weights in a file at most, but one tensor always has room; at least 1, default 5e9 */
    /* Called by the calling thread at the begin, after each matrix or some MB that are written, and at the end, with
     * `progress_context`; it returns whether to go on. NULL, the default: nobody is told. */
    bool (*progress)(void *context, size_t done_bytes, size_t total_bytes);
    void *progress_context;
} cot_model_convert_options;
void cot_model_convert_options_init(cot_model_convert_options *options);

/* Writes the model of a folder, or of a GGUF file, to a new folder `output`: matrices of networks - experts and dense layers -, attention and head rounded as
 * cot_engine_open rounds them (`weights`), in compressed-tensors' layout or, of gpt-oss, in its own; other
 * matrices that the files have in few bits become fp32, those of dense networks, attention and head bf16; all else that the model needs is copied as it is, with the files of the
 * tokenizer. Of a GGUF file weights that are not rounded keep their values: those in blocks of int4, int8 or mxfp4 their codes, those of
 * other blocks as fp32; config.json, tokenizer.json and tokenizer_config.json are made of the metadata. `output` appears whole or not at all: it is written beside under a name of its own ("OUTPUT.XXXXXX"), which is gone
 * after every failure. What is in memory is a matrix, and a layer's scales. `*notes`, where not
 * NULL, receives malloc'd lines about tensors that were left out (cot_engine_open), or NULL; the caller frees it. Errors: what reading the model
 * gives; INVALID_ARGUMENT (an option, named; `output` exists); UNSUPPORTED (experts that are of that kind already, or that the
 * layout cannot hold; a GGUF file with rope_freqs.weight); IO (also: `progress` returned false); NOT_FOUND (output's parent). */
cot_status cot_model_convert(const char *folder, const char *output, const cot_model_convert_options *options,
                             char **notes, cot_error *error);

#ifdef __cplusplus
}
#endif
#endif
