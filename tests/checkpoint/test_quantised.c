/* Weights in every stored form against formulas of this file's own, and NaNs found in each. */
#include "harness/cmocka.h"
#include "harness/checkpoint/formats.h"
#include "harness/checkpoint/folder.h"
#include "harness/checkpoint/weights.h"
#include "harness/seed.h"

#include "base/rng.h"
#include "model/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double e4m3(uint8_t x)
{
    double magnitude = x >> 3 & 15 ? ldexp(8 + (x & 7), (x >> 3 & 15) - 10) : ldexp(x & 7, -9);
    return x & 0x80 ? -magnitude : magnitude;
}

/* A Qwen3 model of one layer whose matrices but the ends and the gate are FP8 in blocks of rows x columns. */
static folder *tiny_fp8(int64_t block_rows, int64_t block_columns, cot_dtype scale_type, bool say_so,
                        const char *end)
{
    folder *f = folder_new(test_seed());
    char config[800], blocks[160] = "";
    if (say_so)
        snprintf(blocks, sizeof blocks, ", \"weight_block_size\": [%d, %d]", (int)block_rows,
                 (int)block_columns);
    snprintf(config, sizeof config,
             "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"vocab_size\": 7, \"hidden_size\": 100, "
             "\"num_hidden_layers\": 1,"
             " \"num_attention_heads\": 5, \"num_key_value_heads\": 1, \"head_dim\": 22, \"num_experts\": 2,"
             " \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 36,"
             " \"quantization_config\": {\"quant_method\": \"fp8\", \"activation_scheme\": \"%s\"%s}}",
             !strcmp(end, "_scale") ? "static" : "dynamic", blocks);
    write_text(f, "config.json", config);
    add_ends(f, COT_BF16, 7, 100);
    add_attention(f, 0, COT_F8_E4M3, 100, 110, 22);
    add(f, "model.layers.0.self_attn.q_norm.weight", COT_BF16, 22, 0, 0, 0);
    add(f, "model.layers.0.self_attn.k_norm.weight", COT_BF16, 22, 0, 0, 0);
    add(f, "model.layers.0.mlp.gate.weight", COT_BF16, 2, 100, 0, 0);
    for (int e = 0; e < 2; e++) {
        static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
        for (int w = 0; w < 3; w++) {
            char name[96];
            snprintf(name, sizeof name, "model.layers.0.mlp.experts.%d.%s.weight", e, names[w]);
            add(f, name, COT_F8_E4M3, w == 2 ? 100 : 36, w == 2 ? 36 : 100, 0, 0);
        }
    }
    for (size_t t = 0, count = f->count; t < count; t++) {
        cot_tensor *w = &f->tensors[t];
        char name[128];
        if (w->dtype != COT_F8_E4M3) continue;
        if (w->dims == 1) { // norms are not quantised
            w->dtype = COT_BF16;
            w->bytes *= 2;
            free((void *)(uintptr_t)w->data);
            w->data = calloc(1, w->bytes);
            continue;
        }
        snprintf(name, sizeof name, "%s%s", w->name, end);
        add(f, name, scale_type, (w->shape[0] + block_rows - 1) / block_rows,
            (w->shape[1] + block_columns - 1) / block_columns, 0, 0);
    }
    return f;
}

static float scale_value(const cot_tensor *scales, int64_t at)
{
    uint16_t half;
    float wide;
    if (scales->dtype == COT_F8_E8M0) return ldexpf(1, ((const uint8_t *)scales->data)[at] - 127);
    memcpy(&half, (const uint8_t *)scales->data + 2 * at, 2);
    if (scales->dtype == COT_BF16) return cot_bf16_to_f32(half);
    memcpy(&wide, (const uint8_t *)scales->data + 4 * at, 4);
    return wide;
}

