/* A rank computes and looks at nothing, another is killed: the first has ended within twice the time-out, and so have the rest. */
#include "harness/fabric/oshrun.h"

#include "base/clock.h"
#include "coterie/started.h"
#include "fabric/launch.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WAITS, COMPUTES, IS_KILLED, RANKS };

static const int64_t timeout_ns = 3000000000;

static void run(const cot_rank *rank)
{
    cot_fabric *fabric = rank->fabric;
    cot_sym signal;
    cot_error error = {0};
    if (cot_alloc(fabric, &signal, sizeof(uint64_t), NULL) != COT_OK) return;
    if (fabric->rank == COMPUTES) {
        printf("computes %d\n", (int)getpid());
        fflush(stdout);
        cot_put_signal(fabric, IS_KILLED, 0, NULL, 0, signal, 1, COT_PHASE_CONTROL);
        sleep(60);
        printf("computed\n");
        return;
    }
    const int from = fabric->rank == WAITS ? IS_KILLED : COMPUTES; // of whom the first never hears
    if (cot_wait(fabric, signal, 1, from, COT_PHASE_CONTROL, &error) == COT_OK) raise(SIGKILL);
    printf("%s\n", error.message);
    fflush(stdout);
}

static int be_a_rank(void)
{
    const cot_launch_options options = {
        .ranks = RANKS, .threads = RANKS, .heap_bytes = 1 << 16, .timeout_ns = timeout_ns, .main = run};
    cot_launch *launch;
    const cot_rank *root;
    cot_error error;
    if (cot_launch_open(&launch, &root, cot_fabric_backend_find("shmem"), &options, &error) != COT_OK)
        return 1;
    run(root);
    cot_launch_close(launch);
    return 0;
}

/* Whether the process has ended by then, which it is ended in any case. */
static bool ends(int process, int64_t until_ns)
{
    while (cot_launch_process_state(process) && cot_now_ns() < until_ns) usleep(10000);
    if (!cot_launch_process_state(process)) return true;
    fprintf(stderr, "the rank that computes lives on\n");
    kill(process, SIGKILL);
    return false;
}

int main(int argc, char **argv)
{
    if (argc > 1) return be_a_rank();
    if (!oshrun_is_here()) return 77;
    int pipe_ends[2], process = 0;
    bool named = false, ended = false;
    char line[1024];
    setenv("OMPI_MCA_orte_enable_recovery", "1", 1); // the others live on
    if (pipe(pipe_ends) != 0 || dup2(pipe_ends[1], STDOUT_FILENO) < 0) return 1;
    oshrun_start(false, RANKS, (const char *const[]){argv[0], "rank", NULL});
    close(pipe_ends[1]);
    close(STDOUT_FILENO);
    FILE *said = fdopen(pipe_ends[0], "r");
    while (said && fgets(line, sizeof line, said)) {
        fputs(line, stderr);
        sscanf(line, "computes %d", &process);
        if (strncmp(line, "rank 2 ended while rank 0 waited", 32) != 0 || named || !process) continue;
        named = true;
        ended = ends(process, cot_now_ns() + 2 * timeout_ns);
    }
    pid_t starter;
    oshrun_end_any(&starter);
    return !named || !ended;
}
