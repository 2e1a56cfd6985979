#include "cocluster/solver.h"

#include "base/error.h"
#include "base/pool.h"

#include <pthread.h>
#include <signal.h>

typedef struct job {
    cot_grouper **grouper;
    int64_t iterations;
    pthread_mutex_t mutex; // of what follows
    int64_t failed;        // the first grouper that failed, or n
    cot_error error;       // what it said
} job;

static void iterate(void *context, int64_t i)
{
    job *j = context;
    cot_error error = {0};
    if (cot_grouper_iterate(j->grouper[i], j->iterations, &error) == COT_OK) return;
    pthread_mutex_lock(&j->mutex);
    if (i < j->failed) {
        j->failed = i;
        j->error = error;
    }
    pthread_mutex_unlock(&j->mutex);
}

/* Workers handle no signals. Where one of them may run METIS, this thread leaves them alone for so long too. */
static bool runs_metis(cot_grouper **groupers, int32_t n)
{
    bool any = false;
    for (int32_t i = 0; i < n; i++) any |= cot_grouper_problem(groupers[i])->method == &cot_cocluster_metis;
    return any;
}

cot_status cot_groupers_iterate(cot_grouper **groupers, int32_t n, int64_t iterations, int32_t threads,
                                cot_error *error)
{
    job j = {.grouper = groupers, .iterations = iterations, .mutex = PTHREAD_MUTEX_INITIALIZER, .failed = n};
    cot_pool *pool = NULL;
    const cot_status status = threads > 1 ? cot_pool_open(&pool, threads - 1, error) : COT_OK;
    if (status != COT_OK) return status;
    const bool holds = pool && runs_metis(groupers, n);
    sigset_t before;
    if (holds) cot_cocluster_hold_signals(&before);
    cot_pool_run(pool, n, iterate, &j);
    if (holds) pthread_sigmask(SIG_SETMASK, &before, NULL);
    cot_pool_close(pool);
    return j.failed < n ? cot_fail(error, j.error.status, "%s", j.error.message) : COT_OK;
}
