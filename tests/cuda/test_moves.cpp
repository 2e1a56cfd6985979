/* Experts that move while a model serves with operator `cuda`, over an emulated device, which keeps copies of all slots: each that has
 * come is stored there anew before steps find it. Texts and logits are those of an engine whose experts stay, to the bit. */
#include "expect.h"
#include "known_device.h"

extern "C" {
#include "harness/seed.h"

#include "coterie/engine.h"
#include "coterie/layout.h"

#include "base/rng.h"
}

#include <cstring>
#include <utility>
#include <vector>

enum { RANKS = 2, SPARE = 1, PROMPT = 3, TOKENS = 8 };

static cot_engine *must_open(void)
{
    cot_error error;
    cot_engine *engine = nullptr;
    cot_engine_options options;
    cot_engine_options_init(&options);
    options.group.ranks = RANKS, options.group.threads = RANKS;
    options.experts.op = "cuda", options.weights.precision = "bf16", options.experts.combine = "exact";
    options.experts.movable = true, options.experts.spare_slots = SPARE;
    options.batch.step_tokens = 16, options.batch.sequences = 2, options.memory.kv_tokens = 64;
    if (cot_engine_open(&engine, COT_SOURCE "/models/tiny", &options, nullptr, &error) != COT_OK)
        fail_msg("%s", error.message);
    return engine;
}

static uint64_t draw(uint64_t *seed)
{
    return cot_mix64((*seed)++);
}

/* ---- placements ---- */

using held = std::vector<std::vector<bool>>; // [layer * RANKS + rank][expert]

static held held_of(cot_engine *engine)
{
    cot_expert_layout l;
    assert_int_equal(cot_engine_layout(engine, &l, nullptr, nullptr), COT_OK);
    held all(static_cast<size_t>(l.n_layers * RANKS),
             std::vector<bool>(static_cast<size_t>(l.n_experts), false));
    for (int32_t layer = 0; layer < l.n_layers; layer++) {
        const cot_expert_replicas r = cot_expert_layout_layer(&l, layer);
        for (int32_t e = 0; e < l.n_experts; e++)
            for (int32_t i = r.begin[e]; i < r.begin[e + 1]; i++)
                all[static_cast<size_t>(layer * RANKS + r.rank[i])][static_cast<size_t>(e)] = true;
    }
    cot_expert_layout_free(&l);
    return all;
}

static void must_move(cot_engine *engine, const held &to)
{
    const cot_engine_info *info = cot_engine_describe(engine);
    const auto experts = static_cast<int32_t>(info->experts), slots = info->expert_slots,
               layers = static_cast<int32_t>(info->moe_layers);
    cot_expert_map map;
    assert_int_equal(cot_expert_map_new(&map, layers, experts, RANKS, slots, nullptr), COT_OK);
    memcpy(map.layers, info->moe_layer, static_cast<size_t>(layers) * sizeof *map.layers);
    for (size_t row = 0; row < to.size(); row++) {
        int32_t *slot = map.expert + row * static_cast<size_t>(slots);
        for (int32_t e = 0; e < experts; e++)
            if (to[row][static_cast<size_t>(e)]) *slot++ = e;
    }
    cot_engine_moves_options options;
    cot_error error;
    uint64_t id;
    cot_engine_moves_options_init(&options);
    options.bytes_per_s =
        1e12; // a slot is one chunk, behind each step but the first, however long steps take
    if (cot_engine_move_experts(engine, &map, "the test's", &options, &id, &error) != COT_OK)
        fail_msg("%s", error.message);
    cot_expert_map_free(&map);
}

/* An expert that one rank has of a layer changes places with one that the other has. */
static held exchanged(const held &now, uint64_t *seed)
{
    held to = now;
    const size_t layer = draw(seed) % (now.size() / RANKS), experts = now[0].size();
    size_t expert[RANKS];
    for (size_t r = 0; r < RANKS; r++) do
            expert[r] = draw(seed) % experts;
        while (!now[layer * RANKS + r][expert[r]] || now[layer * RANKS + !r][expert[r]]);
    for (size_t r = 0; r < RANKS; r++)
        for (size_t q = 0; q < RANKS; q++) to[layer * RANKS + q][expert[r]] = q != r;
    return to;
}

