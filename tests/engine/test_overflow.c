/* Weights that are finite and yet too large: a sequence whose values overflow ends, and nothing else does. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/engine/tiny_copy.h"
#include "harness/memory.h"
#include "harness/seed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HIDDEN = 192,
    BAD = 4000,         // the token whose values overflow
    PLACE = HIDDEN - 1, // where its embedding is large, and all others' are zero
    LARGEST = 0x7f7f,   // as bf16, as are the following
    HUGE_EVERYWHERE = 0x7e7e,
    ONE = 0x3f80,
    SIXTY_FOUR = 0x4280
};

/* What overflows. */
typedef enum what {
    VALUES, // attention's, in the first layer
    GATE,   // the router's scores, in the first layer
    LOGITS, // nothing before them
    ALL_LOGITS,
    ALL_GATES // the two of every token
} what;

static bool ends_with(const char *name, const char *ending)
{
    const size_t length = strlen(name), tail = strlen(ending);
    return length >= tail && strcmp(name + length - tail, ending) == 0;
}

/* Elements [row][PLACE] of a matrix with rows of HIDDEN. */
static void set_column(uint16_t *matrix, int64_t rows, uint16_t value)
{
    for (int64_t r = 0; r < rows; r++) matrix[r * HIDDEN + PLACE] = value;
}

static void edit(uint16_t *data, const cot_tensor *t, const void *which)
{
    const what w = *(const what *)which;
    const int64_t columns = t->dims == 2 ? t->shape[1] : t->shape[0];
    const bool first = strncmp(t->name, "model.layers.0.", 15) == 0,
               output = ends_with(t->name, "o_proj.weight") || ends_with(t->name, "down_proj.weight");
    if ((w == ALL_LOGITS && ends_with(t->name, "model.norm.weight")) ||
        (w == ALL_GATES && ends_with(t->name, "post_attention_layernorm.weight")))
        for (int64_t i = 0; i < columns; i++) data[i] = HUGE_EVERYWHERE;
    if (w > LOGITS) return;
    if (ends_with(t->name, "embed_tokens.weight")) {
        set_column(data, t->shape[0], 0);
        data[(int64_t)BAD * HIDDEN + PLACE] = SIXTY_FOUR;
    }
    if (ends_with(t->name, "model.norm.weight")) data[PLACE] = w == LOGITS ? LARGEST : 0;
    if (first && ends_with(t->name, "layernorm.weight")) data[PLACE] = ONE;
    if (w == VALUES && first && ends_with(t->name, "v_proj.weight")) set_column(data, 1, LARGEST);
    if (w == GATE && first && ends_with(t->name, "mlp.gate.weight")) set_column(data, 1, LARGEST);
    // nothing is added to that place, so that other tokens keep a zero there
    if (output && (w == LOGITS || (w == GATE && first)))
        for (int64_t i = 0; i < columns; i++) data[PLACE * columns + i] = 0;
}

/* ---- runs ---- */

enum { MOST_TOKENS = 12, PROMPT = 70, AT = 40, BLOCK = 16, COMPANY = 6 };

typedef struct text {
    int32_t tokens[MOST_TOKENS];
    int64_t count, cached, routed;
    int finishes;
    cot_finish finish;
} text;

static void on_admit(void *context, uint64_t request, int64_t cached)
{
    (void)request;
    ((text *)context)->cached = cached;
}

static bool on_token(void *context, uint64_t request, int32_t token)
{
    text *t = context;
    (void)request;
    assert_true(t->count < MOST_TOKENS && !t->finishes);
    t->tokens[t->count++] = token;
    return true;
}

static void on_routing(void *context, uint64_t request, int64_t position, int32_t token,
                       const uint16_t *experts, const float *weights)
{
    (void)request, (void)token, (void)experts;
    ((text *)context)->routed = position + 1;
    assert_true(weights[0] >= 0 && weights[0] <= 1); // no NaN is told
}

static void on_finish(void *context, uint64_t request, cot_finish finish)
{
    text *t = context;
    (void)request;
    t->finishes++;
    t->finish = finish;
}

