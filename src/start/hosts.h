/* Which hosts of a file cannot be started on. */
#ifndef COT_START_HOSTS_H
#define COT_START_HOSTS_H
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { COT_HOSTS_MOST = 64 };

/* An address that was asked for Open MPI's daemon as oshrun does (ssh, or what OMPI_MCA_plm_rsh_agent names). */
struct cot_hosts_question {
    char address[128];
    pid_t process; // that asks; 0: it has been answered
    bool failed;   // with no
};

typedef struct cot_hosts_questions {
    struct cot_hosts_question list[COT_HOSTS_MOST];
    int count;
} cot_hosts_questions;

/* Asks each address of the file, but this host's own, all at once. */
void cot_hosts_ask(cot_hosts_questions *questions, const char *hostfile);
/* Takes the answers that there are. Names those that have not answered, and where `failed` those that have failed, as in "10.0.0.2,
 * 10.0.0.3". Returns how many have not answered. */
int cot_hosts_hear(cot_hosts_questions *questions, char *names, size_t bytes, bool failed);
/* Names all that were asked; "": none. */
void cot_hosts_asked(const cot_hosts_questions *questions, char *names, size_t bytes);
/* Waits for no more answers. */
void cot_hosts_stop_asking(cot_hosts_questions *questions);

/* All of that, for a few seconds. Names those that fail or do not answer, as in "10.0.0.2, 10.0.0.3"; "": none. */
void cot_hosts_unreached(char *names, size_t bytes, const char *hostfile);

#endif
