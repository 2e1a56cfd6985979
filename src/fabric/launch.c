#include "fabric/launch.h"

#include "base/error.h"
#include "fabric/posts.h"
#include "fabric/shmem/shmem.h"
#include "fabric/threads/threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS, PROCESSES, SHMEM, BACKENDS };

static const cot_fabric_backend *const backends[BACKENDS] = {
    [THREADS] = &cot_fabric_threads, [PROCESSES] = &cot_fabric_processes, [SHMEM] = &cot_fabric_shmem};

/* A number that who starts processes tells them, or `otherwise`. */
static int told(const char *const *names, int otherwise)
{
    for (; *names; names++) {
        const char *text = getenv(*names);
        if (text && *text >= '0' && *text <= '9') return atoi(text);
    }
    return otherwise;
}

cot_launch_place cot_launch_started(void)
{
    static const char *const ranks[] = {"OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", NULL};
    static const char *const rank[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", NULL};
    static const char *const here[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", NULL};
    static const char *const here_rank[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", NULL};
    cot_launch_place place = {told(rank, -1), told(ranks, 0), told(here, 1), told(here_rank, 0)};
    if (place.rank < 0 || place.rank >= place.ranks) return (cot_launch_place){0};
    if (place.here < 1 || place.here > place.ranks) place.here = 1;
    return place;
}

char cot_launch_process_state(int process)
{
    char path[40], line[512];
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    FILE *file = fopen(path, "r");
    const bool read = file && fgets(line, sizeof line, file);
    if (file) fclose(file);
    const char *state = read ? strrchr(line, ')') : NULL; // "number (name) state ..."
    return state && !strchr("ZX", state[2]) ? state[2] : 0;
}

const cot_fabric_backend *cot_fabric_backend_find(const char *name)
{
    if (!name) return backends[cot_launch_started().ranks > 1 ? SHMEM : THREADS];
    for (int i = 0; i < BACKENDS; i++)
        if (!strcmp(backends[i]->name, name)) return backends[i];
    return NULL;
}

const char *const *cot_fabric_backend_names(void)
{
    static const char *const names[BACKENDS + 1] = {
        [THREADS] = "threads", [PROCESSES] = "processes", [SHMEM] = "shmem"};
    return names;
}

cot_status cot_fabric_backend_check(const char *name, cot_error *error)
{
    char names[128] = "";
    if (cot_fabric_backend_find(name)) return COT_OK;
    for (int i = 0; i < BACKENDS; i++) {
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s",
                 !i                 ? ""
                 : i < BACKENDS - 1 ? ", "
                                    : " or ",
                 backends[i]->name);
    }
    return cot_fail(error, COT_INVALID_ARGUMENT, "unknown fabric '%s' (%s)", name, names);
}

cot_status cot_launch_agree(const cot_fabric_backend *backend, const cot_launch_account *account,
                            cot_status status, cot_error *error)
{
    return backend->from_outside ? cot_shmem_compare(account, status, error) : status;
}

struct cot_launch {
    const cot_fabric_backend *backend;
    cot_launch_options options;
    pid_t process;  // rank 0's
    cot_rank given; // to all ranks of this process; never written once they run
    void *group;
    cot_rank root;
};

/* The threads beyond the ranks, where these are threads too; else a share of them, in each process its own. */
static cot_status open_pool(cot_pool **pool, const cot_launch *launch, int rank, cot_error *error)
{
    const cot_launch_options *o = &launch->options;
    const int64_t helpers = o->threads > o->ranks ? o->threads - o->ranks : 0;
    const int64_t share =
        cot_share_begin(helpers, rank + 1, o->ranks) - cot_share_begin(helpers, rank, o->ranks);
    return cot_pool_open(pool, (int)(launch->backend->one_process ? helpers : share), error);
}

static void run_rank(void *context, cot_fabric *fabric)
{
    const cot_launch *launch = context;
    cot_rank rank = launch->given;
    rank.fabric = fabric;
    rank.first = !launch->backend->one_process;
    if (rank.first) {
        rank.shared = NULL;
        open_pool(&rank.pool, launch, fabric->rank, NULL); // on failure nobody helps
    }
    launch->options.main(&rank);
    if (rank.first) cot_pool_close(rank.pool);
}

static cot_status start(cot_launch *launch, cot_error *error)
{
    const cot_launch_options *o = &launch->options;
    const bool one_process = launch->backend->one_process;
    cot_fabric *own;
    cot_status status = COT_OK;
    launch->given = (cot_rank){.argument = o->argument, .shared = o->shared};
    if (one_process) status = open_pool(&launch->given.pool, launch, 0, error);
    if (status == COT_OK)
        status = launch->backend->start(launch->backend, &launch->group, &own, o, run_rank, launch, error);
    if (status != COT_OK) return status;
    if (own->rank) {
        run_rank(launch, own);
        const int death = own->ops->failed(own) == 1 ? own->ops->death(own, 0) : COT_DEATH_NONE;
        if (death && launch->backend->from_outside) // who would tell it, were it not for this one
            return cot_blame_as_posted(own, 0, death, error);
        return cot_fail(error, COT_SERVED, "rank %d of %d has served to its end", own->rank, o->ranks);
    }
    launch->root = launch->given;
    launch->root.fabric = own;
    launch->root.first = true;
    if (!one_process) status = open_pool(&launch->root.pool, launch, 0, error); // threads survive no fork
    if (status != COT_OK) own->ops->fail(own);
    return status;
}

cot_status cot_launch_open(cot_launch **out, const cot_rank **root, const cot_fabric_backend *backend,
                           const cot_launch_options *options, cot_error *error)
{
    *out = NULL;
    if (options->ranks < 1 || options->ranks > COT_MAX_RANKS || options->threads < 1)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "cannot launch %d ranks on %d threads: 1 to %d ranks expected, 1 thread or more",
                        options->ranks, options->threads, COT_MAX_RANKS);
    cot_launch *launch = calloc(1, sizeof *launch);
    if (!launch) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %d ranks", options->ranks);
    launch->backend = backend;
    launch->options = *options;
    launch->process = getpid();
    cot_status status = start(launch, error);
    if (status != COT_OK) {
        cot_launch_close(launch);
        return status;
    }
    *out = launch;
    *root = &launch->root;
    return COT_OK;
}

bool cot_launch_is_copy(const cot_launch *launch)
{
    return launch->process != getpid();
}

void cot_launch_close(cot_launch *launch)
{
    if (!launch) return;
    if (launch->group) launch->backend->finish(launch->group, cot_launch_is_copy(launch));
    cot_pool_close(launch->backend->one_process ? launch->given.pool : launch->root.pool);
    free(launch);
}
