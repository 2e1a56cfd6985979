/* `ibnetdiscover` output: switches and adapters ("Ca"), each with the lines of its ports:
 *
 *     Switch  65 "S-2c5e"              # "leaf 4" enhanced port 0 lid 73 lmc 0
 *     [1]     "H-e09d"[1](e09d)        # "host7 mlx5_5" lid 647 4xNDR
 *     Ca      1 "H-e09d"               # "host7 mlx5_5"
 *     [1](e09d)  "S-2c5e"[1]           # lid 647 lmc 0 "leaf 4" lid 73 4xNDR
 *
 * Adapters that seat no rank are left out. */
#include "topology/reader.h"

#include "base/error.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A piece of the text. */
typedef struct piece {
    const char *at;
    size_t length;
} piece;

typedef struct ib_node {
    piece id, description;
    bool adapter;
    bool seated; // some rank sits on it
    int32_t vertex;
} ib_node;

/* A cable, its ends ordered so that both of its listings are equal. */
typedef struct ib_cable {
    int32_t node[2], port[2];
    double gbps;
} ib_cable;

typedef struct ib_net {
    ib_node *nodes; // ascending by id
    ib_cable *cables;
    size_t n_nodes, n_cables;
} ib_net;

static int compare(piece a, piece b)
{
    int order = memcmp(a.at, b.at, a.length < b.length ? a.length : b.length);
    return order ? order : (a.length > b.length) - (a.length < b.length);
}

static int by_id(const void *a, const void *b)
{
    return compare(((const ib_node *)a)->id, ((const ib_node *)b)->id);
}

static bool same(piece a, const char *text)
{
    return a.length == strlen(text) && !memcmp(a.at, text, a.length);
}

/* The next "quoted" piece of [*at, end), *at moved behind it. */
static bool quoted(piece *found, const char **at, const char *end)
{
    const char *open = memchr(*at, '"', (size_t)(end - *at));
    const char *close = open ? memchr(open + 1, '"', (size_t)(end - open - 1)) : NULL;
    if (!close) return false;
    *found = (piece){open + 1, (size_t)(close - open - 1)};
    *at = close + 1;
    return true;
}

static bool port_number(int32_t *port, const char **at, const char *end)
{
    if (*at >= end || **at != '[') return false;
    *port = 0;
    for (++*at; *at < end && isdigit((unsigned char)**at); ++*at) {
        *port = *port * 10 + (**at - '0');
        if (*port > 100000) return false;
    }
    return *at < end && *(*at)++ == ']';
}

static bool starts(const char *line, const char *end, const char *word)
{
    size_t n = strlen(word);
    return (size_t)(end - line) > n && !memcmp(line, word, n) && isspace((unsigned char)line[n]);
}

static bool node_line(ib_node *node, const char *line, const char *end)
{
    bool adapter = starts(line, end, "Ca");
    if (!adapter && !starts(line, end, "Switch") && !starts(line, end, "Rt")) return false;
    *node = (ib_node){.adapter = adapter, .vertex = -1};
    if (!quoted(&node->id, &line, end)) return false;
    if (!quoted(&node->description, &line, end)) node->description = node->id;
    return true;
}

/* "4xNDR" at the end of a line: lanes times the rate of one, as data. */
static double link_gbps(const char *line, const char *end)
{
    static const struct {
        const char *name;
        double gbps;
    } rates[] = {{"SDR", 0.25},  {"DDR", 0.5},  {"QDR", 1},    {"FDR10", 1.25}, {"FDR", 1.7},
                 {"EDR", 3.125}, {"HDR", 6.25}, {"NDR", 12.5}, {"XDR", 25}};
    const char *word = end;
    while (word > line && isspace((unsigned char)word[-1])) word--;
    const char *stop = word;
    while (word > line && !isspace((unsigned char)word[-1])) word--;
    const char *x = memchr(word, 'x', (size_t)(stop - word));
    if (!x || !isdigit((unsigned char)*word)) return INFINITY;
    long lanes = strtol(word, NULL, 10);
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (same((piece){x + 1, (size_t)(stop - x - 1)}, rates[i].name) && lanes >= 1 && lanes <= 64)
            return (double)lanes * rates[i].gbps;
    return INFINITY;
}

