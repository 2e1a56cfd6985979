/* What bad input must meet with. */
#ifndef COT_TESTS_HARNESS_REFUSED_H
#define COT_TESTS_HARNESS_REFUSED_H
#include "coterie/status.h"

/* Fails the test unless `status` is an error, `error` holds the same one, and its message contains `words`. */
void assert_refused(cot_status status, const cot_error *error, const char *words);

#endif
