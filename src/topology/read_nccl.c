/* NCCL's topology dump, or RCCL's: a system of CPUs, under them PCI switches, GPUs and adapters, and the links between
 * GPUs, NVLink or xGMI. A dump of several hosts that NVLinks join (a rack) tells their CPUs apart by `host_hash`; bus ids
 * are a host's own. */
#include "topology/reader.h"

#include "base/error.h"

#include <ctype.h>
#include <expat.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEEPEST = 64, MOST_NODES = 4096, BUSID = 24 };

/* What the file does not say: the link between two CPUs, one NVLink, one xGMI link, and all NVLinks of a GPU. */
static const double cpu_gbps = 20, nvlink_gbps = 25, xgmi_gbps = 36, all_nvlinks_gbps = 450;

/* A CPU, or what is on a PCI bus. */
typedef struct node {
    bool cpu;
    bool is_gpu;    // says its PCI class
    bool unclassed; // a PCI device without a class
    int32_t host;
    int32_t parent; // -1 of a CPU
    int32_t vertex; // -1 of a device that is one GPU and nothing else
    int32_t gpus;   // elements <gpu> in it; one that is divided has several
    double gbps;    // to the parent
    char busid[BUSID];
} node;

typedef struct gpu {
    int32_t node;
    int64_t order; // the rank, or host and device number, that the dump gives; else as they come
    int32_t rank;
} gpu;

typedef struct gpu_link {
    int32_t gpu;
    double gbps;
    bool fabric; // to a switch of NVLinks, not to a GPU
    char target[BUSID];
} gpu_link;

/* A network adapter's way out of its host. */
typedef struct port {
    int32_t node;
    double gbps;
} port;

typedef struct element {
    int32_t node, gpu; // that it is, or belongs to; -1 outside
} element;

typedef struct reading {
    XML_Parser parser;
    const cot_topology_text *file;
    node nodes[MOST_NODES];
    gpu gpus[MOST_NODES];
    gpu_link links[MOST_NODES];
    port ports[MOST_NODES];
    uint64_t hosts[MOST_NODES]; // their hashes
    int32_t n_nodes, n_links, n_gpus, n_ports, n_hosts;
    element stack[DEEPEST]; // of each open element
    int depth;
    char root[16]; // the outermost element
    cot_status status;
    cot_error *error;
} reading;

static const char *attribute(const XML_Char **attributes, const char *name)
{
    for (; attributes[0]; attributes += 2)
        if (!strcmp(attributes[0], name)) return attributes[1];
    return NULL;
}

static void fail(reading *r, const char *what)
{
    if (r->status != COT_OK) return;
    r->status = cot_fail(r->error, COT_MALFORMED, "'%s': line %lu: %s", r->file->path,
                         (unsigned long)XML_GetCurrentLineNumber(r->parser), what);
    XML_StopParser(r->parser, XML_FALSE);
}

/* "16 GT/s" and "16" lanes: PCIe 3 and later carry 128 bits in 130. */
static double pcie_gbps(const char *speed, const char *width)
{
    double gts = speed ? strtod(speed, NULL) : 0, lanes = width ? strtod(width, NULL) : 0;
    double gbps = gts * lanes / 8 * (gts > 5 ? 128.0 / 130 : 0.8);
    return gbps > 0 && gbps < 1e6 ? gbps : INFINITY;
}

/* Display controllers, and processing accelerators, which AMD's newer GPUs are. */
static bool is_gpu_class(const char *class)
{
    return class && (!strncmp(class, "0x03", 4) || !strncmp(class, "0x12", 4));
}

static int32_t add_node(reading *r, node n, const char *busid)
{
    if (r->n_nodes == MOST_NODES) {
        fail(r, "too many devices");
        return -1;
    }
    snprintf(n.busid, sizeof n.busid, "%s", busid ? busid : "");
    r->nodes[r->n_nodes] = n;
    return r->n_nodes++;
}

