/* The figures of predictors, for people and for programs. */
#include "cli/plan/cmd_predict.h"

#include "cli/frame/terminal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void cli_prediction_rows_free(cli_prediction_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        cot_predict_evaluation_free(&rows[i].train);
        cot_predict_evaluation_free(&rows[i].test);
    }
}

/* The others of `chosen`; counts how many there are. */
static uint8_t *inverse(const uint8_t *chosen, int64_t n, int64_t *others)
{
    uint8_t *out = malloc((size_t)n + 1);
    *others = 0;
    for (int64_t s = 0; out && s < n; s++) *others += out[s] = !chosen[s];
    return out;
}

cot_status cli_prediction_row_measure(cli_prediction_row *row, const cot_predictor *predictor,
                                      cot_predict_method method, const cot_trace *trace,
                                      const uint8_t *training, int32_t resamples, cot_error *error)
{
    cot_predict_evaluate_options options = {
        .size = sizeof options, .resamples = resamples, .threads = 2, .seed = 1};
    int64_t others = 1;
    uint8_t *rest = NULL;
    cot_status status = COT_OK;
    if (training) {
        if (!(rest = inverse(training, trace->n_sequences, &others))) {
            *error = (cot_error){COT_OUT_OF_MEMORY, "out of memory for the sequences"};
            return COT_OUT_OF_MEMORY;
        }
        cot_predict_evaluate_options on_train = options;
        on_train.chosen = training;
        on_train.resamples = 0;
        status = cot_predict_evaluate(&row->train, predictor, method, trace, &on_train, error);
        row->has_train = status == COT_OK;
    }
    if (status == COT_OK && others) {
        options.chosen = rest;
        status = cot_predict_evaluate(&row->test, predictor, method, trace, &options, error);
        row->has_test = status == COT_OK;
    }
    free(rest);
    return status;
}

void cli_print_cell(int width, int digits, double value)
{
    if (isnan(value))
        printf(" %*s", width, "-");
    else
        printf(" %*.*f", width, digits, value);
}

