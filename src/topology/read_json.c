/* JSON: a matrix of distances or bandwidths, pairs of adapters that Mooncake measured, a graph of nodes and edges. */
#include "topology/reader.h"

#include "base/error.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

/* A number that is finite and not negative. */
static bool amount(const json_t *value, double *number)
{
    *number = json_number_value(value);
    return json_is_number(value) && isfinite(*number) && *number >= 0;
}

static cot_status square(const json_t *matrix, const char *what, size_t n, const cot_topology_text *file,
                         cot_error *error)
{
    if (!json_is_array(matrix) || !n || n > COT_TOPOLOGY_MAX_RANKS || json_array_size(matrix) != n)
        return cot_fail(error, COT_MALFORMED, "'%s': %s has %zu rows, expected %zu (1 to %d)", file->path,
                        what, json_array_size(matrix), n, COT_TOPOLOGY_MAX_RANKS);
    for (size_t i = 0; i < n; i++) {
        const json_t *row = json_array_get(matrix, i);
        double x;
        if (json_array_size(row) != n)
            return cot_fail(error, COT_MALFORMED, "'%s': row %zu of %s has %zu numbers, expected %zu",
                            file->path, i, what, json_array_size(row), n);
        for (size_t k = 0; k < n; k++)
            if (!amount(json_array_get(row, k), &x) && !(i == k && json_is_null(json_array_get(row, k))))
                return cot_fail(error, COT_MALFORMED,
                                "'%s': row %zu, column %zu of %s is no number of 0 or more", file->path, i, k,
                                what);
    }
    return COT_OK;
}

static double cell(const json_t *matrix, size_t i, size_t k)
{
    return json_number_value(json_array_get(json_array_get(matrix, i), k));
}

static cot_status distances(cot_topology *graph, const json_t *matrix, const cot_topology_text *file,
                            cot_error *error)
{
    size_t n = json_array_size(matrix);
    cot_status status = square(matrix, "the matrix of distances", n, file, error);
    if (status != COT_OK) return status;
    bool built = cot_graph_ranks(graph, (int32_t)n);
    for (size_t i = 0; built && i < n; i++) {
        if (cell(matrix, i, i) != 0)
            return cot_fail(error, COT_MALFORMED, "'%s': rank %zu is %g away from itself, expected 0",
                            file->path, i, cell(matrix, i, i));
        for (size_t k = 0; built && k < n; k++)
            if (k != i)
                built = cot_graph_link(
                    graph, (cot_topology_link){(int32_t)i, (int32_t)k, cell(matrix, i, k), 0, INFINITY});
    }
    return cot_graph_finish(graph, built, error);
}

/* {"bandwidth": [S][S] GB/s, "latency": [S][S] us}; no bandwidth, no link. */
static cot_status bandwidths(cot_topology *graph, const json_t *matrix, const json_t *latency,
                             const cot_topology_text *file, cot_error *error)
{
    size_t n = json_array_size(matrix);
    cot_status status = square(matrix, "the matrix of bandwidths", n, file, error);
    if (status == COT_OK && latency) status = square(latency, "the matrix of latencies", n, file, error);
    if (status != COT_OK) return status;
    bool built = cot_graph_ranks(graph, (int32_t)n);
    graph->has_costs = graph->measured = true;
    for (size_t i = 0; built && i < n; i++)
        for (size_t k = 0; built && k < n; k++)
            if (k != i && cell(matrix, i, k) > 0)
                built = cot_graph_link(graph, (cot_topology_link){(int32_t)i, (int32_t)k, 1,
                                                                  latency ? cell(latency, i, k) : 0,
                                                                  cell(matrix, i, k)});
    return cot_graph_finish(graph, built, error);
}

