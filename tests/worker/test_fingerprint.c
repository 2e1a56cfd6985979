/* A fingerprint changes with all that an answer's bits depend on, and with nothing else. */
#include "harness/scratch.h"

#include "worker/fingerprint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the wrapped function below says of an engine: the engine is its description. */
const cot_engine_info *__wrap_cot_engine_describe(const cot_engine *engine);
const cot_engine_info *__wrap_cot_engine_describe(const cot_engine *engine)
{
    return (const cot_engine_info *)engine;
}

static void put_fingerprint(char text[24], const char *folder, const cot_engine_info *info)
{
    cot_error error;
    memset(text, 0, 24);
    if (cot_fingerprint(text, folder, (const cot_engine *)info, &error) != COT_OK)
        fail_msg("%s", error.message);
    unsigned long long hash;
    int end = 0;
    assert_int_equal(sscanf(text, "fp_%16llx%n", &hash, &end), 1);
    assert_int_equal(end, 19);
    assert_int_equal(text[19], '\0');
}

static void assert_differs(char known[][24], size_t *count, const char *folder, const cot_engine_info *info,
                           const char *what)
{
    char *text = known[(*count)++];
    put_fingerprint(text, folder, info);
    for (size_t i = 0; i + 1 < *count; i++)
        if (strcmp(known[i], text) == 0) fail_msg("%s changes nothing", what);
}

static void assert_same(const char *expected, const char *folder, const cot_engine_info *info)
{
    char text[24];
    put_fingerprint(text, folder, info);
    assert_string_equal(text, expected);
}

static cot_engine_info described(void)
{
    return (cot_engine_info){.architecture = "mixtral",
                             .isa = "avx2",
                             .precision = "bf16",
                             .payload = "f32",
                             .op = "fused",
                             .combine = "home",
                             .attention = "tp",
                             .weights = "bf16",
                             .weights_attention = "bf16",
                             .weights_head = "bf16",
                             .pipeline = "p",
                             .predict = "q",
                             .collective = "c",
                             .ranks = 2};
}

static void test_how_it_computes(void **state)
{
    scratch_pad *pad = *state;
    char known[40][24];
    size_t count = 0;
    const cot_engine_info plain = described();
    put_text(pad, "config.json", "{}");
    assert_differs(known, &count, pad->path, &plain, "nothing");
    assert_same(known[0], pad->path, &plain);
    const size_t fields[] = {
        offsetof(cot_engine_info, architecture), offsetof(cot_engine_info, isa),
        offsetof(cot_engine_info, precision),    offsetof(cot_engine_info, payload),
        offsetof(cot_engine_info, op),           offsetof(cot_engine_info, combine),
        offsetof(cot_engine_info, weights),      offsetof(cot_engine_info, weights_attention),
        offsetof(cot_engine_info, weights_head), offsetof(cot_engine_info, pipeline),
        offsetof(cot_engine_info, predict),      offsetof(cot_engine_info, collective)};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        cot_engine_info info = plain;
        *(const char **)((char *)&info + fields[i]) = "other";
        assert_differs(known, &count, pad->path, &info, "a field");
    }
    for (int ranks = 1; ranks < 5; ranks++) { // sums of heads are split by ranks
        cot_engine_info info = plain;
        info.ranks = ranks;
        if (ranks != 2) assert_differs(known, &count, pad->path, &info, "the number of ranks");
    }
    // no text runs into the next one
    cot_engine_info info = plain;
    info.isa = "avx2b", info.precision = "f16";
    assert_differs(known, &count, pad->path, &info, "a border");

    // under data-parallel attention ranks, threads and who does what change no bit
    info = plain;
    info.attention = "dp", info.pipeline = info.predict = info.collective = NULL;
    assert_differs(known, &count, pad->path, &info, "attention");
    const char *dp = known[count - 1];
    info.ranks = 3, info.threads = 7, info.kv_homes = 3, info.block_tokens = 16;
    assert_same(dp, pad->path, &info);
}

/* Of a file its name's kind, its size, its head and samples of the rest. */
static void test_files(void **state)
{
    enum { BYTES = 3 << 20, HEAD = 1 << 20 };
    scratch_pad *pad = *state;
    char known[40][24];
    size_t count = 0;
    const cot_engine_info info = described();
    uint8_t *bytes = malloc(BYTES);
    assert_non_null(bytes);
    for (size_t i = 0; i < BYTES; i++) bytes[i] = (uint8_t)pad_draw(pad, 256);
    put_text(pad, "config.json", "{}");
    put_file(pad, "model.safetensors", bytes, BYTES);
    assert_differs(known, &count, pad->path, &info, "nothing");
    put_text(pad, "README.md", "of no matter");
    put_text(pad, "tokenizer.json", "{}");
    put_text(pad, "other.json", "{}");
    put_text(pad, "safetensors", "a name without a dot");
    assert_same(known[0], pad->path, &info);
    const size_t samples = 16, sample = 64 << 10;
    for (size_t i = 0; i < samples;
         i++) { // a bit of each place that is looked at, its first byte or its last
        const size_t at = BYTES / samples * i + (i % 2 ? sample - 1 : 0);
        bytes[at] ^= 1;
        put_file(pad, "model.safetensors", bytes, BYTES);
        assert_differs(known, &count, pad->path, &info, "a sample");
        bytes[at] ^= 1;
    }
    bytes[HEAD - 1] ^= 0x80;
    put_file(pad, "model.safetensors", bytes, BYTES);
    assert_differs(known, &count, pad->path, &info, "the end of the head");
    bytes[HEAD - 1] ^= 0x80;
    put_file(pad, "model.safetensors", bytes, BYTES);
    assert_same(known[0], pad->path, &info);
    put_file(pad, "model.safetensors", bytes, BYTES - 1);
    assert_differs(known, &count, pad->path, &info, "a size");
    put_file(pad, "model.safetensors", bytes, BYTES);
    put_text(pad, "config.json", "{ }");
    assert_differs(known, &count, pad->path, &info, "the configuration");
    put_text(pad, "config.json", "{}");
    put_text(pad, "more.safetensors", "x");
    assert_differs(known, &count, pad->path, &info, "a file more");
    free(bytes);

    cot_error error;
    char text[24];
    assert_int_equal(cot_fingerprint(text, in_scratch(pad, "none"), (const cot_engine *)&info, &error),
                     COT_IO);
    assert_non_null(strstr(error.message, "none' cannot be read"));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_open, scratch_close)
    const struct CMUnitTest tests[] = {TEST(test_how_it_computes), TEST(test_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
