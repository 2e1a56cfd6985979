/* The least peak that is found for a layer's slots: two packings, exchanged until no exchange helps, and the better one. */
#include "placement/methods.h"

#include "base/error.h"
#include "placement/sort.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A packing of its own: every expert's replicas on ranks that differ. */
typedef struct packing {
    cot_slots slots;
    int32_t *room;          // [S] slots that are left
    int32_t *order;         // [E]
    bool *taken;            // [S] by a replica of the expert at hand
    double *sum;            // [S + S * slots] as cot_slots_balance has it
    cot_sort_item *scratch; // [2 E]
    double *key;            // [E]
} packing;

static double share(const cot_slots *s, int32_t e)
{
    return s->load[e] / s->replicas[e];
}

/* No expert keeps more replicas than there are ranks as long as another can have one: the hottest of those. */
static void cap_replicas(cot_slots *s)
{
    for (int32_t e = 0; e < s->E; e++)
        while (s->replicas[e] > s->S) {
            int32_t hot = -1;
            for (int32_t f = 0; f < s->E; f++)
                if (s->replicas[f] < s->S &&
                    (hot < 0 || s->load[f] * (s->replicas[hot] + 1) > s->load[hot] * (s->replicas[f] + 1)))
                    hot = f;
            if (hot < 0) return;
            s->replicas[e]--;
            s->replicas[hot]++;
        }
}

/* The rank for a replica of expert e: of those without one, for an expert with several the one with most room, so that
 * the last ones find ranks that differ; else the least loaded. */
static int32_t seat_for(const packing *p, int32_t e)
{
    const bool several = p->slots.replicas[e] > 1;
    int32_t best = -1;
    for (int32_t r = 0; r < p->slots.S; r++) {
        if (!p->room[r]) continue;
        if (best < 0 || p->taken[r] != p->taken[best]) {
            if (best < 0 || p->taken[best]) best = r;
        } else if (several && p->room[r] != p->room[best]) {
            if (p->room[r] > p->room[best]) best = r;
        } else if (p->sum[r] < p->sum[best])
            best = r;
    }
    return best;
}

/* Experts with several replicas first, then all by falling share. */
static void pack(packing *p)
{
    cot_slots *s = &p->slots;
    cap_replicas(s);
    for (int32_t r = 0; r < s->S; r++) {
        p->room[r] = s->slots;
        p->sum[r] = 0;
    }
    for (int32_t e = 0; e < s->E; e++) p->key[e] = share(s, e);
    cot_sort_indices(p->order, p->key, s->E, true, p->scratch);
    for (int several = 1; several >= 0; several--)
        for (int32_t i = 0; i < s->E; i++) {
            const int32_t e = p->order[i];
            if ((s->replicas[e] > 1) != several) continue;
            memset(p->taken, 0, (size_t)s->S * sizeof *p->taken);
            for (int32_t k = 0; k < s->replicas[e]; k++) {
                const int32_t r = seat_for(p, e);
                s->expert[(size_t)r * (size_t)s->slots + (size_t)--p->room[r]] = e;
                p->taken[r] = true;
                p->sum[r] += share(s, e);
            }
        }
}

static double peak_of(const cot_slots *s)
{
    double peak = 0;
    for (int32_t r = 0; r < s->S; r++) {
        double sum = 0;
        for (int32_t i = 0; i < s->slots; i++)
            sum += share(s, s->expert[(size_t)r * (size_t)s->slots + (size_t)i]);
        peak = fmax(peak, sum);
    }
    return peak;
}

/* Whether a rank holds an expert twice; `at` [E] is scratch. */
static bool doubled(const cot_slots *s, int32_t *at)
{
    for (int32_t e = 0; e < s->E; e++) at[e] = -1;
    for (int32_t i = 0; i < s->S * s->slots; i++) {
        if (at[s->expert[i]] == i / s->slots) return true;
        at[s->expert[i]] = i / s->slots;
    }
    return false;
}

static bool open_packing(packing *p, const cot_slots *like)
{
    const size_t S = (size_t)like->S, E = (size_t)like->E, n = S * (size_t)like->slots;
    *p = (packing){.slots = *like};
    p->slots.expert = malloc((n + 2 * E + S) * sizeof *p->slots.expert);
    p->sum = malloc((S + n + E) * sizeof *p->sum);
    p->taken = malloc(S * sizeof *p->taken);
    p->scratch = malloc(2 * E * sizeof *p->scratch);
    if (!p->slots.expert || !p->sum || !p->taken || !p->scratch) return false;
    p->slots.replicas = p->slots.expert + n;
    p->order = p->slots.replicas + E;
    p->room = p->order + E;
    p->key = p->sum + S + n;
    memcpy(p->slots.replicas, like->replicas, E * sizeof *like->replicas);
    return true;
}

static void close_packing(packing *p)
{
    free(p->slots.expert);
    free(p->sum);
    free(p->taken);
    free(p->scratch);
}

cot_status cot_slots_least(cot_slots *slots, double *was, double *peak, cot_error *error)
{
    packing p;
    if (!open_packing(&p, slots)) {
        close_packing(&p);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the slots of a layer");
    }
    double mean = 0, most = 0;
    for (int32_t e = 0; e < slots->E; e++) {
        mean += slots->load[e] / slots->S;
        most = fmax(most, share(slots, e));
    }
    *was = peak_of(slots);
    cot_slots_balance(slots, p.sum);
    *peak = peak_of(slots);
    const bool twice = doubled(slots, p.order);
    if (twice || *peak > fmax(mean, most) * (1 + 1e-3)) {
        pack(&p);
        cot_slots_balance(&p.slots, p.sum);
        const double other = peak_of(&p.slots);
        // A slot that its rank fills with what it holds anyway is lost, and some formats cannot say it.
        const bool fewer = twice && other <= fmin(*was, 1.02 * *peak) && !doubled(&p.slots, p.order);
        if (other < *peak || fewer) {
            memcpy(slots->expert, p.slots.expert,
                   (size_t)slots->S * (size_t)slots->slots * sizeof *slots->expert);
            memcpy(slots->replicas, p.slots.replicas, (size_t)slots->E * sizeof *slots->replicas);
            *peak = other;
        }
    }
    close_packing(&p);
    return COT_OK;
}
