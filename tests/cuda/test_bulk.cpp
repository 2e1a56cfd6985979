/* Operator `cuda-bulk`, a kernel a phase, behind moe's seam over an emulated device: right answers, and the fused operator's bits,
 * bytes and messages. */
#include "ready.h"

#include "cuda/bulk.h"
#include "cuda/module/probe.h"

extern "C" {
#include "harness/seed.h"
}

#include <cmath>

/* What a device multiplies tiles of up to 128 rows by. */
enum By { MMA, WGMMA };
/* In tiles of how many rows a call is to be multiplied. */
enum Tiles { OF_64, OF_128 };

/* Both operators on one plan, cuda-bulk on each of those devices, all of which draw anew. */
static void agree(struct world *w, const struct plan *p, uint64_t *seed, Tiles tiles = OF_64,
                  const std::vector<By> &devices = {MMA})
{
    std::vector<struct outcome *> found;
    const auto rounding =
        static_cast<emulate::Rounding>(*seed % static_cast<uint64_t>(emulate::Rounding::COUNT));
    const int own_tests = w->options.expert.type == COT_BF16 ? COT_CUDA_MANY_SELF_TESTS : 0, // of many tiles
        calls = p->passes + p->warmed;
    for (By by : devices) {
        Ready ready(++*seed, 6, by == WGMMA); // as many blocks as ranks and more, otherwise shared out
        ready.device.options.rounding = rounding;
        found.push_back(world_run(w, p));
        outcome_agrees(found.back(), w, p);
        outcome_counts(found.back(), w, p);
        assert_int_equal(ready.device.launches,
                         COT_CUDA_PHASES * (COT_CUDA_SELF_TESTS + own_tests + calls)); // first the self-test
        assert_int_equal(ready.device.many_launches, 2 * (own_tests + (tiles == OF_128 ? calls : 0)));
        assert_int_equal(ready.device.wgmma_launches, by == WGMMA ? ready.device.many_launches : 0);
        if (by == MMA) assert_int_equal(ready.device.maps, 0);
    }
    {
        Ready ready(++*seed, 7);
        ready.device.options.rounding = rounding;
        w->op = &cot_cuda_operator;
        found.push_back(world_run(w, p));
        w->op = &cot_cuda_bulk_operator;
    }
    const struct outcome *const fused = found.back();
    for (int r = 0; r < p->ranks; r++) assert_int_equal(fused->status[r], COT_OK);
    const size_t choices = static_cast<size_t>(w->tokens * w->options.top_k),
                 elements = static_cast<size_t>(w->tokens * w->options.expert.hidden);
    for (size_t i = 0; i + 1 < found.size(); i++) {
        assert_memory_equal(found[i]->experts, fused->experts, choices * sizeof(uint16_t));
        assert_memory_equal(found[i]->weights, fused->weights, choices * sizeof(float));
        assert_memory_equal(found[i]->y, fused->y, elements * sizeof(float));
        for (int from = 0; from < p->ranks; from++)
            for (int to = 0; to < p->ranks; to++)
                for (int phase = 0; phase < COT_PHASES; phase++)
                    if (phase != COT_PHASE_CONTROL)
                        assert_memory_equal(&found[i]->traffic[from][to][phase],
                                            &fused->traffic[from][to][phase], sizeof(cot_traffic));
    }
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

/* Tiles of 128 rows, full ones and of one row, of experts and shared ones, more columns than a tile has and fewer, biases, ranks without a
 * token and more of them than tiles: to the bit what the fused operator finds by tiles of 64, by mma.sync and by wgmma. */
static void tiles_of_128_rows(void **)
{
    struct draw draw = {test_seed(), 26, 0};
    uint64_t seed = test_seed();
    static const struct {
        int variant, tokens, ranks;
    } cases[] = {{2, 160, 1}, {5, 256, 2}, {10, 192, 5}};
    for (const auto &one : cases) {
        struct world w = world_on(&cot_cuda_bulk_operator, variants[one.variant], one.tokens, &draw);
        struct plan p =
            one.ranks % 2 ? plan_drawn(&w, one.ranks, &draw) : plan_replicated(&w, one.ranks, &draw);
        p.passes = 1 + one.ranks % 2;
        agree(&w, &p, &seed, OF_128, {MMA, WGMMA});
        world_free(&w);
    }
}

/* Tiles of a slot stand beside each other, whichever were full first; all of them are there. */
static void tiles_in_the_order_of_slots(void **)
{
    struct draw draw = {test_seed(), 29, 0};
    Variant v = variants[7];
    v.experts = v.top_k = 35; // more slots than a warp has lanes, of two tiles each
    struct world w = world_on(&cot_cuda_bulk_operator, v, 130, &draw);
    const struct plan p = plan_even(&w, 1);
    const Ready ready(test_seed(), 6, true);
    struct outcome *const found = world_run(&w, &p);
    outcome_agrees(found, &w, &p);
    outcome_free(found, &w);
    const cot::fused_rank &rank =
        ready.device.many_call.ranks[0]; // memory that was given back, and is as it was
    const int tiles = static_cast<int>(rank.state->next);
    assert_int_equal(tiles, 2 * 35);
    std::vector<bool> seen(static_cast<size_t>(tiles));
    for (int i = 0; i < tiles; i++) {
        const int tile = rank.lane_tile[i];
        assert_in_range(tile, 0, tiles - 1);
        seen[static_cast<size_t>(tile)] = true;
        if (i) assert_true(rank.tile_slot[rank.lane_tile[i - 1]] <= rank.tile_slot[tile]);
    }
    for (bool one : seen) assert_true(one);
    world_free(&w);
}

/* Each part is there once; in tiles of many rows all of a tile's stand behind each other, in others all first ones do. */
static void each_part_is_there_once(void **)
{
    static const int cases[][2] = {{1, 1}, {1, 5}, {4, 1}, {70, 3}, {7, 16}}; // tiles, parts of each
    for (const auto &one : cases) {
        const int tiles = one[0], most = one[1];
        std::vector<int> by_tiles(static_cast<size_t>(tiles * most)), by_parts = by_tiles;
        for (int i = 0; i < tiles * most; i++) {
            const cot::bulk_part a = cot::bulk_part_of<true>(i, tiles, most),
                                 b = cot::bulk_part_of<false>(i, tiles, most);
            for (const cot::bulk_part &part : {a, b}) {
                assert_in_range(part.tile, 0, tiles - 1);
                assert_in_range(part.part, 0, most - 1);
            }
            by_tiles[static_cast<size_t>(a.tile * most + a.part)]++;
            by_parts[static_cast<size_t>(b.tile * most + b.part)]++;
            assert_int_equal(a.tile * most + a.part, i);
            assert_int_equal(b.part * tiles + b.tile, i);
        }
        for (int count : by_tiles) assert_int_equal(count, 1);
        for (int count : by_parts) assert_int_equal(count, 1);
    }
    static_assert(cot::bulk_by<cot::mma_many_engine>::BY_TILES && !cot::bulk_by<cot::mma_engine>::BY_TILES &&
                      !cot::bulk_by<cot::fma_engine>::BY_TILES,
                  "which tiles are of many rows");
}

/* And so a block takes them: the copies of a call's two matrices are those of each tile's parts, one tile after the other, and no other. */
static void tiles_are_multiplied_in_their_order(void **)
{
    struct draw draw = {test_seed(), 30, 0};
    Variant v = variants[7];
    v.hidden = v.intermediate = 264, v.experts = 3, v.top_k = 2,
    v.shared = 24; // two parts of each of an expert's products
    struct world w = world_on(&cot_cuda_bulk_operator, v, 130, &draw);
    const struct plan p = plan_even(&w, 1);
    Ready ready(test_seed(), 1, true); // one block
    std::vector<std::array<int, 3>> copies, wanted;
    ready.device.options.tiles = &copies;
    struct outcome *const found = world_run(&w, &p);
    outcome_agrees(found, &w, &p);
    outcome_free(found, &w);
    const cot::fused_rank &rank = ready.device.many_call.ranks[0];
    const int tiles = static_cast<int>(rank.state->next) + 2; // and the shared expert's
    for (int product = 0; product < 2; product++)
        for (int lane = 0; lane < tiles; lane++) {
            const int tile = rank.lane_tile[lane], inner = tile < 0 ? 24 : 264,
                      columns = product ? 264 : inner, k = product ? inner : 264;
            for (int first = 0; first < columns; first += 256)
                for (int at = 0; at < k; at += 64)
                    wanted.push_back({at, first, tile < 0 ? 0 : rank.tile_slot[tile]});
        }
    assert_true(copies.size() > wanted.size()); // first the self-test's
    copies.erase(copies.begin(), copies.end() - static_cast<std::ptrdiff_t>(wanted.size()));
    assert_true(copies == wanted);
    world_free(&w);
}

/* The call's tokens decide, of all ranks together and wherever they are: 64 rows an expert, and one row fewer than that. */
static void tokens_pick_the_tiles(void **)
{
    struct draw draw = {test_seed(), 27, 0};
    uint64_t seed = test_seed();
    for (int tokens : {256, 255}) { // 2 of 8 experts each
        struct world w = world_on(&cot_cuda_bulk_operator, variants[1], tokens, &draw);
        struct plan p = plan_even(&w, 3);
        p.begin[1] = 3, p.begin[2] = 3;
        agree(&w, &p, &seed, tokens == 256 ? OF_128 : OF_64, {tokens % 2 ? WGMMA : MMA});
        world_free(&w);
    }
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
                     COT_CUDA_PHASES * (COT_CUDA_SELF_TESTS + COT_CUDA_MANY_SELF_TESTS + 2)); // of 512 tokens
    assert_int_equal(ready.device.many_launches, 2 * (COT_CUDA_MANY_SELF_TESTS + 2));
    outcome_free(found, &w);
    world_free(&w);
}

