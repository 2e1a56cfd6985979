/* Weights in every stored form: values against formulas of this file's own, pieces against the whole, NaNs
 * found. */
#include "base/file.h"
#include "folder.h"
#include "kernels/pack.h"
#include "model/checkpoint.h"

#include <math.h>
#include <time.h>

static uint64_t seed;

static cot_checkpoint *opened(const char *path)
{
    cot_checkpoint *checkpoint;
    char *notes;
    cot_error error = {0};
    if (cot_checkpoint_open(&checkpoint, path, &notes, &error) != COT_OK) fail_msg("%s", error.message);
    free(notes);
    return checkpoint;
}

/* The whole weight; the caller frees. NULL where the architecture has none. */
static float *whole(const cot_checkpoint *checkpoint, cot_weight weight, int64_t layer, int64_t expert,
                    int64_t *rows, int64_t *columns)
{
    cot_error error = {0};
    cot_status status = cot_checkpoint_shape(checkpoint, weight, layer, expert, rows, columns, &error);
    if (status == COT_INVALID_ARGUMENT) return NULL;
    if (status != COT_OK) fail_msg("%s", error.message);
    float *out = malloc((size_t)(*rows * *columns) * sizeof *out);
    assert_non_null(out);
    memset(out, 0xff, (size_t)(*rows * *columns) * sizeof *out);
    status = cot_checkpoint_read(checkpoint, weight, layer, expert, 0, *rows, 0, *columns, out, &error);
    if (status != COT_OK) fail_msg("%s", error.message);
    for (int64_t i = 0; i < *rows * *columns; i++) assert_true(isfinite(out[i]));
    return out;
}

static void *poisoned(int64_t bytes)
{
    void *memory = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64);
    assert_non_null(memory);
    memset(memory, 0xa5, (size_t)bytes);
    return memory;
}

/* A random piece, read, packed in two parts and packed transposed, against the whole. */
static void check_piece(const cot_checkpoint *checkpoint, cot_weight weight, int64_t layer, int64_t expert,
                        uint64_t draw)
{
    int64_t rows, columns;
    float *all = whole(checkpoint, weight, layer, expert, &rows, &columns);
    if (!all) return;
    uint64_t at = draw * 8;
    int64_t row0 = (int64_t)(cot_random_bits(seed, 5, at) % (uint64_t)rows), count = rows - row0;
    int64_t column0 = (int64_t)(cot_random_bits(seed, 5, at + 1) % (uint64_t)columns),
            width = columns - column0;
    count -= (int64_t)(cot_random_bits(seed, 5, at + 2) % (uint64_t)count);
    width -= (int64_t)(cot_random_bits(seed, 5, at + 3) % (uint64_t)width);
    float *piece = poisoned(count * width * 4);
    assert_int_equal(
        cot_checkpoint_read(checkpoint, weight, layer, expert, row0, count, column0, width, piece, NULL),
        COT_OK);
    for (int64_t r = 0; r < count; r++)
        assert_memory_equal(piece + r * width, all + (row0 + r) * columns + column0, (size_t)width * 4);
    for (int t = 0; t < 2; t++) {
        cot_dtype type = t ? COT_BF16 : COT_F32;
        int64_t bytes = cot_packed_bytes(type, width, count), first = count / 64 * 32;
        void *expected = poisoned(bytes), *found = poisoned(bytes);
        cot_pack_columns(expected, type, width, count, 0, count, piece, COT_F32, width);
        assert_int_equal(cot_checkpoint_pack(checkpoint, weight, layer, expert, row0, first, column0, width,
                                             found, type, count, 0, NULL),
                         COT_OK);
        assert_int_equal(cot_checkpoint_pack(checkpoint, weight, layer, expert, row0 + first, count - first,
                                             column0, width, found, type, count, first, NULL),
                         COT_OK);
        assert_memory_equal(found, expected, (size_t)bytes);
        free(expected);
        free(found);
        if (expert) continue; // the transposed form is for attention alone
        bytes = cot_packed_bytes(type, count, width);
        expected = poisoned(bytes);
        found = poisoned(bytes);
        cot_pack_rows(expected, type, count, width, 0, count, piece, COT_F32, width);
        assert_int_equal(cot_checkpoint_pack_transposed(checkpoint, weight, layer, row0, count, column0,
                                                        width, found, type, NULL),
                         COT_OK);
        assert_memory_equal(found, expected, (size_t)bytes);
        free(expected);
        free(found);
    }
    free(piece);
    free(all);
}

static void check_all_pieces(const cot_checkpoint *checkpoint)
{
    const cot_config *config = cot_checkpoint_config(checkpoint);
    uint64_t draw = 0;
    for (int w = 0; w < COT_WEIGHTS; w++)
        for (int64_t l = 0; l < config->layers; l++) {
            check_piece(checkpoint, (cot_weight)w, l, 0, draw++);
            check_piece(checkpoint, (cot_weight)w, l, config->gate.experts - 1, draw++);
        }
}

