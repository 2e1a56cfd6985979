#include "predict/assign.h"

#include "coterie/trace.h"

#include <stdbool.h>
#include <string.h>

void cot_spread_unknown(int16_t *rank, int64_t n, double *load, double *credit, int32_t ranks)
{
    for (int64_t i = 0; i < n; i++) {
        if (rank[i] >= 0) {
            load[rank[i]]++;
            continue;
        }
        double shares = 0;
        int16_t chosen = 0;
        for (int32_t d = 0; d < ranks; d++) shares += 1 / (load[d] + 1);
        for (int16_t d = 0; d < ranks; d++) {
            credit[d] += 1 / ((load[d] + 1) * shares);
            if (credit[d] > credit[chosen]) chosen = d;
        }
        credit[chosen]--;
        rank[i] = chosen;
    }
}

enum { FEW = 24, BYTE = 256 };

/* Stable; for few tokens. */
static void sort_by_insertion(int32_t *order, const uint16_t *confidence, int64_t n)
{
    for (int64_t at = 1; at < n; at++) {
        const int32_t i = order[at];
        int64_t to = at;
        for (; to > 0 && confidence[order[to - 1]] < confidence[i]; to--) order[to] = order[to - 1];
        order[to] = i;
    }
}

/* Turns counts of values into where the values begin, the largest first. */
static void sum_down(int32_t *count)
{
    int32_t begin = 0;
    for (int value = BYTE - 1; value >= 0; value--) {
        const int32_t many = count[value];
        count[value] = begin;
        begin += many;
    }
}

/* Stable; by the lower byte, then by the upper. */
static void sort_by_counting(int32_t *order, int32_t *scratch, const uint16_t *confidence, int64_t n)
{
    int32_t low[BYTE] = {0}, high[BYTE] = {0};
    for (int64_t at = 0; at < n; at++) {
        low[confidence[order[at]] % BYTE]++;
        high[confidence[order[at]] / BYTE]++;
    }
    sum_down(low);
    sum_down(high);
    for (int64_t at = 0; at < n; at++) scratch[low[confidence[order[at]] % BYTE]++] = order[at];
    for (int64_t at = 0; at < n; at++) order[high[confidence[scratch[at]] / BYTE]++] = scratch[at];
}

/* The `known` tokens of `order` by confidence, the highest first, of equal ones the first. */
static void sort_by_confidence(int32_t *order, int32_t *scratch, const uint16_t *confidence, int64_t known)
{
    if (known < FEW)
        sort_by_insertion(order, confidence, known);
    else
        sort_by_counting(order, scratch, confidence, known);
}

/* Even shares as they fill: `extra` ranks may yet take one more than `share`. */
typedef struct shares {
    int64_t share, extra, load[COT_TRACE_MAX_RANKS];
    int32_t ranks;
} shares;

static bool has_room(const shares *s, int32_t rank)
{
    return s->load[rank] < s->share + (s->extra > 0);
}

static void take(shares *s, int32_t rank)
{
    s->extra -= s->load[rank]++ == s->share;
}

static int32_t best_with_room(const shares *s, const float *score)
{
    int32_t best = -1;
    for (int32_t d = 0; d < s->ranks; d++)
        if (has_room(s, d) && (best < 0 || score[d] > score[best])) best = d;
    return best;
}

static int32_t emptiest(const shares *s)
{
    int32_t best = -1;
    for (int32_t d = 0; d < s->ranks; d++)
        if (has_room(s, d) && (best < 0 || s->load[d] < s->load[best])) best = d;
    return best;
}

void cot_assign_evenly(int16_t *out, int32_t *order, const int16_t *rank, const uint16_t *confidence,
                       int64_t n, int32_t ranks, cot_score_ranks *score_ranks, void *context)
{
    shares s; // of which only what ranks there are is set: a step of one token comes here in each layer
    s.share = n / ranks, s.extra = n % ranks, s.ranks = ranks;
    memset(s.load, 0, (size_t)ranks * sizeof *s.load);
    int64_t known = 0, last = n; // those without a rank gather at the end, backwards
    for (int64_t i = 0; i < n; i++) order[rank[i] < 0 ? --last : known++] = (int32_t)i;
    sort_by_confidence(order, order + n, confidence, known);
    for (int64_t at = 0; at < known; at++) {
        const int32_t i = order[at];
        int32_t home = rank[i];
        if (!has_room(&s, home)) {
            float score[COT_TRACE_MAX_RANKS];
            score_ranks(context, score, i);
            home = best_with_room(&s, score);
        }
        take(&s, home);
        out[i] = (int16_t)home;
    }
    for (int64_t at = n - 1; at >= known; at--) {
        const int32_t home = emptiest(&s);
        take(&s, home);
        out[order[at]] = (int16_t)home;
    }
}
