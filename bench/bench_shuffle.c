/* What shuffling costs: s-moe's reduce-scatter and allgather with homes anywhere, beside the same with homes by index.
 *
 *     bench_shuffle [RANKS [TOKENS [HIDDEN]]]
 *
 * Ranks are threads, over links of 1 Gbit/s a rank, out and in; rows are bf16. A run chooses homes, orders the rows, sends the
 * parts of their sum home, and brings what is added there to all, as a dense layer of a step does. Pairs of runs, one plain and
 * one shuffled, take turns; homes are drawn anew for each. A time is rank 0's, from one barrier to the next. */
#include "base/clock.h"
#include "base/rng.h"
#include "fabric/launch.h"
#include "model/runner_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAIRS = 30 };
static const double bytes_per_s = 1e9 / 8;

/* What all ranks are given. */
struct shape {
    cot_config config;
    cot_layer_config layer;
    int64_t tokens;
    bool direct;
    double plain_ns[PAIRS], shuffled_ns[PAIRS]; // rank 0's
};

static void must(cot_status status, const cot_error *error)
{
    if (status == COT_OK) return;
    fprintf(stderr, "bench_shuffle: %s\n", error->message);
    exit(1);
}

static void lay_out(cot_runner *r, cot_arena *arena)
{
    cot_runner_step_rows *s = &r->rows;
    cot_runner_homes *homes = &r->homes;
    const size_t n = (size_t)r->o.step_tokens, h = (size_t)r->c->hidden;
    s->x = cot_arena_take(arena, n * h, sizeof *s->x);
    s->normed = cot_arena_take(arena, n * h, sizeof *s->normed);
    s->branch = cot_arena_take(arena, n * h, sizeof *s->branch);
    s->payload = cot_arena_take(arena, 1, cot_runner_gathered_bytes(&r->o, r->c->hidden, r->fabric->ranks));
    homes->x = cot_arena_take(arena, n * h, sizeof *homes->x);
    homes->update = cot_arena_take(arena, n * h, sizeof *homes->update);
    homes->home = cot_arena_take(arena, 2 * n, sizeof *homes->home);
    homes->guess = cot_arena_take(arena, n, sizeof *homes->guess);
    homes->sure = cot_arena_take(arena, n, sizeof *homes->sure);
    homes->order = cot_arena_take(arena, n, sizeof *homes->order);
    cot_homes_scratch_lay_out(&homes->scratch, arena, r->o.step_tokens, 1);
}

/* Sums are set anew, or they would overflow. */
static double run(cot_runner *r, cot_collectives *barrier, bool shuffled, int number)
{
    cot_error error = {0};
    int64_t rows;
    for (int64_t i = 0; i < r->rows.count; i++) {
        r->homes.guess[i] =
            (int16_t)(cot_random_bits(1, (uint64_t)number, (uint64_t)i) % (uint64_t)r->fabric->ranks);
        r->homes.sure[i] = (uint16_t)cot_random_bits(2, (uint64_t)number, (uint64_t)i);
    }
    for (int64_t i = 0; i < r->rows.count * r->c->hidden; i++) r->rows.branch[i] = (float)(i % 7) - 3;
    memset(r->rows.x, 0, (size_t)(r->rows.count * r->c->hidden) * sizeof *r->rows.x);
    r->o.pipeline.foresight = shuffled ? COT_FORESIGHT_GATE : COT_FORESIGHT_NONE;
    must(cot_barrier(barrier, COT_PHASE_CONTROL, &error), &error);
    const int64_t began_ns = cot_now_ns();
    cot_runner_choose_homes(r, 0, true);
    must(cot_runner_go_home(r, 0, &rows, &error), &error);
    must(cot_runner_return(r, 0, 0, &error), &error);
    must(cot_barrier(barrier, COT_PHASE_CONTROL, &error), &error);
    return (double)(cot_now_ns() - began_ns);
}

