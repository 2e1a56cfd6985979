/* Reduce-scatter and allgather on a ring: each rank takes from its left neighbour (r - 1) and sends to its
 * right one.
 *
 * x [n] is cut into P segments, one a rank; allreduce cuts by cot_share_begin. Segment g sets out from rank g + 1, gathers each rank's
 * values on its way and is whole on rank g; allreduce then sends it round once more, from rank g to rank g -
 * 1:
 *
 *     step           0      1     ...   P-2  |    P-1     ...    2P-3
 *     rank r sends  r-1    r-2    ...   r+1  |     r      ...    r+2
 *     and takes     r-2    r-3    ...    r   |    r-1     ...    r+1
 *
 * A segment travels in pieces, so that a rank works on one while its neighbours work on others. Segment g
 * lands at its own place in the scratch, once in each half of the table: the second time after its owner had
 * it whole, thus after this rank had used what came the first time. */
#include "base/dtype.h"
#include "fabric/scratch.h"

#include <assert.h>
#include <string.h>

/* Plain loops that the compiler vectorises. */

static void narrow(uint16_t *restrict out, const float *restrict x, size_t n)
{
    for (size_t i = 0; i < n; i++) out[i] = cot_f32_to_bf16(x[i]);
}

static void widen(float *restrict x, const uint16_t *restrict from, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] = cot_bf16_to_f32(from[i]);
}

static void add_f32(float *restrict x, const float *restrict from, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] += from[i];
}

static void add_bf16(float *restrict x, const uint16_t *restrict from, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] += cot_bf16_to_f32(from[i]);
}

static void add_narrow(uint16_t *restrict out, const float *restrict x, const uint16_t *restrict from,
                       size_t n)
{
    for (size_t i = 0; i < n; i++) out[i] = cot_f32_to_bf16(x[i] + cot_bf16_to_f32(from[i]));
}

/* One call on the ring. */
struct ring {
    cot_collectives *c;
    cot_phase phase;
    cot_error *error;
    int rank, ranks, left, right;
};

static struct ring ring_of(cot_collectives *c, cot_phase phase, cot_error *error)
{
    const int rank = c->fabric->rank, ranks = c->fabric->ranks;
    return (struct ring){c, phase, error, rank, ranks, (rank + ranks - 1) % ranks, (rank + 1) % ranks};
}

/* The rank `steps` (at most P) to the left: whose segment it is. */
static int behind(const struct ring *ring, int steps)
{
    return (ring->rank + ring->ranks - steps) % ring->ranks;
}

static void ring_send(const struct ring *ring, cot_sym where, const void *data, size_t bytes)
{
    cot_collectives *c = ring->c;
    cot_put_signal(c->fabric, ring->right, where, data, bytes, c->ring_signal, ++c->ring_sent, ring->phase);
}

/* Waits for the next message from the left neighbour, which has come to `where` in the own memory. */
static cot_status ring_take(const struct ring *ring, const void **data, cot_sym where)
{
    cot_collectives *c = ring->c;
    *data = cot_local(c->fabric, where);
    return cot_wait(c->fabric, c->ring_signal, ++c->ring_received, ring->left, ring->phase, ring->error);
}

/* A part on its way, piece by piece; an empty part is one empty piece:
 *     for (struct piece p = first_piece(begin, end, most); next_piece(&p);) ...p.at, p.count... */
struct piece {
    size_t at, count, end, most;
    bool begun;
};

static struct piece first_piece(size_t begin, size_t end, size_t most)
{
    return (struct piece){begin, 0, end, most, false};
}

static bool next_piece(struct piece *p)
{
    if (p->begun && p->at + p->count == p->end) return false;
    p->begun = true;
    p->at += p->count;
    p->count = p->end - p->at < p->most ? p->end - p->at : p->most;
    return true;
}

/* A reduction: the vector, its element type on the way and where it lands. */
struct reduction {
    struct ring ring;
    float *x;
    const size_t *begin; // [P + 1] the segments, in elements
    size_t width;
    cot_sym scratch;
};

static struct piece segment(const struct reduction *r, int owner)
{
    return first_piece(r->begin[owner], r->begin[owner + 1], COT_RING_PIECE_BYTES / r->width);
}

static cot_status take_piece(const struct reduction *r, const void **data, const struct piece *p)
{
    return ring_take(&r->ring, data, r->scratch + p->at * r->width);
}

static void send_piece(const struct reduction *r, const void *data, const struct piece *p)
{
    ring_send(&r->ring, r->scratch + p->at * r->width, data, p->count * r->width);
}

/* Sends own values. */
static void send_own(const struct reduction *r, int owner)
{
    uint16_t *rounded = r->ring.c->rounded;
    for (struct piece p = segment(r, owner); next_piece(&p);) {
        if (r->width == 2) narrow(rounded, r->x + p.at, p.count);
        send_piece(r, r->width == 2 ? (const void *)rounded : r->x + p.at, &p);
    }
}

