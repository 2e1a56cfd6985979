/* What the tensors of a checkpoint mean: logical matrices and vectors, whatever their names, dtypes and
 * quantisation. */
#ifndef COT_CHECKPOINT_H
#define COT_CHECKPOINT_H
#include "base/safetensors.h"
#include "kernels/pack.h"
#include "checkpoint/config.h"

/* Every weight the forward pass uses. Matrices are [out][in] as nn.Linear holds them. X(NAME) */
// clang-format off
#define COT_WEIGHT_LIST(X) \
    X(EMBEDDING) X(FINAL_NORM) X(OUTPUT) /* lm_head; the embedding where tied */ X(ATTENTION_NORM) \
    X(FFN_NORM) X(Q) X(K) X(V) X(O) X(Q_BIAS) X(K_BIAS) X(V_BIAS) X(O_BIAS) X(Q_NORM) X(K_NORM) X(SINKS) \
    X(Q_A) X(Q_A_BIAS) X(Q_A_NORM) X(Q_B) X(KV_A) X(KV_A_BIAS) X(KV_A_NORM) X(KV_B) X(GATE) X(GATE_BIAS) \
    X(GATE_CORRECTION) X(EXPERT_GATE) X(EXPERT_UP) X(EXPERT_DOWN) X(EXPERT_GATE_BIAS) X(EXPERT_UP_BIAS) \
    X(EXPERT_DOWN_BIAS) X(SHARED_GATE) X(SHARED_UP) X(SHARED_DOWN) X(SHARED_GATE_BIAS) X(SHARED_UP_BIAS) \
    X(SHARED_DOWN_BIAS) X(SHARED_MIX) /* [1][H], the shared expert's sigmoid gate */ X(DENSE_GATE) \
    X(DENSE_UP) X(DENSE_DOWN) X(DENSE_GATE_BIAS) X(DENSE_UP_BIAS) X(DENSE_DOWN_BIAS) \
    X(K_B) X(V_B) /* KV_B once more, where files have it in halves: [heads kv_lora][nope], turned, and [heads v][kv_lora] */ \
    X(ATTENTION_GATE) /* [heads d][H], a sigmoid of which multiplies what heads give */ \
    X(ATTENTION_AFTER_NORM) X(FFN_AFTER_NORM) /* of what a branch gives, before it is added */ \
    X(ATTENTION_NORM_BIAS) X(FFN_NORM_BIAS) X(FINAL_NORM_BIAS) X(OUTPUT_BIAS) \
    X(DELTA_QKV) X(DELTA_Z) X(DELTA_BETA) X(DELTA_DECAY) /* or two of them, by key head: config.h */ X(DELTA_CONVOLUTION) \
    X(DELTA_DECAY_BIAS) X(DELTA_DECAY_LOG) X(DELTA_NORM) X(DELTA_O)
// clang-format on

typedef enum cot_weight {
#define COT_WEIGHT_ENUM(name) COT_WEIGHT_##name,
    COT_WEIGHT_LIST(COT_WEIGHT_ENUM)
#undef COT_WEIGHT_ENUM
        COT_WEIGHTS
} cot_weight;

typedef struct cot_checkpoint cot_checkpoint;

/* Opens a GGUF file (the first of its parts), or a model folder: config.json, model.safetensors or the shards of model.safetensors.index.json, or a lone .safetensors of
 * another name, of which a note tells. Checks
 * that every weight the forward pass uses is there with the shape config.json implies (one that is
 * missing is named, with what lies there instead; one of another shape with both shapes), and that no shard lies outside the folder.
 * Tensors that are not used are counted in `*notes` (malloc'd lines or NULL; the caller frees), before which one that begins with
 * "warning: " tells of a head that is stored though config.json ties it. Errors: NOT_FOUND, IO, MALFORMED, UNSUPPORTED,
 * INVALID_ARGUMENT (a NaN where two heads are compared), OUT_OF_MEMORY. */
cot_status cot_checkpoint_open(cot_checkpoint **checkpoint, const char *folder, char **notes,
                               cot_error *error);
