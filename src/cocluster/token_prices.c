#include "cocluster/token_prices.h"

#include "placement/vectors.h"

#include <math.h>
#include <string.h>

/* A generalised assignment problem. Prices on load, a rate per unit, make each token choose by itself:
 *
 *     q(price) = sum_i max_d (gain[d][i] - price[d] load[i]) + sum_d price[d] room[d]
 *
 * is convex and never below what any assignment within the room gains (Lagrange); the prices that make it least leave
 * few tokens to move. Each price climbs while its rank is too full and falls while it is not, in steps that grow until
 * the sign turns and shrink then (as in Rprop), so that all ranks search at the same time. */
enum { SWEEPS = 28, BOUND_SWEEPS = 60, BLOCK = 64, MAX_RANKS = COT_TRACE_MAX_RANKS };

typedef struct prices {
    double *price;
    double step[MAX_RANKS];
    bool warm;
    int8_t sign[MAX_RANKS];
    uint64_t load[MAX_RANKS];
} prices;

/* Some tokens to their best ranks; returns the sum of gains less prices. Inlined for whole blocks, whose loops the
 * compiler then turns into vectors. */
static inline __attribute__((always_inline)) double
choose(int32_t *restrict rank, const float *restrict price, const float *restrict gain,
       const float *restrict weight, int64_t stride, int32_t D, int n)
{
    float best[BLOCK];
    int32_t at[BLOCK];
    double sum = 0;
    for (int j = 0; j < n; j++) {
        best[j] = gain[j] - price[0] * weight[j];
        at[j] = 0;
    }
    for (int32_t d = 1; d < D; d++) {
        gain += stride;
        const float rate = price[d];
        for (int j = 0; j < n; j++) {
            const float here = gain[j] - rate * weight[j];
            const int32_t larger = -(int32_t)(here > best[j]); // a mask: two selections would become a branch
            at[j] = (at[j] & ~larger) | (d & larger);
            best[j] = here > best[j] ? here : best[j];
        }
    }
    for (int j = 0; j < n; j++) {
        rank[j] = at[j];
        sum += (double)best[j];
    }
    return sum;
}

COT_VECTORS static double sweep(int32_t *rank, prices *s, const cot_cocluster_tokens *t)
{
    float price[MAX_RANKS];
    double q = 0;
    int64_t i = 0;
    for (int32_t d = 0; d < t->D; d++) {
        price[d] = (float)s->price[d];
        q += (double)price[d] * t->room[d];
    }
    for (; i + BLOCK <= t->n; i += BLOCK)
        q += choose(rank + i, price, t->gain + i, t->weight + i, t->stride, t->D, BLOCK);
    if (i < t->n) q += choose(rank + i, price, t->gain + i, t->weight + i, t->stride, t->D, (int)(t->n - i));
    uint64_t load[4][MAX_RANKS]; // one sum would wait for itself
    for (int k = 0; k < 4; k++)
        for (int32_t d = 0; d < t->D; d++) load[k][d] = 0;
    for (i = 0; i + 4 <= t->n; i += 4)
        for (int k = 0; k < 4; k++) load[k][rank[i + k]] += t->load[i + k];
    for (; i < t->n; i++) load[0][rank[i]] += t->load[i];
    for (int32_t d = 0; d < t->D; d++) s->load[d] = load[0][d] + load[1][d] + load[2][d] + load[3][d];
    return q;
}

/* The same for the bound: true loads, double precision. */
static double sweep_exactly(prices *s, const cot_cocluster_tokens *t)
{
    double q = 0;
    for (int32_t d = 0; d < t->D; d++) {
        q += s->price[d] * t->room[d];
        s->load[d] = 0;
    }
    for (int64_t i = 0; i < t->n; i++) {
        double best = -INFINITY;
        int32_t at = 0;
        for (int32_t d = 0; d < t->D; d++) {
            const double here = (double)t->gain[d * t->stride + i] - s->price[d] * (double)t->load[i];
            if (here > best) {
                best = here;
                at = d;
            }
        }
        s->load[at] += t->load[i];
        q += best;
    }
    return q;
}

