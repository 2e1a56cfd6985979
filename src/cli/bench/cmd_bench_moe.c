/* `coterie bench moe`: the MoE operators side by side, over shapes, tokens, ranks and routings. */
#include "cli/bench/bench_report.h"
#include "cli/frame/clock.h"
#include "cli/commands.h"
#include "cli/run/engine_settings.h"
#include "cli/frame/paths.h"
#include "cli/frame/progress.h"
#include "cli/bench/roof_trust.h"

#include "coterie/roof.h"
#include "coterie/started.h"

#include <stdlib.h>

struct settings {
    cli_bench_list_texts lists;
    int precision, weights, combine, a2a, dedup;
    int64_t threads, repeat, seed, sms_reserve;
    int64_t timeout_ns;
    const char *fabric, *isa, *timeline, *details, *hostfile;
    bool json;
};

/* Everything in hand. */
struct work {
    const struct settings *s;
    cli_bench_lists lists;
    int threads;
    cli_bench_found *found;
    size_t n, total; // cases measured, and in all
    int64_t end_ns;  // when all should be over
    cot_roof roof;
    int64_t roof_ns; // when it was measured; 0: not yet
    cli_progress progress;
    cli_bench_timeline timeline;
    const char *told_op; // whose events came last
    bool told_linked;
};

/* What goes on in the case in hand, of which `done` of `total` runs are behind. */
static void tell(struct work *w, const char *what, int done, int total)
{
    enum { STEPS = 1000 };
    w->progress.what = what;
    cli_progress_show(&w->progress, w->n * STEPS + (uint64_t)(done * STEPS / total), w->total * STEPS);
}

static void on_progress(void *context, int done, int total)
{
    tell(context, "measuring", done, total);
}

static void on_event(void *context, size_t op, bool linked, const cot_bench_event *event)
{
    struct work *w = context;
    const char *name = w->lists.ops[op];
    if (w->told_op != name || w->told_linked != linked)
        cli_bench_timeline_begin(&w->timeline, &w->found[w->n], name, linked);
    w->told_op = name;
    w->told_linked = linked;
    cli_bench_timeline_add(&w->timeline, event);
}

/* Cases share what time is left; what warms up and what pads takes a part. */
static int64_t budget_ns(const struct work *w)
{
    const int64_t left_ns = w->end_ns - cli_now_ns();
    return left_ns > 0 ? left_ns / (int64_t)(w->total - w->n) * 2 / 3 : 1;
}

static cot_status look(void *bench, cot_error *error)
{
    return cot_bench_moe_check(bench, error);
}

/* The machine's speed drifts. */
static cot_status measure_roof(struct work *w, cot_bench_moe *bench, cot_error *error)
{
    const int64_t fresh_ns = 20000000000;
    if (w->roof_ns && cli_now_ns() - w->roof_ns < fresh_ns) return COT_OK;
    tell(w, "measuring roofs", 0, 1);
    cot_status status = cot_roof_measure(&w->roof, w->threads, w->s->isa, 0, look, bench, error);
    w->roof_ns = cli_now_ns();
    return status;
}

/* The same tokens as an operator at capacity factor 1 would have them; nothing where that would take long. */
static cot_status measure_capacity(struct work *w, cot_bench_moe *bench, cli_bench_found *f, cot_error *error)
{
    double round_ns = 0;
    for (size_t i = 0; i < w->lists.n_ops; i++) round_ns += f->results[i].median_ns;
    round_ns *= (double)cot_bench_capacity_tokens(f->shape, f->tokens, f->ranks) / (double)f->tokens;
    if ((COT_BENCH_LEAST_REPEATS + 1) * round_ns > (double)budget_ns(w)) return COT_OK;
    cot_bench_case c = {.size = sizeof c,
                        .tokens = cot_bench_capacity_tokens(f->shape, f->tokens, f->ranks),
                        .routing = COT_BENCH_BALANCED,
                        .repeats = COT_BENCH_LEAST_REPEATS,
                        .roof = w->roof};
    cot_bench_load load;
    cot_bench_result results[COT_BENCH_MOST_OPS];
    int repeats;
    cot_status status = cot_bench_moe_run(bench, &load, results, &repeats, &c, error);
    for (size_t i = 0; i < w->lists.n_ops && status == COT_OK; i++) f->capacity_ns[i] = results[i].median_ns;
    return status;
}

