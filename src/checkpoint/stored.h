/* Where a weight lies in the files, in whichever form it is stored. */
#ifndef COT_CHECKPOINT_STORED_H
#define COT_CHECKPOINT_STORED_H
#include "kernels/pack.h"
#include "checkpoint/family.h"
#include "checkpoint/shards.h"

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
    COT_STORAGE_NVFP4,  // E2M1, two a byte, a scale (E4M3) for each 16 of a row, one (F32) of all
    COT_STORAGE_WHOLE,  // whole numbers of 4 or 8 bits, a scale for each group of a row, perhaps zero points
    COT_STORAGE_BLOCKS, // GGUF's, each with scales of its own, whole ones in a row
    COT_STORAGE_HEADS, // GGUF's halves of MLA's kv_b, each plain or in blocks: of a head first rows of nope, then of v
    COT_STORAGE_RANDOM, // BF16 out of the random numbers of `stream`
} cot_storage;

/* Where the codes of whole numbers lie. Element (r, c) is code r * row_step + c * column_step, if codes are signed bytes; else
 * one of 32 / bits unsigned codes of a word: of word r * row_step + c / (32 / bits) * column_step if consecutive columns share
 * it, or of word r / (32 / bits) * row_step + c * column_step if consecutive rows do. Scales, and zero points likewise, of group
 * c / group of row r. */
typedef struct cot_whole_layout {
    int bits;
    bool bytes;       // codes are signed bytes
    bool rows_share;  // a word has the codes of consecutive rows
    bool interleaved; // and these in AWQ's order
    int64_t group;    // columns that share a scale
    int64_t scale_row, scale_group;
    const cot_shard_tensor *zeros; // NULL: there are none
    int64_t zero_row, zero_group;  // steps of words, each of consecutive rows; or of signed bytes
    bool ones_less;                // words of zero points are less by 1 in each place, which borrows
    bool symmetric;                // all zero points are the middle, or the file is wrong
    const cot_shard_tensor *order; // the group of each column, which must be c / group; NULL: it is
    const cot_shard_tensor *shape; // the matrix's rows and columns once more; NULL: not there
} cot_whole_layout;

/* Element (r, c) of the weight [rows][columns] is element origin + r * row_step + c * column_step of the
 * tensor (MXFP4 and NVFP4: counted in nibbles; the scale of 32, or 16, of them is scales[element / 32]). */
typedef struct cot_stored {
    cot_storage storage;
    const char *name; // of the tensor, for messages; valid while the checkpoint is open
    const cot_shard_tensor *tensor, *scales; // NULL where there is none
    const cot_shard_tensor *values;          // HEADS: [heads][v][columns]; `tensor` is [heads][columns][nope]
    const cot_shard_tensor *of_all;          // NVFP4: the scale of all elements
    bool divides;                            // the same: elements are divided by it
    int64_t rows, columns;
    int64_t origin, row_step, column_step;
    int64_t block_rows, block_columns; // FP8
    int64_t scale_origin;              // FP8: the scale of the weight's first block
    cot_whole_layout whole;            // WHOLE: all of the place but origin, row_step and column_step
    uint64_t stream;
    float centre, spread; // RANDOM: uniform in centre +- spread
} cot_stored;

/* Rows and columns of a weight; rows is 0 where the architecture has no such weight there. */
void cot_weight_shape(const cot_config *config, cot_weight weight, int64_t layer, int64_t *rows,
                      int64_t *columns);
/* Calls `visit` for every weight of the model until it fails, and returns what it did. */
cot_status cot_weight_each(const cot_config *config, void *context,
                           cot_status (*visit)(void *context, cot_weight weight, int64_t layer,
                                               int64_t expert));
/* Numbers in all weights; and in those that a token uses: K of a layer's routed experts, all of the rest. */
void cot_weight_count(const cot_config *config, int64_t *all, int64_t *active);
bool cot_weight_is_layered(cot_weight weight);
bool cot_weight_is_expert(cot_weight weight); // one for each routed expert
bool cot_weight_is_norm(cot_weight weight);   // of a whole row or a head of attention
const char *cot_weight_name(cot_weight weight);