static void rank_main(const cot_rank *rank)
{
    struct shape *shape = (struct shape *)(uintptr_t)rank->argument; // threads: rank 0 writes its times
    cot_error error = {0};
    cot_fabric *fabric = rank->fabric;
    cot_layer_weights unbiased = {0};
    const cot_whole_weights whole = {.layers = &unbiased};
    cot_runner r = {.c = &shape->config,
                    .fabric = fabric,
                    .o = {.step_tokens = shape->tokens,
                          .whole = &whole,
                          .pipeline = {.s_moe = true, .direct = shape->direct}}};
    r.o.precision.type = COT_BF16;
    must(cot_kernels_choose(&r.o.kernels, NULL, &error), &error);
    cot_arena measure = {0};
    lay_out(&r, &measure);
    must(cot_arena_open(&r.arena, measure.used, &error), &error);
    lay_out(&r, &r.arena);
    r.rows.count = shape->tokens;
    const cot_collectives_options sizes = {
        .reduce_elements = (size_t)(shape->tokens * shape->config.hidden),
        .gather_bytes = cot_runner_gathered_bytes(&r.o, shape->config.hidden, fabric->ranks),
        .exchange_bytes = cot_runner_exchange_bytes(&r.o, shape->config.hidden, fabric->ranks)};
    cot_collectives *barrier;
    must(cot_collectives_open(&r.collectives, fabric, &sizes, &error), &error);
    must(cot_collectives_open(&barrier, fabric, &(cot_collectives_options){0}, &error), &error);
    fabric->ops->set_link(fabric, &(cot_link){.bytes_per_s = bytes_per_s});
    cot_turns_enter(fabric);
    for (int i = -1; i < PAIRS; i++) { // one that does not count
        const double plain_ns = run(&r, barrier, false, i), shuffled_ns = run(&r, barrier, true, i);
        if (fabric->rank || i < 0) continue;
        shape->plain_ns[i] = plain_ns;
        shape->shuffled_ns[i] = shuffled_ns;
    }
    cot_turns_leave(fabric);
    cot_collectives_close(barrier);
    cot_collectives_close(r.collectives);
    cot_arena_close(&r.arena);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values)
{
    double sorted[PAIRS];
    memcpy(sorted, values, sizeof sorted);
    qsort(sorted, PAIRS, sizeof *sorted, by_size);
    return (sorted[PAIRS / 2 - 1] + sorted[PAIRS / 2]) / 2;
}

static void measure(struct shape *shape, int ranks)
{
    cot_error error = {0};
    cot_launch *launch;
    const cot_rank *root;
    const size_t elements = (size_t)(shape->tokens * shape->config.hidden);
    const cot_launch_options options = {.ranks = ranks,
                                        .threads = ranks,
                                        .heap_bytes = elements * 40 + ((size_t)16 << 20),
                                        .timeout_ns = 60000000000,
                                        .main = rank_main,
                                        .argument = shape};
    must(cot_launch_open(&launch, &root, cot_fabric_backend_find("threads"), &options, &error), &error);
    rank_main(root);
    cot_launch_close(launch);
    double ratio[PAIRS];
    for (int i = 0; i < PAIRS; i++) ratio[i] = shape->shuffled_ns[i] / shape->plain_ns[i];
    printf("%-10s %10.3f ms %10.3f ms %8.3f\n", shape->direct ? "direct" : "ring",
           median(shape->plain_ns) / 1e6, median(shape->shuffled_ns) / 1e6, median(ratio));
}

int main(int count, char **argument)
{
    const int ranks = count > 1 ? atoi(argument[1]) : 4;
    struct shape shape = {.tokens = count > 2 ? atoll(argument[2]) : 512};
    shape.config = (cot_config){
        .hidden = count > 3 ? atoll(argument[3]) : 2880, .layers = 1, .moe_layers = 1, .layer = &shape.layer};
    if (ranks < 1 || ranks > COT_MAX_RANKS || shape.tokens < 1 || shape.config.hidden < 1) {
        fprintf(stderr, "bench_shuffle [RANKS [TOKENS [HIDDEN]]]\n");
        return 2;
    }
    printf("%d ranks, %lld tokens of %lld, bf16, 1 Gbit/s; medians of %d pairs\n", ranks,
           (long long)shape.tokens, (long long)shape.config.hidden, PAIRS);
    printf("%-10s %13s %13s %8s\n", "collective", "plain", "shuffled", "ratio");
    for (int direct = 1; direct >= 0; direct--) {
        shape.direct = direct;
        measure(&shape, ranks);
    }
    return 0;
}