/* Every expert is somewhere, dealt anew, and each rank has another's as well. */
static held dealt_anew(const held &now, uint64_t *seed)
{
    held to;
    const size_t experts = now[0].size();
    for (size_t layer = 0; layer < now.size() / RANKS; layer++) {
        std::vector<bool> own(experts, false);
        for (size_t n = 0; n < experts / RANKS;) {
            const size_t e = draw(seed) % experts;
            n += !own[e];
            own[e] = true;
        }
        for (size_t r = 0; r < RANKS; r++) {
            to.push_back(own);
            if (r) to.back().flip();
            size_t e;
            do e = draw(seed) % experts;
            while (to.back()[e]);
            to.back()[e] = true;
        }
    }
    return to;
}

/* ---- under load ---- */

struct told {
    std::vector<int32_t> tokens;
    std::vector<float> logits;
};

static bool take_token(void *context, uint64_t, int32_t token)
{
    static_cast<told *>(context)->tokens.push_back(token);
    return true;
}

static size_t vocab;

static void take_logits(void *context, uint64_t, int64_t, const float *logits)
{
    std::vector<float> &all = static_cast<told *>(context)->logits;
    all.insert(all.end(), logits, logits + vocab);
}

static size_t must_step(cot_engine *engine)
{
    cot_error error;
    size_t left;
    if (cot_engine_step(engine, &left, &error) != COT_OK) fail_msg("%s", error.message);
    return left;
}

static void submit(cot_engine *engine, told *to)
{
    static const int32_t prompt[PROMPT] = {5, 17, 301};
    cot_error error;
    cot_request request;
    cot_events events = {};
    uint64_t id;
    cot_request_init(&request);
    request.prompt = prompt;
    request.prompt_tokens = PROMPT;
    request.all_logits = true;
    request.sampling.max_tokens = TOKENS;
    request.sampling.ignore_eos = true;
    events.context = to;
    events.on_token = take_token;
    events.on_logits = take_logits;
    if (cot_engine_submit(engine, &id, &request, COT_HOME_ANY, &events, &error) != COT_OK)
        fail_msg("%s", error.message);
}

static cot_engine_moves moves_of(cot_engine *engine)
{
    cot_engine_moves moves;
    cot_engine_get_moves(engine, &moves);
    return moves;
}

static told text_of(cot_engine *engine)
{
    told text;
    submit(engine, &text);
    while (must_step(engine)) continue;
    assert_int_equal(text.tokens.size(), TOKENS);
    return text;
}

static void assert_same(const told &a, const told &b)
{
    assert_true(a.tokens == b.tokens);
    assert_int_equal(a.logits.size(), b.logits.size());
    assert_memory_equal(a.logits.data(), b.logits.data(), a.logits.size() * sizeof(float));
}

static void await_moves(cot_engine *engine, const held &wanted)
{
    while (!moves_of(engine).over) must_step(engine);
    assert_true(held_of(engine) == wanted);
}

static void texts_stay(void **)
{
    uint64_t seed = test_seed();
    cot_engine *engine = must_open();
    vocab = static_cast<size_t>(cot_engine_describe(engine)->vocab);
    const told still = text_of(engine);
    held wanted = held_of(engine);
    told moved;
    submit(engine, &moved);
    int64_t copied = 0;
    do {
        const cot_engine_moves moves = moves_of(engine);
        if (moves.id && !moves.over) continue;
        copied += moves.copied;
        assert_true(held_of(engine) == wanted);
        wanted = exchanged(wanted, &seed);
        must_move(engine, wanted);
    } while (must_step(engine));
    assert_same(still, moved);
    assert_true(copied >= 2); // before the text was over
    await_moves(engine, wanted);
    wanted = dealt_anew(wanted, &seed);
    must_move(engine, wanted);
    await_moves(engine, wanted);
    assert_same(still, text_of(engine));
    cot_engine_close(engine);
    assert_int_equal(device->taken, device->given_back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts_stay)};
    return cmocka_run_group_tests(tests, begin, end);
}
