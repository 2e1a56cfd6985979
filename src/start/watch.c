/* The process that has started oshrun, until all of its ranks have ended. */
#include "coterie/start.h"

#include "base/clock.h"
#include "start/hosts.h"
#include "start/oshrun.h"
#include "start/oshrun_words.h"
#include "start/segments.h"
#include "start/session.h"
#include "coterie/started.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHILDREN "/proc/thread-self/children"

enum { LOOK_MS = 200, MOST_RANKS = 64, LEAST_CONNECT_S = 10 };

/* oshrun, told to let the others live when a rank dies, tells nothing of how they ended. So each says on standard error, which
 * comes here from whatever host, what it is at (coterie/started.h). While ranks meet, before there is a group and when it is
 * over, nobody but this process can know of one that is lost. */
struct rank {
    enum { NOT_BEGUN, BEGINS, MEETS, MET, ENDS } state;
    int process;
    int status; // with which it has told that it ends
    char host[64];
    int64_t gone_ns, quiet_ns; // for how long it was seen to be gone, or stopped, or was not heard of
};

struct watch {
    pid_t oshrun;
    time_t since;
    int out;  // where its standard output, with that of the first rank, comes out; -1: it has ended
    int talk; // the same of standard error, of all ranks
    char held[PIPE_BUF]; // of `out`, what is yet to be written
    size_t held_bytes;
    bool unwritten; // some of it could not be
    int count;
    struct rank ranks[MOST_RANKS];
    char host[64];        // this one
    const char *hostfile; // NULL: none
    void (*complain)(const char *line);
    int64_t timeout_ns, looked_ns;
    int serves; // for how many seconds the first rank, which is asked to end itself, may take to do so; 0: it is not
    int times_handed; // it was asked
    int64_t ends_ns;  // when it should have ended; 0: it was not asked
    int first, other; // with what the first rank, and another, has ended; -1: it has not told
    char line[4096];
    size_t length;
    cot_oshrun_words words;
    bool complained;
    int64_t began_ns; // for how long no rank has begun, while none has
    bool asks, named; // hosts whether they can be started on; who does not answer was named
    cot_hosts_questions questions;
    int64_t ended_ns;  // for how long the first rank has ended well
    int64_t failed_ns; // since when a rank is known to have failed; 0: none
    int64_t told_ns;   // when oshrun was asked to end; 0: it was not
};

static const int64_t second_ns = 1000000000;

static int complain(void (*tell)(const char *line), const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));
static int complain(void (*tell)(const char *line), const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    tell(line);
    return EXIT_FAILURE;
}

static volatile sig_atomic_t asked, times_asked, hung_up;

static void ask_to_end(int number)
{
    asked = number;
    times_asked++;
}

static void hang_up(int number)
{
    (void)number;
    hung_up = true;
}

/* A rank that cannot leave what it is at says what is wrong and no last line. */
static bool is_complaint(const char *line)
{
    static const char *const harmless[] = {"coterie: warning: ", "coterie: note: "};
    bool complaint = !strncmp(line, "coterie: ", 9);
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        complaint &= strncmp(line, harmless[i], strlen(harmless[i])) != 0;
    return complaint;
}

/* Whether the line is a rank's about itself. */
static bool take_state(struct watch *w)
{
    static const char *const names[] = {
        [BEGINS] = "begins", [MEETS] = "meets", [MET] = "met", [ENDS] = "ends"};
    struct rank of = {0};
    char name[16];
    int rank, number;
    if (sscanf(w->line, "\001coterie rank %d %15s %d process %d of %63s", &rank, name, &number, &of.process,
               of.host) != 5)
        return false;
    if (rank < 0 || rank >= w->count) return true;
    of.state = w->ranks[rank].state; // as it was, of one that only lives
    of.status = w->ranks[rank].status;
    for (int state = BEGINS; state <= ENDS; state++)
        if (!strcmp(name, names[state])) of.state = state;
    w->ranks[rank] = of;
    if (rank == 0 && !strcmp(name, "serves")) w->serves = number;
    if (strcmp(name, names[ENDS]) != 0) return true;
    w->ranks[rank].status = number;
    if (rank == 0) w->first = number;
    if (rank != 0 && number > w->other) w->other = number;
    if (number && !w->failed_ns) w->failed_ns = cot_now_ns();
    return true;
}

