/* What `coterie bench pipeline` works with: the ways that its lists make, the requests they run, what is told of them. */
#ifndef COT_CLI_BENCH_PIPELINE_H
#define COT_CLI_BENCH_PIPELINE_H
#include "bench_lists.h"
#include "command.h"
#include "pipeline_account.h"
#include "replay.h"
#include "coterie/bench_fabric.h"

#include <jansson.h>

enum {
    PIPELINE_MOST_NAMES = 8,
    PIPELINE_MOST_SAMPLES = 16384,
    PIPELINE_PROMPT =
        8, // tokens of each sequence before those that are decoded: of all sequences in one step
    PIPELINE_MOST_SEQUENCES = 64,
    PIPELINE_MOST_STEP = 65536
};

struct pipeline_settings {
    engine_settings engine; // what all cells have in common
    replay_settings replay;
    const char *model, *ranks, *pipeline, *op, *predict, *collective, *a2a, *dedup, *phase, *tokens;
    cot_list links;
    int64_t step, decode_steps, repeat, seed;
    bool json;
};

/* A comma list of names; NULL among them is the engine's own choice, "auto". */
struct pipeline_names {
    const char *name[PIPELINE_MOST_NAMES];
    size_t count;
    char *text;
};

/* A way to run: an engine of its own, which the others leave alone. */
struct pipeline_way {
    int ranks;
    const char *pipeline, *op, *predict, *collective, *a2a, *dedup;
    cot_engine *engine;
};

struct pipeline_work {
    const struct pipeline_settings *s;
    replay replay;
    struct pipeline_names pipelines, ops, predictions, collectives, exchanges, dedups, phases;
    int64_t tokens[BENCH_MOST_ITEMS], ranks[BENCH_MOST_ITEMS];
    size_t n_tokens, n_ranks, n_links;
    cot_engine_link links[PIPELINE_MOST_LINKS];
    struct pipeline_way *ways;
    size_t n_ways;
    cot_request *requests;
    size_t n_requests;
    int32_t *ids; // that random requests are cut from
    json_t *json;
};

/* Parses the lists. False after a line on standard error, as all below. */
bool pipeline_parse(struct pipeline_work *work);
/* Lists the ways that go together, each once. */
bool pipeline_list_ways(struct pipeline_work *work);
/* Opens an engine for each way that is in hand. On a rank other than the first of those that were started from outside each has run,
 * and is closed, when this returns. */
bool pipeline_open_ways(struct pipeline_work *work);
/* Most tokens of a cell. */
int64_t pipeline_most_tokens(const struct pipeline_work *work);

/* Makes room for requests, and looks whether there are such for every cell, before anything is measured. */
bool pipeline_plan(struct pipeline_work *work);
/* Sequences of the trace, one after the other, or drawn ones: `tokens` at once, or of so many sequences one at a time. */
bool pipeline_make_requests(struct pipeline_work *work, bool decode, int64_t tokens);

struct pipeline_samples {
    double ns[PIPELINE_MOST_SAMPLES];
    size_t count;
};

/* Runs the requests; a prefill is one sample, each step of a decode is. With an account what they moved is added to it. */
bool pipeline_run(const struct pipeline_work *work, const struct pipeline_way *way, bool decode,
                  struct pipeline_samples *samples, pipeline_account *account);
/* The same over a link, counted from 1; 0: none. */
bool pipeline_run_over(const struct pipeline_work *work, const struct pipeline_way *way, size_t link,
                       bool decode, struct pipeline_samples *samples);

/* rates [links + 1]: bytes a second that each link, counted from 1, lets pass in messages as large as the way's mean one, of 64 KiB to
 * 1 MiB. */
bool pipeline_measure_links(const struct pipeline_work *work, const struct pipeline_way *way,
                            const pipeline_account *account, double *rates);

void pipeline_heading(void);
/* Tells the cells of all ways and links: a line each, or an object in work->json. samples and rates
 * [ways][links + 1], accounts [ways]. */
void pipeline_tell(struct pipeline_work *work, struct pipeline_samples *samples,
                   const pipeline_account *accounts, const double *rates, const char *phase, int64_t tokens);

#endif
