#include "start_ranks.h"

#include "clock.h"
#include "command.h"
#include "coterie/started.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* oshrun, told to let the others live when a rank dies, tells nothing of how they ended. So each says it as its last line on
 * standard error, which comes here from whatever host. */
#define STARTED "COTERIE_STARTED"
#define LAST_LINE "\001coterie rank %d ends with %d\n"

void cot_tell_starter(int status)
{
    char line[64];
    if (!getenv(STARTED)) return;
    fflush(NULL);
    const int bytes = snprintf(line, sizeof line, LAST_LINE, cot_launch_started().rank, status);
    if (write(STDERR_FILENO, line, (size_t)bytes) < 0) return; // nobody listens any more
}

struct watch {
    pid_t oshrun;
    int from;         // where its standard error, and that of all ranks, comes out
    int first, other; // with what the first rank, and another, has ended; -1: it has not told
    int64_t silent;   // ranks that have not told
    char line[4096];
    size_t length;
    int64_t failed_ns; // since when a rank is known to have failed; 0: none
};

static volatile sig_atomic_t asked;

static void ask_to_end(int number)
{
    asked = number;
}

/* What Open MPI says of every death, in pieces that others' lines may come between. */
static bool is_noise(const char *line)
{
    return strstr(line, "PMIX ERROR") || strstr(line, "Internal error is appeared") ||
           strstr(line, "[pshmem_");
}

static void take_line(struct watch *w)
{
    int rank, status;
    w->line[w->length] = 0;
    const bool last = sscanf(w->line, LAST_LINE, &rank, &status) == 2;
    w->silent -= last;
    if (last && rank == 0) w->first = status;
    if (last && rank != 0 && status > w->other) w->other = status;
    if (last && status && !w->failed_ns) w->failed_ns = cot_now_ns();
    if (!last && is_noise(w->line)) {
        const char *own = strstr(w->line, "coterie: ");
        fputs(own ? own : "", stderr);
    } else if (!last)
        fputs(w->line, stderr);
    w->length = 0;
}

/* False at the end. */
static bool take_bytes(struct watch *w)
{
    char bytes[4096];
    const ssize_t count = read(w->from, bytes, sizeof bytes);
    for (ssize_t i = 0; i < count; i++) {
        w->line[w->length++] = bytes[i];
        if (bytes[i] == '\n' || w->length == sizeof w->line - 1) take_line(w);
    }
    return count > 0 || (count < 0 && errno == EINTR);
}

/* Until nobody holds the other end. Ranks that do not end by themselves after one has failed are ended: at once where that is
 * one, which the others have named by then. */
static void watch_ranks(struct watch *w)
{
    enum { LOOK_MS = 200 };
    const int64_t patience_ns = 1000000000;
    bool told = false;
    for (struct pollfd end = {.fd = w->from, .events = POLLIN};;) {
        if (poll(&end, 1, LOOK_MS) == 1 && !take_bytes(w)) break;
        const int64_t late_ns = w->failed_ns ? cot_now_ns() - w->failed_ns : 0;
        if (asked && !w->failed_ns) w->failed_ns = cot_now_ns();
        if (!told && (asked || late_ns > patience_ns || (late_ns && w->silent <= 1))) {
            kill(w->oshrun, SIGTERM);
            told = true;
        }
        if (late_ns > 3 * patience_ns) kill(w->oshrun, SIGKILL);
    }
    if (w->length) take_line(w);
}

static _Noreturn void become_oshrun(int64_t ranks, const char *hostfile, char **argv, const int pipe_ends[2])
{
    static char program[4096];
    char number[16];
    const char *words[512] = {"oshrun",
                              "--enable-recovery",
                              "--oversubscribe",
                              "--allow-run-as-root",
                              "--bind-to",
                              "none",
                              "--mca",
                              "odls_base_sigkill_timeout",
                              "0", // what it ends has told all that it knows
                              "-np",
                              number};
    size_t count = 11;
    snprintf(number, sizeof number, "%lld", (long long)ranks);
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0) _exit(127);
    if (hostfile) words[count++] = "--hostfile", words[count++] = hostfile;
    words[count++] = "-x", words[count++] = STARTED;
    words[count++] = program;
    for (size_t i = 1; argv[i] && count < sizeof words / sizeof *words - 1; i++) words[count++] = argv[i];
    setenv(STARTED, "1", 1);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    signal(SIGPIPE, SIG_DFL);
    dup2(pipe_ends[1], STDERR_FILENO);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
    execvp(words[0], (char *const *)words);
    dprintf(STDERR_FILENO, "coterie: cannot start oshrun: %s (apt-get install openmpi-bin)\n",
            strerror(errno));
    _exit(127);
}

/* Those of this host are this process's children once oshrun has ended: what it kills takes a while to be gone. */
static void wait_for_orphans(void)
{
    const int64_t patience_ns = 3000000000, since_ns = cot_now_ns();
    const struct timespec pause = {.tv_nsec = 1000000};
    for (;;) {
        const pid_t ended = waitpid(-1, NULL, WNOHANG);
        if ((ended < 0 && errno != EINTR) || cot_now_ns() - since_ns > patience_ns) return;
        if (ended == 0) nanosleep(&pause, NULL);
    }
}

int cot_start_ranks(int64_t ranks, const char *hostfile, char **argv)
{
    int ends[2];
    struct watch w = {.first = -1, .other = -1, .silent = ranks};
    if (hostfile && access(hostfile, R_OK) != 0)
        return cot_complain("cannot read '%s': %s", hostfile, strerror(errno));
    if (pipe2(ends, O_CLOEXEC) != 0) return cot_complain("cannot start ranks: %s", strerror(errno));
    fflush(NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    w.oshrun = fork();
    if (w.oshrun == 0) become_oshrun(ranks, hostfile, argv, ends);
    if (w.oshrun < 0) return cot_complain("cannot start ranks: %s", strerror(errno));
    close(ends[1]);
    w.from = ends[0];
    signal(SIGINT, ask_to_end);
    signal(SIGTERM, ask_to_end);
    watch_ranks(&w);
    close(ends[0]);
    while (waitpid(w.oshrun, NULL, 0) < 0 && errno == EINTR) continue;
    wait_for_orphans();
    if (asked) return 128 + asked;
    if (w.first >= 0) return w.first;
    return w.other > 0 ? w.other : COT_EXIT_FAILURE;
}
