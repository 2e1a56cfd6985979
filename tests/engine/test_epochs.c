/* Experts that change their place while requests run: a hundred epochs in which they are moved, copied and dropped at random, and
 * every slot that is free gets another expert as soon as it is. Texts, logits and routing are those of an engine whose
 * experts stay, to the bit. As a rank of oshrun's (`rank` on the command line), the same over OpenSHMEM. */
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

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 4, EPOCHS = 100, REQUESTS = 6, MOST_SLOTS = 16 };

/* Who is where, as the test has it. */
struct table {
    cot_engine *engine;
    int32_t layers, experts, slots;
    int32_t (*in)[RANKS][MOST_SLOTS]; // [layers] the expert in each slot; -1: none is placed there
    uint64_t epochs, seed;
};

static int32_t below(uint64_t *seed, int64_t n)
{
    return (int32_t)(draw(seed) % (uint64_t)n);
}

static struct table table_of(cot_engine *engine, uint64_t seed)
{
    cot_expert_layout l;
    assert_int_equal(cot_engine_layout(engine, &l, NULL, NULL), COT_OK);
    struct table t = {.engine = engine,
                      .layers = l.n_layers,
                      .experts = l.n_experts,
                      .slots = l.slots_per_rank,
                      .seed = seed};
    assert_in_range(t.slots, 1, MOST_SLOTS);
    t.in = must_allocate((size_t)t.layers, sizeof *t.in);
    memset(t.in, 0xff, (size_t)t.layers * sizeof *t.in);
    for (int32_t layer = 0; layer < t.layers; layer++) {
        const cot_expert_replicas r = cot_expert_layout_layer(&l, layer);
        for (int32_t e = 0; e < t.experts; e++)
            for (int32_t i = r.begin[e]; i < r.begin[e + 1]; i++) t.in[layer][r.rank[i]][r.slot[i]] = e;
    }
    cot_expert_layout_free(&l);
    return t;
}

static void assert_layout(const struct table *t)
{
    cot_expert_layout l;
    uint64_t epoch;
    assert_int_equal(cot_engine_layout(t->engine, &l, &epoch, NULL), COT_OK);
    assert_int_equal(epoch, t->epochs);
    for (int32_t layer = 0; layer < t->layers; layer++) {
        const cot_expert_replicas r = cot_expert_layout_layer(&l, layer);
        int32_t placed = 0;
        for (int32_t rank = 0; rank < RANKS; rank++)
            for (int32_t s = 0; s < t->slots; s++) placed += t->in[layer][rank][s] >= 0;
        assert_int_equal(r.begin[t->experts], placed);
        for (int32_t e = 0; e < t->experts; e++)
            for (int32_t i = r.begin[e]; i < r.begin[e + 1]; i++)
                assert_int_equal(t->in[layer][r.rank[i]][r.slot[i]], e);
    }
    cot_expert_layout_free(&l);
}

/* A slot gets an expert from one of those that have it, in chunks of drawn sizes; steps run between them. */
static void copy(struct table *t, int32_t rank, int32_t layer, int32_t expert, int32_t slot, size_t *left)
{
    int32_t from = below(&t->seed, RANKS * t->slots);
    while (t->in[layer][from / t->slots][from % t->slots] != expert) from = (from + 1) % (RANKS * t->slots);
    cot_runner_chunk c = {.layer = layer,
                          .expert = expert,
                          .from = from / t->slots,
                          .from_slot = from % t->slots,
                          .to = rank,
                          .to_slot = slot};
    for (const int64_t all = t->engine->networks.slot_bytes[layer]; c.begin < all; c.begin += c.bytes) {
        c.bytes = 1 + (int64_t)(draw(&t->seed) % (uint64_t)all);
        if (c.bytes > all - c.begin) c.bytes = all - c.begin;
        c.last = c.begin + c.bytes == all;
        cot_error error;
        cot_runner_verdict verdict = COT_RUNNER_FAILED;
        if (cot_engine_copy(t->engine, &c, 1, &verdict, &error) != COT_OK) fail_msg("%s", error.message);
        assert_int_equal(verdict, COT_RUNNER_SAME);
        if (left && *left && draw(&t->seed) % 4 == 0) *left = must_step(t->engine);
    }
}

