/* Batches of a trace that is replayed: what is counted, by a plain count; that nothing is known beforehand; what is refused. */
#include "harness/cmocka.h"
#include "harness/engine/requests.h"
#include "harness/seed.h"

#include "coterie/bench_schedule.h"
#include "engine/bench/batching.h"

#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, EXPERTS = 24, TOP_K = 3, VOCAB = 50, CELLS = LAYERS * EXPERTS };

/* Texts of `domains` domains, whose tokens call the domain's own experts `loyal` times of ten. */
static cot_trace drawn_trace(int texts, int tokens, int domains, unsigned loyal, uint64_t *seed)
{
    cot_trace_builder *builder;
    cot_trace trace;
    assert_int_equal(cot_trace_builder_open(&builder, "m", LAYERS, NULL, EXPERTS, TOP_K, NULL), COT_OK);
    for (int s = 0; s < texts; s++)
        for (int t = 0; t < tokens; t++) {
            uint16_t experts[LAYERS * TOP_K];
            for (int i = 0; i < LAYERS * TOP_K; i++) {
                const int first = i / TOP_K * TOP_K, own = EXPERTS / domains;
                for (bool again = true; again;) {
                    const bool at_home = draw(seed) % 10 < loyal;
                    experts[i] = (uint16_t)(at_home ? s % domains * own + (int)(draw(seed) % (unsigned)own)
                                                    : (int)(draw(seed) % EXPERTS));
                    again = false;
                    for (int b = first; b < i; b++) again |= experts[b] == experts[i];
                }
            }
            assert_int_equal(
                cot_trace_builder_append(builder, s, (int32_t)(draw(seed) % VOCAB), experts, NULL, NULL),
                COT_OK);
        }
    assert_int_equal(cot_trace_builder_finish(&trace, builder, NULL), COT_OK);
    cot_trace_builder_close(builder);
    return trace;
}

static cot_bench_schedule_options options_of(int64_t running, int64_t batch, uint64_t seed)
{
    return (cot_bench_schedule_options){.size = sizeof(cot_bench_schedule_options),
                                        .running = running,
                                        .batch = batch,
                                        .max_wait_steps = 4,
                                        .ranks = 3,
                                        .steps = 120,
                                        .seeds = 2,
                                        .seed = seed,
                                        .training = 0.25};
}

static void must_bench(cot_bench_schedule_row rows[COT_BENCH_BATCHINGS], const cot_trace *trace,
                       const cot_bench_schedule_options *o)
{
    cot_error error;
    int64_t replayed;
    if (cot_bench_schedule(rows, &replayed, trace, o, &error) != COT_OK) fail_msg("%s", error.message);
    assert_in_range(replayed, o->running, trace->n_sequences);
}

/* The same twice; with all of them in every step, all ways alike and as many as all call; never more than all, nor fewer than a
 * token's; the busiest rank has its part at least. */
static void counts_agree(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (int round = 0; round < 4; round++) {
        cot_trace trace = drawn_trace(40, 30, 3, 6, &seed);
        cot_bench_schedule_row rows[COT_BENCH_BATCHINGS], again[COT_BENCH_BATCHINGS];
        const int64_t running = 2 + (int64_t)(draw(&seed) % 12),
                      batch = round ? 1 + (int64_t)(draw(&seed) % (uint64_t)running) : running;
        const cot_bench_schedule_options o = options_of(running, batch, seed);
        must_bench(rows, &trace, &o);
        must_bench(again, &trace, &o);
        assert_memory_equal(rows, again, sizeof rows);
        for (int way = 0; way < COT_BENCH_BATCHINGS; way++) {
            const cot_bench_schedule_row *r = &rows[way];
            assert_true(r->experts >= TOP_K && r->experts <= r->all && r->all <= EXPERTS);
            assert_true(r->busiest * o.ranks >= r->experts && r->busiest <= (double)EXPERTS / o.ranks);
            assert_true(r->least <= r->experts && r->experts <= r->most);
            if (batch == running) assert_true(r->experts == r->all && r->most_waited_steps == 0);
            if (batch == running && way < COT_BENCH_BATCH_ADMISSION) assert_true(r->all == rows[0].all);
        }
        const int64_t bound = o.max_wait_steps + (running + batch - 1) / batch - 1;
        assert_true(rows[COT_BENCH_BATCH_FCFS].most_waited_steps == (running + batch - 1) / batch - 1);
        assert_true(rows[COT_BENCH_BATCH_CHOSEN].most_waited_steps <= bound);
        assert_true(rows[COT_BENCH_BATCH_ORACLE].most_waited_steps <= bound);
        assert_true(rows[COT_BENCH_BATCH_ADMISSION].most_overtaken <= 16);
        cot_trace_close(&trace);
    }
}

