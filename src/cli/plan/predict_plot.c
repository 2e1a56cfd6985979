/* `coterie predict --plot`: appendix A's figures of a trace, one page of HTML with its figures inside. */
#include "cli/plan/cmd_predict.h"

#include "cli/plan/page.h"
#include "cli/frame/paths.h"
#include "cli/plan/plot.h"
#include "coterie/predict_study.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BINS = 32, MOST_TOKENS = 400, RANKS = 4 };
static const double share_learnt = 0.25; // appendix A's split

/* Of token ids seen four times and more: with fewer, few experts are all that a token can have called. */
static bool seen_often(const cot_affinity *a, int64_t i, int32_t top_k)
{
    uint64_t calls = 0;
    for (int64_t j = a->offsets[i]; j < a->offsets[i + 1]; j++) calls += a->count[j];
    return calls >= 4 * (uint64_t)top_k;
}

static cot_status plot_kurtosis(FILE *f, const cot_trace *trace, const cot_affinities *all)
{
    double bin[BINS] = {0}, *kurtosis = malloc(((size_t)all->n_tokens + 1) * sizeof *kurtosis);
    double ids = 0, above = 0;
    if (!kurtosis) return COT_OUT_OF_MEMORY;
    for (int32_t l = 0; l < all->n_layers; l++) {
        cot_affinity_kurtosis(kurtosis, &all->layer[l]);
        for (int64_t i = 0; i < all->n_tokens; i++) {
            if (isnan(kurtosis[i]) || !seen_often(&all->layer[l], i, trace->top_k)) continue;
            const int b = (int)(kurtosis[i] / all->n_experts * BINS);
            bin[b < BINS ? b : BINS - 1]++;
            ids++;
            above += kurtosis[i] > 8;
        }
    }
    free(kurtosis);
    const double fixed =
        (double)trace->top_k / all->n_experts; // share of experts that a token of one mind calls
    char many[CLI_PEOPLE_BYTES];
    fprintf(f,
            "<h2>Kurtosis of tokens' activations (figure 8a, right)</h2>\n<p class=\"note\">Pairs of a token "
            "id and a layer, seen four times and more: %s; a kurtosis above 8: %.1f %% (the paper, on its "
            "models: most). ",
            cli_people_number(many, ids), ids > 0 ? 100 * above / ids : 0);
    if (fixed < 1)
        fprintf(
            f, "One token that always calls the same %" PRId32 " experts has %.3g, a normal distribution 3. ",
            trace->top_k, (1 - 3 * fixed * (1 - fixed)) / (fixed * (1 - fixed)));
    fprintf(f, "Bins are %.3g wide.</p>\n", (double)all->n_experts / BINS);
    char edge[BINS][16];
    const char *edges[BINS];
    for (int i = 0; i < BINS; i++) {
        snprintf(edge[i], sizeof edge[i], "%.4g", (double)i * all->n_experts / BINS);
        edges[i] = edge[i];
    }
    cli_page_bars(f, bin, BINS,
                  &(cli_plot_chart){.title = "pairs of token id and layer by their kurtosis",
                                    .unit = "pairs",
                                    .x = {"kurtosis, from", edges, NULL}});
    return COT_OK;
}

