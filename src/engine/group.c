#include "engine/group.h"

#include "base/error.h"
#include "fabric/reports.h"
#include "placement/epoch.h"

#include <stdlib.h>
#include <string.h>

enum { OPENED = 1, STEP_FAILED = 2 }; // the numbers of a rank's reports

/* One rank's end of the group: the endpoint, the symmetric words of the plan protocol, the runner.
 *
 * Rank 0 writes plan i into buffer i mod 2 of every rank and raises its signal to i. Each plan has an answer of every
 * rank, but a step's logits may be with rank 0 before a rank is done with the plan: rank 0 sends plan i + 2 only after plan
 * i + 1 was answered, for which every rank had to begin it, and so had done with plan i. Two buffers are enough. */
struct end {
    cot_fabric *fabric;
    cot_runner *runner;
    cot_sym plan_at, plan_signal;
    cot_sym verdict_at;           // on rank 0: what each rank says of the chunk that came to it, a word each
    size_t plan_bytes;            // of one buffer
    cot_reports reports, answers; // answers: of plans that have no other, by the plans' numbers
    uint64_t plans;
    int32_t *changes; // of an epoch that comes in several plans, so far
    int64_t changes_count;
};

struct cot_engine_group {
    cot_engine_group_options options;
    cot_launch *launch;
    struct end root;
};

static size_t plan_bytes_of(const cot_engine_group_options *options)
{
    return (cot_plan_bytes(options->runner.step_tokens, options->runner.step_maps,
                           options->runner.step_states, options->ranks) +
            63) /
           64 * 64;
}

static cot_status open_words(struct end *end, const cot_rank *rank, cot_error *error)
{
    *end = (struct end){.fabric = rank->fabric, .plan_bytes = plan_bytes_of(rank->argument)};
    cot_status status = cot_reports_open(&end->reports, rank->fabric, error);
    if (status == COT_OK) status = cot_reports_open(&end->answers, rank->fabric, error);
    if (status == COT_OK) status = cot_alloc(end->fabric, &end->plan_at, 2 * end->plan_bytes, error);
    if (status == COT_OK) status = cot_alloc(end->fabric, &end->plan_signal, sizeof(uint64_t), error);
    if (status == COT_OK)
        status =
            cot_alloc(end->fabric, &end->verdict_at, (size_t)end->fabric->ranks * sizeof(uint64_t), error);
    return status;
}

static cot_status open_runner(struct end *end, const cot_rank *rank, cot_error *error)
{
    const cot_engine_group_options *options = rank->argument;
    cot_stage_enter(rank->fabric, COT_STAGE_LOADING, 0);
    cot_runner_options runner = options->runner;
    runner.pool = rank->pool;
    end->changes = calloc((size_t)cot_expert_changes_room(runner.layout) + 1, sizeof *end->changes);
    if (!end->changes) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for changes of a placement");
    return cot_runner_open(&end->runner, &runner, rank->fabric, rank->shared, error);
}

static void *plan_in_hand(struct end *end)
{
    return (uint8_t *)cot_local(end->fabric, end->plan_at) + end->plans % 2 * end->plan_bytes;
}

/* An idle group waits for as long as it takes. */
static cot_status await_plan(struct end *end, cot_plan *plan, cot_error *error)
{
    end->plans++;
    cot_stage_enter(end->fabric, COT_STAGE_IDLE, 0);
    cot_status status =
        cot_wait_patiently(end->fabric, end->plan_signal, end->plans, 0, COT_PHASE_CONTROL, error);
    if (status == COT_OK) cot_plan_read(plan, plan_in_hand(end));
    return status;
}

/* Chunks go: what became of the one that came to this rank is with rank 0 before its answer. */
static cot_status copy(struct end *end, const cot_plan *plan, cot_error *error)
{
    cot_fabric *fabric = end->fabric;
    cot_runner_verdict verdict = COT_RUNNER_SAME;
    const cot_status status = cot_runner_copy(end->runner, plan->chunk, plan->count, &verdict, error);
    const uint64_t word = (uint64_t)verdict;
    cot_put(fabric, 0, end->verdict_at + (cot_sym)fabric->rank * sizeof word, &word, sizeof word,
            COT_PHASE_CONTROL);
    return status;
}

