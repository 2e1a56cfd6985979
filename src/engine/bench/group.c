#include "base/error.h"
#include "base/integers.h"
#include "base/wait.h"
#include "engine/bench/bench.h"

#include <stdlib.h>
#include <string.h>

enum { LINE = 64 };

/* ---- symmetric memory ---- */

int64_t cot_bench_events(int ranks)
{
    enum { ALL = 1 << 18, LEAST = 1 << 14 };
    return ALL / ranks > LEAST ? ALL / ranks : LEAST;
}

struct block {
    cot_sym *at;
    size_t bytes;
};
enum { BLOCKS = 12 + COT_BENCH_MOST_OPS };

static int list_blocks(cot_bench_end *end, const cot_bench_setup *s, struct block block[BLOCKS])
{
    enum { OTHERS = 12 };
    const size_t ranks = (size_t)s->options.ranks, tokens = (size_t)s->most_tokens,
                 share = (tokens + ranks - 1) / ranks, top_k = (size_t)s->moe.top_k,
                 row = (size_t)s->moe.expert.hidden * sizeof(float), slots = (size_t)s->layout.slots_per_rank;
    const struct block all[OTHERS] = {
        {&end->command_at, 2 * sizeof(cot_bench_command)},
        {&end->command_signal, LINE},
        {&end->arrived_signals, ranks * LINE},
        {&end->go_signal, LINE},
        {&end->x, share * row},
        {&end->y, share * row},
        {&end->experts, share * top_k * sizeof(uint16_t)},
        {&end->weights, share * top_k * sizeof(float)},
        {&end->all_y, tokens * row},
        {&end->all_experts, tokens * top_k * sizeof(uint16_t)},
        {&end->told, ranks * sizeof(cot_bench_told)},
        {&end->events, ranks * (size_t)cot_bench_events((int)ranks) * sizeof(cot_moe_event)}};
    memcpy(block, all, sizeof all);
    for (int w = 0; w < s->kinds; w++)
        block[OTHERS + w] = (struct block){&end->slots[w], slots * s->weights[w]->slot_bytes(&s->moe.expert)};
    return OTHERS + s->kinds;
}

size_t cot_bench_heap_bytes(const cot_bench_setup *s)
{
    cot_bench_end end;
    struct block block[BLOCKS];
    const int ranks = s->options.ranks;
    size_t bytes = cot_reports_heap_bytes(ranks);
    const int blocks = list_blocks(&end, s, block);
    for (int b = 0; b < blocks; b++) bytes += cot_alloc_bytes(block[b].bytes);
    for (size_t i = 0; i < s->options.n_tokens; i++)
        for (int op = 0; op < s->ops; op++) {
            cot_moe_options options = s->settled[op];
            options.tokens = s->options.tokens[i];
            options.home_tokens = cot_divide_up(options.tokens, ranks);
            if (__builtin_add_overflow(bytes, s->op[op]->heap_bytes(&options, ranks), &bytes))
                return SIZE_MAX;
        }
    return bytes;
}

cot_status cot_bench_open_end(cot_bench_end *end, const cot_rank *rank, cot_error *error)
{
    const cot_bench_setup *s = rank->argument;
    struct block block[BLOCKS];
    *end = (cot_bench_end){.setup = s, .rank = rank};
    const int blocks = list_blocks(end, s, block);
    cot_status status = cot_reports_open(&end->reports, rank->fabric, error);
    for (int b = 0; b < blocks && status == COT_OK; b++)
        status = cot_alloc(rank->fabric, block[b].at, block[b].bytes, error);
    if (status != COT_OK) return status;
    end->moe = calloc(s->options.n_tokens * (size_t)s->ops, sizeof(cot_moe *));
    end->timeline.capacity = cot_bench_events(s->options.ranks);
    end->timeline.events = malloc((size_t)end->timeline.capacity * sizeof *end->timeline.events);
    if (end->moe && end->timeline.events) return COT_OK;
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for rank %d", rank->fabric->rank);
}

