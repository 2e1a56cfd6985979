#include "cocluster/anneal.h"

#include "base/error.h"
#include "base/rng.h"
#include "placement/vectors.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* All swaps of an expert are weighed on dense counts: some tokens call neither, but vectors go over ten of these in the
 * time that a merge of two sparse columns takes for one (E = 64, 11k tokens, D = 8, AVX2: a swap takes about 1.2 us).
 * Tokens come in blocks that stay in the first cache; sums go by lane, whatever the processor's vectors are. */
enum { BLOCK = 256, LANES = 16 };

/* What is known of an excess fades by this from sweep to sweep. */
static const float memory = 0.8f;

cot_status cot_anneal_open(cot_anneal *s, const cot_cocluster *p, cot_error *error)
{
    const cot_affinity *a = &p->affinity;
    const size_t E = (size_t)p->E, D = (size_t)p->D, N = (size_t)p->N;
    const size_t stride = (N + BLOCK - 1) / BLOCK * BLOCK;
    *s = (cot_anneal){.problem = p, .stride = (int64_t)stride};
    s->called = calloc(E * stride, sizeof *s->called);
    s->rank = malloc(4 * E * sizeof *s->rank);
    s->load = malloc((3 * D + E) * sizeof *s->load);
    s->excess = calloc(E * E, sizeof *s->excess);
    s->gain = malloc(D * N * sizeof *s->gain);
    s->priced = calloc(D * stride, sizeof *s->priced);
    s->token_rank = malloc(N * sizeof *s->token_rank);
    if (!s->called || !s->rank || !s->load || !s->excess || !s->gain || !s->priced || !s->token_rank)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for swaps of %d experts", p->E);
    s->seat = s->rank + E;
    s->place = s->seat + E;
    s->order = s->place + E;
    s->price = s->load + D;
    s->kept = s->price + D;
    s->change = s->kept + D;
    for (int64_t i = 0; i < p->N; i++)
        for (int64_t k = a->offsets[i]; k < a->offsets[i + 1]; k++)
            s->called[a->expert[k] * s->stride + i] = (float)a->count[k];
    return COT_OK;
}

void cot_anneal_close(cot_anneal *s)
{
    free(s->called);
    free(s->rank);
    free(s->load);
    free(s->excess);
    free(s->gain);
    free(s->priced);
    free(s->token_rank);
    *s = (cot_anneal){0};
}

/* Gains less prices, from the gains. */
static void put_prices(cot_anneal *s)
{
    const cot_cocluster *p = s->problem;
    for (int32_t d = 0; d < p->D; d++) {
        const float rate = (float)s->price[d];
        const float *gain = s->gain + d * p->N;
        float *priced = s->priced + d * s->stride;
        for (int64_t i = 0; i < p->N; i++) priced[i] = gain[i] - rate * p->token_weight[i];
    }
}

void cot_anneal_set(cot_anneal *s, const int32_t *expert_rank, const double *price)
{
    const cot_cocluster *p = s->problem;
    int32_t at = 0;
    memcpy(s->rank, expert_rank, (size_t)p->E * sizeof *s->rank);
    for (int32_t d = 0; d < p->D; d++) {
        s->price[d] = price ? price[d] : 0;
        s->load[d] = 0;
        for (int32_t e = 0; e < p->E; e++) {
            if (s->rank[e] != d) continue;
            s->place[e] = at;
            s->seat[at++] = e;
            s->load[d] += (double)p->expert_load[e];
        }
    }
    cot_cocluster_gains(s->gain, p, s->rank);
    s->most = cot_cocluster_token_prices(s->token_rank, s->price, 0, p, s->gain);
    put_prices(s);
}

void cot_anneal_settle(cot_anneal *s, int tries, uint64_t stream)
{
    s->value = cot_cocluster_token_settle(s->token_rank, s->price, tries, stream, s->problem, s->gain);
}

