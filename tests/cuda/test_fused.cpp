/* The fused operator of one launch on the emulator: right answers, the CPU's bytes and messages, the same bits everywhere. */
#include "fused_check.h"

extern "C" {
#include "harness/seed.h"

#include "base/rng.h"
}

#include <cmath>

using emulate::Fault;

/* y [T][H] in the order of the world's tokens. */
static std::vector<float> in_order(const Outcome &o, const struct world &w, const struct plan &p)
{
    const size_t h = static_cast<size_t>(w.options.expert.hidden);
    std::vector<float> y(static_cast<size_t>(w.tokens) * h);
    for (size_t t = 0; t < static_cast<size_t>(w.tokens); t++)
        memcpy(y.data() + static_cast<size_t>(p.order[t]) * h, o->y + t * h, h * sizeof(float));
    return y;
}

static void every_variant(void **)
{
    struct draw draw = {test_seed(), 1, 0};
    uint64_t seed = test_seed();
    int ranks = 1;
    for (const Variant &v : variants) {
        struct world w = world_of(v, 23, &draw);
        std::vector<float> before;
        for (int i = 0; i < 4; i++, ranks = ranks % 8 + 1) {
            const int some = i == 3 ? 1 : ranks; // one rank adds a token's rows up with the last of them
            const struct plan p = i % 3 == 0 ? plan_even(&w, some)
                                  : i == 1   ? plan_drawn(&w, some, &draw)
                                             : plan_replicated(&w, some, &draw);
            Grid grid = even_grid(some, 1);
            grid.blocks[seed % grid.blocks.size()]++;
            grid.devices = some > 1 && i == 1;
            const Outcome o = check(w, p, grid, seeded(++seed));
            const std::vector<float> y = in_order(o, w, p);
            if (i) assert_memory_equal(y.data(), before.data(), y.size() * sizeof(float));
            before = y;
        }
        world_free(&w);
    }
}

/* reduced: one row for each rank that has any of a token's experts, in fp32 or in bf16; the same bits for every schedule, number of
 * blocks and device at one placement. */
static void every_variant_reduced(void **)
{
    struct draw draw = {test_seed(), 8, 0};
    uint64_t seed = test_seed();
    int i = 0;
    for (const Variant &v : variants) {
        struct world w = world_of(v, 23, &draw);
        w.options.combine = COT_COMBINE_REDUCED;
        w.options.combine_type = v.hidden == 136 ? COT_BF16 : COT_F32;
        const int ranks = 1 + (i + 1) % 8;
        const struct plan p = i % 3 == 0   ? plan_drawn(&w, ranks, &draw)
                              : i % 3 == 1 ? plan_replicated(&w, ranks, &draw)
                                           : plan_even(&w, ranks);
        const Outcome one = check(w, p, even_grid(ranks, 1), seeded(++seed));
        Grid grid = even_grid(ranks, 1);
        grid.blocks[seed % grid.blocks.size()] += 2;
        grid.devices = ranks > 1;
        const Outcome other = check(w, p, grid, seeded(++seed));
        assert_memory_equal(one->y, other->y, static_cast<size_t>(w.tokens * v.hidden) * sizeof(float));
        world_free(&w);
        i++;
    }
}

/* Rows of odd widths that are computed in fp32 and travel in bf16: every other one begins in the midst of a word. */
static void odd_rows_in_bf16(void **)
{
    struct draw draw = {test_seed(), 9, 0};
    for (const Variant &v : variants) {
        if (v.hidden % 2 == 0) continue;
        struct world w = world_of(v, 23, &draw);
        w.options.combine_type = COT_BF16;
        w.tolerance *= 0.02 / 3e-5;
        for (const cot_moe_combine combine : {COT_COMBINE_EXACT, COT_COMBINE_REDUCED}) {
            w.options.combine = combine;
            check(w, plan_drawn(&w, 3, &draw), even_grid(3, 1), seeded(test_seed() + combine));
        }
        world_free(&w);
    }
}

