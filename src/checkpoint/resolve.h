/* The parts of cot_config_parse: each reads its fields and fills its share of the config. What is wrong stays
 * in `fields->status`; every part is safe to call after that. */
#ifndef COT_CHECKPOINT_RESOLVE_H
#define COT_CHECKPOINT_RESOLVE_H
#include "checkpoint/family.h"
#include "checkpoint/fields.h"

/* `sizes` [COT_SIZES]: every whole number of the family, read and in range. */
void cot_resolve_attention(cot_config *config, cot_fields *fields, const int64_t *sizes);
void cot_resolve_feed_forward(cot_config *config, cot_fields *fields, const int64_t *sizes);
/* config->layer: which layers are dense, and which see a window. */
void cot_resolve_layers(cot_config *config, cot_fields *fields, const int64_t *sizes);
/* Frequencies and factor of RoPE over rope_width; lengthens max_context to what the scaling was made for, and
 * multiplies MLA's softmax_scale by YaRN's mscale. */
void cot_resolve_rope(cot_config *config, cot_fields *fields);
/* A list of names, none where there is no such member, in which "*" and "?" stand for any characters if `wildcards`; the caller
 * clears it. */
void cot_quantised_read(cot_quantised_targets *targets, cot_fields *in, const char *key, bool wildcards);
void cot_quantised_clear(cot_quantised_targets *targets);
/* quantization_config: methods, layouts, and what matrices should be. */
void cot_resolve_quantisation(cot_config *config, cot_fields *fields);
/* The same of a file of its own, whose object `in` has; `method` is what it is if it names none. */
void cot_resolve_quantisation_beside(cot_config *config, cot_fields *in, const char *method);

#endif