/* Tokens by their group, experts by theirs: what goes together makes blocks. */
static cot_status plot_blocks(FILE *f, const cot_affinities *all, int32_t l, int32_t layer, cot_error *error)
{
    const cot_affinity *a = &all->layer[l];
    const int32_t E = a->n_experts;
    const cot_group_options options = {
        .size = sizeof options, .ranks = E < RANKS ? E : RANKS, .token_balance = 0.1, .seed = 1};
    cot_grouper *grouper;
    cot_grouping groups;
    cot_status status = cot_grouper_open(&grouper, a, &options, error);
    if (status == COT_OK) status = cot_grouper_iterate(grouper, 2, error);
    double *map = calloc((size_t)MOST_TOKENS * (size_t)E, sizeof *map);
    int32_t *column = malloc((size_t)E * sizeof *column);
    static const char *const group[RANKS] = {"group 0", "group 1", "group 2", "group 3"};
    const char *row_names[MOST_TOKENS], **column_names = malloc((size_t)E * sizeof *column_names);
    if (status == COT_OK && map && column && column_names) {
        int32_t rows = 0, at = 0;
        cot_grouper_best(&groups, grouper);
        for (int32_t d = 0; d < options.ranks; d++)
            for (int32_t e = 0; e < E; e++)
                if (groups.expert_rank[e] == d) {
                    column_names[at] = group[d];
                    column[e] = at++;
                }
        // A sample of ids, evenly spaced in each group.
        for (int32_t d = 0; d < options.ranks; d++) {
            int64_t members = 0, seen = 0;
            const int32_t wanted = MOST_TOKENS / options.ranks;
            int32_t taken = 0;
            for (int64_t i = 0; i < a->n_tokens; i++)
                members += groups.token_rank[i] == d && a->offsets[i + 1] > a->offsets[i];
            for (int64_t i = 0; i < a->n_tokens && taken < wanted; i++) {
                if (groups.token_rank[i] != d || a->offsets[i + 1] == a->offsets[i]) continue;
                if (seen++ * wanted < taken * members) continue;
                double sum = 0;
                for (int64_t j = a->offsets[i]; j < a->offsets[i + 1]; j++) sum += a->count[j];
                for (int64_t j = a->offsets[i]; j < a->offsets[i + 1]; j++)
                    map[(size_t)rows * (size_t)E + (size_t)column[a->expert[j]]] = a->count[j] / sum;
                row_names[rows++] = group[d];
                taken++;
            }
        }
        char title[96];
        snprintf(title, sizeof title, "layer %" PRId32 ": share of a token's calls by expert", layer);
        fputs("<h2>Tokens and experts (figure 8a, left)</h2>\n<p class=\"note\">Rows are token ids, columns "
              "experts, both "
              "in the order of the groups that coterie group finds for four ranks.</p>\n",
              f);
        cli_page_matrix(f, map, rows, E,
                        &(cli_plot_map){.title = title,
                                        .unit = "share of calls",
                                        .x = {"expert, by group", column_names, NULL},
                                        .y = {"token id, by group", row_names, NULL}});
    } else if (status == COT_OK)
        status = COT_OUT_OF_MEMORY;
    free(map);
    free(column);
    free(column_names);
    cot_grouper_close(grouper);
    return status;
}

static cot_status plot_transitions(FILE *f, const cot_trace *trace, int32_t l, cot_error *error)
{
    const size_t E = (size_t)trace->n_experts;
    double *share = malloc(E * E * sizeof *share);
    cot_status status = share ? cot_trace_transitions(share, trace, l, error) : COT_OUT_OF_MEMORY;
    if (status == COT_OK) {
        char title[96];
        snprintf(title, sizeof title, "from layer %" PRId32 " to layer %" PRId32, trace->layers[l],
                 trace->layers[l + 1]);
        fputs("<h2>Experts of neighbouring layers (figure 8b, left)</h2>\n<p class=\"note\">Of the tokens "
              "that call the "
              "row's expert, the share that call the column's in the next layer.</p>\n",
              f);
        cli_page_matrix(f, share, trace->n_experts, trace->n_experts,
                        &(cli_plot_map){.title = title,
                                        .unit = "share of tokens",
                                        .x = {"expert of the next layer", NULL, NULL},
                                        .y = {"expert", NULL, NULL}});
    }
    free(share);
    return status;
}

