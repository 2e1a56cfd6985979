/* What an engine tells of itself while it runs: which experts were called, and how its sequences stand. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/engine/steps.h"
#include "harness/memory.h"
#include "harness/seed.h"

#include <stdlib.h>
#include <string.h>

enum { COUNT = 5, PAGE = 64 };

/* Counts what on_routing told of every token. */
static void count_told(uint64_t *calls, const struct records *all)
{
    const cot_engine_info *info = all->info;
    for (size_t i = 0; i < all->count; i++)
        for (int64_t t = 0; t < all->record[i].capacity; t++)
            for (size_t j = 0; all->record[i].routing_told[t] && j < routed(info); j++)
                calls[(int64_t)(j / (size_t)info->top_k) * info->experts +
                      all->record[i].experts[(size_t)t * routed(info) + j]]++;
}

/* Each expert is counted as often as tokens were told to call it, whoever counts; a second look counts no more. */
static void calls_are_those_that_were_told(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (int way = 0; way < 12; way++) {
        struct setting s = {.folder = TINY,
                            .ranks = way % 3 == 0   ? 1
                                     : way % 3 == 1 ? 3
                                                    : 4,
                            .attention = way / 3 % 2 ? "dp" : "tp",
                            .op = way % 2 ? "fused" : "bulk",
                            .processes = way / 6,
                            .step_tokens = 24};
        cot_engine *engine = must_open(&s);
        const cot_engine_info *info = cot_engine_describe(engine);
        const size_t n = (size_t)(info->moe_layers * info->experts);
        uint64_t *told = must_allocate(n, sizeof *told);
        memset(told, 0, n * sizeof *told);
        cot_stats stats;
        assert_int_equal(cot_engine_stats(engine, &stats, NULL), COT_OK);
        assert_memory_equal(stats.calls, told, n * sizeof *told);
        cot_stats_clear(&stats);
        for (int round = 0; round < 2; round++) {
            cot_request requests[COUNT];
            int32_t *ids[COUNT];
            for (int i = 0; i < COUNT; i++) {
                const int64_t tokens = 2 + (int64_t)(draw(&seed) % 40);
                ids[i] = drawn_ids(tokens, info->vocab, &seed);
                requests[i] = forced_request(ids[i], tokens, 1 + (int64_t)(draw(&seed) % (uint64_t)tokens));
            }
            struct records all = must_run(engine, requests, COUNT);
            count_told(told, &all);
            for (int look = 0; look < 2; look++) {
                uint64_t sum = 0;
                assert_int_equal(cot_engine_stats(engine, &stats, NULL), COT_OK);
                assert_memory_equal(stats.calls, told, n * sizeof *told);
                for (size_t i = 0; i < n; i++) sum += stats.calls[i];
                assert_int_equal(sum, stats.activations);
                cot_stats_clear(&stats);
            }
            records_free(&all);
            for (int i = 0; i < COUNT; i++) free(ids[i]);
        }
        cot_expert_layout layout;
        uint64_t epoch = 1;
        assert_int_equal(cot_engine_layout(engine, &layout, &epoch, NULL), COT_OK);
        assert_int_equal(epoch, 0);
        assert_int_equal(layout.n_ranks, s.ranks);
        assert_int_equal(layout.n_layers, info->moe_layers);
        assert_int_equal(layout.n_experts, info->experts);
        cot_expert_layout_free(&layout);
        free(told);
        cot_engine_close(engine);
    }
}

/* Sequences step by step: what is known, fed and held, who shares, who waits. */
static void sequences_are_as_they_stand(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct setting s = {.folder = TINY,
                        .ranks = 2,
                        .attention = "dp",
                        .step_tokens = 200,
                        .sequences = 3,
                        .block_tokens = 16};
    cot_engine *engine = must_open(&s);
    const int64_t vocab = cot_engine_describe(engine)->vocab;
    cot_engine_sequence got[8];
    memset(got, 0x5a, sizeof got);
    assert_int_equal(cot_engine_sequences(engine, got, 8), 0);
    int32_t *ids = drawn_ids(150, vocab, &seed), *other = drawn_ids(30, vocab, &seed);
    cot_request requests[] = {generating_from(ids, 150, 100), generating_from(other, 30, 100),
                              generating_from(ids, 140, 100), generating_from(other, 20, 100)};
    for (int i = 0; i < 4; i++) requests[i].sampling.ignore_eos = true;
    uint64_t id[4];
    id[0] = must_submit(engine, &requests[0], 1, &(cot_events){0});
    assert_int_equal(cot_engine_sequences(engine, got, 8), 1);
    assert_true(got[0].waiting);
    assert_int_equal(got[0].fed, 0);
    assert_int_equal(got[0].pages, 0);
    must_step(engine);
    for (int i = 1; i < 4; i++) id[i] = must_submit(engine, &requests[i], i == 2, &(cot_events){0});
    must_step(engine);
    assert_int_equal(cot_engine_sequences(engine, got, 8), 4);
    static const int64_t prompt[] = {150, 30, 140, 20}, tokens[] = {152, 31, 141, 20},
                         fed[] = {151, 30, 140, 0}, pages[] = {3, 1, 3, 0}, shared[] = {2, 0, 2, 0};
    static const int home[] = {1, 0, 1, 0}, with[] = {2, -1, 0, -1};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(got[i].id, id[i]);
        assert_int_equal(got[i].home, home[i]);
        assert_int_equal(got[i].waiting, i == 3);
        assert_int_equal(got[i].prompt_tokens, prompt[i]);
        assert_int_equal(got[i].tokens, tokens[i]);
        assert_int_equal(got[i].fed, fed[i]);
        assert_int_equal(got[i].pages, pages[i]);
        assert_int_equal(got[i].shared_pages, shared[i]);
        assert_int_equal(got[i].shared_with, with[i] < 0 ? 0 : id[with[i]]);
    }
    memset(got, 0x5a, sizeof got); // room for some
    assert_int_equal(cot_engine_sequences(engine, got, 2), 4);
    assert_int_equal(got[1].id, id[1]);
    assert_int_equal(got[2].id, 0x5a5a5a5a5a5a5a5a);
    assert_int_equal(cot_engine_sequences(engine, NULL, 0), 4);
    assert_int_equal(cot_engine_cancel(engine, id[0], NULL), COT_OK);
    assert_int_equal(cot_engine_sequences(engine, got, 8), 3);
    assert_int_equal(got[1].id, id[2]);
    assert_int_equal(got[1].shared_pages, 0); // with nobody who runs
    must_finish(engine);
    assert_int_equal(cot_engine_sequences(engine, got, 8), 0);
    cot_engine_close(engine);
    free(ids);
    free(other);
}

