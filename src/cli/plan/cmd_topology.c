/* `coterie topology show` and `coterie topology distances`. */
#include "cli/plan/cluster.h"
#include "cli/commands.h"
#include "cli/frame/paths.h"
#include "cli/plan/plot.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct settings {
    const char *topology, *hosts, *nvlink, *plot, *template;
    int64_t ranks;
    double bytes;
    int distance;
    bool json;
};

static bool open_cluster(cot_topology *t, const struct settings *s)
{
    return cli_open_topology(t, s->topology,
                             &(cli_topology_settings){s->hosts, s->nvlink, (int32_t)s->ranks});
}

static cot_metric metric_of(const cot_topology *t, const struct settings *s)
{
    return (cot_metric){s->distance > 0 || t->measured, s->bytes};
}

static double *distances(const cot_topology *t, const struct settings *s)
{
    size_t S = (size_t)t->n_ranks;
    double *d = malloc(S * S * sizeof *d);
    cot_error error = {COT_OUT_OF_MEMORY, "out of memory for the distances"};
    const cot_metric metric = metric_of(t, s);
    if (d && cot_topology_distances(d, t, metric, &error) == COT_OK) return d;
    cli_complain_of(&error);
    free(d);
    return NULL;
}

static int print_distances(const cot_topology *t, const struct settings *s, const double *d)
{
    if (!s->json) {
        for (int32_t a = 0; a < t->n_ranks; a++)
            for (int32_t b = 0; b < t->n_ranks; b++)
                printf("%.6g%c", d[(size_t)a * (size_t)t->n_ranks + (size_t)b],
                       b + 1 < t->n_ranks ? ' ' : '\n');
        return CLI_EXIT_OK;
    }
    json_t *rows = json_array();
    for (int32_t a = 0; a < t->n_ranks; a++) {
        json_t *row = json_array();
        for (int32_t b = 0; b < t->n_ranks; b++)
            json_array_append_new(row, json_real(d[(size_t)a * (size_t)t->n_ranks + (size_t)b]));
        json_array_append_new(rows, row);
    }
    json_t *o = json_pack("{s:s, s:i, s:s, s:o}", "topology", t->name, "ranks", (int)t->n_ranks, "unit",
                          s->distance > 0 || t->measured ? "us" : "hops", "distances", rows);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (!text) return cli_complain("cannot spell the distances as JSON");
    puts(text);
    free(text);
    return CLI_EXIT_OK;
}

/* How many ordered pairs of ranks are how far apart; the first lines of what may be very many. */
static void print_spread(const cot_distance_count *counts, size_t n, const char *unit)
{
    enum { MOST_LINES = 16 };
    for (size_t i = 0; i < n && i < MOST_LINES; i++)
        printf("  %10.6g %s  %" PRId64 " pairs\n", counts[i].distance, unit, counts[i].pairs);
    if (n > MOST_LINES) printf("  ... up to %.6g %s\n", counts[n - 1].distance, unit);
}

/* A file of hosts to begin with. */
static int write_template(const struct settings *s)
{
    cot_error error;
    char *text;
    if (!cli_check_output(s->template, NULL)) return CLI_EXIT_FAILURE;
    if (cot_topology_host_template(&text, s->topology, &error) != COT_OK) return cli_complain_of(&error);
    cot_file_writer writer;
    FILE *file = cli_open_output(&writer, s->template);
    if (file) fputs(text, file);
    free(text);
    return file && cli_close_output(&writer) ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}

static int show(const void *context)
{
    const struct settings *s = context;
    if (s->template) return write_template(s);
    cot_topology t = {0};
    int status = CLI_EXIT_FAILURE;
    if (!open_cluster(&t, s)) return status;
    const cot_metric metric = metric_of(&t, s);
    const char *unit = metric.cost ? "us" : "hops";
    cot_distance_count *counts;
    size_t n;
    cot_error error;
    if (cot_topology_spread(&counts, &n, &t, metric, &error) == COT_OK) {
        const double pairs = (double)t.n_ranks * (t.n_ranks - 1);
        double sum = 0;
        for (size_t i = 0; i < n; i++) sum += counts[i].distance * (double)counts[i].pairs;
        printf("topology  %s\nranks     %" PRId32 " on %" PRId32 " hosts\nvertices  %" PRId32 ", %" PRId64
               " links (one for each direction)\nmean      %.6g %s between two ranks\ndistances\n",
               t.name, t.n_ranks, t.n_hosts, t.n_vertices, t.n_links, n ? sum / pairs : 0, unit);
        print_spread(counts, n, unit);
        free(counts);
        status = CLI_EXIT_OK;
    } else
        cli_complain_of(&error);
    cot_topology_free(&t);
    return status;
}

static int print(const void *context)
{
    const struct settings *s = context;
    cot_topology t = {0};
    int status = CLI_EXIT_FAILURE;
    if (!cli_check_output(s->plot, NULL) || !open_cluster(&t, s)) return status;
    double *d = distances(&t, s);
    if (d && s->plot) {
        const char **hosts = cli_host_names(&t);
        const cli_plot_map how = {.title = t.name,
                                  .unit = metric_of(&t, s).cost ? "microseconds" : "hops",
                                  .x = {"to rank", hosts, NULL},
                                  .y = {"from rank", hosts, NULL}};
        status = cli_plot_matrix_file(s->plot, d, t.n_ranks, t.n_ranks, &how);
        free(hosts);
    } else if (d)
        status = print_distances(&t, s, d);
    free(d);
    cot_topology_free(&t);
    return status;
}