static void fp8(void **state)
{
    (void)state;
    static const struct {
        int64_t rows, columns;
        cot_dtype type;
        bool say_so;
        const char *end;
    } cases[] = {{128, 128, COT_F32, true, "_scale_inv"},   {16, 32, COT_BF16, true, "_scale_inv"},
                 {16, 24, COT_F8_E8M0, true, "_scale_inv"}, {512, 256, COT_F32, false, "_scale_inv"},
                 {512, 256, COT_F32, false, "_scale"},      {1, 256, COT_BF16, false, "_scale"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        folder *f = tiny_fp8(cases[i].rows, cases[i].columns, cases[i].type, cases[i].say_so, cases[i].end);
        write_all(f);
        cot_checkpoint *checkpoint = opened(f->path);
        const cot_tensor *w = tensor_of(f, "model.layers.0.mlp.experts.1.up_proj.weight");
        char name[96];
        snprintf(name, sizeof name, "%s%s", w->name, cases[i].end);
        const cot_tensor *s = tensor_of(f, name);
        int64_t rows, columns;
        float *up = whole(checkpoint, COT_WEIGHT_EXPERT_UP, 0, 1, &rows, &columns);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < columns; c++) {
                float scale = scale_value(s, r / cases[i].rows * s->shape[1] + c / cases[i].columns);
                float expected = (float)e4m3(((const uint8_t *)w->data)[r * columns + c]) * scale;
                assert_memory_equal(&up[r * columns + c], &expected, 4);
            }
        free(up);
        check_all_pieces(checkpoint);
        cot_checkpoint_close(checkpoint);
        folder_delete(f);
    }
}

static void refused(const folder *f, cot_status expected, const char *words)
{
    cot_checkpoint *checkpoint;
    char *notes;
    cot_error error = {0};
    cot_status status = cot_checkpoint_open(&checkpoint, f->path, &notes, &error);
    if (status != expected || !strstr(error.message, words))
        fail_msg("status %d, '%s', expected %d, '%s'", (int)status, error.message, (int)expected, words);
}

static void fp8_refusals(void **state)
{
    (void)state;
    folder *f = tiny_fp8(16, 32, COT_F32, false, "_scale_inv"); // blocks that only the scales' shapes tell
    write_all(f);
    refused(f, COT_UNSUPPORTED, "neither config.json's weight_block_size nor its scales tell the blocks");
    folder_delete(f);
    f = tiny_fp8(16, 32, COT_F32, true, "_scale_inv");
    cot_tensor *s = tensor_of(f, "model.layers.0.self_attn.k_proj.weight_scale_inv");
    s->shape[0] = 4;
    s->shape[1] = 2;
    write_all(f);
    refused(f, COT_MALFORMED,
            "tensor 'model.layers.0.self_attn.k_proj.weight_scale_inv' has shape [4][2], expected [2][4]");
    s->shape[0] = 2;
    s->shape[1] = 4;
    s->dtype = COT_U32;
    write_all(f);
    refused(f, COT_UNSUPPORTED, "is stored as U32");
    folder_delete(f);
}

enum { OSS_E = 3, OSS_H = 64, OSS_I = 32 };

static folder *tiny_oss(bool mxfp4, cot_dtype type)
{
    folder *f = folder_new(test_seed());
    write_text(
        f, "config.json",
        "{\"architectures\": [\"GptOssForCausalLM\"], \"vocab_size\": 7, \"hidden_size\": 64, "
        "\"num_hidden_layers\": 1,"
        " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 10, \"num_local_experts\": 3,"
        " \"num_experts_per_tok\": 2, \"intermediate_size\": 32, \"attention_bias\": false, "
        "\"sliding_window\": 4}");
    add_ends(f, COT_BF16, 7, OSS_H);
    add_attention(f, 0, COT_BF16, OSS_H, 40, 20);
    add(f, "model.layers.0.self_attn.sinks", COT_BF16, 4, 0, 0, 0);
    add(f, "model.layers.0.mlp.router.weight", COT_BF16, OSS_E, OSS_H, 0, 0);
    add(f, "model.layers.0.mlp.router.bias", COT_BF16, OSS_E, 0, 0, 0);
    add(f, "model.layers.0.mlp.experts.gate_up_proj_bias", type, OSS_E, 2 * OSS_I, 0, 0);
    add(f, "model.layers.0.mlp.experts.down_proj_bias", type, OSS_E, OSS_H, 0, 0);
    if (mxfp4) {
        add(f, "model.layers.0.mlp.experts.gate_up_proj_blocks", COT_U8, OSS_E, 2 * OSS_I, OSS_H / 32, 16);
        add(f, "model.layers.0.mlp.experts.down_proj_blocks", COT_U8, OSS_E, OSS_H, OSS_I / 32, 16);
        cot_tensor *s = add(f, "model.layers.0.mlp.experts.gate_up_proj_scales", COT_F8_E8M0, OSS_E,
                            2 * OSS_I, OSS_H / 32, 0);
        s->dtype = COT_U8; // as the hub's files say
        add(f, "model.layers.0.mlp.experts.down_proj_scales", COT_F8_E8M0, OSS_E, OSS_H, OSS_I / 32, 0);
    } else {
        add(f, "model.layers.0.mlp.experts.gate_up_proj", type, OSS_E, OSS_H, 2 * OSS_I, 0);
        add(f, "model.layers.0.mlp.experts.down_proj", type, OSS_E, OSS_I, OSS_H, 0);
    }
    return f;
}

