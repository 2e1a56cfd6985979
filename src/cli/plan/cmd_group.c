/* `coterie group`. */
#include "cli/plan/cmd_group.h"

#include "cli/frame/clock.h"
#include "cli/plan/cluster.h"
#include "cli/commands.h"
#include "cli/frame/paths.h"
#include "cli/frame/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_METHODS = 16 };

/* "coterie,ce" or "all", into names of methods; 0 after saying what is wrong. */
static size_t parse_methods(const char **name, const char *text)
{
    size_t n = 0;
    const bool all = !strcmp(text, "all");
    for (const cot_group_method *m = cot_group_methods; all && m->name && n < MOST_METHODS; m++)
        name[n++] = m->name;
    for (const char *at = text; !all; at += strcspn(at, ",") + 1) {
        const size_t length = strcspn(at, ",");
        const cot_group_method *m = cot_group_methods;
        while (m->name && (strlen(m->name) != length || strncmp(m->name, at, length) != 0)) m++;
        if (!m->name || n == MOST_METHODS) {
            cli_complain("--method '%s' names no way to group: one of them, a list, or all; see --help",
                         text);
            return 0;
        }
        name[n++] = m->name;
        if (!at[length]) break;
    }
    return n;
}

/* Within a node IN, between two OUT. */
static int parse_costs(cli_group_inputs *in, const cli_group_settings *s)
{
    char *end;
    in->cost_in = 1;
    in->cost_out = 10;
    if (s->link_cost) {
        in->cost_in = strtod(s->link_cost, &end);
        const bool two = *end == ',';
        in->cost_out = two ? strtod(end + 1, &end) : 0;
        if (!two || *end || !(in->cost_in >= 0) || !(in->cost_out > 0) || in->cost_in > in->cost_out ||
            in->cost_out > 1e12) {
            cli_complain("--link-cost '%s' is not IN,OUT with 0 <= IN <= OUT", s->link_cost);
            return CLI_EXIT_USAGE;
        }
    }
    if (s->shrink > 0 && (s->nodes > 1 || s->joint))
        return cli_complain("--shrink goes neither with --nodes nor with --joint");
    if (s->nodes > 1 && s->ranks % s->nodes)
        return cli_complain("%" PRId64 " nodes do not divide %" PRId64 " ranks", s->nodes, s->ranks);
    return CLI_EXIT_OK;
}

static int open_topology(cli_group_inputs *in, const cli_group_settings *s)
{
    cot_topology topology = {0};
    cot_error error = {0};
    if (!s->topology) return CLI_EXIT_OK;
    if (!cli_open_topology(&topology, s->topology,
                           &(cli_topology_settings){s->hosts, s->nvlink, (int32_t)s->ranks}))
        return CLI_EXIT_FAILURE;
    int status = CLI_EXIT_OK;
    const size_t D = (size_t)topology.n_ranks;
    if (topology.n_ranks != s->ranks)
        status = cli_complain("the topology has %" PRId32 " ranks, not %" PRId64, topology.n_ranks, s->ranks);
    else if (!(in->distance = malloc(D * D * sizeof *in->distance)))
        status = cli_complain("out of memory for distances");
    else if (cot_topology_distances(
                 in->distance, &topology,
                 (cot_metric){topology.measured, in->trace.hidden ? 2.0 * in->trace.hidden : 14336},
                 &error) != COT_OK)
        status = cli_complain_of(&error);
    cot_topology_free(&topology);
    return status;
}