/* A request that waits for another, which begins alike, is at home where that is, for the sake of its pages. */
static void who_begins_alike_is_near(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (int block = 0; block <= 16; block += 16) {
        struct setting s = {
            .folder = TINY, .ranks = 4, .attention = "dp", .sequences = 8, .block_tokens = block};
        cot_engine *engine = must_open(&s);
        int32_t *ids = drawn_ids(40, cot_engine_describe(engine)->vocab, &seed);
        cot_request r = generating_from(ids, 40, 3);
        r.after = must_submit(engine, &r, 2, &(cot_events){0});
        const int alike = block ? 2 : 0;
        assert_int_equal(cot_engine_choose_home(engine, &r), alike);
        r.prompt_tokens = 17; // one block, and a token to compute
        assert_int_equal(cot_engine_choose_home(engine, &r), alike);
        r.prompt_tokens = 16;
        assert_int_equal(cot_engine_choose_home(engine, &r), 0); // nothing to share: where least is to do
        r.prompt_tokens = 40;
        r.cache_salt = "salt", r.cache_salt_bytes = 4;
        assert_int_equal(cot_engine_choose_home(engine, &r), 0);
        r.cache_salt_bytes = 0;
        r.all_logits = true;
        assert_int_equal(cot_engine_choose_home(engine, &r), 0);
        r.all_logits = false;
        ids[15] ^= 1; // another first block
        assert_int_equal(cot_engine_choose_home(engine, &r), 0);
        ids[15] ^= 1, ids[16] ^= 1; // another second one
        assert_int_equal(cot_engine_choose_home(engine, &r), alike);
        r.after += 100; // nobody's number
        assert_int_equal(cot_engine_choose_home(engine, &r), 0);
        must_finish(engine);
        cot_engine_close(engine);
        free(ids);
    }
}

/* Experts that one text calls, in layer l, counted by hand. */
static uint64_t distinct_of(const struct record *r, const cot_engine_info *info, int64_t tokens)
{
    uint64_t distinct = 0;
    for (int64_t l = 0; l < info->moe_layers; l++)
        for (int64_t e = 0; e < info->experts; e++) {
            bool called = false;
            for (int64_t t = 0; t < tokens; t++)
                for (int64_t i = 0; i < info->top_k; i++)
                    called |= r->experts[(size_t)t * routed(info) + (size_t)(l * info->top_k + i)] == e;
            distinct += called;
        }
    return distinct;
}

/* A text that is fed in one step calls each expert once; token by token, each of its calls is one. */
static void distinct_experts_are_those_of_a_step(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (int way = 0; way < 8; way++) {
        const int64_t tokens = 2 + (int64_t)(draw(&seed) % 30), prefill = way & 1 ? 1 : tokens;
        struct setting s = {.folder = TINY,
                            .ranks = way & 2 ? 3 : 1,
                            .attention = "dp",
                            .op = way & 4 ? "fused" : "bulk",
                            .step_tokens = 32};
        cot_engine *engine = must_open(&s);
        const cot_engine_info *info = cot_engine_describe(engine);
        int32_t *ids = drawn_ids(tokens, info->vocab, &seed);
        const cot_request request = forced_request(ids, tokens, prefill);
        struct records all = must_run(engine, &request, 1);
        cot_stats stats;
        assert_int_equal(cot_engine_stats(engine, &stats, NULL), COT_OK);
        const uint64_t calls = (uint64_t)(tokens * (int64_t)routed(info));
        assert_int_equal(stats.routing[0].distinct_experts,
                         prefill == 1 ? calls : distinct_of(&all.record[0], info, tokens));
        assert_int_equal(stats.routing[0].activations, calls);
        assert_int_equal(stats.routing[0].tokens, tokens * info->moe_layers);
        assert_int_equal(stats.routing[0].local, stats.local_activations);
        for (int rank = 1; rank < s.ranks; rank++) assert_int_equal(stats.routing[rank].distinct_experts, 0);
        if (s.ranks == 1) assert_int_equal(stats.routing[0].sends, 0);
        cot_stats_clear(&stats);
        records_free(&all);
        free(ids);
        cot_engine_close(engine);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_are_those_that_were_told), cmocka_unit_test(sequences_are_as_they_stand),
        cmocka_unit_test(who_begins_alike_is_near), cmocka_unit_test(distinct_experts_are_those_of_a_step)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
