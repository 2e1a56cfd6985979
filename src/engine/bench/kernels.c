#include "base/clock.h"
#include "base/error.h"
#include "base/integers.h"
#include "base/rng.h"
#include "coterie/bench_kernels.h"
#include "engine/bench/times.h"
#include "kernels/blocks.h"
#include "moe/ffn.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { RUNS = COT_BENCH_KERNELS_RUNS, MOST_WIDTH = 1 << 16, ARITHMETICS = 3 };

static const struct {
    const char *name;
    cot_dtype type;
    bool rounded;
} arithmetics[ARITHMETICS] = {{"fp32", COT_F32, false}, {"bf16", COT_BF16, false}, {"int8", COT_BF16, true}};

/* What weights are kept as: each kind of the table of formats, and as GGUF's files have two of them, in groups of 32. */
static struct form {
    const char *name;
    cot_format format;
} form_at(int i)
{
    const struct form more[] = {{"q8_0", cot_format_with(COT_FORMAT_INT8, COT_BLOCKS_GROUP, COT_F16, false)},
                                {"q4_0", cot_format_with(COT_FORMAT_INT4, COT_BLOCKS_GROUP, COT_F16, false)}};
    return i < COT_FORMATS ? (struct form){cot_formats[i].name, (cot_format)i} : more[i - COT_FORMATS];
}
enum { FORMS = COT_FORMATS + 2 };

/* What is measured, and what of it is in hand. */
struct bench {
    const cot_bench_kernels_options *options;
    const cot_kernels *kernels;
    cot_pool *pool;
    int64_t bytes; // at least, of weights
    size_t done, total;
    /* Of the form in hand: */
    const char *form;
    cot_ffn_shape shape;
    int64_t experts;
    uint8_t *weights;
    void *x;
    float *y;
    cot_ffn_job *jobs;
    void *scratch;
};

/* With more rows than that the first network's weights are enough: multiplying takes longer than reading. */
enum { FEW_ROWS = 64 };

static void *allocate(size_t bytes)
{
    const size_t huge = 2 << 20, unit = bytes < huge ? 64 : huge; // the roof reads huge pages, too
    void *p = aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
    if (p && unit == huge) madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

static void fill(uint8_t *bytes, size_t n, uint64_t seed)
{
    for (size_t i = 0; i + 8 <= n; i += 8) {
        const uint64_t word = cot_mix64(seed + i);
        memcpy(bytes + i, &word, sizeof word);
    }
}

/* Small numbers, as rows and as weights that have no scales. */
static void fill_numbers(void *out, cot_dtype type, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const float value = (float)(cot_mix64((uint64_t)i) % 17) / 16 - 0.5f;
        const uint16_t half = cot_f32_to_bf16(value);
        if (type == COT_F32)
            ((float *)out)[i] = value;
        else
            ((uint16_t *)out)[i] = half;
    }
}

static void fill_scales(uint8_t *scales, cot_dtype type, size_t bytes)
{
    const float small = 1.0f / 128;
    const uint16_t half = type == COT_F16 ? cot_f32_to_f16(small) : cot_f32_to_bf16(small);
    const size_t each = cot_dtype_bytes(type);
    for (size_t i = 0; i < bytes; i += each)
        if (type == COT_F8_E8M0)
            scales[i] = 120; // 2^-7
        else
            memcpy(scales + i, type == COT_F32 ? (const void *)&small : &half, each);
}

/* Of a panel of k rows any blocks but those that are no numbers, which become zero. */
static void fill_blocks(uint8_t *panel, cot_format format, int64_t k)
{
    const cot_tensor_blocks kind = cot_format_blocks(format);
    const size_t each = (size_t)cot_tensor_block_bytes(kind),
                 scales = (size_t)cot_format_block_scales(format);
    fill_scales(panel, COT_F32, scales);
    for (size_t at = scales; at < (size_t)cot_panel_bytes(format, k); at += each)
        if (!cot_blocks_are_finite(panel + at, kind, cot_tensor_block_elements(kind)))
            memset(panel + at, 0, each);
}

