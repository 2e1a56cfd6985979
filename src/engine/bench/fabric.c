#include "base/error.h"
#include "coterie/bench_fabric.h"
#include "engine/bench/times.h"
#include "fabric/collectives.h"
#include "fabric/launch.h"

#include <stdlib.h>
#include <string.h>

enum { LINE = 64, WARM_UP = 3, LEAST_REPEATS = 5, MOST_REPEATS = 1000, WINDOW = COT_BENCH_FABRIC_WINDOW };

/* One rank's end. Signals rise with every message, so that nothing is ever taken back. */
struct end {
    const cot_bench_fabric_options *options;
    cot_fabric *fabric;
    cot_collectives *collectives;
    cot_sym block, arrived, answered, repeats_at;
    unsigned char *data;     // as many bytes as the greatest size, and a rank's sums
    uint64_t sent, received; // messages between rank 0 and the last one
    uint64_t rounds;
};

static cot_collectives_options collectives_of(const cot_bench_fabric_options *o)
{
    return (cot_collectives_options){.reduce_elements = (size_t)o->most_bytes / sizeof(float),
                                     .gather_bytes = (size_t)o->most_bytes};
}

static cot_status open_end(struct end *end, cot_fabric *fabric, const cot_bench_fabric_options *o,
                           cot_error *error)
{
    const cot_collectives_options collectives = collectives_of(o);
    *end = (struct end){.options = o, .fabric = fabric};
    cot_status status = cot_alloc(fabric, &end->block, (size_t)o->most_bytes, error);
    if (status == COT_OK) status = cot_alloc(fabric, &end->arrived, LINE, error);
    if (status == COT_OK) status = cot_alloc(fabric, &end->answered, LINE, error);
    if (status == COT_OK) status = cot_alloc(fabric, &end->repeats_at, LINE, error);
    if (status == COT_OK) status = cot_collectives_open(&end->collectives, fabric, &collectives, error);
    end->data = calloc(1, (size_t)o->most_bytes);
    if (status == COT_OK && !end->data) status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    return status;
}

static void close_end(struct end *end)
{
    cot_collectives_close(end->collectives);
    free(end->data);
}

static size_t heap_bytes(const cot_bench_fabric_options *o)
{
    const cot_collectives_options collectives = collectives_of(o);
    return cot_alloc_bytes((size_t)o->most_bytes) + 3 * cot_alloc_bytes(LINE) +
           cot_collectives_heap_bytes(&collectives, o->ranks);
}

/* ---- what is measured ---- */

/* So many puts from rank 0 to the last rank, which answers the last of them with one of `back` bytes. */
static cot_status exchange(struct end *end, int puts, size_t bytes, size_t back, cot_error *error)
{
    cot_fabric *fabric = end->fabric;
    const int last = fabric->ranks - 1;
    if (fabric->rank == 0) {
        for (int i = 0; i < puts; i++)
            cot_put_signal(fabric, last, end->block, end->data, bytes, end->arrived, ++end->sent,
                           COT_PHASE_DISPATCH);
        return cot_wait(fabric, end->answered, ++end->received, last, COT_PHASE_COMBINE, error);
    }
    if (fabric->rank != last) return COT_OK;
    const cot_status status =
        cot_wait(fabric, end->arrived, end->received += (uint64_t)puts, 0, COT_PHASE_DISPATCH, error);
    if (status == COT_OK)
        cot_put_signal(fabric, 0, end->block, end->data, back, end->answered, ++end->sent, COT_PHASE_COMBINE);
    return status;
}

static cot_status transfer_once(struct end *end, cot_bench_transfer transfer, size_t bytes, cot_error *error)
{
    if (transfer == COT_BENCH_PUT_SIGNAL) return exchange(end, 1, bytes, bytes, error);
    const bool reduces = transfer == COT_BENCH_REDUCE_SCATTER;
    const int64_t n = (int64_t)(reduces ? bytes / sizeof(float) : bytes);
    size_t begin[COT_MAX_RANKS + 1]; // elements, or bytes
    for (int r = 0; r <= end->fabric->ranks; r++)
        begin[r] = (size_t)cot_share_begin(n, r, end->fabric->ranks);
    if (reduces) {
        memset(end->data, 0, bytes); // sums of sums would overflow
        return cot_reduce_scatter(end->collectives, (float *)(void *)end->data, begin, COT_F32,
                                  COT_PHASE_ATTENTION, error);
    }
    return cot_allgather(end->collectives, end->data, begin, COT_PHASE_ATTENTION, error);
}

