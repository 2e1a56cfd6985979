#include "harness/checkpoint/layouts.h"

#include "harness/seed.h"

#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t draw_to(uint64_t *seed, int64_t n)
{
    *seed = cot_mix64(*seed + 1);
    return (int64_t)(*seed % (uint64_t)n);
}

static float e4m3(int code)
{
    const double size = code & 0x78 ? ldexp(8 + (code & 7), (code >> 3 & 15) - 10) : ldexp(code & 7, -9);
    return (float)(code & 0x80 ? -size : size);
}

/* From a half to 7.5; some are zero or have no leading one. */
static float draw_e4m3(uint64_t *seed)
{
    return e4m3((int)(draw_to(seed, 16) ? 0x30 + draw_to(seed, 24) : draw_to(seed, 8)));
}

static matrix draw_matrix(uint64_t *seed, const layout *l, int64_t out, int64_t in)
{
    matrix m = {out, in, l->group ? (in + l->group - 1) / l->group : 1, NULL, NULL, NULL, 0};
    if (l->way == NVFP4) m.of_all = (1 + (float)draw_to(seed, 1000) / 499) / 256; // each matrix its own
    if (l->way == NVFP4 && !l->modelopt) m.of_all = 1 / m.of_all;
    m.codes = malloc((size_t)(out * in) * sizeof *m.codes);
    m.zeros = malloc((size_t)(out * m.groups) * sizeof *m.zeros);
    m.scales = malloc((size_t)(out * m.groups) * sizeof *m.scales);
    const int middle = 1 << (l->bits - 1);
    for (int64_t i = 0; i < out * in; i++) {
        m.codes[i] = (int)draw_to(seed, 1 << l->bits);
        if (l->way == E4M3 && (m.codes[i] & 0x7f) == 0x7f) m.codes[i]--;
    }
    for (int64_t i = 0; i < out * m.groups; i++) {
        // 1 + n / 128 is exact in every type
        m.scales[i] = ldexpf(1 + (float)draw_to(seed, 128) / 128, (int)draw_to(seed, 4) - 6);
        if (l->way == E2M1) m.scales[i] = ldexpf(1, (int)draw_to(seed, 9) - 6);
        if (l->way == NVFP4) m.scales[i] = draw_e4m3(seed);
        if (l->one_scale) m.scales[i] = 0.375f;
        m.zeros[i] = l->asymmetric ? (int)draw_to(seed, 1 << l->bits) : middle;
    }
    return m;
}

static void drop(matrix *m)
{
    free(m->codes), free(m->zeros), free(m->scales);
}

float layout_element(const layout *l, const matrix *m, int64_t r, int64_t c)
{
    const int64_t g = r * m->groups + (l->group ? c / l->group : 0);
    const int code = m->codes[r * m->in + c];
    if (l->way == E4M3) return e4m3(code) * m->scales[g];
    if (l->way == E2M1 || l->way == NVFP4) {
        static const float sizes[] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
        const float element = (code & 8 ? -sizes[code & 7] : sizes[code & 7]) * m->scales[g];
        return l->way == E2M1 ? element : element * (l->modelopt ? m->of_all : 1 / m->of_all);
    }
    return (float)(code - m->zeros[g]) * m->scales[g];
}

const char *layout_kept(const layout *l)
{
    if (l->way == NVFP4) return "nvfp4";
    if (l->group % 32) return NULL;
    return l->way == E4M3 ? "fp8" : l->way == E2M1 ? "mxfp4" : l->bits == 4 ? "int4" : "int8";
}

/* ---- the layouts ---- */