#define AT(field) offsetof(struct settings, field)
#define COMMON                                                                                               \
    {"hosts", 0, CLI_OPTION_TEXT, "FILE", NULL, CLI_TOPOLOGY_HOSTS_TEXT, AT(hosts)},                         \
        {"nvlink", 0, CLI_OPTION_TEXT, "all|FILE", NULL, CLI_TOPOLOGY_NVLINK_TEXT, AT(nvlink)},              \
        {"ranks",   0,          CLI_OPTION_INTEGER,                                                          \
         "S",       NULL,       "ranks, where the topology does not say",                                    \
         AT(ranks), .least = 1, .most = COT_TOPOLOGY_MAX_RANKS},                                             \
        {"distance",                                                                                         \
         0,                                                                                                  \
         CLI_OPTION_CHOICE,                                                                                  \
         "KIND",                                                                                             \
         "hops",                                                                                             \
         "hops, or cost: microseconds, latency + bytes / bandwidth",                                         \
         AT(distance),                                                                                       \
         .choices = (const char *const[]){"hops", "cost", NULL}},                                            \
    {                                                                                                        \
        "bytes", 0, CLI_OPTION_REAL, "N", "14336", "bytes of a message, for --distance cost", AT(bytes),     \
            .min = 0, .max = 1e12                                                                            \
    }

static const cli_option show_options[] = {COMMON,
                                          {"template", 0, CLI_OPTION_TEXT, "FILE", NULL,
                                           "write the adapters of an ibnetdiscover file as a file of hosts "
                                           "to edit (--hosts), and nothing else; - is standard "
                                           "output",
                                           AT(template)},
                                          {0}};
static const cli_option distances_options[] = {
    COMMON,
    {"json", 0, CLI_OPTION_FLAG, NULL, NULL, "write the matrix as JSON", AT(json)},
    {"plot", 0, CLI_OPTION_TEXT, "OUT.svg", NULL,
     "draw the matrix as a heat map instead (paper, Figure 2); - is standard output", AT(plot)},
    {0}};
static const cli_positional positionals[] = {
    {"TOPOLOGY", 1, 1,
     "a spec FAMILY:KEY=VALUE,..., or a file: ibnetdiscover output (also -p), an NCCL or RCCL topology "
     "(XML), what nvidia-smi topo -m prints, JSON (a "
     "matrix of distances, rank_cost_matrix, bandwidth and latency, nodes and edges, measured endpoints)",
     AT(topology)},
    {0}};

#define SPECS                                                                                                \
    "Specs: fattree (ranks,gpus=4,servers=4,leaves=4,spines=4: hops 0 in a server, 2 under a leaf, 4 in a "  \
    "pod, 6 "                                                                                                \
    "beyond), fattree-sparse (pods in two halves: 8 across), dragonfly (ranks,gpus=4,servers=4,routers=4: "  \
    "2 at a "                                                                                                \
    "router, 3 in a group, 3 to 5 beyond by one gateway a group), dragonfly-sparse (groups on a ring), "     \
    "dragonfly+ "                                                                                            \
    "(ranks,gpus=4,servers=4,leaves=4,spines=4), slimfly (ranks,gpus=4,q=5: 2 q^2 routers of diameter 2), "  \
    "rail "                                                                                                  \
    "(ranks,gpus=8,servers=32,spines=8,pxn=0: GPU i of a server on leaf i), complete (ranks,gpus=1), node "  \
    "(ranks=8,domain=8: NVLink domains of one server). gpus are of a server, servers of a leaf or router, "  \
    "leaves of "                                                                                             \
    "a pod. Each also takes latency=1 (us a link), bandwidth=50 and nvlink=450 (GB/s), for --distance cost."

const cli_command cli_cmd_topology_show = {
    .name = "topology show",
    .summary = "show a cluster's ranks, links and how far ranks are apart",
    .details = "Vertices are ranks, hosts, adapters' ports and switches; mean is of all pairs of different "
               "ranks, and "
               "distances says how many ordered pairs are how far apart.\n\n" SPECS,
    .examples = (const char *const[]){"coterie topology show fattree:ranks=256",
                                      "coterie topology show fabric.txt --template hosts.csv",
                                      "coterie topology show fabric.txt --hosts hosts.csv", NULL},
    .options = {.groups = (const cli_option_group[]){{"Options", show_options, 0}, {0}},
                .positionals = positionals},
    .settings_bytes = sizeof(struct settings),
    .run = show};

const cli_command cli_cmd_topology_distances = {
    .name = "topology distances",
    .summary = "print or draw the distances between all ranks of a cluster",
    .details = SPECS,
    .examples =
        (const char *const[]){"coterie topology distances dragonfly:ranks=64 --json",
                              "coterie topology distances fattree:ranks=256 --plot distances.svg", NULL},
    .options = {.groups = (const cli_option_group[]){{"Options", distances_options, 0}, {0}},
                .positionals = positionals},
    .settings_bytes = sizeof(struct settings),
    .run = print};
