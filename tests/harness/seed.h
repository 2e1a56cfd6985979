/* What a test draws, it draws from one seed. */
#ifndef COT_TESTS_HARNESS_SEED_H
#define COT_TESTS_HARNESS_SEED_H
#include <stdint.h>

/* COT_SEED of the environment; where there is none, a fresh seed for this run, which is printed, so that a failure can be
 * repeated with COT_SEED=N, and put there, so that it stays the same. The first call is made while one thread runs. */
uint64_t test_seed(void);

#endif
