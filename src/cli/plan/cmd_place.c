/* `coterie place`. */
#include "cli/plan/cmd_place.h"

#include "cli/frame/clock.h"
#include "cli/plan/cluster.h"
#include "cli/commands.h"
#include "cli/frame/paths.h"
#include "cli/frame/progress.h"

#include <inttypes.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void note(void *context, const char *line)
{
    (void)context;
    cli_complain("note: %s", line);
}

/* Layers without load are kept in the map: expert = slot modulo E. */
static cot_status add_dense_rows(cot_expert_map *map, const cot_load_counts *load, cot_error *error)
{
    cot_expert_map all;
    if (map->n_layers == load->n_layers) return COT_OK;
    cot_status status =
        cot_expert_map_new(&all, load->n_layers, map->n_experts, map->n_ranks, map->slots_per_rank, error);
    if (status != COT_OK) return status;
    size_t n = (size_t)map->n_ranks * (size_t)map->slots_per_rank;
    for (int32_t l = 0, at = 0; l < load->n_layers; l++) {
        int32_t *to = all.expert + (size_t)l * n;
        all.layers[l] = load->layers[l];
        all.dense[l] = at == map->n_layers || map->layers[at] != load->layers[l];
        if (!all.dense[l])
            memcpy(to, map->expert + (size_t)at++ * n, n * sizeof *to);
        else
            for (size_t i = 0; i < n; i++) to[i] = (int32_t)(i % (size_t)map->n_experts);
    }
    cot_expert_map_free(map);
    *map = all;
    return COT_OK;
}

static int write_map(const cli_place_settings *s, const cot_expert_map *map)
{
    const cot_expert_map_options options = {
        .size = sizeof options, .format = s->to, .n_layers = (int32_t)s->layers, .say = note};
    cot_error error = {0};
    if (!s->output) return CLI_EXIT_OK;
    return cot_expert_map_write(map, s->output, &options, &error) == COT_OK ? CLI_EXIT_OK
                                                                            : cli_complain_of(&error);
}

static int solve(cli_placed *placed, cli_place_inputs *in)
{
    cot_error error = {0};
    double start = cli_seconds_now();
    cot_place_proof *proof;
    cli_progress progress = {"placing", 0};
    cli_progress_show(&progress, 0, 0);
    cot_status status = cot_place(&placed->map, &proof, &in->costs, &in->options, &error);
    placed->milliseconds = 1e3 * (cli_seconds_now() - start);
    placed->moves = -1;
    if (status == COT_OK)
        status = cot_place_value_of(&placed->value, &placed->map, &in->costs, in->options.dispatch, &error);
    if (status == COT_OK) status = cot_place_prove(&placed->value, proof, &error);
    cot_place_proof_free(proof);
    if (status == COT_OK) status = cot_place_verify(&placed->map, &in->costs, &in->options, &error);
    cli_progress_end(&progress);
    return status == COT_OK ? CLI_EXIT_OK : cli_complain_of(&error);
}

/* From a running placement to the new one: methods with replicas keep what they can of it. */
static cot_status replan(cli_placed *placed, const cli_place_settings *s, const cli_place_inputs *in,
                         cot_error *error)
{
    const bool keep = placed->has_replicas;
    cot_expert_map *current = &placed->current, better;
    const cot_expert_map_options options = {.size = sizeof options,
                                            .first_layer = (int32_t)s->first_layer,
                                            .ranks = in->costs.n_ranks,
                                            .say = note};
    cot_status status = !strcmp(s->current, "contiguous")
                            ? cli_place_contiguous(current, in, placed, error)
                            : cot_expert_map_read(current, s->current, &options, error);
    if (status != COT_OK) return status;
    if (keep) {
        const cot_replan_options replan_options = {.size = sizeof replan_options,
                                                   .peak = placed->value.peak_load,
                                                   .slots_per_rank = placed->map.slots_per_rank,
                                                   .max_moves = s->max_moves,
                                                   .move_cost = s->move_cost,
                                                   .fresh = &placed->map};
        double start = cli_seconds_now();
        status = cot_place_replan(&better, &placed->moves, current, &in->costs, &replan_options, error);
        placed->milliseconds += 1e3 * (cli_seconds_now() - start);
        if (status == COT_OK) {
            cot_expert_map_free(&placed->map);
            double *bound = placed->value.peak_bound; // of any placement with so many slots
            placed->value.peak_bound = NULL;
            cot_place_value_free(&placed->value);
            placed->map = better;
            status =
                cot_place_value_of(&placed->value, &placed->map, &in->costs, in->options.dispatch, error);
            if (status == COT_OK) {
                free(placed->value.peak_bound);
                placed->value.peak_bound = bound;
            } else
                free(bound);
        }
    }
    if (status == COT_OK && keep) status = cot_place_verify(&placed->map, &in->costs, &in->options, error);
    if (status == COT_OK) status = cot_place_moves(&placed->moves, current, &placed->map, error);
    if (status == COT_OK)
        status = cot_place_transfers(&placed->transfers, &placed->n_transfers, &placed->rounds, current,
                                     &placed->map, error);
    return status;
}

