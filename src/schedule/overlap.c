#include "schedule/overlap.h"

#include <math.h>

static const float sure = 0.98f; // at most, of what is a guess

void cot_overlap_clear(float *missing, int64_t cells)
{
    for (int64_t i = 0; i < cells; i++) missing[i] = 1;
}

double cot_overlap_added(const float *missing, const uint8_t *share, int64_t cells)
{
    enum { LANES = 8 };
    float sum[LANES] = {0}, rest = 0;
    int64_t i = 0;
    for (; i + LANES <= cells; i += LANES)
        for (int lane = 0; lane < LANES; lane++) sum[lane] += missing[i + lane] * (float)share[i + lane];
    for (; i < cells; i++) rest += missing[i] * (float)share[i];
    for (int lane = 0; lane < LANES; lane++) rest += sum[lane];
    return (double)rest / UINT8_MAX;
}

void cot_overlap_take(float *missing, const uint8_t *share, int64_t cells)
{
    for (int64_t i = 0; i < cells; i++) missing[i] *= (float)(UINT8_MAX - share[i]) / UINT8_MAX;
}

static float odds(float probability)
{
    const float least = 1e-3f, p = fminf(fmaxf(probability, least), 1 - least);
    return p / (1 - p);
}

void cot_overlap_expect(uint8_t *share, const float *history, const float *token, const float *mean,
                        int64_t experts, int64_t chosen)
{
    float all = 0;
    for (int64_t e = 0; e < experts; e++) {
        const float both = odds(history[e]) * odds(token[e]) / odds(mean[e]);
        all += both / (1 + both);
    }
    for (int64_t e = 0; e < experts; e++) {
        const float both = odds(history[e]) * odds(token[e]) / odds(mean[e]),
                    part = both / (1 + both) * (float)chosen / all;
        share[e] = (uint8_t)lrintf(fminf(part, sure) * UINT8_MAX);
    }
}

/* ---- steps ---- */

/* The one that waited longest of those that are left, at least so many steps; -1: none has. */
static int64_t longest_waiting(const cot_overlap_sequence *sequences, int64_t count, int64_t least)
{
    int64_t found = -1;
    for (int64_t i = 0; i < count; i++)
        if (!sequences[i].taken && sequences[i].waited >= least &&
            (found < 0 || sequences[i].waited > sequences[found].waited))
            found = i;
    return found;
}

static int64_t least_added(const cot_overlap_sequence *sequences, int64_t count, const float *missing,
                           int64_t cells)
{
    int64_t found = -1;
    double least = 0;
    for (int64_t i = 0; i < count; i++) {
        if (sequences[i].taken) continue;
        const double added = cot_overlap_added(missing, sequences[i].share, cells);
        if (found < 0 || added < least) {
            found = i;
            least = added;
        }
    }
    return found;
}

void cot_overlap_choose(cot_overlap_sequence *sequences, int64_t count, int64_t batch, int64_t max_wait,
                        float *missing, int64_t cells)
{
    cot_overlap_clear(missing, cells);
    for (int64_t i = 0; i < count; i++) sequences[i].taken = false;
    for (int64_t n = 0; n < batch && n < count; n++) {
        int64_t next = longest_waiting(sequences, count, n ? max_wait : 0);
        if (next < 0) next = least_added(sequences, count, missing, cells);
        sequences[next].taken = true;
        cot_overlap_take(missing, sequences[next].share, cells);
    }
}

/* ---- admission ---- */

int64_t cot_overlap_admit(const cot_overlap_waiting *waiting, int64_t count, const float *missing,
                          int64_t cells)
{
    int64_t found = 0;
    double least = 0;
    for (int64_t i = 0; i < count && i < COT_OVERLAP_WINDOW; i++) {
        const cot_overlap_waiting *w = &waiting[i];
        if (w->share) {
            const double added = cot_overlap_added(missing, w->share, cells);
            if (i == 0 || added < least) {
                found = i;
                least = added;
            }
        }
        if (w->first || !w->share || w->overtaken >= COT_OVERLAP_OVERTAKEN) return found;
    }
    return found;
}
