/* `coterie bench drift`: what it is worth to move experts when what is asked changes. */
#include "cli/commands.h"
#include "cli/bench/drift_costs.h"
#include "cli/bench/drift_report.h"
#include "cli/frame/clock.h"
#include "cli/frame/paths.h"
#include "cli/frame/progress.h"
#include "cli/plan/cmd_predict.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct settings {
    const char *first, *second, *sequences, *shape, *costs, *precision, *plot;
    int64_t ranks, spare, width, second_width, steps, interval, cool_down, moves_a_cycle, seed;
    double link;
    bool json;
};

/* ---- which sequences ---- */

/* Marks sequences of a list such as 0-3,7. */
static bool mark_list(bool *chosen, int64_t n, const char *text)
{
    for (const char *at = text; *at;) {
        char *end;
        errno = 0;
        const long long from = strtoll(at, &end, 10);
        const long long to = *end == '-' ? strtoll(end + 1, &end, 10) : from;
        if (end == at || errno || from < 0 || to < from || to >= n || (*end && *end != ',') ||
            (*end && !end[1])) {
            cli_complain("--first takes sequences such as 0-3,7, each below %lld, not '%s'", (long long)n,
                         text);
            return false;
        }
        for (long long i = from; i <= to; i++) chosen[i] = true;
        at = *end ? end + 1 : end;
    }
    return true;
}

/* The sequences that hold tokens: all, or those that are (not) chosen. */
static bool list_half(cot_bench_drift_half *half, const cot_trace *trace, const bool *chosen, bool which)
{
    int32_t *list = malloc((size_t)(trace->n_sequences + 1) * sizeof *list);
    *half = (cot_bench_drift_half){.trace = trace, .sequence = list};
    if (!list) {
        cli_complain("out of memory for %lld sequences", (long long)trace->n_sequences);
        return false;
    }
    for (int32_t i = 0; i < trace->n_sequences; i++)
        if ((!chosen || chosen[i] == which) && trace->sequence_offsets[i + 1] > trace->sequence_offsets[i])
            list[half->sequences++] = i;
    return true;
}

static bool open_tokens(cot_trace *trace, const char *path)
{
    int32_t *ids; // of a tokenizer, which there is none of
    if (cli_open_trace(trace, &ids, path, NULL) != CLI_EXIT_OK) return false;
    if (trace->kind == COT_TRACE_TOKENS) return true;
    cli_complain("'%s' has counts, no token's routing", path);
    return false;
}

static bool open_halves(cot_bench_drift_half half[2], cot_trace trace[2], const struct settings *s)
{
    if (!open_tokens(&trace[0], s->first)) return false;
    if (s->second)
        return open_tokens(&trace[1], s->second) && list_half(&half[0], &trace[0], NULL, true) &&
               list_half(&half[1], &trace[1], NULL, true);
    bool *chosen = calloc((size_t)trace[0].n_sequences + 1, sizeof *chosen);
    const bool good = chosen && mark_list(chosen, trace[0].n_sequences, s->sequences) &&
                      list_half(&half[0], &trace[0], chosen, true) &&
                      list_half(&half[1], &trace[0], chosen, false);
    free(chosen);
    return good;
}

/* ---- what things take ---- */

static const cot_bench_shape *find_shape(const char *name)
{
    const cot_bench_shape *s = cot_bench_shapes;
    while (s->name && strcmp(s->name, name) != 0) s++;
    return s->name ? s : NULL;
}

static bool parse_costs(cot_bench_drift_costs *c, const char *text)
{
    double us[3];
    char end;
    if (sscanf(text, "%lf,%lf,%lf%c", &us[0], &us[1], &us[2], &end) != 3 ||
        !(us[0] >= 0 && us[1] >= 0 && us[2] >= 0) || !(us[1] + us[2] > 0 && us[0] + us[1] + us[2] < 1e12)) {
        cli_complain("--costs takes LAYER,EXPERT,ROW in microseconds, 0 or more each, not '%s'", text);
        return false;
    }
    c->layer_ns = us[0] * 1e3;
    c->expert_ns = us[1] * 1e3;
    c->row_ns = us[2] * 1e3;
    return true;
}

