/* The fused operator's launch in tiles of 128 rows, behind moe's seam over an emulated device: to the bit what it finds in tiles of 64, with the same
 * bytes and messages, and each word that orders something in it weakened in turn. */
#include "ready.h"

#include "cuda/module/probe.h"

extern "C" {
#include "harness/seed.h"
}

using emulate::Fault;

/* Once on a device with tiles of 128 rows, of so many blocks, once on one without. */
static void agree(const struct world *w, const struct plan *p, int blocks, uint64_t *seed)
{
    struct outcome *found[2];
    const auto rounding =
        static_cast<emulate::Rounding>(*seed % static_cast<uint64_t>(emulate::Rounding::COUNT));
    for (int many = 0; many < 2; many++) {
        Ready ready(++*seed, blocks, many);
        ready.device.options.rounding = rounding;
        found[many] = world_run(w, p);
        outcome_agrees(found[many], w, p);
        outcome_counts(found[many], w, p);
        const int self_tests = ready.device.many_launches ? COT_CUDA_MANY_SELF_TESTS : 0,
                  launches = ready.device.launches - COT_CUDA_SELF_TESTS - self_tests;
        assert_int_equal(ready.device.many_launches, many ? self_tests + launches : 0);
        assert_true(launches > 0);
        if (many) assert_int_equal(ready.device.blocks, blocks);
    }
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

/* Full tiles and such of few rows, of experts and shared ones; biases; more columns than a part has; several ranks, one without a token; replicas;
 * a second pass of so few tokens that tiles of 64 would add them up with their last experts; as many blocks as ranks, and more. */
static void the_bits_of_tiles_of_64_rows(void **)
{
    struct draw draw = {test_seed(), 80, 0};
    uint64_t seed = test_seed();
    static const struct {
        int variant, tokens, ranks, blocks;
        bool reduced;
    } cases[] = {{7, 520, 1, 1, false}, {5, 256, 2, 3, false}, {2, 160, 3, 6, true}};
    for (const auto &one : cases) {
        struct world w = world_on(&cot_cuda_operator, variants[one.variant], one.tokens, &draw);
        struct plan p = one.ranks == 1   ? plan_even(&w, 1)
                        : one.ranks == 2 ? plan_replicated(&w, 2, &draw)
                                         : plan_drawn(&w, one.ranks, &draw);
        if (one.ranks == 3) p.begin[2] = p.begin[1];
        if (one.reduced) w.options.combine = COT_COMBINE_REDUCED, w.options.combine_type = COT_F32;
        agree(&w, &p, one.blocks, &seed);
        world_free(&w);
    }
}

/* Tiles of a slot begin one behind the other, whichever were full first; all of them are there. */
static void tiles_begin_in_the_order_of_slots(void **)
{
    struct draw draw = {test_seed(), 82, 0};
    Variant v = variants[7];
    v.experts = v.top_k = 35; // more slots than a warp has lanes, of two tiles each
    struct world w = world_on(&cot_cuda_operator, v, 130, &draw);
    const struct plan p = plan_even(&w, 1);
    const Ready ready(test_seed(), 4, true);
    struct outcome *const found = world_run(&w, &p);
    outcome_agrees(found, &w, &p);
    outcome_free(found, &w);
    const cot::fused_rank &rank =
        ready.device.many_call.ranks[0]; // memory that was given back, and is as it was
    std::vector<bool> seen(2 * 35);
    for (int i = 0; i < 2 * 35; i++) {
        const int tile = rank.ordered[i];
        assert_in_range(tile, 0, 2 * 35 - 1);
        seen[static_cast<size_t>(tile)] = true;
        if (i) assert_true(rank.tile_slot[rank.ordered[i - 1]] <= rank.tile_slot[tile]);
    }
    for (bool one : seen) assert_true(one);
    world_free(&w);
}

/* From the call on: a rank's last packet is not told of. */
static cot_status with_a_lost_packet(cot_moe *moe, const cot_moe_layer *layer, float *y, uint16_t *experts,
                                     float *weights, const float *x, int64_t tokens, cot_error *error)
{
    emulate::Device *const device = emulate::Device::in_use();
    device->options.mutant = "fused_final_is_lost";
    const cot_status status = cot_cuda_operator.forward(moe, layer, y, experts, weights, x, tokens, error);
    if (status != COT_TIMED_OUT || !strstr(error->message, "did not answer rank ")) return COT_IO;
    device->options.mutant = nullptr; // all have come back from that call before the next is launched
    return cot_cuda_operator.forward(moe, layer, y, experts, weights, x, tokens, error);
}

static void a_lost_packet_is_named(void **)
{
    struct draw draw = {test_seed(), 81, 0};
    struct world w = world_on(&cot_cuda_operator, variants[1], 256, &draw);
    const struct plan p = plan_even(&w, 3);
    const Ready ready(test_seed(), 6, true);
    const Calling calling(w, with_a_lost_packet);
    struct outcome *const found = world_run(&w, &p);
    outcome_agrees(found, &w, &p);
    assert_int_equal(ready.device.many_launches, COT_CUDA_MANY_SELF_TESTS + 2);
    outcome_free(found, &w);
    world_free(&w);
}

/* How a small layer on two ranks ends, where a word is weakened: by what is wrong at once, or by numbers that are none. */
static bool is_found(const char *mutant, uint64_t seed, int64_t tokens, int64_t top_k, uint64_t *reached)
{
    cot_moe_options options = {};
    options.expert.type = options.combine_type = COT_BF16;
    cot_cuda_probe probe = cot_cuda_self_test_layer(COT_BF16, COT_CUDA_SELF_TESTS);
    probe.expert.hidden = probe.gate.hidden =
        72; // two stages, so that both teams' scores lie where tiles come
    probe.expert.intermediate = 24;
    probe.gate.experts = 4;
    probe.gate.top_k = top_k;
    probe.tokens = tokens;
    probe.calls = nullptr;
    probe.seed = seed;
    Ready ready(seed, 3, true);
    ready.device.options.mutant = mutant;
    cot_error error;
    const cot_status status =
        cot_cuda_probe_run(&ready.found, cot_cuda_kind::fused, &probe, &options, 2, &error);
    *reached += ready.device.last.counters.mutant_reached;
    if (status != COT_OK && status != COT_IO && status != COT_INVALID_ARGUMENT)
        fail_msg("%s: %s", mutant, error.message);
    return status != COT_OK;
}

static void each_weakening_is_found(void **)
{
    static const struct {
        const char *name;
        int64_t tokens, top_k;
    } mutants[] = {
        {"many_given_release", 40, 2},        {"many_given_acquire", 40, 2},
        {"many_given_for_all", 40, 2},        {"many_product_by_both", 40, 2},
        {"many_scores_before_stages", 40, 2}, {"many_ended_by_all", 40, 2},
        {"many_ended_release", 40, 2},        {"many_ended_acquire", 40, 2},
        {"many_wait_scores", 200, 1},       // one team still gates when the other one has ended
        {"schedule_order_for_all", 300, 2}, // full tiles, which another order than their slots' lets in
        {"many_dealt_for_all", 40, 2},        {"many_brought_before_next", 40, 2}};
    uint64_t reached = 0;
    assert_false(is_found(nullptr, 1, 40, 2, &reached));
    assert_false(is_found(nullptr, 1, 200, 1, &reached));
    for (const auto &mutant : mutants) {
        uint64_t seed = 1;
        reached = 0;
        while (!is_found(mutant.name, seed, mutant.tokens, mutant.top_k, &reached) && seed < 20) seed++;
        printf("%-32s %d\n", mutant.name, static_cast<int>(seed));
        assert_true(reached > 0);
        if (seed == 20) fail_msg("%s was not found", mutant.name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_of_tiles_of_64_rows),
        cmocka_unit_test(tiles_begin_in_the_order_of_slots),
        cmocka_unit_test(a_lost_packet_is_named),
        cmocka_unit_test(each_weakening_is_found),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