static const cli_bench_found *fewest_ranks(const struct work *w, const cli_bench_found *f)
{
    for (size_t i = 0; i < w->n; i++) {
        const cli_bench_found *other = &w->found[i];
        if (other->shape == f->shape && other->routing == f->routing && other->tokens == f->tokens)
            return other->ranks < f->ranks ? other : NULL;
    }
    return NULL;
}

static cot_status measure(struct work *w, cot_bench_moe *bench, cli_bench_found *f, cot_error *error)
{
    cot_bench_case c = {.size = sizeof c,
                        .tokens = f->tokens,
                        .routing = f->routing->kind,
                        .trace = f->routing->trace,
                        .repeats = (int)w->s->repeat,
                        .budget_ns = budget_ns(w),
                        .roof = w->roof,
                        .link_bytes_per_s = w->lists.link_bytes_per_s,
                        .link_latency_ns = w->lists.link_latency_ns,
                        .link_groups = w->lists.link_groups,
                        .uplink_bytes_per_s = w->lists.uplink_bytes_per_s,
                        .uplink_latency_ns = w->lists.uplink_latency_ns,
                        .context = w,
                        .progress = on_progress};
    w->told_op = NULL;
    if (w->timeline.writer.stream) c.on_event = on_event;
    tell(w, "warming up", 0, 1);
    cot_status status = cot_bench_moe_run(bench, &f->load, f->results, &f->repeats, &c, error);
    if (status == COT_OK && !w->s->json) status = measure_capacity(w, bench, f, error);
    return status;
}

static cot_status open_group(cot_bench_moe **bench, const struct work *w, const cot_bench_shape *shape,
                             int ranks, cot_error *error)
{
    const cli_bench_lists *l = &w->lists;
    int64_t tokens[2 * CLI_BENCH_MOST_ITEMS];
    cot_bench_moe_options options = {.size = sizeof options,
                                     .shape = *shape,
                                     .ranks = ranks,
                                     .threads = w->threads,
                                     .precision = cli_weights_precision_words[w->s->precision],
                                     .weights = cli_weights_networks_words[w->s->weights],
                                     .combine = cli_experts_combine_words[w->s->combine],
                                     .a2a = w->s->a2a ? cli_experts_a2a_words[w->s->a2a] : NULL,
                                     .dedup = w->s->dedup ? cli_experts_dedup_words[w->s->dedup] : NULL,
                                     .sms_reserve = (int)w->s->sms_reserve,
                                     .fabric = w->s->fabric,
                                     .timeout_ns = w->s->timeout_ns,
                                     .isa = w->s->isa,
                                     .ops = l->ops,
                                     .tokens = tokens,
                                     .seed = (uint64_t)w->s->seed};
    for (size_t i = 0; i < l->n_tokens; i++) {
        tokens[options.n_tokens++] = l->tokens[i];
        if (!w->s->json) tokens[options.n_tokens++] = cot_bench_capacity_tokens(shape, l->tokens[i], ranks);
    }
    return cot_bench_moe_open(bench, &options, error);
}

/* All cases of one shape and number of ranks. */
static cot_status measure_group(struct work *w, const cot_bench_shape *shape, int ranks, cot_error *error)
{
    cot_bench_moe *bench;
    tell(w, "drawing weights", 0, 1);
    cot_status status = open_group(&bench, w, shape, ranks, error);
    if (status == COT_OK && !w->n) cli_note_carriers();
    for (size_t t = 0; t < w->lists.n_tokens && status == COT_OK; t++)
        for (size_t r = 0; r < w->lists.n_routings && status == COT_OK; r++) {
            cli_bench_found *f = &w->found[w->n];
            *f = (cli_bench_found){shape, &w->lists.routings[r], w->lists.tokens[t], ranks};
            f->fewest = fewest_ranks(w, f);
            status = measure_roof(w, bench, error);
            f->roof = w->roof;
            if (status == COT_OK) status = measure(w, bench, f, error);
            w->n += status == COT_OK;
            cli_progress_end(&w->progress);
            if (status == COT_OK && f->repeats < w->s->repeat)
                fprintf(stderr, "note: %s, %lld tokens, %d ranks, %s: %d runs, as more would take too long\n",
                        shape->name, (long long)f->tokens, ranks, f->routing->text, f->repeats);
            if (status == COT_OK) cli_bench_report_doubt(f, &w->lists);
            if (status == COT_OK && !w->s->json) {
                cli_bench_report_print(f, &w->lists, cli_weights_precision_words[w->s->precision],
                                       w->s->weights ? cli_weights_networks_words[w->s->weights] : NULL);
                fflush(stdout);
            }
        }
    cot_bench_moe_close(bench);
    return status == COT_SERVED ? COT_OK : status; // the first rank measures, this one was in its group
}