/* The method's row; the one without a name where it is none. */
static const cot_place_method *method_of(const cli_place_inputs *in)
{
    const cot_place_method *m = cot_place_methods;
    while (m->name && strcmp(m->name, in->options.method)) m++;
    return m;
}

static int change(cli_placed *placed, const cli_place_settings *s, const cli_place_inputs *in)
{
    cot_error error = {0};
    placed->has_replicas = method_of(in)->replicas; // those placements are changed, others made afresh
    if (!s->current) return CLI_EXIT_OK;
    if (!placed->has_replicas && (s->max_moves >= 0 || s->move_cost > 0))
        return cli_complain("--max-moves and --move-cost limit the moves of balance, eplb, eplb-swap and "
                            "replicate: the optimum of "
                            "another method is what it is");
    cli_progress progress = {"replanning", 0};
    cli_progress_show(&progress, 0, 0);
    const cot_status status = replan(placed, s, in, &error);
    cli_progress_end(&progress);
    return status == COT_OK ? CLI_EXIT_OK : cli_complain_of(&error);
}

static const cot_expert_map_format *format_of(const char *name)
{
    const cot_expert_map_format *f = cot_expert_map_formats;
    while (f->name && strcmp(f->name, name)) f++;
    return f;
}

/* Whether all ranks are sure to get as many experts, where the format of --to needs that: methods with replicas fill every
 * slot, others do where no rank may hold more than an even share. */
static bool map_fits_format(const cli_place_settings *s, const cli_place_inputs *in)
{
    const int32_t E = in->costs.n_experts, S = in->costs.n_ranks;
    const cot_place_method *method = method_of(in); // an unknown one is refused by the solver
    bool even = E % S == 0;
    for (int32_t r = 0; in->options.c_layer && !in->options.slots && r < S; r++)
        even = even && in->options.c_layer[r] <= E / S;
    if (!s->output || format_of(s->to)->empty_slots || !method->name || method->replicas || even) return true;
    cli_complain("--to %s needs as many experts on every rank, which %s does not give %" PRId32
                 " experts on %" PRId32
                 " ranks%s: --method balance fills every slot, with replicas; --to coterie "
                 "writes unequal ranks",
                 s->to, method->name, E, S, E % S ? "" : " where --c-layer lets some have more");
    return false;
}

/* Whether it is known which of the model's layers the load's rows are. Those of formats without layer numbers may be the MoE layers
 * alone, where the model has more layers than there are rows. */
static bool rows_are_known(const cli_place_settings *s, const cot_load_counts *load)
{
    const bool numbered = strcmp(load->format, "vllm") != 0 && strcmp(load->format, "logical_count") != 0;
    if (s->layers <= load->n_layers || numbered || cli_options_has(&s->given, "first-layer")) return true;
    cli_complain("the load has %" PRId32 " rows, --layers says %" PRId64
                 ": which are they? --first-layer N says the first (3 for DeepSeek-R1)",
                 load->n_layers, s->layers);
    return false;
}

