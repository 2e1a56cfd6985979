#include "start/oshrun.h"

#include "coterie/started.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static const char *const before_all[] = {
    "oshrun",
    "--enable-recovery",
    "--oversubscribe",
    "--allow-run-as-root",
    "--bind-to",
    "none",
    "--mca",
    "odls_base_sigkill_timeout",
    "0", // what it ends has told all that it knows
    "--mca",
    "shmem",
    "^posix", // it tries a name in /dev/shm, which stays if the process is killed then
    "-x",
    COT_STARTED_VARIABLE,
    "-np",
};
enum { BEFORE_ALL = sizeof before_all / sizeof *before_all, MOST_MORE = 4 };

/* A word ":" begins another program there. Here it is an option's value, which goes with the option, or a path. */
static void add_colon(const char **words, size_t *count)
{
    const char *last = words[*count - 1];
    char *joined = NULL;
    const bool option = last[0] == '-' && last[1], whole = option && last[1] == '-';
    if (asprintf(&joined, "%s%s:", option ? last : ".", !option ? "/" : whole ? "=" : "") < 0) _exit(127);
    words[option ? *count - 1 : (*count)++] = joined;
}

_Noreturn void cot_oshrun_become(const cot_oshrun_start *start, char **argv)
{
    static char program[4096];
    char number[16], period[32];
    size_t given = 0, count = BEFORE_ALL;
    while (argv[given]) given++;
    const char **words = calloc(BEFORE_ALL + MOST_MORE + given + 1, sizeof *words);
    if (!words || readlink("/proc/self/exe", program, sizeof program - 1) < 0) _exit(127);
    memcpy(words, before_all, sizeof before_all);
    snprintf(number, sizeof number, "%d", start->ranks);
    snprintf(period, sizeof period, "%g", start->timeout_s / 8);
    words[count++] = number;
    if (start->hostfile) words[count++] = "--hostfile", words[count++] = start->hostfile;
    words[count++] = program;
    for (size_t i = 1; argv[i]; i++)
        if (strcmp(argv[i], ":") != 0)
            words[count++] = argv[i];
        else
            add_colon(words, &count);
    setenv(COT_STARTED_VARIABLE, period, 1);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    signal(SIGPIPE, SIG_DFL);
    /* A terminal sends these to all: at the second signal it ends without clearing up, and who has started it passes on what counts. */
    sigset_t kept;
    sigemptyset(&kept);
    sigaddset(&kept, SIGINT);
    sigaddset(&kept, SIGQUIT);
    sigaddset(&kept, SIGHUP);
    sigprocmask(SIG_BLOCK, &kept, NULL);
    dup2(start->out, STDOUT_FILENO);
    dup2(start->talk, STDERR_FILENO);
    execvp(words[0], (char *const *)words);
    dprintf(STDERR_FILENO, "coterie: cannot start oshrun: %s (apt-get install openmpi-bin)\n",
            strerror(errno));
    _exit(127);
}
