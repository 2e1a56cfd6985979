#include "topology/ibnet.h"

#include "base/error.h"
#include "base/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cot_ibnet_compare(cot_ibnet_text a, cot_ibnet_text b)
{
    int order = memcmp(a.at, b.at, a.length < b.length ? a.length : b.length);
    return order ? order : (a.length > b.length) - (a.length < b.length);
}

static int by_id(const void *a, const void *b)
{
    return cot_ibnet_compare(((const cot_ibnet_node *)a)->id, ((const cot_ibnet_node *)b)->id);
}

bool cot_ibnet_same(cot_ibnet_text a, const char *text)
{
    return a.length == strlen(text) && !memcmp(a.at, text, a.length);
}

double cot_ibnet_gbps(int64_t lanes, cot_ibnet_text rate)
{
    static const struct {
        const char *name;
        double gbps;
    } rates[] = {{"SDR", 0.25},  {"DDR", 0.5},  {"QDR", 1},    {"FDR10", 1.25}, {"FDR", 1.7},
                 {"EDR", 3.125}, {"HDR", 6.25}, {"NDR", 12.5}, {"XDR", 25}};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (cot_ibnet_same(rate, rates[i].name) && lanes >= 1 && lanes <= 64)
            return (double)lanes * rates[i].gbps;
    return INFINITY;
}

void cot_ibnet_sort_nodes(cot_ibnet *net)
{
    if (net->n_nodes) qsort(net->nodes, net->n_nodes, sizeof *net->nodes, by_id);
}

int32_t cot_ibnet_find(const cot_ibnet *net, cot_ibnet_text id)
{
    cot_ibnet_node key = {.id = id};
    const cot_ibnet_node *found = bsearch(&key, net->nodes, net->n_nodes, sizeof *net->nodes, by_id);
    return found ? (int32_t)(found - net->nodes) : -1;
}

static int by_ends(const void *a, const void *b)
{
    const cot_ibnet_cable *x = a, *y = b;
    for (int i = 0; i < 2; i++) {
        if (x->node[i] != y->node[i]) return x->node[i] < y->node[i] ? -1 : 1;
        if (x->port[i] != y->port[i]) return x->port[i] < y->port[i] ? -1 : 1;
    }
    return 0;
}

cot_ibnet_cable cot_ibnet_cable_between(int32_t a, int32_t port_a, int32_t b, int32_t port_b, double gbps)
{
    bool swap = b < a || (b == a && port_b < port_a);
    return swap ? (cot_ibnet_cable){{b, a}, {port_b, port_a}, gbps}
                : (cot_ibnet_cable){{a, b}, {port_a, port_b}, gbps};
}

void cot_ibnet_sort_cables(cot_ibnet *net)
{
    cot_ibnet_cable *cables = net->cables;
    size_t kept = 0;
    if (net->n_cables) qsort(cables, net->n_cables, sizeof *cables, by_ends);
    for (size_t i = 0; i < net->n_cables; i++)
        if (!kept || by_ends(&cables[kept - 1], &cables[i])) cables[kept++] = cables[i];
    net->n_cables = kept;
}

bool cot_ibnet_named(cot_ibnet_text description, cot_ibnet_text *host, cot_ibnet_text *device)
{
    const char *end = description.at + description.length, *last = end;
    while (last > description.at && last[-1] != ' ') last--;
    *device = (cot_ibnet_text){last, (size_t)(end - last)};
    while (last > description.at && last[-1] == ' ') last--;
    *host = (cot_ibnet_text){description.at, (size_t)(last - description.at)};
    return host->length && !memchr(host->at, ' ', host->length);
}

static cot_status read_net(cot_ibnet *net, const cot_topology_text *file, cot_error *error)
{
    size_t lines = 1;
    for (const char *at = file->text; (at = strchr(at, '\n')); at++) lines++;
    *net = (cot_ibnet){.nodes = malloc(2 * lines * sizeof *net->nodes),
                       .cables = malloc(lines * sizeof *net->cables)};
    if (!net->nodes || !net->cables)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for '%s'", file->path);
    return cot_ibnet_lists_ports(file->text) ? cot_ibnet_read_ports(net, file, error)
                                             : cot_ibnet_read_nodes(net, file, error);
}

cot_status cot_read_topology_ibnet(cot_topology *graph, const cot_topology_text *file, cot_error *error)
{
    cot_ibnet net;
    cot_status status = read_net(&net, file, error);
    if (status == COT_OK && !file->options->hosts)
        status = cot_fail(error, COT_INVALID_ARGUMENT,
                          "'%s' does not say which adapter is which rank: give lines host,gpu,adapter "
                          "(--hosts FILE; topology show with --template FILE makes some to edit)",
                          file->path);
    if (status == COT_OK) status = cot_ibnet_seat_ranks(graph, &net, file, error);
    free(net.nodes);
    free(net.cables);
    return status;
}

/* ---- the file of hosts to begin with ---- */

struct row {
    cot_ibnet_text host, device;
};

/* As people count: dgx-2 before dgx-10. */
static int by_host(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    char hosts[2][256];
    snprintf(hosts[0], sizeof *hosts, "%.*s %.*s", (int)x->host.length, x->host.at, (int)x->device.length,
             x->device.at);
    snprintf(hosts[1], sizeof *hosts, "%.*s %.*s", (int)y->host.length, y->host.at, (int)y->device.length,
             y->device.at);
    return strverscmp(hosts[0], hosts[1]);
}

static cot_status write_template(char **text, const cot_ibnet *net, const char *path, cot_error *error)
{
    size_t length, count = 0;
    struct row *rows = malloc(net->n_nodes * sizeof *rows + 1);
    FILE *out = rows ? open_memstream(text, &length) : NULL;
    for (size_t i = 0; rows && i < net->n_nodes; i++)
        count += net->nodes[i].adapter &&
                 cot_ibnet_named(net->nodes[i].description, &rows[count].host, &rows[count].device);
    if (out) {
        int32_t gpu = 0;
        if (count) qsort(rows, count, sizeof *rows, by_host);
        fputs("host,gpu,adapter\n", out);
        for (size_t i = 0; i < count; i++) {
            gpu = i && !cot_ibnet_compare(rows[i - 1].host, rows[i].host) ? gpu + 1 : 0;
            fprintf(out, "%.*s,%d,%.*s\n", (int)rows[i].host.length, rows[i].host.at, gpu,
                    (int)rows[i].device.length, rows[i].device.at);
        }
    }
    free(rows);
    const bool written = out && !fclose(out);
    if (out && (!written || !count)) {
        free(*text);
        *text = NULL;
    }
    if (!written) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the hosts of '%s'", path);
    return count ? COT_OK
                 : cot_fail(error, COT_MALFORMED, "'%s': no adapter has a name of a host and a device", path);
}

cot_status cot_topology_host_template(char **text, const char *path, cot_error *error)
{
    char *listing;
    cot_topology_text file = {.path = path};
    *text = NULL;
    cot_status status = cot_file_read(&listing, &file.bytes, path, COT_TOPOLOGY_LARGEST_FILE, error);
    if (status != COT_OK) return status;
    file.text = listing;
    cot_ibnet net = {0};
    if (cot_ibnet_is(listing))
        status = read_net(&net, &file, error);
    else
        status =
            cot_fail(error, COT_UNSUPPORTED, "'%s' is no ibnetdiscover output: it names no adapters", path);
    if (status == COT_OK) status = write_template(text, &net, path, error);
    free(net.nodes);
    free(net.cables);
    free(listing);
    return status;
}
