/* What quantization_config says: how tensors' names and layouts are to be read, and what matrices are held against. What is
 * stored, dtypes and shapes tell. */
#ifndef COT_CHECKPOINT_QUANTISATION_H
#define COT_CHECKPOINT_QUANTISATION_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum cot_quantised {
    COT_QUANTISED_NOT, // also FP8 and MXFP4 of methods of those names: the tensors tell
    COT_QUANTISED_GPTQ,
    COT_QUANTISED_AWQ,
    COT_QUANTISED_COMPRESSED, // compressed-tensors
    COT_QUANTISED_MODELOPT
} cot_quantised;

/* Modules by their full names, by patterns that fit the beginnings of those ("re:...") or, ModelOpt's, all of them ("*.mlp.gate"), or
 * by their class. */
typedef struct cot_quantised_targets {
    struct cot_quantised_target *items;
    size_t count;
} cot_quantised_targets;

typedef enum cot_quantised_strategy {
    COT_QUANTISED_ANYHOW,  // not said
    COT_QUANTISED_TENSOR,  // one scale
    COT_QUANTISED_CHANNEL, // one a row
    COT_QUANTISED_GROUP,   // one for each `columns` of a row
    COT_QUANTISED_BLOCK,   // one for `rows` by `columns`; these are 0 where that is not said
} cot_quantised_strategy;

/* Of config_groups: what the matrices of its targets are. */
typedef struct cot_quantised_group {
    cot_quantised_targets targets; // none: all
    int bits;                      // 0: not said
    bool whole, floats;            // of the type of its numbers; neither: not said
    cot_quantised_strategy strategy;
    int64_t rows, columns;
    bool zeros;     // there are zero points
    bool symmetric; // these are all the middle, where there are any; neither: not said
    bool reordered; // columns need not be in their groups' order: a tensor must say that they are
} cot_quantised_group;

typedef struct cot_quantisation {
    bool told;   // there is a quantization_config, or what stands for it
    bool beside; // ModelOpt: in hf_quant_config.json
    cot_quantised method;
    int bits;                    // GPTQ and AWQ: 4 or 8
    int64_t group;               // the same: columns that share a scale; 0: all
    bool ones_less;              // GPTQ: words of zero points are less by 1 in each place
    bool symmetric;              // zero points are all the middle, where there are any
    bool reordered;              // GPTQ: as of a group
    cot_quantised_group *groups; // compressed-tensors; ModelOpt: one, or none where each module has its own
    size_t group_count;
    cot_quantised_targets ignored; // the same
} cot_quantisation;

void cot_quantisation_clear(cot_quantisation *quantisation);

/* How well targets name a module: 0 not at all, 1 by its class, 2 by a pattern, 3 by its name. */
int cot_quantised_match(const cot_quantised_targets *targets, const char *module, size_t length,
                        const char *kind);

#endif
