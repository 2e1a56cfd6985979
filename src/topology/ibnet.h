/* An InfiniBand fabric as `ibnetdiscover` describes it: switches, adapters and cables, whose texts are pieces of the file's. */
#ifndef COT_TOPOLOGY_IBNET_H
#define COT_TOPOLOGY_IBNET_H
#include "topology/reader.h"

typedef struct cot_ibnet_text {
    const char *at;
    size_t length;
} cot_ibnet_text;

typedef struct cot_ibnet_node {
    cot_ibnet_text id, description;
    bool adapter;
    int32_t rank; // the last that sits on it; -1: none
    int32_t vertex;
} cot_ibnet_node;

/* A cable, its ends ordered so that both of its listings are equal. */
typedef struct cot_ibnet_cable {
    int32_t node[2], port[2];
    double gbps;
    bool both; // listed at both ends
} cot_ibnet_cable;

typedef struct cot_ibnet {
    cot_ibnet_node *nodes; // ascending by id once sorted
    cot_ibnet_cable *cables;
    size_t n_nodes, n_cables;
} cot_ibnet;

int cot_ibnet_compare(cot_ibnet_text a, cot_ibnet_text b);
bool cot_ibnet_same(cot_ibnet_text a, const char *text);
/* Lanes times the rate of one ("NDR"), as data; infinite where that is no rate. */
double cot_ibnet_gbps(int64_t lanes, cot_ibnet_text rate);

/* Refuses a listing that was cut off: nodes without a cable, cables that were listed at one end alone. The cables must be
 * sorted. Errors: MALFORMED, OUT_OF_MEMORY. */
cot_status cot_ibnet_check_whole(const cot_ibnet *net, const char *path, cot_error *error);

/* The digits of a node's GUID, without zeros in front. */
cot_ibnet_text cot_ibnet_guid(const cot_ibnet_node *node);

void cot_ibnet_sort_nodes(cot_ibnet *net);
/* The node of that id, -1 if there is none; the nodes must be sorted. */
int32_t cot_ibnet_find(const cot_ibnet *net, cot_ibnet_text id);
cot_ibnet_cable cot_ibnet_cable_between(int32_t a, int32_t port_a, int32_t b, int32_t port_b, double gbps);
/* Sorts the cables and leaves out what was listed at both ends. */
void cot_ibnet_sort_cables(cot_ibnet *net);

/* A description "HOST DEVICE", of words without quotes and commas; false of those that an adapter has before somebody names
 * it. */
bool cot_ibnet_named(cot_ibnet_text description, cot_ibnet_text *host, cot_ibnet_text *device);

/* Each fills in a fabric whose arrays have room for two nodes and a cable a line, its cables sorted. Errors: MALFORMED. */
cot_status cot_ibnet_read_nodes(cot_ibnet *net, const cot_topology_text *file, cot_error *error);
cot_status cot_ibnet_read_ports(cot_ibnet *net, const cot_topology_text *file, cot_error *error);
/* Whether the text is that of `ibnetdiscover -p`, a line a port. */
bool cot_ibnet_lists_ports(const char *text);
/* Whether it is a list of nodes, without cables, as ibnetdiscover -l, ibhosts and ibswitches print; and why that will not
 * do. */
bool cot_ibnet_lists_nodes(const char *text);
cot_status cot_ibnet_refuse_nodes(const char *path, cot_error *error);

/* Seats the ranks of file->options->hosts and builds the graph. Errors: those of the file of hosts. */
cot_status cot_ibnet_seat_ranks(cot_topology *graph, cot_ibnet *net, const cot_topology_text *file,
                                cot_error *error);

#endif
