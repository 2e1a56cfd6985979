/* Loops in which all get their turn, and how other threads, and handlers of signals, get a word in: an eventfd that the loop listens to. */
#ifndef COT_NET_WAKE_H
#define COT_NET_WAKE_H
#include <stdbool.h>
#include <stdint.h>

struct event;
struct event_base;

typedef struct cot_wake {
    int fd;              // -1: none
    struct event *event; // NULL: none
    void (*heard)(void *context, uint64_t times);
    void *context;
} cot_wake;

/* A loop that looks for what else has come, and whose time it is, after some callbacks: an event that is made active again while it is called
 * would keep one of libevent's default from doing so. NULL when memory runs out; event_base_free frees it. */
struct event_base *cot_wake_base_open(void);

/* From now on the loop calls `heard` with how often cot_wake_up was called since the last time. False when there is no
 * descriptor or no memory to be had; cot_wake_close is called either way. `wake` stays where it is. */
bool cot_wake_open(cot_wake *wake, struct event_base *base, void (*heard)(void *context, uint64_t times),
                   void *context);
/* Any thread, or a signal's handler: has the loop call `heard`, once for all calls until then. */
void cot_wake_up(const cot_wake *wake);
/* The loop's thread: what was not heard yet is not heard any more. */
void cot_wake_drop(const cot_wake *wake);
/* Closes what cot_wake_open has opened; before the loop is freed. */
void cot_wake_close(cot_wake *wake);

#endif
