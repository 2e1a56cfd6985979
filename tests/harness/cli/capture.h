/* Runs something in a child process and keeps its exit status and what it wrote. */
#ifndef COT_TESTS_HARNESS_CLI_CAPTURE_H
#define COT_TESTS_HARNESS_CLI_CAPTURE_H
typedef struct capture {
    int status; // exit status, or 256 + the signal that ended it
    char out[1 << 16], err[1 << 14];
} capture;

/* Calls body(context) in a child whose standard output and error are kept in `c`. */
void capture_call(capture *c, int (*body)(void *context), void *context);

/* The program's path: what the environment's COT_PROGRAM says, since tools/mutate names one of its own, else this build's. */
const char *capture_program(void);

/* Runs a shell command line, in which $coterie is the program. */
void capture_shell(capture *c, const char *line);

#endif
