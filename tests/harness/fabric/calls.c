#include "harness/fabric/calls.h"

#include "base/clock.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

uint64_t draw_of_job(const group_job *job, int number, uint64_t what, uint64_t limit)
{
    return cot_random_bits(job->seed, (uint64_t)number, what) % limit;
}

/* Sizes: none, one, fewer than ranks, some, and now and then many, so that parts travel in several pieces. */
static size_t draw_size(const group_job *job, int number, uint64_t what, size_t most)
{
    const size_t some = job->ranks > 16 ? 400 : 3000;
    switch (draw_of_job(job, number, what, 8)) {
    case 0:
        return 0;
    case 1:
        return 1;
    case 2:
        return draw_of_job(job, number, what + 1, (uint64_t)job->ranks + 1);
    case 3:
        return job->ranks <= 4 ? draw_of_job(job, number, what + 1, most + 1)
                               : draw_of_job(job, number, what + 1, some);
    default:
        return draw_of_job(job, number, what + 1, some);
    }
}

call draw_call(const group_job *job, int number)
{
    call c = {.number = number, .kind = (int)draw_of_job(job, number, 0, KINDS)};
    c.phase = (cot_phase)draw_of_job(job, number, 1, COT_PHASES);
    c.type = draw_of_job(job, number, 2, 2) ? COT_F32 : COT_BF16;
    c.whole_numbers = draw_of_job(job, number, 3, 2);
    c.n = (int64_t)draw_size(job, number, 4, MAX_ELEMENTS);
    const size_t part = draw_size(job, number, 6, MAX_BYTES) / (size_t)job->ranks;
    c.begin[0] = 0;
    for (int r = 0; r < job->ranks; r++) {
        const uint64_t what = 100 + (uint64_t)r;
        c.begin[r + 1] =
            c.begin[r] +
            (draw_of_job(job, number, what, 3) ? draw_of_job(job, number, what + 100, part + 1) : 0);
    }
    /* A vector that is scattered is cut anywhere, and where it falls some ranks have nothing. */
    for (int r = 0; r <= job->ranks; r++)
        c.cut[r] =
            c.kind == ALLREDUCE || draw_of_job(job, number, 7, 2)
                ? (size_t)cot_share_begin(c.n, r, job->ranks)
            : r == job->ranks ? (size_t)c.n
            : r ? c.cut[r - 1] + draw_of_job(job, number, 300 + (uint64_t)r, (uint64_t)c.n - c.cut[r - 1] + 1)
                : 0;
    return c;
}

static float input(const group_job *job, const call *c, int rank, int64_t i)
{
    const uint64_t bits =
        cot_random_bits(job->seed ^ 77, (uint64_t)c->number << 8 | (uint64_t)rank, (uint64_t)i);
    if (c->whole_numbers) return (float)(int)(bits % 5) - 2; // at most 128 in all: bf16 holds it
    if (bits % 5000 == 0) return bits >> 40 & 1 ? INFINITY : NAN;
    return ((float)(bits >> 40) * 0x1p-23f - 1) * (bits & 64 ? 100.0f : 0.01f);
}

static float rounded(float x, cot_dtype type)
{
    return type == COT_BF16 ? cot_bf16_to_f32(cot_f32_to_bf16(x)) : x;
}

/* What the header promises, element by element: from the rank after the owner round to the owner. */
static float oracle(const group_job *job, const call *c, int64_t i, double *exact, double *magnitude)
{
    int rank = 0;
    while (c->cut[rank + 1] <= (size_t)i) rank++;
    float sum = 0;
    *exact = *magnitude = 0;
    for (int hop = 0; hop < job->ranks; hop++) {
        rank = (rank + 1) % job->ranks;
        const float own = input(job, c, rank, i);
        sum = hop ? rounded(sum, c->type) + own : own;
        *exact += (double)own;
        *magnitude += fabs((double)own);
    }
    return c->kind == ALLREDUCE && job->ranks > 1 ? rounded(sum, c->type) : sum;
}

static bool same(float a, float b)
{
    return memcmp(&a, &b, 4) == 0 || (isnan(a) && isnan(b));
}

static uint8_t byte_of(const group_job *job, const call *c, int from, int to, size_t i)
{
    return (uint8_t)(cot_mix64(job->seed + (uint64_t)c->number * 4099 + (uint64_t)(from * 64 + to)) + i * 31 +
                     i / 256);
}

