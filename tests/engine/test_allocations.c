/* No rank allocates in a step, and nothing is lost where a request finds no memory: the linker sends all allocators
 * of the library through these. */
#include "harness/allocations.h"
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/engine/steps.h"
#include "harness/engine/tables.h"
#include "harness/seed.h"

#include "engine/engine_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Allocations between the first token and the end of the first sequence: all were admitted before. */
struct watch {
    long first, last;
    int64_t tokens, routings;
    bool over;
};

static bool watch_token(void *context, uint64_t request, int32_t token)
{
    struct watch *w = context;
    (void)request, (void)token;
    if (w->over) return true;
    if (!w->tokens++) w->first = allocations_so_far();
    w->last = allocations_so_far();
    return true;
}

static void watch_routing(void *context, uint64_t request, int64_t position, int32_t token,
                          const uint16_t *experts, const float *weights)
{
    (void)request, (void)position, (void)token, (void)experts, (void)weights;
    ((struct watch *)context)->routings++;
}

static void watch_finish(void *context, uint64_t request, cot_finish finish)
{
    struct watch *w = context;
    (void)request, (void)finish;
    w->last = allocations_so_far();
    w->over = true;
}

/* Weights out of random numbers, which a step draws the embedding's rows of. */
static cot_engine *open_small(const struct setting *s)
{
    static const char config[] =
        "{\"architectures\": [\"OlmoeForCausalLM\"], \"vocab_size\": 300, \"hidden_size\": 64, "
        "\"intermediate_size\": 32, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
        "\"num_key_value_heads\": 2, \"num_experts\": 8, \"num_experts_per_tok\": 2, "
        "\"max_position_embeddings\": 256}";
    cot_engine_options options = options_of(s);
    return must_open_random(config, 7, &options);
}

/* way: "dp", "tp", or a pipeline of tp. */
static void watch_decoding(const char *folder, const char *way, int ranks, int threads, const char *precision)
{
    enum { SEQUENCES = 3, TOKENS = 90 };
    const long before = allocations_so_far();
    struct setting s = {.folder = folder,
                        .ranks = ranks,
                        .threads = threads,
                        .precision = precision,
                        .attention = strcmp(way, "dp") ? "tp" : "dp",
                        .block_tokens = ranks % 2 ? 16 : 0, // evicted as pages run out
                        .kv_tokens = ranks % 2 ? SEQUENCES * 64 : SEQUENCES * 128};
    uint64_t seed = test_seed();
    char tables[TABLES_PATH] = "";
    if (!strcmp(way, "s-moe")) {
        s.pipeline = way;
        if (folder && drawn_tables(tables, folder, ranks, false, &seed)) s.tables = tables;
    }
    cot_engine *engine = folder ? must_open(&s) : open_small(&s);
    if (*tables) unlink(tables);
    assert_true(allocations_so_far() > before); // the counters count
    int32_t *ids = drawn_ids(20, cot_engine_describe(engine)->vocab, &seed);
    cot_request requests[SEQUENCES] = {0};
    for (int i = 0; i < SEQUENCES; i++) {
        requests[i] = (cot_request){.prompt = ids + i, .prompt_tokens = 20 - 7 * i};
        cot_sampling_init(&requests[i].sampling);
        requests[i].sampling = (cot_sampling){.size = sizeof(cot_sampling),
                                              .temperature = i ? 0.9 : 0,
                                              .top_k = i == 1 ? 50 : 0,
                                              .top_p = i == 2 ? 0.9 : 1,
                                              .min_p = 0.01,
                                              .repetition_penalty = 1.1,
                                              .max_tokens = TOKENS,
                                              .ignore_eos = true};
    }
    struct watch w = {0};
    cot_events events = {
        .context = &w, .on_token = watch_token, .on_routing = watch_routing, .on_finish = watch_finish};
    assert_int_equal(cot_engine_run(engine, requests, SEQUENCES, &events, NULL, NULL), COT_OK);
    assert_true(w.over && w.tokens >= SEQUENCES * (TOKENS - 1) && w.routings > w.tokens);
    if (w.last != w.first)
        fail_msg("%ld allocations while %lld tokens were decoded, %s at %d ranks", w.last - w.first,
                 (long long)w.tokens, way, ranks);
    free(ids);
    cot_engine_close(engine);
}

static void decoding_allocates_nothing(void **state)
{
    (void)state;
    watch_decoding(TINY, "tp", 1, 1, "fp32");
    watch_decoding(TINY, "tp", 3, 2, "bf16");
    watch_decoding(TINY, "dp", 4, 2, "fp32");
    watch_decoding(TINY, "dp", 2, 4, "bf16");
    watch_decoding(TINY, "s-moe", 3, 2, "bf16");
    watch_decoding(NULL, "s-moe", 4, 2, "fp32");
    watch_decoding(NULL, "tp", 2, 2, "bf16");
    watch_decoding(NULL, "dp", 2, 2, "int8");
    static const char *const names[] = {"gpt-oss", "deepseek-v3"};
    for (int i = 0; i < 2; i++) {
        char folder[1024];
        golden_path(folder, names[i], NULL);
        if (folder_exists(folder))
            watch_decoding(folder, i ? "dp" : "tp", 3, 3, "bf16");
        else
            printf("SKIPPED: there is no '%s'\n", folder);
    }
}

/* ---- requests ---- */

