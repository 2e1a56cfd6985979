/* Placements within a limit of load on given seats. */
#include "placement/limited.h"

#include "base/error.h"
#include "placement/methods.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Experts of a layer, the hottest first, each to the seat of least load. The seats are those the trial took. */
static void spread_evenly(cot_limited *w, int32_t *rank, int32_t l)
{
    const cot_problem *p = w->p;
    memset(w->held, 0, (size_t)p->S * sizeof *w->held);
    for (int32_t e = 0; e < p->E; e++) w->held[w->trial.rank[(size_t)l * (size_t)p->E + (size_t)e]]++;
    for (int32_t s = 0; s < p->S; s++) w->sum[s] = 0;
    cot_sort_indices(w->order, p->load + (size_t)l * (size_t)p->E, p->E, true, w->scratch);
    for (int32_t i = 0; i < p->E; i++) {
        int32_t best = -1;
        for (int32_t s = 0; s < p->S; s++)
            if (w->held[s] && (best < 0 || w->sum[s] < w->sum[best] ||
                               (w->sum[s] == w->sum[best] && w->held[s] > w->held[best])))
                best = s;
        rank[w->order[i]] = best;
        w->held[best]--;
        w->sum[best] += cot_limited_load(p, l, w->order[i]);
    }
}

/* Exchanges that lower the peak, which is returned in `*peak`. */
static cot_status balance(cot_limited *w, int32_t *rank, int32_t l, double *peak, cot_error *error)
{
    const cot_problem *p = w->p;
    int32_t slots = 0;
    for (int32_t s = 0; s < p->S; s++) w->held[s] = 0;
    for (int32_t e = 0; e < p->E; e++)
        if (++w->held[rank[e]] > slots) slots = w->held[rank[e]];
    size_t n = (size_t)p->S * (size_t)slots;
    int32_t *expert = malloc((n + (size_t)p->E) * sizeof *expert), *one = expert + n;
    double *sum = malloc(((size_t)p->S + n) * sizeof *sum);
    if (!expert || !sum) {
        free(sum);
        free(expert);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a layer's slots");
    }
    for (size_t i = 0; i < n; i++) expert[i] = -1;
    for (int32_t e = 0; e < p->E; e++) {
        one[e] = 1;
        expert[(size_t)rank[e] * (size_t)slots + (size_t)--w->held[rank[e]]] = e;
    }
    cot_slots layer = {p->S, p->E, slots, expert, p->load + (size_t)l * (size_t)p->E, one};
    cot_slots_balance(&layer, sum);
    *peak = 0;
    for (int32_t s = 0; s < p->S; s++) *peak = fmax(*peak, sum[s]);
    for (size_t i = 0; i < n; i++)
        if (expert[i] >= 0) rank[expert[i]] = (int32_t)(i / (size_t)slots);
    free(sum);
    free(expert);
    return COT_OK;
}

/* What an expert changes to: another rank with room (with -1), or the rank of another expert that comes in its place. */
typedef struct change {
    int32_t expert, with, to;
    double saved;
} change;

/* What counts as saved is far above what rounding adds to `saved`, the sum and difference of at most four costs that add up to
 * `all`: so the exact cost of the layer falls with every change, no placement comes twice, and drawing near ends. */
static void consider(change *best, int32_t expert, int32_t with, int32_t to, double saved, double all)
{
    if (saved > best->saved * (1 + 1e-9) + 1e-12 * all) *best = (change){expert, with, to, saved};
}

/* The change of an expert of rank a that saves the most within limit and capacities; expert -1 when none saves. */
static change best_saving(const cot_limited *w, const int32_t *rank, int32_t l, int32_t a)
{
    const cot_problem *p = w->p;
    change best = {-1, -1, -1, 0};
    for (int32_t i = 0; i < p->E; i++) {
        if (rank[i] != a) continue;
        const double wi = cot_limited_load(p, l, i), here = cot_problem_cost(p, l, i, a);
        for (int32_t b = 0; b < p->S; b++) {
            if (b == a || w->held[b] >= p->c_layer[b] || w->used[b] >= p->c_exp[b] ||
                w->sum[b] + wi > w->most[l])
                continue;
            const double there = cot_problem_cost(p, l, i, b);
            consider(&best, i, -1, b, here - there, here + there);
        }
        for (int32_t k = 0; k < p->E; k++) {
            const int32_t b = rank[k];
            const double more = cot_limited_load(p, l, k) - wi;
            if (b == a || w->sum[a] + more > w->most[l] || w->sum[b] - more > w->most[l]) continue;
            const double there = cot_problem_cost(p, l, i, b), before = cot_problem_cost(p, l, k, b),
                         after = cot_problem_cost(p, l, k, a);
            consider(&best, i, k, b, here - there + before - after, here + there + before + after);
        }
    }
    return best;
}

static void make(cot_limited *w, int32_t *rank, int32_t l, int32_t a, const change *c)
{
    double less = cot_limited_load(w->p, l, c->expert);
    rank[c->expert] = c->to;
    if (c->with >= 0) {
        less -= cot_limited_load(w->p, l, c->with);
        rank[c->with] = a;
    } else {
        w->held[a]--;
        w->used[a]--;
        w->held[c->to]++;
        w->used[c->to]++;
    }
    w->sum[a] -= less;
    w->sum[c->to] += less;
}

static void draw_near(cot_limited *w, int32_t *rank, int32_t l)
{
    const cot_problem *p = w->p;
    for (int32_t s = 0; s < p->S; s++) w->sum[s] = w->held[s] = 0;
    for (int32_t e = 0; e < p->E; e++) {
        w->sum[rank[e]] += cot_limited_load(p, l, e);
        w->held[rank[e]]++;
    }
    bool changed = true;
    for (int round = 0; changed && round < 50; round++) {
        changed = false;
        for (int32_t a = 0; a < p->S; a++)
            for (change c; (c = best_saving(w, rank, l, a)).expert >= 0; changed = true)
                make(w, rank, l, a, &c);
    }
}

void cot_limited_draw_near(cot_limited *w)
{
    const cot_problem *p = w->p;
    for (int32_t s = 0; s < p->S; s++) w->used[s] = 0;
    for (size_t i = 0; i < (size_t)p->L * (size_t)p->E; i++) w->used[w->rank[i]]++;
    for (int32_t l = 0; l < p->L; l++) draw_near(w, w->rank + (size_t)l * (size_t)p->E, l);
}

cot_status cot_limited_seat(cot_limited *w, double *peak, int32_t *layer, cot_error *error)
{
    const cot_problem *p = w->p;
    *peak = 0;
    *layer = 0;
    for (int32_t s = 0; s < p->S; s++) w->used[s] = 0;
    for (size_t i = 0; i < (size_t)p->L * (size_t)p->E; i++) w->used[w->trial.rank[i]]++;
    for (int32_t l = 0; l < p->L; l++) {
        int32_t *rank = w->rank + (size_t)l * (size_t)p->E;
        double here = 0;
        spread_evenly(w, rank, l);
        cot_status status = balance(w, rank, l, &here, error);
        if (status != COT_OK) return status;
        if (here > w->most[l] * *peak) {
            *peak = here / w->most[l];
            *layer = l;
        }
        if (here <= w->most[l]) draw_near(w, rank, l);
    }
    return COT_OK;
}
