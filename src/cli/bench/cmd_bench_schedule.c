/* `coterie bench schedule`: how many distinct experts steps call, by who is taken into them. */
#include "cli/commands.h"
#include "cli/frame/progress.h"
#include "cli/frame/terminal.h"
#include "cli/plan/cmd_predict.h"
#include "coterie/bench_schedule.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

struct settings {
    const char *trace;
    int64_t running, batch, max_wait_steps, ranks, steps, seeds, seed;
    double training;
    bool json;
};

static const double gained = 0.98; // of fcfs's experts: what is above may be chance

static void show(void *context, uint64_t done, uint64_t all)
{
    cli_progress_show(context, done, all);
}

static bool gains(const cot_bench_schedule_row *rows)
{
    return rows[COT_BENCH_BATCH_CHOSEN].experts <= gained * rows[COT_BENCH_BATCH_FCFS].experts;
}

static void print_json(const struct settings *s, const cot_trace *trace, const cot_bench_schedule_row *rows,
                       int64_t replayed)
{
    json_t *const list = json_array();
    for (int way = 0; way < COT_BENCH_BATCHINGS; way++) {
        const cot_bench_schedule_row *row = &rows[way];
        json_array_append_new(list, json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I}", "policy",
                                              cot_bench_batching_names[way], "experts", row->experts,
                                              "over_fcfs", row->experts / rows[COT_BENCH_BATCH_FCFS].experts,
                                              "least_seed", row->least, "most_seed", row->most,
                                              "busiest_rank", row->busiest, "all_running", row->all,
                                              "max_wait_steps", (json_int_t)row->most_waited_steps,
                                              "max_overtaken", (json_int_t)row->most_overtaken));
    }
    json_t *const o =
        json_pack("{s:s, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:o}", "model",
                  trace->model, "layers", (int)trace->n_layers, "experts", (int)trace->n_experts, "top_k",
                  (int)trace->top_k, "running", (json_int_t)s->running, "batch", (json_int_t)s->batch,
                  "max_wait_steps", (json_int_t)s->max_wait_steps, "ranks", (json_int_t)s->ranks, "steps",
                  (json_int_t)s->steps, "seeds", (json_int_t)s->seeds, "seed", (json_int_t)s->seed,
                  "replayed", (json_int_t)replayed, "gains", gains(rows), "policies", list);
    json_dumpf(o, stdout, JSON_INDENT(1));
    printf("\n");
    json_decref(o);
}

static void print_table(const struct settings *s, const cot_trace *trace, const cot_bench_schedule_row *rows,
                        int64_t replayed)
{
    printf("%d of %d experts a token, %d layers; %lld of %lld sequences a step, %lld generations to replay\n"
           "distinct experts of a layer and step, %lld steps of each of %lld seeds:\n\n",
           (int)trace->top_k, (int)trace->n_experts, (int)trace->n_layers, (long long)s->batch,
           (long long)s->running, (long long)replayed, (long long)s->steps, (long long)s->seeds);
    cli_heading(stdout, "%-10s %8s %8s %15s %8s %8s %9s %9s\n", "policy", "experts", "/ fcfs", "seeds",
                "busiest", "all", "waited", "overtaken");
    for (int way = 0; way < COT_BENCH_BATCHINGS; way++) {
        const cot_bench_schedule_row *row = &rows[way];
        printf("%-10s %8.3f %8.3f %7.3f-%7.3f %8.3f %8.3f %9lld %9lld\n", cot_bench_batching_names[way],
               row->experts, row->experts / rows[COT_BENCH_BATCH_FCFS].experts, row->least, row->most,
               row->busiest, row->all, (long long)row->most_waited_steps, (long long)row->most_overtaken);
    }
    if (!gains(rows))
        printf("\nchoosing by experts gains nothing here: %.3f of fcfs's distinct experts\n",
               rows[COT_BENCH_BATCH_CHOSEN].experts / rows[COT_BENCH_BATCH_FCFS].experts);
}

