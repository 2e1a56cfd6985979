/* Requests of a cell, and a way's run of them. */
#include "cli/bench/bench_pipeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- requests ---- */

static void add_request(struct cli_pipeline_work *w, const int32_t *ids, int64_t prompt, int64_t forced,
                        int32_t recorded)
{
    w->requests[w->n_requests++] = (cot_request){.prompt = ids,
                                                 .prompt_tokens = prompt,
                                                 .forced = ids + prompt,
                                                 .forced_tokens = forced,
                                                 .recorded = recorded};
}

bool cli_pipeline_make_requests(struct cli_pipeline_work *w, bool decode, int64_t tokens)
{
    const int64_t length = CLI_PIPELINE_PROMPT + w->s->decode_steps,
                  context = cot_engine_describe(w->ways[0].engine)->context_tokens,
                  vocab = cot_engine_describe(w->ways[0].engine)->vocab;
    int64_t left = tokens, at = 0;
    uint64_t state = (uint64_t)w->s->seed;
    w->n_requests = 0;
    for (size_t i = 0; w->replay.recorded && left && i < w->replay.count; i++) {
        const cot_eval_sequence *q = &w->replay.sequences[i];
        if (decode && q->tokens < length) continue;
        const int64_t fed = decode ? CLI_PIPELINE_PROMPT : q->tokens < left ? q->tokens : left;
        add_request(w, q->ids, fed, decode ? w->s->decode_steps : 0, q->recorded);
        left -= decode ? 1 : fed;
    }
    while (!w->replay.recorded && left && (!decode || length <= context)) {
        const int64_t fed = decode           ? CLI_PIPELINE_PROMPT
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
    const char *const many = w->replay.count == 1 ? "" : "s", *const whose =
                                                                  w->replay.learnt
                                                                      ? "that the tables did not learn from"
                                                                      : "of the trace";
    if (!w->replay.recorded)
        cli_complain("there are no %lld tokens to %s: the context ends before", (long long)tokens,
                     decode ? "decode" : "feed");
    else if (decode)
        cli_complain(
            "there are no %lld tokens to decode at once: of the %zu sequence%s %s %lld have %lld tokens",
            (long long)tokens, w->replay.count, many, whose, (long long)(tokens - left), (long long)length);
    else
        cli_complain("there are no %lld tokens to feed: %lld are in the %zu sequence%s %s", (long long)tokens,
                     (long long)(tokens - left), w->replay.count, many, whose);
    return false;
}

/* What there is nothing to measure with is found before anything is measured. */
static bool check_cells(struct cli_pipeline_work *w)
{
    for (size_t p = 0; p < w->phases.count; p++)
        for (size_t t = 0; t < w->n_tokens; t++) {
            const bool decode = !strcmp(w->phases.name[p], "decode");
            const int64_t tokens = w->tokens[t];
            if (decode &&
                (tokens > CLI_PIPELINE_MOST_SEQUENCES || tokens * CLI_PIPELINE_PROMPT > w->s->step)) {
                cli_complain("at most %d sequences are decoded at once, and their prompts of %d tokens are "
                             "one step of "
                             "--step %lld",
                             CLI_PIPELINE_MOST_SEQUENCES, CLI_PIPELINE_PROMPT, (long long)w->s->step);
                return false;
            }
            if (!cli_pipeline_make_requests(w, decode, tokens)) return false;
        }
    return true;
}

bool cli_pipeline_plan(struct cli_pipeline_work *w)
{
    const size_t room = (size_t)cli_pipeline_most_tokens(w) +
                        CLI_PIPELINE_MOST_SEQUENCES * (size_t)(CLI_PIPELINE_PROMPT + w->s->decode_steps);
    w->requests = calloc(room + 1, sizeof *w->requests);
    w->ids = calloc(room + 1, sizeof *w->ids);
    if (!w->requests || !w->ids) {
        cli_complain("out of memory");
        return false;
    }
    return check_cells(w);
}

/* ---- runs ---- */

bool cli_pipeline_run(const struct cli_pipeline_work *w, const struct cli_pipeline_way *way, bool decode,
                      struct cli_pipeline_samples *samples, cli_pipeline_account *account)
{
    const cot_engine_info *info = cot_engine_describe(way->engine);
    cot_error error;
    cot_stats before = {0}, after = {0};
    cot_expert_layout layout = {0};
    cot_status status = account ? cot_engine_stats(way->engine, &before, &error) : COT_OK;
    if (account && status == COT_OK) status = cot_engine_layout(way->engine, &layout, NULL, &error);
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
        if (decode && counts && samples && samples->count < CLI_PIPELINE_MOST_SAMPLES)
            samples->ns[samples->count++] = load.observed_ns;
        whole_ns += load.observed_ns;
        if (!account || status != COT_OK) continue;
        status = cot_engine_stats(way->engine, &after, &error);
        if (status != COT_OK) break;
        const int64_t tokens =
            after.prefill_tokens + after.decode_tokens - before.prefill_tokens - before.decode_tokens;
        if (counts) {
            cli_pipeline_account_add(account, info, &before, &after, tokens, w->links, w->n_links);
            account->expert_peak =
                fmax(account->expert_peak, cli_pipeline_expert_peak(&layout, &before, &after));
        }
        cot_stats_clear(&before);
        before = after;
    }
    if (account) cot_stats_clear(&before);
    cot_expert_layout_free(&layout);
    if (!decode && samples) samples->ns[samples->count++] = whole_ns;
    if (status != COT_OK) cli_complain_of(&error);
    return status == COT_OK;
}

bool cli_pipeline_run_over(const struct cli_pipeline_work *w, const struct cli_pipeline_way *way, size_t link,
                           bool decode, struct cli_pipeline_samples *samples)
{
    const cot_engine_link shape = link ? w->links[link - 1] : (cot_engine_link){0};
    cot_error error;
    if (w->n_links && cot_engine_set_link(way->engine, &shape, &error) != COT_OK) {
        cli_complain_of(&error);
        return false;
    }
    return cli_pipeline_run(w, way, decode, samples, NULL);
}

/* ---- links ---- */

bool cli_pipeline_measure_links(const struct cli_pipeline_work *w, const struct cli_pipeline_way *way,
                                const cli_pipeline_account *a, double *rates)
{
    static const int64_t budget_ns = 150000000, least_bytes = 1 << 16,
                         most_bytes = 1 << 20; // of less it is unrest
    const double messages = (double)a->rounds * (way->ranks - 1);
    int64_t mean_bytes = messages > 0 ? (int64_t)((double)a->busiest_bytes / messages) : 0;
    mean_bytes = mean_bytes < least_bytes ? least_bytes : mean_bytes > most_bytes ? most_bytes : mean_bytes;
    for (size_t i = 0; i < w->n_links; i++) {
        const cot_bench_link_options o = {.size = sizeof o,
                                          .ranks = way->ranks,
                                          .threads = cot_engine_describe(way->engine)->threads,
                                          .timeout_ns = w->s->engine.options.group.timeout_ns,
                                          .bytes_per_s = w->links[i].bytes_per_s,
                                          .latency_ns = w->links[i].latency_ns,
                                          .bytes = mean_bytes,
                                          .budget_ns = budget_ns};
        cot_error error;
        rates[i + 1] = o.bytes_per_s;
        if (way->ranks == 1 || cot_bench_link(&rates[i + 1], &o, &error) == COT_OK) continue;
        cli_complain_of(&error);
        return false;
    }
    return true;
}
