/* Which hosts of a file cannot be started on. */
#ifndef COT_CLI_UNREACHED_HOSTS_H
#define COT_CLI_UNREACHED_HOSTS_H
#include <stddef.h>

/* Asks each address of the file, but this host's own, for Open MPI's daemon as oshrun does (ssh, or what OMPI_MCA_plm_rsh_agent
 * names), all at once and for a few seconds. Names those that fail or do not answer, as in "10.0.0.2, 10.0.0.3"; "": none. */
void cot_unreached_hosts(char *names, size_t bytes, const char *hostfile);

#endif
