/* A whole model, and the benchmark, with operator `cuda` over an emulated device: weights come out of a checkpoint by way of the
 * operator's own layout, and give the same text as the CPU's operator. */
#include "expect.h"
#include "known_device.h"

extern "C" {
#include "harness/seed.h"

#include "coterie/bench_moe.h"
#include "coterie/engine.h"
}

#include <cstring>
#include <vector>

static bool take_token(void *context, uint64_t, int32_t token)
{
    static_cast<std::vector<int32_t> *>(context)->push_back(token);
    return true;
}

static std::vector<int32_t> generate(const char *op, const char *combine = "exact")
{
    const int32_t prompt[] = {5, 17, 301};
    std::vector<int32_t> tokens;
    cot_error error;
    cot_engine *engine = nullptr;
    cot_engine_options options;
    cot_request request;
    cot_events events = {};
    cot_engine_options_init(&options);
    options.group.ranks = 2, options.group.threads = 2;
    options.experts.op = op, options.weights.precision = "bf16", options.experts.combine = combine;
    options.batch.step_tokens = 16, options.batch.sequences = 1, options.memory.kv_tokens = 64;
    cot_status status = cot_engine_open(&engine, COT_SOURCE "/models/tiny", &options, nullptr, &error);
    cot_request_init(&request);
    request.prompt = prompt;
    request.prompt_tokens = 3;
    request.sampling.max_tokens = 2;
    events.context = &tokens;
    events.on_token = take_token;
    const int launches = device->launches, waits = device->waits, waited = device->waited;
    if (status == COT_OK) status = cot_engine_run(engine, &request, 1, &events, nullptr, &error);
    if (status != COT_OK) fail_msg("%s", error.message);
    assert_int_equal(device->waits - waits, device->launches - launches); // one a layer, all told
    assert_int_equal(device->waited, waited);
    cot_engine_close(engine);
    assert_int_equal(device->unpinned, 0);
    assert_int_equal(device->pinned.size(), 0);
    return tokens;
}

static void the_same_text(void **)
{
    const std::vector<int32_t> device_text = generate("cuda"), text = generate("fused");
    assert_int_equal(device->launches, 3 + 2 * 6); // the self-test's layers; a step a token, a launch a layer
    assert_int_equal(device_text.size(), 2);
    assert_memory_equal(device_text.data(), text.data(), 2 * sizeof(int32_t));
    assert_memory_equal(generate("cuda", "reduced").data(), text.data(), 2 * sizeof(int32_t));
    assert_int_equal(device->taken, device->given_back);
}

static void what_an_engine_refuses(void **)
{
    cot_error error;
    cot_engine *engine = nullptr;
    cot_engine_options options;
    cot_engine_options_init(&options);
    options.experts.op = "cuda", options.group.ranks = 2, options.memory.kv_tokens = 64;
    const auto refuses = [&](const char *text) {
        assert_int_not_equal(cot_engine_open(&engine, COT_SOURCE "/models/tiny", &options, nullptr, &error),
                             COT_OK);
        if (!strstr(error.message, text)) fail_msg("'%s', expected '%s'", error.message, text);
    };
    options.experts.sms_reserve = 3;
    refuses("3 multiprocessors in reserve leave none of the 3 that 'Emulated' has");
    options.experts.sms_reserve = -1;
    refuses("multiprocessors in reserve -1 is not in [0, 4096]");
    options.experts.sms_reserve = 1, options.experts.op = "fused";
    refuses("'fused' runs on no device that could leave 1 multiprocessors to others");
    options.experts.sms_reserve = 0, options.experts.op = "cuda";
    options.weights.precision = "int8";
    refuses("few bits");
    options.weights.precision = "bf16";
    device->pinned_most = 1 << 18;
    refuses("'Emulated' fails the self-test: 'Emulated' cannot pin 0.0");
    device->pinned_most = SIZE_MAX;
    assert_int_equal(device->pinned.size(), 0);
    assert_int_equal(device->taken, device->given_back);
    options.group.fabric = "processes";
    refuses("--fabric threads");
}

/* Side by side with the CPU's operators, on the same weights in each one's own layout: the benchmark compares answers. */
static void the_benchmark(void **)
{
    const char *const ops[] = {"fused", "cuda", "bulk", nullptr};
    const int64_t tokens[] = {20};
    cot_error error;
    cot_bench_moe *bench = nullptr;
    cot_bench_moe_options options = {};
    options.size = sizeof options;
    options.shape = {"small", 64, 48, 8, 2, COT_BENCH_SWIGLU_CLAMPED};
    options.ranks = 2, options.threads = 2;
    options.precision = "bf16", options.combine = "exact";
    options.ops = ops, options.sms_reserve = 1;
    options.tokens = tokens, options.n_tokens = 1;
    options.seed = test_seed();
    cot_status status = cot_bench_moe_open(&bench, &options, &error);
    if (status != COT_OK) fail_msg("%s", error.message);
    cot_bench_load load;
    cot_bench_result results[3];
    int repeats;
    cot_bench_case what = {};
    what.size = sizeof what;
    what.tokens = 20;
    what.routing = COT_BENCH_ZIPF;
    what.repeats = COT_BENCH_LEAST_REPEATS;
    what.roof = {};
    what.roof.bf16_flops = what.roof.f32_flops = what.roof.int8_ops = what.roof.read_bytes_per_second = 1e9;
    const int before = device->launches;
    status = cot_bench_moe_run(bench, &load, results, &repeats, &what, &error);
    if (status != COT_OK) fail_msg("%s", error.message);
    assert_true(device->launches - before >= COT_BENCH_LEAST_REPEATS);
    assert_int_equal(device->blocks, 2);                  // of 3 multiprocessors one is in reserve
    assert_int_equal(results[0].bytes, results[1].bytes); // the busiest rank's egress
    assert_int_equal(device->pinned.size(), 2 + 1);       // rows of two ranks, the operator's own
    cot_bench_moe_close(bench);
    assert_int_equal(device->unpinned, 0);
    assert_int_equal(device->pinned.size(), 0);
    assert_int_equal(device->taken, device->given_back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_text),
        cmocka_unit_test(what_an_engine_refuses),
        cmocka_unit_test(the_benchmark),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