static void mxfp4_refusals(void **state)
{
    (void)state;
    folder *f = tiny_oss(true, COT_BF16);
    const char *const names[] = {"model.layers.0.mlp.experts.gate_up_proj_blocks",
                                 "model.layers.0.mlp.experts.down_proj_scales"};
    for (int i = 0; i < 2; i++) {
        cot_tensor *t = tensor_of(f, names[i]);
        const cot_dtype kept = t->dtype;
        char words[128];
        t->dtype = COT_F8_E4M3; // as wide as what belongs there
        write_all(f);
        snprintf(words, sizeof words, "'%s' is stored as F8_E4M3", names[i]);
        refused(f, COT_UNSUPPORTED, words);
        t->dtype = kept;
        const int64_t first = t->shape[0];
        t->shape[0] = t->shape[1], t->shape[1] = first;
        write_all(f);
        snprintf(words, sizeof words, "'%s' has shape [%d][3]", names[i], (int)t->shape[0]);
        refused(f, COT_MALFORMED, words);
        t->shape[1] = t->shape[0], t->shape[0] = first;
    }
    folder_delete(f);
}

static float plain_value(const cot_tensor *t, int64_t at)
{
    uint16_t half;
    float wide;
    memcpy(&half, (const uint8_t *)t->data + 2 * at, 2);
    if (t->dtype == COT_BF16) return cot_bf16_to_f32(half);
    if (t->dtype == COT_F16) return cot_f16_to_f32(half);
    memcpy(&wide, (const uint8_t *)t->data + 4 * at, 4);
    return wide;
}

