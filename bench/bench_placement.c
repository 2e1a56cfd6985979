/* How long placements take, on one thread: `bench_placement` prints a table, `bench_placement growth` how the time grows
 * with the cluster, as CSV; `bench_placement replan` how many moves replanning takes beside a fresh EPLB plan. Loads are lognormal(1) counts; times are medians of repeated solves in one process, with
 * nothing else read, checked or written. */
#include "coterie/place.h"

#include "base/clock.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
} bench_case;

static double run(const bench_case *b, double *first, double *gap, int repeats)
{
    cot_topology t = {0};
    cot_load_counts load;
    cot_costs costs;
    cot_error error;
    if (cot_topology_build(&t, b->spec, 0, &error) != COT_OK ||
        cot_load_counts_new(&load, b->layers, 1, b->experts, &error) != COT_OK)
        die(&error);
    for (int32_t i = 0; i < b->layers * b->experts; i++)
        load.tokens[i] = 1 + floor(400 * exp(b->skew * gauss((uint64_t)i)));
    const cot_costs_options options = {.size = sizeof options};
    if (cot_costs_open(&costs, &load, &t, &options, &error) != COT_OK) die(&error);
    size_t S = (size_t)t.n_ranks;
    for (size_t i = 0; b->measured && i < (size_t)b->layers * S; i++)
        costs.cost[i] = 0.1 + costs.cost[i] * (1 + 0.1 * fabs(gauss(1000000 + i)));
    int32_t *c_layer = malloc(2 * S * sizeof *c_layer), *c_exp = c_layer + S;
    double *ms = malloc((size_t)repeats * sizeof *ms);
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
        if (cot_place(&map, &proof, &costs, &place, &error) != COT_OK) die(&error);
        ms[i] = (double)(cot_now_ns() - start) * 1e-6;
        if (!i) {
            *first = ms[0];
            if (cot_place_value_of(&value, &map, &costs, 0, &error) != COT_OK ||
                cot_place_prove(&value, proof, &error) != COT_OK)
                die(&error);
            *gap = value.dual > 0 ? value.objective - value.dual : -1;
            cot_place_value_free(&value);
        }
        cot_place_proof_free(proof);
        cot_expert_map_free(&map);
    }
    qsort(ms, (size_t)repeats, sizeof *ms, by_value);
    double median = ms[repeats / 2];
    free(ms);
    free(c_layer);
    cot_costs_free(&costs);
    cot_load_counts_free(&load);
    cot_topology_free(&t);
    return median;
}

static int growth(void)
{
    puts("gpus,milliseconds,gap");
    for (int32_t gpus = 256; gpus <= 8192; gpus *= 2) {
        char spec[64];
        double first, gap;
        snprintf(spec, sizeof spec, "fattree:ranks=%d", gpus);
        bench_case b = {
            "growth", spec, "ilpload", 58, 256, gpus < 512 ? 8 : gpus < 1024 ? 4 : gpus < 2048 ? 2 : 1,
            0,        0,    false,     1};
        b.c_exp = (int32_t)ceil(1.1 * 58 * 256 / gpus); // a tenth to spare
        double median = run(&b, &first, &gap, 15);
        printf("%d,%.3f,%g\n", gpus, median, gap);
    }
    return 0;
}

/* Old loads lognormal(skew), new ones times lognormal(drift); 288 slots on 36 ranks. The fresh plan's moves are counted
 * after the best renaming of its ranks. */
static void replan(double skew, double drift)
{
    enum { L = 20, E = 256, S = 36 };
    cot_load_counts load[2];
    cot_costs costs[2];
    cot_expert_map old, fresh, map;
    cot_place_value value[2];
    cot_error error;
    int64_t renamed, moves;
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
    const cot_replan_options few = {sizeof few, value[0].peak_load, -1, 0, 0};
    if (cot_place_replan(&map, &moves, &old, &costs[1], &few, &error) != COT_OK ||
        cot_place_value_of(&value[1], &map, &costs[1], 0, &error) != COT_OK)
        die(&error);
    int reached = 0;
    for (int l = 0; l < L; l++) reached += value[1].peak_load[l] <= value[0].peak_load[l] * (1 + 1e-6);
    printf("skew %.2f drift %.2f: fresh plan %6lld moves, replan %5lld, %5.1f times fewer; its balance in %d "
           "of %d layers\n",
           skew, drift, (long long)renamed, (long long)moves, (double)renamed / (double)moves, reached, L);
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
         1},
        {"  the same on dragonfly", "dragonfly:ranks=256", "ilpload", 58, 256, 8, 64, 0, false, 1},
        {"  no slack: C_exp 58", "fattree:ranks=256", "ilpload", 58, 256, 8, 58, 0, false, 1},
        {"  no slack on dragonfly-sparse, C_layer 4", "dragonfly-sparse:ranks=256", "ilpload", 58, 256, 4, 58,
         0, false, 1},
        {"  measured distances, C_exp 64", "fattree:ranks=256", "ilpload", 58, 256, 8, 64, 0, true, 1},
        {"  measured distances, no slack", "fattree:ranks=256", "ilpload", 58, 256, 8, 58, 0, true, 1},
        {"60 x 384, 1024 GPUs", "fattree:ranks=1024", "ilpload", 60, 384, 1, 23, 0, false, 1},
        {"EPLB, 58 x 256, 288 slots, 32 ranks", "fattree:ranks=32", "eplb", 58, 256, 0, 0, 288, false, 0.55},
        {"eplb-swap, the same", "fattree:ranks=32", "eplb-swap", 58, 256, 0, 0, 288, false, 0.55},
    };
    if (argc > 1 && !strcmp(argv[1], "growth")) return growth();
    if (argc > 1 && !strcmp(argv[1], "replan")) {
        static const double skews[] = {0.55, 0.3, 1}, drifts[] = {0.02, 0.05, 0.1, 0.2, 0.3};
        for (int i = 0; i < 3; i++)
            for (int k = 0; k < 5; k++) replan(skews[i], drifts[k]);
        return 0;
    }
    printf("%-44s %10s %10s %8s\n", "", "median ms", "first ms", "gap");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double first, gap, median = run(&cases[i], &first, &gap, cases[i].measured ? 5 : 31);
        printf("%-44s %10.3f %10.3f", cases[i].name, median, first);
        if (gap >= 0) printf(" %8g", gap);
        putchar('\n');
    }
    return 0;
}
