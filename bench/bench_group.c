/* How well methods of co-clustering do on a trace in a given time: trains on 20 % of the sequences (on everything where
 * there are none), all layers together, one layer a thread at a time, two threads;
 * seconds are of the threads' own time.
 *
 *     bench_group TRACE RANKS SECONDS [SEED [EXPERT_LOAD [METHOD...]]]
 *     bench_group TOKENSxEXPERTSxLAYERS RANKS SECONDS ...    random calls of experts, 6 a token, half of them clustered */
#include "coterie/group.h"

#include "base/clock.h"
#include "base/rng.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { THREADS = 2 };

typedef struct work {
    const cot_affinities *affinities;
    cot_group_options options;
    int64_t each_ns; // for a layer
    atomic_int next;
    cot_grouping *best; // [L], arrays gone
} work;

static void die(const cot_error *error)
{
    fprintf(stderr, "bench_group: %s\n", error->message);
    exit(1);
}

/* Of this thread: a machine with other work to do changes nothing. */
static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void *group_layers(void *context)
{
    work *w = context;
    for (int l; (l = atomic_fetch_add(&w->next, 1)) < w->affinities->n_layers;) {
        cot_error error;
        cot_grouper *grouper;
        const int64_t start = now_ns();
        if (cot_grouper_open(&grouper, &w->affinities->layer[l], &w->options, &error) != COT_OK) die(&error);
        do {
            if (cot_grouper_iterate(grouper, 1, &error) != COT_OK) die(&error);
        } while (now_ns() - start < w->each_ns && !cot_grouper_is_done(grouper));
        cot_grouper_best(&w->best[l], grouper);
        cot_grouper_close(grouper);
    }
    return NULL;
}

static void measure(const cot_affinities *a, const cot_group_options *options, double seconds)
{
    work w = {a, *options, (int64_t)(seconds * 1e9 * THREADS / a->n_layers), 0,
              calloc((size_t)a->n_layers, sizeof *w.best)};
    if (!w.best) exit(1);
    const int64_t start = cot_now_ns();
    pthread_t thread[THREADS];
    for (int t = 0; t < THREADS; t++)
        if (pthread_create(&thread[t], NULL, group_layers, &w)) exit(1);
    for (int t = 0; t < THREADS; t++) pthread_join(thread[t], NULL);
    double local = 0, total = 0, bound = 0, token_peak = 0, expert_peak = 0, least_peak = 0;
    int64_t iterations = 0;
    int proven = 0, feasible = 0;
    for (int32_t l = 0; l < a->n_layers; l++) {
        const cot_grouping *g = &w.best[l];
        local += (double)g->local;
        total += (double)g->total;
        bound += g->bound;
        token_peak = g->token_peak > token_peak ? g->token_peak : token_peak;
        expert_peak += g->expert_peak / a->n_layers;
        least_peak += g->expert_peak_bound / a->n_layers;
        iterations += g->iterations;
        proven += g->proven;
        feasible += g->feasible;
    }
    printf("%-10s %2" PRId32 " %7.4f %7.4f %7.3f %7.3f %7.3f %5d %5d %9" PRId64 " %7.2f\n", options->method,
           options->ranks, local / total, bound / total, token_peak, expert_peak, least_peak, proven,
           feasible, iterations, (double)(cot_now_ns() - start) * 1e-9);
    fflush(stdout);
    free(w.best);
}

/* Tokens of eight kinds, each with a favourite eighth of the experts. */
static void make_random(cot_trace_builder *builder, int tokens, int experts, int layers, uint64_t seed)
{
    enum { K = 6 };
    cot_error error;
    uint16_t *chosen = malloc((size_t)layers * K * sizeof *chosen);
    float *weights = calloc((size_t)layers * K, sizeof *weights);
    if (!chosen || !weights) exit(1);
    for (int t = 0; t < 4 * tokens; t++) {
        const uint64_t id =
            t < tokens ? (uint64_t)t : cot_random_bits(seed, 2, (uint64_t)t) % (uint64_t)tokens;
        for (int l = 0; l < layers; l++)
            for (int k = 0; k < K; k++) {
                uint64_t bits = cot_random_bits(seed, 3 + (uint64_t)l, (uint64_t)(t * K + k));
                const uint64_t kind = cot_random_bits(seed, 3 + (uint64_t)l, id << 32) % 8;
                const int width = experts / 8;
                for (bool again = true; again; bits = cot_mix64(bits)) {
                    chosen[l * K + k] =
                        (uint16_t)(bits & 1 ? kind * (uint64_t)width + (bits >> 8) % (uint64_t)width
                                            : (bits >> 8) % (uint64_t)experts);
                    again = false;
                    for (int j = 0; j < k; j++) again = again || chosen[l * K + j] == chosen[l * K + k];
                }
            }
        if (cot_trace_builder_append(builder, 0, (int32_t)id, chosen, weights, &error) != COT_OK) die(&error);
    }
    free(chosen);
    free(weights);
}

int main(int count, char **words)
{
    if (count < 4) {
        fprintf(stderr, "usage: bench_group TRACE RANKS SECONDS [SEED [EXPERT_LOAD [METHOD...]]]\n");
        return 2;
    }
    const uint64_t seed = count > 4 ? strtoull(words[4], NULL, 10) : 1;
    cot_trace trace;
    cot_error error;
    int tokens, experts, layers;
    uint8_t *chosen = NULL;
    if (sscanf(words[1], "%dx%dx%d", &tokens, &experts, &layers) == 3) {
        cot_trace_builder *builder;
        if (cot_trace_builder_open(&builder, "random", layers, NULL, experts, 6, &error) != COT_OK)
            die(&error);
        make_random(builder, tokens, experts, layers, seed);
        if (cot_trace_builder_finish(&trace, builder, &error) != COT_OK) die(&error);
        cot_trace_builder_close(builder);
    } else {
        if (cot_trace_import(&trace, words[1], NULL, &error) != COT_OK) die(&error);
        if (trace.kind == COT_TRACE_TOKENS && !(chosen = calloc((size_t)trace.n_sequences, 1))) exit(1);
        for (int64_t s = 0; chosen && s < trace.n_sequences; s++)
            chosen[s] = cot_random_uniform(seed, 1, (uint64_t)s) < 0.2;
    }
    cot_affinities a;
    const int64_t start = cot_now_ns();
    if (cot_affinities_count(&a, &trace, chosen, &error) != COT_OK) die(&error);
    printf("%s: %d layers, %d experts, %" PRId64 " rows, counted in %.2f s\n", trace.model, a.n_layers,
           a.n_experts, a.n_tokens, (double)(cot_now_ns() - start) * 1e-9);
    puts("method      D     LAR   bound  tokens experts  (least) proven fits iterations seconds");
    for (const cot_group_method *m = cot_group_methods; m->name; m++) {
        bool wanted = count <= 6;
        for (int i = 6; i < count; i++) wanted = wanted || !strcmp(words[i], m->name);
        const cot_group_options options = {.size = sizeof options,
                                           .method = m->name,
                                           .ranks = atoi(words[2]),
                                           .token_balance = 0.1,
                                           .expert_load = count > 5 ? atof(words[5]) : 0,
                                           .seed = seed};
        if (wanted) measure(&a, &options, atof(words[3]));
    }
    cot_affinities_free(&a);
    cot_trace_close(&trace);
    free(chosen);
    return 0;
}
