/* As many ranks as there may be, each of one block: what lanes know of ranks beyond the 32nd, and the bytes and messages between all of
 * them. */
#include "fused_check.h"
#include "ready.h"

extern "C" {
#include "harness/seed.h"
}

static Variant tiny(int64_t experts)
{
    Variant v = variants[1];
    v.hidden = 16, v.intermediate = 8, v.experts = experts, v.top_k = 3;
    return v;
}

/* `bulk` on the same plan: right answers, the CPU's bytes and messages, and the bits that `exact` has everywhere. */
static void bulk_agrees(const struct plan &p, struct world &w, const struct outcome *fused)
{
    const Ready ready(test_seed(), p.ranks);
    w.op = &cot_cuda_bulk_operator;
    struct outcome *const bulk = world_run(&w, &p);
    w.op = &cot_moe_fused;
    outcome_agrees(bulk, &w, &p);
    outcome_counts(bulk, &w, &p);
    if (fused)
        assert_memory_equal(bulk->y, fused->y,
                            static_cast<size_t>(w.tokens * w.options.expert.hidden) * sizeof(float));
    outcome_free(bulk, &w);
}

static void as_many_ranks_as_there_may_be(void **)
{
    struct draw draw = {test_seed(), 31, 0};
    const int ranks = COT_MAX_RANKS;
    struct world w = world_of(tiny(ranks), 70, &draw);
    struct plan p = plan_even(&w, ranks);
    p.timeout_ns = 600000000000; // the emulator takes its time
    const Outcome fused = check(w, p, even_grid(ranks, 1), seeded(test_seed()));
    bulk_agrees(p, w, fused.get());
    world_free(&w);
}

/* One more than a warp has lanes, some of them without tokens or experts; reduced. */
static void a_rank_more_than_a_warp_has_lanes(void **)
{
    struct draw draw = {test_seed(), 32, 0};
    const int ranks = 33;
    struct world w = world_of(tiny(40), 50, &draw);
    struct plan p = plan_drawn(&w, ranks, &draw);
    p.timeout_ns = 600000000000;
    bulk_agrees(p, w, nullptr);
    w.options.combine = COT_COMBINE_REDUCED;
    w.options.combine_type = COT_F32;
    check(w, p, even_grid(ranks, 1), seeded(test_seed()));
    world_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_many_ranks_as_there_may_be),
        cmocka_unit_test(a_rank_more_than_a_warp_has_lanes),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
