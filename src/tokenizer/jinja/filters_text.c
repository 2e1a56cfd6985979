/* Filters of text and of numbers. */
#include "tokenizer/jinja/case.h"
#include "tokenizer/jinja/filters.h"
#include "tokenizer/jinja/print.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef cot_jinja_value value;

static void bind(cot_jinja_run *run, const cot_jinja_arguments *given, const char *what, const char *names,
                 size_t least, value *out)
{
    cot_jinja_bind(run, given, what, names, least, out);
}

/* For filters that take nothing. */
static void bind_none(cot_jinja_run *run, const cot_jinja_arguments *given, const char *what)
{
    bind(run, given, what, "", 0, NULL);
}

COT_JINJA_FILTER_FUNCTION(abs)
{
    bind_none(run, given, "abs");
    if (self.type == COT_JINJA_REAL) return cot_jinja_real(fabs(self.real));
    if (cot_jinja_is_integer(self) && cot_jinja_as_integer(self) >= 0)
        return cot_jinja_integer(cot_jinja_as_integer(self));
    return cot_jinja_negative(run, self);
}

COT_JINJA_FILTER_FUNCTION(capitalize)
{
    bind_none(run, given, "capitalize");
    return cot_jinja_capitalize(run, cot_jinja_str(run, self), false);
}

COT_JINJA_FILTER_FUNCTION(default)
{
    value given_value[2];
    bind(run, given, "default", "default_value boolean", 0, given_value);
    bool missing =
        cot_jinja_is_undefined(self) || (cot_jinja_truth(given_value[1]) && !cot_jinja_truth(self));
    if (!missing) return self;
    return given_value[0].type != COT_JINJA_ABSENT ? given_value[0] : cot_jinja_text(run, "");
}

COT_JINJA_FILTER_FUNCTION(escape)
{
    bind_none(run, given, "escape");
    const cot_jinja_string *s = cot_jinja_str(run, self);
    return s->safe ? self : cot_jinja_escape(run, s);
}

/* A string without the white space around it and the underscores between digits, NUL-terminated; NULL where it can be
 * no number. */
static char *number_text(cot_jinja_run *run, const cot_jinja_string *s)
{
    const cot_jinja_string *stripped = cot_jinja_strip(run, s, NULL, true, true).string;
    char *out = cot_jinja_take(run, stripped->bytes + 1, 1);
    size_t n = 0;
    for (size_t i = 0; i < stripped->bytes; i++) {
        char c = stripped->data[i];
        bool between =
            i && i + 1 < stripped->bytes && stripped->data[i - 1] != '_' && stripped->data[i + 1] != '_';
        if (!c || (c & 0x80) || c == ' ' || (c == '_' && !between)) return NULL;
        if (c != '_') out[n++] = c;
    }
    return n ? out : NULL;
}

static bool read_real(cot_jinja_run *run, const cot_jinja_string *s, double *out)
{
    char *text = number_text(run, s), *end;
    if (!text || strpbrk(text, "xXpP(")) return false;
    *out = strtod(text, &end);
    return !*end;
}

static bool read_integer(cot_jinja_run *run, const cot_jinja_string *s, int base, int64_t *out)
{
    char *text = number_text(run, s), *end;
    if (!text || (base == 10 && strpbrk(text, "xX"))) return false;
    char *digits = text + (*text == '-' || *text == '+');
    if (digits[0] == '0' &&
        ((base == 2 && (digits[1] | 32) == 'b') || (base == 8 && (digits[1] | 32) == 'o')))
        memmove(digits, digits + 2, strlen(digits + 2) + 1);
    unsigned long long size = strtoull(digits, &end, base);
    if (*end || end == digits || *digits == '-' || *digits == '+') return false;
    if (size > INT64_MAX) cot_jinja_fail(run, COT_JINJA_LIMIT, "an integer beyond 64 bits");
    *out = *text == '-' ? -(int64_t)size : (int64_t)size;
    return true;
}