/* Whether the expert limit allows to swap a and b. */
static bool may(const cot_anneal *s, int32_t a, int32_t b)
{
    const cot_cocluster *p = s->problem;
    const double shift = (double)p->expert_load[a] - (double)p->expert_load[b];
    return s->load[s->rank[shift > 0 ? b : a]] + fabs(shift) <= p->expert_limit;
}

static inline float larger(float x, float y)
{
    return x > y ? x : y;
}

static inline double add_lanes(const float *sum)
{
    double all = 0;
    for (int j = 0; j < LANES; j++) all += (double)sum[j];
    return all;
}

/* A block of tokens' largest and second largest of all ranks' but r, and where the former is. */
static inline __attribute__((always_inline)) void stand(float *restrict best, float *restrict next,
                                                        int32_t *restrict at, const cot_anneal *s, int32_t r,
                                                        int64_t from)
{
    for (int j = 0; j < BLOCK; j++) {
        best[j] = next[j] = -FLT_MAX;
        at[j] = -1;
    }
    for (int32_t d = 0; d < s->problem->D; d++) {
        const float *restrict u = s->priced + d * s->stride + from;
        if (d == r) continue;
        for (int j = 0; j < BLOCK; j++) {
            const float x = u[j];
            const int32_t first = -(int32_t)(x > best[j]); // a mask
            next[j] = larger(next[j], x > best[j] ? best[j] : x);
            at[j] = (at[j] & ~first) | (d & first);
            best[j] = larger(best[j], x);
        }
    }
}

/* change[b] = what swapping a, of rank r, with b, of rank q, changes at these prices: over all tokens
 *
 *     max(u[r] - n, u[q] + n, best of the others) - best        u gain less price; n calls of a less those of b
 */
COT_VECTORS static void weigh(cot_anneal *s, int32_t a)
{
    const cot_cocluster *p = s->problem;
    const int64_t stride = s->stride;
    const int32_t r = s->rank[a];
    double before = 0;
    for (int32_t b = 0; b < p->E; b++) s->change[b] = 0;
    for (int64_t from = 0; from < stride; from += BLOCK) {
        const float *restrict own = s->priced + r * stride + from;
        const float *restrict n = s->called + a * stride + from;
        float best[BLOCK], next[BLOCK], others[BLOCK], sum[LANES] = {0};
        int32_t at[BLOCK];
        stand(best, next, at, s, r, from);
        for (int j = 0; j < BLOCK; j += LANES)
            for (int k = j; k < j + LANES; k++) sum[k - j] += larger(best[k], own[k]);
        before += add_lanes(sum);
        for (int32_t q = 0, seat = 0; q < p->D; q++) {
            const float *restrict u = s->priced + q * stride + from;
            const int32_t end = seat + p->size[q];
            for (int j = 0; j < BLOCK; j++) others[j] = at[j] == q ? next[j] : best[j];
            for (; seat < end; seat++) {
                const float *restrict m = s->called + s->seat[seat] * stride + from;
                if (q == r) continue;
                for (int k = 0; k < LANES; k++) sum[k] = 0;
                for (int j = 0; j < BLOCK; j += LANES)
                    for (int k = j; k < j + LANES; k++) {
                        const float shift = n[k] - m[k];
                        sum[k - j] += larger(larger(own[k] - shift, u[k] + shift), others[k]);
                    }
                s->change[s->seat[seat]] += add_lanes(sum);
            }
        }
    }
    for (int32_t b = 0; b < p->E; b++) s->change[b] -= before;
}

COT_VECTORS static void carry(float *restrict from, float *restrict to, const float *restrict plus,
                              const float *restrict minus, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const float shift = plus[i] - minus[i];
        from[i] -= shift;
        to[i] += shift;
    }
}

