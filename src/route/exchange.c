#include "coterie/route.h"

enum { MOST_PASSES = 8 };
/* An exchange must be worth more than rounding is. */
static const double LEAST_GAIN = 1e-6;

/* What a request costs at a target, by what a book of that policy and these scales chooses by. */
static double cost_at(const cot_route_book *book, const cot_route_request *r, size_t target, int64_t now_ns,
                      cot_route_decision *decision)
{
    cot_route_weigh(book, r, target, now_ns, decision);
    return cot_route_score(book, &decision->terms);
}

/* Whether two requests have exchanged their targets. */
static bool exchange(cot_route_book *book, const cot_route_request *const r[2],
                     cot_route_decision *const d[2], uint64_t *const number[2], int64_t now_ns)
{
    const size_t target[2] = {d[0]->target, d[1]->target};
    cot_route_decision weighed[2][2]; // as they are, and exchanged
    double cost[2] = {0};
    for (int i = 0; i < 2; i++) cot_route_ended(book, *number[i], 0, now_ns);
    for (int other = 0; other < 2; other++)
        for (int i = 0; i < 2; i++)
            cost[other] += cost_at(book, r[i], target[i ^ other], now_ns, &weighed[other][i]);
    const bool gains = cost[1] < cost[0] - LEAST_GAIN * (1 + (cost[0] < 0 ? -cost[0] : cost[0]));
    for (int i = 0; i < 2; i++) {
        if (gains) *d[i] = weighed[1][i];
        *number[i] = cot_route_assigned(book, r[i], d[i], now_ns);
    }
    return gains;
}

void cot_route_exchange(cot_route_book *book, const cot_route_request *requests,
                        cot_route_decision *decisions, uint64_t *numbers, size_t count, int64_t now_ns)
{
    bool changed = true;
    for (int pass = 0; pass < MOST_PASSES && changed; pass++) {
        changed = false;
        for (size_t i = 0; i < count; i++)
            for (size_t k = i + 1; k < count; k++) {
                if (decisions[i].target == decisions[k].target || !numbers[i] || !numbers[k]) continue;
                changed |= exchange(book, (const cot_route_request *[]){&requests[i], &requests[k]},
                                    (cot_route_decision *[]){&decisions[i], &decisions[k]},
                                    (uint64_t *[]){&numbers[i], &numbers[k]}, now_ns);
            }
    }
}
