/* Readers of topology files: each fills in a graph that cot_graph_start has begun, up to cot_graph_finish. */
#ifndef COT_TOPOLOGY_READER_H
#define COT_TOPOLOGY_READER_H
#include "topology/graph.h"

enum { COT_TOPOLOGY_LARGEST_FILE = 1 << 28 }; // bytes

typedef struct cot_topology_text {
    const char *path; // for messages
    const char *text; // NUL-terminated
    size_t bytes;
    const cot_topology_options *options;
} cot_topology_text;

cot_status cot_read_topology_json(cot_topology *graph, const cot_topology_text *file, cot_error *error);
cot_status cot_read_topology_nccl(cot_topology *graph, const cot_topology_text *file, cot_error *error);
cot_status cot_read_topology_ibnet(cot_topology *graph, const cot_topology_text *file, cot_error *error);

bool cot_ibnet_is(const char *text);

/* What `nvidia-smi topo -m` prints, also indented: `links` [n][n], how many NVLinks lead from one GPU to another, 0 where
 * the way is PCIe. Errors: NOT_FOUND, IO, MALFORMED (also other than n GPUs), OUT_OF_MEMORY. */
cot_status cot_nvlinks_read(int32_t *links, int32_t n, const char *path, cot_error *error);
bool cot_nvlinks_is(const char *text);
/* The same as a topology of its own, one host. */
cot_status cot_read_topology_nvlinks(cot_topology *graph, const cot_topology_text *file, cot_error *error);

/* One row of a file that says which adapter is which rank. */
typedef struct cot_host_row {
    char *host, *gpu, *adapter, *domain; // domain: "" of a rank in none
    int32_t line;
} cot_host_row;
typedef struct cot_host_rows {
    char *text;
    cot_host_row *rows; // in rank order; texts point into `text`
    int32_t count;
} cot_host_rows;
/* Reads lines `host,gpu,adapter[,domain]`; a header and empty lines are fine. Errors: NOT_FOUND, IO, MALFORMED,
 * OUT_OF_MEMORY. */
cot_status cot_host_rows_read(cot_host_rows *rows, const char *path, cot_error *error);
void cot_host_rows_free(cot_host_rows *rows);

#endif