static int place_load(const cli_place_settings *s, cli_place_inputs *in)
{
    cli_placed placed = {0};
    cli_place_side sides[2] = {0};
    cot_error error = {0};
    const size_t named = s->loads.count, n = named + s->more.count;
    const char **paths = malloc(n * sizeof *paths);
    if (!paths) return cli_complain("out of memory");
    for (size_t i = 0; i < n; i++)
        paths[i] = i < named ? s->loads.items[i].text : s->more.items[i - named].text;
    int status = cli_place_open_load(in, s, paths, n);
    if (status == CLI_EXIT_OK && !rows_are_known(s, &in->load)) status = CLI_EXIT_USAGE;
    if (status == CLI_EXIT_OK && !map_fits_format(s, in)) status = CLI_EXIT_USAGE;
    if (status == CLI_EXIT_OK) status = solve(&placed, in);
    if (status == CLI_EXIT_OK) status = change(&placed, s, in);
    if (status == CLI_EXIT_OK) status = cli_place_compare(sides, s, in, &placed);
    if (status == CLI_EXIT_OK && s->report) status = cli_place_report(s, in, &placed, sides);
    if (status == CLI_EXIT_OK && add_dense_rows(&placed.map, &in->load, &error) != COT_OK)
        status = cli_complain_of(&error);
    if (status == CLI_EXIT_OK) status = write_map(s, &placed.map);
    if (status == CLI_EXIT_OK && s->moves) status = cli_place_write_moves(s->moves, &placed);
    if (status == CLI_EXIT_OK) status = cli_place_print(s, in, &placed, sides);
    if (status == CLI_EXIT_OK && s->output) {
        fflush(stdout); // where both streams go to one file, the options come last there, too
        if (cli_place_say_launch(s->to, s->output, &placed.map, &error) != COT_OK)
            status = cli_complain_of(&error);
    }
    for (int i = 0; i < 2; i++) cli_place_close_side(&sides[i]);
    cot_expert_map_free(&placed.map);
    cot_expert_map_free(&placed.current);
    cot_place_value_free(&placed.value);
    free(placed.transfers);
    free(paths);
    return status;
}

/* Options that would do nothing, or fail after all work is done. */
static bool options_fit(const cli_place_settings *s)
{
    if (!format_of(s->to)->name)
        cli_complain("--to '%s' is no format of placements", s->to);
    else if (!s->output && (strcmp(s->to, cot_expert_map_formats[0].name) || s->layers))
        cli_complain("--to and --layers need -o OUT: no placement is written without it");
    else if (!s->current && (s->max_moves >= 0 || s->move_cost > 0 || s->moves || s->expert_bytes > 0))
        cli_complain(
            "--max-moves, --move-cost, --moves and --expert-bytes need --current PLACEMENT: what runs now");
    else if (s->link > 0 && !(s->expert_bytes > 0))
        cli_complain("--link needs --expert-bytes: what goes over it");
    else
        return true;
    return false;
}

static int place(const void *context)
{
    const cli_place_settings *s = context;
    cli_place_inputs in = {0};
    const bool alone = s->more.count && !s->evaluate && !s->drift.count;
    int tasks = (s->loads.count > 0 || alone) + (s->evaluate != NULL) + (s->drift.count > 0);
    if (tasks != 1) {
        cli_complain(tasks ? "--load, --evaluate and --drift exclude each other" : "no load given: LOAD");
        return CLI_EXIT_USAGE;
    }
    if (s->more.count && s->evaluate) {
        cli_complain("unexpected argument '%s'", s->more.items[0].text);
        return CLI_EXIT_USAGE;
    }
    if (!options_fit(s)) return CLI_EXIT_USAGE;
    if (s->cost && s->attention) {
        cli_complain("--cost stands for topology and attention: leave out --attention");
        return CLI_EXIT_USAGE;
    }
    if (!cli_check_output(s->output, "the figures") || !cli_check_output(s->report, "the figures") ||
        !cli_check_output(s->moves, "the figures"))
        return CLI_EXIT_FAILURE;
    // Memory that reading the load gave back serves the solver, instead of pages that it has to wait for.
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_TOP_PAD, 1 << 24);
    int status = cli_place_open_cluster(&in, s);
    if (status == CLI_EXIT_OK)
        status = s->evaluate      ? cli_place_run_evaluate(s, &in)
                 : s->drift.count ? cli_place_run_drift(s, &in)
                                  : place_load(s, &in);
    cli_place_close(&in);
    return status;
}

#define AT(field) offsetof(cli_place_settings, field)

