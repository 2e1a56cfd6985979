/* `coterie predict`. */
#include "cli/plan/cmd_predict.h"

#include "cli/frame/clock.h"
#include "cli/commands.h"
#include "cli/frame/paths.h"
#include "cli/frame/progress.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANK_COUNTS = 8 };

struct settings {
    const char *trace, *evaluate, *tables, *placement, *ranks, *embeddings, *plot, *tokenizer, *isa;
    double split, row_bytes;
    int64_t seed, order, resamples;
    bool json;
};

/* All that one run reads. */
typedef struct inputs {
    cot_trace trace;
    int32_t *ids; // the trace's, where a tokenizer gave them
    cot_expert_map map;
    int32_t *expert_rank; // of the placement, or NULL
    uint8_t *training;    // sequences learnt from, or NULL: none of this trace's
    float *embedding;
    cot_predict_embedding embeddings;
} inputs;

typedef struct table {
    cli_prediction_row rows[MOST_RANK_COUNTS * COT_PREDICT_METHODS + 1];
    size_t n;
} prediction_table;

/* "4,8": how many, 0 after saying what is wrong. */
static int parse_ranks(int32_t *ranks, const char *text)
{
    int n = 0;
    for (const char *at = text;; at++) {
        char *end;
        long value = strtol(at, &end, 10);
        if (end == at || value < 1 || value > COT_TRACE_MAX_RANKS || (*end && *end != ',') ||
            n == MOST_RANK_COUNTS) {
            cli_complain("--ranks '%s' is no list of at most %d numbers from 1 to %d", text, MOST_RANK_COUNTS,
                         COT_TRACE_MAX_RANKS);
            return 0;
        }
        ranks[n++] = (int32_t)value;
        if (!*end) return n;
        at = end;
    }
}

/* Every method that the predictor has tables for. `seconds`: what making them took, those of counts alone and all. */
static cot_status add_rows(prediction_table *table, const struct settings *s, const inputs *in,
                           const cot_predictor *predictor, const double seconds[2], cot_error *error)
{
    cot_predictor_info info;
    cot_predictor_describe(&info, predictor);
    cli_progress progress = {.what = "evaluating"};
    for (int m = 0; m < COT_PREDICT_METHODS; m++) {
        const bool looks_back =
            m != COT_PREDICT_GLOBAL && m != COT_PREDICT_TOKEN_TABLE; // counts have no order
        if (!info.has[m] || (in->trace.kind == COT_TRACE_COUNTS && looks_back)) continue;
        cli_prediction_row *row = &table->rows[table->n];
        *row = (cli_prediction_row){
            .name = cot_predict_method_names[m], .ranks = info.n_ranks, .table_bytes = info.table_bytes[m]};
        cli_progress_show(&progress, (uint64_t)m, COT_PREDICT_METHODS);
        const double start = cli_seconds_now();
        cot_status status = cli_prediction_row_measure(row, predictor, (cot_predict_method)m, &in->trace,
                                                       in->training, (int32_t)s->resamples, error);
        row->seconds = seconds[m >= COT_PREDICT_CONTEXT_PREFILL] + cli_seconds_now() - start;
        table->n++;
        if (status != COT_OK) {
            cli_progress_end(&progress);
            return status;
        }
    }
    cli_progress_end(&progress);
    return COT_OK;
}

/* Fits every method on a share of the sequences, once for each number of ranks. */
static int fit(prediction_table *table, const struct settings *s, inputs *in)
{
    cli_progress progress = {.what = "learning"};
    cot_error error = {0};
    int32_t ranks[MOST_RANK_COUNTS];
    const char *text = s->ranks ? s->ranks : "4";
    char placed[16];
    if (in->expert_rank && !s->ranks) {
        snprintf(placed, sizeof placed, "%" PRId32, in->map.n_ranks);
        text = placed;
    }
    const int n = parse_ranks(ranks, text);
    if (!n) return CLI_EXIT_USAGE;
    if (cli_draw_training(&in->training, &in->trace, s->split, (uint64_t)s->seed, &error) != COT_OK)
        return cli_complain_of(&error);
    for (int i = 0; i < n; i++) {
        if (in->expert_rank && ranks[i] != in->map.n_ranks)
            return cli_complain("--placement has %" PRId32 " ranks, not %" PRId32, in->map.n_ranks, ranks[i]);
        cot_predictor_options options = {.size = sizeof options,
                                         .ranks = ranks[i],
                                         .expert_rank = in->expert_rank,
                                         .order = (int32_t)s->order,
                                         .chosen = in->training,
                                         .embedding = in->embedding ? &in->embeddings : NULL,
                                         .seed = (uint64_t)s->seed};
        cot_predictor *predictor = NULL;
        double seconds[2];
        cot_status status = COT_OK;
        cli_progress_show(&progress, 0, 0);
        for (int all = 0; all < 2 && status == COT_OK; all++) { // without and with what is trained by steps
            const double start = cli_seconds_now();
            cot_predictor_close(predictor);
            options.counts_only = !all;
            status = cot_predictor_train(&predictor, &in->trace, &options, &error);
            seconds[all] = cli_seconds_now() - start;
        }
        cli_progress_end(&progress);
        if (status == COT_OK) status = cot_predictor_set_isa(predictor, s->isa, &error);
        if (status == COT_OK) status = add_rows(table, s, in, predictor, seconds, &error);
        cot_predictor_close(predictor);
        if (status != COT_OK) return cli_complain_of(&error);
    }
    return CLI_EXIT_OK;
}

