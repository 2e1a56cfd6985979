#include "tokenizer/jinja/string.h"

#include "tokenizer/utf8.h"

#include <string.h>

/* Memory that a string was made in, and how much of it is text: who ends there may go on there. */
typedef struct cot_jinja_room {
    size_t used, capacity;
} cot_jinja_room;

static void reserve(cot_jinja_builder *b, size_t bytes)
{
    cot_jinja_step(b->run, 1 + bytes / 64);
    if (bytes <= b->capacity - b->bytes) return;
    size_t capacity = b->capacity * 2 > b->bytes + bytes ? b->capacity * 2 : b->bytes + bytes;
    if (capacity < 32) capacity = 32;
    char *data = cot_jinja_take(b->run, capacity, 2);
    if (b->bytes) {
        memcpy(data, b->data, b->bytes);
        memcpy(data + capacity, b->own, b->bytes);
    }
    b->data = data;
    b->own = (uint8_t *)data + capacity;
    b->capacity = capacity;
}

void cot_jinja_add(cot_jinja_builder *b, const char *text, size_t bytes, bool own)
{
    if (!bytes) return;
    reserve(b, bytes);
    memcpy(b->data + b->bytes, text, bytes);
    memset(b->own + b->bytes, own, bytes);
    b->bytes += bytes;
}

void cot_jinja_add_text(cot_jinja_builder *b, const char *text)
{
    cot_jinja_add(b, text, strlen(text), true);
}

void cot_jinja_add_part(cot_jinja_builder *b, const cot_jinja_string *string, size_t from, size_t to)
{
    if (from >= to) return;
    reserve(b, to - from);
    memcpy(b->data + b->bytes, string->data + from, to - from);
    memcpy(b->own + b->bytes, string->own + from, to - from);
    b->bytes += to - from;
}

void cot_jinja_add_string(cot_jinja_builder *b, const cot_jinja_string *string)
{
    cot_jinja_add_part(b, string, 0, string->bytes);
}

void cot_jinja_add_character(cot_jinja_builder *b, int32_t character, bool own)
{
    char utf8[4];
    cot_jinja_add(b, utf8, cot_utf8_write(utf8, character), own);
}

static cot_jinja_value wrap(cot_jinja_run *run, cot_jinja_string string)
{
    cot_jinja_string *copy = cot_jinja_take(run, 1, sizeof *copy);
    *copy = string;
    return (cot_jinja_value){.type = COT_JINJA_STRING, .string = copy};
}

cot_jinja_value cot_jinja_built(cot_jinja_builder *b, bool safe)
{
    return wrap(b->run, (cot_jinja_string){b->data, b->own, b->bytes, safe, NULL});
}

cot_jinja_value cot_jinja_string_new(cot_jinja_run *run, const char *text, size_t bytes, bool own)
{
    cot_jinja_builder b = {.run = run};
    cot_jinja_add(&b, text, bytes, own);
    return cot_jinja_built(&b, false);
}

cot_jinja_value cot_jinja_text(cot_jinja_run *run, const char *text)
{
    return cot_jinja_string_new(run, text, strlen(text), true);
}

cot_jinja_value cot_jinja_part(cot_jinja_run *run, const cot_jinja_string *string, size_t from, size_t to)
{
    if (from >= to) return wrap(run, (cot_jinja_string){.safe = string->safe});
    return wrap(run,
                (cot_jinja_string){string->data + from, string->own + from, to - from, string->safe, NULL});
}

cot_jinja_value cot_jinja_marked_safe(cot_jinja_run *run, const cot_jinja_string *string, bool safe)
{
    cot_jinja_string copy = *string;
    copy.safe = safe;
    return wrap(run, copy);
}

cot_jinja_value cot_jinja_joined(cot_jinja_run *run, const cot_jinja_string *a, const cot_jinja_string *b)
{
    cot_jinja_room *room = a->room;
    cot_jinja_string out = {a->data, a->own, a->bytes + b->bytes, a->safe, room};
    if (!room || room->used != a->bytes || room->capacity - room->used < b->bytes) {
        room = cot_jinja_take(run, 1, sizeof *room);
        room->capacity = a->room ? 2 * out.bytes : out.bytes;
        cot_jinja_step(run, out.bytes / 64);
        char *data = cot_jinja_take(run, room->capacity, 2);
        if (a->bytes) {
            memcpy(data, a->data, a->bytes);
            memcpy(data + room->capacity, a->own, a->bytes);
        }
        out.data = data;
        out.own = (uint8_t *)data + room->capacity;
        out.room = room;
    }
    if (b->bytes) { // behind what anybody else sees of this memory
        memcpy((char *)(uintptr_t)out.data + a->bytes, b->data, b->bytes);
        memcpy((uint8_t *)(uintptr_t)out.own + a->bytes, b->own, b->bytes);
    }
    room->used = out.bytes;
    return wrap(run, out);
}

