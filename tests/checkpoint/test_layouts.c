/* Whole numbers and MXFP4 in the hub's layouts: what harness/model/layouts.h writes must be read, and packed as it is stored, as (code - zero point) times scale, to the bit. */
#include "harness/cmocka.h"
#include "harness/checkpoint/formats.h"
#include "harness/checkpoint/layouts.h"
#include "harness/checkpoint/weights.h"
#include "harness/seed.h"

#include "kernels/isa.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect_read(const cot_checkpoint *checkpoint, const layout *l, const matrix *m, cot_weight weight,
                        int64_t expert)
{
    int64_t rows, columns;
    float *all = whole(checkpoint, weight, 0, expert, &rows, &columns);
    assert_int_equal(rows, m->out);
    assert_int_equal(columns, m->in);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            if (all[r * columns + c] != layout_element(l, m, r, c))
                fail_msg("%s row %d column %d: %g, expected %g", l->config, (int)r, (int)c,
                         (double)all[r * columns + c], (double)layout_element(l, m, r, c));
    free(all);
}

/* Packed as it is stored, a product with rows of one 1 among zeros has the elements; of columns [column0, column0 + k). */
static void expect_packed(const cot_checkpoint *checkpoint, const layout *l, const matrix *m,
                          cot_weight weight, int64_t expert, cot_format format, int64_t column0, int64_t k)
{
    static float a[LAYOUT_H * LAYOUT_H], c[LAYOUT_H * LAYOUT_H];
    uint8_t *b = dirty(cot_packed_bytes(format, k, m->out));
    const cot_weight_piece piece = {weight, 0, expert, 0, m->out, column0, k};
    const cot_packed packed = {b, format, false, k, m->out};
    assert_int_equal(cot_checkpoint_pack(checkpoint, &piece, &(cot_packed_part){b, format, m->out, 0}, NULL),
                     COT_OK);
    memset(a, 0, sizeof a);
    for (int64_t i = 0; i < k; i++) a[i * k + i] = 1;
    cot_gemm g = cot_packed_gemm(&packed, COT_F32, k, 0, m->out);
    g.a = a;
    g.a_stride = k;
    g.c = c;
    g.c_stride = m->out;
    cot_isa_ref.kernels.gemm(&g, 0, k, 0, cot_panels(m->out));
    for (int64_t i = 0; i < k; i++)
        for (int64_t n = 0; n < m->out; n++)
            if (c[i * m->out + n] != layout_element(l, m, n, column0 + i))
                fail_msg("%s packed row %d column %d: %g, expected %g", l->config, (int)n, (int)(column0 + i),
                         (double)c[i * m->out + n], (double)layout_element(l, m, n, column0 + i));
    free(b);
}

/* Groups that COT_SUM_K does not divide are widened, but NVFP4's. */
static void expect_kept(cot_format format, const layout *l)
{
    const char *kept = layout_kept(l);
    assert_int_equal(format == COT_FORMATS, !kept);
    if (!kept) return;
    assert_string_equal(cot_format_row_of(format)->name, kept);
    assert_int_equal(cot_format_row_of(format)->bits, l->bits);
}

/* Attention and head: whole, and of some heads with the scales that the whole has. */
static void expect_parts(const cot_checkpoint *checkpoint, const layout *l, const model *m)
{
    for (int p = 0; p < LAYOUT_PARTS; p++) {
        const cot_weight weight = layout_parts[p].weight;
        const cot_format format = stored_format(checkpoint, &weight, 1, 0),
                         cut = cot_format_cut(format, LAYOUT_HEAD_DIM);
        expect_read(checkpoint, l, &m->parts[p], weight, 0);
        expect_kept(format, l);
        if (format == COT_FORMATS) continue;
        const int64_t in = layout_parts[p].in;
        expect_packed(checkpoint, l, &m->parts[p], weight, 0, format, 0, in);
        if (l->way == NVFP4) { // a block of 64 is in both parts
            for (int64_t column = 0; column < in; column += LAYOUT_HEAD_DIM)
                expect_packed(checkpoint, l, &m->parts[p], weight, 0, cot_format_skip(format, column % 64),
                              column, in - column < 48 ? in - column : 48);
            continue;
        }
        assert_int_equal(cot_format_group(format), l->group);
        assert_int_equal(cot_format_group(cut), l->group ? LAYOUT_HEAD_DIM : 0);
        expect_packed(checkpoint, l, &m->parts[p], weight, 0, cut, LAYOUT_HEAD_DIM, 2 * LAYOUT_HEAD_DIM);
        expect_packed(checkpoint, l, &m->parts[p], weight, 0, cut, in - LAYOUT_HEAD_DIM, LAYOUT_HEAD_DIM);
        if (!l->group) // a column's own scale is that of any of its rows
            expect_packed(checkpoint, l, &m->parts[p], weight, 0, cut, 5, 45);
    }
}