/* What cannot be drawn is found before anything is measured. */
static cot_status check(const cli_bench_lists *l, cot_error *error)
{
    cot_status status = COT_OK;
    for (size_t s = 0; s < l->n_shapes; s++)
        for (size_t t = 0; t < l->n_tokens; t++)
            for (size_t r = 0; r < l->n_routings && status == COT_OK; r++)
                status = cot_bench_check(&l->shapes[s], l->tokens[t], l->routings[r].kind,
                                         l->routings[r].trace, error);
    return status;
}

static cot_status measure_all(struct work *w, cot_error *error)
{
    const cli_bench_lists *l = &w->lists;
    cot_status status = check(l, error);
    for (size_t s = 0; s < l->n_shapes; s++)
        for (size_t r = 0; r < l->n_ranks && status == COT_OK; r++)
            status = measure_group(w, &l->shapes[s], (int)l->ranks[r], error);
    return status;
}

static bool run_work(struct work *w)
{
    const cli_bench_lists *l = &w->lists;
    const int64_t ten_points_ns = 200LL * 1000000000;
    w->total = l->n_shapes * l->n_tokens * l->n_ranks * l->n_routings;
    const int64_t tens = (int64_t)(w->total * l->n_ops + 9) / 10;
    w->end_ns = cli_now_ns() + tens * ten_points_ns;
    w->found = calloc(w->total, sizeof *w->found);
    if (!w->found) {
        cli_complain("out of memory");
        return false;
    }
    if (w->s->timeline && !cli_is_other_rank() && !cli_bench_timeline_open(&w->timeline, w->s->timeline))
        return false;
    cot_error error;
    bool good = measure_all(w, &error) == COT_OK;
    cli_progress_end(&w->progress);
    if (!good) cli_complain_of(&error);
    good = cli_bench_timeline_close(&w->timeline) && good;
    if (cli_is_other_rank()) return good;
    if (good && w->s->details) good = cli_bench_report_details(w->s->details, w->found, w->n, l);
    if (good && w->s->json) return cli_bench_report_json(w->found, w->n, l);
    if (good) cli_bench_report_print_summary(w->found, w->n, l);
    return good;
}

static int bench_moe(const void *settings)
{
    const struct settings *s = settings;
    struct work work = {.s = s, .threads = cli_roof_threads(s->threads), .progress = {0}};
    cli_bench_list_texts texts = s->lists;
    char ranks[16];
    snprintf(ranks, sizeof ranks, "%d", cli_is_rank() ? cot_launch_started().ranks : 1);
    if (!texts.ranks) texts.ranks = ranks;
    bool parsed = cli_bench_lists_parse(&work.lists, &texts) &&
                  cli_bench_ranks_check(work.lists.ranks, work.lists.n_ranks);
    bool good = parsed && cli_check_output(s->timeline, "the results") &&
                cli_check_output(s->details, "the results") && run_work(&work);
    cli_bench_lists_free(&work.lists);
    free(work.found);
    return good ? CLI_EXIT_OK : parsed ? CLI_EXIT_FAILURE : CLI_EXIT_USAGE;
}

