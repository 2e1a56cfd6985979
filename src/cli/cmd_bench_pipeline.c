/* `coterie bench pipeline`: pipelines, operators, predictions and collectives side by side, over links. */
#include "bench_lists.h"
#include "commands.h"
#include "median.h"
#include "pipeline_account.h"
#include "progress.h"
#include "replay.h"
#include "terminal.h"

#include "coterie/engine.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_NAMES = 8,
    MOST_WAYS = 256,
    MOST_SAMPLES = 16384,
    DECODE_PROMPT = 8, // tokens of each sequence before those that are decoded: of all sequences in one step
    MOST_SEQUENCES = 64,
    MOST_STEP = 65536
};

struct settings {
    engine_settings engine; // what all cells have in common
    replay_settings replay;
    const char *model, *ranks, *pipeline, *op, *predict, *collective, *a2a, *dedup, *phase, *tokens;
    cot_list links;
    int64_t step, decode_steps, repeat, seed;
    bool json;
};

/* A comma list of names; NULL among them is the engine's own choice, "auto". */
struct names {
    const char *name[MOST_NAMES];
    size_t count;
    char *text;
};

/* A way to run: an engine of its own, which the others leave alone. */
struct way {
    int ranks;
    const char *pipeline, *op, *predict, *collective, *a2a, *dedup;
    cot_engine *engine;
};

struct work {
    const struct settings *s;
    replay replay;
    struct names pipelines, ops, predictions, collectives, exchanges, dedups, phases;
    int64_t tokens[BENCH_MOST_ITEMS], ranks[BENCH_MOST_ITEMS];
    size_t n_tokens, n_ranks, n_links;
    cot_engine_link links[PIPELINE_MOST_LINKS];
    struct way *ways;
    size_t n_ways;
    cot_request *requests;
    size_t n_requests;
    int32_t *ids; // that random requests are cut from
    json_t *json;
};

/* ---- lists ---- */

static bool split(struct names *names, const char *option, const char *text)
{
    *names = (struct names){.text = strdup(text)};
    if (!names->text) {
        cot_complain("out of memory");
        return false;
    }
    for (char *rest = names->text, *item; (item = strsep(&rest, ","));) {
        if (names->count == MOST_NAMES || !*item) {
            cot_complain("--%s takes up to %d names, not '%s'", option, MOST_NAMES, text);
            return false;
        }
        names->name[names->count++] = strcmp(item, "auto") != 0 ? item : NULL;
    }
    return true;
}

static bool parse_phases(struct work *w)
{
    if (!split(&w->phases, "phase", w->s->phase)) return false;
    for (size_t i = 0; i < w->phases.count; i++) {
        const char *name = w->phases.name[i];
        if (name && (!strcmp(name, "prefill") || !strcmp(name, "decode"))) continue;
        cot_complain("--phase takes prefill and decode, not '%s'", w->s->phase);
        return false;
    }
    return true;
}

static bool parse_links(struct work *w)
{
    for (size_t i = 0; i < w->s->links.count; i++) {
        bench_lists lists = {0};
        if (w->n_links == PIPELINE_MOST_LINKS) {
            cot_complain("--link takes at most %d links", PIPELINE_MOST_LINKS);
            return false;
        }
        if (!bench_link_parse(&lists, w->s->links.items[i].text)) return false;
        w->links[w->n_links++] =
            (cot_engine_link){lists.link_bytes_per_s, lists.link_latency_ns, lists.link_groups,
                              lists.uplink_bytes_per_s, lists.uplink_latency_ns};
    }
    return true;
}

static bool parse(struct work *w)
{
    const struct settings *s = w->s;
    return split(&w->pipelines, "pipeline", s->pipeline) && split(&w->ops, "op", s->op) &&
           split(&w->predictions, "predict", s->predict) &&
           split(&w->collectives, "collective", s->collective) && split(&w->exchanges, "a2a", s->a2a) &&
           split(&w->dedups, "dedup", s->dedup) && parse_phases(w) && parse_links(w) &&
           bench_integers_parse(w->tokens, &w->n_tokens, "tokens", s->tokens, MOST_STEP) &&
           bench_integers_parse(w->ranks, &w->n_ranks, "ranks", s->ranks, 64);
}

/* ---- ways ---- */

static bool is(const char *name, const char *text)
{
    return name && !strcmp(name, text);
}

static bool same(const char *a, const char *b)
{
    return a == b || is(a, b ? b : "");
}

