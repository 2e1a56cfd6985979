#include "cli/plan/cmd_place.h"

#include "cli/plan/cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void note(void *context, const char *line)
{
    (void)context;
    cli_complain("note: %s", line);
}

/* "S" ranks, or "NxR": N nodes of R ranks each. */
static bool read_ranks(cli_place_inputs *in, const char *text)
{
    char *end;
    const long long nodes = strtoll(text, &end, 10), each = *end == 'x' ? strtoll(end + 1, &end, 10) : 0;
    const bool several = strchr(text, 'x') != NULL;
    if (end == text || *end || nodes < 1 || nodes > COT_TOPOLOGY_MAX_RANKS || (several && each < 1) ||
        each > COT_TOPOLOGY_MAX_RANKS || (several ? nodes * each : nodes) > COT_TOPOLOGY_MAX_RANKS) {
        cli_complain(
            "--ranks '%s' is neither a number of ranks nor NODESxRANKS, such as 4x8, of 1 to %d in all", text,
            COT_TOPOLOGY_MAX_RANKS);
        return false;
    }
    in->ranks = (int32_t)(several ? nodes * each : nodes);
    in->nodes = several ? (int32_t)nodes : 0;
    return true;
}

/* Nodes that are all one hop apart. */
static bool build_nodes(cli_place_inputs *in)
{
    char spec[64];
    cot_error error = {0};
    snprintf(spec, sizeof spec, "complete:ranks=%d,gpus=%d", in->ranks, in->ranks / in->nodes);
    if (cot_topology_build(&in->topology, spec, 0, &error) == COT_OK) return true;
    cli_complain_of(&error);
    return false;
}

int cli_place_open_cluster(cli_place_inputs *in, const cli_place_settings *s)
{
    if (s->hosts && !s->topology) return cli_complain("--hosts needs --topology: an ibnetdiscover file");
    if (s->nvlink && !s->topology) return cli_complain("--nvlink needs --topology: an NCCL file");
    if (s->cost && s->topology) return cli_complain("--cost is used instead of --topology: give one of them");
    if (s->ranks && !read_ranks(in, s->ranks)) return CLI_EXIT_USAGE;
    if (!s->topology && (!in->nodes || s->cost)) return CLI_EXIT_OK;
    in->has_topology = s->topology
                           ? cli_open_topology(&in->topology, s->topology,
                                               &(cli_topology_settings){s->hosts, s->nvlink, in->ranks})
                           : build_nodes(in);
    if (in->has_topology && in->nodes && in->topology.n_hosts != in->nodes)
        return cli_complain("--ranks %s says %d nodes, topology '%s' has %d", s->ranks, in->nodes,
                            in->topology.name, in->topology.n_hosts);
    return in->has_topology ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}

/* "N" for all ranks, or a JSON array of one number a rank. */
static bool capacity(int32_t *to, const char *text, const char *option, int32_t n)
{
    char *end;
    long long value = strtoll(text, &end, 10);
    if (end != text && !*end) {
        if (value < 0 || value > INT32_MAX) {
            cli_complain("%s %s is no number from 0 to %d", option, text, INT32_MAX);
            return false;
        }
        for (int32_t s = 0; s < n; s++) to[s] = (int32_t)value;
        return true;
    }
    int32_t rows = 1, columns = n;
    double *row = cli_read_matrix(text, "capacity", &rows, &columns);
    for (int32_t s = 0; row && s < n; s++)
        if (row[s] > INT32_MAX || row[s] != (double)(int32_t)row[s]) {
            cli_complain("'%s': the %s of rank %d is %g, expected a whole number", text, option, s, row[s]);
            free(row);
            return false;
        } else
            to[s] = (int32_t)row[s];
    free(row);
    return row != NULL;
}

/* Which attention: as said, else every rank sends, what the load says of it or as much as any other. */
static bool choose_attention(cli_place_inputs *in, const cli_place_settings *s, int32_t ranks)
{
    const char *text = s->attention ? s->attention : "dp";
    cot_costs_options *o = &in->costs_options;
    int32_t rows = in->load.n_layers, columns = ranks;
    if (!strcmp(text, "paper"))
        o->attention = COT_ATTENTION_PAPER;
    else if (!strcmp(text, "dp"))
        o->attention = COT_ATTENTION_DP;
    else if (access(text, F_OK)) {
        cli_complain("--attention '%s' is neither paper nor dp nor a file", text);
        return false;
    } else {
        o->attention = COT_ATTENTION_WEIGHTS;
        in->dispatch = cli_read_matrix(text, "dispatch", &rows, &columns);
        in->collect = in->dispatch ? cli_read_matrix(text, "collect", &rows, &columns) : NULL;
        o->dispatch_weights = in->dispatch;
        o->collect_weights = in->collect;
        return in->collect != NULL;
    }
    return true;
}

