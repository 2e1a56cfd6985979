/* Models whose experts, attention and head are stored in the hub's layouts: each is written from known codes, zero points and scales by words of
 * their own. An element is (code - zero point) times scale; of NVFP4 that and
 * a scale of all. */
#ifndef COT_TESTS_HARNESS_CHECKPOINT_LAYOUTS_H
#define COT_TESTS_HARNESS_CHECKPOINT_LAYOUTS_H
#include "harness/checkpoint/folder.h"
#include "checkpoint/checkpoint.h"

#include <stdbool.h>

/* Heads are 32 wide: where they are cut, groups of 64 are too. */
enum { LAYOUT_H = 128, LAYOUT_I = 64, LAYOUT_E = 2, LAYOUT_VOCAB = 40, LAYOUT_HEAD_DIM = 32, LAYOUTS = 21 };

typedef struct layout {
    const char *config; // quantization_config
    enum { GPTQ, AWQ, PACKED, BYTES, E4M3, E2M1, NVFP4 } way;
    int bits;
    int64_t group; // 0: the whole width
    bool asymmetric;
    bool ones_less; // words of zero points are less by 1 in each place
    cot_dtype scale;
    bool one_scale; // of the tensor
    bool modelopt;  // its names, else compressed-tensors'
} layout;

/* A matrix [out][in] before any layout. */
typedef struct matrix {
    int64_t out, in, groups;
    int *codes, *zeros; // [out][in], [out][groups]: unsigned
    float *scales;      // [out][groups]
    float of_all;       // NVFP4: what is stored: compressed-tensors divides by it, ModelOpt multiplies
} matrix;

/* Matrices that a layer has once, and the head. */
enum { LAYOUT_PARTS = 5 };
typedef struct layout_part {
    const char *name;
    cot_weight weight;
    int64_t out, in;
} layout_part;
extern const layout_part layout_parts[LAYOUT_PARTS];

/* A Qwen3 model of one layer, whose matrices are stored so, but for gate and embedding: these and vectors are in bf16. */
typedef struct model {
    folder *f;
    size_t plain; // its first tensors, which have no layout
    matrix parts[LAYOUT_PARTS], experts[LAYOUT_E][3];
} model;

extern const layout layouts[LAYOUTS];

/* The name of the form that is kept in memory, or NULL: it is widened. */
const char *layout_kept(const layout *l);
/* Element (row, column) of a matrix. */
float layout_element(const layout *l, const matrix *m, int64_t row, int64_t column);

/* A number as one of a tensor's scales. */
void layout_put_scale(cot_tensor *t, int64_t at, float value);

model layout_make(const layout *l, uint64_t *seed);
void layout_discard(model *m);
/* The same weights without a layout: elements in F32. */
folder *layout_widened(const layout *l, const model *m);

#endif
