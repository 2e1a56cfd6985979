/* The same models in GGUF: what another's code computed of the hub's folder, or of the numbers that quantised blocks stand for, comes
 * out of the file, at several numbers of ranks, threads and processes, prefill and token by token. */
#include "harness/checkpoint/weights.h"
#include "harness/cmocka.h"
#include "harness/engine/answers.h"
#include "harness/engine/golden.h"
#include "harness/refused.h"
#include "harness/scratch.h"

#include "coterie/model.h"

#include <stdio.h>
#include <stdlib.h>
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

static const char *const architectures[][2] = {
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

static const char *const types[][2] = {
    {"qwen3moe", "Q8_0"},        {"qwen3moe", "MXFP4_MOE"},     {"qwen3moe", "Q2_K"},
    {"qwen3moe", "Q3_K_M"},      {"qwen3moe", "Q4_K_M"},        {"qwen3moe", "Q5_K_M"},
    {"qwen3moe", "Q6_K"},        {"qwen3moe", "IQ4_XS"},        {"qwen3moe-narrow", "Q4_K_M"},
    {"qwen3moe-narrow", "Q4_0"}, {"qwen3moe-narrow", "Q4_1"},   {"qwen3moe-narrow", "Q5_0"},
    {"qwen3moe-narrow", "Q5_1"}, {"qwen3moe-narrow", "IQ4_NL"}, {"olmoe", "mosaic"},
};

/* A file, the hub's config.json of its shape, and its answers. */
struct paths {
    char file[600], config[600], expected[600];
};

static struct paths of_architecture(size_t f)
{
    struct paths p;
    snprintf(p.file, sizeof p.file, GGUF "%s.gguf", architectures[f][0]);
    snprintf(p.config, sizeof p.config, COT_SHARED "/golden/%s/config.json", architectures[f][1]);
    snprintf(p.expected, sizeof p.expected, COT_SHARED "/golden/%s/expected.safetensors",
             architectures[f][1]);
    return p;
}

static struct paths of_type(size_t f)
{
    struct paths p;
    snprintf(p.file, sizeof p.file, GGUF "quant/%s-%s.gguf", types[f][0], types[f][1]);
    snprintf(p.config, sizeof p.config, GGUF "quant/%s.config.json", types[f][0]);
    snprintf(p.expected, sizeof p.expected, GGUF "quant/%s-%s.safetensors", types[f][0], types[f][1]);
    return p;
}

static void every_architecture(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof architectures / sizeof *architectures; f++) {
        const struct paths p = of_architecture(f);
        run(p.file, p.config, p.expected, !strncmp(architectures[f][0], "container", 9));
    }
}

static void every_type(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof types / sizeof *types; f++) {
        const struct paths p = of_type(f);
        run(p.file, p.config, p.expected, false);
    }
}

static void expect_folder(scratch_pad *pad, const struct paths *p)
{
    char folder[512];
    char *notes;
    cot_error error;
    cot_model_convert_options options;
    snprintf(folder, sizeof folder, "%s/folder", pad->path);
    cot_model_convert_options_init(&options);
    if (cot_model_convert(p->file, folder, &options, &notes, &error) != COT_OK)
        fail_msg("%s: %s", p->file, error.message);
    free(notes);
    expect_same_weights(folder, p->file);
    struct answers a;
    if (!answers_open_of(&a, folder, p->config, p->expected)) fail_msg("'%s' is missing", p->expected);
    answers_compare(&a, &(struct setting){.ranks = 2, .attention = "dp", .kv_tokens = 256});
    answers_compare(&a, &(struct setting){.ranks = 1, .attention = "tp", .kv_tokens = 256});
    answers_close(&a);
    remove_tree(folder);
}

/* A folder that `convert` makes of a file has its numbers, to the bit, and gives its answers. */
static void folders_of_files(void **state)
{
    for (size_t f = 0; f < sizeof architectures / sizeof *architectures; f++) {
        const struct paths p = of_architecture(f);
        if (strcmp(architectures[f][0], "arch/mixtral-llama3") != 0) expect_folder(*state, &p);
    }
    for (size_t f = 0; f < sizeof types / sizeof *types; f++) {
        const struct paths p = of_type(f);
        expect_folder(*state, &p);
    }
}

static void expect_no_folder(scratch_pad *pad, const char *file, const char *weights, const char *says)
{
    cot_error error;
    cot_model_convert_options options;
    const char *folder = in_scratch(pad, "refused");
    cot_model_convert_options_init(&options);
    options.weights = weights;
    assert_refused(cot_model_convert(file, folder, &options, NULL, &error), &error, says);
    assert_false(folder_exists(folder));
}

static void what_no_folder_holds(void **state)
{
    expect_no_folder(*state, GGUF "arch/mixtral-llama3.gguf", NULL, "rope_freqs.weight");
    expect_no_folder(*state, GGUF "quant/qwen3moe-narrow-NVFP4.gguf", NULL, "NVFP4");
    expect_no_folder(*state, GGUF "arch/gpt-oss.gguf", "int4", "has no layout of experts in int4");
    expect_no_folder(*state, GGUF "quant/qwen3moe-Q8_0.gguf", "int8", "in int8 already");
    expect_no_folder(*state, GGUF "arch/olmoe.gguf", "int5", "no checkpoint is written in 'int5'");
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_architecture),  cmocka_unit_test(every_type),
        cmocka_unit_test(memory_is_the_files), cmocka_unit_test(types_that_are_not_read),
        cmocka_unit_test(folders_of_files),    cmocka_unit_test(what_no_folder_holds)};
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