/* From none to more than fill a cell and tiles; at home on one rank, or where only some have any. */
static void few_and_many_tokens(void **)
{
    struct draw draw = {test_seed(), 2, 0};
    const int64_t counts[] = {1, 2, 70, 150};
    for (size_t i = 0; i < 4; i++)
        for (const Variant *v : {&variants[2], &variants[6]}) {
            struct world w = world_of(*v, counts[i], &draw);
            struct plan p = plan_drawn(&w, 3, &draw);
            for (int r = 0; r <= 3; r++) p.begin[r] = r > static_cast<int>(i % 3) ? w.tokens : 0;
            check(w, p, {{1, 2, 1}, false}, seeded(test_seed() + i));
            w.options.combine = COT_COMBINE_REDUCED;
            w.options.combine_type = COT_F32;
            check(w, p, {{2, 1, 1}, false}, seeded(test_seed() + i));
            world_free(&w);
        }
}

/* Up to 128 tokens of one rank are added up by who brings their last columns, more of them by COMBINEs: the same bits. */
static void few_tokens_of_one_rank(void **)
{
    struct draw draw = {test_seed(), 15, 0};
    for (const Variant *v : {&variants[2], &variants[6], &variants[10]}) {
        struct world w = world_of(*v, 129, &draw);
        struct plan p = plan_even(&w, 1);
        const Outcome all = check(w, p, even_grid(1, 2), seeded(test_seed()));
        p.begin[1] = 128;
        Layer layer(w, p, even_grid(1, 3));
        for (uint64_t call = 1; call <= 2; call++) {
            expect_none(layer.launch(seeded(test_seed() + call)));
            assert_memory_equal(layer.outcome()->y, all->y,
                                128 * static_cast<size_t>(v->hidden) * sizeof(float));
        }
        world_free(&w);
    }
}

/* One rank has more tiles than lanes, whose lanes are others' while their last columns are added. */
static void few_tokens_of_many_tiles(void **)
{
    struct draw draw = {test_seed(), 16, 0};
    Variant v = variants[10];
    v.experts = 48, v.top_k = 4;
    struct world w = world_of(v, 40, &draw);
    const struct plan p = plan_even(&w, 1);
    for (uint64_t seed = 1; seed <= 3; seed++) check(w, p, even_grid(1, 5), seeded(test_seed() + seed));
    world_free(&w);
}

/* All tokens to experts 0 to K - 1, which one rank has, and it has no others: the rest of the experts are empty. */
static void hot_experts(void **)
{
    struct draw draw = {test_seed(), 3, 0};
    for (const Variant *v : {&variants[1], &variants[0]}) {
        struct world w = world_of(*v, 100, &draw);
        if (v == &variants[0]) w.options.combine = COT_COMBINE_REDUCED;
        oracle_gate_set_weight(&w.gate, 0); // equal scores take the lower expert
        world_solve(&w);
        struct plan p = plan_even(&w, 4);
        for (int64_t e = 0; e < w.options.experts; e++) p.rank[e] = e < w.options.top_k ? 2 : 0;
        for (int64_t e = 0; e < w.options.experts; e++) p.slot[e] = static_cast<int32_t>(e);
        p.slots = static_cast<int32_t>(w.options.experts);
        Layer layer(w, p, even_grid(4, 1));
        expect_none(layer.launch(seeded(test_seed())));
        const Outcome o = layer.outcome();
        for (int64_t i = 0; i < w.tokens * w.options.top_k; i++)
            assert_int_equal(o->experts[i], i % w.options.top_k);
        outcome_counts(o.get(), &w, &p);
        /* Experts of equal scores have no certain answer in double precision; what these two say has. */
        for (int64_t t = 0; t < w.tokens; t += 9) {
            double row[2][64];
            for (int k = 0; k < 2; k++)
                oracle_ffn_apply(row[k], &w.experts[k], w.x + p.order[t] * w.options.expert.hidden);
            for (int64_t h = 0; h < w.options.expert.hidden; h++)
                if (std::fabs(static_cast<double>(o->y[t * w.options.expert.hidden + h]) -
                              (row[0][h] + row[1][h]) / 2) > w.tolerance)
                    fail_msg("token %d, column %d", static_cast<int>(t), static_cast<int>(h));
        }
        world_free(&w);
    }
}

/* A launch is replayed with the very same arguments: other tokens, fewer of them, and experts on other ranks and in other slots, in
 * device memory. */
