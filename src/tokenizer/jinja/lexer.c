#include "tokenizer/jinja/lexer.h"

#include "tokenizer/jinja/string.h"
#include "tokenizer/utf8.h"

#include <stdlib.h>
#include <string.h>

typedef struct lexing {
    cot_jinja_run *run;
    const char *text;
    size_t bytes, at, counted; // up to `counted` lines have been counted
    int line;
    bool line_starts; // what was read last ended a line
    cot_jinja_token *tokens;
    size_t count, capacity;
} lexing;

/* CR LF and CR become LF, and one LF at the end is dropped. */
static void normalize(lexing *l, const char *text, size_t bytes)
{
    char *out = cot_jinja_take(l->run, bytes + 1, 1);
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '\n' && i && text[i - 1] == '\r') continue;
        out[n++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (n && out[n - 1] == '\n') n--;
    out[n] = 0;
    l->text = out;
    l->bytes = n;
}

static void count_lines(lexing *l)
{
    for (; l->counted < l->at; l->counted++) l->line += l->text[l->counted] == '\n';
    l->run->line = l->line;
}

static cot_jinja_token *add(lexing *l, int kind, const char *text, size_t bytes)
{
    if (l->count == l->capacity) {
        l->capacity = l->capacity ? l->capacity * 2 : 64;
        cot_jinja_token *tokens = cot_jinja_take(l->run, l->capacity, sizeof *tokens);
        if (l->count) memcpy(tokens, l->tokens, l->count * sizeof *tokens);
        l->tokens = tokens;
    }
    l->tokens[l->count] = (cot_jinja_token){.kind = kind, .line = l->line, .text = text, .bytes = bytes};
    return &l->tokens[l->count++];
}

static bool is_at(const lexing *l, size_t at, const char *what)
{
    size_t n = strlen(what);
    return n <= l->bytes - at && !memcmp(l->text + at, what, n);
}

static size_t skip_spaces(const lexing *l, size_t at)
{
    for (size_t next = at; at < l->bytes && cot_jinja_is_space(cot_utf8_next(l->text, &next));) at = next;
    return at;
}

static size_t strip_back(const lexing *l, size_t from, size_t to)
{
    for (size_t before = to; to > from && cot_jinja_is_space(cot_utf8_previous(l->text, &before));)
        to = before;
    return to;
}

/* The text [from, to) before a tag; `sign` follows the tag's begin. lstrip_blocks drops the white space between the
 * line's begin and a block or a comment. */
static void add_data(lexing *l, size_t from, size_t to, char sign, bool prints)
{
    size_t end = to;
    if (sign == '-') {
        end = strip_back(l, from, to);
    } else if (sign != '+' && !prints) {
        size_t line = to;
        while (line > from && l->text[line - 1] != '\n') line--;
        if ((line > from || l->line_starts) && skip_spaces(l, line) >= to) end = line;
    }
    if (end > from) add(l, COT_JINJA_T_DATA, l->text + from, end - from);
}

/* Whether a tag's end is at l->at, and the end of it with the white space that goes with it. */
static size_t tag_end(const lexing *l, const char *end, bool trims)
{
    size_t at = l->at;
    char sign = l->text[at];
    bool signs = (sign == '-' || (sign == '+' && trims)) && is_at(l, at + 1, end);
    if (!signs && !is_at(l, at, end)) return 0;
    at += strlen(end) + signs;
    if (signs && sign == '-') return skip_spaces(l, at);
    return at + (trims && !signs && at < l->bytes && l->text[at] == '\n');
}

static void read_comment(lexing *l, size_t start)
{
    const char *found = memmem(l->text + start, l->bytes - start, "#}", 2);
    if (!found) cot_jinja_fail(l->run, COT_JINJA_SYNTAX, "missing end of comment tag");
    l->at = (size_t)(found - l->text);
    if (l->at > start && (found[-1] == '-' || found[-1] == '+')) l->at--;
    l->at = tag_end(l, "#}", true);
}

/* `{% raw %}`: the offset behind it, or 0. */
static size_t raw_begin(const lexing *l, size_t at)
{
    at = skip_spaces(l, at);
    if (!is_at(l, at, "raw")) return 0;
    at = skip_spaces(l, at + 3);
    if (is_at(l, at, "-%}")) return skip_spaces(l, at + 3);
    return is_at(l, at, "%}") ? at + 2 : 0;
}

static void read_raw(lexing *l, size_t start)
{
    l->line_starts = false;
    for (size_t begin = start; begin < l->bytes; begin++) {
        if (!is_at(l, begin, "{%")) continue;
        char sign = l->text[begin + 2];
        size_t at = skip_spaces(l, begin + 2 + (sign == '-' || sign == '+'));
        if (!is_at(l, at, "endraw")) continue;
        size_t here = l->at;
        l->at = skip_spaces(l, at + 6);
        size_t end = tag_end(l, "%}", true);
        l->at = here;
        if (!end) continue;
        add_data(l, start, begin, sign, false);
        l->at = end;
        return;
    }
    cot_jinja_fail(l->run, COT_JINJA_SYNTAX, "missing end of raw directive");
}