static int32_t find_node(const ib_net *net, piece id)
{
    ib_node key = {.id = id};
    const ib_node *found = bsearch(&key, net->nodes, net->n_nodes, sizeof *net->nodes, by_id);
    return found ? (int32_t)(found - net->nodes) : -1;
}

static int by_ends(const void *a, const void *b)
{
    const ib_cable *x = a, *y = b;
    for (int i = 0; i < 2; i++) {
        if (x->node[i] != y->node[i]) return x->node[i] < y->node[i] ? -1 : 1;
        if (x->port[i] != y->port[i]) return x->port[i] < y->port[i] ? -1 : 1;
    }
    return 0;
}

static ib_cable cable_between(int32_t a, int32_t port_a, int32_t b, int32_t port_b, double gbps)
{
    bool swap = b < a || (b == a && port_b < port_a);
    return swap ? (ib_cable){{b, a}, {port_b, port_a}, gbps} : (ib_cable){{a, b}, {port_a, port_b}, gbps};
}

static size_t without_repeats(ib_cable *cables, size_t n)
{
    size_t kept = 0;
    if (n) qsort(cables, n, sizeof *cables, by_ends);
    for (size_t i = 0; i < n; i++)
        if (!kept || by_ends(&cables[kept - 1], &cables[i])) cables[kept++] = cables[i];
    return kept;
}

static cot_status read_nodes(ib_net *net, const cot_topology_text *file, size_t lines, cot_error *error)
{
    net->nodes = malloc(lines * sizeof *net->nodes);
    net->cables = malloc(lines * sizeof *net->cables);
    if (!net->nodes || !net->cables)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for '%s'", file->path);
    for (const char *line = file->text, *end; *line; line = end + (*end == '\n')) {
        end = line + strcspn(line, "\n");
        net->n_nodes += node_line(&net->nodes[net->n_nodes], line, end);
    }
    qsort(net->nodes, net->n_nodes, sizeof *net->nodes, by_id);
    for (size_t i = 1; i < net->n_nodes; i++)
        if (!by_id(&net->nodes[i - 1], &net->nodes[i]))
            return cot_fail(error, COT_MALFORMED, "'%s': node '%.*s' is listed twice", file->path,
                            (int)net->nodes[i].id.length, net->nodes[i].id.at);
    return COT_OK;
}

static cot_status read_cables(ib_net *net, const cot_topology_text *file, cot_error *error)
{
    int32_t here = -1, number = 0;
    for (const char *line = file->text, *end; *line; line = end + (*end == '\n')) {
        ib_node node;
        piece to;
        int32_t port, far_port;
        end = line + strcspn(line, "\n");
        number++;
        if (node_line(&node, line, end)) here = find_node(net, node.id);
        if (*line != '[') continue;
        const char *at = line, *remark = memchr(line, '#', (size_t)(end - line));
        const char *stop = remark ? remark : end;
        if (here < 0 || !port_number(&port, &at, stop) || !quoted(&to, &at, stop) ||
            !port_number(&far_port, &at, stop))
            return cot_fail(error, COT_MALFORMED, "'%s': line %d is no port of a switch or an adapter",
                            file->path, number);
        int32_t there = find_node(net, to);
        if (there < 0)
            return cot_fail(error, COT_MALFORMED, "'%s': line %d leads to '%.*s', which is not listed",
                            file->path, number, (int)to.length, to.at);
        net->cables[net->n_cables++] = cable_between(here, port, there, far_port, link_gbps(line, end));
    }
    net->n_cables = without_repeats(net->cables, net->n_cables);
    return COT_OK;
}

/* A description "HOST DEVICE"; false of those that an adapter has before somebody names it. */
static bool named(piece description, piece *host, piece *device)
{
    const char *end = description.at + description.length, *last = end;
    while (last > description.at && last[-1] != ' ') last--;
    *device = (piece){last, (size_t)(end - last)};
    while (last > description.at && last[-1] == ' ') last--;
    *host = (piece){description.at, (size_t)(last - description.at)};
    return host->length && !memchr(host->at, ' ', host->length);
}

static int by_description(const void *a, const void *b)
{
    return compare(((const ib_node *)a)->description, ((const ib_node *)b)->description);
}