int cli_print_json(json_t *list)
{
    char *text = json_dumps(list, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    json_decref(list);
    if (!text) return cli_complain("cannot spell the figures as JSON");
    puts(text);
    free(text);
    return CLI_EXIT_OK;
}

/* A figure that may not be known. */
static void cell(int width, int digits, bool has, double value)
{
    cli_print_cell(width, digits, has ? value : NAN);
}

static void print_locality(const cli_prediction_row *row)
{
    const double *test = row->test.all, *train = row->train.all;
    printf("%-16s %5" PRId32, row->name, row->ranks);
    cell(6, 3, row->has_train, train[COT_FIGURE_RECALL]);
    cell(6, 3, row->has_test, test[COT_FIGURE_RECALL]);
    cell(7, 4, row->has_train, train[COT_FIGURE_LAR]);
    cell(7, 4, row->has_test, test[COT_FIGURE_LAR]);
    if (row->has_test && !isnan(row->test.low[COT_FIGURE_LAR]))
        printf(" %.4f..%.4f", row->test.low[COT_FIGURE_LAR], row->test.high[COT_FIGURE_LAR]);
    else
        printf(" %14s", "-");
    cell(7, 4, row->has_test, test[COT_FIGURE_LAR_EVEN]);
    cell(7, 4, row->has_test, test[COT_FIGURE_ORACLE_LAR]);
    cell(7, 4, row->has_test, test[COT_FIGURE_LAR_DEDUP]);
    putchar('\n');
}

static void print_load(const cli_prediction_row *row)
{
    const double *test = row->test.all, *train = row->train.all;
    printf("%-16s %5" PRId32, row->name, row->ranks);
    cell(7, 3, row->has_test, test[COT_FIGURE_REMOTE_RANKS]);
    cell(6, 3, row->has_train, train[COT_FIGURE_TOKEN_IMBALANCE]);
    cell(6, 3, row->has_test, test[COT_FIGURE_TOKEN_IMBALANCE]);
    cell(6, 3, row->has_test, test[COT_FIGURE_HOME_PEAK]);
    cell(6, 3, row->has_test, test[COT_FIGURE_EXPERT_PEAK]);
    cell(7, 4, row->has_test, test[COT_FIGURE_LAR_KNOWN]);
    cell(7, 4, row->has_test, test[COT_FIGURE_LAR_UNKNOWN]);
    if (row->has_test)
        printf(" %5.1f %%", 100 * test[COT_FIGURE_UNKNOWN]);
    else
        printf(" %7s", "-");
    printf(" %8.1f %7.1f\n", (double)row->table_bytes * 1e-3, row->seconds);
}

void cli_prediction_row_print_gain(const cli_prediction_row *row)
{
    if (!row->has_test) return;
    const double gain = row->test.all[COT_FIGURE_LAR_GAIN];
    const double low = row->test.low[COT_FIGURE_LAR_GAIN], high = row->test.high[COT_FIGURE_LAR_GAIN];
    // Few sequences may agree by chance, and there may be no interval: at least four times the most that a mean over so
    // many independent tokens may be off.
    const double independent = 2 / sqrt((double)row->test.n_tokens * row->test.n_layers);
    const bool interval = !isnan(low) && high - low > independent;
    const double least = interval ? high - low : independent;
    if (isnan(gain) || gain > least + 1e-9) return;
    char text[512];
    size_t used =
        (size_t)snprintf(text, sizeof text,
                         "%s@%" PRId32 ": no gain is proven: test LAR is %+.4f beyond sending as many "
                         "tokens to each rank blindly",
                         row->name, row->ranks, gain);
    if (!isnan(low))
        used += (size_t)snprintf(text + used, sizeof text - used, ", 95 %% interval %+.4f..%+.4f", low, high);
    snprintf(text + used, sizeof text - used, "; more than %.4f is asked for, four standard errors%s", least,
             interval ? ", as wide as that interval" : " of so many independent tokens");
    cli_print_wrapped(text, 0, 2);
}

/* Of the way from `from`'s LAR to the oracle's, the share that `to` makes; NAN where there is no way to go. */
static double gap_closed(const cli_prediction_row *from, const cli_prediction_row *to)
{
    const double start = from->test.all[COT_FIGURE_LAR], end = to->test.all[COT_FIGURE_ORACLE_LAR];
    return end > start ? (to->test.all[COT_FIGURE_LAR] - start) / (end - start) : NAN;
}

/* What each context adds to each token table of the same number of ranks, and at what peak. */
static void print_gaps(const cli_prediction_row *rows, size_t n)
{
    const char *const prefill = cot_predict_method_names[COT_PREDICT_CONTEXT_PREFILL],
                      *const decode = cot_predict_method_names[COT_PREDICT_CONTEXT_DECODE],
                      *const table = cot_predict_method_names[COT_PREDICT_TOKEN_TABLE];
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++) {
            const cli_prediction_row *to = &rows[i], *from = &rows[k];
            if ((strcmp(to->name, prefill) && strcmp(to->name, decode)) || from->ranks != to->ranks ||
                (strcmp(from->name, table) && !from->aside) || isnan(gap_closed(from, to)))
                continue;
            char text[256];
            snprintf(text, sizeof text,
                     "%s@%" PRId32 ": closes %.0f %% of the gap in LAR from %s to the oracle; home peak %.3f "
                     "beside %.3f",
                     to->name, to->ranks, 100 * gap_closed(from, to), from->name,
                     to->test.all[COT_FIGURE_HOME_PEAK], from->test.all[COT_FIGURE_HOME_PEAK]);
            cli_print_wrapped(text, 0, 2);
        }
}

/* A column is as wide as its name, and has room for a figure. */
static int column_width(const cli_prediction_row *row)
{
    const int name = (int)strlen(row->name), figure = 8;
    return name > figure ? name : figure;
}

/* A block of one figure on test: a line a layer, a column a row of the table; all rows are of one number of ranks. */
static void print_layers(const cli_prediction_row *rows, size_t n, const int32_t *layers, cot_figure figure,
                         const char *title)
{
    cli_heading(stdout, "\n%s, test, by layer, %" PRId32 " ranks\nlayer ", title, rows[0].ranks);
    for (size_t i = 0; i < n; i++)
        if (!rows[i].aside) cli_heading(stdout, " %*s", column_width(&rows[i]), rows[i].name);
    putchar('\n');
    for (int32_t l = 0; l < rows[0].test.n_layers; l++) {
        printf("%5" PRId32 " ", layers[l]);
        for (size_t i = 0; i < n; i++)
            if (!rows[i].aside)
                cell(column_width(&rows[i]), 4, true, rows[i].test.layer[(size_t)l * COT_FIGURES + figure]);
        putchar('\n');
    }
}

