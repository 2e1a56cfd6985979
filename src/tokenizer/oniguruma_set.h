/* Sets of characters, for the classes that PCRE2 cannot write: it has unions alone. */
#ifndef COT_TOKENIZER_ONIGURUMA_SET_H
#define COT_TOKENIZER_ONIGURUMA_SET_H
#include "base/buffer.h"
#include "coterie/status.h"

/* A bit for each of Unicode's characters; 136 KiB. What it is of surrogates does not matter. */
typedef struct cot_oniguruma_set {
    uint64_t words[0x110000 / 64];
} cot_oniguruma_set;

/* Adds the characters that PCRE2's class of `items` [bytes] has, or with `negated` those that it has not. Errors: MALFORMED
 * (PCRE2 does not take the items), OUT_OF_MEMORY. */
cot_status cot_oniguruma_set_add(cot_oniguruma_set *set, const char *items, size_t bytes, bool negated,
                                 cot_error *error);
void cot_oniguruma_set_unite(cot_oniguruma_set *set, const cot_oniguruma_set *other);
void cot_oniguruma_set_intersect(cot_oniguruma_set *set, const cot_oniguruma_set *other);
void cot_oniguruma_set_negate(cot_oniguruma_set *set);
/* Appends PCRE2's class of these characters, or with `negated` of the others. False when out of memory. */
bool cot_oniguruma_set_write(cot_buffer *out, const cot_oniguruma_set *set, bool negated);

#endif