/* A weight's tensor name, as the family has it in such files, with `suffix` behind it; and in another spelling that is read as well, of which `way`
 * (from 1 on; 0 is the name itself; from COT_STORED_NESTED on those of a nested model) says which: false where the name has no such. Names that are longer are cut off. */
enum { COT_STORED_NAME = 160, COT_STORED_NESTED = 8, COT_STORED_SPELLINGS = 3 * COT_STORED_NESTED };
void cot_stored_name(char out[COT_STORED_NAME], const cot_config *config, cot_weight weight, int64_t layer,
                     int64_t expert, const char *suffix);
bool cot_stored_spelling(char out[COT_STORED_NAME], const char *name, int way);

/* Finds a weight and checks the shapes and dtypes of its tensors. Errors: INVALID_ARGUMENT (no such weight),
 * NOT_FOUND (no such tensor), MALFORMED (shape), UNSUPPORTED (dtype). Each names the tensor. */
cot_status cot_stored_find(cot_stored *stored, const cot_checkpoint *checkpoint, cot_weight weight,
                           int64_t layer, int64_t expert, cot_error *error);

/* The format whose elements and scales the files hold, or COT_FORMATS: it has to be widened. */
cot_format cot_stored_format(const cot_stored *stored);
/* Whether it can be packed in `format` as it is: that format, or one whose groups are parts of its own. */
bool cot_stored_is(const cot_stored *stored, cot_format format);
/* Whether column c is in group c / group, as all reading takes it to be; of whole numbers a tensor may say otherwise. */
bool cot_stored_in_order(const cot_stored *stored);
/* Whether the tensor that repeats the matrix's shape, if there is one, holds that. */
bool cot_stored_shape_is_told(const cot_stored *stored);
/* Fills in where a weight that quantization_config says is quantised lies, if tensors of its names are there and not one called
 * `name` (which ends in ".weight"): `*found`. Errors as cot_stored_find's. */
cot_status cot_stored_find_whole(bool *found, cot_stored *stored, const cot_checkpoint *checkpoint,
                                 const char *name, cot_error *error);
/* Signed bytes in the tensor itself. */
cot_status cot_stored_find_bytes(cot_stored *stored, const cot_checkpoint *checkpoint, const char *name,
                                 cot_error *error);
/* NVFP4 in `stored->tensor`, as compressed-tensors (`packed`) or ModelOpt has it, of the weight that would be called `name`; and
 * whether there is what ModelOpt puts beside such a weight. */
cot_status cot_stored_find_nvfp4(cot_stored *stored, const cot_checkpoint *checkpoint, const char *name,
                                 bool packed, cot_error *error);
bool cot_stored_is_nvfp4(const cot_checkpoint *checkpoint, const char *name);
/* Whether the scale of all is a positive number that leaves every element one, and what elements are multiplied by. */
bool cot_stored_scale_of_all(float *scale, const cot_stored *stored);
/* The same as cot_stored_find in a checkpoint of GGUF, rows and columns filled in. */
cot_status cot_stored_find_gguf(cot_stored *stored, const cot_checkpoint *checkpoint, cot_weight weight,
                                int64_t layer, int64_t expert, cot_error *error);
/* K_B and V_B. Errors: cot_stored_find's. */
cot_status cot_stored_find_half(cot_stored *stored, const cot_checkpoint *checkpoint, cot_weight weight,
                                int64_t layer, cot_error *error);
/* Fills in where an expert's weight lies in a tensor of all experts, if there is one: `*found`. Interleaved: gpt-oss's, called `name`,
 * or that and "_blocks"; fused: transformers 5's, beside which the expert's own would be called `name`. Errors as cot_stored_find's. */
cot_status cot_stored_find_interleaved(bool *found, cot_stored *stored, const cot_checkpoint *checkpoint,
                                       cot_weight weight, const char *name, int64_t expert, cot_error *error);
cot_status cot_stored_find_fused(bool *found, cot_stored *stored, const cot_checkpoint *checkpoint,
                                 cot_weight weight, const char *name, int64_t expert, cot_error *error);
/* Holds a matrix that is quantised against what quantization_config says of it. Errors: MALFORMED, naming the tensor. */
cot_status cot_stored_hold(const cot_stored *stored, cot_weight weight, const cot_config *config,
                           cot_error *error);
