/* `coterie trace info` and `coterie trace convert`. */
#include "cli/commands.h"

#include "cli/frame/paths.h"
#include "cli/frame/progress.h"
#include "cli/frame/terminal.h"
#include "coterie/trace.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int rank_counts[] = {2, 4, 8};
enum { RANK_COUNTS = sizeof rank_counts / sizeof *rank_counts };

/* One layer's figures, or all layers'. */
typedef struct figures {
    cot_load_spread load;
    cot_locality locality[RANK_COUNTS];
} figures;

/* `layer` [L] and `all`; returns false with `error` filled in. */
static bool measure(const cot_trace *trace, figures *layer, figures *all, cot_error *error)
{
    size_t E = (size_t)trace->n_experts, L = (size_t)trace->n_layers;
    uint64_t *load = calloc(L * E, sizeof *load);
    bool good = load != NULL;
    if (!load) *error = (cot_error){COT_OUT_OF_MEMORY, "out of memory for the experts' loads"};
    for (int32_t l = 0; good && l < trace->n_layers; l++) {
        cot_trace_load(load + (size_t)l * E, trace, l);
        good = cot_load_measure(&layer[l].load, load + (size_t)l * E, (int64_t)E, error) == COT_OK;
        for (int i = 0; good && trace->kind == COT_TRACE_TOKENS && i < RANK_COUNTS; i++) {
            cot_locality *one = &layer[l].locality[i], *sum = &all->locality[i];
            good = cot_trace_locality_measure(one, trace, l, rank_counts[i], error) == COT_OK;
            sum->tokens += one->tokens;
            sum->activations += one->activations;
            sum->local += one->local;
            sum->remote_ranks += one->remote_ranks;
        }
    }
    if (good) good = cot_load_measure(&all->load, load, (int64_t)(L * E), error) == COT_OK;
    free(load);
    return good;
}

static json_t *figures_json(const cot_trace *trace, const figures *f)
{
    json_t *o =
        json_pack("{s:I, s:f, s:f, s:f, s:I}", "activations", (json_int_t)f->load.total, "peak_over_mean",
                  f->load.peak_over_mean, "variation", f->load.variation, "top_tenth_share",
                  f->load.top_tenth_share, "unused_experts", (json_int_t)f->load.unused);
    if (trace->kind == COT_TRACE_COUNTS) return o;
    json_t *lar = json_object(), *remote = json_object();
    for (int i = 0; i < RANK_COUNTS; i++) {
        const cot_locality *x = &f->locality[i];
        char ranks[12];
        snprintf(ranks, sizeof ranks, "%d", rank_counts[i]);
        json_object_set_new(lar, ranks, json_real(cot_locality_lar(x)));
        json_object_set_new(remote, ranks, json_real(cot_locality_remote_ranks(x)));
    }
    json_object_set_new(o, "lar", lar);
    json_object_set_new(o, "remote_ranks", remote);
    return o;
}

static void collect(void *context, const char *line)
{
    json_array_append_new(context, json_string(line));
}

/* Tokens of a counts trace: the largest layer's activations over K. */
static int64_t tokens_counted(const cot_trace *trace, const figures *layer)
{
    uint64_t most = 0;
    for (int32_t l = 0; l < trace->n_layers; l++)
        if (layer[l].load.total > most) most = layer[l].load.total;
    return (int64_t)(most / (uint64_t)trace->top_k);
}

static int64_t unknown_ids(const cot_trace *trace)
{
    int64_t n = 0;
    for (int64_t t = 0; t < trace->n_tokens; t++) n += trace->token_ids[t] < 0;
    return n;
}

