#include "coterie/route_affinity.h"

#include "base/error.h"
#include "base/rng.h"
#include "coterie/route.h"
#include "routing/signature.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CELL_BYTES = 3, MOST_WORKERS = 256, MOST_BATCH = 1024 };

typedef struct study {
    const cot_trace *trace;
    cot_route_affinity_options options;
    cot_signature_shape shape;
    cot_route_calls *calls; // [sequences] of their first tokens
    int64_t *request;       // [requests] sequences, in the order that they come
    int64_t requests, drawn;
    float *usual;    // [cells] sums over texts; then shares
    uint32_t *depth; // [workers] of zeros
    int32_t *worker; // [drawn] where each goes
    int32_t *count;  // [workers] that are there
    uint64_t *seen;  // [cells] of all layers: the step that called it last
    cot_route_request *asked;
    cot_route_decision *decision;
    uint64_t *number;
} study;

static int64_t length_of(const cot_trace *trace, int64_t s)
{
    return trace->sequence_offsets[s + 1] - trace->sequence_offsets[s];
}

/* ---- signatures ---- */

/* What a worker would publish of the sequence's first tokens, as a router reads it. */
static void sign(study *s, int64_t sequence, uint8_t *cells, uint16_t *experts)
{
    const cot_trace *trace = s->trace;
    const int64_t begin = trace->sequence_offsets[sequence], length = length_of(trace, sequence),
                  tokens = length < s->options.signature_tokens ? length : s->options.signature_tokens;
    uint16_t number[COT_SIGNATURE_LARGEST];
    uint8_t count[COT_SIGNATURE_LARGEST], bytes[CELL_BYTES * COT_SIGNATURE_LARGEST];
    memset(cells, 0, (size_t)s->shape.cells);
    for (int64_t t = 0; t < tokens; t++) {
        for (int32_t l = 0; l < trace->n_layers; l++)
            for (int32_t k = 0; k < trace->top_k; k++)
                experts[l * trace->top_k + k] = (uint16_t)cot_trace_expert(trace, l, begin + t, k);
        cot_signature_add(cells, &s->shape, experts, trace->top_k);
    }
    const int32_t n = cot_signature_largest(number, count, cells, &s->shape);
    for (int32_t i = 0; i < n; i++) {
        bytes[CELL_BYTES * i] = (uint8_t)number[i];
        bytes[CELL_BYTES * i + 1] = (uint8_t)(number[i] >> 8);
        bytes[CELL_BYTES * i + 2] = count[i];
    }
    cot_route_calls_read(&s->calls[sequence], bytes, (size_t)n * CELL_BYTES, (size_t)s->shape.cells);
}

static bool sign_all(study *s)
{
    uint8_t *cells = malloc((size_t)s->shape.cells);
    uint16_t *experts = malloc((size_t)s->trace->n_layers * (size_t)s->trace->top_k * sizeof *experts);
    for (int64_t q = 0; cells && experts && q < s->trace->n_sequences; q++) sign(s, q, cells, experts);
    const bool good = cells && experts;
    free(cells);
    free(experts);
    return good;
}

/* ---- a round ---- */

/* The round's requests come first in `request`, by a shuffle; what is usual is of all other texts. */
static void draw(study *s, uint64_t round)
{
    for (int64_t i = 0; i < s->drawn; i++) {
        const uint64_t bits = cot_random_bits(s->options.seed, round, (uint64_t)i);
        const int64_t k = i + (int64_t)(bits % (uint64_t)(s->requests - i)), other = s->request[k];
        s->request[k] = s->request[i];
        s->request[i] = other;
    }
    memset(s->usual, 0, (size_t)s->shape.cells * sizeof *s->usual);
    for (int64_t q = 0; q < s->trace->n_sequences; q++)
        for (uint32_t i = 0; i < s->calls[q].count; i++)
            s->usual[s->calls[q].cell[i]] += s->calls[q].share[i];
    for (int64_t r = 0; r < s->drawn; r++) {
        const cot_route_calls *calls = &s->calls[s->request[r]];
        for (uint32_t i = 0; i < calls->count; i++) s->usual[calls->cell[i]] -= calls->share[i];
    }
    const int64_t others = s->trace->n_sequences - s->drawn;
    for (int32_t c = 0; c < s->shape.cells; c++) s->usual[c] /= (float)(others ? others : 1);
}