static bool is_listed(const struct work *w, const struct way *a)
{
    for (const struct way *b = w->ways; b < w->ways + w->n_ways; b++)
        if (a->ranks == b->ranks && same(a->pipeline, b->pipeline) && same(a->op, b->op) &&
            same(a->predict, b->predict) && same(a->collective, b->collective) && same(a->a2a, b->a2a) &&
            same(a->dedup, b->dedup))
            return true;
    return false;
}

static bool list_ways(struct work *w)
{
    const struct names *lists[] = {&w->pipelines,   &w->ops,       &w->predictions,
                                   &w->collectives, &w->exchanges, &w->dedups};
    enum { LISTS = sizeof lists / sizeof *lists };
    w->ways = calloc(MOST_WAYS, sizeof *w->ways);
    if (!w->ways) {
        cot_complain("out of memory");
        return false;
    }
    size_t all = w->n_ranks;
    for (int i = 0; i < LISTS; i++) all *= lists[i]->count;
    for (size_t n = 0; n < all; n++) {
        const char *name[LISTS];
        size_t rest = n;
        for (int i = LISTS - 1; i >= 0; rest /= lists[i]->count, i--)
            name[i] = lists[i]->name[rest % lists[i]->count];
        struct way way = {(int)w->ranks[rest], name[0], name[1], name[2], name[3], name[4], name[5], NULL};
        if (is(way.pipeline, "ds-moe")) way.predict = NULL;
        if (is(way.op, "fused")) way.a2a = way.dedup = NULL;
        const bool padded_once = is(way.a2a, "padded") && is(way.dedup, "on"); // which no engine opens
        if (padded_once || is_listed(w, &way)) continue;
        if (w->n_ways == MOST_WAYS) {
            cot_complain("there are more than %d ways to run: give fewer at once", MOST_WAYS);
            return false;
        }
        w->ways[w->n_ways++] = way;
    }
    if (!w->n_ways) cot_complain("none of these go together");
    return w->n_ways > 0;
}

static int64_t most_tokens(const struct work *w)
{
    int64_t most = 1;
    for (size_t i = 0; i < w->n_tokens; i++)
        if (w->tokens[i] > most) most = w->tokens[i];
    return most;
}

static bool open_way(struct work *w, struct way *way)
{
    const struct settings *s = w->s;
    engine_settings common = s->engine;
    common.ranks = way->ranks;
    engine_needs needs = {.kv_tokens = most_tokens(w) + MOST_SEQUENCES * (DECODE_PROMPT + s->decode_steps),
                          .sequences = MOST_SEQUENCES,
                          .step_tokens = s->step};
    replay_need(&needs, &w->replay);
    common.pipeline = common.predict = common.collective = common.a2a = common.dedup =
        0; // each way's own, below
    cot_engine_options o = cot_engine_options_of(&common, &needs);
    o.pipeline = way->pipeline;
    o.op = way->op;
    o.predict = way->predict;
    o.collective = way->collective;
    o.a2a = way->a2a;
    o.dedup = way->dedup;
    cot_error error;
    char *notes = NULL;
    const char *config = w->replay.shape.config;
    const cot_status status =
        config ? cot_engine_open_random(&way->engine, config, strlen(config), (uint64_t)s->seed, &o, &error)
               : cot_engine_open(&way->engine, s->model, &o, &notes, &error);
    free(notes);
    if (status != COT_OK) cot_complain_of(&error);
    return status == COT_OK;
}

static bool open_ways(struct work *w)
{
    cot_progress progress = {"opening", 0};
    bool good = list_ways(w);
    for (size_t i = 0; good && i < w->n_ways; i++) {
        cot_progress_show(&progress, i, w->n_ways);
        good = open_way(w, &w->ways[i]);
    }
    cot_progress_end(&progress);
    return good;
}

/* ---- requests ---- */

static void add_request(struct work *w, const int32_t *ids, int64_t prompt, int64_t forced, int32_t recorded)
{
    w->requests[w->n_requests++] = (cot_request){.prompt = ids,
                                                 .prompt_tokens = prompt,
                                                 .forced = ids + prompt,
                                                 .forced_tokens = forced,
                                                 .recorded = recorded};
}

