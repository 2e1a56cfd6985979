/* How long placements take, on one thread: `bench_placement` prints a table, `bench_placement growth` how the time grows
 * with the cluster, as CSV; `bench_placement replan` how many moves replanning takes beside a fresh EPLB plan. Loads are
 * lognormal(1) counts; times are medians of repeated solves in one process, with nothing else read, checked or written; "worked" is the
 * processor's time, which other programs disturb least. */
#include "coterie/place.h"

#include "base/clock.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double gauss(uint64_t i)
{
    return sqrt(-2 * log(1 - cot_random_uniform(1, 0, i))) *
           cos(6.283185307179586 * cot_random_uniform(1, 1, i));
}

static int die(const cot_error *error)
{
    fprintf(stderr, "bench_placement: %s\n", error->message);
    exit(1);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct bench_case {
    const char *name, *spec, *method;
    int32_t layers, experts, c_layer, c_exp, slots;
    bool measured; // every distance a little different
    double skew;
    bool spread; // layers' senders evenly over the whole cluster, instead of on its first servers
} bench_case;

/* Milliseconds of this thread's work: beside other programs, what a solve would take alone. */
static double worked_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_value);
    return x[n / 2];
}

typedef struct bench_times {
    double median_ms, first_ms, worked_ms, gap;
} bench_times;

static bench_times run(const bench_case *b, int repeats)
{
    bench_times times = {0};
    cot_topology t = {0};
    cot_load_counts load;
    cot_costs costs;
    cot_error error;
    if (cot_topology_build(&t, b->spec, 0, &error) != COT_OK ||
        cot_load_counts_new(&load, b->layers, 1, b->experts, &error) != COT_OK)
        die(&error);
    for (int32_t i = 0; i < b->layers * b->experts; i++)
        load.tokens[i] = 1 + floor(400 * exp(b->skew * gauss((uint64_t)i)));
    size_t S = (size_t)t.n_ranks, L = (size_t)b->layers;
    cot_costs_options options = {.size = sizeof options};
    double *weights = b->spread ? calloc(2 * L * S, sizeof *weights) : NULL;
    if (b->spread && !weights) exit(1);
    for (size_t l = 0; weights && l < L; l++)
        weights[l * S + l * S / L] = weights[(L + l) * S + (l + 1) % L * S / L] = 1;
    if (weights) {
        options.attention = COT_ATTENTION_WEIGHTS;
        options.dispatch_weights = weights;
        options.collect_weights = weights + L * S;
    }
    if (cot_costs_open(&costs, &load, &t, &options, &error) != COT_OK) die(&error);
    for (size_t i = 0; b->measured && i < (size_t)b->layers * S; i++)
        costs.cost[i] = 0.1 + costs.cost[i] * (1 + 0.1 * fabs(gauss(1000000 + i)));
    int32_t *c_layer = malloc(2 * S * sizeof *c_layer), *c_exp = c_layer + S;
    double *ms = malloc(2 * (size_t)repeats * sizeof *ms), *worked = ms + repeats;
    if (!c_layer || !ms) exit(1);
    for (size_t s = 0; s < S; s++) {
        c_layer[s] = b->c_layer;
        c_exp[s] = b->c_exp;
    }
    const cot_place_options place = {.size = sizeof place,
                                     .method = b->method,
                                     .slots = b->slots,
                                     .c_layer = b->c_layer ? c_layer : NULL,
                                     .c_exp = b->c_exp ? c_exp : NULL};
    for (int i = 0; i < repeats; i++) {
        cot_expert_map map;
        cot_place_proof *proof;
        cot_place_value value;
        int64_t start = cot_now_ns();
        double before = worked_ms();
        if (cot_place(&map, &proof, &costs, &place, &error) != COT_OK) die(&error);
        worked[i] = worked_ms() - before;
        ms[i] = (double)(cot_now_ns() - start) * 1e-6;
        if (!i) {
            times.first_ms = ms[0];
            if (cot_place_value_of(&value, &map, &costs, 0, &error) != COT_OK ||
                cot_place_prove(&value, proof, &error) != COT_OK)
                die(&error);
            times.gap = value.dual > 0 ? value.objective - value.dual : -1;
            cot_place_value_free(&value);
        }
        cot_place_proof_free(proof);
        cot_expert_map_free(&map);
    }
    times.median_ms = median(ms, repeats);
    times.worked_ms = median(worked, repeats);
    free(ms);
    free(weights);
    free(c_layer);
    cot_costs_free(&costs);
    cot_load_counts_free(&load);
    cot_topology_free(&t);
    return times;
}