/* alltoallv: bytes from one rank to another, and where they arrive: in an order of sources that differs by
 * target. The direct allgather sends what rank 0 gets to all. */
static int told(const call *c, int to)
{
    return c->kind == DIRECT ? 0 : to;
}

static size_t block(const group_job *job, const call *c, int from, int to)
{
    const uint64_t what = 1000 + (uint64_t)(from * 64 + to);
    const uint64_t most =
        job->ranks <= 4 && draw_of_job(job, c->number, 5, 4) == 0 ? 20 * BLOCK_BYTES : BLOCK_BYTES;
    return draw_of_job(job, c->number, what, 5) < 2 ? 0 : draw_of_job(job, c->number, what + 10000, most);
}

static size_t place_of(const group_job *job, const call *c, int from, int to)
{
    size_t place = 0;
    for (int r = (to * 7 + c->number) % job->ranks; r != from; r = (r + 1) % job->ranks)
        place += block(job, c, r, to);
    return place;
}

static uint64_t pieces(size_t bytes)
{
    return bytes ? (bytes + COT_RING_PIECE_BYTES - 1) / COT_RING_PIECE_BYTES : 1;
}

/* What `rank` sends to rank `to` in this call. */
static cot_traffic expected(const group_job *job, const call *c, int rank, int to)
{
    const int ranks = job->ranks;
    const size_t width = cot_dtype_bytes(c->type);
    cot_traffic sent = {0, 0};
    if (to == rank) return sent;
    if (c->kind == ALLTOALLV || c->kind == DIRECT) return (cot_traffic){block(job, c, rank, told(c, to)), 1};
    if (c->kind == BARRIER) {
        for (int step = 1; step < ranks; step *= 2) sent.messages += to == (rank + step) % ranks;
        return sent;
    }
    if (to != (rank + 1) % ranks) return sent;
    for (int owner = 0; owner < ranks; owner++) {
        const size_t segment = width * (c->cut[owner + 1] - c->cut[owner]);
        const size_t part = c->begin[owner + 1] - c->begin[owner];
        const size_t bytes = c->kind == ALLGATHER ? part : segment;
        const int times =
            (c->kind != ALLGATHER && owner != rank) + (c->kind != REDUCE_SCATTER && owner != to);
        sent.bytes += (uint64_t)times * bytes;
        sent.messages += (uint64_t)times * pieces(bytes);
    }
    return sent;
}

uint64_t closed_form(const group_job *job, const call *c)
{
    const uint64_t hops = (uint64_t)job->ranks - 1, vector = (uint64_t)c->n * cot_dtype_bytes(c->type);
    uint64_t sent = 0;
    switch (c->kind) {
    case ALLREDUCE:
        return 2 * hops * vector;
    case REDUCE_SCATTER:
        return hops * vector;
    case ALLGATHER:
        return hops * c->begin[job->ranks];
    case ALLTOALLV:
    case DIRECT:
        for (int s = 0; s < job->ranks; s++)
            for (int d = 0; d < job->ranks; d++) sent += s != d ? block(job, c, s, told(c, d)) : 0;
        return sent;
    default:
        return 0;
    }
}

/* Notes the moments around a collective; all of them answer with a status. */
#define TIMED(moment, collective)                                                                            \
    ((moment)->entered_ns = cot_now_ns(), (moment)->status = (collective), (moment)->left_ns = cot_now_ns(), \
     (moment)->status)