/* Number of the rank that is adapter `device` of `host`, a new one if need be; -1 when out of memory. */
static json_int_t adapter(json_t *ranks, const char *host, const char *device)
{
    json_t *devices = json_object_get(ranks, host);
    if (!devices) {
        devices = json_object();
        if (json_object_set_new(ranks, host, devices)) return -1;
    }
    if (!json_object_get(devices, device) &&
        json_object_set_new(devices, device, json_integer((json_int_t)json_object_size(devices))))
        return -1;
    return json_integer_value(json_object_get(devices, device));
}

/* First pass numbers the adapters, host by host as they appear; second one makes the links. What was measured one way
 * alone stands for both. */
static cot_status mooncake_pass(cot_topology *graph, json_t *ranks, json_t *first, const json_t *pairs,
                                bool link, const cot_topology_text *file, cot_error *error)
{
    for (size_t p = 0; p < json_array_size(pairs); p++) {
        const json_t *pair = json_array_get(pairs, p), *endpoints = json_object_get(pair, "endpoints");
        const char *from = json_string_value(json_object_get(pair, "src_host"));
        const char *to = json_string_value(json_object_get(pair, "dst_host"));
        if (!from || !to || !json_is_array(endpoints))
            return cot_fail(error, COT_MALFORMED, "'%s': entry %zu has no src_host, dst_host and endpoints",
                            file->path, p);
        for (size_t i = 0; i < json_array_size(endpoints); i++) {
            const json_t *e = json_array_get(endpoints, i);
            const char *a = json_string_value(json_object_get(e, "src_dev"));
            const char *b = json_string_value(json_object_get(e, "dst_dev"));
            double mbps, latency;
            if (!a || !b || !amount(json_object_get(e, "bandwidth"), &mbps) || mbps == 0 ||
                !amount(json_object_get(e, "latency"), &latency))
                return cot_fail(
                    error, COT_MALFORMED,
                    "'%s': endpoint %zu of entry %zu lacks src_dev, dst_dev, bandwidth or latency",
                    file->path, i, p);
            json_int_t x = adapter(ranks, from, a), y = adapter(ranks, to, b);
            if (x < 0 || y < 0)
                return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for '%s'", file->path);
            if (!link) continue;
            x += json_integer_value(json_object_get(first, from));
            y += json_integer_value(json_object_get(first, to));
            cot_topology_link l = {(int32_t)x, (int32_t)y, 1, latency, mbps * 1e-3};
            if (!cot_graph_cable(graph, l))
                return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for '%s'", file->path);
        }
    }
    return COT_OK;
}

static cot_status mooncake(cot_topology *graph, const json_t *pairs, const cot_topology_text *file,
                           cot_error *error)
{
    json_t *ranks = json_object(), *first = json_object();
    cot_status status = mooncake_pass(graph, ranks, first, pairs, false, file, error);
    size_t n = 0;
    const char *host;
    json_t *devices;
    bool built = true;
    json_object_foreach(ranks, host, devices)
    {
        built = !json_object_set_new(first, host, json_integer((json_int_t)n)) && built;
        n += json_object_size(devices);
    }
    if (status == COT_OK && (!n || n > COT_TOPOLOGY_MAX_RANKS))
        status = cot_fail(error, COT_MALFORMED, "'%s' holds %zu adapters, expected 1 to %d", file->path, n,
                          COT_TOPOLOGY_MAX_RANKS);
    if (status == COT_OK) built = built && cot_graph_ranks(graph, (int32_t)n);
    graph->has_costs = graph->measured = true;
    int32_t rank = 0, number = 0;
    if (status == COT_OK && built) json_object_foreach(ranks, host, devices)
        {
            int32_t vertex = cot_graph_vertex(graph, "%s", host);
            for (size_t i = 0; i < json_object_size(devices); i++, rank++) {
                cot_graph_host(graph, rank, number);
                built = built && cot_graph_cable(graph, cot_graph_tie(rank, vertex));
            }
            number++;
        }
    if (status == COT_OK && built) status = mooncake_pass(graph, ranks, first, pairs, true, file, error);
    json_decref(ranks);
    json_decref(first);
    return status == COT_OK ? cot_graph_finish(graph, built, error) : status;
}