/* The sequences of this very trace that the tables learnt from are not test. */
static int leave_out_training(inputs *in, const cot_predictor_info *info, const char *tables)
{
    const cot_trace *t = &in->trace;
    if (cot_trace_hash(t) != info->trace_hash) return CLI_EXIT_OK;
    if (info->n_sequences != t->n_sequences)
        return cli_complain("'%s' is of this very trace, but of %" PRId64
                            " sequences, the trace has %" PRId64,
                            tables, info->n_sequences, t->n_sequences);
    int64_t others = 0;
    for (int64_t i = 0; i < t->n_sequences; i++) others += info->chosen && !info->chosen[i];
    if (!others)
        return cli_complain(
            "'%s' was made from all of this very trace: evaluate it on another one, or make it "
            "with --split below 1",
            tables);
    in->training = malloc((size_t)t->n_sequences);
    if (!in->training) return cli_complain("out of memory for %" PRId64 " sequences", t->n_sequences);
    memcpy(in->training, info->chosen, (size_t)t->n_sequences);
    return CLI_EXIT_OK;
}

/* Beside tables whose ids have ranks of even load: a table of the same groups and sequences in which every id goes where
 * most of its experts are. Needs the trace that the tables were made from. */
static cot_status add_unbalanced(prediction_table *table, const struct settings *s, const inputs *in,
                                 const cot_predictor_info *info, cot_error *error)
{
    const cot_predictor_options options = {.size = sizeof options,
                                           .ranks = info->n_ranks,
                                           .expert_rank = info->expert_rank,
                                           .order = info->order,
                                           .chosen = in->training,
                                           .counts_only = true};
    cot_predictor *free_table;
    cot_predictor_info counted;
    cli_prediction_row *row = &table->rows[table->n];
    if (!in->training || !info->has[COT_PREDICT_TOKEN_TABLE]) return COT_OK;
    const double start = cli_seconds_now();
    cot_status status = cot_predictor_train(&free_table, &in->trace, &options, error);
    if (status != COT_OK) return status;
    cot_predictor_describe(&counted, free_table);
    *row = (cli_prediction_row){.name = "unbalanced-table",
                                .ranks = info->n_ranks,
                                .table_bytes = counted.table_bytes[COT_PREDICT_TOKEN_TABLE],
                                .aside = true};
    status = cli_prediction_row_measure(row, free_table, COT_PREDICT_TOKEN_TABLE, &in->trace, in->training,
                                        (int32_t)s->resamples, error);
    row->seconds = cli_seconds_now() - start;
    table->n++;
    cot_predictor_close(free_table);
    return status;
}

