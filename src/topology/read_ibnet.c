/* `ibnetdiscover` output: switches and adapters ("Ca"), each with the lines of its ports:
 *
 *     Switch  65 "S-2c5e"              # "leaf 4" enhanced port 0 lid 73 lmc 0
 *     [1]     "H-e09d"[1](e09d)        # "host7 mlx5_5" lid 647 4xNDR
 *     Ca      1 "H-e09d"               # "host7 mlx5_5"
 *     [1](e09d)  "S-2c5e"[1]           # lid 647 lmc 0 "leaf 4" lid 73 4xNDR */
#include "topology/ibnet.h"

#include "base/error.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The next "quoted" piece of [*at, end), *at moved behind it; up to the last quote there where it is a description, which may
 * hold quotes. */
static bool quoted(cot_ibnet_text *found, const char **at, const char *end, bool last)
{
    const char *open = memchr(*at, '"', (size_t)(end - *at));
    if (!open) return false;
    open++;
    const size_t left = (size_t)(end - open);
    const char *close = last ? memrchr(open, '"', left) : memchr(open, '"', left);
    if (!close) return false;
    *found = (cot_ibnet_text){open, (size_t)(close - open)};
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

static bool node_line(cot_ibnet_node *node, const char *line, const char *end)
{
    bool adapter = starts(line, end, "Ca");
    if (!adapter && !starts(line, end, "Switch") && !starts(line, end, "Rt")) return false;
    *node = (cot_ibnet_node){.adapter = adapter, .rank = -1, .vertex = -1};
    if (!quoted(&node->id, &line, end, false)) return false;
    if (!quoted(&node->description, &line, end, true)) node->description = node->id;
    return true;
}

/* "4xNDR" at the end of a line. */
static double link_gbps(const char *line, const char *end)
{
    while (end > line && isspace((unsigned char)end[-1])) end--;
    const char *word = end;
    while (word > line && !isspace((unsigned char)word[-1])) word--;
    const char *x = memchr(word, 'x', (size_t)(end - word));
    return x ? cot_ibnet_gbps(strtol(word, NULL, 10), (cot_ibnet_text){x + 1, (size_t)(end - x - 1)})
             : INFINITY;
}

static cot_status read_nodes(cot_ibnet *net, const cot_topology_text *file, cot_error *error)
{
    for (const char *line = file->text, *end; *line; line = end + (*end == '\n')) {
        end = line + strcspn(line, "\n");
        net->n_nodes += node_line(&net->nodes[net->n_nodes], line, end);
    }
    cot_ibnet_sort_nodes(net);
    for (size_t i = 1; i < net->n_nodes; i++)
        if (!cot_ibnet_compare(net->nodes[i - 1].id, net->nodes[i].id))
            return cot_fail(error, COT_MALFORMED, "'%s': node '%.*s' is listed twice", file->path,
                            (int)net->nodes[i].id.length, net->nodes[i].id.at);
    return COT_OK;
}

static cot_status read_cables(cot_ibnet *net, const cot_topology_text *file, cot_error *error)
{
    int32_t here = -1, number = 0;
    for (const char *line = file->text, *end; *line; line = end + (*end == '\n')) {
        cot_ibnet_node node;
        cot_ibnet_text to;
        int32_t port, far_port;
        end = line + strcspn(line, "\n");
        number++;
        if (node_line(&node, line, end)) here = cot_ibnet_find(net, node.id);
        if (*line != '[') continue;
        const char *at = line, *remark = memchr(line, '#', (size_t)(end - line));
        const char *stop = remark ? remark : end;
        if (here < 0 || !port_number(&port, &at, stop) || !quoted(&to, &at, stop, false) ||
            !port_number(&far_port, &at, stop))
            return cot_fail(error, COT_MALFORMED, "'%s': line %d is no port of a switch or an adapter",
                            file->path, number);
        int32_t there = cot_ibnet_find(net, to);
        if (there < 0)
            return cot_fail(error, COT_MALFORMED, "'%s': line %d leads to '%.*s', which is not listed",
                            file->path, number, (int)to.length, to.at);
        net->cables[net->n_cables++] =
            cot_ibnet_cable_between(here, port, there, far_port, link_gbps(line, end));
    }
    cot_ibnet_sort_cables(net);
    return COT_OK;
}

cot_status cot_ibnet_read_nodes(cot_ibnet *net, const cot_topology_text *file, cot_error *error)
{
    cot_status status = read_nodes(net, file, error);
    return status == COT_OK ? read_cables(net, file, error) : status;
}
