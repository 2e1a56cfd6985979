/* JSON read where it stands: members and elements one after the other, values as the bytes that they have in the text, and nothing
 * allocated. Pure.
 *
 *     cot_skim s = cot_skim_of(text, bytes);
 *     for (bool in = cot_skim_into(&s, '{'); in && cot_skim_member(&s, &name);)
 *         value = cot_skim_value(&s);            // or into an object or a list again, or cot_skim_integer
 *     if (!cot_skim_ends(&s)) ...                // it was no JSON
 *
 * Texts are JSON as RFC 8259 has it, in UTF-8, without half a surrogate, and without U+0000 in names. Of such texts some are refused, which nobody writes who is
 * read here: those deeper than 64, and numbers of more than 18 digits before their point or 2 in their exponent. */
#ifndef COT_GATEWAY_SKIM_H
#define COT_GATEWAY_SKIM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct cot_skim {
    const char *at, *end;
    bool first; // nothing of the object or list was read yet
    bool bad;   // what stands here is no JSON, or not what was asked for: nothing more is found
} cot_skim;

typedef struct cot_skim_span {
    const char *text; // NULL: there is none
    size_t bytes;
} cot_skim_span;

cot_skim cot_skim_of(const char *text, size_t bytes);
/* Into the object or list that begins here: '{' or '['. False: none does. */
bool cot_skim_into(cot_skim *s, char bracket);
/* To the next member, whose name is as it stands, without quotes; its value is to be read next. False at the object's end, which is
 * left. */
bool cot_skim_member(cot_skim *s, cot_skim_span *name);
/* To the next element, to be read next; false at the list's end, which is left. */
bool cot_skim_element(cot_skim *s);
/* The value that begins here, whatever it is. */
cot_skim_span cot_skim_value(cot_skim *s);
/* A number without point and exponent; 0 where there is none. */
int64_t cot_skim_integer(cot_skim *s);
/* Whether the text has ended with what was read. */
bool cot_skim_ends(cot_skim *s);

/* Whether a span is this text. */
static inline bool cot_skim_is(cot_skim_span span, const char *text)
{
    return span.bytes == strlen(text) && !memcmp(span.text, text, span.bytes);
}

/* A name that is looked for; COT_SKIM_NAME("index"). */
typedef cot_skim_span cot_skim_name;
#define COT_SKIM_NAME(TEXT)                                                                                  \
    {                                                                                                        \
        TEXT, sizeof(TEXT) - 1                                                                               \
    }

/* For each member that was found, with `seen` 0 before the first: which of `names` [count, up to 32] it has; `count`: none of them. It is
 * bad where it has escapes, so that it is not what it looks like, or is one that came before. */
size_t cot_skim_which(cot_skim *s, uint32_t *seen, cot_skim_span name, const cot_skim_name *names,
                      size_t count);

#endif
