#include "base/error.h"
#include "base/rng.h"
#include "engine/bench/bench.h"

#include <stdlib.h>
#include <string.h>

enum { STREAM_EXPERTS = 1, STREAM_HIDDEN = 2 };

/* Numbers in [0, 1), one after another. */
struct draw {
    uint64_t seed, position;
};

static double uniform(struct draw *draw)
{
    return cot_random_uniform(draw->seed, STREAM_EXPERTS, draw->position++);
}

/* Puts e among the first n of an ascending row; false if it is there already. */
static bool insert(uint16_t *row, int64_t n, uint16_t e)
{
    int64_t at = n;
    while (at > 0 && row[at - 1] > e) at--;
    if (at > 0 && row[at - 1] == e) return false;
    memmove(row + at + 1, row + at, (size_t)(n - at) * sizeof *row);
    row[at] = e;
    return true;
}

/* The expert whose part of the cumulative sums holds `at`. */
static uint16_t expert_at(const double *sums, int64_t experts, double at)
{
    int64_t low = 0, high = experts - 1;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (sums[middle] > at)
            high = middle;
        else
            low = middle + 1;
    }
    return (uint16_t)low;
}

/* Without repetition: what was drawn already is drawn again, which leaves the others' odds as they were. */
static void draw_token(uint16_t *row, const double *sums, const cot_bench_shape *s, bool hot,
                       struct draw *draw)
{
    int64_t n = 0;
    if (hot) row[n++] = 0;
    while (n < s->top_k)
        n += insert(row, n, expert_at(sums, s->experts, uniform(draw) * sums[s->experts - 1]));
}

static cot_status take_trace(uint16_t *experts, const cot_bench_shape *s, int64_t tokens, const char *path,
                             cot_error *error)
{
    cot_trace trace = {0};
    cot_status status = cot_trace_open(&trace, path, error);
    if (status != COT_OK) return status;
    if (trace.kind != COT_TRACE_TOKENS || !trace.n_tokens)
        status = cot_fail(error, COT_INVALID_ARGUMENT, "trace '%s' holds no tokens", path);
    else if (trace.n_experts != s->experts || trace.top_k != s->top_k)
        status = cot_fail(error, COT_INVALID_ARGUMENT,
                          "trace '%s' has %d of %d experts a token, expected %lld of %lld", path, trace.top_k,
                          trace.n_experts, (long long)s->top_k, (long long)s->experts);
    for (int64_t t = 0; t < tokens && status == COT_OK; t++)
        for (int32_t k = 0; k < trace.top_k && status == COT_OK; k++) {
            int64_t token = t % trace.n_tokens;
            int32_t e = cot_trace_expert(&trace, trace.n_layers / 2, token, k);
            if (!insert(experts + t * s->top_k, k, (uint16_t)e))
                status = cot_fail(error, COT_MALFORMED, "trace '%s' has expert %d twice for token %lld", path,
                                  e, (long long)token);
        }
    cot_trace_close(&trace);
    return status;
}

static void deal_out(uint16_t *experts, const cot_bench_shape *s, int64_t tokens, int ranks)
{
    for (int r = 0; r < ranks; r++) {
        int64_t next = 0;
        for (int64_t t = cot_share_begin(tokens, r, ranks); t < cot_share_begin(tokens, r + 1, ranks); t++)
            for (int64_t k = 0; k < s->top_k; k++, next = (next + 1) % s->experts)
                insert(experts + t * s->top_k, k, (uint16_t)next);
    }
}

cot_status cot_bench_draw_routing(uint16_t *experts, const cot_bench_shape *s, int64_t tokens, int ranks,
                                  cot_bench_routing routing, const char *trace, uint64_t seed,
                                  cot_error *error)
{
    if (routing == COT_BENCH_TRACE) return take_trace(experts, s, tokens, trace, error);
    if (routing == COT_BENCH_BALANCED) {
        deal_out(experts, s, tokens, ranks);
        return COT_OK;
    }
    double *sums = malloc((size_t)s->experts * sizeof *sums), sum = 0;
    if (!sums)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %lld experts", (long long)s->experts);
    for (int64_t e = 0; e < s->experts; e++)
        sums[e] = sum += routing == COT_BENCH_ZIPF ? 1 / (double)(e + 1) : 1;
    struct draw draw = {seed, 0};
    for (int64_t t = 0; t < tokens; t++)
        draw_token(experts + t * s->top_k, sums, s, routing == COT_BENCH_HOT, &draw);
    free(sums);
    return COT_OK;
}

void cot_bench_draw_hidden(float *x, const uint16_t *experts, const cot_bench_shape *s, int64_t tokens,
                           uint64_t seed)
{
    for (int64_t t = 0; t < tokens; t++, x += s->hidden, experts += s->top_k) {
        for (int64_t h = 0; h < s->hidden; h += 4) {
            uint64_t bits = cot_random_bits(seed, STREAM_HIDDEN, (uint64_t)(t * s->hidden + h));
            for (int64_t i = h; i < h + 4 && i < s->hidden; i++, bits >>= 16)
                x[i] = (float)(int16_t)bits / 32768;
        }
        for (int64_t k = 0; k < s->top_k; k++) x[experts[k]] = 5.5f + x[experts[k]] / 2;
    }
}

cot_status cot_bench_count(cot_bench_load *load, const uint16_t *experts, const cot_bench_shape *s,
                           int64_t tokens, int ranks, const int32_t *expert_rank, size_t row_bytes,
                           cot_error *error)
{
    int64_t *blocks = calloc((size_t)ranks * (size_t)s->experts, sizeof *blocks), longest = 0,
            most_tokens = 0;
    if (!blocks) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %d ranks' counts", ranks);
    for (int r = 0; r < ranks; r++) {
        int64_t begin = cot_share_begin(tokens, r, ranks), end = cot_share_begin(tokens, r + 1, ranks);
        most_tokens = end - begin > most_tokens ? end - begin : most_tokens;
        for (int64_t i = begin * s->top_k; i < end * s->top_k; i++) {
            int64_t *block = &blocks[r * s->experts + experts[i]];
            longest = ++*block > longest ? *block : longest;
        }
    }
    int64_t capacity = (most_tokens * s->top_k + s->experts - 1) / s->experts;
    int64_t padding = 0, capacity_padding = 0;
    load->rows = tokens * s->top_k;
    load->touched = load->capacity_dropped = 0;
    for (int64_t e = 0; e < s->experts; e++) {
        bool touched = false;
        for (int r = 0; r < ranks; r++) {
            int64_t rows = blocks[r * s->experts + e];
            touched |= rows > 0;
            if (rows > capacity) load->capacity_dropped += rows - capacity;
            if (r == expert_rank[e]) continue; // stays
            padding += longest - rows;
            if (rows < capacity) capacity_padding += capacity - rows;
        }
        load->touched += touched;
    }
    free(blocks);
    load->capacity = capacity;
    load->padding_bytes = (uint64_t)padding * row_bytes;
    load->capacity_bytes = (uint64_t)capacity_padding * row_bytes;
    return COT_OK;
}
