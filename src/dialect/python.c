/* Calls as a list in Python's form, [f(a=1, b='x'), ...], of literals alone. The list is read once it is whole: a fault at its end makes
 * all of it content. */
#include "dialect/parser.h"

#include <string.h>

enum { IN_LIST = COT_DIALECT_IN_CALL, BEHIND };
enum { MOST_DEPTH = 64 };

/* A list that is read; `tells`: its calls go out, else it is only looked whether it can be read. */
typedef struct reader {
    cot_dialect_parser *parser;
    const char *text;
    size_t bytes, at;
    bool tells;
    bool is_partial; // the text was cut: what is missing at its end is no fault
    cot_buffer json; // arguments of the call that is read
} reader;

static void skip_space(reader *r)
{
    while (r->at < r->bytes && cot_dialect_is_space(r->text[r->at])) r->at++;
}

static bool is_end(const reader *r)
{
    return r->at == r->bytes;
}

static bool take(reader *r, char c)
{
    skip_space(r);
    if (is_end(r) || r->text[r->at] != c) return false;
    r->at++;
    return true;
}

static bool put(reader *r, const char *text, size_t bytes)
{
    if (!cot_buffer_append(&r->json, text, bytes)) r->parser->failed = true;
    return !r->parser->failed;
}

static bool put_text(reader *r, const char *text)
{
    return put(r, text, strlen(text));
}

static bool put_quoted(reader *r, const char *text, size_t bytes)
{
    if (!cot_dialect_quote(&r->json, text, bytes)) r->parser->failed = true;
    return !r->parser->failed;
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           (unsigned char)c >= 0x80;
}

/* Characters of a name, and of other such, from where the reader is. */
static size_t word_bytes(const reader *r, const char *others)
{
    size_t n = 0;
    while (r->at + n < r->bytes &&
           (is_word(r->text[r->at + n]) || (r->text[r->at + n] && strchr(others, r->text[r->at + n]))))
        n++;
    return n;
}

static int hex_value(char c)
{
    const char *digits = "0123456789abcdef", *at = c ? strchr(digits, c | 0x20) : NULL;
    return at && *at ? (int)(at - digits) : c >= '0' && c <= '9' ? c - '0' : -1;
}

static bool put_character(reader *r, unsigned long c)
{
    char utf8[4];
    size_t n = 0;
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return false;
    if (c < 0x80)
        utf8[n++] = (char)c;
    else if (c < 0x800)
        utf8[n++] = (char)(0xc0 | c >> 6);
    else if (c < 0x10000) {
        utf8[n++] = (char)(0xe0 | c >> 12);
        utf8[n++] = (char)(0x80 | (c >> 6 & 0x3f));
    } else {
        utf8[n++] = (char)(0xf0 | c >> 18);
        utf8[n++] = (char)(0x80 | (c >> 12 & 0x3f));
        utf8[n++] = (char)(0x80 | (c >> 6 & 0x3f));
    }
    if (c >= 0x80) utf8[n++] = (char)(0x80 | (c & 0x3f));
    return put_quoted(r, utf8, n);
}

/* What stands behind a backslash. */
static bool read_escape(reader *r)
{
    static const char from[] = "ntrbfav0\\'\"", to[] = "\n\t\r\b\f\a\v\0\\'\"";
    const char c = r->text[r->at++];
    const char *known = c ? strchr(from, c) : NULL;
    if (known) return put_quoted(r, &to[known - from], 1);
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (c == '\n') return true; // the line goes on
    if (!digits) return put_quoted(r, "\\", 1) && put_quoted(r, &c, 1);
    unsigned long value = 0;
    for (size_t i = 0; i < digits; i++) {
        if (is_end(r)) return r->is_partial;
        const int digit = hex_value(r->text[r->at++]);
        if (digit < 0) return false;
        value = value * 16 + (unsigned long)digit;
    }
    return put_character(r, value);
}

static bool read_string(reader *r)
{
    const char quote = r->text[r->at++];
    if (!put_text(r, "\"")) return false;
    for (;;) {
        const char ends[] = {quote, '\\', 0};
        const size_t from = r->at;
        while (!is_end(r) && r->text[r->at] != ends[0] && r->text[r->at] != ends[1]) r->at++;
        if (!put_quoted(r, r->text + from, r->at - from)) return false;
        if (is_end(r)) return r->is_partial;
        if (r->text[r->at++] == quote) return put_text(r, "\"");
        if (is_end(r)) return r->is_partial;
        if (!read_escape(r)) return false;
    }
}

