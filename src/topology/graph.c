#include "topology/graph.h"

#include "base/error.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

cot_status cot_graph_start(cot_topology *graph, const char *name, cot_error *error)
{
    *graph = (cot_topology){0};
    graph->owner = calloc(1, sizeof *graph->owner);
    if (graph->owner) graph->owner->name = strdup(name);
    if (!graph->owner || !graph->owner->name)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the topology '%s'", name);
    graph->name = graph->owner->name;
    return COT_OK;
}

int32_t cot_graph_vertex(cot_topology *graph, const char *format, ...)
{
    struct cot_topology_owner *o = graph->owner;
    if (graph->n_vertices >= COT_TOPOLOGY_MAX_VERTICES) return -1;
    if (graph->n_vertices == o->room_vertices) {
        int32_t room = o->room_vertices ? 2 * o->room_vertices : 64;
        char **labels = realloc(o->labels, (size_t)room * sizeof *labels);
        if (!labels) return -1;
        o->labels = labels;
        o->room_vertices = room;
    }
    va_list args;
    va_start(args, format);
    int length = vasprintf(&o->labels[graph->n_vertices], format, args);
    va_end(args);
    return length < 0 ? -1 : graph->n_vertices++;
}

bool cot_graph_ranks(cot_topology *graph, int32_t n)
{
    assert(!graph->n_vertices);
    graph->n_ranks = n;
    graph->owner->host = malloc((size_t)n * sizeof *graph->owner->host);
    if (!graph->owner->host) return false;
    for (int32_t r = 0; r < n; r++) {
        graph->owner->host[r] = -1;
        if (cot_graph_vertex(graph, "rank %d", r) < 0) return false;
    }
    return true;
}

bool cot_graph_link(cot_topology *graph, cot_topology_link link)
{
    struct cot_topology_owner *o = graph->owner;
    if (graph->n_links >= COT_TOPOLOGY_MAX_LINKS || link.from < 0 || link.to < 0) return false;
    if (graph->n_links == o->room_links) {
        int64_t room = o->room_links ? 2 * o->room_links : 256;
        cot_topology_link *links = realloc(o->links, (size_t)room * sizeof *links);
        if (!links) return false;
        o->links = links;
        o->room_links = room;
    }
    o->links[graph->n_links++] = link;
    return true;
}

bool cot_graph_cable(cot_topology *graph, cot_topology_link link)
{
    if (!cot_graph_link(graph, link)) return false;
    int32_t from = link.from;
    link.from = link.to;
    link.to = from;
    return cot_graph_link(graph, link);
}

void cot_graph_host(cot_topology *graph, int32_t rank, int32_t host)
{
    graph->owner->host[rank] = host;
}

static int by_from(const void *a, const void *b)
{
    const cot_topology_link *x = a, *y = b;
    if (x->from != y->from) return x->from < y->from ? -1 : 1;
    return (x->to > y->to) - (x->to < y->to);
}

/* The servers' numbers become 0, 1, ... in the order of the ranks. */
static bool number_hosts(cot_topology *graph)
{
    int32_t n = graph->n_ranks, *host = graph->owner->host, most = -1;
    for (int32_t r = 0; r < n; r++) most = host[r] > most ? host[r] : most;
    int32_t *number = malloc((size_t)(most + 1) * sizeof *number + 1);
    if (!number) return false;
    for (int32_t h = 0; h <= most; h++) number[h] = -1;
    for (int32_t r = 0; r < n; r++) {
        if (host[r] < 0)
            host[r] = graph->n_hosts++;
        else {
            if (number[host[r]] < 0) number[host[r]] = graph->n_hosts++;
            host[r] = number[host[r]];
        }
    }
    free(number);
    return true;
}

cot_status cot_graph_finish(cot_topology *graph, bool built, cot_error *error)
{
    struct cot_topology_owner *o = graph->owner;
    if (!built)
        return graph->n_vertices >= COT_TOPOLOGY_MAX_VERTICES || graph->n_links >= COT_TOPOLOGY_MAX_LINKS
                   ? cot_fail(error, COT_UNSUPPORTED,
                              "the topology '%s' has more than %d vertices or %d links", graph->name,
                              COT_TOPOLOGY_MAX_VERTICES, COT_TOPOLOGY_MAX_LINKS)
                   : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the topology '%s'", graph->name);
    if (graph->n_ranks < 1) return cot_fail(error, COT_MALFORMED, "'%s' holds no rank", graph->name);
    size_t V = (size_t)graph->n_vertices, n = (size_t)graph->n_links;
    if (n) qsort(o->links, n, sizeof *o->links, by_from);
    o->first = calloc(V + 1, sizeof *o->first);
    o->into_first = calloc(V + 1, sizeof *o->into_first);
    o->into = malloc(n * sizeof *o->into + 1);
    if (!o->first || !o->into_first || !o->into || !number_hosts(graph))
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the topology '%s'", graph->name);
    for (size_t i = 0; i < n; i++) {
        o->first[o->links[i].from + 1]++;
        o->into_first[o->links[i].to + 1]++;
    }
    for (size_t v = 0; v < V; v++) {
        o->first[v + 1] += o->first[v];
        o->into_first[v + 1] += o->into_first[v];
    }
    for (size_t i = 0; i < n; i++) o->into[o->into_first[o->links[i].to]++] = (int64_t)i;
    memmove(o->into_first + 1, o->into_first, V * sizeof *o->into_first);
    o->into_first[0] = 0;
    graph->links = o->links;
    graph->labels = (const char *const *)o->labels;
    graph->host = o->host;
    return COT_OK;
}

void cot_topology_free(cot_topology *topology)
{
    struct cot_topology_owner *o = topology->owner;
    if (o) {
        for (int32_t v = 0; v < topology->n_vertices; v++) free(o->labels[v]);
        free(o->labels);
        free(o->links);
        free(o->host);
        free(o->first);
        free(o->into);
        free(o->into_first);
        free(o->name);
        free(o);
    }
    *topology = (cot_topology){0};
}