/* A free slot of the layer. */
static void find_free(struct table *t, int32_t layer, int32_t *rank, int32_t *slot)
{
    int32_t at = below(&t->seed, RANKS * t->slots);
    while (t->in[layer][at / t->slots][at % t->slots] >= 0) at = (at + 1) % (RANKS * t->slots);
    *rank = at / t->slots;
    *slot = at % t->slots;
}

static int32_t replicas_of(const struct table *t, int32_t layer, int32_t expert)
{
    int32_t n = 0;
    for (int32_t i = 0; i < RANKS * t->slots; i++) n += t->in[layer][i / t->slots][i % t->slots] == expert;
    return n;
}

/* In some layers an expert is copied to a free slot, or moved there, or loses a replica. Steps run between copying and placing. Then what
 * has become free gets any expert. */
static void next_epoch(struct table *t, size_t *left)
{
    enum { MOST_WORDS = 1 << 16 };
    static int32_t words[MOST_WORDS];
    int32_t freed[64][3], free_count = 0, *at = words;
    for (int32_t layer = 0; layer < t->layers && layer < 64; layer++) {
        if (layer && draw(&t->seed) % 3 == 0) continue;
        const int32_t e = below(&t->seed, t->experts), replicas = replicas_of(t, layer, e);
        int32_t rank, slot, from = below(&t->seed, RANKS * t->slots), placed = 0;
        for (int32_t i = 0; i < RANKS * t->slots; i++)
            placed += t->in[layer][i / t->slots][i % t->slots] >= 0;
        const bool drops = replicas > 1 && (draw(&t->seed) % 2 || placed + 2 > RANKS * t->slots);
        const bool moves = drops || draw(&t->seed) % 2 || placed + 2 > RANKS * t->slots;
        if (!drops) {
            find_free(t, layer, &rank, &slot);
            copy(t, rank, layer, e, slot, left);
        }
        while (t->in[layer][from / t->slots][from % t->slots] != e) from = (from + 1) % (RANKS * t->slots);
        if (moves) {
            t->in[layer][from / t->slots][from % t->slots] = -1;
            freed[free_count][0] = layer;
            freed[free_count][1] = from / t->slots;
            freed[free_count++][2] = from % t->slots;
        }
        if (!drops) t->in[layer][rank][slot] = e;
        const bool all = draw(&t->seed) % 3 == 0; // also those that stay: more than one plan has room for
        for (int32_t x = 0; x < t->experts; x++) {
            if (x != e && !all) continue;
            *at++ = layer, *at++ = x, *at++ = replicas_of(t, layer, x);
            for (int32_t i = 0; i < RANKS * t->slots; i++)
                if (t->in[layer][i / t->slots][i % t->slots] == x) *at++ = i / t->slots, *at++ = i % t->slots;
        }
        assert_in_range(at - words, 1, MOST_WORDS / 2);
    }
    if (*left) *left = must_step(t->engine);
    cot_error error;
    if (cot_loop_place(&t->engine->loop, words, at - words, &error) != COT_OK) fail_msg("%s", error.message);
    t->epochs++;
    assert_layout(t);
    for (int32_t i = 0; i < free_count; i++)
        copy(t, freed[i][1], freed[i][0], below(&t->seed, t->experts), freed[i][2], NULL);
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
        assert_memory_equal(x->logits_told, y->logits_told, n);
        assert_memory_equal(x->logits, y->logits, n * vocab * sizeof *x->logits);
        assert_memory_equal(x->experts, y->experts, n * each * sizeof *x->experts);
        assert_memory_equal(x->weights, y->weights, n * each * sizeof *x->weights);
    }
}

/* ---- somebody reads meanwhile ---- */

struct reader {
    cot_engine *engine;
    _Atomic bool over;
    uint64_t looks, last;
};

