/* What Open MPI's starter keeps on disk while it runs. */
#ifndef COT_START_SESSION_H
#define COT_START_SESSION_H
#include <sys/types.h>

/* Removes what an oshrun that was killed has left: ompi.HOST.USER/pid.OSHRUN in the folder for such things (TMPDIR). What cannot be
 * removed stays. */
void cot_oshrun_remove_session(pid_t oshrun);

#endif