static void swap(cot_anneal *s, int32_t a, int32_t b)
{
    const cot_cocluster *p = s->problem;
    const int32_t r = s->rank[a], q = s->rank[b], place = s->place[a];
    const float *n = s->called + a * s->stride, *m = s->called + b * s->stride;
    carry(s->gain + r * p->N, s->gain + q * p->N, n, m, p->N); // whole numbers but for bonuses: little drift
    carry(s->priced + r * s->stride, s->priced + q * s->stride, n, m, p->N);
    const double shift = (double)p->expert_load[a] - (double)p->expert_load[b];
    s->load[r] -= shift;
    s->load[q] += shift;
    s->rank[a] = q;
    s->rank[b] = r;
    s->place[a] = s->place[b];
    s->place[b] = place;
    s->seat[s->place[a]] = a;
    s->seat[place] = b;
}

/* Whom expert a swaps with, given what that changes; a: nobody. */
static int32_t draw(const cot_anneal *s, int32_t a, double temperature, double u)
{
    const cot_cocluster *p = s->problem;
    double most = 0, sum = 0;
    int32_t best = a;
    for (int32_t b = 0; b < p->E; b++)
        if (s->change[b] > most && may(s, a, b)) {
            most = s->change[b];
            best = b;
        }
    if (temperature <= 0) return best;
    for (int pass = 0; pass < 2; pass++) { // adds up, then draws
        double left = u * sum;
        for (int32_t b = 0; b < p->E; b++) {
            const double change = b == a ? 0 : s->change[b];
            if (change < most - 30 * temperature || !may(s, a, b)) continue;
            const double weight = exp((change - most) / temperature);
            sum += weight;
            if (pass && (left -= weight) < 0) return b;
        }
    }
    return best;
}

/* Swaps, lets prices answer, and takes it back with the probability that is due for what `expected` was too much: both draws
 * together are as likely as one draw with what the swap is truly worth would be. */
static void try_swap(cot_anneal *s, int32_t a, int32_t b, double expected, double temperature, double u)
{
    const cot_cocluster *p = s->problem;
    const double before = s->most, unit = 1e-7 * (double)p->total; // sums of floats tell no less
    const double least = before + (temperature > 0 ? expected + temperature * log(u + DBL_MIN) : unit);
    memcpy(s->kept, s->price, (size_t)p->D * sizeof *s->kept);
    swap(s, a, b);
    s->most = cot_cocluster_token_prices(s->token_rank, s->price, least, p, s->gain);
    const double known = (double)s->excess[a * p->E + b] + expected - (s->most - before);
    s->excess[a * p->E + b] = s->excess[b * p->E + a] = (float)fmax(0, known);
    if (s->most > least) {
        put_prices(s);
    } else {
        swap(s, a, b);
        memcpy(s->price, s->kept, (size_t)p->D * sizeof *s->kept);
        s->most = before;
    }
}

double cot_anneal_sweep(cot_anneal *s, double temperature, int64_t iteration)
{
    const cot_cocluster *p = s->problem;
    const uint64_t seed = p->options.seed, stream = (uint64_t)iteration;
    const int64_t E = p->E;
    double loss = 0;
    int64_t looked = 0;
    for (int32_t k = 0; k < p->E; k++) {
        const uint64_t other = cot_random_bits(seed, stream, 3 * (uint64_t)k) % ((uint64_t)k + 1);
        s->order[k] = s->order[other];
        s->order[other] = k;
    }
    for (int32_t k = 0; k < p->E; k++) {
        const int32_t a = s->order[k];
        weigh(s, a);
        for (int32_t b = 0; b < p->E; b++) {
            if (s->rank[b] == s->rank[a]) {
                s->change[b] = -DBL_MAX;
                continue;
            }
            loss -= s->change[b];
            looked++;
            s->change[b] -= (double)s->excess[a * E + b];
        }
        const int32_t b = draw(s, a, temperature, cot_random_uniform(seed, stream, 3 * (uint64_t)k + 1));
        if (b != a)
            try_swap(s, a, b, s->change[b], temperature,
                     cot_random_uniform(seed, stream, 3 * (uint64_t)k + 2));
    }
    for (int64_t i = 0; i < E * E; i++) s->excess[i] *= memory;
    return looked ? loss / (double)looked : 0;
}
