/* Where the time of one thread goes in a layer of experts, by operator `fused`: a table with a row for each number of tokens.
 *
 *     bench_layer [--shape olmoe] [--tokens 1,4,8,16,32,64,128,512] [--precision bf16] [--weights as-stored]
 *                 [--isa NAME] [--threads 2] [--runs 9] [--roofs GFLOPS,GB]
 *
 * --shape: a name, or H,I,E,K. --runs: 5 or more. --roofs: of all threads, where they are known; else they are measured. The
 * thread is the one that calls the operator; the others help it as they always do. Times are of the median run, in microseconds.
 *
 * This program wraps the operator's tasks and the table of kernels, and reads the clock around each task and each product, which adds some
 * 0.1 us to a task; the library knows nothing of it. In runs of their own each product is made again at once, of which the operator's
 * time is not told: its weights are then in the core's caches, as far as these hold a piece, so that it takes what multiplying takes.
 * A part of its panels after that tells what of it does not grow with the panels: laying out the rows. */
#include "coterie/bench_moe.h"

#include "base/clock.h"
#include "base/integers.h"
#include "moe/fused/fused.h"
#include "moe/fused/state.h"
#include "processor_time.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RUNS = 99, LEAST_RUNS = COT_BENCH_LEAST_REPEATS, MOST_CASES = 16, OPS = COT_FUSED_COMBINE + 1 };

static void die(const char *message)
{
    fprintf(stderr, "bench_layer: %s\n", message);
    exit(1);
}

/* ---- what is wrapped ---- */

/* What a thread's tasks took in a call of the operator. */
struct marks {
    int64_t whole_ns, task_ns[OPS], product_ns[OPS]; // a product's time is in its task's
    int64_t again_ns, bytes;                         // of weights that products read
    double packing_ns, operations;
};

static _Thread_local struct marks now;
static _Thread_local cot_fused_op op_now;
static bool timed;  // whether a table that is asked for is the timed one
static bool repeat; // whether products are made again
static void (*multiply)(const cot_gemm *g, int64_t m0, int64_t m1, int64_t p0, int64_t p1);

static struct marks
    runs[2][MOST_RUNS + 1]; // plain ones and those with repeats; the first one is the operator's warming up
static int n_runs;

static int64_t product_ns(const cot_gemm *g, int64_t m0, int64_t m1, int64_t p0, int64_t p1)
{
    const int64_t began_ns = cot_now_ns();
    multiply(g, m0, m1, p0, p1);
    return cot_now_ns() - began_ns;
}

/* The piece again, and then a part of it: the time of no panels at all is the rows'. */
static void make_again(const cot_gemm *g, int64_t m0, int64_t m1, int64_t p0, int64_t p1)
{
    const int64_t all = p1 - p0, some = (all / 2 + 1) / 2 * 2, all_ns = product_ns(g, m0, m1, p0, p1);
    now.again_ns += all_ns;
    if (some >= all) return;
    const int64_t some_ns = product_ns(g, m0, m1, p0, p0 + some);
    now.packing_ns += (double)(all * some_ns - some * all_ns) / (double)(all - some);
}

static void timed_gemm(const cot_gemm *g, int64_t m0, int64_t m1, int64_t p0, int64_t p1)
{
    if (op_now != COT_FUSED_UP && op_now != COT_FUSED_DOWN) {
        multiply(g, m0, m1, p0, p1);
        return;
    }
    now.product_ns[op_now] += product_ns(g, m0, m1, p0, p1);
    const int64_t bytes = (p1 - p0) * cot_panel_bytes(g->format, g->k);
    now.bytes += bytes;
    now.operations += 2.0 * (double)((m1 - m0) * g->k * (p1 - p0) * COT_PANEL);
    if (repeat) make_again(g, m0, m1, p0, p1);
}

cot_status __real_cot_kernels_choose(const cot_kernels **kernels, const char *cap, cot_error *error);
cot_status __wrap_cot_kernels_choose(const cot_kernels **kernels, const char *cap, cot_error *error);
cot_status __wrap_cot_kernels_choose(const cot_kernels **kernels, const char *cap, cot_error *error)
{
    static cot_kernels table;
    const cot_status status = __real_cot_kernels_choose(kernels, cap, error);
    if (status != COT_OK || !timed) return status;
    table = **kernels;
    multiply = table.gemm;
    table.gemm = timed_gemm;
    *kernels = &table;
    return COT_OK;
}

void __real_cot_fused_run(cot_fused *moe, cot_fused_task *task);
void __wrap_cot_fused_run(cot_fused *moe, cot_fused_task *task);
void __wrap_cot_fused_run(cot_fused *moe, cot_fused_task *task)
{
    op_now = task->op;
    const int64_t began_ns = cot_now_ns();
    __real_cot_fused_run(moe, task);
    now.task_ns[task->op] += cot_now_ns() - began_ns;
    op_now = COT_FUSED_GATE; // whose products, pieces of which other threads take, are not told apart
}