static cot_status send_all(study *s, cot_route_affinity_way way, uint64_t seed, cot_error *error)
{
    const int32_t workers = s->options.workers;
    const int32_t within = way == COT_ROUTE_AFFINITY_FOUR || way == COT_ROUTE_AFFINITY_AT_ONCE_FOUR
                               ? 3
                               : 0; // above the fewest, who still gets one
    cot_route_book *book;
    cot_status status = cot_route_book_open(
        &book, (size_t)workers, 1, way == COT_ROUTE_AFFINITY_LEAST ? COT_ROUTE_RANDOM : COT_ROUTE_JOINT, seed,
        error);
    if (status == COT_OK) status = cot_route_book_set_cells(book, (size_t)s->shape.cells, error);
    if (status != COT_OK) {
        cot_route_book_close(book);
        return status;
    }
    cot_route_book_set_usual(book, s->usual);
    for (int32_t w = 0; w < workers; w++) {
        cot_route_book_set_costs(book, (size_t)w, &(cot_route_costs){.expert_ns = 1});
        s->count[w] = 0;
    }
    for (int64_t r = 0; r < s->drawn && status == COT_OK; r++) {
        int32_t fewest = s->count[0];
        for (int32_t w = 1; w < workers; w++) fewest = s->count[w] < fewest ? s->count[w] : fewest;
        for (int32_t w = 0; w < workers; w++)
            cot_route_book_set_usable(book, (size_t)w, s->count[w] <= fewest + within);
        s->asked[r] = (cot_route_request){
            .tokens = 1, .max_tokens = 1, .depth = s->depth, .calls = &s->calls[s->request[r]]};
        cot_route_choose(book, &s->asked[r], 0, &s->decision[r]); // there is one with the fewest
        s->number[r] = cot_route_assigned(book, &s->asked[r], &s->decision[r], 0);
        s->count[s->decision[r].target]++;
        if (!s->number[r]) status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a book");
    }
    if (status == COT_OK && way >= COT_ROUTE_AFFINITY_AT_ONCE)
        cot_route_exchange(book, s->asked, s->decision, s->number, (size_t)s->drawn, 0);
    for (int64_t r = 0; r < s->drawn; r++) s->worker[r] = (int32_t)s->decision[r].target;
    cot_route_book_close(book);
    return status;
}

/* Distinct experts of a worker's step, over layers, in the mean. */
static double judge(study *s)
{
    const cot_trace *trace = s->trace;
    uint64_t step = 0, called = 0;
    memset(s->seen, 0, (size_t)trace->n_layers * (size_t)trace->n_experts * sizeof *s->seen);
    for (int32_t w = 0; w < s->options.workers; w++)
        for (int64_t t = 0; t < s->options.judged_tokens; t++) {
            step++;
            for (int64_t r = 0; r < s->drawn; r++) {
                if (s->worker[r] != w) continue;
                const int64_t at = trace->sequence_offsets[s->request[r]] + s->options.signature_tokens + t;
                for (int32_t l = 0; l < trace->n_layers; l++)
                    for (int32_t k = 0; k < trace->top_k; k++) {
                        uint64_t *seen = &s->seen[l * trace->n_experts + cot_trace_expert(trace, l, at, k)];
                        called += *seen != step;
                        *seen = step;
                    }
            }
        }
    return (double)called / (double)step;
}

/* ---- all of it ---- */

static cot_status check(const cot_route_affinity_options *o, const cot_trace *trace, cot_error *error)
{
    if (trace->kind == COT_TRACE_COUNTS)
        return cot_fail(error, COT_INVALID_ARGUMENT, "counts have no order of tokens, so no requests");
    if (o->workers < 1 || o->workers > MOST_WORKERS || o->batch < 1 || o->batch > MOST_BATCH ||
        o->signature_tokens < 1 || o->judged_tokens < 1 || o->rounds < 1)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "%" PRId32 " workers of %" PRId32 " requests, %" PRId64 " and %" PRId64
                        " tokens in %" PRId32 " rounds: at most %d, %d, and 1 of each",
                        o->workers, o->batch, o->signature_tokens, o->judged_tokens, o->rounds, MOST_WORKERS,
                        MOST_BATCH);
    return COT_OK;
}