/* A checkpoint without files: the same architecture with random weights, a pure function of (seed, tensor,
 * element), BF16, but MXFP4 where experts are that (cot_checkpoint_stored) and are packed as that. */
cot_status cot_checkpoint_random(cot_checkpoint **checkpoint, const char *config_json, size_t bytes,
                                 uint64_t seed, cot_error *error);
/* The same of a folder's config.json, with seed 0: for those who ask for sizes alone. Errors: as cot_config_read's. */
cot_status cot_checkpoint_of_config(cot_checkpoint **checkpoint, const char *folder, cot_error *error);
void cot_checkpoint_close(cot_checkpoint *checkpoint);
const cot_config *cot_checkpoint_config(const cot_checkpoint *checkpoint);
/* Bytes of the weights as stored, all shards. */
size_t cot_checkpoint_bytes(const cot_checkpoint *checkpoint);

/* A logical matrix [rows][columns]; a vector is [1][columns]. `layer` and `expert` are ignored where they do
 * not apply. What norms multiply by is read as that, also where files have what it is more than 1. */
cot_status cot_checkpoint_shape(const cot_checkpoint *checkpoint, cot_weight weight, int64_t layer,
                                int64_t expert, int64_t *rows, int64_t *columns, cot_error *error);

/* The format in which a weight can be packed as it is stored; COT_FORMATS: there is none, or there is no such weight. Without files what
 * the configuration says (of routed experts MXFP4). */
cot_format cot_checkpoint_stored(const cot_checkpoint *checkpoint, cot_weight weight, int64_t layer,
                                 int64_t expert);

/* A piece of a weight: rows [row0, row0 + rows) by columns [column0, column0 + columns). */
typedef struct cot_weight_piece {
    cot_weight weight;
    int64_t layer, expert, row0, rows, column0, columns;
} cot_weight_piece;

/* A packed matrix (kernels/format.h) with n columns, into which a piece goes from column n0 on. */
typedef struct cot_packed_part {
    void *b;
    cot_format format;
    int64_t n, n0;
} cot_packed_part;

/* A hash of what chooses experts: K, E, H, the numbers of the MoE layers, and the gates' weights of the first and the last of them, rounded to
 * bf16, which neither conversion nor another name changes. *hash is 0 without such layers or without files, else never. Errors:
 * cot_checkpoint_read's. */
cot_status cot_checkpoint_hash(uint64_t *hash, const cot_checkpoint *checkpoint, cot_error *error);

/* Reads a piece into out [rows][columns], dequantised to fp32. Errors: INVALID_ARGUMENT naming the tensor when a value
 * is NaN or infinite, OUT_OF_MEMORY. Thread-safe. */
cot_status cot_checkpoint_read(const cot_checkpoint *checkpoint, const cot_weight_piece *piece, float *out,
                               cot_error *error);
/* Packs a piece as columns n0 .. n0 + rows - 1 of a packed [columns][n] matrix; bf16 and fp32 sources go without
 * detours, and so do those that are stored in the packed format (then the piece has whole groups of columns). Lets go of the file's pages afterwards. Errors as read's. Thread-safe on disjoint panels. */
cot_status cot_checkpoint_pack(const cot_checkpoint *checkpoint, const cot_weight_piece *piece,
                               const cot_packed_part *to, cot_error *error);
/* Hands on a piece block by block, from its first row to its last: rows [row, row + rows), counted from the piece's first, as
 * they are stored where that is what `as` says, else as numbers (COT_FORMATS: always). Errors and threads as pack. */
typedef void (*cot_checkpoint_taker)(void *context, int64_t row, int64_t rows, const cot_pack_input *in);
cot_status cot_checkpoint_hand_on(const cot_checkpoint *checkpoint, const cot_weight_piece *piece,
                                  cot_format as, cot_checkpoint_taker take, void *context, cot_error *error);
/* Packs a piece transposed: row r of the weight becomes row (r - row0) of a packed [rows][columns] matrix at `b`. For
 * MLA's absorbed form. */
cot_status cot_checkpoint_pack_transposed(const cot_checkpoint *checkpoint, const cot_weight_piece *piece,
                                          void *b, cot_format format, cot_error *error);

#endif