/* Every host with the names of its adapters, as a file of hosts wants them. */
static void list_hosts(ib_net *net, const cot_topology_options *options)
{
    char *line = NULL;
    size_t length = 0, nameless = 0;
    FILE *text = options->say ? open_memstream(&line, &length) : NULL;
    piece before = {"", 0}, host, device;
    if (!text) return;
    qsort(net->nodes, net->n_nodes, sizeof *net->nodes, by_description); // nobody looks up an id any more
    fputs("hosts found (adapters):", text);
    for (size_t i = 0; i < net->n_nodes; i++) {
        if (!net->nodes[i].adapter) continue;
        if (!named(net->nodes[i].description, &host, &device)) {
            nameless++;
            continue;
        }
        if (compare(host, before))
            fprintf(text, "%s %.*s (", before.length ? ")" : "", (int)host.length, host.at);
        else
            putc(' ', text);
        fprintf(text, "%.*s", (int)device.length, device.at);
        before = host;
    }
    if (before.length) putc(')', text);
    if (nameless) fprintf(text, " and %zu adapters without a host's name", nameless);
    if (!fclose(text)) options->say(options->context, line);
    free(line);
}

/* A GUID, with or without 0x or H-, equals the node's. */
static bool is_guid(piece id, const char *text)
{
    if (id.length > 2 && id.at[1] == '-') id = (piece){id.at + 2, id.length - 2};
    if (!strncasecmp(text, "0x", 2) || !strncasecmp(text, "H-", 2)) text += 2;
    while (*text == '0') text++;
    while (id.length && *id.at == '0') id = (piece){id.at + 1, id.length - 1};
    return id.length && strlen(text) == id.length && !strncasecmp(id.at, text, id.length);
}

static bool names_adapter(const ib_node *node, const cot_host_row *row)
{
    piece host, device;
    return same(node->description, row->adapter) || is_guid(node->id, row->adapter) ||
           (named(node->description, &host, &device) && same(host, row->host) && same(device, row->adapter));
}

static cot_status find_adapter(int32_t *found, const ib_net *net, const cot_host_row *row, const char *path,
                               cot_error *error)
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

/* Vertices: ranks, hosts, switches, and for each port of a seated adapter one, so that nothing is forwarded from one
 * port to another. */
static bool build(cot_topology *graph, ib_net *net, const cot_host_rows *rows, const int32_t *seat,
                  int32_t *host)
{
    bool built = cot_graph_ranks(graph, rows->count);
    for (int32_t r = 0; built && r < rows->count; r++) {
        int32_t before = 0;
        while (strcmp(rows->rows[before].host, rows->rows[r].host)) before++;
        host[r] = before == r ? cot_graph_vertex(graph, "host %s", rows->rows[r].host) : host[before];
        cot_graph_host(graph, r, before);
        net->nodes[seat[r]].seated = true;
        built = cot_graph_cable(graph, cot_graph_tie(r, host[r]));
    }
    for (size_t i = 0; built && i < net->n_nodes; i++)
        if (!net->nodes[i].adapter)
            built =
                (net->nodes[i].vertex = cot_graph_vertex(graph, "%.*s", (int)net->nodes[i].description.length,
                                                         net->nodes[i].description.at)) >= 0;
    for (size_t i = 0; built && i < net->n_cables; i++) {
        const ib_cable *c = &net->cables[i];
        int32_t end[2];
        bool used = true;
        for (int k = 0; k < 2; k++) {
            const ib_node *node = &net->nodes[c->node[k]];
            end[k] = node->vertex;
            used = used && (!node->adapter || node->seated);
        }
        if (!used) continue;
        for (int k = 0; built && k < 2; k++) {
            const ib_node *node = &net->nodes[c->node[k]];
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

static cot_status seat_ranks(cot_topology *graph, ib_net *net, const cot_topology_text *file,
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

cot_status cot_read_topology_ibnet(cot_topology *graph, const cot_topology_text *file, cot_error *error)
{
    ib_net net = {0};
    size_t lines = 1;
    for (const char *at = file->text; (at = strchr(at, '\n')); at++) lines++;
    cot_status status = read_nodes(&net, file, lines, error);
    if (status == COT_OK) status = read_cables(&net, file, error);
    if (status == COT_OK && !file->options->hosts) {
        list_hosts(&net, file->options);
        status = cot_fail(
            error, COT_INVALID_ARGUMENT,
            "'%s' does not say which adapter is which rank: give lines host,gpu,adapter (--hosts FILE)",
            file->path);
    }
    if (status == COT_OK) status = seat_ranks(graph, &net, file, error);
    free(net.nodes);
    free(net.cables);
    return status;
}
