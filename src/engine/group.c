#include "engine/group.h"

#include "base/clock.h"
#include "base/error.h"
#include "fabric/threads/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const int64_t timeout_ns =
    300LL * 1000000000; // one rank may compute a whole step of a large model meanwhile

/* How opening went on a rank, or why a step failed there; sent to rank 0, with the value of the signal. */
enum { OPENED = 1, STEP_FAILED = 2 };
struct report {
    int32_t status;
    char message[sizeof((cot_error *)0)->message];
};

/* One rank's end of the group: the endpoint, the symmetric words of the plan protocol, the runner.
 *
 * Rank 0 writes plan i into buffer i mod 2 of every rank and raises its signal to i. It sends plan i + 2 only
 * after step i + 1 has ended, for which every rank had to begin it, and so had done with plan i: two buffers
 * are enough. */
struct member {
    cot_group *group;
    cot_fabric *fabric;
    cot_runner *runner;
    cot_sym plan_at, plan_signal, report_at, report_signal; // reports on rank 0: one a rank
    uint64_t plans;
};

struct cot_group {
    cot_group_options options;
    cot_fabric_group *fabric;
    cot_pool *pool;
    struct member *members; // [ranks]; a process uses its own
    pthread_t *threads;     // [ranks]; 0 is the caller
    pid_t *children;        // [ranks]
    pid_t caller;           // the process of rank 0
    int started;            // ranks that run, rank 0 included
    size_t plan_bytes;      // of one buffer
};

static cot_status open_member(struct member *m, cot_error *error)
{
    cot_group *g = m->group;
    size_t ranks = (size_t)g->options.ranks;
    cot_status status = cot_alloc(m->fabric, &m->plan_at, 2 * g->plan_bytes, error);
    if (status == COT_OK) status = cot_alloc(m->fabric, &m->plan_signal, sizeof(uint64_t), error);
    if (status == COT_OK) status = cot_alloc(m->fabric, &m->report_at, ranks * sizeof(struct report), error);
    if (status == COT_OK) status = cot_alloc(m->fabric, &m->report_signal, ranks * sizeof(uint64_t), error);
    if (status != COT_OK) return status;
    cot_runner_options runner = g->options.runner;
    runner.pool = g->pool;
    return cot_runner_open(&m->runner, &runner, m->fabric, g->options.progress, error);
}

static void send_report(struct member *m, uint64_t value, cot_status status, const cot_error *error)
{
    struct report report = {.status = (int32_t)status};
    memcpy(report.message, error->message, sizeof report.message);
    size_t rank = (size_t)m->fabric->rank;
    cot_put_signal(m->fabric, 0, m->report_at + rank * sizeof report, &report, sizeof report,
                   m->report_signal + rank * sizeof(uint64_t), value, COT_PHASE_CONTROL);
}

/* An idle group waits for as long as it takes. */
static cot_status await_plan(struct member *m, cot_step *step, cot_plan_kind *kind)
{
    cot_status status;
    m->plans++;
    do status = cot_wait(m->fabric, m->plan_signal, m->plans, 0, COT_PHASE_CONTROL, NULL);
    while (status == COT_TIMED_OUT && (getpid() == m->group->caller || getppid() == m->group->caller));
    if (status == COT_OK)
        *kind = cot_plan_read(step, (uint8_t *)cot_local(m->fabric, m->plan_at) +
                                        m->plans % 2 * m->group->plan_bytes);
    return status;
}

/* Ranks other than 0. */
static void *serve(void *argument)
{
    struct member *m = argument;
    cot_error error = {0};
    cot_status status = open_member(m, &error);
    send_report(m, OPENED, status, &error);
    bool opened = status == COT_OK;
    while (status == COT_OK) {
        cot_step step;
        cot_plan_kind kind;
        const float *logits, *weights;
        const uint16_t *experts;
        status = await_plan(m, &step, &kind);
        if (status != COT_OK || kind == COT_PLAN_STOP) break;
        if (kind == COT_PLAN_STEP)
            status = cot_runner_step(m->runner, &step, &logits, &experts, &weights, &error);
        else
            status = cot_runner_stats(m->runner, NULL, &error);
    }
    if (opened && status != COT_OK && status != COT_PEER_FAILED) send_report(m, STEP_FAILED, status, &error);
    cot_runner_close(m->runner);
    m->runner = NULL;
    return NULL;
}

static cot_status start(cot_group *g, int rank, cot_error *error)
{
    if (!g->options.processes) {
        if (!pthread_create(&g->threads[rank], NULL, serve, &g->members[rank])) return COT_OK;
    } else {
        g->children[rank] = fork();
        if (g->children[rank] == 0) {
            serve(&g->members[rank]);
            _exit(0);
        }
        if (g->children[rank] > 0) return COT_OK;
    }
    return cot_fail(error, COT_OUT_OF_MEMORY, "cannot start rank %d of %d", rank, g->options.ranks);
}

/* A process that died before it could report. */
static bool has_ended(const cot_group *g, int rank)
{
    return g->options.processes && waitpid(g->children[rank], NULL, WNOHANG) == g->children[rank];
}

static cot_status await_reports(cot_group *g, cot_error *error)
{
    struct member *root = &g->members[0];
    const struct report *reports = cot_local(root->fabric, root->report_at);
    cot_status status = COT_OK;
    for (int rank = 1; rank < g->started && status == COT_OK; rank++) {
        do
            status = cot_wait(root->fabric, root->report_signal + (size_t)rank * sizeof(uint64_t), OPENED,
                              rank, COT_PHASE_CONTROL, error);
        while (status == COT_TIMED_OUT && !has_ended(g, rank)); // loading takes as long as the disk does
        if (status == COT_OK && reports[rank].status != COT_OK)
            status = cot_fail(error, (cot_status)reports[rank].status, "%s", reports[rank].message);
    }
    return status;
}