/* The number of the host that a CPU belongs to; one that does not say it has the hash 0, as NCCL reads it. */
static int32_t host_of(reading *r, const char *hash)
{
    char none = 0, *end = &none;
    const uint64_t key = hash ? strtoull(hash, &end, 0) : 0;
    int32_t h = 0;
    if (*end || (hash && !isxdigit((unsigned char)*hash))) fail(r, "a host_hash that is no number");
    while (h < r->n_hosts && r->hosts[h] != key) h++;
    if (h < r->n_hosts) return h;
    if (h == MOST_NODES) {
        fail(r, "too many hosts");
        return 0;
    }
    r->hosts[h] = key;
    return r->n_hosts++;
}

static int32_t add_cpu(reading *r, const XML_Char **attributes)
{
    const node cpu = {.cpu = true, .parent = -1, .host = host_of(r, attribute(attributes, "host_hash"))};
    return add_node(r, cpu, attribute(attributes, "numaid"));
}

static int32_t add_device(reading *r, int32_t parent, const XML_Char **attributes)
{
    const char *class = attribute(attributes, "class");
    const node device = {
        .is_gpu = is_gpu_class(class),
        .unclassed = !class,
        .parent = parent,
        .host = r->nodes[parent].host,
        .gbps = pcie_gbps(attribute(attributes, "link_speed"), attribute(attributes, "link_width"))};
    return add_node(r, device, attribute(attributes, "busid"));
}

static int32_t add_gpu(reading *r, int32_t device, const char *rank, const char *number)
{
    if (r->n_gpus == MOST_NODES) {
        fail(r, "too many GPUs");
        return -1;
    }
    int64_t order = (int64_t)1 << 44 | r->n_gpus;
    if (rank)
        order = strtol(rank, NULL, 10) & INT32_MAX;
    else if (number)
        order = (int64_t)r->nodes[device].host << 31 | (strtol(number, NULL, 10) & INT32_MAX);
    r->nodes[device].gpus++;
    r->gpus[r->n_gpus] = (gpu){.node = device, .order = order};
    return r->n_gpus++;
}

static void add_link(reading *r, int32_t from, const XML_Char **attributes, double gbps)
{
    const char *target = attribute(attributes, "target"), *count = attribute(attributes, "count"),
               *type = attribute(attributes, "tclass");
    const long n = count ? strtol(count, NULL, 10) : 1;
    if (from < 0 || !target || n < 1 || n > 1024 || r->n_links == MOST_NODES) {
        fail(r, "a link outside any GPU, or without a target or a count of 1 to 1024");
        return;
    }
    gpu_link *link = &r->links[r->n_links++];
    *link = (gpu_link){.gpu = from, .gbps = gbps * (double)n, .fabric = type && !strcmp(type, "0x068000")};
    snprintf(link->target, sizeof link->target, "%s", target);
}

/* A port of `speed` Mbit/s. */
static void add_port(reading *r, int32_t at, const char *speed)
{
    const double mbps = speed ? strtod(speed, NULL) : 0;
    if (r->n_ports == MOST_NODES) {
        fail(r, "too many network ports");
        return;
    }
    r->ports[r->n_ports++] = (port){at, mbps > 0 && mbps < 1e9 ? mbps / 8000 : INFINITY};
}

static void begin(void *context, const XML_Char *name, const XML_Char **attributes)
{
    reading *r = context;
    if (r->depth == DEEPEST) {
        fail(r, "elements nested too deep");
        return;
    }
    element here = r->depth ? r->stack[r->depth - 1] : (element){-1, -1};
    if (!r->depth) snprintf(r->root, sizeof r->root, "%s", name);
    if (!strcmp(name, "cpu"))
        here.node = add_cpu(r, attributes);
    else if (!strcmp(name, "pci") && here.node < 0)
        fail(r, "a PCI device outside any CPU");
    else if (!strcmp(name, "pci"))
        here.node = add_device(r, here.node, attributes);
    else if (!strcmp(name, "gpu") && here.node >= 0)
        here.gpu = add_gpu(r, here.node, attribute(attributes, "rank"), attribute(attributes, "dev"));
    else if (!strcmp(name, "net") && here.node >= 0)
        add_port(r, here.node, attribute(attributes, "speed"));
    else if (!strcmp(name, "nvlink"))
        add_link(r, here.gpu, attributes, nvlink_gbps);
    else if (!strcmp(name, "xgmi"))
        add_link(r, here.gpu, attributes, xgmi_gbps);
    r->stack[r->depth++] = here;
}

