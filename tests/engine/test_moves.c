/* Experts that are asked to move while requests run: copied, dropped, exchanged, dealt out anew, one after the other. Texts, logits and routing
 * are those of an engine whose experts stay, to the bit, in every format of weights; what is counted is what was moved. As a rank of
 * oshrun's (`rank` on the command line), the same over OpenSHMEM. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/moving.h"
#include "harness/engine/placements.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/engine/steps.h"
#include "harness/fabric/oshrun.h"
#include "harness/memory.h"
#include "harness/seed.h"

#include "engine/engine_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, REQUESTS = 5 };
enum kind { REPLICATE, DROP, SWAP, REBALANCE, KINDS };

static int32_t below(uint64_t *seed, int64_t n)
{
    return (int32_t)(draw(seed) % (uint64_t)n);
}

/* ---- placements ---- */

static int32_t replicas_of(const cot_expert_map *map, int32_t layer, int32_t expert)
{
    int32_t n = 0;
    for (int32_t r = 0; r < map->n_ranks; r++) n += rank_has(map, layer, r, expert);
    return n;
}

/* The placement changes in one of the ways; false: not in this one. */
static bool change(const cot_expert_map *map, enum kind kind, uint64_t *seed)
{
    const int32_t layer = below(seed, map->n_layers), places = map->n_ranks * map->slots_per_rank;
    if (kind == REBALANCE) { // experts of a layer, or of all, anywhere
        for (int32_t l = 0; l < map->n_layers; l++) {
            if (l != layer && draw(seed) % 2) continue;
            for (int32_t p = 0; p < places; p++) *slot_of(map, l, p) = -1;
            for (int32_t e = 0; e < map->n_experts; e++)
                while (!put(map, l, below(seed, map->n_ranks), e)) continue;
            for (int32_t e = 0; e < map->n_experts; e += 1 + below(seed, 8))
                put(map, l, below(seed, map->n_ranks), e);
        }
        return true;
    }
    int32_t *a = slot_of(map, layer, below(seed, places)), *b = slot_of(map, layer, below(seed, places));
    if (*a < 0) return false;
    if (kind == REPLICATE) return put(map, layer, below(seed, map->n_ranks), *a);
    if (kind == DROP) {
        if (replicas_of(map, layer, *a) < 2) return false;
        *a = -1;
        return true;
    }
    const int32_t ra = (int32_t)(a - slot_of(map, layer, 0)) / map->slots_per_rank,
                  rb = (int32_t)(b - slot_of(map, layer, 0)) / map->slots_per_rank, x = *a, y = *b;
    if (y < 0 || ra == rb || rank_has(map, layer, ra, y) || rank_has(map, layer, rb, x)) return false;
    *a = y;
    *b = x;
    return true;
}

/* ---- under load ---- */

static void assert_same(const struct records *a, const struct records *b)
{
    const size_t vocab = (size_t)a->info->vocab, each = routed(a->info);
    for (size_t i = 0; i < REQUESTS; i++) {
        const struct record *x = &a->record[i], *y = &b->record[i];
        const size_t n = (size_t)x->capacity;
        assert_int_equal(x->finish, y->finish);
        assert_int_equal(x->sampled_tokens, y->sampled_tokens);
        assert_memory_equal(x->sampled, y->sampled, (size_t)x->sampled_tokens * sizeof *x->sampled);
        assert_memory_equal(x->logits, y->logits, n * vocab * sizeof *x->logits);
        assert_memory_equal(x->experts, y->experts, n * each * sizeof *x->experts);
        assert_memory_equal(x->weights, y->weights, n * each * sizeof *x->weights);
    }
}

/* The next placement is asked for as soon as the last is reached, until there were so many of each kind. */
static void move_on(cot_engine *engine, cot_expert_map *to, int64_t left[KINDS], uint64_t *seed)
{
    const cot_engine_moves moves = moves_of(engine);
    if (moves.id && !moves.over) return;
    if (moves.id) {
        assert_int_equal(moves.copied, moves.copies);
        assert_int_equal(moves.dropped, moves.drops);
        assert_int_equal(given_up(&moves), 0);
        assert_reached(engine, to);
        cot_expert_map_free(to);
    }
    *to = map_of(engine);
    int64_t all = 0;
    for (int k = 0; k < KINDS; k++) all += left[k];
    bool changed = !all;
    for (int tries = 0; !changed && tries < 1000; tries++) {
        const enum kind kind = (enum kind)below(seed, KINDS);
        if (!left[kind] || !change(to, kind, seed)) continue;
        left[kind]--;
        changed = true;
    }
    // a placement that none of the kinds that are left can change (no replicas to drop, no slots to fill) gives way
    if (!changed) change(to, REBALANCE, seed);
    must_move(engine, to);
}

