/* The operator `cuda` behind moe's seam, over an emulated device: the module's host side with everything that it uploads, launches
 * and brings back; and what it refuses. */
#include "ready.h"

#include "cuda/module/probe.h"

extern "C" {
#include "harness/seed.h"
}

#include <cmath>
#include <ctime>
#include <mutex>

enum { SELF_TEST = COT_CUDA_SELF_TESTS }; // launches of an open

static struct world cuda_world(const Variant &v, int64_t tokens, struct draw *draw)
{
    return world_on(&cot_cuda_operator, v, tokens, draw);
}

/* Every variant on 1 to 6 ranks, anyhow placed and replicated: right answers, the CPU operator's bytes and messages, the same
 * bits. Operators are called again and again. */
static void every_variant(void **)
{
    struct draw draw = {test_seed(), 1, 0};
    uint64_t seed = test_seed();
    int ranks = 1;
    for (const Variant &v : variants) {
        struct world w = cuda_world(v, 23, &draw);
        std::vector<float> before;
        for (int i = 0; i < 3; i++, ranks = ranks % 6 + 1) {
            struct plan p = i == 0   ? plan_even(&w, ranks)
                            : i == 1 ? plan_drawn(&w, ranks, &draw)
                                     : plan_replicated(&w, ranks, &draw);
            p.passes = i + 1;
            p.warmed = i == 1;
            const bool reduced = i == 2 && ranks % 2;
            w.options.combine = reduced ? COT_COMBINE_REDUCED : COT_COMBINE_EXACT;
            const Ready ready(++seed);
            struct outcome *const found = world_run(&w, &p);
            outcome_agrees(found, &w, &p);
            outcome_counts(found, &w, &p);
            assert_int_equal(ready.device.launches, SELF_TEST + p.passes + p.warmed);
            w.op = &cot_moe_fused;
            struct outcome *const cpu = world_run(&w, &p);
            w.op = &cot_cuda_operator;
            bool alike = true; // a token that may rightly be routed otherwise
            for (int64_t j = 0; j < w.tokens * w.options.top_k; j++)
                alike = alike && cpu->experts[j] == found->experts[j];
            for (int from = 0; alike && from < p.ranks; from++)
                for (int to = 0; to < p.ranks; to++)
                    for (int phase = 0; phase < COT_PHASES; phase++)
                        if (phase != COT_PHASE_CONTROL)
                            assert_memory_equal(&found->traffic[from][to][phase],
                                                &cpu->traffic[from][to][phase], sizeof(cot_traffic));
            outcome_free(cpu, &w);
            std::vector<float> y(static_cast<size_t>(w.tokens * v.hidden));
            for (int64_t t = 0; t < w.tokens; t++)
                memcpy(y.data() + p.order[t] * v.hidden, found->y + t * v.hidden,
                       static_cast<size_t>(v.hidden) * sizeof(float));
            if (i && !reduced) assert_memory_equal(y.data(), before.data(), y.size() * sizeof(float));
            before = y;
            outcome_free(found, &w);
        }
        world_free(&w);
    }
}

/* `reduced` with more experts a token than a warp has lanes. */
static void more_experts_than_lanes(void **)
{
    struct draw draw = {test_seed(), 15, 0};
    Variant v = variants[1];
    v.hidden = 16, v.intermediate = 8, v.experts = 40, v.top_k = 34;
    struct world w = cuda_world(v, 9, &draw);
    struct plan p = plan_even(&w, 2);
    p.timeout_ns = 600000000000; // the emulator takes its time
    w.options.combine = COT_COMBINE_REDUCED;
    const Ready ready(test_seed(), 3);
    struct outcome *const found = world_run(&w, &p);
    outcome_agrees(found, &w, &p);
    outcome_counts(found, &w, &p);
    outcome_free(found, &w);
    world_free(&w);
}

/* More tokens at home on one rank than a pass takes: some passes, each a launch, with replicas that are chosen as if it were one. */
static void calls_of_several_passes(void **)
{
    struct draw draw = {test_seed(), 2, 0};
    struct world w = cuda_world(variants[7], 1100, &draw);
    struct plan p = plan_even(&w, 4);
    // three replicas each, none at rank 0, and 3 does not divide a pass's tokens
    for (int32_t e = 0; e < 5; e++)
        for (int32_t i = 0; i < 3; i++) p.rank[3 * e + i] = i + 1, p.slot[3 * e + i] = e;
    for (int32_t e = 0; e <= 5; e++) p.replica_begin[e] = 3 * e;
    p.slots = 5;
    p.begin[1] = 1040, p.begin[2] = 1040, p.begin[3] = 1040;
    const Ready ready(test_seed());
    struct outcome *const found = world_run(&w, &p);
    outcome_agrees(found, &w, &p);
    outcome_counts(found, &w, &p);
    assert_int_equal(ready.device.launches, SELF_TEST + 3); // of 512 tokens
    outcome_free(found, &w);
    world_free(&w);
}

/* ---- other ways to call ---- */

static const cot_moe_operator *called; // whose forward the wrappers below call

/* Recorded routing takes the gate's place. */
static cot_status replaying(cot_moe *moe, const cot_moe_layer *layer, float *y, uint16_t *experts,
                            float *weights, const float *x, int64_t tokens, cot_error *error)
{
    const int64_t k = layer->gate->top_k, e = layer->gate->experts;
    const Pinned<uint16_t> recorded(tokens * k);
    const Pinned<float> recorded_weights(tokens * k);
    for (int64_t i = 0; i < tokens * k; i++) {
        recorded.at[i] = static_cast<uint16_t>(i / k % (e - k + 1) + i % k);
        recorded_weights.at[i] = 1 / static_cast<float>(1 + i % 7);
    }
    cot_moe_layer replayed = *layer;
    replayed.replayed_experts = recorded.at;
    replayed.replayed_weights = recorded_weights.at;
    return called->forward(moe, &replayed, y, experts, weights, x, tokens, error);
}