static const cli_option input_options[] = {
    {"load", 0, CLI_OPTION_LIST, "FILE", NULL,
     "a routing trace, an engine's recording (file or folder; may repeat, a file a rank) or CSV "
     "layer,expert,tokens",
     AT(loads)},
    {"topology", 0, CLI_OPTION_TEXT, "SPEC|FILE", NULL,
     "the cluster: fattree:ranks=256 and the like (see coterie topology show --help), ibnetdiscover, NCCL "
     "XML or JSON",
     AT(topology)},
    {"hosts", 0, CLI_OPTION_TEXT, "FILE", NULL, CLI_TOPOLOGY_HOSTS_TEXT, AT(hosts)},
    {"nvlink", 0, CLI_OPTION_TEXT, "all|FILE", NULL, CLI_TOPOLOGY_NVLINK_TEXT, AT(nvlink)},
    {"ranks", 0, CLI_OPTION_TEXT, "S|NxR", NULL,
     "the cluster without more words: S ranks equally near, or N nodes of R ranks, a hop apart (4x8)",
     AT(ranks)},
    {"cost", 0, CLI_OPTION_TEXT, "COST.json", NULL,
     "a matrix [layers][ranks]: what an activation costs there, instead of topology and attention", AT(cost)},
    {"attention", 0, CLI_OPTION_TEXT, "paper|dp|FILE", NULL,
     "who sends a layer's tokens: dp (default: every rank, what the load says of it, else evenly), paper "
     "(rank 0 "
     "of server l, collected by the next layer's), or JSON matrices dispatch and collect [layers][ranks]",
     AT(attention)},
    {"distance", 0, CLI_OPTION_CHOICE, "KIND", "hops",
     "hops, or cost: microseconds, latency + bytes / bandwidth", AT(distance),
     .choices = (const char *const[]){"hops", "cost", NULL}},
    {"bytes", 0, CLI_OPTION_REAL, "N", NULL,
     "bytes of an activation; unless given 2 for each column of a row where the load says how many (a trace "
     "of "
     "coterie profile does), else none are told, and 14336 are taken for --distance cost",
     AT(bytes), .min = 1, .max = 1e12},
    {"first-layer", 0, CLI_OPTION_INTEGER, "N", NULL,
     "the model's first MoE layer (3 for DeepSeek-R1), for formats that count MoE layers from 0",
     AT(first_layer), .least = 0, .most = INT32_MAX},
    {"top-k", 0, CLI_OPTION_INTEGER, "K", NULL, "experts a token, where the load does not say", AT(top_k),
     .least = 1, .most = COT_TRACE_MAX_EXPERTS},
    {0}};

static const cli_option method_options[] = {
    {"method", 0, CLI_OPTION_TEXT, "M", NULL,
     "balance (default: the least peaks found, then the least cost up to 2 % above), rr, greedy, ilp, "
     "ilpload "
     "(default with --c-layer, --c-exp or --drift), eplb, eplb-swap or replicate",
     AT(method)},
    {"c-layer", 0, CLI_OPTION_TEXT, "N|FILE", NULL,
     "experts of a layer that a rank may hold; default ceil(E/S); FILE: a JSON row of one number a rank",
     AT(c_layer)},
    {"c-exp", 0, CLI_OPTION_TEXT, "N|FILE", NULL,
     "experts of all layers that a rank may hold; default ceil(L E/S)", AT(c_exp)},
    {"slots", 0, CLI_OPTION_INTEGER, "N", NULL,
     "slots of a layer on all ranks, all of them filled; balance without it fills ceil(E/S) a rank",
     AT(slots), .least = 1, .most = INT32_MAX},
    {"slots-per-rank", 0, CLI_OPTION_INTEGER, "N", NULL, "the same for each rank", AT(slots_per_rank),
     .least = 1, .most = 65536},
    {"max-load", 0, CLI_OPTION_REAL, "X", NULL,
     "limit of a rank's load in a layer, in mean ranks' loads (1.05); balance gives a layer that cannot meet "
     "it the "
     "least peak found",
     AT(max_load), .min = 1e-9, .max = 1e9},
    {"groups", 0, CLI_OPTION_INTEGER, "N", "1", "expert groups of the model, for eplb", AT(groups),
     .least = 1, .most = 65536},
    {"nodes", 0, CLI_OPTION_INTEGER, "N", "1", "servers, for eplb", AT(nodes), .least = 1, .most = 65536},
    {"dispatch", 0, CLI_OPTION_CHOICE, "HOW", "uniform",
     "how an expert's load splits over its replicas: uniform, or nearest (equally near ones share)",
     AT(dispatch), .choices = (const char *const[]){"uniform", "nearest", NULL}},
    {0}};

static const cli_option output_options[] = {
    {"output", 'o', CLI_OPTION_TEXT, "OUT", NULL, "the placement to write", AT(output)},
    {"to", 0, CLI_OPTION_TEXT, "FORMAT", "coterie",
     "coterie, sglang, vllm, tensorrt-llm, vllm-ascend or omni-infer", AT(to)},
    {"layers", 0, CLI_OPTION_INTEGER, "N", NULL,
     "layers of the model, for --to sglang, which has a row for each", AT(layers), .least = 1,
     .most = COT_TRACE_MAX_LAYERS},
    {"report", 0, CLI_OPTION_TEXT, "OUT.html", NULL,
     "write a page: distances, who talks to whom, loads of ranks and links, methods beside each other",
     AT(report)},
    {"moves", 0, CLI_OPTION_TEXT, "OUT.csv", NULL,
     "with --current: write who sends which expert to whom, a line each: round,layer,expert,from,to (round "
     "and "
     "from -1: from storage)",
     AT(moves)},
    {"json", 0, CLI_OPTION_FLAG, NULL, NULL,
     "write objective, bound, gap, peaks, whether --max-load is met, time and all moves as JSON", AT(json)},
    {0}};

