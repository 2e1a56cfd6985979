/* Products, packing and rows by themselves, against the roofs of the same run (`coterie bench kernels` measures networks).
 *
 *     bench_kernels [--isa NAME] [--threads N] [--mib N]
 *
 * --mib: the weights that few rows read, by default four times the last-level cache. A figure is the median of its runs and their spread; what else runs on the machine is in it. */
#include "base/clock.h"
#include "base/rng.h"
#include "coterie/roof.h"
#include "kernels/matmul.h"
#include "kernels/pack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { RUNS = 9 };

struct bench {
    const cot_kernels *kernels;
    cot_pool *pool;
    cot_roof roof;
    int64_t cold_bytes; // weights that no cache holds
};

static void *allocate(size_t bytes) // or exits
{
    const size_t huge = 2 << 20, unit = bytes < huge ? 64 : huge; // the roof reads huge pages, too
    void *p = aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
    if (p && unit == huge) madvise(p, bytes, MADV_HUGEPAGE);
    if (!p) {
        fprintf(stderr, "bench_kernels: out of memory for %zu bytes\n", bytes);
        exit(1);
    }
    return p;
}

/* Small whole numbers and halves, in any of the three types. */
static void *values(cot_dtype type, int64_t n)
{
    char *x = allocate((size_t)n * cot_dtype_bytes(type));
    for (int64_t i = 0; i < n; i++) {
        float value = (float)(cot_mix64((uint64_t)i) % 17) / 2 - 4;
        uint16_t half = type == COT_F16 ? cot_f32_to_f16(value) : cot_f32_to_bf16(value);
        if (type == COT_F32)
            memcpy(x + 4 * i, &value, 4);
        else
            memcpy(x + 2 * i, &half, 2);
    }
    return x;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median seconds of `body`, its least and most; one run before to warm up. */
static double seconds(void (*body)(void *), void *context, double *least, double *most)
{
    double times[RUNS];
    body(context);
    for (int i = 0; i < RUNS; i++) {
        int64_t begin = cot_now_ns();
        body(context);
        times[i] = (double)(cot_now_ns() - begin) * 1e-9;
    }
    qsort(times, RUNS, sizeof *times, by_value);
    *least = times[0];
    *most = times[RUNS - 1];
    return times[RUNS / 2];
}

static void report(const char *name, double amount, const char *unit, double roof, void (*body)(void *),
                   void *context)
{
    double least, most, median = seconds(body, context, &least, &most);
    printf("%-36s %9.2f %s  (%.2f to %.2f)", name, amount / median * 1e-9, unit, amount / most * 1e-9,
           amount / least * 1e-9);
    if (roof > 0) printf("  %5.1f %% of the roof", 100 * amount / median / roof);
    printf("\n");
    fflush(stdout);
}

struct product {
    const struct bench *bench;
    cot_gemm gemm;
};

static void multiply(void *context)
{
    const struct product *p = context;
    cot_matmul(p->bench->kernels, p->bench->pool, &p->gemm, 1);
}

static void product(const struct bench *bench, cot_dtype type, int64_t m, int64_t n, int64_t k, void *b,
                    bool decode)
{
    struct product p = {bench,
                        {.type = type,
                         .format = cot_format_of(type),
                         .m = m,
                         .n = n,
                         .k = k,
                         .a = values(type, m * k),
                         .a_stride = k,
                         .b = b,
                         .b_panel_bytes = cot_panel_bytes(cot_format_of(type), k),
                         .c = allocate((size_t)(m * n) * 4),
                         .c_stride = n}};
    char name[64];
    snprintf(name, sizeof name, "%s %s m %lld n %lld k %lld", decode ? "decode" : "prefill",
             cot_dtype_name(type), (long long)m, (long long)n, (long long)k);
    if (decode)
        report(name, (double)cot_packed_bytes(cot_format_of(type), k, n), "GB/s    ",
               bench->roof.read_bytes_per_second, multiply, &p);
    else
        report(name, 2.0 * (double)(m * n * k), "GFLOP/s ",
               type == COT_F32 ? bench->roof.f32_flops : bench->roof.bf16_flops, multiply, &p);
    free((void *)p.gemm.a);
    free(p.gemm.c);
}

static void *weights(cot_dtype type, int64_t k, int64_t n)
{
    void *source = values(type, n * k), *b = allocate((size_t)cot_packed_bytes(cot_format_of(type), k, n));
    cot_pack_columns(b, cot_format_of(type), k, n, 0, n, source, type, k);
    free(source);
    return b;
}

static void products(const struct bench *bench)
{
    static const cot_dtype types[] = {COT_BF16, COT_F32};
    static const int64_t shapes[][3] = {
        {64, 1024, 2048}, {128, 1024, 2048}, {512, 2048, 1024}, {512, 2048, 128}};
    for (int t = 0; t < 2; t++) {
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            void *b = weights(types[t], shapes[s][2], shapes[s][1]);
            product(bench, types[t], shapes[s][0], shapes[s][1], shapes[s][2], b, false);
            free(b);
        }
        int64_t k = 2048, n = bench->cold_bytes / k / (int64_t)cot_dtype_bytes(types[t]) / 32 * 32;
        void *b = weights(types[t], k, n);
        for (int64_t m = 1; m <= 8; m += m < 4 ? 1 : 2) product(bench, types[t], m, n, k, b, true);
        free(b);
    }
}