static void run_all(cot_engine *engine, const cot_request *requests, text *texts, int count)
{
    size_t left = 1;
    cot_error error = {0};
    memset(texts, 0, (size_t)count * sizeof *texts);
    for (int i = 0; i < count; i++) {
        uint64_t id;
        const cot_events events = {.context = &texts[i],
                                   .on_admit = on_admit,
                                   .on_token = on_token,
                                   .on_routing = on_routing,
                                   .on_finish = on_finish};
        if (cot_engine_submit(engine, &id, &requests[i], COT_HOME_ANY, &events, &error) != COT_OK)
            fail_msg("%s", error.message);
    }
    while (left)
        if (cot_engine_step(engine, &left, &error) != COT_OK) fail_msg("%s", error.message);
    for (int i = 0; i < count; i++) assert_int_equal(texts[i].finishes, 1);
    cot_engine_load load;
    cot_engine_get_load(engine, &load);
    assert_int_equal(load.running + load.waiting, 0);
    assert_int_equal(load.kv_pages_free, load.kv_pages);
}

static void run_alone(cot_engine *engine, cot_request request, const char *salt, text *t)
{
    request.cache_salt = salt;
    request.cache_salt_bytes = strlen(salt);
    run_all(engine, &request, t, 1);
}

static void assert_overflowed(const text *t, int64_t tokens)
{
    assert_int_equal(t->finish, COT_FINISH_OVERFLOW);
    assert_int_equal(t->count, tokens);
}

static void assert_same(const text *a, const text *b)
{
    assert_int_equal(a->finish, COT_FINISH_LENGTH);
    assert_int_equal(a->count, MOST_TOKENS);
    assert_int_equal(a->count, b->count);
    assert_memory_equal(a->tokens, b->tokens, sizeof a->tokens);
}

/* Draws anything but the token whose values overflow. */
static cot_request request_of(const int32_t *ids, int64_t tokens, uint64_t seed)
{
    static const int32_t bad = BAD;
    static const float never = -100;
    cot_request r;
    cot_request_init(&r);
    r.prompt = ids;
    r.prompt_tokens = tokens;
    r.sampling.temperature = 1;
    r.sampling.seed = seed;
    r.sampling.ignore_eos = true;
    r.sampling.max_tokens = MOST_TOKENS;
    r.sampling.bias_tokens = &bad;
    r.sampling.bias = &never;
    r.sampling.bias_count = 1;
    return r;
}

/* ---- the tests ---- */

/* One of several overflows: the others have the texts that they have alone, and so has one that begins like it. */
static void overflow_in_company(cot_engine *engine, what w, uint64_t *seed)
{
    int32_t *ids[COMPANY];
    cot_request requests[COMPANY];
    text alone[COMPANY], together[COMPANY], again;
    for (int i = 0; i < COMPANY; i++) {
        ids[i] = drawn_ids(PROMPT, BAD, seed);
        requests[i] = request_of(ids[i], 1 + (int64_t)(draw(seed) % PROMPT), draw(seed));
    }
    // requests 2 and 3 overflow; 4 begins as they do
    requests[2].prompt_tokens = requests[3].prompt_tokens = requests[4].prompt_tokens = PROMPT;
    const int64_t at = w == LOGITS ? PROMPT - 1 : AT;
    memcpy(ids[3], ids[2], (size_t)PROMPT * sizeof **ids);
    memcpy(ids[4], ids[2], (size_t)at * sizeof **ids);
    ids[2][at] = ids[3][at] = BAD;
    for (int i = 0; i < COMPANY; i++) run_alone(engine, requests[i], "alone", &alone[i]);
    run_all(engine, requests, together, COMPANY);
    for (int i = 0; i < COMPANY; i++)
        if (i == 2 || i == 3) {
            assert_overflowed(&alone[i], 0);
            assert_overflowed(&together[i], 0);
            assert_true(together[i].routed <= at);
        } else {
            assert_same(&alone[i], &together[i]);
        }
    // nothing from there on was kept, but what came before was
    run_alone(engine, requests[2], "alone", &again);
    assert_overflowed(&again, 0);
    assert_true(again.cached <= at / BLOCK * BLOCK);
    run_alone(engine, requests[4], "alone", &again);
    assert_true(again.cached >= BLOCK);
    assert_same(&again, &together[4]);
    for (int i = 0; i < COMPANY; i++) free(ids[i]);
}

