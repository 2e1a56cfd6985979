/* The parts of `coterie predict`, some of which `coterie group` uses. */
#ifndef COT_CLI_PLAN_CMD_PREDICT_H
#define COT_CLI_PLAN_CMD_PREDICT_H
#include "cli/frame/command.h"
#include "coterie/placement.h"
#include "coterie/predict_evaluate.h"

#include <jansson.h>

/* Imports the trace and says on stderr what is odd about it; with a tokenizer (may be NULL), token strings become its ids,
 * which `*ids` holds: free it after closing the trace. Returns a CLI_EXIT_ value. */
int cli_open_trace(cot_trace *trace, int32_t **ids, const char *path, const char *tokenizer);
/* The same without a tokenizer; what is odd is said to `say`, line by line. */
int cli_open_trace_saying(cot_trace *trace, const char *path, cot_trace_say *say, void *context);
/* Reads the embeddings of the model at `path`, into memory that the caller frees; the trace's ids must be within them.
 * Returns a CLI_EXIT_ value after saying what is wrong. */
int cli_open_embeddings(cot_predict_embedding *embedding, float **memory, const cot_trace *trace,
                        const char *path);
/* Which sequences are learnt from: [S], `share` of them; the caller frees. Errors: INVALID_ARGUMENT (nothing would be left
 * to learn from, or kind counts), OUT_OF_MEMORY; `*training` is NULL then. */
cot_status cli_draw_training(uint8_t **training, const cot_trace *trace, double share, uint64_t seed,
                             cot_error *error);
/* Where each of the trace's experts sits in the map, [L][E]; the caller frees. NULL after saying why not. Of several
 * replicas the first counts, which is said. */
int32_t *cli_map_ranks(const cot_expert_map *map, const cot_trace *trace, const char *path);

/* One row of the table: a method at one number of ranks, or a grouping. */
typedef struct cli_prediction_row {
    const char *name;
    int32_t ranks;
    bool has_train, has_test;
    bool aside; // stands beside another row for comparison: not shown by layer
    cot_predict_evaluation train, test;
    uint64_t table_bytes;
    double seconds;
} cli_prediction_row;
void cli_prediction_rows_free(cli_prediction_row *rows, size_t n);
/* Evaluates on the sequences learnt from and on the others, as far as there are any. `training` NULL: all of the trace
 * is test. Errors: as cot_predict_evaluate. */
cot_status cli_prediction_row_measure(cli_prediction_row *row, const cot_predictor *predictor,
                                      cot_predict_method method, const cot_trace *trace,
                                      const uint8_t *training, int32_t resamples, cot_error *error);
/* Says when sending tokens where the row says is not better on test than sending as many to each rank blindly, beyond
 * chance. The whole width of the 95 % interval (four standard errors) is asked for, since of several methods one may
 * well be lucky. */
void cli_prediction_row_print_gain(const cli_prediction_row *row);
/* Print the rows for people; `layers` [L] the model's numbers. */
void cli_prediction_rows_print(const cli_prediction_row *rows, size_t n, const int32_t *layers);
/* One object a row, null for what was not measured. `row_bytes` 0: rows alone. */
json_t *cli_prediction_row_json(const cli_prediction_row *row, const int32_t *layers, int32_t n_layers,
                                double row_bytes);

/* Writes the page of `--plot`, the `rows` [n] that were measured by layer and what the trace says by itself; returns a
 * CLI_EXIT_ value after saying what is wrong. */
int cli_predict_plot(const char *path, const cot_trace *trace, const cli_prediction_row *rows, size_t n,
                     uint64_t seed);

/* A number of `digits` decimals, a dash for NaN, right-aligned after a space. */
void cli_print_cell(int width, int digits, double value);
/* Writes the array on standard output and frees it; returns a CLI_EXIT_ value. */
int cli_print_json(json_t *list);

#endif
