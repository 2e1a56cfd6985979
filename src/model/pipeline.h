/* What tensor-parallel ranks do between attention and experts, and back: each has a part of the attention's sum for all
 * tokens, and a token's experts want the whole sum of it in one place, its home.
 *
 *              to the home              at the home                    from the home
 *     ds-moe   allreduce                gate, dispatch,                allgather
 *     s-moe    shuffled reduce-scatter  experts, combine               shuffled allgather
 *
 * ds-moe is DeepSpeed-MoE's: homes go by index, and what the allreduce brings to ranks that are no home is dropped. s-moe
 * (Speculative MoE, section 3.3) foretells homes layer by layer, where most of a token's experts probably are, and sends
 * nothing else. A wrong guess costs bytes, never a result: rows return to their own index, and every rank adds the same
 * decoded rows, so that the copies of the residual stream stay one. */
#ifndef COT_MODEL_PIPELINE_H
#define COT_MODEL_PIPELINE_H
#include "predict/homes.h"

/* What foretells homes in s_moe. X(NAME, "as --predict spells it"); what tables foretell has names of its own */
#define COT_FORESIGHT_LIST(X)                                                                                \
    X(NONE, "none")     /* homes go by index */                                                              \
    X(TABLES, "tables") /* counted on other texts */                                                         \
    X(GATE, "gate")     /* the next layer's gate, which the home in this one asks too early */               \
    X(ORACLE, "oracle") /* replayed routing itself: the best that there is */                                \
    X(WORST, "worst")   /* the same, the other way round: what wrong guesses cost at most */

typedef enum cot_foresight {
#define COT_FORESIGHT_ENUM(name, text) COT_FORESIGHT_##name,
    COT_FORESIGHT_LIST(COT_FORESIGHT_ENUM)
#undef COT_FORESIGHT_ENUM
        COT_FORESIGHTS
} cot_foresight;

typedef struct cot_pipeline {
    bool s_moe;
    /* Collectives in one hop: partial sums go straight home and are added there in the order of ranks, each rounded, and
     * the sum is rounded: no sum depends on where the home is. Else on a ring, as the paper has it. */
    bool direct;
    cot_foresight foresight; // none without s_moe
    /* Of COT_FORESIGHT_TABLES: */
    const cot_predictor *tables;
    cot_predict_method method; // any but `context`
    int32_t first_layer;       // of the tables: the model's first MoE layer
    const int32_t
        *row_of_id; // rows of the tables for ids that only a replayed trace knows; NULL: the tables know ids
} cot_pipeline;

/* Bytes that travel with a row from its home in a MoE layer: the rank that held most of its experts, which tables look back
 * at; or the rank that the next gate chose, and how surely. */
static inline size_t cot_pipeline_riding_bytes(const cot_pipeline *p)
{
    if (p->foresight == COT_FORESIGHT_GATE) return 2;
    return p->foresight == COT_FORESIGHT_TABLES && cot_homes_look_back(p->method) ? 1 : 0;
}

/* Whether rows go home and back as shuffle.c does it: all but a ring of slices that never changes. */
static inline bool cot_pipeline_goes_home(const cot_pipeline *p)
{
    return p->s_moe || p->direct;
}

#endif
