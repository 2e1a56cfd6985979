/* Python's sorted(): stable, by <. */
#ifndef COT_TOKENIZER_JINJA_SORT_H
#define COT_TOKENIZER_JINJA_SORT_H
#include "tokenizer/jinja/value.h"

/* Which of `keys` [count] comes at each place, in the run's memory. */
size_t *cot_jinja_sorted(cot_jinja_run *run, const cot_jinja_value *keys, size_t count, bool descending);

#endif