cot_status __real_cot_fused_forward(cot_moe *moe, const cot_moe_layer *layer, float *y, uint16_t *experts,
                                    float *weights, const float *x, int64_t tokens, cot_error *error);
cot_status __wrap_cot_fused_forward(cot_moe *moe, const cot_moe_layer *layer, float *y, uint16_t *experts,
                                    float *weights, const float *x, int64_t tokens, cot_error *error);
cot_status __wrap_cot_fused_forward(cot_moe *moe, const cot_moe_layer *layer, float *y, uint16_t *experts,
                                    float *weights, const float *x, int64_t tokens, cot_error *error)
{
    now = (struct marks){0};
    const int64_t began_ns = cot_now_ns();
    const cot_status status = __real_cot_fused_forward(moe, layer, y, experts, weights, x, tokens, error);
    now.whole_ns = cot_now_ns() - began_ns;
    if (n_runs <= MOST_RUNS) runs[repeat][n_runs++] = now;
    return status;
}

/* ---- runs ---- */

/* Whole numbers of 1 to 2^30 with commas between, as many as `most`: how many; 0 where the text is anything else. */
static int numbers(int64_t *number, int most, const char *text)
{
    int n = 0;
    for (char *end; n < most; text = end + 1) {
        number[n] = strtoll(text, &end, 10);
        if (end == text || number[n] < 1 || number[n] > 1 << 30) return 0;
        n++;
        if (!*end) return n;
        if (*end != ',') return 0;
    }
    return 0;
}

struct options {
    const char *shape, *tokens, *precision, *weights, *isa, *threads, *runs, *roofs;
};

static int by_whole(const void *a, const void *b)
{
    const int64_t x = ((const struct marks *)a)->whole_ns, y = ((const struct marks *)b)->whole_ns;
    return (x > y) - (x < y);
}

/* Runs of so many tokens, which are runs[with_repeats][1] and on; how many. */
static int run(cot_bench_moe *bench, int64_t tokens, int count, bool with_repeats, const cot_roof *roof)
{
    const cot_bench_case what = {
        .size = sizeof what, .tokens = tokens, .routing = COT_BENCH_UNIFORM, .repeats = count, .roof = *roof};
    cot_bench_load load;
    cot_bench_result result;
    cot_error error;
    int done;
    n_runs = 0;
    repeat = with_repeats;
    if (cot_bench_moe_run(bench, &load, &result, &done, &what, &error) != COT_OK) die(error.message);
    return done;
}

/* What repeats take of each byte of weights that the thread reads: medians of the runs; NAN where it read none. Packing is a difference,
 * which may come out below 0 where it is little beside what times vary by: it is told as 0 then. */
struct repeats {
    double again_ns, packing_ns;
};

static struct repeats repeats_of(const struct marks *of, int count)
{
    double again[MOST_RUNS], packing[MOST_RUNS];
    int n = 0;
    for (int i = 0; i < count; i++) {
        if (!of[i].bytes) continue; // other threads made all products
        again[n] = (double)of[i].again_ns / (double)of[i].bytes;
        packing[n++] = of[i].packing_ns / (double)of[i].bytes;
    }
    if (!n) return (struct repeats){NAN, NAN};
    return (struct repeats){bench_median(again, n), fmax(bench_median(packing, n), 0)};
}

static void print_heading(void)
{
    printf("%6s %9s | %5s %5s %5s %5s %5s %5s %5s | %9s %9s %9s | %9s %9s | %5s\n", "tokens", "us", "gate",
           "up", "down", "act", "weigh", "sum", "rest", "products", "again", "rows", "to read", "multiply",
           "over");
}

static void print_case(int64_t tokens, const struct marks *m, const struct repeats *again,
                       const cot_roof *roof, double multiply_roof, int threads)
{
    const int64_t up = m->product_ns[COT_FUSED_UP], down = m->product_ns[COT_FUSED_DOWN],
                  act = m->task_ns[COT_FUSED_UP] - up, weigh = m->task_ns[COT_FUSED_DOWN] - down,
                  gate = m->task_ns[COT_FUSED_GATE], sum = m->task_ns[COT_FUSED_COMBINE];
    const int64_t rest = m->whole_ns - up - down - act - weigh - gate - sum;
    const int64_t parts[] = {gate, up, down, act, weigh, sum, rest};
    const double share = 100 / (double)m->whole_ns, bytes = (double)m->bytes,
                 read_ns = bytes * threads / roof->read_bytes_per_second * 1e9,
                 multiply_ns = m->operations * threads / multiply_roof * 1e9;
    printf("%6lld %9.1f |", (long long)tokens, (double)m->whole_ns / 1e3);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) printf(" %4.1f%%", (double)parts[i] * share);
    printf(" | %9.1f %9.1f %9.1f | %9.1f %9.1f | %4.2fx\n", (double)(up + down) / 1e3,
           again->again_ns * bytes / 1e3, again->packing_ns * bytes / 1e3, read_ns / 1e3, multiply_ns / 1e3,
           (double)m->whole_ns / (read_ns > multiply_ns ? read_ns : multiply_ns));
    fflush(stdout);
}

