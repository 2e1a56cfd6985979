/* How fast predictions are looked up: 200,000 token rows, 8 ranks, sequences over 2 layers, batches over all layers.
 *
 *     bench_predict [TRACE]
 *
 * TRACE gives the ids (spread over the rows); without it they follow Zipf's law. One core; a figure is the median of
 * its runs, in pairs of token and layer. Then homes, which an engine chooses by them step by step, in nanoseconds a token and
 * layer: where every rank that is foretold has room, and as tables and tokens are. */
#include "coterie/predict.h"
#include "base/clock.h"
#include "base/rng.h"
#include "predict/homes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 200000, L = 24, E = 32, K = 4, D = 8, ORDER = 2, TAUGHT = 4096, ASKED = 1 << 16, RUNS = 9 };

static void *allocate(size_t count, size_t bytes)
{
    void *p = calloc(count, bytes);
    if (!p) {
        fprintf(stderr, "bench_predict: out of memory\n");
        exit(1);
    }
    return p;
}

static uint32_t draw(uint32_t n)
{
    static uint64_t draws;
    return (uint32_t)(cot_random_bits(1, 0, draws++) % n);
}

static void ids_of(int32_t *ids, const char *path)
{
    cot_trace trace = {0};
    cot_error error;
    const cot_trace_import_options options = {.size = sizeof options};
    if (path && cot_trace_import(&trace, path, &options, &error) != COT_OK) {
        fprintf(stderr, "bench_predict: %s\n", error.message);
        exit(1);
    }
    for (int64_t i = 0; i < ASKED; i++) {
        const uint64_t id = trace.n_tokens ? (uint64_t)trace.token_ids[i % trace.n_tokens]
                                           : (uint64_t)pow(ROWS, (draw(1 << 30) + 0.5) / (1 << 30));
        ids[i] = (int32_t)(cot_mix64(id) % ROWS);
    }
    cot_trace_close(&trace);
}