static bool takes_part(const cot_fabric *fabric, cot_bench_transfer transfer, int rank)
{
    return transfer != COT_BENCH_PUT_SIGNAL || rank == 0 || rank == fabric->ranks - 1;
}

/* Rank 0 says how often all that take part are to repeat what took it `once_ns`. */
static cot_status agree(struct end *end, cot_bench_transfer transfer, int64_t once_ns, int64_t *repeats,
                        cot_error *error)
{
    enum { BITS = 20 }; // the number is part of a word that rises
    const int64_t wanted = end->options->budget_ns / (once_ns < 1 ? 1 : once_ns);
    const uint64_t round = ++end->rounds << BITS;
    *repeats = wanted < LEAST_REPEATS ? LEAST_REPEATS : wanted > MOST_REPEATS ? MOST_REPEATS : wanted;
    if (end->fabric->rank == 0) {
        for (int to = 1; to < end->fabric->ranks; to++)
            if (takes_part(end->fabric, transfer, to))
                cot_put_signal(end->fabric, to, 0, NULL, 0, end->repeats_at, round + (uint64_t)*repeats,
                               COT_PHASE_CONTROL);
        return COT_OK;
    }
    const cot_status status = cot_wait(end->fabric, end->repeats_at, round, 0, COT_PHASE_CONTROL, error);
    *repeats = (int64_t)(cot_signal_load(end->fabric, end->repeats_at) - round);
    return status;
}

static void summarise(cot_bench_fabric_row *row, int64_t *ns, int64_t n)
{
    const double half = row->transfer == COT_BENCH_PUT_SIGNAL ? 0.5 : 1;
    double sum = 0;
    row->median_ns = half * cot_bench_median(ns, n);
    for (int64_t i = 0; i < n; i++) sum += (double)ns[i];
    row->repeats = n;
    row->least_ns = half * (double)ns[0];
    row->average_ns = half * sum / (double)n;
}

/* One size of one transfer; the row is rank 0's alone. Ranks that take no part read no number of repeats: nothing would
 * keep rank 0 from writing the next while they do. */
static cot_status measure(struct end *end, cot_bench_fabric_row *row, cot_error *error)
{
    int64_t ns[MOST_REPEATS], repeats;
    const size_t bytes = (size_t)row->bytes;
    cot_fabric *fabric = end->fabric;
    cot_status status = COT_OK;
    if (!takes_part(fabric, row->transfer, fabric->rank)) {
        end->rounds++;
        return COT_OK;
    }
    for (int i = 0; i < WARM_UP && status == COT_OK; i++) {
        ns[0] = fabric->ops->now_ns(fabric);
        status = transfer_once(end, row->transfer, bytes, error);
        ns[0] = fabric->ops->now_ns(fabric) - ns[0];
    }
    if (status == COT_OK) status = agree(end, row->transfer, ns[0], &repeats, error);
    const int64_t begin_ns = fabric->ops->now_ns(fabric);
    for (int64_t i = 0, since_ns = begin_ns; i < repeats && status == COT_OK; i++) {
        status = transfer_once(end, row->transfer, bytes, error);
        const int64_t now_ns = fabric->ops->now_ns(fabric);
        ns[i] = now_ns - since_ns;
        since_ns = now_ns;
    }
    if (status != COT_OK) return status;
    double all_ns = (double)(fabric->ops->now_ns(fabric) - begin_ns),
           moved = (double)repeats * (double)row->bytes;
    summarise(row, ns, repeats);
    if (row->transfer != COT_BENCH_PUT_SIGNAL) {
        row->bytes_per_s = moved * (fabric->ranks - 1) / fabric->ranks * 1e9 / all_ns;
        return COT_OK;
    }
    const int64_t windows = repeats / WINDOW + 1, windows_ns = fabric->ops->now_ns(fabric);
    for (int64_t i = 0; i < windows && status == COT_OK; i++) status = exchange(end, WINDOW, bytes, 0, error);
    all_ns = (double)(fabric->ops->now_ns(fabric) - windows_ns);
    row->bytes_per_s = (double)windows * WINDOW * (double)row->bytes * 1e9 / all_ns;
    return status;
}

