/* What is told of a change of domains, on traces drawn here: what the loop composed is looked at token by token, and a step's time
 * and sends are added up from the formula. */
#include "harness/cmocka.h"
#include "harness/seed.h"

#include "base/rng.h"
#include "engine/bench/drift.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    L = 2,
    E = 16,
    K = 2,
    P = 4,
    SEQUENCES = 12,
    LONGEST = 30,
    WIDTH = 8,
    SECOND_WIDTH = 5,
    INTERVAL = 8,
    STEPS = 64
};

static uint64_t at;
static int32_t below(int32_t n)
{
    return (int32_t)(cot_random_uniform(test_seed(), 43, at++) * n);
}

typedef struct world {
    cot_trace trace[2];
    int32_t list[SEQUENCES];
    cot_bench_drift_options o;
} world;

/* Tokens call the experts of their half's favourites, mostly. */
static void draw_trace(cot_trace *trace, int32_t favourite)
{
    cot_trace_builder *builder;
    cot_error error;
    assert_int_equal(cot_trace_builder_open(&builder, "drawn", L, NULL, E, K, &error), COT_OK);
    for (int32_t s = 0; s < SEQUENCES; s++)
        for (int32_t t = 1 + below(LONGEST); t > 0; t--) {
            uint16_t experts[L * K];
            for (int32_t l = 0; l < L; l++) {
                const int32_t first = below(4) ? favourite + below(3) : below(E);
                experts[l * K] = (uint16_t)first;
                experts[l * K + 1] = (uint16_t)((first + 1 + below(E - 1)) % E);
            }
            assert_int_equal(cot_trace_builder_append(builder, s, 0, experts, NULL, &error), COT_OK);
        }
    assert_int_equal(cot_trace_builder_finish(trace, builder, &error), COT_OK);
    cot_trace_builder_close(builder);
}

static int open_world(void **state)
{
    world *w = calloc(1, sizeof *w);
    draw_trace(&w->trace[0], 0);
    draw_trace(&w->trace[1], 4);
    for (int32_t i = 0; i < SEQUENCES; i++) w->list[i] = i;
    w->o = (cot_bench_drift_options){.size = sizeof w->o,
                                     .half = {{&w->trace[0], w->list, SEQUENCES, WIDTH},
                                              {&w->trace[1], w->list, SEQUENCES - 3, SECOND_WIDTH}},
                                     .ranks = P,
                                     .spare = P,
                                     .steps = STEPS,
                                     .interval = INTERVAL,
                                     .cool_down = 1,
                                     .moves_a_cycle = 6,
                                     .costs = {7, 100, 13, 11, 50},
                                     .seed = test_seed()};
    *state = w;
    return 0;
}

static int close_world(void **state)
{
    world *w = *state;
    cot_trace_close(&w->trace[0]);
    cot_trace_close(&w->trace[1]);
    free(w);
    return 0;
}

/* ---- steps ---- */

/* Each of so many sequences has a token a step, at home on rank i % P: the next of its text, or of another text the first. */
static void test_steps(void **state)
{
    const world *w = *state;
    cot_bench_drift_steps steps;
    cot_error error;
    assert_int_equal(cot_bench_drift_steps_make(&steps, &w->o, &error), COT_OK);
    assert_int_equal(steps.steps, 2 * STEPS);
    for (int64_t step = 0; step < steps.steps; step++) {
        const int half = step >= STEPS, width = half ? SECOND_WIDTH : WIDTH;
        const cot_trace *trace = &w->trace[half];
        int homes[P] = {0}, began = 0, went_on = 0;
        assert_int_equal(steps.begin[step + 1] - steps.begin[step], width);
        for (int64_t i = steps.begin[step]; i < steps.begin[step + 1]; i++) {
            const cot_bench_drift_token *t = &steps.token[i];
            assert_int_equal(t->half, half);
            assert_in_range(t->home, 0, P - 1);
            homes[t->home]++;
            int32_t s = 0;
            while (trace->sequence_offsets[s + 1] <= t->token) s++;
            assert_true(s < w->o.half[half].sequences);
            began += t->token == trace->sequence_offsets[s];
            for (int64_t j = step % STEPS ? steps.begin[step - 1] : steps.begin[step]; j < steps.begin[step];
                 j++)
                if (steps.token[j].token == t->token - 1 && steps.token[j].home == t->home &&
                    t->token > trace->sequence_offsets[s]) {
                    went_on++;
                    break;
                }
        }
        if (step % STEPS) assert_int_equal(began + went_on, width);
        for (int r = 0; r < P; r++) assert_int_equal(homes[r], width / P + (r < width % P));
    }
    cot_bench_drift_steps_free(&steps);
}