static void a_recorded_routing(void **)
{
    struct draw draw = {test_seed(), 3, 0};
    struct world w = cuda_world(variants[2], 37, &draw);
    struct plan p = plan_drawn(&w, 3, &draw);
    struct outcome *found[2];
    for (int i = 0; i < 2; i++) {
        const Ready ready(test_seed());
        w.op = called = i ? &cot_cuda_operator : &cot_moe_fused;
        const Calling calling(w, replaying);
        found[i] = world_run(&w, &p);
        for (int r = 0; r < 3; r++)
            if (found[i]->status[r] != COT_OK) fail_msg("%s", found[i]->message[r]);
    }
    const size_t choices = static_cast<size_t>(w.tokens * w.options.top_k);
    assert_memory_equal(found[0]->experts, found[1]->experts, choices * sizeof(uint16_t));
    assert_memory_equal(found[0]->weights, found[1]->weights, choices * sizeof(float));
    for (int64_t i = 0; i < w.tokens * w.options.expert.hidden; i++)
        if (!(std::fabs(found[0]->y[i] - found[1]->y[i]) < 8 * static_cast<float>(w.tolerance)))
            fail_msg("element %d", static_cast<int>(i));
    for (int phase = 0; phase < COT_PHASE_CONTROL; phase++)
        for (int i = 0; i < 9; i++)
            assert_memory_equal(&found[0]->traffic[i / 3][i % 3][phase],
                                &found[1]->traffic[i / 3][i % 3][phase], sizeof(cot_traffic));
    for (struct outcome *o : found) outcome_free(o, &w);
    world_free(&w);
}

static thread_local cot_fabric *own_fabric;

static bool note_fabric(cot_fabric *fabric)
{
    own_fabric = fabric;
    return true;
}

/* What the driver was asked for in one call of all ranks. */
struct Asked {
    int sent, brought, waits, waited, unpinned, launches;

    static Asked so_far()
    {
        const emulate::Device *const d = emulate::Device::in_use();
        return {d->sent, d->brought, d->waits, d->waited, d->unpinned, d->launches};
    }
    void expect(const Asked &before, const Asked &wanted) const
    {
        assert_int_equal(sent - before.sent, wanted.sent);
        assert_int_equal(brought - before.brought, wanted.brought);
        assert_int_equal(waits - before.waits, wanted.waits);
        assert_int_equal(waited - before.waited, wanted.waited);
        assert_int_equal(unpinned - before.unpinned, wanted.unpinned);
        assert_int_equal(launches - before.launches, wanted.launches);
    }
};
static Asked wanted_of_a_call;

/* Two calls, the second of which rank 0 sees from before all have arrived to its end. No rank asks the driver for anything else then,
 * since all have given their weights before the first. With `unsound_pass` no call is refused. */
static cot_status counted_as(bool unsound_pass, cot_moe *moe, const cot_moe_layer *layer, float *y,
                             uint16_t *experts, float *weights, const float *x, int64_t tokens,
                             cot_error *error)
{
    cot_moe_layer asked = *layer;
    asked.unsound_pass = unsound_pass;
    const cot_status status = moe->op->forward(moe, &asked, y, experts, weights, x, tokens, error);
    const Asked before = Asked::so_far();
    if (status != COT_OK) return status;
    memset(y, 0xff, static_cast<size_t>(tokens * layer->gate->hidden) * sizeof *y);
    const cot_status again = moe->op->forward(moe, &asked, y, experts, weights, x, tokens, error);
    if (own_fabric->rank == 0) Asked::so_far().expect(before, wanted_of_a_call);
    return again;
}

static cot_status counted(cot_moe *moe, const cot_moe_layer *layer, float *y, uint16_t *experts,
                          float *weights, const float *x, int64_t tokens, cot_error *error)
{
    return counted_as(false, moe, layer, y, experts, weights, x, tokens, error);
}

static cot_status counted_unsound(cot_moe *moe, const cot_moe_layer *layer, float *y, uint16_t *experts,
                                  float *weights, const float *x, int64_t tokens, cot_error *error)
{
    return counted_as(true, moe, layer, y, experts, weights, x, tokens, error);
}

/* Rows travel while the host does not wait: it does so once, and again for rows alone where a call may be refused. */
static void rows_in_pinned_memory(void **)
{
    struct draw draw = {test_seed(), 16, 0};
    for (const cot_moe_operator *kind : {&cot_cuda_operator, &cot_cuda_bulk_operator})
        for (const bool unsound : {false, true}) {
            struct world w = world_on(kind, variants[7], 700, &draw);
            struct plan p = plan_even(&w, 3);
            p.begin[1] = 620, p.begin[2] = 620; // two passes, and a rank without a token
            p.begins = note_fabric;
            const Ready ready(test_seed());
            const int a_pass = kind == &cot_cuda_operator ? 1 : COT_CUDA_PHASES;
            const Calling calling(w, unsound ? counted_unsound : counted);
            /* x of two ranks, what each pass is told; y and routing of two ranks, states of each pass, counters. */
            wanted_of_a_call = {2 + 2, 3 * 2 + 2 + 1, 2 + !unsound, 0, 0, 2 * a_pass};
            struct outcome *const found = world_run(&w, &p);
            outcome_agrees(found, &w, &p);
            p.passes = 2; // a call each
            outcome_counts(found, &w, &p);
            outcome_free(found, &w);
            world_free(&w);
        }
}

/* Copies from and to 16 bytes of which 8 are pinned, and of those 8. */
static void half_pinned_is_refused(unsigned char *host)
{
    const cot_cuda_driver *const driver = emulate::Device::in_use()->driver();
    const int invalid_value = 1;
    uint64_t at;
    driver->context_push(emulate::Device::in_use());
    assert_int_equal(driver->take(&at, 16), 0);
    assert_int_equal(driver->to_device(at, host, 16), invalid_value);
    assert_int_equal(driver->to_device_async(at, host, 16, nullptr), invalid_value);
    assert_int_equal(driver->to_host(host, at, 16), invalid_value);
    assert_int_equal(driver->to_host_async(host, at, 16, nullptr), invalid_value);
    assert_int_equal(driver->to_device(at, host, 8), 0);
    driver->give_back(at);
    void *context;
    driver->context_pop(&context);
}

