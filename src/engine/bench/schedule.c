#include "coterie/bench_schedule.h"

#include "base/error.h"
#include "base/rng.h"
#include "coterie/predict_evaluate.h"
#include "engine/bench/batching.h"
#include "schedule/overlap.h"

#include <stdlib.h>
#include <string.h>

const char *const cot_bench_batching_names[COT_BENCH_BATCHINGS] = {"fcfs", "random", "chosen", "oracle",
                                                                   "admission"};

enum { MOST_RUNNING = 4096, MOST_SEEDS = 100, STREAM_SHUFFLE = 1, STREAM_START = 2, STREAM_CHOICE = 3 };

/* One replay. Of those that are there the first `batch` run, where they are admitted. */
struct replay {
    const cot_bench_schedule_options *o;
    const cot_trace *trace;
    cot_bench_foresight foresight;
    uint8_t *training; // [S]
    int64_t *shuffled; // [S] the first `generations` are replayed, in this order
    int64_t generations, came, passes;
    uint64_t seed, choices;         // numbers drawn
    cot_bench_generation *running;  // [running]
    cot_overlap_sequence *sequence; // [running] the same
    int32_t *order;                 // [running] scratch
    bool *taken;                    // [running] by the step
    int64_t *queue, *overtaken; // [running] admission: those that run, then those that wait, the oldest first
    float *missing, *history;   // [L][E] scratch; [running][L][E]
    uint8_t *share, *called;    // [running][L][E]; [E] bits: by the batch, by any
    int64_t experts, busiest, all; // sums over layers and steps
    cot_bench_schedule_row *row;
};

static int64_t cells_of(const struct replay *r)
{
    return (int64_t)r->trace->n_layers * r->trace->n_experts;
}

static int64_t below(uint64_t bits, int64_t n)
{
    return (int64_t)(bits % (uint64_t)n);
}

static int64_t length_of(const cot_trace *trace, int64_t s)
{
    return trace->sequence_offsets[s + 1] - trace->sequence_offsets[s];
}

/* ---- who comes ---- */

static void shuffle(struct replay *r)
{
    for (int64_t i = r->generations - 1; i > 0; i--) {
        const uint64_t number = (uint64_t)(r->passes * r->generations + i);
        const int64_t j = below(cot_random_bits(r->seed, STREAM_SHUFFLE, number), i + 1),
                      moved = r->shuffled[i];
        r->shuffled[i] = r->shuffled[j];
        r->shuffled[j] = moved;
    }
    r->passes++;
}

/* The next of the shuffle takes the place of number i; `anywhere`: and not in its first half alone. */
static void come(struct replay *r, int64_t i, bool anywhere)
{
    if (r->came % r->generations == 0) shuffle(r);
    const int64_t s = r->shuffled[r->came % r->generations],
                  room = length_of(r->trace, s) / (anywhere ? 1 : 2);
    const uint64_t bits = cot_random_bits(r->seed, STREAM_START, (uint64_t)r->came++);
    cot_bench_generation_begin(&r->running[i], &r->foresight, s, below(bits, room));
    r->sequence[i].waited = 0;
}

/* ---- steps ---- */

static void expect(struct replay *r, int64_t i, cot_bench_batching way)
{
    cot_bench_generation *g = &r->running[i];
    if (way == COT_BENCH_BATCH_ORACLE) cot_bench_generation_know(g, &r->foresight);
    if (way == COT_BENCH_BATCH_CHOSEN || way == COT_BENCH_BATCH_ADMISSION)
        cot_bench_generation_expect(g, &r->foresight, way == COT_BENCH_BATCH_CHOSEN);
}

static void take_any(struct replay *r)
{
    for (int64_t i = 0; i < r->o->running; i++) r->taken[i] = false;
    for (int64_t n = 0; n < r->o->batch;) {
        const int64_t i = below(cot_random_bits(r->seed, STREAM_CHOICE, r->choices++), r->o->running);
        n += !r->taken[i];
        r->taken[i] = true;
    }
}