/* Static top-k experts of each token, and device sequences that look back 1 to 5 layers, learnt from a quarter. */
static cot_status plot_prediction(FILE *f, const cot_trace *trace, uint64_t seed, cot_error *error)
{
    double lar[COT_PREDICT_MAX_ORDER] = {0}, recall[COT_PREDICT_MAX_ORDER] = {0};
    cli_prediction_row row = {.ranks = RANKS};
    uint8_t *training;
    cot_status status = cli_draw_training(&training, trace, share_learnt, seed, error);
    bool has_table = false;
    double precision = 0, f1 = 0, at_k = 0;
    for (int order = 1; status == COT_OK && order <= COT_PREDICT_MAX_ORDER; order++) {
        const cot_predictor_options options = {.size = sizeof options,
                                               .ranks = trace->n_experts < RANKS ? trace->n_experts : RANKS,
                                               .order = order,
                                               .chosen = training,
                                               .counts_only = true,
                                               .seed = seed};
        cot_predictor *predictor;
        cot_predictor_info info;
        status = cot_predictor_train(&predictor, trace, &options, error);
        if (status == COT_OK) {
            cot_predictor_describe(&info, predictor);
            status = cli_prediction_row_measure(&row, predictor, COT_PREDICT_DEVICE_SEQUENCE, trace, training,
                                                0, error);
        }
        if (status == COT_OK && row.has_test) {
            lar[order - 1] = row.test.all[COT_FIGURE_LAR];
            recall[order - 1] = row.test.all[COT_FIGURE_RECALL];
        }
        cli_prediction_rows_free(&row, 1);
        if (status == COT_OK && order == 1 && info.has[COT_PREDICT_TOKEN_TABLE]) {
            status = cli_prediction_row_measure(&row, predictor, COT_PREDICT_TOKEN_TABLE, trace, training, 0,
                                                error);
            has_table = status == COT_OK && row.has_test;
            if (has_table) {
                precision = row.test.all[COT_FIGURE_PRECISION];
                f1 = row.test.all[COT_FIGURE_F1];
                at_k = row.test.all[COT_FIGURE_RECALL];
            }
            cli_prediction_rows_free(&row, 1);
        }
        cot_predictor_close(predictor);
    }
    free(training);
    if (status != COT_OK) return status;
    fputs("<h2>Prediction from a quarter of the sequences (figure 8b, "
          "right)</h2>\n<table><tr><th></th><th>this "
          "trace</th><th>paper (DeepSeek-MoE-16B, its own metric)</th></tr>\n",
          f);
    if (has_table)
        fprintf(f,
                "<tr><td>token table: precision of experts expected with 1/2 and more</td><td>%.1f "
                "%%</td><td>96.3 "
                "%%</td></tr>\n<tr><td>F1 of the same</td><td>%.1f %%</td><td>78.8 "
                "%%</td></tr>\n<tr><td>recall of the "
                "top k</td><td>%.1f %%</td><td></td></tr>\n",
                100 * precision, 100 * f1, 100 * at_k);
    for (int i = 0; i < COT_PREDICT_MAX_ORDER; i++)
        fprintf(f,
                "<tr><td>device sequence, looking back %d: recall of the top k, and LAR on %d "
                "ranks</td><td>%.1f %%, %.1f "
                "%%</td><td>%s</td></tr>\n",
                i + 1, RANKS, 100 * recall[i], 100 * lar[i], i == 4 ? "about 70 %" : "");
    fputs("</table>\n", f);
    int32_t order[COT_PREDICT_MAX_ORDER];
    for (int32_t i = 0; i < COT_PREDICT_MAX_ORDER; i++) order[i] = i + 1;
    cli_page_bars(f, recall, COT_PREDICT_MAX_ORDER,
                  &(cli_plot_chart){.title = "device sequences: recall of the top k",
                                    .unit = "recall",
                                    .x = {"layers looked back at", NULL, order}});
    return COT_OK;
}

