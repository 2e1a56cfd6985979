/* What bench/device measures with, on the emulated device: its points, and what it says of a device that is wrong. With words of
 * bench/device_points.h it runs these. */
#define COT_TIMELINE // of the kernel here; those of cuda/*.cu note nothing
#include "ready.h"

#include "bench/device_points.h"

#include <algorithm>
#include <unistd.h>

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
    const int status = cot_cuda_points(device, &image, out, static_cast<int>(list.size()), list.data());
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
                   "6, \"bytes_in_turn\": 73728, \"cache_bytes\": 16384}\n{\"tokens\": 9, ");
        says(said, ("\"ns\": " + std::to_string(20000000 * a_pass) + ", ").c_str()); // 20 ms a launch
    }
}

static void phases_are_timed(void **)
{
    Ready ready(test_seed());
    ready.device.rows_anywhere = true;
    std::string said;
    assert_int_equal(
        points(&said, &ready.found, {"phases", "cuda-bulk", "bf16", "64", "32", "8", "2", "1", "9"}), 0);
    says(said,
         "{\"tokens\": 9, \"passes\": 1, \"phases\": {\"gate\": 20000000, \"route\": 20000000, \"dispatch\": "
         "20000000, "
         "\"count\": 20000000, \"receive\": 20000000, \"enter\": 20000000, \"up\": 20000000, \"down\": "
         "20000000, \"combine\": 20000000}}\n"); // 20 ms a launch
}

/* What tokens call is the same for all who ask, however many there are, and what a layer's gate chooses. */
static void routing_is_told(void **)
{
    Ready ready(test_seed());
    std::string few, many;
    assert_int_equal(points(&few, &ready.found, {"routing", "64", "8", "2"}), 0);
    assert_int_equal(points(&many, &ready.found, {"routing", "64", "8", "9"}), 0);
    assert_int_equal(few.compare(0, few.size() - 3, many, 0, few.size() - 3), 0);
    assert_int_equal(std::count(many.begin(), many.end(), '['), 1 + 9);
    assert_int_equal(std::count(many.begin(), many.end(), ','), 2 + 8 + 9 * 7);
    assert_int_equal(points(&few, &ready.found, {"routing", "4", "5", "2"}), 2);
}

static void noting(const cot_cuda_fused call)
{
    cot::run_fused<mma_engine, cot::scope::gpu>(call);
}

/* Kernels of a file that are not built for it note nothing, which is said; others have each task drawn once. */
static void a_timeline_needs_its_kernels(void **)
{
    Ready ready(test_seed());
    ready.device.rows_anywhere = true;
    std::string said;
    char path[] = "/tmp/kernels-XXXXXX";
    const int file = mkstemp(path);
    assert_int_equal(write(file, "kernels", 8), 8);
    close(file);
    std::vector<std::string> words = {"timeline", "cuda", "bf16", "64", "32", "8", "2", "1", "1", path};
    assert_int_equal(points(&said, &ready.found, words), 1);
    assert_string_equal(said.c_str(), "");
    assert_int_equal(ready.device.taken, ready.device.given_back);
    ready.device.in_bf16 = noting;
    assert_int_equal(points(&said, &ready.found, words), 0);
    says(said, "{\"tokens\": 1, \"ns_timed\": 20000000, \"tasks\": [[");
    const auto drawn = [&](const char *kind) { // how often
        size_t count = 0;
        for (size_t at = 0; (at = said.find(kind, at)) != std::string::npos; at++) count++;
        return count;
    };
    assert_int_equal(drawn("\"gate\""), 2); // of four experts each
    assert_int_equal(drawn("\"up\""), 2);   // a tile an expert, of 64 columns, which are one part
    assert_int_equal(drawn("\"down\""), 2);
    assert_int_equal(drawn("\"combine\""), 0); // who brings a token's last columns adds them up
    assert_int_equal(std::count(said.begin(), said.end(), '['), 1 + 2 + 2 + 2);
    unlink(path);
    assert_int_equal(points(&said, &ready.found, words), 1);
}

/* The emulator that adds as compute capability 9.0 does has the sums that bench/device compares a device with, and one that adds otherwise has not. */
static void bits_are_the_emulators(void **)
{
    for (const bool wgmma : {false, true}) {
        Ready ready(test_seed(), 6, wgmma);
        ready.device.options.rounding = emulate::Rounding::SM_90;
        std::string said;
        for (const char *op : {"cuda", "cuda-bulk"}) {
            assert_int_equal(points(&said, &ready.found, {"bits", op}), 0);
            const auto lines = std::count(said.begin(), said.end(), '\n');
            assert_int_equal(lines, wgmma || strcmp(op, "cuda") ? 4 : 2);
            says(said, "{\"case\": \"up to 128 rows\", \"tiles\": 64, \"right\": true}");
        }
        says(said, "{\"case\": \"up to 128 rows\", \"tiles\": 128, \"right\": true}");
        ready.device.options.rounding = emulate::Rounding::TRUNCATED;
        assert_int_equal(points(&said, &ready.found, {"bits", "cuda-bulk"}), 1);
        assert_string_equal(said.c_str(), "");
        ready.device.major = 8;
        assert_int_equal(points(&said, &ready.found, {"bits", "cuda-bulk"}), 0);
        assert_string_equal(said.c_str(),
                            "{\"absent\": \"the emulator adds as compute capability 9.x does\"}\n");
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
        {"bits", "cuda", "bf16"},
        {"probe", "cuda", "int8", "1"},
        {"probe", "cuda", "bf16", "65"},
        {"time", "cuda", "bf16", "64", "32", "8", "2", "1", "4,x"},
        {"time", "cuda", "bf16", "64", "0", "8", "2", "1", "4"},
        {"time", "cuda", "bf16", "8", "8", "16", "2", "1", "4"},
        {"phases", "cuda", "bf16", "64", "32", "8", "2", "1", "4"},
        {"timeline", "cuda", "bf16", "64", "32", "8", "2", "1", "4"}};
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
        cmocka_unit_test(phases_are_timed),
        cmocka_unit_test(routing_is_told),
        cmocka_unit_test(bits_are_the_emulators),
        cmocka_unit_test(a_timeline_needs_its_kernels),
        cmocka_unit_test(faults_are_survived),
        cmocka_unit_test(what_is_wrong_is_said),
    };
    if (argc == 1) return cmocka_run_group_tests(tests, nullptr, nullptr);
    Ready ready(test_seed());
    ready.device.rows_anywhere = true;
    return cot_cuda_points(&ready.found, &image, stdout, argc - 1, argv + 1);
}
