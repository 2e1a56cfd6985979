/* Writing a checkpoint again in few bits: what will be written (convert_plan.c), how rows are rounded
 * (convert_round.c), and the folder that it goes to (convert.c).
 *
 *   int4, int8     X.weight_packed [out][in / per] of I32, `per` = 32 / bits codes a word, the first one lowest, each the whole
 *                  number plus 2^(bits-1); X.weight_scale [out][in / 32] of BF16 (int4) or [out][1] of F32 (int8);
 *                  X.weight_shape [2] of I64                                   compressed-tensors, pack-quantized
 *   mxfp4          X.weight_packed [out][in / 2] of U8, two codes a byte, the first one low; X.weight_scale [out][in / 32] of U8,
 *                  exponents plus 127                                          compressed-tensors, mxfp4-pack-quantized
 *   mxfp4 where experts of a layer are one tensor
 *                  X_blocks [experts][out][in / 32][16] and X_scales [experts][out][in / 32] of U8                   gpt-oss */
#ifndef COT_CHECKPOINT_CONVERT_H
#define COT_CHECKPOINT_CONVERT_H
#include "base/pool.h"
#include "checkpoint/stored.h"

/* Tensors that are written one after the other. */
typedef struct cot_convert_unit {
    cot_tensor tensors[3]; // without data; names are malloc'd
    int count;
    size_t bytes;                   // of all of them
    const cot_shard_tensor *source; // what is copied as it lies; NULL: what follows is read and rounded
    cot_format format;              // to which: BF16 and FP32 have neither scales nor a shape
    cot_weight weight;
    int64_t layer, expert;
    int64_t matrices;      // of as many experts, from `expert` on
    int64_t rows, columns; // of each
    bool paired;           // rows are by turns those of `weight` and of the weight after it
    bool kept;             // codes and scales are the file's
    bool across;           // a vector, each number of which is a row
    int64_t turned;        // halves of as many rows lie by turns in the file; 0: they do not
} cot_convert_unit;

/* What matrices become: experts' (INT4, INT8 or MXFP4); those of other networks, of attention but kv_b, and the head (COT_FORMATS: as
 * they lie, or bf16). All else is as it lies, or fp32. Readers that widen a folder while they load it take one format for
 * all that is no expert's, `scheme`: other networks are of that format or stay as they lie. */
typedef struct cot_convert_formats {
    cot_format experts, others, attention, head, scheme;
} cot_convert_formats;

typedef struct cot_convert_plan {
    cot_convert_formats formats;
    cot_convert_unit *units; // ascending by the first tensor's name
    size_t count, capacity;
    size_t bytes;
    bool widens_others;            // networks of others that are in few bits and not rounded become bf16
    size_t widened, widened_bytes; // tensors of GGUF's blocks that became fp32, and what they take
} cot_convert_plan;

/* Whether the model's layout has weights in these formats, whatever is stored. Errors: UNSUPPORTED. */
cot_status cot_convert_check(const cot_checkpoint *checkpoint, cot_convert_formats formats, cot_error *error);
/* What a checkpoint becomes, by the names that its family has. Where the family has experts in one tensor networks are MXFP4, and
 * attention and head as they lie; so is a head that is the embedding. Errors: UNSUPPORTED (a network's matrix that is of that kind already; one whose columns are no whole groups; what
 * the layout has not; rope_freqs), OUT_OF_MEMORY, and cot_stored_find's. On failure the plan is empty. */
cot_status cot_convert_plan_make(cot_convert_plan *plan, const cot_checkpoint *checkpoint,
                                 cot_convert_formats formats, cot_error *error);
void cot_convert_plan_clear(cot_convert_plan *plan);
/* The quantization_config that tells it; NULL when out of memory. */
json_t *cot_convert_tell(const cot_convert_plan *plan, const cot_config *config);
/* The same of what was GGUF: a group for each kind, the one of most matrices by class, the others by names; JSON's null where nothing is
 * quantised. */
json_t *cot_convert_tell_gguf(const cot_convert_plan *plan, const cot_config *config);
/* Adds to `groups` that matrices of modules that `targets` name are in `format`; takes `targets`. Not 0: out of memory. */
int cot_convert_add_group(json_t *groups, json_t *targets, cot_format format);
/* The names of matrices that a public reader would take for quantised ones, and that are none; NULL when out of memory. */
json_t *cot_convert_ignored(const cot_convert_plan *plan, const cot_config *config);
/* "pack-quantized", or that of MXFP4. */
const char *cot_convert_layout(cot_format format);
/* What becomes of a weight of a GGUF file that is not rounded: what it is, where a folder holds that, else FP32, which holds all that files
 * do. Errors: UNSUPPORTED (experts of a family whose layout has them in MXFP4 alone). */
cot_status cot_convert_keep_gguf(cot_format *format, const cot_stored *stored, const cot_config *config,
                                 cot_weight weight, cot_error *error);
/* What lies beside the weights of a folder made of a GGUF file: tokenizer.json, and tokenizer_config.json with special tokens and chat
 * templates. The caller owns them. Errors: what opening the tokenizer gives. */
cot_status cot_convert_beside_gguf(json_t **tokenizer, json_t **settings, const char *path, cot_error *error);

/* Bytes of a row's codes, and of its scales. */
int64_t cot_convert_code_bytes(cot_format format, int64_t columns);
int64_t cot_convert_scale_bytes(cot_format format, int64_t columns);
/* Rounds matrix m of the unit into codes [rows][code bytes] and scales [rows][scale bytes], the pool helping. Errors as
 * cot_checkpoint_read's. */
cot_status cot_convert_round(uint8_t *codes, uint8_t *scales, const cot_convert_unit *unit, int64_t m,
                             const cot_checkpoint *checkpoint, cot_pool *pool, cot_error *error);

#endif