/* The batch of those that waited longest, or, over so many cells, of those that add least. */
static void choose(struct replay *r, int64_t cells)
{
    const cot_bench_schedule_options *o = r->o;
    cot_overlap_order(r->order, r->sequence, o->running);
    cot_overlap_choose(r->order, r->sequence, o->running, o->batch, o->max_wait_steps, r->missing, cells);
    for (int64_t n = 0; n < o->running; n++) r->taken[r->order[n]] = n < o->batch;
}

static void take(struct replay *r, cot_bench_batching way)
{
    const cot_bench_schedule_options *o = r->o;
    switch (way) {
    case COT_BENCH_BATCH_RANDOM:
        take_any(r);
        break;
    case COT_BENCH_BATCH_FCFS:
        choose(r, 0);
        break;
    case COT_BENCH_BATCH_CHOSEN:
    case COT_BENCH_BATCH_ORACLE:
        choose(r, cells_of(r));
        break;
    case COT_BENCH_BATCH_ADMISSION:
        for (int64_t i = 0; i < o->running; i++) r->taken[r->queue[i]] = i < o->batch;
        break;
    case COT_BENCH_BATCHINGS:
        break;
    }
}

/* Counts what the step's tokens call. */
static void count(struct replay *r)
{
    enum { BATCH = 1, ANY = 2 };
    const cot_trace *trace = r->trace;
    for (int32_t l = 0; l < trace->n_layers; l++) {
        int64_t on[COT_TRACE_MAX_RANKS] = {0}, busiest = 0;
        memset(r->called, 0, (size_t)trace->n_experts);
        for (int64_t i = 0; i < r->o->running; i++)
            for (int32_t k = 0; k < trace->top_k; k++)
                r->called[cot_trace_expert(trace, l, r->running[i].at, k)] |=
                    (uint8_t)(r->taken[i] ? BATCH | ANY : ANY);
        for (int32_t e = 0; e < trace->n_experts; e++) {
            const int32_t rank = cot_trace_home(e, trace->n_experts, r->o->ranks);
            r->all += r->called[e] != 0;
            if (!(r->called[e] & BATCH)) continue;
            r->experts++;
            if (++on[rank] > busiest) busiest = on[rank];
        }
        r->busiest += busiest;
    }
}

/* The place in the queue at which one that ran has ended is taken by the one that is admitted next, and the one that has come is
 * the last. */
static void admit(struct replay *r, int64_t place)
{
    const int64_t batch = r->o->batch, waiting = r->o->running - batch;
    cot_overlap_waiting oldest[COT_OVERLAP_WINDOW];
    const int64_t came = r->queue[place];
    int64_t count = 0, next = 0;
    cot_overlap_clear(r->missing, cells_of(r));
    for (int64_t i = 0; i < batch; i++)
        if (i != place) cot_overlap_take(r->missing, r->running[r->queue[i]].share, cells_of(r));
    for (; count < waiting && count < COT_OVERLAP_WINDOW; count++) {
        const int64_t i = r->queue[batch + count];
        oldest[count] = (cot_overlap_waiting){.share = r->running[i].share, .overtaken = r->overtaken[i]};
    }
    if (!count) return;
    next = cot_overlap_admit(oldest, count, r->missing, cells_of(r));
    for (int64_t i = 0; i < next; i++) {
        const int64_t passed = ++r->overtaken[r->queue[batch + i]];
        if (passed > r->row->most_overtaken) r->row->most_overtaken = passed;
    }
    r->queue[place] = r->queue[batch + next];
    memmove(r->queue + batch + next, r->queue + batch + next + 1,
            (size_t)(waiting - next - 1) * sizeof *r->queue);
    r->queue[batch + waiting - 1] = came;
    r->overtaken[came] = 0;
    r->sequence[r->queue[place]].waited = 0;
}