/* What is drawn may overflow, too, which is seen when it is fed. */
static void overflow_of_what_was_drawn(cot_engine *engine, uint64_t *seed)
{
    static const float always = 100;
    int32_t *ids = drawn_ids(PROMPT, BAD, seed);
    cot_request requests[3];
    text alone, together[3];
    for (int i = 0; i < 3; i++) requests[i] = request_of(ids + i, 9, draw(seed));
    requests[1].sampling.bias = &always;
    requests[1].sampling.temperature = 0;
    run_all(engine, requests, together, 3);
    assert_overflowed(&together[1], 1);
    assert_int_equal(together[1].tokens[0], BAD);
    for (int i = 0; i < 3; i += 2) {
        run_alone(engine, requests[i], "drawn", &alone);
        assert_same(&alone, &together[i]);
    }
    free(ids);
}

/* Where only logits overflow, a prompt may hold the token: nobody asks for them there, unless all are asked for. */
static void overflow_of_logits_that_nobody_needs(cot_engine *engine, uint64_t *seed)
{
    int32_t *ids = drawn_ids(PROMPT, BAD, seed);
    ids[AT] = BAD;
    cot_request requests[] = {request_of(ids, PROMPT, 1), forced_request(ids, PROMPT, AT)};
    text t;
    run_all(engine, requests, &t, 1);
    assert_int_equal(t.finish, COT_FINISH_LENGTH);
    size_t failed = 77;
    cot_error error = {0};
    assert_int_equal(cot_engine_run(engine, requests, 2, &(cot_events){0}, &failed, &error),
                     COT_INVALID_ARGUMENT);
    assert_int_equal(failed, 1);
    assert_non_null(strstr(error.message, "overflowed"));
    run_all(engine, requests, &t, 1); // the engine is as good as before
    assert_int_equal(t.finish, COT_FINISH_LENGTH);
    free(ids);
}

static void one_sequence_ends(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (what w = VALUES; w <= LOGITS; w++) {
        char folder[] = TINY_COPY;
        tiny_copy_make(folder, edit, &w);
        for (int way = 0; way < 9; way++) {
            struct setting s = {.folder = folder,
                                .ranks = way % 3 ? 4 : 1,
                                .processes = way % 3 == 2,
                                .attention = "dp",
                                .op = (way + (int)w) % 2 ? "bulk" : "fused",
                                .precision = way < 3   ? "fp32"
                                             : way < 6 ? "bf16"
                                                       : "int8",
                                .step_tokens = 32,
                                .kv_tokens = 2000,
                                .block_tokens = BLOCK,
                                .sequences = 8};
            cot_engine *engine = must_open(&s);
            overflow_in_company(engine, w, &seed);
            overflow_of_what_was_drawn(engine, &seed);
            if (w == LOGITS) overflow_of_logits_that_nobody_needs(engine, &seed);
            cot_engine_close(engine);
        }
        tiny_copy_remove(folder);
    }
}

/* Every sequence overflows, with either kind of attention: all end, and the engine stays as good as it was. */
static void all_end(void **state)
{
    (void)state;
    static const int32_t prompt[] = {40, 50, 60, 70, 80};
    for (what w = ALL_LOGITS; w <= ALL_GATES; w++) {
        char folder[] = TINY_COPY;
        tiny_copy_make(folder, edit, &w);
        for (int way = 0; way < 8; way++) {
            struct setting s = {.folder = folder,
                                .ranks = way & 1 ? 3 : 1,
                                .attention = way & 2 ? "dp" : "tp",
                                .processes = way & 4};
            cot_engine *engine = must_open(&s);
            cot_request requests[4];
            text texts[4];
            cot_error error = {0};
            cot_stats stats;
            size_t failed = 77;
            for (int i = 0; i < 4; i++) requests[i] = request_of(prompt, 1 + i, 0);
            assert_int_equal(cot_engine_run(engine, requests, 4, &(cot_events){0}, &failed, &error),
                             COT_INVALID_ARGUMENT);
            assert_int_equal(failed, 0);
            assert_int_equal(error.status, COT_INVALID_ARGUMENT);
            run_all(engine, requests, texts, 4);
            for (int i = 0; i < 4; i++) assert_overflowed(&texts[i], 0);
            assert_int_equal(cot_engine_stats(engine, &stats, &error), COT_OK);
            cot_stats_clear(&stats);
            cot_engine_close(engine);
        }
        tiny_copy_remove(folder);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_sequence_ends), cmocka_unit_test(all_end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
