/* NVFP4 as compressed-tensors and ModelOpt have it: the numbers that others made of GGUF's blocks of it, packed anew in each layout, to the
 * bit; matrices whose last block is a part of one, each with a scale of all its own; what is not read, and what is refused. */
#include "harness/cmocka.h"
#include "harness/checkpoint/formats.h"
#include "harness/checkpoint/layouts.h"
#include "harness/checkpoint/weights.h"
#include "harness/engine/golden.h"
#include "harness/seed.h"

#include "base/gguf.h"
#include "base/rng.h"
#include "kernels/blocks.h"
#include "kernels/isa.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *config;
    bool modelopt;
} ways[] = {
    {"\"quant_method\": \"compressed-tensors\", \"format\": \"nvfp4-pack-quantized\"", false},
    {"\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\", \"group_size\": 16", true},
};
enum { WAYS = sizeof ways / sizeof *ways };

static layout layout_of(int way)
{
    return (layout){.config = ways[way].config,
                    .way = NVFP4,
                    .bits = 4,
                    .group = 16,
                    .scale = COT_F8_E4M3,
                    .modelopt = ways[way].modelopt};
}

static cot_tensor *tensor_beside(const model *m, const char *module, const char *end)
{
    char name[128];
    snprintf(name, sizeof name, "%s.%s", module, end);
    return tensor_of(m->f, name);
}

static uint64_t draw(uint64_t *seed)
{
    return *seed = cot_mix64(*seed + 1);
}

static uint8_t *bytes_of(const cot_tensor *t)
{
    return (uint8_t *)(uintptr_t)t->data;
}

/* Whether a weight is, read and multiplied as it is stored, what is expected. */
static void expect_numbers(const cot_checkpoint *checkpoint, cot_weight weight, const float *expected)
{
    int64_t rows, columns;
    float *read = whole(checkpoint, weight, 0, 0, &rows, &columns);
    static float one[LAYOUT_H * LAYOUT_H], product[LAYOUT_H * LAYOUT_VOCAB];
    const cot_format format = cot_checkpoint_stored(checkpoint, weight, 0, 0);
    assert_string_equal(cot_format_row_of(format)->name, "nvfp4");
    uint8_t *b = dirty(cot_packed_bytes(format, columns, rows));
    const cot_weight_piece piece = {weight, 0, 0, 0, rows, 0, columns};
    const cot_packed packed = {b, format, false, columns, rows};
    assert_int_equal(cot_checkpoint_pack(checkpoint, &piece, &(cot_packed_part){b, format, rows, 0}, NULL),
                     COT_OK);
    for (int64_t c = 0; c < columns; c++) one[c * columns + c] = 1;
    cot_gemm g = cot_packed_gemm(&packed, COT_F32, columns, 0, rows);
    g.a = one;
    g.a_stride = columns;
    g.c = product;
    g.c_stride = rows;
    cot_isa_ref.kernels.gemm(&g, 0, columns, 0, cot_panels(rows));
    for (int64_t c = 0; c < columns; c++)
        for (int64_t r = 0; r < rows; r++) {
            const float wanted = expected[r * columns + c];
            if (read[r * columns + c] != wanted || product[c * rows + r] != wanted)
                fail_msg("row %d column %d: %.9g, packed %.9g, expected %.9g", (int)r, (int)c,
                         (double)read[r * columns + c], (double)product[c * rows + r], (double)wanted);
        }
    free(b), free(read);
}

