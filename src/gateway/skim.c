#include "gateway/skim.h"

#include "tokenizer/utf8.h"

#include <string.h>

enum { MOST_DEPTH = 64, MOST_DIGITS = 18, MOST_EXPONENT_DIGITS = 2 };

cot_skim cot_skim_of(const char *text, size_t bytes)
{
    if (!bytes) text = ""; // NULL has no end
    return (cot_skim){text, text + bytes, false, false};
}

/* The next byte; NUL, which begins nothing, at the end. */
static char peek(const cot_skim *s)
{
    return s->at < s->end ? *s->at : 0;
}

static void skip_blanks(cot_skim *s)
{
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\t' || *s->at == '\r')) s->at++;
}

static bool fail(cot_skim *s)
{
    s->bad = true;
    return false;
}

/* ---- values ---- */

/* The four digits of an escape; -1: they are none. */
static int32_t read_hex(cot_skim *s)
{
    int32_t value = 0;
    if (s->end - s->at < 4) return -1;
    for (int i = 0; i < 4; i++) {
        const char c = *s->at++;
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* Behind a backslash. Surrogates come in pairs, and U+0000 in no name. */
static bool skip_escape(cot_skim *s, bool is_name)
{
    const char c = peek(s);
    s->at += s->at < s->end;
    if (c != 'u') return c && strchr("\"\\/bfnrt", c);
    const int32_t one = read_hex(s);
    if (one < 0xd800 || one > 0xdfff) return one >= is_name;
    if (one > 0xdbff || s->end - s->at < 2 || *s->at++ != '\\' || *s->at++ != 'u') return false;
    const int32_t other = read_hex(s);
    return other >= 0xdc00 && other <= 0xdfff;
}

/* Over characters of a string that are what they look like, eight at a time. */
static void skip_plain(cot_skim *s)
{
    static const uint64_t ones = 0x0101010101010101, high = 0x8080808080808080;
    for (uint64_t eight; s->end - s->at >= 8; s->at += 8) {
        memcpy(&eight, s->at, 8);
        const uint64_t quote = eight ^ ones * '"', escape = eight ^ ones * '\\';
        // The high bit of each byte that is not ASCII, below 0x20, a quote or a backslash. Differences borrow of the bytes behind, so
        // that of the bits only the first is sure.
        const uint64_t stops = (eight | (eight - ones * 0x20) | (quote - ones) | (escape - ones)) & high;
        if (!stops) continue;
        s->at += __builtin_ctzll(stops) / 8;
        return;
    }
}

/* A string with its quotes. */
static bool skip_string(cot_skim *s, bool is_name)
{
    if (peek(s) != '"') return fail(s);
    s->at++;
    for (skip_plain(s); s->at < s->end;) {
        const unsigned char c = (unsigned char)*s->at;
        size_t length = 1;
        if (c == '"') {
            s->at++;
            return true;
        }
        if (c < 0x20 ||
            (c >= 0x80 && cot_utf8_scan(s->at, (size_t)(s->end - s->at), &length) != COT_UTF8_VALID))
            break;
        s->at += length;
        if (c == '\\' && !skip_escape(s, is_name)) break;
    }
    return fail(s);
}

static size_t skip_digits(cot_skim *s)
{
    const char *const begin = s->at;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9') s->at++;
    return (size_t)(s->at - begin);
}

/* The digits before a number's point. */
static bool skip_whole(cot_skim *s)
{
    if (peek(s) == '-') s->at++;
    const char lead = peek(s);
    const size_t digits = skip_digits(s);
    return digits >= 1 && digits <= MOST_DIGITS && (lead != '0' || digits == 1);
}

static bool skip_number(cot_skim *s)
{
    if (!skip_whole(s)) return fail(s);
    if (peek(s) == '.') {
        s->at++;
        if (!skip_digits(s)) return fail(s);
    }
    if (peek(s) != 'e' && peek(s) != 'E') return true;
    s->at++;
    if (peek(s) == '+' || peek(s) == '-') s->at++;
    const size_t digits = skip_digits(s);
    return (digits >= 1 && digits <= MOST_EXPONENT_DIGITS) || fail(s);
}

static bool skip_word(cot_skim *s, const char *word)
{
    const size_t n = strlen(word);
    if ((size_t)(s->end - s->at) < n || memcmp(s->at, word, n) != 0) return fail(s);
    s->at += n;
    return true;
}

/* A value that has none in it, or no more. */
static bool skip_leaf(cot_skim *s)
{
    switch (peek(s)) {
    case '"':
        return skip_string(s, false);
    case 't':
        return skip_word(s, "true");
    case 'f':
        return skip_word(s, "false");
    case 'n':
        return skip_word(s, "null");
    default:
        return skip_number(s);
    }
}

static bool skip_name(cot_skim *s)
{
    skip_blanks(s);
    if (!skip_string(s, true)) return false;
    skip_blanks(s);
    if (peek(s) != ':') return fail(s);
    s->at++;
    skip_blanks(s);
    return true;
}

/* Any value, without recursion: `lists` has a bit for each bracket that is open. */
static bool skip_value(cot_skim *s)
{
    uint64_t lists = 0;
    size_t depth = 0;
    for (;;) {
        const char bracket = peek(s);
        if (bracket == '{' || bracket == '[') {
            const bool is_list = bracket == '[';
            s->at++;
            skip_blanks(s);
            if (peek(s) != (is_list ? ']' : '}')) {
                if (++depth > MOST_DEPTH || (!is_list && !skip_name(s))) return fail(s);
                lists = lists << 1 | is_list;
                continue;
            }
            s->at++;
        } else if (!skip_leaf(s))
            return false;
        for (bool over = true; over; s->at++) { // of what is open, as much as ends here
            if (!depth) return true;
            skip_blanks(s);
            over = peek(s) == (lists & 1 ? ']' : '}');
            if (!over && peek(s) != ',') return fail(s);
            if (over) lists >>= 1, depth--;
        }
        skip_blanks(s);
        if (!(lists & 1) && !skip_name(s)) return false;
    }
}

/* ---- what is asked for ---- */

bool cot_skim_into(cot_skim *s, char bracket)
{
    skip_blanks(s);
    if (s->bad || peek(s) != bracket) return fail(s);
    s->at++;
    return s->first = true;
}

/* To what follows in an object or list that `close` ends; false at its end. */
static bool next(cot_skim *s, char close)
{
    const bool first = s->first;
    s->first = false;
    if (s->bad) return false;
    skip_blanks(s);
    if (peek(s) == close) {
        s->at++;
        return false;
    }
    if (!first && peek(s) != ',') return fail(s);
    s->at += !first;
    skip_blanks(s);
    return true;
}

bool cot_skim_member(cot_skim *s, cot_skim_span *name)
{
    if (!next(s, '}')) return false;
    const char *const begin = s->at;
    if (!skip_string(s, true)) return false;
    *name = (cot_skim_span){begin + 1, (size_t)(s->at - begin) - 2};
    skip_blanks(s);
    if (peek(s) != ':') return fail(s);
    s->at++;
    return true;
}

bool cot_skim_element(cot_skim *s)
{
    return next(s, ']');
}

cot_skim_span cot_skim_value(cot_skim *s)
{
    skip_blanks(s);
    const char *const begin = s->at;
    if (s->bad || !skip_value(s)) return (cot_skim_span){0};
    return (cot_skim_span){begin, (size_t)(s->at - begin)};
}

int64_t cot_skim_integer(cot_skim *s)
{
    int64_t value = 0;
    skip_blanks(s);
    const char *at = s->at;
    const bool negative = peek(s) == '-';
    if (s->bad || !skip_whole(s) || peek(s) == '.' || peek(s) == 'e' || peek(s) == 'E') {
        fail(s);
        return 0;
    }
    for (at += negative; at < s->at; at++) value = value * 10 + (*at - '0');
    return negative ? -value : value;
}

bool cot_skim_ends(cot_skim *s)
{
    skip_blanks(s);
    return !s->bad && s->at == s->end;
}

size_t cot_skim_which(cot_skim *s, uint32_t *seen, cot_skim_span name, const cot_skim_name *names,
                      size_t count)
{
    if (memchr(name.text, '\\', name.bytes)) s->bad = true;
    for (size_t i = 0; i < count; i++) {
        if (name.bytes != names[i].bytes || memcmp(name.text, names[i].text, name.bytes) != 0) continue;
        if (*seen & 1u << i) s->bad = true;
        *seen |= 1u << i;
        return i;
    }
    return count;
}
