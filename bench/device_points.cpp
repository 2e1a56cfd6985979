#include "bench/device_points.h"

#include "cuda/module/probe.h"
#include "cuda/module/weights.h"

#include "cuda/c_begin.h"
#include "base/rng.h"
#include "cuda/c_end.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

int64_t now_ns()
{
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

struct Points {
    const cot_cuda_device *device;
    FILE *out;
    cot_error error;

    int fail(cot_status status)
    {
        fprintf(stderr, "device_points: %s\n", status == COT_OK ? "wrong" : error.message);
        return 1;
    }
};

cot_ffn_shape shape_of(cot_dtype type, int64_t hidden, int64_t intermediate)
{
    cot_ffn_shape s = {};
    s.type = type;
    s.gate = s.up = s.down = cot_format_of(type);
    s.hidden = hidden, s.intermediate = intermediate;
    return s;
}

cot_moe_options options_of(cot_dtype type)
{
    cot_moe_options o = {};
    o.expert.type = type;
    o.combine_type = type;
    return o;
}

int about(Points &p)
{
    size_t free_bytes = 0, all_bytes = 0;
    int major = 0, minor = 0;
    const cot_cuda_driver *const driver = p.device->driver;
    const cot_cuda_current current(p.device);
    if (current.failed || driver->memory_info(&free_bytes, &all_bytes) ||
        driver->device_attribute(&major, COT_CUDA_CAPABILITY_MAJOR, p.device->ordinal) ||
        driver->device_attribute(&minor, COT_CUDA_CAPABILITY_MINOR, p.device->ordinal)) {
        snprintf(p.error.message, sizeof p.error.message, "the device does not say what it has");
        return p.fail(COT_IO);
    }
    fprintf(p.out,
            "{\"name\": \"%s\", \"capability\": \"%d.%d\", \"multiprocessors\": %d, \"memory_bytes\": %zu}\n",
            p.device->name, major, minor, p.device->multiprocessors, all_bytes);
    return 0;
}

/* ---- against the CPU ---- */

using Probes = std::vector<std::pair<const char *, cot_cuda_probe>>;

/* Those that an operator is opened with. */
Probes self_tests_of(cot_dtype type)
{
    Probes all;
    for (int i = 0; i < COT_CUDA_SELF_TESTS + COT_CUDA_MANY_SELF_TESTS; i++)
        all.emplace_back("every form of main loop", cot_cuda_self_test_layer(type, i));
    return all;
}

/* These, and every kind of gate and network that models have, tails in every dimension, few and many tokens, an expert for all. */
Probes probes_of(cot_dtype type)
{
    Probes all = self_tests_of(type);
    const auto add = [&](const char *name, int64_t h, int64_t i, int64_t e, int64_t k,
                         int64_t tokens) -> cot_cuda_probe & {
        cot_cuda_probe probe = {};
        probe.expert = shape_of(type, h, i);
        probe.gate.hidden = h, probe.gate.experts = e, probe.gate.top_k = k;
        probe.gate.groups = probe.gate.group_limit = 1;
        probe.gate.normalise = true, probe.gate.scaling = 1;
        probe.tokens = tokens;
        probe.seed = all.size() + 1;
        all.emplace_back(name, probe);
        return all.back().second;
    };
    for (int64_t tokens : {1, 7, 65, 700}) add("mixtral", 64, 48, 8, 2, tokens);
    {
        cot_cuda_probe &p = add("qwen2", 72, 40, 16, 4, 100);
        p.shared = shape_of(type, 72, 88);
        p.shared_gated = true;
    }
    {
        cot_cuda_probe &p = add("deepseek-v3", 136, 72, 32, 6, 90);
        p.shared = shape_of(type, 136, 72);
        p.gate.score = COT_GATE_SIGMOID, p.gate.groups = 4, p.gate.group_limit = 2;
        p.gate.group_score = COT_GROUP_TOP2_SUM, p.gate.epsilon = 1e-20f, p.gate.scaling = 2.5f;
        p.correction = true;
    }
    {
        cot_cuda_probe &p = add("gpt-oss", 96, 56, 12, 4, 80);
        p.expert.biased = true, p.expert.limit = 1.5f, p.expert.alpha = 1.702f;
        p.gate.score = COT_GATE_CHOSEN_SOFTMAX, p.gate.normalise = false;
        p.gate_bias = true;
    }
    add("two matrices", 80, 24, 5, 1, 33).expert.activation = COT_FFN_GELU;
    add("all of eight", 40, 64, 8, 8, 60).expert.activation = COT_FFN_RELU;
    add("wide", 1032, 520, 8, 2, 70);
    return all;
}

int probe(Points &p, cot_cuda_kind kind, const Probes &probes, cot_dtype type, int ranks)
{
    const cot_moe_options options = options_of(type);
    for (const auto &one : probes) {
        const cot_status status = cot_cuda_probe_run(p.device, kind, &one.second, &options, ranks, &p.error);
        if (status != COT_OK) fprintf(stderr, "device_points: %s, %d ranks: ", one.first, ranks);
        if (status != COT_OK) return p.fail(status);
        fprintf(p.out, "{\"case\": \"%s\", \"tokens\": %lld, \"right\": true}\n", one.first,
                static_cast<long long>(one.second.tokens));
        fflush(p.out);
    }
    return 0;
}

/* ---- against the emulator ---- */

/* A layer whose bits are those of products and sums alone: a token calls one expert, by 1, and a shared one, relu is between the products, and no function of
 * the device's library is in it. And the sum of its bits as tests/cuda finds it where its emulator adds as compute capability 9.0 was found to (test_points). */
struct Known {
    const char *name;
    int64_t hidden, intermediate, tokens, calls[4];
    uint64_t sum;
};
const Known known[] = {{"up to 32 rows", 520, 72, 61, {31, 16, 13, 1}, 0x75b7e6861e437d46},
                       {"up to 128 rows", 136, 264, 212, {129, 65, 17, 1}, 0x80c7e41ced464e65}};

int bits(Points &p, cot_cuda_kind kind)
{
    int major = 0;
    const int failed =
        p.device->driver->device_attribute(&major, COT_CUDA_CAPABILITY_MAJOR, p.device->ordinal);
    const cot_status status = cot_cuda_check(p.device->driver, failed, "say what it is", &p.error);
    if (status != COT_OK) return p.fail(status);
    if (major != 9) {
        fprintf(p.out, "{\"absent\": \"the emulator adds as compute capability 9.x does\"}\n");
        return 0;
    }
    cot_moe_options options = options_of(COT_BF16);
    options.combine_type = COT_F32;
    for (const Known &one : known)
        for (cot_cuda_form form : {cot_cuda_form::few, cot_cuda_form::many}) {
            if (form == cot_cuda_form::many && kind == cot_cuda_kind::fused && p.device->no_wgmma)
                continue; // it has none then
            uint64_t sum = 0;
            cot_cuda_probe probe = {};
            probe.expert = shape_of(COT_BF16, one.hidden, one.intermediate);
            probe.expert.activation = COT_FFN_RELU;
            probe.shared = probe.expert;
            probe.gate.hidden = one.hidden, probe.gate.experts = 4, probe.gate.top_k = 1;
            probe.gate.groups = probe.gate.group_limit = 1;
            probe.gate.normalise = true, probe.gate.scaling = 1;
            probe.tokens = one.tokens, probe.calls = one.calls;
            probe.seed = 1;
            probe.form = form, probe.bits = &sum;
            const cot_status ended = cot_cuda_probe_run(p.device, kind, &probe, &options, 1, &p.error);
            if (ended != COT_OK) return p.fail(ended);
            if (sum != one.sum)
                return p.fail(cot_fail(&p.error, COT_IO, "%s have other bits than on the emulator: %016llx",
                                       one.name, static_cast<unsigned long long>(sum)));
            fprintf(p.out, "{\"case\": \"%s\", \"tiles\": %d, \"right\": true}\n", one.name,
                    form == cot_cuda_form::many ? 128 : 64);
            fflush(p.out);
        }
    return 0;
}

/* ---- a layer of any size ---- */

constexpr size_t CACHES = 4; // what calls in turn should read at least, in second caches

/* Bytes of the second cache; 0: the device does not say. */
size_t cache_bytes(const cot_cuda_device *device)
{
    int bytes = 0;
    const cot_cuda_current current(device);
    if (current.failed || device->driver->device_attribute(&bytes, COT_CUDA_CACHE_BYTES, device->ordinal))
        return 0;
    return static_cast<size_t>(bytes > 0 ? bytes : 0);
}

/* A rank's slots: as many as it has experts, and so many more, where memory allows it, that calls can read twice CACHES, of which
 * those that it does not read in turn are half at most. */
int64_t slots_for(const cot_cuda_device *device, const cot_ffn_shape *expert, int64_t experts, int ranks)
{
    const size_t bytes = cot_cuda_weights.slot_bytes(expert) * static_cast<size_t>(ranks);
    size_t free_bytes = 0, all_bytes = 0;
    const cot_cuda_current current(device);
    if (current.failed || device->driver->memory_info(&free_bytes, &all_bytes)) free_bytes = 0;
    const int64_t wanted = static_cast<int64_t>(2 * CACHES * cache_bytes(device) / bytes + 1),
                  room = static_cast<int64_t>(free_bytes / 2 / bytes);
    return cot_larger(cot_divide_up(experts, ranks),
                      cot_smaller(cot_smaller(wanted, room), cot::FUSED_EXPERTS_MOST));
}

/* The experts that token t calls, [K], no two alike: drawn for t, whatever else there is. */
std::vector<uint16_t> chosen(int64_t experts, int64_t top_k, int64_t t)
{
    std::vector<uint16_t> all(static_cast<size_t>(experts));
    for (size_t e = 0; e < all.size(); e++) all[e] = static_cast<uint16_t>(e);
    for (int64_t k = 0; k < top_k; k++) { // the k-th of those that are left
        const uint64_t bits = cot_random_bits(7, static_cast<uint64_t>(t), static_cast<uint64_t>(k));
        std::swap(all[static_cast<size_t>(k)],
                  all[static_cast<size_t>(k) + bits % static_cast<uint64_t>(experts - k)]);
    }
    all.resize(static_cast<size_t>(top_k));
    return all;
}

/* As one line, for who measures the same layers by other means. */
int tell_routing(Points &p, int64_t experts, int64_t top_k, int64_t tokens)
{
    fprintf(p.out, "{\"experts\": %lld, \"top_k\": %lld, \"choices\": [", static_cast<long long>(experts),
            static_cast<long long>(top_k));
    for (int64_t t = 0; t < tokens; t++) {
        fprintf(p.out, t ? ", [" : "[");
        const std::vector<uint16_t> of = chosen(experts, top_k, t);
        for (size_t k = 0; k < of.size(); k++) fprintf(p.out, k ? ", %d" : "%d", of[k]);
        fprintf(p.out, "]");
    }
    fprintf(p.out, "]}\n");
    return 0;
}

/* Weights and rows without meaning: one expert's, for all. The gate chooses what `chosen` says, in bf16 as in fp32: column e < E of its weights
 * is 4 for expert e and 0 for others, and of rows 4 and some 32nds for those that are called, below 1 for others; all other columns together
 * change a logit by about 1. */
struct Layer {
    cot_moe_options options = {};
    cot_gate gate = {};
    cot_moe_layer layer = {};
    int ranks;
    std::vector<float> gate_weight, x, y, weights;
    std::vector<uint16_t> experts;
    std::vector<int32_t> rank, slot, begin;
    std::vector<uint8_t> slots; // of one rank; all have the same
    cot_cuda_group *group = nullptr;

    Layer(const cot_cuda_device *device, cot_dtype type, int64_t h, int64_t i, int64_t e, int64_t k,
          int ranks_, int64_t most)
        : ranks(ranks_)
    {
        options = options_of(type);
        options.expert = shape_of(type, h, i);
        options.experts = e, options.top_k = k;
        options.slots = slots_for(device, &options.expert, e, ranks);
        options.tokens = most;
        gate.hidden = h, gate.experts = e, gate.top_k = k;
        gate.groups = gate.group_limit = 1;
        gate.normalise = true, gate.scaling = 1;
        gate_weight = drawn(e * h, 1);
        for (float &w : gate_weight) w /= std::sqrt(static_cast<float>(h));
        x = drawn(most * h, 2);
        for (int64_t n = 0; n < e; n++)
            for (int64_t j = 0; j < e; j++) gate_weight[static_cast<size_t>(n * h + j)] = n == j ? 4 : 0;
        for (int64_t t = 0; t < most; t++) {
            float larger = 4;
            for (const uint16_t n : chosen(e, k, t))
                x[static_cast<size_t>(t * h + n)] = larger, larger += 1.f / 32;
        }
        gate.weight = gate_weight.data();
        y.resize(static_cast<size_t>(most * h));
        weights.resize(static_cast<size_t>(most * k));
        experts.resize(static_cast<size_t>(most * k));
        for (int32_t n = 0; n < e; n++) {
            rank.push_back(n % ranks), slot.push_back(n / ranks), begin.push_back(n);
        }
        begin.push_back(static_cast<int32_t>(e));
        layer.gate = &gate;
        layer.placement = {rank.data(), slot.data(), begin.data()};
        layer.slots = 64;
        fill_slots();
    }
    ~Layer() { cot_cuda_group_close(group); }
    Layer(const Layer &) = delete;

    static std::vector<float> drawn(int64_t count, uint64_t stream)
    {
        std::vector<float> to(static_cast<size_t>(count));
        for (size_t i = 0; i < to.size(); i++)
            to[i] = static_cast<float>(cot_random_uniform(1, stream, i) * 2 - 1);
        return to;
    }

    void fill_slots()
    {
        const cot_ffn_shape &s = options.expert;
        const size_t bytes = cot_cuda_weights.slot_bytes(&s);
        const std::vector<float> numbers = drawn(s.hidden * s.intermediate, 3);
        std::vector<float> small = numbers;
        for (float &n : small) n *= 2 / std::sqrt(static_cast<float>(s.hidden));
        slots.resize(bytes * static_cast<size_t>(options.slots));
        for (cot_ffn_part part : {COT_FFN_GATE, COT_FFN_UP, COT_FFN_DOWN}) {
            cot_moe_rows rows = {};
            rows.count = part == COT_FFN_DOWN ? s.hidden : s.intermediate;
            rows.in.numbers = small.data();
            rows.in.type = COT_F32;
            rows.in.stride = part == COT_FFN_DOWN ? s.intermediate : s.hidden;
            cot_cuda_weights.store_expert(slots.data(), &s, part, &rows);
        }
        for (int64_t n = 1; n < options.slots; n++)
            memcpy(slots.data() + static_cast<size_t>(n) * bytes, slots.data(), bytes);
    }

    cot_status open(const cot_cuda_device *device, cot_cuda_kind kind, cot_error *error)
    {
        cot_status status = cot_cuda_group_open(&group, device, kind, &options, ranks, error);
        for (int r = 0; r < ranks && status == COT_OK; r++)
            status = cot_cuda_group_keep(group, &layer, COT_MOE_ALL_SLOTS, r, slots.data(), error);
        if (status == COT_OK) group->call.fabric.timeout_ns = 10000000000;
        return status;
    }

    /* A call of so many tokens over all ranks. */
    cot_status run(int64_t tokens, cot_error *error)
    {
        const int64_t h = options.expert.hidden, k = options.top_k;
        for (int r = 0; r < ranks; r++) {
            const int64_t first = cot_share_begin(tokens, r, ranks),
                          end = cot_share_begin(tokens, r + 1, ranks);
            group->arrived[r] = {&layer,
                                 y.data() + first * h,
                                 experts.data() + first * k,
                                 weights.data() + first * k,
                                 x.data() + first * h,
                                 end - first,
                                 false};
        }
        cot_cuda_group_run(group);
        if (group->status != COT_OK) cot_fail(error, group->status, "%s", group->error.message);
        return group->status;
    }

    /* Whether the last call's gate chose what it was to choose. */
    bool chose_right(int64_t tokens) const
    {
        const int64_t k = options.top_k;
        for (int64_t t = 0; t < tokens; t++) {
            std::vector<uint16_t> of = chosen(options.experts, k, t);
            std::sort(of.begin(), of.end()); // as the device tells them
            if (!std::equal(of.begin(), of.end(), experts.begin() + t * k)) return false;
        }
        return true;
    }

    /* Which experts the last call had. */
    std::vector<bool> called(int64_t tokens) const
    {
        std::vector<bool> all(static_cast<size_t>(options.experts));
        for (int64_t i = 0; i < tokens * options.top_k; i++) all[experts[static_cast<size_t>(i)]] = true;
        return all;
    }
};

/* Tables of slots under which the same call reads other weights each time: in the first a rank's called experts have its first slots,
 * in each next one those behind. */
struct Turns {
    std::vector<int32_t> slots; // [tables][E]
    int tables;
    size_t bytes; // that are read until the first are read again

    Turns(const Layer &all, const std::vector<bool> &called)
    {
        std::vector<int64_t> count(static_cast<size_t>(all.ranks));
        int64_t most = 1, sum = 0;
        for (size_t e = 0; e < called.size(); e++)
            if (called[e]) most = cot_larger(most, ++count[static_cast<size_t>(all.rank[e])]), sum++;
        tables = static_cast<int>(all.options.slots / most);
        bytes = static_cast<size_t>(tables * sum) * cot_cuda_weights.slot_bytes(&all.options.expert);
        for (int t = 0; t < tables; t++) {
            std::vector<int64_t> next(count.size(), t * most), rest(count.size());
            for (size_t r = 0; r < rest.size(); r++) rest[r] = t * most + count[r];
            for (size_t e = 0; e < called.size(); e++) {
                int64_t &slot = (called[e] ? next : rest)[static_cast<size_t>(all.rank[e])];
                slots.push_back(static_cast<int32_t>(slot++ % all.options.slots));
            }
        }
    }
};

/* ---- faults ---- */

int faults(Points &p, cot_cuda_kind kind)
{
    Layer all(p.device, COT_BF16, 64, 32, 8, 2, 2, 64);
    cot_status status = all.open(p.device, kind, &p.error);
    if (status != COT_OK) return p.fail(status);
    status = all.run(64, &p.error); // what is right, which `correct` has shown
    if (status != COT_OK) return p.fail(status);
    const std::vector<float> right = all.y;
    const auto is_right = [&] { return !memcmp(all.y.data(), right.data(), right.size() * sizeof(float)); };
    const auto run_again = [&] {
        all.y.assign(all.y.size(), NAN);
        status = all.run(64, &p.error);
        return status != COT_OK ? "failed" : is_right() ? "right" : "wrong";
    };
    const float sound = all.x[5];
    all.x[5] = NAN;
    const bool refused = all.run(64, &p.error) == COT_INVALID_ARGUMENT;
    all.x[5] = sound;
    const char *next = run_again();
    fprintf(p.out, "{\"fault\": \"a token that is not a number\", \"refused\": %s, \"next_call\": \"%s\"}\n",
            refused ? "true" : "false", next);
    fflush(p.out);
    if (!refused || strcmp(next, "right") != 0) return p.fail(status);
    if (kind == cot_cuda_kind::bulk) return 0; // nobody waits
    /* The last rank's blocks are not launched. */
    const int blocks = all.group->blocks;
    all.group->blocks /= 2;
    all.group->call.fabric.timeout_ns = 1000000000;
    const int64_t began = now_ns();
    status = all.run(64, &p.error);
    const double seconds = static_cast<double>(now_ns() - began) / 1e9;
    const bool named = status == COT_TIMED_OUT && strstr(p.error.message, "rank 1 did not answer rank 0");
    fprintf(p.out, "{\"fault\": \"a silent rank\", \"named\": %s, \"seconds\": %.3f, \"time_out\": 1.0}\n",
            named ? "true" : "false", seconds);
    fflush(p.out);
    if (!named || seconds > 2) return p.fail(named ? COT_OK : status);
    all.group->blocks = blocks;
    next = run_again();
    fprintf(p.out, "{\"fault\": \"after a silent rank\", \"next_call\": \"%s\"}\n", next);
    return strcmp(next, "right") ? p.fail(status) : 0;
}

/* ---- times ---- */

/* Runs in a batch, so that it takes about 20 ms; the median of seven batches. */
cot_status measure(Points &p, const Layer &all, uint64_t slots, int tables, double *ns, int *runs)
{
    double once = 0;
    const auto replay = [&](int count, double *took) {
        return cot_cuda_group_replay(all.group, count, slots, tables, took, &p.error);
    };
    cot_status status = replay(2, &once); // warm
    if (status == COT_OK) status = replay(1, &once);
    const double wanted = 2e7 / (once > 1 ? once : 1);
    const int count = wanted < 1 ? 1 : wanted > 1000 ? 1000 : static_cast<int>(wanted);
    std::vector<double> batches;
    for (int i = 0; i < 7 && status == COT_OK; i++) {
        double batch = 0;
        status = replay(count, &batch);
        size_t at = batches.size();
        while (at && batches[at - 1] > batch / count) at--;
        batches.insert(batches.begin() + static_cast<long>(at), batch / count);
    }
    if (status == COT_OK) *ns = batches[3], *runs = 7 * count;
    return status;
}

/* Device memory while this lives; 0 where there is none. */
struct Memory {
    const cot_cuda_current current;
    const cot_cuda_driver *const driver;
    uint64_t at = 0;
    cot_status status;

    Memory(Points &p, size_t bytes, const void *from, size_t given)
        : current(p.device), driver(p.device->driver), status(current.check(&p.error))
    {
        if (status == COT_OK)
            status = cot_cuda_check(driver, driver->take(&at, bytes), "give memory", &p.error);
        if (status == COT_OK)
            status = cot_cuda_check(driver, driver->to_device(at, from, given), "take data", &p.error);
    }
    ~Memory()
    {
        if (at) driver->give_back(at);
    }
    Memory(const Memory &) = delete;
};

/* Of a call of so many tokens that has been made: what reads other weights each time, in device memory. */
struct Turning {
    const std::vector<bool> called;
    const Turns turns;
    const Memory tables;

    Turning(Points &p, const Layer &all, int64_t tokens)
        : called(all.called(tokens)), turns(all, called),
          tables(p, turns.slots.size() * sizeof(int32_t), turns.slots.data(),
                 turns.slots.size() * sizeof(int32_t))
    {
    }
    uint64_t table(int64_t i) const
    {
        return tables.at + static_cast<size_t>(i % turns.tables) * called.size() * sizeof(int32_t);
    }
};

/* Prints what one call of so many tokens takes. */
using Measure = cot_status (*)(Points &p, const Layer &all, int64_t tokens, const Turning &turning);

cot_status time_call(Points &p, const Layer &all, int64_t tokens, const Turning &turning)
{
    double ns = 0;
    int runs = 0;
    const cot_status status = measure(p, all, turning.tables.at, turning.turns.tables, &ns, &runs);
    if (status != COT_OK) return status;
    const cot_ffn_shape &s = all.options.expert;
    const double t = static_cast<double>(tokens),
                 touched =
                     static_cast<double>(std::count(turning.called.begin(), turning.called.end(), true)),
                 matrices = 3.0 * static_cast<double>(s.hidden * s.intermediate),
                 value = static_cast<double>(cot_dtype_bytes(s.type));
    fprintf(p.out,
            "{\"tokens\": %lld, \"passes\": %lld, \"launches\": %lld, \"ns\": %.0f, \"runs\": %d, "
            "\"experts_called\": %.0f, "
            "\"bytes_least\": %.0f, \"flops\": %.0f, \"blocks\": %d, \"bytes_in_turn\": %zu, "
            "\"cache_bytes\": %zu}\n",
            static_cast<long long>(tokens), static_cast<long long>(all.group->passes),
            static_cast<long long>(all.group->launches), ns * static_cast<double>(all.group->passes), runs,
            touched, touched * matrices * value + 8 * t * static_cast<double>(s.hidden),
            2 * t * static_cast<double>(all.options.top_k) * matrices, all.group->blocks, turning.turns.bytes,
            cache_bytes(p.device));
    return COT_OK;
}

/* The median of each phase, in 21 passes behind three that warm. */
cot_status time_phases(Points &p, const Layer &all, int64_t tokens, const Turning &turning)
{
    static const char *const names[COT_CUDA_PHASES] = {"gate",  "route", "dispatch", "count",  "receive",
                                                       "enter", "up",    "down",     "combine"};
    constexpr int WARM = 3, RUNS = 21;
    std::vector<double> ns[COT_CUDA_PHASES];
    for (int i = 0; i < WARM + RUNS; i++) {
        double one[COT_CUDA_PHASES];
        const cot_status status = cot_cuda_group_replay_phases(all.group, turning.table(i), one, &p.error);
        if (status != COT_OK) return status;
        for (int k = 0; k < COT_CUDA_PHASES && i >= WARM; k++) ns[k].push_back(one[k]);
    }
    fprintf(p.out, "{\"tokens\": %lld, \"passes\": %lld, \"phases\": {", static_cast<long long>(tokens),
            static_cast<long long>(all.group->passes));
    for (int k = 0; k < COT_CUDA_PHASES; k++) {
        std::sort(ns[k].begin(), ns[k].end());
        fprintf(p.out, "%s\"%s\": %.0f", k ? ", " : "", names[k], ns[k][RUNS / 2]);
    }
    fprintf(p.out, "}}\n");
    return COT_OK;
}

/* A call's last pass, behind one that warms: each task as [block, rank, kind, begin, end] in ns from the first on. */
cot_status note_tasks(Points &p, const Layer &all, int64_t tokens, const Turning &turning)
{
    static const char *const names[] = {"gate", "dispatch", "enter", "up", "down", "reply", "combine"};
    constexpr uint32_t ROOM = 1 << 20;
    double ns = 0;
    const cot::fused_moments none = {0, 0, nullptr};
    const Memory memory(p, sizeof none + ROOM * sizeof(cot::fused_moment), &none, sizeof none);
    cot::fused_moments all_moments = {0, ROOM,
                                      reinterpret_cast<cot::fused_moment *>(memory.at + sizeof none)};
    const cot_cuda_driver *const driver = p.device->driver;
    cot_status status = memory.status;
    const auto check = [&](int result, const char *what) {
        if (status == COT_OK) status = cot_cuda_check(driver, result, what, &p.error);
    };
    if (status == COT_OK) status = cot_cuda_group_replay(all.group, 1, turning.table(0), 1, &ns, &p.error);
    check(driver->to_device(memory.at, &all_moments, sizeof all_moments), "take data");
    all.group->call.moments = reinterpret_cast<cot::fused_moments *>(memory.at);
    if (status == COT_OK) status = cot_cuda_group_replay(all.group, 1, turning.table(1), 1, &ns, &p.error);
    all.group->call.moments = nullptr;
    check(driver->to_host(&all_moments, memory.at, sizeof all_moments), "give data");
    if (status != COT_OK) return status;
    if (!all_moments.count || all_moments.count > ROOM)
        return cot_fail(&p.error, COT_IO,
                        "%u moments were noted: the kernels are not built for a time line, "
                        "or a call has more than %u",
                        all_moments.count, ROOM);
    std::vector<cot::fused_moment> moments(all_moments.count);
    check(driver->to_host(moments.data(), memory.at + sizeof none, moments.size() * sizeof moments[0]),
          "give data");
    if (status != COT_OK) return status;
    uint64_t begin = ~uint64_t{0};
    for (const cot::fused_moment &m : moments) begin = m.ns < begin ? m.ns : begin;
    const cot_cuda_group *const g = all.group;
    const int blocks = g->call.tile_shift == cot::BULK_MANY_SHIFT ? g->many_blocks : g->blocks;
    std::vector<cot::fused_moment> in_hand(static_cast<size_t>(cot::FUSED_MANY_TEAMS * blocks));
    fprintf(p.out, "{\"tokens\": %lld, \"ns_timed\": %.0f, \"tasks\": [", static_cast<long long>(tokens), ns);
    const char *between = "";
    for (const cot::fused_moment &m : moments) {
        cot::fused_moment &mine = in_hand[static_cast<size_t>(cot::FUSED_MANY_TEAMS * m.block + m.team)];
        if (!m.ended) mine = m;
        if (!m.ended || mine.task != m.task) continue;
        int r = 0;
        while (cot_share_begin(blocks, r + 1, all.ranks) <= m.block) r++;
        fprintf(p.out, "%s[%d, %d, \"%s\", %llu, %llu]", between, m.block, r, names[m.kind],
                static_cast<unsigned long long>(mine.ns - begin),
                static_cast<unsigned long long>(m.ns > mine.ns ? m.ns - begin : mine.ns - begin));
        between = ", ";
    }
    fprintf(p.out, "]}\n");
    return COT_OK;
}

/* Each number of tokens of a list; false: it is none. */
bool tokens_of(const char *list, std::vector<int64_t> &tokens)
{
    for (const char *at = list; *at;) {
        char *end;
        const int64_t n = strtoll(at, &end, 10);
        if (n < 1 || n > 1 << 20 || (*end && *end != ',')) return false;
        tokens.push_back(n);
        at = *end ? end + 1 : end;
    }
    return !tokens.empty();
}

int layer_points(Points &p, cot_cuda_kind kind, cot_dtype type, const int64_t *sizes, int ranks,
                 const char *list, Measure measure_call)
{
    std::vector<int64_t> tokens;
    if (!tokens_of(list, tokens) || sizes[3] > sizes[2] || sizes[2] > sizes[0]) return 2;
    Layer all(p.device, type, sizes[0], sizes[1], sizes[2], sizes[3], ranks,
              *std::max_element(tokens.begin(), tokens.end()));
    cot_status status = all.open(p.device, kind, &p.error);
    for (size_t n = 0; n < tokens.size() && status == COT_OK; n++) {
        status = all.run(tokens[n], &p.error);
        if (status == COT_OK && !all.chose_right(tokens[n]))
            status = cot_fail(&p.error, COT_IO, "the gate chooses other experts than `routing` tells");
        if (status != COT_OK) break;
        const Turning turning(p, all, tokens[n]);
        status = turning.tables.status;
        if (status == COT_OK) status = measure_call(p, all, tokens[n], turning);
        fflush(p.out);
    }
    return status == COT_OK ? 0 : p.fail(status);
}

/* A file as it is; none: it cannot be read. */
std::vector<char> read_file(const char *path)
{
    std::vector<char> all;
    FILE *const file = fopen(path, "rb");
    if (!file) return all;
    char piece[4096];
    for (size_t n; (n = fread(piece, 1, sizeof piece, file)) > 0;) all.insert(all.end(), piece, piece + n);
    fclose(file);
    return all;
}

/* By the fused operator's kernels in the file at `path`. */
int timeline(Points &p, const cot_cuda_image *image, const char *path, cot_dtype type, const int64_t *sizes,
             int ranks, const char *list)
{
    const std::vector<char> kernels = read_file(path);
    if (kernels.empty()) return p.fail(cot_fail(&p.error, COT_IO, "cannot read '%s'", path));
    cot_cuda_image noting = *image;
    noting.fused = kernels.data();
    cot_cuda_device device;
    const cot_status status = cot_cuda_device_open(&device, p.device->driver, &noting, &p.error);
    if (status != COT_OK) return p.fail(status);
    Points other = {&device, p.out, {}};
    const int result = layer_points(other, cot_cuda_kind::fused, type, sizes, ranks, list, note_tasks);
    cot_cuda_device_close(&device);
    return result;
}

bool number(const char *word, int64_t least, int64_t most, int64_t *to)
{
    char *end;
    *to = strtoll(word, &end, 10);
    return *word && !*end && *to >= least && *to <= most;
}

} // namespace