/* Sequences of the trace, one after the other, or drawn ones: `tokens` at once, or of so many sequences one at a time. */
static bool make_requests(struct work *w, bool decode, int64_t tokens)
{
    const int64_t length = DECODE_PROMPT + w->s->decode_steps,
                  context = cot_engine_describe(w->ways[0].engine)->context_tokens,
                  vocab = cot_engine_describe(w->ways[0].engine)->vocab;
    int64_t left = tokens, at = 0;
    uint64_t state = (uint64_t)w->s->seed;
    w->n_requests = 0;
    for (size_t i = 0; w->replay.recorded && left && i < w->replay.count; i++) {
        const cot_eval_sequence *q = &w->replay.sequences[i];
        if (decode && q->tokens < length) continue;
        const int64_t fed = decode ? DECODE_PROMPT : q->tokens < left ? q->tokens : left;
        add_request(w, q->ids, fed, decode ? w->s->decode_steps : 0, q->recorded);
        left -= decode ? 1 : fed;
    }
    while (!w->replay.recorded && left && (!decode || length <= context)) {
        const int64_t fed = decode           ? DECODE_PROMPT
                            : context < left ? context
                                             : left,
                      all = decode ? length : fed;
        for (int64_t t = 0; t < all; t++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            w->ids[at + t] = (int32_t)((state >> 33) % (uint64_t)vocab);
        }
        add_request(w, w->ids + at, fed, all - fed, 0);
        at += all;
        left -= decode ? 1 : fed;
    }
    if (!left) return true;
    cot_complain("there are no %lld tokens to %s: the %s ends before", (long long)tokens,
                 decode ? "decode" : "feed", w->replay.recorded ? "trace" : "context");
    return false;
}

/* ---- runs ---- */

struct samples {
    double ns[MOST_SAMPLES];
    size_t count;
};

/* Runs the requests; a prefill is one sample, each step of a decode is. With an account what they moved is added to it. */
static bool run(const struct work *w, const struct way *way, bool decode, struct samples *samples,
                pipeline_account *account)
{
    const cot_engine_info *info = cot_engine_describe(way->engine);
    cot_error error;
    cot_stats before = {0}, after = {0};
    cot_status status = account ? cot_engine_stats(way->engine, &before, &error) : COT_OK;
    for (size_t i = 0; i < w->n_requests && status == COT_OK; i++) {
        uint64_t id;
        status = cot_engine_submit(way->engine, &id, &w->requests[i], (int)(i % (size_t)info->ranks),
                                   &(cot_events){0}, &error);
    }
    double whole_ns = 0;
    size_t left = 1, steps = 0;
    while (left && status == COT_OK) {
        cot_engine_load load;
        status = cot_engine_step(way->engine, &left, &error);
        const bool counts = !decode || steps++ > 0; // the prompts are one step
        cot_engine_get_load(way->engine, &load);
        if (decode && counts && samples && samples->count < MOST_SAMPLES)
            samples->ns[samples->count++] = load.observed_ns;
        whole_ns += load.observed_ns;
        if (!account || status != COT_OK) continue;
        status = cot_engine_stats(way->engine, &after, &error);
        if (status != COT_OK) break;
        const int64_t tokens =
            after.prefill_tokens + after.decode_tokens - before.prefill_tokens - before.decode_tokens;
        if (counts) {
            pipeline_account_add(account, info, &before, &after, tokens, w->links, w->n_links);
            account->expert_peak =
                fmax(account->expert_peak, pipeline_expert_peak(way->engine, &before, &after));
        }
        cot_stats_clear(&before);
        before = after;
    }
    if (account) cot_stats_clear(&before);
    if (!decode && samples) samples->ns[samples->count++] = whole_ns;
    if (status != COT_OK) cot_complain_of(&error);
    return status == COT_OK;
}

static bool run_over(const struct work *w, const struct way *way, size_t link, bool decode,
                     struct samples *samples)
{
    const cot_engine_link shape = link ? w->links[link - 1] : (cot_engine_link){0};
    cot_error error;
    if (w->n_links && cot_engine_set_link(way->engine, &shape, &error) != COT_OK) {
        cot_complain_of(&error);
        return false;
    }
    return run(w, way, decode, samples, NULL);
}

/* ---- results ---- */

struct cell {
    const struct way *way;
    const char *phase;
    int64_t tokens;
    size_t link; // 0: none
    double median_ns, p95_ns, unlinked_ns;
    const pipeline_account *account;
};

static void settle(struct samples *s, double *median, double *p95)
{
    *median = cot_sort_median(s->ns, s->count);
    *p95 = s->ns[(s->count * 95 + 99) / 100 - 1];
}

/* What a sample is: all steps of a prefill, one of a decode. */
static double per_sample(const struct cell *c, double sum)
{
    return !strcmp(c->phase, "decode") ? sum / (double)c->account->steps : sum;
}

