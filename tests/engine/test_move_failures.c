/* Moves of experts that go wrong, are cancelled or refused: experts stay where they are, and a rank that dies names the copy. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/moving.h"
#include "harness/engine/placements.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/engine/steps.h"
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

enum { RANKS = 4 };

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

int main(void)
{
    if (golden_absent("test_move_failures")) return SKIPPED;
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_expert_that_comes_changed_stays),
                                       cmocka_unit_test(a_refused_placement_is_not_followed),
                                       cmocka_unit_test(a_rank_that_dies_names_the_copy),
                                       cmocka_unit_test(what_cannot_be_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
