#include "fabric/collectives.h"

#include "base/error.h"
#include "fabric/scratch.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 64 };

/* Hands out offsets of the one block that holds everything; each piece begins on a line of its own. */
static cot_sym reserve(cot_sym *end, size_t bytes)
{
    const cot_sym at = *end;
    *end += (bytes + LINE - 1) / LINE * LINE;
    return at;
}

static int barrier_rounds(int ranks)
{
    int rounds = 0;
    while (1 << rounds < ranks) rounds++;
    return rounds;
}

/* Sets the offsets, from 0, and returns the bytes of the block; SIZE_MAX when they cannot be had. */
static size_t lay_out(cot_collectives *c, const cot_collectives_options *limit, int ranks)
{
    const size_t most = SIZE_MAX / 64;
    if (limit->reduce_elements > most || limit->gather_bytes > most || limit->exchange_bytes > most)
        return SIZE_MAX;
    cot_sym end = 0;
    c->ring_signal = reserve(&end, LINE);
    c->barrier_signals = reserve(&end, (size_t)barrier_rounds(ranks) * LINE);
    for (int half = 0; half < 2; half++) {
        c->exchange_signals[half] = reserve(&end, (size_t)ranks * LINE);
        c->reduce[half] = reserve(&end, limit->reduce_elements * sizeof(float));
        c->gather[half] = reserve(&end, limit->gather_bytes);
        c->exchange[half] = reserve(&end, limit->exchange_bytes);
    }
    return end;
}

size_t cot_collectives_heap_bytes(const cot_collectives_options *options, int ranks)
{
    cot_collectives offsets;
    const size_t bytes = lay_out(&offsets, options, ranks);
    return bytes == SIZE_MAX ? SIZE_MAX : cot_alloc_bytes(bytes);
}

cot_status cot_collectives_open(cot_collectives **out, cot_fabric *fabric,
                                const cot_collectives_options *options, cot_error *error)
{
    *out = NULL;
    cot_collectives *c = calloc(1, sizeof *c);
    if (!c) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for collectives");
    c->fabric = fabric;
    c->limit = *options;
    cot_sym base;
    const cot_status status = cot_alloc(fabric, &base, lay_out(c, options, fabric->ranks), error);
    if (status) {
        free(c);
        return status;
    }
    cot_sym *const offsets[] = {&c->ring_signal,     &c->exchange_signals[0], &c->exchange_signals[1],
                                &c->barrier_signals, &c->reduce[0],           &c->reduce[1],
                                &c->gather[0],       &c->gather[1],           &c->exchange[0],
                                &c->exchange[1]};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) *offsets[i] += base;
    *out = c;
    return COT_OK;
}

void cot_collectives_close(cot_collectives *c)
{
    free(c);
}

cot_status cot_exchange(cot_collectives *c, const void **received, uint8_t *words, const cot_message *block,
                        cot_phase phase, cot_error *error)
{
    enum { WORD_BITS = 8 };
    cot_fabric *fabric = c->fabric;
    const int rank = fabric->rank, ranks = fabric->ranks;
    const cot_sym half = c->exchange[c->exchanges & 1], signals = c->exchange_signals[c->exchanges & 1];
    const uint64_t number = ++c->exchanges << WORD_BITS;
    cot_count_rounds(fabric, phase, 1);
    *received = cot_local(fabric, half);
    for (int i = 1; i <= ranks; i++) { // the own block last: it alone keeps nobody waiting
        const int to = (rank + i) % ranks;
        const cot_message *b = &block[to];
        assert(b->place <= c->limit.exchange_bytes && b->bytes <= c->limit.exchange_bytes - b->place);
        cot_put_signal(fabric, to, half + b->place, b->bytes ? b->data : NULL, b->bytes,
                       signals + (cot_sym)rank * LINE, number | b->word, phase);
    }
    cot_status status = COT_OK;
    for (int i = 1; i < ranks && !status; i++) {
        const int from = (rank + ranks - i) % ranks;
        status = cot_wait(fabric, signals + (cot_sym)from * LINE, number, from, phase, error);
    }
    for (int from = 0; words && from < ranks; from++)
        words[from] = (uint8_t)cot_signal_load(fabric, signals + (cot_sym)from * LINE);
    return status;
}

cot_status cot_alltoallv(cot_collectives *c, const void **received, const void *send,
                         const size_t *send_begin, const size_t *place, cot_phase phase, cot_error *error)
{
    cot_message block[COT_MAX_RANKS];
    for (int to = 0; to < c->fabric->ranks; to++)
        block[to] = (cot_message){send ? (const char *)send + send_begin[to] : NULL,
                                  send_begin[to + 1] - send_begin[to], place[to], 0};
    return cot_exchange(c, received, NULL, block, phase, error);
}

cot_status cot_allgather_direct(cot_collectives *c, const void **received, const void *data, size_t bytes,
                                size_t place, cot_phase phase, cot_error *error)
{
    cot_message block[COT_MAX_RANKS];
    for (int to = 0; to < c->fabric->ranks; to++) block[to] = (cot_message){data, bytes, place, 0};
    return cot_exchange(c, received, NULL, block, phase, error);
}

/* Dissemination (Hensgen, Finkel, Manber 1988): in round k, to the rank 2^k ahead and from the one 2^k
 * behind. */
cot_status cot_barrier(cot_collectives *c, cot_phase phase, cot_error *error)
{
    cot_fabric *fabric = c->fabric;
    const int rank = fabric->rank, ranks = fabric->ranks;
    c->barriers++;
    cot_count_rounds(fabric, phase, barrier_rounds(ranks));
    cot_status status = COT_OK;
    for (int k = 0; 1 << k < ranks && !status; k++) {
        const int step = 1 << k, from = (rank + ranks - step) % ranks;
        const cot_sym signal = c->barrier_signals + (cot_sym)k * LINE;
        cot_put_signal(fabric, (rank + step) % ranks, signal, NULL, 0, signal, c->barriers, phase);
        status = cot_wait(fabric, signal, c->barriers, from, phase, error);
    }
    return status;
}