/* A rank's own part of a plan whose answer is a status. */
static cot_status obey(struct end *end, const cot_plan *plan, cot_error *error)
{
    if (plan->kind == COT_PLAN_LINK) {
        end->fabric->ops->set_link(end->fabric, &plan->link);
    } else if (plan->kind == COT_PLAN_PLACE) {
        memcpy(end->changes + end->changes_count, plan->words, (size_t)plan->count * sizeof *plan->words);
        end->changes_count += plan->count;
        if (!plan->last) return COT_OK;
        cot_runner_place(end->runner, end->changes, end->changes_count);
        end->changes_count = 0;
    } else if (plan->kind == COT_PLAN_RESIZE) {
        cot_runner_resize(end->runner, plan->words, plan->count / 2, plan->open);
        if (plan->last) cot_runner_empty_places(end->runner);
    } else {
        return copy(end, plan, error);
    }
    return COT_OK;
}

/* Ranks other than 0. */
static void serve(const cot_rank *rank)
{
    struct end end;
    cot_error error = {0};
    cot_status status = open_words(&end, rank, &error);
    if (status != COT_OK) { // it cannot even report that
        rank->fabric->ops->fail(rank->fabric);
        return;
    }
    status = open_runner(&end, rank, &error);
    const bool opened = status == COT_OK;
    cot_reports_send(&end.reports, OPENED, status, &error);
    while (status == COT_OK) {
        cot_plan plan;
        cot_step_result nothing;
        status = await_plan(&end, &plan, &error);
        if (status != COT_OK || plan.kind == COT_PLAN_STOP) break;
        if (plan.kind == COT_PLAN_STEP)
            status = cot_runner_step(end.runner, &plan.step, &nothing, &error);
        else if (plan.kind == COT_PLAN_STATS)
            status = cot_runner_stats(end.runner, NULL, &error);
        else
            cot_reports_send(&end.answers, end.plans, obey(&end, &plan, &error), &error);
    }
    if (opened && status != COT_OK) cot_reports_send(&end.reports, STEP_FAILED, status, &error);
    cot_runner_close(end.runner);
    free(end.changes);
}

cot_status cot_engine_group_open(cot_engine_group **out, const cot_engine_group_options *options,
                                 cot_error *error)
{
    *out = NULL;
    cot_engine_group *g = calloc(1, sizeof *g);
    if (!g) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %d ranks", options->ranks);
    g->options = *options;
    const int ranks = options->ranks;
    const cot_launch_options launch = {.ranks = ranks,
                                       .threads = options->threads,
                                       .heap_bytes = cot_runner_heap_bytes(&options->runner, ranks) +
                                                     2 * cot_reports_heap_bytes(ranks) +
                                                     2 * plan_bytes_of(options) + (16 << 20),
                                       .timeout_ns = options->timeout_ns,
                                       .main = serve,
                                       .argument = &g->options,
                                       .shared = options->progress};
    const cot_rank *root;
    cot_status status = cot_launch_open(&g->launch, &root, options->fabric, &launch, error);
    if (status == COT_OK) status = open_words(&g->root, root, error);
    if (status == COT_OK) status = open_runner(&g->root, root, error);
    if (status == COT_OK) status = cot_reports_collect(&g->root.reports, OPENED, COT_OK, error);
    if (status == COT_OK) cot_stage_enter(root->fabric, COT_STAGE_IDLE, 0);
    if (status == COT_OK)
        *out = g;
    else
        cot_engine_group_close(g);
    return status;
}

static void broadcast(struct end *root, const cot_plan *plan)
{
    root->plans++;
    const cot_sym at = root->plan_at + root->plans % 2 * root->plan_bytes;
    void *own = plan_in_hand(root);
    const size_t bytes = cot_plan_write(own, plan);
    for (int rank = 1; rank < root->fabric->ranks; rank++) {
        cot_put_signal(root->fabric, rank, at, own, bytes, root->plan_signal, root->plans, COT_PHASE_CONTROL);
        cot_rouse(root->fabric, rank);
    }
}

/* Where a rank failed, what it reports says more. */
static cot_status reason(struct end *root, cot_status status, cot_error *error)
{
    if (status != COT_PEER_FAILED) return status;
    return cot_reports_collect(&root->reports, STEP_FAILED, status, error);
}

cot_status cot_engine_group_step(cot_engine_group *g, const cot_step *step, cot_step_result *result,
                                 cot_error *error)
{
    struct end *root = &g->root;
    broadcast(root, &(cot_plan){.kind = COT_PLAN_STEP, .step = *step});
    return reason(root, cot_runner_step(root->runner, step, result, error), error);
}

