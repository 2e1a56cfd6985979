#include "placement/cocluster/swaps.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = COT_TRACE_MAX_RANKS };

typedef struct candidate {
    float gain;
    int32_t a, b;
} candidate;

cot_status cot_swaps_open(cot_swaps *s, const cot_cocluster *p, cot_error *error)
{
    const cot_affinity *a = &p->affinity;
    const size_t N = (size_t)p->N, E = (size_t)p->E, D = (size_t)p->D, M = (size_t)a->offsets[p->N];
    *s = (cot_swaps){.problem = p};
    s->column = calloc(E + 2, sizeof *s->column);
    s->member = malloc(M * sizeof *s->member);
    s->count = malloc(M * sizeof *s->count);
    s->rank = malloc(E * sizeof *s->rank);
    s->gain = malloc(N * D * sizeof *s->gain);
    s->token_rank = malloc(N * sizeof *s->token_rank);
    s->price = calloc(2 * D, sizeof *s->price);
    s->move = malloc(E * D * sizeof *s->move);
    s->pair = malloc(E * E * sizeof *s->pair);
    s->candidate = malloc(E * sizeof(candidate));
    s->scratch = malloc(N * 8);
    if (!s->column || !s->member || !s->count || !s->rank || !s->gain || !s->token_rank || !s->price ||
        !s->move || !s->pair || !s->candidate || !s->scratch)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for swaps of %d experts", p->E);
    s->load = s->price + D;
    for (size_t k = 0; k < M; k++) s->column[a->expert[k] + 2]++;
    for (size_t e = 0; e < E; e++) s->column[e + 2] += s->column[e + 1];
    for (int64_t i = 0; i < p->N; i++) // column[e + 1], where e begins, moves to where it ends
        for (int64_t k = a->offsets[i]; k < a->offsets[i + 1]; k++) {
            const int64_t at = s->column[a->expert[k] + 1]++;
            s->member[at] = (int32_t)i;
            s->count[at] = (float)a->count[k];
        }
    return COT_OK;
}

void cot_swaps_close(cot_swaps *s)
{
    free(s->column);
    free(s->member);
    free(s->count);
    free(s->rank);
    free(s->gain);
    free(s->token_rank);
    free(s->price);
    free(s->move);
    free(s->pair);
    free(s->candidate);
    free(s->scratch);
    *s = (cot_swaps){0};
}

void cot_swaps_set(cot_swaps *s, const int32_t *expert_rank)
{
    const cot_cocluster *p = s->problem;
    memcpy(s->rank, expert_rank, (size_t)p->E * sizeof *s->rank);
    cot_cocluster_gains(s->gain, p, s->rank);
    for (int32_t d = 0; d < p->D; d++) s->load[d] = s->price[d] = 0;
    for (int32_t e = 0; e < p->E; e++) s->load[s->rank[e]] += (double)p->expert_load[e];
}

static void carry(cot_swaps *s, int32_t e, int32_t from, int32_t to)
{
    const int64_t D = s->problem->D;
    for (int64_t k = s->column[e]; k < s->column[e + 1];
         k++) { // whole numbers, but for bonuses: no drift to speak of
        float *gain = s->gain + s->member[k] * D;
        gain[from] -= s->count[k];
        gain[to] += s->count[k];
    }
    s->load[from] -= (double)s->problem->expert_load[e];
    s->load[to] += (double)s->problem->expert_load[e];
    s->rank[e] = to;
}

void cot_swaps_swap(cot_swaps *s, int32_t a, int32_t b)
{
    const int32_t r = s->rank[a], t = s->rank[b];
    carry(s, a, r, t);
    carry(s, b, t, r);
}

bool cot_swaps_may(const cot_swaps *s, int32_t a, int32_t b)
{
    const cot_cocluster *p = s->problem;
    const double shift = (double)p->expert_load[a] - (double)p->expert_load[b];
    const int32_t fuller = shift > 0 ? s->rank[b] : s->rank[a];
    return s->load[fuller] + fabs(shift) <= p->expert_limit;
}

void cot_swaps_price(cot_swaps *s)
{
    s->value = cot_cocluster_token_step(s->token_rank, s->price, NULL, s->problem, s->gain, s->scratch);
}

/* A token's three best ranks at the prices. */
typedef struct podium {
    float u[MAX_RANKS]; // gain less price
    float best[3];
    int32_t at[2];
} podium;

static inline void rank_gains(podium *t, const float *gain, const float *price, float weight, int32_t D)
{
    t->best[0] = t->best[1] = t->best[2] = -INFINITY;
    t->at[0] = t->at[1] = -1;
    for (int32_t d = 0; d < D; d++) {
        const float u = t->u[d] = gain[d] - price[d] * weight;
        if (u > t->best[0]) {
            t->best[2] = t->best[1];
            t->best[1] = t->best[0];
            t->best[0] = u;
            t->at[1] = t->at[0];
            t->at[0] = d;
        } else if (u > t->best[1]) {
            t->best[2] = t->best[1];
            t->best[1] = u;
            t->at[1] = d;
        } else if (u > t->best[2]) {
            t->best[2] = u;
        }
    }
}

/* For each expert of each token, and each rank it may move to: the token's best gain after it less before,
 *
 *     max(u[r] - n, u[s] + n, best of the others) - best
 *
 * where "of the others" may as well include s. Two experts of one token that trade ranks: what the sum of both moves
 * misses. */