static void golden(void **state)
{
    (void)state;
    static const char *const names[] = {"deepseek-v2", "deepseek-v2-lite", "deepseek-v3",   "deepseek-v3-fp8",
                                        "gpt-oss",     "mixtral",          "olmoe",         "olmoe-clip",
                                        "qwen2-moe",   "qwen3-moe",        "qwen3-moe-tied"};
    if (access(COT_SHARED "/golden", R_OK) != 0) {
        print_message("SKIPPED: no golden checkpoints at %s\n", COT_SHARED "/golden");
        skip();
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = cot_path_join(COT_SHARED "/golden", names[i]);
        cot_checkpoint *checkpoint = opened(path);
        assert_true(cot_checkpoint_bytes(checkpoint) > 100000);
        check_all_pieces(checkpoint);
        cot_checkpoint_close(checkpoint);
        free(path);
    }
}

static void plain(void **state)
{
    (void)state;
    static const cot_dtype types[] = {COT_F32, COT_BF16, COT_F16};
    for (int t = 0; t < 3; t++) {
        folder *f = tiny_mixtral(seed + (uint64_t)t, types[t]);
        write_all(f);
        cot_checkpoint *checkpoint = opened(f->path);
        const cot_tensor *w2 = tensor_of(f, "model.layers.1.block_sparse_moe.experts.2.w2.weight");
        int64_t rows, columns;
        float *down = whole(checkpoint, COT_WEIGHT_EXPERT_DOWN, 1, 2, &rows, &columns);
        assert_int_equal(rows, 24);
        assert_int_equal(columns, 10);
        for (int64_t i = 0; i < rows * columns; i++) {
            float wide;
            uint16_t half;
            memcpy(&wide, (const uint8_t *)w2->data + (t ? 2 : 4) * i, t ? 2 : 4);
            memcpy(&half, (const uint8_t *)w2->data + 2 * i, 2);
            assert_true(down[i] == (t == 0 ? wide : t == 1 ? cot_bf16_to_f32(half) : cot_f16_to_f32(half)));
        }
        free(down);
        check_all_pieces(checkpoint);
        cot_checkpoint_close(checkpoint);
        folder_delete(f);
    }
}

