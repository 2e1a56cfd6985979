/* Models: which architectures this build runs, and what can be read of a checkpoint. */
#ifndef COTERIE_MODEL_H
#define COTERIE_MODEL_H

#include "coterie/status.h"
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An architecture as config.json spells it, and the models that have it in one line. */
typedef struct cot_architecture {
    const char *name, *description;
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
} cot_model_info;

/* Describes the model of a folder (its config.json alone is read), or of a config.json's text. The caller clears `*info`;
 * on failure it is empty. Errors: NOT_FOUND, IO, MALFORMED, UNSUPPORTED, INVALID_ARGUMENT, OUT_OF_MEMORY. */
cot_status cot_model_describe(cot_model_info *info, const char *folder, cot_error *error);
cot_status cot_model_describe_config(cot_model_info *info, const char *config_json, size_t bytes,
                                     cot_error *error);
void cot_model_info_clear(cot_model_info *info); /* an empty one is fine */

/* Reads the embeddings of a checkpoint's vocabulary: `*row` [*n_ids][*width] in fp32, which the caller frees; NULL on
 * failure. `folder` is a model folder. Errors: NOT_FOUND, IO, MALFORMED, UNSUPPORTED, INVALID_ARGUMENT (a value that is
 * not finite), OUT_OF_MEMORY. */
cot_status cot_model_embedding(float **row, int64_t *n_ids, int64_t *width, const char *folder,
                               cot_error *error);

#ifdef __cplusplus
}
#endif
#endif
