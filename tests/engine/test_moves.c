/* Experts that are asked to move while requests run: copied, dropped, exchanged, dealt out anew, one after the other. Texts, logits and routing
 * are those of an engine whose experts stay, to the bit, in every format of weights; what is counted is what was moved; what goes
 * wrong, is cancelled or refused leaves experts where they are, and a rank that dies names the copy. As a rank of oshrun's (`rank` on
 * the command line), the same over OpenSHMEM. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/moving.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/engine/steps.h"
#include "harness/fabric/oshrun.h"
#include "harness/memory.h"
#include "harness/seed.h"

#include "base/error.h"
#include "engine/engine_state.h"
#include "model/runner_state.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 4, REQUESTS = 5 };
enum kind { REPLICATE, DROP, SWAP, REBALANCE, KINDS };

static int32_t below(uint64_t *seed, int64_t n)
{
    return (int32_t)(draw(seed) % (uint64_t)n);
}

/* ---- placements ---- */

static int32_t *slot_of(const cot_expert_map *map, int32_t layer, int32_t place)
{
    return &map->expert[layer * map->n_ranks * map->slots_per_rank + place];
}

/* Where experts are now. */
static cot_expert_map map_of(cot_engine *engine)
{
    cot_expert_layout l;
    cot_expert_map map;
    assert_int_equal(cot_engine_layout(engine, &l, NULL, NULL), COT_OK);
    assert_int_equal(cot_expert_map_new(&map, l.n_layers, l.n_experts, l.n_ranks, l.slots_per_rank, NULL),
                     COT_OK);
    memcpy(map.layers, l.layers, (size_t)l.n_layers * sizeof *l.layers);
    for (int32_t layer = 0; layer < l.n_layers; layer++) {
        const cot_expert_replicas r = cot_expert_layout_layer(&l, layer);
        for (int32_t e = 0; e < l.n_experts; e++)
            for (int32_t i = r.begin[e]; i < r.begin[e + 1]; i++)
                *slot_of(&map, layer, r.rank[i] * l.slots_per_rank + r.slot[i]) = e;
    }
    cot_expert_layout_free(&l);
    return map;
}

static bool rank_has(const cot_expert_map *map, int32_t layer, int32_t rank, int32_t expert)
{
    for (int32_t s = 0; s < map->slots_per_rank; s++)
        if (*slot_of(map, layer, rank * map->slots_per_rank + s) == expert) return true;
    return false;
}

static int32_t count_on(const cot_expert_map *map, int32_t layer, int32_t rank)
{
    int32_t n = 0;
    for (int32_t s = 0; s < map->slots_per_rank; s++)
        n += *slot_of(map, layer, rank * map->slots_per_rank + s) >= 0;
    return n;
}

static int32_t replicas_of(const cot_expert_map *map, int32_t layer, int32_t expert)
{
    int32_t n = 0;
    for (int32_t r = 0; r < map->n_ranks; r++) n += rank_has(map, layer, r, expert);
    return n;
}