static void no_such_piece(void **state)
{
    (void)state;
    folder *f = tiny_mixtral(seed, COT_F32);
    write_all(f);
    cot_checkpoint *checkpoint = opened(f->path);
    float x[1000];
    cot_error error = {0};
    static const int64_t bad[][7] = {
        {COT_WEIGHT_Q, 0, 0, 0, 25, 0, 1},        {COT_WEIGHT_Q, 0, 0, -1, 1, 0, 1},
        {COT_WEIGHT_Q, 0, 0, 0, 1, 24, 1},        {COT_WEIGHT_Q, 2, 0, 0, 1, 0, 1},
        {COT_WEIGHT_Q, 0, 0, INT64_MAX, 1, 0, 1}, {COT_WEIGHT_EXPERT_UP, 0, 3, 0, 1, 0, 1},
        {COT_WEIGHT_SINKS, 0, 0, 0, 1, 0, 1},     {COT_WEIGHT_Q, 0, 0, 1, INT64_MAX, 0, 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(cot_checkpoint_read(checkpoint, (cot_weight)bad[i][0], bad[i][1], bad[i][2],
                                             bad[i][3], bad[i][4], bad[i][5], bad[i][6], x, &error),
                         COT_INVALID_ARGUMENT);
    assert_int_equal(cot_checkpoint_read(checkpoint, COT_WEIGHT_Q, 0, 0, 24, 0, 0, 24, NULL, NULL),
                     COT_OK); // nothing
    assert_int_equal(cot_checkpoint_read(checkpoint, COT_WEIGHT_Q, 0, 0, 0, 24, 24, 0, NULL, NULL), COT_OK);
    cot_checkpoint_close(checkpoint);
    folder_delete(f);
}

static double e4m3(uint8_t x)
{
    double magnitude = x >> 3 & 15 ? ldexp(8 + (x & 7), (x >> 3 & 15) - 10) : ldexp(x & 7, -9);
    return x & 0x80 ? -magnitude : magnitude;
}

/* A Qwen3 model of one layer whose matrices but the ends and the gate are FP8 in blocks of rows x columns. */
static folder *tiny_fp8(int64_t block_rows, int64_t block_columns, cot_dtype scale_type, bool say_so)
{
    folder *f = folder_new(seed);
    char config[800], blocks[160] = "";
    if (say_so)
        snprintf(blocks, sizeof blocks, ", \"weight_block_size\": [%d, %d]", (int)block_rows,
                 (int)block_columns);
    snprintf(config, sizeof config,
             "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"vocab_size\": 7, \"hidden_size\": 100, "
             "\"num_hidden_layers\": 1,"
             " \"num_attention_heads\": 5, \"num_key_value_heads\": 1, \"head_dim\": 22, \"num_experts\": 2,"
             " \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 36,"
             " \"quantization_config\": {\"quant_method\": \"fp8\"%s}}",
             blocks);
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
        snprintf(name, sizeof name, "%s_scale_inv", w->name);
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
    } cases[] = {{128, 128, COT_F32, true},
                 {16, 32, COT_BF16, true},
                 {16, 24, COT_F8_E8M0, true},
                 {512, 256, COT_F32, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        folder *f = tiny_fp8(cases[i].rows, cases[i].columns, cases[i].type, cases[i].say_so);
        write_all(f);
        cot_checkpoint *checkpoint = opened(f->path);
        const cot_tensor *w = tensor_of(f, "model.layers.0.mlp.experts.1.up_proj.weight");
        const cot_tensor *s = tensor_of(f, "model.layers.0.mlp.experts.1.up_proj.weight_scale_inv");
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
    folder *f = tiny_fp8(16, 32, COT_F32, false); // blocks that only the scales' shapes tell
    write_all(f);
    refused(f, COT_UNSUPPORTED, "neither config.json's weight_block_size nor its scales tell the blocks");
    folder_delete(f);
    f = tiny_fp8(16, 32, COT_F32, true);
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
    folder *f = folder_new(seed);
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
    assert_int_equal(cot_checkpoint_read(checkpoint, weight, 0, expert, 0, rows, 0, columns, out, &error),
                     COT_INVALID_ARGUMENT);
    if (!strstr(error.message, named) || !strstr(error.message, "NaN")) fail_msg("%s", error.message);
    assert_int_equal(
        cot_checkpoint_pack(checkpoint, weight, 0, expert, 0, rows, 0, columns, out, COT_BF16, rows, 0, NULL),
        COT_INVALID_ARGUMENT);
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
        folder *f = tiny_mixtral(seed, type);
        for (int v = 0; v < 3; v++) {
            int64_t at = (int64_t)(cot_random_bits(seed, 9, (uint64_t)(t * 3 + v)) % 240);
            spoil(f, up, v ? at : 239, t ? (const void *)&halves[t - 1][v] : &wide[v], t ? 2 : 4,
                  COT_WEIGHT_EXPERT_UP, 1, up);
        }
        folder_delete(f);
    }
    folder *f = tiny_fp8(16, 32, COT_F32, true);
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
    folder_delete(f);
}

static void random_weights(void **state)
{
    (void)state;
    static const char config[] =
        "{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"vocab_size\": 331, \"hidden_size\": 98,"
        "\"num_hidden_layers\": 2, \"num_attention_heads\": 6, \"kv_lora_rank\": 40, \"qk_nope_head_dim\": "
        "24, \"q_lora_rank\": 33,"
        "\"qk_rope_head_dim\": 16, \"v_head_dim\": 20, \"moe_intermediate_size\": 301, \"n_routed_experts\": "
        "16, \"n_group\": 4,"
        "\"topk_group\": 2, \"num_experts_per_tok\": 3, \"first_k_dense_replace\": 1, \"intermediate_size\": "
        "111}";
    cot_checkpoint *a, *b;
    assert_int_equal(cot_checkpoint_random(&a, config, strlen(config), seed, NULL), COT_OK);
    assert_int_equal(cot_checkpoint_random(&b, config, strlen(config), seed + 1, NULL), COT_OK);
    check_all_pieces(a);
    int64_t rows, columns;
    float *x = whole(a, COT_WEIGHT_EXPERT_UP, 1, 3, &rows, &columns),
          *y = whole(b, COT_WEIGHT_EXPERT_UP, 1, 3, &rows, &columns);
    float *z = whole(a, COT_WEIGHT_EXPERT_UP, 1, 4, &rows, &columns);
    double sum = 0, squares = 0, same = 0, n = (double)(rows * columns);
    for (int64_t i = 0; i < rows * columns; i++) {
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
        same += (x[i] == y[i]) + (x[i] == z[i]);
        assert_true(x[i] == cot_bf16_to_f32(cot_f32_to_bf16(x[i])));
    }
    assert_true(fabs(sum / n) < 0.01 && fabs(squares / n * (double)columns - 1) < 0.03 && same < n / 100);
    free(x);
    free(y);
    free(z);
    x = whole(a, COT_WEIGHT_FINAL_NORM, 0, 0, &rows, &columns);
    for (int64_t i = 0; i < columns; i++) assert_true(x[i] > 0.9f && x[i] < 1.1f);
    free(x);
    assert_true(cot_checkpoint_bytes(a) > 2 * 16 * 3 * 301 * 98);
    cot_checkpoint_close(a);
    cot_checkpoint_close(b);
    cot_error error = {0};
    assert_int_equal(cot_checkpoint_random(&a, "{}", 2, 0, &error), COT_MALFORMED);
    assert_null(a);
}

int main(void)
{
    seed = (uint64_t)time(NULL);
    print_message("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden),     cmocka_unit_test(plain),          cmocka_unit_test(no_such_piece),
        cmocka_unit_test(fp8),        cmocka_unit_test(fp8_refusals),   cmocka_unit_test(stacked),
        cmocka_unit_test(not_finite), cmocka_unit_test(random_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
