/* A rank is killed on a host of its own, with much under way to another, whose answers find the connection gone: that one goes on,
 * and both it and a third, which waits for it, name the one that was killed. */
#include "harness/fabric/oshrun.h"

#include "fabric/launch.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WAITS, ANSWERS, IS_KILLED, RANKS, PUTS = 500 };

static const char blames[] = "rank 2 on host2 did not answer";

/* For a signal that never comes. One line tells what came of it. */
static void wait_for(cot_fabric *fabric, cot_sym never, int from)
{
    cot_error error = {0};
    cot_wait(fabric, never, 1, from, COT_PHASE_CONTROL, &error);
    printf("rank %d: %s\n", fabric->rank, error.message);
    fflush(stdout);
}

static void run(const cot_rank *rank)
{
    static const char data[64];
    cot_fabric *fabric = rank->fabric;
    cot_sym never, where;
    if (cot_alloc(fabric, &never, sizeof(uint64_t), NULL) != COT_OK ||
        cot_alloc(fabric, &where, sizeof data, NULL) != COT_OK)
        return;
    if (fabric->rank == IS_KILLED) {
        for (int i = 0; i < PUTS; i++) cot_put(fabric, ANSWERS, where, data, sizeof data, COT_PHASE_CONTROL);
        raise(SIGKILL);
    }
    if (fabric->rank == ANSWERS) usleep(500000); // all is under way until the watch of this rank looks
    wait_for(fabric, never, fabric->rank == WAITS ? ANSWERS : IS_KILLED);
}

static int be_a_rank(void)
{
    const cot_launch_options options = {
        .ranks = RANKS, .threads = RANKS, .heap_bytes = 1 << 16, .timeout_ns = 1000000000, .main = run};
    cot_launch *launch;
    const cot_rank *root;
    cot_error error;
    if (cot_launch_open(&launch, &root, cot_fabric_backend_find("shmem"), &options, &error) != COT_OK)
        return 1;
    run(root);
    cot_launch_close(launch);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1) return be_a_rank();
    if (!oshrun_is_here() || !hosts_are_here()) return 77;
    int ends[2], named = 0;
    char line[1024], expected[80];
    setenv("OMPI_MCA_orte_enable_recovery", "1", 1); // the others live on
    if (pipe(ends) != 0 || dup2(ends[1], STDOUT_FILENO) < 0) return 1;
    oshrun_start(true, RANKS, (const char *const[]){argv[0], "rank", NULL});
    close(ends[1]);
    close(STDOUT_FILENO);
    FILE *said = fdopen(ends[0], "r");
    while (said && fgets(line, sizeof line, said)) {
        fputs(line, stderr);
        for (int rank = WAITS; rank <= ANSWERS; rank++) {
            snprintf(expected, sizeof expected, "rank %d: %s", rank, blames);
            named += !strncmp(line, expected, strlen(expected));
        }
    }
    pid_t ended;
    oshrun_end_any(&ended);
    return named != 2;
}