/* Rows and routing of this rank's tokens, one after the other in its heap. */
static void *rows_of(const cot_bench_end *end, size_t *bytes)
{
    const cot_bench_setup *s = end->setup;
    uint8_t *begin = cot_local(end->rank->fabric, end->x), *last = cot_local(end->rank->fabric, end->weights);
    const size_t share = (size_t)cot_divide_up(s->most_tokens, s->options.ranks);
    *bytes = (size_t)(last - begin) + share * (size_t)s->moe.top_k * sizeof(float);
    return begin;
}

/* They are as the first operator that names a kind of memory wants them; of kinds there is one so far. */
static cot_status pin_rows(cot_bench_end *end, const cot_moe_memory *memory, cot_error *error)
{
    if (!memory || end->pinned == memory) return COT_OK;
    size_t bytes;
    void *rows = rows_of(end, &bytes);
    const cot_status status = memory->pin(rows, bytes, error);
    if (status == COT_OK) end->pinned = memory;
    return status;
}

void cot_bench_close_end(cot_bench_end *end)
{
    if (end->pinned) {
        size_t bytes;
        void *rows = rows_of(end, &bytes);
        end->pinned->unpin(rows, bytes);
    }
    for (size_t i = 0; end->moe && i < end->setup->options.n_tokens * (size_t)end->setup->ops; i++)
        end->setup->op[i % (size_t)end->setup->ops]->close(end->moe[i]);
    free(end->moe);
    free(end->timeline.events);
}

/* ---- what a rank does ---- */

struct drawing {
    const cot_bench_end *end;
    cot_status *status; // of the first that failed; a pool's threads may write it at once
};

static void draw_one(void *context, int64_t e)
{
    const struct drawing *d = context;
    const cot_bench_setup *s = d->end->setup;
    cot_fabric *fabric = d->end->rank->fabric;
    if (s->layout.rank[e] != fabric->rank || fabric->ops->failed(fabric)) return;
    for (int w = 0; w < s->kinds; w++) {
        uint8_t *slot = (uint8_t *)cot_local(fabric, d->end->slots[w]) +
                        (size_t)s->layout.slot[e] * s->weights[w]->slot_bytes(&s->moe.expert);
        cot_status status =
            cot_bench_draw_expert(slot, s->weights[w], &s->moe.expert, s->options.seed, e, NULL);
        if (status != COT_OK) __atomic_store_n(d->status, status, __ATOMIC_RELAXED);
    }
}

static cot_status draw_slots(cot_bench_end *end, cot_error *error)
{
    cot_status status = COT_OK;
    struct drawing drawing = {end, &status};
    cot_pool_run(end->rank->pool, end->setup->moe.experts, draw_one, &drawing);
    if (status != COT_OK) return cot_fail(error, status, "out of memory for random weights");
    return cot_fabric_check(end->rank->fabric, error);
}

static cot_moe_layer layer_of(const cot_bench_end *end, int op)
{
    const cot_bench_setup *s = end->setup;
    const int kind = s->kind[op];
    return (cot_moe_layer){.gate = &s->gate[kind],
                           .placement = cot_expert_layout_layer(&s->layout, 0),
                           .slots = end->slots[kind],
                           .slot_bytes = s->weights[kind]->slot_bytes(&s->moe.expert)};
}

static cot_status open_operators(cot_bench_end *end, const cot_bench_command *c, cot_error *error)
{
    const cot_bench_setup *s = end->setup;
    cot_status status = COT_OK;
    for (int i = 0; i < s->ops && status == COT_OK; i++) {
        if ((status = cot_fabric_check(end->rank->fabric, error)) != COT_OK) break;
        cot_moe **moe = &end->moe[c->set * (size_t)s->ops + (size_t)i];
        cot_moe_options options = s->settled[i];
        options.fabric = end->rank->fabric;
        options.pool = end->rank->pool;
        options.timeline = &end->timeline;
        options.tokens = s->options.tokens[c->set];
        options.home_tokens = cot_divide_up(options.tokens, s->options.ranks);
        status = s->op[i]->open(moe, &options, error);
        const cot_moe_layer layer = layer_of(end, i);
        if (status == COT_OK) status = pin_rows(end, s->op[i]->memory, error);
        if (status == COT_OK && s->op[i]->keep)
            status = s->op[i]->keep(*moe, &layer, COT_MOE_ALL_SLOTS, error);
    }
    return status;
}

