/* Weights kept as they are stored: what an engine says of them, the bytes it takes and reads, the same bits for every number
 * of ranks, and what is refused. */
#include "harness/cmocka.h"
#include "harness/engine/every_group.h"
#include "harness/engine/golden.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/seed.h"

#include "coterie/eval.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 23, PREFILL = 17, H = 64, I = 96, E = 6, K = 2, LAYERS = 2, VOCAB = 67 };

static const char oss[] =
    "{\"architectures\": [\"GptOssForCausalLM\"], \"model_type\": \"gpt_oss\", \"vocab_size\": 67, "
    "\"hidden_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
    "\"head_dim\": 16, \"num_local_experts\": 6, \"num_experts_per_tok\": 2, \"intermediate_size\": 96, "
    "\"sliding_window\": 16, \"max_position_embeddings\": 64, \"tie_word_embeddings\": false%s}";

static cot_engine *drawn(const char *quantisation, const struct setting *s)
{
    char config[1024];
    cot_engine *engine;
    cot_error error = {0};
    const cot_engine_options options = options_of(s);
    snprintf(config, sizeof config, oss, quantisation);
    fflush(stdout);
    if (cot_engine_open_random(&engine, config, strlen(config), 7, &options, &error) != COT_OK)
        fail_msg("%s", error.message);
    return engine;
}

static const char mxfp4[] = ", \"quantization_config\": {\"quant_method\": \"mxfp4\"}";

static size_t up(size_t n, size_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

/* A matrix in panels of 32 columns: half a byte an element, and a byte for each 32 of a column. */
static size_t matrix(size_t rows, size_t columns)
{
    return up(columns, 32) / 32 * (up(rows, 32) * 16 + up(rows, 64));
}

/* What experts take falls from two bytes an element to 4.25 bits, and so does what a step reads of them. */
static void bytes_are_those_stored(void **state)
{
    (void)state;
    const size_t plain = (size_t)LAYERS * E * 3 * H * I * 2,
                 stored = (size_t)LAYERS * E * (2 * matrix(H, I) + matrix(I, H));
    uint64_t read[2];
    for (int kept = 0; kept < 2; kept++) {
        cot_engine *bf16 = drawn("", &(struct setting){.precision = "bf16"}),
                   *engine = drawn(
                       mxfp4, &(struct setting){.precision = "bf16", .weights = kept ? "as-stored" : "bf16"});
        const cot_engine_info *info = cot_engine_describe(engine);
        assert_string_equal(info->weights, kept ? "mxfp4" : "bf16");
        assert_string_equal(info->precision, "bf16");
        assert_int_equal(cot_engine_describe(bf16)->weight_bytes - info->weight_bytes,
                         kept ? plain - stored : 0);
        cot_engine_close(bf16);
        uint64_t seed = 3;
        int32_t *ids = drawn_ids(TOKENS, VOCAB, &seed);
        const cot_request q = forced_request(ids, TOKENS, PREFILL);
        struct records all = must_run(engine, &q, 1);
        cot_stats stats;
        assert_int_equal(cot_engine_stats(engine, &stats, NULL), COT_OK);
        read[kept] = stats.decode_read_bytes;
        cot_stats_clear(&stats);
        records_free(&all);
        free(ids);
        cot_engine_close(engine);
    }
    // each of the tokens fed alone reads K experts of every layer, whichever
    const uint64_t experts = (TOKENS - PREFILL) * LAYERS * K;
    assert_int_equal(read[0] - read[1], experts * (plain - stored) / (LAYERS * E));
}

static cot_engine *open_drawn(const void *what, const struct setting *s)
{
    cot_engine *engine = drawn(what, s);
    assert_string_equal(cot_engine_describe(engine)->precision, s->precision);
    return engine;
}

static void same_bits_for_every_group(void **state)
{
    (void)state;
    static const char *const precisions[] = {"fp32", "bf16", "int8"}, *const ops[] = {"fused", "bulk"};
    uint64_t seed = test_seed();
    for (int p = 0; p < 3; p++)
        check_every_group(open_drawn, mxfp4,
                          &(struct setting){.precision = precisions[p], .op = ops[draw(&seed) % 2]}, "mxfp4",
                          &seed);
}

/* Kept or widened, a checkpoint computes the same but for rounding. */
static void kept_or_widened(void **state)
{
    (void)state;
    char folder[1024];
    golden_path(folder, "gpt-oss", NULL);
    if (!folder_exists(folder)) skip();
    static const struct {
        const char *precision, *weights, *told;
        double most; // root of the mean square of errors, over that of logits
    } ways[] = {{"fp32", "fp32", "fp32", 0},    {"fp32", NULL, "mxfp4", 1e-5},
                {"bf16", "bf16", "bf16", 0.01}, {"bf16", "as-stored", "mxfp4", 0.01},
                {"int8", "int8", "int8", 0.1},  {"int8", NULL, "mxfp4", 0.1}};
    struct records exact = {0};
    uint64_t seed = 11;
    int32_t *ids = drawn_ids(TOKENS, 60, &seed);
    const cot_request q = forced_request(ids, TOKENS, PREFILL);
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        cot_engine *engine = must_open(&(struct setting){
            .folder = folder, .precision = ways[w].precision, .weights = ways[w].weights, .kv_tokens = 64});
        const cot_engine_info *info = cot_engine_describe(engine);
        assert_string_equal(info->weights, ways[w].told);
        const int64_t vocab = info->vocab;
        struct records all = must_run(engine, &q, 1);
        double errors = 0, squares = 1e-30;
        for (int64_t i = 0; w && i < TOKENS * vocab; i++) {
            const double wanted = (double)exact.record[0].logits[i],
                         error = (double)all.record[0].logits[i] - wanted;
            errors += error * error;
            squares += wanted * wanted;
        }
        printf("%s, %s: off by %.2g\n", ways[w].precision, ways[w].told, sqrt(errors / squares));
        assert_true(sqrt(errors / squares) <= ways[w].most);
        if (w)
            records_free(&all);
        else
            exact = all;
        cot_engine_close(engine);
    }
    records_free(&exact);
    free(ids);
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *precision, *weights, *words;
    } cases[] = {{"bf16", "int5", "unknown weights 'int5' (as-stored, bf16, fp32, int8, fp8, int4 or mxfp4)"},
                 {"bf16", "", "unknown weights ''"},
                 {"bf16", "fp32", "weights in fp32 are not multiplied in precision bf16"},
                 {"int8", "fp8", "weights in fp8 are not multiplied in precision int8"},
                 {"int8", "bf16", "weights in bf16 are not multiplied in precision int8"},
                 {"fp32", "bf16", "weights in bf16 are not multiplied in precision fp32"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char config[1024];
        cot_engine *engine = (cot_engine *)&config;
        cot_error error = {0};
        const cot_engine_options options =
            options_of(&(struct setting){.precision = cases[i].precision, .weights = cases[i].weights});
        snprintf(config, sizeof config, oss, "");
        assert_int_equal(cot_engine_open_random(&engine, config, strlen(config), 1, &options, &error),
                         COT_INVALID_ARGUMENT);
        if (engine || !strstr(error.message, cases[i].words)) fail_msg("'%s'", error.message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bytes_are_those_stored),
                                       cmocka_unit_test(same_bits_for_every_group),
                                       cmocka_unit_test(kept_or_widened), cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