struct packing {
    void *b, *source;
    cot_format format;
    cot_dtype source_type;
    int64_t k, n;
};

static void pack(void *context)
{
    const struct packing *p = context;
    cot_pack_columns(p->b, p->format, p->k, p->n, 0, p->n, p->source, p->source_type, p->k);
}

static void packings(void)
{
    static const cot_dtype pairs[][2] = {{COT_BF16, COT_BF16},
                                         {COT_BF16, COT_F16},
                                         {COT_BF16, COT_F32},
                                         {COT_F32, COT_BF16},
                                         {COT_F32, COT_F32}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct packing p = {
            .format = cot_format_of(pairs[i][0]), .source_type = pairs[i][1], .k = 2048, .n = 16384};
        p.b = allocate((size_t)cot_packed_bytes(p.format, p.k, p.n));
        p.source = values(p.source_type, p.k * p.n);
        char name[64];
        snprintf(name, sizeof name, "pack %s from %s, one thread", cot_dtype_name(pairs[i][0]),
                 cot_dtype_name(p.source_type));
        report(name, (double)(p.k * p.n) * (double)cot_dtype_bytes(p.source_type), "GB/s    ", 0, pack, &p);
        free(p.b);
        free(p.source);
    }
}

struct rows {
    const cot_kernels *kernels;
    float *x, *y, *out;
};

enum { ROW = 4096, REPEAT = 64 };

static void run_swiglu(void *context)
{
    const struct rows *r = context;
    for (int i = 0; i < REPEAT; i++) r->kernels->swiglu(r->out, COT_BF16, r->x, r->y, ROW);
}
static void run_softmax(void *context)
{
    const struct rows *r = context;
    for (int i = 0; i < REPEAT; i++) r->kernels->softmax(r->out, COT_F32, r->x, ROW, 0, ROW, 0.1f, NULL);
}
static void run_sum_squares(void *context)
{
    const struct rows *r = context;
    for (int i = 0; i < REPEAT; i++) r->out[i] = r->kernels->sum_squares(r->x, ROW);
}
static void run_rope(void *context)
{
    const struct rows *r = context;
    for (int i = 0; i < REPEAT; i++) r->kernels->rope(r->x, r->y, r->y, ROW / 2, true);
}
static void run_to_f32(void *context)
{
    const struct rows *r = context;
    for (int i = 0; i < REPEAT; i++) r->kernels->to_f32(r->out, r->x, COT_BF16, ROW);
}

static void row_functions(const struct bench *bench)
{
    struct rows r = {bench->kernels, values(COT_F32, ROW), allocate(ROW * 4), allocate(ROW * 4)};
    for (int i = 0; i < ROW; i++) r.y[i] = 0.5f;
    const double elements = (double)ROW * REPEAT;
    report("swiglu to BF16, one thread", elements, "G/s     ", 0, run_swiglu, &r);
    report("softmax, one thread", elements, "G/s     ", 0, run_softmax, &r);
    report("sum_squares, one thread", elements, "G/s     ", 0, run_sum_squares, &r);
    report("rope interleaved, one thread", elements, "G/s     ", 0, run_rope, &r);
    report("to_f32 from BF16, one thread", elements, "G/s     ", 0, run_to_f32, &r);
    free(r.x);
    free(r.y);
    free(r.out);
}

