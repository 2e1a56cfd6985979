#include "harness/seed.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

uint64_t test_seed(void)
{
    const char *given = getenv("COT_SEED");
    if (given) return strtoull(given, NULL, 10);
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    char text[24];
    snprintf(text, sizeof text, "%llu",
             (unsigned long long)t.tv_sec * 1000000000u + (unsigned long long)t.tv_nsec);
    printf("COT_SEED=%s\n", text);
    if (setenv("COT_SEED", text, 0)) abort();
    return strtoull(text, NULL, 10);
}