static void go_on(struct replay *r, cot_bench_batching way)
{
    for (int64_t i = 0; i < r->o->running; i++) {
        cot_overlap_sequence *s = &r->sequence[i];
        if (!r->taken[i]) {
            if (++s->waited > r->row->most_waited_steps) r->row->most_waited_steps = s->waited;
            continue;
        }
        s->waited = 0;
        if (!cot_bench_generation_go_on(&r->running[i], &r->foresight)) {
            come(r, i, false);
            if (way == COT_BENCH_BATCH_ADMISSION) s->waited = -1; // it has ended
        }
        expect(r, i, way);
    }
    for (int64_t place = 0; way == COT_BENCH_BATCH_ADMISSION && place < r->o->batch; place++) {
        cot_overlap_sequence *s = &r->sequence[r->queue[place]];
        if (s->waited >= 0) continue;
        s->waited = 0;
        admit(r, place);
    }
}

static void run(struct replay *r, cot_bench_batching way, uint64_t done)
{
    const cot_bench_schedule_options *o = r->o;
    r->came = r->passes = 0;
    r->choices = 0;
    r->experts = r->busiest = r->all = 0;
    r->foresight.slowest = way == COT_BENCH_BATCH_ADMISSION ? 0.01f : 0.1f; // what lasts; what comes next
    int64_t next = 0;
    for (int64_t s = 0; s < r->trace->n_sequences; s++)
        if (!r->training[s] && length_of(r->trace, s) > 1) r->shuffled[next++] = s;
    for (int64_t i = 0; i < o->running; i++) {
        come(r, i, way != COT_BENCH_BATCH_ADMISSION || i < o->batch);
        expect(r, i, way);
        r->queue[i] = i;
        r->overtaken[i] = 0;
    }
    for (int64_t step = 0; step < o->steps; step++) {
        take(r, way);
        count(r);
        go_on(r, way);
        if (o->progress)
            o->progress(o->context, done + (uint64_t)step + 1,
                        (uint64_t)o->seeds * COT_BENCH_BATCHINGS * (uint64_t)o->steps);
    }
}

/* ---- all of it ---- */

static cot_status check(const cot_trace *trace, const cot_bench_schedule_options *o, cot_error *error)
{
    if (trace->kind != COT_TRACE_TOKENS)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "the trace has counts of tokens, not generations, which are replayed token by token");
    if (o->running < 1 || o->running > MOST_RUNNING)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%lld running sequences are not 1 to %d",
                        (long long)o->running, MOST_RUNNING);
    if (o->batch < 1 || o->batch > o->running)
        return cot_fail(error, COT_INVALID_ARGUMENT, "a batch of %lld is not 1 to %lld, as many as run",
                        (long long)o->batch, (long long)o->running);
    if (o->max_wait_steps < 1)
        return cot_fail(error, COT_INVALID_ARGUMENT, "a wait of %lld steps is less than 1",
                        (long long)o->max_wait_steps);
    const int32_t most = trace->n_experts < COT_TRACE_MAX_RANKS ? trace->n_experts : COT_TRACE_MAX_RANKS;
    if (o->ranks < 1 || o->ranks > most)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%d ranks are not 1 to %d", (int)o->ranks, (int)most);
    if (o->steps < 1 || o->seeds < 1 || o->seeds > MOST_SEEDS)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%lld steps of %d seeds are not 1 or more of 1 to %d",
                        (long long)o->steps, (int)o->seeds, MOST_SEEDS);
    if (!(o->training > 0 && o->training < 1))
        return cot_fail(error, COT_INVALID_ARGUMENT, "a share of %g is not between 0 and 1", o->training);
    return COT_OK;
}