/* A network as it is packed: any codes, and scales that keep numbers small. */
static void fill_network(uint8_t *weights, const cot_ffn_shape *shape, const cot_ffn_layout *at,
                         uint64_t seed)
{
    const cot_dtype scale = cot_format_scale(shape->up);
    *(cot_ffn_header *)(void *)weights = (cot_ffn_header){shape->gate, shape->up, shape->down};
    weights += at->gate;
    if (scale == COT_DTYPE_COUNT && !cot_format_blocks(shape->up)) {
        fill_numbers(weights, shape->type, (int64_t)((at->bytes - at->gate) / cot_dtype_bytes(shape->type)));
        return;
    }
    fill(weights, at->bytes - at->gate, seed);
    if (shape->up == COT_FORMAT_FP8) // no NaN
        for (size_t i = 0; i < at->bytes - at->gate; i++) weights[i] &= 0xbf;
    const size_t parts[] = {0, at->up - at->gate, at->down - at->gate, at->gate_bias - at->gate};
    for (int p = 0; p < 3; p++) {
        const int64_t k = p < 2 ? shape->hidden : shape->intermediate;
        const cot_panel_blocks blocks = cot_panel_blocks_of(shape->up, k);
        for (size_t panel = parts[p]; panel < parts[p + 1]; panel += (size_t)cot_panel_bytes(shape->up, k))
            if (cot_format_blocks(shape->up))
                fill_blocks(weights + panel, shape->up, k);
            else
                for (int64_t g = 0; g < cot_format_groups(shape->up, k); g++)
                    fill_scales(weights + panel + cot_scales_at(&blocks, g), scale,
                                (size_t)blocks.scale_bytes);
    }
}

static void run(struct bench *b, int64_t experts)
{
    cot_ffn_run(b->kernels, b->pool, &b->shape, b->jobs, experts, b->scratch);
}

static void measure(cot_bench_kernels_row *row, struct bench *b, int64_t rows)
{
    const int64_t experts = rows <= FEW_ROWS ? b->experts : 1;
    int64_t ns[RUNS];
    for (int64_t e = 0; e < experts; e++) b->jobs[e].count = rows;
    run(b, experts);
    for (int i = 0; i < RUNS; i++) {
        const int64_t began = cot_now_ns();
        run(b, experts);
        ns[i] = cot_now_ns() - began;
    }
    const double median_ns = cot_bench_median(ns, RUNS);
    *row = (cot_bench_kernels_row){
        .weights = b->form,
        .isa = b->kernels->name,
        .rows = rows,
        .experts = experts,
        .weight_bytes = (int64_t)cot_ffn_layout_of(&b->shape).bytes * experts,
        .operations = 6.0 * (double)(rows * b->shape.hidden * b->shape.intermediate * experts),
        .least_ns = (double)ns[0],
        .median_ns = median_ns,
        .most_ns = (double)ns[RUNS - 1]};
}

static double drift_of(double a, double b)
{
    return a > b ? a / b : b / a;
}

/* The higher of two measurements, and how far they are apart. */
static cot_roof higher(double *drift, const cot_roof *a, const cot_roof *b)
{
    const double of_a[] = {a->f32_flops, a->bf16_flops, a->int8_ops, a->read_bytes_per_second},
                 of_b[] = {b->f32_flops, b->bf16_flops, b->int8_ops, b->read_bytes_per_second};
    double most[4];
    *drift = 1;
    for (int i = 0; i < 4; i++) {
        most[i] = of_a[i] > of_b[i] ? of_a[i] : of_b[i];
        if (drift_of(of_a[i], of_b[i]) > *drift) *drift = drift_of(of_a[i], of_b[i]);
    }
    return (cot_roof){most[0], most[1], most[2], most[3], a->buffer_bytes};
}

static void hold_against_roofs(cot_bench_kernels_row *row, int arithmetic)
{
    const double roofs[ARITHMETICS] = {row->roof.f32_flops, row->roof.bf16_flops, row->roof.int8_ops};
    row->precision = arithmetics[arithmetic].name;
    row->read_share = (double)row->weight_bytes / row->median_ns * 1e9 / row->roof.read_bytes_per_second;
    row->multiply_share = row->operations / row->median_ns * 1e9 / roofs[arithmetic];
    row->reads_bound = row->read_share > row->multiply_share;
    row->over_roof = 1 / (row->reads_bound ? row->read_share : row->multiply_share);
}

