/* `coterie bench pipeline`: pipelines, operators, predictions and collectives side by side, over links. */
#include "cli/bench/bench_pipeline.h"
#include "cli/commands.h"
#include "cli/frame/progress.h"
#include "coterie/started.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All ways and links in turn, so that what slows the machine slows all of them; the first turn is not counted. */
static bool measure(struct cli_pipeline_work *w, const char *phase, int64_t tokens)
{
    const bool decode = !strcmp(phase, "decode");
    const size_t links = w->n_links + 1;
    struct cli_pipeline_samples *samples = calloc(w->n_ways * links, sizeof *samples);
    cli_pipeline_account *accounts = calloc(w->n_ways, sizeof *accounts);
    double *rates = calloc(w->n_ways * links, sizeof *rates);
    bool good = samples && accounts && rates;
    if (!good) cli_complain("out of memory");
    good = good && cli_pipeline_make_requests(w, decode, tokens);
    cli_progress progress = {"measuring", 0};
    for (size_t i = 0; i < w->n_ways && good; i++)
        good = cli_pipeline_run(w, &w->ways[i], decode, NULL, &accounts[i]) &&
               cli_pipeline_measure_links(w, &w->ways[i], &accounts[i], rates + i * links);
    for (int64_t time = 0; time < w->s->repeat && good; time++)
        for (size_t n = 0; n < w->n_ways * links && good; n++) {
            cli_progress_show(&progress, (uint64_t)time * w->n_ways * links + n,
                              (uint64_t)w->s->repeat * w->n_ways * links);
            good = cli_pipeline_run_over(w, &w->ways[n / links], n % links, decode, &samples[n]);
        }
    cli_progress_end(&progress);
    if (good) cli_pipeline_tell(w, samples, accounts, rates, phase, tokens);
    free(samples);
    free(accounts);
    free(rates);
    return good;
}

/* What is told before the first cell. */
static bool begin(struct cli_pipeline_work *w)
{
    const cli_engine_needs needs = {.remarks = w->replay.remarks.text};
    if (!cli_pipeline_plan(w)) return false;
    cli_engine_tell_remarks(&needs);
    if (w->s->json)
        w->json = json_array();
    else
        cli_pipeline_heading();
    return true;
}

/* All cells of the ways in hand. */
static bool measure_ways(struct cli_pipeline_work *w)
{
    bool good = cli_pipeline_open_ways(w);
    if (!cli_is_other_rank()) {
        if (good && !w->requests) good = begin(w);
        for (size_t p = 0; p < w->phases.count && good; p++)
            for (size_t t = 0; t < w->n_tokens && good; t++)
                good = measure(w, w->phases.name[p], w->tokens[t]);
    }
    for (size_t i = 0; i < w->n_ways; i++) cot_engine_close(w->ways[i].engine);
    return good;
}

/* Ranks that were started from outside are one group at a time, so that their ways run one after the other. */
static bool measure_all(struct cli_pipeline_work *w)
{
    if (cli_is_rank() && w->n_links) {
        cli_complain("--link shapes the links of ranks on one host; those that were started from outside "
                     "have their own");
        return false;
    }
    struct cli_pipeline_way *const ways = w->ways;
    const size_t all = w->n_ways, at_once = cli_is_rank() ? 1 : all;
    bool good = true;
    w->n_ways = at_once;
    for (size_t i = 0; i < all && good; i += at_once) {
        w->ways = ways + i;
        good = measure_ways(w);
    }
    w->ways = ways;
    if (good && w->json) {
        json_dumpf(w->json, stdout, JSON_INDENT(1));
        printf("\n");
    }
    return good;
}

static int bench_pipeline(const void *given)
{
    struct cli_pipeline_settings settings = *(const struct cli_pipeline_settings *)given;
    struct cli_pipeline_work w = {.s = &settings};
    char started[16];
    snprintf(started, sizeof started, "%d", cli_is_rank() ? cot_launch_started().ranks : 4);
    if (!settings.ranks) settings.ranks = started;
    const bool parsed = cli_replay_check(&w.s->replay, w.s->model, true) && cli_pipeline_parse(&w) &&
                        cli_bench_ranks_check(w.ranks, w.n_ranks);
    const bool good = parsed && cli_replay_open(&w.replay, &w.s->replay, &w.s->engine) &&
                      cli_pipeline_list_ways(&w) && measure_all(&w);
    struct cli_pipeline_names *names[] = {&w.pipelines, &w.ops,    &w.predictions, &w.collectives,
                                          &w.exchanges, &w.dedups, &w.phases};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) free(names[i]->text);
    cli_replay_close(&w.replay);
    json_decref(w.json);
    free(w.ways);
    free(w.requests);
    free(w.ids);
    return good ? CLI_EXIT_OK : parsed ? CLI_EXIT_FAILURE : CLI_EXIT_USAGE;
}

