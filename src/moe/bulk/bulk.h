/* The bulk-synchronous operator, as DeepSpeed-MoE works (Rajbhandari et al. 2022, section 5): all ranks gate,
 * exchange all rows, compute, exchange all rows back. Each step waits for the whole of the one before.
 * How rows travel is a choice: as cot_moe_a2a has it, each (token, expert) or each (token, rank) once. */
#ifndef COT_MOE_BULK_BULK_H
#define COT_MOE_BULK_BULK_H
#include "moe/moe.h"

#define COT_MOE_BULK "bulk"
extern const cot_moe_operator cot_moe_bulk;

#endif
