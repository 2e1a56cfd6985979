#include "harness/cli/capture.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void capture_read(FILE *file, char *text, size_t bytes)
{
    rewind(file);
    text[fread(text, 1, bytes - 1, file)] = 0;
    fclose(file);
}

void capture_call(capture *c, int (*body)(void *context), void *context)
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

const char *capture_program(void)
{
    const char *named = getenv("COT_PROGRAM");
    return named ? named : COT_PROGRAM;
}

void capture_shell(capture *c, const char *line)
{
    setenv("coterie", capture_program(), 1);
    capture_call(c, capture_exec, (void *)(uintptr_t)line);
}