/* Devices that multiply tiles of 128 rows by mma.sync, of which each says why. */
static void who_has_no_wgmma(void **)
{
    struct draw draw = {test_seed(), 28, 0};
    struct world w = world_on(&cot_cuda_bulk_operator, variants[7], 330, &draw);
    const struct plan p = plan_even(&w, 2);
    static const struct {
        int major, shared_bytes;
        bool maps;
        const char *said;
    } cases[] = {{9, 232448, true, "many tokens in tiles of 128 by wgmma"},
                 {8, 166912, true,
                  "'cuda-bulk' many tokens in tiles of 128 by mma.sync: wgmma needs compute capability 9.x"},
                 {12, 232448, true,
                  "'cuda-bulk' many tokens in tiles of 128 by mma.sync: wgmma needs compute capability 9.x"},
                 {9, cot::BULK_WGMMA_BYTES - 1, true,
                  "'cuda-bulk' many tokens in tiles of 128 by mma.sync: wgmma needs more shared memory than "
                  "a block has here"},
                 {9, 232448, false,
                  "'cuda-bulk' many tokens in tiles of 128 by mma.sync: wgmma needs a driver with "
                  "cuTensorMapEncodeTiled"}};
    for (const auto &one : cases) {
        Ready ready(test_seed());
        cot_cuda_driver driver = *ready.device.driver();
        if (!one.maps) driver.map_tiles = nullptr;
        ready.device.major = one.major;
        ready.device.shared_bytes_most = one.shared_bytes;
        cot_cuda_device_close(&ready.found);
        assert_int_equal(cot_cuda_device_open(&ready.found, &driver, &image, nullptr), COT_OK);
        char text[192];
        cot_cuda_device_describe(&ready.found, text, sizeof text);
        const std::string said = std::string("'Emulated' multiplies in tiles of 64 rows, ") + one.said;
        assert_string_equal(text, said.c_str());
        if (!one.maps) {
            struct outcome *const found = world_run(&w, &p);
            outcome_agrees(found, &w, &p);
            outcome_free(found, &w);
            assert_int_equal(ready.device.many_launches, 2 * (COT_CUDA_MANY_SELF_TESTS + 1));
            assert_int_equal(ready.device.wgmma_launches + ready.device.maps, 0);
        }
        cot_cuda_device_close(&ready.found); // before the driver goes
        assert_int_equal(cot_cuda_device_open(&ready.found, ready.device.driver(), &image, nullptr), COT_OK);
    }
    /* A group of more ranks than there are blocks of such tiles has those of 64 rows. */
    Ready ready(test_seed(), 1, true);
    struct outcome *const found = world_run(&w, &p);
    outcome_agrees(found, &w, &p);
    outcome_free(found, &w);
    assert_int_equal(ready.device.many_launches, 0);
    world_free(&w);
}

