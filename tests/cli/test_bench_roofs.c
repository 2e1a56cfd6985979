/* Shares of roofs that a busy machine has slowed are flagged, not printed. The roofs are this test's: the commands are
 * compiled in, with cot_roof_measure replaced (tests.cmake). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cli/commands.h"
#include "cli/bench/roof_trust.h"
#include "coterie/engine.h"
#include "coterie/roof.h"

#include "harness/cli/capture.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { TURNS = 4 };
static double flops[TURNS], reads[TURNS]; // of one measurement after the other, over and over
static int measured;
static size_t asked_bytes,
    told_bytes;    // of a roof's buffer; of weights, if not 0, instead of the engine's own
static bool kills; // a rank that is this process's child, instead of measuring

/* By the look alone it is found out. */
static cot_status kill_child(cot_roof_look *look, void *context, cot_error *error)
{
    int child;
    FILE *children = fopen("/proc/thread-self/children", "r");
    assert_non_null(children);
    assert_non_null(look);
    assert_int_equal(fscanf(children, "%d", &child), 1);
    fclose(children);
    assert_int_equal(look(context, error), COT_OK);
    assert_int_equal(kill(child, SIGKILL), 0);
    for (cot_status status;;)
        if ((status = look(context, error)) != COT_OK) return status;
}

cot_status __wrap_cot_roof_measure(cot_roof *roof, int threads, const char *isa, size_t buffer_bytes,
                                   cot_roof_look *look, void *context, cot_error *error);
cot_status __wrap_cot_roof_measure(cot_roof *roof, int threads, const char *isa, size_t buffer_bytes,
                                   cot_roof_look *look, void *context, cot_error *error)
{
    (void)threads, (void)isa;
    asked_bytes = buffer_bytes;
    if (kills) return kill_child(look, context, error);
    const double f = flops[measured % TURNS], r = reads[measured % TURNS];
    measured++;
    *roof = (cot_roof){f, 2 * f, 4 * f, r, buffer_bytes};
    return COT_OK;
}

static size_t told_cache = 32 << 20;

size_t __wrap_cot_last_level_cache_bytes(void);
size_t __wrap_cot_last_level_cache_bytes(void)
{
    return told_cache;
}

const cot_engine_info *__real_cot_engine_describe(const cot_engine *engine);
const cot_engine_info *__wrap_cot_engine_describe(const cot_engine *engine);
const cot_engine_info *__wrap_cot_engine_describe(const cot_engine *engine)
{
    static cot_engine_info info;
    info = *__real_cot_engine_describe(engine);
    if (told_bytes) info.weight_bytes = told_bytes;
    return &info;
}

static capture c;

static int run_program(void *context)
{
    static const cli_command *const commands[] = {&cli_cmd_bench_model, &cli_cmd_bench_moe,
                                                  &cli_cmd_bench_kernels, NULL};
    char **argv = context;
    int argc = 0;
    while (argv[argc]) argc++;
    return cli_command_main(commands, argc, argv);
}

#define RUN(...)                                                                                             \
    do {                                                                                                     \
        capture_call(&c, run_program, (char *[]){(char[]){"coterie"}, __VA_ARGS__, NULL});                   \
        if (c.status) fail_msg("status %d: %s", c.status, c.err);                                            \
    } while (0)
#define MODEL(...)                                                                                           \
    RUN("bench", "model", "--layers", "1", "--prompt-tokens", "4", "--decode-tokens", "2", "--repeat", "2",  \
        "--threads", "2", __VA_ARGS__)

static void set_roofs(double flops0, double flops1, double reads0, double reads1)
{
    for (int i = 0; i < TURNS; i++) {
        flops[i] = i % 2 ? flops1 : flops0;
        reads[i] = i % 2 ? reads1 : reads0;
    }
}

