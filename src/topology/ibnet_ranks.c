/* Ranks take their seats on adapters; those that seat none are left out. */
#include "topology/ibnet.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

/* A GUID, with or without 0x or H-, equals the node's. */
static bool is_guid(cot_ibnet_text id, const char *text)
{
    if (id.length > 2 && (id.at[1] == '-' || id.at[1] == 'x'))
        id = (cot_ibnet_text){id.at + 2, id.length - 2};
    if (!strncasecmp(text, "0x", 2) || !strncasecmp(text, "H-", 2)) text += 2;
    while (*text == '0') text++;
    while (id.length && *id.at == '0') id = (cot_ibnet_text){id.at + 1, id.length - 1};
    return id.length && strlen(text) == id.length && !strncasecmp(id.at, text, id.length);
}

static bool names_adapter(const cot_ibnet_node *node, const cot_host_row *row)
{
    cot_ibnet_text host, device;
    return cot_ibnet_same(node->description, row->adapter) || is_guid(node->id, row->adapter) ||
           (cot_ibnet_named(node->description, &host, &device) && cot_ibnet_same(host, row->host) &&
            cot_ibnet_same(device, row->adapter));
}

static cot_status find_adapter(int32_t *found, const cot_ibnet *net, const cot_host_row *row,
                               const char *path, cot_error *error)
{
    *found = -1;
    for (size_t i = 0; i < net->n_nodes; i++) {
        if (!net->nodes[i].adapter || !names_adapter(&net->nodes[i], row)) continue;
        if (*found >= 0)
            return cot_fail(error, COT_MALFORMED,
                            "'%s': line %d: several adapters are called '%s', give the GUID", path, row->line,
                            row->adapter);
        *found = (int32_t)i;
    }
    if (*found < 0)
        return cot_fail(error, COT_MALFORMED, "'%s': line %d: the fabric has no adapter '%s' of host '%s'",
                        path, row->line, row->adapter, row->host);
    return COT_OK;
}

static const double domain_gbps = 450; // of a domain's links, which the file of hosts does not say

/* The first rank of r's host, or of its domain. */
static int32_t first_of(const cot_host_rows *rows, int32_t r, bool domain)
{
    int32_t first = 0;
    while (domain ? strcmp(rows->rows[first].domain, rows->rows[r].domain)
                  : strcmp(rows->rows[first].host, rows->rows[r].host))
        first++;
    return first;
}

/* Ranks with their hosts and domains, each a vertex that they are tied to. `vertex` [S] is scratch. */
static bool build_ranks(cot_topology *graph, const cot_host_rows *rows, int32_t *vertex)
{
    bool built = cot_graph_ranks(graph, rows->count);
    for (int32_t r = 0; built && r < rows->count; r++) {
        const int32_t first = first_of(rows, r, false);
        vertex[r] = first == r ? cot_graph_vertex(graph, "host %s", rows->rows[r].host) : vertex[first];
        cot_graph_host(graph, r, first);
        built = cot_graph_cable(graph, cot_graph_tie(r, vertex[r]));
    }
    for (int32_t r = 0; built && r < rows->count; r++) {
        if (!*rows->rows[r].domain) continue;
        const int32_t first = first_of(rows, r, true);
        vertex[r] = first == r ? cot_graph_vertex(graph, "domain %s", rows->rows[r].domain) : vertex[first];
        built = cot_graph_cable(graph, cot_graph_inside(r, vertex[r], domain_gbps));
    }
    return built;
}

/* Vertices: ranks, hosts, domains, switches, and for each port of a seated adapter one, so that nothing is forwarded from one
 * port to another. */
static bool build(cot_topology *graph, cot_ibnet *net, const cot_host_rows *rows, const int32_t *seat,
                  int32_t *scratch)
{
    bool built = build_ranks(graph, rows, scratch);
    for (int32_t r = 0; r < rows->count; r++) net->nodes[seat[r]].seated = true;
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
            used = used && (!node->adapter || node->seated);
        }
        if (!used) continue;
        for (int k = 0; built && k < 2; k++) {
            const cot_ibnet_node *node = &net->nodes[c->node[k]];
            if (!node->adapter) continue;
            end[k] = cot_graph_vertex(graph, "%.*s port %d", (int)node->description.length,
                                      node->description.at, c->port[k]);
            built = end[k] >= 0;
            for (int32_t r = 0; built && r < rows->count; r++)
                if (seat[r] == c->node[k]) built = cot_graph_cable(graph, cot_graph_tie(r, end[k]));
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
    int32_t *seat = malloc(2 * (size_t)rows.count * sizeof *seat);
    if (!seat) status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for '%s'", file->options->hosts);
    for (int32_t r = 0; status == COT_OK && r < rows.count; r++)
        status = find_adapter(&seat[r], net, &rows.rows[r], file->options->hosts, error);
    if (status == COT_OK)
        status = cot_graph_finish(graph, build(graph, net, &rows, seat, seat + rows.count), error);
    free(seat);
    cot_host_rows_free(&rows);
    return status;
}
