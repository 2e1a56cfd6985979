/* Memory that KV pages and replicas share, while an engine serves: splits are drawn where the engine looks for the best, pages and slots open and close
 * under requests, and each text is the one that an engine without all this gives, to the token. What is touched of pages and spare slots is
 * counted behind each step, as the kernel has it, and is never more than the budget. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/engine/steps.h"
#include "harness/seed.h"

#include "engine/engine_state.h"
#include "model/runner_state.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { RANKS = 4, SPARE = 3, TEXTS = 24, AT_ONCE = 6, SNAPSHOTS = 8, MEMORY = 6 << 20 };

struct model {
    const char *config; // of random weights; NULL: models/tiny
    int64_t vocab;      // of texts
};
static const struct model tiny = {NULL, 100},
                          with_states = {"{\"architectures\": [\"Qwen3_5MoeForCausalLM\"], "
                                         "\"vocab_size\": 100, \"hidden_size\": 64, "
                                         "\"num_hidden_layers\": 4, \"full_attention_interval\": 2, "
                                         "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
                                         "\"head_dim\": 32, \"num_experts\": 8, \"num_experts_per_tok\": 2, "
                                         "\"moe_intermediate_size\": 64, "
                                         "\"shared_expert_intermediate_size\": 32, "
                                         "\"linear_num_key_heads\": 2, \"linear_num_value_heads\": 4, "
                                         "\"linear_key_head_dim\": 64, \"linear_value_head_dim\": 64, "
                                         "\"linear_conv_kernel_dim\": 4, \"max_position_embeddings\": 320, "
                                         "\"eos_token_id\": 2}",
                                         100};

/* ---- splits that are drawn ---- */

static uint64_t splits; // the state of the draws; 0: as the engine finds
void __real_cot_budget_look(cot_budget *b, const double *pages_ns, const double *slots_ns, double step_ns);
void __wrap_cot_budget_look(cot_budget *b, const double *pages_ns, const double *slots_ns, double step_ns);
void __wrap_cot_budget_look(cot_budget *b, const double *pages_ns, const double *slots_ns, double step_ns)
{
    __real_cot_budget_look(b, pages_ns, slots_ns, step_ns);
    assert_in_range(b->pages, b->least, COT_BUDGET_BINS);
    for (int i = 0; i < COT_BUDGET_BINS; i++)
        assert_true(pages_ns[i] <= pages_ns[i + 1] && slots_ns[i] <= slots_ns[i + 1] && pages_ns[i] >= 0);
    if (!splits) return;
    const uint64_t bins = (uint64_t)(COT_BUDGET_BINS - b->least + 1);
    if (draw(&splits) % 2) b->pages = b->least + (int)(draw(&splits) % bins);
}

/* Copies take nothing, so that every replica that saves is made while there is a slot for it. */
cot_status __real_cot_rebalance_learn(cot_rebalance *r, const cot_rebalance_costs *costs, cot_error *error);
cot_status __wrap_cot_rebalance_learn(cot_rebalance *r, const cot_rebalance_costs *costs, cot_error *error);
cot_status __wrap_cot_rebalance_learn(cot_rebalance *r, const cot_rebalance_costs *costs, cot_error *error)
{
    double nothing[64] = {0};
    const cot_rebalance_costs free = {
        .row_ns = 1, .expert_ns = 1, .send_ns = costs->send_ns, .copy_ns = nothing};
    assert_in_range(r->o.layers, 1, 64);
    return __real_cot_rebalance_learn(r, &free, error);
}

/* ---- what is touched ---- */

/* What each rank has touched behind its last step, whose number it tells last; in memory that processes share. NULL: nobody looks. */
static struct seen {
    size_t pages_and_slots[RANKS], states[RANKS];
    _Atomic int64_t steps[RANKS];
} * seen;

/* Bytes of the range that are in memory, by the kernel's pages that lie in it whole. */
static size_t resident(const uint8_t *begin, size_t bytes)
{
    const size_t small = (size_t)sysconf(_SC_PAGESIZE);
    const uintptr_t first = ((uintptr_t)begin + small - 1) / small * small,
                    end = ((uintptr_t)begin + bytes) / small * small;
    if (first >= end) return 0;
    const size_t pages = (end - first) / small;
    unsigned char *in = malloc(pages);
    size_t count = 0;
    assert_non_null(in);
    assert_int_equal(mincore((void *)first, end - first, in), 0);
    for (size_t i = 0; i < pages; i++) count += in[i] & 1;
    free(in);
    return count * small;
}

