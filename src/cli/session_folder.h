/* What Open MPI's starter keeps on disk while it runs. */
#ifndef COT_CLI_SESSION_FOLDER_H
#define COT_CLI_SESSION_FOLDER_H
#include <sys/types.h>

/* Removes what an oshrun that was killed has left: ompi.HOST.USER/pid.OSHRUN in the folder for such things (TMPDIR). What cannot be
 * removed stays. */
void cot_remove_session_folder(pid_t oshrun);

#endif