/* One step of all prices against the excess; false: every rank is as full as its price says, within `slack`. */
static bool move_prices(prices *s, const cot_cocluster_tokens *t, double slack)
{
    bool moved = false;
    for (int32_t d = 0; d < t->D; d++) {
        const double excess = (double)s->load[d] - t->room[d];
        if ((s->price[d] <= 0 && excess <= 0) || fabs(excess) <= slack) {
            s->sign[d] = 0;
            continue;
        }
        const int8_t sign = excess > 0 ? 1 : -1;
        if (s->sign[d] == sign) {
            s->step[d] *= 1.5;
        } else if (s->sign[d] == -sign) {
            s->step[d] *= 0.4;
        }
        s->sign[d] = sign;
        s->price[d] = fmax(0, s->price[d] + sign * s->step[d]);
        moved = true;
    }
    return moved;
}

static void begin_prices(prices *s, double *price, int32_t D)
{
    *s = (prices){.price = price};
    for (int32_t d = 0; d < D; d++) s->warm = s->warm || price[d] > 0;
    for (int32_t d = 0; d < D; d++) s->step[d] = s->warm ? 0.004 : 0.05;
}

cot_cocluster_tokens cot_cocluster_all_tokens(const cot_cocluster *p, const float *gain)
{
    cot_cocluster_tokens t = {.n = p->N,
                              .stride = p->N,
                              .D = p->D,
                              .gain = gain,
                              .weight = p->token_weight,
                              .load = p->token_load,
                              .slack = p->token_limit / 256};
    for (int32_t d = 0; d < p->D; d++) t.room[d] = p->token_limit;
    return t;
}

double cot_cocluster_find_prices(int32_t *rank, double *price, double least, int sweeps,
                                 const cot_cocluster_tokens *t)
{
    prices s;
    double best = INFINITY, kept[MAX_RANKS];
    begin_prices(&s, price, t->D);
    for (int i = 0; i < sweeps; i++) {
        const double q = sweep(rank, &s, t);
        if (q < best) {
            best = q;
            memcpy(kept, price, (size_t)t->D * sizeof *kept);
        }
        if (best < least || !move_prices(&s, t, t->slack)) return best; // it is as good as met
    }
    memcpy(price, kept, (size_t)t->D * sizeof *kept);
    return sweep(rank, &s, t);
}

double cot_cocluster_at_prices(int32_t *rank, const double *price, const cot_cocluster_tokens *t)
{
    double same[MAX_RANKS];
    memcpy(same, price, (size_t)t->D * sizeof *same);
    return sweep(rank, &(prices){.price = same}, t);
}

double cot_cocluster_token_prices(int32_t *token_rank, double *price, double least, const cot_cocluster *p,
                                  const float *gain)
{
    const cot_cocluster_tokens all = cot_cocluster_all_tokens(p, gain);
    bool warm = false;
    for (int32_t d = 0; d < p->D; d++) warm = warm || price[d] > 0;
    return cot_cocluster_find_prices(token_rank, price, least, warm ? SWEEPS / 2 : SWEEPS, &all);
}

double cot_cocluster_token_choose(int32_t *token_rank, const double *price, const cot_cocluster *p,
                                  const float *gain)
{
    const cot_cocluster_tokens all = cot_cocluster_all_tokens(p, gain);
    return cot_cocluster_at_prices(token_rank, price, &all);
}

double cot_cocluster_token_bound(const double *begin, double enough, const cot_cocluster *p,
                                 const float *gain)
{
    const cot_cocluster_tokens all = cot_cocluster_all_tokens(p, gain);
    prices s;
    double price[MAX_RANKS], best = INFINITY;
    memcpy(price, begin, (size_t)p->D * sizeof *price);
    begin_prices(&s, price, p->D);
    for (int i = 0; i < BOUND_SWEEPS; i++) {
        best = fmin(best, sweep_exactly(&s, &all));
        if (best <= enough || !move_prices(&s, &all, 0)) break;
    }
    return best;
}