static int use_tables(prediction_table *table, const struct settings *s, inputs *in)
{
    cot_error error = {0};
    cot_predictor *predictor;
    cot_predictor_info info;
    if (s->ranks || s->embeddings) {
        cli_complain("--%s is the tables' own: leave it out beside --tables",
                     s->ranks ? "ranks" : "embeddings");
        return CLI_EXIT_USAGE;
    }
    if (cot_predictor_open(&predictor, s->tables, &error) != COT_OK) return cli_complain_of(&error);
    cot_predictor_describe(&info, predictor);
    if ((in->trace.kind == COT_TRACE_COUNTS) != (info.n_sequences == 0))
        cli_complain("note: whether these tokens are those that '%s' learnt from cannot be told of counts "
                     "and sequences",
                     s->tables);
    if (info.has[COT_PREDICT_CONTEXT_DECODE] && !info.has[COT_PREDICT_CONTEXT_PREFILL])
        cli_complain(
            "note: context-prefill is not in '%s', which an older build made: coterie group makes it",
            s->tables);
    int status = leave_out_training(in, &info, s->tables);
    if (status == CLI_EXIT_OK && in->expert_rank &&
        (info.n_ranks != in->map.n_ranks || info.n_layers != in->trace.n_layers ||
         info.n_experts != in->trace.n_experts ||
         memcmp(in->expert_rank, info.expert_rank,
                (size_t)info.n_layers * (size_t)info.n_experts * sizeof *in->expert_rank) != 0))
        status =
            cli_complain("'%s' was made for other groups of experts than '%s': coterie group makes the two "
                         "together",
                         s->tables, s->placement);
    if (status == CLI_EXIT_OK &&
        (cot_predictor_set_isa(predictor, s->isa, &error) != COT_OK ||
         add_rows(table, s, in, predictor, (const double[2]){0, 0}, &error) != COT_OK ||
         add_unbalanced(table, s, in, &info, &error) != COT_OK))
        status = cli_complain_of(&error);
    cot_predictor_close(predictor);
    return status;
}

static int open_inputs(inputs *in, const struct settings *s)
{
    cot_error error = {0};
    int status = cli_open_trace(&in->trace, &in->ids, s->trace ? s->trace : s->evaluate, s->tokenizer);
    if (status == CLI_EXIT_OK && s->placement) {
        const cot_expert_map_options options = {.size = sizeof options};
        if (cot_expert_map_read(&in->map, s->placement, &options, &error) != COT_OK)
            return cli_complain_of(&error);
        if (!(in->expert_rank = cli_map_ranks(&in->map, &in->trace, s->placement))) status = CLI_EXIT_FAILURE;
    }
    if (status == CLI_EXIT_OK && s->embeddings)
        status = cli_open_embeddings(&in->embeddings, &in->embedding, &in->trace, s->embeddings);
    return status;
}

static int print(const struct settings *s, const inputs *in, const prediction_table *table)
{
    if (!s->json) {
        cli_prediction_rows_print(table->rows, table->n, in->trace.layers);
        return CLI_EXIT_OK;
    }
    json_t *list = json_array();
    for (size_t i = 0; i < table->n; i++)
        json_array_append_new(list, cli_prediction_row_json(&table->rows[i], in->trace.layers,
                                                            in->trace.n_layers, s->row_bytes));
    return cli_print_json(list);
}

static int predict(const void *context)
{
    const struct settings *s = context;
    if (!s->trace == !s->evaluate) {
        cli_complain(s->trace ? "TRACE and --evaluate are the same: give one of them"
                              : "no trace given: TRACE");
        return CLI_EXIT_USAGE;
    }
    if (!cli_check_output(s->plot, "the figures")) return CLI_EXIT_FAILURE;
    inputs in = {0};
    prediction_table table = {.n = 0};
    int status = open_inputs(&in, s);
    if (status == CLI_EXIT_OK) status = s->tables ? use_tables(&table, s, &in) : fit(&table, s, &in);
    if (status == CLI_EXIT_OK) status = print(s, &in, &table);
    if (status == CLI_EXIT_OK && s->plot)
        status = cli_predict_plot(s->plot, &in.trace, table.rows, table.n, (uint64_t)s->seed);
    cli_prediction_rows_free(table.rows, table.n);
    free(in.expert_rank);
    free(in.training);
    free(in.embedding);
    cot_expert_map_free(&in.map);
    cot_trace_close(&in.trace);
    free(in.ids);
    return status;
}

#define AT(field) offsetof(struct settings, field)