/* Heads of Gated DeltaNet as Qwen3.6 has them, a head a task. */
enum { DELTA = 128, DELTA_HEADS = 32, DELTA_TOKENS = 32 };

struct deltas {
    const struct bench *bench;
    cot_delta head; // of the first
    int64_t heads;
};

static void run_delta(void *context, int64_t index)
{
    const struct deltas *d = context;
    cot_delta head = d->head;
    head.state += index * DELTA * DELTA;
    head.o += index * DELTA * head.tokens;
    d->bench->kernels->delta(&head);
}

static void run_deltas(void *context)
{
    const struct deltas *d = context;
    cot_pool_run(d->bench->pool, d->heads, run_delta, context);
}

/* A prompt's tokens meet a state that lies in a cache; a token a sequence meets states of memory, which are read and written. */
static void deltas(const struct bench *bench)
{
    float a[DELTA_TOKENS], beta[DELTA_TOKENS], *rows = values(COT_F32, 3 * DELTA * DELTA_TOKENS);
    for (int64_t i = 0; i < 3 * DELTA * DELTA_TOKENS; i++) rows[i] *= 0.02f;
    for (int t = 0; t < DELTA_TOKENS; t++) {
        a[t] = 0.9f;
        beta[t] = 0.5f;
    }
    for (int decode = 0; decode < 2; decode++) {
        const double state = (double)DELTA * DELTA;
        struct deltas d = {bench,
                           {.tokens = decode ? 1 : DELTA_TOKENS,
                            .dk = DELTA,
                            .dv = DELTA,
                            .q = rows,
                            .k = rows + DELTA,
                            .v = rows + 2 * DELTA,
                            .stride = 3 * DELTA,
                            .a = a,
                            .beta = beta,
                            .o_stride = DELTA},
                           decode ? bench->cold_bytes / (4 * DELTA * DELTA) : DELTA_HEADS};
        d.head.state = values(COT_F32, d.heads * DELTA * DELTA);
        d.head.o = allocate((size_t)(d.heads * d.head.tokens) * DELTA * 4);
        if (decode)
            report("gated delta rule, decode", 8 * state * (double)d.heads, "GB/s    ",
                   bench->roof.read_bytes_per_second, run_deltas, &d);
        else
            report("gated delta rule, prefill", 7 * state * (double)(d.heads * d.head.tokens), "GFLOP/s ",
                   bench->roof.f32_flops, run_deltas, &d);
        free(d.head.state);
        free(d.head.o);
    }
    free(rows);
}

int main(int argc, char **argv)
{
    const char *isa = NULL, *threads = "1", *mib = "0";
    const struct {
        const char *name, **value;
    } options[] = {{"--isa", &isa}, {"--threads", &threads}, {"--mib", &mib}};
    for (int i = 1; i < argc; i += 2) {
        size_t o = 0, n = sizeof options / sizeof *options;
        while (o < n && strcmp(argv[i], options[o].name) != 0) o++;
        if (o == n || i + 1 == argc) {
            fprintf(stderr, "bench_kernels: unknown option or no value: '%s'\n", argv[i]);
            return 2;
        }
        *options[o].value = argv[i + 1];
    }
    struct bench bench;
    cot_error error;
    bench.cold_bytes = atoll(mib) ? atoll(mib) << 20 : 4 * (int64_t)cot_last_level_cache_bytes();
    if (cot_kernels_choose(&bench.kernels, isa, &error) ||
        cot_roof_measure(&bench.roof, atoi(threads), isa, 0, NULL, NULL, &error) ||
        cot_pool_open(&bench.pool, atoi(threads) - 1, &error)) {
        fprintf(stderr, "bench_kernels: %s\n", error.message);
        return 1;
    }
    printf("%s, isa %s, threads %s, last-level cache %zu MiB\n", cot_cpu_name(), bench.kernels->name, threads,
           cot_last_level_cache_bytes() >> 20);
    printf("roofs: f32 %.1f GFLOP/s, bf16 %.1f GFLOP/s, int8 %.1f GOP/s, read %.1f GB/s\n",
           bench.roof.f32_flops * 1e-9, bench.roof.bf16_flops * 1e-9, bench.roof.int8_ops * 1e-9,
           bench.roof.read_bytes_per_second * 1e-9);
    products(&bench);
    packings();
    row_functions(&bench);
    deltas(&bench);
    cot_pool_close(bench.pool);
    return 0;
}