/* The wire and the rounds on top of the time without a link. */
static double model_ns(const struct work *w, const struct cell *c)
{
    const cot_engine_link *l = &w->links[c->link - 1];
    const double hop_ns = (double)(l->latency_ns + (l->groups > 1 ? l->uplink_latency_ns : 0));
    return c->unlinked_ns +
           per_sample(c, c->account->wire_ns[c->link - 1] + (double)c->account->rounds * hop_ns);
}

static double home_peak(const struct cell *c)
{
    uint64_t most = 0;
    for (int r = 0; r < c->way->ranks; r++)
        if (c->account->home_tokens[r] > most) most = c->account->home_tokens[r];
    return c->account->tokens ? (double)most * c->way->ranks / (double)c->account->tokens : 0;
}

static double ratio(uint64_t a, uint64_t b)
{
    return b ? (double)a / (double)b : 0;
}

static json_t *formula_json(const struct cell *c)
{
    const bool padded =
        !strcmp(cot_engine_describe(c->way->engine)->a2a, "padded"); // its blocks depend on every count
    return padded ? json_null() : json_real(per_sample(c, (double)c->account->formula_bytes));
}

static json_t *cell_json(const struct work *w, const struct cell *c)
{
    const cot_engine_info *i = cot_engine_describe(c->way->engine);
    const pipeline_account *a = c->account;
    return json_pack("{s:i, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:s, s:f, s:f, s:o, s:f, s:o, s:f, s:f, "
                     "s:f, s:f, s:f, s:f}",
                     "ranks", c->way->ranks, "pipeline", i->pipeline ? i->pipeline : "", "op", i->op,
                     "predict", i->predict ? i->predict : "", "collective",
                     i->collective ? i->collective : "", "a2a", i->a2a, "dedup", i->dedup, "phase", c->phase,
                     "tokens", (json_int_t)c->tokens, "link",
                     c->link ? w->s->links.items[c->link - 1].text : "none", "median_ns", c->median_ns,
                     "p95_ns", c->p95_ns, "model_ns", c->link ? json_real(model_ns(w, c)) : json_null(),
                     "bytes", per_sample(c, (double)a->bytes), "bytes_formula", formula_json(c),
                     "bytes_busiest", per_sample(c, (double)a->busiest_bytes), "rounds",
                     per_sample(c, (double)a->rounds), "lar", ratio(a->local, a->activations), "remote_ranks",
                     ratio(a->sends, a->tokens), "home_peak", home_peak(c), "expert_peak", a->expert_peak);
}

static void print_heading(void)
{
    cot_heading(stdout,
                "%5s %-7s %-15s %-6s %-9s %-10s %-5s %-8s %6s %-16s %10s %10s %10s %12s %7s %6s %6s\n",
                "ranks", "pipe", "predict", "op", "collect.", "a2a", "dedup", "phase", "tokens", "link", "ms",
                "p95 ms", "model ms", "bytes", "rounds", "LAR", "remote");
}

static void print_cell(const struct work *w, const struct cell *c)
{
    const cot_engine_info *i = cot_engine_describe(c->way->engine);
    char model[32] = "-";
    if (c->link) snprintf(model, sizeof model, "%.3f", model_ns(w, c) / 1e6);
    printf(
        "%5d %-7s %-15s %-6s %-9s %-10s %-5s %-8s %6lld %-16s %10.3f %10.3f %10s %12.0f %7.1f %6.3f %6.3f\n",
        c->way->ranks, i->pipeline ? i->pipeline : "-", i->predict ? i->predict : "-", i->op,
        i->collective ? i->collective : "-", i->a2a, i->dedup, c->phase, (long long)c->tokens,
        c->link ? w->s->links.items[c->link - 1].text : "none", c->median_ns / 1e6, c->p95_ns / 1e6, model,
        per_sample(c, (double)c->account->bytes), per_sample(c, (double)c->account->rounds),
        ratio(c->account->local, c->account->activations), ratio(c->account->sends, c->account->tokens));
}

static void tell(struct work *w, struct samples *samples, const pipeline_account *accounts, const char *phase,
                 int64_t tokens)
{
    for (size_t i = 0; i < w->n_ways; i++) {
        double unlinked_ns = 0;
        for (size_t link = 0; link <= w->n_links; link++) {
            struct cell c = {
                .way = &w->ways[i], .phase = phase, .tokens = tokens, .link = link, .account = &accounts[i]};
            settle(&samples[i * (w->n_links + 1) + link], &c.median_ns, &c.p95_ns);
            if (!link) unlinked_ns = c.median_ns;
            c.unlinked_ns = unlinked_ns;
            if (w->json)
                json_array_append_new(w->json, cell_json(w, &c));
            else
                print_cell(w, &c);
        }
    }
    fflush(stdout);
}

