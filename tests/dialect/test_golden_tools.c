/* What models wrote and what it means, of all families that there are here: whole, and cut at random. */
#include "harness/dialect/heard.h"
#include "harness/draw.h"
#include "harness/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define CASES COT_SHARED "/golden/agents/tools.jsonl"

enum { CUTS = 10000 }; // in all, over the cases

static json_t *cases;   // those of our families
static json_t *markers; // of a family: its tokens

static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : "";
}

/* The family's name here. */
static const cot_dialect *dialect_of(const json_t *item)
{
    const char *family = text_of(item, "family");
    if (strcmp(family, "deepseek-r1") == 0) family = "deepseek-v3";
    if (strcmp(family, "glm-4.7") == 0) family = "glm-4.5";
    return cot_dialect_named(family);
}

static void add_markers(const char *family, const json_t *item)
{
    json_t *known = json_object_get(markers, family), *marker, *other;
    size_t i, k;
    if (!known) {
        known = json_array();
        json_object_set_new(markers, family, known);
    }
    json_array_foreach(json_object_get(item, "markers_as_tokens"), i, marker)
    {
        bool found = false;
        json_array_foreach(known, k, other) found |= json_equal(marker, other);
        if (!found) json_array_append(known, marker);
    }
}

static bool is_token(void *context, const char *marker)
{
    size_t i;
    json_t *known;
    json_array_foreach((json_t *)context, i,
                       known) if (strcmp(json_string_value(known), marker) == 0) return true;
    return false;
}

static int load(void **state)
{
    (void)state;
    FILE *file = fopen(CASES, "rb");
    if (!file) return 0;
    char *line = NULL;
    size_t room = 0;
    cases = json_array();
    markers = json_object();
    for (ssize_t n; (n = getline(&line, &room, file)) > 0;) {
        json_t *item = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL);
        assert_non_null(item);
        if (dialect_of(item)) {
            add_markers(text_of(item, "family"), item);
            json_array_append(cases, item);
        }
        json_decref(item);
    }
    free(line);
    fclose(file);
    return 0;
}

static int unload(void **state)
{
    (void)state;
    json_decref(cases);
    json_decref(markers);
    return 0;
}

static cot_dialect_options options_of(const json_t *item)
{
    const cot_dialect *dialect = dialect_of(item);
    const json_t *tools = json_object_get(item, "tools");
    return (cot_dialect_options){.calls = json_array_size(tools)                 ? dialect
                                          : dialect->form == COT_DIALECT_HARMONY ? dialect
                                                                                 : NULL,
                                 .reasoning = dialect,
                                 .is_opened = strcmp(text_of(item, "opened"), "reasoning") == 0,
                                 .tools = tools,
                                 .is_token = is_token,
                                 .context = json_object_get(markers, text_of(item, "family"))};
}

static bool is_cut(const json_t *item)
{
    return strcmp(text_of(item, "ended"), "length") == 0;
}

/* ---- what is right ---- */

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* White space as one space, none at the ends. */
static char *squeezed(const char *text)
{
    char *out = malloc(strlen(text) + 1), *at = out;
    for (; *text; text++)
        if (!is_space(*text))
            *at++ = *text;
        else if (at > out && at[-1] != ' ')
            *at++ = ' ';
    if (at > out && at[-1] == ' ') at--;
    *at = 0;
    return out;
}

static bool same_text(const char *said, const json_t *expected, bool exact)
{
    const char *wanted = json_is_string(expected) ? json_string_value(expected) : "";
    const bool any = strcmp(wanted, "*") == 0; // but nothing
    if (exact && !any) return strcmp(said, wanted) == 0;
    char *a = squeezed(said), *b = squeezed(wanted);
    const bool same = any ? *a != 0 : strcmp(a, b) == 0;
    free(a);
    free(b);
    return same;
}

static bool same_json(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    size_t i;
    if (json_is_number(a) && json_is_number(b))
        return json_is_integer(a) && json_is_integer(b) ? json_integer_value(a) == json_integer_value(b)
                                                        : json_number_value(a) == json_number_value(b);
    if (json_typeof(a) != json_typeof(b)) return false;
    if (json_is_object(a)) {
        if (json_object_size(a) != json_object_size(b)) return false;
        json_object_foreach((json_t *)a, key,
                            value) if (!json_object_get(b, key) ||
                                       !same_json(value, json_object_get(b, key))) return false;
        return true;
    }
    if (json_is_array(a)) {
        if (json_array_size(a) != json_array_size(b)) return false;
        json_array_foreach(a, i, value) if (!same_json(value, json_array_get(b, i))) return false;
        return true;
    }
    return json_equal(a, b);
}

/* The value of arguments as far as they came: strings and brackets that are open are closed. */
static json_t *closed(const char *text)
{
    for (size_t n = strlen(text); n; n--) {
        char *whole = calloc(1, 2 * n + 4), open[256];
        size_t depth = 0, end = n;
        bool in_string = false, escaped = false;
        memcpy(whole, text, n);
        for (size_t i = 0; i < n && depth < sizeof open; i++) {
            const char c = text[i];
            if (in_string) {
                if (escaped)
                    escaped = false;
                else if (c == '\\')
                    escaped = true;
                else if (c == '"')
                    in_string = false;
            } else if (c == '"')
                in_string = true;
            else if (c == '{' || c == '[')
                open[depth++] = c == '{' ? '}' : ']';
            else if ((c == '}' || c == ']') && depth)
                depth--;
        }
        if (in_string) whole[end++] = '"';
        while (depth) whole[end++] = open[--depth];
        json_t *value = escaped ? NULL : json_loadb(whole, end, JSON_ALLOW_NUL, NULL);
        free(whole);
        if (value) return value;
    }
    return NULL;
}