static void *read_layouts(void *argument)
{
    struct reader *r = argument;
    while (!r->over) {
        cot_expert_layout l;
        uint64_t epoch;
        if (cot_engine_layout(r->engine, &l, &epoch, NULL) != COT_OK || epoch < r->last) return argument;
        for (int32_t layer = 0; layer < l.n_layers; layer++) {
            const cot_expert_replicas replicas = cot_expert_layout_layer(&l, layer);
            for (int32_t e = 0; e < l.n_experts; e++)
                if (replicas.begin[e] >= replicas.begin[e + 1]) return argument;
        }
        r->last = epoch;
        r->looks++;
        cot_expert_layout_free(&l);
        sched_yield();
    }
    return NULL;
}

/* ---- the runs ---- */

static void live_through(cot_engine *engine, uint64_t seed)
{
    const cot_engine_info *info = cot_engine_describe(engine);
    cot_request requests[REQUESTS];
    int32_t *ids[REQUESTS];
    for (int i = 0; i < REQUESTS; i++) {
        const int64_t prompt = 1 + below(&seed, 20);
        ids[i] = drawn_ids(64, info->vocab, &seed);
        requests[i] = i % 2 ? generating_from(ids[i], prompt, 20 + below(&seed, 20))
                            : forced_request(ids[i], 20 + below(&seed, 40), prompt);
        requests[i].all_logits = true;
        requests[i].sampling.ignore_eos = true;
        requests[i].sampling.temperature = i % 4 == 1 ? 1 : 0;
    }
    struct records still = must_run(engine, requests, REQUESTS);
    struct table t = table_of(engine, seed);
    struct reader reader = {.engine = engine};
    pthread_t thread;
    void *failed;
    assert_int_equal(pthread_create(&thread, NULL, read_layouts, &reader), 0);
    while (t.epochs < EPOCHS) {
        struct records moved = records_new(engine, requests, REQUESTS);
        const cot_events events = events_of(&moved);
        size_t left = REQUESTS;
        for (int i = 0; i < REQUESTS; i++) {
            const uint64_t id = must_submit(engine, &requests[i], i % RANKS, &events);
            cot_request_state *r = cot_scheduler_find(&engine->loop.scheduler, id);
            ((cot_loop_request *)r->beside)->told_as = (uint64_t)i;
        }
        while (left) {
            next_epoch(&t, &left);
            if (left) left = must_step(engine);
        }
        assert_same(&still, &moved);
        records_free(&moved);
    }
    reader.over = true;
    pthread_join(thread, &failed);
    assert_null(failed);
    printf("%llu epochs, read %llu times\n", (unsigned long long)t.epochs, (unsigned long long)reader.looks);
    records_free(&still);
    for (int i = 0; i < REQUESTS; i++) free(ids[i]);
    free(t.in);
}

static void texts_stay(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (size_t w = 0; w < MOVING_WAYS; w++) {
        char path[1024];
        struct setting s = moving_way(w, path, RANKS);
        cot_engine *engine = must_open(&s);
        live_through(engine, draw(&seed));
        cot_engine_close(engine);
    }
}

/* ---- what is refused ---- */

static bool place_inside(void *context, uint64_t request, int32_t token)
{
    cot_engine *engine = context;
    cot_error error;
    const int32_t words[] = {0, 0, 1, 0, 0};
    (void)request;
    (void)token;
    assert_int_equal(cot_loop_place(&engine->loop, words, 5, &error), COT_INVALID_ARGUMENT);
    return true;
}