/* The lines of prefill and decode hold this; NULL: an ordinary share. */
static void expect_shares(const char *prefill, const char *decode)
{
    const char *expected[] = {prefill, decode}, *names[] = {"\nprefill ", "\ndecode "},
               *roofs[] = {" of the bf16 roof; ", " of the read roof; "};
    for (int i = 0; i < 2; i++) {
        char *line = strstr(c.out, names[i]);
        assert_non_null(line);
        char *end = strchr(line + 1, '\n'), next = end[1];
        end[1] = 0;
        if (expected[i]) {
            if (!strstr(line, "not to be trusted: the machine was busy (") || !strstr(line, expected[i]) ||
                strchr(line, '%'))
                fail_msg("'%s' lacks '%s'", line, expected[i]);
        } else if (!strstr(line, roofs[i]) || !strchr(line, '%'))
            fail_msg("'%s' holds no share", line);
        end[1] = next;
    }
}

static void test_doubts(void **state)
{
    (void)state;
    char text[96];
    assert_string_equal(cli_roof_doubt(text, 0.5, 1), "");
    assert_string_equal(cli_roof_doubt(text, 1.04, 1.4), "");
    assert_string_equal(cli_roof_doubt(text, 4.76, 1), "a run came to 4.76 times its roof");
    assert_string_equal(cli_roof_doubt(text, 1.06, 1), "a run came to 1.06 times its roof");
    assert_string_equal(cli_roof_doubt(text, 0.5, 1.6), "roofs before and after a run differ 1.6 times");
    assert_true(*cli_roof_doubt(text, NAN, 1) && *cli_roof_doubt(text, 0.5, NAN));
}

static void test_model(void **state)
{
    (void)state;
    set_roofs(1e15, 1.2e15, 1e15, 1.2e15);
    MODEL("--ranks", "1");
    expect_shares(NULL, NULL);
    assert_non_null(strstr(c.out, "fp32 1200000.0, bf16 2400000.0 GFLOP/s, read 1200000.0 GB/s"));
    if (!strstr(c.out, "x the larger roof (read)\n")) fail_msg("%s", c.out); // decode
    set_roofs(1, 1, 1e15, 4e15);
    MODEL("--ranks", "1");
    assert_null(strstr(c.out, "x the larger roof"));
    expect_shares("times its roof", "differ 4.0 times");
    set_roofs(1e15, 3e15, 1, 1);
    MODEL("--json");
    json_t *json = json_loads(c.out, 0, NULL);
    assert_true(json_is_null(json_object_get(json, "prefill_roof_share")));
    assert_true(json_is_null(json_object_get(json, "decode_roof_share")));
    assert_true(json_real_value(json_object_get(json, "decode_bytes_per_second")) > 0);
    json_decref(json);
    set_roofs(1e15, 1e15, 1e15, 1e15);
    MODEL("--json", "--precision", "int8");
    json = json_loads(c.out, 0, NULL);
    double share = json_real_value(json_object_get(json, "prefill_roof_share"));
    assert_true(fabs(share * 4e15 / json_real_value(json_object_get(json, "prefill_flops")) - 1) <
                0.6); // median of two
    assert_true(json_real_value(json_object_get(json, "decode_roof_share")) > 0);
    json_decref(json);
}

/* A phase's time over the larger roof, by its own rates. */
static void expect_over_roof(const json_t *json, const char *phase, const char *larger, double multiply_roof,
                             double read_roof)
{
    char name[64];
#define OF(field) (snprintf(name, sizeof name, "%s_%s", phase, field), json_object_get(json, name))
    const double multiply = json_real_value(OF("flops")) / multiply_roof,
                 read = json_real_value(OF("bytes_per_second")) / read_roof;
    assert_true(multiply > 0 && read > 0);
    assert_string_equal(json_string_value(OF("larger_roof")), larger);
    const double over = json_real_value(OF("over_roof"));
    if (fabs(over * fmax(multiply, read) - 1) > 1e-9) fail_msg("%s: %g, %g, %g", phase, over, multiply, read);
#undef OF
}

/* One run, so that medians are of the same. A prompt is bound by products, what follows by reads: there a token meets q, k, v
 * and o, the gate, 8 of 64 experts and the output. */
