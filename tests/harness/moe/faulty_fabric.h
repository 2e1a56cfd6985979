/* A fabric for tests: P ranks in one thread. What a rank puts becomes a message that waits in the queue from its
 * source to its target until the test delivers it: pairs overtake each other as they like. What the contract of
 * fabric.h leaves open is drawn: the bytes of a put are there at once, piece by piece, or just before the next
 * signal of that pair is raised, and until then their place holds NaN. A message may lose its signal. */
#ifndef COT_TESTS_HARNESS_MOE_FAULTY_FABRIC_H
#define COT_TESTS_HARNESS_MOE_FAULTY_FABRIC_H
#include "harness/draw.h"

#include "fabric/fabric.h"

#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>

enum { FAULTY_RANKS = 8, FAULTY_ENDPOINT_ALIGN = 64 };

struct faulty_message {
    struct faulty_message *next;
    cot_sym where, signal;
    uint64_t value;
    bool signals, lost;
    size_t bytes, there; // in all; already copied
    uint8_t data[];
};

struct faulty_queue {
    struct faulty_message *first, **end;
};

struct faulty_endpoint {
    cot_fabric fabric; // first
    struct faulty_group *group;
    uint8_t *heap;
    size_t used;
    cot_traffic traffic[FAULTY_RANKS][COT_PHASES];
};

/* What the test is told before a message is on its way. */
typedef void faulty_watch(void *context, int from, int to, cot_sym where, size_t bytes, cot_sym signal,
                          uint64_t value);

struct faulty_group {
    int ranks;
    size_t heap_bytes;
    struct draw *draw;
    int at_once; // of 4 puts so many arrive whole when they are put
    int64_t now_ns, undelivered, signals_sent;
    int64_t lose; // this signal is lost: counted from 0; -1: none
    int lost_from, lost_to;
    uint64_t lost_value;
    faulty_watch *watch;
    void *context;
    struct faulty_queue queue[FAULTY_RANKS][FAULTY_RANKS]; // source, target
    struct faulty_endpoint endpoints[FAULTY_RANKS];
};

uint64_t faulty_load(cot_fabric *fabric, cot_sym signal);

/* Delivers the pair's first message; or, drawn, a piece of any of the pair's: the bytes of messages behind a
 * signal may come before it. False when there is nothing on its way. */
bool faulty_deliver(struct faulty_group *group, int from, int to);

struct faulty_group *faulty_open(int ranks, size_t heap_bytes, struct draw *draw);

void faulty_close(struct faulty_group *group);

#endif
