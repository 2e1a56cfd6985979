#include "coterie/roof.h"

#include "base/clock.h"
#include "base/error.h"
#include "kernels/isa.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST_THREADS = 256, FLOP_RUNS = 5, READ_RUNS = 4 };
static const double flop_run_ns = 80e6;

struct measurement;

struct worker {
    struct measurement *all;
    pthread_t thread;
    unsigned char *part;
    size_t bytes;
    int64_t begin_ns, end_ns;
    double work; // flops or bytes of the last run
};

struct measurement {
    const cot_isa_code *code;
    pthread_mutex_t gate; // held until all threads are there
    bool cancelled;
    pthread_barrier_t barrier;
    int threads;
    struct worker workers[MOST_THREADS];
    cot_roof roof;
    cot_roof_look *look;
    void *context;
    cot_error *error;
    cot_status status; // of the last look; all threads read it between two barriers
};

/* Rate of the run that all workers have just ended: all work over the time from the first start to the last
 * end. */
static double rate(const struct measurement *all)
{
    int64_t begin = INT64_MAX, end = INT64_MIN;
    double work = 0;
    for (int t = 0; t < all->threads; t++) {
        const struct worker *w = &all->workers[t];
        begin = w->begin_ns < begin ? w->begin_ns : begin;
        end = w->end_ns > end ? w->end_ns : end;
        work += w->work;
    }
    return work / fmax((double)(end - begin) * 1e-9, 1e-9);
}

/* Whether there may be another run. */
static bool note_best(struct worker *w, double *best)
{
    struct measurement *all = w->all;
    pthread_barrier_wait(&all->barrier);
    if (w == all->workers) {
        *best = fmax(*best, rate(all));
        if (all->look) all->status = all->look(all->context, all->error);
    }
    pthread_barrier_wait(&all->barrier);
    return all->status == COT_OK;
}

static bool run_flops(struct worker *w, cot_roof_loop *loop, double *best)
{
    int64_t rounds = 1000, ns = 0;
    while (rounds < INT64_MAX / 8) { // long enough to time, and it wakes the core's clock
        int64_t begin = cot_now_ns();
        loop(rounds);
        ns = cot_now_ns() - begin;
        if (ns > 2000000) break;
        rounds *= 4;
    }
    rounds = (int64_t)((double)rounds * flop_run_ns / (double)ns) + 1;
    for (int run = 0; run < FLOP_RUNS; run++) {
        pthread_barrier_wait(&w->all->barrier);
        w->begin_ns = cot_now_ns();
        w->work = loop(rounds);
        w->end_ns = cot_now_ns();
        if (!note_best(w, best)) return false;
    }
    return true;
}

static void run_reads(struct worker *w)
{
    memset(w->part, 1, w->bytes); // each thread its own pages, near it
    volatile float sink;
    for (int run = 0; run < READ_RUNS; run++) {
        pthread_barrier_wait(&w->all->barrier);
        w->begin_ns = cot_now_ns();
        sink = w->all->code->read_loop(w->part, w->bytes);
        w->end_ns = cot_now_ns();
        w->work = (double)w->bytes;
        if (!note_best(w, &w->all->roof.read_bytes_per_second)) break;
    }
    (void)sink;
}

static void *work(void *argument)
{
    struct worker *w = argument;
    pthread_mutex_lock(&w->all->gate);
    pthread_mutex_unlock(&w->all->gate);
    if (w->all->cancelled) return NULL;
    if (run_flops(w, w->all->code->f32_loop, &w->all->roof.f32_flops) &&
        run_flops(w, w->all->code->bf16_loop, &w->all->roof.bf16_flops) &&
        run_flops(w, w->all->code->int8_loop, &w->all->roof.int8_ops))
        run_reads(w);
    return NULL;
}

static cot_status code_of(const cot_isa_code **code, const char *isa, cot_error *error)
{
    const cot_kernels *kernels;
    cot_status status = cot_kernels_choose(&kernels, isa, error);
    if (status) return status;
    for (int i = 0; i < COT_ISA_COUNT; i++)
        if (cot_kernels_of((cot_isa)i) == kernels) *code = cot_isa_code_of((cot_isa)i);
    return COT_OK;
}

static cot_status measure(struct measurement *all, cot_error *error)
{
    size_t share = all->roof.buffer_bytes / (size_t)all->threads / 4096 * 4096;
    unsigned char *buffer =
        mmap(NULL, all->roof.buffer_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffer == MAP_FAILED)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a buffer of %zu bytes",
                        all->roof.buffer_bytes);
    madvise(buffer, all->roof.buffer_bytes, MADV_HUGEPAGE);
    cot_status status = COT_OK;
    int started = 0;
    pthread_mutex_init(&all->gate, NULL);
    pthread_barrier_init(&all->barrier, NULL, (unsigned)all->threads);
    pthread_mutex_lock(&all->gate);
    for (; started < all->threads; started++) {
        struct worker *w = &all->workers[started];
        *w = (struct worker){.all = all, .part = buffer + (size_t)started * share, .bytes = share};
        if (pthread_create(&w->thread, NULL, work, w)) break;
    }
    if (started < all->threads) {
        all->cancelled = true;
        status =
            cot_fail(error, COT_OUT_OF_MEMORY, "cannot start thread %d of %d", started + 1, all->threads);
    }
    pthread_mutex_unlock(&all->gate);
    for (int t = 0; t < started; t++) pthread_join(all->workers[t].thread, NULL);
    pthread_barrier_destroy(&all->barrier);
    pthread_mutex_destroy(&all->gate);
    munmap(buffer, all->roof.buffer_bytes);
    return status;
}

size_t cot_roof_buffer_bytes(void)
{
    const size_t least = (size_t)1 << 29, cache = cot_last_level_cache_bytes();
    const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    const size_t quarter = pages > 0 && page_bytes > 0 ? (size_t)pages / 4 * (size_t)page_bytes : least,
                 bytes = cache < quarter / 4 ? 4 * cache : quarter; // a cache may be told too large
    return bytes > least ? bytes : least;
}

cot_status cot_roof_measure(cot_roof *roof, int threads, const char *isa, size_t buffer_bytes,
                            cot_roof_look *look, void *context, cot_error *error)
{
    const cot_isa_code *code = NULL;
    if (threads < 1 || threads > MOST_THREADS)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%d threads, expected 1 to %d", threads, MOST_THREADS);
    cot_status status = code_of(&code, isa, error);
    if (status) return status;
    if (!buffer_bytes) buffer_bytes = cot_roof_buffer_bytes();
    if (buffer_bytes / (size_t)threads < 4096)
        return cot_fail(error, COT_INVALID_ARGUMENT, "a buffer of %zu bytes, expected a page a thread",
                        buffer_bytes);
    struct measurement *all = calloc(1, sizeof *all);
    if (!all) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %d threads", threads);
    all->code = code;
    all->threads = threads;
    all->roof.buffer_bytes = buffer_bytes;
    all->look = look;
    all->context = context;
    all->error = error;
    status = measure(all, error);
    if (status == COT_OK) status = all->status;
    if (status == COT_OK) *roof = all->roof;
    free(all);
    return status;
}
