/* What a request is told does not depend on what the KV cache had of it, on where its steps were cut, on its having been
 * preempted, on its company, nor on the number of ranks: chances bit by bit. */
#include "harness/cmocka.h"
#include "harness/engine/requests.h"
#include "harness/engine/small_models.h"
#include "harness/engine/steps.h"
#include "harness/memory.h"
#include "harness/seed.h"

#include "engine/engine_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KINDS = 14,
    LONGEST = 320,
    MOST_SAID = 40,
    TOP = 3,
    VOCABULARY = 67,
    ROUNDS = 3,
    REQUESTS = 40,
    WEIGHTS_SEED = 11
};

/* All that is told of a request. */
struct told {
    const struct told *alone;
    uint64_t id;
    int64_t sampled, cached;
    int32_t token[MOST_SAID];
    float logprob[MOST_SAID];
    cot_logprob top[MOST_SAID][TOP];
    int admissions, finishes;
    cot_finish finish;
};

struct question {
    const char *config;
    const char *precision, *attention;
    int32_t ids[KINDS][LONGEST];
    cot_request request[KINDS];
    struct told alone[KINDS];
};

static struct {
    uint64_t hits, preemptions, evictions;
    int64_t routed;
} seen;

static void take_admit(void *context, uint64_t request, int64_t cached)
{
    struct told *t = context;
    (void)request;
    assert_int_equal(t->admissions++, 0);
    t->cached = cached;
}

static void take_sampled(void *context, uint64_t request, const cot_sampled *sampled)
{
    struct told *t = context;
    const int64_t i = t->sampled++;
    (void)request;
    assert_true(i < MOST_SAID && sampled->top_count == TOP && t->admissions == 1);
    t->token[i] = sampled->token;
    t->logprob[i] = sampled->logprob;
    memcpy(t->top[i], sampled->top, sizeof t->top[i]);
    if (!t->alone) return;
    if (i >= t->alone->sampled || t->token[i] != t->alone->token[i] ||
        t->logprob[i] != t->alone->logprob[i] || memcmp(t->top[i], t->alone->top[i], sizeof t->top[i]) != 0)
        fail_msg("token %lld is %d at %.9g, alone %d at %.9g; %lld were cached", (long long)i, sampled->token,
                 (double)sampled->logprob, t->alone->token[i], (double)t->alone->logprob[i],
                 (long long)t->cached);
}

static void take_routing(void *context, uint64_t request, int64_t position, int32_t token,
                         const uint16_t *experts, const float *weights)
{
    (void)context, (void)request, (void)position, (void)token, (void)experts, (void)weights;
    seen.routed++;
}

static void take_finish(void *context, uint64_t request, cot_finish finish)
{
    struct told *t = context;
    (void)request;
    t->finishes++;
    t->finish = finish;
}

static void submit(cot_engine *engine, struct told *t, const cot_request *request, int home)
{
    const cot_events events = {.context = t,
                               .on_admit = take_admit,
                               .on_sampled = take_sampled,
                               .on_routing = take_routing,
                               .on_finish = take_finish};
    t->id = must_submit(engine, request, home, &events);
}

static cot_engine_options options_for(const struct question *q, int ranks)
{
    cot_engine_options o;
    cot_engine_options_init(&o);
    o.group.ranks = ranks;
    o.weights.precision = q->precision;
    o.attention.mode = q->attention;
    o.group.threads = 2;
    return o;
}

