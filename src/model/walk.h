/* A walk over the weights of a model: it takes memory for them from an arena and records what is loaded there. With an arena that
 * measures, it only adds up how much memory that will be. */
#ifndef COT_MODEL_WALK_H
#define COT_MODEL_WALK_H
#include "model/weights.h"

typedef struct cot_loader_walk {
    const cot_checkpoint *checkpoint;
    const cot_config *config;
    cot_precision precision;
    cot_arena *arena;
    cot_loader *load;
} cot_loader_walk;

cot_loader_walk cot_loader_walk_of(const cot_checkpoint *checkpoint, cot_precision precision,
                                   cot_arena *arena, cot_loader *load);

enum { COT_LOADER_ROWS = 64 * COT_PANEL }; // of a large matrix, that one thread packs at a time

/* A vector of `columns` floats in fp32, from column0 on. */
float *cot_loader_vector(const cot_loader_walk *walk, cot_weight weight, int64_t layer, int64_t column0,
                         int64_t columns);
/* The format of a weight by a rule. */
cot_format cot_loader_format(const cot_loader_walk *walk, cot_weight_rule rule, cot_weight weight,
                             int64_t layer);
/* A matrix [rows][columns] packed whole, in several groups where it is large. */
cot_packed cot_loader_matrix(const cot_loader_walk *walk, cot_weight weight, int64_t layer, int64_t row0,
                             int64_t rows, int64_t column0, int64_t columns, cot_format format);
/* What a layer's heads give becomes H columns: of such a weight [H][all `heads` of `width`] the columns of this rank's heads. */
cot_packed cot_loader_output(const cot_loader_walk *walk, const cot_attention_weights *weights,
                             cot_weight weight, int64_t layer, int64_t heads, int64_t width);

/* Rows of a weight that are columns of a matrix: so many from row0 on; or parts of `part` rows from part `first` on, of which
 * `per` follow one another, and as many again `every` rows further, part 0 at row0. */
typedef struct cot_loader_side {
    cot_weight weight;
    int64_t row0, rows;
    int64_t part, first, per, every; // part 0: all rows follow one another
} cot_loader_side;
static inline cot_loader_side cot_loader_rows(cot_weight weight, int64_t row0, int64_t rows)
{
    return (cot_loader_side){.weight = weight, .row0 = row0, .rows = rows};
}
/* Weights side by side, packed: one matrix where one format holds them all as they are, else a part for each. */
cot_packed_parts cot_loader_side_by_side(const cot_loader_walk *walk, cot_weight_rule rule,
                                         const cot_loader_side *sides, int count, int64_t k, int64_t layer);

#endif
