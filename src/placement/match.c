#include "placement/rounds.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>

/* Shortest augmenting paths with potentials, a row at a time (Jonker and Volgenant 1987). */
cot_status cot_match(int32_t *match, const double *cost, int32_t n, cot_error *error)
{
    size_t N = (size_t)n;
    double *u = calloc(3 * N, sizeof *u), *v = u + N, *least = v + N;
    int32_t *row = malloc(2 * N * sizeof *row), *from = row + N;
    bool *done = malloc(N * sizeof *done);
    bool good = u && row && done;
    for (int32_t k = 0; good && k < n; k++) row[k] = -1;
    for (int32_t i = 0; good && i < n; i++) {
        int32_t r = i, column = -1;
        for (int32_t k = 0; k < n; k++) {
            least[k] = INFINITY;
            done[k] = false;
        }
        do {
            double step = INFINITY;
            int32_t next = -1;
            for (int32_t k = 0; k < n; k++) {
                if (done[k]) continue;
                double here = cost[(size_t)r * N + (size_t)k] - u[r] - v[k];
                if (here < least[k]) {
                    least[k] = here;
                    from[k] = column;
                }
                if (least[k] < step) step = least[next = k];
            }
            u[i] += step;
            for (int32_t k = 0; k < n; k++) {
                if (done[k]) {
                    u[row[k]] += step;
                    v[k] -= step;
                } else
                    least[k] -= step;
            }
            column = next;
            done[column] = true;
            r = row[column];
        } while (r >= 0);
        for (int32_t before; column >= 0; column = before) {
            before = from[column];
            row[column] = before >= 0 ? row[before] : i;
        }
    }
    for (int32_t k = 0; good && k < n; k++) match[row[k]] = k;
    free(u);
    free(row);
    free(done);
    return good ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a matching of %d", n);
}
