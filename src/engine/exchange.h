/* How rows travel between ranks, from the names in an engine's or a benchmark's options. */
#ifndef COT_ENGINE_EXCHANGE_H
#define COT_ENGINE_EXCHANGE_H
#include "moe/moe.h"

typedef struct cot_engine_exchange {
    cot_moe_a2a a2a;
    cot_moe_dedup dedup;
} cot_engine_exchange;

/* Errors: INVALID_ARGUMENT, where multiprocessors are to be left by an operator that runs on none. */
cot_status cot_engine_check_reserve(const cot_moe_operator *op, int sms_reserve, cot_error *error);

/* a2a: "padded", "two-phase", "one-shot"; dedup: "on", "off"; NULL is AUTO. Errors: INVALID_ARGUMENT, naming what is unknown. */
cot_status cot_engine_exchange_of(cot_engine_exchange *exchange, const char *a2a, const char *dedup,
                                  cot_error *error);
/* The same with the operator's choices in place of AUTO; `foretold` tokens, which s-moe has where there are tables, go in one
 * message, once to a rank, where nobody says otherwise. Errors: INVALID_ARGUMENT, by name, for what it does not do. */
cot_status cot_engine_exchange_settle(cot_engine_exchange *exchange, const cot_moe_operator *op,
                                      cot_moe_combine combine, bool foretold, cot_error *error);

#endif
