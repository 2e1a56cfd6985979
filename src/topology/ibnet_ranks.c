/* Ranks take their seats on adapters; those that seat none are left out. */
#include "topology/ibnet.h"

#include "base/error.h"
#include "base/rng.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static cot_ibnet_text text_of(const char *text)
{
    return (cot_ibnet_text){text, strlen(text)};
}

/* The digits of a GUID: without what says that it is one, and without zeros in front. */
static cot_ibnet_text digits(cot_ibnet_text guid, bool marked)
{
    if (marked) guid = (cot_ibnet_text){guid.at + 2, guid.length - 2};
    while (guid.length && *guid.at == '0') guid = (cot_ibnet_text){guid.at + 1, guid.length - 1};
    return guid;
}

cot_ibnet_text cot_ibnet_guid(const cot_ibnet_node *node)
{
    const cot_ibnet_text id = node->id;
    return digits(id, id.length > 2 && (id.at[1] == '-' || id.at[1] == 'x'));
}

static cot_ibnet_text digits_of_row(const cot_host_row *row)
{
    return digits(text_of(row->adapter),
                  !strncasecmp(row->adapter, "0x", 2) || !strncasecmp(row->adapter, "H-", 2));
}

static bool names_adapter(const cot_ibnet_node *node, const cot_host_row *row)
{
    cot_ibnet_text host, device;
    const cot_ibnet_text a = cot_ibnet_guid(node), b = digits_of_row(row);
    return cot_ibnet_same(node->description, row->adapter) ||
           (a.length && a.length == b.length && !strncasecmp(a.at, b.at, a.length)) ||
           (cot_ibnet_named(node->description, &host, &device) && cot_ibnet_same(host, row->host) &&
            cot_ibnet_same(device, row->adapter));
}

/* An adapter under one of its names: its description, its GUID, its host and device. Equal names have equal keys. */
typedef struct named {
    uint64_t key;
    int32_t node;
} named;
enum { NAMES = 3 };

static uint64_t hash(uint64_t key, cot_ibnet_text text)
{
    for (size_t i = 0; i < text.length; i++)
        key = (key ^ (uint64_t)tolower((unsigned char)text.at[i])) * 0x100000001b3;
    return cot_mix64(key);
}

static int by_key(const void *a, const void *b)
{
    const named *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return (x->node > y->node) - (x->node < y->node);
}

/* All adapters under all their names, by key; `names` has room for NAMES a node. Returns how many there are. */
static size_t index_adapters(named *names, const cot_ibnet *net)
{
    size_t n = 0;
    for (size_t i = 0; i < net->n_nodes; i++) {
        const cot_ibnet_node *node = &net->nodes[i];
        cot_ibnet_text host, device;
        if (!node->adapter) continue;
        names[n++] = (named){hash(0, node->description), (int32_t)i};
        names[n++] = (named){hash(1, cot_ibnet_guid(node)), (int32_t)i};
        if (cot_ibnet_named(node->description, &host, &device))
            names[n++] = (named){hash(hash(2, host), device), (int32_t)i};
    }
    qsort(names, n, sizeof *names, by_key);
    return n;
}

static cot_status find_adapter(int32_t *found, const cot_ibnet *net, const named *names, size_t n,
                               const cot_host_row *row, const char *path, cot_error *error)
{
    const uint64_t keys[NAMES] = {hash(0, text_of(row->adapter)), hash(1, digits_of_row(row)),
                                  hash(hash(2, text_of(row->host)), text_of(row->adapter))};
    *found = -1;
    for (int k = 0; k < NAMES; k++) {
        size_t from = 0;
        for (size_t to = n; from < to;) { // the first of this key
            const size_t middle = from + (to - from) / 2;
            if (names[middle].key < keys[k])
                from = middle + 1;
            else
                to = middle;
        }
        for (; from < n && names[from].key == keys[k]; from++) {
            const int32_t i = names[from].node;
            if (i == *found || !names_adapter(&net->nodes[i], row)) continue;
            if (*found >= 0)
                return cot_fail(error, COT_MALFORMED,
                                "'%s': line %d: several adapters are called '%s', give the GUID", path,
                                row->line, row->adapter);
            *found = i;
        }
    }
    if (*found < 0)
        return cot_fail(error, COT_MALFORMED, "'%s': line %d: the fabric has no adapter '%s' of host '%s'",
                        path, row->line, row->adapter, row->host);
    return COT_OK;
}

/* Where each rank's adapter is: `seat` [S]. */
static cot_status find_adapters(int32_t *seat, const cot_ibnet *net, const cot_host_rows *rows,
                                const char *path, cot_error *error)
{
    named *names = malloc((NAMES * net->n_nodes + 1) * sizeof *names);
    if (!names) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for '%s'", path);
    const size_t n = index_adapters(names, net);
    cot_status status = COT_OK;
    for (int32_t r = 0; status == COT_OK && r < rows->count; r++)
        status = find_adapter(&seat[r], net, names, n, &rows->rows[r], path, error);
    free(names);
    return status;
}

