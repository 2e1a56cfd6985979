#include "topology/ibnet.h"

#include "base/error.h"
#include "base/file.h"

#include <ctype.h>
#include <inttypes.h>
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
    return swap ? (cot_ibnet_cable){{b, a}, {port_b, port_a}, gbps, false}
                : (cot_ibnet_cable){{a, b}, {port_a, port_b}, gbps, false};
}

void cot_ibnet_sort_cables(cot_ibnet *net)
{
    cot_ibnet_cable *cables = net->cables;
    size_t kept = 0;
    if (net->n_cables) qsort(cables, net->n_cables, sizeof *cables, by_ends);
    for (size_t i = 0; i < net->n_cables; i++)
        if (!kept || by_ends(&cables[kept - 1], &cables[i]))
            cables[kept++] = cables[i];
        else
            cables[kept - 1].both = true;
    net->n_cables = kept;
}

static cot_status cut_off(const char *path, const char *what, cot_ibnet_text name, cot_error *error)
{
    return cot_fail(error, COT_MALFORMED,
                    "'%s' seems to be cut off: %s '%.*s'; expected all that ibnetdiscover prints", path, what,
                    (int)name.length, name.at);
}

cot_status cot_ibnet_check_whole(const cot_ibnet *net, const char *path, cot_error *error)
{
    bool *cabled = calloc(net->n_nodes + 1, sizeof *cabled);
    cot_status status = cabled ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for '%s'", path);
    for (size_t i = 0; status == COT_OK && i < net->n_cables; i++) {
        const cot_ibnet_cable *c = &net->cables[i];
        for (int k = 0; k < 2; k++) cabled[c->node[k]] = true;
        if (!c->both && (c->node[0] != c->node[1] || c->port[0] != c->port[1]))
            status = cut_off(path, "a cable is listed at one end alone, that of",
                             net->nodes[c->node[0]].description, error);
    }
    for (size_t i = 0; status == COT_OK && i < net->n_nodes; i++)
        if (!cabled[i]) status = cut_off(path, "no cable is listed of", net->nodes[i].description, error);
    free(cabled);
    return status;
}

bool cot_ibnet_lists_nodes(const char *text)
{
    static const char *const kinds[] = {"Ca", "Switch", "Router", "Rt"};
    text += strspn(text, " \t\r\n");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const size_t n = strlen(kinds[i]);
        if (strncasecmp(text, kinds[i], n)) continue;
        const char *at = text + n + strspn(text + n, " \t");
        if (*at == ':') return true;
    }
    return false;
}

cot_status cot_ibnet_refuse_nodes(const char *path, cot_error *error)
{
    return cot_fail(error, COT_UNSUPPORTED,
                    "'%s' lists nodes without their cables, as ibnetdiscover -l, ibhosts and ibswitches do: "
                    "expected what ibnetdiscover prints without -l",
                    path);
}

bool cot_ibnet_named(cot_ibnet_text description, cot_ibnet_text *host, cot_ibnet_text *device)
{
    const char *end = description.at + description.length, *last = end;
    while (last > description.at && last[-1] != ' ') last--;
    *device = (cot_ibnet_text){last, (size_t)(end - last)};
    while (last > description.at && last[-1] == ' ') last--;
    *host = (cot_ibnet_text){description.at, (size_t)(last - description.at)};
    for (size_t i = 0; i < description.length; i++)
        if (strchr("\",'\t", description.at[i])) return false;
    return host->length && device->length && !memchr(host->at, ' ', host->length);
}

