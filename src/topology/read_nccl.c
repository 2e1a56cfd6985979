/* NCCL's topology dump: a system of CPUs, under them PCI switches, GPUs and adapters, and NVLinks between GPUs. */
#include "topology/reader.h"

#include "base/error.h"

#include <expat.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEEPEST = 64, MOST_NODES = 4096, BUSID = 24 };

/* What the file does not say: the link between two CPUs, and one NVLink. */
static const double cpu_gbps = 20, nvlink_gbps = 25;

typedef struct node {
    bool cpu, gpu;
    int32_t parent; // -1 of a CPU
    int32_t vertex;
    int64_t order; // of GPUs: the rank, or device number, that the dump gives; else as they come
    double gbps;   // to the parent
    char busid[BUSID];
} node;

typedef struct nvlink {
    int32_t gpu; // index of its node
    int32_t count;
    bool fabric; // to a switch of NVLinks, not to a GPU
    char target[BUSID];
} nvlink;

typedef struct reading {
    XML_Parser parser;
    const char *path;
    node nodes[MOST_NODES];
    nvlink links[MOST_NODES];
    int32_t n_nodes, n_links, n_gpus;
    int32_t stack[DEEPEST]; // node that each open element is, or belongs to; -1 outside
    int depth;
    bool system; // the outermost element was <system>
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
    r->status = cot_fail(r->error, COT_MALFORMED, "'%s': line %lu: %s", r->path,
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

static void add_nvlink(reading *r, int32_t gpu, const XML_Char **attributes)
{
    const char *target = attribute(attributes, "target"), *count = attribute(attributes, "count"),
               *type = attribute(attributes, "tclass");
    long n = count ? strtol(count, NULL, 10) : 1;
    if (gpu < 0 || !r->nodes[gpu].gpu || !target || n < 1 || n > 1024 || r->n_links == MOST_NODES) {
        fail(r, "an nvlink without a GPU, a target or a count of 1 to 1024");
        return;
    }
    nvlink *link = &r->links[r->n_links++];
    *link = (nvlink){.gpu = gpu, .count = (int32_t)n, .fabric = type && !strcmp(type, "0x068000")};
    snprintf(link->target, sizeof link->target, "%s", target);
}

static void begin(void *context, const XML_Char *name, const XML_Char **attributes)
{
    reading *r = context;
    if (r->depth == DEEPEST) {
        fail(r, "elements nested too deep");
        return;
    }
    int32_t above = r->depth ? r->stack[r->depth - 1] : -1, here = above;
    const char *class = attribute(attributes, "class");
    if (!r->depth) r->system = !strcmp(name, "system");
    if (!strcmp(name, "cpu"))
        here = add_node(r, (node){.cpu = true, .parent = -1}, attribute(attributes, "numaid"));
    else if (!strcmp(name, "pci") && above < 0)
        fail(r, "a PCI device outside any CPU");
    else if (!strcmp(name, "pci")) {
        bool gpu = class && !strncmp(class, "0x03", 4);
        here = add_node(r,
                        (node){.gpu = gpu,
                               .parent = above,
                               .order = gpu ? (int64_t)1 << 32 | r->n_gpus++ : 0,
                               .gbps = pcie_gbps(attribute(attributes, "link_speed"),
                                                 attribute(attributes, "link_width"))},
                        attribute(attributes, "busid"));
    } else if (!strcmp(name, "gpu") && above >= 0) {
        const char *rank = attribute(attributes, "rank"), *dev = attribute(attributes, "dev");
        if (rank || dev) r->nodes[above].order = strtol(rank ? rank : dev, NULL, 10) & INT32_MAX;
    } else if (!strcmp(name, "nvlink"))
        add_nvlink(r, above, attributes);
    r->stack[r->depth++] = here;
}

static void end(void *context, const XML_Char *name)
{
    (void)name;
    ((reading *)context)->depth--;
}

static void doctype(void *context, const XML_Char *name, const XML_Char *system, const XML_Char *public,
                    int internal)
{
    (void)name, (void)system, (void)public, (void)internal;
    fail(context, "a document type, which a topology has no use for");
}

static int by_order(const void *a, const void *b)
{
    const node *x = *(node *const *)a, *y = *(node *const *)b;
    return x->order != y->order ? (x->order < y->order ? -1 : 1) : (x > y) - (x < y);
}

static bool number_gpus(reading *r)
{
    node **gpus = malloc((size_t)r->n_gpus * sizeof *gpus);
    int32_t n = 0;
    if (!gpus) return false;
    for (int32_t i = 0; i < r->n_nodes; i++)
        if (r->nodes[i].gpu) gpus[n++] = &r->nodes[i];
    qsort(gpus, (size_t)n, sizeof *gpus, by_order);
    for (int32_t i = 0; i < n; i++) gpus[i]->vertex = i;
    free(gpus);
    return true;
}

static bool build_nvlinks(cot_topology *graph, reading *r)
{
    int32_t fabric = -1;
    for (int32_t i = 0; i < r->n_links; i++) {
        const nvlink *l = &r->links[i];
        double gbps = nvlink_gbps * l->count;
        int32_t from = r->nodes[l->gpu].vertex, to = -1;
        if (l->fabric) {
            if (fabric < 0) fabric = cot_graph_vertex(graph, "nvswitch");
            if (!cot_graph_cable(graph, cot_graph_inside(from, fabric, gbps))) return false;
            continue;
        }
        for (int32_t k = 0; k < r->n_nodes; k++)
            if (r->nodes[k].gpu && !strcasecmp(r->nodes[k].busid, l->target)) to = r->nodes[k].vertex;
        if (to < 0) {
            fail(r, "an nvlink's target is no GPU of the system");
            return true;
        }
        if (!cot_graph_link(graph, cot_graph_inside(from, to, gbps))) return false;
    }
    return true;
}

/* GPUs are the ranks, in the order of their rank, else their device, else as they come. */
static bool build(cot_topology *graph, reading *r)
{
    bool built = number_gpus(r) && cot_graph_ranks(graph, r->n_gpus);
    for (int32_t i = 0; built && i < r->n_nodes; i++) {
        node *n = &r->nodes[i];
        if (n->gpu)
            cot_graph_host(graph, n->vertex, 0);
        else
            built = (n->vertex = cot_graph_vertex(graph, "%s %s", n->cpu ? "cpu" : "pci", n->busid)) >= 0;
        if (built && n->parent >= 0)
            built = cot_graph_cable(
                graph, (cot_topology_link){n->vertex, r->nodes[n->parent].vertex, 1, 0.5, n->gbps});
        for (int32_t k = 0; built && n->cpu && k < i; k++)
            if (r->nodes[k].cpu)
                built = cot_graph_cable(graph,
                                        (cot_topology_link){n->vertex, r->nodes[k].vertex, 1, 0.5, cpu_gbps});
    }
    return built && build_nvlinks(graph, r);
}

cot_status cot_read_topology_nccl(cot_topology *graph, const cot_topology_text *file, cot_error *error)
{
    reading *r = calloc(1, sizeof *r);
    XML_Parser parser = XML_ParserCreate(NULL);
    cot_status status = COT_OK;
    if (!r || !parser || file->bytes > INT32_MAX)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for '%s'", file->path);
    else {
        *r = (reading){.parser = parser, .path = file->path, .error = error};
        XML_SetUserData(parser, r);
        XML_SetElementHandler(parser, begin, end);
        XML_SetStartDoctypeDeclHandler(parser, doctype);
        if (XML_Parse(parser, file->text, (int)file->bytes, 1) == XML_STATUS_ERROR && r->status == COT_OK)
            fail(r, XML_ErrorString(XML_GetErrorCode(parser)));
        if (r->status == COT_OK && (!r->system || !r->n_gpus))
            r->status = cot_fail(error, COT_MALFORMED, "'%s' is no NCCL topology: no %s in it", file->path,
                                 r->system ? "GPU" : "<system>");
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