void layout_put_scale(cot_tensor *t, int64_t at, float value)
{
    uint8_t *data = (uint8_t *)(uintptr_t)t->data;
    const uint16_t half = t->dtype == COT_F16 ? cot_f32_to_f16(value) : cot_f32_to_bf16(value);
    if (t->dtype == COT_F32)
        memcpy(data + 4 * at, &value, 4);
    else if (t->dtype == COT_U8)
        data[at] = (uint8_t)(127 + ilogbf(value));
    else if (t->dtype == COT_F8_E4M3)
        while (e4m3(data[at]) != value) data[at]++;
    else
        memcpy(data + 2 * at, &half, 2);
}

static void or_code(cot_tensor *t, int64_t word, int shift, int code)
{
    uint32_t *words = (uint32_t *)(uintptr_t)t->data;
    words[word] |= (uint32_t)code << shift;
}

/* 1 less in each place of every word, as GPTQModel has it: a place of 0 borrows from the next. */
static void lessen(cot_tensor *t, int bits)
{
    uint32_t *words = (uint32_t *)(uintptr_t)t->data;
    for (size_t i = 0; i < t->bytes / sizeof *words; i++) words[i] -= bits == 4 ? 0x11111111 : 0x01010101;
}

static cot_tensor *add_zeroed(folder *f, const char *name, const char *end, cot_dtype type, int64_t a,
                              int64_t b)
{
    char full[128];
    snprintf(full, sizeof full, "%s.%s", name, end);
    cot_tensor *t = add(f, full, type, a, b, 0, 0);
    memset((void *)(uintptr_t)t->data, 0, t->bytes);
    return t;
}

static void add_transposed(folder *f, const char *name, const layout *l, const matrix *m)
{
    static const int awq_order[8] = {0, 2, 4, 6, 1, 3, 5, 7}; // the column that each place of a word holds
    const int per = 32 / l->bits;
    const bool awq = l->way == AWQ;
    cot_tensor *codes = awq ? add_zeroed(f, name, "qweight", COT_I32, m->in, m->out / per)
                            : add_zeroed(f, name, "qweight", COT_I32, m->in / per, m->out);
    cot_tensor *zeros = add_zeroed(f, name, "qzeros", COT_I32, m->groups, m->out / per),
               *scales = add_zeroed(f, name, "scales", l->scale, m->groups, m->out);
    for (int64_t r = 0; r < m->out; r++) {
        int place = (int)(r % per);
        for (int p = 0; awq && p < per; p++)
            if (awq_order[p] == r % per) place = p;
        for (int64_t c = 0; c < m->in; c++) {
            const int code = m->codes[r * m->in + c];
            if (awq)
                or_code(codes, c * (m->out / per) + r / per, place * l->bits, code);
            else
                or_code(codes, c / per * m->out + r, (int)(c % per) * l->bits, code);
        }
        for (int64_t g = 0; g < m->groups; g++) {
            or_code(zeros, g * (m->out / per) + r / per, place * l->bits, m->zeros[r * m->groups + g]);
            layout_put_scale(scales, g * m->out + r, m->scales[r * m->groups + g]);
        }
    }
    if (l->ones_less) lessen(zeros, l->bits);
    if (!awq) {
        cot_tensor *order = add_zeroed(f, name, "g_idx", COT_I32, m->in, 0);
        for (int64_t c = 0; c < m->in && l->group; c++)
            ((int32_t *)(uintptr_t)order->data)[c] = (int32_t)(c / l->group);
    }
}