static const char *label_of(const json_t *node, char text[32])
{
    const json_t *id = json_object_get(node, "id");
    const char *name = json_string_value(json_object_get(node, "name"));
    if (json_is_integer(id)) snprintf(text, 32, "%lld", (long long)json_integer_value(id));
    return name ? name : json_is_string(id) ? json_string_value(id) : text;
}

/* The key of a node's id among all ids. */
static const char *id_key(const json_t *id, char text[32])
{
    if (json_is_integer(id)) snprintf(text, 32, "#%lld", (long long)json_integer_value(id));
    return json_is_integer(id) ? text : json_string_value(id);
}

/* Ranks a node holds: as its "ranks" says; where no node says, one each. */
static cot_status count_ranks(const json_t *nodes, bool *said, size_t *n, const cot_topology_text *file,
                              cot_error *error)
{
    *said = false;
    *n = 0;
    for (size_t i = 0; i < json_array_size(nodes); i++) {
        const json_t *ranks = json_object_get(json_array_get(nodes, i), "ranks");
        if (!ranks) continue;
        if (!json_is_integer(ranks) || json_integer_value(ranks) < 0 ||
            json_integer_value(ranks) > COT_TOPOLOGY_MAX_RANKS)
            return cot_fail(error, COT_MALFORMED, "'%s': \"ranks\" of node %zu is no number from 0 to %d",
                            file->path, i, COT_TOPOLOGY_MAX_RANKS);
        *said = true;
        *n += (size_t)json_integer_value(ranks);
    }
    if (!*said) *n = json_array_size(nodes);
    if (!*n || *n > COT_TOPOLOGY_MAX_RANKS)
        return cot_fail(error, COT_MALFORMED, "'%s' holds %zu ranks, expected 1 to %d", file->path, *n,
                        COT_TOPOLOGY_MAX_RANKS);
    return COT_OK;
}

static cot_status read_nodes(cot_topology *graph, json_t *vertices, const json_t *nodes,
                             const cot_topology_text *file, cot_error *error)
{
    bool said;
    size_t n;
    int32_t rank = 0;
    char text[32] = "";
    cot_status status = count_ranks(nodes, &said, &n, file, error);
    if (status != COT_OK) return status;
    if (!cot_graph_ranks(graph, (int32_t)n)) return cot_graph_finish(graph, false, error);
    for (size_t i = 0; i < json_array_size(nodes); i++) {
        const json_t *node = json_array_get(nodes, i), *id = json_object_get(node, "id");
        const char *key = id_key(id, text);
        if (!key || json_object_get(vertices, key))
            return cot_fail(error, COT_MALFORMED, "'%s': node %zu has %s id", file->path, i,
                            key ? "another node's" : "no");
        char shown[32] = "";
        int32_t v = cot_graph_vertex(graph, "%s", label_of(node, shown));
        if (v < 0 || json_object_set_new(vertices, key, json_integer(v)))
            return cot_graph_finish(graph, false, error);
        int32_t here = said ? (int32_t)json_integer_value(json_object_get(node, "ranks")) : 1;
        for (; here > 0; here--, rank++) {
            cot_graph_host(graph, rank, (int32_t)i);
            if (!cot_graph_cable(graph, cot_graph_tie(rank, v))) return cot_graph_finish(graph, false, error);
        }
    }
    return COT_OK;
}

/* The first of `keys` (NULL ends) that an edge has, or `initial`. */
static bool edge_number(const json_t *edge, const char *const *keys, double initial, double *value,
                        bool *found)
{
    *value = initial;
    for (; *keys; keys++)
        if (json_object_get(edge, *keys)) {
            *found = true;
            return amount(json_object_get(edge, *keys), value);
        }
    return true;
}