static int open_inputs(cli_group_inputs *in, const cli_group_settings *s)
{
    cot_error error = {0};
    int status = open_topology(in, s);
    if (status == CLI_EXIT_OK) status = parse_costs(in, s);
    if (status == CLI_EXIT_OK) status = cli_open_trace(&in->trace, &in->ids, s->trace, s->tokenizer);
    if (status != CLI_EXIT_OK) return status;
    if (s->embeddings && (status = cli_open_embeddings(&in->embeddings, &in->embedding, &in->trace,
                                                       s->embeddings)) != CLI_EXIT_OK)
        return status;
    if (s->split < 1 && in->trace.kind == COT_TRACE_TOKENS &&
        cli_draw_training(&in->training, &in->trace, s->split, (uint64_t)s->seed, &error) != COT_OK)
        return cli_complain_of(&error);
    if (in->trace.kind == COT_TRACE_COUNTS)
        cli_complain("note: counts have no sequences to split: all of them are learnt from");
    cli_progress progress = {"counting", 0};
    cli_progress_show(&progress, 0, 0);
    const cot_status counted = cot_affinities_count(&in->affinities, &in->trace, in->training, &error);
    cli_progress_end(&progress);
    if (counted != COT_OK) return cli_complain_of(&error);
    if (!in->affinities.token_ids)
        cli_complain(
            "note: no token has an id: positions are grouped, to compare solvers; they do not recur");
    else if (in->affinities.n_tokens == 1)
        cli_complain("note: there is a single token id to learn from");
    return CLI_EXIT_OK;
}

static void close_inputs(cli_group_inputs *in)
{
    cot_affinities_free(&in->affinities);
    cot_trace_close(&in->trace);
    free(in->ids);
    free(in->training);
    free(in->embedding);
    free(in->distance);
}

enum { SECONDS = 10 }; // unless it is said

/* Shows how far a method is, and ends it when the next round would probably end late. */
typedef struct pace {
    cli_progress progress;
    const char *then; // what goes on after the rounds
    int64_t threads;  // above 0: processor time of so many is what counts
    double start, now, seconds;
} pace;

/* Of the clock; or of the processor, so much for each thread: other programs, and threads that wait, do not count. */
static double pace_now(const pace *p)
{
    struct timespec t;
    if (!p->threads) return cli_seconds_now();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return ((double)t.tv_sec + (double)t.tv_nsec * 1e-9) / (double)p->threads;
}

static bool proceed(void *context, int64_t done, int64_t all)
{
    pace *p = context;
    const double now = pace_now(p), last = now - p->now;
    p->now = now;
    if (all)
        cli_progress_show(&p->progress, (uint64_t)done, (uint64_t)all);
    else
        cli_progress_show(&p->progress, (uint64_t)((now - p->start) * 1000), (uint64_t)(p->seconds * 1000));
    const bool go_on = all || now + last < p->start + p->seconds;
    if (!go_on && done) {
        p->progress.what = p->then;
        cli_progress_show(&p->progress, 0, 0);
    }
    return go_on;
}

/* Each works at a layer of its own; over nodes one does at all. */
static int64_t working_threads(const cli_group_settings *s, const cli_group_inputs *in)
{
    if (s->nodes > 1) return 1;
    return s->threads < in->affinities.n_layers ? s->threads : in->affinities.n_layers;
}

static int solve(cli_grouped *g, const char *method, const cli_group_settings *s, const cli_group_inputs *in)
{
    cot_error error = {0};
    pace p = {.progress = {.what = method},
              .then = s->joint ? "joining layers" : "naming ranks",
              .threads = s->processor ? working_threads(s, in) : 0,
              .seconds = s->seconds > 0 ? s->seconds : SECONDS};
    p.start = pace_now(&p);
    const cot_group_solve_options options = {.size = sizeof options,
                                             .group = {.size = sizeof options.group,
                                                       .method = method,
                                                       .ranks = (int32_t)s->ranks,
                                                       .token_balance = s->token_balance,
                                                       .expert_load = s->expert_load,
                                                       .seed = (uint64_t)s->seed},
                                             .iterations = s->iterations,
                                             .threads = (int32_t)s->threads,
                                             .nodes = (int32_t)s->nodes,
                                             .cost_in = in->cost_in,
                                             .cost_out = in->cost_out,
                                             .shrink = s->shrink * in->trace.top_k,
                                             .joint = s->joint,
                                             .stay_weight = s->stay_weight,
                                             .distance = in->distance,
                                             .move_weight = 1.0 / in->trace.top_k,
                                             .proceed = proceed,
                                             .context = &p};
    *g = (cli_grouped){.method = method};
    const cot_status status = cot_group_solve(&g->found, &in->affinities, &options, &error);
    cli_progress_end(&p.progress);
    g->seconds = pace_now(&p) - p.start;
    return status == COT_OK ? CLI_EXIT_OK : cli_complain_of(&error);
}