/* Requests that begin alike, as far as a drawn place. */
static void draw_question(struct question *q, uint64_t *seed, int ranks)
{
    for (int k = 0; k < KINDS; k++) {
        const int like = k ? (int)(draw(seed) % (uint64_t)k) : 0;
        const int64_t alike = k ? (int64_t)(draw(seed) % 250) : 0, prompt = 1 + (int64_t)(draw(seed) % 270);
        for (int64_t t = 0; t < LONGEST; t++)
            q->ids[k][t] = t < alike ? q->ids[like][t] : (int32_t)(draw(seed) % VOCABULARY);
        cot_request *r = &q->request[k];
        *r = generating_from(q->ids[k], prompt, 1 + (int64_t)(draw(seed) % MOST_SAID));
        r->logprobs = TOP;
        r->sampling.temperature = k % 2 ? 1.3 : 0;
        r->sampling.seed = draw(seed);
        r->sampling.stream = (uint32_t)k;
        r->sampling.ignore_eos = k % 3 != 0;
        if (k % 4 == 3) r->sampling.frequency_penalty = 0.5;
        if (k % 5 == 4) {
            r->cache_salt = "salt";
            r->cache_salt_bytes = 4;
        }
    }
    const cot_engine_options o = options_for(q, ranks);
    cot_engine *engine = must_open_random(q->config, WEIGHTS_SEED, &o);
    for (int k = 0; k < KINDS; k++) {
        q->alone[k] = (struct told){0};
        submit(engine, &q->alone[k], &q->request[k], 0);
        must_finish(engine);
        assert_int_equal(q->alone[k].finishes, 1);
        assert_int_equal(q->alone[k].cached, 0);
    }
    cot_engine_close(engine);
}

static void ask(const struct question *q, int ranks, uint64_t *seed)
{
    static struct told told[REQUESTS];
    cot_engine_options o = options_for(q, ranks);
    o.memory.block_tokens = 1 << draw(seed) % 7;
    o.batch.step_tokens = 1 + (int64_t)(draw(seed) % (draw(seed) % 2 ? 30 : 300));
    o.batch.sequences = 1 + (int)(draw(seed) % 6);
    o.memory.kv_tokens = 320 + (int64_t)(draw(seed) % 500);
    o.watch.capture_routing = draw(seed) % 4 == 0;
    if (draw(seed) % 3 == 0) o.group.fabric = "processes";
    static const int64_t targets[] = {0, COT_TBT_AUTO, 1, 1000000};
    o.batch.tbt_ns = targets[draw(seed) % 4];
    o.batch.max_wait_steps = (int64_t)(draw(seed) % 10);
    cot_engine *engine = must_open_random(q->config, WEIGHTS_SEED, &o);
    cot_engine_load load;
    printf("%s %s, %d ranks (%s), %lld tokens a step, blocks of %lld\n", q->precision, q->attention, ranks,
           o.group.fabric ? o.group.fabric : "threads", (long long)o.batch.step_tokens,
           (long long)o.memory.block_tokens);
    size_t left = 1;
    for (int count = 0; count < REQUESTS || left;) {
        if (count < REQUESTS && draw(seed) % 3 == 0) {
            const size_t kind = draw(seed) % KINDS;
            struct told *t = &told[count++];
            *t = (struct told){.alone = &q->alone[kind]};
            submit(engine, t, &q->request[kind],
                   draw(seed) % 2 ? COT_HOME_ANY : (int)(draw(seed) % (uint64_t)ranks));
        }
        if (count && draw(seed) % 20 == 0) {
            struct told *t = &told[draw(seed) % (uint64_t)count];
            const bool over = t->finishes;
            assert_int_equal(cot_engine_cancel(engine, t->id, NULL), over ? COT_NOT_FOUND : COT_OK);
        }
        left = must_step(engine);
        cot_engine_get_load(engine, &load);
        assert_true(load.kv_pages_free >= 0 && load.kv_pages_free <= load.kv_pages);
        assert_int_equal(load.waiting + load.running, left);
        if (o.batch.tbt_ns >= 0) assert_int_equal(load.tbt_ns, o.batch.tbt_ns);
        if (count < REQUESTS) left = 1;
    }
    for (int i = 0; i < REQUESTS; i++) {
        const struct told *t = &told[i];
        assert_int_equal(t->finishes, 1);
        if (t->finish == COT_FINISH_CANCELLED) continue;
        assert_int_equal(t->finish, t->alone->finish);
        assert_int_equal(t->sampled, t->alone->sampled);
    }
    assert_true(load.observed_ns > 0 && load.predicted_ns > 0 && load.prediction_error > 0);
    assert_true(o.batch.tbt_ns != COT_TBT_AUTO || load.tbt_ns > 0);
    assert_int_equal(load.kv_pages_free, load.kv_pages);
    for (int64_t p = 0; p < load.kv_pages; p++) // what is left are blocks
        assert_int_equal(engine->loop.scheduler.pool.references[p], engine->loop.scheduler.pool.idle[p]);
    seen.hits += load.hit_tokens;
    seen.preemptions += load.preemptions;
    seen.evictions += load.evicted_blocks;
    cot_engine_close(engine);
}

