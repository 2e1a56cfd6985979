#include "cli/bench/pipeline_account.h"

#include <math.h>
#include <string.h>

/* Of `what` in the interval, over all pairs of ranks; 0 for a phase that there is not. */
static uint64_t moved(const cot_stats *before, const cot_stats *after, const char *phase)
{
    uint64_t sum = 0;
    for (int p = 0; p < COT_STATS_PHASES; p++) {
        if (strcmp(cot_engine_phases()[p], phase) != 0) continue;
        for (int i = 0; i < after->ranks * after->ranks; i++) sum += after->bytes[p][i] - before->bytes[p][i];
    }
    return sum;
}

/* Bytes that ride with a row from its home. */
static uint64_t riding(const char *predict)
{
    if (!strcmp(predict, "gate")) return 2;
    return !strcmp(predict, "device-sequence") || !strcmp(predict, "algorithm-2");
}

/* What of a step's routing its closed form takes. */
struct routed {
    uint64_t tokens, remote, sends, padded_rows;
};

/* The closed form of a step of so many tokens. */
static uint64_t formula(const cot_engine_info *info, const struct routed *r)
{
    const uint64_t others = (uint64_t)info->ranks - 1, h = (uint64_t)info->hidden,
                   row = h * (strcmp(info->precision, "fp32") == 0 ? 4 : 2),
                   back = h * (strcmp(info->payload, "fp32") == 0 ? 4 : 2);
    const bool s_moe = info->pipeline && !strcmp(info->pipeline, "s-moe"), once = !strcmp(info->dedup, "on"),
               reduced = !strcmp(info->combine, "reduced");
    uint64_t attention = 0;
    if (info->pipeline)
        attention = others * r->tokens *
                    ((uint64_t)info->layers * (s_moe ? 2 : 3) * row +
                     (s_moe ? (uint64_t)info->moe_layers * riding(info->predict) : 0));
    if (!strcmp(info->a2a, "padded")) return attention + others * r->padded_rows * (row + back);
    return attention + (once ? r->sends : r->remote) * row + (reduced ? r->sends : r->remote) * back;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The most that one of the groups of ranks sends to others, or gets from them; groups of one rank: a rank. */
static uint64_t busiest(const uint64_t *pairs, int ranks, int groups)
{
    uint64_t out[64] = {0}, in[64] = {0}, most = 0;
    int group[64];
    for (int r = 0, g = 0; r < ranks; r++) { // group g begins at rank floor(g P / groups)
        while (g + 1 < groups && r >= (g + 1) * ranks / groups) g++;
        group[r] = g;
    }
    for (int from = 0; from < ranks; from++)
        for (int to = 0; to < ranks; to++) {
            if (group[from] == group[to]) continue;
            out[group[from]] += pairs[from * ranks + to];
            in[group[to]] += pairs[from * ranks + to];
        }
    for (int g = 0; g < groups; g++) most = larger(most, larger(out[g], in[g]));
    return most;
}

static double wire_ns(const uint64_t *pairs, int ranks, const cot_engine_link *link)
{
    const double ns_per_s = 1e9;
    double ns = link->bytes_per_s > 0 ? (double)busiest(pairs, ranks, ranks) / link->bytes_per_s : 0;
    if (link->groups > 1 && link->uplink_bytes_per_s > 0)
        ns = fmax(ns, (double)busiest(pairs, ranks, link->groups) / link->uplink_bytes_per_s);
    return ns * ns_per_s;
}

void cli_pipeline_account_add(cli_pipeline_account *a, const cot_engine_info *info, const cot_stats *before,
                              const cot_stats *after, int64_t tokens, const cot_engine_link *links,
                              size_t n_links)
{
    uint64_t sends = 0;
    for (int r = 0; r < info->ranks; r++) {
        sends += after->routing[r].sends - before->routing[r].sends;
        a->home_tokens[r] += after->routing[r].tokens - before->routing[r].tokens;
        a->tokens += after->routing[r].tokens - before->routing[r].tokens;
    }
    const uint64_t activations = after->activations - before->activations,
                   local = after->local_activations - before->local_activations;
    a->steps++;
    a->activations += activations;
    a->local += local;
    a->sends += sends;
    a->bytes += moved(before, after, "attention") + moved(before, after, "dispatch") +
                moved(before, after, "combine");
    const struct routed routed = {(uint64_t)tokens, activations - local, sends,
                                  after->padded_rows - before->padded_rows};
    a->formula_bytes += formula(info, &routed);
    for (size_t x = 0; x < after->exchanges; x++) {
        const uint64_t *pairs = after->exchanged + x * (size_t)(info->ranks * info->ranks);
        a->busiest_bytes += busiest(pairs, info->ranks, info->ranks);
        for (size_t l = 0; l < n_links; l++) a->wire_ns[l] += wire_ns(pairs, info->ranks, &links[l]);
    }
    for (int p = 0; p < COT_STATS_PHASES; p++) a->rounds += after->rounds[p] - before->rounds[p];
}

double cli_pipeline_expert_peak(const cot_expert_layout *layout, const cot_stats *before,
                                const cot_stats *after)
{
    double peak = 0;
    for (int32_t l = 0; l < layout->n_layers; l++) {
        const cot_expert_replicas r = cot_expert_layout_layer(layout, l);
        double load[64] = {0}, all = 0, most = 0;
        for (int32_t e = 0; e < layout->n_experts; e++) {
            const size_t at = (size_t)l * (size_t)layout->n_experts + (size_t)e;
            const double calls = (double)(after->calls[at] - before->calls[at]);
            const int32_t copies = r.begin[e + 1] - r.begin[e]; // which share them
            for (int32_t i = r.begin[e]; i < r.begin[e + 1]; i++) load[r.rank[i]] += calls / copies;
            all += calls;
        }
        for (int32_t p = 0; p < layout->n_ranks; p++) most = fmax(most, load[p]);
        if (all > 0) peak = fmax(peak, most * layout->n_ranks / all);
    }
    return peak;
}
