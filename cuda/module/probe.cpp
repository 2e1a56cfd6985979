#include "cuda/module/probe.h"

#include "cuda/module/weights.h"

#include "cuda/c_begin.h"
#include "base/arena.h"
#include "base/rng.h"
#include "cuda/c_end.h"

#include <math.h>
#include <string.h>

/* A network as it is drawn. */
struct drawn_network {
    float *gate, *up, *down, *gate_bias, *up_bias, *down_bias; // NULL: not there
    uint8_t *packed;                                           // as the CPU keeps it
};

struct probing {
    const cot_cuda_probe *probe;
    cot_arena arena;
    int ranks;
    int64_t tokens, hidden, slots; // T, H, slots of a rank
    uint64_t stream;               // of numbers
    drawn_network *experts, shared;
    float *x, *gate, *gate_bias, *correction, *shared_gate;
    float *packed_gate;
    int32_t *rank, *slot, *begin; // of the placement
    /* What the device is given, and what it gives. */
    uint8_t *device_slots, *device_shared; // [P][slots]
    float *device_gate, *y, *weights;
    uint16_t *experts_of;
    /* The same by the CPU. */
    float *right, *right_weights, *logits, *rows;
    uint16_t *right_experts;
    uint8_t *x_typed, *scratch;
};

template <typename T> static T *take(probing *p, int64_t count)
{
    return static_cast<T *>(cot_arena_take(&p->arena, static_cast<size_t>(count), sizeof(T)));
}

/* Numbers that bf16 holds, in [-most, most). */
static float *draw(probing *p, int64_t count, double most)
{
    float *const to = take<float>(p, count);
    p->stream++;
    if (!to) return nullptr;
    for (int64_t i = 0; i < count; i++) {
        const double u =
            cot_random_uniform(p->probe->seed, p->stream, static_cast<uint64_t>(i)) * 2 * most - most;
        to[i] = cot_bf16_to_f32(cot_f32_to_bf16(static_cast<float>(u)));
    }
    return to;
}

static void store(const cot_moe_weights *weights, uint8_t *slot, const cot_ffn_shape *shape,
                  const drawn_network *n)
{
    const int64_t h = shape->hidden, i = shape->intermediate;
    const struct {
        cot_ffn_part part;
        const float *from;
        int64_t rows, columns;
    } parts[] = {{COT_FFN_GATE, n->gate, i, h},       {COT_FFN_UP, n->up, i, h},
                 {COT_FFN_DOWN, n->down, h, i},       {COT_FFN_GATE_BIAS, n->gate_bias, 1, i},
                 {COT_FFN_UP_BIAS, n->up_bias, 1, i}, {COT_FFN_DOWN_BIAS, n->down_bias, 1, h}};
    for (const auto &part : parts) {
        cot_moe_rows rows = {};
        rows.count = part.rows;
        rows.in.numbers = part.from;
        rows.in.type = COT_F32;
        rows.in.stride = part.columns;
        if (part.from) weights->store_expert(slot, shape, part.part, &rows);
    }
}

static drawn_network draw_network(probing *p, const cot_ffn_shape *s)
{
    const bool gated = cot_ffn_is_gated(s);
    const int64_t h = s->hidden, i = s->intermediate;
    const double up = 3 / sqrt(static_cast<double>(h)), down = 3 / sqrt(static_cast<double>(i));
    drawn_network n = {};
    if (gated) n.gate = draw(p, i * h, up);
    n.up = draw(p, i * h, up);
    n.down = draw(p, h * i, down);
    if (s->biased) {
        if (gated) n.gate_bias = draw(p, i, 1);
        n.up_bias = draw(p, i, 1);
        n.down_bias = draw(p, h, 1);
    }
    n.packed = take<uint8_t>(p, static_cast<int64_t>(cot_moe_packed.slot_bytes(s)));
    if (n.packed) store(&cot_moe_packed, n.packed, s, &n);
    return n;
}