/* Of pages and slots, but for the slots that are there anyhow and the one through which experts move. */
static size_t touched_of_pages_and_slots(const cot_runner *r)
{
    const cot_kv *kv = &r->heads.kv;
    const size_t slots = resident(cot_local(r->fabric, r->slots.at), cot_runner_pools_bytes(&r->o)),
                 slot = (size_t)r->o.networks->slot_bytes[0],
                 base = (size_t)r->c->moe_layers * (size_t)(r->o.layout->slots_per_rank - 1 - SPARE) * slot;
    return resident(kv->memory, (size_t)kv->pages * kv->page_bytes) +
           (slots > base + slot ? slots - base - slot : 0);
}

static size_t touched_of_states(const cot_runner *r)
{
    const cot_state *s = &r->heads.state;
    const size_t bytes = (size_t)(s->sequences + s->snapshots) * cot_state_bytes(s);
    return bytes ? resident((const uint8_t *)s->memory, bytes) : 0;
}

cot_status __real_cot_runner_step(cot_runner *r, const cot_step *step, cot_step_result *result,
                                  cot_error *error);
cot_status __wrap_cot_runner_step(cot_runner *r, const cot_step *step, cot_step_result *result,
                                  cot_error *error);
cot_status __wrap_cot_runner_step(cot_runner *r, const cot_step *step, cot_step_result *result,
                                  cot_error *error)
{
    const cot_status status = __real_cot_runner_step(r, step, result, error);
    const int rank = r->fabric->rank;
    if (!seen) return status;
    seen->pages_and_slots[rank] = touched_of_pages_and_slots(r);
    seen->states[rank] = touched_of_states(r);
    atomic_fetch_add(&seen->steps[rank], 1);
    return status;
}

struct watched {
    size_t most, most_of_states; // touched, by all ranks
    int64_t looks;
};

static void check(struct watched *w, cot_engine *e)
{
    cot_engine_rebalancing told;
    cot_engine_get_rebalancing(e, &told);
    const cot_engine_budget *b = &told.budget;
    const int64_t open = e->loop.scheduler.pool.open * (int64_t)e->budgeting.page_bytes,
                  context_pages = cot_page_count(e->config->max_context);
    assert_int_equal(b->pages_bytes, open);
    assert_int_equal(b->bytes, MEMORY);
    // of moves that are cut off each rank may keep an expert in the slot that they go through until the next ones, and a part of a copy
    const int64_t transit = RANKS * e->networks.slot_bytes[0];
    assert_true(open + b->replicas_bytes + b->states_bytes <= b->bytes + transit &&
                b->pages_bytes + b->slots_bytes + b->states_bytes <= b->bytes);
    assert_true(e->loop.scheduler.pool.open >= context_pages);
    w->looks = 0;
    for (int i = 0; i < COT_ENGINE_BUDGET_REASONS; i++) w->looks += b->looks[i];
    size_t states = 0, now = 0;
    for (int r = 0; r < RANKS; r++) {
        while (atomic_load(&seen->steps[r]) < atomic_load(&seen->steps[0])) sched_yield();
        states += seen->states[r];
        now += seen->pages_and_slots[r] + seen->states[r];
    }
    const size_t small = (size_t)sysconf(_SC_PAGESIZE),
                 rows = b->states_bytes ? (size_t)(e->runner.sequences + e->runner.snapshots) : 0,
                 pages = (size_t)b->bytes / e->budgeting.page_bytes,
                 slots = 1 + (size_t)b->bytes / (size_t)e->networks.slot_bytes[0];
    if (now > w->most) w->most = now;
    if (states > w->most_of_states) w->most_of_states = states;
    // a page of the kernel in which one ends and another begins stays where one of them was
    if (now > (size_t)(b->bytes + 2 * transit) + RANKS * (pages + slots + rows) * small)
        fail_msg("%zu bytes are touched of %lld, %lld of pages, %lld of replicas and %lld of states", now,
                 (long long)b->bytes, (long long)b->pages_bytes, (long long)b->replicas_bytes,
                 (long long)b->states_bytes);
    if (states > (size_t)b->states_bytes + RANKS * (rows + 1) * small)
        fail_msg("%zu bytes are touched of states, which have %lld", states, (long long)b->states_bytes);
}