static void end(void *context, const XML_Char *name)
{
    (void)name;
    ((reading *)context)->depth--;
}

static int by_order(const void *a, const void *b)
{
    const gpu *x = a, *y = b;
    return (x->order > y->order) - (x->order < y->order);
}

/* The ranks, in the order of the rank that the dump gives, else of host and device number, else as they come. Links know
 * their GPU by its place before. */
static bool number_ranks(reading *r)
{
    gpu *sorted = malloc((size_t)r->n_gpus * sizeof *sorted);
    if (!sorted) return false;
    for (int32_t g = 0; g < r->n_gpus; g++) {
        sorted[g] = r->gpus[g];
        sorted[g].order = sorted[g].order * MOST_NODES + g; // equal numbers as they come
        sorted[g].rank = g;
    }
    qsort(sorted, (size_t)r->n_gpus, sizeof *sorted, by_order);
    for (int32_t rank = 0; rank < r->n_gpus; rank++) r->gpus[sorted[rank].rank].rank = rank;
    free(sorted);
    return true;
}

static bool name_vertex(cot_topology *graph, const reading *r, node *n)
{
    char host[32] = "";
    if (r->n_hosts > 1) snprintf(host, sizeof host, "host %" PRId32 " ", n->host);
    n->vertex = cot_graph_vertex(graph, "%s%s %s", host, n->cpu ? "cpu" : "pci", n->busid);
    return n->vertex >= 0;
}

/* Vertices of CPUs, PCI switches, adapters and divided GPUs. A rank is its device, or is tied to it. CPUs of a host are
 * linked. */
static bool build_bus(cot_topology *graph, reading *r)
{
    bool built = true;
    for (int32_t i = 0; built && i < r->n_nodes; i++) {
        node *n = &r->nodes[i];
        if (n->gpus != 1) built = name_vertex(graph, r, n);
        for (int32_t g = 0; built && g < r->n_gpus; g++) {
            if (r->gpus[g].node != i) continue;
            if (n->gpus == 1)
                n->vertex = r->gpus[g].rank;
            else
                built = cot_graph_cable(graph, cot_graph_tie(r->gpus[g].rank, n->vertex));
        }
        if (built && n->parent >= 0)
            built = cot_graph_cable(
                graph, (cot_topology_link){n->vertex, r->nodes[n->parent].vertex, 1, 0.5, n->gbps});
        for (int32_t k = 0; built && n->cpu && k < i; k++)
            if (r->nodes[k].cpu && r->nodes[k].host == n->host)
                built = cot_graph_cable(graph,
                                        (cot_topology_link){n->vertex, r->nodes[k].vertex, 1, 0.5, cpu_gbps});
    }
    return built;
}

static bool has_port(const reading *r, int32_t host)
{
    for (int32_t i = 0; i < r->n_ports; i++)
        if (r->nodes[r->ports[i].node].host == host) return true;
    return false;
}

/* The network that hosts reach each other by, a hop to it and a hop from it: through their adapters, or through the CPUs
 * of a host that names no adapter. */
static bool build_network(cot_topology *graph, const reading *r)
{
    if (r->n_hosts == 1) return true;
    const int32_t network = cot_graph_vertex(graph, "network");
    bool built = network >= 0;
    for (int32_t i = 0; built && i < r->n_ports; i++)
        built = cot_graph_cable(
            graph, (cot_topology_link){r->nodes[r->ports[i].node].vertex, network, 1, 0.5, r->ports[i].gbps});
    for (int32_t i = 0; built && i < r->n_nodes; i++)
        if (r->nodes[i].cpu && !has_port(r, r->nodes[i].host))
            built =
                cot_graph_cable(graph, (cot_topology_link){r->nodes[i].vertex, network, 1, 0.5, INFINITY});
    return built;
}