/* What there is nothing to measure with is found before anything is measured. */
static bool check_cells(struct work *w)
{
    for (size_t p = 0; p < w->phases.count; p++)
        for (size_t t = 0; t < w->n_tokens; t++) {
            const bool decode = !strcmp(w->phases.name[p], "decode");
            const int64_t tokens = w->tokens[t];
            if (decode && (tokens > MOST_SEQUENCES || tokens * DECODE_PROMPT > w->s->step)) {
                cot_complain("at most %d sequences are decoded at once, and their prompts of %d tokens are "
                             "one step of "
                             "--step %lld",
                             MOST_SEQUENCES, DECODE_PROMPT, (long long)w->s->step);
                return false;
            }
            if (!make_requests(w, decode, tokens)) return false;
        }
    return true;
}

/* All ways and links in turn, so that what slows the machine slows all of them; the first turn is not counted. */
static bool measure(struct work *w, const char *phase, int64_t tokens)
{
    const bool decode = !strcmp(phase, "decode");
    const size_t links = w->n_links + 1;
    struct samples *samples = calloc(w->n_ways * links, sizeof *samples);
    pipeline_account *accounts = calloc(w->n_ways, sizeof *accounts);
    bool good = samples && accounts;
    if (!good) cot_complain("out of memory");
    good = good && make_requests(w, decode, tokens);
    cot_progress progress = {"measuring", 0};
    for (size_t i = 0; i < w->n_ways && good; i++) good = run(w, &w->ways[i], decode, NULL, &accounts[i]);
    for (int64_t time = 0; time < w->s->repeat && good; time++)
        for (size_t n = 0; n < w->n_ways * links && good; n++) {
            cot_progress_show(&progress, (uint64_t)time * w->n_ways * links + n,
                              (uint64_t)w->s->repeat * w->n_ways * links);
            good = run_over(w, &w->ways[n / links], n % links, decode, &samples[n]);
        }
    cot_progress_end(&progress);
    if (good) tell(w, samples, accounts, phase, tokens);
    free(samples);
    free(accounts);
    return good;
}

static bool measure_all(struct work *w)
{
    const size_t room =
        (size_t)most_tokens(w) + MOST_SEQUENCES * (size_t)(DECODE_PROMPT + w->s->decode_steps);
    w->requests = calloc(room + 1, sizeof *w->requests);
    w->ids = calloc(room + 1, sizeof *w->ids);
    if (!w->requests || !w->ids) {
        cot_complain("out of memory");
        return false;
    }
    bool good = check_cells(w);
    if (w->s->json)
        w->json = json_array();
    else if (good)
        print_heading();
    for (size_t p = 0; p < w->phases.count && good; p++)
        for (size_t t = 0; t < w->n_tokens && good; t++) good = measure(w, w->phases.name[p], w->tokens[t]);
    if (good && w->json) {
        json_dumpf(w->json, stdout, JSON_INDENT(1));
        printf("\n");
    }
    return good;
}

static int bench_pipeline(const void *settings)
{
    struct work w = {.s = settings};
    const bool parsed = replay_has_model(&w.s->replay, w.s->model, true) && parse(&w);
    const bool good =
        parsed && replay_open(&w.replay, &w.s->replay, &w.s->engine) && open_ways(&w) && measure_all(&w);
    for (size_t i = 0; i < w.n_ways; i++) cot_engine_close(w.ways[i].engine);
    struct names *names[] = {&w.pipelines, &w.ops,    &w.predictions, &w.collectives,
                             &w.exchanges, &w.dedups, &w.phases};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) free(names[i]->text);
    replay_close(&w.replay);
    json_decref(w.json);
    free(w.ways);
    free(w.requests);
    free(w.ids);
    return good ? COT_EXIT_OK : parsed ? COT_EXIT_FAILURE : COT_EXIT_USAGE;
}

