#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/oniguruma.h"

#include "base/error.h"
#include "tokenizer/utf8.h"

#include <ctype.h>
#include <pcre2.h>
#include <stdint.h>
#include <stdio.h>

#define SPACE "\\p{White_Space}"
#define WORD_ITEMS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
// Outside of sets Oniguruma counts Latin-1's superscript digits and fractions as word characters.
#define WORD "[" WORD_ITEMS "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}]"
#define NOT_WORD "[^" WORD_ITEMS "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}]"
#define HEX_ITEMS "0-9A-Fa-f"

enum { MOST_GROUPS = 200, NO_ATOM = -1 };

typedef struct translation {
    const char *in, *end;
    cot_buffer *out;
    cot_error *error;
    int64_t atom; // where in `out` the thing that a quantifier would repeat begins
    size_t groups[MOST_GROUPS];
    int depth;
} translation;

static cot_status fail_memory(translation *t)
{
    return cot_fail(t->error, COT_OUT_OF_MEMORY, "out of memory");
}

static cot_status unsupported(translation *t, const char *at)
{
    size_t left = (size_t)(t->end - at);
    return cot_fail(t->error, COT_UNSUPPORTED, "'%.*s' in a regular expression is not supported",
                    (int)(left < 16 ? left : 16), at);
}

static cot_status emit(translation *t, const char *text)
{
    return cot_buffer_text(t->out, text) ? COT_OK : fail_memory(t);
}

static cot_status emit_bytes(translation *t, const char *text, size_t bytes)
{
    return cot_buffer_append(t->out, text, bytes) ? COT_OK : fail_memory(t);
}

static bool follows(const translation *t, const char *text)
{
    size_t bytes = strlen(text);
    return (size_t)(t->end - t->in) >= bytes && !memcmp(t->in, text, bytes);
}

static bool compiles(const char *format, const char *name)
{
    char pattern[96];
    int code;
    PCRE2_SIZE offset;
    snprintf(pattern, sizeof pattern, format, name);
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                         &code, &offset, NULL);
    pcre2_code_free(compiled);
    return compiled;
}

static bool is_category(const char *name)
{
    static const char *const categories[] = {"any", "c",  "cc", "cf", "cn", "co", "cs", "l",  "lc", "ll",
                                             "lm",  "lo", "lt", "lu", "m",  "mc", "me", "mn", "n",  "nd",
                                             "nl",  "no", "p",  "pc", "pd", "pe", "pf", "pi", "po", "ps",
                                             "s",   "sc", "sk", "sm", "so", "z",  "zl", "zp", "zs"};
    for (size_t i = 0; i < sizeof categories / sizeof *categories; i++)
        if (!strcmp(name, categories[i])) return true;
    return false;
}

/* \p{...} and \P{...}; `in` is behind the p. */
static cot_status property(translation *t, bool negated, const char *start)
{
    char name[48];
    size_t n = 0;
    if (t->in == t->end || *t->in++ != '{') return unsupported(t, start);
    if (t->in < t->end && *t->in == '^') {
        negated = !negated;
        t->in++;
    }
    for (; t->in < t->end && *t->in != '}' && n + 1 < sizeof name; t->in++) {
        if (*t->in == ' ' || *t->in == '-' || *t->in == '_') continue; // both libraries look past these
        if (!isalnum((unsigned char)*t->in)) return unsupported(t, start);
        name[n++] = (char)tolower((unsigned char)*t->in);
    }
    name[n] = 0;
    if (t->in == t->end || *t->in++ != '}' || !n) return unsupported(t, start);
    bool script = !is_category(name) && compiles("\\p{sc:%s}", name);
    if (!is_category(name) && !script && !compiles("\\p{%s}", name)) return unsupported(t, start);
    char spelt[64];
    snprintf(spelt, sizeof spelt, "\\%c{%s%s}", negated ? 'P' : 'p', script ? "sc:" : "", name);
    return emit(t, spelt);
}

/* \xHH, \x{H...} and \uHHHH. */
static cot_status code_point(translation *t, char kind, const char *start)
{
    char digits[8];
    size_t n = 0, most = kind == 'u' ? 4 : 2;
    bool braces = kind == 'x' && t->in < t->end && *t->in == '{';
    if (braces) {
        t->in++;
        most = 6;
    }
    while (t->in < t->end && n < most && isxdigit((unsigned char)*t->in)) digits[n++] = *t->in++;
    digits[n] = 0;
    if (!n || (kind == 'u' && n != 4) || (braces && (t->in == t->end || *t->in++ != '}')))
        return unsupported(t, start);
    // A two-digit code from 80 on is a byte to Oniguruma, a character to PCRE2.
    if (kind == 'x' && !braces && n == 2 && digits[0] > '7') return unsupported(t, start);
    char spelt[16];
    snprintf(spelt, sizeof spelt, "\\x{%s}", digits);
    return emit(t, spelt);
}