/* Expert e is in slot e / P of rank e % P. */
static void place(probing *p)
{
    const int64_t experts = p->probe->gate.experts;
    const size_t bytes = cot_cuda_weights.slot_bytes(&p->probe->expert);
    p->rank = take<int32_t>(p, experts);
    p->slot = take<int32_t>(p, experts);
    p->begin = take<int32_t>(p, experts + 1);
    p->device_slots = take<uint8_t>(p, p->ranks * p->slots * static_cast<int64_t>(bytes));
    for (int32_t e = 0; e < experts && p->rank; e++) {
        p->rank[e] = e % p->ranks;
        p->slot[e] = e / p->ranks;
        p->begin[e + 1] = e + 1;
        store(&cot_cuda_weights,
              p->device_slots + static_cast<size_t>(p->rank[e] * p->slots + p->slot[e]) * bytes,
              &p->probe->expert, &p->experts[e]);
    }
}

/* Has token t's rows and the gate so that `calls` tokens call each expert: expert e takes the tokens behind those that expert e - 1
 * took, all of them in a ring. Of a token's logits those of its experts are near 16, all others near 4 at most. */
static void route_as(probing *p, const int64_t *calls)
{
    const int64_t h = p->hidden;
    int64_t t = 0;
    for (int64_t e = 0; e < p->probe->gate.experts; e++) {
        for (int64_t i = 0; i < p->probe->gate.experts; i++) p->gate[e * h + i] = i == e ? 4 : 0;
        for (int64_t i = 0; i < calls[e]; i++, t = (t + 1) % p->tokens) p->x[t * h + e] = 4;
    }
}

/* Everything in its place; in an arena that measures nothing but its size. */
static void lay_out(probing *p)
{
    const cot_cuda_probe *const probe = p->probe;
    const int64_t experts = probe->gate.experts, h = p->hidden, t = p->tokens, k = probe->gate.top_k;
    p->stream = 0;
    p->experts = take<drawn_network>(p, experts);
    for (int64_t e = 0; e < experts; e++) {
        const drawn_network n = draw_network(p, &probe->expert);
        if (p->experts) p->experts[e] = n;
    }
    if (probe->shared.intermediate) {
        p->shared = draw_network(p, &probe->shared);
        p->device_shared =
            take<uint8_t>(p, static_cast<int64_t>(cot_cuda_weights.slot_bytes(&probe->shared)));
        if (p->device_shared) store(&cot_cuda_weights, p->device_shared, &probe->shared, &p->shared);
        if (probe->shared_gated) p->shared_gate = draw(p, h, 1);
    }
    p->x = draw(p, t * h, 1);
    p->gate = draw(p, experts * h, probe->calls ? 1 / sqrt(static_cast<double>(h)) : 1);
    if (probe->calls && p->gate) route_as(p, probe->calls);
    if (probe->gate_bias) p->gate_bias = draw(p, experts, 1);
    if (probe->correction) p->correction = draw(p, experts, 1);
    p->packed_gate = reinterpret_cast<float *>(
        take<uint8_t>(p, static_cast<int64_t>(cot_moe_packed.gate_bytes(h, experts))));
    p->device_gate = reinterpret_cast<float *>(
        take<uint8_t>(p, static_cast<int64_t>(cot_cuda_weights.gate_bytes(h, experts))));
    if (p->packed_gate) {
        cot_moe_rows rows = {};
        rows.count = experts;
        rows.in.numbers = p->gate;
        rows.in.type = COT_F32;
        rows.in.stride = h;
        cot_moe_packed.store_gate(p->packed_gate, h, experts, &rows);
        cot_cuda_weights.store_gate(p->device_gate, h, experts, &rows);
    }
    place(p);
    p->y = take<float>(p, t * h);
    p->weights = take<float>(p, t * k);
    p->experts_of = take<uint16_t>(p, t * k);
    p->right = take<float>(p, t * h);
    p->right_weights = take<float>(p, t * k);
    p->right_experts = take<uint16_t>(p, t * k);
    p->logits = take<float>(p, t * experts);
    p->rows = take<float>(p, t * h);
    p->x_typed = take<uint8_t>(p, t * h * static_cast<int64_t>(cot_dtype_bytes(probe->expert.type)));
    const size_t scratch = cot_ffn_scratch_bytes(&probe->expert, t, 1),
                 shared = probe->shared.intermediate ? cot_ffn_scratch_bytes(&probe->shared, t, 1) : 0;
    p->scratch = take<uint8_t>(p, static_cast<int64_t>(scratch > shared ? scratch : shared));
}

