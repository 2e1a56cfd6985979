/* The processes that were started together, before and after they are a group. */
#include "base/arena.h"
#include "base/error.h"
#include "fabric/shmem/shmem.h"

#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint64_t least_mappable = 512 << 20; // libraries, and arenas of threads; heaps come on top

static cot_shmem_world joined;
static pid_t joined_process;

static uint64_t mix(uint64_t hash, const void *data, size_t bytes)
{
    for (const unsigned char *at = data; bytes--; at++) hash = (hash ^ *at) * 0x100000001b3u;
    return hash;
}

/* One running system, and of that one space of process numbers and one network: what looks like a host of its own is one,
 * as far as others can tell. */
static cot_shmem_host host_of_this(void)
{
    cot_shmem_host host = {.key = 0xcbf29ce484222325u};
    char boot[64] = "";
    gethostname(host.name, sizeof host.name - 1);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file && !fgets(boot, sizeof boot, file)) boot[0] = 0;
    if (file) fclose(file);
    host.key = mix(mix(host.key, boot, sizeof boot), host.name, sizeof host.name);
    static const char *const spaces[] = {"/proc/self/ns/pid", "/proc/self/ns/net"};
    for (int i = 0; i < 2; i++) {
        struct stat space;
        if (stat(spaces[i], &space) == 0) host.key = mix(host.key, &space.st_ino, sizeof space.st_ino);
    }
    return host;
}

/* As the process ends. Where others may be gone it ends at once: leaving waits for them. */
static void leave(int status, void *unused)
{
    (void)unused;
    if (getpid() != joined_process) return;
    fflush(NULL);
    if (joined.torn) _exit(status);
    joined.calls->leave();
    joined_process = 0; // once
}

void cot_shmem_leave_first(void)
{
    on_exit(leave, NULL);
}

cot_status cot_shmem_join(cot_shmem_world **world, cot_error *error)
{
    *world = &joined;
    if (joined.calls) return COT_OK;
    if (!cot_launch_started().ranks)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "ranks over OpenSHMEM are started from outside: oshrun -np 4 coterie ...");
    if (cot_launch_started().ranks > COT_MAX_RANKS)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%d processes were started, more than %d ranks",
                        cot_launch_started().ranks, COT_MAX_RANKS);
    if (cot_arena_mappable_bytes() < least_mappable)
        return cot_fail(
            error, COT_OUT_OF_MEMORY,
            "Open MPI and UCX take %.2f GB of memory, of which this process may map %.2f GB (ulimit -v)",
            (double)least_mappable / 1e9, (double)cot_arena_mappable_bytes() / 1e9);
    const cot_shmem_calls *calls;
    const cot_status status = cot_shmem_find(&calls, error);
    if (status != COT_OK) return status;
    if (!calls->join(&joined.rank, &joined.ranks))
        return cot_fail(error, COT_UNSUPPORTED, "this OpenSHMEM cannot be called from threads");
    joined.calls = calls;
    joined.host = host_of_this();
    joined_process = getpid();
    on_exit(leave, NULL);
    return COT_OK;
}

struct finding {
    int32_t status, step, refused;
    char host[sizeof joined.host.name];
    char message[sizeof((cot_error *)0)->message];
};

struct comparison {
    uint64_t build;
    cot_launch_account account;
    cot_shmem_host host;
};

/* What all ranks give each other, of the one kind or the other: room that there is before anybody waits for it. */
static union {
    struct finding findings[COT_MAX_RANKS];
    struct comparison comparisons[COT_MAX_RANKS];
} room;

void cot_shmem_exchange(cot_shmem_world *world, void *all, const void *own, size_t bytes)
{
    cot_launch_tell("meets", 0);
    world->calls->exchange(all, own, bytes);
}

cot_status cot_shmem_agree(cot_shmem_world *world, int step, cot_status status, cot_error *error)
{
    struct finding own = {.status = (int32_t)status, .step = step, .refused = world->refused},
                   *all = room.findings;
    memcpy(own.host, world->host.name, sizeof own.host);
    if (status != COT_OK && error) memcpy(own.message, error->message, sizeof own.message);
    cot_shmem_exchange(world, all, &own, sizeof own);
    int first = 0;
    while (first < world->ranks && all[first].status == COT_OK && all[first].step == all[0].step) first++;
    if (first < world->ranks) {
        const struct finding *f = &all[first];
        status = f->status == COT_OK ? COT_INVALID_ARGUMENT : (cot_status)f->status;
        world->refused = f->refused;
        const char *message =
            f->status == COT_OK ? "is at another command than rank 0, or has other options" : f->message;
        if (first)
            cot_fail(error, status, "rank %d (%s): %s", first, f->host, message);
        else
            cot_fail(error, status, "%s", message);
    }
    world->over |= first < world->ranks;
    return first < world->ranks ? status : COT_OK;
}

