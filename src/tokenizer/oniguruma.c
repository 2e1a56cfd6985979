#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/oniguruma.h"

#include "base/error.h"
#include "tokenizer/oniguruma_set.h"
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

enum { MOST_GROUPS = 200, MOST_EVALUATED = 64, MOST_NESTED = 32, NO_ATOM = -1 };

typedef struct translation {
    const char *in, *end;
    cot_buffer *out;
    cot_error *error;
    int64_t atom; // where in `out` the thing that a quantifier would repeat begins
    size_t groups[MOST_GROUPS];
    int depth;
    int evaluated, nested; // unions of items that were evaluated; sets around the one that is
} translation;

static cot_status fail_memory(translation *t)
{
    return cot_fail(t->error, COT_OUT_OF_MEMORY, "out of memory");
}

static cot_status unsupported(translation *t, const char *at)
{
    size_t shown = (size_t)(t->end - at);
    if (shown > 16)
        for (shown = 16; (at[shown] & 0xc0) == 0x80;) shown--; // no half of a character
    return cot_fail(t->error, COT_UNSUPPORTED, "'%.*s' in a regular expression is not supported", (int)shown,
                    at);
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

/* A member of a set that is no bracket and no "&&". */
static cot_status set_item(translation *t)
{
    if (*t->in == '\\') return escape(t, true);
    // A hyphen makes a range, or stands for itself beside a bracket.
    const bool range = *t->in == '-' && t->in + 1 < t->end && t->in[1] != ']' && t->in[1] != '[';
    return literal(t, !range);
}

static cot_status check_set(translation *t, const char *start, bool first)
{
    if (t->in == t->end) return cot_fail(t->error, COT_MALFORMED, "a regular expression's set has no ']'");
    if (follows(t, "[:") || (first && *t->in == ']')) return unsupported(t, start);
    return COT_OK;
}

/* \W or \H, which are no members of PCRE2's classes. */
static bool follows_complement(const translation *t)
{
    return follows(t, "\\W") || follows(t, "\\H");
}

/* From behind '[' or "[^" up to and with ']'. Sets within it are flattened: all are unions; `*whole` is false, and where
 * things stand does not matter, where they are not. */
static cot_status set_items(translation *t, const char *start, bool *whole)
{
    int depth = 1;
    bool first = true;
    for (;;) {
        cot_status status = check_set(t, start, first);
        if (status != COT_OK) return status;
        *whole = !follows(t, "&&") && !follows(t, "[^") && !follows_complement(t);
        if (!*whole) return COT_OK;
        first = *t->in == '[';
        if (*t->in == '[') {
            depth++;
            t->in++;
        } else if (*t->in == ']') {
            t->in++;
            if (!--depth) return COT_OK;
        } else if ((status = set_item(t)) != COT_OK) {
            return status;
        }
    }
}

/* Adds the characters of the items that were written from `mark` on, which are taken back. */
static cot_status add_items(translation *t, cot_oniguruma_set *to, size_t mark, bool negated,
                            const char *start)
{
    const size_t bytes = t->out->bytes - mark;
    if (!bytes) return COT_OK;
    if (t->evaluated++ == MOST_EVALUATED) return unsupported(t, start);
    const cot_status status = cot_oniguruma_set_add(to, t->out->data + mark, bytes, negated, t->error);
    t->out->bytes = mark;
    return status;
}

static cot_status add_complement(translation *t, cot_oniguruma_set *to, const char *start)
{
    const size_t mark = t->out->bytes;
    const cot_status status = emit(t, t->in[1] == 'W' ? WORD_ITEMS : HEX_ITEMS);
    t->in += 2;
    return status == COT_OK ? add_items(t, to, mark, true, start) : status;
}

static cot_status evaluate_set(translation *t, cot_oniguruma_set *out, const char *start);

static cot_status evaluate_nested(translation *t, cot_oniguruma_set *to, const char *start)
{
    if (t->nested == MOST_NESTED) return unsupported(t, start);
    cot_oniguruma_set *inner = calloc(1, sizeof *inner);
    if (!inner) return fail_memory(t);
    t->nested++;
    const cot_status status = evaluate_set(t, inner, start);
    t->nested--;
    cot_oniguruma_set_unite(to, inner);
    free(inner);
    return status;
}

/* Unites items and sets up to "&&" or ']'. */
static cot_status evaluate_union(translation *t, cot_oniguruma_set *out, const char *start, bool first)
{
    const size_t mark = t->out->bytes;
    cot_status status;
    for (;; first = false) {
        if ((status = check_set(t, start, first)) != COT_OK) return status;
        if (*t->in == ']' || follows(t, "&&")) return add_items(t, out, mark, false, start);
        if (follows_complement(t) || *t->in == '[') status = add_items(t, out, mark, false, start);
        if (status == COT_OK && *t->in == '[')
            status = evaluate_nested(t, out, start);
        else if (status == COT_OK)
            status = follows_complement(t) ? add_complement(t, out, start) : set_item(t);
        if (status != COT_OK) return status;
    }
}

/* From '[' up to and with ']': "&&" binds less than anything but the '^' that begins a set; nothing is in an operand that
 * says nothing. */
static cot_status evaluate_set(translation *t, cot_oniguruma_set *out, const char *start)
{
    t->in++;
    const bool negated = follows(t, "^");
    t->in += negated;
    cot_status status = evaluate_union(t, out, start, true);
    cot_oniguruma_set *operand = malloc(sizeof *operand);
    if (!operand) return fail_memory(t);
    while (status == COT_OK && follows(t, "&&")) {
        t->in += 2;
        memset(operand, 0, sizeof *operand);
        status = evaluate_union(t, operand, start, false);
        cot_oniguruma_set_intersect(out, operand);
    }
    free(operand);
    if (negated) cot_oniguruma_set_negate(out);
    t->in += status == COT_OK;
    return status;
}

/* A set that is more than a union is written character by character. */
static cot_status evaluated_set(translation *t)
{
    const char *start = t->in;
    const bool negated = t->in[1] == '^';
    cot_oniguruma_set *whole = calloc(1, sizeof *whole);
    if (!whole) return fail_memory(t);
    cot_status status = evaluate_set(t, whole, start);
    if (negated)
        cot_oniguruma_set_negate(whole); // (?i) folds what is between the brackets, then '^' turns it
    if (status == COT_OK && !cot_oniguruma_set_write(t->out, whole, negated)) status = fail_memory(t);
    free(whole);
    return status;
}

static cot_status set(translation *t)
{
    const char *start = t->in++;
    const size_t mark = t->out->bytes;
    const bool negated = t->in < t->end && *t->in == '^';
    bool whole = true;
    t->in += negated;
    cot_status status = emit(t, negated ? "[^" : "[");
    if (status == COT_OK) status = set_items(t, start, &whole);
    if (status == COT_OK && whole) return emit(t, "]");
    if (status != COT_OK) return status;
    t->in = start;
    t->out->bytes = mark;
    return evaluated_set(t);
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