static cot_gate gate_of(const probing *p, const float *weight)
{
    cot_gate gate = p->probe->gate;
    gate.weight = weight;
    gate.bias = p->gate_bias;
    gate.correction = p->correction;
    return gate;
}

/* ---- by the CPU ---- */

/* All rows through one network. */
static void run_network(probing *p, const cot_kernels *kernels, const cot_ffn_shape *shape,
                        const drawn_network *n)
{
    const cot_ffn_job job = {n->packed, nullptr, p->tokens, p->x_typed, p->rows};
    cot_ffn_run(kernels, nullptr, shape, &job, 1, p->scratch);
}

static float rounded(float value, cot_dtype type)
{
    return type == COT_BF16 ? cot_bf16_to_f32(cot_f32_to_bf16(value)) : value;
}

static cot_status compute(probing *p, cot_dtype combine_type, cot_error *error)
{
    const cot_cuda_probe *const probe = p->probe;
    const cot_kernels *const kernels = cot_kernels_of(COT_ISA_REF);
    const int64_t h = p->hidden, k = probe->gate.top_k;
    const cot_gate gate = gate_of(p, p->packed_gate);
    const cot_gate_tokens tokens = {p->x, 0, p->tokens, p->right_experts, p->right_weights, p->logits, false};
    const cot_status status = cot_gate_route(&tokens, &gate, kernels, nullptr, error);
    if (status != COT_OK) return status;
    for (int64_t i = 0; i < p->tokens * h; i++) {
        const uint16_t half = cot_f32_to_bf16(p->x[i]);
        if (probe->expert.type == COT_BF16)
            memcpy(p->x_typed + 2 * i, &half, sizeof half);
        else
            memcpy(p->x_typed + 4 * i, &p->x[i], sizeof(float));
    }
    for (int64_t e = 0; e < probe->gate.experts; e++) { // in ascending order, as a token's rows are added
        run_network(p, kernels, &probe->expert, &p->experts[e]);
        for (int64_t i = 0; i < p->tokens * k; i++)
            for (int64_t j = 0; p->right_experts[i] == e && j < h; j++)
                p->right[i / k * h + j] +=
                    rounded(p->right_weights[i] * p->rows[i / k * h + j], combine_type);
    }
    if (!probe->shared.intermediate) return COT_OK;
    run_network(p, kernels, &probe->shared, &p->shared);
    for (int64_t t = 0; t < p->tokens; t++) {
        double sum = 0;
        for (int64_t j = 0; p->shared_gate && j < h; j++)
            sum += static_cast<double>(p->x[t * h + j]) * static_cast<double>(p->shared_gate[j]);
        const float factor = p->shared_gate ? static_cast<float>(1 / (1 + exp(-sum))) : 1;
        for (int64_t j = 0; j < h; j++) p->right[t * h + j] += factor * p->rows[t * h + j];
    }
    return COT_OK;
}

/* ---- by the device ---- */