/* What lies behind a layer's slots are its maps, not one slot more. */
static void a_slot_behind_the_last(void **)
{
    const Ready ready(test_seed(), 6, true);
    cot_moe_options options = {};
    options.expert.type = options.combine_type = COT_BF16;
    options.expert.activation = COT_FFN_GELU;
    options.expert.hidden = options.expert.intermediate = 8; // a slot is as large as two maps
    options.experts = options.slots = 4;
    options.top_k = options.tokens = 1;
    cot_cuda_group *group = nullptr;
    cot_error error = {};
    assert_int_equal(cot_cuda_group_open(&group, &ready.found, cot_cuda_kind::bulk, &options, 1, &error),
                     COT_OK);
    cot_moe_layer layer = {};
    layer.slots = 64;
    const std::vector<unsigned char> slots(5 * sizeof(cot::tile_map[2]));
    assert_int_equal(cot_cuda_weights.slot_bytes(&options.expert), sizeof(cot::tile_map[2]));
    assert_int_equal(cot_cuda_group_keep(group, &layer, COT_MOE_ALL_SLOTS, 0, slots.data(), &error), COT_OK);
    assert_int_equal(ready.device.maps, 2);
    assert_int_equal(cot_cuda_group_keep(group, &layer, 3, 0, slots.data(), &error), COT_OK);
    assert_int_equal(cot_cuda_group_keep(group, &layer, 4, 0, slots.data(), &error), COT_INVALID_ARGUMENT);
    cot_cuda_group_close(group);
}