static bool do_reduce(cot_fabric *fabric, const group_job *job, cot_collectives *collectives, const call *c,
                      float *x, moment *own)
{
    for (int64_t i = 0; i < c->n; i++) x[i] = input(job, c, fabric->rank, i);
    memset(x + c->n, 0xa5, GUARD * sizeof *x);
    cot_error error = {0};
    const bool all = c->kind == ALLREDUCE;
    if (all)
        (void)TIMED(own, cot_allreduce(collectives, x, c->n, c->type, c->phase, &error));
    else
        (void)TIMED(own, cot_reduce_scatter(collectives, x, c->cut, c->type, c->phase, &error));
    CHECK(!own->status, "%s", error.message);
    const int64_t begin = all ? 0 : (int64_t)c->cut[fabric->rank];
    const int64_t end = all ? c->n : (int64_t)c->cut[fabric->rank + 1];
    for (int64_t i = begin; i < end; i++) {
        double exact, magnitude;
        const float want = oracle(job, c, i, &exact, &magnitude);
        CHECK(same(x[i], want), "call %d, element %lld of %lld: %g, not %g", c->number, (long long)i,
              (long long)c->n, (double)x[i], (double)want);
        const double slack =
            c->whole_numbers ? 0 : magnitude * fabric->ranks * (c->type == COT_BF16 ? 0x1p-8 : 0x1p-23);
        CHECK(!isfinite(exact) || fabs((double)x[i] - exact) <= slack,
              "call %d, element %lld: %g, exactly %g", c->number, (long long)i, (double)x[i], exact);
    }
    for (size_t i = 0; i < GUARD * sizeof *x; i++)
        CHECK(((uint8_t *)(x + c->n))[i] == 0xa5, "written past the end");
    return true;
}

static bool do_allgather(cot_fabric *fabric, const group_job *job, cot_collectives *collectives,
                         const call *c, uint8_t *all, moment *own)
{
    const size_t bytes = c->begin[fabric->ranks];
    memset(all, 0xa5, bytes + GUARD);
    for (size_t i = c->begin[fabric->rank]; i < c->begin[fabric->rank + 1]; i++)
        all[i] = byte_of(job, c, fabric->rank, 0, i);
    cot_error error = {0};
    CHECK(!TIMED(own, cot_allgather(collectives, all, c->begin, c->phase, &error)), "%s", error.message);
    for (int r = 0; r < fabric->ranks; r++)
        for (size_t i = c->begin[r]; i < c->begin[r + 1]; i++)
            CHECK(all[i] == byte_of(job, c, r, 0, i), "call %d, byte %zu of rank %d", c->number, i, r);
    for (size_t i = 0; i < GUARD; i++) CHECK(all[bytes + i] == 0xa5, "written past the end");
    return true;
}

static bool check_received(cot_fabric *fabric, const group_job *job, const call *c, const uint8_t *received)
{
    const int as = told(c, fabric->rank);
    for (int from = 0; from < fabric->ranks; from++) {
        const size_t bytes = block(job, c, from, as), place = place_of(job, c, from, as);
        for (size_t i = 0; i < bytes; i++)
            CHECK(received[place + i] == byte_of(job, c, from, as, i), "call %d, byte %zu from rank %d",
                  c->number, i, from);
    }
    return true;
}

static bool do_alltoallv(cot_fabric *fabric, const group_job *job, cot_collectives *collectives,
                         const call *c, uint8_t *send, const uint8_t **received, moment *own)
{
    size_t begin[COT_MAX_RANKS + 1] = {0}, place[COT_MAX_RANKS];
    for (int to = 0; to < fabric->ranks; to++) {
        begin[to + 1] = begin[to] + block(job, c, fabric->rank, to);
        place[to] = place_of(job, c, fabric->rank, to);
        for (size_t i = begin[to]; i < begin[to + 1]; i++)
            send[i] = byte_of(job, c, fabric->rank, to, i - begin[to]);
    }
    cot_error error = {0};
    const void *where;
    if (c->kind == DIRECT)
        CHECK(!TIMED(own,
                     cot_allgather_direct(collectives, &where, send, begin[1], place[0], c->phase, &error)),
              "%s", error.message);
    else
        CHECK(!TIMED(own, cot_alltoallv(collectives, &where, send, begin, place, c->phase, &error)), "%s",
              error.message);
    memset(send, 0x5a, begin[fabric->ranks]); // it may be reused at once
    *received = where;
    return check_received(fabric, job, c, *received);
}

size_t calls_heap_bytes(const group_job *job, cot_collectives_options *options)
{
    const size_t log_bytes = (size_t)job->ranks * (size_t)job->calls * sizeof(moment);
    *options = (cot_collectives_options){.reduce_elements = MAX_ELEMENTS,
                                         .gather_bytes = log_bytes > MAX_BYTES ? log_bytes : MAX_BYTES,
                                         .exchange_bytes = 64 * BLOCK_BYTES + 4 * 20 * BLOCK_BYTES};
    return cot_collectives_heap_bytes(options, job->ranks);
}

