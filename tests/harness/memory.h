/* Memory that a test needs: what cannot be had fails it. */
#ifndef COT_TESTS_HARNESS_MEMORY_H
#define COT_TESTS_HARNESS_MEMORY_H
#include <stddef.h>

void *must_allocate(size_t n, size_t bytes);

#endif