static void test_model_over_roof(void **state)
{
    (void)state;
    set_roofs(1e15, 1e15, 1e15, 1e15);
    RUN("bench", "model", "--layers", "1", "--prompt-tokens", "32", "--decode-tokens", "2", "--repeat", "1",
        "--threads", "2", "--json");
    json_t *json = json_loads(c.out, 0, NULL);
    expect_over_roof(json, "prefill", "multiply", 2e15, 1e15);
    expect_over_roof(json, "decode", "read", 2e15, 1e15);
    const double hidden = 2048,
                 weights = 4 * hidden * hidden + 64 * hidden + 8 * 3 * hidden * 1024, // norms, too
        scores = 2 * hidden * (33 + 34) / 2, // of the two tokens in the mean
        token = 2 * (weights + scores + hidden * 50304);
    const double told = json_real_value(json_object_get(json, "decode_flops")) /
                        json_real_value(json_object_get(json, "decode_tokens_per_second"));
    if (fabs(told / token - 1) > 1e-3) fail_msg("a token is %g operations, told %g", token, told);
    json_decref(json);
}

/* Three runs, each held against the higher roofs of those before and after it: of the first multiplying is the larger, by far, of
 * the other two reading is; of the medians of shares multiplying's is the higher. */
static void test_model_larger_roof(void **state)
{
    (void)state;
    static const double flops_of[TURNS] = {1e15, 1e15, 1e18, 1e27},
                        reads_of[TURNS] = {1e30, 1e12, 1e12, 1e22};
    memcpy(flops, flops_of, sizeof flops);
    memcpy(reads, reads_of, sizeof reads);
    measured = 0;
    RUN("bench", "model", "--layers", "1", "--prompt-tokens", "4", "--decode-tokens", "2", "--repeat", "3",
        "--threads", "2", "--json");
    json_t *json = json_loads(c.out, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(json, "prefill_larger_roof")), "read");
    assert_string_equal(json_string_value(json_object_get(json, "decode_larger_roof")), "read");
    json_decref(json);
}

static int asked_of_roof(void *context)
{
    const int status = run_program(context);
    fprintf(stderr, " %zu", asked_bytes);
    return status;
}

/* As many bytes as weights are, 2 GiB at most. */
static void test_model_buffer(void **state)
{
    (void)state;
    set_roofs(1e15, 1e15, 1e15, 1e15);
    static const size_t of[][2] = {{12345678, 12345678}, {(size_t)3 << 30, (size_t)2 << 30}};
    for (int i = 0; i < 2; i++) {
        told_bytes = of[i][0];
        capture_call(&c, asked_of_roof,
                     (char *[]){(char[]){"coterie"}, "bench", "model", "--layers", "1", "--prompt-tokens",
                                "2", "--decode-tokens", "1", "--repeat", "1", "--threads", "1", NULL});
        assert_int_equal(c.status, 0);
        assert_int_equal(strtoull(strrchr(c.err, ' '), NULL, 10), of[i][1]);
    }
    told_bytes = 0;
}

#define MOE(...) RUN("bench", "moe", "--shape", "64,64,4,2", "--tokens", "8", "--repeat", "5", __VA_ARGS__)

static void test_moe(void **state)
{
    (void)state;
    set_roofs(1e15, 1e15, 1e15, 1e15);
    MOE("--threads", "1");
    assert_null(strstr(c.out, " busy "));
    assert_string_equal(c.err, "");
    set_roofs(1, 1, 1e15, 1e15);
    MOE("--threads", "1");
    assert_non_null(strstr(c.out, " busy "));
    assert_non_null(strstr(c.err, "note: 64,64,4,2, 8 tokens, 1 ranks, uniform: faster than the roofs"));
    MOE("--json");
    assert_non_null(strstr(c.err, "are not to be trusted\n"));
}

/* Where the system does not tell a cache, or tells one of 1 GiB, layers are measured nevertheless. */
static void test_wrong_caches(void **state)
{
    (void)state;
    const size_t cache = told_cache;
    set_roofs(1e15, 1e15, 1e15, 1e15);
    for (int large = 0; large < 2; large++) {
        told_cache = (size_t)large << 30;
        MOE("--threads", "2", "--precision", "int8");
        assert_string_equal(c.err, "");
        assert_non_null(strstr(c.out, "16 rows to 4 experts"));
    }
    told_cache = cache;
}

