#include "coterie/group.h"

#include "base/error.h"
#include "base/pool.h"

#include <stdatomic.h>

typedef struct job {
    cot_grouper **grouper;
    int64_t iterations;
    atomic_bool failed;
} job;

static void iterate(void *context, int64_t i)
{
    job *j = context;
    if (cot_grouper_iterate(j->grouper[i], j->iterations, NULL) != COT_OK) atomic_store(&j->failed, true);
}

cot_status cot_groupers_iterate(cot_grouper **groupers, int32_t n, int64_t iterations, int32_t threads,
                                cot_error *error)
{
    job j = {.grouper = groupers, .iterations = iterations};
    cot_pool *pool = NULL;
    const cot_status status = threads > 1 ? cot_pool_open(&pool, threads - 1, error) : COT_OK;
    if (status != COT_OK) return status;
    cot_pool_run(pool, n, iterate, &j);
    cot_pool_close(pool);
    return atomic_load(&j.failed) ? cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for grouping") : COT_OK;
}
