#include "base/clock.h"
#include "base/error.h"
#include "base/wait.h"
#include "engine/bench/bench.h"

#include <stdlib.h>

struct drawing {
    cot_bench_member *member;
    uint8_t *slots;
    size_t slot_bytes;
    cot_status *status; // of the first that failed; a pool's threads may write it at once
};

static void draw_one(void *context, int64_t e)
{
    const struct drawing *d = context;
    const struct cot_bench_moe *bench = d->member->bench;
    if (bench->expert_rank[e] != d->member->fabric->rank) return;
    cot_status status = cot_bench_draw_expert(d->slots + (size_t)bench->expert_slot[e] * d->slot_bytes,
                                              &bench->moe.expert, bench->options.seed, e, NULL);
    if (status != COT_OK) __atomic_store_n(d->status, status, __ATOMIC_RELAXED);
}

static cot_status draw_slots(cot_bench_member *m, cot_error *error)
{
    const struct cot_bench_moe *bench = m->bench;
    size_t slot_bytes = cot_ffn_layout_of(&bench->moe.expert).bytes;
    size_t slots = (size_t)((bench->moe.experts + bench->options.ranks - 1) / bench->options.ranks);
    cot_status status = cot_alloc(m->fabric, &m->slots, slots * slot_bytes, error);
    if (status != COT_OK) return status;
    struct drawing drawing = {m, cot_local(m->fabric, m->slots), slot_bytes, &status};
    cot_pool_run(bench->pool, bench->moe.experts, draw_one, &drawing);
    return status == COT_OK ? status : cot_fail(error, status, "out of memory for random weights");
}

/* Every rank finds alike which operators cannot reduce. */
static cot_status open_operators(cot_bench_member *m, cot_error *error)
{
    struct cot_bench_moe *bench = m->bench;
    cot_status status = COT_OK;
    for (int i = 0; i < bench->ops && status == COT_OK; i++) {
        cot_moe **moe = &m->moe[bench->set * (size_t)bench->ops + (size_t)i];
        cot_moe_options options = bench->moe;
        options.fabric = m->fabric;
        options.tokens = bench->options.tokens[bench->set];
        status = bench->op[i]->open(moe, &options, error);
        if (status == COT_UNSUPPORTED && options.combine != COT_COMBINE_EXACT) {
            options.combine = COT_COMBINE_EXACT;
            status = bench->op[i]->open(moe, &options, error);
        }
        if (m->fabric->rank == 0) bench->combine[i] = options.combine;
    }
    return status;
}

static void pass_time(void *context, int64_t i)
{
    (void)context, (void)i;
    const int64_t wake_ns = 50000; // about what a sleeping thread takes to come
    for (const int64_t end_ns = cot_now_ns() + wake_ns; cot_now_ns() < end_ns;) cot_pause();
}

/* All begin at once, and workers are awake, as they are in the midst of a model. */
static void line_up(struct cot_bench_moe *bench, int rank)
{
    const int helpers = bench->options.threads - bench->options.ranks;
    if (rank == 0 && helpers > 0) cot_pool_run(bench->pool, 2 * (helpers + 1), pass_time, NULL);
    const int all = bench->options.ranks;
    const uint64_t mine = atomic_fetch_add(&bench->lined_up, 1),
                   last = mine - mine % (uint64_t)all + (uint64_t)all;
    for (int round = 0; atomic_load(&bench->lined_up) < last; round++) cot_relax(round);
}