static cot_status allocate(cot_group *g, cot_error *error)
{
    int ranks = g->options.ranks, threads = g->options.threads;
    g->members = calloc((size_t)ranks, sizeof *g->members);
    g->threads = calloc((size_t)ranks, sizeof *g->threads);
    g->children = calloc((size_t)ranks, sizeof *g->children);
    if (!g->members || !g->threads || !g->children)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %d ranks", ranks);
    g->plan_bytes = (cot_plan_bytes(g->options.runner.step_tokens) + 63) / 64 * 64;
    cot_fabric_group_options fabric = {.ranks = ranks,
                                       .running = threads < ranks ? threads : ranks,
                                       .timeout_ns = timeout_ns,
                                       .forked = g->options.processes};
    fabric.heap_bytes = cot_runner_heap_bytes(&g->options.runner, ranks) + 2 * g->plan_bytes +
                        (size_t)ranks * (sizeof(struct report) + sizeof(uint64_t)) + (16 << 20);
    cot_status status = cot_fabric_group_open(&g->fabric, &fabric, error);
    for (int rank = 0; rank < ranks && status == COT_OK; rank++)
        g->members[rank] = (struct member){.group = g, .fabric = cot_fabric_group_rank(g->fabric, rank)};
    return status;
}

cot_status cot_group_open(cot_group **out, const cot_group_options *options, cot_error *error)
{
    cot_group *g = *out = calloc(1, sizeof *g);
    if (!g) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %d ranks", options->ranks);
    g->options = *options;
    g->caller = getpid();
    cot_status status = allocate(g, error);
    if (status == COT_OK) g->started = 1;
    if (status == COT_OK &&
        options->processes) // threads do not survive a fork: children come first and work alone
        for (; g->started < options->ranks && status == COT_OK; g->started += status == COT_OK)
            status = start(g, g->started, error);
    int workers = options->threads > options->ranks ? options->threads - options->ranks : 0;
    if (status == COT_OK) status = cot_pool_open(&g->pool, workers, error);
    for (; status == COT_OK && g->started < options->ranks; g->started += status == COT_OK)
        status = start(g, g->started, error);
    if (status == COT_OK) status = open_member(&g->members[0], error);
    if (status == COT_OK) status = await_reports(g, error);
    if (status != COT_OK) {
        cot_group_close(g);
        *out = NULL;
    }
    return status;
}

static void broadcast(cot_group *g, cot_plan_kind kind, const cot_step *step)
{
    struct member *root = &g->members[0];
    root->plans++;
    cot_sym at = root->plan_at + root->plans % 2 * g->plan_bytes;
    void *own = cot_local(root->fabric, at);
    size_t bytes = cot_plan_write(own, kind, step);
    for (int rank = 1; rank < g->options.ranks; rank++)
        cot_put_signal(root->fabric, rank, at, own, bytes, root->plan_signal, root->plans, COT_PHASE_CONTROL);
}

/* Rank 0 saw that another rank failed: the reason says more than that. It is sent right after the failure is
 * told, so it is waited for a moment only; without one `status` and `error` stay. */
static cot_status explain(cot_group *g, cot_status status, cot_error *error)
{
    enum { PATIENCE_NS = 1000000000 };
    struct member *root = &g->members[0];
    const struct report *reports = cot_local(root->fabric, root->report_at);
    for (int64_t began_ns = cot_now_ns(); cot_now_ns() - began_ns < PATIENCE_NS; sched_yield())
        for (int rank = 1; rank < g->options.ranks; rank++)
            if (cot_load_signal(root->fabric, root->report_signal + (size_t)rank * sizeof(uint64_t)) >=
                STEP_FAILED)
                return cot_fail(error, (cot_status)reports[rank].status, "%s", reports[rank].message);
    return status;
}

cot_status cot_group_step(cot_group *g, const cot_step *step, const float **logits, const uint16_t **experts,
                          const float **weights, cot_error *error)
{
    broadcast(g, COT_PLAN_STEP, step);
    cot_status status = cot_runner_step(g->members[0].runner, step, logits, experts, weights, error);
    return status == COT_PEER_FAILED ? explain(g, status, error) : status;
}

cot_status cot_group_stats(cot_group *g, cot_rank_stats *stats, cot_error *error)
{
    broadcast(g, COT_PLAN_STATS, NULL);
    return cot_runner_stats(g->members[0].runner, stats, error);
}

void cot_group_close(cot_group *g)
{
    if (!g) return;
    struct member *root = g->members;
    if (g->started) {
        // A rank that waits for a plan gets one; a rank that is in the middle of something, or never got so
        // far, sees the failure.
        if (g->started == g->options.ranks && root->runner)
            broadcast(g, COT_PLAN_STOP, NULL);
        else
            root->fabric->ops->fail(root->fabric);
    }
    for (int rank = 1; rank < g->started; rank++) {
        if (g->options.processes)
            waitpid(g->children[rank], NULL, 0);
        else
            pthread_join(g->threads[rank], NULL);
    }
    if (root) cot_runner_close(root->runner);
    cot_pool_close(g->pool);
    cot_fabric_group_close(g->fabric);
    free(g->members);
    free(g->threads);
    free(g->children);
    free(g);
}