/* Into a free slot of the rank, one of which stays free; whether there was one, and it does not have the expert. */
static bool put(const cot_expert_map *map, int32_t layer, int32_t rank, int32_t expert)
{
    if (rank_has(map, layer, rank, expert) || count_on(map, layer, rank) + 1 >= map->slots_per_rank)
        return false;
    int32_t s = 0;
    while (*slot_of(map, layer, rank * map->slots_per_rank + s) >= 0) s++;
    *slot_of(map, layer, rank * map->slots_per_rank + s) = expert;
    return true;
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

static void assert_reached(cot_engine *engine, const cot_expert_map *to)
{
    const cot_expert_map now = map_of(engine);
    for (int32_t layer = 0; layer < to->n_layers; layer++)
        for (int32_t r = 0; r < to->n_ranks; r++) {
            for (int32_t e = 0; e < to->n_experts; e++)
                assert_int_equal(rank_has(&now, layer, r, e), rank_has(to, layer, r, e));
            assert_int_equal(count_on(&now, layer, r), count_on(to, layer, r));
        }
    cot_expert_map forget = now;
    cot_expert_map_free(&forget);
}

/* ---- under load ---- */

static cot_engine_moves_options at_once(void)
{
    cot_engine_moves_options o;
    cot_engine_moves_options_init(&o);
    o.share = 1;
    return o;
}

static uint64_t must_move(cot_engine *engine, const cot_expert_map *to)
{
    const cot_engine_moves_options options = at_once();
    uint64_t id = 0;
    cot_error error;
    if (cot_engine_move_experts(engine, to, "the test's", &options, &id, &error) != COT_OK)
        fail_msg("%s", error.message);
    return id;
}

static cot_engine_moves moves_of(cot_engine *engine)
{
    cot_engine_moves moves;
    cot_engine_get_moves(engine, &moves);
    return moves;
}

static int64_t given_up(const cot_engine_moves *moves)
{
    int64_t n = 0;
    for (int o = 0; o < COT_MOVE_OUTCOMES; o++) n += moves->given_up[o];
    return n;
}

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

/* ---- what goes wrong ---- */

/* What befalls chunks of an expert: a bit of theirs turns over on the way, or their source dies. */
static enum { WELL, CHANGED, KILLED } goes;
static int32_t whose = 1;

cot_status __real_cot_runner_copy(cot_runner *r, const cot_runner_chunk *chunk, int64_t count,
                                  cot_runner_verdict *verdict, cot_error *error);
cot_status __wrap_cot_runner_copy(cot_runner *r, const cot_runner_chunk *chunk, int64_t count,
                                  cot_runner_verdict *verdict, cot_error *error);
cot_status __wrap_cot_runner_copy(cot_runner *r, const cot_runner_chunk *chunk, int64_t count,
                                  cot_runner_verdict *verdict, cot_error *error)
{
    const cot_fabric_ops *const own = r->fabric->ops;
    struct turned_puts turned;
    const bool here = chunk->expert == whose && chunk->from == r->fabric->rank;
    if (here && goes == KILLED) raise(SIGKILL);
    if (here && goes == CHANGED) turn_puts(&turned, r->fabric);
    const cot_status status = __real_cot_runner_copy(r, chunk, count, verdict, error);
    r->fabric->ops = own;
    return status;
}

/* The map with expert `a` and expert `b` of the first layer exchanged, which are on different ranks. */
static cot_expert_map exchanged(cot_engine *engine, int32_t a, int32_t b)
{
    cot_expert_map map = map_of(engine);
    for (int32_t p = 0; p < RANKS * map.slots_per_rank; p++) {
        int32_t *e = slot_of(&map, 0, p);
        *e = *e == a ? b : *e == b ? a : *e;
    }
    return map;
}

static void an_expert_that_comes_changed_stays(void **state)
{
    (void)state;
    for (int way = 0; way < 2; way++) {
        char path[1024];
        struct setting s = moving_setting("olmoe", path, RANKS, 1);
        s.processes = way;
        goes = CHANGED;
        cot_engine *engine = must_open(&s);
        const int32_t last = engine->placing.epoch[0].layout.n_experts - 1;
        const cot_expert_map before = map_of(engine);
        cot_expert_map to = exchanged(engine, 1, last);
        must_move(engine, &to);
        while (!moves_of(engine).over) must_step(engine);
        const cot_engine_moves moves = moves_of(engine);
        assert_int_equal(moves.given_up[COT_MOVE_DIFFERED], 1);
        assert_int_equal(given_up(&moves), 1);
        assert_int_equal(moves.copied, 1);
        assert_int_equal(moves.chunks, 4); // three times the one
        const cot_expert_map now = map_of(engine);
        for (int32_t r = 0; r < RANKS; r++) {
            assert_int_equal(rank_has(&now, 0, r, 1), rank_has(&before, 0, r, 1));
            assert_int_equal(rank_has(&now, 0, r, last), rank_has(&to, 0, r, last));
        }
        goes = WELL;
        cot_engine_close(engine);
        cot_expert_map all[] = {before, to, now};
        for (int i = 0; i < 3; i++) cot_expert_map_free(&all[i]);
    }
}

static bool refuses;
cot_status __real_cot_engine_group_place(cot_engine_group *g, const int32_t *words, int64_t count,
                                         cot_error *error);
cot_status __wrap_cot_engine_group_place(cot_engine_group *g, const int32_t *words, int64_t count,
                                         cot_error *error);
cot_status __wrap_cot_engine_group_place(cot_engine_group *g, const int32_t *words, int64_t count,
                                         cot_error *error)
{
    if (refuses) return cot_fail(error, COT_INVALID_ARGUMENT, "not this one");
    return __real_cot_engine_group_place(g, words, count, error);
}

static void a_refused_placement_is_not_followed(void **state)
{
    (void)state;
    char path[1024];
    struct setting s = moving_setting("olmoe", path, RANKS, 1);
    cot_engine *engine = must_open(&s);
    cot_expert_map before = map_of(engine), to = exchanged(engine, 1, before.n_experts - 1);
    uint64_t epoch;
    cot_expert_layout l;
    refuses = true;
    must_move(engine, &to);
    while (!moves_of(engine).over) must_step(engine);
    refuses = false;
    assert_int_equal(moves_of(engine).given_up[COT_MOVE_REFUSED], 2);
    assert_int_equal(moves_of(engine).epochs, 0);
    assert_reached(engine, &before);
    assert_int_equal(cot_engine_layout(engine, &l, &epoch, NULL), COT_OK);
    assert_int_equal(epoch, 0);
    cot_expert_layout_free(&l);
    must_move(engine, &to);
    while (!moves_of(engine).over) must_step(engine);
    assert_reached(engine, &to);
    cot_expert_map_free(&before);
    cot_expert_map_free(&to);
    cot_engine_close(engine);
}

/* The source of a copy is killed in the midst of it, or between two chunks: the copy is named. */
static void a_rank_that_dies_names_the_copy(void **state)
{
    (void)state;
    char path[1024];
    struct setting s = moving_setting("olmoe", path, RANKS, 1);
    cot_engine *engine = must_open(&s);
    whose = engine->placing.epoch[0].layout.n_experts - 1; // which rank 0 does not have
    cot_engine_close(engine);
    s.processes = true;
    goes = KILLED; // in the ranks
    engine = must_open(&s);
    goes = WELL; // not in this process
    const cot_expert_map now = map_of(engine);
    int32_t from = 0;
    while (!rank_has(&now, 0, from, whose)) from++;
    assert_in_range(from, 1, RANKS - 1);
    cot_expert_map to = exchanged(engine, 1, whose);
    must_move(engine, &to);
    size_t left;
    cot_error error = {0};
    cot_status status = COT_OK;
    for (int steps = 0; status == COT_OK && steps < 100; steps++)
        status = cot_engine_step(engine, &left, &error);
    assert_int_equal(status, COT_PEER_FAILED);
    char killed[64], copy[96];
    snprintf(killed, sizeof killed, "rank %d was killed by signal 9", (int)from);
    snprintf(copy, sizeof copy, "expert %d of layer %d was being copied from rank %d to rank", (int)whose,
             (int)now.layers[0], (int)from);
    whose = 1;
    if (!strstr(error.message, killed) || !strstr(error.message, copy)) fail_msg("%s", error.message);
    printf("%s\n", error.message);
    cot_engine_close(engine);
    assert_true(waitpid(-1, NULL, WNOHANG) < 0); // no child is left
    cot_expert_map all[] = {now, to};
    for (int i = 0; i < 2; i++) cot_expert_map_free(&all[i]);
}

static bool move_inside(void *context, uint64_t request, int32_t token)
{
    cot_engine *engine = context;
    const cot_engine_moves_options options = at_once();
    cot_expert_map map = map_of(engine);
    uint64_t id;
    (void)request;
    (void)token;
    assert_int_equal(cot_engine_move_experts(engine, &map, "a", &options, &id, NULL), COT_INVALID_ARGUMENT);
    assert_int_equal(cot_engine_cancel_moves(engine, 1, NULL), COT_INVALID_ARGUMENT);
    cot_expert_map_free(&map);
    return true;
}

static void assert_refused(cot_engine *engine, const cot_expert_map *to,
                           const cot_engine_moves_options *options, const char *message)
{
    uint64_t id = 77;
    cot_error error = {0};
    const cot_engine_moves before = moves_of(engine);
    const cot_status status = cot_engine_move_experts(engine, to, "the file", options, &id, &error);
    if (status == COT_OK || !strstr(error.message, message))
        fail_msg("'%s' says '%s'", message, error.message);
    assert_int_equal(id, 77);
    const cot_engine_moves after = moves_of(engine);
    assert_memory_equal(&before, &after, sizeof before);
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    char path[1024];
    uint64_t seed = test_seed(), id;
    struct setting s = moving_setting("olmoe", path, RANKS, 1);
    cot_engine *engine = must_open(&s);
    cot_engine_moves_options o = at_once();
    cot_expert_map map = map_of(engine), wrong;
    static const double shares[] = {0, -1, 1.5, (double)NAN}, rates[] = {-1, (double)INFINITY, (double)NAN};
    for (int i = 0; i < 4; i++) {
        o.share = shares[i];
        assert_refused(engine, &map, &o, "share");
    }
    o = at_once();
    for (int i = 0; i < 3; i++) {
        o.bytes_per_s = rates[i];
        assert_refused(engine, &map, &o, "bytes a second");
    }
    o = at_once();
    map.model_hash = 12345;
    if (cot_engine_describe(engine)->model_hash) assert_refused(engine, &map, &o, "another model");
    map.model_hash = 0;
    map.layers[0] += 100;
    for (int32_t l = 1; l < map.n_layers; l++) map.layers[l] += 100;
    assert_refused(engine, &map, &o, "the file");
    for (int32_t l = 0; l < map.n_layers; l++) map.layers[l] -= 100;
    const int32_t kept = *slot_of(&map, 0, 0);
    *slot_of(&map, 0, 0) = -1; // it is nowhere
    assert_refused(engine, &map, &o, "the file");
    *slot_of(&map, 0, 0) = map.n_experts;
    assert_refused(engine, &map, &o, "the file");
    *slot_of(&map, 0, 0) = kept;
    assert_int_equal(
        cot_expert_map_new(&wrong, map.n_layers, map.n_experts, RANKS, map.slots_per_rank + 1, NULL), COT_OK);
    memcpy(wrong.layers, map.layers, (size_t)map.n_layers * sizeof *map.layers);
    for (int32_t l = 0; l < map.n_layers; l++)
        for (int32_t r = 0; r < RANKS; r++)
            for (int32_t i = 0; i <= map.slots_per_rank; i++)
                *slot_of(&wrong, l, r * wrong.slots_per_rank + i) =
                    (r * wrong.slots_per_rank + i) % map.n_experts;
    assert_refused(engine, &wrong, &o, "the file"); // more slots than there are
    cot_expert_map_free(&wrong);
    int32_t *ids = drawn_ids(20, cot_engine_describe(engine)->vocab, &seed);
    const cot_request request = generating_from(ids, 10, 3);
    must_submit(engine, &request, 0, &(cot_events){.context = engine, .on_token = move_inside});
    must_finish(engine);
    free(ids);

    cot_expert_map to = exchanged(engine, 0, map.n_experts - 1); // one at a time, and it can be cancelled
    id = must_move(engine, &to);
    assert_refused(engine, &map, &o, "experts are moving (1)");
    assert_int_equal(cot_engine_cancel_moves(engine, id + 1, NULL), COT_NOT_FOUND);
    must_step(engine);
    assert_false(moves_of(engine).over);
    assert_int_equal(cot_engine_cancel_moves(engine, id, NULL), COT_OK);
    const cot_engine_moves moves = moves_of(engine);
    assert_true(moves.over);
    assert_int_equal(moves.given_up[COT_MOVE_CANCELLED], 2);
    assert_int_equal(cot_engine_cancel_moves(engine, id, NULL), COT_NOT_FOUND);
    assert_reached(engine, &map);
    must_move(engine, &to); // and then be asked for again
    while (!moves_of(engine).over) must_step(engine);
    assert_reached(engine, &to);
    cot_expert_map_free(&to);
    cot_expert_map_free(&map);
    cot_engine_close(engine);

    s.pipeline = "s-moe"; // which takes no replicas
    engine = must_open(&s);
    map = map_of(engine);
    int32_t r = 0;
    while (!put(&map, 0, r, 0) && r < RANKS - 1) r++;
    *slot_of(&map, 0, r * map.slots_per_rank + map.slots_per_rank - 1) = 0;
    assert_refused(engine, &map, &o, "s-moe takes no replicas");
    cot_expert_map_free(&map);
    to = exchanged(engine, 0, engine->placing.epoch[0].layout.n_experts - 1); // but exchanges
    must_move(engine, &to);
    while (!moves_of(engine).over) must_step(engine);
    assert_reached(engine, &to);
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
                                       cmocka_unit_test(an_expert_that_comes_changed_stays),
                                       cmocka_unit_test(a_refused_placement_is_not_followed),
                                       cmocka_unit_test(a_rank_that_dies_names_the_copy),
                                       cmocka_unit_test(what_cannot_be_is_refused),
                                       cmocka_unit_test(texts_stay_over_openshmem)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