enum { ROWS = 2, REQUESTS = 5, MOST_SAID = 30 };

/* What a request says. */
struct text {
    int64_t tokens;
    int32_t token[MOST_SAID];
    int finishes;
};

static bool note_token(void *context, uint64_t request, int32_t token)
{
    struct text *t = (struct text *)context + request;
    t->token[t->tokens++] = token;
    return true;
}

static void note_finish(void *context, uint64_t request, cot_finish finish)
{
    ((struct text *)context + request)->finishes++;
    (void)finish;
}

static cot_engine *engine_of_two_rows(const char *attention, cot_request *requests)
{
    static const int32_t ids[100] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};
    for (int i = 0; i < REQUESTS; i++) {
        requests[i] = (cot_request){.prompt = ids + i, .prompt_tokens = 40 + 13 * i};
        cot_sampling_init(&requests[i].sampling);
        requests[i].sampling.max_tokens = MOST_SAID - 5 * i;
        requests[i].sampling.ignore_eos = true;
    }
    return must_open(&(struct setting){.folder = TINY,
                                       .ranks = 3,
                                       .attention = attention,
                                       .sequences = ROWS,
                                       .step_tokens = 50,
                                       .kv_tokens = 256});
}

/* Prompts, admission while others run, pages, ends: from the first step to the last. */
static void steps_allocate_nothing(void **state)
{
    (void)state;
    for (int dp = 0; dp < 2; dp++) {
        cot_request requests[REQUESTS];
        cot_engine *engine = engine_of_two_rows(dp ? "dp" : "tp", requests);
        struct text text[REQUESTS + 1] = {0};
        cot_events events = {.context = text, .on_token = note_token, .on_finish = note_finish};
        uint64_t id;
        size_t left = REQUESTS;
        for (int i = 0; i < REQUESTS; i++)
            assert_int_equal(cot_engine_submit(engine, &id, &requests[i], i % 3, &events, NULL), COT_OK);
        long before = allocations_so_far();
        while (left) assert_int_equal(cot_engine_step(engine, &left, NULL), COT_OK);
        assert_int_equal(allocations_so_far(), before);
        for (int i = 1; i <= REQUESTS; i++) assert_int_equal(text[i].finishes, 1);
        cot_engine_close(engine);
    }
}

/* Each allocation of a run fails in turn: nothing is said, no page and no row is lost, and then all is as ever. */
static void a_run_without_memory_loses_nothing(void **state)
{
    (void)state;
    cot_request requests[REQUESTS];
    cot_engine *engine = engine_of_two_rows("dp", requests);
    const cot_scheduler *s = &engine->loop.scheduler;
    struct text first[REQUESTS] = {0}, text[REQUESTS];
    cot_events events = {.context = first, .on_token = note_token, .on_finish = note_finish};
    assert_int_equal(cot_engine_run(engine, requests, REQUESTS, &events, NULL, NULL), COT_OK);
    events.context = text;
    long failures = 0;
    for (bool over = false; !over; failures += !over) {
        size_t failed;
        cot_error error = {0};
        memset(text, 0, sizeof text);
        const long fails = allocations_so_far() + failures + 1;
        fail_allocation(fails);
        cot_status status = cot_engine_run(engine, requests, REQUESTS, &events, &failed, &error);
        over = allocations_so_far() < fails;
        fail_allocation(0);
        assert_int_equal(status, over ? COT_OK : COT_OUT_OF_MEMORY);
        assert_int_equal(error.status, status);
        assert_int_equal(failed, over ? REQUESTS : failures); // an allocation a request
        if (over)
            assert_memory_equal(text, first, sizeof text);
        else
            for (int i = 0; i < REQUESTS; i++) assert_int_equal(text[i].tokens + text[i].finishes, 0);
        assert_int_equal(s->pool.free_pages, s->pool.pages);
        assert_int_equal(s->free_row_count, ROWS);
        assert_int_equal(s->active_count + s->waiting_count, 0);
    }
    assert_int_equal(failures, REQUESTS);
    cot_engine_close(engine);
}

/* A request that finds no memory while others run leaves them as they are. */
static void a_submission_without_memory_changes_nothing(void **state)
{
    (void)state;
    cot_request requests[REQUESTS];
    cot_engine *engine = engine_of_two_rows("tp", requests);
    struct text text[2 * REQUESTS + 2] = {0};
    cot_events events = {.context = text, .on_token = note_token, .on_finish = note_finish};
    uint64_t id, said;
    size_t left;
    assert_int_equal(cot_engine_submit(engine, &said, &requests[0], 0, &events, NULL), COT_OK);
    assert_int_equal(cot_engine_step(engine, &left, NULL), COT_OK);
    fail_allocation(allocations_so_far() + 1);
    assert_int_equal(cot_engine_submit(engine, &id, &requests[1], 0, &events, NULL), COT_OUT_OF_MEMORY);
    fail_allocation(0);
    assert_int_equal(id, 0);
    do assert_int_equal(cot_engine_step(engine, &left, NULL), COT_OK);
    while (left);
    assert_int_equal(text[said].tokens, MOST_SAID);
    assert_int_equal(text[said].finishes, 1);
    cot_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(decoding_allocates_nothing),
                                       cmocka_unit_test(steps_allocate_nothing),
                                       cmocka_unit_test(a_run_without_memory_loses_nothing),
                                       cmocka_unit_test(a_submission_without_memory_changes_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
