#include "route/breaker.h"

#include <string.h>

static const int64_t WITHIN_NS = INT64_C(10000000000), LEAST_NS = INT64_C(5000000000),
                     MOST_NS = INT64_C(60000000000);

void cot_route_breaker_fail(cot_route_breaker *b, int64_t now_ns)
{
    if (b->on_trial && now_ns < b->until_ns) return; // what was on its way when it opened
    if (b->failures == COT_ROUTE_FAILURES)
        memmove(b->failed_ns, b->failed_ns + 1, (COT_ROUTE_FAILURES - 1) * sizeof *b->failed_ns);
    else
        b->failures++;
    b->failed_ns[b->failures - 1] = now_ns;
    if (!b->on_trial && (b->failures < COT_ROUTE_FAILURES || now_ns - b->failed_ns[0] > WITHIN_NS)) return;
    if (!b->open_ns) b->open_ns = LEAST_NS;
    b->until_ns = now_ns + b->open_ns;
    b->open_ns = b->open_ns > MOST_NS / 2 ? MOST_NS : 2 * b->open_ns;
    b->on_trial = true;
    b->is_tried = false;
    b->failures = 0;
}

void cot_route_breaker_succeed(cot_route_breaker *b)
{
    if (b->is_tried) *b = (cot_route_breaker){0};
}

bool cot_route_breaker_send(cot_route_breaker *b, int64_t now_ns)
{
    if (!b->on_trial || now_ns < b->until_ns) return false;
    return b->is_tried = true;
}

void cot_route_breaker_give_up(cot_route_breaker *b)
{
    b->is_tried = false;
}

bool cot_route_breaker_is_open(const cot_route_breaker *b, int64_t now_ns)
{
    return b->on_trial && (b->is_tried || now_ns < b->until_ns);
}