static void every_layout(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (size_t i = 0; i < LAYOUTS; i++) {
        const layout *l = &layouts[i];
        model m = layout_make(l, &seed);
        cot_checkpoint *checkpoint = opened(m.f->path);
        const cot_format format = experts_format(checkpoint);
        expect_parts(checkpoint, l, &m);
        expect_kept(format, l);
        for (int e = 0; e < LAYOUT_E; e++)
            for (int w = 0; w < 3; w++) {
                const cot_weight weight = COT_WEIGHT_EXPERT_GATE + (cot_weight)w;
                expect_read(checkpoint, l, &m.experts[e][w], weight, e);
                if (format == COT_FORMATS) continue;
                assert_int_equal(cot_format_zeros(format), l->asymmetric);
                expect_packed(checkpoint, l, &m.experts[e][w], weight, e, format, 0, m.experts[e][w].in);
            }
        cot_checkpoint_close(checkpoint);
        layout_discard(&m);
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
    static float out[LAYOUT_H * LAYOUT_I];
    cot_error error = {0};
    write_all(m->f);
    cot_checkpoint *checkpoint = opened(m->f->path);
    const cot_weight_piece all = {COT_WEIGHT_EXPERT_DOWN, 0, 1, 0, LAYOUT_H, 0, LAYOUT_I};
    assert_int_equal(cot_checkpoint_read(checkpoint, &all, out, &error), COT_INVALID_ARGUMENT);
    if (!strstr(error.message, words) || !strstr(error.message, "experts.1.down_proj"))
        fail_msg("'%s'", error.message);
    const cot_format format = experts_format(checkpoint);
    uint8_t *b = dirty(cot_packed_bytes(format, LAYOUT_I, LAYOUT_H));
    assert_int_equal(
        cot_checkpoint_pack(checkpoint, &all, &(cot_packed_part){b, format, LAYOUT_H, 0}, &error),
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
    for (size_t i = 0; i < LAYOUTS; i++) {
        const layout *l = &layouts[i];
        if (l->group % 32 || l->one_scale || l->way == E2M1) continue; // NVFP4: test_nvfp4.c
        model m = layout_make(l, &seed);
        const bool transposed = l->way == GPTQ || l->way == AWQ;
        snprintf(name, sizeof name, "%s%s", down, transposed ? "scales" : "weight_scale");
        cot_tensor *scales = tensor_of(m.f, name);
        const int64_t last = (int64_t)cot_tensor_elements(scales) - 1;
        layout_put_scale(scales, last, 0);
        refused_at_reading(&m, "a scale of zero in row 127");
        layout_put_scale(scales, last, NAN);
        refused_at_reading(&m, "a scale that is NaN in row 127");
        layout_put_scale(scales, last, 1);
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
            ((int32_t *)(uintptr_t)order->data)[LAYOUT_I - 1]++;
            refused_at_reading(&m, "do not lie in order");
            ((int32_t *)(uintptr_t)order->data)[LAYOUT_I - 1]--;
            order->dtype = COT_U32;
            refused_at_open(&m, "g_idx' is stored as U32");
            order->dtype = COT_I32;
        }
        if (l->way == PACKED) {
            snprintf(name, sizeof name, "%sweight_shape", down);
            cot_tensor *shape = tensor_of(m.f, name);
            for (int d = 0; d < 2; d++) {
                ((int64_t *)(uintptr_t)shape->data)[d]++;
                refused_at_reading(&m, "its weight_shape says otherwise");
                ((int64_t *)(uintptr_t)shape->data)[d]--;
            }
            shape->dtype = COT_F64;
            refused_at_open(&m, "weight_shape' is stored as F64, expected I64 or I32");
            shape->dtype = COT_I32; // of half the bytes, the low ones of the rows: columns are 0
            shape->bytes /= 2;
            refused_at_reading(&m, "its weight_shape says otherwise");
            ((int32_t *)(uintptr_t)shape->data)[0]++;
            ((int32_t *)(uintptr_t)shape->data)[1] = LAYOUT_I;
            refused_at_reading(&m, "its weight_shape says otherwise");
            ((int32_t *)(uintptr_t)shape->data)[0]--;
            write_all(m.f);
            cot_checkpoint *checkpoint = opened(m.f->path);
            int64_t rows, columns;
            free(whole(checkpoint, COT_WEIGHT_EXPERT_DOWN, 0, 1, &rows, &columns));
            cot_checkpoint_close(checkpoint);
            shape->shape[0] = 1;
            shape->bytes /= 2;
            refused_at_open(&m, "weight_shape' has shape [1], expected [2]");
            shape->shape[0] = 2;
            shape->bytes *= 2;
        }
        scales->shape[0]--; // a row less
        scales->bytes -= cot_dtype_bytes(scales->dtype) * (size_t)(scales->dims == 2 ? scales->shape[1] : 1);
        refused_at_open(&m, l->way == E4M3 ? "nor its scales tell the blocks" : "has shape");
        layout_discard(&m);
    }
    layout l = {.config = "\"quant_method\": \"compressed-tensors\", \"format\": \"naive-quantized\"",
                .way = BYTES,
                .bits = 8,
                .asymmetric = true, // a zero point for one scale, and too many
                .scale = COT_F32,
                .one_scale = true};
    model m = layout_make(&l, &seed);
    refused_at_open(&m, "weight_zero_point' has shape [40][1], expected [1][1]");
    layout_discard(&m);
}

/* The folder's config.json, and what it said of quantisation in a file of its own. */
static void put_beside(const model *m, const char *name, const char *text)
{
    char path[128], config[1600] = "";
    snprintf(path, sizeof path, "%s/config.json", m->f->path);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_true(fread(config, 1, sizeof config - 1, file) > 0);
    fclose(file);
    char *at = strstr(config, ", \"quantization_config\"");
    if (at) strcpy(at, "}");
    write_text(m->f, "config.json", config);
    write_text(m->f, name, text);
}

/* Files beside config.json say what it does not. */
static void told_beside(void **state)
{
    (void)state;
    static const struct {
        int layout;
        const char *name, *text;
    } cases[] = {
        {1, "quantize_config.json",
         "{\"bits\": 4, \"group_size\": 64, \"damp_percent\": 0.01, \"desc_act\": true, \"static_groups\": "
         "false, "
         "\"sym\": false, \"true_sequential\": true, \"model_name_or_path\": null, \"model_file_base_name\": "
         "\"model\", "
         "\"is_marlin_format\": false}"},
        {2, "quantize_config.json",
         "{\"bits\": 4, \"group_size\": 32, \"sym\": false, \"quant_method\": \"gptq\", "
         "\"checkpoint_format\": \"gptq_v2\"}"},
        {7, "quant_config.json",
         "{\"zero_point\": true, \"q_group_size\": 64, \"w_bit\": 4, \"version\": \"GEMM\"}"},
        {7, "quantize_config.json", "{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 64}"},
        {1, "quantize_config.json",
         "{\"quant_method\": \"auto-round\", \"packing_format\": \"auto_round:auto_gptq\", \"bits\": 4, "
         "\"group_size\": 64, "
         "\"sym\": false}"},
    };
    uint64_t seed = test_seed();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const layout *l = &layouts[cases[i].layout];
        model m = layout_make(l, &seed);
        put_beside(&m, cases[i].name, cases[i].text);
        write_all(m.f);
        cot_checkpoint *checkpoint = opened(m.f->path);
        for (int w = 0; w < 3; w++)
            expect_read(checkpoint, l, &m.experts[1][w], COT_WEIGHT_EXPERT_GATE + (cot_weight)w, 1);
        cot_checkpoint_close(checkpoint);
        put_beside(&m, cases[i].name, "{\"bits\": 3, \"w_bit\": 3}");
        refused_at_open(&m, "_config.json': weights of 3 bits are not supported");
        put_beside(&m, cases[i].name, "{\"quant_method\": \"gptq\", \"is_marlin_format\": true}");
        refused_at_open(&m, "gptq in marlin's format");
        put_beside(&m, cases[i].name, "[");
        refused_at_open(&m, "_config.json': not valid JSON");
        layout_discard(&m);
    }
    static const char *const beside[] = {"\"group_size\": 64",
                                         "\"group_size\": 32, \"quant_method\": \"awq\"",
                                         "\"group_size\": 64, \"quant_method\": \"awq\""};
    model m = layout_make(&layouts[7], &seed); // both files, which must say the same
    put_beside(&m, "quant_config.json", cases[2].text);
    for (int i = 0; i < 3; i++) {
        char text[128];
        snprintf(text, sizeof text, "{\"bits\": 4, %s}", beside[i]);
        write_text(m.f, "quantize_config.json", text);
        if (i < 2)
            refused_at_open(&m, "quantize_config.json and quant_config.json tell two kinds of weights");
        else
            cot_checkpoint_close(opened(m.f->path));
    }
    layout_discard(&m);
    m = layout_make(&layouts[0], &seed);
    put_beside(&m, "other.json", "{}");
    refused_at_open(&m, "config.json has no quantization_config");
    layout_discard(&m);
    m = layout_make(&layouts[0], &seed); // config.json speaks
    write_text(m.f, "quantize_config.json", "{\"bits\": 3}");
    cot_checkpoint_close(opened(m.f->path));
    folder *wide = layout_widened(&layouts[0], &m); // nothing is quantised
    write_text(wide, "quantize_config.json", "{\"bits\": 3}");
    cot_checkpoint_close(opened(wide->path));
    folder_delete(wide);
    layout_discard(&m);
}