/* The head [40][128] has as many elements as there are golden ones. */
static void golden_values(void **state)
{
    (void)state;
    enum { N = LAYOUT_VOCAB * LAYOUT_H };
    static float golden[N], scaled[N];
    cot_gguf file;
    if (!folder_exists(COT_SHARED "/golden/gguf")) {
        printf("SKIPPED: there is no '%s'\n", COT_SHARED "/golden/gguf");
        skip();
    }
    FILE *values = fopen(COT_SHARED "/golden/gguf/blocks/NVFP4.f32", "rb");
    assert_non_null(values);
    assert_int_equal(fread(golden, sizeof *golden, N, values), N);
    fclose(values);
    assert_int_equal(cot_gguf_open(&file, COT_SHARED "/golden/gguf/blocks/NVFP4.gguf", NULL), COT_OK);
    assert_int_equal(file.tensors[0].bytes, N / 64 * 36);
    uint64_t seed = test_seed();
    for (int way = 0; way < WAYS; way++) {
        const layout l = layout_of(way);
        model m = layout_make(&l, &seed);
        uint8_t *codes = bytes_of(tensor_beside(&m, "lm_head", l.modelopt ? "weight" : "weight_packed")),
                *scales = bytes_of(tensor_beside(&m, "lm_head", "weight_scale"));
        cot_tensor *of_all =
            tensor_beside(&m, "lm_head", l.modelopt ? "weight_scale_2" : "weight_global_scale");
        const uint8_t *block = file.tensors[0].data;
        for (int i = 0; i < N; i++) { // GGUF has no sign of scales, and zero for what is NaN
            const uint8_t *of = block + i / 64 * 36, scale = of[i % 64 / 16] & 0x7f;
            const int code = of[4 + i % 64 / 16 * 8 + i % 8] >> i % 16 / 8 * 4 & 15;
            codes[i / 2] = (uint8_t)(i % 2 ? (codes[i / 2] & 15) | code << 4 : code);
            scales[i / 16] = scale == 0x7f ? 0 : scale;
        }
        for (int s = 0; s < 2; s++) {
            const float by = s ? 0.0123f : 1, stored = l.modelopt ? by : 1 / by,
                        multiplier = l.modelopt ? by : 1 / stored;
            for (int i = 0; i < N; i++) scaled[i] = golden[i] * multiplier;
            layout_put_scale(of_all, 0, stored);
            write_all(m.f);
            cot_checkpoint *checkpoint = opened(m.f->path);
            expect_numbers(checkpoint, COT_WEIGHT_OUTPUT, scaled);
            cot_checkpoint_close(checkpoint);
        }
        layout_discard(&m);
    }
    cot_gguf_close(&file);
}

/* Any number of groups in blocks of four. */
static void parts_of_blocks(void **state)
{
    (void)state;
    enum { ROUNDS = 40 };
    uint64_t seed = test_seed();
    for (int i = 0; i < ROUNDS; i++) {
        const int64_t n = 16 * (1 + (int64_t)(draw(&seed) % 20));
        uint8_t codes[160], scales[20], blocks[5 * 36];
        float found[320];
        for (int64_t c = 0; c < n / 2; c++) codes[c] = (uint8_t)draw(&seed);
        for (int64_t g = 0; g < n / 16; g++) scales[g] = (uint8_t)(draw(&seed) % 0x7f);
        memset(blocks, 0xa5, sizeof blocks);
        cot_blocks_gather(blocks, codes, scales, n);
        cot_blocks_decode(found, blocks, COT_BLOCKS_NVFP4, (n + 63) / 64 * 64);
        for (int64_t c = 0; c < (n + 63) / 64 * 64; c++) {
            static const float sizes[] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
            float wanted = 0;
            if (c < n) {
                const int code = codes[c / 2] >> c % 2 * 4 & 15, e = scales[c / 16] >> 3;
                const float scale = ldexpf((float)((e ? 8 : 0) + (scales[c / 16] & 7)), (e ? e : 1) - 10);
                wanted = (code & 8 ? -1 : 1) * sizes[code & 7] * scale;
            }
            assert_true(found[c] == wanted);
        }
    }
}

/* What a network's and an attention's matrices take: of shapes as released models have them. */
static void bits_in_memory(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{768, 2048}, {2048, 768}, {512, 7168}, {7168, 512}, {151936, 2048}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const double bytes = (double)cot_packed_bytes(COT_FORMAT_NVFP4, shapes[i][1], shapes[i][0]);
        assert_true(bytes * 8 / (double)(shapes[i][0] * shapes[i][1]) <= 4.6);
    }
}

/* ---- what is told, and what is refused ---- */

#define EXPERT "model.layers.0.mlp.experts.1.down_proj"