/* Bytes of an expert's three matrices, and of a row, as bf16. */
static double expert_bytes(const cot_bench_shape *s)
{
    return 2 * 3 * (double)s->hidden * (double)s->intermediate;
}

static bool find_costs(cli_drift_told *told, cot_bench_drift_costs *c, const struct settings *s,
                       const cot_bench_shape *shape)
{
    told->fit_error = -1;
    if (s->costs ? !parse_costs(c, s->costs) : !cli_drift_measure(c, &told->fit_error, shape, s->precision))
        return false;
    c->send_ns = 2 * 2 * (double)shape->hidden * 1e9 / s->link;
    c->copy_ns = told->expert_bytes * 1e9 / s->link;
    return true;
}

/* ---- the command ---- */

static void on_progress(void *context, int done, int total)
{
    cli_progress_show(context, (uint64_t)done, (uint64_t)total);
}

static int run_drift(const struct settings *s, const cot_bench_shape *shape, cot_bench_drift_half half[2])
{
    cli_progress progress = {"replaying", cli_now_ns()};
    cot_bench_drift_options o = {.size = sizeof o,
                                 .half = {half[0], half[1]},
                                 .ranks = (int32_t)s->ranks,
                                 .spare = (int32_t)s->spare,
                                 .steps = s->steps,
                                 .interval = s->interval,
                                 .cool_down = (int32_t)s->cool_down,
                                 .moves_a_cycle = s->moves_a_cycle,
                                 .seed = (uint64_t)s->seed,
                                 .context = &progress,
                                 .progress = on_progress};
    o.half[0].width = (int32_t)s->width;
    o.half[1].width = (int32_t)(s->second_width ? s->second_width : s->width);
    cot_bench_drift drift;
    cot_error error;
    cli_drift_told told = {
        .drift = &drift, .options = &o, .shape = shape->name, .expert_bytes = expert_bytes(shape)};
    if (!find_costs(&told, &o.costs, s, shape)) return CLI_EXIT_FAILURE;
    cot_status status = cot_bench_drift_run(&drift, &o, &error);
    cli_progress_end(&progress);
    bool good = status == COT_OK;
    if (!good) cli_complain_of(&error);
    if (good) (s->json ? cli_drift_print_json : cli_drift_print)(&told);
    if (good && s->plot) good = cli_drift_plot(&told, s->plot);
    cot_bench_drift_free(&drift);
    return good ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}

static int bench_drift(const void *settings)
{
    const struct settings *s = settings;
    const cot_bench_shape *shape = find_shape(s->shape);
    if (!shape) {
        cli_complain("there is no shape '%s' (gpt-oss, deepseek-v2-lite, olmoe, qwen3-30b, mixtral)",
                     s->shape);
        return CLI_EXIT_USAGE;
    }
    if (!s->second == !s->sequences) {
        cli_complain("give a second TRACE or --first%s", s->second ? ", not both" : "");
        return CLI_EXIT_USAGE;
    }
    if (!cli_check_output(s->plot, "the figures")) return CLI_EXIT_USAGE;
    cot_trace trace[2] = {{0}, {0}};
    cot_bench_drift_half half[2] = {{0}, {0}};
    int status = open_halves(half, trace, s) ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
    if (status == CLI_EXIT_OK && (shape->experts != trace[0].n_experts || shape->top_k != trace[0].top_k)) {
        cli_complain("'%s' has %d of %d experts a token, %s has %lld of %lld", s->first, (int)trace[0].top_k,
                     (int)trace[0].n_experts, shape->name, (long long)shape->top_k,
                     (long long)shape->experts);
        status = CLI_EXIT_FAILURE;
    }
    if (status == CLI_EXIT_OK) status = run_drift(s, shape, half);
    for (int i = 0; i < 2; i++) {
        free((int32_t *)half[i].sequence);
        cot_trace_close(&trace[i]);
    }
    return status;
}