/* Columns that may be in any group are read if a tensor says that they are in their own, or if there is one group. */
static void orders(void **state)
{
    (void)state;
#define GPTQ_OF(group, more) "\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": " group more
#define ORDERED(order)                                                                                       \
    "\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"a\": {\"weights\": {\"num_bits\": 4, "  \
    "\"actorder\": " order "}}}"
    static const struct {
        const char *config;
        bool gptq;
        int64_t group;
        const char *words; // without g_idx; NULL: read
    } cases[] = {
        {GPTQ_OF("32", ", \"desc_act\": true"), true, 32,
         "experts.1.down_proj.qweight': config.json says desc_act, and there is no g_idx"},
        {GPTQ_OF("32", ", \"dynamic\": {\"+:.*down\": {\"desc_act\": true}}"), true, 32,
         "and there is no g_idx"},
        {GPTQ_OF("32", ", \"dynamic\": {\"-:.*down\": {\"desc_act\": true}}"), true, 32, NULL},
        {GPTQ_OF("64", ", \"desc_act\": true"), true, 64, NULL}, // of 64 columns
        {GPTQ_OF("-1", ", \"desc_act\": true"), true, 0, NULL},
        {ORDERED("\"group\""), false, 32, "config.json says actorder, and there is no weight_g_idx"},
        {ORDERED("\"Dynamic\""), false, 32, "config.json says actorder, and there is no weight_g_idx"},
        {ORDERED("true"), false, 32, "config.json says actorder, and there is no weight_g_idx"},
        {ORDERED("\"group\""), false, 0, NULL},
        {ORDERED("\"weight\""), false, 32, NULL},
        {ORDERED("null"), false, 32, NULL},
    };
    uint64_t seed = test_seed();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const layout l = {.config = cases[i].config,
                          .way = cases[i].gptq ? GPTQ : PACKED,
                          .bits = 4,
                          .group = cases[i].group,
                          .ones_less = cases[i].gptq,
                          .scale = COT_F16};
        model m = layout_make(&l, &seed);
        for (size_t t = 0; !cases[i].gptq && t < m.f->count;
             t++) { // which compressed-tensors has beside its codes
            char name[128];
            const char *end = strstr(m.f->tensors[t].name, "weight_packed");
            if (!end) continue;
            snprintf(name, sizeof name, "%.*sweight_g_idx", (int)(end - m.f->tensors[t].name),
                     m.f->tensors[t].name);
            const int64_t in = m.f->tensors[t].shape[1] * 8;
            cot_tensor *order = add(m.f, name, COT_I32, in, 0, 0, 0);
            for (int64_t c = 0; c < in; c++)
                ((int32_t *)(uintptr_t)order->data)[c] = (int32_t)(l.group ? c / l.group : 0);
        }
        write_all(m.f);
        cot_checkpoint *checkpoint = opened(m.f->path);
        expect_read(checkpoint, &l, &m.experts[1][2], COT_WEIGHT_EXPERT_DOWN, 1);
        cot_checkpoint_close(checkpoint);
        cot_tensor *order =
            tensor_of(m.f, cases[i].gptq ? "model.layers.0.mlp.experts.1.down_proj.g_idx"
                                         : "model.layers.0.mlp.experts.1.down_proj.weight_g_idx");
        const char *name = order->name;
        order->name = "elsewhere";
        if (cases[i].words) {
            refused_at_open(&m, cases[i].words);
        } else {
            write_all(m.f);
            checkpoint = opened(m.f->path);
            expect_read(checkpoint, &l, &m.experts[1][2], COT_WEIGHT_EXPERT_DOWN, 1);
            cot_checkpoint_close(checkpoint);
        }
        order->name = name;
        ((int32_t *)(uintptr_t)order->data)[1]++;
        refused_at_reading(&m, "do not lie in order");
        layout_discard(&m);
    }
}

