/* Hub tokenizers spell regular expressions for Oniguruma; we match them with PCRE2. */
#ifndef COT_TOKENIZER_ONIGURUMA_H
#define COT_TOKENIZER_ONIGURUMA_H
#include "coterie/status.h"
#include "base/buffer.h"

/* Appends to `out` the PCRE2 pattern (for UTF, UCP and MULTILINE with LF) that matches what Oniguruma's own
 * syntax makes of `pattern` [bytes], valid UTF-8. Where the two differ:
 *
 *     \s         PCRE2 adds U+180E: Unicode's White_Space instead
 *     \w \b      PCRE2 leaves out marks, connectors and more: spelt out
 *     \h \v      hexadecimal digit; vertical tab
 *     \p{Han}    PCRE2 means Script_Extensions: the script alone instead
 *     (?m)       PCRE2's (?s)
 *     {,n}       {0,n}
 *     {n,m}+     not possessive but repeated; likewise {n}? is optional, not lazy
 *     [a[bc]]    a set in a set is a union
 *     [a-z&&[^b]], [a[^b]], [\W]   PCRE2 has unions alone: the characters that are meant, one by one
 *
 * The properties are those of PCRE2's Unicode version (14 in 10.42; Hugging Face tokenizers 0.23 has 16).
 * Errors: UNSUPPORTED (what is not translated, named), OUT_OF_MEMORY. What is wrong in both is left for PCRE2
 * to find. */
cot_status cot_oniguruma_translate(cot_buffer *out, const char *pattern, size_t bytes, cot_error *error);

#endif