/* "[3][4]" */
void cot_stored_print_shape(char *out, size_t room, const int64_t *shape, int dims);
cot_status cot_stored_fail_missing(const char *name, cot_error *error);
cot_status cot_stored_expect_shape(const cot_tensor *tensor, const int64_t *shape, int dims,
                                   cot_error *error);
/* Of a matrix whose columns may be in any group, by what quantization_config calls so, without the tensor that says in which. */
cot_status cot_stored_refuse_order(const cot_stored *stored, const char *told, const char *missing,
                                   cot_error *error);
cot_status cot_stored_refuse_dtype(const cot_tensor *tensor, const char *expected, cot_error *error);
static inline bool cot_stored_is_plain(cot_dtype type)
{
    return type == COT_F32 || type == COT_BF16 || type == COT_F16;
}

/* Whether the files hold every weight, in the shapes that config.json implies and as it says (cot_stored_hold), and lines on what
 * they hold besides, malloc'd, or NULL. Decides whether the head is the embedding (config.tied_embeddings): one that is stored, and
 * differs, is the head whatever config.json says, of which a line warns. Errors: as cot_checkpoint_open's. */
cot_status cot_checkpoint_survey(cot_checkpoint *checkpoint, char **notes, const char *folder,
                                 cot_error *error);

/* A piece of a weight, as rows `stride` elements apart. */
typedef struct cot_block {
    const void *data;
    cot_dtype type; // F32, BF16 or F16
    int64_t stride;
} cot_block;

/* Whether blocks point into the file itself and need no scratch. */
bool cot_stored_is_direct(const cot_stored *stored);
/* Rows [row, row + rows), columns [column, column + columns); dequantised into `scratch`
 * (cot_stored_scratch_bytes) unless direct. */
size_t cot_stored_scratch_bytes(const cot_stored *stored, int64_t rows, int64_t columns);
cot_block cot_stored_block(const cot_checkpoint *checkpoint, const cot_stored *stored, int64_t row,
                           int64_t rows, int64_t column, int64_t columns, void *scratch);
/* Of RANDOM storage: the piece in MXFP4 instead, all codes alike, of whole groups of columns; into `scratch` (rows * columns
 * bytes). */
cot_pack_source cot_stored_draw(const cot_stored *stored, int64_t row, int64_t rows, int64_t column,
                                int64_t columns, void *scratch);
/* Of NVFP4: GGUF's blocks of columns [column, column + columns), `column` a multiple of a block, in which elements beyond the weight
 * are zero; into `scratch` (cot_stored_gathered_bytes). `scale` is what cot_stored_scale_of_all gave. */
size_t cot_stored_gathered_bytes(int64_t rows, int64_t columns);
cot_pack_source cot_stored_gather(const cot_stored *stored, int64_t row, int64_t rows, int64_t column,
                                  int64_t columns, const float *scale, void *scratch);
/* Of BLOCKS of MXFP4: whole groups of columns in the order that the format has, codes of neighbours in a byte; into `scratch`
 * (cot_stored_codes_bytes). */
cot_pack_source cot_stored_turn(const cot_stored *stored, int64_t row, int64_t rows, int64_t column,
                                int64_t columns, void *scratch);
/* Codes, scales and offsets of a piece that is FP8, WHOLE or BLOCKS, in groups of `group` columns from its first on (0: all are one), none
 * of which is in two groups of the file; into `scratch`, of cot_stored_codes_bytes. */
size_t cot_stored_codes_bytes(int64_t rows, int64_t columns, int64_t group);
cot_codes cot_stored_codes(const cot_checkpoint *checkpoint, const cot_stored *stored, int64_t row,
                           int64_t rows, int64_t column, int64_t columns, int64_t group, void *scratch);
/* What is wrong with the scales and zero points of rows [row, row + rows) of FP8 or WHOLE: which row, and a word; or NULL. */
const char *cot_stored_scales_fault(int64_t *at, const cot_checkpoint *checkpoint, const cot_stored *stored,
                                    int64_t row, int64_t rows);
/* Whether all zero points of whole numbers are the middle. */
bool cot_stored_is_symmetric(const cot_stored *stored);
/* Whether n elements of type F32, BF16 or F16 are neither NaN nor infinite. */
bool cot_all_finite(const void *data, cot_dtype type, int64_t n);

#endif