static bool same_call(const heard_call *call, const json_t *expected)
{
    if (strcmp(call->name.data, text_of(expected, "name")) != 0) return false;
    const json_t *id = json_object_get(expected, "id"), *wanted = json_object_get(expected, "arguments"),
                 *text = json_object_get(expected, "arguments_text");
    if (json_is_string(id) && strcmp(call->id.data, json_string_value(id)) != 0) return false;
    if (text) return same_text(call->arguments.data, text, false);
    json_t *value =
        json_is_true(json_object_get(expected, "partial"))
            ? closed(call->arguments.data)
            : json_loadb(call->arguments.data, call->arguments.bytes, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
    const bool same = value && same_json(value, wanted);
    json_decref(value);
    return same;
}

static bool same_answer(const heard *h, const json_t *item, const json_t *reading)
{
    const json_t *expected = json_object_get(item, "expected"),
                 *reasoning = json_object_get(reading, "reasoning_content"),
                 *content = json_object_get(reading, "content"),
                 *calls = json_object_get(reading, "tool_calls");
    if (!reasoning) reasoning = json_object_get(expected, "reasoning_content");
    if (!content) content = json_object_get(expected, "content");
    bool same = same_text(h->content.data, content, json_is_true(json_object_get(item, "exact"))) &&
                same_text(h->reasoning.data, reasoning, false) && json_array_size(calls) == h->count;
    for (size_t i = 0; same && i < h->count; i++) same = same_call(&h->calls[i], json_array_get(calls, i));
    return same;
}

static bool is_right(const heard *h, const json_t *item)
{
    size_t i;
    json_t *other;
    if (same_answer(h, item, json_object_get(item, "expected"))) return true;
    json_array_foreach(json_object_get(item, "also_right"), i,
                       other) if (same_answer(h, item, other)) return true;
    return false;
}

static cot_buffer marked(const json_t *item)
{
    const json_t *text = json_object_get(item, "text");
    return heard_mark(json_string_value(text), json_string_length(text),
                      json_object_get(item, "markers_as_tokens"), json_object_get(item, "plain_at"));
}

static void require_cases(void)
{
    if (cases) return;
    print_message("SKIPPED: %s is not there\n", CASES);
    skip();
}

static void test_answers_mean_what_they_were_made_from(void **state)
{
    (void)state;
    require_cases();
    size_t i, right = 0;
    json_t *item;
    json_array_foreach(cases, i, item)
    {
        const cot_dialect_options options = options_of(item);
        cot_buffer text = marked(item);
        heard h = heard_parse(&options, text.data, text.bytes, NULL, 0, is_cut(item));
        if (is_right(&h, item))
            right++;
        else {
            print_message("not as expected: %s, %s (%s)\n", text_of(item, "family"), text_of(item, "kind"),
                          text_of(item, "id"));
            heard_print(&h);
        }
        heard_free(&h);
        cot_buffer_free(&text);
    }
    print_message("%zu of %zu answers as expected\n", right, json_array_size(cases));
    assert_true(json_array_size(cases) > 700);
    assert_int_equal(right, json_array_size(cases));
}

static int ascending(const void *a, const void *b)
{
    return (*(const size_t *)a > *(const size_t *)b) - (*(const size_t *)a < *(const size_t *)b);
}

static void test_streams_are_the_whole_answer(void **state)
{
    (void)state;
    require_cases();
    struct draw draw = {.seed = test_seed()};
    const size_t count = json_array_size(cases);
    for (size_t k = 0; k < CUTS; k++) {
        const json_t *item = json_array_get(cases, k % count);
        const cot_dialect_options options = options_of(item);
        cot_buffer text = marked(item);
        size_t cuts[400], n = k < count ? text.bytes : (size_t)draw_below(&draw, 12);
        if (n > 400) n = 400;
        for (size_t i = 0; i < n; i++)
            cuts[i] = k < count ? i : (size_t)draw_below(&draw, (int64_t)text.bytes + 1);
        qsort(cuts, n, sizeof *cuts, ascending);
        heard whole = heard_parse(&options, text.data, text.bytes, NULL, 0, is_cut(item)),
              streamed = heard_parse(&options, text.data, text.bytes, cuts, n, is_cut(item));
        if (!heard_equal(&whole, &streamed)) {
            print_message("%s, %s (%s)\n", text_of(item, "family"), text_of(item, "kind"),
                          text_of(item, "id"));
            heard_print(&whole);
            heard_print(&streamed);
        }
        assert_true(heard_equal(&whole, &streamed));
        heard_free(&whole);
        heard_free(&streamed);
        cot_buffer_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_mean_what_they_were_made_from),
        cmocka_unit_test(test_streams_are_the_whole_answer),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
