/* What links of a given shape really let pass: steps over them and without them, in turns. */
#include "base/error.h"
#include "coterie/bench_fabric.h"
#include "fabric/collectives.h"
#include "fabric/launch.h"

#include <stdlib.h>

enum { STEPS = 3, LEAST_TURNS = 5, MOST_TURNS = 100, SMALL_BYTES = 8 };
enum { PLAIN, LINKED, WAYS };
enum { SMALL, WHOLE, SIZES };

/* Of all ranks, which rank 0 takes times of. */
struct probe {
    const cot_bench_link_options *options;
    cot_status status; // of rank 0
    cot_error *error;
    int64_t turns;
    double least_ns[WAYS][SIZES]; // of a step
};

static size_t place_of(size_t bytes, int from)
{
    enum { LINE = 64 };
    return (size_t)from * ((bytes + LINE - 1) / LINE * LINE);
}

static cot_collectives_options collectives_of(const cot_bench_link_options *o)
{
    return (cot_collectives_options){.exchange_bytes = place_of((size_t)o->bytes, o->ranks)};
}

/* Steps that follow one another, so many bytes from every rank to every other. */
static cot_status take_steps(cot_collectives *c, cot_fabric *fabric, const void *data, size_t bytes,
                             double *step_ns, cot_error *error)
{
    const int64_t began_ns = fabric->ops->now_ns(fabric);
    cot_status status = COT_OK;
    for (int i = 0; i < STEPS && status == COT_OK; i++) {
        cot_message block[COT_MAX_RANKS];
        const void *received;
        for (int to = 0; to < fabric->ranks; to++)
            block[to] = (cot_message){data, to == fabric->rank ? 0 : bytes, place_of(bytes, fabric->rank), 0};
        status = cot_exchange(c, &received, NULL, block, COT_PHASE_DISPATCH, error);
    }
    *step_ns = (double)(fabric->ops->now_ns(fabric) - began_ns) / STEPS;
    return status;
}

/* No rank changes its links before all have what was sent over them, or sends before all have changed theirs. */
static cot_status change_link(cot_collectives *c, cot_fabric *fabric, const cot_link *link, cot_error *error)
{
    const cot_status status = cot_barrier(c, COT_PHASE_CONTROL, error);
    if (status != COT_OK) return status;
    fabric->ops->set_link(fabric, link);
    return cot_barrier(c, COT_PHASE_CONTROL, error);
}

static cot_status take_turns(struct probe *p, cot_collectives *c, cot_fabric *fabric, const void *data,
                             cot_error *error)
{
    const cot_bench_link_options *o = p->options;
    const cot_link links[WAYS] = {[LINKED] = {.bytes_per_s = o->bytes_per_s, .latency_ns = o->latency_ns}};
    const size_t sizes[SIZES] = {SMALL_BYTES, (size_t)o->bytes};
    cot_status status = COT_OK;
    for (int64_t turn = -1; turn < p->turns && status == COT_OK; turn++) // one that does not count
        for (int way = 0; way < WAYS && status == COT_OK; way++) {
            status = change_link(c, fabric, &links[way], error);
            for (int size = 0; size < SIZES && status == COT_OK; size++) {
                double step_ns;
                status = take_steps(c, fabric, data, sizes[size], &step_ns, error);
                double *least_ns = &p->least_ns[way][size];
                if (fabric->rank == 0 && turn >= 0 && (turn == 0 || step_ns < *least_ns)) *least_ns = step_ns;
            }
        }
    return status;
}