static double number(const json_t *row, const char *name)
{
    const json_t *value = json_object_get(row, name);
    if (!json_is_number(value)) fail_msg("no number '%s'", name);
    return json_number_value(value);
}

/* Every form by every arithmetic that multiplies it; bytes and operations as they are counted, shares of the higher roof. */
static void test_kernels(void **state)
{
    (void)state;
    static const struct {
        const char *weights, *precision;
        int bytes; // of a network of 64 by 96: gate and up [64][96], down [96][64]
    } forms[] = {{"fp32", "fp32", 73728}, {"bf16", "bf16", 36864}, {"int8", "fp32", 19456},
                 {"int8", "bf16", 19456}, {"int8", "int8", 19456}, {"fp8", "fp32", 19456},
                 {"fp8", "bf16", 19456},  {"int4", "fp32", 10368}, {"int4", "bf16", 10368},
                 {"int4", "int8", 10368}, {"mxfp4", "fp32", 9856}, {"mxfp4", "bf16", 9856},
                 {"mxfp4", "int8", 9856}};
    enum { FORMS = sizeof forms / sizeof *forms };
    set_roofs(1e12, 1.2e12, 4e11, 3e11);
    RUN("bench", "kernels", "--shape", "64,96,2,1", "--rows", "3,65", "--mib", "1", "--threads", "2",
        "--json");
    json_t *rows = json_loads(c.out, 0, NULL);
    assert_int_equal(json_array_size(rows), 2 * FORMS);
    size_t bound[2] = {0}; // by multiplying, by reads
    for (size_t i = 0; i < 2 * FORMS; i++) {
        const json_t *row = json_array_get(rows, i);
        const double bytes = forms[i / 2].bytes + 64, // a network begins with its matrices' forms
            n = i % 2 ? 65 : 3, experts = i % 2 ? 1 : ceil((1 << 20) / bytes),
                     roof = forms[i / 2].precision[0] == 'f'   ? 1.2e12
                            : forms[i / 2].precision[0] == 'b' ? 2.4e12
                                                               : 4.8e12,
                     ns = number(row, "median_ns");
        assert_string_equal(json_string_value(json_object_get(row, "weights")), forms[i / 2].weights);
        assert_string_equal(json_string_value(json_object_get(row, "precision")), forms[i / 2].precision);
        assert_true(number(row, "rows") == n && number(row, "experts") == experts);
        assert_true(number(row, "weight_bytes") == bytes * experts);
        assert_true(number(row, "operations") == 6.0 * 64 * 96 * n * experts);
        assert_true(0 < number(row, "least_ns") && number(row, "least_ns") <= ns &&
                    ns <= number(row, "most_ns"));
        assert_true(number(row, "read_roof") == 4e11 && number(row, "multiply_roof") == roof);
        assert_true(fabs(number(row, "read_share") / (bytes * experts / ns * 1e9 / 4e11) - 1) < 1e-9);
        assert_true(fabs(number(row, "multiply_share") / (number(row, "operations") / ns * 1e9 / roof) - 1) <
                    1e-9);
        const double read_ns = bytes * experts / 4e11 * 1e9,
                     multiply_ns = number(row, "operations") / roof * 1e9;
        assert_int_equal(json_is_true(json_object_get(row, "reads_bound")), read_ns > multiply_ns);
        bound[read_ns > multiply_ns]++;
        assert_true(fabs(number(row, "over_roof") / (ns / fmax(read_ns, multiply_ns)) - 1) < 1e-9);
        assert_true(json_is_false(json_object_get(row, "busy")));
    }
    json_decref(rows);
    assert_true(bound[0] && bound[1]);
    set_roofs(1e12, 1e12, 4e12, 2e12);
    RUN("bench", "kernels", "--shape", "64,96,2,1", "--rows", "2", "--mib", "1", "--weights", "mxfp4",
        "--precision", "int8");
    const char *line = strstr(c.out, "\nmxfp4   int8       2 ");
    if (!line || !strstr(line, "  busy\n")) fail_msg("%s", c.out);
}

