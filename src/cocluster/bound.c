#include "cocluster/solver.h"

/* Sum of the `k` largest of `x` [n], which is left in another order (quickselect; the middle of three as pivot). */
static uint64_t sum_largest(uint32_t *x, int64_t n, int64_t k)
{
    uint64_t sum = 0;
    int64_t from = 0, to = n; // what is before `from` is among the largest
    while (to - from > 1 && from < k && k < to) {
        const uint32_t a = x[from], b = x[from + (to - from) / 2], c = x[to - 1];
        const uint32_t pivot = a < b ? (b < c ? b : a < c ? c : a) : (a < c ? a : b < c ? c : b);
        int64_t i = from, j = to - 1;
        while (i <= j) {
            while (x[i] > pivot) i++;
            while (x[j] < pivot) j--;
            if (i > j) break;
            const uint32_t t = x[i];
            x[i++] = x[j];
            x[j--] = t;
        }
        if (k <= j) {
            to = j + 1;
        } else if (k >= i) {
            from = i;
        } else {
            break; // between them all are the pivot
        }
    }
    for (int64_t i = 0; i < k && i < n; i++) sum += x[i];
    return sum;
}

/* A rank has no more experts than the largest: a token's local activations are at most those of as many experts that
 * it called most. Limits on load are left aside. */
double cot_cocluster_bound(const cot_cocluster *p)
{
    const cot_affinity *a = &p->affinity;
    uint32_t *count = (uint32_t *)p->trial;
    uint64_t local = 0;
    double bonus = 0;
    for (int64_t i = 0; i < p->N; i++) {
        const int64_t n = a->offsets[i + 1] - a->offsets[i];
        for (int64_t k = 0; k < n; k++) count[k] = a->count[a->offsets[i] + k];
        local += sum_largest(count, n, p->size[0]);
        float most = 0;
        for (int32_t d = 0; p->options.bonus && d < p->D; d++)
            most = p->options.bonus[i * p->D + d] > most ? p->options.bonus[i * p->D + d] : most;
        bonus += (double)most;
    }
    return (double)local + bonus;
}