/* A link leads to every GPU of the device that it names, on its own host; one to its own device is none. */
static bool build_link(cot_topology *graph, reading *r, const gpu_link *link, bool *joined)
{
    const node *own = &r->nodes[r->gpus[link->gpu].node];
    bool found = false, built = true;
    for (int32_t g = 0; built && g < r->n_gpus; g++) {
        const node *there = &r->nodes[r->gpus[g].node];
        if (there->host != own->host || strcasecmp(there->busid, link->target)) continue;
        found = true;
        if (there == own) continue;
        *joined = true;
        built = cot_graph_link(graph, cot_graph_inside(r->gpus[link->gpu].rank, r->gpus[g].rank, link->gbps));
    }
    if (!found) fail(r, "a link's target is no GPU of its host");
    return built;
}

/* The switch of NVLinks that a link leads to: one on the host's PCI bus is the host's own, one that no bus has (a rack's)
 * is that of all hosts. `switches` [hosts + 1] are those that are there, else -1. */
static int32_t find_switch(cot_topology *graph, const reading *r, const gpu_link *link, int32_t *switches)
{
    const bool shared = !strncasecmp(link->target, "fffffff:", 8);
    int32_t *at = &switches[shared ? r->n_hosts : r->nodes[r->gpus[link->gpu].node].host];
    if (r->n_hosts == 1) at = switches;
    if (*at < 0) *at = cot_graph_vertex(graph, "nvswitch");
    return *at;
}

/* `*joined` says whether a link leads from one GPU to another. */
static bool build_links(cot_topology *graph, reading *r, bool *joined)
{
    int32_t *switches = malloc((size_t)(r->n_hosts + 1) * sizeof *switches);
    bool built = switches != NULL;
    *joined = false;
    for (int32_t h = 0; built && h <= r->n_hosts; h++) switches[h] = -1;
    for (int32_t i = 0; built && i < r->n_links; i++) {
        const gpu_link *l = &r->links[i];
        if (l->fabric) {
            built = cot_graph_cable(
                graph, cot_graph_inside(r->gpus[l->gpu].rank, find_switch(graph, r, l, switches), l->gbps));
            *joined = true;
        } else
            built = build_link(graph, r, l, joined);
    }
    free(switches);
    return built;
}

/* Joins the GPUs of each host by a switch. */
static bool add_switches(cot_topology *graph, const reading *r)
{
    bool built = true;
    for (int32_t h = 0; built && h < r->n_hosts; h++) {
        const int32_t fabric = cot_graph_vertex(graph, "nvswitch");
        for (int32_t g = 0; built && g < r->n_gpus; g++)
            if (r->nodes[r->gpus[g].node].host == h)
                built = cot_graph_cable(graph, cot_graph_inside(r->gpus[g].rank, fabric, all_nvlinks_gbps));
    }
    return built;
}

/* The GPUs of host `h` in the order of their ranks, by rank: `ranks` has room for all. Returns how many there are. */
static int32_t ranks_of(int32_t *ranks, const cot_topology *graph, const reading *r, int32_t h)
{
    int32_t n = 0;
    for (int32_t rank = 0; rank < r->n_gpus; rank++)
        if (graph->owner->host[rank] == h) ranks[n++] = rank;
    return n;
}

/* The NVLinks that the caller knows of: all to all of a host by a switch, or as a file counts them, of one host for every
 * host. */
static bool add_given_links(cot_topology *graph, reading *r)
{
    const char *given = r->file->options->nvlink;
    if (!strcmp(given, "all")) return add_switches(graph, r);
    int32_t *ranks = malloc((size_t)r->n_gpus * sizeof *ranks), *links = NULL;
    bool built = ranks != NULL;
    int32_t n = 0;
    for (int32_t h = 0; built && r->status == COT_OK && h < r->n_hosts; h++) {
        const int32_t here = ranks_of(ranks, graph, r, h);
        if (!here) continue;
        if (!links) {
            n = here;
            built = (links = malloc((size_t)n * (size_t)n * sizeof *links)) != NULL;
            if (built) r->status = cot_nvlinks_read(links, n, given, r->error);
        }
        if (built && r->status == COT_OK && here != n)
            r->status = cot_fail(r->error, COT_MALFORMED,
                                 "'%s' has links of %" PRId32 " GPUs, a host of '%s' has %" PRId32, given, n,
                                 r->file->path, here);
        for (int32_t i = 0; r->status == COT_OK && built && i < n * n; i++)
            if (links[i])
                built = cot_graph_link(graph,
                                       cot_graph_inside(ranks[i / n], ranks[i % n], nvlink_gbps * links[i]));
    }
    free(ranks);
    free(links);
    return built;
}

