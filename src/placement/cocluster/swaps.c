#include "placement/cocluster/swaps.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = COT_TRACE_MAX_RANKS, TRIED = 16, LOOKS = 2 };

cot_status cot_swaps_open(cot_swaps *s, const cot_cocluster *p, cot_error *error)
{
    const cot_affinity *a = &p->affinity;
    const size_t N = (size_t)p->N, E = (size_t)p->E, D = (size_t)p->D, M = (size_t)a->offsets[p->N];
    *s = (cot_swaps){.problem = p};
    s->column = calloc(E + 2, sizeof *s->column);
    s->member = malloc(M * sizeof *s->member);
    s->count = malloc(M * sizeof *s->count);
    s->rank = malloc(E * sizeof *s->rank);
    s->load = malloc(D * sizeof *s->load);
    s->gain = malloc(N * D * sizeof *s->gain);
    s->price = calloc(D, sizeof *s->price);
    s->token_rank = malloc(N * sizeof *s->token_rank);
    s->priced = malloc(N * D * sizeof *s->priced);
    s->podium = malloc(N * sizeof *s->podium);
    s->move = malloc(E * D * sizeof *s->move);
    s->pair = calloc(E * E, sizeof *s->pair);
    s->scratch = malloc(N * 8);
    if (!s->column || !s->member || !s->count || !s->rank || !s->load || !s->gain || !s->price ||
        !s->token_rank || !s->priced || !s->podium || !s->move || !s->pair || !s->scratch)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for swaps of %d experts", p->E);
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
    free(s->load);
    free(s->gain);
    free(s->price);
    free(s->token_rank);
    free(s->priced);
    free(s->podium);
    free(s->move);
    free(s->pair);
    free(s->scratch);
    *s = (cot_swaps){0};
}

static void stand(cot_podium *t, const float *priced, int32_t D)
{
    float first = -INFINITY, second = -INFINITY, third = -INFINITY;
    int32_t at = -1, next = -1;
    for (int32_t d = 0; d < D; d++) {
        const float u = priced[d];
        if (u <= third) continue;
        if (u > first) {
            third = second;
            second = first;
            first = u;
            next = at;
            at = d;
        } else if (u > second) {
            third = second;
            second = u;
            next = d;
        } else {
            third = u;
        }
    }
    *t = (cot_podium){{first, second, third}, {(int16_t)at, (int16_t)next}};
}

/* Gains less prices, from the gains. */
static void put_prices(cot_swaps *s)
{
    const cot_cocluster *p = s->problem;
    const int64_t D = p->D;
    s->most = 0;
    for (int32_t d = 0; d < D; d++) {
        const float price = (float)s->price[d];
        s->most += (double)price * p->token_limit;
        for (int64_t i = 0; i < p->N; i++)
            s->priced[i * D + d] = s->gain[d * p->N + i] - price * p->token_weight[i];
    }
    for (int64_t i = 0; i < p->N; i++) {
        stand(&s->podium[i], s->priced + i * D, p->D);
        s->most += (double)s->podium[i].best[0];
    }
}

void cot_swaps_set(cot_swaps *s, const int32_t *expert_rank, const double *price)
{
    const cot_cocluster *p = s->problem;
    memcpy(s->rank, expert_rank, (size_t)p->E * sizeof *s->rank);
    cot_cocluster_gains(s->gain, p, s->rank);
    for (int32_t d = 0; d < p->D; d++) {
        s->load[d] = 0;
        s->price[d] = price ? price[d] : 0;
    }
    for (int32_t e = 0; e < p->E; e++) s->load[s->rank[e]] += (double)p->expert_load[e];
    put_prices(s);
}

void cot_swaps_price(cot_swaps *s)
{
    cot_cocluster_token_prices(s->token_rank, s->price, s->problem, s->gain);
    put_prices(s);
}

void cot_swaps_settle(cot_swaps *s)
{
    for (int64_t i = 0; i < s->problem->N; i++) s->token_rank[i] = s->podium[i].at[0];
    s->value = cot_cocluster_token_repair(s->token_rank, s->problem, s->gain, s->scratch);
}

static void carry(cot_swaps *s, int32_t e, int32_t from, int32_t to)
{
    const cot_cocluster *p = s->problem;
    for (int64_t k = s->column[e]; k < s->column[e + 1]; k++) { // whole numbers but for bonuses: little drift
        const int64_t i = s->member[k];
        const float n = s->count[k];
        s->gain[from * p->N + i] -= n;
        s->gain[to * p->N + i] += n;
        s->priced[i * p->D + from] -= n;
        s->priced[i * p->D + to] += n;
    }
    s->load[from] -= (double)p->expert_load[e];
    s->load[to] += (double)p->expert_load[e];
    s->rank[e] = to;
}

