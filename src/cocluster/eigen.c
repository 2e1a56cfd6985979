#include "cocluster/eigen.h"

#include <float.h>
#include <math.h>

/* Turns rows p and q of `at` by the angle of cosine c and sine s. */
static void turn(double *at, size_t n, size_t p, size_t q, double c, double s)
{
    for (size_t k = 0; k < n; k++) {
        double x = at[p * n + k], y = at[q * n + k];
        at[p * n + k] = c * x - s * y;
        at[q * n + k] = s * x + c * y;
    }
}

void cot_eigen_symmetric(double *matrix, double *vectors, size_t n)
{
    double norm = 0;
    for (size_t i = 0; i < n * n; i++) {
        vectors[i] = i % (n + 1) == 0;
        norm += matrix[i] * matrix[i];
    }
    /* Convergence is quadratic: a dozen sweeps do; the bound is for what rounding might keep going. */
    for (int sweep = 0; sweep < 60; sweep++) {
        double off = 0;
        for (size_t p = 0; p < n; p++)
            for (size_t q = p + 1; q < n; q++) off += matrix[p * n + q] * matrix[p * n + q];
        if (off <= norm * DBL_EPSILON * DBL_EPSILON) return;
        for (size_t p = 0; p < n; p++)
            for (size_t q = p + 1; q < n; q++) {
                double apq = matrix[p * n + q];
                if (fabs(apq) <= DBL_MIN) continue;
                double half = (matrix[q * n + q] - matrix[p * n + p]) / (2 * apq);
                double t = (half < 0 ? -1 : 1) / (fabs(half) + hypot(half, 1));
                double c = 1 / sqrt(t * t + 1), s = t * c;
                turn(matrix, n, p, q, c, s);
                for (size_t k = 0; k < n; k++) { // and the columns
                    double x = matrix[k * n + p], y = matrix[k * n + q];
                    matrix[k * n + p] = c * x - s * y;
                    matrix[k * n + q] = s * x + c * y;
                }
                turn(vectors, n, p, q, c, s);
            }
    }
}