static void free_grouped(cli_grouped *g)
{
    cot_group_solution_free(&g->found);
    cli_prediction_rows_free(&g->row, 1);
}

static cot_status train(cot_predictor **predictor, const cli_grouped *g, const cli_group_settings *s,
                        const cli_group_inputs *in, bool every_table, cot_error *error)
{
    const bool ids = in->affinities.token_ids != NULL;
    const cot_predictor_options options = {.size = sizeof options,
                                           .ranks = g->found.groups.n_ranks,
                                           .expert_rank = g->found.groups.expert_rank,
                                           .token_ids = in->affinities.token_ids,
                                           .token_rank = ids ? g->found.groups.token_rank : NULL,
                                           .n_tokens = ids ? in->affinities.n_tokens : 0,
                                           .order = (int32_t)s->order,
                                           .chosen = in->training,
                                           .embedding = in->embedding ? &in->embeddings : NULL,
                                           .counts_only = !every_table,
                                           .seed = (uint64_t)s->seed};
    return cot_predictor_train(predictor, &in->trace, &options, error);
}

/* Sends the tokens of both parts of the trace where the groups say. */
static int measure(cli_grouped *g, const cli_group_settings *s, const cli_group_inputs *in)
{
    cot_error error = {0};
    cot_predictor *predictor = NULL;
    g->row.name = g->method;
    g->row.ranks = g->found.groups.n_ranks;
    if (!in->affinities.token_ids) return CLI_EXIT_OK;
    cli_progress progress = {"measuring", 0};
    cli_progress_show(&progress, 0, 0);
    cot_status status = train(&predictor, g, s, in, false, &error);
    if (status == COT_OK && in->training)
        status = cli_prediction_row_measure(&g->row, predictor, COT_PREDICT_TOKEN_TABLE, &in->trace,
                                            in->training, 200, &error);
    cli_progress_end(&progress);
    cot_predictor_close(predictor);
    return status == COT_OK ? CLI_EXIT_OK : cli_complain_of(&error);
}

static int write_tables(const cli_grouped *g, const cli_group_settings *s, const cli_group_inputs *in)
{
    cot_error error = {0};
    cot_predictor *predictor = NULL;
    if (!s->tables) return CLI_EXIT_OK;
    cli_progress progress = {"learning tables", 0};
    cli_progress_show(&progress, 0, 0);
    cot_status status = train(&predictor, g, s, in, true, &error);
    cli_progress_end(&progress);
    if (status == COT_OK) status = cot_predictor_write(predictor, s->tables, &error);
    if (status == COT_OK) {
        cot_predictor_info info;
        cot_predictor_describe(&info, predictor);
        for (int m = 0; m < COT_PREDICT_METHODS; m++)
            if (info.has[m])
                cli_complain("note: '%s' holds %s, %.1f kB", s->tables, cot_predict_method_names[m],
                             (double)info.table_bytes[m] * 1e-3);
    }
    cot_predictor_close(predictor);
    return status == COT_OK ? CLI_EXIT_OK : cli_complain_of(&error);
}

static int write_placement(const cli_grouped *g, const cli_group_settings *s, const cli_group_inputs *in)
{
    cot_error error = {0};
    cot_expert_map map = {0};
    if (!s->placement) return CLI_EXIT_OK;
    cot_status status = cot_layer_groups_map(&map, &g->found.groups, in->trace.layers, &error);
    map.model_hash = in->trace.model_hash;
    if (status == COT_OK) status = cot_expert_map_write(&map, s->placement, NULL, &error);
    cot_expert_map_free(&map);
    return status == COT_OK ? CLI_EXIT_OK : cli_complain_of(&error);
}

static int print(const cli_grouped *grouped, size_t n, const cli_group_settings *s,
                 const cli_group_inputs *in)
{
    if (!s->json) {
        cli_grouped_print(grouped, n, s, in);
        return CLI_EXIT_OK;
    }
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, cli_grouped_json(&grouped[i], s, in));
    return cli_print_json(list);
}