/* A number as JSON has it: what Python writes beyond that is none. */
static bool read_number(reader *r)
{
    const size_t from = r->at;
    if (r->text[r->at] == '-') r->at++;
    while (!is_end(r) && r->text[r->at] && strchr("0123456789.eE+-", r->text[r->at])) {
        const char c = r->text[r->at], before = r->text[r->at - 1];
        if ((c == '+' || c == '-') && before != 'e' && before != 'E') return false; // something is computed
        r->at++;
    }
    json_error_t why;
    json_t *number =
        json_loadb(r->text + from, r->at - from, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, &why);
    const bool good = json_is_number(number);
    json_decref(number);
    if (!good) return is_end(r) && r->is_partial;
    return put(r, r->text + from, r->at - from);
}

static bool read_value(reader *r, int depth);

/* Values between brackets; `pairs`: each has a key. */
static bool read_values(reader *r, char end, bool pairs, int depth)
{
    r->at++;
    if (!put_text(r, pairs ? "{" : "[")) return false;
    for (size_t i = 0;; i++) {
        if (take(r, end)) return put_text(r, pairs ? "}" : "]");
        if (is_end(r)) return r->is_partial;
        if (i && !take(r, ',')) return false;
        if (i && take(r, end)) return put_text(r, pairs ? "}" : "]");
        skip_space(r);
        if (is_end(r)) return r->is_partial;
        if (i && !put_text(r, ", ")) return false;
        if (pairs) {
            if (!strchr("'\"", r->text[r->at]) || !read_string(r)) return false;
            if (!take(r, ':')) return is_end(r) && r->is_partial;
            if (!put_text(r, ": ")) return false;
        }
        if (!read_value(r, depth + 1)) return false;
    }
}

static bool read_value(reader *r, int depth)
{
    static const struct {
        const char *word, *json;
    } words[] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                 {"true", "true"}, {"false", "false"}, {"null", "null"}};
    skip_space(r);
    if (is_end(r)) return r->is_partial;
    if (depth > MOST_DEPTH) return false;
    const char c = r->text[r->at];
    if (c == '\'' || c == '"') return read_string(r);
    if (c == '[' || c == '(') return read_values(r, c == '[' ? ']' : ')', false, depth);
    if (c == '{') return read_values(r, '}', true, depth);
    if (c == '-' || (c >= '0' && c <= '9')) return read_number(r);
    const size_t bytes = word_bytes(r, "");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strlen(words[i].word) != bytes || memcmp(words[i].word, r->text + r->at, bytes) != 0) continue;
        r->at += bytes;
        return put_text(r, words[i].json);
    }
    return r->at + bytes == r->bytes && r->is_partial; // a word that was cut
}

/* NAME(KEY=VALUE, ...). */
static bool read_call(reader *r)
{
    skip_space(r);
    const char *name = r->text + r->at;
    const size_t bytes = word_bytes(r, ".-");
    if (!bytes || !cot_dialect_is_name(name, bytes) || (*name >= '0' && *name <= '9')) return false;
    if (r->parser->is_bare && !cot_dialect_tool(r->parser, name, bytes)) return false;
    r->at += bytes;
    if (!take(r, '(')) return false;
    r->json.bytes = 0;
    bool good = put_text(r, "{"), is_whole = false;
    for (size_t i = 0; good; i++) {
        is_whole = take(r, ')');
        if (is_whole || (is_end(r) && r->is_partial)) break;
        if (i && !take(r, ',')) return false;
        if (i && (is_whole = take(r, ')'))) break;
        skip_space(r);
        if (is_end(r)) return false;
        const char *key = r->text + r->at;
        const size_t key_bytes = word_bytes(r, "");
        r->at += key_bytes;
        if (is_end(r) && r->is_partial) break; // a key that was cut
        if (!key_bytes || !take(r, '=')) return false;
        good = (!i || put_text(r, ", ")) && put_text(r, "\"") && put_quoted(r, key, key_bytes) &&
               put_text(r, "\": ") && read_value(r, 0);
    }
    if (!good) return false;
    if (is_whole) put_text(r, "}");
    if (r->tells) {
        cot_dialect_announce(r->parser, name, bytes, NULL, 0);
        cot_dialect_argue(r->parser, r->json.data, r->json.bytes);
    }
    return !r->parser->failed;
}