static value truncated(cot_jinja_run *run, double real, value fallback)
{
    if (!isfinite(real)) return fallback;
    if (fabs(real) >= 9223372036854775808.0)
        cot_jinja_fail(run, COT_JINJA_LIMIT, "an integer beyond 64 bits");
    return cot_jinja_integer((int64_t)real);
}

COT_JINJA_FILTER_FUNCTION(int)
{
    value given_value[2];
    int64_t integer;
    double real;
    bind(run, given, "int", "default base", 0, given_value);
    value fallback = given_value[0].type != COT_JINJA_ABSENT ? given_value[0] : cot_jinja_integer(0);
    int64_t base = cot_jinja_is_integer(given_value[1]) ? cot_jinja_as_integer(given_value[1]) : 10;
    if (base < 2 || base > 36) cot_jinja_fail(run, COT_JINJA_PYTHON, "int() takes a base of 2 to 36");
    if (cot_jinja_is_undefined(self)) cot_jinja_fail_undefined(run, self);
    if (cot_jinja_is_integer(self)) return cot_jinja_integer(cot_jinja_as_integer(self));
    if (self.type == COT_JINJA_REAL) return truncated(run, self.real, fallback);
    if (self.type != COT_JINJA_STRING) return fallback;
    if (read_integer(run, self.string, (int)base, &integer)) return cot_jinja_integer(integer);
    return read_real(run, self.string, &real) ? truncated(run, real, fallback) : fallback;
}

COT_JINJA_FILTER_FUNCTION(float)
{
    value fallback;
    double real;
    bind(run, given, "float", "default", 0, &fallback);
    if (cot_jinja_is_undefined(self)) cot_jinja_fail_undefined(run, self);
    if (cot_jinja_is_number(self)) return cot_jinja_real(cot_jinja_as_real(self));
    if (self.type == COT_JINJA_STRING && read_real(run, self.string, &real)) return cot_jinja_real(real);
    return fallback.type != COT_JINJA_ABSENT ? fallback : cot_jinja_real(0);
}

COT_JINJA_FILTER_FUNCTION(round)
{
    value given_value[2];
    char text[512];
    bind(run, given, "round", "precision method", 0, given_value);
    int64_t precision = cot_jinja_is_integer(given_value[0]) ? cot_jinja_as_integer(given_value[0]) : 0;
    const cot_jinja_string *method = cot_jinja_text(run, "common").string;
    if (given_value[1].type == COT_JINJA_STRING) method = given_value[1].string;
    if (!cot_jinja_is_number(self) || precision < 0 || precision > 100)
        cot_jinja_fail(run, COT_JINJA_PYTHON, "round() takes a number, and a precision of 0 to 100");
    if (cot_jinja_string_is(method, "common")) {
        if (cot_jinja_is_integer(self)) return cot_jinja_integer(cot_jinja_as_integer(self));
        snprintf(text, sizeof text, "%.*f", (int)precision, self.real);
        return cot_jinja_real(strtod(text, NULL));
    }
    bool up = cot_jinja_string_is(method, "ceil");
    if (!up && !cot_jinja_string_is(method, "floor"))
        cot_jinja_fail(run, COT_JINJA_PYTHON, "method must be common, ceil or floor");
    double scale = pow(10, (double)precision), scaled = cot_jinja_as_real(self) * scale;
    return cot_jinja_real((up ? ceil(scaled) : floor(scaled)) / scale);
}

/* An empty line stays empty unless `blank`. */
static void add_line(cot_jinja_builder *b, const cot_jinja_string *s, size_t from, size_t to,
                     const cot_jinja_string *indent, bool indented, bool blank)
{
    if (indented && (blank || to > from)) cot_jinja_add_string(b, indent);
    cot_jinja_add_part(b, s, from, to);
}