/* Each word of the tiles of 128 rows that is gone is found by the layers that an operator is opened with. */
static void the_self_test_of_128_rows(void **)
{
    cot_moe_options options = {};
    options.expert.type = options.combine_type = COT_BF16;
    cot_error error;
    const cot_cuda_probe first = cot_cuda_self_test_layer(COT_BF16, COT_CUDA_SELF_TESTS);
    assert_true(first.form == cot_cuda_form::many);
    const auto finds = [&](By by, const char *mutant) {
        Ready ready(test_seed(), 6, by == WGMMA);
        ready.device.options.mutant = mutant;
        if (cot_cuda_probe_run(&ready.found, cot_cuda_kind::bulk, &first, &options, 1, &error) != COT_IO)
            fail_msg("%s was not found", mutant);
    };
    for (const char *mutant :
         {"many_map", "many_rows_for_products", "many_wait_full", "many_wait_last",
          "order_zeros_before_tiles", "order_tiles_before_sums", "order_sums_before_tiles"})
        finds(WGMMA, mutant);
    for (const char *mutant : {"tile_wait_group", "tile_barrier", "tile_sums_behind_stages"})
        finds(MMA, mutant);
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
    for (const char *mutant : {"bulk_lanes_after_rows"}) {
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
        cmocka_unit_test(tiles_of_128_rows),
        cmocka_unit_test(tiles_in_the_order_of_slots),
        cmocka_unit_test(each_part_is_there_once),
        cmocka_unit_test(tiles_are_multiplied_in_their_order),
        cmocka_unit_test(tokens_pick_the_tiles),
        cmocka_unit_test(who_has_no_wgmma),
        cmocka_unit_test(a_slot_behind_the_last),
        cmocka_unit_test(the_self_test_of_128_rows),
        cmocka_unit_test(every_variant),
        cmocka_unit_test(many_tokens),
        cmocka_unit_test(what_it_refuses),
        cmocka_unit_test(each_weakening_is_found),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