static cot_status read_net(cot_ibnet *net, const cot_topology_text *file, cot_error *error)
{
    size_t lines = 1;
    for (const char *at = file->text; (at = strchr(at, '\n')); at++) lines++;
    *net = (cot_ibnet){.nodes = malloc(2 * lines * sizeof *net->nodes),
                       .cables = malloc(lines * sizeof *net->cables)};
    if (!net->nodes || !net->cables)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for '%s'", file->path);
    cot_status status = cot_ibnet_lists_ports(file->text) ? cot_ibnet_read_ports(net, file, error)
                                                          : cot_ibnet_read_nodes(net, file, error);
    return status == COT_OK ? cot_ibnet_check_whole(net, file->path, error) : status;
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

/* An adapter's line; one whose description is none of a host and a device stands for a host of its own. */
struct row {
    cot_ibnet_text host, device; // of length 0 where the description does not say
    cot_ibnet_text guid;
    bool shared; // `device` is the whole name of an adapter, too, or may be a GUID
};

static int by_text(const void *a, const void *b)
{
    return cot_ibnet_compare(*(const cot_ibnet_text *)a, *(const cot_ibnet_text *)b);
}

/* Whether a device may be taken for a GUID: digits, perhaps with what marks them as one. */
static bool may_be_guid(cot_ibnet_text device)
{
    const bool marked = device.length > 2 && strchr("0Hh", *device.at) && strchr("xX-", device.at[1]);
    for (size_t i = marked ? 2 : 0; i < device.length; i++)
        if (!isxdigit((unsigned char)device.at[i])) return false;
    return true;
}

/* Sets what rows share; `names` [count] are the adapters' descriptions. */
static void find_shared(struct row *rows, cot_ibnet_text *names, size_t count)
{
    qsort(names, count, sizeof *names, by_text);
    for (size_t i = 0; i < count; i++)
        rows[i].shared =
            may_be_guid(rows[i].device) || bsearch(&rows[i].device, names, count, sizeof *names, by_text);
}

static bool same_adapter(const struct row *a, const struct row *b)
{
    return a->host.length && !cot_ibnet_compare(a->host, b->host) && !cot_ibnet_compare(a->device, b->device);
}

/* Those with a name first. As people count: dgx-2 before dgx-10. */
static int by_host(const void *a, const void *b)
{
    const struct row *rows[2] = {a, b};
    char texts[2][512];
    if (!rows[0]->host.length != !rows[1]->host.length) return rows[0]->host.length ? -1 : 1;
    for (int i = 0; i < 2; i++)
        snprintf(texts[i], sizeof *texts, "%.*s %.*s %.*s", (int)rows[i]->host.length, rows[i]->host.at,
                 (int)rows[i]->device.length, rows[i]->device.at, (int)rows[i]->guid.length,
                 rows[i]->guid.at);
    return strverscmp(texts[0], texts[1]);
}

/* Adapters go by their device where nothing else on the host, and no other adapter, is called so, else by their GUID. */
static void print_rows(FILE *out, const struct row *rows, size_t count)
{
    int32_t gpu = 0;
    fputs("host,gpu,adapter\n", out);
    for (size_t i = 0; i < count; i++) {
        const struct row *r = &rows[i];
        const bool again = i && r->host.length && !cot_ibnet_compare(rows[i - 1].host, r->host);
        const bool alone = r->host.length && !r->shared && !(i && same_adapter(r, &rows[i - 1])) &&
                           !(i + 1 < count && same_adapter(r, &rows[i + 1]));
        gpu = again ? gpu + 1 : 0;
        if (r->host.length)
            fprintf(out, "%.*s,%" PRId32 ",", (int)r->host.length, r->host.at, gpu);
        else
            fprintf(out, "0x%.*s,0,", (int)r->guid.length, r->guid.at);
        if (alone)
            fprintf(out, "%.*s\n", (int)r->device.length, r->device.at);
        else
            fprintf(out, "0x%.*s\n", (int)r->guid.length, r->guid.at);
    }
}

static cot_status write_template(char **text, const cot_ibnet *net, const char *path, cot_error *error)
{
    size_t length, count = 0;
    struct row *rows = malloc(net->n_nodes * sizeof *rows + 1);
    cot_ibnet_text *names = malloc(net->n_nodes * sizeof *names + 1);
    FILE *out = rows && names ? open_memstream(text, &length) : NULL;
    for (size_t i = 0; rows && names && i < net->n_nodes; i++) {
        struct row *r = &rows[count];
        if (!net->nodes[i].adapter) continue;
        if (!cot_ibnet_named(net->nodes[i].description, &r->host, &r->device))
            r->host = r->device = (cot_ibnet_text){"", 0};
        r->guid = cot_ibnet_guid(&net->nodes[i]);
        names[count++] = net->nodes[i].description;
    }
    if (count) find_shared(rows, names, count);
    if (count) qsort(rows, count, sizeof *rows, by_host);
    if (out) print_rows(out, rows, count);
    free(rows);
    free(names);
    const bool written = out && !fclose(out);
    if (out && (!written || !count)) {
        free(*text);
        *text = NULL;
    }
    if (!written) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the hosts of '%s'", path);
    return count ? COT_OK : cot_fail(error, COT_MALFORMED, "'%s' has no adapter", path);
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
    if (cot_ibnet_lists_nodes(listing))
        status = cot_ibnet_refuse_nodes(path, error);
    else if (cot_ibnet_is(listing))
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