/* Adds own values to what comes and sends the sum on, rounded. */
static cot_status pass_sum(const struct reduction *r, int owner)
{
    uint16_t *rounded = r->ring.c->rounded;
    for (struct piece p = segment(r, owner); next_piece(&p);) {
        const void *sum;
        const cot_status status = take_piece(r, &sum, &p);
        if (status) return status;
        if (r->width == 2)
            add_narrow(rounded, r->x + p.at, sum, p.count);
        else
            add_f32(r->x + p.at, sum, p.count);
        send_piece(r, r->width == 2 ? (const void *)rounded : r->x + p.at, &p);
    }
    return COT_OK;
}

/* The own segment comes home: the sum stays in x. With `onward` it sets out again, and what is sent is what
 * stays. */
static cot_status keep_sum(const struct reduction *r, bool onward)
{
    uint16_t *rounded = r->ring.c->rounded;
    for (struct piece p = segment(r, r->ring.rank); next_piece(&p);) {
        float *x = r->x + p.at;
        const void *sum;
        const cot_status status = take_piece(r, &sum, &p);
        if (status) return status;
        if (r->width == 4) {
            add_f32(x, sum, p.count);
        } else if (!onward) {
            add_bf16(x, sum, p.count);
        } else {
            add_narrow(rounded, x, sum, p.count);
            widen(x, rounded, p.count);
        }
        if (onward) send_piece(r, r->width == 2 ? (const void *)rounded : x, &p);
    }
    return COT_OK;
}

/* A finished segment comes by. */
static cot_status keep_copy(const struct reduction *r, int owner, bool onward)
{
    for (struct piece p = segment(r, owner); next_piece(&p);) {
        const void *whole;
        const cot_status status = take_piece(r, &whole, &p);
        if (status) return status;
        if (onward) send_piece(r, whole, &p);
        if (r->width == 2)
            widen(r->x + p.at, whole, p.count);
        else if (p.count)
            memcpy(r->x + p.at, whole, p.count * 4);
    }
    return COT_OK;
}

static cot_status reduce(cot_collectives *c, float *x, const size_t *begin, cot_dtype type, bool all,
                         cot_phase phase, cot_error *error)
{
    assert(begin[c->fabric->ranks] <= c->limit.reduce_elements && (type == COT_F32 || type == COT_BF16));
    const struct reduction r = {.ring = ring_of(c, phase, error),
                                .x = x,
                                .begin = begin,
                                .width = cot_dtype_bytes(type),
                                .scratch = c->reduce[c->reduces++ & 1]};
    const int ranks = r.ring.ranks;
    if (ranks == 1) return COT_OK;
    cot_count_rounds(c->fabric, phase, all ? 2 * (ranks - 1) : ranks - 1);
    send_own(&r, behind(&r.ring, 1));
    cot_status status = COT_OK;
    for (int s = 2; s < ranks && !status; s++) status = pass_sum(&r, behind(&r.ring, s));
    if (!status) status = keep_sum(&r, all);
    for (int s = 1; all && s < ranks && !status; s++)
        status = keep_copy(&r, behind(&r.ring, s), s < ranks - 1);
    return status;
}

cot_status cot_allreduce(cot_collectives *c, float *x, int64_t n, cot_dtype type, cot_phase phase,
                         cot_error *error)
{
    size_t begin[COT_MAX_RANKS + 1];
    assert(n >= 0);
    for (int r = 0; r <= c->fabric->ranks; r++) begin[r] = (size_t)cot_share_begin(n, r, c->fabric->ranks);
    return reduce(c, x, begin, type, true, phase, error);
}

cot_status cot_reduce_scatter(cot_collectives *c, float *x, const size_t *begin, cot_dtype type,
                              cot_phase phase, cot_error *error)
{
    return reduce(c, x, begin, type, false, phase, error);
}

cot_status cot_allgather(cot_collectives *c, void *all, const size_t *begin, cot_phase phase,
                         cot_error *error)
{
    return cot_allgather_parts(c, all, begin, begin + 1, phase, error);
}

cot_status cot_allgather_parts(cot_collectives *c, void *all, const size_t *begin, const size_t *end,
                               cot_phase phase, cot_error *error)
{
    const struct ring ring = ring_of(c, phase, error);
    const cot_sym scratch = c->gather[c->gathers++ & 1];
    for (int r = 0; r < ring.ranks; r++) assert(begin[r] <= end[r] && end[r] <= c->limit.gather_bytes);
    if (ring.ranks == 1) return COT_OK;
    cot_count_rounds(c->fabric, phase, ring.ranks - 1);
    unsigned char *bytes = all;
    const int own = ring.rank;
    for (struct piece p = first_piece(begin[own], end[own], COT_RING_PIECE_BYTES); next_piece(&p);)
        ring_send(&ring, scratch + p.at, p.count ? bytes + p.at : NULL, p.count);
    for (int s = 1; s < ring.ranks; s++) {
        const int owner = behind(&ring, s);
        for (struct piece p = first_piece(begin[owner], end[owner], COT_RING_PIECE_BYTES); next_piece(&p);) {
            const void *data;
            const cot_status status = ring_take(&ring, &data, scratch + p.at);
            if (status) return status;
            if (s < ring.ranks - 1) ring_send(&ring, scratch + p.at, data, p.count);
            if (p.count) memcpy(bytes + p.at, data, p.count);
        }
    }
    return COT_OK;
}
