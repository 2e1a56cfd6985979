#include "cocluster/solver.h"

#include "placement/vectors.h"

#include <math.h>
#include <string.h>

/* A generalised assignment problem. Prices on load, a rate per unit, make each token choose by itself:
 *
 *     q(price) = sum_i max_d (gain[i][d] - price[d] load[i]) + limit sum_d price[d]
 *
 * is convex and never below what any assignment within the limit gains (Lagrange); the prices that make it least leave
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
       const float *restrict weight, int64_t N, int32_t D, int n)
{
    float best[BLOCK];
    int32_t at[BLOCK];
    double sum = 0;
    for (int j = 0; j < n; j++) {
        best[j] = gain[j] - price[0] * weight[j];
        at[j] = 0;
    }
    for (int32_t d = 1; d < D; d++) {
        gain += N;
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

COT_VECTORS static double sweep(int32_t *rank, prices *s, const cot_cocluster *p, const float *gain)
{
    float price[MAX_RANKS];
    double q = 0;
    int64_t i = 0;
    for (int32_t d = 0; d < p->D; d++) {
        price[d] = (float)s->price[d];
        q += (double)price[d] * p->token_limit;
    }
    for (; i + BLOCK <= p->N; i += BLOCK)
        q += choose(rank + i, price, gain + i, p->token_weight + i, p->N, p->D, BLOCK);
    q += choose(rank + i, price, gain + i, p->token_weight + i, p->N, p->D, (int)(p->N - i));
    uint64_t load[4][MAX_RANKS]; // one sum would wait for itself
    for (int k = 0; k < 4; k++)
        for (int32_t d = 0; d < p->D; d++) load[k][d] = 0;
    for (i = 0; i + 4 <= p->N; i += 4)
        for (int k = 0; k < 4; k++) load[k][rank[i + k]] += p->token_load[i + k];
    for (; i < p->N; i++) load[0][rank[i]] += p->token_load[i];
    for (int32_t d = 0; d < p->D; d++) s->load[d] = load[0][d] + load[1][d] + load[2][d] + load[3][d];
    return q;
}

/* The same for the bound: true loads, double precision. */
static double sweep_exactly(prices *s, const cot_cocluster *p, const float *gain)
{
    double q = 0;
    for (int32_t d = 0; d < p->D; d++) {
        q += s->price[d] * p->token_limit;
        s->load[d] = 0;
    }
    for (int64_t i = 0; i < p->N; i++) {
        double best = -INFINITY;
        int32_t at = 0;
        for (int32_t d = 0; d < p->D; d++) {
            const double here = (double)gain[d * p->N + i] - s->price[d] * (double)p->token_load[i];
            if (here > best) {
                best = here;
                at = d;
            }
        }
        s->load[at] += p->token_load[i];
        q += best;
    }
    return q;
}