/* Where texts are of domains, who knows experts calls fewer; where all experts are alike, nothing is foretold. */
static void domains_are_what_is_gained_by(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    cot_bench_schedule_row rows[COT_BENCH_BATCHINGS];
    cot_bench_schedule_options o = options_of(24, 6, seed);
    o.steps = 400;
    cot_trace domains = drawn_trace(80, 60, 3, 9, &seed), even = drawn_trace(80, 60, 1, 0, &seed);
    must_bench(rows, &domains, &o);
    const double fcfs = rows[COT_BENCH_BATCH_FCFS].experts;
    assert_true(rows[COT_BENCH_BATCH_CHOSEN].experts < 0.85 * fcfs);
    assert_true(rows[COT_BENCH_BATCH_ADMISSION].experts < 0.95 * fcfs);
    must_bench(rows, &even, &o);
    const double chance = rows[COT_BENCH_BATCH_CHOSEN].experts / rows[COT_BENCH_BATCH_FCFS].experts;
    assert_true(chance > 0.98 && chance < 1.02); // 1,600 means of 24 experts, which differ by one or two
    cot_trace_close(&domains);
    cot_trace_close(&even);
}

/* What comes later in the text, and what the next token calls, is another; what is expected of the next token is the same. */
static void nothing_is_known_beforehand(void **state)
{
    (void)state;
    enum { TEXTS = 12, TOKENS = 40 };
    uint64_t seed = test_seed(), same = seed;
    cot_trace trace = drawn_trace(TEXTS, TOKENS, 3, 5, &seed),
              other = drawn_trace(TEXTS, TOKENS, 3, 5, &same);
    uint8_t chosen[TEXTS] = {1, 1, 1, 1};
    uint8_t *const experts = (uint8_t *)(uintptr_t)other.experts_u8;
    int32_t *const ids = (int32_t *)(uintptr_t)other.token_ids;
    for (int round = 0; round < 40; round++) {
        const int64_t s = 4 + (int64_t)(draw(&seed) % (TEXTS - 4)), start = (int64_t)(draw(&seed) % TOKENS),
                      more = (int64_t)(draw(&seed) % (uint64_t)(TOKENS - start));
        float history[2][CELLS];
        uint8_t share[2][CELLS], known[2][CELLS];
        memcpy(experts, trace.experts_u8, (size_t)(LAYERS * TEXTS * TOKENS * TOP_K));
        memcpy(ids, trace.token_ids, TEXTS * TOKENS * sizeof *ids);
        for (int64_t t = s * TOKENS + start + more; t < (s + 1) * TOKENS; t++) {
            if (t > s * TOKENS + start + more) ids[t] = (ids[t] + 7) % VOCAB;
            for (int l = 0; l < LAYERS; l++)
                for (int k = 0; k < TOP_K; k++) {
                    uint8_t *e = &experts[((int64_t)l * TEXTS * TOKENS + t) * TOP_K + k];
                    *e = (uint8_t)((*e + EXPERTS / 2) % EXPERTS);
                }
        }
        for (int way = 0; way < 2; way++) {
            cot_bench_foresight f;
            assert_int_equal(cot_bench_foresight_open(&f, way ? &other : &trace, chosen, NULL), COT_OK);
            f.slowest = 0.1f;
            cot_bench_generation g = {.history = history[way], .share = share[way]};
            cot_bench_generation_begin(&g, &f, s, start);
            for (int64_t t = 0; t < more; t++) assert_true(cot_bench_generation_go_on(&g, &f));
            cot_bench_generation_expect(&g, &f, true);
            g.share = known[way];
            cot_bench_generation_know(&g, &f);
            int64_t calls = 0;
            for (int c = 0; c < CELLS; c++) calls += known[way][c] == 255;
            assert_int_equal(calls, LAYERS * TOP_K);
            cot_bench_foresight_close(&f);
        }
        assert_memory_equal(share[0], share[1], sizeof share[0]);
        assert_memory_not_equal(known[0], known[1], sizeof known[0]);
    }
    cot_trace_close(&trace);
    cot_trace_close(&other);
}

static void refused(const cot_trace *trace, const cot_bench_schedule_options *o, const char *what)
{
    cot_bench_schedule_row rows[COT_BENCH_BATCHINGS];
    cot_error error = {0};
    assert_int_equal(cot_bench_schedule(rows, NULL, trace, o, &error), COT_INVALID_ARGUMENT);
    if (!strstr(error.message, what)) fail_msg("'%s' does not say '%s'", error.message, what);
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    cot_trace trace = drawn_trace(8, 5, 1, 0, &seed), counts;
    const cot_bench_schedule_options good = options_of(4, 2, 1);
    cot_bench_schedule_options o = good;
    o.batch = 5;
    refused(&trace, &o, "a batch of 5 is not 1 to 4");
    o = good, o.running = 0;
    refused(&trace, &o, "0 running sequences");
    o = good, o.running = 7;
    refused(&trace, &o, "7 sequences cannot run at once: the trace has 6");
    o = good, o.max_wait_steps = 0;
    refused(&trace, &o, "a wait of 0 steps is less than 1");
    o = good, o.ranks = EXPERTS + 1;
    refused(&trace, &o, "25 ranks are not 1 to 24");
    o = good, o.steps = 0;
    refused(&trace, &o, "0 steps");
    o = good, o.training = 1;
    refused(&trace, &o, "a share of 1");
    assert_int_equal(cot_trace_count(&counts, &trace, NULL), COT_OK);
    refused(&counts, &good, "counts of tokens");
    cot_trace_close(&counts);
    cot_trace_close(&trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_agree), cmocka_unit_test(domains_are_what_is_gained_by),
        cmocka_unit_test(nothing_is_known_beforehand), cmocka_unit_test(what_cannot_be_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