/* ---- texts ---- */

struct text {
    int32_t *ids;
    int64_t prompt, more;
    int32_t wanted[64], told[64];
    int64_t wanted_tokens, tokens;
    bool over;
};

static bool on_token(void *context, uint64_t request, int32_t token)
{
    struct text *t = context;
    (void)request;
    assert_true(t->tokens < t->more);
    t->told[t->tokens++] = token;
    return true;
}

static void on_finish(void *context, uint64_t request, cot_finish finish)
{
    (void)request;
    assert_int_equal(finish, COT_FINISH_LENGTH);
    ((struct text *)context)->over = true;
}

static void ask(cot_engine *e, struct text *t)
{
    cot_request request = generating_from(t->ids, t->prompt, t->more);
    const cot_events events = {.context = t, .on_token = on_token, .on_finish = on_finish};
    request.sampling.ignore_eos = true;
    t->tokens = 0;
    t->over = false;
    must_submit(e, &request, COT_HOME_ANY, &events);
}

/* Texts that share beginnings, of up to half a context. */
static void draw_texts(struct text *texts, int64_t vocab, uint64_t *seed)
{
    for (int i = 0; i < TEXTS; i++) {
        struct text *t = &texts[i];
        *t = (struct text){
            .prompt = 1 + (int64_t)(draw(seed) % 256), .more = 1 + (int64_t)(draw(seed) % 60), .over = true};
        t->ids = drawn_ids(256, vocab, seed);
        if (i % 4) memcpy(t->ids, texts[i / 4 * 4].ids, (size_t)(draw(seed) % 200) * sizeof *t->ids);
    }
}

static cot_engine *open_model(const struct model *m, const cot_engine_options *o)
{
    cot_engine *e;
    cot_error error;
    fflush(stdout); // a forked rank may flush its copy, too
    const cot_status status = m->config
                                  ? cot_engine_open_random(&e, m->config, strlen(m->config), 3, o, &error)
                                  : cot_engine_open(&e, TINY, o, NULL, &error);
    if (status != COT_OK) fail_msg("%s", error.message);
    return e;
}

static void find_wanted(const struct model *m, const cot_engine_options *o, struct text *texts)
{
    cot_engine *e = open_model(m, o);
    for (int i = 0; i < TEXTS; i++) ask(e, &texts[i]);
    must_finish(e);
    cot_engine_close(e);
    for (int i = 0; i < TEXTS; i++) {
        assert_int_equal(texts[i].tokens, texts[i].more);
        memcpy(texts[i].wanted, texts[i].told, sizeof texts[i].wanted);
    }
}

static void judge(const struct text *t)
{
    assert_int_equal(t->tokens, t->more);
    assert_memory_equal(t->told, t->wanted, (size_t)t->tokens * sizeof *t->told);
}

/* Moves are cut off now and then, so that replicas stay for which there is to be no room. */
static bool cancel(cot_engine *e, uint64_t *seed)
{
    cot_engine_moves moves;
    cot_engine_get_moves(e, &moves);
    if (!moves.id || moves.over || draw(seed) % 40) return false;
    assert_int_equal(cot_engine_cancel_moves(e, moves.id, NULL), COT_OK);
    return true;
}