/* What stands for \X outside of and within a set; NULL where it is not supported. */
static const char *simple_escape(char c, bool in_set)
{
    switch (c) {
    case 's':
        return SPACE;
    case 'S':
        return "\\P{White_Space}";
    case 'd':
        return "\\p{Nd}";
    case 'D':
        return "\\P{Nd}";
    case 'w':
        return in_set ? WORD_ITEMS : WORD;
    case 'W':
        return in_set ? NULL : NOT_WORD;
    case 'h':
        return in_set ? HEX_ITEMS : "[" HEX_ITEMS "]";
    case 'H':
        return in_set ? NULL : "[^" HEX_ITEMS "]";
    case 'v':
        return "\\x0b";
    case 'n':
        return "\\n";
    case 'r':
        return "\\r";
    case 't':
        return "\\t";
    case 'f':
        return "\\f";
    case 'a':
        return "\\a";
    case 'e':
        return "\\e";
    case 'b':
        return in_set ? "\\x08" : "(?:(?<=" WORD ")(?!" WORD ")|(?<!" WORD ")(?=" WORD "))";
    case 'B':
        return in_set ? NULL : "(?:(?<=" WORD ")(?=" WORD ")|(?<!" WORD ")(?!" WORD "))";
    case 'A':
        return in_set ? NULL : "\\A";
    case 'z':
        return in_set ? NULL : "\\z";
    case 'Z':
        return in_set ? NULL : "\\Z";
    case 'G':
        return in_set ? NULL : "\\G";
    default:
        return NULL;
    }
}

static cot_status escape(translation *t, bool in_set)
{
    const char *start = t->in++;
    if (t->in == t->end) return unsupported(t, start);
    char c = *t->in;
    if ((unsigned char)c >= 0x80 || ispunct((unsigned char)c) || c == ' ') {
        char escaped[2] = {'\\', c};
        size_t length = cot_utf8_length(c);
        const char *literal = t->in;
        t->in += length;
        return length == 1 ? emit_bytes(t, escaped, 2) : emit_bytes(t, literal, length);
    }
    t->in++;
    if (c == 'p' || c == 'P') return property(t, c == 'P', start);
    if (c == 'x' || c == 'u') return code_point(t, c, start);
    if (c >= '1' && c <= '9' && !in_set) return emit_bytes(t, start, 2);
    const char *spelt = simple_escape(c, in_set);
    return spelt ? emit(t, spelt) : unsupported(t, start);
}

/* A character of a set or of the pattern that stands for itself. */
static cot_status literal(translation *t, bool always_escape)
{
    char c = *t->in;
    size_t length = cot_utf8_length(c);
    if (always_escape && ispunct((unsigned char)c)) {
        t->in++;
        char escaped[2] = {'\\', c};
        return emit_bytes(t, escaped, 2);
    }
    t->in += length;
    return emit_bytes(t, t->in - length, length);
}

/* From behind '[' or "[^" up to and with ']'. Sets within it are flattened: all are unions. */
static cot_status set_items(translation *t, const char *start)
{
    int depth = 1;
    cot_status status = COT_OK;
    bool first = true;
    while (status == COT_OK) {
        if (t->in == t->end)
            return cot_fail(t->error, COT_MALFORMED, "a regular expression's set has no ']'");
        if (follows(t, "&&") || follows(t, "[:") || follows(t, "[^") || (first && *t->in == ']'))
            return unsupported(t, start);
        first = *t->in == '[';
        if (*t->in == '\\') {
            status = escape(t, true);
        } else if (*t->in == '[') {
            depth++;
            t->in++;
        } else if (*t->in == ']') {
            t->in++;
            if (!--depth) return COT_OK;
        } else {
            // A hyphen makes a range, or stands for itself beside a bracket.
            bool range = *t->in == '-' && t->in + 1 < t->end && t->in[1] != ']' && t->in[1] != '[';
            status = literal(t, !range);
        }
    }
    return status;
}

static cot_status set(translation *t)
{
    const char *start = t->in++;
    bool negated = t->in < t->end && *t->in == '^';
    t->in += negated;
    cot_status status = emit(t, negated ? "[^" : "[");
    if (status == COT_OK) status = set_items(t, start);
    return status == COT_OK ? emit(t, "]") : status;
}

