#include "harness/moe/outcome.h"

#include "harness/cmocka.h"
#include "harness/moe/near.h"

#include <stdlib.h>
#include <string.h>

void outcome_agrees(const struct outcome *outcome, const struct world *w, const struct plan *p)
{
    int64_t hidden = w->options.expert.hidden, sure = 0;
    for (int r = 0; r < p->ranks; r++)
        if (outcome->status[r] != COT_OK) fail_msg("rank %d of %d: %s", r, p->ranks, outcome->message[r]);
    for (int64_t t = 0; t < p->begin[p->ranks]; t++) {
        if (!w->sure[p->order[t]]) continue;
        sure++;
        for (int64_t h = 0; h < hidden; h++)
            near(outcome->y[t * hidden + h], w->y[p->order[t] * hidden + h], w->tolerance);
    }
    assert_true(sure >= p->begin[p->ranks] * 8 / 10);
}

/* What every pair of ranks exchanges: (token, expert) pairs, and tokens with any expert there. */
struct exchange {
    uint64_t entries[COT_MAX_RANKS][COT_MAX_RANKS], rows[COT_MAX_RANKS][COT_MAX_RANKS];
};

/* Freed by the caller. */
static struct exchange *exchange_of(const struct outcome *outcome, const struct world *w,
                                    const struct plan *p)
{
    const cot_expert_replicas placement = {p->rank, p->slot, p->replica_begin};
    const int64_t top_k = w->options.top_k;
    struct exchange *x = calloc(1, sizeof *x);
    assert_non_null(x);
    for (int home = 0; home < p->ranks; home++)
        for (int64_t t = p->begin[home]; t < p->begin[home + 1]; t++) {
            bool there[COT_MAX_RANKS] = {false};
            for (int64_t k = 0; k < top_k; k++) {
                int rank = p->rank[cot_expert_replica(&placement, outcome->experts[t * top_k + k], home,
                                                      t - p->begin[home])];
                x->entries[home][rank]++;
                x->rows[home][rank] += !there[rank];
                there[rank] = true;
            }
        }
    return x;
}

void outcome_counts(const struct outcome *outcome, const struct world *w, const struct plan *p)
{
    struct exchange *const x = exchange_of(outcome, w, p);
    const bool bulk = !strcmp(w->op->name, "bulk"), exact = w->options.combine == COT_COMBINE_EXACT;
    const uint64_t row = (uint64_t)w->options.expert.hidden * cot_dtype_bytes(w->options.expert.type),
                   reply = (uint64_t)w->options.expert.hidden * cot_dtype_bytes(w->options.combine_type),
                   passes = (uint64_t)p->passes, ranks = (uint64_t)p->ranks;
    uint64_t metadata = 0, entries = 0;
    for (int s = 0; s < p->ranks; s++)
        for (int d = 0; d < p->ranks; d++) {
            const cot_traffic *t = outcome->traffic[s][d];
            const uint64_t there = bulk ? x->entries[s][d] : x->rows[s][d],
                           back = bulk || exact ? x->entries[d][s] : x->rows[d][s];
            assert_int_equal(t[COT_PHASE_DISPATCH].bytes, s == d ? 0 : passes * row * there);
            assert_int_equal(t[COT_PHASE_COMBINE].bytes, s == d ? 0 : passes * reply * back);
            assert_int_equal(t[COT_PHASE_ATTENTION].bytes + t[COT_PHASE_CONTROL].bytes, 0);
            metadata += t[COT_PHASE_METADATA].bytes;
            entries += s == d ? 0 : x->entries[s][d];
            if (!bulk)
                assert_int_equal(t[COT_PHASE_METADATA].bytes,
                                 s == d ? 0 : passes * (4 * x->rows[s][d] + 8 * x->entries[s][d]));
        }
    const int64_t replicas = p->replica_begin[w->options.experts];
    if (bulk) assert_int_equal(metadata, passes * 4 * (entries + (ranks - 1) * ranks * (uint64_t)replicas));
    free(x);
}
