#include "placement/methods.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>

/* What one replica of the slot's expert carries; an empty slot nothing. */
static double weight(const cot_slots *s, int32_t expert)
{
    return expert < 0 ? 0 : s->load[expert] / s->replicas[expert];
}

static bool holds(const cot_slots *s, int32_t rank, int32_t expert)
{
    const int32_t *slot = s->expert + (size_t)rank * (size_t)s->slots;
    for (int32_t i = 0; i < s->slots; i++)
        if (slot[i] == expert) return true;
    return false;
}

/* The slots of ranks a and b whose exchange leaves the lower peak of the two; false when none lowers a's load. */
static bool best_exchange(const cot_slots *s, const double *sum, int32_t a, int32_t b, double *peak,
                          int32_t *i, int32_t *k)
{
    const int32_t *x = s->expert + (size_t)a * (size_t)s->slots,
                  *y = s->expert + (size_t)b * (size_t)s->slots;
    const double *v = sum + s->S + (size_t)a * (size_t)s->slots,
                 *w = sum + s->S + (size_t)b * (size_t)s->slots;
    bool found = false;
    for (int32_t p = 0; p < s->slots; p++) {
        if (x[p] < 0 || sum[b] + v[p] <= sum[b]) continue;
        for (int32_t q = 0; q < s->slots; q++) {
            double less = v[p] - w[q], left = sum[a] - less, right = sum[b] + less,
                   after = left > right ? left : right;
            if (after >= *peak || less <= 0 || y[q] < 0) continue; // empty slots stay: ranks have capacities
            if (s->replicas[x[p]] > 1 && holds(s, b, x[p])) continue;
            if (s->replicas[y[q]] > 1 && holds(s, a, y[q])) continue;
            *peak = after;
            *i = p;
            *k = q;
            found = true;
        }
    }
    return found;
}

void cot_slots_balance(cot_slots *s, double *sum)
{
    double total = 0, least = 0, *each = sum + s->S;
    for (int32_t r = 0; r < s->S; r++) {
        sum[r] = 0;
        for (int32_t i = 0; i < s->slots; i++) {
            double w = weight(s, s->expert[(size_t)r * (size_t)s->slots + (size_t)i]);
            each[(size_t)r * (size_t)s->slots + (size_t)i] = w;
            sum[r] += w;
            least = fmax(least, w);
        }
        total += sum[r];
    }
    least = fmax(least, total / s->S) * (1 + 1e-4);
    for (int64_t steps = 0; steps < 64 * (int64_t)s->S; steps++) {
        int32_t peak = 0, other = -1, i = 0, k = 0;
        for (int32_t r = 1; r < s->S; r++)
            if (sum[r] > sum[peak]) peak = r;
        if (sum[peak] <= least) return;
        double after = sum[peak] * (1 - 1e-12);
        for (int32_t r = 0; r < s->S; r++)
            if (r != peak && sum[r] < sum[peak] && best_exchange(s, sum, peak, r, &after, &i, &k)) other = r;
        if (other < 0) return;
        size_t x = (size_t)peak * (size_t)s->slots + (size_t)i,
               y = (size_t)other * (size_t)s->slots + (size_t)k;
        int32_t moved = s->expert[x];
        double light = each[y];
        s->expert[x] = s->expert[y];
        s->expert[y] = moved;
        sum[peak] += light - each[x];
        sum[other] += each[x] - light;
        each[y] = each[x];
        each[x] = light;
    }
}