/* What the driver does with pinned memory, and that it is told when there is too much. */
static void memory_that_is_pinned(void **)
{
    struct draw draw = {test_seed(), 17, 0};
    struct world w = cuda_world(variants[0], 12, &draw);
    struct plan p = plan_even(&w, 3);
    Ready ready(test_seed());
    cot_error error = {};
    const Pinned<unsigned char> pages(3 * 4096);
    const cot_cuda_device *const device = &ready.found;
    for (const size_t at : {size_t{0}, size_t{4095}, pages.bytes - 1}) { // any page of it is pinned already
        assert_int_equal(cot_cuda_pin(device, pages.at + at, 1, &error), COT_IO);
        assert_non_null(strstr(error.message, "the device failed to pin host memory: "
                                              "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED (712)"));
    }
    assert_int_equal(ready.device.pinned.size(), 1);
    assert_int_equal(ready.device.pinned.begin()->second, pages.bytes);
    half_pinned_is_refused(pages.at + pages.bytes - 8);
    cot_moe_options options = w.options;
    cot_cuda_group *group = nullptr;
    options.slots = p.slots;
    assert_int_equal(cot_cuda_group_open(&group, device, cot_cuda_kind::fused, &options, 3, &error), COT_OK);
    assert_int_equal(ready.device.pinned.size(), 2);
    assert_int_equal(ready.device.pinned[reinterpret_cast<uint64_t>(group->pinned)],
                     cot_cuda_group_pinned_bytes(&options, 3));
    cot_cuda_group_close(group);
    ready.device.pinned_most = pages.bytes + 4096;
    all_say(&w, &p, COT_OUT_OF_MEMORY, "'Emulated' cannot pin 0.00");
    ready.device.pinned_most = SIZE_MAX;
    all_say(&w, &p, COT_OK, "");
    world_free(&w);
}

/* Rows and routing are the device's own memory. */
static cot_status in_device_memory(cot_moe *moe, const cot_moe_layer *layer, float *y, uint16_t *experts,
                                   float *weights, const float *x, int64_t tokens, cot_error *error)
{
    if (tokens % 2) return cot_cuda_operator.forward(moe, layer, y, experts, weights, x, tokens, error);
    const cot_cuda_driver *const driver = emulate::Device::in_use()->driver();
    const int64_t h = layer->gate->hidden, k = layer->gate->top_k;
    const size_t row = static_cast<size_t>(tokens * h) * 4, chosen = static_cast<size_t>(tokens * k) * 2;
    uint64_t at[4];
    driver->context_push(emulate::Device::in_use());
    for (int i = 0; i < 4; i++) driver->take(&at[i], (i < 2 ? row : chosen * 2) + 1);
    driver->to_device(at[1], x, row);
    const cot_status status = cot_cuda_forward_device(
        moe, layer, reinterpret_cast<float *>(at[0]), reinterpret_cast<uint16_t *>(at[2]),
        reinterpret_cast<float *>(at[3]), reinterpret_cast<const float *>(at[1]), tokens, error);
    if (status == COT_OK) {
        driver->to_host(y, at[0], row);
        driver->to_host(experts, at[2], chosen);
        driver->to_host(weights, at[3], 2 * chosen);
    }
    for (uint64_t a : at) driver->give_back(a);
    void *context;
    driver->context_pop(&context);
    return status;
}

static void rows_in_device_memory(void **)
{
    struct draw draw = {test_seed(), 4, 0};
    struct world w = cuda_world(variants[1], 25, &draw);
    const Calling calling(w, in_device_memory);
    struct plan p = plan_even(&w, 3); // 8, 8 and 9 tokens: the last rank's in the host's memory
    p.passes = 2;
    const Ready ready(test_seed());
    struct outcome *const found = world_run(&w, &p);
    outcome_agrees(found, &w, &p);
    outcome_counts(found, &w, &p);
    outcome_free(found, &w);
    world_free(&w);
}

/* Weights are stored, and then stored anew: experts, the shared one and the gate. */
static cot_status keep_twice(cot_moe *moe, const cot_moe_layer *layer, int64_t, cot_error *error)
{
    const cot_moe_weights &w = cot_cuda_weights;
    const Variant &v = variants[2];
    cot_ffn_shape shape = {}, shared = {};
    shape.type = shared.type = v.type, shape.hidden = shared.hidden = v.hidden;
    shape.intermediate = v.intermediate, shared.intermediate = v.shared;
    const struct {
        void *at;
        size_t bytes;
    } all[] = {{cot_local(own_fabric, layer->slots), w.slot_bytes(&shape)}, // the first slot
               {const_cast<uint8_t *>(layer->shared), w.slot_bytes(&shared)},
               {const_cast<float *>(layer->gate->weight), w.gate_bytes(v.hidden, v.experts)}};
    std::vector<unsigned char> kept[3];
    for (int i = 0; i < 3; i++) {
        unsigned char *const at = static_cast<unsigned char *>(all[i].at);
        kept[i].assign(at, at + all[i].bytes);
        memset(at, 0, all[i].bytes);
    }
    const cot_status status = cot_cuda_operator.keep(moe, layer, COT_MOE_ALL_SLOTS, error);
    for (int i = 0; i < 3; i++) memcpy(all[i].at, kept[i].data(), all[i].bytes);
    return status == COT_OK ? cot_cuda_operator.keep(moe, layer, COT_MOE_ALL_SLOTS, error) : status;
}

/* All is stored while the first two slots hold nothing, then each of these alone. */
static cot_status keep_slots(cot_moe *moe, const cot_moe_layer *layer, int64_t, cot_error *error)
{
    enum { SLOTS = 2 };
    const Variant &v = variants[2];
    cot_ffn_shape shape = {};
    shape.type = v.type, shape.hidden = v.hidden, shape.intermediate = v.intermediate;
    const size_t bytes = SLOTS * cot_cuda_weights.slot_bytes(&shape);
    unsigned char *const at = static_cast<unsigned char *>(cot_local(own_fabric, layer->slots));
    const std::vector<unsigned char> held(at, at + bytes);
    memset(at, 0, bytes);
    cot_status status = cot_cuda_operator.keep(moe, layer, COT_MOE_ALL_SLOTS, error);
    memcpy(at, held.data(), bytes);
    for (int slot = 0; slot < SLOTS && status == COT_OK; slot++)
        status = cot_cuda_operator.keep(moe, layer, slot, error);
    return status;
}

static int misaligned;          // which of y, x, experts, weights of rank 1
static size_t misaligned_bytes; // by how much

/* One of rank 1's addresses is not where device memory begins. */
static cot_status in_misaligned_memory(cot_moe *moe, const cot_moe_layer *layer, float *, uint16_t *, float *,
                                       const float *x, int64_t tokens, cot_error *error)
{
    const cot_cuda_driver *const driver = emulate::Device::in_use()->driver();
    const size_t row = static_cast<size_t>(tokens * layer->gate->hidden) * sizeof *x;
    uint64_t at[4], given[4];
    driver->context_push(emulate::Device::in_use());
    for (int i = 0; i < 4; i++) {
        driver->take(&at[i], row + 64);
        given[i] = at[i] + (own_fabric->rank == 1 && i == misaligned ? misaligned_bytes : 0);
    }
    if (tokens) driver->to_device(given[1], x, row);
    const cot_status status = cot_cuda_forward_device(
        moe, layer, reinterpret_cast<float *>(given[0]), reinterpret_cast<uint16_t *>(given[2]),
        reinterpret_cast<float *>(given[3]), reinterpret_cast<const float *>(given[1]), tokens, error);
    for (uint64_t a : at) driver->give_back(a);
    void *context;
    driver->context_pop(&context);
    return status;
}

