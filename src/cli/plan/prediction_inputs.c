/* What `coterie predict` and `coterie group` read. */
#include "cli/plan/cmd_predict.h"

#include "cli/frame/progress.h"
#include "cli/plan/token_ids.h"
#include "coterie/model.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* Who is told lines, and what they begin with. */
struct listener {
    cot_trace_say *say;
    void *context;
    const char *prefix;
};

static void pass_on(void *context, const char *line)
{
    const struct listener *l = context;
    char whole[1024];
    snprintf(whole, sizeof whole, "%s%s", l->prefix, line);
    l->say(l->context, whole);
}

int cli_open_trace_saying(cot_trace *trace, const char *path, cot_trace_say *say, void *context)
{
    struct listener notes = {say, context, "note: "}, warnings = {say, context, "warning: "};
    const cot_trace_import_options options = {.size = sizeof options, .say = pass_on, .context = &notes};
    cot_error error = {0};
    cli_progress progress = {"reading", 0};
    cli_progress_show(&progress, 0, 0);
    cot_status status = cot_trace_import(trace, path, &options, &error);
    if (status == COT_OK) {
        status = cot_trace_warn(trace, pass_on, &warnings, &error);
        if (status != COT_OK) cot_trace_close(trace);
    }
    cli_progress_end(&progress);
    return status == COT_OK ? CLI_EXIT_OK : cli_complain_of(&error);
}

static void complain(void *context, const char *line)
{
    (void)context;
    cli_complain("%s", line);
}

int cli_open_trace(cot_trace *trace, int32_t **ids, const char *path, const char *tokenizer)
{
    const int status = cli_open_trace_saying(trace, path, complain, NULL);
    return status == CLI_EXIT_OK && tokenizer ? cli_map_token_ids(trace, ids, tokenizer) : status;
}

int cli_open_embeddings(cot_predict_embedding *embedding, float **memory, const cot_trace *trace,
                        const char *path)
{
    cot_error error = {0};
    if (trace->n_strings)
        return cli_complain("--embeddings: the trace knows tokens by their strings: give --tokenizer too");
    if (cot_model_embedding(memory, &embedding->n_ids, &embedding->width, path, &error) != COT_OK)
        return cli_complain_of(&error);
    embedding->row = *memory;
    for (int64_t t = 0; t < trace->n_tokens; t++)
        if (trace->token_ids[t] >= embedding->n_ids)
            return cli_complain("the trace has token id %" PRId32 ", beyond the vocabulary of '%s', %" PRId64
                                " ids",
                                trace->token_ids[t], path, embedding->n_ids);
    return CLI_EXIT_OK;
}

static cot_status refuse(cot_error *error, cot_status status, const char *format, ...)
{
    va_list args;
    error->status = status;
    va_start(args, format);
    vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    return status;
}

cot_status cli_draw_training(uint8_t **training, const cot_trace *trace, double share, uint64_t seed,
                             cot_error *error)
{
    *training = NULL;
    if (trace->kind == COT_TRACE_COUNTS)
        return refuse(
            error, COT_INVALID_ARGUMENT,
            "counts have no sequences to split: coterie group --tables learns from one domain, coterie "
            "predict --tables tests on another");
    uint8_t *drawn = malloc((size_t)trace->n_sequences + 1);
    if (!drawn)
        return refuse(error, COT_OUT_OF_MEMORY, "out of memory for %" PRId64 " sequences",
                      trace->n_sequences);
    cot_trace_split(drawn, trace->n_sequences, share, seed);
    int64_t tokens = 0;
    for (int64_t s = 0; s < trace->n_sequences; s++)
        if (drawn[s]) tokens += trace->sequence_offsets[s + 1] - trace->sequence_offsets[s];
    if (!tokens) {
        free(drawn);
        return refuse(error, COT_INVALID_ARGUMENT, "the training split is empty: %g of %" PRId64 " sequences",
                      share, trace->n_sequences);
    }
    *training = drawn;
    return COT_OK;
}

int32_t *cli_map_ranks(const cot_expert_map *map, const cot_trace *trace, const char *path)
{
    cot_error error = {COT_OUT_OF_MEMORY, "out of memory for the ranks of experts"};
    int64_t replicas = 0;
    int32_t *rank = malloc((size_t)trace->n_layers * (size_t)trace->n_experts * sizeof *rank);
    if (!rank || cot_expert_map_ranks(rank, &replicas, map, trace, path, &error) != COT_OK) {
        cli_complain_of(&error);
        free(rank);
        return NULL;
    }
    if (replicas) cli_complain("note: of an expert's replicas in '%s' the first counts", path);
    return rank;
}
