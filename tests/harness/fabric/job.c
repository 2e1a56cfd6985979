#include "harness/fabric/job.h"

#include "harness/cmocka.h"

#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

void sleep_us(int64_t us)
{
    nanosleep(&(struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000}, NULL);
}

static void add_traffic(cot_traffic sums[COT_PHASES], const cot_fabric *fabric, bool take_away)
{
    for (int to = 0; to < fabric->ranks; to++)
        for (int p = 0; p < COT_PHASES; p++) {
            const cot_traffic *sent = &fabric->traffic[to][p];
            sums[p].bytes += take_away ? -sent->bytes : sent->bytes;
            sums[p].messages += take_away ? -sent->messages : sent->messages;
        }
}

void set_link(cot_fabric *fabric, double bytes_per_s, int64_t latency_ns)
{
    if (fabric->ops->set_link) fabric->ops->set_link(fabric, &(cot_link){bytes_per_s, latency_ns, 0, 0, 0});
}

/* Whether the word has come, which it does in a while even of a group that failed, unless the other rank is dead. */
static bool sleep_until(cot_fabric *fabric, cot_sym signal, int from)
{
    for (bool dead = false; !cot_signal_load(fabric, signal); sleep_us(100)) {
        if (dead) return false; // looked once more
        const int death = fabric->ops->failed(fabric) ? fabric->ops->death(fabric, from) : COT_DEATH_NONE;
        dead = death != COT_DEATH_NONE && death != COT_DEATH_MUTE; // who did not answer may yet do so
    }
    return true;
}

/* Waits until every rank is there: who starts late on a busy machine must not look like a silent peer. */
static bool line_up(cot_fabric *fabric, const struct harness *h, group_job *job)
{
    if (fabric->rank) {
        cot_put_signal(fabric, 0, 0, NULL, 0, h->arrived + (cot_sym)fabric->rank * 8, 1, COT_PHASE_CONTROL);
        if (!sleep_until(fabric, h->go, 0)) return false;
        memcpy(&job->seed, cot_local(fabric, h->seed), sizeof job->seed);
        return true;
    }
    for (int r = 1; r < fabric->ranks; r++)
        if (!sleep_until(fabric, h->arrived + (cot_sym)r * 8, r)) return false;
    for (int r = 1; r < fabric->ranks; r++)
        cot_put_signal(fabric, r, h->seed, &job->seed, sizeof job->seed, h->go, 1, COT_PHASE_CONTROL);
    return true;
}

/* A rank's part in a job; on rank 0 whether all went well everywhere, and what all sent. */
static bool take_part(const cot_rank *rank, cot_traffic totals[COT_PHASES])
{
    cot_fabric *fabric = rank->fabric;
    group_job job = *(const group_job *)rank->argument;
    const cot_sym ranks = (cot_sym)fabric->ranks;
    struct harness h;
    struct told told = {0};
    cot_sym *const words[] = {&h.arrived, &h.seed, &h.go, &h.told, &h.told_signals};
    const size_t bytes[] = {ranks * 8, 8, 8, ranks * sizeof told, ranks * 8};
    for (int i = 0; i < 5; i++)
        if (cot_alloc(fabric, words[i], bytes[i], NULL)) return false;
    if (!line_up(fabric, &h, &job)) return false;
    set_link(fabric, job.link_bytes_per_s, job.link_latency_ns);
    add_traffic(told.sent, fabric, true);
    told.ok = job.body(fabric, &job);
    add_traffic(told.sent, fabric, false);
    set_link(fabric, 0, 0);
    const cot_sym own = (cot_sym)fabric->rank;
    cot_put_signal(fabric, 0, h.told + own * sizeof told, &told, sizeof told, h.told_signals + own * 8, 1,
                   COT_PHASE_CONTROL);
    if (fabric->rank) return told.ok;
    memset(totals, 0, COT_PHASES * sizeof *totals);
    const struct told *all = cot_local(fabric, h.told);
    bool ok = true;
    for (int r = 0; r < fabric->ranks; r++) {
        const bool there = sleep_until(fabric, h.told_signals + (cot_sym)r * 8, r);
        ok = there && all[r].ok && ok;
        for (int p = 0; p < COT_PHASES && there; p++) {
            totals[p].bytes += all[r].sent[p].bytes;
            totals[p].messages += all[r].sent[p].messages;
        }
    }
    return ok;
}

static void rank_main(const cot_rank *rank)
{
    take_part(rank, NULL);
}

/* COT_OK and whether all went well, or COT_SERVED, or why there was no group. */
static cot_status launch_job(const group_job *job, cot_traffic totals[COT_PHASES], bool *well,
                             cot_error *error)
{
    const cot_launch_options options = {.ranks = job->ranks,
                                        .threads = job->running < job->ranks ? job->running : job->ranks,
                                        .heap_bytes = job->heap_bytes + HARNESS_BYTES,
                                        .timeout_ns = job->timeout_ns,
                                        .main = rank_main,
                                        .argument = job};
    cot_launch *launch;
    const cot_rank *root;
    const cot_status status = cot_launch_open(&launch, &root, job->backend, &options, error);
    if (status != COT_OK) return status;
    *well = take_part(root, totals);
    cot_launch_close(launch);
    return COT_OK;
}

bool run_job(const group_job *job, cot_traffic totals[COT_PHASES])
{
    if (job->backend->from_outside && job->ranks != cot_launch_started().ranks) return false;
    bool well;
    cot_error error;
    const cot_status status = launch_job(job, totals, &well, &error);
    const bool other = job->backend->from_outside && cot_launch_started().rank > 0; // rank 0 is told all
    if (status == COT_SERVED || other) return false;
    if (status != COT_OK) fail_msg("%s", error.message);
    assert_true(well);
    return true;
}

void run_jobs_together(const group_job *jobs, int count)
{
    pid_t children[COT_MAX_RANKS];
    assert_true(count <= COT_MAX_RANKS);
    cot_traffic unread[COT_PHASES];
    if (jobs->backend->from_outside) { // a process has one place in one group
        for (int i = 0; i < count; i++) run_job(&jobs[i], unread);
        return;
    }
    fflush(NULL);
    for (int i = 0; i < count; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i]) continue;
        cot_traffic totals[COT_PHASES];
        bool well = false;
        cot_error error = {0};
        if (launch_job(&jobs[i], totals, &well, &error) != COT_OK) fprintf(stderr, "%s\n", error.message);
        _exit(!well);
    }
    int failed = 0;
    for (int i = 0; i < count; i++) {
        int status;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        failed += status != 0;
    }
    assert_int_equal(failed, 0);
}