static void live_through(cot_engine *engine, const int64_t counts[KINDS], uint64_t seed)
{
    const cot_engine_info *info = cot_engine_describe(engine);
    cot_request requests[REQUESTS];
    int32_t *ids[REQUESTS];
    int64_t left[KINDS], rounds = 0;
    cot_expert_map to = {0};
    memcpy(left, counts, sizeof left);
    for (int i = 0; i < REQUESTS; i++) {
        const int64_t prompt = 1 + below(&seed, 20);
        ids[i] = drawn_ids(64, info->vocab, &seed);
        requests[i] = i % 2 ? generating_from(ids[i], prompt, 20 + below(&seed, 20))
                            : forced_request(ids[i], 20 + below(&seed, 40), prompt);
        requests[i].all_logits = true;
        requests[i].sampling.ignore_eos = true;
    }
    struct records still = must_run(engine, requests, REQUESTS);
    for (bool more = true; more; rounds++) {
        struct records moved = records_new(engine, requests, REQUESTS);
        const cot_events events = events_of(&moved);
        for (int i = 0; i < REQUESTS; i++) {
            const uint64_t id = must_submit(engine, &requests[i], i % RANKS, &events);
            cot_request_state *r = cot_scheduler_find(&engine->loop.scheduler, id);
            ((cot_loop_request *)r->beside)->told_as = (uint64_t)i;
        }
        do move_on(engine, &to, left, &seed);
        while (must_step(engine));
        assert_same(&still, &moved);
        records_free(&moved);
        more = false;
        for (int k = 0; k < KINDS; k++) more |= left[k] > 0;
    }
    while (!moves_of(engine).over) must_step(engine); // an engine without requests
    assert_reached(engine, &to);
    cot_expert_map_free(&to);
    records_free(&still);
    for (int i = 0; i < REQUESTS; i++) free(ids[i]);
    printf("%llu placements, %lld times the texts\n", (unsigned long long)moves_of(engine).id,
           (long long)rounds);
}

static bool at_length(void)
{
    return getenv("COT_LONG") != NULL;
}

static void texts_stay(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (size_t w = 0; w < MOVING_WAYS; w++) {
        char path[1024];
        struct setting s = moving_way(w, path, RANKS);
        if (w % 3 != 1) s = in_a_pool(s);
        const int64_t each = !at_length()  ? 8
                             : w == 0      ? 1000
                             : s.processes ? 200
                                           : 100,
                      counts[KINDS] = {each, each, each, each / 4};
        cot_engine *engine = must_open(&s);
        live_through(engine, counts, draw(&seed));
        cot_engine_close(engine);
    }
}

/* Bytes of a rank's slots: of each layer's own, and of one place more for layers whose slots have the same size. */
static size_t bytes_of_pools(const cot_engine *engine)
{
    const cot_engine_info *info = cot_engine_describe(engine);
    const int64_t *slot = engine->networks.slot_bytes;
    int64_t bytes = 0;
    for (int64_t l = 0; l < info->moe_layers; l++) {
        int64_t same = 0;
        for (int64_t other = 0; other < l; other++) same += slot[other] == slot[l];
        bytes += (info->expert_slots + (same == 0)) * slot[l];
    }
    return (size_t)bytes;
}

/* Ranks whose slots are all taken: experts change places through the one that layers have together. */
static void full_ranks_exchange_experts(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    static const struct {
        const char *model, *file, *op;
        bool processes, mixed; // mixed: slots have different sizes in different layers
    } ways[] = {{"olmoe", "", "fused", false, false},
                {"olmoe", "", "bulk", true, false},
                {"gguf/quant", "olmoe-mosaic.gguf", "fused", false, true},
                {"gguf/quant", "olmoe-mosaic.gguf", "bulk", true, true}};
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        char path[1024];
        struct setting s = moving_file(ways[w].model, ways[w].file, path, RANKS, 0);
        s.movable = true;
        s.op = ways[w].op;
        s.processes = ways[w].processes;
        cot_engine *engine = must_open(&s);
        const cot_engine_info *info = cot_engine_describe(engine);
        assert_int_equal(cot_runner_pools_bytes(&engine->runner), bytes_of_pools(engine));
        assert_int_equal(info->expert_slots * RANKS, info->experts);
        if (ways[w].mixed)
            assert_in_range(info->transit_places, 2, info->moe_layers);
        else
            assert_int_equal(info->transit_places, 1);
        live_through(engine, (const int64_t[KINDS]){0, 0, at_length() ? 200 : 10, 4}, draw(&seed));
        cot_engine_close(engine);
    }
}

static void every_format_stays(void **state)
{
    (void)state;
    static const char *const formats[] = {"bf16", "int8", "fp8", "int4", "mxfp4"};
    uint64_t seed = test_seed();
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        struct setting s = {.folder = TINY,
                            .ranks = RANKS,
                            .attention = f % 2 ? "dp" : "tp",
                            .precision = "bf16",
                            .weights = formats[f],
                            .step_tokens = 64,
                            .sequences = 8};
        cot_engine *engine = must_open(&s);
        s.expert_slots = engine->layout.slots_per_rank + 1;
        s.movable = true;
        cot_engine_close(engine);
        engine = must_open(&s);
        assert_string_equal(cot_engine_describe(engine)->weights, formats[f]);
        live_through(engine, (const int64_t[KINDS]){2, 1, 2, 1}, draw(&seed));
        cot_engine_close(engine);
    }
}

