/* What is told of every step, against what was told of its tokens: who was fed, which experts on which ranks were called, and what
 * ranks sent meanwhile. */
#include "harness/cmocka.h"
#include "harness/engine/random_model.h"
#include "harness/engine/requests.h"
#include "harness/engine/steps.h"
#include "harness/seed.h"

#include "coterie/layout.h"
#include "engine/engine_state.h"

#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, EXPERTS = 7, TOP_K = 2, SEQUENCES = 3, MOST_RANKS = 3 };

/* A sequence, and what was told of its tokens in the step that has just been run. */
struct fed {
    int home;
    int64_t prompt, begin, tokens;
    uint16_t experts[CONTEXT][LAYERS][TOP_K];
};

/* All that was told of a step. */
struct told {
    int reports;
    cot_step_report last;
    cot_rank_routing routing[MOST_RANKS];
    cot_home_load home[MOST_RANKS];
};

static void on_routing(void *context, uint64_t request, int64_t position, int32_t token,
                       const uint16_t *experts, const float *weights)
{
    struct fed *f = context;
    (void)request, (void)token, (void)weights;
    if (!f->tokens) f->begin = position;
    memcpy(f->experts[f->tokens++], experts, sizeof f->experts[0]);
}

static void on_step(void *context, const cot_step_report *report)
{
    struct told *t = context;
    t->reports++;
    t->last = *report;
    memcpy(t->routing, report->routing, (size_t)report->ranks * sizeof *t->routing);
    memcpy(t->home, report->home, (size_t)report->homes * sizeof *t->home);
}

/* Counts tokens [begin, end) of a sequence as at home on a rank: of one layer. */
static void count(cot_rank_routing *r, bool called[EXPERTS], const struct fed *f, int64_t begin, int64_t end,
                  int home, int layer, const cot_expert_replicas *replicas)
{
    for (int64_t t = begin; t < end; t++) {
        bool reached[MOST_RANKS] = {false};
        r->tokens++;
        for (int k = 0; k < TOP_K; k++) {
            const int e = f->experts[t][layer][k];
            assert_int_equal(replicas->begin[e + 1] - replicas->begin[e], 1);
            const int rank = replicas->rank[replicas->begin[e]];
            r->activations++;
            r->local += rank == home;
            if (rank != home && !reached[rank]) r->sends++;
            reached[rank] = true;
            r->distinct_experts += !called[e];
            called[e] = true;
        }
    }
}

/* The same tokens as calls of the ranks that serve them; called [e]: some token did before. */
static void count_served(cot_rank_routing *ranks, bool called[EXPERTS], const struct fed *f, int64_t begin,
                         int64_t end, int home, int layer, const cot_expert_replicas *replicas)
{
    for (int64_t t = begin; t < end; t++) {
        bool reached[MOST_RANKS] = {false};
        for (int k = 0; k < TOP_K; k++) {
            const int e = f->experts[t][layer][k], rank = replicas->rank[replicas->begin[e]];
            ranks[rank].served++;
            ranks[rank].served_experts += !called[e];
            ranks[rank].received += rank != home && !reached[rank];
            called[e] = reached[rank] = true;
        }
    }
}

/* What each rank's tokens called in the step. Where all ranks have a part of every token, the tokens of the one sequence are at
 * home on ranks in equal shares. */
static void count_routing(cot_rank_routing *routing, const cot_engine *engine, const struct fed *fed,
                          bool shared)
{
    const int ranks = engine->info.ranks;
    memset(routing, 0, MOST_RANKS * sizeof *routing);
    for (int layer = 0; layer < LAYERS; layer++) {
        const cot_expert_replicas replicas = cot_expert_layout_layer(&engine->layout, layer);
        bool by_any[EXPERTS] = {false};
        for (int rank = 0; rank < ranks; rank++) {
            bool called[EXPERTS] = {false};
            for (int i = 0; i < SEQUENCES; i++) {
                const int64_t n = fed[i].tokens, begin = shared ? rank * n / ranks : 0,
                              end = shared ? (rank + 1) * n / ranks : n;
                if (!shared && fed[i].home != rank) continue;
                count(&routing[rank], called, &fed[i], begin, end, rank, layer, &replicas);
                count_served(routing, by_any, &fed[i], begin, end, rank, layer, &replicas);
            }
        }
    }
}

static uint64_t sum_of(const uint64_t *bytes, int ranks)
{
    uint64_t sum = 0;
    for (int i = 0; i < ranks * ranks; i++) sum += bytes[i];
    return sum;
}

