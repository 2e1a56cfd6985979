/* What bench/device measures with, on the emulated device: its points, and what it says of a device that is wrong. With words of
 * bench/device_points.h it runs these. */
#include "ready.h"

#include "bench/device_points.h"

extern "C" {
#include "harness/seed.h"
}

/* What a command prints, and how it ends. */
static int points(std::string *said, const cot_cuda_device *device, std::vector<std::string> words)
{
    std::vector<char *> list;
    for (std::string &word : words) list.push_back(word.data());
    char *text = nullptr;
    size_t bytes = 0;
    FILE *const out = open_memstream(&text, &bytes);
    const int status = cot_cuda_points(device, out, static_cast<int>(list.size()), list.data());
    fclose(out);
    *said = text;
    free(text);
    return status;
}

static void says(const std::string &said, const char *text)
{
    if (said.find(text) == std::string::npos) fail_msg("'%s', expected '%s'", said.c_str(), text);
}

static void layers_are_timed(void **)
{
    Ready ready(test_seed());
    ready.device.rows_anywhere = true; // times are the device's alone
    std::string said;
    assert_int_equal(points(&said, &ready.found, {"about"}), 0);
    says(said, "{\"name\": \"Emulated\", \"capability\": \"9.0\", \"multiprocessors\": 6, ");
    for (const char *op : {"cuda", "cuda-bulk"}) {
        const int before = ready.device.launches, a_pass = strcmp(op, "cuda") ? COT_CUDA_PHASES : 1;
        assert_int_equal(points(&said, &ready.found, {"time", op, "bf16", "64", "32", "8", "2", "2", "1,9"}),
                         0);
        /* A call, two runs to warm, one to see how long it takes, seven of what then is one run each. */
        assert_int_equal(ready.device.launches - before, 2 * 11 * a_pass);
        says(said, "{\"tokens\": 1, \"passes\": 1, ");
        says(said, "\"experts_called\": 2, \"bytes_least\": 25088, \"flops\": 24576, \"blocks\": "
                   "6, \"bytes_in_turn\": 147456, \"cache_bytes\": 16384}\n{\"tokens\": 9, ");
        says(said, ("\"ns\": " + std::to_string(20000000 * a_pass) + ", ").c_str()); // 20 ms a launch
    }
}

static void faults_are_survived(void **)
{
    Ready ready(test_seed());
    ready.device.rows_anywhere = true;
    std::string said;
    assert_int_equal(points(&said, &ready.found, {"faults", "cuda-bulk"}), 0);
    says(said, "\"refused\": true, \"next_call\": \"right\"");
    assert_int_equal(points(&said, &ready.found, {"faults", "cuda"}), 0);
    says(said, "\"fault\": \"a silent rank\", \"named\": true");
    says(said, "\"fault\": \"after a silent rank\", \"next_call\": \"right\"");
}

static void what_is_wrong_is_said(void **)
{
    Ready ready(test_seed());
    std::string said;
    ready.device.wrong = emulate::Wrong::TAKES;
    assert_int_equal(points(&said, &ready.found, {"probe", "cuda-bulk", "fp32", "2"}), 1);
    ready.device.wrong = emulate::Wrong::NOTHING;
    const std::vector<std::vector<std::string>> none = {
        {},
        {"all"},
        {"faults", "bulk"},
        {"probe", "cuda", "int8", "1"},
        {"probe", "cuda", "bf16", "65"},
        {"time", "cuda", "bf16", "64", "32", "8", "2", "1", "4,x"},
        {"time", "cuda", "bf16", "64", "0", "8", "2", "1", "4"}};
    for (const auto &words : none) assert_int_equal(points(&said, &ready.found, words), 2);
    ready.device.free_bytes = 1000;
    assert_int_equal(points(&said, &ready.found, {"time", "cuda", "bf16", "64", "32", "8", "2", "1", "4"}),
                     1);
    assert_string_equal(said.c_str(), "");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_are_timed),
        cmocka_unit_test(faults_are_survived),
        cmocka_unit_test(what_is_wrong_is_said),
    };
    if (argc == 1) return cmocka_run_group_tests(tests, nullptr, nullptr);
    Ready ready(test_seed());
    ready.device.rows_anywhere = true;
    return cot_cuda_points(&ready.found, stdout, argc - 1, argv + 1);
}
