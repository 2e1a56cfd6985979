/* The load of a rank's experts: its smallest peak, and groups brought below a limit. */
#include "cocluster/solver.h"

#include "base/rng.h"

#include <math.h>
#include <string.h>

enum { MAX_RANKS = COT_TRACE_MAX_RANKS, PACK_KICKS = 64 };

/* Loads are whole, and so are sums of them; the limit need not be. */
static double over(const cot_cocluster *p, double load)
{
    return load > p->expert_limit ? load - p->expert_limit : 0;
}

static double add_up(double *load, const cot_cocluster *p, const int32_t *expert_rank)
{
    double peak = 0;
    for (int32_t d = 0; d < p->D; d++) load[d] = 0;
    for (int32_t e = 0; e < p->E; e++) load[expert_rank[e]] += (double)p->expert_load[e];
    for (int32_t d = 0; d < p->D; d++) peak = fmax(peak, load[d]);
    return peak;
}

bool cot_cocluster_is_within(const cot_cocluster *p, const int32_t *expert_rank)
{
    double load[MAX_RANKS];
    return add_up(load, p, expert_rank) <= p->expert_limit;
}

void cot_cocluster_mend(int32_t *expert_rank, const cot_cocluster *p, const double *worth)
{
    double load[MAX_RANKS];
    const int64_t D = p->D;
    while (add_up(load, p, expert_rank) >
           p->expert_limit) { // each swap lessens the excess of all ranks together
        int32_t x = -1, y = -1;
        double least = 0;
        for (int32_t a = 0; a < p->E; a++) {
            const int32_t r = expert_rank[a];
            if (load[r] <= p->expert_limit) continue;
            for (int32_t b = 0; b < p->E; b++) {
                const int32_t s = expert_rank[b];
                const double shift = (double)p->expert_load[a] - (double)p->expert_load[b];
                if (r == s || shift <= 0) continue;
                const double mended =
                    over(p, load[r]) + over(p, load[s]) - over(p, load[r] - shift) - over(p, load[s] + shift);
                if (mended <= 0) continue;
                const double loss = worth[a * D + r] + worth[b * D + s] - worth[a * D + s] - worth[b * D + r];
                const double rate = loss > 0 ? loss / mended : loss * mended;
                if (x >= 0 && rate >= least) continue;
                x = a;
                y = b;
                least = rate;
            }
        }
        if (x < 0) { // no swap helps
            memcpy(expert_rank, p->packed, (size_t)p->E * sizeof *expert_rank);
            return;
        }
        const int32_t r = expert_rank[x];
        expert_rank[x] = expert_rank[y];
        expert_rank[y] = r;
    }
}

/* Swaps with the peak rank, as long as one lessens the larger of both loads. */
static double flatten(int32_t *expert_rank, const cot_cocluster *p)
{
    double load[MAX_RANKS];
    for (;;) {
        const double peak = add_up(load, p, expert_rank);
        double least = peak;
        int32_t x = -1, y = -1;
        for (int32_t a = 0; a < p->E; a++) {
            if (load[expert_rank[a]] < peak) continue;
            for (int32_t b = 0; b < p->E; b++) {
                if (expert_rank[a] == expert_rank[b]) continue;
                const double shift = (double)p->expert_load[a] - (double)p->expert_load[b];
                const double after = fmax(load[expert_rank[a]] - shift, load[expert_rank[b]] + shift);
                if (after >= least) continue;
                least = after;
                x = a;
                y = b;
            }
        }
        if (x < 0) return peak;
        const int32_t r = expert_rank[x];
        expert_rank[x] = expert_rank[y];
        expert_rank[y] = r;
    }
}

/* Falling order of load. */
static void sort_experts(int32_t *order, const cot_cocluster *p)
{
    for (int32_t e = 0; e < p->E; e++) {
        int32_t k = e;
        for (; k && p->expert_load[order[k - 1]] < p->expert_load[e]; k--) order[k] = order[k - 1];
        order[k] = e;
    }
}

double cot_cocluster_pack(int32_t *expert_rank, const cot_cocluster *p)
{
    double load[MAX_RANKS] = {0};
    int32_t held[MAX_RANKS] = {0}, *order = p->trial, *trial = p->trial + p->E;
    sort_experts(order, p);
    for (int32_t k = 0; k < p->E; k++) { // heaviest first to the emptiest rank with a place left
        int32_t to = -1;
        for (int32_t d = 0; d < p->D; d++)
            if (held[d] < p->size[d] && (to < 0 || load[d] < load[to])) to = d;
        expert_rank[order[k]] = to;
        load[to] += (double)p->expert_load[order[k]];
        held[to]++;
    }
    double best = flatten(expert_rank, p);
    const double bound = cot_cocluster_peak_bound(p);
    for (uint64_t kick = 0; kick < PACK_KICKS && best > bound; kick++) {
        memcpy(trial, expert_rank, (size_t)p->E * sizeof *trial);
        for (uint64_t j = 0; j < 3; j++) {
            const uint64_t bits = cot_random_bits(p->options.seed, 0x7061636b, kick * 3 + j);
            const int32_t a = (int32_t)(bits % (uint64_t)p->E), b = (int32_t)((bits >> 32) % (uint64_t)p->E);
            const int32_t r = trial[a];
            trial[a] = trial[b];
            trial[b] = r;
        }
        const double peak = flatten(trial, p);
        if (peak > best) continue;
        best = peak;
        memcpy(expert_rank, trial, (size_t)p->E * sizeof *trial);
    }
    return best;
}

/* Among the j D + 1 heaviest some rank has j + 1; and the i heaviest either share a rank or sit on i ranks. Either way
 * what else these ranks hold is not less than as many of the lightest. */
double cot_cocluster_peak_bound(const cot_cocluster *p)
{
    int32_t *order = p->trial;
    const int32_t least_size = p->E / p->D;
    double bound = ceil((double)p->total / p->D), lightest = 0, heaviest = 0;
    sort_experts(order, p);
    for (int32_t j = least_size - 1; j >= 0; j--) { // lightest: sum of the least_size - 1 - j lightest
        double sum = lightest;
        for (int32_t k = j * p->D - j; k <= j * p->D; k++) sum += (double)p->expert_load[order[k]];
        bound = fmax(bound, sum);
        lightest += (double)p->expert_load[order[p->E - (least_size - j)]];
    }
    double pair_rest = 0; // of two experts that share a rank
    for (int32_t k = 0; k < least_size - 2; k++) pair_rest += (double)p->expert_load[order[p->E - 1 - k]];
    lightest = 0;
    for (int32_t i = 1; i <= p->D; i++) {
        for (int32_t k = (i - 1) * (least_size - 1); k < i * (least_size - 1); k++)
            lightest += (double)p->expert_load[order[p->E - 1 - k]];
        heaviest += (double)p->expert_load[order[i - 1]];
        const double apart = ceil((heaviest + lightest) / i);
        double together = INFINITY;
        if (i > 1)
            together = (double)(p->expert_load[order[i - 2]] + p->expert_load[order[i - 1]]) + pair_rest;
        bound = fmax(bound, fmin(apart, together));
    }
    return bound;
}
