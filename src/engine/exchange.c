#include "engine/exchange.h"

#include "base/error.h"

#include <string.h>

cot_status cot_engine_exchange_of(cot_engine_exchange *exchange, const char *a2a, const char *dedup,
                                  cot_error *error)
{
    *exchange = (cot_engine_exchange){0};
    if (a2a && !cot_moe_a2a_find(&exchange->a2a, a2a))
        return cot_fail(error, COT_INVALID_ARGUMENT, "unknown a2a '%s' (padded, two-phase or one-shot)", a2a);
    if (!dedup) return COT_OK;
    const bool on = !strcmp(dedup, "on");
    if (!on && strcmp(dedup, "off") != 0)
        return cot_fail(error, COT_INVALID_ARGUMENT, "unknown dedup '%s' (on or off)", dedup);
    exchange->dedup = on ? COT_DEDUP_ON : COT_DEDUP_OFF;
    return COT_OK;
}

cot_status cot_engine_check_reserve(const cot_moe_operator *op, int sms_reserve, cot_error *error)
{
    if (!sms_reserve || op->on_device) return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT,
                    "'%s' runs on no device that could leave %d multiprocessors to others", op->name,
                    sms_reserve);
}

cot_status cot_engine_exchange_settle(cot_engine_exchange *exchange, const cot_moe_operator *op,
                                      cot_moe_combine combine, bool foretold, cot_error *error)
{
    cot_moe_options o = {.combine = combine, .a2a = exchange->a2a, .dedup = exchange->dedup};
    if (foretold && o.a2a == COT_A2A_AUTO) o.a2a = COT_A2A_ONE_SHOT;
    if (foretold && o.dedup == COT_DEDUP_AUTO && o.a2a != COT_A2A_PADDED) o.dedup = COT_DEDUP_ON;
    cot_error why;
    if (op->settle(&o, &why) != COT_OK) return cot_fail(error, COT_INVALID_ARGUMENT, "%s", why.message);
    *exchange = (cot_engine_exchange){o.a2a, o.dedup};
    return COT_OK;
}