/* The first epoch stays, and the engine runs on. */
static void bad_epochs_are_refused(void **state)
{
    (void)state;
    char path[1024];
    uint64_t seed = test_seed();
    struct setting s = moving_setting("olmoe", path, RANKS, 1);
    cot_engine *engine = must_open(&s);
    struct table t = table_of(engine, seed);
    const int32_t last = t.slots - 1, other = t.experts;
    const struct {
        int32_t words[12];
        int64_t count;
        const char *message;
    } cases[] = {
        {{0, 0, 0}, 3, "nowhere"},
        {{0, other, 1, 0, last}, 5, "another model's"},
        {{t.layers, 0, 1, 0, last}, 5, "another model's"},
        {{0, 0, 1, RANKS, 0}, 5, "there are 4 ranks"},
        {{0, 0, 1, 0, t.slots}, 5, "there are 4 ranks"},
        {{0, 0, 1, 0, last}, 5, "does not hold expert 0"},
        {{0, 1, 1, 0, 0}, 5, "does not hold expert 1"},
        {{0, 0, RANKS * t.slots + 1}, 3, "cut off"},
    };
    cot_error error;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(cot_loop_place(&engine->loop, cases[i].words, cases[i].count, &error),
                         COT_INVALID_ARGUMENT);
        if (!strstr(error.message, cases[i].message))
            fail_msg("'%s' says '%s'", cases[i].message, error.message);
        assert_layout(&t);
    }
    const struct {
        cot_runner_chunk chunk;
        const char *message;
    } nowhere[] = {{{-1, 0, 0, 0, 1, 0, 0, 64, 0, 0, 0}, "there are"},
                   {{1 << 20, 0, 0, 0, 1, 0, 0, 64, 0, 0, 0}, "there are"},
                   {{0, 0, -1, 0, 1, 0, 0, 64, 0, 0, 0}, "there are"},
                   {{0, 0, RANKS, 0, 1, 0, 0, 64, 0, 0, 0}, "there are"},
                   {{0, 0, 0, -1, 1, 0, 0, 64, 0, 0, 0}, "there are"},
                   {{0, 0, 0, 1 << 20, 1, 0, 0, 64, 0, 0, 0}, "there are"},
                   {{0, 0, 0, 0, RANKS, 0, 0, 64, 0, 0, 0}, "there are"},
                   {{0, 0, 0, 0, 1, 1 << 20, 0, 64, 0, 0, 0}, "there are"},
                   {{0, 0, 0, 0, 1, 0, 0, 64, 0, 0, 0}, "in use"},
                   {{0, 1, 0, 0, 1, last, 0, 64, 0, 0, 0}, "does not hold expert 1"}};
    for (size_t i = 0; i < sizeof nowhere / sizeof *nowhere; i++) {
        cot_runner_verdict verdict;
        cot_runner_chunk chunk = nowhere[i].chunk;
        assert_int_equal(cot_engine_copy(engine, &chunk, 1, &verdict, &error), COT_INVALID_ARGUMENT);
        if (!strstr(error.message, nowhere[i].message)) fail_msg("%s", error.message);
    }
    int32_t *ids = drawn_ids(20, cot_engine_describe(engine)->vocab, &seed);
    const cot_request request = generating_from(ids, 10, 3);
    must_submit(engine, &request, 0, &(cot_events){.context = engine, .on_token = place_inside});
    must_finish(engine);
    copy(&t, 0, 0, 0, last, NULL); // and what is right is taken
    assert_int_equal(cot_loop_place(&engine->loop, (const int32_t[]){0, 0, 1, 0, last}, 5, &error), COT_OK);
    cot_engine_close(engine);
    free(ids);

    s.pipeline = "s-moe";
    engine = must_open(&s);
    struct table second = t;
    second.engine = engine;
    copy(&second, 0, 0, 0, last, NULL);
    const int32_t replicas[] = {0, 0, 2, 0, 0, 0, last};
    assert_int_equal(cot_loop_place(&engine->loop, replicas, 7, &error), COT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "s-moe takes no replicas"));
    assert_layout(&second);
    cot_engine_close(engine);
    free(t.in);
}

/* ---- chunks that go wrong ---- */

/* What befalls chunks of expert 1: a bit of theirs turns over on the way; the rank that has all of them cannot keep them. */
static enum { WELL, CHANGED, NO_ROOM } goes;

static cot_status keep_nothing(cot_moe *moe, const cot_moe_layer *layer, int64_t slot, cot_error *error)
{
    (void)moe;
    (void)layer;
    return cot_fail(error, COT_IO, "no room for slot %d", (int)slot);
}

cot_status __real_cot_runner_copy(cot_runner *r, const cot_runner_chunk *chunk, int64_t count,
                                  cot_runner_verdict *verdict, cot_error *error);