/* What Open MPI has to say of the end is left out. */
static void take_line(struct watch *w)
{
    w->line[w->length] = 0;
    w->length = 0;
    if (take_state(w)) return;
    const bool complaint = is_complaint(w->line);
    w->complained |= complaint;
    const bool log = w->serves && strncmp(w->line, "coterie: rank ", 14) != 0; // who serves has more to say
    if (complaint && !log && !w->failed_ns) w->failed_ns = cot_now_ns();
    const char *own = strstr(w->line, "coterie: ");
    if (!complaint && !cot_oshrun_says(&w->words, w->line) && !w->told_ns && w->first != 0) own = w->line;
    fputs(own ? own : "", stderr);
}

static void take_talk(struct watch *w)
{
    char bytes[4096];
    const ssize_t count = read(w->talk, bytes, sizeof bytes);
    for (ssize_t i = 0; i < count; i++) {
        w->line[w->length++] = bytes[i];
        if (bytes[i] == '\n' || w->length == sizeof w->line - 1) take_line(w);
    }
    if (count > 0 || (count < 0 && errno == EINTR)) return;
    close(w->talk);
    w->talk = -1;
}

/* After a complaint of this process's own. */
static void give_up(struct watch *w)
{
    w->complained = true;
    w->failed_ns = cot_now_ns();
}

/* oshrun does not tell of output that it cannot write: so this process does that. */
static void take_output(struct watch *w)
{
    const ssize_t count = read(w->out, w->held, sizeof w->held);
    if (count < 0 && errno == EINTR) return;
    w->held_bytes = count > 0 && !w->unwritten ? (size_t)count : 0;
    if (count > 0) return;
    close(w->out);
    w->out = -1;
}

static void write_output(struct watch *w)
{
    const ssize_t count = write(STDOUT_FILENO, w->held, w->held_bytes);
    if (count >= 0) {
        w->held_bytes -= (size_t)count;
        memmove(w->held, w->held + count, w->held_bytes);
    } else if (errno != EINTR && errno != EAGAIN) {
        complain(w->complain, "cannot write to standard output: %s", strerror(errno));
        w->unwritten = true;
        w->held_bytes = 0;
        give_up(w);
    }
}

/* What can be taken or written without waiting for longer than LOOK_MS. */
static void pass_on(struct watch *w)
{
    struct pollfd ends[] = {
        {.fd = w->talk, .events = POLLIN},
        {.fd = w->held_bytes ? STDOUT_FILENO : w->out, .events = w->held_bytes ? POLLOUT : POLLIN}};
    if (poll(ends, 2, LOOK_MS) < 1) return;
    if (ends[0].revents) take_talk(w);
    if (ends[1].revents && w->held_bytes)
        write_output(w);
    else if (ends[1].revents)
        take_output(w);
}

/* ---- ranks that are lost while others wait for them where there is no group ---- */

static void complain_of(struct watch *w, int rank, bool gone)
{
    char host[80] = "";
    bool over = false;
    for (int r = 0; r < w->count; r++)
        if (w->ranks[r].process && strcmp(w->ranks[r].host, w->ranks[rank].host) != 0 &&
            w->ranks[rank].process)
            snprintf(host, sizeof host, " on %s", w->ranks[rank].host);
    for (int r = 0; r < w->count; r++) over |= w->ranks[r].state == ENDS;
    const char *when = over && w->ranks[rank].state == MET ? "at the end" : "at the start";
    if (gone)
        complain(w->complain, "rank %d%s ended %s", rank, host, when);
    else
        complain(w->complain, "rank %d%s did not answer %s within %.1f s", rank, host, when,
                 (double)w->timeout_ns * 1e-9);
    give_up(w);
}