#define AT(field) offsetof(struct settings, field)
static const cot_option options[] = {
    {"ranks", 'r', COT_OPTION_TEXT, "LIST", "4", "ranks of the expert-parallel group", AT(ranks)},
    {"pipeline", 0, COT_OPTION_TEXT, "LIST", "ds-moe,s-moe", "ds-moe, s-moe, auto", AT(pipeline)},
    {"op", 0, COT_OPTION_TEXT, "LIST", "bulk", "MoE operators (see coterie info)", AT(op)},
    {"predict", 0, COT_OPTION_TEXT, "LIST", "auto",
     "what s-moe goes by: none, token-table, device-sequence, algorithm-2, gate, oracle, worst, auto",
     AT(predict)},
    {"collective", 0, COT_OPTION_TEXT, "LIST", "auto", "ring, direct, auto", AT(collective)},
    {"a2a", 0, COT_OPTION_TEXT, "LIST", "auto", "of bulk: padded, two-phase, one-shot, auto", AT(a2a)},
    {"dedup", 0, COT_OPTION_TEXT, "LIST", "auto", "of bulk: on, off, auto", AT(dedup)},
    {"phase", 0, COT_OPTION_TEXT, "LIST", "prefill",
     "prefill: all tokens as prompts; decode: so many sequences, a token of each a step", AT(phase)},
    {"tokens", 0, COT_OPTION_TEXT, "LIST", "512", "tokens of a prefill, or sequences of a decode",
     AT(tokens)},
    {"link", 0, COT_OPTION_LIST, "B,L[,groups=G:B,L]", NULL,
     "each cell also with links that give a rank B, out and in, and take L, as in 12.5MB/s,500us; ranks in G "
     "groups share "
     "an uplink of each; may be given several times",
     AT(links)},
    {"step", 0, COT_OPTION_INTEGER, "N", "512", "most tokens of a step", AT(step), .least = 1,
     .most = MOST_STEP},
    {"decode-steps", 0, COT_OPTION_INTEGER, "N", "16", "steps of a decode, each of which is timed",
     AT(decode_steps), .least = 1, .most = 1024},
    {"repeat", 0, COT_OPTION_INTEGER, "N", "5", "runs of each cell, after one whose bytes are counted",
     AT(repeat), .least = 1, .most = 1000},
    {"seed", 0, COT_OPTION_INTEGER, "N", "1", "of drawn tokens, and of a shape's weights", AT(seed),
     .least = 0, .most = INT64_MAX},
    {"threads", 't', COT_OPTION_INTEGER, "N", "0", "threads in all (0: as many as cores)", AT(engine.threads),
     .least = 0, .most = 1024},
    {"precision", 0, COT_OPTION_CHOICE, "TYPE", "bf16", "arithmetic and payload", AT(engine.precision),
     .choices = cot_precision_names},
    {"combine", 0, COT_OPTION_CHOICE, "HOW", "exact",
     "exact: each expert's row travels back; reduced: a rank adds up its experts' rows first",
     AT(engine.combine), .choices = cot_combine_names},
    {"tables", 0, COT_OPTION_TEXT, "FILE", NULL,
     "tables of coterie group: where experts sit, and what they foretell", AT(engine.tables)},
    COT_TIMEOUT_ROW(AT(engine.timeout)),
    {"isa", 0, COT_OPTION_TEXT, "NAME", NULL, "caps the instruction set (see coterie info)", AT(engine.isa)},
    {"json", 0, COT_OPTION_FLAG, NULL, NULL, "print JSON", AT(json)},
    {0}};

const cot_command cot_cmd_bench_pipeline = {
    .name = "bench pipeline",
    .summary = "measure pipelines, operators, predictions side by side",
    .details =
        "Lists are separated by commas; each way that they make goes with each phase, number of "
        "tokens and link, and all run "
        "in turn. ds-moe foretells nothing, fused knows no --a2a and --dedup, padded blocks no dedup: such "
        "ways are run once or "
        "not at all. Times are of a whole prefill, or of a step of a decode, as are bytes and rounds. "
        "bytes: attention, dispatch "
        "and combine, over all ranks, as counted; bytes_formula: the same by docs/BYTES.md (null for "
        "padded); bytes_busiest: what "
        "the busiest rank sends or takes in, the larger, added up over a step's exchanges, which "
        "follow one another. model "
        "is the median without a link, plus these bytes over the link's rate (the uplink's, where "
        "that takes longer), plus "
        "rounds times its latency. lar, remote_ranks: of the MoE layers; home_peak and expert_peak: "
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
    .options = {.groups = (const cot_option_group[]){{"Options", options, 0},
                                                     {"Replayed routing", cot_replay_option_rows, AT(replay)},
                                                     {0}},
                .positionals = (const cot_positional[]){{"MODEL", 0, 1, "a model folder", AT(model)}, {0}}},
    .settings_bytes = sizeof(struct settings),
    .run = bench_pipeline};