/* Row `out`, column `in` of an expert's stored matrix of `outs` x `ins`. */
static float stacked_value(folder *f, const char *name, int64_t e, int64_t out, int64_t in, int64_t outs,
                           int64_t ins)
{
    static const double table[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    char path[96];
    if (f->count > 0 && !strstr(f->tensors[f->count - 1].name, "_scales")) { // input-major
        snprintf(path, sizeof path, "model.layers.0.mlp.experts.%s", name);
        return plain_value(tensor_of(f, path), (e * ins + in) * outs + out);
    }
    snprintf(path, sizeof path, "model.layers.0.mlp.experts.%s_blocks", name);
    int64_t at = (e * outs + out) * ins + in;
    int nibble = ((const uint8_t *)tensor_of(f, path)->data)[at / 2] >> (at % 2 ? 4 : 0) & 15;
    snprintf(path, sizeof path, "model.layers.0.mlp.experts.%s_scales", name);
    double scale = ldexp(1, ((const uint8_t *)tensor_of(f, path)->data)[at / 32] - 127);
    return (float)((nibble & 8 ? -1 : 1) * table[nibble & 7] * scale);
}

static void stacked(void **state)
{
    (void)state;
    static const cot_dtype types[] = {COT_BF16, COT_BF16, COT_F32, COT_F16};
    for (int t = 0; t < 4; t++) {
        folder *f = tiny_oss(t == 0, types[t]);
        write_all(f);
        cot_checkpoint *checkpoint = opened(f->path);
        for (int64_t e = 0; e < OSS_E; e++) {
            for (int w = 0; w < 3; w++) {
                int64_t rows, columns;
                float *x = whole(checkpoint, (cot_weight)(COT_WEIGHT_EXPERT_GATE + w), 0, e, &rows, &columns);
                assert_int_equal(rows, w == 2 ? OSS_H : OSS_I);
                assert_int_equal(columns, w == 2 ? OSS_I : OSS_H);
                for (int64_t r = 0; r < rows; r++)
                    for (int64_t c = 0; c < columns; c++) {
                        float expected =
                            w == 2 ? stacked_value(f, "down_proj", e, r, c, OSS_H, OSS_I)
                                   : stacked_value(f, "gate_up_proj", e, 2 * r + w, c, 2 * OSS_I, OSS_H);
                        assert_true(x[r * columns + c] == expected);
                    }
                free(x);
                x = whole(checkpoint, (cot_weight)(COT_WEIGHT_EXPERT_GATE_BIAS + w), 0, e, &rows, &columns);
                assert_int_equal(rows, 1);
                const cot_tensor *bias =
                    tensor_of(f, w == 2 ? "model.layers.0.mlp.experts.down_proj_bias"
                                        : "model.layers.0.mlp.experts.gate_up_proj_bias");
                for (int64_t c = 0; c < columns; c++)
                    assert_true(x[c] ==
                                plain_value(bias, w == 2 ? e * OSS_H + c : e * 2 * OSS_I + 2 * c + w));
                free(x);
            }
        }
        check_all_pieces(checkpoint);
        cot_checkpoint_close(checkpoint);
        if (t == 0) {
            cot_tensor *blocks = tensor_of(f, "model.layers.0.mlp.experts.down_proj_blocks");
            blocks->shape[1] = OSS_I;
            blocks->shape[2] = 2;
            write_all(f);
            refused(f, COT_MALFORMED, "down_proj_blocks' has shape [3][32][2][16], expected [3][64][1][16]");
            const char *name = blocks->name;
            blocks->name = "renamed";
            write_all(f);
            refused(f, COT_MALFORMED,
                    "tensor 'model.layers.0.mlp.experts.down_proj_blocks' is missing, and 2 more");
            blocks->name = name;
        }
        folder_delete(f);
    }
}

/* Packed as it is stored, in pieces: the very codes and scales of the file, in the places that format.h tells. */
static void as_stored(void **state)
{
    (void)state;
    folder *f = tiny_oss(true, COT_BF16);
    write_all(f);
    cot_checkpoint *checkpoint = opened(f->path);
    assert_int_equal(experts_format(checkpoint), COT_FORMAT_MXFP4);
    for (int w = 0; w < 3; w++) {
        const int64_t n = w == 2 ? OSS_H : OSS_I, k = w == 2 ? OSS_I : OSS_H, e = OSS_E - 1, first = 13;
        uint8_t *b = dirty(cot_packed_bytes(COT_FORMAT_MXFP4, k, n));
        const cot_weight_piece low = {COT_WEIGHT_EXPERT_GATE + w, 0, e, 0, first, 0, k},
                               high = {COT_WEIGHT_EXPERT_GATE + w, 0, e, first, n - first, 0, k};
        const cot_packed_part to = {b, COT_FORMAT_MXFP4, n, 0}, rest = {b, COT_FORMAT_MXFP4, n, first};
        assert_int_equal(cot_checkpoint_pack(checkpoint, &low, &to, NULL), COT_OK);
        assert_int_equal(cot_checkpoint_pack(checkpoint, &high, &rest, NULL), COT_OK);
        int64_t rows, columns;
        float *x = whole(checkpoint, COT_WEIGHT_EXPERT_GATE + w, 0, e, &rows, &columns);
        for (int64_t c = 0; c < n; c++)
            for (int64_t r = 0; r < k; r++) {
                const uint8_t *panel = b + c / 32 * cot_panel_bytes(COT_FORMAT_MXFP4, k),
                              *block = panel + r / 64 * (64 + 1024), // scales of two groups, then their words
                                  *word = block + 64 + (r % 64 / 8 * 32 + c % 32) * 4;
                static const double table[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
                const int nibble = word[r % 2 * 2 + r % 8 / 4] >> r % 4 / 2 * 4 & 15;
                const double value = table[nibble & 7] * ldexp(1, block[r % 64 / 32 * 32 + c % 32] - 127);
                assert_true(x[c * k + r] == (float)(nibble & 8 ? -value : value));
            }
        cot_error error = {0};
        cot_weight_piece inside = low;
        inside.column0 = 16;
        inside.columns = k - 16;
        assert_int_equal(cot_checkpoint_pack(checkpoint, &inside, &to, &error), COT_INVALID_ARGUMENT);
        assert_non_null(strstr(error.message, "groups of 32"));
        free(x);
        free(b);
    }
    cot_checkpoint_close(checkpoint);
    folder_delete(f);
    f = tiny_oss(false, COT_BF16);
    write_all(f);
    checkpoint = opened(f->path);
    assert_int_equal(experts_format(checkpoint), COT_FORMATS);
    cot_checkpoint_close(checkpoint);
    folder_delete(f);
}

/* Puts `bytes` at element `at` of a tensor and expects reading and packing `weight` to fail by the tensor's
 * name. */
static void spoil(folder *f, const char *name, int64_t at, const void *value, size_t size, cot_weight weight,
                  int64_t expert, const char *named)
{
    cot_tensor *t = tensor_of(f, name);
    uint8_t kept[8], *place = (uint8_t *)(uintptr_t)t->data + (size_t)at * size;
    memcpy(kept, place, size);
    memcpy(place, value, size);
    write_all(f);
    cot_checkpoint *checkpoint = opened(f->path);
    int64_t rows, columns;
    cot_error error = {0};
    assert_int_equal(cot_checkpoint_shape(checkpoint, weight, 0, expert, &rows, &columns, NULL), COT_OK);
    void *out = malloc((size_t)(rows + 32) * (size_t)(columns + 32) * 4);
    const cot_weight_piece all = {weight, 0, expert, 0, rows, 0, columns};
    assert_int_equal(cot_checkpoint_read(checkpoint, &all, out, &error), COT_INVALID_ARGUMENT);
    if (!strstr(error.message, named) || !strstr(error.message, "NaN")) fail_msg("%s", error.message);
    const cot_packed_part to = {out, COT_FORMAT_BF16, rows, 0};
    assert_int_equal(cot_checkpoint_pack(checkpoint, &all, &to, NULL), COT_INVALID_ARGUMENT);
    if (experts_format(checkpoint) == COT_FORMAT_MXFP4) {
        const cot_packed_part stored = {out, COT_FORMAT_MXFP4, rows, 0};
        const char *where = strstr(error.message, "in row");
        cot_error again = {0};
        assert_int_equal(cot_checkpoint_pack(checkpoint, &all, &stored, &again), COT_INVALID_ARGUMENT);
        if (strcmp(again.message, error.message) != 0) fail_msg("'%s', not %s", again.message, where);
    }
    free(out);
    cot_checkpoint_close(checkpoint);
    memcpy(place, kept, size);
}

static void not_finite(void **state)
{
    (void)state;
    static const char up[] = "model.layers.0.block_sparse_moe.experts.1.w3.weight";
    for (int t = 0; t < 3; t++) {
        cot_dtype type = t == 0 ? COT_F32 : t == 1 ? COT_BF16 : COT_F16;
        static const float wide[] = {NAN, INFINITY, -INFINITY};
        static const uint16_t halves[2][3] = {{0x7fc1, 0x7f80, 0xff80}, {0x7e01, 0x7c00, 0xfc00}};
        folder *f = tiny_mixtral(test_seed(), type);
        for (int v = 0; v < 3; v++) {
            int64_t at = (int64_t)(cot_random_bits(test_seed(), 9, (uint64_t)(t * 3 + v)) % 240);
            spoil(f, up, v ? at : 239, t ? (const void *)&halves[t - 1][v] : &wide[v], t ? 2 : 4,
                  COT_WEIGHT_EXPERT_UP, 1, up);
        }
        folder_delete(f);
    }
    folder *f = tiny_fp8(16, 32, COT_F32, true, "_scale_inv");
    float infinite = INFINITY;
    spoil(f, "model.layers.0.self_attn.q_proj.weight", 777, "\x7f", 1, COT_WEIGHT_Q, 0,
          "model.layers.0.self_attn.q_proj.weight");
    spoil(f, "model.layers.0.self_attn.q_proj.weight", 0, "\xff", 1, COT_WEIGHT_Q, 0, "q_proj.weight");
    spoil(f, "model.layers.0.self_attn.q_proj.weight_scale_inv", 3, &infinite, 4, COT_WEIGHT_Q, 0,
          "q_proj.weight");
    folder_delete(f);
    f = tiny_oss(true, COT_BF16);
    spoil(f, "model.layers.0.mlp.experts.down_proj_scales", OSS_H, "\xff", 1, COT_WEIGHT_EXPERT_DOWN, 1,
          "down_proj_blocks");
    spoil(f, "model.layers.0.mlp.experts.down_proj_scales", OSS_H + 5, "\xfe", 1, COT_WEIGHT_EXPERT_DOWN, 1,
          "down_proj_blocks"); // 2^127: 2 of it are too much
    spoil(f, "model.layers.0.mlp.experts.gate_up_proj_scales", (2 * OSS_I + 7) * 2 + 1, "\xff", 1,
          COT_WEIGHT_EXPERT_UP, 1, "gate_up_proj_blocks");
    folder_delete(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp8),     cmocka_unit_test(fp8_refusals), cmocka_unit_test(mxfp4_refusals),
        cmocka_unit_test(stacked), cmocka_unit_test(as_stored),    cmocka_unit_test(not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