static cot_status allocate(struct replay *r, cot_error *error)
{
    const size_t running = (size_t)r->o->running, cells = (size_t)cells_of(r),
                 sequences = (size_t)r->trace->n_sequences;
    r->training = calloc(sequences + 1, sizeof *r->training);
    r->shuffled = calloc(sequences + 1, sizeof *r->shuffled);
    r->running = calloc(running, sizeof *r->running);
    r->sequence = calloc(running, sizeof *r->sequence);
    r->order = calloc(running, sizeof *r->order);
    r->taken = calloc(running, sizeof *r->taken);
    r->queue = calloc(running, sizeof *r->queue);
    r->overtaken = calloc(running, sizeof *r->overtaken);
    r->missing = calloc(cells, sizeof *r->missing);
    r->history = calloc(running * cells, sizeof *r->history);
    r->share = calloc(running * cells, sizeof *r->share);
    r->called = calloc((size_t)r->trace->n_experts, sizeof *r->called);
    if (!r->training || !r->shuffled || !r->running || !r->sequence || !r->order || !r->taken || !r->queue ||
        !r->overtaken || !r->missing || !r->history || !r->share || !r->called)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %lld sequences",
                        (long long)r->o->running);
    for (size_t i = 0; i < running; i++) {
        r->running[i].history = r->history + i * cells;
        r->sequence[i].share = r->running[i].share = r->share + i * cells;
    }
    return COT_OK;
}

static void free_all(struct replay *r)
{
    void *owned[] = {r->training, r->shuffled,  r->running, r->sequence, r->order, r->taken,
                     r->queue,    r->overtaken, r->missing, r->history,  r->share, r->called};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}

static cot_status split(struct replay *r, cot_error *error)
{
    const int64_t sequences = r->trace->n_sequences;
    cot_trace_split(r->training, sequences, r->o->training, r->seed);
    r->generations = 0;
    for (int64_t s = 0; s < sequences; s++) r->generations += !r->training[s] && length_of(r->trace, s) > 1;
    if (r->generations < r->o->running)
        return cot_fail(
            error, COT_INVALID_ARGUMENT,
            "%lld sequences cannot run at once: the trace has %lld of two tokens or more to replay",
            (long long)r->o->running, (long long)r->generations);
    return COT_OK;
}

/* One way of one seed is over. */
static void add(const struct replay *r, int32_t seed)
{
    cot_bench_schedule_row *row = r->row;
    const double steps = (double)(r->o->steps * r->trace->n_layers), experts = (double)r->experts / steps,
                 seeds = r->o->seeds;
    row->experts += experts / seeds;
    row->least = seed == 0 || experts < row->least ? experts : row->least;
    row->most = seed == 0 || experts > row->most ? experts : row->most;
    row->busiest += (double)r->busiest / steps / seeds;
    row->all += (double)r->all / steps / seeds;
}

cot_status cot_bench_schedule(cot_bench_schedule_row rows[COT_BENCH_BATCHINGS], int64_t *replayed,
                              const cot_trace *trace, const cot_bench_schedule_options *o, cot_error *error)
{
    struct replay r = {.o = o, .trace = trace};
    uint64_t done = 0;
    memset(rows, 0, COT_BENCH_BATCHINGS * sizeof *rows);
    cot_status status = check(trace, o, error);
    if (status != COT_OK) return status;
    status = allocate(&r, error);
    for (int32_t seed = 0; seed < o->seeds && status == COT_OK; seed++) {
        r.seed = o->seed + (uint64_t)seed;
        status = split(&r, error);
        if (replayed && status == COT_OK)
            *replayed = seed == 0 || r.generations < *replayed ? r.generations : *replayed;
        if (status == COT_OK) status = cot_bench_foresight_open(&r.foresight, trace, r.training, error);
        for (int way = 0; way < COT_BENCH_BATCHINGS && status == COT_OK; way++) {
            r.row = &rows[way];
            run(&r, (cot_bench_batching)way, done);
            add(&r, seed);
            done += (uint64_t)o->steps;
        }
        cot_bench_foresight_close(&r.foresight);
    }
    free_all(&r);
    return status;
}
