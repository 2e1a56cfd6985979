#include "schedule/overlap.h"

#include <math.h>
#include <string.h>

static const float sure = 0.98f; // at most, of what is a guess
/* Where none of those looked at adds more experts than this, in all layers together, the next are taken as they come: one, and as long as
 * that stays so twice as many each time, up to the most. */
static const double little = 0.125;
static const int64_t most_unseen = 64;

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

/* By insertion: from one step to the next hardly any change places. */
void cot_overlap_order(int32_t *order, const cot_overlap_sequence *sequences, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const int64_t waited = sequences[i].waited;
        int64_t low = 0, high = i; // of those before it that waited as long or longer
        if (i && sequences[order[i - 1]].waited >= waited) low = i;
        while (low < high) {
            const int64_t middle = low + (high - low) / 2;
            if (sequences[order[middle]].waited >= waited)
                low = middle + 1;
            else
                high = middle;
        }
        memmove(order + low + 1, order + low, (size_t)(i - low) * sizeof *order);
        order[low] = (int32_t)i;
    }
}

/* Which of the `count` first ones adds least, and what any of them adds at most; none behind one of which nothing is known. */
static int64_t least_added(double *most, const int32_t *order, const cot_overlap_sequence *sequences,
                           int64_t count, const float *missing, int64_t cells)
{
    int64_t found = 0;
    double least = 0;
    *most = 0;
    for (int64_t i = 0; i < count && sequences[order[i]].share; i++) {
        const double added = cot_overlap_added(missing, sequences[order[i]].share, cells);
        if (added > *most) *most = added;
        if (i && added >= least) continue;
        found = i;
        least = added;
    }
    return found;
}

void cot_overlap_choose(int32_t *order, const cot_overlap_sequence *sequences, int64_t count, int64_t batch,
                        int64_t max_wait, float *missing, int64_t cells)
{
    if (!batch || batch >= count || !cells) return; // all, or those that waited longest
    const int64_t affordable = COT_OVERLAP_WORK / (batch * cells),
                  window = affordable > COT_OVERLAP_LOOKED_AT ? affordable : COT_OVERLAP_LOOKED_AT;
    cot_overlap_clear(missing, cells);
    for (int64_t n = 0, unseen = 0, pause = 1; n < batch; n++, order++, count--) {
        int64_t next = 0;
        double most;
        if (unseen > 0)
            unseen--;
        else if (n && sequences[*order].waited < max_wait) {
            next = least_added(&most, order, sequences, count < window ? count : window, missing, cells);
            unseen = most < little ? pause : 0;
            pause = !unseen ? 1 : pause < most_unseen ? 2 * pause : pause;
        }
        const int32_t taken = order[next];
        memmove(order + 1, order, (size_t)next * sizeof *order);
        *order = taken;
        if (sequences[taken].share)
            cot_overlap_take(missing, sequences[taken].share, cells);
        else { // nobody behind it was looked at
            unseen = 0;
            pause = 1;
        }
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