static void a_replay_reads_device_memory(void **)
{
    struct draw draw = {test_seed(), 4, 0};
    struct world w = world_of(variants[4], 40, &draw);
    struct plan p = plan_even(&w, 3);
    Layer layer(w, p, even_grid(3, 1));
    for (int call = 1; call <= 4; call++) {
        for (int64_t i = 0; i < w.tokens * w.options.expert.hidden; i++)
            w.x[i] = draw_float(&draw, 1, COT_F32);
        if (call == 3)
            for (int r = 0; r <= 3; r++) p.begin[r] = 5 * r; // of a plan that the layer refers to
        if (call == 4) {
            for (int64_t e = 0; e < w.options.experts; e++)
                p.rank[e] = (p.rank[e] + 1) % 3, p.slot[e] = p.slots - 1 - p.slot[e];
            layer.give_placement();
        }
        world_solve(&w);
        layer.give_tokens();
        expect_none(layer.launch(seeded(test_seed() + static_cast<uint64_t>(call))));
        for (const cot::fused_rank &r : layer.ranks) assert_int_equal(r.state->epoch, call);
        const Outcome o = layer.outcome();
        outcome_agrees(o.get(), &w, &p);
    }
    world_free(&w);
}

/* Words have 36 bits for an epoch, calls go on beyond them. */
static void epochs_that_words_have_no_bits_for(void **)
{
    struct draw draw = {test_seed(), 14, 0};
    struct world w = world_of(variants[4], 20, &draw);
    const struct plan p = plan_even(&w, 3);
    const uint64_t before = (uint64_t{1} << 36) - 3;
    Layer layer(w, p, even_grid(3, 1));
    for (const cot::fused_rank &r : layer.ranks) {
        cot::fused_state state = {};
        state.epoch = before, state.unsound = ~0u;
        layer.session.write(r.state, &state, sizeof state);
    }
    for (uint64_t call = 1; call <= 4; call++) {
        expect_none(layer.launch(seeded(test_seed() + call)));
        for (const cot::fused_rank &r : layer.ranks) assert_int_equal(r.state->epoch, before + call);
        const Outcome o = layer.outcome();
        outcome_agrees(o.get(), &w, &p);
    }
    world_free(&w);
}

/* A token whose gate is not finite ends the call on all ranks with nothing written, and so does a routing that is none; no
 * token at all is told, too. The next call is right. */
static void what_cannot_be_routed_is_told(void **)
{
    struct draw draw = {test_seed(), 5, 0};
    struct world w = world_of(variants[0], 21, &draw);
    struct plan p = plan_even(&w, 3);
    const float kept = w.x[9 * w.options.expert.hidden + 1];
    Layer layer(w, p, even_grid(3, 1));
    const auto ends = [&](cot::outcome wanted) {
        expect_none(layer.launch(seeded(test_seed())));
        for (const cot::fused_rank &r : layer.ranks) {
            assert_int_equal(r.state->outcome, static_cast<int32_t>(wanted));
            if (wanted != cot::outcome::fine)
                assert_int_equal(layer.session.unwritten(r.y, 7 * 32 * 4), 7 * 32 * 4);
        }
    };
    w.x[9 * w.options.expert.hidden + 1] = NAN;
    layer.give_tokens();
    ends(cot::outcome::unsound);
    assert_int_equal(layer.ranks[1].state->unsound_token, 2);
    const int32_t none[2] = {0, 0};
    for (int32_t *tokens : layer.tokens) layer.session.write(tokens, none, sizeof none);
    ends(cot::outcome::empty);
    w.x[9 * w.options.expert.hidden + 1] = kept;
    layer.give_tokens();
    layer.call.routing = cot::routing::given;
    for (int r = 0; r < 3; r++)
        for (int t = 0; t < 7; t++) {
            const uint16_t experts[2] = {static_cast<uint16_t>(t),
                                         static_cast<uint16_t>(r == 2 && t == 6 ? 8 : 7)};
            const float weights[2] = {0.5f, 0.5f};
            layer.session.write(layer.ranks[static_cast<size_t>(r)].experts + 2 * t, experts, sizeof experts);
            layer.session.write(layer.ranks[static_cast<size_t>(r)].weights + 2 * t, weights, sizeof weights);
        }
    ends(cot::outcome::unsound);
    assert_int_equal(layer.ranks[2].state->unsound_token, 6);
    layer.call.routing = cot::routing::gated;
    ends(cot::outcome::fine);
    const Outcome o = layer.outcome();
    outcome_agrees(o.get(), &w, &p);
    world_free(&w);
}