/* A predictor of random tables with a row for every id. `even`: row i has rank i mod D in every layer. */
static cot_predictor *make(bool even)
{
    cot_error error;
    cot_trace_builder *builder;
    cot_trace trace;
    cot_predictor *predictor;
    int32_t *ids = allocate(ROWS, sizeof *ids), *ranks = allocate((size_t)ROWS * L, sizeof *ranks);
    uint16_t experts[L * K];
    const float weights[L * K] = {0};
    cot_status status = cot_trace_builder_open(&builder, "bench", L, NULL, E, K, &error);
    for (int t = 0; t < TAUGHT && status == COT_OK; t++) {
        for (int i = 0; i < L * K; i++) experts[i] = (uint16_t)draw(E);
        status = cot_trace_builder_append(builder, t / 256, (int32_t)draw(ROWS), experts, weights, &error);
    }
    if (status == COT_OK) status = cot_trace_builder_finish(&trace, builder, &error);
    for (int32_t i = 0; i < ROWS; i++) ids[i] = i;
    for (int64_t i = 0; i < (int64_t)ROWS * L; i++)
        ranks[i] = even ? (int32_t)(i % ROWS % D) : (int32_t)draw(D);
    const cot_predictor_options options = {.size = sizeof options,
                                           .ranks = D,
                                           .order = ORDER,
                                           .token_ids = ids,
                                           .token_rank = ranks,
                                           .n_tokens = ROWS};
    if (status == COT_OK) status = cot_predictor_train(&predictor, &trace, &options, &error);
    if (status != COT_OK) {
        fprintf(stderr, "bench_predict: %s\n", error.message);
        exit(1);
    }
    cot_trace_builder_close(builder);
    cot_trace_close(&trace);
    free(ids);
    free(ranks);
    return predictor;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct asked {
    int32_t *row;
    uint16_t *own, *earlier; // [L][2][ASKED][K], of which a batch reads as many tokens as it has
    int16_t *ranks;          // [L][ORDER][ASKED]
};

/* All batches of `T` tokens over all layers, once; seconds. */
static double run(const cot_predictor *p, cot_predict_method method, const struct asked *asked, int64_t T)
{
    static int16_t rank[ASKED];
    static uint16_t confidence[ASKED];
    const int64_t begin_ns = cot_now_ns();
    for (int64_t first = 0; first < ASKED; first += T)
        for (int32_t l = 0; l < L; l++) {
            const int64_t at = l * (int64_t)ASKED + first;
            const cot_predict_batch batch = {.layer = l,
                                             .n_tokens = T,
                                             .row = asked->row + first,
                                             .row_before = asked->row + (first ? first - 1 : 0),
                                             .own_before = asked->own + at * 2 * K,
                                             .earlier = asked->earlier + at * 2 * K,
                                             .ranks_before = asked->ranks + at * ORDER};
            cot_predict_ranks(rank, confidence, p, method, &batch);
        }
    return (double)(cot_now_ns() - begin_ns) * 1e-9;
}

/* Homes of all tokens over all layers, in steps of T tokens; nanoseconds a token and layer. */
static double run_homes(const cot_predictor *p, cot_predict_method method, const struct asked *asked,
                        int64_t T, cot_homes_scratch *scratch)
{
    static int16_t home[ASKED];
    const int64_t begin_ns = cot_now_ns();
    for (int64_t first = 0; first < ASKED; first += T)
        for (int32_t l = 0; l < L; l++) {
            const cot_predict_batch batch = {.layer = l,
                                             .n_tokens = T,
                                             .row = asked->row + first,
                                             .ranks_before =
                                                 asked->ranks + (l * (int64_t)ASKED + first) * ORDER};
            cot_predict_homes(home, scratch, p, method, &batch);
        }
    return (double)(cot_now_ns() - begin_ns) / ((double)ASKED * L);
}

static void report_homes(const cot_predictor *p, cot_predict_method method, const struct asked *asked,
                         const char *what)
{
    enum { MOST = 4096 };
    cot_arena measure = {0}, arena;
    cot_homes_scratch scratch;
    cot_homes_scratch_lay_out(&scratch, &measure, MOST, E);
    if (cot_arena_open(&arena, measure.used, NULL) != COT_OK) return;
    cot_homes_scratch_lay_out(&scratch, &arena, MOST, E);
    for (int64_t T = 1; T <= MOST; T *= 8) {
        double ns[RUNS];
        run_homes(p, method, asked, T, &scratch);
        for (int i = 0; i < RUNS; i++) ns[i] = run_homes(p, method, asked, T, &scratch);
        qsort(ns, RUNS, sizeof *ns, by_value);
        printf("homes, %-22s step %5lld  %8.1f ns a token and layer  (%.1f to %.1f)\n", what, (long long)T,
               ns[RUNS / 2], ns[0], ns[RUNS - 1]);
    }
    cot_arena_close(&arena);
}

int main(int argc, char **argv)
{
    cot_predictor *p = make(false), *even = make(true);
    struct asked asked = {allocate(ASKED, sizeof(int32_t)), allocate((size_t)ASKED * L * 2 * K, 2),
                          allocate((size_t)ASKED * L * 2 * K, 2), allocate((size_t)ASKED * L * ORDER, 2)};
    int32_t *ids = allocate(ASKED, sizeof *ids);
    ids_of(ids, argc > 1 ? argv[1] : NULL);
    cot_predict_rows(asked.row, p, ids, ASKED);
    for (int64_t i = 0; i < (int64_t)ASKED * L * 2 * K; i++) {
        asked.own[i] = (uint16_t)draw(E);
        asked.earlier[i] = (uint16_t)draw(E);
    }
    for (int64_t i = 0; i < (int64_t)ASKED * L * ORDER; i++) asked.ranks[i] = (int16_t)draw(D);
    static const cot_predict_method methods[] = {COT_PREDICT_TOKEN_TABLE, COT_PREDICT_DEVICE_SEQUENCE,
                                                 COT_PREDICT_ALGORITHM_2, COT_PREDICT_CONTEXT_PREFILL,
                                                 COT_PREDICT_CONTEXT_DECODE};
    printf("%d rows, %d layers, %d experts, top %d, %d ranks, order %d, ids %s\n", ROWS, L, E, K, D, ORDER,
           argc > 1 ? argv[1] : "by Zipf's law");
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++)
        for (int64_t T = 512; T <= 8192; T *= 4) {
            double seconds[RUNS];
            run(p, methods[m], &asked, T);
            for (int i = 0; i < RUNS; i++) seconds[i] = run(p, methods[m], &asked, T);
            qsort(seconds, RUNS, sizeof *seconds, by_value);
            const double pairs = (double)ASKED * L * 1e-6;
            printf("%-16s batch %5lld  %8.1f M pairs/s  (%.1f to %.1f)\n",
                   cot_predict_method_names[methods[m]], (long long)T, pairs / seconds[RUNS / 2],
                   pairs / seconds[RUNS - 1], pairs / seconds[0]);
        }
    report_homes(p, COT_PREDICT_ALGORITHM_2, &asked, "as foretold");
    for (int64_t i = 0; i < ASKED; i++) asked.row[i] = (int32_t)(i % ROWS);
    report_homes(even, COT_PREDICT_TOKEN_TABLE, &asked, "where there is room");
    cot_predictor_close(p);
    cot_predictor_close(even);
    free(asked.row);
    free(asked.own);
    free(asked.earlier);
    free(asked.ranks);
    free(ids);
}