/* A plan whose answer is a status: sent, obeyed here too, and answered by all. */
static cot_status order(struct end *root, const cot_plan *plan, cot_error *error)
{
    broadcast(root, plan);
    cot_status status = obey(root, plan, error);
    cot_stage_enter(root->fabric, COT_STAGE_IDLE, 0);
    const cot_status answered = reason(root, cot_reports_await(&root->answers, root->plans, error), error);
    return status == COT_OK ? answered : status;
}

cot_status cot_engine_group_check(cot_engine_group *g, cot_error *error)
{
    return reason(&g->root, cot_fabric_check(g->root.fabric, error), error);
}

bool cot_engine_group_lives(const cot_engine_group *g)
{
    return cot_fabric_lives(g->root.fabric);
}

cot_status cot_engine_group_link(cot_engine_group *g, const cot_link *link, cot_error *error)
{
    struct end *root = &g->root;
    if (!root->fabric->ops->set_link)
        return cot_fail(error, COT_UNSUPPORTED,
                        "links have a shape of their own where messages take a real wire");
    return order(root, &(cot_plan){.kind = COT_PLAN_LINK, .link = *link}, error);
}

cot_status cot_engine_group_place(cot_engine_group *g, const int32_t *words, int64_t count, cot_error *error)
{
    struct end *root = &g->root;
    const int64_t room = cot_plan_words(root->plan_bytes);
    cot_status status = COT_OK;
    bool last = false;
    for (int64_t at = 0; !last && status == COT_OK; at += room) {
        cot_plan plan = {.kind = COT_PLAN_PLACE, .words = words + at, .count = count - at};
        last = plan.last = plan.count <= room;
        if (!last) plan.count = room;
        status = order(root, &plan, error);
    }
    return status;
}

cot_status cot_engine_group_resize(cot_engine_group *g, const int32_t *moved, int64_t moves, int64_t open,
                                   cot_error *error)
{
    struct end *root = &g->root;
    const int64_t room = cot_plan_words(root->plan_bytes) / 2 * 2;
    cot_status status = COT_OK;
    bool last = false;
    for (int64_t at = 0; !last && status == COT_OK; at += room) {
        cot_plan plan = {.kind = COT_PLAN_RESIZE, .words = moved + at, .count = 2 * moves - at};
        last = plan.last = plan.count <= room;
        if (!last) plan.count = room;
        plan.open = (int32_t)(last ? open : g->options.runner.pages);
        status = order(root, &plan, error);
    }
    return status;
}

cot_status cot_engine_group_copy(cot_engine_group *g, const cot_runner_chunk *chunk, int64_t count,
                                 cot_runner_verdict *verdict, cot_error *error)
{
    struct end *root = &g->root;
    const cot_status status =
        order(root, &(cot_plan){.kind = COT_PLAN_COPY, .chunk = chunk, .count = count}, error);
    const uint64_t *verdicts = cot_local(root->fabric, root->verdict_at);
    for (int64_t i = 0; i < count; i++) verdict[i] = (cot_runner_verdict)verdicts[chunk[i].to];
    return status;
}

cot_status cot_engine_group_stats(cot_engine_group *g, cot_rank_stats *stats, uint64_t *calls,
                                  uint64_t *exchanged, cot_error *error)
{
    struct end *root = &g->root;
    broadcast(root, &(cot_plan){.kind = COT_PLAN_STATS});
    const cot_status status = reason(root, cot_runner_stats(root->runner, stats, error), error);
    if (status != COT_OK) return status;
    cot_runner_add_calls(root->runner, calls);
    if (exchanged) cot_runner_get_exchanged(root->runner, exchanged);
    return COT_OK;
}

void cot_engine_group_close(cot_engine_group *g)
{
    if (!g) return;
    struct end *root = &g->root;
    // A rank that waits for a plan gets one; a rank that is in the middle of something, or never got so far,
    // sees the failure.
    if (g->launch && cot_launch_is_copy(g->launch))
        ; // the ranks are another process's
    else if (root->runner)
        broadcast(root, &(cot_plan){.kind = COT_PLAN_STOP});
    else if (root->fabric)
        root->fabric->ops->fail(root->fabric);
    cot_runner_close(root->runner);
    cot_launch_close(g->launch);
    free(root->changes);
    free(g);
}
