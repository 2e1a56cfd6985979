/* A small tokenizer to vary: ten characters, and merges of all pairs of a, b, space and 1. */
#ifndef COT_TESTS_HARNESS_TOKENIZER_TOKENIZER_JSON_H
#define COT_TESTS_HARNESS_TOKENIZER_TOKENIZER_JSON_H
#include "coterie/tokenizer.h"

#include <jansson.h>

/* JSON with single quotes for double ones; the caller's. */
json_t *tokenizer_json_quoted(const char *text);

/* The base's text with the members of `changes` put in; those of its "model" go into the base's model; malloc'd. */
char *tokenizer_json_text(const char *changes);

/* A tokenizer of that text. */
cot_status tokenizer_json_open(cot_tokenizer **tokenizer, const char *changes, cot_error *error);

#endif