cot_status __wrap_cot_runner_copy(cot_runner *r, const cot_runner_chunk *chunk, int64_t count,
                                  cot_runner_verdict *verdict, cot_error *error);
cot_status __wrap_cot_runner_copy(cot_runner *r, const cot_runner_chunk *chunk, int64_t count,
                                  cot_runner_verdict *verdict, cot_error *error)
{
    const bool here = chunk->expert == 1;
    const cot_fabric_ops *const own_ops = r->fabric->ops;
    const cot_moe_operator *const own_op = r->o.op;
    struct turned_puts turned;
    cot_moe_operator full = *own_op;
    full.keep = keep_nothing;
    if (here && goes == CHANGED && chunk->from == r->fabric->rank) turn_puts(&turned, r->fabric);
    if (here && goes == NO_ROOM) r->o.op = &full;
    const cot_status status = __real_cot_runner_copy(r, chunk, count, verdict, error);
    r->fabric->ops = own_ops;
    r->o.op = own_op;
    return status;
}

/* A slot whose chunk came changed, or that its rank cannot keep, holds nothing, it is said why, and all go on. */
static void a_slot_that_does_not_come(void **state)
{
    (void)state;
    for (int way = 0; way < 8; way++) {
        char path[1024];
        uint64_t seed = test_seed();
        struct setting s = moving_setting("olmoe", path, RANKS, 1);
        s.processes = way % 2;
        goes = way / 4 ? NO_ROOM : CHANGED; // also in ranks that are forked now
        cot_engine *engine = must_open(&s);
        struct table t = table_of(engine, seed);
        const int32_t last = s.expert_slots - 1, rank = way / 2 % 2 * 2;
        cot_error error;
        copy(&t, rank, 0, 0, last, NULL);
        int32_t from = 0;
        while (t.in[0][from / t.slots][from % t.slots] != 1) from++;
        const cot_runner_chunk c = {
            0, 1, from / t.slots, from % t.slots, rank, last, 0, engine->networks.slot_bytes[0], 1, 0, 0};
        cot_runner_verdict verdict = COT_RUNNER_SAME;
        const cot_status status = cot_engine_copy(engine, &c, 1, &verdict, &error);
        if (goes == CHANGED) {
            assert_int_equal(status, COT_OK);
            assert_int_equal(verdict, COT_RUNNER_DIFFERS);
        } else {
            char message[64];
            snprintf(message, sizeof message, "no room for slot %d", (int)last);
            assert_int_equal(status, COT_IO);
            assert_int_equal(verdict, COT_RUNNER_FAILED);
            assert_string_equal(error.message, message);
        }
        for (int32_t e = 0; e < 2; e++) {
            const int32_t words[] = {0, e, 1, rank, last};
            assert_int_equal(cot_loop_place(&engine->loop, words, 5, &error), COT_INVALID_ARGUMENT);
        }
        int32_t *ids = drawn_ids(20, cot_engine_describe(engine)->vocab, &seed);
        const cot_request request = generating_from(ids, 10, 3);
        must_submit(engine, &request, 0, &(cot_events){0});
        must_finish(engine);
        copy(&t, rank, 0, 2, last, NULL);
        assert_int_equal(cot_loop_place(&engine->loop, (const int32_t[]){0, 2, 1, rank, last}, 5, &error),
                         COT_OK);
        cot_engine_close(engine);
        goes = WELL;
        free(ids);
        free(t.in);
    }
}

/* ---- over OpenSHMEM ---- */

static void live_as_rank(cot_engine *engine)
{
    uint64_t seed = 1; // alike on all
    live_through(engine, draw(&seed));
}

static void texts_stay_over_openshmem(void **state)
{
    (void)state;
    if (!oshrun_is_here()) skip();
    assert_int_equal(oshrun_run_again(RANKS, "rank"), 0);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "rank") == 0) return moving_rank(RANKS, false, live_as_rank);
    if (golden_absent("test_epochs")) return SKIPPED;
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts_stay), cmocka_unit_test(bad_epochs_are_refused),
                                       cmocka_unit_test(a_slot_that_does_not_come),
                                       cmocka_unit_test(texts_stay_over_openshmem)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
