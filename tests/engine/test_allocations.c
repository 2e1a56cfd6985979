/* No rank allocates while sequences decode: the linker sends all allocators of the library through these. */
#include "harness.h"

#include "count_allocations.h"

/* Allocations between the first token and the end of the first sequence: all were admitted before. */
struct watch {
    long first, last;
    int64_t tokens, routings;
    bool over;
};

static bool watch_token(void *context, size_t request, int32_t token)
{
    struct watch *w = context;
    (void)request, (void)token;
    if (w->over) return true;
    if (!w->tokens++) w->first = atomic_load(&allocations);
    w->last = atomic_load(&allocations);
    return true;
}

static void watch_routing(void *context, size_t request, int64_t position, int32_t token,
                          const uint16_t *experts, const float *weights)
{
    (void)request, (void)position, (void)token, (void)experts, (void)weights;
    ((struct watch *)context)->routings++;
}

static void watch_finish(void *context, size_t request, cot_finish finish)
{
    struct watch *w = context;
    (void)request, (void)finish;
    w->last = atomic_load(&allocations);
    w->over = true;
}

static void watch_decoding(const char *folder, const char *attention, int ranks, int threads,
                           const char *precision)
{
    enum { SEQUENCES = 3, TOKENS = 90 };
    const long before = atomic_load(&allocations);
    struct setting s = {.folder = folder,
                        .ranks = ranks,
                        .threads = threads,
                        .precision = precision,
                        .attention = attention,
                        .kv_tokens = SEQUENCES * 128};
    cot_engine *engine = must_open(&s);
    assert_true(atomic_load(&allocations) > before); // the counters count
    uint64_t seed = test_seed();
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
    assert_int_equal(cot_engine_run(engine, requests, SEQUENCES, &events, NULL), COT_OK);
    assert_true(w.over && w.tokens >= SEQUENCES * (TOKENS - 1) && w.routings > w.tokens);
    if (w.last != w.first)
        fail_msg("%ld allocations while %lld tokens were decoded, %s at %d ranks", w.last - w.first,
                 (long long)w.tokens, attention, ranks);
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(decoding_allocates_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