static void pass_time(void *context, int64_t i)
{
    cot_fabric *fabric = context;
    (void)i;
    const int64_t wake_ns = 50000; // about what a sleeping thread takes to come
    for (const int64_t end_ns = fabric->ops->now_ns(fabric) + wake_ns; fabric->ops->now_ns(fabric) < end_ns;)
        cot_pause();
}

/* Looks without pause, as a sleep would be seen in what follows; but not for ever. */
static cot_status spin_until(cot_fabric *fabric, cot_sym signal, uint64_t value, int from, cot_error *error)
{
    const int64_t until_ns = fabric->ops->now_ns(fabric) + 100000000;
    for (int round = 0; cot_signal_load(fabric, signal) < value; round++) {
        if (fabric->ops->now_ns(fabric) > until_ns)
            return cot_wait(fabric, signal, value, from, COT_PHASE_CONTROL, error);
        cot_relax(round);
    }
    return COT_OK;
}

/* All begin at once, and workers are awake, as they are in the midst of a model. */
static cot_status line_up(cot_bench_end *end, cot_error *error)
{
    cot_fabric *fabric = end->rank->fabric;
    const int ranks = fabric->ranks, helpers = end->setup->options.threads - ranks,
              here = end->setup->fabric->one_process ? helpers : (helpers + ranks - 1) / ranks;
    if (end->rank->first && helpers > 0) cot_pool_run(end->rank->pool, 2 * (here + 1), pass_time, fabric);
    end->runs++;
    if (fabric->rank) {
        cot_put_signal(fabric, 0, 0, NULL, 0, end->arrived_signals + (cot_sym)fabric->rank * LINE, end->runs,
                       COT_PHASE_CONTROL);
        return spin_until(fabric, end->go_signal, end->runs, 0, error);
    }
    cot_status status = COT_OK;
    for (int r = 1; r < ranks && status == COT_OK; r++)
        status = spin_until(fabric, end->arrived_signals + (cot_sym)r * LINE, end->runs, r, error);
    for (int r = 1; r < ranks && status == COT_OK; r++)
        cot_put_signal(fabric, r, 0, NULL, 0, end->go_signal, end->runs, COT_PHASE_CONTROL);
    return status;
}

static void set_link(cot_fabric *fabric, const cot_link *link)
{
    if (fabric->ops->set_link) fabric->ops->set_link(fabric, link);
}

/* Puts to rank 0 what is asked for; it is there with the report. */
static void tell(cot_bench_end *end, const cot_bench_command *c, cot_bench_told *told, int64_t begin,
                 int64_t tokens)
{
    cot_fabric *fabric = end->rank->fabric;
    const cot_sym rank = (cot_sym)fabric->rank, at = (cot_sym)begin, n = (cot_sym)tokens;
    const size_t row = (size_t)end->setup->moe.expert.hidden * sizeof(float),
                 chosen = (size_t)end->setup->moe.top_k * sizeof(uint16_t);
    if (c->tells_answer) {
        cot_put(fabric, 0, end->all_y + at * row, cot_local(fabric, end->y), n * row, COT_PHASE_CONTROL);
        cot_put(fabric, 0, end->all_experts + at * chosen, cot_local(fabric, end->experts), n * chosen,
                COT_PHASE_CONTROL);
    }
    const int64_t count = end->timeline.count, most = end->timeline.capacity;
    told->events = !c->tells_events ? 0 : count < most ? count : most;
    cot_put(fabric, 0, end->events + rank * (size_t)most * sizeof(cot_moe_event), end->timeline.events,
            (size_t)told->events * sizeof(cot_moe_event), COT_PHASE_CONTROL);
    cot_put(fabric, 0, end->told + rank * sizeof *told, told, sizeof *told, COT_PHASE_CONTROL);
}