#define AT(field) offsetof(struct settings, field)
static const cli_option options[] = {
    {"first", 0, CLI_OPTION_TEXT, "LIST", NULL,
     "with one TRACE: its sequences of the first half, such as 0-3,7; the others are the second",
     AT(sequences)},
    {"shape", 0, CLI_OPTION_TEXT, "NAME", "gpt-oss", "whose experts' size counts, see bench moe", AT(shape)},
    {"ranks", 'P', CLI_OPTION_INTEGER, "P", "8", "ranks", AT(ranks), .least = 1, .most = COT_TRACE_MAX_RANKS},
    {"spare", 0, CLI_OPTION_INTEGER, "N", "8", "slots of a layer beyond its experts, a multiple of the ranks",
     AT(spare), .least = 0, .most = 1 << 16},
    {"width", 0, CLI_OPTION_INTEGER, "N", "64", "sequences that run at a time", AT(width), .least = 1,
     .most = 4096},
    {"second-width", 0, CLI_OPTION_INTEGER, "N", "0", "the same of the second half; 0: as in the first",
     AT(second_width), .least = 0, .most = 4096},
    {"steps", 0, CLI_OPTION_INTEGER, "N", "512",
     "steps of each half, a multiple of the interval; sequences come again where they are too few", AT(steps),
     .least = 1, .most = 1 << 24},
    {"interval", 0, CLI_OPTION_INTEGER, "N", "64",
     "steps from one cycle to the next, in which counts halve, too", AT(interval), .least = 1,
     .most = 1 << 24},
    {"cool-down", 0, CLI_OPTION_INTEGER, "N", "1", "intervals that an expert stays where it came",
     AT(cool_down), .least = 1, .most = 1000},
    {"moves-a-cycle", 0, CLI_OPTION_INTEGER, "N", "64",
     "most moves of a cycle, over all layers; what one leaves the next may make, too", AT(moves_a_cycle),
     .least = 1, .most = 1 << 30},
    {"link", 0, CLI_OPTION_REAL, "R", "10e9", "bytes a second at which rows and experts go from rank to rank",
     AT(link), .min = 1, .max = 1e15},
    {"costs", 0, CLI_OPTION_TEXT, "LAYER,EXPERT,ROW", NULL,
     "microseconds of a rank for a layer, for an expert that is called and for each call; default: measured "
     "here, on one thread",
     AT(costs)},
    {"precision", 0, CLI_OPTION_TEXT, "NAME", "bf16", "in which that is measured: fp32, bf16 or int8",
     AT(precision)},
    {"seed", 0, CLI_OPTION_INTEGER, "N", "1", "of the order in which sequences come", AT(seed), .least = 0,
     .most = INT64_MAX},
    {"plot", 0, CLI_OPTION_TEXT, "FILE", NULL, "draw tokens a second over intervals as SVG", AT(plot)},
    {"json", 0, CLI_OPTION_FLAG, NULL, NULL, "print JSON", AT(json)},
    {0}};

const cli_command cli_cmd_bench_drift = {
    .name = "bench drift",
    .summary = "compare ways to move experts when what is asked changes",
    .details = "A recording whose domain changes half-way is replayed through the engine's loop under "
               "several ways to place experts. "
               "No rank computes: steps are judged by what a rank takes for a layer, which is measured "
               "first, or given. Rows: "
               "consecutive experts; the best placement found for each half, which knows what is to come; "
               "EPLB every interval; the "
               "most called experts in the spare slots; and rebalancing by load, and jointly by load and "
               "sends. docs/PLACEMENT_NUMBERS.md "
               "has figures.",
    .examples =
        (const char *const[]){"coterie bench drift gpt-oss.safetensors --first 0 --plot drift.svg",
                              "coterie bench drift gpt-oss.safetensors --first 0 --costs 4239,352.6,380.2",
                              NULL},
    .options = {.groups = (const cli_option_group[]){{"Options", options, 0}, {0}},
                .positionals =
                    (const cli_positional[]){
                        {"TRACE", 1, 1, "routing of each token, as coterie profile records it", AT(first),
                         NULL},
                        {"SECOND", 0, 1, "another one, of the second half", AT(second), NULL},
                        {0}}},
    .settings_bytes = sizeof(struct settings),
    .run = bench_drift};
