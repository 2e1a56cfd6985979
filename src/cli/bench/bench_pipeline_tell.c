/* What is told of a cell: times, bytes, and what both should be. */
#include "cli/bench/bench_pipeline.h"

#include "cli/bench/median.h"
#include "cli/frame/terminal.h"

#include <stdio.h>
#include <string.h>

struct cell {
    const struct cli_pipeline_way *way;
    const char *phase;
    int64_t tokens;
    size_t link;                                 // 0: none
    double median_ns, p95_ns, unlinked_ns, rate; // of the link, as measured
    const cli_pipeline_account *account;
};

static void settle(struct cli_pipeline_samples *s, double *median, double *p95)
{
    *median = cli_sort_median(s->ns, s->count);
    *p95 = s->ns[(s->count * 95 + 99) / 100 - 1];
}

/* What a sample is: all steps of a prefill, one of a decode. */
static double per_sample(const struct cell *c, double sum)
{
    return !strcmp(c->phase, "decode") ? sum / (double)c->account->steps : sum;
}

/* The wire and the rounds on top of the time without a link. An uplink is taken to fall behind its rate as links do. */
static double model_ns(const struct cli_pipeline_work *w, const struct cell *c)
{
    const cot_engine_link *l = &w->links[c->link - 1];
    const double slower = l->bytes_per_s / c->rate,
                 hop_ns = (double)(l->latency_ns + (l->groups > 1 ? l->uplink_latency_ns : 0));
    return c->unlinked_ns +
           per_sample(c, c->account->wire_ns[c->link - 1] * slower + (double)c->account->rounds * hop_ns);
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

static const char *pipeline_of(const cot_engine_info *info)
{
    return info->pipeline ? info->pipeline : "dp"; // sequences stay at home: there is none
}

static json_t *cell_json(const struct cli_pipeline_work *w, const struct cell *c)
{
    const cot_engine_info *i = cot_engine_describe(c->way->engine);
    const cli_pipeline_account *a = c->account;
    return json_pack("{s:i, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:s, s:f, s:f, s:o, s:f, s:f, s:f, s:f, "
                     "s:f, s:f, s:f, s:f, s:o}",
                     "ranks", c->way->ranks, "pipeline", pipeline_of(i), "op", i->op, "predict",
                     i->predict ? i->predict : "", "collective", i->collective ? i->collective : "", "a2a",
                     i->a2a, "dedup", i->dedup, "phase", c->phase, "tokens", (json_int_t)c->tokens, "link",
                     c->link ? w->s->links.items[c->link - 1].text : "none", "median_ns", c->median_ns,
                     "p95_ns", c->p95_ns, "model_ns", c->link ? json_real(model_ns(w, c)) : json_null(),
                     "bytes", per_sample(c, (double)a->bytes), "bytes_formula",
                     per_sample(c, (double)a->formula_bytes), "bytes_busiest",
                     per_sample(c, (double)a->busiest_bytes), "rounds", per_sample(c, (double)a->rounds),
                     "lar", ratio(a->local, a->activations), "remote_ranks", ratio(a->sends, a->tokens),
                     "home_peak", home_peak(c), "expert_peak", a->expert_peak, "link_bytes_per_s",
                     c->link ? json_real(c->rate) : json_null());
}

void cli_pipeline_heading(void)
{
    cli_heading(stdout,
                "%5s %-7s %-15s %-6s %-9s %-10s %-5s %-8s %6s %-16s %10s %10s %10s %12s %7s %6s %6s\n",
                "ranks", "pipe", "predict", "op", "collect.", "a2a", "dedup", "phase", "tokens", "link", "ms",
                "p95 ms", "model ms", "bytes", "rounds", "LAR", "remote");
}

static void print_cell(const struct cli_pipeline_work *w, const struct cell *c)
{
    const cot_engine_info *i = cot_engine_describe(c->way->engine);
    char model[32] = "-";
    if (c->link) snprintf(model, sizeof model, "%.3f", model_ns(w, c) / 1e6);
    printf(
        "%5d %-7s %-15s %-6s %-9s %-10s %-5s %-8s %6lld %-16s %10.3f %10.3f %10s %12.0f %7.1f %6.3f %6.3f\n",
        c->way->ranks, pipeline_of(i), i->predict ? i->predict : "-", i->op,
        i->collective ? i->collective : "-", i->a2a, i->dedup, c->phase, (long long)c->tokens,
        c->link ? w->s->links.items[c->link - 1].text : "none", c->median_ns / 1e6, c->p95_ns / 1e6, model,
        per_sample(c, (double)c->account->bytes), per_sample(c, (double)c->account->rounds),
        ratio(c->account->local, c->account->activations), ratio(c->account->sends, c->account->tokens));
}

void cli_pipeline_tell(struct cli_pipeline_work *w, struct cli_pipeline_samples *samples,
                       const cli_pipeline_account *accounts, const double *rates, const char *phase,
                       int64_t tokens)
{
    for (size_t i = 0; i < w->n_ways; i++) {
        double unlinked_ns = 0;
        for (size_t link = 0; link <= w->n_links; link++) {
            struct cell c = {.way = &w->ways[i],
                             .phase = phase,
                             .tokens = tokens,
                             .link = link,
                             .account = &accounts[i],
                             .rate = rates[i * (w->n_links + 1) + link]};
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