static void stand_again(cot_swaps *s, int32_t e)
{
    const int64_t D = s->problem->D;
    for (int64_t k = s->column[e]; k < s->column[e + 1]; k++) {
        const int64_t i = s->member[k];
        const float before = s->podium[i].best[0];
        stand(&s->podium[i], s->priced + i * D, (int32_t)D);
        s->most += (double)(s->podium[i].best[0] - before);
    }
}

void cot_swaps_swap(cot_swaps *s, int32_t a, int32_t b)
{
    const int32_t r = s->rank[a], t = s->rank[b];
    carry(s, a, r, t);
    carry(s, b, t, r);
    stand_again(s, a);
    stand_again(s, b);
}

bool cot_swaps_may(const cot_swaps *s, int32_t a, int32_t b)
{
    const cot_cocluster *p = s->problem;
    const double shift = (double)p->expert_load[a] - (double)p->expert_load[b];
    return s->load[s->rank[shift > 0 ? b : a]] + fabs(shift) <= p->expert_limit;
}

/* For each expert of each token, and each rank it may move to: the token's best gain after it less before,
 *
 *     max(u[r] - n, u[d] + n, best of the others) - best
 *
 * where "the others" may as well include d. Inlined for common numbers of ranks. */
static inline __attribute__((always_inline)) void add_moves(cot_swaps *s, int32_t D)
{
    const cot_cocluster *p = s->problem;
    const cot_affinity *a = &p->affinity;
    for (int64_t i = 0; i < p->N; i++) {
        const cot_podium *t = &s->podium[i];
        const float *restrict u = s->priced + i * D;
        for (int64_t k = a->offsets[i]; k < a->offsets[i + 1]; k++) {
            const int32_t r = s->rank[a->expert[k]];
            const float n = (float)a->count[k], others = t->at[0] == r ? t->best[1] : t->best[0];
            const float least = (u[r] - n > others ? u[r] - n : others) - t->best[0], shift = n - t->best[0];
            float *restrict move = s->move + (int64_t)a->expert[k] * D;
            for (int32_t d = 0; d < D; d++) move[d] += u[d] + shift > least ? u[d] + shift : least;
        }
    }
}

static void find_moves(cot_swaps *s)
{
    const cot_cocluster *p = s->problem;
    memset(s->move, 0, (size_t)p->E * (size_t)p->D * sizeof *s->move);
    switch (p->D) {
    case 4:
        add_moves(s, 4);
        break;
    case 8:
        add_moves(s, 8);
        break;
    case 16:
        add_moves(s, 16);
        break;
    default:
        add_moves(s, p->D);
    }
}

/* The best gain where two ranks change to `here` and `there`. */
static inline float best_after(const cot_podium *t, int32_t r, int32_t q, float here, float there)
{
    const float larger = here > there ? here : there;
    const float others = t->at[0] != r && t->at[0] != q   ? t->best[0]
                         : t->at[1] != r && t->at[1] != q ? t->best[1]
                                                          : t->best[2];
    return others > larger ? others : larger;
}

/* What the sum of two moves misses, token by token that calls both. */
void cot_swaps_pairs(cot_swaps *s)
{
    const cot_cocluster *p = s->problem;
    const cot_affinity *a = &p->affinity;
    const int64_t E = p->E;
    memset(s->pair, 0, (size_t)(E * E) * sizeof *s->pair);
    for (int64_t i = 0; i < p->N; i++) {
        const cot_podium *t = &s->podium[i];
        const float *u = s->priced + i * p->D;
        for (int64_t k = a->offsets[i]; k < a->offsets[i + 1]; k++) {
            const int32_t e = a->expert[k], r = s->rank[e];
            const float n = (float)a->count[k];
            for (int64_t j = k + 1; j < a->offsets[i + 1]; j++) {
                const int32_t f = a->expert[j], q = s->rank[f];
                if (q == r) continue;
                const float m = (float)a->count[j];
                s->pair[e * E + f] += best_after(t, r, q, u[r] - n + m, u[q] + n - m) -
                                      best_after(t, r, q, u[r] - n, u[q] + n) -
                                      best_after(t, r, q, u[r] + m, u[q] - m) + t->best[0];
            }
        }
    }
}

