/* What a rank's watch over others comes to: a rank computes and looks at nothing, another is killed: the first has ended within twice
 * the time-out, and so have the rest. And all are stopped for longer than the time-out: nobody is blamed. */
#include "harness/fabric/oshrun.h"

#include "base/clock.h"
#include "coterie/started.h"
#include "fabric/launch.h"
#include "fabric/shmem/state.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WAITS, COMPUTES, IS_KILLED, RANKS, PAUSED_RANKS = 2 };

static const int64_t timeout_ns = 3000000000, pause_timeout_ns = 2000000000;

static void run_to_death(const cot_rank *rank)
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

static volatile sig_atomic_t may_end;

static void let_end(int number)
{
    (void)number;
    may_end = true;
}

/* In rank 0: until it has been stopped, went on, and its watch has looked at rank 1, which is stopped still. */
static void await_look(cot_fabric *fabric, cot_error *error)
{
    int64_t last_ns = cot_now_ns();
    bool stopped = false;
    while (cot_fabric_check(fabric, error) == COT_OK &&
           (!stopped || !atomic_load(&cot_shmem_endpoint(fabric)->quiet_ns[1]))) {
        usleep(1000);
        const int64_t now_ns = cot_now_ns();
        stopped |= now_ns - last_ns >= pause_timeout_ns;
        last_ns = now_ns;
    }
    printf("looked\n");
    fflush(stdout);
}

/* Until rank 0 is sent a signal. */
static void run_to_pause(const cot_rank *rank)
{
    cot_fabric *fabric = rank->fabric;
    cot_sym signal;
    cot_error error = {0};
    if (cot_alloc(fabric, &signal, sizeof(uint64_t), NULL) != COT_OK) return;
    printf("paused %d %d\n", fabric->rank, (int)getpid());
    fflush(stdout);
    if (!fabric->rank) await_look(fabric, &error);
    while (!fabric->rank && !may_end && cot_fabric_check(fabric, &error) == COT_OK) usleep(1000);
    if (fabric->rank) cot_wait_patiently(fabric, signal, 1, 0, COT_PHASE_CONTROL, &error);
    cot_put_signal(fabric, 1, 0, NULL, 0, signal, 1, COT_PHASE_CONTROL);
    cot_rouse(fabric, 1);
    printf("%s\n", error.status ? error.message : "blamed nobody");
    fflush(stdout);
}

static int be_a_rank(bool paused)
{
    const int ranks = paused ? PAUSED_RANKS : RANKS;
    const cot_launch_options options = {.ranks = ranks,
                                        .threads = ranks,
                                        .heap_bytes = 1 << 16,
                                        .timeout_ns = paused ? pause_timeout_ns : timeout_ns,
                                        .main = paused ? run_to_pause : run_to_death};
    cot_launch *launch;
    const cot_rank *root;
    cot_error error;
    if (cot_launch_open(&launch, &root, cot_fabric_backend_find("shmem"), &options, &error) != COT_OK)
        return 1;
    alarm(30); // who waits in vain as it leaves
    signal(SIGUSR1, let_end);
    options.main(root);
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

/* What the ranks of a start print; their starter's status goes to end. */
static FILE *start(const char *program, int ranks, const char *how)
{
    int pipe_ends[2];
    if (pipe(pipe_ends) != 0 || dup2(pipe_ends[1], STDOUT_FILENO) < 0) return NULL;
    oshrun_start(false, ranks, (const char *const[]){program, how, NULL});
    close(pipe_ends[1]);
    close(STDOUT_FILENO);
    return fdopen(pipe_ends[0], "r");
}

static bool a_death_ends_who_computes(const char *program)
{
    int process = 0;
    bool named = false, ended = false;
    char line[1024];
    FILE *said = start(program, RANKS, "death");
    while (said && fgets(line, sizeof line, said)) {
        fputs(line, stderr);
        sscanf(line, "computes %d", &process);
        if (strncmp(line, "rank 2 ended while rank 0 waited", 32) != 0 || named || !process) continue;
        named = true;
        ended = ends(process, cot_now_ns() + 2 * timeout_ns);
    }
    pid_t starter;
    oshrun_end_any(&starter);
    return named && ended;
}

/* One that was stopped itself does not hold it against another that is stopped still as it goes on. */
static bool a_pause_of_all_blames_nobody(const char *program)
{
    int process[PAUSED_RANKS], begun = 0, fine = 0;
    char line[1024];
    FILE *said = start(program, PAUSED_RANKS, "pause");
    while (said && fgets(line, sizeof line, said)) {
        int rank, number;
        fputs(line, stderr);
        fine += strcmp(line, "blamed nobody\n") == 0;
        if (!strcmp(line, "looked\n")) {
            for (int r = 1; r < PAUSED_RANKS; r++) kill(process[r], SIGCONT);
            kill(process[0], SIGUSR1);
        }
        if (sscanf(line, "paused %d %d", &rank, &number) != 2) continue;
        process[rank] = number;
        if (++begun < PAUSED_RANKS) continue;
        usleep((useconds_t)(pause_timeout_ns / 4000)); // they have looked at each other
        for (int r = PAUSED_RANKS; r-- > 0;) kill(process[r], SIGSTOP);
        usleep((useconds_t)(3 * pause_timeout_ns / 2000));
        kill(process[0], SIGCONT);
    }
    pid_t starter;
    return oshrun_end_any(&starter) == 0 && fine == PAUSED_RANKS;
}

int main(int argc, char **argv)
{
    if (argc > 1) return be_a_rank(!strcmp(argv[1], "pause"));
    if (!oshrun_is_here()) return 77;
    setenv("OMPI_MCA_orte_enable_recovery", "1", 1); // the others live on
    bool (*const checks[])(const char *program) = {a_death_ends_who_computes, a_pause_of_all_blames_nobody};
    int failed = 0, status;
    fflush(NULL);
    for (int i = 0; i < 2; i++) // at the same time: they mostly wait
        if (!fork()) _exit(!checks[i](argv[0]));
    while (wait(&status) > 0) failed += status != 0;
    return failed;
}