static cot_status run(cot_bench_end *end, const cot_bench_command *c, cot_error *error)
{
    const cot_bench_setup *s = end->setup;
    cot_fabric *fabric = end->rank->fabric;
    const int64_t begin = cot_share_begin(c->tokens, fabric->rank, fabric->ranks);
    const int64_t tokens = cot_share_begin(c->tokens, fabric->rank + 1, fabric->ranks) - begin;
    const cot_moe_layer layer = layer_of(end, c->op);
    float *y = cot_local(fabric, end->y);
    if (c->tells_answer) memset(y, 0xff, (size_t)(tokens * s->moe.expert.hidden) * sizeof *y); // NaN
    end->timeline.count = 0;
    set_link(fabric, &(cot_link){0}); // what is under way belongs to the run before
    cot_status status = line_up(end, error);
    if (status != COT_OK) return status;
    set_link(fabric, &c->link);
    const cot_bench_tally before = cot_bench_take_tally(end, c);
    cot_bench_told told = {.begin_ns = fabric->ops->now_ns(fabric)};
    cot_turns_enter(fabric);
    status = s->op[c->op]->forward(end->moe[c->set * (size_t)s->ops + (size_t)c->op], &layer, y,
                                   cot_local(fabric, end->experts), cot_local(fabric, end->weights),
                                   cot_local(fabric, end->x), tokens, error);
    cot_turns_leave(fabric);
    told.end_ns = fabric->ops->now_ns(fabric);
    told.worked_ns = cot_bench_worked_ns(&end->timeline, told.begin_ns);
    const cot_bench_tally after = cot_bench_take_tally(end, c);
    told.tally = cot_bench_tally_since(&before, &after);
    if (status == COT_OK) tell(end, c, &told, begin, tokens);
    return status;
}

static cot_status obey(cot_bench_end *end, const cot_bench_command *c, cot_error *error)
{
    if (c->verb == COT_BENCH_DRAW) return draw_slots(end, error);
    if (c->verb == COT_BENCH_OPEN) return open_operators(end, c, error);
    return c->verb == COT_BENCH_RUN ? run(end, c, error) : COT_OK;
}

/* ---- the protocol ---- */

void cot_bench_serve(const cot_rank *rank)
{
    cot_bench_end end;
    cot_error error = {0};
    cot_bench_command command = {.verb = COT_BENCH_DRAW};
    const cot_status opened = cot_bench_open_end(&end, rank, &error); // told with the first report
    while (command.verb != COT_BENCH_STOP) {
        cot_fabric *fabric = rank->fabric;
        const uint64_t number = ++end.commands;
        cot_status status =
            cot_wait_patiently(fabric, end.command_signal, number, 0, COT_PHASE_CONTROL, NULL);
        if (status != COT_OK) break;
        memcpy(&command, (cot_bench_command *)cot_local(fabric, end.command_at) + number % 2, sizeof command);
        status = opened == COT_OK ? obey(&end, &command, &error) : opened;
        cot_reports_send(&end.reports, number, status, &error);
    }
    cot_bench_close_end(&end);
}

cot_status cot_bench_command_ranks(struct cot_bench_moe *bench, cot_bench_verb verb, cot_error *error)
{
    cot_bench_end *root = &bench->root;
    cot_fabric *fabric = root->rank->fabric;
    const uint64_t number = ++root->commands;
    bench->now.verb = verb;
    for (int r = 1; r < fabric->ranks; r++)
        cot_put_signal(fabric, r, root->command_at + number % 2 * sizeof bench->now, &bench->now,
                       sizeof bench->now, root->command_signal, number, COT_PHASE_CONTROL);
    for (int r = 1; r < fabric->ranks; r++) cot_rouse(fabric, r);
    if (verb == COT_BENCH_STOP) return COT_OK;
    cot_status status = obey(root, &bench->now, error);
    return cot_reports_collect(&root->reports, number, status, error);
}
