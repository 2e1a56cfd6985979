/* Memory that holds NaN. */
#ifndef COT_TESTS_HARNESS_POISONED_H
#define COT_TESTS_HARNESS_POISONED_H

#include <stddef.h>

void *poisoned(size_t bytes);

#endif