/* A few texts at a time, over and over, until the engine has looked often enough and the split has moved both ways. */
static void live(cot_engine *e, struct text *texts, int64_t looks, uint64_t *seed)
{
    struct watched w = {0};
    struct text *running[AT_ONCE] = {NULL};
    int64_t opened = 0, closed = 0, filled = 0, moved = 0, cancelled = 0, open = e->loop.scheduler.pool.open;
    while (w.looks < looks) {
        for (int i = 0; i < AT_ONCE; i++) {
            if (running[i] && !running[i]->over) continue;
            if (running[i]) judge(running[i]);
            struct text *t = &texts[draw(seed) % TEXTS];
            if (!t->over) continue;
            running[i] = t;
            ask(e, t);
        }
        must_step(e);
        check(&w, e);
        cancelled += cancel(e, seed);
        const int64_t now = e->loop.scheduler.pool.open;
        opened += now > open;
        closed += now < open;
        open = now;
        cot_engine_rebalancing told;
        cot_engine_get_rebalancing(e, &told);
        assert_int_equal(told.refused,
                         0); // what is left of moves that were cut off, too, is a beginning for others
        if (told.budget.replicas_bytes > filled) filled = told.budget.replicas_bytes;
        moved = told.moved;
    }
    must_finish(e);
    for (int i = 0; i < TEXTS; i++)
        if (texts[i].tokens) judge(&texts[i]);
    printf("%lld looks: pages opened %lld times and closed %lld times, %lld moves of which %lld were cut "
           "off, at most %lld bytes of "
           "replicas and %zu "
           "touched of %d, %zu of them of states\n",
           (long long)w.looks, (long long)opened, (long long)closed, (long long)moved, (long long)cancelled,
           (long long)filled, w.most, MEMORY, w.most_of_states);
    assert_true(opened > 3 && closed > 3 && moved > 0 && filled > 0);
    assert_true(w.most > MEMORY / 2);
    assert_true(w.most_of_states >= e->budgeting.states_bytes / 2);
}

static void live_through(const struct model *m, const char *fabric, uint64_t *seed)
{
    static struct text texts[TEXTS];
    const struct setting s = {.ranks = RANKS,
                              .attention = "dp",
                              .precision = "fp32",
                              .step_tokens = 64,
                              .sequences = AT_ONCE,
                              .block_tokens = 16,
                              .half_life = 4096,
                              .quiet = true};
    cot_engine_options o = options_of(&s);
    draw_texts(texts, m->vocab, seed);
    find_wanted(m, &o, texts);
    o.group.fabric = fabric;
    o.experts.rebalance = "load";
    o.experts.rebalance_interval = "6steps";
    o.experts.migration_share = 1;
    o.experts.spare_slots = SPARE;
    o.memory.kv_tokens = 0;
    o.memory.total_bytes = MEMORY;
    if (m->config) o.memory.snapshots = SNAPSHOTS;
    splits = draw(seed) | 1;
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_SHARED, -1, 0);
    assert_true(seen != MAP_FAILED);
    cot_engine *e = open_model(m, &o);
    assert_true(e->budgeting.moves);
    assert_int_equal(e->budgeting.states_bytes > 0, m->config != NULL);
    live(e, texts, 40, seed);
    cot_engine_close(e);
    munmap(seen, sizeof *seen);
    seen = NULL;
    for (int i = 0; i < TEXTS; i++) free(texts[i].ids);
}

static void splits_move_under_texts(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    live_through(&tiny, NULL, &seed);
    if (CAN_FORK) live_through(&tiny, "processes", &seed);
}

/* Layers that have a state in place of keys: those of sequences and of snapshots are in the memory, too. */
static void splits_move_beside_states(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    live_through(&with_states, NULL, &seed);
}

/* A sequence's states, and a snapshot, take as much however many ranks share them and whatever is split; pages have what is left, to the last that it
 * holds. */
static void states_have_their_part(void **state)
{
    (void)state;
    size_t states = 0;
    for (int way = 0; way < 5; way++) {
        const int ranks = 1 + way / 2, sequences = 3 + way;
        const struct setting s = {.ranks = ranks,
                                  .attention = way % 2 ? "tp" : "dp",
                                  .precision = "fp32",
                                  .sequences = sequences,
                                  .block_tokens = 16,
                                  .quiet = true};
        cot_engine_options o = options_of(&s);
        o.memory.total_bytes = MEMORY;
        o.memory.snapshots = SNAPSHOTS;
        cot_engine *e = open_model(&with_states, &o);
        const size_t rows = (size_t)(sequences + SNAPSHOTS), of_row = e->budgeting.states_bytes / rows,
                     pages = (size_t)e->runner.pages * e->budgeting.page_bytes;
        assert_int_equal(e->budgeting.states_bytes % rows, 0);
        if (way) assert_int_equal(of_row, states);
        states = of_row;
        assert_true(states > 0 && pages + rows * states <= MEMORY &&
                    pages + rows * states + e->budgeting.page_bytes > MEMORY);
        cot_engine_close(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(splits_move_under_texts),
                                       cmocka_unit_test(splits_move_beside_states),
                                       cmocka_unit_test(states_have_their_part)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