static cot_status run(cot_bench_member *m, cot_error *error)
{
    const struct cot_bench_moe *bench = m->bench;
    cot_fabric *fabric = m->fabric;
    int64_t begin = cot_share_begin(bench->tokens, fabric->rank, fabric->ranks);
    int64_t tokens = cot_share_begin(bench->tokens, fabric->rank + 1, fabric->ranks) - begin;
    int64_t hidden = bench->moe.expert.hidden, top_k = bench->moe.top_k;
    cot_moe_layer layer = {
        .gate = &bench->gate, .placement = {bench->expert_rank, bench->expert_slot}, .slots = m->slots};
    line_up(m->bench, fabric->rank);
    m->begin_ns = fabric->ops->now_ns(fabric);
    fabric->ops->enter(fabric);
    cot_status status = bench->op[bench->op_now]->forward(
        m->moe[bench->set * (size_t)bench->ops + (size_t)bench->op_now], &layer, bench->y + begin * hidden,
        bench->experts + begin * top_k, bench->weights + begin * top_k, bench->x + begin * hidden, tokens,
        error);
    fabric->ops->leave(fabric);
    m->end_ns = fabric->ops->now_ns(fabric);
    return status;
}

static void *serve(void *argument)
{
    cot_bench_member *m = argument;
    struct cot_bench_moe *bench = m->bench;
    cot_bench_command command;
    uint64_t obeyed = 0;
    do {
        pthread_mutex_lock(&bench->mutex);
        while (bench->commands == obeyed) pthread_cond_wait(&bench->commanded, &bench->mutex);
        obeyed = bench->commands;
        command = bench->command;
        pthread_mutex_unlock(&bench->mutex);
        m->error = (cot_error){0};
        if (command == COT_BENCH_DRAW) m->status = draw_slots(m, &m->error);
        if (command == COT_BENCH_OPEN) m->status = open_operators(m, &m->error);
        if (command == COT_BENCH_RUN) m->status = run(m, &m->error);
        pthread_mutex_lock(&bench->mutex);
        if (--bench->pending == 0) pthread_cond_signal(&bench->done);
        pthread_mutex_unlock(&bench->mutex);
    } while (command != COT_BENCH_STOP);
    return NULL;
}

/* What every rank tells of another's failure says less than that one's own word. */
static cot_status worst(const struct cot_bench_moe *bench, cot_error *error)
{
    const cot_bench_member *failed = NULL;
    for (int r = 0; r < bench->started; r++) {
        const cot_bench_member *m = &bench->members[r];
        if (m->status != COT_OK && (!failed || failed->status == COT_PEER_FAILED)) failed = m;
    }
    return failed ? cot_fail(error, failed->status, "%s", failed->error.message) : COT_OK;
}

cot_status cot_bench_command_ranks(struct cot_bench_moe *bench, cot_bench_command command, cot_error *error)
{
    pthread_mutex_lock(&bench->mutex);
    bench->command = command;
    bench->commands++;
    bench->pending = bench->started;
    pthread_cond_broadcast(&bench->commanded);
    while (bench->pending) pthread_cond_wait(&bench->done, &bench->mutex);
    pthread_mutex_unlock(&bench->mutex);
    return worst(bench, error);
}

cot_status cot_bench_start_ranks(struct cot_bench_moe *bench, cot_error *error)
{
    for (int ranks = bench->options.ranks; bench->started < ranks; bench->started++) {
        cot_bench_member *m = &bench->members[bench->started];
        if (pthread_create(&m->thread, NULL, serve, m))
            return cot_fail(error, COT_OUT_OF_MEMORY, "cannot start rank %d of %d", bench->started, ranks);
    }
    return COT_OK;
}

void cot_bench_stop_ranks(struct cot_bench_moe *bench)
{
    if (bench->started) cot_bench_command_ranks(bench, COT_BENCH_STOP, NULL);
    for (int r = 0; r < bench->started; r++) pthread_join(bench->members[r].thread, NULL);
    for (int r = 0; r < bench->options.ranks && bench->members; r++) {
        cot_bench_member *m = &bench->members[r];
        for (size_t i = 0; i < bench->options.n_tokens * (size_t)bench->ops && m->moe; i++)
            bench->op[i % (size_t)bench->ops]->close(m->moe[i]);
        free(m->moe);
    }
}
