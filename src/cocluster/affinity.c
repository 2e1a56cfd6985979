#include "coterie/group.h"

#include "base/error.h"
#include "routing/ids.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A trace's tokens in the order of their rows: row i's are place[start[i]] to place[start[i + 1] - 1]. */
typedef struct counting {
    const cot_trace *trace;
    int64_t *row; // [T] of each token, -1: does not count
    int64_t *place, *start;
    uint32_t *sum;    // [E] one row's, zero between rows
    uint16_t *called; // [E] experts of one row
} counting;

static cot_status no_memory(cot_error *error)
{
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the tokens' calls of experts");
}

/* Sets row[t] to 0 where token t counts, else -1; returns how many do. */
static int64_t mark(counting *c, const uint8_t *chosen, bool *by_id)
{
    const cot_trace *trace = c->trace;
    const bool all = trace->kind == COT_TRACE_COUNTS || !chosen;
    int64_t n = 0, known = 0;
    for (int64_t t = 0; t < trace->n_tokens; t++) c->row[t] = all ? 0 : -1;
    for (int64_t s = 0; !all && s < trace->n_sequences; s++)
        for (int64_t t = trace->sequence_offsets[s]; chosen[s] && t < trace->sequence_offsets[s + 1]; t++)
            c->row[t] = 0;
    for (int64_t t = 0; t < trace->n_tokens; t++) {
        n += c->row[t] >= 0;
        known += c->row[t] >= 0 && trace->token_ids[t] >= 0;
    }
    *by_id = known > 0;
    for (int64_t t = 0; *by_id && t < trace->n_tokens; t++)
        if (trace->token_ids[t] < 0) c->row[t] = -1;
    return known ? known : n;
}

static cot_status find_rows(cot_affinities *a, counting *c, int64_t n, bool by_id, cot_error *error)
{
    const cot_trace *trace = c->trace;
    int64_t i = 0;
    if (by_id) {
        a->token_ids = malloc((size_t)n * sizeof *a->token_ids);
    } else {
        a->positions = malloc((size_t)n * sizeof *a->positions);
    }
    c->place = malloc((size_t)n * sizeof *c->place);
    c->start = calloc((size_t)n + 2, sizeof *c->start);
    if (!(by_id ? a->token_ids != NULL : a->positions != NULL) || !c->place || !c->start)
        return no_memory(error);
    for (int64_t t = 0; t < trace->n_tokens; t++)
        if (c->row[t] >= 0) {
            if (by_id) {
                a->token_ids[i++] = trace->token_ids[t];
            } else {
                a->positions[i++] = t;
            }
        }
    a->n_tokens = by_id ? cot_ids_sort(a->token_ids, n) : n;
    i = 0;
    for (int64_t t = 0; t < trace->n_tokens; t++)
        if (c->row[t] >= 0) {
            c->row[t] = by_id ? cot_ids_find(a->token_ids, a->n_tokens, trace->token_ids[t]) : i++;
            c->start[c->row[t] + 2]++;
        }
    for (int64_t r = 0; r < a->n_tokens; r++) c->start[r + 2] += c->start[r + 1];
    for (int64_t t = 0; t < trace->n_tokens; t++) // start[r + 1], where row r begins, moves to where it ends
        if (c->row[t] >= 0) c->place[c->start[c->row[t] + 1]++] = t;
    return COT_OK;
}

/* Adds up row `r` of the `l`-th layer; returns how many experts it calls. */
static int64_t add_row(counting *c, int32_t l, int64_t r, int32_t E)
{
    const cot_trace *trace = c->trace;
    int64_t n = 0;
    for (int64_t i = c->start[r]; i < c->start[r + 1]; i++) {
        const int64_t t = c->place[i];
        if (trace->kind == COT_TRACE_COUNTS)
            for (int32_t e = 0; e < E; e++)
                c->sum[e] += trace->counts[((int64_t)l * trace->n_tokens + t) * E + e];
        else
            for (int32_t k = 0; k < trace->top_k; k++) c->sum[cot_trace_expert(trace, l, t, k)]++;
    }
    for (int32_t e = 0; e < E; e++)
        if (c->sum[e]) c->called[n++] = (uint16_t)e;
    return n;
}

static cot_status count_layer(cot_affinity *affinity, counting *c, int32_t l, int64_t n_tokens,
                              cot_error *error)
{
    const int32_t E = c->trace->n_experts;
    int64_t *offsets = calloc((size_t)n_tokens + 1, sizeof *offsets), room = 0, n = 0;
    uint16_t *expert = NULL;
    uint32_t *count = NULL;
    bool good = offsets != NULL;
    for (int64_t r = 0; good && r < n_tokens; r++) {
        const int64_t most = n + E;
        if (most > room) {
            room = 2 * most;
            void *more = realloc(expert, (size_t)room * sizeof *expert);
            if (more) expert = more;
            void *more_counts = realloc(count, (size_t)room * sizeof *count);
            if (more_counts) count = more_counts;
            good = more && more_counts;
            if (!good) break;
        }
        const int64_t called = add_row(c, l, r, E);
        for (int64_t i = 0; i < called; i++, n++) {
            expert[n] = c->called[i];
            count[n] = c->sum[c->called[i]];
            c->sum[c->called[i]] = 0;
        }
        offsets[r + 1] = n;
    }
    *affinity = (cot_affinity){E, n_tokens, offsets, expert, count};
    return good ? COT_OK : no_memory(error);
}

cot_status cot_affinities_count(cot_affinities *affinities, const cot_trace *trace, const uint8_t *chosen,
                                cot_error *error)
{
    counting c = {.trace = trace};
    bool by_id;
    *affinities = (cot_affinities){.n_layers = trace->n_layers, .n_experts = trace->n_experts};
    if (trace->kind == COT_TRACE_TOKENS && trace->n_tokens > (int64_t)UINT32_MAX / trace->top_k)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "%" PRId64 " tokens are too many to count: expected at most %" PRIu32,
                        trace->n_tokens, UINT32_MAX / (uint32_t)trace->top_k);
    c.row = malloc((size_t)trace->n_tokens * sizeof *c.row + 1);
    c.sum = calloc((size_t)trace->n_experts, sizeof *c.sum);
    c.called = malloc((size_t)trace->n_experts * sizeof *c.called);
    affinities->layer = calloc((size_t)trace->n_layers, sizeof *affinities->layer);
    cot_status status = c.row && c.sum && c.called && affinities->layer ? COT_OK : no_memory(error);
    const int64_t n = status == COT_OK ? mark(&c, chosen, &by_id) : 0;
    if (status == COT_OK && !n)
        status = cot_fail(error, COT_INVALID_ARGUMENT, "no token of the trace is left to count");
    if (status == COT_OK) status = find_rows(affinities, &c, n, by_id, error);
    for (int32_t l = 0; status == COT_OK && l < trace->n_layers; l++)
        status = count_layer(&affinities->layer[l], &c, l, affinities->n_tokens, error);
    free(c.row);
    free(c.place);
    free(c.start);
    free(c.sum);
    free(c.called);
    if (status != COT_OK) cot_affinities_free(affinities);
    return status;
}

void cot_affinities_free(cot_affinities *affinities)
{
    for (int32_t l = 0; affinities->layer && l < affinities->n_layers; l++) {
        free((void *)affinities->layer[l].offsets);
        free((void *)affinities->layer[l].expert);
        free((void *)affinities->layer[l].count);
    }
    free(affinities->layer);
    free(affinities->token_ids);
    free(affinities->positions);
    *affinities = (cot_affinities){0};
}
