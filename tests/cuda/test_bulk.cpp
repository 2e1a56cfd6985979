/* Operator `cuda-bulk`, a kernel a phase, behind moe's seam over an emulated device: right answers, and the fused operator's bits,
 * bytes and messages. */
#include "ready.h"

#include "cuda/module/probe.h"

extern "C" {
#include "harness/seed.h"
}

#include <cmath>

/* Both operators on one plan, on devices that draw anew. */
static void agree(struct world *w, const struct plan *p, uint64_t *seed)
{
    struct outcome *found[2];
    const cot_moe_operator *const ops[2] = {&cot_cuda_bulk_operator, &cot_cuda_operator};
    for (int i = 0; i < 2; i++) {
        const Ready ready(++*seed, 6 + i); // as many blocks as ranks and more, otherwise shared out
        w->op = ops[i];
        found[i] = world_run(w, p);
        if (i) break;
        outcome_agrees(found[0], w, p);
        outcome_counts(found[0], w, p);
        assert_int_equal(ready.device.launches,
                         COT_CUDA_PHASES *
                             (COT_CUDA_SELF_TESTS + p->passes + p->warmed)); // first the self-test
    }
    w->op = ops[0];
    for (int r = 0; r < p->ranks; r++) assert_int_equal(found[1]->status[r], COT_OK);
    const size_t choices = static_cast<size_t>(w->tokens * w->options.top_k),
                 elements = static_cast<size_t>(w->tokens * w->options.expert.hidden);
    assert_memory_equal(found[0]->experts, found[1]->experts, choices * sizeof(uint16_t));
    assert_memory_equal(found[0]->weights, found[1]->weights, choices * sizeof(float));
    assert_memory_equal(found[0]->y, found[1]->y, elements * sizeof(float));
    for (int from = 0; from < p->ranks; from++)
        for (int to = 0; to < p->ranks; to++)
            for (int phase = 0; phase < COT_PHASES; phase++)
                if (phase != COT_PHASE_CONTROL)
                    assert_memory_equal(&found[0]->traffic[from][to][phase],
                                        &found[1]->traffic[from][to][phase], sizeof(cot_traffic));
    for (struct outcome *o : found) outcome_free(o, w);
}

static void every_variant(void **)
{
    struct draw draw = {test_seed(), 21, 0};
    uint64_t seed = test_seed();
    int ranks = 1 + static_cast<int>(test_seed() % 6);
    for (const Variant &v : variants) {
        struct world w = world_on(&cot_cuda_bulk_operator, v, 23, &draw);
        struct plan p = ranks % 2 ? plan_drawn(&w, ranks, &draw) : plan_replicated(&w, ranks, &draw);
        p.passes = 1 + ranks % 2;
        agree(&w, &p, &seed);
        ranks = ranks % 6 + 1;
        world_free(&w);
    }
}

/* A rank's tokens are so many that they are gated by tiles here, and by single warps in the fused operator. */
static void tiles_gate_many_tokens(void **)
{
    struct draw draw = {test_seed(), 25, 0};
    uint64_t seed = test_seed();
    Variant v = variants[3];
    v.experts = 40, v.hidden = 132; // two parts, the second one not full
    struct world w = world_on(&cot_cuda_bulk_operator, v, 140, &draw);
    const struct plan p = plan_even(&w, 1);
    agree(&w, &p, &seed);
    world_free(&w);
}

/* Tiles that are full and not, cells and chunks beyond the first, several passes, ranks without a token. */
static void many_tokens(void **)
{
    struct draw draw = {test_seed(), 22, 0};
    struct world w = world_on(&cot_cuda_bulk_operator, variants[7], 700, &draw);
    struct plan p = plan_even(&w, 3);
    p.begin[1] = 620, p.begin[2] = 620;
    const Ready ready(test_seed());
    struct outcome *const found = world_run(&w, &p);
    outcome_agrees(found, &w, &p);
    outcome_counts(found, &w, &p);
    assert_int_equal(ready.device.launches,
                     COT_CUDA_PHASES * (COT_CUDA_SELF_TESTS + 2)); // passes of 512 tokens
    outcome_free(found, &w);
    world_free(&w);
}

/* The next call is as good as the first. */
static cot_status after_one_that_cannot(cot_moe *moe, const cot_moe_layer *layer, float *y, uint16_t *experts,
                                        float *weights, const float *x, int64_t tokens, cot_error *error)
{
    const Pinned<float> wrong(tokens * layer->gate->hidden); // of NaN
    const cot_status status =
        cot_cuda_bulk_operator.forward(moe, layer, y, experts, weights, wrong.at, tokens, error);
    if (status != COT_INVALID_ARGUMENT) return COT_IO;
    return cot_cuda_bulk_operator.forward(moe, layer, y, experts, weights, x, tokens, error);
}

static void what_it_refuses(void **)
{
    struct draw draw = {test_seed(), 23, 0};
    struct world w = world_on(&cot_cuda_bulk_operator, variants[0], 12, &draw);
    struct plan p = plan_even(&w, 3);
    const Ready ready(test_seed());
    {
        const Calling calling(w, after_one_that_cannot);
        all_say(&w, &p, COT_OK, "");
    }
    w.x[6 * w.options.expert.hidden] = NAN;
    all_say(&w, &p, COT_INVALID_ARGUMENT, "the routing of rank 1's tokens is not sound");
    for (int r = 0; r <= 3; r++) p.begin[r] = 0;
    all_say(&w, &p, COT_INVALID_ARGUMENT, "no rank has a token");
    w.options.combine = COT_COMBINE_REDUCED;
    all_say(&w, &p, COT_UNSUPPORTED, "'reduced' is of 'cuda'");
    world_free(&w);
}

/* Each word that orders a kernel's threads is needed. */
static void each_weakening_is_found(void **)
{
    struct draw draw = {test_seed(), 24, 0};
    struct world w = world_on(&cot_cuda_bulk_operator, variants[1], 12, &draw);
    const struct plan p = plan_even(&w, 2);
    for (const char *mutant : {"bulk_lanes_before_rows", "bulk_lanes_after_rows"}) {
        int found = 0;
        for (uint64_t seed = 1; seed <= 5; seed++) {
            Ready ready(seed, 2); // a rank's tiles are one block's
            ready.device.options.mutant = mutant;
            outcome_free(world_run(&w, &p), &w); // the self-test, which all opens begin with, says so
            found += ready.device.last.fault == emulate::Fault::RACE ||
                     ready.device.last.fault == emulate::Fault::UNWRITTEN;
        }
        printf("%s: found in %d of 5 schedules\n", mutant, found);
        if (found != 5) fail_msg("%s was found in %d of 5 schedules", mutant, found);
    }
    world_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles_gate_many_tokens),
        cmocka_unit_test(every_variant),
        cmocka_unit_test(many_tokens),
        cmocka_unit_test(what_it_refuses),
        cmocka_unit_test(each_weakening_is_found),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