static void add_compressed(folder *f, const char *name, const layout *l, const matrix *m)
{
    const int per = 32 / l->bits, middle = 1 << (l->bits - 1);
    const cot_dtype types[] = {
        [PACKED] = COT_I32, [BYTES] = COT_I8, [E4M3] = COT_F8_E4M3, [E2M1] = COT_U8, [NVFP4] = COT_U8};
    const int64_t width[] = {
        [PACKED] = m->in / per, [BYTES] = m->in, [E4M3] = m->in, [E2M1] = m->in / 2, [NVFP4] = m->in / 2};
    const bool pairs = l->way == E2M1 || l->way == NVFP4,
               packed = (l->way == PACKED || pairs) && !l->modelopt;
    cot_tensor *codes =
        add_zeroed(f, name, packed ? "weight_packed" : "weight", types[l->way], m->out, width[l->way]);
    cot_tensor *scales = l->one_scale ? add_zeroed(f, name, "weight_scale", l->scale, !l->modelopt, 0)
                                      : add_zeroed(f, name, "weight_scale", l->scale, m->out, m->groups);
    for (int64_t r = 0; r < m->out; r++) {
        for (int64_t c = 0; c < m->in; c++) {
            const int code = m->codes[r * m->in + c];
            uint8_t *bytes = (uint8_t *)(uintptr_t)codes->data;
            if (l->way == PACKED)
                or_code(codes, r * (m->in / per) + c / per, (int)(c % per) * l->bits, code);
            else if (pairs)
                bytes[(r * m->in + c) / 2] |= (uint8_t)(code << c % 2 * 4);
            else
                bytes[r * m->in + c] = (uint8_t)(l->way == BYTES ? code - middle : code);
        }
        for (int64_t g = 0; g < m->groups; g++)
            layout_put_scale(scales, l->one_scale ? 0 : r * m->groups + g, m->scales[r * m->groups + g]);
    }
    if (l->way == NVFP4) // and one of activations, which nobody reads
        for (int i = 0; i < 2; i++) {
            const char *const ends[2][2] = {{"weight_global_scale", "input_global_scale"},
                                            {"weight_scale_2", "input_scale"}};
            layout_put_scale(add_zeroed(f, name, ends[l->modelopt][i], COT_F32, !l->modelopt, 0), 0,
                             i ? 0 : m->of_all);
        }
    if (l->way == PACKED) {
        cot_tensor *shape = add_zeroed(f, name, "weight_shape", COT_I64, 2, 0);
        ((int64_t *)(uintptr_t)shape->data)[0] = m->out;
        ((int64_t *)(uintptr_t)shape->data)[1] = m->in;
    }
    if (!l->asymmetric) return;
    cot_tensor *zeros = l->way == PACKED
                            ? add_zeroed(f, name, "weight_zero_point", COT_I32, m->out / per, m->groups)
                            : add_zeroed(f, name, "weight_zero_point", COT_I8, m->out, m->groups);
    for (int64_t r = 0; r < m->out; r++)
        for (int64_t g = 0; g < m->groups; g++) {
            const int zero = m->zeros[r * m->groups + g];
            if (l->way == PACKED)
                or_code(zeros, r / per * m->groups + g, (int)(r % per) * l->bits, zero);
            else
                ((int8_t *)(uintptr_t)zeros->data)[r * m->groups + g] = (int8_t)(zero - middle);
        }
}

static void add_one(model *m, const char *name, const layout *l, const matrix *values)
{
    if (l->way == GPTQ || l->way == AWQ)
        add_transposed(m->f, name, l, values);
    else
        add_compressed(m->f, name, l, values);
}

static void write_config(const folder *f, const char *more)
{
    char config[1600];
    snprintf(
        config, sizeof config,
        "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"vocab_size\": %d, \"hidden_size\": %d, "
        "\"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": %d, "
        "\"num_experts\": %d, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": %d%s}",
        LAYOUT_VOCAB, LAYOUT_H, LAYOUT_HEAD_DIM, LAYOUT_E, LAYOUT_I, more);
    write_text(f, "config.json", config);
}

enum { QUERIES = 4 * LAYOUT_HEAD_DIM, KEYS = 2 * LAYOUT_HEAD_DIM };
const layout_part layout_parts[LAYOUT_PARTS] = {
    {"model.layers.0.self_attn.q_proj", COT_WEIGHT_Q, QUERIES, LAYOUT_H},
    {"model.layers.0.self_attn.k_proj", COT_WEIGHT_K, KEYS, LAYOUT_H},
    {"model.layers.0.self_attn.v_proj", COT_WEIGHT_V, KEYS, LAYOUT_H},
    {"model.layers.0.self_attn.o_proj", COT_WEIGHT_O, LAYOUT_H, QUERIES},
    {"lm_head", COT_WEIGHT_OUTPUT, LAYOUT_VOCAB, LAYOUT_H}};

