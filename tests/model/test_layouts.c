/* Whole numbers and MXFP4 in the hub's layouts: each is written here from known codes, zero points and scales by this file's own
 * words, and must be read, and packed as it is stored, as (code - zero point) times scale, to the bit. */
#include "harness/cmocka.h"
#include "harness/model/folder.h"
#include "harness/model/weights.h"
#include "harness/seed.h"

#include "base/rng.h"
#include "kernels/isa.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { H = 128, I = 64, E = 2 };

typedef struct layout {
    const char *config; // quantization_config
    enum { GPTQ, AWQ, PACKED, BYTES, E4M3, E2M1 } way;
    int bits;
    int64_t group; // 0: the whole width
    bool asymmetric;
    int zero_less; // by how much a stored zero point is less than the zero point
    cot_dtype scale;
    bool one_scale; // of the tensor
} layout;

/* A matrix [out][in] before any layout. */
typedef struct matrix {
    int64_t out, in, groups;
    int *codes, *zeros; // [out][in], [out][groups]: unsigned
    float *scales;      // [out][groups]
} matrix;

static int64_t draw_to(uint64_t *seed, int64_t n)
{
    *seed = cot_mix64(*seed + 1);
    return (int64_t)(*seed % (uint64_t)n);
}

static matrix draw_matrix(uint64_t *seed, const layout *l, int64_t out, int64_t in)
{
    matrix m = {out, in, l->group ? in / l->group : 1, NULL, NULL, NULL};
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
        if (l->one_scale) m.scales[i] = 0.375f;
        m.zeros[i] = l->asymmetric ? (int)draw_to(seed, 1 << l->bits) : middle;
        if (l->asymmetric && l->zero_less) m.zeros[i] = 1 + (int)draw_to(seed, (1 << l->bits) - 1);
    }
    return m;
}

static void drop(matrix *m)
{
    free(m->codes), free(m->zeros), free(m->scales);
}

static float element_of(const layout *l, const matrix *m, int64_t r, int64_t c)
{
    const int64_t g = r * m->groups + (l->group ? c / l->group : 0);
    const int code = m->codes[r * m->in + c];
    if (l->way == E4M3) {
        const double size = code & 0x78 ? ldexp(8 + (code & 7), (code >> 3 & 15) - 10) : ldexp(code & 7, -9);
        return (float)(code & 0x80 ? -size : size) * m->scales[g];
    }
    if (l->way == E2M1) {
        static const float sizes[] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
        return (code & 8 ? -sizes[code & 7] : sizes[code & 7]) * m->scales[g];
    }
    return (float)(code - m->zeros[g]) * m->scales[g];
}

/* ---- the layouts ---- */

static void put_scale(cot_tensor *t, int64_t at, float value)
{
    uint8_t *data = (uint8_t *)(uintptr_t)t->data;
    const uint16_t half = t->dtype == COT_F16 ? cot_f32_to_f16(value) : cot_f32_to_bf16(value);
    if (t->dtype == COT_F32)
        memcpy(data + 4 * at, &value, 4);
    else if (t->dtype == COT_U8)
        data[at] = (uint8_t)(127 + ilogbf(value));
    else
        memcpy(data + 2 * at, &half, 2);
}

static void or_code(cot_tensor *t, int64_t word, int shift, int code)
{
    uint32_t *words = (uint32_t *)(uintptr_t)t->data;
    words[word] |= (uint32_t)code << shift;
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
            or_code(zeros, g * (m->out / per) + r / per, place * l->bits,
                    m->zeros[r * m->groups + g] - l->zero_less);
            put_scale(scales, g * m->out + r, m->scales[r * m->groups + g]);
        }
    }
    if (!awq) {
        cot_tensor *order = add_zeroed(f, name, "g_idx", COT_I32, m->in, 0);
        for (int64_t c = 0; c < m->in && l->group; c++)
            ((int32_t *)(uintptr_t)order->data)[c] = (int32_t)(c / l->group);
    }
}

