/* What `coterie bench pipeline` works with: the ways that its lists make, the requests they run, what is told of them. */
#ifndef COT_CLI_BENCH_BENCH_PIPELINE_H
#define COT_CLI_BENCH_BENCH_PIPELINE_H
#include "cli/bench/bench_lists.h"
#include "cli/frame/command.h"
#include "cli/bench/pipeline_account.h"
#include "cli/run/replay.h"
#include "coterie/bench_fabric.h"

#include <jansson.h>

enum {
    CLI_PIPELINE_MOST_NAMES = 8,
    CLI_PIPELINE_MOST_SAMPLES = 16384,
    CLI_PIPELINE_PROMPT =
        8, // tokens of each sequence before those that are decoded: of all sequences in one step
    CLI_PIPELINE_MOST_SEQUENCES = 64,
    CLI_PIPELINE_MOST_STEP = 65536
};

struct cli_pipeline_settings {
    cli_engine_settings engine; // what all cells have in common
    cli_replay_settings replay;
    const char *model, *ranks, *pipeline, *op, *predict, *collective, *a2a, *dedup, *phase, *tokens;
    cli_list links;
    int64_t step, decode_steps, repeat, seed;
    bool json;
};

/* A comma list of names; NULL among them is the engine's own choice, "auto". */
struct cli_pipeline_names {
    const char *name[CLI_PIPELINE_MOST_NAMES];
    size_t count;
    char *text;
};

/* A way to run: an engine of its own, which the others leave alone. */
struct cli_pipeline_way {
    int ranks;
    const char *pipeline, *op, *predict, *collective, *a2a, *dedup;
    cot_engine *engine;
};

struct cli_pipeline_work {
    const struct cli_pipeline_settings *s;
    cli_replay replay;
    struct cli_pipeline_names pipelines, ops, predictions, collectives, exchanges, dedups, phases;
    int64_t tokens[CLI_BENCH_MOST_ITEMS], ranks[CLI_BENCH_MOST_ITEMS];
    size_t n_tokens, n_ranks, n_links;
    cot_engine_link links[CLI_PIPELINE_MOST_LINKS];
    struct cli_pipeline_way *ways;
    size_t n_ways;
    cot_request *requests;
    size_t n_requests;
    int32_t *ids; // that random requests are cut from
    json_t *json;
};

/* Parses the lists. False after a line on standard error, as all below. */
bool cli_pipeline_parse(struct cli_pipeline_work *work);
/* Lists the ways that go together, each once. */
bool cli_pipeline_list_ways(struct cli_pipeline_work *work);
/* Opens an engine for each way that is in hand. On a rank other than the first of those that were started from outside each has run,
 * and is closed, when this returns. */
bool cli_pipeline_open_ways(struct cli_pipeline_work *work);
/* Most tokens of a cell. */
int64_t cli_pipeline_most_tokens(const struct cli_pipeline_work *work);

/* Makes room for requests, and looks whether there are such for every cell, before anything is measured. */
bool cli_pipeline_plan(struct cli_pipeline_work *work);
/* Sequences of the trace, one after the other, or drawn ones: `tokens` at once, or of so many sequences one at a time. */
bool cli_pipeline_make_requests(struct cli_pipeline_work *work, bool decode, int64_t tokens);

struct cli_pipeline_samples {
    double ns[CLI_PIPELINE_MOST_SAMPLES];
    size_t count;
};

/* Runs the requests; a prefill is one sample, each step of a decode is. With an account what they moved is added to it. */
bool cli_pipeline_run(const struct cli_pipeline_work *work, const struct cli_pipeline_way *way, bool decode,
                      struct cli_pipeline_samples *samples, cli_pipeline_account *account);
/* The same over a link, counted from 1; 0: none. */
bool cli_pipeline_run_over(const struct cli_pipeline_work *work, const struct cli_pipeline_way *way,
                           size_t link, bool decode, struct cli_pipeline_samples *samples);

/* rates [links + 1]: bytes a second that each link, counted from 1, lets pass in messages as large as the way's mean one, of 64 KiB to
 * 1 MiB. */
bool cli_pipeline_measure_links(const struct cli_pipeline_work *work, const struct cli_pipeline_way *way,
                                const cli_pipeline_account *account, double *rates);

void cli_pipeline_heading(void);
/* Tells the cells of all ways and links: a line each, or an object in work->json. samples and rates
 * [ways][links + 1], accounts [ways]. */
void cli_pipeline_tell(struct cli_pipeline_work *work, struct cli_pipeline_samples *samples,
                       const cli_pipeline_account *accounts, const double *rates, const char *phase,
                       int64_t tokens);

#endif