static void evaluate(cot_swaps *s)
{
    const cot_cocluster *p = s->problem;
    const cot_affinity *a = &p->affinity;
    const int32_t D = p->D;
    const int64_t E = p->E;
    float price[MAX_RANKS];
    for (int32_t d = 0; d < D; d++) price[d] = (float)s->price[d];
    memset(s->move, 0, (size_t)(E * D) * sizeof *s->move);
    memset(s->pair, 0, (size_t)(E * E) * sizeof *s->pair);
    podium t;
    for (int64_t i = 0; i < p->N; i++) {
        rank_gains(&t, s->gain + i * D, price, p->token_weight[i], D);
        const int64_t begin = a->offsets[i], end = a->offsets[i + 1];
        for (int64_t k = begin; k < end; k++) {
            const int32_t e = a->expert[k], r = s->rank[e];
            const float n = (float)a->count[k], stay = t.at[0] == r ? t.best[1] : t.best[0];
            const float left = t.u[r] - n > stay ? t.u[r] - n : stay;
            float *move = s->move + e * D;
            for (int32_t d = 0; d < D; d++) {
                const float there = t.u[d] + n;
                move[d] += (there > left ? there : left) - t.best[0];
            }
            float *pair = s->pair + e * E;
            for (int64_t j = k + 1; j < end; j++) {
                const int32_t f = a->expert[j], q = s->rank[f];
                if (q == r) continue;
                const float m = (float)a->count[j], kept = t.at[0] == q ? t.best[1] : t.best[0];
                const float e_only = t.u[q] + n > left ? t.u[q] + n : left;
                const float f_left = t.u[q] - m > kept ? t.u[q] - m : kept;
                const float f_only = t.u[r] + m > f_left ? t.u[r] + m : f_left;
                const int32_t first = t.at[0], second = t.at[1];
                float both = first != r && first != q     ? t.best[0]
                             : second != r && second != q ? t.best[1]
                                                          : t.best[2];
                if (t.u[r] - n + m > both) both = t.u[r] - n + m;
                if (t.u[q] + n - m > both) both = t.u[q] + n - m;
                pair[f] += both - e_only - f_only + t.best[0];
            }
        }
    }
}

/* What swapping changes at the prices, for the gains as they are now. */
static double measure(const cot_swaps *s, int32_t a, int32_t b)
{
    const cot_cocluster *p = s->problem;
    const int32_t D = p->D, r = s->rank[a], t = s->rank[b];
    int64_t i = s->column[a], j = s->column[b];
    const int64_t i_end = s->column[a + 1], j_end = s->column[b + 1];
    float price[MAX_RANKS];
    double sum = 0;
    for (int32_t d = 0; d < D; d++) price[d] = (float)s->price[d];
    while (i < i_end || j < j_end) {
        const int32_t x = i < i_end ? s->member[i] : INT32_MAX, y = j < j_end ? s->member[j] : INT32_MAX;
        const int32_t token = x < y ? x : y;
        float shift = 0; // from r to t
        if (x == token) shift += s->count[i++];
        if (y == token) shift -= s->count[j++];
        const float *gain = s->gain + (int64_t)token * D, weight = p->token_weight[token];
        float before = -INFINITY, others = -INFINITY;
        for (int32_t d = 0; d < D; d++) {
            const float u = gain[d] - price[d] * weight;
            before = u > before ? u : before;
            others = d != r && d != t && u > others ? u : others;
        }
        const float here = gain[r] - shift - price[r] * weight, there = gain[t] + shift - price[t] * weight;
        float after = here > there ? here : there;
        after = others > after ? others : after;
        sum += (double)(after - before);
    }
    return sum;
}

static int by_falling_gain(const void *x, const void *y)
{
    const candidate *a = x, *b = y;
    if (a->gain != b->gain) return a->gain < b->gain ? 1 : -1;
    return a->a - b->a;
}

int32_t cot_swaps_improve(cot_swaps *s)
{
    const cot_cocluster *p = s->problem;
    const int64_t D = p->D, E = p->E;
    const double least = 1e-6 * (double)p->total; // sums of floats tell no less
    candidate *c = s->candidate;
    int32_t n = 0, made = 0;
    evaluate(s);
    for (int32_t a = 0; a < E; a++) {
        candidate best = {(float)least, -1, -1};
        for (int32_t b = a + 1; b < E; b++) {
            if (s->rank[a] == s->rank[b]) continue;
            const float gain = s->move[a * D + s->rank[b]] + s->move[b * D + s->rank[a]] + s->pair[a * E + b];
            if (gain > best.gain && cot_swaps_may(s, a, b)) best = (candidate){gain, a, b};
        }
        if (best.a >= 0) c[n++] = best;
    }
    qsort(c, (size_t)n, sizeof *c, by_falling_gain);
    for (int32_t k = 0; k < n; k++) {
        if (s->rank[c[k].a] == s->rank[c[k].b] || !cot_swaps_may(s, c[k].a, c[k].b)) continue;
        if (measure(s, c[k].a, c[k].b) <= least) continue;
        cot_swaps_swap(s, c[k].a, c[k].b);
        made++;
    }
    return made;
}
