/* oshrun in place of this process. */
#ifndef COT_START_OSHRUN_H
#define COT_START_OSHRUN_H

typedef struct cot_oshrun_start {
    int ranks;
    const char *hostfile; // NULL: on this host
    double timeout_s;
    int out, talk; // what becomes standard output and error
} cot_oshrun_start;

/* Starts this program with these arguments so; a line on its standard error, and exit status 127, if it cannot. It ends with who
 * has started it, and leaves a terminal's signals to that. */
_Noreturn void cot_oshrun_become(const cot_oshrun_start *start, char **argv);

#endif
