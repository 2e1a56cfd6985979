/* What a JSON text is, as far as can be told before it is parsed. */
#ifndef COT_BASE_JSON_WEIGHT_H
#define COT_BASE_JSON_WEIGHT_H
#include <stddef.h>

/* How deep its brackets nest, and how many bytes its values take at most once jansson has read them. */
typedef struct cot_json_weight {
    size_t depth, bytes;
} cot_json_weight;

cot_json_weight cot_json_weigh(const char *text, size_t bytes);

#endif
