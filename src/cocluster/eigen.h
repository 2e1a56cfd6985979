/* Eigenvectors of a symmetric matrix. */
#ifndef COT_COCLUSTER_EIGEN_H
#define COT_COCLUSTER_EIGEN_H
#include <stddef.h>

/* Cyclic Jacobi rotations. `matrix` [n][n] symmetric, finite; afterwards its diagonal holds the eigenvalues, and row i
 * of `vectors` [n][n] the unit eigenvector of the i-th. In no order. */
void cot_eigen_symmetric(double *matrix, double *vectors, size_t n);

#endif