static int print_json(const cot_trace *trace, const figures *layer, const figures *all, json_t *warnings)
{
    bool counts = trace->kind == COT_TRACE_COUNTS;
    json_t *layers = json_array();
    for (int32_t l = 0; l < trace->n_layers; l++) {
        json_t *one = figures_json(trace, &layer[l]);
        json_object_set_new(one, "layer", json_integer(trace->layers[l]));
        json_array_append_new(layers, one);
    }
    json_t *o = json_pack("{s:s, s:s, s:i, s:i, s:i}", "kind", counts ? "counts" : "tokens", "model",
                          trace->model, "n_layers", (int)trace->n_layers, "experts", (int)trace->n_experts,
                          "top_k", (int)trace->top_k);
    json_object_set_new(o, "sequences", counts ? json_null() : json_integer(trace->n_sequences));
    json_object_set_new(o, "tokens", json_integer(counts ? tokens_counted(trace, layer) : trace->n_tokens));
    if (counts) json_object_set_new(o, "token_ids", json_integer(trace->n_tokens));
    json_object_set_new(o, "unknown_ids", json_integer(unknown_ids(trace)));
    json_object_set_new(o, "has_weights", json_boolean(trace->weights != NULL));
    json_object_set_new(o, "token_strings", json_integer(trace->n_strings));
    json_object_set_new(o, "overall", figures_json(trace, all));
    json_object_set_new(o, "layers", layers);
    json_object_set(o, "warnings", warnings);
    char *text = json_dumps(o, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    json_decref(o);
    if (!text) return cli_complain("cannot spell the figures of '%s' as JSON", trace->model);
    puts(text);
    free(text);
    return CLI_EXIT_OK;
}

static void print_figures(const cot_trace *trace, const char *name, const figures *f)
{
    printf("%-7s %10.3f %10.3f %9.1f %%", name, f->load.peak_over_mean, f->load.variation,
           100 * f->load.top_tenth_share);
    for (int i = 0; trace->kind == COT_TRACE_TOKENS && i < RANK_COUNTS; i++)
        printf("   %6.4f %6.3f", cot_locality_lar(&f->locality[i]),
               cot_locality_remote_ranks(&f->locality[i]));
    putchar('\n');
}

static void print_text(const cot_trace *trace, const figures *layer, const figures *all)
{
    bool counts = trace->kind == COT_TRACE_COUNTS;
    printf("model       %s\n", trace->model);
    printf("kind        %s\n", counts ? "counts (no order of tokens)" : "tokens");
    if (!counts) printf("sequences   %" PRId64 "\n", trace->n_sequences);
    printf("tokens      %" PRId64 "\n", counts ? tokens_counted(trace, layer) : trace->n_tokens);
    if (counts) printf("token ids   %" PRId64 "\n", trace->n_tokens);
    printf("unknown ids %" PRId64 "\n", unknown_ids(trace));
    printf("layers      %" PRId32 " (%" PRId32 " to %" PRId32 ")\n", trace->n_layers, trace->layers[0],
           trace->layers[trace->n_layers - 1]);
    printf("experts     %" PRId32 " of %" PRId32 " a token\n", trace->top_k, trace->n_experts);
    if (trace->hidden) printf("hidden      %" PRId32 " columns of a token's row\n", trace->hidden);
    putchar('\n');
    cli_heading(stdout, "layer    peak/mean  variation  top tenth ");
    for (int i = 0; !counts && i < RANK_COUNTS; i++) cli_heading(stdout, "  LAR@%-2d remote", rank_counts[i]);
    putchar('\n');
    for (int32_t l = 0; l < trace->n_layers; l++) {
        char name[12];
        snprintf(name, sizeof name, "%" PRId32, trace->layers[l]);
        print_figures(trace, name, &layer[l]);
    }
    print_figures(trace, "all", all);
    if (counts) printf("\nLAR is not defined for counts: they do not say on which rank a token is home\n");
}

static void say(void *context, const char *line)
{
    (void)context;
    cli_complain("note: %s", line);
}

struct info_settings {
    const char *file;
    bool json;
};

static int info(const void *context)
{
    const struct info_settings *s = context;
    cot_trace trace;
    cot_error error = {0};
    const cot_trace_import_options options = {.size = sizeof options, .say = say};
    if (cot_trace_import(&trace, s->file, &options, &error) != COT_OK) return cli_complain_of(&error);
    figures *layer = calloc((size_t)trace.n_layers, sizeof *layer), all = {0};
    json_t *warnings = json_array();
    cli_progress progress = {"measuring", 0};
    int status = CLI_EXIT_OK;
    cli_progress_show(&progress, 0, 0);
    const bool room = layer && warnings, measured = room && measure(&trace, layer, &all, &error);
    cli_progress_end(&progress);
    if (!room)
        status = cli_complain("out of memory");
    else if (!measured || cot_trace_warn(&trace, collect, warnings, &error) != COT_OK)
        status = cli_complain_of(&error);
    else if (s->json)
        status = print_json(&trace, layer, &all, warnings);
    else
        print_text(&trace, layer, &all);
    for (size_t i = 0; status == CLI_EXIT_OK && i < json_array_size(warnings); i++)
        cli_complain("warning: %s", json_string_value(json_array_get(warnings, i)));
    json_decref(warnings);
    free(layer);
    cot_trace_close(&trace);
    return status;
}

static const cli_option info_options[] = {{"json", 0, CLI_OPTION_FLAG, NULL, NULL,
                                           "write the figures as JSON", offsetof(struct info_settings, json)},
                                          {0}};

const cli_command cli_cmd_trace_info = {
    .name = "trace info",
    .summary = "show what a routing trace holds: its size, loads of experts, and locality",
    .details =
        "Per layer and overall (all layers' experts together): peak/mean is the busiest expert's load over "
        "the "
        "mean load, variation the loads' standard deviation over their mean, top tenth the share of the load "
        "on the busiest tenth of the experts. LAR@P is the share of (token, expert) pairs whose expert sits "
        "on "
        "the token's home rank of P, with each sequence's tokens and the experts in P contiguous parts; "
        "remote "
        "is the mean number of distinct other ranks that a token's experts sit on. Warnings go to standard "
        "error.",
    .examples = (const char *const[]){"coterie trace info trace.safetensors",
                                      "coterie trace info trace.safetensors --json", NULL},
    .options = {.groups = (const cli_option_group[]){{"Options", info_options, 0}, {0}},
                .positionals =
                    (const cli_positional[]){{"FILE", 1, 1,
                                              "a routing trace, or what coterie trace convert makes one of",
                                              offsetof(struct info_settings, file)},
                                             {0}}},
    .settings_bytes = sizeof(struct info_settings),
    .run = info};

struct convert_settings {
    const char *input, *output, *from, *model;
    int64_t experts, top_k, hidden;
    bool counts;
};

struct talk {
    cli_progress progress;
};

static void say_warning(void *context, const char *line)
{
    (void)context;
    cli_complain("warning: %s", line);
}

static void advance(void *context, uint64_t done, uint64_t total)
{
    struct talk *talk = context;
    cli_progress_show(&talk->progress, done, total);
}

static int convert(const void *context)
{
    const struct convert_settings *s = context;
    struct talk talk = {{"importing", 0}};
    const cot_trace_import_options options = {.size = sizeof options,
                                              .from = s->from,
                                              .model = s->model,
                                              .n_experts = (int32_t)s->experts,
                                              .top_k = (int32_t)s->top_k,
                                              .hidden = (int32_t)s->hidden,
                                              .say = say,
                                              .progress = advance,
                                              .context = &talk};
    cot_trace trace, counts = {0};
    cot_error error = {0};
    if (!s->output) {
        cli_complain("no output given: -o OUT.safetensors");
        return CLI_EXIT_USAGE;
    }
    if (!cli_check_output(s->output, NULL)) return CLI_EXIT_FAILURE;
    cot_status status = cot_trace_import(&trace, s->input, &options, &error);
    cli_progress_end(&talk.progress);
    bool count = status == COT_OK && s->counts && trace.kind == COT_TRACE_TOKENS;
    if (count) status = cot_trace_count(&counts, &trace, &error);
    const cot_trace *result = count ? &counts : &trace;
    if (status == COT_OK) status = cot_trace_warn(result, say_warning, NULL, &error);
    if (status == COT_OK) status = cot_trace_write(result, cli_output_path(s->output), &error);
    cot_trace_close(&counts);
    cot_trace_close(&trace);
    return status == COT_OK ? CLI_EXIT_OK : cli_complain_of(&error);
}

static const cli_option convert_options[] = {
    {"output", 'o', CLI_OPTION_TEXT, "OUT", NULL, "the trace to write; - is standard output",
     offsetof(struct convert_settings, output)},
    {"counts", 0, CLI_OPTION_FLAG, NULL, NULL, "write counts of (token id, expert) alone",
     offsetof(struct convert_settings, counts)},
    {"from", 0, CLI_OPTION_TEXT, "FORMAT", NULL,
     "trace, gpt-oss, deepseek, table or sglang; recognised by content unless given",
     offsetof(struct convert_settings, from)},
    {"model", 0, CLI_OPTION_TEXT, "NAME", NULL, "model to record; the folder's name unless given",
     offsetof(struct convert_settings, model)},
    {"experts", 0, CLI_OPTION_INTEGER, "E", NULL, "experts a layer, where the data cannot tell",
     offsetof(struct convert_settings, experts), .least = 1, .most = COT_TRACE_MAX_EXPERTS},
    {"top-k", 0, CLI_OPTION_INTEGER, "K", NULL, "experts a token, where the data cannot tell",
     offsetof(struct convert_settings, top_k), .least = 1, .most = COT_TRACE_MAX_EXPERTS},
    {"hidden", 0, CLI_OPTION_INTEGER, "H", NULL,
     "columns of a token's row between layers (7168 for DeepSeek-R1) to record: place tells bytes by it",
     offsetof(struct convert_settings, hidden), .least = 1, .most = INT32_MAX},
    {0}};

const cli_command cli_cmd_trace_convert = {
    .name = "trace convert",
    .summary = "make a routing trace of what other programs recorded, or counts of a trace",
    .details = "IN is a trace; a folder of ids.u8, probs.bf16 and index.jsonl (gpt-oss); a folder of "
               "expert_weights_<layer>.txt (deepseek); a tab-separated table of layer, expert, token_id "
               "and count (table); or what SGLang's recorder writes in the mode per_token, a .pt or a folder "
               "of them (sglang). What had to be derived is said on standard error.",
    .examples =
        (const char *const[]){"coterie trace convert routing/gpt-oss-20b -o gpt-oss.safetensors",
                              "coterie trace convert gpt-oss.safetensors --counts -o counts.safetensors",
                              NULL},
    .options = {.groups = (const cli_option_group[]){{"Options", convert_options, 0}, {0}},
                .positionals = (const cli_positional[]){{"IN", 1, 1, "the routing data, a file or a folder",
                                                         offsetof(struct convert_settings, input)},
                                                        {0}}},
    .settings_bytes = sizeof(struct convert_settings),
    .run = convert};
