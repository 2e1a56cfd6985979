/* Somebody who is asked whether work is to stop, as callbacks of the tokenizer's headers ask. */
#ifndef COT_TESTS_HARNESS_TOKENIZER_ASKED_H
#define COT_TESTS_HARNESS_TOKENIZER_ASKED_H
#include <stdbool.h>
#include <stdint.h>

typedef struct asked {
    uint64_t times, patience; // of questions; it stops when they are as many as the patience
} asked;

static inline bool is_stopped(void *context)
{
    asked *a = context;
    return ++a->times >= a->patience;
}

#endif
