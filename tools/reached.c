// Linked into every program of tools/mutate's build. gcov writes the counts of a process when it ends by exit: here they are
// also written where it leaves by _exit or becomes another program. Who is killed, or may open no more files,
// leaves the file PID.lost in GCOV_PREFIX, which says that counts are missing there.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <gcov.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static char lost[4096]; // this process's file; empty where nobody asks for counts

static void begin(void)
{
    const char *folder = getenv("GCOV_PREFIX");
    const int bytes = folder ? snprintf(lost, sizeof lost, "%s/%d.lost", folder, (int)getpid()) : -1;
    const int file =
        bytes > 0 && bytes < (int)sizeof lost ? open(lost, O_WRONLY | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (file < 0) lost[0] = 0;
    if (file >= 0) close(file);
}

__attribute__((constructor)) static void begin_program(void)
{
    begin();
    pthread_atfork(NULL, NULL, begin);
}

__attribute__((destructor)) static void end(void)
{
    if (!lost[0]) return;
    __gcov_dump(); // gcov's own may come later: who is killed meanwhile has lost something
    const int file = open(lost, O_WRONLY | O_CLOEXEC);
    if (file < 0) return; // nor could gcov open its files
    close(file);
    unlink(lost);
}

void _exit(int status)
{
    end();
    syscall(SYS_exit_group, status);
    __builtin_unreachable();
}

int execvp(const char *program, char *const words[])
{
    int (*become)(const char *, char *const *) =
        (int (*)(const char *, char *const *))dlsym(RTLD_NEXT, "execvp");
    end();
    if (lost[0]) __gcov_reset(); // so that counts are written again where there is no such program
    return become(program, words);
}