/* What swapping changes at the prices. */
static double measure(const cot_swaps *s, int32_t a, int32_t b)
{
    const int32_t r = s->rank[a], q = s->rank[b];
    const int64_t D = s->problem->D, i_end = s->column[a + 1], j_end = s->column[b + 1];
    int64_t i = s->column[a], j = s->column[b];
    double sum = 0;
    while (i < i_end || j < j_end) {
        const int32_t x = i < i_end ? s->member[i] : INT32_MAX, y = j < j_end ? s->member[j] : INT32_MAX;
        const int32_t token = x < y ? x : y;
        float shift = 0; // from r to q
        if (x == token) shift += s->count[i++];
        if (y == token) shift -= s->count[j++];
        const float *u = s->priced + token * D;
        const cot_podium *t = &s->podium[token];
        sum += (double)(best_after(t, r, q, u[r] - shift, u[q] + shift) - t->best[0]);
    }
    return sum;
}

typedef struct candidate {
    float gain;
    int32_t a, b;
} candidate;

/* The most promising swaps, best first; returns how many. */
static int look(candidate *c, const cot_swaps *s, float least)
{
    const int64_t D = s->problem->D, E = s->problem->E;
    int n = 0;
    for (int32_t a = 0; a < E; a++)
        for (int32_t b = a + 1; b < E; b++) {
            const float gain = s->move[a * D + s->rank[b]] + s->move[b * D + s->rank[a]] + s->pair[a * E + b];
            if (gain <= least || s->rank[a] == s->rank[b] || (n == TRIED && gain <= c[n - 1].gain) ||
                !cot_swaps_may(s, a, b))
                continue;
            int k = n < TRIED ? n++ : n - 1;
            for (; k && c[k - 1].gain < gain; k--) c[k] = c[k - 1];
            c[k] = (candidate){gain, a, b};
        }
    return n;
}

/* One swap with prices of its own; taken back unless it gains. */
static bool try_alone(cot_swaps *s, int32_t a, int32_t b, double least)
{
    const cot_cocluster *p = s->problem;
    const int32_t r = s->rank[a], q = s->rank[b];
    double kept[MAX_RANKS];
    memcpy(kept, s->price, (size_t)p->D * sizeof *kept);
    carry(s, a, r, q);
    carry(s, b, q, r);
    const double most = cot_cocluster_token_prices(s->token_rank, s->price, p, s->gain);
    if (most > s->most + least) {
        put_prices(s);
        return true;
    }
    carry(s, a, q, r);
    carry(s, b, r, q);
    memcpy(s->price, kept, (size_t)p->D * sizeof *kept);
    return false;
}

bool cot_swaps_improve(cot_swaps *s)
{
    const int64_t E = s->problem->E;
    const double least = 1e-6 * (double)s->problem->total, before = s->most; // sums of floats tell no less
    double kept[MAX_RANKS];
    candidate c[TRIED], good[TRIED];
    int found = 0, made = 0;
    find_moves(s);
    for (int look_again = 0; !made && look_again < LOOKS; look_again++) { // `pair` has learnt meanwhile
        const int n = look(c, s, (float)least);
        for (int k = 0; k < n; k++) {
            const int64_t a = c[k].a, b = c[k].b;
            if (s->rank[a] == s->rank[b] || !cot_swaps_may(s, c[k].a, c[k].b)) continue;
            const double gain = measure(s, c[k].a, c[k].b);
            if (!made) s->pair[a * E + b] += (float)gain - c[k].gain;
            if (gain <= least) continue;
            cot_swaps_swap(s, c[k].a, c[k].b);
            good[made++] = c[k];
        }
    }
    found = made;
    if (!made) return false;
    memcpy(kept, s->price, (size_t)s->problem->D * sizeof *kept);
    cot_swaps_price(s);
    if (s->most > before + least) return true;
    /* Together they crowd some ranks. */
    while (made-- > 0) {
        const int32_t a = good[made].a, b = good[made].b, r = s->rank[a], q = s->rank[b];
        carry(s, a, r, q);
        carry(s, b, q, r);
    }
    memcpy(s->price, kept, (size_t)s->problem->D * sizeof *kept);
    put_prices(s);
    for (int k = 0; k < found; k++)
        if (cot_swaps_may(s, good[k].a, good[k].b) && try_alone(s, good[k].a, good[k].b, least)) return true;
    return false;
}