static const double domain_gbps = 450; // of a domain's links, which the file of hosts does not say

/* A rank under the name of its host or domain. */
typedef struct member {
    const char *name;
    int32_t rank;
} member;

static int by_name(const void *a, const void *b)
{
    const member *x = a, *y = b;
    const int order = strcmp(x->name, y->name);
    return order ? order : (x->rank > y->rank) - (x->rank < y->rank);
}

/* The first rank of each rank's host, or of its domain: `first` [S]; `members` [S] is scratch. */
static void find_first(int32_t *first, member *members, const cot_host_rows *rows, bool domain)
{
    for (int32_t r = 0; r < rows->count; r++)
        members[r] = (member){domain ? rows->rows[r].domain : rows->rows[r].host, r};
    qsort(members, (size_t)rows->count, sizeof *members, by_name);
    for (int32_t i = 0; i < rows->count; i++)
        first[members[i].rank] =
            i && !strcmp(members[i].name, members[i - 1].name) ? first[members[i - 1].rank] : members[i].rank;
}

/* Ranks with their hosts and domains, each a vertex that they are tied to. `scratch` [2][S]. */
static bool build_ranks(cot_topology *graph, const cot_host_rows *rows, member *members, int32_t *scratch)
{
    int32_t *vertex = scratch, *first = scratch + rows->count;
    bool built = cot_graph_ranks(graph, rows->count);
    find_first(first, members, rows, false);
    for (int32_t r = 0; built && r < rows->count; r++) {
        vertex[r] = first[r] == r ? cot_graph_vertex(graph, "host %s", rows->rows[r].host) : vertex[first[r]];
        cot_graph_host(graph, r, first[r]);
        built = cot_graph_cable(graph, cot_graph_tie(r, vertex[r]));
    }
    find_first(first, members, rows, true);
    for (int32_t r = 0; built && r < rows->count; r++) {
        if (!*rows->rows[r].domain) continue;
        vertex[r] =
            first[r] == r ? cot_graph_vertex(graph, "domain %s", rows->rows[r].domain) : vertex[first[r]];
        built = cot_graph_cable(graph, cot_graph_inside(r, vertex[r], domain_gbps));
    }
    return built;
}

/* Vertices: ranks, hosts, domains, switches, and for each port of a seated adapter one, so that nothing is forwarded from one
 * port to another. */
static bool build(cot_topology *graph, cot_ibnet *net, const cot_host_rows *rows, const int32_t *seat,
                  member *members, int32_t *scratch)
{
    bool built = build_ranks(graph, rows, members, scratch);
    int32_t *next = scratch; // [S] of the ranks that sit on a node, in falling order; -1 after the last
    for (int32_t r = 0; r < rows->count; r++) {
        next[r] = net->nodes[seat[r]].rank;
        net->nodes[seat[r]].rank = r;
    }
    for (size_t i = 0; built && i < net->n_nodes; i++)
        if (!net->nodes[i].adapter)
            built =
                (net->nodes[i].vertex = cot_graph_vertex(graph, "%.*s", (int)net->nodes[i].description.length,
                                                         net->nodes[i].description.at)) >= 0;
    for (size_t i = 0; built && i < net->n_cables; i++) {
        const cot_ibnet_cable *c = &net->cables[i];
        int32_t end[2];
        bool used = true;
        for (int k = 0; k < 2; k++) {
            const cot_ibnet_node *node = &net->nodes[c->node[k]];
            end[k] = node->vertex;
            used = used && (!node->adapter || node->rank >= 0);
        }
        if (!used) continue;
        for (int k = 0; built && k < 2; k++) {
            const cot_ibnet_node *node = &net->nodes[c->node[k]];
            if (!node->adapter) continue;
            end[k] = cot_graph_vertex(graph, "%.*s port %d", (int)node->description.length,
                                      node->description.at, c->port[k]);
            built = end[k] >= 0;
            for (int32_t r = node->rank; built && r >= 0; r = next[r])
                built = cot_graph_cable(graph, cot_graph_tie(r, end[k]));
        }
        built = built && cot_graph_cable(graph, (cot_topology_link){end[0], end[1], 1, 0.5, c->gbps});
    }
    graph->has_costs = true;
    return built;
}

cot_status cot_ibnet_seat_ranks(cot_topology *graph, cot_ibnet *net, const cot_topology_text *file,
                                cot_error *error)
{
    cot_host_rows rows;
    cot_status status = cot_host_rows_read(&rows, file->options->hosts, error);
    if (status != COT_OK) return status;
    const size_t S = (size_t)rows.count;
    int32_t *seat = malloc(3 * S * sizeof *seat);
    member *members = malloc(S * sizeof *members);
    if (!seat || !members)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for '%s'", file->options->hosts);
    if (status == COT_OK) status = find_adapters(seat, net, &rows, file->options->hosts, error);
    if (status == COT_OK)
        status = cot_graph_finish(graph, build(graph, net, &rows, seat, members, seat + S), error);
    free(seat);
    free(members);
    cot_host_rows_free(&rows);
    return status;
}