static void add_compressed(folder *f, const char *name, const layout *l, const matrix *m)
{
    const int per = 32 / l->bits, middle = 1 << (l->bits - 1);
    const cot_dtype types[] = {[PACKED] = COT_I32, [BYTES] = COT_I8, [E4M3] = COT_F8_E4M3, [E2M1] = COT_U8};
    const int64_t width[] = {[PACKED] = m->in / per, [BYTES] = m->in, [E4M3] = m->in, [E2M1] = m->in / 2};
    cot_tensor *codes = add_zeroed(f, name, l->way == PACKED || l->way == E2M1 ? "weight_packed" : "weight",
                                   types[l->way], m->out, width[l->way]);
    cot_tensor *scales = l->one_scale ? add_zeroed(f, name, "weight_scale", l->scale, 1, 0)
                                      : add_zeroed(f, name, "weight_scale", l->scale, m->out, m->groups);
    for (int64_t r = 0; r < m->out; r++) {
        for (int64_t c = 0; c < m->in; c++) {
            const int code = m->codes[r * m->in + c];
            uint8_t *bytes = (uint8_t *)(uintptr_t)codes->data;
            if (l->way == PACKED)
                or_code(codes, r * (m->in / per) + c / per, (int)(c % per) * l->bits, code);
            else if (l->way == E2M1)
                bytes[(r * m->in + c) / 2] |= (uint8_t)(code << c % 2 * 4);
            else
                bytes[r * m->in + c] = (uint8_t)(l->way == BYTES ? code - middle : code);
        }
        for (int64_t g = 0; g < m->groups; g++)
            put_scale(scales, l->one_scale ? 0 : r * m->groups + g, m->scales[r * m->groups + g]);
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

/* A Qwen3 model of one layer, whose experts and k_proj are stored so and all else in bf16. */
typedef struct model {
    folder *f;
    matrix k, experts[E][3];
} model;

static void add_one(model *m, const char *name, const layout *l, const matrix *values)
{
    if (l->way == GPTQ || l->way == AWQ)
        add_transposed(m->f, name, l, values);
    else
        add_compressed(m->f, name, l, values);
}

static model make(const layout *l, uint64_t *seed)
{
    model m = {.f = folder_new(test_seed())};
    char config[1200];
    snprintf(
        config, sizeof config,
        "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"vocab_size\": 7, \"hidden_size\": %d, "
        "\"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16, "
        "\"num_experts\": %d, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": %d, "
        "\"quantization_config\": {%s}}",
        H, E, I, l->config);
    write_text(m.f, "config.json", config);
    add_ends(m.f, COT_BF16, 7, H);
    add(m.f, "model.layers.0.input_layernorm.weight", COT_BF16, H, 0, 0, 0);
    add(m.f, "model.layers.0.post_attention_layernorm.weight", COT_BF16, H, 0, 0, 0);
    add(m.f, "model.layers.0.self_attn.q_proj.weight", COT_BF16, 64, H, 0, 0);
    add(m.f, "model.layers.0.self_attn.v_proj.weight", COT_BF16, 32, H, 0, 0);
    add(m.f, "model.layers.0.self_attn.o_proj.weight", COT_BF16, H, 64, 0, 0);
    add(m.f, "model.layers.0.self_attn.q_norm.weight", COT_BF16, 16, 0, 0, 0);
    add(m.f, "model.layers.0.self_attn.k_norm.weight", COT_BF16, 16, 0, 0, 0);
    add(m.f, "model.layers.0.mlp.gate.weight", COT_BF16, E, H, 0, 0);
    m.k = draw_matrix(seed, l, 32, H);
    add_one(&m, "model.layers.0.self_attn.k_proj", l, &m.k);
    for (int e = 0; e < E; e++)
        for (int w = 0; w < 3; w++) {
            static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
            char name[96];
            snprintf(name, sizeof name, "model.layers.0.mlp.experts.%d.%s", e, names[w]);
            m.experts[e][w] = draw_matrix(seed, l, w == 2 ? H : I, w == 2 ? I : H);
            add_one(&m, name, l, &m.experts[e][w]);
        }
    write_all(m.f);
    return m;
}

static void discard(model *m)
{
    drop(&m->k);
    for (int e = 0; e < E; e++)
        for (int w = 0; w < 3; w++) drop(&m->experts[e][w]);
    folder_delete(m->f);
}

static void expect_read(const cot_checkpoint *checkpoint, const layout *l, const matrix *m, cot_weight weight,
                        int64_t expert)
{
    int64_t rows, columns;
    float *all = whole(checkpoint, weight, 0, expert, &rows, &columns);
    assert_int_equal(rows, m->out);
    assert_int_equal(columns, m->in);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            if (all[r * columns + c] != element_of(l, m, r, c))
                fail_msg("%s row %d column %d: %g, expected %g", l->config, (int)r, (int)c,
                         (double)all[r * columns + c], (double)element_of(l, m, r, c));
    free(all);
}

/* Packed as it is stored, a product with one 1 among zeros is an element. */
static void expect_packed(const cot_checkpoint *checkpoint, const layout *l, const matrix *m,
                          cot_weight weight, int64_t expert, cot_format format)
{
    uint8_t *b = dirty(cot_packed_bytes(format, m->in, m->out));
    float a[H] = {0}, c[H];
    const cot_weight_piece all = {weight, 0, expert, 0, m->out, 0, m->in};
    assert_int_equal(cot_checkpoint_pack(checkpoint, &all, &(cot_packed_part){b, format, m->out, 0}, NULL),
                     COT_OK);
    for (int64_t k = 0; k < m->in; k++) {
        const cot_gemm g = {.type = COT_F32,
                            .format = format,
                            .m = 1,
                            .n = m->out,
                            .k = m->in,
                            .a = a,
                            .a_stride = m->in,
                            .b = b,
                            .b_panel_bytes = cot_panel_bytes(format, m->in),
                            .c = c,
                            .c_stride = m->out};
        a[k] = 1;
        cot_isa_ref.kernels.gemm(&g, 0, 1, 0, cot_panels(m->out));
        a[k] = 0;
        for (int64_t n = 0; n < m->out; n++)
            if (c[n] != element_of(l, m, n, k))
                fail_msg("%s packed row %d column %d: %g, expected %g", l->config, (int)n, (int)k,
                         (double)c[n], (double)element_of(l, m, n, k));
    }
    free(b);
}

#define CT(format) "\"quant_method\": \"compressed-tensors\", \"format\": \"" format "\""
static const layout layouts[] = {
    {"\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 32, \"sym\": true", GPTQ, 4, 32, false, 1,
     COT_F16, false},
    {"\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 64, \"sym\": false, \"desc_act\": false", GPTQ,
     4, 64, true, 1, COT_F16, false},
    {"\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 32, \"sym\": false, \"checkpoint_format\": "
     "\"gptq_v2\"",
     GPTQ, 4, 32, true, 0, COT_BF16, false},
    {"\"quant_method\": \"gptq\", \"bits\": 8, \"group_size\": -1, \"sym\": false", GPTQ, 8, 0, true, 1,
     COT_F16, false},
    {"\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 16, \"sym\": false", GPTQ, 4, 16, true, 1,
     COT_F16, false},
    {"\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 64, \"version\": \"gemm\", \"zero_point\": "
     "true",
     AWQ, 4, 64, true, 0, COT_F16, false},
    {CT("pack-quantized"), PACKED, 4, 32, false, 0, COT_BF16, false},
    {CT("pack-quantized"), PACKED, 4, 64, true, 0, COT_BF16, false},
    {CT("pack-quantized"), PACKED, 4, 0, false, 0, COT_F32, false},
    {CT("pack-quantized"), PACKED, 8, 32, true, 0, COT_BF16, false},
    {CT("int-quantized"), BYTES, 8, 0, false, 0, COT_BF16, false},
    {CT("naive-quantized"), BYTES, 8, 64, true, 0, COT_F32, false},
    {CT("float-quantized"), E4M3, 8, 0, false, 0, COT_BF16, false},
    {CT("naive-quantized"), E4M3, 8, 0, false, 0, COT_F32, true},
    {CT("mxfp4-pack-quantized"), E2M1, 4, 32, false, 0, COT_U8, false},
};

static void every_layout(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        const layout *l = &layouts[i];
        model m = make(l, &seed);
        cot_checkpoint *checkpoint = opened(m.f->path);
        const cot_format format = cot_checkpoint_expert_format(checkpoint);
        expect_read(checkpoint, l, &m.k, COT_WEIGHT_K, 0);
        // groups that COT_SUM_K does not divide are widened
        assert_int_equal(format == COT_FORMATS, l->group == 16);
        for (int e = 0; e < E; e++)
            for (int w = 0; w < 3; w++) {
                const cot_weight weight = COT_WEIGHT_EXPERT_GATE + (cot_weight)w;
                expect_read(checkpoint, l, &m.experts[e][w], weight, e);
                if (format == COT_FORMATS) continue;
                assert_int_equal(cot_format_zeros(format), l->asymmetric);
                assert_int_equal(cot_format_row_of(format)->bits, l->bits);
                expect_packed(checkpoint, l, &m.experts[e][w], weight, e, format);
            }
        cot_checkpoint_close(checkpoint);
        discard(&m);
    }
}

/* ---- what is refused ---- */

static void refused_at_open(const model *m, const char *words)
{
    cot_checkpoint *checkpoint = NULL;
    char *notes = NULL;
    cot_error error = {0};
    write_all(m->f);
    if (cot_checkpoint_open(&checkpoint, m->f->path, &notes, &error) == COT_OK ||
        !strstr(error.message, words))
        fail_msg("'%s', not '%s'", error.message, words);
}

static void refused_at_reading(const model *m, const char *words)
{
    static float out[H * I];
    cot_error error = {0};
    write_all(m->f);
    cot_checkpoint *checkpoint = opened(m->f->path);
    const cot_weight_piece all = {COT_WEIGHT_EXPERT_DOWN, 0, 1, 0, H, 0, I};
    assert_int_equal(cot_checkpoint_read(checkpoint, &all, out, &error), COT_INVALID_ARGUMENT);
    if (!strstr(error.message, words) || !strstr(error.message, "experts.1.down_proj"))
        fail_msg("'%s'", error.message);
    const cot_format format = cot_checkpoint_expert_format(checkpoint);
    uint8_t *b = dirty(cot_packed_bytes(format, I, H));
    assert_int_equal(cot_checkpoint_pack(checkpoint, &all, &(cot_packed_part){b, format, H, 0}, &error),
                     COT_INVALID_ARGUMENT);
    if (!strstr(error.message, words)) fail_msg("'%s'", error.message);
    free(b);
    cot_checkpoint_close(checkpoint);
}

static void wrong_files(void **state)
{
    (void)state;
    static const char down[] = "model.layers.0.mlp.experts.1.down_proj.";
    uint64_t seed = test_seed();
    char name[128];
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        const layout *l = &layouts[i];
        if (l->group == 16 || l->one_scale || l->way == E2M1) continue;
        model m = make(l, &seed);
        const bool transposed = l->way == GPTQ || l->way == AWQ;
        snprintf(name, sizeof name, "%s%s", down, transposed ? "scales" : "weight_scale");
        cot_tensor *scales = tensor_of(m.f, name);
        const int64_t last = (int64_t)cot_tensor_elements(scales) - 1;
        put_scale(scales, last, 0);
        refused_at_reading(&m, "a scale of zero in row 127");
        put_scale(scales, last, NAN);
        refused_at_reading(&m, "a scale that is NaN in row 127");
        put_scale(scales, last, 1);
        if (l->way == GPTQ && !l->asymmetric) {
            snprintf(name, sizeof name, "%sqzeros", down);
            cot_tensor *zeros = tensor_of(m.f, name);
            ((uint32_t *)(uintptr_t)zeros->data)[0] ^= 1;
            refused_at_reading(&m, "a zero point that is not the middle");
            ((uint32_t *)(uintptr_t)zeros->data)[0] ^= 1;
        }
        if (l->way == GPTQ) {
            snprintf(name, sizeof name, "%sg_idx", down);
            cot_tensor *order = tensor_of(m.f, name);
            ((int32_t *)(uintptr_t)order->data)[I - 1]++;
            refused_at_reading(&m, "do not lie in order");
            ((int32_t *)(uintptr_t)order->data)[I - 1]--;
            order->dtype = COT_U32;
            refused_at_open(&m, "g_idx' is stored as U32");
            order->dtype = COT_I32;
        }
        scales->shape[0]--; // a row less
        scales->bytes -= cot_dtype_bytes(scales->dtype) * (size_t)(scales->dims == 2 ? scales->shape[1] : 1);
        refused_at_open(&m, l->way == E4M3 ? "nor its scales tell the blocks" : "has shape");
        discard(&m);
    }
    layout l = layouts[0];
    l.config = "\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 48";
    model m = make(&l, &seed);
    refused_at_open(&m, "128 columns are not divided by 48");
    discard(&m);
    l = (layout){CT("naive-quantized"),
                 BYTES,
                 8,
                 0,
                 true,
                 0,
                 COT_F32,
                 true}; // a zero point for one scale, and too many
    m = make(&l, &seed);
    refused_at_open(&m, "weight_zero_point' has shape [32][1], expected [1][1]");
    discard(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_layout), cmocka_unit_test(wrong_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