static void assert_step(const cot_engine *engine, const struct told *told, const struct fed *fed, bool shared)
{
    int64_t sequences = 0, tokens = 0, prompt_tokens = 0, positions = 0, pairs = 0;
    cot_rank_routing routing[MOST_RANKS];
    for (int i = 0; i < SEQUENCES; i++) {
        sequences += fed[i].tokens > 0;
        tokens += fed[i].tokens;
        for (int64_t t = 0; t < fed[i].tokens; t++) {
            prompt_tokens += fed[i].begin + t < fed[i].prompt;
            pairs += fed[i].begin + t + 1; // the token sees itself, too
        }
        positions += fed[i].tokens ? fed[i].begin + fed[i].tokens : 0;
    }
    assert_int_equal(told->last.step, engine->loop.steps);
    assert_int_equal(told->last.sequences, sequences);
    assert_int_equal(told->last.tokens, tokens);
    assert_int_equal(told->last.prompt_tokens, prompt_tokens);
    assert_int_equal(told->last.ranks, engine->info.ranks);
    assert_int_equal(told->last.positions, positions);
    assert_int_equal(told->last.pairs, pairs);
    assert_int_equal(told->last.epoch, 0);
    assert_int_equal(told->last.homes, engine->info.kv_homes);
    assert_true(told->last.observed_ns == (double)engine->loop.last_step_ns);
    assert_true(told->last.predicted_ns == engine->loop.scheduler.cost.predicted_ns);
    count_routing(routing, engine, fed, shared);
    for (int rank = 0; rank < engine->info.ranks; rank++) {
        const cot_rank_routing *r = &told->routing[rank], *wanted = &routing[rank];
        assert_int_equal(r->tokens, wanted->tokens);
        assert_int_equal(r->activations, wanted->activations);
        assert_int_equal(r->local, wanted->local);
        assert_int_equal(r->sends, wanted->sends);
        assert_int_equal(r->distinct_experts, wanted->distinct_experts);
        assert_int_equal(r->served, wanted->served);
        assert_int_equal(r->served_experts, wanted->served_experts);
        assert_int_equal(r->received, wanted->received);
    }
}

/* Bytes of the phases that a step's results do not follow are those that the counters have grown by. */
static void assert_bytes(cot_engine *engine, const struct told *told, uint64_t before[COT_STATS_PHASES])
{
    cot_stats stats;
    assert_int_equal(cot_engine_stats(engine, &stats, NULL), COT_OK);
    for (int phase = 0; phase < COT_STATS_PHASES; phase++) {
        const uint64_t now = sum_of(stats.bytes[phase], stats.ranks);
        if (phase != COT_PHASE_CONTROL) assert_int_equal(told->last.bytes[phase], now - before[phase]);
        before[phase] = now;
    }
    cot_stats_clear(&stats);
}

static void steps_are_told_as_they_were(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (int way = 0; way < 6; way++) {
        const int ranks = 1 + way % MOST_RANKS;
        const bool shared = way >= MOST_RANKS;
        cot_engine *engine = open_random("null", &(struct setting){.ranks = ranks,
                                                                   .attention = shared ? "tp" : "dp",
                                                                   .processes = draw(&seed) % 2,
                                                                   .step_tokens = 30,
                                                                   .sequences = SEQUENCES});
        static struct fed fed[SEQUENCES];
        struct told told = {0};
        uint64_t bytes[COT_STATS_PHASES] = {0};
        int32_t *ids[SEQUENCES];
        memset(fed, 0, sizeof fed);
        cot_engine_watch_steps(engine, &(cot_step_events){&told, on_step});
        for (int i = 0; i < (shared ? 1 : SEQUENCES); i++) {
            const cot_events events = {.context = &fed[i], .on_routing = on_routing};
            ids[i] = drawn_ids(CONTEXT, VOCAB, &seed);
            fed[i].home = (int)(draw(&seed) % (uint64_t)ranks);
            fed[i].prompt = 1 + (int64_t)(draw(&seed) % 70);
            const cot_request r = forced_request(ids[i], fed[i].prompt + 6 + 3 * i, fed[i].prompt);
            must_submit(engine, &r, fed[i].home, &events);
        }
        int steps = 0;
        for (size_t left = 1; left;) {
            for (int i = 0; i < SEQUENCES; i++) fed[i].tokens = 0;
            left = must_step(engine);
            assert_int_equal(told.reports, ++steps);
            assert_step(engine, &told, fed, shared);
            assert_bytes(engine, &told, bytes);
        }
        assert_true(steps > 6);
        cot_engine_watch_steps(engine, NULL);
        const cot_request r = forced_request(ids[0], 5, 5);
        must_submit(engine, &r, 0, &(cot_events){0});
        must_finish(engine);
        assert_int_equal(told.reports, steps);
        for (int i = 0; i < (shared ? 1 : SEQUENCES); i++) free(ids[i]);
        cot_engine_close(engine);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps_are_told_as_they_were)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
