/* Where a weight lies in the files, in whichever form it is stored. */
#ifndef COT_MODEL_STORED_H
#define COT_MODEL_STORED_H
#include "model/family.h"
#include "model/shards.h"

struct cot_checkpoint {
    cot_config config;
    cot_shards shards;
    bool random; // without files
    uint64_t seed;
    float e4m3[256]; // the value of each FP8 byte
    float e8m0[256]; // of each byte of MXFP4's scales: 2^(s - 127), 255 is NaN
};

typedef enum cot_storage {
    COT_STORAGE_PLAIN,  // F32, BF16 or F16
    COT_STORAGE_FP8,    // E4M3, a scale for each block of the matrix
    COT_STORAGE_MXFP4,  // E2M1, two a byte, a scale for each 32 of a row
    COT_STORAGE_RANDOM, // BF16 out of the random numbers of `stream`
} cot_storage;

/* Element (r, c) of the weight [rows][columns] is element origin + r * row_step + c * column_step of the
 * tensor (MXFP4: counted in nibbles; the scale of 32 of them is scales[element / 32]). */
typedef struct cot_stored {
    cot_storage storage;
    const char *name; // of the tensor, for messages; valid while the checkpoint is open
    const cot_shard_tensor *tensor, *scales; // NULL where there is none
    int64_t rows, columns;
    int64_t origin, row_step, column_step;
    int64_t block_rows, block_columns; // FP8
    uint64_t stream;
    float centre, spread; // RANDOM: uniform in centre +- spread
} cot_stored;

/* Rows and columns of a weight; rows is 0 where the architecture has no such weight there. */
void cot_weight_shape(const cot_config *config, cot_weight weight, int64_t layer, int64_t *rows,
                      int64_t *columns);
/* Numbers in all weights; and in those that a token uses: K of a layer's routed experts, all of the rest. */
void cot_weight_count(const cot_config *config, int64_t *all, int64_t *active);
bool cot_weight_is_layered(cot_weight weight);
bool cot_weight_is_expert(cot_weight weight); // one for each routed expert
const char *cot_weight_name(cot_weight weight);

/* Finds a weight and checks the shapes and dtypes of its tensors. Errors: INVALID_ARGUMENT (no such weight),
 * NOT_FOUND (no such tensor), MALFORMED (shape), UNSUPPORTED (dtype). Each names the tensor. */
cot_status cot_stored_find(cot_stored *stored, const cot_checkpoint *checkpoint, cot_weight weight,
                           int64_t layer, int64_t expert, cot_error *error);

/* A piece of a weight, as rows `stride` elements apart. */
typedef struct cot_block {
    const void *data;
    cot_dtype type; // F32, BF16 or F16
    int64_t stride;
} cot_block;

/* Whether blocks point into the file itself and need no scratch. */
bool cot_stored_is_direct(const cot_stored *stored);
/* Rows [row, row + rows), columns [column, column + columns); dequantised into `scratch` (rows * columns
 * floats) unless direct. */
cot_block cot_stored_block(const cot_checkpoint *checkpoint, const cot_stored *stored, int64_t row,
                           int64_t rows, int64_t column, int64_t columns, void *scratch);
/* Whether n elements of type F32, BF16 or F16 are neither NaN nor infinite. */
bool cot_all_finite(const void *data, cot_dtype type, int64_t n);

#endif
