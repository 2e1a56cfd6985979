#include "route/fit.h"

#include <math.h>

static const double KEEP = 1 - 1.0 / 128; // of what came before
static const double LEAST_SUM = 1e-100;
static const double MOST = 1e12;           // steps, tokens or requests in one observation
static const double MOST_STEP_NS = 3600e9; // an hour
static const double DEPENDENT =
    1e-9; // parts of which so little is left beside the others cannot be told apart

/* What was seen of a part keeps its share of all that is known of it however long none of it comes, so that a day without prompts leaves
 * what they cost; but numbers end. */
static bool is_kept(const cot_route_fit *s, const double *x, int part)
{
    return !(x[part] > 0) && s->xx[part][part] < LEAST_SUM;
}

/* Numbers that nothing is learnt from: of no steps, below 0, none at all, or beyond what a target can do, which no later ones would outweigh.
 */
static bool is_plausible(const cot_route_work *work)
{
    return work->steps > 0 && work->steps <= MOST && work->prompt_tokens >= 0 &&
           work->prompt_tokens <= MOST && work->requests >= 0 && work->requests <= MOST &&
           work->experts >= 0 && work->experts <= MOST && work->ns >= 0 &&
           work->ns <= MOST_STEP_NS * work->steps;
}

void cot_route_fit_add(cot_route_fit *s, const cot_route_work *work)
{
    if (!is_plausible(work)) return;
    const double x[] = {work->steps, work->prompt_tokens, work->requests, work->experts}, y = work->ns;
    const double weight = 1 / work->steps; // what many steps took together scatters as much more
    bool kept[COT_ROUTE_PARTS];
    for (int i = 0; i < COT_ROUTE_PARTS; i++) kept[i] = is_kept(s, x, i);
    for (int i = 0; i < COT_ROUTE_PARTS; i++) {
        for (int k = 0; k < COT_ROUTE_PARTS; k++)
            s->xx[i][k] = (kept[i] || kept[k] ? 1 : KEEP) * s->xx[i][k] + weight * x[i] * x[k];
        s->xy[i] = (kept[i] ? 1 : KEEP) * s->xy[i] + weight * x[i] * y;
    }
    s->yy = KEEP * s->yy + weight * y * y;
}

/* Least squares of the parts in `set`, the others 0, by Gauss and Jordan without pivoting: sums of squares need none. False: they cannot
 * be told apart. */
static bool solve(const cot_route_fit *s, unsigned set, double ns[COT_ROUTE_PARTS])
{
    double a[COT_ROUTE_PARTS][COT_ROUTE_PARTS + 1];
    for (int i = 0; i < COT_ROUTE_PARTS; i++) {
        for (int k = 0; k < COT_ROUTE_PARTS; k++)
            a[i][k] = set >> i & set >> k & 1 ? s->xx[i][k] : (double)(i == k);
        a[i][COT_ROUTE_PARTS] = set >> i & 1 ? s->xy[i] : 0;
    }
    for (int i = 0; i < COT_ROUTE_PARTS; i++) {
        if (set >> i & 1 && !(a[i][i] > DEPENDENT * s->xx[i][i])) return false;
        for (int row = 0; row < COT_ROUTE_PARTS; row++) {
            const double by = a[row][i] / a[i][i];
            for (int k = i; row != i && k <= COT_ROUTE_PARTS; k++) a[row][k] -= by * a[i][k];
        }
    }
    for (int i = 0; i < COT_ROUTE_PARTS; i++) ns[i] = a[i][COT_ROUTE_PARTS] / a[i][i];
    return true;
}

static double error_of(const cot_route_fit *s, const double ns[COT_ROUTE_PARTS])
{
    double error = s->yy;
    for (int i = 0; i < COT_ROUTE_PARTS; i++) {
        error -= 2 * ns[i] * s->xy[i];
        for (int k = 0; k < COT_ROUTE_PARTS; k++) error += ns[i] * ns[k] * s->xx[i][k];
    }
    return error;
}

bool cot_route_fit_solve(const cot_route_fit *s, bool by_experts, double ns[COT_ROUTE_PARTS])
{
    // The best of all sets of parts in which none is below 0; where two are as good the larger one, then the one without experts, then
    // the one without a step.
    static const unsigned sets[] = {15, 7, 14, 13, 11, 6, 5, 3, 12, 10, 9, 4, 2, 1, 8};
    double least = HUGE_VAL;
    for (unsigned i = 0; i < sizeof sets / sizeof *sets; i++) {
        double some[COT_ROUTE_PARTS];
        bool good = (by_experts || sets[i] < 8) && solve(s, sets[i], some);
        for (int k = 0; good && k < COT_ROUTE_PARTS; k++) good = some[k] >= 0;
        if (!good) continue;
        const double error = error_of(s, some);
        if (!(error < least - DEPENDENT * s->yy)) continue;
        least = error;
        for (int k = 0; k < COT_ROUTE_PARTS; k++) ns[k] = some[k];
    }
    return least < HUGE_VAL;
}