/* A recorded routing takes the place of the gate's, also of a token whose gate is not finite: lanes write what others wrote, in
 * turn. */
static void a_replayed_routing_of_what_cannot_be_routed(void **)
{
    struct draw draw = {test_seed(), 6, 0};
    struct world w = world_of(variants[0], 5, &draw);
    const struct plan p = plan_even(&w, 1);
    w.x[2 * w.options.expert.hidden] = NAN;
    for (uint64_t seed = 0; seed < 10; seed++) {
        Layer layer(w, p, even_grid(1, 1));
        const cot::fused_rank &r = layer.ranks[0];
        layer.call.routing = cot::routing::replayed;
        layer.call.unsound_pass = 1;
        for (uint16_t t = 0; t < 5; t++) {
            const uint16_t experts[2] = {t, static_cast<uint16_t>(t + 2)};
            const float weights[2] = {0.5f, 0.25f};
            layer.session.write(r.experts + 2 * t, experts, sizeof experts);
            layer.session.write(r.weights + 2 * t, weights, sizeof weights);
        }
        expect_none(layer.launch(seeded(test_seed() + seed)));
        assert_int_equal(r.state->outcome, static_cast<int32_t>(cot::outcome::fine));
        for (int t = 0; t < 5; t++) {
            assert_int_equal(r.routed[2 * t], t);
            assert_int_equal(r.routed[2 * t + 1], t + 2);
            assert_true(std::isfinite(r.y[t * w.options.expert.hidden]) == (t != 2));
        }
    }
    world_free(&w);
}

/* What a call reads and multiplies: each touched expert's weights once (in the last part of a tile's columns the last of them for each that
 * there is not), a tile's rows once for each part, without a conflict between banks, and as many rows as a shape has; as a form in H, I
 * and the tiles, from which docs/DEVICE.md has its table. */
static double columns_of(int rows)
{
    return rows > 32 ? 64 : 128;
}

static double copied_bytes(const cot_ffn_shape &s, const std::vector<int> &tile_rows)
{
    const double value = s.type == COT_BF16 ? 2 : 4, h = static_cast<double>(s.hidden),
                 i = static_cast<double>(s.intermediate), up = s.activation == COT_FFN_SWIGLU ? 2 * i : i;
    double bytes = 0;
    for (const int rows : tile_rows)
        for (const bool first : {true, false}) {
            const double k = first ? h : i;
            const double columns = columns_of(rows), parts = std::ceil((first ? up : h) / columns);
            bytes += value * k * parts * (rows + (s.type == COT_BF16 ? columns : 64));
        }
    return bytes;
}

static int shape_rows(int rows)
{
    return rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
}

static double multiplications(const cot_ffn_shape &s, const std::vector<int> &tile_rows)
{
    const double h = static_cast<double>(s.hidden), i = static_cast<double>(s.intermediate), up = 2 * i;
    const auto whole = [](double n, double by) { return std::ceil(n / by) * by; };
    double count = 0;
    for (const int rows : tile_rows) {
        const double n = columns_of(rows);
        count +=
            shape_rows(rows) * (whole(up, n) * whole(h, 64) + whole(h, n) * whole(i, 64)) / (16 * 8 * 16);
    }
    return count;
}

/* What the tasks of a call of few tokens on one rank take of what orders threads. Of atomic words two updates a task (who takes it; how
 * many parts are left) and a store (that it may run). Beside them an update where places in the queue are taken, for each tile's DOWN and
 * for GATE, all UPs and the end; an update and a store that tell the scheduler of each tile and GATE; an update for each chunk of tokens
 * that is routed, for how much is owed, for each tile whose DOWNs may run, for each row of each DOWN and for each entry of a tile; and a store for each count
 * that begins, or begins anew. And barriers of a processor: two a task, one more for a GATE and for a chunk that is routed. Looks at
 * words that waits poll are not counted, since their number is the schedule's. */