/* Forms that are measured where they are named. */
static void test_named_forms(void **state)
{
    (void)state;
    static const struct {
        const char *weights;
        size_t arithmetics;
        int bytes; // as above
    } forms[] = {{"q8_0", 3, 19584}, {"q4_0", 3, 10368}, {"nvfp4", 2, 12544}, {"q4_k", 2, 36864}};
    set_roofs(1e12, 1e12, 4e12, 4e12);
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        const double bytes = forms[f].bytes + 64;
        RUN("bench", "kernels", "--shape", "64,96,2,1", "--rows", "2", "--mib", "1", "--json", "--weights",
            (char *)(uintptr_t)forms[f].weights);
        json_t *rows = json_loads(c.out, 0, NULL);
        assert_int_equal(json_array_size(rows), forms[f].arithmetics);
        for (size_t i = 0; i < forms[f].arithmetics; i++) {
            const json_t *row = json_array_get(rows, i);
            assert_string_equal(json_string_value(json_object_get(row, "weights")), forms[f].weights);
            assert_true(number(row, "weight_bytes") == bytes * ceil((1 << 20) / bytes));
        }
        json_decref(rows);
    }
}

static void test_kernels_refusals(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *option, *value, *message;
    } bad[] = {
        {2, "--rows", "4097", "coterie: --rows takes integers from 1 to 4096, not '4097'\n"},
        {2, "--shape", "nosuch", "coterie: unknown shape 'nosuch'"},
        {2, "--weights", "q4",
         "coterie: --weights takes each, bf16, fp32, int8, fp8, int4, mxfp4, q4_1, q5_0, q5_1, iq4_nl, q2_k, "
         "q4_k, q5_k, q6_k, nvfp4, q8_0 or q4_0, not 'q4'\n"},
        {2, "--precision", "fp16", "coterie: --precision takes each, bf16, fp32 or int8, not 'fp16'\n"},
        {1, "--isa", "x", "coterie: no instruction set 'x' here"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        capture_call(&c, run_program,
                     (char *[]){(char[]){"coterie"}, "bench", "kernels", (char *)(uintptr_t)bad[i].option,
                                (char *)(uintptr_t)bad[i].value, NULL});
        assert_int_equal(c.status, bad[i].status);
        assert_string_equal(c.out, "");
        if (strncmp(c.err, bad[i].message, strlen(bad[i].message)) != 0) fail_msg("%s", c.err);
    }
    capture_call(
        &c, run_program,
        (char *[]){(char[]){"coterie"}, "bench", "kernels", "--weights", "fp8", "--precision", "int8", NULL});
    assert_int_equal(c.status, 1);
    assert_string_equal(c.err, "coterie: weights in fp8 are not multiplied in precision int8\n");
}

/* A rank that dies while the first one measures roofs by itself is told then, not when it is waited for. */
static void test_lost_rank(void **state)
{
    (void)state;
    kills = true;
    capture_call(&c, run_program,
                 (char *[]){(char[]){"coterie"}, "bench", "moe", "--shape", "16,8,2,1", "--tokens", "4",
                            "--ranks", "2", "--threads", "2", "--fabric", "processes", NULL});
    kills = false;
    assert_int_equal(c.status, 1);
    assert_string_equal(c.err, "coterie: rank 1 was killed by signal 9\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_doubts),           cmocka_unit_test(test_model),
        cmocka_unit_test(test_model_over_roof),  cmocka_unit_test(test_model_larger_roof),
        cmocka_unit_test(test_model_buffer),     cmocka_unit_test(test_moe),
        cmocka_unit_test(test_wrong_caches),     cmocka_unit_test(test_lost_rank),
        cmocka_unit_test(test_kernels),          cmocka_unit_test(test_named_forms),
        cmocka_unit_test(test_kernels_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