/* (?imx-imx) or (?imx-imx: */
static cot_status group_options(translation *t, const char *start)
{
    cot_status status = emit(t, "(?");
    for (; status == COT_OK && t->in < t->end; t->in++) {
        char c = *t->in;
        if (c == ':' || c == ')') break;
        if (c != 'i' && c != 'm' && c != '-') return unsupported(t, start);
        status = emit(t, c == 'i' ? "i" : c == 'm' ? "s" : "-");
    }
    if (status != COT_OK) return status;
    if (t->in == t->end) return unsupported(t, start);
    if (*t->in++ == ':') return emit(t, ":");
    t->depth--; // no group: it holds to the end of the one around it
    t->atom = NO_ATOM;
    return emit(t, ")");
}

static cot_status open_group(translation *t)
{
    static const char *const kinds[] = {"?:", "?=", "?!", "?>", "?<=", "?<!"};
    const char *start = t->in++;
    if (t->depth == MOST_GROUPS) return unsupported(t, start);
    t->groups[t->depth++] = t->out->bytes;
    t->atom = NO_ATOM;
    if (follows(t, "*")) return unsupported(t, start);
    if (!follows(t, "?")) return emit(t, "(");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (follows(t, kinds[i])) {
            t->in += strlen(kinds[i]);
            cot_status status = emit(t, "(");
            return status == COT_OK ? emit(t, kinds[i]) : status;
        }
    t->in++;
    return group_options(t, start);
}

/* Wraps the last atom, with what follows it, in a group of its own, so that it can be repeated as a whole. */
static cot_status wrap_atom(translation *t)
{
    size_t at = (size_t)t->atom, tail = t->out->bytes - at;
    if (!cot_buffer_text(t->out, "(?:)")) return fail_memory(t);
    memmove(t->out->data + at + 3, t->out->data + at, tail);
    memcpy(t->out->data + at, "(?:", 3);
    return COT_OK;
}

static bool read_number(translation *t, unsigned *number)
{
    const char *start = t->in;
    for (*number = 0; t->in < t->end && isdigit((unsigned char)*t->in) && t->in - start < 6; t->in++)
        *number = *number * 10 + (unsigned)(*t->in - '0');
    return t->in > start;
}

/* {n}, {n,}, {n,m}, {,m}; anything else is literal. */
static cot_status interval(translation *t)
{
    const char *start = t->in++;
    unsigned least = 0, most = 0;
    bool has_least = read_number(t, &least), comma = follows(t, ",");
    t->in += comma;
    bool has_most = comma && read_number(t, &most);
    if (!follows(t, "}") || (!has_least && !has_most)) {
        t->in = start;
        t->atom = (int64_t)t->out->bytes;
        return literal(t, true);
    }
    t->in++;
    if (t->atom == NO_ATOM) return unsupported(t, start);
    char spelt[32];
    if (!comma)
        snprintf(spelt, sizeof spelt, "{%u}", least);
    else if (!has_most)
        snprintf(spelt, sizeof spelt, "{%u,}", least);
    else
        snprintf(spelt, sizeof spelt, "{%u,%u}", least, most);
    cot_status status = emit(t, spelt);
    bool again = follows(t, "+") || (follows(t, "?") && !comma);
    if (status == COT_OK && again) status = wrap_atom(t);
    if (status == COT_OK && (again || follows(t, "?"))) status = literal(t, false);
    return status;
}

/* * + ? with a lazy ? or a possessive + behind; both libraries agree on these. */
static cot_status quantifier(translation *t)
{
    cot_status status = literal(t, false);
    if (status == COT_OK && (follows(t, "?") || follows(t, "+"))) status = literal(t, false);
    return status;
}

static cot_status next(translation *t)
{
    int64_t here = (int64_t)t->out->bytes;
    switch (*t->in) {
    case '{':
        return interval(t);
    case '*':
    case '+':
    case '?':
        return quantifier(t);
    case '(':
        return open_group(t);
    case '|':
        t->atom = NO_ATOM;
        return literal(t, false);
    case ')':
        if (!t->depth) return cot_fail(t->error, COT_MALFORMED, "a regular expression has a ')' too many");
        t->atom = (int64_t)t->groups[--t->depth];
        return literal(t, false);
    case '\\':
        t->atom = here;
        return escape(t, false);
    case '[':
        t->atom = here;
        return set(t);
    default:
        t->atom = here;
        return literal(t, false);
    }
}

cot_status cot_oniguruma_translate(cot_buffer *out, const char *pattern, size_t bytes, cot_error *error)
{
    translation t = {.in = pattern, .end = pattern + bytes, .out = out, .error = error, .atom = NO_ATOM};
    cot_status status = emit(&t, "");
    while (t.in < t.end && status == COT_OK) status = next(&t);
    return status;
}