/* Of a rank of this host the system tells, others tell themselves that they live. */
static void look_at(struct watch *w, int rank, int64_t passed_ns)
{
    struct rank *r = &w->ranks[rank];
    const bool is_here = r->process && !strcmp(r->host, w->host);
    const char state = is_here ? cot_launch_process_state(r->process) : 0;
    r->gone_ns = is_here && !state ? r->gone_ns + passed_ns : 0;
    r->quiet_ns = is_here && state != 'T' && state != 't' ? 0 : r->quiet_ns + passed_ns;
    if (r->gone_ns >= second_ns) // what it said last may still be on its way
        complain_of(w, rank, true);
    else if (r->quiet_ns >= w->timeout_ns)
        complain_of(w, rank, false);
}

static const int64_t ask_after_ns = 1000000000, answer_ns = 5000000000;

/* Hosts that oshrun, which waits for all of them, may wait for in vain: asked once it has taken a while, and named once they have had a
 * while to answer. Whether there are such. */
static bool name_silent_hosts(struct watch *w, char *names, size_t bytes)
{
    *names = 0;
    if (!w->hostfile || w->began_ns < ask_after_ns) return false;
    if (!w->asks) cot_hosts_ask(&w->questions, w->hostfile);
    w->asks = true;
    if (!cot_hosts_hear(&w->questions, names, bytes, false) || w->began_ns < ask_after_ns + answer_ns)
        return false;
    if (!w->named) complain(w->complain, "note: no answer yet from %s", names);
    return w->named = true;
}