#define AT(field) offsetof(struct cli_pipeline_settings, field)
static const cli_option options[] = {
    {"ranks", 'r', CLI_OPTION_TEXT, "LIST", NULL,
     "ranks of the expert-parallel group; default 4, or as many as oshrun has started", AT(ranks)},
    {"pipeline", 0, CLI_OPTION_TEXT, "LIST", "ds-moe,s-moe",
     "ds-moe, s-moe, dp (attention dp: no sums travel), auto", AT(pipeline)},
    {"op", 0, CLI_OPTION_TEXT, "LIST", "bulk", "MoE operators (see coterie info)", AT(op)},
    {"predict", 0, CLI_OPTION_TEXT, "LIST", "auto",
     "what s-moe goes by: none, token-table, device-sequence, algorithm-2, gate, oracle, worst, auto",
     AT(predict)},
    {"collective", 0, CLI_OPTION_TEXT, "LIST", "auto", "ring, direct, auto", AT(collective)},
    {"a2a", 0, CLI_OPTION_TEXT, "LIST", "auto", "of bulk: padded, two-phase, one-shot, auto", AT(a2a)},
    {"dedup", 0, CLI_OPTION_TEXT, "LIST", "auto", "of bulk: on, off, auto", AT(dedup)},
    {"phase", 0, CLI_OPTION_TEXT, "LIST", "prefill",
     "prefill: all tokens as prompts; decode: so many sequences, a token of each a step", AT(phase)},
    {"tokens", 0, CLI_OPTION_TEXT, "LIST", "512", "tokens of a prefill, or sequences of a decode",
     AT(tokens)},
    {"link", 0, CLI_OPTION_LIST, "B,L[,groups=G:B,L]", NULL,
     "each cell also with links that give a rank B, out and in, and take L, as in 12.5MB/s,500us; ranks in G "
     "groups share "
     "an uplink of each; may be given several times",
     AT(links)},
    {"step", 0, CLI_OPTION_INTEGER, "N", "512", "most tokens of a step", AT(step), .least = 1,
     .most = CLI_PIPELINE_MOST_STEP},
    {"decode-steps", 0, CLI_OPTION_INTEGER, "N", "16", "steps of a decode, each of which is timed",
     AT(decode_steps), .least = 1, .most = 1024},
    {"repeat", 0, CLI_OPTION_INTEGER, "N", "5", "runs of each cell, after one whose bytes are counted",
     AT(repeat), .least = 1, .most = 1000},
    {"seed", 0, CLI_OPTION_INTEGER, "N", "1", "of drawn tokens, and of a shape's weights", AT(seed),
     .least = 0, .most = INT64_MAX},
    {"threads", 't', CLI_OPTION_INTEGER, "N", "0", "threads in all (0: as many as cores)",
     AT(engine.options.group.threads), .least = 0, .most = 1024, .narrow = true},
    {"precision", 0, CLI_OPTION_CHOICE, "TYPE", "bf16", "arithmetic and payload",
     AT(engine.options.weights.precision), .choices = cli_weights_precision_words, .word = true},
    {"combine", 0, CLI_OPTION_CHOICE, "HOW", "exact",
     "exact: each expert's row travels back; reduced: a rank adds up its experts' rows first",
     AT(engine.options.experts.combine), .choices = cli_experts_combine_words, .word = true},
    {"tables", 0, CLI_OPTION_TEXT, "FILE", NULL,
     "tables of coterie group: where experts sit, and what they foretell", AT(engine.options.experts.tables)},
    {"fabric", 0, CLI_OPTION_TEXT, "NAME", NULL, "what ranks are (see coterie info)",
     AT(engine.options.group.fabric)},
    CLI_HOSTFILE_ROW(AT(engine.hostfile)),
    CLI_TIMEOUT_ROW(AT(engine.options.group.timeout_ns)),
    {"isa", 0, CLI_OPTION_TEXT, "NAME", NULL, "caps the instruction set (see coterie info)",
     AT(engine.options.group.isa)},
    {"json", 0, CLI_OPTION_FLAG, NULL, NULL, "print JSON", AT(json)},
    {0}};

const cli_command cli_cmd_bench_pipeline = {
    .name = "bench pipeline",
    .summary = "measure pipelines, operators, predictions side by side",
    .details =
        "Lists are separated by commas; each way that they make goes with each phase, number of "
        "tokens and link, and all run "
        "in turn. ds-moe foretells nothing, fused knows no --a2a and --dedup, padded blocks no dedup: such "
        "ways are run once or "
        "not at all. Times are of a whole prefill, or of a step of a decode, as are bytes and rounds. "
        "bytes: attention, dispatch "
        "and combine, over all ranks, as counted; bytes_formula: the same by docs/BYTES.md; bytes_busiest: "
        "what "
        "the busiest rank sends or takes in, the larger, added up over a step's exchanges, which "
        "follow one another. model "
        "is the median without a link, plus these bytes over the link's rate (the uplink's, where "
        "that takes longer), plus "
        "rounds times its latency; the rate is the one that messages as large, 64 KiB at least, found in the "
        "same run "
        "(link_bytes_per_s). lar, remote_ranks: of the MoE layers; home_peak and "
        "expert_peak: "
        "the busiest rank's tokens, "
        "and its experts' calls in the layer where that is highest, over the mean. Replayed sequences "
        "that tables "
        "learnt from are passed over, also where they are not used.",
    .examples =
        (const char *const[]){
            "coterie bench pipeline models/tiny --pipeline ds-moe,s-moe --link 12.5MB/s,0us",
            "coterie bench pipeline models/tiny --phase decode --tokens 1,8 --link 1GB/s,500us --collective "
            "ring,direct",
            "coterie bench pipeline --shape gpt-oss-20b --trace-layers 0:4 --routing trace:t.safetensors "
            "--tokens 4096",
            NULL},
    .options = {.groups = (const cli_option_group[]){{"Options", options, 0},
                                                     {"Replayed routing", cli_replay_option_rows, AT(replay)},
                                                     {0}},
                .positionals =
                    (const cli_positional[]){{"MODEL", 0, 1, "a model folder, or a GGUF file", AT(model)},
                                             {0}}},
    .settings_bytes = sizeof(struct cli_pipeline_settings),
    .run = bench_pipeline};