struct Words {
    uint64_t tasks, updates, stores, barriers;
};

static Words words_of(const cot_ffn_shape &s, int32_t experts, int32_t slots, int64_t tokens,
                      const std::vector<int> &tile_rows)
{
    const auto stages = [](int64_t k) { return static_cast<uint64_t>(k + 63) / 64; };
    const auto parts = [&](int64_t columns) {
        uint64_t count = 0;
        for (const int rows : tile_rows)
            count += static_cast<uint64_t>(std::ceil(static_cast<double>(columns) / columns_of(rows)));
        return count;
    };
    const cot::fused_cut gate = cot::gate_cut(tokens, experts, cot::routing::gated);
    const uint64_t gates = static_cast<uint64_t>(cot::fused_cut_tasks(gate)),
                   chunks = static_cast<uint64_t>(gate.chunks), tiles = tile_rows.size(),
                   up = parts(2 * s.intermediate), down = parts(s.hidden), tasks = gates + up + down,
                   blocks = static_cast<uint64_t>(tokens * ((s.hidden + 127) / 128));
    uint64_t entries = 0, rows = 0;
    for (const int in_tile : tile_rows) {
        const double columns = columns_of(in_tile);
        entries += static_cast<uint64_t>(in_tile);
        rows += static_cast<uint64_t>(in_tile * std::ceil(static_cast<double>(s.hidden) / columns));
    }
    return {tasks, 2 * tasks + tiles + 3 + tiles + 1 + chunks + 1 + tiles + rows + entries,
            tasks + tiles + 3 + chunks + tiles + 1 + blocks + static_cast<uint64_t>(slots) + 1 + tiles,
            2 * tasks + gates + chunks + up * stages(s.hidden) + down * stages(s.intermediate)};
}

static std::vector<int> tiles_of(const uint16_t *experts, size_t choices, size_t n)
{
    std::vector<int> rows(n), tiles;
    for (size_t i = 0; i < choices; i++) rows[experts[i]]++;
    for (int left : rows)
        for (; left > 0; left -= cot::FUSED_TILE_ROWS) tiles.push_back(std::min(left, cot::FUSED_TILE_ROWS));
    return tiles;
}

/* What one token waits for, one behind the other, where each task has a processor: a GATE, the last of them, that it has ended; an UP, the
 * last of them; a DOWN, the token's last, who adds up; the last to leave. Each is
 * released by one block and acquired by another; in this schedule all of them are. Where processors take more tasks, one after the
 * other, those are chains, too. */
static void how_many_hand_overs()
{
    struct draw draw = {1, 7, 0};
    Variant v = variants[1];
    v.hidden = 192, v.intermediate = 96, v.experts = 16, v.top_k = 4;
    struct world w = world_of(v, 1, &draw);
    const struct plan p = plan_even(&w, 1);
    Layer layer(w, p, even_grid(1, 20));
    const emulate::Result r = layer.launch(seeded(1));
    expect_none(r);
    printf("chain at one token: %u releases that other blocks acquire, one behind the other\n",
           r.counters.chain);
    assert_int_equal(r.counters.chain, 8);
    world_free(&w);
}