/* One step of all prices against the excess; false: every rank is as full as its price says, within `slack`. */
static bool move_prices(prices *s, const cot_cocluster *p, double slack)
{
    bool moved = false;
    for (int32_t d = 0; d < p->D; d++) {
        const double excess = (double)s->load[d] - p->token_limit;
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

double cot_cocluster_token_prices(int32_t *token_rank, double *price, double least, const cot_cocluster *p,
                                  const float *gain)
{
    prices s;
    double best = INFINITY, kept[MAX_RANKS];
    begin_prices(&s, price, p->D);
    const int sweeps = s.warm ? SWEEPS / 2 : SWEEPS;
    for (int i = 0; i < sweeps; i++) {
        const double q = sweep(token_rank, &s, p, gain);
        if (q < best) {
            best = q;
            memcpy(kept, price, (size_t)p->D * sizeof *kept);
        }
        if (best < least || !move_prices(&s, p, p->token_limit / 256)) return q; // it is as good as met
    }
    memcpy(price, kept, (size_t)p->D * sizeof *kept);
    return sweep(token_rank, &s, p, gain);
}

double cot_cocluster_token_choose(int32_t *token_rank, const double *price, const cot_cocluster *p,
                                  const float *gain)
{
    double same[MAX_RANKS];
    memcpy(same, price, (size_t)p->D * sizeof *same);
    return sweep(token_rank, &(prices){.price = same}, p, gain);
}

static double find_bound(const double *begin, const cot_cocluster *p, const float *gain)
{
    prices s;
    double price[MAX_RANKS], best = INFINITY;
    memcpy(price, begin, (size_t)p->D * sizeof *price);
    begin_prices(&s, price, p->D);
    for (int i = 0; i < BOUND_SWEEPS; i++) {
        best = fmin(best, sweep_exactly(&s, p, gain));
        if (!move_prices(&s, p, 0)) break;
    }
    return best;
}

/* Tokens of a rank that is too full, by what a unit of load loses by going elsewhere. */
typedef struct leaver {
    float loss;
    int32_t token;
} leaver;

static void sift(leaver *heap, int64_t n, int64_t i)
{
    const leaver moved = heap[i];
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1].loss < heap[child].loss) child++;
        if (heap[child].loss >= moved.loss) break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

/* Where token `i` loses least among the ranks with room for it; -1: nowhere. */
static int32_t way_out(float *loss, const cot_cocluster *p, const float *gain, const double *load, int64_t i,
                       int32_t from)
{
    int32_t to = -1;
    for (int32_t d = 0; d < p->D; d++)
        if (d != from && load[d] + (double)p->token_load[i] <= p->token_limit &&
            (to < 0 || gain[d * p->N + i] > gain[to * p->N + i]))
            to = d;
    if (to >= 0) *loss = (gain[from * p->N + i] - gain[to * p->N + i]) / (float)p->token_load[i];
    return to;
}

/* False: nobody can leave any more and rank `d` is still too full. */
static bool empty_rank(int32_t *token_rank, double *load, const cot_cocluster *p, const float *gain,
                       int32_t d, leaver *heap)
{
    int64_t n = 0;
    float loss;
    for (int64_t i = 0; i < p->N; i++)
        if (token_rank[i] == d && p->token_load[i] && way_out(&loss, p, gain, load, i, d) >= 0)
            heap[n++] = (leaver){loss, (int32_t)i};
    for (int64_t i = n / 2; i-- > 0;) sift(heap, n, i);
    while (load[d] > p->token_limit && n) {
        const int32_t token = heap[0].token, to = way_out(&loss, p, gain, load, token, d);
        if (to >= 0 && loss > heap[0].loss) { // its place has been taken
            heap[0].loss = loss;
            sift(heap, n, 0);
            continue;
        }
        if (to >= 0) {
            token_rank[token] = to;
            load[to] += (double)p->token_load[token];
            load[d] -= (double)p->token_load[token];
        }
        heap[0] = heap[--n];
        if (n) sift(heap, n, 0);
    }
    return load[d] <= p->token_limit;
}

/* Heaviest first to the best rank with room, or, `evenly`, to the emptiest, which token_limit always has room for. */
static bool pack_tokens(int32_t *token_rank, double *load, const cot_cocluster *p, const float *gain,
                        bool evenly)
{
    for (int32_t d = 0; d < p->D; d++) load[d] = 0;
    for (int64_t k = 0; k < p->N; k++) {
        const int64_t i = p->heavy_first[k];
        int32_t to = -1;
        for (int32_t d = 0; d < p->D; d++) {
            if (evenly ? to < 0 || load[d] < load[to]
                       : load[d] + (double)p->token_load[i] <= p->token_limit &&
                             (to < 0 || gain[d * p->N + i] > gain[to * p->N + i]))
                to = d;
        }
        if (to < 0) return false;
        token_rank[i] = to;
        load[to] += (double)p->token_load[i];
    }
    return true;
}

/* Tokens that gain where there is room go there, first those that gain most a unit of load. */
static void settle(int32_t *token_rank, double *load, const cot_cocluster *p, const float *gain)
{
    static const float least[] = {0.7f, 0.5f, 0.35f, 0.25f, 0.15f, 0.08f, 0, 0};
    bool moved = true;
    for (size_t round = 0; round < sizeof least / sizeof *least && (moved || least[round] > 0); round++) {
        moved = false;
        for (int64_t i = 0; i < p->N; i++) {
            const int32_t from = token_rank[i];
            const float enough = gain[from * p->N + i] + least[round] * (float)p->token_load[i];
            int32_t to = from;
            for (int32_t d = 0; d < p->D; d++)
                if (gain[d * p->N + i] > enough && gain[d * p->N + i] > gain[to * p->N + i] &&
                    load[d] + (double)p->token_load[i] <= p->token_limit)
                    to = d;
            if (to == from) continue;
            load[from] -= (double)p->token_load[i];
            load[to] += (double)p->token_load[i];
            token_rank[i] = to;
            moved = true;
        }
    }
}

double cot_cocluster_token_repair(int32_t *token_rank, const cot_cocluster *p, const float *gain,
                                  void *scratch)
{
    double load[MAX_RANKS] = {0}, sum = 0;
    bool good = true;
    for (int64_t i = 0; i < p->N; i++) load[token_rank[i]] += (double)p->token_load[i];
    for (int32_t d = 0; good && d < p->D; d++)
        if (load[d] > p->token_limit) good = empty_rank(token_rank, load, p, gain, d, scratch);
    if (!good && !pack_tokens(token_rank, load, p, gain, false)) pack_tokens(token_rank, load, p, gain, true);
    settle(token_rank, load, p, gain);
    for (int64_t i = 0; i < p->N; i++) sum += (double)gain[token_rank[i] * p->N + i];
    return sum;
}

double cot_cocluster_token_step(int32_t *token_rank, double *price, double *bound, const cot_cocluster *p,
                                const float *gain, void *scratch)
{
    cot_cocluster_token_prices(token_rank, price, 0, p, gain);
    if (bound) *bound = find_bound(price, p, gain);
    return cot_cocluster_token_repair(token_rank, p, gain, scratch);
}