/* ---- judging ---- */

/* A step's time in a layer, from a table of who holds what. */
static double layer_ns(const world *w, const cot_bench_drift_steps *steps, int64_t step, int32_t l,
                       bool has[P][E], int64_t *sends, double *peak)
{
    int64_t calls[P][E] = {{0}}, number[P] = {0}, sent = 0, most = 0, all = 0;
    double busiest = 0;
    for (int64_t i = steps->begin[step]; i < steps->begin[step + 1]; i++) {
        const cot_bench_drift_token *t = &steps->token[i];
        bool reached[P] = {false};
        for (int32_t k = 0; k < K; k++) {
            const int32_t e = cot_trace_expert(&w->trace[t->half], l, t->token, k);
            int32_t list[P], n = 0;
            for (int32_t r = 0; r < P; r++)
                if (has[r][e]) list[n++] = r;
            const int32_t r = has[t->home][e] ? t->home : list[(t->home + number[t->home]) % n];
            calls[r][e]++;
            reached[r] = true;
        }
        number[t->home]++;
        for (int32_t r = 0; r < P; r++) sent += reached[r] && r != t->home;
    }
    for (int32_t r = 0; r < P; r++) {
        int64_t rows = 0, experts = 0;
        for (int32_t e = 0; e < E; e++) {
            rows += calls[r][e];
            experts += calls[r][e] > 0;
        }
        busiest = fmax(busiest, 100.0 * (double)experts + 13.0 * (double)rows);
        most = rows > most ? rows : most;
        all += rows;
    }
    *sends += sent;
    *peak += (double)most * P / (double)all / L;
    return 7 + busiest + 11.0 * (double)sent / P;
}

static void test_judge(void **state)
{
    const world *w = *state;
    cot_bench_drift_steps steps;
    cot_bench_drift_judge judge;
    cot_expert_map map;
    cot_expert_layout layout;
    cot_error error;
    bool has[L][P][E] = {{{false}}};
    assert_int_equal(cot_bench_drift_steps_make(&steps, &w->o, &error), COT_OK);
    assert_int_equal(cot_bench_drift_judge_open(&judge, &w->o, &steps, &error), COT_OK);
    assert_int_equal(cot_bench_drift_blocks(&map, &w->o, &error), COT_OK);
    for (int32_t l = 0; l < L; l++)
        for (int32_t r = 0; r < P; r++) {
            int32_t *slot = map.expert + (l * P + r) * map.slots_per_rank;
            slot[map.slots_per_rank - 1] = (E / P * (r + 1) + below(E / P)) % E; // another rank's, too
            for (int32_t i = 0; i < map.slots_per_rank; i++) has[l][r][slot[i]] = true;
        }
    assert_int_equal(cot_bench_drift_layout(&layout, &map, &error), COT_OK);
    for (int64_t step = 0; step < steps.steps; step++) {
        cot_bench_drift_interval got = {0};
        int64_t sends = 0;
        double ns = 0, peak = 0;
        for (int32_t l = 0; l < L; l++) ns += layer_ns(w, &steps, step, l, has[l], &sends, &peak);
        cot_bench_drift_judge_step(&got, &judge, step, &layout);
        assert_int_equal(got.sends, sends);
        assert_int_equal(got.tokens, steps.begin[step + 1] - steps.begin[step]);
        assert_true(fabs(got.ns - ns) <= 1e-9 * ns && fabs(got.peak - peak) <= 1e-9 * peak);
    }
    cot_expert_layout_free(&layout);
    cot_expert_map_free(&map);
    cot_bench_drift_judge_close(&judge);
    cot_bench_drift_steps_free(&steps);
}

/* ---- rows ---- */

static double ns_of(const cot_bench_drift_row *row, int64_t from, int64_t to)
{
    double ns = 0;
    for (int64_t i = from; i < to; i++) ns += row->interval[i].ns;
    return ns;
}

static int64_t copies_of(const cot_bench_drift_row *row, int64_t from, int64_t to)
{
    int64_t n = 0;
    for (int64_t i = from; i < to; i++) n += row->interval[i].copies;
    return n;
}

