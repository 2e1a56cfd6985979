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
    bool is_tried;             // the one request that may go there then is on its way
} cot_route_breaker;

void cot_route_breaker_fail(cot_route_breaker *breaker, int64_t now_ns);
/* Counts while it is tried alone: before, it is a success of what was on its way when it opened. */
void cot_route_breaker_succeed(cot_route_breaker *breaker);
/* A request goes there. True: it is the one that tries it. */
bool cot_route_breaker_send(cot_route_breaker *breaker, int64_t now_ns);
void cot_route_breaker_give_up(
    cot_route_breaker *breaker); /* that one ended and tells nothing: another may try */
bool cot_route_breaker_is_open(const cot_route_breaker *breaker, int64_t now_ns);

#endif