static void rank_main(const cot_rank *rank)
{
    struct probe *p = (struct probe *)(uintptr_t)rank->argument; // rank 0 writes
    const cot_collectives_options sizes = collectives_of(p->options);
    cot_fabric *fabric = rank->fabric;
    cot_collectives *c = NULL;
    cot_error error;
    void *data = calloc(1, (size_t)p->options->bytes);
    cot_status status = data ? COT_OK : cot_fail(&error, COT_OUT_OF_MEMORY, "out of memory");
    if (status == COT_OK) status = cot_collectives_open(&c, fabric, &sizes, &error);
    cot_turns_enter(fabric);
    if (status == COT_OK) status = take_turns(p, c, fabric, data, &error);
    cot_turns_leave(fabric);
    if (status != COT_OK) fabric->ops->fail(fabric);
    if (fabric->rank == 0) {
        p->status = status;
        if (status != COT_OK && p->error) *p->error = error;
    }
    cot_collectives_close(c);
    free(data);
}

/* The bytes' own time over the link is what is left without the latency and what a step takes anyway. No link is faster than
 * its shape: what looks so is the machine's unrest, as is what makes steps longer than the least. */
static double conclude(const struct probe *p)
{
    const cot_bench_link_options *o = p->options;
    const double wire_ns = p->least_ns[LINKED][WHOLE] - p->least_ns[PLAIN][WHOLE] -
                           (p->least_ns[LINKED][SMALL] - p->least_ns[PLAIN][SMALL]),
                 sent = (double)((o->ranks - 1) * (o->bytes - SMALL_BYTES)) * 1e9;
    return wire_ns > 0 && sent / wire_ns < o->bytes_per_s ? sent / wire_ns : o->bytes_per_s;
}

static cot_status check(const cot_bench_link_options *o, cot_error *error)
{
    if (o->size != sizeof *o)
        return cot_fail(error, COT_INVALID_ARGUMENT, "link options of %zu bytes, expected %zu", o->size,
                        sizeof *o);
    if (o->ranks < 2 || o->ranks > COT_MAX_RANKS || o->threads < 1 || o->bytes <= SMALL_BYTES ||
        o->bytes > COT_BENCH_LINK_MOST_BYTES || o->budget_ns < 1)
        return cot_fail(error, COT_INVALID_ARGUMENT, "a link between %d ranks of %d threads, %lld bytes",
                        o->ranks, o->threads, (long long)o->bytes);
    if (!(o->bytes_per_s > 0) || o->latency_ns < 0)
        return cot_fail(error, COT_INVALID_ARGUMENT, "no link is of such a shape");
    return COT_OK;
}

/* As many as fit the time, by what the link is said to take. */
static int64_t turns_of(const cot_bench_link_options *o)
{
    static const double least_ns = 20000;
    const double wire_ns = (double)((o->ranks - 1) * o->bytes) * 1e9 / o->bytes_per_s,
                 turn_ns = STEPS * (wire_ns + 2 * (double)o->latency_ns + WAYS * SIZES * least_ns),
                 turns = (double)o->budget_ns / turn_ns;
    return turns < LEAST_TURNS ? LEAST_TURNS : turns > MOST_TURNS ? MOST_TURNS : (int64_t)turns;
}

cot_status cot_bench_link(double *bytes_per_s, const cot_bench_link_options *o, cot_error *error)
{
    static const int64_t default_timeout_ns = 300000000000;
    cot_status status = check(o, error);
    if (status != COT_OK) return status;
    struct probe *p = calloc(1, sizeof *p);
    if (!p) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    *p = (struct probe){.options = o, .error = error, .turns = turns_of(o)};
    const cot_collectives_options sizes = collectives_of(o);
    const cot_launch_options options = {.ranks = o->ranks,
                                        .threads = o->threads,
                                        .heap_bytes = cot_collectives_heap_bytes(&sizes, o->ranks),
                                        .timeout_ns = o->timeout_ns ? o->timeout_ns : default_timeout_ns,
                                        .main = rank_main,
                                        .argument = p};
    cot_launch *launch;
    const cot_rank *root;
    status = cot_launch_open(&launch, &root, cot_fabric_backend_find("threads"), &options, error);
    if (status == COT_OK) rank_main(root);
    cot_launch_close(launch);
    if (status == COT_OK) status = p->status;
    if (status == COT_OK) *bytes_per_s = conclude(p);
    free(p);
    return status;
}
