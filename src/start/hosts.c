#include "start/hosts.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_WORDS = 32 };

/* Whether it is an address of this host, which oshrun starts on by itself. */
static bool is_here(const char *address)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_DGRAM};
    struct addrinfo *found = NULL;
    bool here = false;
    if (getaddrinfo(address, NULL, &hints, &found) != 0) return false;
    for (const struct addrinfo *a = found; a && !here; a = a->ai_next) {
        const int fd = socket(a->ai_family, SOCK_DGRAM, 0);
        here = fd >= 0 && bind(fd, a->ai_addr, a->ai_addrlen) == 0;
        if (fd >= 0) close(fd);
    }
    freeaddrinfo(found);
    return here;
}

static _Noreturn void ask(const char *address)
{
    static char agent[4096];
    const char *set = getenv("OMPI_MCA_plm_rsh_agent");
    const char *words[MOST_WORDS + 4] = {0};
    size_t count = 0;
    char *rest;
    snprintf(agent, sizeof agent, "%s", set && *set ? set : "ssh -o BatchMode=yes");
    for (char *word = strtok_r(agent, " ", &rest); word && count < MOST_WORDS;
         word = strtok_r(NULL, " ", &rest))
        words[count++] = word;
    words[count++] = address;
    words[count++] = "orted";
    words[count] = "--version";
    const int nowhere = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; fd++) dup2(nowhere, fd);
    setpgid(0, 0); // so that what it starts ends with it
    execvp(words[0], (char *const *)words);
    _exit(127);
}

static void add_name(char *names, size_t bytes, const char *name)
{
    const size_t used = strlen(names);
    snprintf(names + used, bytes - used, "%s%s", used ? ", " : "", name);
}

/* One address a line, before slots. */
void cot_hosts_ask(cot_hosts_questions *questions, const char *hostfile)
{
    char line[1024];
    FILE *file = fopen(hostfile, "r");
    questions->count = 0;
    while (file && questions->count < COT_HOSTS_MOST && fgets(line, sizeof line, file)) {
        struct cot_hosts_question *q = &questions->list[questions->count];
        *q = (struct cot_hosts_question){0};
        *strchrnul(line, '#') = 0;
        if (sscanf(line, "%127s", q->address) != 1 || is_here(q->address)) continue;
        q->process = fork();
        if (q->process == 0) ask(q->address);
        questions->count += q->process > 0;
    }
    if (file) fclose(file);
}

int cot_hosts_hear(cot_hosts_questions *questions, char *names, size_t bytes, bool failed)
{
    int silent = 0;
    *names = 0;
    for (int i = 0; i < questions->count; i++) {
        struct cot_hosts_question *q = &questions->list[i];
        int status;
        if (q->process && waitpid(q->process, &status, WNOHANG) == q->process) {
            q->process = 0;
            q->failed = !WIFEXITED(status) || WEXITSTATUS(status);
        }
        silent += q->process != 0;
        if (q->process || (failed && q->failed)) add_name(names, bytes, q->address);
    }
    return silent;
}

void cot_hosts_asked(const cot_hosts_questions *questions, char *names, size_t bytes)
{
    *names = 0;
    for (int i = 0; i < questions->count; i++) add_name(names, bytes, questions->list[i].address);
}

void cot_hosts_stop_asking(cot_hosts_questions *questions)
{
    for (int i = 0; i < questions->count; i++) {
        const pid_t process = questions->list[i].process;
        if (!process) continue;
        kill(-process, SIGKILL);
        kill(process, SIGKILL);
        while (waitpid(process, NULL, 0) < 0 && errno == EINTR) continue;
    }
    questions->count = 0;
}

void cot_hosts_unreached(char *names, size_t bytes, const char *hostfile)
{
    const int64_t patience_ns = 5000000000, until_ns = cot_now_ns() + patience_ns;
    const struct timespec pause = {.tv_nsec = 10000000};
    cot_hosts_questions questions;
    cot_hosts_ask(&questions, hostfile);
    while (cot_hosts_hear(&questions, names, bytes, true) && cot_now_ns() < until_ns) nanosleep(&pause, NULL);
    cot_hosts_stop_asking(&questions);
}
