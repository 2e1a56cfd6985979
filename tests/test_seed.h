/* A fresh seed for every run of a test, printed so that a failure can be repeated with COT_SEED=N. */
#ifndef COT_TESTS_TEST_SEED_H
#define COT_TESTS_TEST_SEED_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline uint64_t test_seed(void)
{
    static uint64_t seed;
    if (!seed) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        const char *given = getenv("COT_SEED");
        seed = given ? strtoull(given, NULL, 10) : (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
        printf("COT_SEED=%llu\n", (unsigned long long)seed);
    }
    return seed;
}

#endif
