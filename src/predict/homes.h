/* Homes: the rank that takes each token of a step in for one layer, foretold before the layer's gate has run (Speculative
 * MoE, section 3.3, algorithm 2). A pure function of the tables, the tokens' ids and the ranks that held most of their
 * experts in the layers before: every rank of a group finds the same without a word. */
#ifndef COT_PREDICT_HOMES_H
#define COT_PREDICT_HOMES_H
#include "base/arena.h"
#include "coterie/predict.h"

/* Memory for the homes of one step at a time. */
typedef struct cot_homes_scratch {
    int16_t *rank;
    uint16_t *confidence;
    int32_t *order;
    float *experts; // [E]
} cot_homes_scratch;

/* Of up to `most` tokens and `experts` experts. */
void cot_homes_scratch_lay_out(cot_homes_scratch *scratch, cot_arena *arena, int64_t most, int64_t experts);

/* Whether the method reads ids, or ranks of the layers before. */
bool cot_homes_read_ids(cot_predict_method method);
bool cot_homes_look_back(cot_predict_method method);

/* home [n] of the batch's tokens by cot_predict_ranks and cot_assign_evenly: what an evaluation counts as lar_even. `method`
 * is any but `context`. Never allocates; safe with another scratch at once. */
void cot_predict_homes(int16_t *home, cot_homes_scratch *scratch, const cot_predictor *predictor,
                       cot_predict_method method, const cot_predict_batch *batch);
/* home [n] with foreknowledge: the rank with most of the experts [n][K] that a token calls, which sit on expert_rank [E] (or,
 * `worst`, with the fewest of them), even shares again, the surest tokens first. */
void cot_homes_by_experts(int16_t *home, cot_homes_scratch *scratch, const uint16_t *experts, int32_t top_k,
                          const int32_t *expert_rank, int64_t n, int32_t ranks, bool worst);
/* home [n] by guesses: a rank, or -1, and how sure it is; who finds no room there goes to the first rank that has. */
void cot_homes_by_guess(int16_t *home, cot_homes_scratch *scratch, const int16_t *rank,
                        const uint16_t *confidence, int64_t n, int32_t ranks);
/* home [n] without a prediction: even shares of consecutive tokens, floor(r n / P) <= i < floor((r + 1) n / P) on rank r. */
void cot_homes_by_index(int16_t *home, int64_t n, int32_t ranks);

/* The order in which tokens travel, a counting sort by (home, index): those of rank r are token[begin[r]] to
 * token[begin[r + 1] - 1]. token [n], begin [ranks + 1]. */
void cot_homes_order(int32_t *token, int32_t *begin, const int16_t *home, int64_t n, int32_t ranks);

#endif
