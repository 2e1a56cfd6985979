/* `coterie bench pipeline` over links: each is asked for the rate that it lets pass, and what a cell should take goes by that rate. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cli/bench/bench_pipeline.h"

#include <math.h>
#include <string.h>

enum { RANKS = 4, THREADS = 3, LINKS = 2 };
static const double slower = 2.5; // than its shape is a link found to be

static cot_bench_link_options asked[LINKS + 1];
static size_t n_asked;

cot_status __wrap_cot_bench_link(double *bytes_per_s, const cot_bench_link_options *o, cot_error *error);
cot_status __wrap_cot_bench_link(double *bytes_per_s, const cot_bench_link_options *o, cot_error *error)
{
    (void)error;
    assert_true(n_asked < LINKS);
    asked[n_asked++] = *o;
    *bytes_per_s = o->bytes_per_s / slower;
    return COT_OK;
}

const cot_engine_info *__wrap_cot_engine_describe(const cot_engine *engine);
const cot_engine_info *__wrap_cot_engine_describe(const cot_engine *engine)
{
    static const cot_engine_info info = {
        .ranks = RANKS, .threads = THREADS, .op = "bulk", .a2a = "one-shot", .dedup = "on"};
    (void)engine;
    return &info;
}

/* Is asked for by what is not called here. */
int64_t cli_pipeline_most_tokens(const struct cli_pipeline_work *work)
{
    return work->tokens[0];
}

static const struct cli_list_item texts[LINKS] = {{"plain", NULL}, {"grouped", NULL}};
static const struct cli_pipeline_settings settings = {
    .engine = {.options = {.group = {.timeout_ns = 7000000000}}},
    .links = {(struct cli_list_item *)(uintptr_t)texts, LINKS}};
static const cot_engine_link links[LINKS] = {{.bytes_per_s = 4e8, .latency_ns = 300},
                                             {.bytes_per_s = 2e9,
                                              .latency_ns = 100,
                                              .groups = 2,
                                              .uplink_bytes_per_s = 1e8,
                                              .uplink_latency_ns = 2000}};

static struct cli_pipeline_work work_of(struct cli_pipeline_way *way)
{
    struct cli_pipeline_work w = {.s = &settings, .n_links = LINKS, .ways = way, .n_ways = 1};
    memcpy(w.links, links, sizeof links);
    return w;
}

static void rates_are_asked_for(void **state)
{
    (void)state;
    static const struct {
        uint64_t busiest, rounds;
        int64_t bytes; // of a message: the mean, but not of what is too short or too long to be timed
    } cases[] = {{3000000, 10, 100000}, {3000, 10, 1 << 16}, {1000000000, 10, 1 << 20}, {5, 0, 1 << 16}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct cli_pipeline_way way = {.ranks = RANKS};
        const struct cli_pipeline_work w = work_of(&way);
        const cli_pipeline_account account = {.busiest_bytes = cases[i].busiest, .rounds = cases[i].rounds};
        double rates[LINKS + 1] = {0};
        n_asked = 0;
        assert_true(cli_pipeline_measure_links(&w, &way, &account, rates));
        assert_int_equal(n_asked, LINKS);
        for (int l = 0; l < LINKS; l++) {
            assert_true(rates[l + 1] == links[l].bytes_per_s / slower);
            assert_true(asked[l].bytes_per_s == links[l].bytes_per_s);
            assert_int_equal(asked[l].latency_ns, links[l].latency_ns);
            assert_int_equal(asked[l].bytes, cases[i].bytes);
            assert_int_equal(asked[l].ranks, RANKS);
            assert_int_equal(asked[l].threads, THREADS);
            assert_int_equal(asked[l].timeout_ns, 7000000000);
        }
        way.ranks = 1; // sends nothing
        assert_true(cli_pipeline_measure_links(&w, &way, &account, rates));
        assert_int_equal(n_asked, LINKS);
        assert_true(rates[1] == links[0].bytes_per_s);
    }
}

/* The median without a link, what the bytes take at the rate that was found, and a hop a round; of a decode a step's. */
static void cells_go_by_their_rates(void **state)
{
    (void)state;
    static struct cli_pipeline_samples samples[LINKS + 1];
    const double unlinked_ns = 5e6, rates[LINKS + 1] = {0, 4e8 / slower, 2e9 / slower};
    const cli_pipeline_account account = {.steps = 8, .rounds = 32, .wire_ns = {6e6, 9e6}};
    for (int decode = 0; decode < 2; decode++) {
        struct cli_pipeline_way way = {.ranks = RANKS};
        struct cli_pipeline_work w = work_of(&way);
        w.json = json_array();
        for (int l = 0; l <= LINKS; l++)
            samples[l] = (struct cli_pipeline_samples){.ns = {unlinked_ns + 1e6 * l}, .count = 1};
        cli_pipeline_tell(&w, samples, &account, rates, decode ? "decode" : "prefill", 64);
        assert_int_equal(json_array_size(w.json), LINKS + 1);
        assert_true(json_is_null(json_object_get(json_array_get(w.json, 0), "model_ns")));
        for (int l = 0; l < LINKS; l++) {
            const json_t *cell = json_array_get(w.json, (size_t)l + 1);
            const double hop_ns = (double)(links[l].latency_ns + links[l].uplink_latency_ns),
                         linked_ns = account.wire_ns[l] * slower + (double)account.rounds * hop_ns,
                         wanted = unlinked_ns + linked_ns / (decode ? (double)account.steps : 1);
            assert_true(json_real_value(json_object_get(cell, "link_bytes_per_s")) == rates[l + 1]);
            assert_true(fabs(json_real_value(json_object_get(cell, "model_ns")) - wanted) < 1);
        }
        json_decref(w.json);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rates_are_asked_for),
                                       cmocka_unit_test(cells_go_by_their_rates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