static cot_bench_shape shape_of(const char *text)
{
    cot_bench_shape own = {.name = text};
    for (const cot_bench_shape *s = cot_bench_shapes; s->name; s++)
        if (!strcmp(s->name, text)) return *s;
    int64_t sizes[4];
    if (numbers(sizes, 4, text) != 4) die("a shape is a name of bench moe's, or H,I,E,K");
    own.hidden = sizes[0], own.intermediate = sizes[1], own.experts = sizes[2], own.top_k = sizes[3];
    return own;
}

static cot_roof roof_of(const struct options *o, int threads)
{
    cot_roof roof;
    cot_error error;
    int64_t given[2];
    if (!o->roofs) {
        if (cot_roof_measure(&roof, threads, o->isa, 0, NULL, NULL, &error) != COT_OK) die(error.message);
        return roof;
    }
    if (numbers(given, 2, o->roofs) != 2) die("roofs are two numbers, of GFLOP/s (GOP/s with int8) and GB/s");
    const double flops = (double)given[0] * 1e9;
    return (cot_roof){flops, flops, flops, (double)given[1] * 1e9, 0};
}

int main(int argc, char **argv)
{
    struct options o = {.shape = "olmoe",
                        .tokens = "1,4,8,16,32,64,128,512",
                        .precision = "bf16",
                        .threads = "2",
                        .runs = "9"};
    const struct {
        const char *name, **value;
    } known[] = {{"--shape", &o.shape},     {"--tokens", &o.tokens}, {"--precision", &o.precision},
                 {"--weights", &o.weights}, {"--isa", &o.isa},       {"--threads", &o.threads},
                 {"--runs", &o.runs},       {"--roofs", &o.roofs}};
    for (int i = 1; i < argc; i += 2) {
        size_t k = 0, n = sizeof known / sizeof *known;
        while (k < n && strcmp(argv[i], known[k].name) != 0) k++;
        if (k == n || i + 1 == argc) die("an option is unknown, or has no value");
        *known[k].value = argv[i + 1];
    }
    int64_t tokens[MOST_CASES], threads, count;
    const int cases = numbers(tokens, MOST_CASES, o.tokens);
    if (cases < 1) die("tokens are 1 to 16 numbers");
    if (numbers(&threads, 1, o.threads) != 1 || threads > 256) die("1 to 256 threads");
    if (numbers(&count, 1, o.runs) != 1 || count < LEAST_RUNS || count > MOST_RUNS) die("5 to 99 runs");
    const cot_roof roof = roof_of(&o, (int)threads);
    const char *const ops[] = {COT_MOE_FUSED, NULL};
    const cot_bench_moe_options options = {.size = sizeof options,
                                           .shape = shape_of(o.shape),
                                           .ranks = 1,
                                           .threads = (int)threads,
                                           .precision = o.precision,
                                           .weights = o.weights,
                                           .combine = "exact",
                                           .isa = o.isa,
                                           .ops = ops,
                                           .tokens = tokens,
                                           .n_tokens = (size_t)cases,
                                           .seed = 1};
    cot_bench_moe *bench;
    cot_error error;
    timed = true;
    if (cot_bench_moe_open(&bench, &options, &error) != COT_OK) die(error.message);
    const double multiply_roof = !strcmp(o.precision, "int8")   ? roof.int8_ops
                                 : !strcmp(o.precision, "fp32") ? roof.f32_flops
                                                                : roof.bf16_flops;
    printf("%s, %s, %s, one of %lld threads; roofs of all %.1f %s/s, %.1f GB/s\n", cot_cpu_name(), o.shape,
           o.precision, (long long)threads, multiply_roof * 1e-9,
           strcmp(o.precision, "int8") ? "GFLOP" : "GOP", roof.read_bytes_per_second * 1e-9);
    print_heading();
    for (int i = 0; i < cases; i++) {
        const int done = run(bench, tokens[i], (int)count, false, &roof);
        struct marks *plain = runs[false] + 1;
        qsort(plain, (size_t)done, sizeof *plain, by_whole);
        if (!plain[done / 2].bytes) {
            printf("%6lld other threads made all products of the median run\n", (long long)tokens[i]);
            continue;
        }
        const int again = run(bench, tokens[i], (int)count, true, &roof);
        const struct repeats repeats = repeats_of(runs[true] + 1, again);
        print_case(tokens[i], &plain[done / 2], &repeats, &roof, multiply_roof, (int)threads);
    }
    cot_bench_moe_close(bench);
    return 0;
}