static bool read_list(reader *r)
{
    r->at = 0;
    if (!take(r, '[')) return false;
    for (size_t i = 0;; i++) {
        if (take(r, ']')) return i > 0;
        skip_space(r);
        if (is_end(r)) return r->is_partial && i > 0;
        if (i && !take(r, ',')) return false;
        skip_space(r);
        if (is_end(r)) return r->is_partial;
        if (i && take(r, ']')) return true;
        const size_t before = r->at;
        if (!read_call(r)) {
            // a call of which not even the name is whole
            const bool is_name_cut =
                r->is_partial && i > 0 &&
                before + word_bytes(&(reader){.text = r->text, .bytes = r->bytes, .at = before}, ".-") ==
                    r->bytes;
            return is_name_cut;
        }
    }
}

/* Whether the list that was kept can be read; its calls go out then. */
static bool tell_list(cot_dialect_parser *p, bool is_partial)
{
    reader r = {.parser = p, .text = p->early.data, .bytes = p->early.bytes, .is_partial = is_partial};
    bool good = r.bytes && read_list(&r);
    if (good) {
        r.tells = true;
        read_list(&r);
    }
    cot_buffer_free(&r.json);
    return good && p->is_announced;
}

/* Keeps the list up to its end. */
static cot_dialect_look step_list(cot_dialect_parser *p)
{
    cot_dialect_scan *s = &p->scan;
    for (; p->at < p->in.bytes; p->at++) {
        const char c = p->in.data[p->at];
        if ((unsigned char)c >= COT_DIALECT_END) {
            const char *name;
            size_t bytes, next;
            if (cot_dialect_token(p, p->at, &name, &bytes, &next) != COT_DIALECT_YES) return COT_DIALECT_MORE;
            if (!s->in_string) break;
            cot_dialect_keep(p, &p->early, name, bytes);
            p->at = next - 1;
            continue;
        }
        if (!s->begun && !cot_dialect_is_space(c) && c != '[') break;           // there is no list
        if (!s->in_string && p->call_end.text && *p->call_end.text == c) break; // the marker, as text
        cot_dialect_keep(p, &p->early, &c, 1);
        if (p->failed) return COT_DIALECT_MORE;
        if (s->escaped)
            s->escaped = false;
        else if (s->in_string) {
            s->escaped = c == '\\';
            s->in_string = c != (char)p->kind;
        } else if (c == '\'' || c == '"') {
            s->in_string = true;
            p->kind = c;
        } else if (c == '[' || c == '(' || c == '{') {
            s->begun = true;
            s->depth++;
        } else if ((c == ']' || c == ')' || c == '}') && !--s->depth) {
            p->at++;
            p->state = BEHIND;
            return COT_DIALECT_YES;
        }
    }
    if (p->at == p->in.bytes) return COT_DIALECT_MORE;
    cot_dialect_unread_call(p);
    return COT_DIALECT_YES;
}

cot_dialect_look cot_dialect_step_python(cot_dialect_parser *p)
{
    if (p->state == IN_LIST) return step_list(p);
    size_t at = p->at, next = at;
    const cot_dialect_look space = cot_dialect_skip_space(p, &at);
    if (space == COT_DIALECT_MORE) return space;
    const cot_dialect_look look =
        space == COT_DIALECT_YES ? COT_DIALECT_YES : cot_dialect_match(p, &p->call_end, at, &next);
    if (look == COT_DIALECT_MORE) return look;
    const bool is_alone = space == COT_DIALECT_YES || look == COT_DIALECT_YES;
    // a list that begins a text is an answer
    if ((p->is_bare && !is_alone) || !tell_list(p, false)) {
        if (!p->failed) cot_dialect_unread_call(p);
        return COT_DIALECT_YES;
    }
    if (look == COT_DIALECT_YES && space != COT_DIALECT_YES) p->at = next;
    p->ends_loosely = look != COT_DIALECT_YES;
    cot_dialect_end_call(p);
    return COT_DIALECT_YES;
}

void cot_dialect_over_python(cot_dialect_parser *p)
{
    if (p->state == IN_LIST) tell_list(p, p->is_cut);
}