static cot_status run_group(probing *p, cot_cuda_group *g, cot_error *error)
{
    const cot_sym everywhere = 64; // what keep knows slots by
    const size_t slots = static_cast<size_t>(p->slots) * cot_cuda_weights.slot_bytes(&p->probe->expert);
    const int64_t h = p->hidden, k = p->probe->gate.top_k;
    const cot_gate gate = gate_of(p, p->device_gate);
    cot_moe_layer layer = {};
    layer.gate = &gate;
    layer.placement = {p->rank, p->slot, p->begin};
    layer.slots = everywhere;
    layer.shared = p->device_shared;
    layer.shared_gate = p->shared_gate;
    cot_status status = COT_OK;
    for (int r = 0; r < p->ranks && status == COT_OK; r++) {
        const int64_t begin = cot_share_begin(p->tokens, r, p->ranks),
                      end = cot_share_begin(p->tokens, r + 1, p->ranks);
        status = cot_cuda_group_keep(g, &layer, COT_MOE_ALL_SLOTS, r,
                                     p->device_slots + static_cast<size_t>(r) * slots, error);
        g->arrived[r] = {&layer,
                         p->y + begin * h,
                         p->experts_of + begin * k,
                         p->weights + begin * k,
                         p->x + begin * h,
                         end - begin,
                         false};
    }
    if (status != COT_OK) return status;
    g->call.fabric.timeout_ns = 10000000000;
    g->form = p->probe->form;
    cot_cuda_group_run(g);
    if (g->status != COT_OK) cot_fail(error, g->status, "%s", g->error.message);
    return g->status;
}

/* By a part of the largest number, since what is near zero is what large ones have left. */
static cot_status compare(const probing *p, cot_dtype combine_type, cot_error *error)
{
    const int64_t h = p->hidden, k = p->probe->gate.top_k;
    const bool coarse = p->probe->expert.type == COT_BF16 || combine_type == COT_BF16;
    const float part = coarse ? 0x1p-6f : 0x1p-15f;
    float largest = 0;
    for (int64_t i = 0; i < p->tokens * h; i++) largest = fmaxf(largest, fabsf(p->right[i]));
    for (int64_t i = 0; i < p->tokens * k; i++)
        if (p->experts_of[i] != p->right_experts[i] ||
            !(fabsf(p->weights[i] - p->right_weights[i]) <= 0x1p-15f * fmaxf(1, fabsf(p->right_weights[i]))))
            return cot_fail(
                error, COT_IO,
                "it computes what the CPU does not: token %d calls expert %d by %g, on the CPU %d by %g",
                static_cast<int>(i / k), p->experts_of[i], static_cast<double>(p->weights[i]),
                p->right_experts[i], static_cast<double>(p->right_weights[i]));
    for (int64_t i = 0; i < p->tokens * h; i++)
        if (!(fabsf(p->y[i] - p->right[i]) <= part * largest))
            return cot_fail(error, COT_IO,
                            "it computes what the CPU does not: element %d of token %d is %g, on the CPU %g",
                            static_cast<int>(i % h), static_cast<int>(i / h), static_cast<double>(p->y[i]),
                            static_cast<double>(p->right[i]));
    return COT_OK;
}

static uint64_t sum_of_bits(const float *y, int64_t count)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, y + i, sizeof bits);
        sum = cot_mix64(sum ^ bits);
    }
    return sum;
}