static int choose_options(cli_place_inputs *in, const cli_place_settings *s)
{
    int32_t ranks = in->costs.n_ranks;
    int64_t slots = s->slots ? s->slots : s->slots_per_rank * ranks;
    if (s->slots && s->slots_per_rank && s->slots != s->slots_per_rank * ranks)
        return cli_complain("--slots %lld are not --slots-per-rank %lld on each of %d ranks",
                            (long long)s->slots, (long long)s->slots_per_rank, ranks);
    if (slots > INT32_MAX) return cli_complain("%lld slots are too many", (long long)slots);
    // Capacities are the exact methods', and drift is told in costs.
    const bool exact = slots <= in->costs.n_experts && (s->c_layer || s->c_exp || s->drift.count);
    in->options = (cot_place_options){.size = sizeof in->options,
                                      .method = s->method ? s->method
                                                : exact   ? "ilpload"
                                                          : "balance",
                                      .slots = (int32_t)slots,
                                      .max_load = s->max_load,
                                      .groups = (int32_t)s->groups,
                                      .nodes = (int32_t)s->nodes,
                                      .dispatch = (cot_dispatch)s->dispatch};
    in->capacity = malloc(2 * (size_t)ranks * sizeof *in->capacity);
    if (!in->capacity) return cli_complain("out of memory");
    if (s->c_layer && !capacity(in->capacity, s->c_layer, "--c-layer", ranks)) return CLI_EXIT_FAILURE;
    if (s->c_exp && !capacity(in->capacity + ranks, s->c_exp, "--c-exp", ranks)) return CLI_EXIT_FAILURE;
    if (s->c_layer) in->options.c_layer = in->capacity;
    if (s->c_exp) in->options.c_exp = in->capacity + ranks;
    return CLI_EXIT_OK;
}

int cli_place_open_load(cli_place_inputs *in, const cli_place_settings *s, const char *const *paths, size_t n)
{
    const cot_load_options options = {.size = sizeof options,
                                      .first_layer = (int32_t)s->first_layer,
                                      .top_k = (int32_t)s->top_k,
                                      .say = note};
    cot_error error = {0};
    if (cot_load_counts_read(&in->load, paths, n, &options, &error) != COT_OK) return cli_complain_of(&error);
    int32_t ranks = in->has_topology ? in->topology.n_ranks : in->ranks, rows = in->load.n_layers;
    in->bytes = s->bytes > 0 ? s->bytes : 2.0 * in->load.hidden; // engines send bfloat16
    in->costs_options = (cot_costs_options){.size = sizeof in->costs_options,
                                            .metric = {s->distance > 0, in->bytes > 0 ? in->bytes : 14336},
                                            .dispatch = (cot_dispatch)s->dispatch};
    if (s->distance == 0 && in->topology.measured) in->costs_options.metric.cost = true;
    if (s->cost && !(in->matrix = cli_read_matrix(s->cost, "cost", &rows, &ranks))) return CLI_EXIT_FAILURE;
    in->costs_options.cost = in->matrix;
    if (!ranks) {
        cli_complain("no cluster given: --topology SPEC|FILE, --ranks NODESxRANKS, --cost COST.json, or "
                     "--ranks S where distance is nothing");
        return CLI_EXIT_USAGE;
    }
    in->costs_options.n_ranks = ranks;
    if (in->has_topology && !choose_attention(in, s, ranks)) return CLI_EXIT_FAILURE;
    if (cot_costs_open(&in->costs, &in->load, in->has_topology ? &in->topology : NULL, &in->costs_options,
                       &error) != COT_OK)
        return cli_complain_of(&error);
    return choose_options(in, s);
}

static void close_load(cli_place_inputs *in)
{
    cot_costs_free(&in->costs);
    cot_load_counts_free(&in->load);
    free(in->capacity);
    free(in->matrix);
    free(in->dispatch);
    free(in->collect);
}

void cli_place_close(cli_place_inputs *in)
{
    close_load(in);
    cot_topology_free(&in->topology);
}