static unsigned read_digits(const char *at, const char *end, int base, int most, int *n)
{
    unsigned code = 0;
    for (*n = 0; *n < most && at + *n < end; ++*n) {
        char c = at[*n];
        int digit = c >= '0' && c <= '9'                 ? c - '0'
                    : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                         : 99;
        if (digit >= base) break;
        code = code * (unsigned)base + (unsigned)digit;
    }
    return code;
}

/* The escape behind a backslash, as Python's unicode_escape reads it; returns how long it is. */
static size_t read_escape(lexing *l, cot_jinja_builder *b, const char *at, const char *end)
{
    static const char plain[] = "\\'\"abfnrtv", meant[] = "\\'\"\a\b\f\n\r\t\v";
    const char *found = *at ? strchr(plain, *at) : NULL;
    int n = 0, wanted = *at == 'x' ? 2 : *at == 'u' ? 4 : *at == 'U' ? 8 : 0;
    if (found) {
        cot_jinja_add(b, &meant[found - plain], 1, true);
        return 1;
    }
    if (*at == '\n') return 1;
    if (*at == 'N') cot_jinja_fail(l->run, COT_JINJA_SYNTAX, "\\N in a string is not supported");
    unsigned code = wanted ? read_digits(at + 1, end, 16, wanted, &n) : read_digits(at, end, 8, 3, &n);
    if (wanted ? n < wanted || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) : false)
        cot_jinja_fail(l->run, COT_JINJA_SYNTAX, "a \\%c in a string names no character", *at);
    if (wanted || n) {
        cot_jinja_add_character(b, (int32_t)code, true);
        return (size_t)n + (wanted > 0);
    }
    cot_jinja_add_text(b, "\\"); // an unknown escape stays
    return 0;
}

static void read_string(lexing *l)
{
    const char quote = l->text[l->at], *begin = l->text + l->at + 1, *at = begin, *end = l->text + l->bytes;
    cot_jinja_builder b = {.run = l->run};
    while (at < end && *at != quote) {
        const char *next = at;
        while (next < end && *next != quote && *next != '\\') next++;
        cot_jinja_add(&b, at, (size_t)(next - at), true);
        at = next;
        if (at < end && *at == '\\' && at + 1 < end) {
            at++;
            at += read_escape(l, &b, at, end);
        } else if (at < end && *at == '\\') {
            at++;
        }
    }
    if (at >= end) cot_jinja_fail(l->run, COT_JINJA_SYNTAX, "a string does not end");
    add(l, COT_JINJA_T_STRING, begin, (size_t)(at - begin))->value = cot_jinja_built(&b, false);
    l->at = (size_t)(at + 1 - l->text);
}

static bool is_digit(const lexing *l, size_t at)
{
    return at < l->bytes && l->text[at] >= '0' && l->text[at] <= '9';
}

/* Behind (\d+_)*\d+, or `at`. */
static size_t skip_digits(const lexing *l, size_t at)
{
    while (is_digit(l, at) || (l->text[at] == '_' && at && is_digit(l, at - 1) && is_digit(l, at + 1))) at++;
    return at;
}

static void read_number(lexing *l)
{
    char text[400];
    size_t start = l->at, end = skip_digits(l, start), n = 0;
    bool real = false;
    int base = 10;
    char mark = start + 1 < l->bytes ? (char)(l->text[start + 1] | 32) : 0;
    if (l->text[start] == '0' && (mark == 'x' || mark == 'o' || mark == 'b')) {
        base = mark == 'x' ? 16 : mark == 'o' ? 8 : 2;
        for (end = start + 2;
             end < l->bytes && (strchr("0123456789abcdefABCDEF_", l->text[end]) && l->text[end]);)
            end++;
    } else if (!(start && l->text[start - 1] == '.')) {
        if (l->text[end] == '.' && is_digit(l, end + 1)) {
            end = skip_digits(l, end + 1);
            real = true;
        }
        size_t sign = end + 1 < l->bytes && (l->text[end + 1] == '+' || l->text[end + 1] == '-');
        if (end < l->bytes && (l->text[end] | 32) == 'e' && is_digit(l, end + 1 + sign)) {
            end = skip_digits(l, end + 1 + sign);
            real = true;
        }
    }
    for (size_t i = start + (base == 10 ? 0 : 2); i < end && n < sizeof text - 1; i++)
        if (l->text[i] != '_') text[n++] = l->text[i];
    text[n] = 0;
    cot_jinja_token *token =
        add(l, real ? COT_JINJA_T_REAL : COT_JINJA_T_INTEGER, l->text + start, end - start);
    char *rest;
    if (real) {
        token->value = cot_jinja_real(strtod(text, &rest));
    } else {
        unsigned long long integer = strtoull(text, &rest, base);
        if (integer > INT64_MAX || !n || *rest)
            cot_jinja_fail(l->run, COT_JINJA_SYNTAX, "%.40s is no integer of 64 bits", text);
        token->value = cot_jinja_integer((int64_t)integer);
    }
    l->at = end;
}