#define AT(field) offsetof(struct settings, field)
static const cli_option options[] = {
    {"shape", 0, CLI_OPTION_TEXT, "LIST", "olmoe",
     "names (flashmoe, olmoe, qwen3-30b, mixtral, deepseek-v2-lite, deepseek-v3, gpt-oss), or H,I,E,K",
     AT(lists.shape)},
    {"tokens", 0, CLI_OPTION_TEXT, "LIST", "512", "tokens of a pass, over all ranks", AT(lists.tokens)},
    {"ranks", 'r', CLI_OPTION_TEXT, "LIST", NULL,
     "ranks of the expert-parallel group; default: 1, or as many as oshrun has started", AT(lists.ranks)},
    {"routing", 0, CLI_OPTION_TEXT, "LIST", "uniform", "uniform, zipf, hot, trace:FILE", AT(lists.routing)},
    {"op", 0, CLI_OPTION_TEXT, "LIST", NULL, "MoE operators (see coterie info); all", AT(lists.op)},
    {"sms-reserve", 0, CLI_OPTION_INTEGER, "N", "0",
     "multiprocessors of the GPU that operator cuda leaves to others", AT(sms_reserve), .least = 0,
     .most = 4096},
    {"link", 0, CLI_OPTION_TEXT, "B,L[,groups=G:B,L]", NULL,
     "each run also with links that give a rank B, out and in, and take L, as in 0.1GB/s,20us; ranks in G "
     "groups share "
     "an uplink of each, out and in, for what goes to another",
     AT(lists.link)},
    {"precision", 0, CLI_OPTION_CHOICE, "TYPE", "bf16", "arithmetic and payload", AT(precision),
     .choices = cli_weights_precision_words},
    {"weights", 0, CLI_OPTION_CHOICE, "TYPE", "as-stored",
     "what experts' weights are kept as; as-stored: as the precision says", AT(weights),
     .choices = cli_weights_networks_words},
    {"combine", 0, CLI_OPTION_CHOICE, "HOW", "exact",
     "exact: each expert's row travels; reduced: each rank adds up its experts' rows first (bulk: with dedup "
     "on, else exact)",
     AT(combine), .choices = cli_experts_combine_words},
    {"a2a", 0, CLI_OPTION_CHOICE, "HOW", "auto",
     "how bulk sends rows: padded: all blocks as long as the longest; two-phase (auto): after counts; "
     "one-shot: "
     "in one message with all there is to know of them",
     AT(a2a), .choices = cli_experts_a2a_words},
    {"dedup", 0, CLI_OPTION_CHOICE, "HOW", "auto",
     "on: a token goes once to a rank, as always with fused; off (auto of bulk): once for each expert there",
     AT(dedup), .choices = cli_experts_dedup_words},
    {"threads", 't', CLI_OPTION_INTEGER, "N", "0",
     "threads in all (0: as many as cores); beyond the ranks they help, below they limit", AT(threads),
     .least = 0, .most = 256},
    {"repeat", 0, CLI_OPTION_INTEGER, "N", "15",
     "timed runs of each operator, after one that is not counted; fewer, but 5, where they take long",
     AT(repeat), .least = COT_BENCH_LEAST_REPEATS, .most = COT_BENCH_MOST_REPEATS},
    {"fabric", 0, CLI_OPTION_TEXT, "NAME", NULL, "what ranks are (see coterie info)", AT(fabric)},
    CLI_HOSTFILE_ROW(AT(hostfile)),
    CLI_TIMEOUT_ROW(AT(timeout_ns)),
    {"isa", 0, CLI_OPTION_TEXT, "NAME", NULL, "caps the instruction set (see coterie info)", AT(isa)},
    {"seed", 0, CLI_OPTION_INTEGER, "N", "1", "of weights and routings", AT(seed), .least = 0,
     .most = INT64_MAX},
    {"timeline", 0, CLI_OPTION_TEXT, "FILE", NULL,
     "write what each thread did in the last run of each operator, in Chrome's trace format", AT(timeline)},
    {"details", 0, CLI_OPTION_TEXT, "FILE", NULL, "write everything that was measured as JSON", AT(details)},
    {"json", 0, CLI_OPTION_FLAG, NULL, NULL, "print JSON", AT(json)},
    {0}};

const cli_command cli_cmd_bench_moe = {
    .name = "bench moe",
    .summary = "measure the MoE operators side by side on one layer with random weights",
    .details =
        "Lists are separated by commas; four numbers are a shape, of which H may not be less than E. "
        "deepseek-v3 "
        "is what one of 32 ranks holds: 8 of 256 experts, top 1, so that T tokens stand for 4 T of the "
        "whole. "
        "zipf: p(e) ~ 1/(e+1), drawn without repetition; hot: expert 0 for every token, the others uniform. "
        "The "
        "operators run in turn, on the same weights and tokens, each time with cold caches. Of roof: the "
        "least time that the multiply-add and read roofs, measured in the same run, allow the experts, over "
        "the median; busy: more than 105 %, since other programs slowed the roofs while they were measured. "
        "Idle: of the threads' time. Overlap: the time with the fewest ranks over this one. "
        "Straggler: "
        "from the first rank's having done its experts' work to the last one's. Sent: by the busiest rank.",
    .examples =
        (const char *const[]){"coterie bench moe", "coterie bench moe --tokens 1,512 --ranks 1,4",
                              "coterie bench moe --shape 1024,512,16,2 --routing hot --json",
                              "coterie bench moe --ranks 4 --link 0.1GB/s,20us",
                              "coterie bench moe --ranks 4 --link 1GB/s,5us,groups=2:0.2GB/s,50us", NULL},
    .options = {.groups = (const cli_option_group[]){{"Options", options, 0}, {0}}},
    .settings_bytes = sizeof(struct settings),
    .run = bench_moe};
