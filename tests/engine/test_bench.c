/* The benchmark's routings and what it counts about them, against brute force; a whole benchmark of tiny
 * layers. */
#include "harness/seed.h"

#include "coterie/bench_fabric.h"
#include "base/clock.h"
#include "engine/bench/bench.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

static const cot_bench_shape shapes[] = {{"a", 64, 32, 8, 2, COT_BENCH_SWIGLU},
                                         {"b", 70, 33, 7, 7, COT_BENCH_SWIGLU_CLAMPED},
                                         {"c", 128, 5, 100, 64, COT_BENCH_TWO_MATRIX},
                                         {"d", 3, 1, 1, 1, COT_BENCH_TWO_MATRIX}};
enum { SHAPES = sizeof shapes / sizeof *shapes, MOST_TOKENS = 700 };

static uint16_t *draw(const cot_bench_shape *s, int64_t tokens, int ranks, cot_bench_routing routing,
                      uint64_t seed)
{
    uint16_t *experts = calloc((size_t)(tokens * s->top_k), sizeof *experts);
    assert_int_equal(cot_bench_draw_routing(experts, s, tokens, ranks, routing, NULL, seed, NULL), COT_OK);
    return experts;
}

static void test_names(void **state)
{
    (void)state;
    static const cot_bench_shape want[] = {{"flashmoe", 2048, 2048, 32, 2, COT_BENCH_TWO_MATRIX},
                                           {"olmoe", 2048, 1024, 64, 8, COT_BENCH_SWIGLU},
                                           {"qwen3-30b", 2048, 768, 128, 8, COT_BENCH_SWIGLU},
                                           {"mixtral", 4096, 14336, 8, 2, COT_BENCH_SWIGLU},
                                           {"deepseek-v2-lite", 2048, 1408, 64, 6, COT_BENCH_SWIGLU},
                                           {"deepseek-v3", 7168, 2048, 8, 1, COT_BENCH_SWIGLU},
                                           {"gpt-oss", 2880, 2880, 32, 4, COT_BENCH_SWIGLU_CLAMPED}};
    size_t n = 0;
    for (; cot_bench_shapes[n].name; n++) {
        const cot_bench_shape *a = &cot_bench_shapes[n], *b = &want[n];
        assert_true(n < sizeof want / sizeof *want);
        assert_string_equal(a->name, b->name);
        assert_true(a->hidden == b->hidden && a->intermediate == b->intermediate &&
                    a->experts == b->experts && a->top_k == b->top_k && a->expert == b->expert);
        assert_int_equal(cot_bench_check(a, 1, COT_BENCH_HOT, NULL, NULL), COT_OK);
    }
    assert_int_equal(n, sizeof want / sizeof *want);
}

