/* What `coterie place` and `coterie topology` share: the cluster, read or built, and matrices in JSON. */
#ifndef COT_CLI_PLAN_CLUSTER_H
#define COT_CLI_PLAN_CLUSTER_H
#include "cli/frame/command.h"
#include "coterie/topology.h"

/* What a topology's file may leave open: its options --hosts and --nvlink (NULL: not given), and how many ranks. */
typedef struct cli_topology_settings {
    const char *hosts, *nvlink;
    int32_t ranks;
} cli_topology_settings;
#define CLI_TOPOLOGY_HOSTS_TEXT "lines host,gpu,adapter[,domain] in rank order, for ibnetdiscover files"
#define CLI_TOPOLOGY_NVLINK_TEXT                                                                             \
    "NVLinks that an NCCL file leaves out: all (every GPU to every other), or a file of what nvidia-smi "    \
    "topo -m "                                                                                               \
    "prints"

/* Opens the file `text`, or builds the topology that it spells. Returns false after saying why not. */
bool cli_open_topology(cot_topology *topology, const char *text, const cli_topology_settings *settings);
/* What the host of each rank is called: [S] pointers into the topology's labels; the array is the caller's. NULL where one
 * host has all ranks, where hosts have no names, or without memory. */
const char **cli_host_names(const cot_topology *topology);
/* Reads a matrix of `rows` x `columns` numbers (0: any number, which is stored) from JSON: the value itself or, where
 * that is an object, its member `key`. The caller frees it. NULL after saying why not. */
double *cli_read_matrix(const char *path, const char *key, int32_t *rows, int32_t *columns);
#endif
