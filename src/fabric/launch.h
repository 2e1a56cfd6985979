/* The launch: how the ranks of a group begin, whatever they are.
 *
 *     caller:  cot_launch_open ---> rank 0 goes on in the caller ---> cot_launch_close
 *                     |---> main(rank 1) ... end |                         | waits
 *                     '---> main(rank 2) ... end |------------------------>'
 *
 * A backend runs ranks as threads, as forked processes or, started from outside (oshrun -np 4), as processes
 * that all make the same call; there the caller of a rank other than 0 is told so when that rank's main has
 * ended. Ranks share nothing but the fabric, and within a process what the caller says (`shared`). */
#ifndef COT_FABRIC_LAUNCH_H
#define COT_FABRIC_LAUNCH_H
#include "base/pool.h"
#include "coterie/started.h"
#include "fabric/fabric.h"

typedef struct cot_rank {
    cot_fabric *fabric;
    cot_pool *pool; // helps all ranks of this process; NULL: nobody does
    bool first;     // it is the first of the ranks of this process
    /* What the launch was told: the same memory in rank 0's process, a copy as of the launch in a forked one, and in a
     * process started from outside what that told its own launch. */
    const void *argument;
    void *shared; // what the launch was told, where this rank is in rank 0's process; else NULL
} cot_rank;

/* What ranks other than 0 do, from their begin to their end. */
typedef void cot_rank_main(const cot_rank *rank);

typedef struct cot_launch_options {
    int ranks;   // 1 to COT_MAX_RANKS
    int threads; // in all, >= 1: those beyond the ranks help; fewer limit how many ranks compute at once
    size_t heap_bytes;  // of one rank
    int64_t timeout_ns; // of every wait, > 0
    cot_rank_main *main;
    const void *argument; // what main may read
    void *shared;         // what ranks of one process may use at once
} cot_launch_options;

typedef void cot_rank_begin(void *context, cot_fabric *fabric);

typedef struct cot_fabric_backend cot_fabric_backend;
struct cot_fabric_backend {
    const char *name;
    bool one_process; // of all ranks
    /* Opens a group and starts its other ranks, of which each calls begin(context, its endpoint) once. `*own` is
     * the caller's endpoint: rank 0's, or that of whichever rank a process started from outside is. On failure
     * no rank runs. */
    cot_status (*start)(const cot_fabric_backend *backend, void **group, cot_fabric **own,
                        const cot_launch_options *options, cot_rank_begin *begin, void *context,
                        cot_error *error);
    /* On rank 0 waits until the others have ended, unless `copy`: this process was forked off rank 0's and has no
     * ranks. Frees the group, or that copy of it. */
    void (*finish)(void *group, bool copy);
    bool from_outside; // every rank is a process that was started beside the others and makes the same calls
};

/* The backend of that name, or NULL. NULL names the one for ranks that were started from outside, where there are several,
 * else the first. Names: NULL-terminated, the default first. */
const cot_fabric_backend *cot_fabric_backend_find(const char *name);
const char *const *cot_fabric_backend_names(void);
/* INVALID_ARGUMENT, with the names that there are, where that finds none. */
cot_status cot_fabric_backend_check(const char *name, cot_error *error);

/* What has to be alike on all ranks (hashes), and what a rank takes of its host's memory. */
typedef struct cot_launch_account {
    uint64_t model, options, placement;
    size_t needed_bytes, available_bytes;
} cot_launch_account;

/* Before anything is loaded, where this rank has come to `status` so far: with ranks that were started from outside all get
 * the first error of any of them, or INVALID_ARGUMENT where they differ, or OUT_OF_MEMORY where those of a host need more than
 * it has. With others `status` as it is. */
cot_status cot_launch_agree(const cot_fabric_backend *backend, const cot_launch_account *account,
                            cot_status status, cot_error *error);

typedef struct cot_launch cot_launch;

/* Starts a group. `*root` is rank 0, for the caller to use until it closes. Errors: INVALID_ARGUMENT,
 * OUT_OF_MEMORY; SERVED in a process that is another rank: its main has run to its end. On all of them `*launch`
 * is NULL. */
cot_status cot_launch_open(cot_launch **launch, const cot_rank **root, const cot_fabric_backend *backend,
                           const cot_launch_options *options, cot_error *error);
/* Whether this process was forked off the one that is rank 0: what it holds is a copy, and the ranks are not its own to
 * end. */
bool cot_launch_is_copy(const cot_launch *launch);
/* Waits until the other ranks have ended, which the caller has brought about, and frees the group; of a copy nothing
 * but the memory. NULL is fine. */
void cot_launch_close(cot_launch *launch);

#endif