static void refused(const model *m, const char *words)
{
    cot_checkpoint *checkpoint = NULL;
    char *notes = NULL;
    cot_error error = {0};
    write_all(m->f);
    cot_status status = cot_checkpoint_open(&checkpoint, m->f->path, &notes, &error);
    if (status == COT_OK) {
        static float out[LAYOUT_H * LAYOUT_I];
        const cot_weight_piece all = {COT_WEIGHT_EXPERT_DOWN, 0, 1, 0, LAYOUT_H, 0, LAYOUT_I};
        assert_int_equal(cot_checkpoint_read(checkpoint, &all, out, &error), COT_INVALID_ARGUMENT);
        if (!strstr(error.message, words)) fail_msg("read: '%s', not '%s'", error.message, words);
        uint8_t *b = dirty(cot_packed_bytes(COT_FORMAT_NVFP4, LAYOUT_I, LAYOUT_H));
        const cot_packed_part to = {b, COT_FORMAT_NVFP4, LAYOUT_H, 0};
        assert_int_equal(cot_checkpoint_pack(checkpoint, &all, &to, &error), COT_INVALID_ARGUMENT);
        free(b);
        cot_checkpoint_close(checkpoint);
    }
    free(notes);
    if (!strstr(error.message, words)) fail_msg("'%s', not '%s'", error.message, words);
}

static void wrong_tensors(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (int way = 0; way < WAYS; way++) {
        const layout l = layout_of(way);
        model m = layout_make(&l, &seed);
        cot_tensor *scales = tensor_beside(&m, EXPERT, "weight_scale"),
                   *of_all = tensor_beside(&m, EXPERT, l.modelopt ? "weight_scale_2" : "weight_global_scale"),
                   *codes = tensor_beside(&m, EXPERT, l.modelopt ? "weight" : "weight_packed");
        const float kept = *(const float *)of_all->data;
        static const float bad[] = {0, -1, NAN, INFINITY, 3e38f, 1e-39f};
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            if (l.modelopt && bad[i] == 1e-39f) continue; // a small number, whose inverse is none
            if (!l.modelopt && bad[i] == 3e38f) continue;
            layout_put_scale(of_all, 0, bad[i]);
            refused(&m, "makes no numbers of 'model.layers.0.mlp.experts.1.down_proj.weight");
        }
        layout_put_scale(of_all, 0, kept);
        uint8_t *last = bytes_of(scales) + LAYOUT_H * LAYOUT_I / 16 - 1;
        *last = 0xff;
        refused(&m, "holds a NaN or an infinity in row 127");
        *last = 0x38;
        scales->dtype = COT_F8_E8M0;
        refused(&m, "weight_scale' is stored as F8_E8M0, expected F8_E4M3");
        scales->dtype = COT_F8_E4M3;
        scales->shape[1] /= 2;
        scales->bytes /= 2;
        refused(&m, "weight_scale' has shape [128][2], expected [128][4]");
        scales->shape[1] *= 2;
        scales->bytes *= 2;
        codes->shape[1] /= 2;
        codes->bytes /= 2;
        refused(&m, "has shape [128][16], expected [128][32]");
        codes->shape[1] *= 2;
        codes->bytes *= 2;
        const char *name = scales->name;
        scales->name = "elsewhere";
        refused(&m, "down_proj.weight_scale' is missing");
        scales->name = name;
        of_all->dtype = COT_I32;
        refused(&m, "is stored as I32, expected F32");
        of_all->dtype = COT_F32;
        name = of_all->name;
        of_all->name = "elsewhere";
        if (!l.modelopt) refused(&m, "down_proj.weight_global_scale' is missing");
        if (l.modelopt) refused(&m, "down_proj.weight' has shape [128][32], expected [128][64]");
        of_all->name = name;
        add(m.f, EXPERT ".pre_quant_scale", COT_BF16, LAYOUT_I, 0, 0, 0);
        refused(&m, "is multiplied by '" EXPERT ".pre_quant_scale', which is not supported");
        layout_discard(&m);
    }
}

/* Scales of activations and of the cache are told of, and nothing else is left over. */
static void scales_of_activations(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (int way = 0; way < WAYS; way++) {
        const layout l = layout_of(way);
        model m = layout_make(&l, &seed);
        add(m.f, "model.layers.0.self_attn.k_proj.k_scale", COT_F32, 1, 0, 0, 0);
        write_all(m.f);
        cot_checkpoint *checkpoint = NULL;
        char *notes = NULL;
        assert_int_equal(cot_checkpoint_open(&checkpoint, m.f->path, &notes, NULL), COT_OK);
        assert_string_equal(notes, "12 tensors are not used: 12 of activations' scales");
        free(notes);
        cot_checkpoint_close(checkpoint);
        layout_discard(&m);
    }
}

