/* Kernels that are built for a time line: each task of a call begins and ends once, on one processor, one behind the other. */
#define COT_TIMELINE
#include "fused_check.h"

extern "C" {
#include "harness/seed.h"
}

static void timed(cot_cuda_fused call)
{
    cot::run_fused<mma_engine, cot::scope::gpu>(call);
}

/* What a call on one rank notes where there is room for so many moments. */
static std::vector<cot::fused_moment> moments_of(Layer &layer, unsigned blocks, uint32_t room, uint64_t seed)
{
    cot::fused_moments all = {0, room, layer.session.allocate<cot::fused_moment>(room, "moments")};
    layer.call.moments = layer.session.copy(&all, 1, "noted");
    expect_none(emulate::launch(
        {blocks, cot::FUSED_THREADS, cot::fused_shared_bytes<mma_engine>(layer.call.gate.experts)},
        seeded(seed), timed, layer.call));
    all.count = layer.call.moments->count;
    if (all.count > room) assert_int_equal(layer.session.unwritten(all.at, room * sizeof *all.at), 0);
    std::vector<cot::fused_moment> noted(all.at, all.at + std::min(all.count, room));
    noted.resize(all.count);
    return noted;
}

static void every_task_once(void **)
{
    struct draw draw = {test_seed(), 1, 0};
    struct world w = world_of(variants[4], 23, &draw); // with a shared expert
    const struct plan p = plan_even(&w, 1);
    Layer layer(w, p, even_grid(1, 3));
    const std::vector<cot::fused_moment> all = moments_of(layer, 3, 4096, test_seed());
    const Outcome o = layer.outcome();
    outcome_agrees(o.get(), &w, &p);
    std::vector<uint64_t> begun, ended;
    uint64_t in_hand[3] = {}, last[3] = {};
    for (const cot::fused_moment &m : all) { // of one processor in their order
        assert_in_range(m.block, 0, 2);
        const size_t b = static_cast<size_t>(m.block);
        if (m.ended)
            assert_int_equal(m.task, in_hand[b]);
        else
            assert_int_equal(in_hand[b], 0);
        in_hand[b] = m.ended ? 0 : m.task;
        assert_true(m.ns + 1024 >= last[b]); // a clock that ticks coarsely, and may go back by a tick
        last[b] = m.ns;
        (m.ended ? ended : begun).push_back(m.task);
    }
    std::sort(begun.begin(), begun.end());
    std::sort(ended.begin(), ended.end());
    /* An end for each processor is taken, and not ended; all else is both. */
    size_t kinds[8] = {};
    for (const uint64_t word : begun) kinds[static_cast<int>(cot::kind_of(word))]++;
    assert_int_equal(kinds[static_cast<int>(cot::task::end)], 3);
    assert_int_equal(begun.size(), ended.size() + 3);
    assert_true(std::includes(begun.begin(), begun.end(), ended.begin(), ended.end()));
    assert_int_equal(kinds[static_cast<int>(cot::task::gate)],
                     cot::fused_cut_tasks(cot::gate_cut(23, 16, cot::routing::gated)));
    assert_int_equal(kinds[static_cast<int>(cot::task::enter)], 0);   // the subscriber takes 92 entries
    assert_int_equal(kinds[static_cast<int>(cot::task::combine)], 0); // few tokens of one rank
    size_t tiles = 1;                                                 // the shared expert's
    std::vector<bool> called(16);
    for (int i = 0; i < 23 * 4; i++) called[o->experts[i]] = true;
    for (const bool one : called) tiles += one;
    assert_int_equal(kinds[static_cast<int>(cot::task::up)], tiles);
    assert_int_equal(kinds[static_cast<int>(cot::task::down)], tiles);
    world_free(&w);
}

/* More entries than a unit has come into tiles by tasks: each unit is counted once, and written once behind all that are counted. */
static void entries_by_tasks(void **)
{
    struct draw draw = {test_seed(), 3, 0};
    struct world w = world_of(variants[4], 65, &draw); // of 4 experts each: 260 entries
    const struct plan p = plan_even(&w, 1);
    Layer layer(w, p, even_grid(1, 4));
    std::vector<int> begun;
    int ended = 0;
    for (const cot::fused_moment &m : moments_of(layer, 4, 4096, test_seed())) {
        if (cot::kind_of(m.task) != cot::task::enter) continue;
        const int number = cot::number_of(m.task);
        if (m.ended) {
            ended++;
            continue;
        }
        if (number % 2) assert_in_range(ended, 3, 5);
        begun.push_back(number);
    }
    std::sort(begun.begin(), begun.end());
    assert_int_equal(begun.size(), 6);
    for (int i = 0; i < 6; i++) assert_int_equal(begun[static_cast<size_t>(i)], i);
    assert_int_equal(ended, 6);
    const Outcome o = layer.outcome();
    outcome_agrees(o.get(), &w, &p);
    world_free(&w);
}

static void more_than_there_is_room_for(void **)
{
    struct draw draw = {test_seed(), 2, 0};
    struct world w = world_of(variants[2], 9, &draw);
    const struct plan p = plan_even(&w, 1);
    Layer layer(w, p, even_grid(1, 2));
    assert_true(moments_of(layer, 2, 5, test_seed()).size() > 5);
    const Outcome o = layer.outcome();
    outcome_agrees(o.get(), &w, &p);
    world_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_once),
        cmocka_unit_test(entries_by_tasks),
        cmocka_unit_test(more_than_there_is_room_for),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