/* The largest that is allowed is; one more is refused. */
static void test_limits(void **state)
{
    (void)state;
    const struct {
        cot_bench_shape shape;
        int64_t tokens;
        const char *refused; // NULL: allowed
    } cases[] = {{{"", 1 << 20, 1 << 20, 1, 1, COT_BENCH_SWIGLU}, 1, NULL},
                 {{"", (1 << 20) + 1, 8, 1, 1, COT_BENCH_SWIGLU}, 1, "experts of 1048577 by 8"},
                 {{"", 8, (1 << 20) + 1, 1, 1, COT_BENCH_SWIGLU}, 1, "experts of 8 by 1048577"},
                 {{"", 8, 8, 8, 8, COT_BENCH_SWIGLU}, INT32_MAX / 8, NULL},
                 {{"", 8, 8, 8, 9, COT_BENCH_SWIGLU}, 1, "9 of 8 experts"},
                 {{"", 8, 8, 9, 8, COT_BENCH_SWIGLU}, 1, "9 experts and a hidden size of 8"},
                 {{"", 8, 8, 0, 1, COT_BENCH_SWIGLU}, 1, "0 experts"},
                 {{"", 8, 8, 8, 0, COT_BENCH_SWIGLU}, 1, "0 of 8 experts"},
                 {{"", 8, 8, 8, 8, COT_BENCH_SWIGLU}, INT32_MAX / 8 + 1, "268435456 tokens"},
                 {{"", 8, 8, 8, 8, COT_BENCH_SWIGLU}, 0, "0 tokens"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cot_error error = {0};
        const cot_status status =
            cot_bench_check(&cases[i].shape, cases[i].tokens, COT_BENCH_UNIFORM, NULL, &error);
        assert_int_equal(status, cases[i].refused ? COT_INVALID_ARGUMENT : COT_OK);
        if (cases[i].refused) assert_ptr_equal(strstr(error.message, cases[i].refused), error.message);
    }
}

static void test_routings(void **state)
{
    (void)state;
    const cot_bench_routing routings[] = {COT_BENCH_UNIFORM, COT_BENCH_ZIPF, COT_BENCH_HOT,
                                          COT_BENCH_BALANCED};
    for (int s = 0; s < SHAPES; s++)
        for (int how = 0; how < 4; how++) {
            const cot_bench_shape *shape = &shapes[s];
            int64_t k = shape->top_k;
            uint16_t *experts = draw(shape, MOST_TOKENS, 3, routings[how], test_seed()),
                     *same = draw(shape, MOST_TOKENS, 3, routings[how], test_seed()),
                     *other = draw(shape, MOST_TOKENS, 3, routings[how], test_seed() + 1);
            size_t bytes = (size_t)(MOST_TOKENS * k) * sizeof *experts;
            assert_memory_equal(experts, same, bytes);
            if (how < 2 && k < shape->experts) assert_memory_not_equal(experts, other, bytes);
            for (int64_t t = 0; t < MOST_TOKENS; t++)
                for (int64_t i = 0; i < k; i++) {
                    uint16_t e = experts[t * k + i];
                    assert_true(e < shape->experts);
                    if (i) assert_true(e > experts[t * k + i - 1]); // ascending, so all different
                    if (!i && routings[how] == COT_BENCH_HOT) assert_int_equal(e, 0);
                }
            free(experts), free(same), free(other);
        }
}

/* How often one of `experts` is the first of two drawn without repetition, or the second: by the law. */
static void test_zipf(void **state)
{
    (void)state;
    enum { E = 6, TOKENS = 60000 };
    const cot_bench_shape shape = {"z", 64, 1, E, 2, COT_BENCH_SWIGLU};
    double p[E], sum = 0, want[E], seen[E] = {0};
    for (int e = 0; e < E; e++) sum += p[e] = 1.0 / (e + 1);
    for (int e = 0; e < E; e++) {
        want[e] = p[e] / sum;
        for (int first = 0; first < E; first++)
            if (first != e) want[e] += p[first] / sum * p[e] / (sum - p[first]);
    }
    uint16_t *experts = draw(&shape, TOKENS, 1, COT_BENCH_ZIPF, test_seed());
    for (int i = 0; i < 2 * TOKENS; i++) seen[experts[i]]++;
    for (int e = 0; e < E; e++) // ten standard deviations
        assert_true(fabs(seen[e] / TOKENS - want[e]) < 10 * sqrt(want[e] / TOKENS));
    free(experts);
}

static void test_counts(void **state)
{
    (void)state;
    static int64_t blocks[8][100];
    for (int s = 0; s < SHAPES; s++)
        for (int ranks = 1; ranks <= 8; ranks += 3)
            for (int64_t tokens = 1; tokens <= MOST_TOKENS; tokens = tokens * 5 + 2) {
                const cot_bench_shape *shape = &shapes[s];
                int64_t k = shape->top_k, e_n = shape->experts, longest = 0, touched = 0;
                int32_t rank[100];
                for (int64_t e = 0; e < e_n; e++) rank[e] = (int32_t)(e * 5 % ranks);
                uint16_t *experts =
                    draw(shape, tokens, ranks, COT_BENCH_ZIPF, test_seed() + (uint64_t)tokens);
                memset(blocks, 0, sizeof blocks);
                for (int64_t i = 0; i < tokens * k; i++) {
                    int home = 0;
                    while (cot_share_begin(tokens, home + 1, ranks) <= i / k) home++;
                    int64_t n = ++blocks[home][experts[i]];
                    longest = n > longest ? n : longest;
                }
                int64_t capacity = (int64_t)ceil((double)((tokens + ranks - 1) / ranks * k) / (double)e_n);
                int64_t dropped = 0, padded = 0, padded_to_capacity = 0;
                for (int64_t e = 0; e < e_n; e++) {
                    int64_t rows = 0;
                    for (int r = 0; r < ranks; r++) {
                        rows += blocks[r][e];
                        dropped += blocks[r][e] > capacity ? blocks[r][e] - capacity : 0;
                        if (rank[e] == r) continue;
                        padded += longest - blocks[r][e];
                        padded_to_capacity += blocks[r][e] < capacity ? capacity - blocks[r][e] : 0;
                    }
                    touched += rows > 0;
                }
                cot_bench_load load = {0};
                assert_int_equal(cot_bench_count(&load, experts, shape, tokens, ranks, rank, 10, NULL),
                                 COT_OK);
                assert_int_equal(load.rows, tokens * k);
                assert_int_equal(load.touched, touched);
                assert_int_equal(load.capacity, capacity);
                assert_int_equal(load.capacity_dropped, dropped);
                assert_int_equal(load.padding_bytes, 10 * padded);
                assert_int_equal(load.capacity_bytes, 10 * padded_to_capacity);
                free(experts);
            }
}

/* Dealt out evenly, capacity_tokens fill every block to the capacity of the tokens they stand for. */
static void test_capacity(void **state)
{
    (void)state;
    for (int s = 0; s < SHAPES; s++)
        for (int ranks = 1; ranks <= 8; ranks++)
            for (int64_t tokens = 1; tokens <= 60; tokens++) {
                const cot_bench_shape *shape = &shapes[s];
                int32_t rank[100] = {0};
                cot_bench_load load = {0}, full = {0};
                uint16_t *experts = draw(shape, tokens, ranks, COT_BENCH_UNIFORM, test_seed());
                assert_int_equal(cot_bench_count(&load, experts, shape, tokens, ranks, rank, 1, NULL),
                                 COT_OK);
                int64_t all = cot_bench_capacity_tokens(shape, tokens, ranks);
                uint16_t *dealt = draw(shape, all, ranks, COT_BENCH_BALANCED, 0);
                assert_int_equal(cot_bench_count(&full, dealt, shape, all, ranks, rank, 1, NULL), COT_OK);
                assert_true(full.rows >= load.capacity * shape->experts * ranks);
                assert_true(full.rows < (load.capacity * shape->experts + shape->top_k) * ranks);
                assert_int_equal(full.touched, shape->experts);
                if (load.capacity * shape->experts % shape->top_k == 0) {
                    assert_int_equal(full.capacity, load.capacity);
                    assert_int_equal(
                        full.capacity_bytes + full.padding_bytes + (uint64_t)full.capacity_dropped, 0);
                }
                free(experts), free(dealt);
            }
}

struct told {
    int done, total, events[2][COT_BENCH_MOST_OPS];
};

static void on_progress(void *context, int done, int total)
{
    struct told *told = context;
    assert_int_equal(done, told->done + 1);
    told->done = done;
    told->total = total;
}

static void on_event(void *context, size_t op, bool linked, const cot_bench_event *event)
{
    struct told *told = context;
    told->events[linked][op]++;
    assert_true(event->begin_ns >= 0 && event->end_ns >= event->begin_ns && event->rank < 5);
    assert_true(event->end_ns > 0); // it happened: places of a list that are not used hold zeros
    assert_true(event->thread >= 0);
}

/* Every operator, every kind of expert and routing, more ranks than threads and fewer. */
static void test_runs(void **state)
{
    (void)state;
    const int ranks[] = {1, 2, 5}, threads[] = {2, 2, 3};
    const int64_t tokens[] = {1, 30, 64};
    const char *const *ops = cot_moe_operator_names();
    int n_ops = 0;
    while (ops[n_ops]) n_ops++;
    for (int s = 0; s < SHAPES; s++)
        for (int i = 0; i < 3; i++) {
            const cot_bench_moe_options options = {.size = sizeof options,
                                                   .shape = shapes[s],
                                                   .ranks = ranks[i],
                                                   .threads = threads[i],
                                                   .precision = s % 2 ? "fp32" : "bf16",
                                                   .combine = i ? "reduced" : "exact",
                                                   .a2a = i == 2 ? "one-shot" : NULL,
                                                   .dedup = i == 2 ? "on" : NULL,
                                                   .fabric = s % 2 ? "processes" : NULL,
                                                   .ops = ops,
                                                   .tokens = tokens,
                                                   .n_tokens = 3,
                                                   .seed = test_seed()};
            cot_bench_moe *bench;
            cot_error error;
            if (cot_bench_moe_open(&bench, &options, &error) != COT_OK) fail_msg("%s", error.message);
            for (int how = COT_BENCH_UNIFORM; how <= COT_BENCH_BALANCED; how++) {
                struct told told = {0};
                cot_bench_case c = {.size = sizeof c,
                                    .tokens = tokens[how % 3],
                                    .routing = (cot_bench_routing)how,
                                    .repeats = 6,
                                    .budget_ns = how == COT_BENCH_HOT, // hardly any: the least
                                    .roof = {1e9, 1e9, 1e9, 1},
                                    .link_latency_ns = how == COT_BENCH_ZIPF ? 1000 : 0,
                                    .context = &told,
                                    .progress = on_progress,
                                    .on_event = on_event};
                cot_bench_load load;
                cot_bench_result results[COT_BENCH_MOST_OPS];
                int repeats;
                if (cot_bench_moe_run(bench, &load, results, &repeats, &c, &error) != COT_OK)
                    fail_msg("%s", error.message);
                const bool linked = c.link_latency_ns > 0;
                assert_int_equal(repeats, c.budget_ns ? COT_BENCH_LEAST_REPEATS : 6);
                assert_int_equal(told.done, repeats * n_ops * (linked ? 2 : 1));
                assert_int_equal(told.total, told.done);
                for (int op = 0; op < n_ops; op++) {
                    const cot_bench_result *r = &results[op];
                    assert_true(r->median_ns > 0 && r->p95_ns >= r->median_ns);
                    assert_true(linked == (r->linked_median_ns > 0));
                    assert_true(told.events[0][op] > 0 && linked == (told.events[1][op] > 0));
                    assert_true(r->idle_share >= 0 && r->idle_share < 1);
                    if (ranks[i] == 1) assert_int_equal(r->bytes, 0);
                    assert_true(r->straggler_p95_ns >= r->straggler_median_ns);
                    const bool bulk = !strcmp(ops[op], "bulk"), own = bulk && i < 2;
                    if (ranks[i] > 1 && own) assert_true(r->bytes > 0); // counts at least
                    assert_string_equal(r->combine, i == 2 || (i && !bulk) ? "reduced" : "exact");
                    assert_string_equal(r->a2a, own ? "two-phase" : "one-shot");
                    assert_string_equal(r->dedup, own ? "off" : "on");
                }
            }
            cot_bench_case bad = {.size = sizeof bad, .tokens = 31, .repeats = 5, .roof = {1, 1, 1, 1}};
            cot_bench_load load;
            cot_bench_result results[COT_BENCH_MOST_OPS];
            int repeats;
            assert_int_equal(cot_bench_moe_run(bench, &load, results, &repeats, &bad, &error),
                             COT_INVALID_ARGUMENT);
            assert_non_null(strstr(error.message, "31 tokens"));
            bad.tokens = 30;
            bad.link_bytes_per_s = s % 2 ? -1 : (double)NAN;
            assert_int_equal(cot_bench_moe_run(bench, &load, results, &repeats, &bad, &error),
                             COT_INVALID_ARGUMENT);
            assert_non_null(strstr(error.message, "a link of"));
            cot_bench_moe_close(bench);
        }
}

/* ---- links ---- */

/* Steps take no less than their bytes do, and a rate is never above the link's. */
static void test_link(void **state)
{
    (void)state;
    enum { TURNS = 5, STEPS = 3 }; // at least
    for (int ranks = 2; ranks <= 5; ranks += 3) {
        cot_bench_link_options o = {.size = sizeof o,
                                    .ranks = ranks,
                                    .threads = 2,
                                    .bytes_per_s = 1e7,
                                    .latency_ns = 100000,
                                    .bytes = 30000,
                                    .budget_ns = 1};
        double rate = -1;
        const int64_t begin_ns = cot_now_ns();
        assert_int_equal(cot_bench_link(&rate, &o, NULL), COT_OK);
        const double took_ns = (double)(cot_now_ns() - begin_ns),
                     wire_ns = (double)(ranks - 1) * (double)o.bytes * 1e9 / o.bytes_per_s;
        assert_true(took_ns >= TURNS * STEPS * (wire_ns + 2 * (double)o.latency_ns));
        assert_true(rate > 0 && rate <= o.bytes_per_s);
    }
}

static void test_link_refusals(void **state)
{
    (void)state;
    static const cot_bench_link_options good = {
        .size = sizeof good, .ranks = 2, .threads = 1, .bytes_per_s = 1e9, .bytes = 9, .budget_ns = 1};
    enum { CASES = 11 };
    cot_bench_link_options o[CASES];
    for (int i = 0; i < CASES; i++) o[i] = good;
    o[1].size--;
    o[2].ranks = 1;
    o[3].ranks = 65;
    o[4].threads = 0;
    o[5].bytes_per_s = 0;
    o[6].bytes_per_s = NAN;
    o[7].latency_ns = -1;
    o[8].bytes = 8;
    o[9].bytes = COT_BENCH_LINK_MOST_BYTES + 1;
    o[10].budget_ns = 0;
    for (int i = 0; i < CASES; i++) {
        double rate = -1;
        assert_int_equal(cot_bench_link(&rate, &o[i], NULL), i ? COT_INVALID_ARGUMENT : COT_OK);
        assert_true(i ? rate == -1 : rate > 0);
    }
}

static pid_t first_process; // that draws slowly while a rank in another dies; 0: all is drawn as it is
static int slowly_drawn;

cot_status __real_cot_bench_draw_expert(uint8_t *slot, const cot_moe_weights *weights,
                                        const cot_ffn_shape *shape, uint64_t seed, int64_t e,
                                        cot_error *error);
cot_status __wrap_cot_bench_draw_expert(uint8_t *slot, const cot_moe_weights *weights,
                                        const cot_ffn_shape *shape, uint64_t seed, int64_t e,
                                        cot_error *error);
cot_status __wrap_cot_bench_draw_expert(uint8_t *slot, const cot_moe_weights *weights,
                                        const cot_ffn_shape *shape, uint64_t seed, int64_t e,
                                        cot_error *error)
{
    if (first_process && getpid() != first_process) raise(SIGKILL);
    if (first_process) {
        slowly_drawn++;
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
    return __real_cot_bench_draw_expert(slot, weights, shape, seed, e, error);
}

/* A rank that dies is noticed while another draws its weights, not when it has drawn them all. */
static void test_death_in_draw(void **state)
{
    (void)state;
    const cot_bench_moe_options options = {
        .size = sizeof options,
        .shape = {"long", 256, 4, 256, 2, COT_BENCH_SWIGLU},
        .ranks = 2,
        .threads = 1,
        .precision = "fp32",
        .combine = "exact",
        .fabric = "processes",
        .timeout_ns = 1000000000,
        .ops = (const char *const[]){"fused", NULL},
        .tokens = &(int64_t){4},
        .n_tokens = 1,
    };
    cot_bench_moe *bench;
    cot_error error;
    first_process = getpid();
    assert_int_equal(cot_bench_moe_open(&bench, &options, &error), COT_PEER_FAILED);
    first_process = 0;
    assert_string_equal(error.message, "rank 1 was killed by signal 9");
    if (slowly_drawn < 1 || slowly_drawn >= 128) fail_msg("%d of 128 experts were drawn", slowly_drawn);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),         cmocka_unit_test(test_limits),
        cmocka_unit_test(test_routings),      cmocka_unit_test(test_zipf),
        cmocka_unit_test(test_counts),        cmocka_unit_test(test_capacity),
        cmocka_unit_test(test_runs),          cmocka_unit_test(test_link),
        cmocka_unit_test(test_link_refusals), cmocka_unit_test(test_death_in_draw),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
