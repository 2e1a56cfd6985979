/* A forward pass allocates nothing: the linker sends every call of the allocator through the counters here
 * (tests.cmake). */
#include "harness/cmocka.h"
#include "harness/draw.h"
#include "harness/moe/fused_call.h"
#include "harness/moe/plan.h"
#include "harness/moe/run.h"
#include "harness/moe/world.h"
#include "harness/seed.h"

static _Thread_local int64_t allocations;

void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes);
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
int __real_posix_memalign(void **memory, size_t alignment, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
    allocations++;
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    allocations++;
    return __real_calloc(n, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    allocations++;
    return __real_realloc(memory, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    allocations++;
    return __real_aligned_alloc(alignment, bytes);
}

int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    allocations++;
    return __real_posix_memalign(memory, alignment, bytes);
}

static int64_t allocations_so_far(void)
{
    return allocations;
}

static void forward_allocates_nothing(void **state)
{
    (void)state;
    struct draw draw = {test_seed(), 1, 0};
    cot_gate rules = {.hidden = 24,
                      .experts = 10,
                      .top_k = 3,
                      .groups = 1,
                      .group_limit = 1,
                      .scaling = 1,
                      .score = COT_GATE_SIGMOID};
    cot_moe_options options = {.expert = {.type = COT_BF16,
                                          .gate = COT_FORMAT_BF16,
                                          .up = COT_FORMAT_BF16,
                                          .down = COT_FORMAT_BF16,
                                          .hidden = 24,
                                          .intermediate = 20,
                                          .biased = true,
                                          .limit = 2,
                                          .alpha = 1.702f},
                               .shared = {.type = COT_BF16,
                                          .gate = COT_FORMAT_BF16,
                                          .up = COT_FORMAT_BF16,
                                          .down = COT_FORMAT_BF16,
                                          .hidden = 24,
                                          .intermediate = 20},
                               .experts = 10,
                               .top_k = 3};
    int64_t before = allocations_so_far();
    struct world w = world_new(NULL, &options, &rules, true, true, true, 40, &draw);
    assert_true(allocations_so_far() > before); // the counters count
    cot_pool *pool;
    assert_int_equal(cot_pool_open(&pool, 1, NULL), COT_OK);
    static const struct {
        const char *op;
        cot_moe_a2a a2a;
        cot_moe_dedup dedup;
        cot_moe_combine combine;
    } ways[] = {{"fused", COT_A2A_AUTO, COT_DEDUP_AUTO, COT_COMBINE_EXACT},
                {"bulk", COT_A2A_TWO_PHASE, COT_DEDUP_OFF, COT_COMBINE_EXACT},
                {"bulk", COT_A2A_PADDED, COT_DEDUP_OFF, COT_COMBINE_EXACT},
                {"bulk", COT_A2A_ONE_SHOT, COT_DEDUP_ON, COT_COMBINE_REDUCED}};
    enum { WAYS = sizeof ways / sizeof *ways };
    for (int i = 0; i < 3 * WAYS; i++) {
        const int ranks = 1 + 2 * (i / WAYS);
        w.op = cot_moe_operator_find(ways[i % WAYS].op);
        w.options.a2a = ways[i % WAYS].a2a, w.options.dedup = ways[i % WAYS].dedup;
        w.options.combine = ways[i % WAYS].combine;
        struct plan p = plan_drawn(&w, ranks, &draw);
        p.pool = pool;
        p.passes = 3;
        p.count_allocations = allocations_so_far;
        struct outcome *outcome = world_run(&w, &p);
        for (int r = 0; r < ranks; r++) {
            assert_int_equal(outcome->status[r], COT_OK);
            assert_int_equal(outcome->allocations[r], 0);
        }
        outcome_free(outcome, &w);
    }
    cot_pool_close(pool);
    world_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(forward_allocates_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