/* Refused on all ranks with nothing launched, and no more than that: what a kernel reads by four numbers it may not where 4 does
 * not divide H, and what nobody reads may be anywhere. */
static void rows_that_are_not_aligned(void **)
{
    struct draw draw = {test_seed(), 18, 0};
    const struct {
        int variant, which;
        size_t bytes;
        const char *says; // NULL: nothing
    } cases[] = {{0, 1, 4, "rank 1's rows of x are at an address of the device's that 16 does not divide"},
                 {1, 1, 8, "rows of x are at an address of the device's that 16 does not divide"},
                 {1, 1, 16, nullptr},
                 {6, 1, 4, nullptr},
                 {6, 1, 2, "rows of x are at an address of the device's that 4 does not divide"},
                 {0, 0, 4, nullptr},
                 {0, 0, 2, "rows of y are at an address of the device's that 4 does not divide"},
                 {0, 2, 2, nullptr},
                 {0, 2, 1, "experts are at an address of the device's that 2 does not divide"},
                 {0, 3, 4, nullptr},
                 {0, 3, 2, "weights are at an address of the device's that 4 does not divide"}};
    for (const auto &c : cases) {
        struct world w = cuda_world(variants[c.variant], 9, &draw);
        struct plan p = plan_even(&w, 3);
        p.begins = note_fabric;
        const Calling calling(w, in_misaligned_memory);
        misaligned = c.which, misaligned_bytes = c.bytes;
        {
            const Ready ready(test_seed());
            all_say(&w, &p, c.says ? COT_INVALID_ARGUMENT : COT_OK, c.says ? c.says : "");
            assert_int_equal(ready.device.launches, SELF_TEST + !c.says);
        }
        world_free(&w);
    }
    struct world w = cuda_world(variants[0], 9, &draw);
    struct plan p = plan_even(&w, 3);
    p.begins = note_fabric;
    p.begin[2] = p.begin[1]; // rank 1 has none
    const Calling calling(w, in_misaligned_memory);
    misaligned = 1, misaligned_bytes = 1;
    {
        const Ready ready(test_seed());
        all_say(&w, &p, COT_OK, "");
    }
    world_free(&w);
}

/* Of a layer of one expert, and an open group of it. */
static cot_moe_options small_options(int64_t hidden)
{
    cot_moe_options options = {};
    options.expert.type = options.combine_type = COT_F32;
    options.expert.gate = options.expert.up = options.expert.down = cot_format_of(COT_F32);
    options.expert.hidden = hidden;
    options.expert.intermediate = options.experts = options.top_k = options.slots = options.tokens = 1;
    return options;
}
static cot_cuda_group *group_of(const Ready &ready, const cot_moe_options &options, int ranks)
{
    cot_cuda_group *group = nullptr;
    cot_error error = {};
    if (cot_cuda_group_open(&group, &ready.found, cot_cuda_kind::fused, &options, ranks, &error) != COT_OK)
        fail_msg("%s", error.message);
    return group;
}

/* As many layers as large models have on 64 ranks: each is found where it was put, in a table that is half empty. */
static void weights_of_many_layers(void **)
{
    const Ready ready(test_seed(), 64);
    const cot_moe_options options = small_options(1);
    cot_cuda_group *const group = group_of(ready, options, 64);
    cot_error error = {};
    std::vector<unsigned char> slots(cot_cuda_weights.slot_bytes(&options.expert));
    std::vector<float> gates(58);
    const int taken = ready.device.taken;
    for (int again = 0; again < 2; again++)
        for (size_t l = 0; l < gates.size(); l++) {
            cot_gate gate = {};
            cot_moe_layer layer = {};
            gate.weight = &gates[l];
            layer.gate = &gate;
            layer.slots = 64 * (l + 1);
            for (int r = 0; r < 64; r++)
                assert_int_equal(
                    cot_cuda_group_keep(group, &layer, COT_MOE_ALL_SLOTS, r, slots.data(), &error), COT_OK);
        }
    assert_int_equal(ready.device.taken - taken, 58 * 65);
    assert_int_equal(group->kept_count, 58 * 65);
    assert_true(group->kept_room >= 2 * group->kept_count);
    std::map<uint64_t, int> places;
    for (size_t i = 0; i < group->kept_room; i++)
        if (group->kept[i].bytes) places[group->kept[i].at]++;
    assert_int_equal(places.size(), 58 * 65);
    cot_cuda_group_close(group);
}

/* Passes that are replayed have tables of slots in turn: the second one's slot is nowhere. */
static void replays_in_turn(void **)
{
    Ready ready(test_seed());
    ready.device.rows_anywhere = true;
    const cot_moe_options options = small_options(1);
    cot_cuda_group *const group = group_of(ready, options, 1);
    cot_error error = {};
    const std::vector<unsigned char> slots(cot_cuda_weights.slot_bytes(&options.expert));
    const float one = 1;
    float y, weight;
    uint16_t expert;
    const int32_t rank = 0, slot = 0, begin[2] = {0, 1}, tables[2] = {0, 1 << 15};
    cot_gate gate = {};
    gate.hidden = gate.experts = gate.top_k = gate.groups = gate.group_limit = 1;
    gate.scaling = 1;
    gate.weight = &one;
    cot_moe_layer layer = {};
    layer.gate = &gate;
    layer.placement = {&rank, &slot, begin};
    assert_int_equal(cot_cuda_group_keep(group, &layer, COT_MOE_ALL_SLOTS, 0, slots.data(), &error), COT_OK);
    group->call.fabric.timeout_ns = 10000000000;
    group->arrived[0] = {&layer, &y, &expert, &weight, &one, 1, false};
    cot_cuda_group_run(group);
    assert_int_equal(group->status, COT_OK);
    uint64_t at;
    double ns;
    const cot_cuda_driver *const driver = ready.device.driver();
    driver->context_push(&ready.device);
    driver->take(&at, sizeof tables);
    driver->to_device(at, tables, sizeof tables);
    assert_int_equal(cot_cuda_group_replay(group, 3, at, 1, &ns, &error), COT_OK);
    assert_int_equal(cot_cuda_group_replay(group, 1, at, 2, &ns, &error), COT_OK);
    assert_int_equal(cot_cuda_group_replay(group, 2, at, 2, &ns, &error), COT_IO);
    assert_true(ready.device.last.fault != emulate::Fault::NONE);
    cot_cuda_group_close(group);
    driver->give_back(at);
    void *context;
    driver->context_pop(&context);
}