/* What config_groups says of matrices that are INT4 in groups of 32 without zero points: by class, by pattern, by name, the most
 * particular of them; and to be ignored. */
static void lies(void **state)
{
    (void)state;
#define INT4 "'num_bits': 4, 'group_size': 32, 'type': 'INT', 'strategy': 'group', 'symmetric': true"
#define OTHER "'num_bits': 8, 'strategy': 'channel'"
#define EXPERT "model.layers.0.mlp.experts.1.up_proj"
    static const struct {
        const char *groups, *ignored, *words; // words NULL: accepted
    } cases[] = {
        {"{'weights': {" INT4 "}}", "", NULL},
        {"{'weights': {'num_bits': 8}}", "", "has weights of 4 bits, config.json says 8"},
        {"{'weights': {'type': 'float'}}", "", "has weights of type int, config.json says float"},
        {"{'weights': {'num_bits': 4, 'group_size': 64}}", "",
         "has a scale for 1 x 32 elements, config.json says for 1 x 64"},
        {"{'weights': {'group_size': -1}}", "", "config.json says for 1 x 128"},
        {"{'weights': {'strategy': 'tensor'}}", "",
         "lm_head.weight_packed' has a scale for 1 x 32 elements, config.json says for 40 x 128"},
        {"{'weights': {'strategy': 'block', 'block_structure': '16x32'}}", "",
         "config.json says for 16 x 32"},
        {"{'weights': {'symmetric': false}}", "", "has no zero points, config.json says that it has"},
        {"{'weights': {'group_size': 'a'}}", "", "'group_size' is"},
        {"{'targets': ['Linear'], 'weights': {" OTHER "}}", "", "config.json says 8"},
        {"{'targets': ['Embedding'], 'weights': {" OTHER "}}", "", NULL},
        {"{'targets': ['Linear'], 'weights': null}", "", NULL},
        {"{'targets': ['re:.*up_proj$'], 'weights': {" OTHER "}}", "",
         "experts.0.up_proj.weight_packed' has"},
        {"{'targets': ['re:mlp'], 'weights': {" OTHER "}}", "", NULL}, // patterns fit the beginning
        {"{'targets': ['Linear'], 'weights': {" INT4
         "}}, 'b': {'targets': ['re:.*experts'], 'weights': {" OTHER "}}",
         "", "experts.0.gate_proj.weight_packed' has"},
        {"{'targets': ['re:.*experts'], 'weights': {" INT4
         "}}, 'b': {'targets': ['Linear'], 'weights': {" OTHER "}}",
         "", "lm_head.weight_packed' has"},
        {"{'targets': ['Linear'], 'weights': {" INT4 "}}, 'b': {'targets': ['" EXPERT "'], 'weights': {" OTHER
         "}}",
         "", EXPERT ".weight_packed' has"},
        {"{'targets': ['" EXPERT "', 'Linear'], 'weights': {" INT4
         "}}, 'b': {'targets': ['re:.*up_proj'], 'weights': {" OTHER "}}",
         "", "experts.0.up_proj.weight_packed' has"},
        {"{'targets': ['re:.*1.up_proj'], 'weights': {" OTHER
         "}}, 'b': {'targets': ['re:.*up_proj', 'Linear'], 'weights': {" INT4 "}}",
         "", NULL}, // of several patterns any
        {"{'targets': ['re:.*up_proj', 'Linear'], 'weights': {" INT4
         "}}, 'b': {'targets': ['re:.*1.up_proj'], 'weights': {" OTHER "}}",
         "", NULL},
        {"{'targets': ['re:.*'], 'weights': {" INT4 "}}, 'b': {'targets': ['Linear'], 'weights': {" OTHER
         "}}",
         "", NULL},
        {"{'targets': ['Linear'], 'weights': {" OTHER "}}, 'b': {'targets': ['re:.*'], 'weights': {" INT4
         "}}",
         "", NULL},
        {"{'weights': {" INT4 "}}", "'model.layers.0.self_attn', 're:.*mlp.gate$', 'Embedding'", NULL},
        {"{'weights': {" INT4 "}}", "'re:.*down'",
         "experts.0.down_proj.weight_packed' is quantised, config.json says 'ignore'"},
        {"{'weights': {" INT4 "}}", "'lm_head'", "lm_head.weight_packed' is quantised"},
        {"{'weights': {" INT4 "}}", "'Linear'", "is quantised"},
        {"{'weights': {" INT4 "}}", "'re:(.+)+[^a-z]{4}'", NULL}, // gives up early
    };
    uint64_t seed = test_seed();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char config[600];
        snprintf(config, sizeof config,
                 "'quant_method': 'compressed-tensors', 'config_groups': {'a': %s}, 'ignore': [%s]",
                 cases[i].groups, cases[i].ignored);
        for (char *at = config; *at; at++) *at = *at == '\'' ? '"' : *at;
        const layout l = {.config = config, .way = PACKED, .bits = 4, .group = 32, .scale = COT_BF16};
        model m = layout_make(&l, &seed);
        if (cases[i].words)
            refused_at_open(&m, cases[i].words);
        else
            cot_checkpoint_close(opened(m.f->path));
        layout_discard(&m);
    }
    layout l = {.config =
                    "\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"a\": {\"weights\": "
                    "{\"symmetric\": true, \"group_size\": 4096}}}", // as long as rows are
                .way = PACKED,
                .bits = 4,
                .scale = COT_BF16};
    model m = layout_make(&l, &seed);
    cot_tensor *scales = tensor_of(m.f, "lm_head.weight_scale"); // [out] for [out][1]
    scales->dims = 1;
    write_all(m.f);
    cot_checkpoint *checkpoint = opened(m.f->path);
    expect_read(checkpoint, &l, &m.parts[LAYOUT_PARTS - 1], COT_WEIGHT_OUTPUT, 0);
    cot_checkpoint_close(checkpoint);
    scales->shape[0]--;
    scales->bytes -= 2;
    refused_at_open(&m, "lm_head.weight_scale' has shape [39], expected [40]");
    layout_discard(&m);
    l.asymmetric = true;
    m = layout_make(&l, &seed);
    refused_at_reading(&m, "a zero point that is not the middle");
    layout_discard(&m);
    l.config =
        "\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"a\": {\"weights\": "
        "{\"symmetric\": true}}, \"b\": {\"targets\": [\"Other\"], \"weights\": {\"symmetric\": false}}}";
    m = layout_make(&l, &seed);
    refused_at_open(&m, "has a zero point that is not the middle, config.json says symmetric");
    layout_discard(&m);
    l.config = "\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"a\": {\"weights\": null}}";
    m = layout_make(&l, &seed); // nothing is said of weights
    write_all(m.f);
    checkpoint = opened(m.f->path);
    assert_true(cot_format_zeros(experts_format(checkpoint)));
    cot_checkpoint_close(checkpoint);
    layout_discard(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_layout), cmocka_unit_test(wrong_files),
                                       cmocka_unit_test(orders), cmocka_unit_test(told_beside),
                                       cmocka_unit_test(lies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
