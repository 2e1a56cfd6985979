#include "engine/bench/bench.h"

cot_bench_tally cot_bench_take_tally(const cot_bench_end *end, const cot_bench_command *c)
{
    const cot_fabric *fabric = end->rank->fabric;
    const cot_bench_setup *s = end->setup;
    cot_bench_tally tally = {.times = *s->op[c->op]->times(end->moe[c->set * (size_t)s->ops + (size_t)c->op]),
                             .waits = fabric->waits,
                             .queued_ns = fabric->queued_ns,
                             .workers_ns = cot_pool_busy_ns(end->rank->pool)};
    for (int p = 0; p < COT_PHASES; p++) tally.waited_ns += fabric->waited_ns[p];
    for (int to = 0; to < fabric->ranks; to++)
        for (int p = 0; p < COT_PHASES; p++) tally.egress_bytes += fabric->traffic[to][p].bytes;
    return tally;
}

cot_bench_tally cot_bench_tally_since(const cot_bench_tally *before, const cot_bench_tally *after)
{
    const cot_moe_times *a = &before->times, *b = &after->times;
    return (cot_bench_tally){.times = {.gate_ns = b->gate_ns - a->gate_ns,
                                       .dispatch_ns = b->dispatch_ns - a->dispatch_ns,
                                       .expert_ns = b->expert_ns - a->expert_ns,
                                       .combine_ns = b->combine_ns - a->combine_ns,
                                       .launches = b->launches - a->launches,
                                       .tile_passes = b->tile_passes - a->tile_passes},
                             .waits = after->waits - before->waits,
                             .egress_bytes = after->egress_bytes - before->egress_bytes,
                             .waited_ns = after->waited_ns - before->waited_ns,
                             .queued_ns = after->queued_ns - before->queued_ns,
                             .workers_ns = after->workers_ns - before->workers_ns};
}

void cot_bench_add_run(cot_bench_result *result, const cot_bench_told *told, int ranks, int threads,
                       int64_t workers_ns, int64_t wall_ns, int n)
{
    double busy_ns = (double)workers_ns;
    for (int r = 0; r < ranks; r++) {
        const cot_bench_tally *tally = &told[r].tally;
        busy_ns += (double)(told[r].end_ns - told[r].begin_ns - tally->waited_ns - tally->queued_ns);
        result->waits += (double)tally->waits / n;
        result->launches += (double)tally->times.launches / n;
        result->tile_passes += (double)tally->times.tile_passes / n;
        result->gate_ns += (double)tally->times.gate_ns / n;
        result->dispatch_ns += (double)tally->times.dispatch_ns / n;
        result->expert_ns += (double)tally->times.expert_ns / n;
        result->combine_ns += (double)tally->times.combine_ns / n;
        result->waited_ns += (double)tally->waited_ns / n;
        result->queued_ns += (double)tally->queued_ns / n;
    }
    result->idle_share += (1 - busy_ns / (threads * (double)wall_ns)) / n;
}

int64_t cot_bench_worked_ns(const cot_moe_timeline *timeline, int64_t begin_ns)
{
    int64_t end_ns = begin_ns;
    for (int64_t i = 0; i < timeline->count && i < timeline->capacity; i++) {
        const cot_moe_event *event = &timeline->events[i];
        if (event->work != COT_MOE_COMBINE && event->end_ns > end_ns) end_ns = event->end_ns;
    }
    return end_ns;
}
