/* A target that fails again and again gets nothing for a while. */
#ifndef COT_ROUTE_BREAKER_H
#define COT_ROUTE_BREAKER_H
#include <stdbool.h>
#include <stdint.h>

enum { COT_ROUTE_FAILURES = 3 };

/* All zero is closed. */
typedef struct cot_route_breaker {
    int64_t failed_ns[COT_ROUTE_FAILURES]; // when the last ones were, oldest first
    int failures;
    int64_t open_ns, until_ns; // how long it opens the next time, 0: the least; until when it is open
    bool on_trial;             // it was open: one more failure opens it
} cot_route_breaker;

void cot_route_breaker_fail(cot_route_breaker *breaker, int64_t now_ns);
void cot_route_breaker_succeed(cot_route_breaker *breaker);
bool cot_route_breaker_is_open(const cot_route_breaker *breaker, int64_t now_ns);

#endif