/* The stem of an expert's matrix. */
static void name_matrix(char name[96], int expert, int which)
{
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    snprintf(name, 96, "model.layers.0.mlp.experts.%d.%s", expert, names[which]);
}

model layout_make(const layout *l, uint64_t *seed)
{
    enum { H = LAYOUT_H, I = LAYOUT_I };
    model m = {.f = folder_new(test_seed())};
    char more[800], name[96];
    snprintf(more, sizeof more, ", \"quantization_config\": {%s}", l->config);
    write_config(m.f, more);
    add(m.f, "model.embed_tokens.weight", COT_BF16, LAYOUT_VOCAB, H, 0, 0);
    add(m.f, "model.norm.weight", COT_BF16, H, 0, 0, 0);
    add(m.f, "model.layers.0.input_layernorm.weight", COT_BF16, H, 0, 0, 0);
    add(m.f, "model.layers.0.post_attention_layernorm.weight", COT_BF16, H, 0, 0, 0);
    add(m.f, "model.layers.0.self_attn.q_norm.weight", COT_BF16, LAYOUT_HEAD_DIM, 0, 0, 0);
    add(m.f, "model.layers.0.self_attn.k_norm.weight", COT_BF16, LAYOUT_HEAD_DIM, 0, 0, 0);
    add(m.f, "model.layers.0.mlp.gate.weight", COT_BF16, LAYOUT_E, H, 0, 0);
    m.plain = m.f->count;
    for (int p = 0; p < LAYOUT_PARTS; p++) {
        m.parts[p] = draw_matrix(seed, l, layout_parts[p].out, layout_parts[p].in);
        add_one(&m, layout_parts[p].name, l, &m.parts[p]);
    }
    for (int e = 0; e < LAYOUT_E; e++)
        for (int w = 0; w < 3; w++) {
            name_matrix(name, e, w);
            m.experts[e][w] = draw_matrix(seed, l, w == 2 ? H : I, w == 2 ? I : H);
            add_one(&m, name, l, &m.experts[e][w]);
        }
    write_all(m.f);
    return m;
}

static void add_wide(folder *f, const char *name, const layout *l, const matrix *m)
{
    float *out = (float *)(uintptr_t)add_zeroed(f, name, "weight", COT_F32, m->out, m->in)->data;
    for (int64_t r = 0; r < m->out; r++)
        for (int64_t c = 0; c < m->in; c++) *out++ = layout_element(l, m, r, c);
}

folder *layout_widened(const layout *l, const model *m)
{
    folder *f = folder_new(1);
    char name[96];
    write_config(f, "");
    for (size_t i = 0; i < m->plain; i++) {
        const cot_tensor *t = &m->f->tensors[i];
        cot_tensor *copy = add(f, t->name, t->dtype, t->shape[0], t->shape[1], 0, 0);
        memcpy((void *)(uintptr_t)copy->data, t->data, t->bytes);
    }
    for (int p = 0; p < LAYOUT_PARTS; p++) add_wide(f, layout_parts[p].name, l, &m->parts[p]);
    for (int e = 0; e < LAYOUT_E; e++)
        for (int w = 0; w < 3; w++) {
            name_matrix(name, e, w);
            add_wide(f, name, l, &m->experts[e][w]);
        }
    write_all(f);
    return f;
}

void layout_discard(model *m)
{
    for (int p = 0; p < LAYOUT_PARTS; p++) drop(&m->parts[p]);
    for (int e = 0; e < LAYOUT_E; e++)
        for (int w = 0; w < 3; w++) drop(&m->experts[e][w]);
    folder_delete(m->f);
}