static void read_operator(lexing *l, char *open, size_t *depth, size_t most)
{
    static const struct {
        const char *text;
        int kind;
    } pairs[] = {{"//", COT_JINJA_T_FLOOR_DIVIDE}, {"**", COT_JINJA_T_POWER},    {"==", COT_JINJA_T_EQUAL},
                 {"!=", COT_JINJA_T_NOT_EQUAL},    {">=", COT_JINJA_T_AT_LEAST}, {"<=", COT_JINJA_T_AT_MOST}};
    const char c = l->text[l->at];
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (is_at(l, l->at, pairs[i].text)) {
            add(l, pairs[i].kind, l->text + l->at, 2);
            l->at += 2;
            return;
        }
    if (!c || !strchr("+-/*%~[](){}><=.:|,;", c))
        cot_jinja_fail(l->run, COT_JINJA_SYNTAX, "unexpected character '%.*s'", (int)cot_utf8_length(c),
                       l->text + l->at);
    if (c == '(' || c == '[' || c == '{') {
        if (*depth == most) cot_jinja_fail(l->run, COT_JINJA_SYNTAX, "brackets nest deeper than %zu", most);
        open[(*depth)++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
        if (!*depth || open[--*depth] != c) cot_jinja_fail(l->run, COT_JINJA_SYNTAX, "unexpected '%c'", c);
    }
    add(l, c, l->text + l->at, 1);
    l->at++;
}

static bool is_name(const lexing *l, size_t at, size_t *next)
{
    *next = at;
    return at < l->bytes && cot_is_word(cot_utf8_next(l->text, next));
}

/* From behind a tag's begin to behind its end. */
static void read_tag(lexing *l, bool prints)
{
    char open[200];
    size_t depth = 0, end;
    add(l, prints ? COT_JINJA_T_PRINT_BEGIN : COT_JINJA_T_BLOCK_BEGIN, l->text + l->at, 0);
    for (;;) {
        l->at = skip_spaces(l, l->at);
        count_lines(l);
        if (l->at >= l->bytes) return;
        if (!depth && (end = tag_end(l, prints ? "}}" : "%}", !prints))) break;
        size_t next, start = l->at;
        if (is_digit(l, l->at)) {
            read_number(l);
        } else if (is_name(l, l->at, &next)) {
            while (is_name(l, l->at, &next)) l->at = next;
            add(l, COT_JINJA_T_NAME, l->text + start, l->at - start);
        } else if (l->text[l->at] == '\'' || l->text[l->at] == '"') {
            read_string(l);
        } else {
            read_operator(l, open, &depth, sizeof open);
        }
    }
    add(l, prints ? COT_JINJA_T_PRINT_END : COT_JINJA_T_BLOCK_END, l->text + l->at, 0);
    l->at = end;
}

static bool next_tag(const lexing *l, size_t *at)
{
    for (const char *found = l->text + l->at, *end = l->text + l->bytes;
         (found = memchr(found, '{', (size_t)(end - found))); found++)
        if (found + 1 < end && (found[1] == '%' || found[1] == '{' || found[1] == '#')) {
            *at = (size_t)(found - l->text);
            return true;
        }
    return false;
}

cot_jinja_token *cot_jinja_tokens(cot_jinja_run *run, const char *text, size_t bytes)
{
    lexing l = {.run = run, .line = 1, .line_starts = true};
    normalize(&l, text, bytes);
    for (size_t tag; next_tag(&l, &tag);) {
        char kind = l.text[tag + 1], sign = l.text[tag + 2];
        size_t start = tag + 2 + (sign == '-' || sign == '+');
        size_t raw = kind == '%' ? raw_begin(&l, start) : 0;
        count_lines(&l);
        add_data(&l, l.at, tag, sign, kind == '{');
        l.at = start;
        count_lines(&l);
        if (raw)
            read_raw(&l, raw);
        else if (kind == '#')
            read_comment(&l, start);
        else
            read_tag(&l, kind == '{');
        l.line_starts = l.at && l.text[l.at - 1] == '\n';
    }
    if (l.at < l.bytes) {
        count_lines(&l);
        add(&l, COT_JINJA_T_DATA, l.text + l.at, l.bytes - l.at);
    }
    l.at = l.bytes;
    count_lines(&l);
    add(&l, COT_JINJA_T_END, "", 0);
    return l.tokens;
}
