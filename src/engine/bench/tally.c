#include "engine/bench/bench.h"

#include <string.h>

static uint64_t egress(const cot_fabric *fabric)
{
    uint64_t bytes = 0;
    for (int to = 0; to < fabric->ranks; to++)
        for (int p = 0; p < COT_PHASES; p++) bytes += fabric->traffic[to][p].bytes;
    return bytes;
}

void cot_bench_take_tally(cot_bench_tally *tally, const struct cot_bench_moe *bench)
{
    memset(tally, 0, sizeof *tally);
    tally->workers_ns = cot_pool_busy_ns(bench->pool);
    for (int r = 0; r < bench->options.ranks; r++) {
        const cot_bench_member *m = &bench->members[r];
        const cot_moe_times *times =
            bench->op[bench->op_now]->times(m->moe[bench->set * (size_t)bench->ops + (size_t)bench->op_now]);
        tally->times.gate_ns += times->gate_ns;
        tally->times.dispatch_ns += times->dispatch_ns;
        tally->times.expert_ns += times->expert_ns;
        tally->times.combine_ns += times->combine_ns;
        tally->times.launches += times->launches;
        tally->times.tile_passes += times->tile_passes;
        tally->waits += m->fabric->waits;
        tally->queued_ns += m->fabric->queued_ns;
        for (int p = 0; p < COT_PHASES; p++) tally->waited_ns += m->fabric->waited_ns[p];
        tally->egress[r] = egress(m->fabric);
    }
}

void cot_bench_add_run(cot_bench_result *result, const cot_bench_tally *before, const cot_bench_tally *after,
                       int threads, int64_t wall_ns, int64_t ranks_ns, int n)
{
    const cot_moe_times *a = &before->times, *b = &after->times;
    const double waited_ns = (double)(after->waited_ns - before->waited_ns),
                 queued_ns = (double)(after->queued_ns - before->queued_ns),
                 busy_ns = (double)ranks_ns - waited_ns - queued_ns +
                           (double)(after->workers_ns - before->workers_ns);
    result->idle_share += (1 - busy_ns / (threads * (double)wall_ns)) / n;
    result->waits += (double)(after->waits - before->waits) / n;
    result->launches += (double)(b->launches - a->launches) / n;
    result->tile_passes += (double)(b->tile_passes - a->tile_passes) / n;
    result->gate_ns += (double)(b->gate_ns - a->gate_ns) / n;
    result->dispatch_ns += (double)(b->dispatch_ns - a->dispatch_ns) / n;
    result->expert_ns += (double)(b->expert_ns - a->expert_ns) / n;
    result->combine_ns += (double)(b->combine_ns - a->combine_ns) / n;
    result->waited_ns += waited_ns / n;
    result->queued_ns += queued_ns / n;
}

int64_t cot_bench_straggling_ns(const cot_moe_timeline *timeline, int ranks)
{
    int64_t end_ns[COT_MAX_RANKS] = {0}, first_ns = INT64_MAX, last_ns = INT64_MIN;
    for (int64_t i = 0; i < timeline->count && i < timeline->capacity; i++) {
        const cot_moe_event *event = &timeline->events[i];
        if (event->work != COT_MOE_COMBINE && event->end_ns > end_ns[event->rank])
            end_ns[event->rank] = event->end_ns;
    }
    for (int r = 0; r < ranks; r++) {
        first_ns = end_ns[r] < first_ns ? end_ns[r] : first_ns;
        last_ns = end_ns[r] > last_ns ? end_ns[r] : last_ns;
    }
    return last_ns - first_ns;
}