static void texts_do_not_depend_on_the_cache(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    static struct question q;
    static const char *const configs[] = {small_qwen, small_sliding, small_latent};
    static const char *const precisions[] = {"bf16", "fp32", "int8"};
    for (int round = 0; round < ROUNDS; round++)
        for (int c = 0; c < 3; c++) {
            q.config = configs[c];
            q.precision = precisions[(round + c) % 3];
            q.attention = "dp";
            draw_question(&q, &seed, 1);
            for (int ranks = 1; ranks <= 4; ranks *= 2) ask(&q, ranks, &seed);
            q.attention = "tp"; // two addends, which nobody rounds: no order
            q.precision = "fp32";
            draw_question(&q, &seed, 2);
            ask(&q, 2, &seed);
        }
    printf("%llu tokens found, %llu preempted, %llu blocks evicted\n", (unsigned long long)seen.hits,
           (unsigned long long)seen.preemptions, (unsigned long long)seen.evictions);
    assert_true(seen.hits > 1000 && seen.preemptions > 5 && seen.evictions > 100 && seen.routed > 100);
}

/* An engine with blocks of 16 tokens and room for all, and requests drawn for it, which the caller frees. */
static cot_engine *open_drawn(struct question **drawn, int ranks, uint64_t *seed)
{
    struct question *q = *drawn = must_allocate(1, sizeof *q);
    *q = (struct question){.config = small_qwen, .precision = "bf16", .attention = "dp"};
    draw_question(q, seed, 1);
    cot_engine_options o = options_for(q, ranks);
    o.memory.block_tokens = 16;
    o.memory.kv_tokens = 2000;
    return must_open_random(q->config, WEIGHTS_SEED, &o);
}

/* The second time all whole blocks are there, but never the last token. */
static void a_prompt_comes_again(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct question *q;
    cot_engine *engine = open_drawn(&q, 1, &seed);
    cot_engine_load load;
    uint64_t asked = 0, found = 0;
    int64_t longest = 0;
    for (int64_t tokens = 1; tokens < 200; tokens += 1 + (int64_t)(draw(&seed) % 9)) {
        longest = tokens;
        cot_request r = generating_from(q->ids[0], tokens, 1);
        r.logprobs = TOP;
        for (int way = 0; way < 4; way++) {
            struct told t = {0};
            r.all_logits = way == 2;
            r.cache_salt = way == 3 ? "other" : NULL;
            r.cache_salt_bytes = way == 3 ? 5 : 0;
            submit(engine, &t, &r, COT_HOME_ANY);
            must_finish(engine);
            if (way == 1) assert_int_equal(t.cached, (tokens - 1) / 16 * 16);
            if (way == 2) assert_int_equal(t.cached, 0);
            if (way == 3) assert_true(t.cached <= tokens - 1 && t.cached % 16 == 0);
            asked += way == 2 ? 0 : (uint64_t)tokens;
            found += (uint64_t)t.cached;
        }
    }
    cot_engine_get_load(engine, &load);
    assert_int_equal(load.queried_tokens, asked);
    assert_int_equal(load.hit_tokens, found);
    assert_int_equal(load.preemptions + load.evicted_blocks, 0);
    assert_int_equal(load.cached_blocks, 2 * (longest / 16)); // of two salts
    cot_engine_close(engine);
    free(q);
}