/* hf_quant_config.json beside a config.json that says nothing. */
static void told_beside(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words; // words NULL: read
    } cases[] = {
        {"{'producer': {'name': 'modelopt', 'version': '0.29.0'}, 'quantization': {'quant_algo': 'NVFP4', "
         "'kv_cache_quant_algo': 'FP8', 'group_size': 16, 'exclude_modules': ['model.layers.*.mlp.gate', "
         "'model.layers.0.mlp.gate', 'model.embed*']}}",
         NULL},
        {"{'quantization': {'quant_algo': 'MIXED_PRECISION', 'quantized_layers': {'lm_head': {'quant_algo': "
         "'NVFP4'}}}}",
         NULL},
        {"{'quantization': {'quant_algo': 'w4a16_nvfp4', 'kv_cache_quant_algo': null}}", NULL},
        {"{'quantization': {'quant_algo': 'NVFP4', 'exclude_modules': ['lm_*']}}",
         "tensor 'lm_head.weight' is quantised, hf_quant_config.json says 'exclude_modules'"},
        {"{'quantization': {'quant_algo': 'NVFP4', 'exclude_modules': ['*.experts.?.up_proj']}}",
         "experts.0.up_proj.weight' is quantised, hf_quant_config.json says 'exclude_modules'"},
        {"{'quantization': {'quant_algo': 'FP8'}}",
         "tensor 'lm_head.weight' has weights of 4 bits, hf_quant_config.json says 8"},
        {"{'quantization': {'quant_algo': 'NVFP4', 'group_size': 32}}", "NVFP4 in groups of 32"},
        {"{'quantization': {'quant_algo': 'NVFP4_AWQ'}}",
         "hf_quant_config.json': modelopt quant_algo 'NVFP4_AWQ' is not supported"},
        {"{'quantization': {'quant_algo': 7}}", "'quant_algo'"},
        {"{'quantization': {'group_size': 16}}", "modelopt without 'quant_algo'"},
        {"{'quantization': 7}", "'quantization'"},
        {"{'quantization': {'quant_algo': 'NVFP4', 'exclude_modules': 'lm_head'}}", "'exclude_modules'"},
        {"{'quantization': {'quant_algo': 'NVFP4', 'exclude_modules': [7]}}", "'exclude_modules'"},
        {"{}", "modelopt without 'quant_algo'"},
        {"[", "not valid JSON"},
    };
    layout l = layout_of(1);
    l.config = ""; // an object without members is none
    uint64_t seed = test_seed();
    model m = layout_make(&l, &seed);
    char config[900], text[400];
    snprintf(config, sizeof config, "%s/config.json", m.f->path);
    FILE *file = fopen(config, "r");
    assert_non_null(file);
    config[fread(config, 1, sizeof config - 1, file)] = 0;
    fclose(file);
    char *at = strstr(config, ", \"quantization_config\"");
    assert_non_null(at);
    strcpy(at, "}");
    write_text(m.f, "config.json", config);
    cot_checkpoint_close(opened(m.f->path)); // tensors tell enough
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cot_checkpoint *checkpoint = NULL;
        char *notes = NULL;
        cot_error error = {0};
        snprintf(text, sizeof text, "%s", cases[i].text);
        for (char *c = text; *c; c++) *c = *c == '\'' ? '"' : *c;
        write_text(m.f, "hf_quant_config.json", text);
        const cot_status status = cot_checkpoint_open(&checkpoint, m.f->path, &notes, &error);
        if (!cases[i].words && status != COT_OK) fail_msg("%s: %s", text, error.message);
        if (cases[i].words && (status == COT_OK || !strstr(error.message, cases[i].words)))
            fail_msg("%s: '%s'", text, error.message);
        if (status == COT_OK) {
            assert_string_equal(cot_format_row_of(experts_format(checkpoint))->name, "nvfp4");
            cot_checkpoint_close(checkpoint);
        }
        free(notes);
    }
    layout_discard(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_values),         cmocka_unit_test(parts_of_blocks),
        cmocka_unit_test(bits_in_memory),        cmocka_unit_test(wrong_tensors),
        cmocka_unit_test(scales_of_activations), cmocka_unit_test(told_beside)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