static int group(const void *context)
{
    const cli_group_settings *s = context;
    const char *method[MOST_METHODS];
    cli_grouped grouped[MOST_METHODS] = {0};
    cli_group_inputs in = {0};
    const size_t n = parse_methods(method, s->method);
    if (!n) return CLI_EXIT_USAGE;
    if (n > 1 && (s->tables || s->placement)) {
        cli_complain("--tables and --placement are those of one method, not of several");
        return CLI_EXIT_USAGE;
    }
    if (s->iterations && (s->seconds > 0 || s->processor)) {
        cli_complain("--iterations takes as long as it takes: leave out %s",
                     s->processor ? "--processor-time" : "--seconds");
        return CLI_EXIT_USAGE;
    }
    if (!cli_check_output(s->tables, "the figures") || !cli_check_output(s->placement, "the figures"))
        return CLI_EXIT_FAILURE;
    int status = open_inputs(&in, s);
    for (size_t i = 0; status == CLI_EXIT_OK && i < n; i++) {
        status = solve(&grouped[i], method[i], s, &in);
        if (status == CLI_EXIT_OK) status = measure(&grouped[i], s, &in);
    }
    if (status == CLI_EXIT_OK) status = write_tables(&grouped[0], s, &in);
    if (status == CLI_EXIT_OK) status = write_placement(&grouped[0], s, &in);
    if (status == CLI_EXIT_OK) status = print(grouped, n, s, &in);
    for (size_t i = 0; i < n; i++) free_grouped(&grouped[i]);
    close_inputs(&in);
    return status;
}

#define AT(field) offsetof(cli_group_settings, field)

static const cli_option group_options[] = {
    {"ranks", 0, CLI_OPTION_INTEGER, "D", "4", "ranks, each of which gets E/D experts of a layer, up or down",
     AT(ranks), .least = 1, .most = COT_TRACE_MAX_RANKS},
    {"method", 0, CLI_OPTION_TEXT, "M", "coterie",
     "coterie, ce or ce-joint (cross-entropy), metis, kmeans, spectral, consecutive (experts in blocks as "
     "they are numbered, where --expert-load allows it); a list of them, or all",
     AT(method)},
    {"seconds", 0, CLI_OPTION_REAL, "S", NULL, "time for each method, all layers together; default: 10",
     AT(seconds), .min = 1e-3, .max = 1e6},
    {"processor-time", 0, CLI_OPTION_FLAG, NULL, NULL,
     "count --seconds of the processor, for each thread that has a layer (one with --nodes): solvers get "
     "the same whatever else runs",
     AT(processor)},
    {"iterations", 0, CLI_OPTION_INTEGER, "N", NULL,
     "instead of a time: so many rounds, which repeat a result exactly", AT(iterations), .least = 1,
     .most = INT32_MAX},
    {"token-balance", 0, CLI_OPTION_REAL, "F", "0.1",
     "a rank's tokens have at most 1 + F of the mean rank's load, in training; more, and that is said, where "
     "they cannot be divided so, as one token may be heavier",
     AT(token_balance), .min = 0, .max = 1e6},
    {"expert-load", 0, CLI_OPTION_REAL, "X", NULL,
     "limit of the load of a rank's experts, in mean ranks' loads (1.2)", AT(expert_load), .min = 1,
     .max = 1e6},
    {"shrink", 0, CLI_OPTION_REAL, "N", "0",
     "group experts for tokens that are mixed with the mean of all, half and half where one is seen N times "
     "(64); it may help "
     "on other kinds of text; 0: not",
     AT(shrink), .min = 0, .max = 1e6},
    {"split", 0, CLI_OPTION_REAL, "X", "0.2", "share of the sequences that is learnt from; 1: all, no test",
     AT(split), .min = 0, .max = 1},
    {"tokenizer", 0, CLI_OPTION_TEXT, "FILE", NULL,
     "a tokenizer.json: token strings of the trace become its ids, and so those of the tables",
     AT(tokenizer)},
    {"seed", 0, CLI_OPTION_INTEGER, "N", "1", "of the split and of the solvers", AT(seed), .least = 0,
     .most = INT64_MAX},
    {"threads", 0, CLI_OPTION_INTEGER, "N", "2", "threads, over layers", AT(threads), .least = 1,
     .most = 256},
    {0}};