/* An address of the host's that held a gate's bias, and then its weights: the device has as much for them as they are. */
static void weights_of_another_size(void **)
{
    Ready ready(test_seed());
    const cot_moe_options options = small_options(256);
    cot_cuda_group *const group = group_of(ready, options, 1);
    cot_error error = {};
    const std::vector<unsigned char> slots(cot_cuda_weights.slot_bytes(&options.expert));
    std::vector<float> once(256), reused(256);
    const auto keep = [&](const float *weight, const float *bias) {
        cot_gate gate = {};
        cot_moe_layer layer = {};
        gate.weight = weight, gate.bias = bias;
        layer.gate = &gate;
        return cot_cuda_group_keep(group, &layer, COT_MOE_ALL_SLOTS, 0, slots.data(), &error);
    };
    assert_int_equal(keep(once.data(), reused.data()), COT_OK);
    const size_t used = ready.device.used, count = group->kept_count;
    assert_int_equal(keep(reused.data(), nullptr), COT_OK);
    assert_int_equal(ready.device.used - used, 1024 - 256); // in pieces of 256
    assert_int_equal(group->kept_count, count);
    assert_int_equal(keep(once.data(), reused.data()), COT_OK);
    assert_int_equal(ready.device.used, used);
    cot_cuda_group_close(group);
}

static void weights_that_are_stored_anew(void **)
{
    struct draw draw = {test_seed(), 11, 0};
    struct world w = cuda_world(variants[2], 20, &draw);
    struct plan p = plan_even(&w, 3);
    p.begins = note_fabric;
    cot_moe_operator op = cot_cuda_operator;
    w.op = &op;
    int taken[3];
    for (int i = 0; i < 3; i++) {
        const Ready ready(test_seed());
        op.keep = i == 2 ? keep_slots : i ? keep_twice : cot_cuda_operator.keep;
        struct outcome *const found = world_run(&w, &p);
        outcome_agrees(found, &w, &p);
        taken[i] = ready.device.taken;
        outcome_free(found, &w);
    }
    assert_true(taken[0] == taken[1] && taken[0] == taken[2]); // in the place where they were
    world_free(&w);
}

/* ---- what is refused ---- */

/* A placement has an expert behind the last slot. */
static cot_status misplaced(cot_moe *moe, const cot_moe_layer *layer, float *y, uint16_t *experts,
                            float *weights, const float *x, int64_t tokens, cot_error *error)
{
    std::vector<int32_t> slots(layer->placement.slot, layer->placement.slot + layer->gate->experts);
    slots[3] = 3; // of slots 0 to 2
    cot_moe_layer wrong = *layer;
    wrong.placement.slot = slots.data();
    return cot_cuda_operator.forward(moe, &wrong, y, experts, weights, x, tokens, error);
}

static void what_cannot_be_routed(void **)
{
    struct draw draw = {test_seed(), 5, 0};
    struct world w = cuda_world(variants[0], 12, &draw);
    struct plan p = plan_even(&w, 3);
    const Ready ready(test_seed());
    w.x[6 * w.options.expert.hidden] = NAN;
    all_say(&w, &p, COT_INVALID_ARGUMENT, "the routing of rank 1's tokens is not sound");
    w.x[2 * w.options.expert.hidden] = NAN;
    all_say(&w, &p, COT_INVALID_ARGUMENT, "the routing of rank 0's tokens is not sound");
    struct outcome *const found = world_run(&w, &p); // and all is as it was
    const std::vector<unsigned char> nothing(static_cast<size_t>(w.tokens * w.options.expert.hidden) * 4,
                                             0xff);
    const size_t chosen = static_cast<size_t>(w.tokens * w.options.top_k);
    assert_memory_equal(found->y, nothing.data(), nothing.size());
    assert_memory_equal(found->experts, nothing.data(), chosen * sizeof(uint16_t));
    assert_memory_equal(found->weights, nothing.data(), chosen * sizeof(float));
    outcome_free(found, &w);
    for (int r = 0; r <= 3; r++) p.begin[r] = 0;
    all_say(&w, &p, COT_INVALID_ARGUMENT, "no rank has a token");
    p = plan_even(&w, 3);
    const Calling calling(w, misplaced);
    all_say(&w, &p, COT_INVALID_ARGUMENT, "slots that are not there");
    world_free(&w);
}

static cot_status silent_status[4]; // of each rank's call, and what it said
static std::string silent_said[4];

/* From the call on, the self-test had all ranks; the next call has them again. */
static cot_status with_a_silent_rank(cot_moe *moe, const cot_moe_layer *layer, float *y, uint16_t *experts,
                                     float *weights, const float *x, int64_t tokens, cot_error *error)
{
    emulate::Device *const device = emulate::Device::in_use();
    const int r = own_fabric->rank;
    device->options.mutant = "fused_rank_1_is_silent";
    silent_status[r] = cot_cuda_operator.forward(moe, layer, y, experts, weights, x, tokens, error);
    silent_said[r] = error->message;
    if (silent_status[r] != COT_TIMED_OUT) return COT_IO;
    device->options.mutant = nullptr; // all have come back from that call before the next is launched
    return cot_cuda_operator.forward(moe, layer, y, experts, weights, x, tokens, error);
}

static void a_rank_of_the_device_is_silent(void **)
{
    struct draw draw = {test_seed(), 6, 0};
    struct world w = cuda_world(variants[0], 12, &draw);
    struct plan p = plan_even(&w, 3);
    p.begins = note_fabric;
    const Calling calling(w, with_a_silent_rank);
    for (int twice = 0; twice < 2; twice++) {
        const Ready ready(test_seed() + static_cast<uint64_t>(twice));
        w.options.combine = twice ? COT_COMBINE_REDUCED : COT_COMBINE_EXACT;
        p.passes = 1 + twice;
        struct outcome *const found = world_run(&w, &p);
        outcome_agrees(found, &w, &p);
        outcome_counts(found, &w, &p);
        assert_int_equal(ready.device.launches, SELF_TEST + 2 + 2 * twice);
        for (int r = 0; r < 3; r++) {
            if (silent_status[r] != COT_TIMED_OUT ||
                silent_said[r].find("on the device rank 1 did not answer rank ") != 0 ||
                silent_said[r].find(twice ? " in 'dispatch' (call 2) within "
                                          : " in 'dispatch' (call 1) within ") == std::string::npos)
                fail_msg("rank %d: %d '%s'", r, silent_status[r], silent_said[r].c_str());
        }
        outcome_free(found, &w);
    }
    world_free(&w);
}

