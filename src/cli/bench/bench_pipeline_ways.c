/* Ways to run: what comma lists of names make, and an engine for each. */
#include "cli/bench/bench_pipeline.h"

#include "cli/frame/progress.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_WAYS = 256 };

/* ---- lists ---- */

#define PHASES "prefill,decode"
#define PIPELINES "ds-moe,s-moe,dp,auto"
#define PREDICTIONS "none,token-table,device-sequence,algorithm-2,gate,oracle,worst,auto"

static bool knows(const char *names, const char *name)
{
    const size_t length = strlen(name);
    for (; names; names = strchr(names, ','), names += names != NULL)
        if (!strncmp(names, name, length) && (names[length] == ',' || !names[length])) return true;
    return false;
}

/* Of the names that there are, with commas between them; NULL: of names that engines know. */
static bool split(struct cli_pipeline_names *names, const char *option, const char *text, const char *known)
{
    *names = (struct cli_pipeline_names){.text = strdup(text)};
    if (!names->text) {
        cli_complain("out of memory");
        return false;
    }
    for (char *rest = names->text, *item; (item = strsep(&rest, ","));) {
        if (names->count == CLI_PIPELINE_MOST_NAMES || !*item) {
            cli_complain("--%s takes up to %d names, not '%s'", option, CLI_PIPELINE_MOST_NAMES, text);
            return false;
        }
        if (known && !knows(known, item)) {
            cli_complain("--%s takes a list of %s, not '%s'", option, known, item);
            return false;
        }
        names->name[names->count++] = strcmp(item, "auto") != 0 ? item : NULL;
    }
    return true;
}

static bool parse_links(struct cli_pipeline_work *w)
{
    for (size_t i = 0; i < w->s->links.count; i++) {
        cli_bench_lists lists = {0};
        if (w->n_links == CLI_PIPELINE_MOST_LINKS) {
            cli_complain("--link takes at most %d links", CLI_PIPELINE_MOST_LINKS);
            return false;
        }
        if (!cli_bench_link_parse(&lists, w->s->links.items[i].text)) return false;
        w->links[w->n_links++] =
            (cot_engine_link){lists.link_bytes_per_s, lists.link_latency_ns, lists.link_groups,
                              lists.uplink_bytes_per_s, lists.uplink_latency_ns};
    }
    return true;
}

bool cli_pipeline_parse(struct cli_pipeline_work *w)
{
    const struct cli_pipeline_settings *s = w->s;
    return split(&w->pipelines, "pipeline", s->pipeline, PIPELINES) && split(&w->ops, "op", s->op, NULL) &&
           split(&w->predictions, "predict", s->predict, PREDICTIONS) &&
           split(&w->collectives, "collective", s->collective, "ring,direct,auto") &&
           split(&w->exchanges, "a2a", s->a2a, "padded,two-phase,one-shot,auto") &&
           split(&w->dedups, "dedup", s->dedup, "on,off,auto") &&
           split(&w->phases, "phase", s->phase, PHASES) && parse_links(w) &&
           cli_bench_integers_parse(w->tokens, &w->n_tokens, "tokens", s->tokens, CLI_PIPELINE_MOST_STEP) &&
           cli_bench_integers_parse(w->ranks, &w->n_ranks, "ranks", s->ranks, 64);
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

static bool is_listed(const struct cli_pipeline_work *w, const struct cli_pipeline_way *a)
{
    for (const struct cli_pipeline_way *b = w->ways; b < w->ways + w->n_ways; b++)
        if (a->ranks == b->ranks && same(a->pipeline, b->pipeline) && same(a->op, b->op) &&
            same(a->predict, b->predict) && same(a->collective, b->collective) && same(a->a2a, b->a2a) &&
            same(a->dedup, b->dedup))
            return true;
    return false;
}

bool cli_pipeline_list_ways(struct cli_pipeline_work *w)
{
    const struct cli_pipeline_names *lists[] = {&w->pipelines,   &w->ops,       &w->predictions,
                                                &w->collectives, &w->exchanges, &w->dedups};
    enum { LISTS = sizeof lists / sizeof *lists };
    w->ways = calloc(MOST_WAYS, sizeof *w->ways);
    if (!w->ways) {
        cli_complain("out of memory");
        return false;
    }
    size_t all = w->n_ranks;
    for (int i = 0; i < LISTS; i++) all *= lists[i]->count;
    for (size_t n = 0; n < all; n++) {
        const char *name[LISTS];
        size_t rest = n;
        for (int i = LISTS - 1; i >= 0; rest /= lists[i]->count, i--)
            name[i] = lists[i]->name[rest % lists[i]->count];
        struct cli_pipeline_way way = {
            (int)w->ranks[rest], name[0], name[1], name[2], name[3], name[4], name[5], NULL};
        if (is(way.pipeline, "ds-moe")) way.predict = NULL;
        if (is(way.pipeline, "dp")) way.predict = way.collective = NULL;
        if (is(way.op, "fused")) way.a2a = way.dedup = NULL;
        const bool padded_once = is(way.a2a, "padded") && is(way.dedup, "on"); // which no engine opens
        if (padded_once || is_listed(w, &way)) continue;
        if (w->n_ways == MOST_WAYS) {
            cli_complain("there are more than %d ways to run: give fewer at once", MOST_WAYS);
            return false;
        }
        w->ways[w->n_ways++] = way;
    }
    if (!w->n_ways) cli_complain("none of these go together");
    return w->n_ways > 0;
}

int64_t cli_pipeline_most_tokens(const struct cli_pipeline_work *w)
{
    int64_t most = 1;
    for (size_t i = 0; i < w->n_tokens; i++)
        if (w->tokens[i] > most) most = w->tokens[i];
    return most;
}

static bool open_way(struct cli_pipeline_work *w, struct cli_pipeline_way *way)
{
    const struct cli_pipeline_settings *s = w->s;
    cli_engine_settings own = s->engine;
    cot_engine_options *o = &own.options;
    o->group.ranks = way->ranks;
    if (is(way->pipeline, "dp"))
        o->attention.mode = "dp";
    else
        o->attention.pipeline = way->pipeline;
    o->experts.op = way->op;
    o->attention.predict = way->predict;
    o->attention.collective = way->collective;
    o->experts.a2a = way->a2a;
    o->experts.dedup = way->dedup;
    o->watch.count_exchanges = true;
    cli_engine_needs needs = {.kv_tokens =
                                  cli_pipeline_most_tokens(w) +
                                  CLI_PIPELINE_MOST_SEQUENCES * (CLI_PIPELINE_PROMPT + s->decode_steps),
                              .sequences = CLI_PIPELINE_MOST_SEQUENCES,
                              .step_tokens = s->step,
                              .loading = ""};
    cli_replay_need(&needs, &w->replay);
    needs.seed = (uint64_t)s->seed;
    cot_error error;
    char *notes;
    const cot_status status = cli_engine_open_with(&way->engine, s->model, &own, &needs, &notes, &error);
    free(notes);
    return status == COT_OK || cli_complain_of(&error) == CLI_EXIT_OK;
}

bool cli_pipeline_open_ways(struct cli_pipeline_work *w)
{
    cli_progress progress = {"opening", 0};
    bool good = true;
    for (size_t i = 0; good && i < w->n_ways; i++) {
        cli_progress_show(&progress, i, w->n_ways);
        good = open_way(w, &w->ways[i]);
    }
    cli_progress_end(&progress);
    return good;
}