/* Those that have all answered, and from which nothing else has come. */
static void name_mute_hosts(struct watch *w, char *names, size_t bytes)
{
    cot_hosts_asked(&w->questions, names, bytes);
    if (!*names || w->named || w->began_ns < ask_after_ns + answer_ns) return;
    complain(w->complain, "note: no rank has begun yet on %s", names);
    w->named = true;
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* oshrun takes a while itself, however short the time-out, and longer where hosts are busy or far; not where other hosts were asked
 * and do not answer, or answer while what oshrun started there does not connect. */
static void look_for_begin(struct watch *w, int64_t passed_ns)
{
    bool begun = false;
    char names[512];
    for (int r = 0; r < w->count; r++) begun |= w->ranks[r].state != NOT_BEGUN;
    w->began_ns = begun ? 0 : w->began_ns + passed_ns;
    if (begun || w->failed_ns) {
        cot_hosts_stop_asking(&w->questions);
        return;
    }
    const bool silent = name_silent_hosts(w, names, sizeof names);
    if (!silent) name_mute_hosts(w, names, sizeof names);
    const int64_t least_ns = silent   ? ask_after_ns + answer_ns
                             : *names ? LEAST_CONNECT_S * second_ns
                                      : COT_START_LEAST_S * second_ns,
                  most_ns = later(w->timeout_ns, least_ns);
    if (w->began_ns < most_ns) return;
    const double most_s = (double)most_ns * 1e-9;
    if (silent || !*names)
        complain(w->complain, "oshrun has started no rank within %.1f s%s%s", most_s,
                 silent ? ": no answer from " : "", names);
    else
        complain(w->complain,
                 "oshrun has started no rank within %.1f s: ssh works to %s, from where nothing connects "
                 "back (a firewall?)",
                 most_s, names);
    give_up(w);
}

static int64_t a_while_ns(const struct watch *w)
{
    const int64_t half_ns = w->timeout_ns / 2;
    return half_ns < second_ns ? second_ns : half_ns > 10 * second_ns ? 10 * second_ns : half_ns;
}

/* A rank has failed that nobody has named: the first, who would, has not come to that. */
static void name_lost(struct watch *w)
{
    for (int r = 0; r < w->count && !w->complained && w->first != 0; r++) {
        const struct rank *rank = &w->ranks[r];
        if (!rank->process || rank->state == ENDS || strcmp(rank->host, w->host) != 0 ||
            cot_launch_process_state(rank->process))
            continue;
        complain(w->complain, "rank %d ended", r);
        w->complained = true;
    }
}

/* When the first rank has ended well, all is written and told: the others have a while to leave Open MPI, which they do together
 * or, where one of them is lost, not at all. */
static void look_for_lost(struct watch *w, int64_t passed_ns)
{
    bool wait = false;
    w->ended_ns = w->first == 0 ? w->ended_ns + passed_ns : 0;
    if (w->ended_ns >= a_while_ns(w) && !w->failed_ns) w->failed_ns = cot_now_ns();
    for (int r = 0; r < w->count; r++)
        wait |= w->ranks[r].state == BEGINS || w->ranks[r].state == MEETS || w->ranks[r].state == ENDS;
    for (int r = 0; r < w->count && wait && w->first != 0 && !w->failed_ns; r++)
        if (w->ranks[r].state != ENDS) look_at(w, r, passed_ns);
}

/* Whether the first rank was handed the signal, which it takes itself. */
static bool hand_on(const struct watch *w, int number)
{
    const struct rank *first = &w->ranks[0];
    return w->serves && first->state != ENDS && !strcmp(first->host, w->host) &&
           kill(first->process, number) == 0;
}

/* Who serves is asked to end, and again to hurry, and has its time for it. After that, or where nobody serves, all are ended. */
static void look_for_signals(struct watch *w, int64_t now_ns)
{
    if (hung_up && !hand_on(w, SIGHUP)) ask_to_end(SIGHUP);
    hung_up = false;
    if (times_asked > w->times_handed) {
        w->times_handed = times_asked;
        const bool handed = hand_on(w, asked);
        if (!w->ends_ns || !handed) w->ends_ns = now_ns + (handed ? w->serves * INT64_C(1000000000) : 0);
    }
    if (w->ends_ns && now_ns >= w->ends_ns && !w->failed_ns) w->failed_ns = now_ns;
}

static int silent_ranks(const struct watch *w)
{
    int silent = 0;
    for (int r = 0; r < w->count; r++) silent += w->ranks[r].state != ENDS;
    return silent;
}

/* Until nobody holds the other end; or oshrun is killed, and what it started (an ssh that gets no answer) holds it. Ranks that do
 * not end by themselves after one has failed are ended, a second after somebody has said why: at once where that is one, which the
 * others have named by then; so is one that all others have left, which may yet say why for that second. */
static void watch_ranks(struct watch *w)
{
    const int64_t most_ns = 2 * LOOK_MS * 1000000;
    w->looked_ns = cot_now_ns();
    while (w->talk >= 0 || w->out >= 0 || w->held_bytes) {
        pass_on(w);
        const int64_t now = cot_now_ns(), since_ns = now - w->looked_ns,
                      passed_ns = since_ns < most_ns ? since_ns : most_ns; // as it was watched
        if (since_ns >= LOOK_MS * 1000000) {
            look_for_begin(w, passed_ns);
            look_for_lost(w, passed_ns);
            w->looked_ns = now;
        }
        look_for_signals(w, now);
        const int64_t late_ns = w->failed_ns ? now - w->failed_ns : 0,
                      patience_ns = w->complained ? second_ns : a_while_ns(w);
        const int silent = silent_ranks(w);
        const bool left = !silent || (silent == 1 && (w->complained || late_ns > second_ns));
        if (!w->told_ns && w->failed_ns && (asked || late_ns > patience_ns || left)) {
            if (!asked) name_lost(w);
            kill(w->oshrun, SIGTERM);
            w->told_ns = now;
        }
        if (w->told_ns && now - w->told_ns > 2 * second_ns) kill(w->oshrun, SIGKILL);
        if (w->told_ns && now - w->told_ns > 3 * second_ns) break;
    }
    if (w->length) take_line(w);
}

/* Those of this host are this process's children once oshrun has ended: what it kills takes a while to be gone, and what it left
 * is killed here. */
static void end_orphans(void)
{
    const int64_t patience_ns = 1000000000, since_ns = cot_now_ns();
    const struct timespec pause = {.tv_nsec = 1000000};
    for (;;) {
        const pid_t ended = waitpid(-1, NULL, WNOHANG);
        if (ended < 0 && errno != EINTR) return;
        if (ended) continue;
        int child;
        FILE *children = cot_now_ns() - since_ns > patience_ns ? fopen(CHILDREN, "r") : NULL;
        while (children && fscanf(children, "%d", &child) == 1) kill(child, SIGKILL);
        if (children) fclose(children);
        nanosleep(&pause, NULL);
    }
}

/* That a rank failed, where why got lost. Whether one did. */
static bool tell_failed(const struct watch *w)
{
    for (int r = 0; r < w->count; r++) {
        if (w->ranks[r].status <= 0) continue;
        complain(w->complain, "rank %d ended with status %d and did not say why", r, w->ranks[r].status);
        return true;
    }
    return false;
}

/* Of oshrun, once it has ended; where no rank has told why all did, it does. */
static void tell_end(struct watch *w, int how)
{
    cot_oshrun_remove_session(w->oshrun);
    cot_oshrun_remove_segments(w->since);
    char line[1024];
    if (w->complained || asked || w->first == 0) return;
    if (cot_oshrun_line(line, sizeof line, &w->words, w->hostfile))
        w->complain(line);
    else if (tell_failed(w))
        return;
    else if (WIFSIGNALED(how))
        complain(w->complain, "oshrun was killed by signal %d", WTERMSIG(how));
    else if (w->first < 0)
        complain(w->complain, "oshrun ended before its ranks had");
}

static bool can_be_read(const char *path)
{
    struct stat about;
    if (access(path, R_OK) != 0 || stat(path, &about) != 0) return false;
    errno = EISDIR;
    return !S_ISDIR(about.st_mode);
}

static void hear_signals(void)
{
    struct sigaction before;
    signal(SIGINT, ask_to_end);
    signal(SIGTERM, ask_to_end);
    signal(SIGQUIT, ask_to_end);
    sigaction(SIGHUP, NULL, &before); // ignored, under nohup
    if (before.sa_handler != SIG_IGN) signal(SIGHUP, hang_up);
}

int cot_start_ranks(const cot_start_options *options)
{
    int out[2], talk[2];
    const int ranks = options->ranks;
    const char *const hostfile = options->hostfile;
    struct watch w = {.first = -1,
                      .other = -1,
                      .count = ranks,
                      .hostfile = hostfile,
                      .complain = options->complain,
                      .since = time(NULL),
                      .timeout_ns = (int64_t)(options->timeout_s * 1e9)};
    gethostname(w.host, sizeof w.host - 1);
    if (ranks > MOST_RANKS) return complain(w.complain, "%d ranks, more than %d", ranks, MOST_RANKS);
    if (hostfile && !can_be_read(hostfile))
        return complain(w.complain, "cannot read '%s': %s", hostfile, strerror(errno));
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(talk, O_CLOEXEC) != 0)
        return complain(w.complain, "cannot start ranks: %s", strerror(errno));
    fflush(NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    w.oshrun = fork();
    const cot_oshrun_start start = {.ranks = ranks,
                                    .hostfile = hostfile,
                                    .timeout_s = options->timeout_s,
                                    .out = out[1],
                                    .talk = talk[1]};
    if (w.oshrun == 0) cot_oshrun_become(&start, options->argv);
    if (w.oshrun < 0) return complain(w.complain, "cannot start ranks: %s", strerror(errno));
    close(out[1]);
    close(talk[1]);
    w.out = out[0];
    w.talk = talk[0];
    hear_signals();
    watch_ranks(&w);
    int how = 0;
    while (waitpid(w.oshrun, &how, 0) < 0 && errno == EINTR) continue;
    end_orphans();
    tell_end(&w, how);
    if (asked && !(w.serves && w.first >= 0)) return 128 + asked;
    if (w.unwritten) return EXIT_FAILURE;
    if (w.first >= 0) return w.first;
    return w.other > 0 ? w.other : EXIT_FAILURE;
}
