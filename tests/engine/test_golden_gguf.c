/* The same models in GGUF: what another's code computed of the hub's folder, or of the numbers that quantised blocks stand for, comes
 * out of the file, at several numbers of ranks, threads and processes, prefill and token by token. */
#include "harness/cmocka.h"
#include "harness/engine/answers.h"
#include "harness/engine/golden.h"
#include "harness/refused.h"

#include "coterie/model.h"

#include <stdio.h>
#include <string.h>

#define GGUF COT_SHARED "/golden/gguf/"

/* At several numbers of ranks, or at 2 alone: of files that differ in how they lie. */
static void run(const char *file, const char *config, const char *expected, bool once)
{
    struct answers a;
    if (!answers_open_of(&a, file, config, expected)) fail_msg("'%s', '%s' are missing", config, expected);
    for (size_t r = once ? 1 : 0; r < (once ? 2 : 4); r++)
        for (int way = 0; way < 2; way++)
            answers_compare(&a, &(struct setting){.ranks = (const int[]){1, 2, 4, 4}[r],
                                                  .processes = r == 3,
                                                  .attention = way == 0 ? "dp" : "tp",
                                                  .kv_tokens = 256});
    printf("%-40s worst logit %.1e, worst weight %.1e\n", strrchr(file, '/') + 1, a.worst_logit,
           a.worst_weight);
    answers_close(&a);
}

static void every_architecture(void **state)
{
    (void)state;
    static const char *const files[][2] = {
        {"arch/mixtral", "mixtral"},
        {"arch/mixtral-llama3", "gguf/hub/mixtral-llama3"},
        {"arch/olmoe", "olmoe"},
        {"arch/qwen2moe", "gguf/hub/qwen2-moe"},
        {"arch/qwen2moe-qkv", "gguf/hub/qwen2-moe"},
        {"arch/qwen3moe", "qwen3-moe"},
        {"arch/qwen3moe-yarn-tied", "gguf/hub/qwen3-moe-yarn-tied"},
        {"arch/deepseek-v2", "deepseek-v2"},
        {"arch/deepseek-v2-lite", "deepseek-v2-lite"},
        {"arch/deepseek-v2-lite-27", "gguf/hub/deepseek-v2-lite-27"},
        {"arch/deepseek-v2-lite-27-kv_b-gate_up", "gguf/hub/deepseek-v2-lite-27"},
        {"arch/deepseek-v3", "deepseek-v3"},
        {"arch/gpt-oss", "gpt-oss"},
        {"arch/glm4moe", "gguf/hub/glm4-moe"},
        {"arch/minimax-m2", "gguf/hub/minimax-m2"},
        {"container/parts-00001-of-00003", "gguf/hub/qwen3-moe-yarn-tied"},
        {"container/first-empty-00001-of-00003", "gguf/hub/qwen3-moe-yarn-tied"},
        {"container/alignment-8", "gguf/hub/qwen3-moe-yarn-tied"},
        {"container/alignment-256", "gguf/hub/qwen3-moe-yarn-tied"},
        {"container/version-2", "gguf/hub/qwen3-moe-yarn-tied"},
        {"container/types", "gguf/hub/qwen3-moe-yarn-tied"},
    };
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        char file[600], config[600], expected[600];
        snprintf(file, sizeof file, GGUF "%s.gguf", files[f][0]);
        snprintf(config, sizeof config, COT_SHARED "/golden/%s/config.json", files[f][1]);
        snprintf(expected, sizeof expected, COT_SHARED "/golden/%s/expected.safetensors", files[f][1]);
        run(file, config, expected, !strncmp(files[f][0], "container", 9));
    }
}

static void every_type(void **state)
{
    (void)state;
    static const char *const files[][2] = {
        {"qwen3moe", "Q8_0"},        {"qwen3moe", "MXFP4_MOE"},     {"qwen3moe", "Q2_K"},
        {"qwen3moe", "Q3_K_M"},      {"qwen3moe", "Q4_K_M"},        {"qwen3moe", "Q5_K_M"},
        {"qwen3moe", "Q6_K"},        {"qwen3moe", "IQ4_XS"},        {"qwen3moe-narrow", "Q4_K_M"},
        {"qwen3moe-narrow", "Q4_0"}, {"qwen3moe-narrow", "Q4_1"},   {"qwen3moe-narrow", "Q5_0"},
        {"qwen3moe-narrow", "Q5_1"}, {"qwen3moe-narrow", "IQ4_NL"}, {"olmoe", "mosaic"},
    };
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        char file[600], config[600], expected[600];
        snprintf(file, sizeof file, GGUF "quant/%s-%s.gguf", files[f][0], files[f][1]);
        snprintf(config, sizeof config, GGUF "quant/%s.config.json", files[f][0]);
        snprintf(expected, sizeof expected, GGUF "quant/%s-%s.safetensors", files[f][0], files[f][1]);
        run(file, config, expected, false);
    }
}

/* Weights take no more memory than their file; gates of four experts are packed as those of 32. */
static void memory_is_the_files(void **state)
{
    (void)state;
    static const char *const files[] = {
        "qwen3moe-Q8_0", "qwen3moe-MXFP4_MOE",     "qwen3moe-Q4_K_M",      "qwen3moe-Q5_K_M",
        "qwen3moe-Q6_K", "qwen3moe-narrow-Q4_K_M", "qwen3moe-narrow-Q4_0", "qwen3moe-narrow-Q5_1"};
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        char path[600];
        cot_model_files all;
        cot_engine_options options;
        cot_engine_sizes sizes;
        cot_model_info model;
        snprintf(path, sizeof path, GGUF "quant/%s.gguf", files[f]);
        cot_engine_options_init(&options);
        assert_int_equal(cot_model_describe_files(&all, path, NULL), COT_OK);
        assert_int_equal(cot_model_describe(&model, path, NULL), COT_OK);
        assert_int_equal(cot_engine_measure(&sizes, path, &options, 1, NULL), COT_OK);
        const size_t beyond =
                         (size_t)(model.moe_layers * (32 - model.experts) * model.hidden) * sizeof(float),
                     bytes = sizes.weight_bytes - beyond;
        cot_model_info_clear(&model);
        printf("%-24s %.4f of its file\n", files[f], (double)bytes / (double)all.bytes);
        assert_true(1000 * bytes <= 1030 * all.bytes);
    }
}

/* The two with NVFP4 are refused by its name. */
static void types_that_are_not_read(void **state)
{
    (void)state;
    static const char *const files[] = {"qwen3moe-narrow-NVFP4", "olmoe-narrow-mosaic32"};
    for (size_t f = 0; f < 2; f++) {
        char file[600];
        cot_engine *engine;
        cot_engine_options options;
        cot_error error;
        snprintf(file, sizeof file, GGUF "quant/%s.gguf", files[f]);
        cot_engine_options_init(&options);
        assert_refused(cot_engine_open(&engine, file, &options, NULL, &error), &error,
                       "is stored as NVFP4, which is not supported");
    }
}

int main(void)
{
    if (golden_absent("golden answers of GGUF files")) return SKIPPED;
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_architecture), cmocka_unit_test(every_type),
                                       cmocka_unit_test(memory_is_the_files),
                                       cmocka_unit_test(types_that_are_not_read)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