/* A request goes where most of it is; else where there is least to do. */
static void homes_are_chosen(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct question *q;
    cot_engine *engine = open_drawn(&q, 3, &seed);
    cot_request r = generating_from(q->ids[0], 100, 2), other = generating_from(q->ids[0] + 1, 50, 2);
    r.logprobs = other.logprobs = TOP;
    assert_int_equal(cot_engine_choose_home(engine, &r), 0);
    static struct told t[4];
    memset(t, 0, sizeof t);
    submit(engine, &t[0], &r, 2);
    assert_int_equal(cot_engine_choose_home(engine, &r), 0); // nothing is there yet
    submit(engine, &t[1], &other, COT_HOME_ANY);
    assert_int_equal(cot_engine_choose_home(engine, &r), 1); // 0 has something to do
    must_finish(engine);
    assert_int_equal(cot_engine_choose_home(engine, &r), 2);
    assert_int_equal(cot_engine_choose_home(engine, &other), 0);
    r.cache_salt = "x";
    r.cache_salt_bytes = 1;
    assert_int_equal(cot_engine_choose_home(engine, &r), 0);
    r.cache_salt_bytes = 0;
    r.prompt_tokens = 16; // no whole block but the last token's
    assert_int_equal(cot_engine_choose_home(engine, &r), 0);
    r.prompt_tokens = 17;
    assert_int_equal(cot_engine_choose_home(engine, &r), 2);
    submit(engine, &t[2], &r, COT_HOME_ANY);
    must_finish(engine);
    assert_int_equal(t[2].cached, 16);
    cot_engine_close(engine);
    free(q);
}

static void options_are_checked(void **state)
{
    (void)state;
    struct question q = {.config = small_qwen, .precision = "bf16", .attention = "dp"};
    static const struct {
        int64_t block;
        size_t bytes;
        const char *says;
        int64_t tbt, wait;
    } bad[] = {{3, 0, "tokens of a block 3 are no power of two", 0, 0},
               {128, 0, "tokens of a block 128 is not in [1, 64]", 0, 0},
               {-1, 0, "tokens of a block -1", 0, 0},
               {0, 100, "100 bytes of KV cache hold no page", 0, 0},
               {0, 0, "the time between tokens -2", -2, 0},
               {0, 0, "most steps to wait -1", 0, -1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cot_engine_options o = options_for(&q, 1);
        o.memory.block_tokens = bad[i].block;
        o.memory.kv_bytes = bad[i].bytes;
        o.batch.tbt_ns = bad[i].tbt;
        o.batch.max_wait_steps = bad[i].wait;
        cot_engine *engine;
        cot_error error = {0};
        assert_int_equal(cot_engine_open_random(&engine, small_qwen, strlen(small_qwen), 1, &o, &error),
                         COT_INVALID_ARGUMENT);
        if (!strstr(error.message, bad[i].says)) fail_msg("'%s' lacks '%s'", error.message, bad[i].says);
    }
    // 2 layers, 2 KV heads, 64 positions of keys of 16 elements, of values as many but in panels of 32, of 2 bytes
    enum { PAGE = 2 * 2 * 64 * (16 + 32) * 2 };
    for (int ranks = 1; ranks <= 2; ranks++)
        for (int dp = 0; dp < 2; dp++) {
            q.attention = dp ? "dp" : "tp";
            cot_engine_options o = options_for(&q, ranks);
            o.memory.block_tokens = 16;
            o.memory.kv_bytes = 33 * PAGE + PAGE / 2;
            cot_engine *engine = must_open_random(q.config, WEIGHTS_SEED, &o);
            cot_engine_load load;
            cot_engine_get_load(engine, &load);
            assert_int_equal(load.kv_pages, 33);
            cot_engine_close(engine);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_do_not_depend_on_the_cache),
        cmocka_unit_test(a_prompt_comes_again),
        cmocka_unit_test(homes_are_chosen),
        cmocka_unit_test(options_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
