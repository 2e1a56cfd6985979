/* oshrun in place of this process. */
#ifndef COT_CLI_BECOME_OSHRUN_H
#define COT_CLI_BECOME_OSHRUN_H

typedef struct oshrun_start {
    int ranks;
    const char *hostfile; // NULL: on this host
    double timeout_s;
    int out, talk; // what becomes standard output and error
} oshrun_start;

/* Starts this program with these arguments so; a line on its standard error, and exit status 127, if it cannot. It ends with who
 * has started it, and leaves a terminal's signals to that. */
_Noreturn void cot_become_oshrun(const oshrun_start *start, char **argv);

#endif