/* What is launched after the self-test does nothing, and the driver tells of no error. */
static cot_status with_an_idle_device(cot_moe *moe, const cot_moe_layer *layer, float *y, uint16_t *experts,
                                      float *weights, const float *x, int64_t tokens, cot_error *error)
{
    const cot_moe_operator *const op = moe->op;
    emulate::Device *const device = emulate::Device::in_use();
    const cot_status status = op->forward(moe, layer, y, experts, weights, x, tokens, error);
    if (status != COT_OK) return COT_OUT_OF_MEMORY;
    device->wrong = emulate::Wrong::LAUNCHES;
    return op->forward(moe, layer, y, experts, weights, x, tokens, error);
}

static void a_device_that_does_nothing(void **)
{
    struct draw draw = {test_seed(), 13, 0};
    for (const cot_moe_operator *kind : {&cot_cuda_operator, &cot_cuda_bulk_operator}) {
        struct world w = world_on(kind, variants[0], 12, &draw);
        struct plan p = plan_even(&w, 1);
        const Ready ready(test_seed());
        const Calling calling(w, with_an_idle_device);
        all_say(&w, &p, COT_IO, "'Emulated' ran 1 of 2 launches for rank 0, and told of no error");
        world_free(&w);
    }
}

/* A launch that ends in an error of the device: what the driver says of it, on all ranks. */
static cot_status with_a_fault(cot_moe *moe, const cot_moe_layer *layer, float *y, uint16_t *experts,
                               float *weights, const float *x, int64_t tokens, cot_error *error)
{
    emulate::Device::in_use()->options.most_steps = 1000;
    return cot_cuda_operator.forward(moe, layer, y, experts, weights, x, tokens, error);
}

static void a_launch_that_fails(void **)
{
    struct draw draw = {test_seed(), 14, 0};
    struct world w = cuda_world(variants[0], 12, &draw);
    struct plan p = plan_even(&w, 1);
    const Ready ready(test_seed());
    const Calling calling(w, with_a_fault);
    all_say(&w, &p, COT_IO, "the device failed to run: ");
    world_free(&w);
}

/* A launch that is refused: what is on its way to the device by then has come there before the rows are the caller's again. */
static cot_status with_a_refusal(cot_moe *moe, const cot_moe_layer *layer, float *y, uint16_t *experts,
                                 float *weights, const float *x, int64_t tokens, cot_error *error)
{
    emulate::Device::in_use()->wrong = emulate::Wrong::REFUSES;
    return cot_cuda_operator.forward(moe, layer, y, experts, weights, x, tokens, error);
}

static void a_launch_that_is_refused(void **)
{
    struct draw draw = {test_seed(), 19, 0};
    struct world w = cuda_world(variants[0], 12, &draw);
    struct plan p = plan_even(&w, 2);
    const Ready ready(test_seed());
    cot_moe_operator op = cot_cuda_operator;
    op.forward = with_a_refusal;
    w.op = &op;
    all_say(&w, &p, COT_IO, "the device failed to launch: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (701)");
    assert_int_equal(ready.device.launches, SELF_TEST);
    world_free(&w);
}

static int begun;
static std::mutex counting;

/* Once operators are open, which takes its time here. */
static bool in_haste(cot_fabric *fabric)
{
    fabric->timeout_ns = 100000000;
    return true;
}

/* The first to come comes again when the others have given up. */
static cot_status with_a_late_rank(cot_moe *moe, const cot_moe_layer *layer, float *y, uint16_t *experts,
                                   float *weights, const float *x, int64_t tokens, cot_error *error)
{
    const struct timespec half_a_second = {0, 500000000};
    counting.lock();
    const bool first = !begun++;
    counting.unlock();
    if (first) nanosleep(&half_a_second, nullptr);
    return cot_cuda_operator.forward(moe, layer, y, experts, weights, x, tokens, error);
}

/* Nothing is launched over rows whose owners have left. */
static void a_rank_that_comes_too_late(void **)
{
    struct draw draw = {test_seed(), 11, 0};
    struct world w = cuda_world(variants[0], 12, &draw);
    struct plan p = plan_even(&w, 3);
    p.begins = in_haste;
    const Ready ready(test_seed());
    const Calling calling(w, with_a_late_rank);
    begun = 0;
    struct outcome *const found = world_run(&w, &p);
    for (int r = 0; r < 3; r++) assert_int_not_equal(found->status[r], COT_OK);
    assert_int_equal(ready.device.launches, SELF_TEST);
    outcome_free(found, &w);
    world_free(&w);
}

/* A sum that is rounded once where the CPU's parts are rounded each is no fault of the device. */
static void a_self_test_of_coarse_rows(void **)
{
    struct draw draw = {test_seed(), 12, 0};
    for (const cot_moe_combine combine : {COT_COMBINE_EXACT, COT_COMBINE_REDUCED}) {
        struct world w = cuda_world(variants[0], 12, &draw);
        struct plan p = plan_even(&w, 3);
        w.options.combine = combine;
        w.options.combine_type = COT_BF16;
        w.tolerance *= 0.02 / 3e-5;
        const Ready ready(test_seed());
        struct outcome *const found = world_run(&w, &p);
        outcome_agrees(found, &w, &p);
        outcome_free(found, &w);
        world_free(&w);
    }
}

/* What an operator is opened with multiplies 129, 65, 33, 17, 1 and 13 rows of experts, then 65, 33, 17 and 14 and 129 of a shared one, then few, of
 * which each of two ranks has a full tile, in tiles of 64 and blocks of 16, sums over more k than is under way at once, and finds each
 * word of that pipeline gone; the device is refused by its name. */