static cot_status roof_now(cot_roof *roof, const struct bench *b, cot_error *error)
{
    return cot_roof_measure(roof, b->options->threads, b->options->isa, (size_t)b->bytes, NULL, NULL, error);
}

static void close_form(struct bench *b)
{
    free(b->weights), free(b->x), free(b->y), free(b->jobs), free(b->scratch);
}

/* Draws experts and rows. To be closed whatever comes of it. */
static cot_status open_form(struct bench *b, struct form form, int arithmetic, cot_error *error)
{
    const cot_bench_kernels_options *o = b->options;
    const cot_format format = form.format;
    b->form = form.name;
    b->shape = (cot_ffn_shape){.type = arithmetics[arithmetic].type,
                               .rounded = arithmetics[arithmetic].rounded,
                               .gate = format,
                               .up = format,
                               .down = format,
                               .hidden = o->hidden,
                               .intermediate = o->intermediate};
    const cot_ffn_layout at = cot_ffn_layout_of(&b->shape);
    int64_t most = 0, few = 0;
    for (size_t i = 0; i < o->n_rows; i++) {
        if (o->rows[i] > most) most = o->rows[i];
        if (o->rows[i] > few && o->rows[i] <= FEW_ROWS) few = o->rows[i];
    }
    b->experts = cot_divide_up(b->bytes, (int64_t)at.bytes);
    const int64_t all = cot_larger(few * b->experts, most);
    b->weights = allocate(at.bytes * (size_t)b->experts);
    b->x = allocate((size_t)(most * o->hidden) * cot_dtype_bytes(b->shape.type));
    b->y = allocate((size_t)(all * o->hidden) * sizeof *b->y);
    b->jobs = malloc((size_t)b->experts * sizeof *b->jobs);
    b->scratch = allocate(cot_ffn_scratch_bytes(&b->shape, all, b->experts));
    if (!b->weights || !b->x || !b->y || !b->jobs || !b->scratch)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %lld experts of %zu bytes",
                        (long long)b->experts, at.bytes);
    fill_numbers(b->x, b->shape.type, most * o->hidden);
    for (int64_t e = 0; e < b->experts; e++) {
        uint8_t *weights = b->weights + at.bytes * (size_t)e;
        fill_network(weights, &b->shape, &at, (uint64_t)e << 32);
        b->jobs[e] = (cot_ffn_job){.weights = weights, .x = b->x, .y = b->y + e * few * o->hidden};
    }
    return COT_OK;
}

/* What `found` and `progress` are. */
struct listener {
    void (*found)(void *context, const cot_bench_kernels_row *row);
    void (*progress)(void *context, size_t done, size_t total);
    void *context;
};

/* All numbers of rows of one form and arithmetic. `roof`: that before, then that after. */
static cot_status measure_form(struct bench *b, cot_roof *roof, struct form form, int arithmetic,
                               const struct listener *l, cot_error *error)
{
    const size_t n = b->options->n_rows;
    cot_bench_kernels_row *rows = malloc(n * sizeof *rows);
    cot_status status = open_form(b, form, arithmetic, error);
    if (status == COT_OK && !rows) status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    for (size_t i = 0; i < n && status == COT_OK; i++) {
        measure(&rows[i], b, b->options->rows[i]);
        if (l->progress) l->progress(l->context, ++b->done, b->total);
    }
    close_form(b);
    const cot_roof before = *roof;
    if (status == COT_OK) status = roof_now(roof, b, error);
    for (size_t i = 0; i < n && status == COT_OK; i++) {
        rows[i].roof = higher(&rows[i].drift, &before, roof);
        hold_against_roofs(&rows[i], arithmetic);
        l->found(l->context, &rows[i]);
    }
    free(rows);
    return status;
}