/* Twice: senders on the cluster's first 58 servers, as the paper has it, which crowd there as the cluster grows; and
 * spread over all of it. */
static int growth(void)
{
    puts("gpus,milliseconds,spread_milliseconds");
    for (int32_t gpus = 256; gpus <= 8192; gpus *= 2) {
        char spec[64];
        snprintf(spec, sizeof spec, "fattree:ranks=%d", gpus);
        bench_case b = {"growth", spec, "ilpload", 58, 256,  gpus < 2048 ? 2048 / gpus : 1,
                        0,        0,    false,     1,  false};
        b.c_exp = (int32_t)ceil(1.1 * 58 * 256 / gpus); // a tenth to spare
        bench_times first = run(&b, 15);
        b.spread = true;
        bench_times spread = run(&b, 15);
        if (first.gap != 0 || spread.gap != 0) exit(1);
        printf("%d,%.3f,%.3f\n", gpus, first.worked_ms, spread.worked_ms);
    }
    return 0;
}

/* The moves from `from` to `to` after the best renaming of its ranks in each layer by itself, which is done to `to`. */
static int64_t renamed_by_layer(const cot_expert_map *from, cot_expert_map *to)
{
    int64_t sum = 0;
    for (int32_t l = 0; l < to->n_layers; l++) {
        cot_expert_map one[2] = {*from, *to};
        cot_error error;
        int64_t moves;
        for (int k = 0; k < 2; k++) {
            one[k].n_layers = 1;
            one[k].layers += l;
            one[k].expert += (size_t)l * (size_t)to->n_ranks * (size_t)to->slots_per_rank;
            one[k].dense += l;
        }
        if (cot_place_relabel(&moves, &one[0], &one[1], &error) != COT_OK) die(&error);
        sum += moves;
    }
    return sum;
}

/* Old loads lognormal(skew), new ones times lognormal(drift); 288 slots on 36 ranks. The fresh plan's moves are counted
 * after the best renaming of its ranks, one for all layers and, fewer, one for each layer. */