/* ---- what must be alike ---- */

/* A number of the build that this code is of, which the linker has put into the file. */
static int find_build(struct dl_phdr_info *object, size_t size, void *hash)
{
    const uintptr_t here = (uintptr_t)&joined;
    bool mine = false;
    (void)size;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const uintptr_t begin = object->dlpi_addr + object->dlpi_phdr[i].p_vaddr;
        mine |= object->dlpi_phdr[i].p_type == PT_LOAD && here >= begin &&
                here < begin + object->dlpi_phdr[i].p_memsz;
    }
    for (int i = 0; i < object->dlpi_phnum && mine; i++)
        if (object->dlpi_phdr[i].p_type == PT_NOTE)
            *(uint64_t *)hash =
                mix(*(uint64_t *)hash, (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr),
                    object->dlpi_phdr[i].p_memsz);
    return mine;
}

uint64_t cot_shmem_build(void)
{
    uint64_t build = 0;
    dl_iterate_phdr(find_build, &build);
    return build;
}

static cot_status judge(const struct comparison *all, int ranks, cot_error *error)
{
    for (int r = 1; r < ranks; r++) {
        const cot_launch_account *a = &all[r].account, *b = &all[0].account;
        const char *what = all[r].build != all[0].build   ? "another build of coterie"
                           : a->model != b->model         ? "another model"
                           : a->options != b->options     ? "other options"
                           : a->placement != b->placement ? "another placement"
                                                          : NULL;
        if (what)
            return cot_fail(error, COT_INVALID_ARGUMENT, COT_SHMEM_UNLIKE, r, all[r].host.name, what,
                            all[0].host.name);
    }
    for (int r = 0; r < ranks; r++) {
        double needed = 0, available = (double)all[r].account.available_bytes;
        for (int s = 0; s < ranks; s++)
            if (all[s].host.key == all[r].host.key) needed += (double)all[s].account.needed_bytes;
        if (needed > available)
            return cot_fail(error, COT_OUT_OF_MEMORY,
                            "the ranks need %.2f GB of memory on '%s', %.2f GB are available there",
                            needed / 1e9, all[r].host.name, available / 1e9);
    }
    return COT_OK;
}

cot_status cot_shmem_compare(const cot_launch_account *account, cot_status status, cot_error *error)
{
    cot_shmem_world *world;
    const cot_status joins = cot_shmem_join(&world, error);
    if (joins != COT_OK) return joins;
    status = cot_shmem_agree(world, COT_SHMEM_COMPARES, status, error);
    if (status != COT_OK) return status;
    struct comparison own = {.build = cot_shmem_build(), .account = *account, .host = world->host},
                      *all = room.comparisons;
    cot_shmem_exchange(world, all, &own, sizeof own);
    return judge(all, world->ranks, error);
}

/* ---- for the program ---- */

void cot_launch_tell(const char *state, int number)
{
    char line[256], host[64] = "";
    if (!getenv(COT_STARTED_VARIABLE)) return;
    gethostname(host, sizeof host - 1);
    const int bytes = snprintf(line, sizeof line, COT_STARTED_LINE, cot_launch_started().rank, state, number,
                               (int)getpid(), host);
    if (write(STDERR_FILENO, line, (size_t)bytes) < 0) return; // nobody listens any more
}

cot_status cot_launch_share(void *data, size_t bytes, cot_error *error)
{
    cot_shmem_world *world;
    cot_status status = cot_shmem_join(&world, error);
    const int step = COT_SHMEM_SHARES + COT_SHMEM_STEPS * (int)(bytes & 0xffffff); // else they would not fit
    if (status == COT_OK) status = cot_shmem_agree(world, step, COT_OK, error);
    if (status == COT_OK) world->calls->share(data, bytes);
    return status;
}

bool cot_launch_refuse(const cot_error *why, int exit_status)
{
    cot_shmem_world *world;
    cot_error error = *why;
    if (joined.met || joined.over) return true;
    if (cot_shmem_join(&world, NULL) != COT_OK) return false;
    joined.refused = exit_status;
    cot_shmem_agree(world, COT_SHMEM_GIVES_UP, error.status ? error.status : COT_INVALID_ARGUMENT, &error);
    return true;
}

int cot_launch_refused(void)
{
    return joined.refused;
}

bool cot_launch_torn(void)
{
    return joined.torn;
}

const char *cot_launch_carriers(void)
{
    return *joined.carriers ? joined.carriers : NULL;
}

bool cot_launch_met(void)
{
    return joined.met;
}