/* GGUF's own forms are measured where they are named. */
static bool is_wanted(const cot_bench_kernels_options *o, int i, int arithmetic)
{
    const struct form form = form_at(i);
    const cot_format format = form.format;
    const bool own = i < COT_FORMATS && !cot_format_blocks(format);
    return (o->weights ? !strcmp(o->weights, form.name) : own) &&
           (!o->precision || !strcmp(o->precision, arithmetics[arithmetic].name)) &&
           cot_format_multiplies(format, arithmetics[arithmetic].type, arithmetics[arithmetic].rounded);
}

static cot_status check(const cot_bench_kernels_options *o, cot_error *error)
{
    int known = 0, formats = 0;
    for (int f = 0; f < FORMS; f++) formats += o->weights && !strcmp(o->weights, form_at(f).name);
    if (o->size != sizeof *o)
        return cot_fail(error, COT_INVALID_ARGUMENT, "options of %zu bytes, expected %zu", o->size,
                        sizeof *o);
    for (int a = 0; a < ARITHMETICS; a++) known += o->precision && !strcmp(o->precision, arithmetics[a].name);
    if (o->precision && !known)
        return cot_fail(error, COT_INVALID_ARGUMENT, "unknown precision '%.40s' (fp32, bf16 or int8)",
                        o->precision);
    if (o->weights && !formats)
        return cot_fail(
            error, COT_INVALID_ARGUMENT,
            "unknown weights '%.40s' (fp32, bf16, int8, fp8, int4, mxfp4, nvfp4 or GGUF's blocks, as q4_k)",
            o->weights);
    if (o->hidden < 1 || o->hidden > MOST_WIDTH || o->intermediate < 1 || o->intermediate > MOST_WIDTH)
        return cot_fail(error, COT_INVALID_ARGUMENT, "experts of %lld by %lld, expected 1 to %d each",
                        (long long)o->hidden, (long long)o->intermediate, MOST_WIDTH);
    if (!o->n_rows) return cot_fail(error, COT_INVALID_ARGUMENT, "no numbers of rows");
    for (size_t i = 0; i < o->n_rows; i++)
        if (o->rows[i] < 1 || o->rows[i] > COT_BENCH_KERNELS_MOST_ROWS)
            return cot_fail(error, COT_INVALID_ARGUMENT, "%lld rows, expected 1 to %d", (long long)o->rows[i],
                            COT_BENCH_KERNELS_MOST_ROWS);
    if (o->threads < 1 || o->threads > 256)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%d threads, expected 1 to 256", o->threads);
    if (o->weight_bytes < 0)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%lld bytes of weights, expected 0 or more",
                        (long long)o->weight_bytes);
    return COT_OK;
}

cot_status cot_bench_kernels(const cot_bench_kernels_options *o,
                             void (*found)(void *context, const cot_bench_kernels_row *row),
                             void (*progress)(void *context, size_t done, size_t total), void *context,
                             cot_error *error)
{
    const int64_t least = (int64_t)1 << 29, most = (int64_t)1 << 31,
                  caches = 2 * (int64_t)cot_last_level_cache_bytes();
    const struct listener listener = {found, progress, context};
    struct bench b = {.options = o};
    cot_roof roof;
    cot_status status = check(o, error);
    if (status != COT_OK) return status;
    b.bytes = o->weight_bytes ? o->weight_bytes : caches < least ? least : caches < most ? caches : most;
    for (int f = 0; f < FORMS; f++)
        for (int a = 0; a < ARITHMETICS; a++) b.total += is_wanted(o, f, a) ? o->n_rows : 0;
    if (!b.total)
        return cot_fail(error, COT_INVALID_ARGUMENT, "weights in %s are not multiplied in precision %s",
                        o->weights, o->precision);
    status = cot_kernels_choose(&b.kernels, o->isa, error);
    if (status == COT_OK) status = cot_pool_open(&b.pool, o->threads - 1, error);
    if (status == COT_OK && progress) progress(context, 0, b.total);
    if (status == COT_OK) status = roof_now(&roof, &b, error);
    for (int f = 0; f < FORMS; f++)
        for (int a = 0; a < ARITHMETICS && status == COT_OK; a++)
            if (is_wanted(o, f, a)) status = measure_form(&b, &roof, form_at(f), a, &listener, error);
    cot_pool_close(b.pool);
    return status;
}