bool calls_sequence(cot_fabric *fabric, const group_job *job, cot_collectives *collectives, float *x,
                    moment *moments)
{
    cot_traffic want[COT_MAX_RANKS][COT_PHASES];
    const int rank = fabric->rank, ranks = fabric->ranks;
    memcpy(want, fabric->traffic, (size_t)ranks * sizeof *want); // on top of what was sent before
    moment *own = moments + (size_t)rank * (size_t)job->calls;
    const uint8_t *received = NULL;
    call last = {0};
    bool ok = true;
    for (int k = 0; k < job->calls && ok; k++) {
        const call c = draw_call(job, k);
        const uint64_t delay = draw_of_job(job, k, 50 + (uint64_t)rank, 12);
        if (delay < 2) sleep_us((int64_t)draw_of_job(job, k, 300 + (uint64_t)rank, 400));
        if ((c.kind == ALLTOALLV || c.kind == DIRECT) && received) { // still what it was
            CHECK(check_received(fabric, job, &last, received), "call %d's result is gone at call %d",
                  last.number, k);
        }
        switch (c.kind) {
        case ALLREDUCE:
        case REDUCE_SCATTER:
            ok = do_reduce(fabric, job, collectives, &c, x, &own[k]);
            break;
        case ALLGATHER:
            ok = do_allgather(fabric, job, collectives, &c, (uint8_t *)x, &own[k]);
            break;
        case ALLTOALLV:
        case DIRECT:
            ok = do_alltoallv(fabric, job, collectives, &c, (uint8_t *)x, &received, &own[k]);
            last = c;
            break;
        default: {
            cot_error error = {0};
            CHECK(!TIMED(&own[k], cot_barrier(collectives, c.phase, &error)), "%s", error.message);
        }
        }
        for (int to = 0; to < ranks; to++) {
            const cot_traffic sent = expected(job, &c, rank, to);
            want[to][c.phase].bytes += sent.bytes;
            want[to][c.phase].messages += sent.messages;
        }
    }
    if (!ok) return false;
    for (int to = 0; to < ranks; to++)
        for (int p = 0; p < COT_PHASES; p++) {
            const cot_traffic *sent = &fabric->traffic[to][p];
            CHECK(sent->bytes == want[to][p].bytes && sent->messages == want[to][p].messages,
                  "to rank %d in '%s': %llu bytes in %llu messages, expected %llu in %llu", to,
                  cot_phase_name((cot_phase)p), (unsigned long long)sent->bytes,
                  (unsigned long long)sent->messages, (unsigned long long)want[to][p].bytes,
                  (unsigned long long)want[to][p].messages);
        }

    size_t begin[COT_MAX_RANKS + 1];
    for (int r = 0; r <= ranks; r++) begin[r] = (size_t)r * (size_t)job->calls * sizeof *moments;
    CHECK(!cot_allgather(collectives, moments, begin, COT_PHASE_CONTROL, NULL), "the log");
    for (int k = 0; k < job->calls; k++)
        for (int r = 0; r < ranks; r++)
            CHECK(own[k].left_ns >= moments[(size_t)r * (size_t)job->calls + (size_t)k].entered_ns,
                  "call %d (kind %d) ended before rank %d entered", k, draw_call(job, k).kind, r);
    return true;
}

bool calls_body(cot_fabric *fabric, const group_job *job)
{
    cot_collectives_options options;
    calls_heap_bytes(job, &options);
    cot_collectives *collectives;
    cot_error error = {0};
    CHECK(!cot_collectives_open(&collectives, fabric, &options, &error), "%s", error.message);
    float *x = malloc((MAX_ELEMENTS + GUARD) *
                      sizeof *x); // also bytes: at least MAX_BYTES and what an exchange sends
    moment *moments = malloc((size_t)job->ranks * (size_t)job->calls * sizeof *moments);
    cot_turns_enter(fabric);
    const bool ok = x && moments && calls_sequence(fabric, job, collectives, x, moments);
    if (!ok) (fabric->ops->fail)(fabric); // in parentheses: cmocka has a macro of that name
    cot_turns_leave(fabric);
    cot_collectives_close(collectives);
    free(x);
    free(moments);
    return ok;
}