void cli_prediction_rows_print(const cli_prediction_row *rows, size_t n, const int32_t *layers)
{
    cli_heading(
        stdout,
        "locality                recall@k              LAR       95 %% interval    even  oracle   dedup\n"
        "method           ranks  train   test   train    test    of test LAR     LAR     LAR     LAR\n");
    for (size_t i = 0; i < n; i++) print_locality(&rows[i]);
    cli_heading(stdout,
                "\nload                    remote token imb.   home expert   LAR of tokens unknown   tables\n"
                "method           ranks   ranks  train   test   peak   peak   known unknown   share       kB "
                "seconds\n");
    for (size_t i = 0; i < n; i++) print_load(&rows[i]);
    if (!n || !rows[0].has_test) return;
    putchar('\n');
    print_gaps(rows, n);
    for (size_t i = 0; i < n; i++) cli_prediction_row_print_gain(&rows[i]);
    for (size_t i = 0, many = 0; i < n; i += many) {
        for (many = 1; i + many < n && rows[i + many].ranks == rows[i].ranks;) many++;
        print_layers(rows + i, many, layers, COT_FIGURE_LAR, "LAR");
        print_layers(rows + i, many, layers, COT_FIGURE_RECALL, "recall@k");
    }
}

static json_t *number(bool has, double value)
{
    return has && !isnan(value) ? json_real(value) : json_null();
}

/* NAME_train and NAME_test of every figure. */
static void add_figures(json_t *o, const double *train, const double *test, double row_bytes)
{
    char name[64];
    for (int i = 0; i < COT_FIGURES; i++) {
        snprintf(name, sizeof name, "%s_train", cot_figure_names[i]);
        json_object_set_new(o, name, number(train, train ? train[i] : 0));
        snprintf(name, sizeof name, "%s_test", cot_figure_names[i]);
        json_object_set_new(o, name, number(test, test ? test[i] : 0));
    }
    if (row_bytes <= 0) return;
    json_object_set_new(o, "bytes_train", number(train, train ? row_bytes * train[COT_FIGURE_ROWS] : 0));
    json_object_set_new(o, "bytes_test", number(test, test ? row_bytes * test[COT_FIGURE_ROWS] : 0));
}

json_t *cli_prediction_row_json(const cli_prediction_row *row, const int32_t *layers, int32_t n_layers,
                                double row_bytes)
{
    const double *train = row->has_train ? row->train.all : NULL,
                 *test = row->has_test ? row->test.all : NULL;
    json_t *o = json_pack("{s:s, s:i, s:f, s:I}", "method", row->name, "ranks", (int)row->ranks, "seconds",
                          row->seconds, "table_bytes", (json_int_t)row->table_bytes);
    json_object_set_new(o, "tokens_train", row->has_train ? json_integer(row->train.n_tokens) : json_null());
    json_object_set_new(o, "tokens_test", row->has_test ? json_integer(row->test.n_tokens) : json_null());
    add_figures(o, train, test, row_bytes);
    for (int i = 0; i < COT_FIGURES; i++) {
        char name[64];
        const bool has = test && !isnan(row->test.low[i]);
        snprintf(name, sizeof name, "%s_test_ci", cot_figure_names[i]);
        json_object_set_new(o, name,
                            has ? json_pack("[f, f]", row->test.low[i], row->test.high[i]) : json_null());
    }
    json_t *list = json_array();
    for (int32_t l = 0; l < n_layers; l++) {
        const size_t at = (size_t)l * COT_FIGURES;
        json_t *layer = json_pack("{s:i}", "layer", (int)layers[l]);
        add_figures(layer, train ? row->train.layer + at : NULL, test ? row->test.layer + at : NULL,
                    row_bytes);
        json_array_append_new(list, layer);
    }
    json_object_set_new(o, "layers", list);
    return o;
}