/* What was copied is what a phase of its own counts; a chunk is itself and its checksum. */
static void what_is_moved_is_counted(void **state)
{
    (void)state;
    char path[1024];
    uint64_t seed = test_seed();
    struct setting s = moving_setting("olmoe", path, RANKS, 2);
    cot_engine *engine = must_open(&s);
    const uint64_t slot = (uint64_t)engine->networks.slot_bytes[0]; // as in all layers
    for (int i = 0; i < 10; i++) {
        cot_stats before, after;
        cot_expert_map to = map_of(engine);
        int32_t missing = 0;
        const cot_expert_map now = map_of(engine);
        change(&to, REBALANCE, &seed);
        for (int32_t l = 0; l < to.n_layers; l++)
            for (int32_t r = 0; r < RANKS; r++)
                for (int32_t e = 0; e < to.n_experts; e++)
                    missing += rank_has(&to, l, r, e) && !rank_has(&now, l, r, e);
        assert_int_equal(cot_engine_stats(engine, &before, NULL), COT_OK);
        const uint64_t id = must_move(engine, &to);
        assert_int_equal(id, i + 1);
        while (!moves_of(engine).over) must_step(engine);
        assert_int_equal(cot_engine_stats(engine, &after, NULL), COT_OK);
        const cot_engine_moves moves = moves_of(engine);
        assert_int_equal(moves.id, id);
        assert_int_equal(moves.copies, missing);
        assert_int_equal(moves.bytes, moves.copied * (int64_t)slot);
        uint64_t bytes = 0, messages = 0;
        for (int p = 0; p < RANKS * RANKS; p++) {
            bytes += after.bytes[COT_PHASE_MIGRATION][p] - before.bytes[COT_PHASE_MIGRATION][p];
            messages += after.messages[COT_PHASE_MIGRATION][p] - before.messages[COT_PHASE_MIGRATION][p];
        }
        assert_int_equal(bytes, moves.bytes + 8 * moves.chunks);
        assert_int_equal(messages, 2 * moves.chunks);
        assert_reached(engine, &to);
        cot_stats_clear(&before);
        cot_stats_clear(&after);
        cot_expert_map_free(&to);
        cot_expert_map forget = now;
        cot_expert_map_free(&forget);
    }
    cot_engine_close(engine);
}

/* Of a share that a chunk exceeds by far one chunk goes, and nothing more while steps run. */
static void a_small_share_is_spent_once(void **state)
{
    (void)state;
    char path[1024];
    uint64_t seed = test_seed(), id;
    struct setting s = moving_setting("olmoe", path, RANKS, 1);
    cot_engine *engine = must_open(&s);
    cot_expert_map to = map_of(engine);
    change(&to, REBALANCE, &seed);
    int32_t *ids = drawn_ids(20, cot_engine_describe(engine)->vocab, &seed);
    const cot_request request = generating_from(ids, 10, 30);
    cot_engine_moves_options options = at_once();
    options.share = 1e-7;
    assert_int_equal(cot_engine_move_experts(engine, &to, "a", &options, &id, NULL), COT_OK);
    must_submit(engine, &request, 0, &(cot_events){0});
    must_finish(engine);
    const cot_engine_moves moves = moves_of(engine);
    assert_false(moves.over);
    assert_in_range(moves.chunks, 1, RANKS / 2);      // of one command
    while (!moves_of(engine).over) must_step(engine); // without requests nobody waits
    assert_reached(engine, &to);
    free(ids);
    cot_expert_map_free(&to);
    cot_engine_close(engine);
}

/* ---- over OpenSHMEM ---- */

static void live_as_rank(cot_engine *engine)
{
    uint64_t seed = 1; // alike on all
    const int64_t each = at_length() ? 50 : 8;
    live_through(engine, (const int64_t[KINDS]){each, each, each, 4}, draw(&seed));
}

static void texts_stay_over_openshmem(void **state)
{
    (void)state;
    if (!oshrun_is_here()) skip();
    assert_int_equal(oshrun_run_again(RANKS, "rank"), 0);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "rank") == 0) return moving_rank(RANKS, true, live_as_rank);
    if (golden_absent("test_moves")) return SKIPPED;
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts_stay),
                                       cmocka_unit_test(full_ranks_exchange_experts),
                                       cmocka_unit_test(every_format_stays),
                                       cmocka_unit_test(what_is_moved_is_counted),
                                       cmocka_unit_test(a_small_share_is_spent_once),
                                       cmocka_unit_test(texts_stay_over_openshmem)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
