/* The fused operator (FlashMoE, sections 3 and 3.1, on processor cores): gate, dispatch, experts and combine as
 * one pass of tile tasks, one-sided transfers, no barrier. See state.h for the actors, layout.h for the memory,
 * docs/FUSED.md for the proofs. */
#ifndef COT_MOE_FUSED_FUSED_H
#define COT_MOE_FUSED_FUSED_H
#include "moe/moe.h"

#define COT_MOE_FUSED "fused"
extern const cot_moe_operator cot_moe_fused;

/* S of layout.h: most tokens of a rank in one pass. Pure. */
int64_t cot_fused_pass_tokens(const cot_moe_options *options, int ranks);

#endif