static cot_status read_edges(cot_topology *graph, const json_t *vertices, const json_t *edges, bool directed,
                             const cot_topology_text *file, cot_error *error)
{
    static const char *const hops[] = {"hops", "weight", NULL},
                             *const latency[] = {"latency_us", "latency", NULL},
                             *const bandwidth[] = {"bandwidth_gbps", "bandwidth", NULL},
                             *const km[] = {"dist", NULL};
    for (size_t i = 0; i < json_array_size(edges); i++) {
        const json_t *edge = json_array_get(edges, i);
        char a[32], b[32];
        const char *from = id_key(json_object_get(edge, "source"), a),
                   *to = id_key(json_object_get(edge, "target"), b);
        const json_t *x = from ? json_object_get(vertices, from) : NULL,
                     *y = to ? json_object_get(vertices, to) : NULL;
        if (!x || !y)
            return cot_fail(error, COT_MALFORMED, "'%s': edge %zu has a %s that is no node's id", file->path,
                            i, x ? "target" : "source");
        cot_topology_link link = {(int32_t)json_integer_value(x), (int32_t)json_integer_value(y), 1, 0,
                                  INFINITY};
        double length = 0;
        bool said = false;
        if (!edge_number(edge, km, 0, &length, &graph->has_costs) ||
            !edge_number(edge, hops, 1, &link.hops, &said) ||
            !edge_number(edge, latency, 5 * length, &link.latency_us,
                         &graph->has_costs) || // light takes 5 us a km
            !edge_number(edge, bandwidth, INFINITY, &link.bandwidth_gbps, &graph->has_costs) ||
            link.bandwidth_gbps == 0)
            return cot_fail(error, COT_MALFORMED, "'%s': edge %zu has a negative or odd number", file->path,
                            i);
        if (!(directed ? cot_graph_link(graph, link) : cot_graph_cable(graph, link)))
            return cot_graph_finish(graph, false, error);
    }
    return cot_graph_finish(graph, true, error);
}

static cot_status read_value(cot_topology *graph, const json_t *root, const cot_topology_text *file,
                             cot_error *error)
{
    const json_t *nodes = json_object_get(root, "nodes"), *edges = json_object_get(root, "edges");
    if (!edges) edges = json_object_get(root, "links");
    if (json_is_array(nodes) && json_is_array(edges)) {
        json_t *vertices = json_object();
        cot_status status = read_nodes(graph, vertices, nodes, file, error);
        if (status == COT_OK)
            status = read_edges(graph, vertices, edges, json_is_true(json_object_get(root, "directed")), file,
                                error);
        json_decref(vertices);
        return status;
    }
    static const char *const names[] = {
        "rank_cost_matrix", "distances", "distance", "costs", "cost", "matrix"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (json_is_array(json_object_get(root, names[i])))
            return distances(graph, json_object_get(root, names[i]), file, error);
    if (json_is_array(json_object_get(root, "bandwidth")))
        return bandwidths(graph, json_object_get(root, "bandwidth"), json_object_get(root, "latency"), file,
                          error);
    if (json_is_array(json_array_get(root, 0))) return distances(graph, root, file, error);
    if (json_object_get(json_array_get(root, 0), "endpoints")) return mooncake(graph, root, file, error);
    return cot_fail(
        error, COT_UNSUPPORTED,
        "'%s' holds no topology: expected a square matrix (alone, or under \"rank_cost_matrix\" or "
        "\"bandwidth\"), \"nodes\" and \"edges\", or measured \"endpoints\"",
        file->path);
}

cot_status cot_read_topology_json(cot_topology *graph, const cot_topology_text *file, cot_error *error)
{
    json_error_t where;
    json_t *root = json_loadb(file->text, file->bytes, JSON_REJECT_DUPLICATES, &where);
    if (!root)
        return cot_fail(error, COT_MALFORMED, "'%s' is no JSON: line %d: %s", file->path, where.line,
                        where.text);
    cot_status status = read_value(graph, root, file, error);
    json_decref(root);
    return status;
}
