/* Output of `ibnetdiscover -p`: a line a port that is connected, from each end, and one without its right half else.
 *
 *     SW    73  1 0x2c5eab0300b87b40 4x NDR - CA   647  1 0xe09d7303007a4bd8 ( 'leaf 4' - 'host7 mlx5_5' )
 *     CA   647  1 0xe09d7303007a4bd8 4x NDR - SW    73  1 0x2c5eab0300b87b40 ( 'host7 mlx5_5' - 'leaf 4' )
 *     SW    73  2 0x2c5eab0300b87b40 4x SDR                                    'leaf 4'
 *
 * The number after the kind is the LID, the next one the port's. The GUID is a switch's own, and an adapter's port's: an
 * adapter with several ports is as many adapters of one name here. */
#include "topology/ibnet.h"

#include "base/error.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST_LINE = 1024 };

static const char kinds[][3] = {"SW", "CA", "RT"};

static bool is_kind(const char *text)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!memcmp(text, kinds[i], 2)) return true;
    return false;
}

struct port {
    char kind[3], guid[19];
    int number, at; // at: where the GUID begins
};

struct line {
    struct port near, far;
    int width_lanes;
    cot_ibnet_text rate, names[2];
    bool connected;
};

/* The texts of `found` are pieces of `text`, whose copy `copy` ends where the line does. */
static bool read_line(struct line *found, const char *copy, const char *text)
{
    int at = 0, rate = 0, rate_end = 0, names = 0;
    char width[8], *x; // "4x", or "??" where nobody knows
    *found = (struct line){0};
    struct port *near = &found->near, *far = &found->far;
    if (sscanf(copy, "%2s %*d %d %n%18s %7s %n%*s%n", near->kind, &near->number, &near->at, near->guid, width,
               &rate, &rate_end) < 4 ||
        !is_kind(near->kind) || !rate_end)
        return false;
    const long lanes = strtol(width, &x, 10);
    found->width_lanes = *x == 'x' && lanes <= INT_MAX ? (int)lanes : 0;
    found->rate = (cot_ibnet_text){text + rate, (size_t)(rate_end - rate)};
    at = rate_end;
    while (copy[at] == ' ') at++;
    if (copy[at] != '-') return copy[at] == '\'';
    if (sscanf(copy + at, "- %2s %*d %d %n%18s ( '%n", far->kind, &far->number, &far->at, far->guid, &names) <
            3 ||
        !is_kind(far->kind) || !names)
        return false;
    far->at += at;
    const char *left = copy + at + names, *middle = strstr(left, "' - '"), *close = strrchr(left, '\'');
    if (!middle || close < middle + 5) return false;
    found->names[0] = (cot_ibnet_text){text + (left - copy), (size_t)(middle - left)};
    found->names[1] = (cot_ibnet_text){text + (middle + 5 - copy), (size_t)(close - middle - 5)};
    found->connected = true;
    return near->number >= 0 && far->number >= 0;
}

static cot_ibnet_text id_of(const struct port *port, const char *text)
{
    return (cot_ibnet_text){text + port->at, strlen(port->guid)};
}

static cot_ibnet_node node_of(const struct port *port, const char *text, cot_ibnet_text name)
{
    return (cot_ibnet_node){.id = id_of(port, text),
                            .description = name,
                            .adapter = !strcmp(port->kind, "CA"),
                            .rank = -1,
                            .vertex = -1};
}

/* Calls back for every line of a port, in the order of the file. */
static cot_status each_line(cot_ibnet *net, const cot_topology_text *file,
                            void (*use)(cot_ibnet *net, const struct line *line, const char *text),
                            cot_error *error)
{
    int32_t number = 0;
    for (const char *line = file->text, *end; *line; line = end + (*end == '\n')) {
        char copy[LONGEST_LINE];
        struct line found;
        end = line + strcspn(line, "\n");
        number++;
        const size_t length = (size_t)(end - line);
        if (!length || *line == '#' || strspn(line, " \t\r") >= length) continue;
        if (length < sizeof copy) {
            memcpy(copy, line, length);
            copy[length] = 0;
        }
        if (length >= sizeof copy || !read_line(&found, copy, line))
            return cot_fail(error, COT_MALFORMED, "'%s': line %d is no port of a switch or an adapter",
                            file->path, number);
        if (found.connected) use(net, &found, line);
    }
    return COT_OK;
}

static void add_nodes(cot_ibnet *net, const struct line *line, const char *text)
{
    net->nodes[net->n_nodes++] = node_of(&line->near, text, line->names[0]);
    net->nodes[net->n_nodes++] = node_of(&line->far, text, line->names[1]);
}

static void add_cable(cot_ibnet *net, const struct line *line, const char *text)
{
    net->cables[net->n_cables++] =
        cot_ibnet_cable_between(cot_ibnet_find(net, id_of(&line->near, text)), line->near.number,
                                cot_ibnet_find(net, id_of(&line->far, text)), line->far.number,
                                cot_ibnet_gbps(line->width_lanes, line->rate));
}

cot_status cot_ibnet_read_ports(cot_ibnet *net, const cot_topology_text *file, cot_error *error)
{
    cot_status status = each_line(net, file, add_nodes, error);
    if (status != COT_OK) return status;
    size_t kept = 0;
    cot_ibnet_sort_nodes(net);
    for (size_t i = 0; i < net->n_nodes; i++)
        if (!kept || cot_ibnet_compare(net->nodes[kept - 1].id, net->nodes[i].id))
            net->nodes[kept++] = net->nodes[i];
    net->n_nodes = kept;
    status = each_line(net, file, add_cable, error);
    cot_ibnet_sort_cables(net);
    return status;
}

bool cot_ibnet_lists_ports(const char *text)
{
    char kind[3], x, copy[64];
    while (*text == '#' || *text == '\n') {
        text += strcspn(text, "\n");
        text += *text == '\n';
    }
    snprintf(copy, sizeof copy, "%s", text);
    return sscanf(copy, "%2s %*d %*d 0%c", kind, &x) == 2 && x == 'x' && is_kind(kind);
}
