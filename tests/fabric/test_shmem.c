/* The conformance suite over processes that oshrun starts: once for each number of ranks, of which each passes over the
 * jobs of another number. So too on hosts that a network joins. */
#include "harness/fabric/conformance.h"
#include "harness/fabric/oshrun.h"
#include "harness/seed.h"

#include "coterie/started.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool nothing_body(cot_fabric *fabric, const group_job *job)
{
    (void)job;
    return fabric->ranks > 0;
}

static bool no_memory;

void *__real_aligned_alloc(size_t align, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes)
{
    return no_memory ? NULL : __real_aligned_alloc(align, bytes);
}

static void no_main(const cot_rank *rank)
{
    (void)rank;
}

/* The last rank has no memory to open a group with: all say so, and who. */
static bool all_hear_of_no_memory(const cot_fabric_backend *backend)
{
    const cot_launch_place place = cot_launch_started();
    const cot_launch_options options = {
        .ranks = place.ranks, .threads = 1, .heap_bytes = 1 << 16, .timeout_ns = PATIENT_NS, .main = no_main};
    cot_launch *launch;
    const cot_rank *root;
    cot_error error = {0};
    char who[32] = "";
    if (place.ranks > 1) snprintf(who, sizeof who, "rank %d (", place.ranks - 1);
    no_memory = place.rank == place.ranks - 1;
    const cot_status status = cot_launch_open(&launch, &root, backend, &options, &error);
    no_memory = false;
    if (status == COT_OUT_OF_MEMORY && strstr(error.message, who) &&
        strstr(error.message, "out of memory for"))
        return true;
    fprintf(stderr, "rank %d without memory: status %d, '%s'\n", place.ranks - 1, (int)status, error.message);
    return false;
}

static int be_a_rank(void)
{
    struct subject subject = {.backend = cot_fabric_backend_find("shmem")};
    if (!all_hear_of_no_memory(subject.backend)) return 1;
    setenv("SHMEM_SYMMETRIC_HEAP_SIZE", "16M", 1); // of the greatest job
    if (cot_launch_started().rank && !freopen("/dev/null", "w", stdout)) return 1;
    const int failed = run_conformance(&subject);
    group_job job; // a process leaves in peace if its last group did, and the suite's last one fails
    cot_traffic unread[COT_PHASES];
    run_job(small_job(&job, &subject, cot_launch_started().ranks, 1, nothing_body), unread);
    return failed;
}

/* What was started for a number of ranks. */
struct start {
    int ranks;
    pid_t process;
};

static int end_one(struct start *starts, int count)
{
    pid_t ended;
    const int status = oshrun_end_any(&ended);
    for (int i = 0; i < count; i++)
        if (starts[i].process == ended && status)
            fprintf(stderr, "%d ranks: oshrun ended with %d\n", starts[i].ranks, status);
    return status != 0;
}

static bool is_wanted(int ranks, bool hosts, bool others)
{
    const bool usual = hosts ? ranks <= 4 : ranks <= 4 || ranks == 8;
    return usual != others && (ranks > 1 || !hosts);
}

/* test_shmem                on this host, with 1 to 4 and 8 ranks
 * test_shmem others         with 5 to 7
 * test_shmem hosts          each rank on a host of its own (tools/hosts), 2 to 4 of them
 * test_shmem hosts others   5 to 8 of them */
int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "rank")) return be_a_rank();
    const bool hosts = argc > 1 && !strcmp(argv[1], "hosts"),
               others = argc > 1 && !strcmp(argv[argc - 1], "others");
    if (!oshrun_is_here() || (hosts && !hosts_are_here())) return 77;
    test_seed();                                         // one for all that are started
    static const int ranks[] = {4, 3, 2, 6, 5, 8, 7, 1}; // the longest first
    struct start starts[sizeof ranks / sizeof *ranks] = {0};
    const int at_once = hosts && others ? 2 : 3; // they mostly wait
    int count = 0, failed = 0;
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        if (!is_wanted(ranks[i], hosts, others)) continue;
        if (count >= at_once) failed += end_one(starts, count);
        starts[count++] = (struct start){
            ranks[i], oshrun_start(hosts, ranks[i], (const char *const[]){argv[0], "rank", NULL})};
    }
    for (int i = 0; i < at_once; i++) failed += end_one(starts, count);
    return failed != 0;
}