static cot_status gather(study *s, cot_error *error)
{
    const cot_trace *trace = s->trace;
    const int64_t least = s->options.signature_tokens + s->options.judged_tokens;
    cot_status status =
        cot_signature_shape_of(&s->shape, trace->n_layers, trace->n_experts, trace->top_k, error);
    if (status != COT_OK) return status;
    s->drawn = (int64_t)s->options.workers * s->options.batch;
    const size_t sequences = (size_t)trace->n_sequences + 1, drawn = (size_t)s->drawn,
                 workers = (size_t)s->options.workers;
    s->calls = calloc(sequences, sizeof *s->calls);
    s->request = calloc(sequences, sizeof *s->request);
    s->usual = calloc((size_t)s->shape.cells, sizeof *s->usual);
    s->depth = calloc(workers, sizeof *s->depth);
    s->worker = calloc(drawn, sizeof *s->worker);
    s->count = calloc(workers, sizeof *s->count);
    s->seen = calloc((size_t)trace->n_layers * (size_t)trace->n_experts, sizeof *s->seen);
    s->asked = calloc(drawn, sizeof *s->asked);
    s->decision = calloc(drawn, sizeof *s->decision);
    s->number = calloc(drawn, sizeof *s->number);
    if (!s->calls || !s->request || !s->usual || !s->depth || !s->worker || !s->count || !s->seen ||
        !s->asked || !s->decision || !s->number || !sign_all(s))
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %" PRId64 " sequences",
                        trace->n_sequences);
    for (int64_t q = 0; q < trace->n_sequences; q++)
        if (length_of(trace, q) >= least) s->request[s->requests++] = q;
    if (s->requests < s->drawn)
        status = cot_fail(error, COT_INVALID_ARGUMENT,
                          "%" PRId64 " sequences have %" PRId64 " tokens or more, and %" PRId64 " are wanted",
                          s->requests, least, s->drawn);
    return status;
}

static cot_status run(cot_route_affinity_study *out, study *s, cot_error *error)
{
    const double rounds = s->options.rounds;
    double squares[COT_ROUTE_AFFINITY_WAYS] = {0};
    for (int32_t round = 0; round < s->options.rounds; round++) {
        double distinct[COT_ROUTE_AFFINITY_WAYS];
        draw(s, (uint64_t)round);
        for (int way = 0; way < COT_ROUTE_AFFINITY_WAYS; way++) {
            const cot_status status =
                send_all(s, (cot_route_affinity_way)way, s->options.seed + (uint64_t)round, error);
            if (status != COT_OK) return status;
            distinct[way] = judge(s);
            const double ratio = distinct[way] / distinct[COT_ROUTE_AFFINITY_LEAST];
            out->distinct[way] += distinct[way] / rounds;
            out->ratio[way] += ratio / rounds;
            squares[way] += ratio * ratio / rounds;
        }
    }
    for (int way = 0; way < COT_ROUTE_AFFINITY_WAYS; way++)
        out->error[way] =
            rounds > 1 ? sqrt(fmax(squares[way] - out->ratio[way] * out->ratio[way], 0) / (rounds - 1)) : 0;
    out->requests = s->requests;
    out->cells = s->shape.cells;
    return COT_OK;
}

cot_status cot_route_affinity(cot_route_affinity_study *out, const cot_trace *trace,
                              const cot_route_affinity_options *options, cot_error *error)
{
    study s = {.trace = trace, .options = *options};
    cot_route_affinity_options *o = &s.options;
    *out = (cot_route_affinity_study){0};
    if (!o->workers) o->workers = 8;
    if (!o->batch) o->batch = 8;
    if (!o->signature_tokens) o->signature_tokens = 64;
    if (!o->judged_tokens) o->judged_tokens = 192;
    if (!o->rounds) o->rounds = 20;
    cot_status status = check(o, trace, error);
    if (status == COT_OK) status = gather(&s, error);
    if (status == COT_OK) status = run(out, &s, error);
    void *owned[] = {s.calls, s.request, s.usual, s.depth,    s.worker,
                     s.count, s.seen,    s.asked, s.decision, s.number};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    return status;
}
