#include "cocluster/token_prices.h"

#include "base/rng.h"

#include <float.h>
#include <string.h>

/* Prices share load out as if tokens could be divided. Where a few tokens are a large part of a rank's load (at 16 ranks the
 * most frequent one of a text is three quarters of it) they cannot, and repair, which moves what loses least a unit of load,
 * ends half a per cent below what is possible. So heavy tokens go first, the heaviest before all, each to the rank that is
 * best at the prices and has room; after every quarter of a rank's load prices are found anew for the tokens that are left
 * and the room that is left. The light ones are then as good as divisible.
 *
 * Which of two ranks a heavy token goes to is a close call: a little chance in it, and the best of several tries, comes
 * within 0.1 % of the optimum (gpt-oss-20b, 16 ranks, against an integer programme). */
static const double heavy = 1.0 / 64, grain = 1.0 / 4,
                    chance = 0.005; // of the limit; of the limit; of a token's load
enum { MAX_RANKS = COT_TRACE_MAX_RANKS, SWEEPS = 8 };

void cot_cocluster_sort_loads(cot_cocluster *p)
{
    p->n_heavy = 0;
    for (int64_t k = 0; k < p->N; k++) {
        const int32_t i = p->heavy_first[k];
        p->sorted_weight[k] = p->token_weight[i];
        p->sorted_load[k] = p->token_load[i];
        p->n_heavy += (double)p->token_load[i] > heavy * p->token_limit;
    }
}

/* The best rank at these prices that has room for the first of `t`; -1: there is none. */
static int32_t best_rank(const cot_cocluster_tokens *t, const double *price, double luck, uint64_t seed,
                         uint64_t stream, uint64_t at)
{
    const double load = (double)t->load[0];
    double most = -DBL_MAX;
    int32_t to = -1;
    for (int32_t d = 0; d < t->D; d++) {
        if (t->room[d] < load) continue;
        double here = (double)t->gain[d * t->stride] - price[d] * (double)t->weight[0];
        if (luck > 0)
            here += luck * load * cot_random_uniform(seed, stream, at * (uint64_t)t->D + (uint64_t)d);
        if (here > most) {
            most = here;
            to = d;
        }
    }
    return to;
}

/* Tokens in falling order of load. */
static void sort_gains(const cot_cocluster *p, const float *gain)
{
    for (int32_t d = 0; d < p->D; d++)
        for (int64_t k = 0; k < p->N; k++) p->sorted_gain[d * p->N + k] = gain[d * p->N + p->heavy_first[k]];
}

/* False: a heavy token found no room. */
static bool place_heavy(int32_t *rank, const double *begin, double luck, uint64_t stream,
                        const cot_cocluster *p)
{
    cot_cocluster_tokens left = cot_cocluster_all_tokens(p, p->sorted_gain);
    double price[MAX_RANKS], placed = 0;
    left.weight = p->sorted_weight;
    left.load = p->sorted_load;
    memcpy(price, begin, (size_t)p->D * sizeof *price);
    for (int64_t k = 0; k < p->n_heavy; k++) {
        const int32_t to = best_rank(&left, price, luck, p->options.seed, stream, (uint64_t)k);
        if (to < 0) return false;
        rank[k] = to;
        left.room[to] -= (double)left.load[0];
        placed += (double)left.load[0];
        left.gain++;
        left.weight++;
        left.load++;
        left.n--;
        if (!left.n || (placed < grain * p->token_limit && k + 1 < p->n_heavy)) continue;
        placed = 0;
        cot_cocluster_find_prices(rank + k + 1, price, 0, SWEEPS, &left);
    }
    return true;
}

double cot_cocluster_token_settle(int32_t *token_rank, const double *price, int tries, uint64_t stream,
                                  const cot_cocluster *p, const float *gain)
{
    int32_t *rank = p->scratch; // in falling order of load
    cot_cocluster_token_choose(token_rank, price, p, gain);
    double most = cot_cocluster_token_repair(token_rank, p, gain);
    if (!p->n_heavy || !tries) return most;
    sort_gains(p, gain);
    for (int k = 0; k < tries; k++) {
        if (!place_heavy(rank, price, k ? chance : 0, stream + (uint64_t)k, p)) continue;
        for (int64_t i = 0; i < p->N; i++) p->settled[p->heavy_first[i]] = rank[i];
        const double here = cot_cocluster_token_repair(p->settled, p, gain);
        if (here <= most) continue;
        most = here;
        memcpy(token_rank, p->settled, (size_t)p->N * sizeof *token_rank);
    }
    return most;
}