/* ---- the group ---- */

typedef void cot_bench_fabric_found(void *context, const cot_bench_fabric_row *row);

/* What every rank does; `found` is rank 0's. */
static cot_status measure_all(cot_fabric *fabric, const cot_bench_fabric_options *o,
                              cot_bench_fabric_found *found, void *context, cot_error *error)
{
    struct end end;
    cot_status status = open_end(&end, fabric, o, error);
    char carriers[256] = "memory";
    if (fabric->ops->carriers) fabric->ops->carriers(fabric, carriers, sizeof carriers);
    cot_turns_enter(fabric);
    for (cot_bench_transfer t = 0; t < COT_BENCH_TRANSFERS; t++)
        for (int64_t bytes = COT_BENCH_FABRIC_LEAST_BYTES; bytes <= o->most_bytes && status == COT_OK;
             bytes *= 4) {
            cot_bench_fabric_row row = {.transfer = t, .bytes = bytes, .carriers = carriers};
            status = measure(&end, &row, error);
            if (status == COT_OK && found) found(context, &row);
        }
    cot_turns_leave(fabric);
    if (status != COT_OK) fabric->ops->fail(fabric);
    close_end(&end);
    return status;
}

static void serve(const cot_rank *rank)
{
    measure_all(rank->fabric, rank->argument, NULL, NULL, NULL);
}

static cot_status check(const cot_bench_fabric_options *o, cot_error *error)
{
    static const int64_t least_ns = 100000000, most_ns = 1000000000000000;
    if (o->size != sizeof *o)
        return cot_fail(error, COT_INVALID_ARGUMENT, "benchmark options of %zu bytes, expected %zu", o->size,
                        sizeof *o);
    if (o->ranks < 2 || o->ranks > COT_MAX_RANKS)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "what is between ranks takes 2 to %d of them, not --ranks %d", COT_MAX_RANKS,
                        o->ranks);
    if (o->most_bytes < COT_BENCH_FABRIC_LEAST_BYTES || o->most_bytes > COT_BENCH_FABRIC_MOST_BYTES)
        return cot_fail(error, COT_INVALID_ARGUMENT, "messages of up to %lld bytes, expected %d to %d",
                        (long long)o->most_bytes, COT_BENCH_FABRIC_LEAST_BYTES, COT_BENCH_FABRIC_MOST_BYTES);
    if ((o->timeout_ns && (o->timeout_ns < least_ns || o->timeout_ns > most_ns)) || o->budget_ns < 1)
        return cot_fail(error, COT_INVALID_ARGUMENT, "a time-out of %lld ns, a budget of %lld ns",
                        (long long)o->timeout_ns, (long long)o->budget_ns);
    return cot_fabric_backend_check(o->fabric, error);
}

cot_status cot_bench_fabric(const cot_bench_fabric_options *o, cot_bench_fabric_found *found, void *context,
                            cot_error *error)
{
    const int64_t default_timeout_ns = 300000000000;
    cot_status status = check(o, error);
    if (status != COT_OK) return status;
    const cot_launch_options options = {.ranks = o->ranks,
                                        .threads = o->ranks,
                                        .heap_bytes = heap_bytes(o),
                                        .timeout_ns = o->timeout_ns ? o->timeout_ns : default_timeout_ns,
                                        .main = serve,
                                        .argument = o};
    cot_launch *launch;
    const cot_rank *root;
    status = cot_launch_open(&launch, &root, cot_fabric_backend_find(o->fabric), &options, error);
    if (status == COT_OK) status = measure_all(root->fabric, o, found, context, error);
    cot_launch_close(launch);
    return status;
}