int cot_cuda_points(const cot_cuda_device *device, const cot_cuda_image *image, FILE *out, int words,
                    char **word)
{
    Points p = {device, out, {}};
    int64_t sizes[4], ranks;
    if (words == 1 && !strcmp(word[0], "about")) return about(p);
    if (words == 4 && !strcmp(word[0], "routing")) {
        for (int i = 0; i < 3; i++)
            if (!number(word[1 + i], 1, 1 << 16, &sizes[i])) return 2;
        return sizes[1] <= sizes[0] ? tell_routing(p, sizes[0], sizes[1], sizes[2]) : 2;
    }
    if (words < 2) return 2;
    const bool bulk = !strcmp(word[1], "cuda-bulk");
    if (!bulk && strcmp(word[1], "cuda") != 0) return 2;
    const cot_cuda_kind kind = bulk ? cot_cuda_kind::bulk : cot_cuda_kind::fused;
    if (words == 2 && !strcmp(word[0], "faults")) return faults(p, kind);
    if (words == 2 && !strcmp(word[0], "bits")) return bits(p, kind);
    if (words < 4) return 2;
    const bool bf16 = !strcmp(word[2], "bf16");
    const cot_dtype type = bf16 ? COT_BF16 : COT_F32;
    if (!bf16 && strcmp(word[2], "fp32") != 0) return 2;
    if (words == 4 && number(word[3], 1, COT_MAX_RANKS, &ranks)) {
        if (!strcmp(word[0], "probe")) return probe(p, kind, probes_of(type), type, static_cast<int>(ranks));
        if (!strcmp(word[0], "self-test"))
            return probe(p, kind, self_tests_of(type), type, static_cast<int>(ranks));
        return 2;
    }
    if (words < 9 || !number(word[7], 1, COT_MAX_RANKS, &ranks)) return 2;
    for (int i = 0; i < 4; i++)
        if (!number(word[3 + i], 1, 1 << 20, &sizes[i])) return 2;
    const auto layers = [&](Measure measure_call) {
        return layer_points(p, kind, type, sizes, static_cast<int>(ranks), word[8], measure_call);
    };
    if (words == 9 && !strcmp(word[0], "time")) return layers(time_call);
    if (words == 9 && !strcmp(word[0], "phases") && bulk) return layers(time_phases);
    if (words == 10 && !strcmp(word[0], "timeline") && !bulk)
        return timeline(p, image, word[9], type, sizes, static_cast<int>(ranks), word[8]);
    return 2;
}