static int bench_schedule(const void *settings)
{
    const struct settings *s = settings;
    cot_trace trace = {0};
    int status = cli_open_trace(&trace, NULL, s->trace, NULL);
    if (status != CLI_EXIT_OK) return status;
    cli_progress progress = {"replaying", 0};
    const cot_bench_schedule_options options = {.size = sizeof options,
                                                .running = s->running,
                                                .batch = s->batch,
                                                .max_wait_steps = s->max_wait_steps,
                                                .ranks = (int32_t)s->ranks,
                                                .steps = s->steps,
                                                .seeds = (int32_t)s->seeds,
                                                .seed = (uint64_t)s->seed,
                                                .training = s->training,
                                                .progress = show,
                                                .context = &progress};
    cot_bench_schedule_row rows[COT_BENCH_BATCHINGS];
    int64_t replayed = 0;
    cot_error error = {0};
    const cot_status found = cot_bench_schedule(rows, &replayed, &trace, &options, &error);
    cli_progress_end(&progress);
    if (found != COT_OK)
        status = cli_complain_of(&error);
    else if (s->json)
        print_json(s, &trace, rows, replayed);
    else
        print_table(s, &trace, rows, replayed);
    cot_trace_close(&trace);
    return status;
}

#define AT(field) offsetof(struct settings, field)
static const cli_option options[] = {
    {"running", 0, CLI_OPTION_INTEGER, "R", "32", "sequences that are there at any time", AT(running),
     .least = 1, .most = 4096},
    {"batch", 0, CLI_OPTION_INTEGER, "B", "8", "how many of them a step takes", AT(batch), .least = 1,
     .most = 4096},
    {"max-wait-steps", 0, CLI_OPTION_INTEGER, "W", "8",
     "a sequence that sat out so many steps goes first: none sits out more than W + ceil(R / B) - 1",
     AT(max_wait_steps), .least = 1, .most = 1 << 20},
    {"ranks", 'r', CLI_OPTION_INTEGER, "P", "4", "ranks that hold consecutive experts", AT(ranks), .least = 1,
     .most = COT_TRACE_MAX_RANKS},
    {"steps", 0, CLI_OPTION_INTEGER, "N", "1000", "steps of each seed", AT(steps), .least = 1,
     .most = 1 << 24},
    {"seeds", 0, CLI_OPTION_INTEGER, "N", "5", "replays, each with a split, starts and an order of its own",
     AT(seeds), .least = 1, .most = 100},
    {"training", 0, CLI_OPTION_REAL, "SHARE", "0.2",
     "part of the generations that tables are counted on, and that is not replayed", AT(training),
     .min = 1e-6, .max = 1 - 1e-6},
    {"seed", 0, CLI_OPTION_INTEGER, "N", "1", "the first seed", AT(seed), .least = 0, .most = INT64_MAX},
    {"json", 0, CLI_OPTION_FLAG, NULL, NULL, "print JSON", AT(json)},
    {0}};

const cli_command cli_cmd_bench_schedule = {
    .name = "bench schedule",
    .summary = "count the distinct experts that steps call, by who is taken into them",
    .details =
        "A decode step reads each expert that any of its tokens calls once. The trace's generations are "
        "replayed, R at a time, and each step takes a token of B of them. fcfs: those that waited longest; "
        "random; chosen: by the experts that they are expected to call, from those that they called lately "
        "and from a table of their next token's id; oracle: the same, knowing them; admission: B run until "
        "they end, and of the oldest 16 of the others the one whose prompt called experts most like theirs "
        "follows.\n\n"
        "Columns. experts: distinct ones of a layer and step, the mean; seeds: the least and the most of a "
        "seed's mean; busiest: on the rank that has most of them in that layer; all: of all R, had the step "
        "taken them; waited: steps that a sequence sat out or waited to be admitted, at most; overtaken: how "
        "many were admitted before one that came earlier, at most. docs/SCHEDULE.md has figures.",
    .examples = (const char *const[]){"coterie bench schedule trace.safetensors --running 32 --batch 8",
                                      "coterie bench schedule trace.safetensors --batch 16 --json", NULL},
    .options = {.groups = (const cli_option_group[]){{"Options", options, 0}, {0}},
                .positionals =
                    (const cli_positional[]){{"TRACE", 1, 1,
                                              "a trace of tokens, of any format that coterie reads",
                                              AT(trace), NULL},
                                             {0}}},
    .settings_bytes = sizeof(struct settings),
    .run = bench_schedule};