static void the_self_test(void **)
{
    cot_moe_options options = {};
    options.expert.type = options.combine_type = COT_BF16;
    cot_error error;
    for (int number = 0; number < 2 * COT_CUDA_SELF_TESTS; number++) {
        const int i = number / 2, ranks = 1 + number % 2;
        const Ready ready(test_seed());
        const cot_cuda_probe layer = cot_cuda_self_test_layer(COT_BF16, i);
        if (cot_cuda_probe_run(&ready.found, cot_cuda_kind::fused, &layer, &options, ranks, &error) != COT_OK)
            fail_msg("%s", error.message);
        /* k in whole stages; tiles of experts, and of the shared one on so many ranks. */
        const int up_columns = i == 1 ? 2 * 520 : 2 * 24,
                  up_k = i == 0   ? 576
                         : i == 1 ? 64
                                  : 192,
                  down_columns = i == 0   ? 520
                                 : i == 1 ? 24
                                          : 136,
                  down_k = i == 1 ? 576 : 64;
        const std::vector<int> tiles = i == 0       ? std::vector<int>{64, 64, 1, 64, 1, 33, 17, 13, 1}
                                       : i == 1     ? std::vector<int>{64, 1, 33, 17, 14, 64, 64, 1}
                                       : ranks == 1 ? std::vector<int>{8, 4, 3, 1, 8}
                                                    : std::vector<int>{8, 4, 3, 1, 4, 4};
        int mma = 0;
        for (const int rows : tiles) {
            const int blocks = rows <= 16 ? 1 : rows <= 32 ? 2 : 4, wide = rows > 32 ? 64 : 128;
            const auto parts = [=](int columns) { return (columns + wide - 1) / wide; };
            mma += blocks * wide / 8 * (parts(up_columns) * up_k + parts(down_columns) * down_k) / 16;
        }
        assert_int_equal(ready.device.last.counters.mma, mma);
    }
    for (const char *mutant : {"tile_wait_group", "tile_barrier", "tile_sums_slot"})
        for (const cot_cuda_kind kind : {cot_cuda_kind::fused, cot_cuda_kind::bulk}) {
            Ready ready(test_seed());
            ready.device.options.mutant = mutant;
            assert_int_equal(cot_cuda_self_test(&ready.found, kind, &options, 2, &error), COT_IO);
            if (!strstr(error.message, "'Emulated' fails the self-test: "))
                fail_msg("%s: '%s'", mutant, error.message);
        }
}

/* A device that computes wrongly, or whose memory does not keep what it is given, serves nobody. */
static void a_device_that_is_wrong(void **)
{
    struct draw draw = {test_seed(), 10, 0};
    using emulate::Wrong;
    for (const Variant *v : {&variants[0], &variants[1]}) // in fp32 and in bf16
        for (Wrong wrong : {Wrong::TAKES, Wrong::GIVES, Wrong::LAUNCHES}) {
            struct world w = cuda_world(*v, 12, &draw);
            struct plan p = plan_even(&w, 1 + static_cast<int>(wrong) % 3);
            Ready ready(test_seed());
            ready.device.wrong = wrong;
            all_say(&w, &p, COT_IO,
                    wrong == Wrong::LAUNCHES
                        ? "'Emulated' fails the self-test: 'Emulated' ran 0 of 1 launches for rank 0"
                        : "'Emulated' fails the self-test: ");
            assert_int_equal(ready.device.launches, 1); // of its first layer
            ready.device.wrong = Wrong::NOTHING;
            all_say(&w, &p, COT_OK, "");
            world_free(&w);
        }
}

static void ranks_that_are_processes(void **)
{
    struct draw draw = {test_seed(), 7, 0};
    struct world w = cuda_world(variants[0], 12, &draw);
    struct plan p = plan_even(&w, 3);
    p.forked = true;
    const Ready ready(test_seed());
    all_say(&w, &p, COT_UNSUPPORTED, "'cuda' runs ranks that are threads of one process: --fabric threads");
    w.op = &cot_cuda_bulk_operator;
    all_say(&w, &p, COT_UNSUPPORTED, "'cuda-bulk' runs ranks that are threads of one process");
    assert_int_equal(ready.device.taken, 0);
    world_free(&w);
}

static void memory_and_blocks(void **)
{
    struct draw draw = {test_seed(), 8, 0};
    struct world w = cuda_world(variants[0], 12, &draw);
    struct plan p = plan_even(&w, 3);
    {
        const Ready ready(test_seed(), 2);
        all_say(&w, &p, COT_INVALID_ARGUMENT,
                "3 ranks are more than the 2 blocks that 'Emulated' runs at once");
    }
    {
        const Ready ready(test_seed());
        w.options.sms_reserve = 2;
        all_say(&w, &p, COT_OK, "");
        assert_int_equal(ready.device.blocks, 4);
        w.options.sms_reserve = 4;
        all_say(&w, &p, COT_INVALID_ARGUMENT,
                "3 ranks are more than the 2 blocks that 'Emulated' runs at once "
                "but for its reserve");
        w.options.sms_reserve = 6;
        all_say(&w, &p, COT_INVALID_ARGUMENT,
                "6 multiprocessors in reserve leave none of the 6 that 'Emulated' has");
        w.options.sms_reserve = 0;
    }
    {
        Ready ready(test_seed());
        cot_moe_options options = w.options;
        options.slots = p.slots = 900; // more than the self-test's layers take
        const size_t wanted = cot_cuda_group_bytes(cot_cuda_kind::fused, &options, 3, 6, 0);
        all_say(&w, &p, COT_OK, "");
        const size_t most = ready.device.most_used; // the group and its weights, or the self-test's
        assert_true(most > wanted);
        ready.device.free_bytes = wanted - 1; // the self-test fits; nothing of the group is taken
        const int before = ready.device.taken;
        ready.device.most_used = 0;
        all_say(&w, &p, COT_OUT_OF_MEMORY, "what ranks exchange and rows in hand need 0.00");
        assert_true(ready.device.most_used < wanted);
        assert_true(ready.device.taken > before);
        ready.device.free_bytes = most - 1;
        p.begins = in_haste; // the others wait for the rank that has no room
        {
            struct outcome *const found = world_run(&w, &p);
            int said = 0;
            for (int r = 0; r < 3; r++)
                said += strstr(found->message[r], "weights of a layer need 0.017 GB of device memory, ") &&
                        strstr(found->message[r], " of 8.590 GB are free on 'Emulated'");
            assert_int_equal(said, 1); // the last to come
            outcome_free(found, &w);
        }
        ready.device.free_bytes = 1000;
        all_say(&w, &p, COT_OUT_OF_MEMORY,
                "'Emulated' fails the self-test: what ranks exchange and rows in hand need ");
        ready.device.free_bytes = most;
        p.begins = nullptr;
        const int taken = ready.device.taken;
        all_say(&w, &p, COT_OK, "");
        const int all = ready.device.taken - taken;
        p.begins = in_haste;
        for (int i = 1; i <= all; i += 13) { // memory that fails in the midst of opening is given back
            ready.device.fails_at = ready.device.taken + i;
            struct outcome *const found = world_run(&w, &p);
            int failed = 0;
            for (int r = 0; r < 3; r++)
                failed += found->status[r] == COT_OUT_OF_MEMORY &&
                          strstr(found->message[r], " GB of device memory, ") != nullptr;
            assert_true(failed);
            outcome_free(found, &w);
        }
        ready.device.fails_at = 0;
        p.begins = nullptr;
    }
    {
        Ready ready(test_seed());
        ready.device.shared_bytes_most = 30000;
        cot_cuda_device_close(&ready.found);
        assert_int_equal(cot_cuda_device_open(&ready.found, ready.device.driver(), &image, nullptr), COT_OK);
        all_say(&w, &p, COT_INVALID_ARGUMENT, "bytes of shared memory a block, 'Emulated' has 30000");
    }
    cot_cuda_operator_use(nullptr);
    all_say(&w, &p, COT_NOT_FOUND, "'cuda' has no device");
    w.op = &cot_cuda_bulk_operator;
    all_say(&w, &p, COT_NOT_FOUND, "'cuda-bulk' has no device");
    world_free(&w);
}

