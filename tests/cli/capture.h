/* Runs something in a child process and keeps its exit status and what it wrote. */
#ifndef COT_TESTS_CLI_CAPTURE_H
#define COT_TESTS_CLI_CAPTURE_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct capture {
    int status; // exit status, or 256 + the signal that ended it
    char out[1 << 16], err[1 << 14];
} capture;

static void capture_read(FILE *file, char *text, size_t bytes)
{
    rewind(file);
    text[fread(text, 1, bytes - 1, file)] = 0;
    fclose(file);
}

/* Calls body(context) in a child whose standard output and error are kept in `c`. */
static void capture_call(capture *c, int (*body)(void *context), void *context)
{
    FILE *out = tmpfile(), *err = tmpfile();
    if (!out || !err) abort();
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        dup2(fileno(out), STDOUT_FILENO);
        dup2(fileno(err), STDERR_FILENO);
        int status = body(context);
        fflush(NULL);
        _exit(status);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) abort();
    c->status = WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
    capture_read(out, c->out, sizeof c->out);
    capture_read(err, c->err, sizeof c->err);
}

static int capture_exec(void *line)
{
    execl("/bin/sh", "sh", "-c", line, (char *)NULL);
    return 127;
}

/* Runs a shell command line, in which $coterie is the program. */
static inline void capture_shell(capture *c, const char *line)
{
    setenv("coterie", COT_PROGRAM, 1);
    capture_call(c, capture_exec, (void *)(uintptr_t)line);
}

#endif