static const cli_option network_options[] = {
    {"topology", 0, CLI_OPTION_TEXT, "SPEC|FILE", NULL,
     "seat the groups on this cluster so that traffic goes few hops", AT(topology)},
    {"hosts", 0, CLI_OPTION_TEXT, "FILE", NULL, CLI_TOPOLOGY_HOSTS_TEXT, AT(hosts)},
    {"nvlink", 0, CLI_OPTION_TEXT, "all|FILE", NULL, CLI_TOPOLOGY_NVLINK_TEXT, AT(nvlink)},
    {"nodes", 0, CLI_OPTION_INTEGER, "N", NULL, "group over nodes first, then over each node's ranks",
     AT(nodes), .least = 1, .most = COT_TRACE_MAX_RANKS},
    {"link-cost", 0, CLI_OPTION_TEXT, "IN,OUT", "1,10",
     "what an activation costs within a node and between two, with --nodes", AT(link_cost)},
    {"joint", 0, CLI_OPTION_FLAG, NULL, NULL,
     "group for both: local activations, and tokens that stay on their rank in the next layer", AT(joint)},
    {"stay-weight", 0, CLI_OPTION_REAL, "X", "0.25",
     "what a token's staying is worth beside local activations of its load, with --joint", AT(stay_weight),
     .min = 0, .max = 1e6},
    {0}};

static const cli_option output_options[] = {
    {"tables", 0, CLI_OPTION_TEXT, "T", NULL, "write the predictors' tables there (safetensors)", AT(tables)},
    {"placement", 0, CLI_OPTION_TEXT, "P", NULL,
     "write the placement there; coterie place convert makes engines' maps of it", AT(placement)},
    {"embeddings", 0, CLI_OPTION_TEXT, "MODEL", NULL,
     "a checkpoint folder: tables look unknown tokens up as the known one whose embedding is nearest",
     AT(embeddings)},
    {"order", 0, CLI_OPTION_INTEGER, "N", "2", "layers that device sequences look back at", AT(order),
     .least = 1, .most = COT_PREDICT_MAX_ORDER},
    {"json", 0, CLI_OPTION_FLAG, NULL, NULL, "write an array, an object a method", AT(json)},
    {0}};

const cli_command cli_cmd_group = {
    .name = "group",
    .summary = "group experts that are used together, and tokens with them",
    .details =
        "Experts of a layer and token ids are divided among ranks so that most (token, expert) "
        "activations happen on the "
        "rank where the token is sent (LAR, the local activation rate), with even shares of tokens. "
        "Groups are learnt from "
        "a share of the trace's sequences and measured on the others; ranks of neighbouring layers "
        "are then named so that "
        "tokens stay where they are. Groups that ignore how much experts are used overload a rank: "
        "see the peaks, and "
        "--expert-load.\n\n"
        "Columns. LAR train: of the groups found, on the sequences learnt from; none above: a bound that "
        "no groups exceed there. test LAR: on the other sequences, sending each token where its id's "
        "group is; and where 95 % of the bootstrap's lie. even LAR: where of every 512 tokens each rank "
        "takes an even share. oracle LAR: each token on the best rank for the experts that it calls. "
        "rounds: of the solver, over all layers, in so many seconds. token imbalance: the busiest rank's "
        "tokens over the mean; home peak: the same of each 512 test tokens; expert peak: activations of "
        "the busiest rank's experts over the mean. stays in next: share of the load whose rank is the "
        "same in the next layer, before ranks were named for that and after. By layer, optimal means "
        "proven to be.",
    .examples =
        (const char *const[]){
            "coterie group trace.safetensors --ranks 8 --seconds 2 --tables T.safetensors --placement P.json",
            "coterie group trace.safetensors --ranks 4 --method all --seconds 1", NULL},
    .options = {.groups = (const cli_option_group[]){{"Groups", group_options, 0},
                                                     {"Network", network_options, 0},
                                                     {"Output", output_options, 0},
                                                     {0}},
                .positionals =
                    (const cli_positional[]){
                        {"TRACE", 1, 1, "a routing trace of any format that coterie trace reads", AT(trace)},
                        {0}}},
    .settings_bytes = sizeof(cli_group_settings),
    .run = group,
};