static void devices(void **)
{
    const struct {
        cot_status status;
        const char *text;
        int devices, version, major, cooperative;
    } cases[] = {{COT_OK, "", 1, 13000, 8, 1},
                 {COT_OK, "", 2, 13020, 12, 1},
                 {COT_NOT_FOUND, "the NVIDIA driver shows no GPU", 0, 13000, 9, 1},
                 {COT_UNSUPPORTED,
                  "need an NVIDIA driver for CUDA 13 (version 580 or later), this machine's is for 12.4", 1,
                  12040, 9, 1},
                 {COT_UNSUPPORTED, "'Emulated' has compute capability 7.0", 1, 13000, 7, 1},
                 {COT_UNSUPPORTED, "kernels for compute capability 8.x", 1, 13000, 11, 1},
                 {COT_UNSUPPORTED, "cannot launch cooperative kernels", 1, 13000, 9, 0}};
    for (const auto &c : cases) {
        emulate::Device device;
        cot_cuda_device found;
        cot_error error = {};
        device.devices = c.devices, device.version = c.version, device.major = c.major;
        device.cooperative = c.cooperative;
        const cot_status status = cot_cuda_device_open(&found, device.driver(), &image, &error);
        if (status != c.status || !strstr(error.message, c.text))
            fail_msg("%d '%s', expected '%s'", status, error.message, c.text);
        assert_null(strchr(error.message, '\n'));
        cot_cuda_device_close(&found);
        assert_int_equal(device.contexts, 0);
    }
    cot_cuda_driver driver;
    cot_error error;
    assert_int_equal(cot_cuda_driver_open(&driver, "libcuda-is-not-here.so.1", &error), COT_NOT_FOUND);
    assert_non_null(strstr(error.message, "this machine has no NVIDIA driver (libcuda-is-not-here.so.1)"));
    assert_int_equal(cot_cuda_driver_open(&driver, "libc.so.6", &error), COT_UNSUPPORTED);
    assert_non_null(strstr(error.message, "this machine's NVIDIA driver is too old: libc.so.6 has no cu"));
}

static void shapes(void **)
{
    struct draw draw = {test_seed(), 9, 0};
    struct world w = cuda_world(variants[1], 4, &draw);
    const auto refuses = [&](const char *text, void (*change)(cot_moe_options *)) {
        cot_moe_options o = w.options;
        cot_error error = {};
        change(&o);
        for (const cot_moe_operator *op : {&cot_cuda_operator, &cot_cuda_bulk_operator}) {
            const std::string name = "'" + std::string(op->name) + "' ";
            assert_int_equal(op->settle(&o, &error), COT_UNSUPPORTED);
            if (!strstr(error.message, text) || strncmp(error.message, name.c_str(), name.size()) != 0)
                fail_msg("%s: '%s', expected '%s'", op->name, error.message, text);
        }
    };
    refuses("H and I that 8 divides in bf16: experts are 36 by 48",
            [](cot_moe_options *o) { o->expert.hidden = 36; });
    refuses("experts are 32 by 44", [](cot_moe_options *o) { o->expert.intermediate = 44; });
    refuses("few bits", [](cot_moe_options *o) { o->expert.up = COT_FORMAT_MXFP4; });
    refuses("few bits", [](cot_moe_options *o) { o->expert.rounded = true; });
    refuses("at most 960 experts", [](cot_moe_options *o) { o->experts = 961; });
    refuses("at most 960 slots a rank, not 961", [](cot_moe_options *o) { o->slots = 961; });
    refuses("'padded' is of 'bulk'", [](cot_moe_options *o) { o->a2a = COT_A2A_PADDED; });
    refuses("dedup off", [](cot_moe_options *o) { o->dedup = COT_DEDUP_OFF; });
    const Ready ready(test_seed());
    struct plan p = plan_even(&w, 2);
    w.options.top_k = w.options.experts + 1;
    struct outcome *const found = world_run(&w, &p);
    assert_int_equal(found->status[1], COT_INVALID_ARGUMENT);
    assert_non_null(strstr(found->message[1], "9 experts a token, expected 1 to 8"));
    outcome_free(found, &w);
    w.options.top_k = 2;
    world_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant),
        cmocka_unit_test(more_experts_than_lanes),
        cmocka_unit_test(calls_of_several_passes),
        cmocka_unit_test(a_recorded_routing),
        cmocka_unit_test(rows_in_pinned_memory),
        cmocka_unit_test(memory_that_is_pinned),
        cmocka_unit_test(rows_in_device_memory),
        cmocka_unit_test(rows_that_are_not_aligned),
        cmocka_unit_test(weights_of_many_layers),
        cmocka_unit_test(weights_of_another_size),
        cmocka_unit_test(replays_in_turn),
        cmocka_unit_test(weights_that_are_stored_anew),
        cmocka_unit_test(what_cannot_be_routed),
        cmocka_unit_test(a_rank_of_the_device_is_silent),
        cmocka_unit_test(a_rank_that_comes_too_late),
        cmocka_unit_test(a_device_that_does_nothing),
        cmocka_unit_test(a_launch_that_fails),
        cmocka_unit_test(a_launch_that_is_refused),
        cmocka_unit_test(the_self_test),
        cmocka_unit_test(a_self_test_of_coarse_rows),
        cmocka_unit_test(a_device_that_is_wrong),
        cmocka_unit_test(ranks_that_are_processes),
        cmocka_unit_test(memory_and_blocks),
        cmocka_unit_test(devices),
        cmocka_unit_test(shapes),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