COT_JINJA_FILTER_FUNCTION(indent)
{
    value given_value[3];
    bind(run, given, "indent", "width first blank", 0, given_value);
    const cot_jinja_string *s = cot_jinja_str(run, self), *indent;
    bool first = cot_jinja_truth(given_value[1]), blank = cot_jinja_truth(given_value[2]);
    if (given_value[0].type == COT_JINJA_STRING) {
        indent = given_value[0].string;
    } else {
        int64_t width = cot_jinja_is_integer(given_value[0]) ? cot_jinja_as_integer(given_value[0]) : 4;
        cot_jinja_builder spaces = {.run = run};
        for (; width > 0; width--) cot_jinja_add_text(&spaces, " ");
        indent = cot_jinja_built(&spaces, false).string;
    }
    cot_jinja_builder b = {.run = run};
    size_t from = 0;
    for (size_t line = 0;; line++) {
        const char *end = s->bytes > from ? memchr(s->data + from, '\n', s->bytes - from) : NULL;
        size_t to = end ? (size_t)(end - s->data) : s->bytes;
        bool last_empty = !end && from == s->bytes && line; // what follows the last LF is no line
        add_line(&b, s, from, to, indent, line ? !last_empty : first, blank || !line);
        if (!end) break;
        cot_jinja_add_part(&b, s, to, to + 1);
        from = to + 1;
    }
    return cot_jinja_built(&b, s->safe);
}

COT_JINJA_FILTER_FUNCTION(length)
{
    bind_none(run, given, "length");
    int64_t length = cot_jinja_length(self);
    if (length < 0)
        cot_jinja_fail(run, COT_JINJA_PYTHON, "object of type '%s' has no len()", cot_jinja_type_name(self));
    return cot_jinja_integer(length);
}

COT_JINJA_FILTER_FUNCTION(lower)
{
    bind_none(run, given, "lower");
    return cot_jinja_lower(run, cot_jinja_str(run, self));
}

COT_JINJA_FILTER_FUNCTION(upper)
{
    bind_none(run, given, "upper");
    return cot_jinja_upper(run, cot_jinja_str(run, self));
}

COT_JINJA_FILTER_FUNCTION(replace)
{
    value given_value[3];
    bind(run, given, "replace", "old new count", 2, given_value);
    const cot_jinja_string *s = cot_jinja_marked_safe(run, cot_jinja_str(run, self), false).string;
    int64_t most = cot_jinja_is_integer(given_value[2]) ? cot_jinja_as_integer(given_value[2]) : -1;
    return cot_jinja_replace(run, s, cot_jinja_str(run, given_value[0]), cot_jinja_str(run, given_value[1]),
                             most);
}

COT_JINJA_FILTER_FUNCTION(safe)
{
    bind_none(run, given, "safe");
    return cot_jinja_marked_safe(run, cot_jinja_str(run, self), true);
}

COT_JINJA_FILTER_FUNCTION(string)
{
    bind_none(run, given, "string");
    return (value){.type = COT_JINJA_STRING, .string = cot_jinja_str(run, self)};
}

static bool starts_word(char c)
{
    return strchr("-({[<", c) && c;
}

/* Unlike str.title, words begin at white space and opening brackets alone. */
COT_JINJA_FILTER_FUNCTION(title)
{
    bind_none(run, given, "title");
    const cot_jinja_string *s = cot_jinja_str(run, self);
    const cot_jinja_sequence *characters =
        cot_jinja_items_of(run, (value){.type = COT_JINJA_STRING, .string = s});
    cot_jinja_builder b = {.run = run};
    size_t from = 0, at = 0;
    for (size_t i = 0; i <= characters->count; i++) {
        const cot_jinja_string *c = i < characters->count ? characters->items[i].string : NULL;
        bool space = c && !cot_jinja_strip(run, c, NULL, true, false).string->bytes;
        if (!c || space || starts_word(*c->data)) {
            const cot_jinja_string *word = cot_jinja_part(run, s, from, at).string;
            cot_jinja_add_string(&b, cot_jinja_capitalize(run, word, true).string);
            if (c) cot_jinja_add_string(&b, c);
            from = at + (c ? c->bytes : 0);
        }
        if (c) at += c->bytes;
    }
    return cot_jinja_built(&b, false);
}

COT_JINJA_FILTER_FUNCTION(trim)
{
    value set;
    bind(run, given, "trim", "chars", 0, &set);
    const cot_jinja_string *characters = set.type == COT_JINJA_STRING ? set.string : NULL;
    return cot_jinja_strip(run, cot_jinja_str(run, self), characters, true, true);
}
