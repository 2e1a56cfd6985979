#include "harness/fabric/oshrun.h"

#include "fabric/shmem/shmem.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define HOSTS COT_SOURCE "/tools/hosts"

bool oshrun_is_here(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    fprintf(stderr, "SKIPPED: Open MPI was not built for sanitizers, which would judge it\n");
    return false;
#endif
    const cot_shmem_calls *calls;
    cot_error error;
    if (cot_shmem_find(&calls, &error) != COT_OK) {
        fprintf(stderr, "SKIPPED: %s\n", error.message);
        return false;
    }
    if (system("command -v oshrun >/dev/null") == 0) return true;
    fprintf(stderr, "SKIPPED: there is no oshrun: apt-get install openmpi-bin\n");
    return false;
}

void oshrun_allow(void)
{
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
}

bool hosts_are_here(void)
{
    if (system(HOSTS " 1 true") == 0) return true;
    fprintf(stderr, "SKIPPED: this system makes no hosts to test with\n");
    return false;
}

pid_t oshrun_start(bool hosts, int ranks, const char *const *words)
{
    enum { MOST = 60 };
    char number[16];
    const char *argv[MOST + 6] = {HOSTS, number, "oshrun", "-np", number};
    snprintf(number, sizeof number, "%d", ranks);
    for (int i = 0; i < MOST && words[i]; i++) argv[5 + i] = words[i];
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        oshrun_allow();
        const int nothing = open("/dev/null", O_RDONLY);
        if (nothing >= 0) dup2(nothing, 0);
        const char *const *first = hosts ? argv : argv + 2;
        execvp(first[0], (char *const *)first);
        _exit(127);
    }
    return child;
}

int oshrun_end_any(pid_t *ended)
{
    int status;
    *ended = wait(&status);
    if (*ended < 0) return 127;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

int oshrun_run_again(int ranks, const char *word)
{
    char program[1024];
    pid_t ended;
    const ssize_t bytes = readlink("/proc/self/exe", program, sizeof program - 1);
    if (bytes < 1) return -1;
    program[bytes] = 0;
    oshrun_start(false, ranks, (const char *const[]){program, word, NULL});
    return oshrun_end_any(&ended);
}