/* All rows see the same tokens and begin alike; those that do not move copy nothing, and those that do no more than they may. */
static void test_rows(void **state)
{
    const world *w = *state;
    cot_bench_drift d, again;
    cot_error error;
    const int64_t n = 2 * STEPS / INTERVAL;
    assert_int_equal(cot_bench_drift_run(&d, &w->o, &error), COT_OK);
    assert_int_equal(d.intervals, n);
    assert_int_equal(d.change, n / 2);
    for (int kind = 0; kind < COT_BENCH_DRIFT_ROWS; kind++) {
        const cot_bench_drift_row *row = &d.row[kind];
        const bool moves = kind >= COT_BENCH_DRIFT_EPLB, ours = kind >= COT_BENCH_DRIFT_LOAD;
        int64_t layers = 0;
        for (int64_t i = 0; i < n; i++) {
            assert_int_equal(row->interval[i].tokens, INTERVAL * (i < n / 2 ? WIDTH : SECOND_WIDTH));
            assert_true(row->interval[i].gap_ns == 50.0 * (double)row->interval[i].copies);
            assert_true(row->interval[i].peak >= 1 - 1e-9);
            if (ours) assert_true(row->interval[i].copies <= 2 * w->o.moves_a_cycle); // with those left
        }
        assert_int_equal(row->interval[0].copies, 0);
        if (!moves) assert_int_equal(copies_of(row, 0, n), 0);
        if (kind == COT_BENCH_DRIFT_EPLB || ours) assert_true(copies_of(row, 0, n) > 0);
        if (moves) assert_true(row->interval[0].ns == d.row[COT_BENCH_DRIFT_BLOCKS].interval[0].ns);
        for (int i = 0; row->reason[i].text; i++) layers += row->reason[i].layers;
        assert_int_equal(layers, ours ? L * (n - 1) : 0);
    }
    /* A placement for a half is at least as good there as the one for the other half. */
    const cot_bench_drift_row *first = &d.row[COT_BENCH_DRIFT_FIRST],
                              *second = &d.row[COT_BENCH_DRIFT_SECOND];
    assert_non_null(d.found_by[0]);
    assert_non_null(d.found_by[1]);
    assert_true(ns_of(first, 0, n / 2) < ns_of(second, 0, n / 2));
    assert_true(ns_of(second, n / 2, n) < ns_of(first, n / 2, n));
    assert_int_equal(d.anew.steps, n - 1);
    assert_true(d.anew.rows > 0 && d.anew.ns > 0 && d.anew.load_ns > 0);

    assert_int_equal(cot_bench_drift_run(&again, &w->o, &error), COT_OK);
    for (int kind = 0; kind < COT_BENCH_DRIFT_ROWS; kind++)
        assert_memory_equal(again.row[kind].interval, d.row[kind].interval,
                            (size_t)n * sizeof *d.row[kind].interval);
    cot_bench_drift_free(&again);
    cot_bench_drift_free(&d);
}

static void refuses(const cot_bench_drift_options *o, const char *why)
{
    cot_bench_drift d;
    cot_error error;
    assert_int_equal(cot_bench_drift_run(&d, o, &error), COT_INVALID_ARGUMENT);
    if (!strstr(error.message, why)) fail_msg("'%s' lacks '%s'", error.message, why);
    cot_bench_drift_free(&d);
}

static void test_refused(void **state)
{
    const world *w = *state;
    cot_bench_drift_options o = w->o;
    o.spare = P + 1;
    refuses(&o, "5 spare slots");
    o = w->o;
    o.steps = INTERVAL + 1;
    refuses(&o, "9 steps a half");
    o = w->o;
    o.interval = 0;
    refuses(&o, "an interval of 0");
    o = w->o;
    o.ranks = 65;
    refuses(&o, "65 ranks");
    o = w->o;
    const int32_t none[1] = {SEQUENCES};
    o.half[1].sequence = none;
    o.half[1].sequences = 1;
    refuses(&o, "no sequence 12 in the second half");
    o = w->o;
    o.half[0].width = 0;
    refuses(&o, "0 sequences at a time");
    o = w->o;
    o.costs.row_ns = NAN;
    refuses(&o, "a cost");
    o = w->o;
    o.moves_a_cycle = 0;
    refuses(&o, "0 moves a cycle");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_steps), cmocka_unit_test(test_judge),
                                       cmocka_unit_test(test_rows), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, open_world, close_world);
}