static void what_a_call_reads(void **)
{
    struct draw draw = {test_seed(), 7, 0};
    for (const int64_t tokens : {1, 8, 32}) {
        Variant v = variants[1]; // mixtral, bf16
        v.hidden = 192, v.intermediate = 96, v.experts = 16, v.top_k = 4;
        struct world w = world_of(v, tokens, &draw);
        const struct plan p = plan_even(&w, 1);
        Layer layer(w, p, even_grid(1, 2));
        const emulate::Result r = layer.launch(seeded(test_seed()));
        expect_none(r);
        const Outcome o = layer.outcome();
        const std::vector<int> tiles = tiles_of(o->experts, static_cast<size_t>(tokens * v.top_k), 16);
        assert_int_equal(r.counters.mma, multiplications(w.options.expert, tiles));
        assert_int_equal(r.counters.ldmatrix_conflicts + r.counters.copy_conflicts, 0);
        assert_true(r.counters.shared_accesses > 0);
        assert_int_equal(r.counters.shared_conflicts, 0);
        const Words words = words_of(w.options.expert, 16, p.slots, tokens, tiles);
        /* Beside the tasks: an end for each of two processors; four parties leave; news, what is owed and gated. */
        assert_int_equal(r.counters.atomic_updates, words.updates + 2 + 4);
        assert_int_equal(r.counters.atomic_stores, words.stores + 2 + 5 + 1 + 1 + 1);
        assert_int_equal(r.counters.barriers, words.barriers + 2 + 1);
        assert_int_equal(r.counters.copied_bytes, copied_bytes(w.options.expert, tiles));
        assert_int_equal(r.counters.prefetched_in_vain, 0);
        world_free(&w);
    }
    /* With processors for every task the second matrices are asked for ahead, all of those of this shape and nothing else. */
    Variant v = variants[1];
    v.hidden = 192, v.intermediate = 96, v.experts = 16, v.top_k = 4;
    struct world w = world_of(v, 1, &draw);
    const struct plan p = plan_even(&w, 1);
    Layer layer(w, p, even_grid(1, 20));
    const emulate::Result r = layer.launch(seeded(test_seed()));
    expect_none(r);
    assert_int_equal(r.counters.prefetched_bytes, 4 * 192 * 96 * 2);
    assert_int_equal(r.counters.prefetched_in_vain, 0);
    world_free(&w);
    how_many_hand_overs();
    /* OLMoE: the same form, for routings drawn evenly. */
    const size_t most = 32 * 8;
    cot_ffn_shape olmoe = {};
    olmoe.type = COT_BF16, olmoe.hidden = 2048, olmoe.intermediate = 1024;
    printf("OLMoE, bf16: tokens, experts, padding rows, MB read, floor, ratio, tasks, updates, "
           "stores and barriers a task\n");
    for (const size_t tokens : {size_t{1}, size_t{8}, size_t{32}}) {
        uint16_t experts[most];
        for (size_t t = 0; t < tokens; t++) { // eight that differ: an odd step goes through all 64
            const uint64_t bits = cot_random_bits(1, 0, t), first = bits % 64, step = bits / 64 % 32 * 2 + 1;
            for (size_t k = 0; k < 8; k++)
                experts[8 * t + k] = static_cast<uint16_t>((first + k * step) % 64);
        }
        const std::vector<int> tiles = tiles_of(experts, 8 * tokens, 64);
        const double read = copied_bytes(olmoe, tiles) + static_cast<double>(tokens) * 2048 * 8,
                     floor = static_cast<double>(tiles.size()) * 3 * 2048 * 1024 * 2 +
                             static_cast<double>(tokens) * 2048 * 8;
        int padding = 0;
        for (const int rows : tiles) {
            assert_true(shape_rows(rows) - rows <= 15);
            padding += shape_rows(rows) - rows;
        }
        const Words words = words_of(olmoe, 64, 64, static_cast<int64_t>(tokens), tiles);
        const auto a_task = [&](uint64_t n) {
            return static_cast<double>(n) / static_cast<double>(words.tasks);
        };
        printf("%zu, %zu, %d, %.1f, %.1f, %.3f, %d, %.2f, %.2f, %.1f\n", tokens, tiles.size(), padding,
               read / 1e6, floor / 1e6, read / floor, static_cast<int>(words.tasks), a_task(words.updates),
               a_task(words.stores), a_task(words.barriers));
        assert_true(read <= 1.1 * floor);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant),
        cmocka_unit_test(every_variant_reduced),
        cmocka_unit_test(odd_rows_in_bf16),
        cmocka_unit_test(few_and_many_tokens),
        cmocka_unit_test(few_tokens_of_one_rank),
        cmocka_unit_test(few_tokens_of_many_tiles),
        cmocka_unit_test(hot_experts),
        cmocka_unit_test(a_replay_reads_device_memory),
        cmocka_unit_test(epochs_that_words_have_no_bits_for),
        cmocka_unit_test(what_cannot_be_routed_is_told),
        cmocka_unit_test(a_replayed_routing_of_what_cannot_be_routed),
        cmocka_unit_test(what_a_call_reads),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
