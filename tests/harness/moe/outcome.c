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
    uint64_t replicas[COT_MAX_RANKS]; // that a rank has
    uint64_t longest;                 // most entries of any replica from any rank
};

/* Freed by the caller. */
static struct exchange *exchange_of(const struct outcome *outcome, const struct world *w,
                                    const struct plan *p)
{
    const cot_expert_replicas placement = {p->rank, p->slot, p->replica_begin};
    const int64_t top_k = w->options.top_k, replicas = p->replica_begin[w->options.experts];
    struct exchange *x = calloc(1, sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < replicas; i++) x->replicas[p->rank[i]]++;
    for (int home = 0; home < p->ranks; home++) {
        uint64_t block[2 * WORLD_EXPERTS] = {0};
        for (int64_t t = p->begin[home]; t < p->begin[home + 1]; t++) {
            bool there[COT_MAX_RANKS] = {false};
            for (int64_t k = 0; k < top_k; k++) {
                const int64_t replica =
                    cot_expert_replica(&placement, outcome->experts[t * top_k + k], home, t - p->begin[home]);
                const int rank = p->rank[replica];
                x->entries[home][rank]++;
                x->rows[home][rank] += !there[rank];
                there[rank] = true;
                if (++block[replica] > x->longest) x->longest = block[replica];
            }
        }
    }
    return x;
}

/* What one rank sends another in one pass: docs/BYTES.md's equalities. */
struct sent {
    uint64_t dispatch, combine, metadata, metadata_messages;
};

static struct sent sent_by(const struct exchange *x, const struct world *w, const struct plan *p, int s,
                           int d)
{
    cot_moe_options o = w->options;
    assert_int_equal(w->op->settle(&o, NULL), COT_OK);
    const bool bulk = !strcmp(w->op->name, "bulk"), dedup = o.dedup == COT_DEDUP_ON,
               exact = o.combine == COT_COMBINE_EXACT;
    const uint64_t row = (uint64_t)o.expert.hidden * cot_dtype_bytes(o.expert.type),
                   reply = (uint64_t)o.expert.hidden * cot_dtype_bytes(o.combine_type),
                   entries = x->entries[s][d], rows = dedup ? x->rows[s][d] : entries,
                   padded = x->replicas[d] * x->longest, replicas = (uint64_t)p->replica_begin[o.experts];
    struct sent sent = {row * rows, reply * (exact ? x->entries[d][s] : x->rows[d][s]), 0, 0};
    const uint64_t told = (dedup ? 4 * rows : 0) + 8 * entries;
    if (!bulk)
        sent.metadata = told;
    else if (o.a2a == COT_A2A_PADDED)
        sent = (struct sent){row * padded, reply * x->replicas[s] * x->longest,
                             4 + (padded ? 4 * (x->replicas[d] + padded) : 0), 1};
    else if (o.a2a == COT_A2A_TWO_PHASE)
        sent.metadata = dedup ? 8 * (uint64_t)p->ranks + told : 4 * replicas + 4 * entries,
        sent.metadata_messages = 1;
    else
        sent.metadata = rows ? 4 + told : 0;
    return s == d ? (struct sent){0} : sent;
}

void outcome_counts(const struct outcome *outcome, const struct world *w, const struct plan *p)
{
    struct exchange *const x = exchange_of(outcome, w, p);
    const bool bulk = !strcmp(w->op->name, "bulk");
    const uint64_t passes = (uint64_t)p->passes;
    for (int s = 0; s < p->ranks; s++)
        for (int d = 0; d < p->ranks; d++) {
            const cot_traffic *t = outcome->traffic[s][d];
            const struct sent sent = sent_by(x, w, p, s, d);
            assert_int_equal(t[COT_PHASE_DISPATCH].bytes, passes * sent.dispatch);
            assert_int_equal(t[COT_PHASE_COMBINE].bytes, passes * sent.combine);
            assert_int_equal(t[COT_PHASE_METADATA].bytes, passes * sent.metadata);
            assert_int_equal(t[COT_PHASE_ATTENTION].bytes + t[COT_PHASE_CONTROL].bytes, 0);
            if (!bulk) continue;
            const uint64_t others = s == d ? 0 : passes;
            assert_int_equal(t[COT_PHASE_DISPATCH].messages, others);
            assert_int_equal(t[COT_PHASE_COMBINE].messages, others);
            assert_int_equal(t[COT_PHASE_METADATA].messages, others * sent.metadata_messages);
        }
    for (int r = 0; r < p->ranks && bulk; r++) {
        const uint64_t rounds = p->ranks > 1 ? passes : 0;
        assert_int_equal(outcome->rounds[r][COT_PHASE_DISPATCH], rounds);
        assert_int_equal(outcome->rounds[r][COT_PHASE_COMBINE], rounds);
        assert_int_equal(outcome->rounds[r][COT_PHASE_METADATA],
                         w->options.a2a == COT_A2A_ONE_SHOT ? 0 : rounds);
    }
    free(x);
}
