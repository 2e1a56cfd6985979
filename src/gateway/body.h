/* A JSON object's text with members set or taken out, and every other byte as it came. Pure. */
#ifndef COT_GATEWAY_BODY_H
#define COT_GATEWAY_BODY_H
#include "base/buffer.h"

typedef struct cot_body_member {
    const char *name;
    const char *value; // JSON; NULL: it is taken out
} cot_body_member;

/* Appends to `out` the object `text` [bytes], which is valid JSON without a key twice, with these members [count]: they stand behind all
 * others. False when memory runs out. */
bool cot_body_set(cot_buffer *out, const char *text, size_t bytes, const cot_body_member *members,
                  size_t count);

#endif