static const cli_option options[] = {
    {"evaluate", 0, CLI_OPTION_TEXT, "TRACE", NULL, "the same as TRACE", AT(evaluate)},
    {"tables", 0, CLI_OPTION_TEXT, "T", NULL,
     "tables that coterie group wrote; of the trace they were made from, only the other sequences are test",
     AT(tables)},
    {"placement", 0, CLI_OPTION_TEXT, "P", NULL,
     "where experts sit, in any placement format; default: the tables' groups, without tables contiguous "
     "ones",
     AT(placement)},
    {"ranks", 0, CLI_OPTION_TEXT, "D", NULL, "ranks, a number or several: 4,8; default 4, or the placement's",
     AT(ranks)},
    {"split", 0, CLI_OPTION_REAL, "X", "0.2", "share of the sequences that is learnt from, without --tables",
     AT(split), .min = 0, .max = 1},
    {"seed", 0, CLI_OPTION_INTEGER, "N", "1", "which sequences those are", AT(seed), .least = 0,
     .most = INT64_MAX},
    {"order", 0, CLI_OPTION_INTEGER, "N", "2", "layers that device sequences look back at", AT(order),
     .least = 1, .most = COT_PREDICT_MAX_ORDER},
    {"embeddings", 0, CLI_OPTION_TEXT, "MODEL", NULL,
     "a checkpoint folder: unknown tokens are looked up as the known one whose embedding is nearest",
     AT(embeddings)},
    {"tokenizer", 0, CLI_OPTION_TEXT, "FILE", NULL,
     "a tokenizer.json: token strings of the trace become its ids", AT(tokenizer)},
    {"resamples", 0, CLI_OPTION_INTEGER, "N", "200", "bootstrap samples of the sequences, for the intervals",
     AT(resamples), .least = 0, .most = 100000},
    {"row-bytes", 0, CLI_OPTION_REAL, "N", "0",
     "bytes of a token's row: JSON tells bytes a token beside rows", AT(row_bytes), .min = 0, .max = 1e12},
    {"plot", 0, CLI_OPTION_TEXT, "OUT.html", NULL,
     "write a page: LAR and recall of each method by layer, and the paper's appendix A for this trace: "
     "kurtosis, "
     "affinities, what a quarter foretells",
     AT(plot)},
    {"isa", 0, CLI_OPTION_TEXT, "NAME", NULL, "caps the instruction set of look-ups (see coterie info)",
     AT(isa)},
    {"json", 0, CLI_OPTION_FLAG, NULL, NULL, "write an array, an object a method and number of ranks",
     AT(json)},
    {0}};

const cli_command cli_cmd_predict = {
    .name = "predict",
    .summary = "measure how well tables foretell where tokens will go",
    .details =
        "A predictor names a token's experts, and the rank to send it to, before the layer's gate has "
        "run. Without "
        "--tables every method learns from a share of the trace's sequences and is tested on the "
        "rest: global (the "
        "layer's most called experts), token-table (what the token id called), device-sequence (from "
        "the ranks of "
        "the layers before), algorithm-2 (the more confident of the two), and Coterie's own in two "
        "forms, trained apart: context-prefill (the ids of the token and the one before, the token's experts "
        "in the two layers before), which holds where a prompt's tokens go through a layer together, and "
        "context-decode (beside these the experts that the two tokens before called in this layer), which "
        "tokens have that are generated one after the other.\n\n"
        "Columns. recall@k: of the k experts that a token calls, the share among the k foretold, on the "
        "sequences learnt from (train) and on the others (test). LAR, the local activation rate: the "
        "share of (token, expert) pairs served on the rank that the token is sent to, and where 95 % of "
        "the bootstrap's test LARs lie. even LAR: where of every 512 tokens each rank takes an even "
        "share, the most confident token choosing first. oracle LAR: with each token on the best rank "
        "for the experts that it calls. dedup LAR: counts the distinct ranks that a token needs in place "
        "of pairs. remote ranks: how many other ranks a token needs. token imbalance: the busiest "
        "rank's tokens over the mean, of all tokens; home peak: the same of each 512 tokens; expert "
        "peak: activations of the busiest rank's experts over the mean. LAR of known tokens, and of "
        "unknown ones, which the method has no rank for and which are spread in inverse proportion to "
        "load; unknown share: how many those are. tables: what the method reads. seconds: learning, of both "
        "contexts together, and evaluating.\n\n"
        "With --tables on the trace they were made from, unbalanced-table is a token table of the same "
        "groups whose ids go where most of their experts are, not to ranks of even load. No gain is "
        "proven where as many tokens, sent to each rank blindly, might have the same LAR: within four "
        "standard errors of the difference.",
    .examples =
        (const char *const[]){"coterie predict trace.safetensors --ranks 4,8",
                              "coterie predict trace.safetensors --tables T.safetensors --placement P.json",
                              NULL},
    .options = {.groups = (const cli_option_group[]){{"Options", options, 0}, {0}},
                .positionals =
                    (const cli_positional[]){
                        {"TRACE", 0, 1, "a routing trace of any format that coterie trace reads", AT(trace)},
                        {0}}},
    .settings_bytes = sizeof(struct settings),
    .run = predict,
};
