/* What every operator refuses, in the same words. */
#ifndef COT_MOE_CHECK_H
#define COT_MOE_CHECK_H
#include "moe/moe.h"

/* Options that open may be given. Errors: INVALID_ARGUMENT. */
cot_status cot_moe_check(const cot_moe_options *options, cot_error *error);
/* Errors that end a call on all ranks: `rank` had an unsound routing; no rank had a token. */
cot_status cot_moe_fail_with(int rank, cot_error *error);
cot_status cot_moe_fail_empty(cot_error *error);

#endif