bool cot_jinja_string_is(const cot_jinja_string *string, const char *text)
{
    return string->bytes == strlen(text) && !memcmp(string->data ? string->data : "", text, string->bytes);
}

bool cot_jinja_strings_equal(const cot_jinja_string *a, const cot_jinja_string *b)
{
    return a->bytes == b->bytes && (!a->bytes || !memcmp(a->data, b->data, a->bytes));
}

int cot_jinja_strings_compare(const cot_jinja_string *a, const cot_jinja_string *b)
{
    size_t common = a->bytes < b->bytes ? a->bytes : b->bytes;
    int order = common ? memcmp(a->data, b->data, common) : 0;
    return order ? order : (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

size_t cot_jinja_find(const cot_jinja_string *s, const cot_jinja_string *needle, size_t from, size_t to)
{
    if (from > to || needle->bytes > to - from) return SIZE_MAX;
    if (!needle->bytes) return from;
    const char *found = memmem(s->data + from, to - from, needle->data, needle->bytes);
    return found ? (size_t)(found - s->data) : SIZE_MAX;
}

size_t cot_jinja_find_last(const cot_jinja_string *s, const cot_jinja_string *needle, size_t from, size_t to)
{
    if (from > to || needle->bytes > to - from) return SIZE_MAX;
    for (size_t at = to - needle->bytes + 1; at-- > from;)
        if (!needle->bytes || !memcmp(s->data + at, needle->data, needle->bytes)) return at;
    return SIZE_MAX;
}

static bool is_lead(char c)
{
    return ((unsigned char)c & 0xc0) != 0x80;
}

size_t cot_jinja_characters(const cot_jinja_string *s)
{
    size_t count = 0;
    for (size_t i = 0; i < s->bytes; i++) count += is_lead(s->data[i]);
    return count;
}

size_t cot_jinja_offset(const cot_jinja_string *s, size_t index)
{
    size_t at = 0;
    while (index-- && at < s->bytes) at += cot_utf8_length(s->data[at]);
    return at;
}

bool cot_jinja_is_space(int32_t c)
{
    return cot_is_space(c) || (c >= 0x1c && c <= 0x1f);
}

static bool is_stripped(int32_t character, const cot_jinja_string *set)
{
    if (!set) return cot_jinja_is_space(character);
    for (size_t at = 0; at < set->bytes;)
        if (cot_utf8_next(set->data, &at) == character) return true;
    return false;
}

cot_jinja_value cot_jinja_strip(cot_jinja_run *run, const cot_jinja_string *s, const cot_jinja_string *set,
                                bool start, bool end)
{
    size_t from = 0, to = s->bytes;
    for (size_t after = 0; start && from < to && is_stripped(cot_utf8_next(s->data, &after), set);)
        from = after;
    for (size_t before = to; end && to > from && is_stripped(cot_utf8_previous(s->data, &before), set);)
        to = before;
    cot_jinja_step(run, (s->bytes - (to - from)) / 16);
    return cot_jinja_part(run, s, from, to);
}

cot_jinja_value cot_jinja_replace(cot_jinja_run *run, const cot_jinja_string *s, const cot_jinja_string *old,
                                  const cot_jinja_string *fresh, int64_t most)
{
    cot_jinja_builder b = {.run = run};
    size_t done = 0;
    if (!old->bytes) { // before each character and at the end
        for (size_t next; most && done < s->bytes; done = next, most--) {
            next = done + cot_utf8_length(s->data[done]);
            cot_jinja_add_string(&b, fresh);
            cot_jinja_add_part(&b, s, done, next);
        }
        if (most) cot_jinja_add_string(&b, fresh);
    } else {
        for (size_t at; most && (at = cot_jinja_find(s, old, done, s->bytes)) != SIZE_MAX; most--) {
            cot_jinja_add_part(&b, s, done, at);
            cot_jinja_add_string(&b, fresh);
            done = at + old->bytes;
        }
    }
    cot_jinja_add_part(&b, s, done, s->bytes);
    return cot_jinja_built(&b, s->safe);
}

cot_jinja_value cot_jinja_escape(cot_jinja_run *run, const cot_jinja_string *s)
{
    cot_jinja_builder b = {.run = run};
    size_t done = 0;
    for (size_t at = 0; at < s->bytes; at++) {
        const char *escape = s->data[at] == '&'    ? "&amp;"
                             : s->data[at] == '<'  ? "&lt;"
                             : s->data[at] == '>'  ? "&gt;"
                             : s->data[at] == '\'' ? "&#39;"
                             : s->data[at] == '"'  ? "&#34;"
                                                   : NULL;
        if (!escape) continue;
        cot_jinja_add_part(&b, s, done, at);
        cot_jinja_add(&b, escape, strlen(escape), s->own[at]);
        done = at + 1;
    }
    cot_jinja_add_part(&b, s, done, s->bytes);
    return cot_jinja_built(&b, true);
}