/* Hosts of GPUs. A file that names its GPUs may hold other devices of their class, which NCCL leaves out too. */
static bool build(cot_topology *graph, reading *r)
{
    const cot_topology_options *options = r->file->options;
    bool joined, built = number_ranks(r) && cot_graph_ranks(graph, r->n_gpus);
    for (int32_t g = 0; built && g < r->n_gpus; g++)
        cot_graph_host(graph, r->gpus[g].rank, r->nodes[r->gpus[g].node].host);
    built = built && build_bus(graph, r) && build_network(graph, r) && build_links(graph, r, &joined);
    if (options->nvlink && built) return add_given_links(graph, r);
    if (built && !joined && r->n_gpus > 1 && options->say)
        options->say(
            options->context,
            "the file has no link between GPUs: clouds leave NVLinks out, since NCCL finds them when it "
            "runs; distances are over PCIe unless they are given (--nvlink)");
    return built;
}

/* Says what a file with another root than NCCL's, or without GPUs, is. */
static cot_status nothing_in(const reading *r)
{
    int32_t unclassed = 0;
    for (int32_t i = 0; i < r->n_nodes; i++) unclassed += r->nodes[i].unclassed;
    if (!strcmp(r->root, "topology"))
        return cot_fail(r->error, COT_UNSUPPORTED,
                        "'%s' is hwloc's, which knows no links between GPUs: expected what NCCL writes to "
                        "NCCL_TOPO_DUMP_FILE",
                        r->file->path);
    if (!strcmp(r->root, "system") && unclassed)
        return cot_fail(r->error, COT_UNSUPPORTED,
                        "'%s' does not say which of its %" PRId32
                        " PCI devices are GPUs: NCCL looks that up on the machine, expected what it writes "
                        "there to NCCL_TOPO_DUMP_FILE",
                        r->file->path, unclassed);
    return cot_fail(r->error, COT_MALFORMED, "'%s' is no NCCL topology: no %s in it", r->file->path,
                    strcmp(r->root, "system") ? "<system>" : "GPU");
}

static void doctype(void *context, const XML_Char *name, const XML_Char *system, const XML_Char *public,
                    int internal)
{
    reading *r = context;
    (void)system, (void)public, (void)internal;
    snprintf(r->root, sizeof r->root, "%s", name);
    if (!strcmp(name, "system")) {
        fail(r, "a document type, which a topology has no use for");
        return;
    }
    r->status = nothing_in(r);
    XML_StopParser(r->parser, XML_FALSE);
}

cot_status cot_read_topology_nccl(cot_topology *graph, const cot_topology_text *file, cot_error *error)
{
    reading *r = calloc(1, sizeof *r);
    XML_Parser parser = XML_ParserCreate(NULL);
    cot_status status = COT_OK;
    if (!r || !parser || file->bytes > INT32_MAX)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for '%s'", file->path);
    else {
        *r = (reading){.parser = parser, .file = file, .error = error};
        XML_SetUserData(parser, r);
        XML_SetElementHandler(parser, begin, end);
        XML_SetStartDoctypeDeclHandler(parser, doctype);
        if (XML_Parse(parser, file->text, (int)file->bytes, 1) == XML_STATUS_ERROR && r->status == COT_OK)
            fail(r, XML_ErrorString(XML_GetErrorCode(parser)));
        for (int32_t i = 0, named = r->n_gpus; r->status == COT_OK && !named && i < r->n_nodes; i++)
            if (r->nodes[i].is_gpu) add_gpu(r, i, NULL, NULL);
        if (r->status == COT_OK && (strcmp(r->root, "system") || !r->n_gpus)) r->status = nothing_in(r);
        status = r->status;
        if (status == COT_OK) {
            bool built = build(graph, r);
            graph->has_costs = true;
            status = r->status == COT_OK ? cot_graph_finish(graph, built, error) : r->status;
        }
    }
    if (parser) XML_ParserFree(parser);
    free(r);
    return status;
}