cot_status cot_cuda_probe_run(const cot_cuda_device *device, cot_cuda_kind kind, const cot_cuda_probe *probe,
                              const cot_moe_options *options, int ranks, cot_error *error)
{
    probing p = {};
    cot_moe_options sized = *options;
    sized.expert = probe->expert;
    sized.shared = probe->shared;
    sized.experts = probe->gate.experts;
    sized.top_k = probe->gate.top_k;
    sized.slots = cot_divide_up(sized.experts, ranks);
    sized.tokens = probe->tokens;
    sized.home_tokens = 0;
    p.probe = probe;
    p.ranks = ranks;
    p.tokens = probe->tokens;
    p.hidden = probe->expert.hidden;
    p.slots = sized.slots;
    lay_out(&p);
    cot_cuda_group *group = nullptr;
    cot_status status = cot_arena_open(&p.arena, p.arena.used, error);
    if (status == COT_OK) {
        lay_out(&p);
        status = cot_cuda_pin(device, p.arena.memory, p.arena.bytes, error);
    }
    const bool pinned = status == COT_OK;
    if (pinned) status = cot_cuda_group_open(&group, device, kind, &sized, ranks, error);
    if (status == COT_OK && (probe->form != cot_cuda_form::many || group->many_blocks)) {
        status = run_group(&p, group, error);
        if (status == COT_OK) status = compute(&p, sized.combine_type, error);
        if (status == COT_OK) status = compare(&p, options->combine_type, error);
        if (status == COT_OK && probe->bits) *probe->bits = sum_of_bits(p.y, p.tokens * p.hidden);
    }
    cot_cuda_group_close(group);
    if (pinned) cot_cuda_unpin(device, p.arena.memory, p.arena.bytes);
    cot_arena_close(&p.arena);
    return status;
}

/* Each of a self-test's layers has such a shape; its calls name every expert, and tokens times K of them in all. */
static const struct {
    int64_t hidden, intermediate; // 0: more values than a tile has under way
    bool shared;
    int64_t tokens, experts, top_k, calls[6];
} self_tests[COT_CUDA_SELF_TESTS + COT_CUDA_MANY_SELF_TESTS] = {
    {0, 24, false, 129, 6, 2, {129, 65, 33, 17, 1, 13}},
    {24, 0, true, 129, 4, 1, {65, 33, 17, 14}},
    {136, 24, true, 8, 4, 2, {8, 4, 3, 1}},
    {0, 24, false, 130, 2, 1, {129, 1}},
    {24, 0, true, 129, 2, 1, {65, 64}}};

cot_cuda_probe cot_cuda_self_test_layer(cot_dtype type, int number)
{
    /* Twice what a tile has under way, so that its loop comes around to places that it has moved on, and 8 values more: so there are
     * tails in every dimension, too. */
    const int64_t wide = 2 * (type == COT_BF16 ? cot::FUSED_BF16_RING : cot::FUSED_F32_RING) + 8;
    const bool many = number >= COT_CUDA_SELF_TESTS;
    const auto &of = self_tests[number];
    cot_cuda_probe probe = {};
    probe.form = many ? cot_cuda_form::many : cot_cuda_form::few;
    cot_ffn_shape *const s = &probe.expert;
    s->type = type;
    s->gate = s->up = s->down = cot_format_of(s->type);
    s->hidden = of.hidden ? of.hidden : wide;
    s->intermediate = of.intermediate ? of.intermediate : wide;
    if (of.shared) probe.shared = *s;
    probe.shared_gated = of.shared;
    probe.calls = of.calls;
    probe.tokens = of.tokens;
    probe.gate.hidden = s->hidden, probe.gate.experts = of.experts, probe.gate.top_k = of.top_k;
    probe.gate.groups = probe.gate.group_limit = 1;
    probe.gate.normalise = true, probe.gate.scaling = 1;
    probe.seed = 1 + static_cast<uint64_t>(number);
    return probe;
}

cot_status cot_cuda_self_test(const cot_cuda_device *device, cot_cuda_kind kind,
                              const cot_moe_options *options, int ranks, cot_error *error)
{
    for (int i = 0; i < COT_CUDA_SELF_TESTS + COT_CUDA_MANY_SELF_TESTS; i++) {
        const cot_cuda_probe probe = cot_cuda_self_test_layer(options->expert.type, i);
        cot_error why = {};
        const cot_status status = cot_cuda_probe_run(device, kind, &probe, options, ranks > 1 ? 2 : 1, &why);
        if (status != COT_OK)
            return cot_fail(error, status, "'%s' fails the self-test: %s", device->name, why.message);
    }
    return COT_OK;
}