/* One figure of every method that has a test, by layer. */
static void plot_layers(FILE *f, const char *title, cot_figure figure, const cot_trace *trace,
                        const cli_prediction_row *rows, size_t n, const char *const *names)
{
    const int32_t L = trace->n_layers;
    double *map = malloc((n * (size_t)L + 1) * sizeof *map);
    size_t tested = 0;
    for (size_t i = 0; map && i < n; i++)
        if (rows[i].has_test) {
            for (int32_t l = 0; l < L; l++)
                map[tested * (size_t)L + (size_t)l] = rows[i].test.layer[(size_t)l * COT_FIGURES + figure];
            tested++;
        }
    if (tested)
        cli_page_matrix(f, map, (int32_t)tested, L,
                        &(cli_plot_map){.title = title,
                                        .unit = "share",
                                        .most = 1,
                                        .x = {"layer", NULL, trace->layers},
                                        .y = {"method", names, NULL}});
    free(map);
}

static cot_status plot_methods(FILE *f, const cot_trace *trace, const cli_prediction_row *rows, size_t n)
{
    enum { NAME = 40 };
    const char **names = malloc((n + 1) * sizeof *names);
    char(*text)[NAME] = malloc((n + 1) * NAME);
    size_t tested = 0;
    bool several = false;
    for (size_t i = 1; i < n; i++) several |= rows[i].ranks != rows[0].ranks;
    for (size_t i = 0; names && text && i < n; i++)
        if (rows[i].has_test) {
            if (several)
                snprintf(text[tested], NAME, "%s on %" PRId32, rows[i].name, rows[i].ranks);
            else
                snprintf(text[tested], NAME, "%s", rows[i].name);
            names[tested] = text[tested];
            tested++;
        }
    if (tested) {
        fputs("<h2>Methods by layer</h2>\n<p class=\"note\">On the sequences that were not learnt from. LAR: "
              "the "
              "share of a token's experts on the rank that the method sends it to; recall: of the k experts "
              "that it "
              "calls, the share among the k foretold.</p>\n<div class=\"row\">\n",
              f);
        plot_layers(f, "local activation rate (LAR)", COT_FIGURE_LAR, trace, rows, n, names);
        plot_layers(f, "recall of the top k", COT_FIGURE_RECALL, trace, rows, n, names);
        fputs("</div>\n", f);
    }
    const bool all = names && text;
    free(names);
    free(text);
    return all ? COT_OK : COT_OUT_OF_MEMORY;
}

int cli_predict_plot(const char *path, const cot_trace *trace, const cli_prediction_row *rows, size_t n,
                     uint64_t seed)
{
    cot_affinities all;
    cot_error error = {COT_OUT_OF_MEMORY, "out of memory for the figures"};
    const int32_t middle = trace->n_layers / 2;
    cot_status status = cot_affinities_count(&all, trace, NULL, &error);
    if (status != COT_OK) return cli_complain_of(&error);
    cot_file_writer writer;
    FILE *f = cli_open_output(&writer, path);
    if (!f) {
        cot_affinities_free(&all);
        return CLI_EXIT_FAILURE;
    }
    char title[512];
    snprintf(title, sizeof title, "Affinity of tokens and experts: %.400s",
             *trace->model ? trace->model : path);
    cli_page_begin(f, title);
    fprintf(f,
            "<p class=\"note\">Appendix A's figures of Speculative MoE, computed from this trace: %" PRId32
            " of %" PRId32 " experts a token, %" PRId32 " layers.</p>\n",
            trace->top_k, trace->n_experts, trace->n_layers);
    status = plot_methods(f, trace, rows, n);
    if (status == COT_OK && all.token_ids) status = plot_kurtosis(f, trace, &all);
    if (status == COT_OK && all.token_ids)
        status = plot_blocks(f, &all, middle, trace->layers[middle], &error);
    if (status == COT_OK && trace->kind == COT_TRACE_TOKENS && trace->n_layers > 1)
        status = plot_transitions(f, trace, middle + 1 < trace->n_layers ? middle : middle - 1, &error);
    if (status == COT_OK && trace->kind == COT_TRACE_TOKENS) status = plot_prediction(f, trace, seed, &error);
    cli_page_end(f);
    cot_affinities_free(&all);
    if (status == COT_OK) return cli_close_output(&writer) ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
    cot_file_writer_abort(&writer);
    return cli_complain_of(&error);
}