static const cli_option other_options[] = {
    {"current", 0, CLI_OPTION_TEXT, "PLACEMENT", NULL,
     "the running placement: methods with replicas reach the fresh plan's balance from it with few moves; "
     "contiguous: what engines run without a map, in as many slots",
     AT(current)},
    {"max-moves", 0, CLI_OPTION_INTEGER, "N", "-1",
     "experts that ranks may fetch, over all layers; -1: as many as needed", AT(max_moves), .least = -1,
     .most = INT32_MAX},
    {"move-cost", 0, CLI_OPTION_REAL, "X", "0",
     "a move must lower its layer's peak by this many mean ranks' loads", AT(move_cost), .min = 0,
     .max = 1e9},
    {"expert-bytes", 0, CLI_OPTION_REAL, "N", NULL,
     "bytes of an expert of a layer (in bf16 6 for each of hidden x intermediate): what moves send is told",
     AT(expert_bytes), .min = 1, .max = 1e15},
    {"link", 0, CLI_OPTION_REAL, "R", NULL,
     "bytes a second from rank to rank, of each by itself: how long moves take is told", AT(link), .min = 1,
     .max = 1e15},
    {"evaluate", 0, CLI_OPTION_TEXT, "TRACE", NULL,
     "measure --placement on a trace or load instead of placing", AT(evaluate)},
    {"placement", 0, CLI_OPTION_TEXT, "P", NULL, "the placement to evaluate, in any format", AT(placement)},
    {"drift", 0, CLI_OPTION_LIST, "A B C...", NULL,
     "place on each of the loads and measure on all (paper, Table 4)", AT(drift)},
    {0}};

const cli_command cli_cmd_place = {
    .name = "place",
    .summary = "decide which expert lives on which rank of a cluster",
    .details =
        "Makes a map in which the most loaded rank of each layer has the least load found, never more than "
        "with "
        "EPLB, and of such maps one whose activations go few hops; slots beyond the experts are filled with "
        "replicas. It prints the map in use (--current), or contiguous experts, and the new one beside each "
        "other. ilpload minimises hops alone and proves it: the lower bound it prints comes from prices of "
        "capacity that anybody can check. The map is written in Coterie's own JSON unless --to names an "
        "engine's "
        "format.\n\n"
        "Lines. objective: what all activations cost on their way there and back, in hops (microseconds with "
        "--distance cost), then the mean of one, and of a token where K is known. lower bound: no placement "
        "within the capacities costs less. peak load, peak: the most loaded rank's load in a layer over the "
        "mean rank's, and a bound that no placement is below. balancedness: as the engine of --to computes "
        "it, 1 where all ranks are loaded alike; imbalance ratio: 0 there. activations that leave their "
        "node: those whose expert is on another node than their sender; their bytes, where they are known "
        "(--bytes), go there and back. "
        "moves: experts that a rank has to fetch, in rounds.\n\n"
        "With --evaluate also: link load, activations on the fullest network link, the 99th of a hundred and "
        "the mean one; LAR, the share of activations served on their token's home rank; balancedness as each "
        "engine computes it. With --drift: the cost of a token, and how much more round robin costs.",
    .examples =
        (const char *const[]){
            "coterie place --load recording.pt --ranks 4x8 --to sglang -o map.json",
            "coterie place --load counts.csv --ranks 4x8 --slots 288 --top-k 8 --to vllm -o mapping.jsonl",
            "coterie place --load recording.pt --topology fabric.txt --hosts "
            "hosts.csv --to sglang -o map.json",
            "coterie place --load trace.safetensors --topology fattree:ranks=8 --attention paper --method "
            "ilpload -o placement.json",
            NULL},
    .options = {.groups = (const cli_option_group[]){{"Input", input_options, 0},
                                                     {"Method", method_options, 0},
                                                     {"Output", output_options, 0},
                                                     {"Other tasks", other_options, 0},
                                                     {0}},
                .positionals =
                    (const cli_positional[]){{"LOAD", 0, 256,
                                              "loads, as --load takes them, or more of them for --drift",
                                              AT(more)},
                                             {0}},
                .given = AT(given)},
    .settings_bytes = sizeof(cli_place_settings),
    .run = place};