static void replan(double skew, double drift)
{
    enum { L = 20, E = 256, S = 36 };
    cot_load_counts load[2];
    cot_costs costs[2];
    cot_expert_map old, fresh, map;
    cot_place_value value[2];
    cot_error error;
    int64_t renamed, by_layer, moves;
    const cot_costs_options options = {.size = sizeof options, .n_ranks = S};
    const cot_place_options place = {.size = sizeof place, .method = "eplb", .slots = 288};
    for (int k = 0; k < 2; k++) {
        if (cot_load_counts_new(&load[k], L, 1, E, &error) != COT_OK) die(&error);
        for (uint64_t i = 0; i < L * E; i++)
            load[k].tokens[i] =
                k ? load[0].tokens[i] * exp(drift * gauss(L * E + i)) : 1000 * exp(skew * gauss(i));
        if (cot_costs_open(&costs[k], &load[k], NULL, &options, &error) != COT_OK) die(&error);
    }
    if (cot_place(&old, NULL, &costs[0], &place, &error) != COT_OK ||
        cot_place(&fresh, NULL, &costs[1], &place, &error) != COT_OK ||
        cot_place_value_of(&value[0], &fresh, &costs[1], 0, &error) != COT_OK ||
        cot_place_relabel(&renamed, &old, &fresh, &error) != COT_OK)
        die(&error);
    by_layer = renamed_by_layer(&old, &fresh);
    const cot_replan_options few = {.size = sizeof few, .peak = value[0].peak_load, .max_moves = -1};
    if (cot_place_replan(&map, &moves, &old, &costs[1], &few, &error) != COT_OK ||
        cot_place_value_of(&value[1], &map, &costs[1], 0, &error) != COT_OK)
        die(&error);
    int reached = 0;
    for (int l = 0; l < L; l++) reached += value[1].peak_load[l] <= value[0].peak_load[l] * (1 + 1e-6);
    printf("skew %.2f drift %.2f: fresh plan %5lld moves (renamed by layer %5lld), replan %5lld:\n"
           "  %5.1f (%4.1f) times fewer; its balance in %d of %d layers\n",
           skew, drift, (long long)renamed, (long long)by_layer, (long long)moves,
           (double)renamed / (double)moves, (double)by_layer / (double)moves, reached, L);
    for (int k = 0; k < 2; k++) {
        cot_place_value_free(&value[k]);
        cot_costs_free(&costs[k]);
        cot_load_counts_free(&load[k]);
    }
    cot_expert_map_free(&old);
    cot_expert_map_free(&fresh);
    cot_expert_map_free(&map);
}

int main(int argc, char **argv)
{
    static const bench_case cases[] = {
        {"58 x 256, 256 GPUs, C_layer 8, C_exp 64", "fattree:ranks=256", "ilpload", 58, 256, 8, 64, 0, false,
         1, false},
        {"  the same on dragonfly", "dragonfly:ranks=256", "ilpload", 58, 256, 8, 64, 0, false, 1, false},
        {"  no slack: C_exp 58", "fattree:ranks=256", "ilpload", 58, 256, 8, 58, 0, false, 1, false},
        {"  no slack on dragonfly-sparse, C_layer 4", "dragonfly-sparse:ranks=256", "ilpload", 58, 256, 4, 58,
         0, false, 1, false},
        {"  measured distances, C_exp 64", "fattree:ranks=256", "ilpload", 58, 256, 8, 64, 0, true, 1, false},
        {"  measured distances, no slack", "fattree:ranks=256", "ilpload", 58, 256, 8, 58, 0, true, 1, false},
        {"60 x 384, 1024 GPUs", "fattree:ranks=1024", "ilpload", 60, 384, 1, 23, 0, false, 1, false},
        {"EPLB, 58 x 256, 288 slots, 32 ranks", "fattree:ranks=32", "eplb", 58, 256, 0, 0, 288, false, 0.55,
         false},
        {"eplb-swap, the same", "fattree:ranks=32", "eplb-swap", 58, 256, 0, 0, 288, false, 0.55, false},
    };
    if (argc > 1 && !strcmp(argv[1], "growth")) return growth();
    if (argc > 1 && !strcmp(argv[1], "replan")) {
        static const double skews[] = {0.55, 0.3, 1}, drifts[] = {0.02, 0.05, 0.1, 0.2, 0.3};
        for (int i = 0; i < 3; i++)
            for (int k = 0; k < 5; k++) replan(skews[i], drifts[k]);
        return 0;
    }
    puts("median ms: of all runs, by the clock; worked ms: of the processor; first ms: the run that finds "
         "nothing\n"
         "in cache; gap: objective less its proven bound");
    printf("%-44s %10s %10s %10s %8s\n", "", "median ms", "worked ms", "first ms", "gap");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench_times t = run(&cases[i], cases[i].measured ? 5 : 31);
        printf("%-44s %10.3f %10.3f %10.3f", cases[i].name, t.median_ms, t.worked_ms, t.first_ms);
        if (t.gap >= 0) printf(" %8g", t.gap);
        putchar('\n');
    }
    return 0;
}
