#include "route/breaker.h"

#include <string.h>

static const int64_t WITHIN_NS = INT64_C(10000000000), LEAST_NS = INT64_C(5000000000),
                     MOST_NS = INT64_C(60000000000);

void cot_route_breaker_fail(cot_route_breaker *b, int64_t now_ns)
{
    if (cot_route_breaker_is_open(b, now_ns)) return; // what was on its way when it opened
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
    b->failures = 0;
}

void cot_route_breaker_succeed(cot_route_breaker *b)
{
    b->open_ns = b->until_ns = b->failures = 0;
    b->on_trial = false;
}

bool cot_route_breaker_is_open(const cot_route_breaker *b, int64_t now_ns)
{
    return b->on_trial && now_ns < b->until_ns;
}
