/* Exchanges of slots that lower the cost of a layer whose replicas share evenly: what a slot costs on a rank is then a
 * number of its own, wherever the other replicas are. Slot after slot, the exchange that saves most within the limit. */
#include "placement/methods.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>

typedef struct drawing {
    cot_slots *s;
    double limit;
    double *unit; // [E][S] what a replica of an expert costs on a rank
    double *sum;  // [S] loads
    double *each; // [E] load of a replica
    double *lure; // [S][S] the most that a slot of one rank saves by going to another
} drawing;

static bool holds(const cot_slots *s, int32_t rank, int32_t e)
{
    const int32_t *slot = s->expert + (size_t)rank * (size_t)s->slots;
    for (int32_t i = 0; s->replicas[e] > 1 && i < s->slots; i++)
        if (slot[i] == e) return true;
    return false;
}

static void find_lure(drawing *d, int32_t rank)
{
    const size_t S = (size_t)d->s->S, k = (size_t)d->s->slots;
    double *lure = d->lure + (size_t)rank * S;
    for (size_t r = 0; r < S; r++) lure[r] = -INFINITY;
    for (size_t i = 0; i < k; i++) {
        const double *unit = d->unit + (size_t)d->s->expert[(size_t)rank * k + i] * S, here = unit[rank];
        for (size_t r = 0; r < S; r++) lure[r] = here - unit[r] > lure[r] ? here - unit[r] : lure[r];
    }
}

/* Whether ranks a and b stay within the limit, or do not grow, when a's load goes down by `less` and b's up. */
static bool fits(const drawing *d, int32_t a, int32_t b, double less)
{
    const double tiny = 1e-12 * d->limit;
    return (less <= tiny || d->sum[b] + less <= d->limit) && (less >= -tiny || d->sum[a] - less <= d->limit);
}

/* The slot whose exchange with slot x of rank a saves most, more than `*saved`, which grows to that; -1: none does. */
static int32_t best_partner(const drawing *d, int32_t x, int32_t a, double *saved)
{
    const cot_slots *s = d->s;
    const size_t S = (size_t)s->S;
    const int32_t e = s->expert[x];
    const double *unit = d->unit + (size_t)e * S;
    int32_t best = -1;
    for (int32_t b = 0; b < s->S; b++) {
        const double out = unit[a] - unit[b];
        if (b == a || out + d->lure[(size_t)b * S + (size_t)a] <= *saved || holds(s, b, e)) continue;
        for (int32_t y = b * s->slots; y < (b + 1) * s->slots; y++) {
            const int32_t f = s->expert[y];
            const double *other = d->unit + (size_t)f * S, all = out + other[b] - other[a];
            if (all <= *saved || !fits(d, a, b, d->each[e] - d->each[f]) || holds(s, a, f)) continue;
            *saved = all;
            best = y;
        }
    }
    return best;
}

/* An exchange for each slot that some exchange saves more than `least` for; returns what all saved. */
static double sweep(drawing *d, double least)
{
    cot_slots *s = d->s;
    double sum = 0;
    for (int32_t x = 0; x < s->S * s->slots; x++) {
        const int32_t a = x / s->slots, e = s->expert[x];
        double saved = least;
        const int32_t y = best_partner(d, x, a, &saved);
        if (y < 0) continue;
        const int32_t b = y / s->slots, f = s->expert[y];
        const double less = d->each[e] - d->each[f];
        d->sum[a] -= less;
        d->sum[b] += less;
        s->expert[x] = f;
        s->expert[y] = e;
        find_lure(d, a);
        find_lure(d, b);
        sum += saved;
    }
    return sum;
}

cot_status cot_slots_draw(cot_slots *slots, const cot_costs *costs, int32_t l, double limit, cot_error *error)
{
    enum { MOST_SWEEPS = 32 };
    const size_t S = (size_t)slots->S, E = (size_t)slots->E, n = S * (size_t)slots->slots;
    if (costs->indifferent) return COT_OK;
    double *memory = calloc(E * S + S + S * S + E, sizeof *memory);
    if (!memory) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the slots of a layer");
    drawing d = {.s = slots,
                 .limit = limit,
                 .unit = memory,
                 .sum = memory + E * S,
                 .lure = memory + E * S + S,
                 .each = memory + E * S + S + S * S};
    double cost = 0;
    for (size_t e = 0; e < E; e++) {
        d.each[e] = slots->load[e] / slots->replicas[e];
        for (size_t r = 0; r < S; r++)
            d.unit[e * S + r] = costs->pair ? costs->pair[((size_t)l * E + e) * S + r] / slots->replicas[e]
                                            : costs->cost[(size_t)l * S + r] * d.each[e];
    }
    for (size_t i = 0; i < n; i++) {
        const int32_t e = slots->expert[i];
        d.sum[i / (size_t)slots->slots] += d.each[e];
        cost += d.unit[(size_t)e * S + i / (size_t)slots->slots];
    }
    for (int32_t r = 0; r < slots->S; r++) find_lure(&d, r);
    for (int i = 0; i < MOST_SWEEPS; i++)
        if (sweep(&d, 1e-9 * cost / (double)n) <= 3e-3 * cost) break;
    free(memory);
    return COT_OK;
}