#define CT(format) "\"quant_method\": \"compressed-tensors\", \"format\": \"" format "\""
const layout layouts[LAYOUTS] = {
    {"\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 32, \"sym\": true", GPTQ, 4, 32, false, true,
     COT_F16, false, false},
    {"\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 64, \"sym\": false, \"desc_act\": false", GPTQ,
     4, 64, true, true, COT_F16, false, false},
    {"\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 32, \"sym\": false, \"format\": "
     "\"gptq_v2\"",
     GPTQ, 4, 32, true, false, COT_BF16, false, false},
    {"\"quant_method\": \"gptq\", \"bits\": 8, \"group_size\": -1, \"sym\": false", GPTQ, 8, 0, true, true,
     COT_F16, false, false},
    {"\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 16, \"sym\": false", GPTQ, 4, 16, true, true,
     COT_F16, false, false},
    {"\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 96, \"sym\": false, \"desc_act\": true", GPTQ,
     4, 96, true, true, COT_F16, false, false}, // whose last group is a part of one
    {"\"quant_method\": \"gptq\", \"bits\": 8, \"group_size\": 48, \"dynamic\": {\"down\": {\"desc_act\": "
     "true}}",
     GPTQ, 8, 48, false, true, COT_BF16, false, false},
    {"\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 64, \"version\": \"gemm\", \"zero_point\": "
     "true",
     AWQ, 4, 64, true, false, COT_F16, false, false},
    {CT("pack-quantized"), PACKED, 4, 32, false, false, COT_BF16, false, false},
    {CT("pack-quantized"), PACKED, 4, 64, true, false, COT_BF16, false, false},
    {CT("pack-quantized"), PACKED, 4, 0, false, false, COT_F32, false, false},
    {CT("pack-quantized"), PACKED, 8, 32, true, false, COT_BF16, false, false},
    {CT("int-quantized"), BYTES, 8, 0, false, false, COT_BF16, false, false},
    {CT("naive-quantized"), BYTES, 8, 64, true, false, COT_F32, false, false},
    {CT("float-quantized"), E4M3, 8, 0, false, false, COT_BF16, false, false},
    {CT("naive-quantized"), E4M3, 8, 0, false, false, COT_F32, true, false},
    {CT("mxfp4-pack-quantized"), E2M1, 4, 32, false, false, COT_U8, false, false},
    {CT("nvfp4-pack-quantized") ", \"ignore\": [\"re:.*mlp.gate$\"], \"config_groups\": {\"group_0\": "
                                "{\"targets\": [\"Linear\"], \"format\": "
                                "\"nvfp4-pack-quantized\", \"weights\": {\"num_bits\": 4, \"type\": "
                                "\"float\", \"strategy\": "
                                "\"tensor_group\", \"group_size\": 16, \"symmetric\": true, \"dynamic\": "
                                "false}, \"input_activations\": "
                                "{\"num_bits\": 4, \"type\": \"float\", \"strategy\": \"tensor_group\", "
                                "\"group_size\": 16, \"dynamic\": "
                                "\"local\"}}}",
     NVFP4, 4, 16, false, false, COT_F8_E4M3, false, false},
    {"\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\", \"ignore\": [\"model.layers.*.mlp.gate\"], "
     "\"kv_cache_scheme\": {\"type\": \"float\", \"num_bits\": 8}, \"producer\": {\"name\": \"modelopt\"}",
     NVFP4, 4, 16, false, false, COT_F8_E4M3, false, true},
    {"\"quant_library\": \"modelopt\", \"quant_algo\": \"W4A16_NVFP4\", \"group_size\": 16", NVFP4, 4, 16,
     false, false, COT_F8_E4M3, false, true},
    {"\"quant_method\": \"modelopt\", \"quant_algo\": \"fp8\"", E4M3, 8, 0, false, false, COT_F32, true,
     true},
};
