/* Chat templates of real models, and Jinja's features one at a time: what transformers makes of each. */
#include "tokenizer/chat.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define FOLDER COT_SHARED "/golden/chat"
#define FEATURES "jinja-features"

typedef struct tally {
    int good, bad, needed, needed_bad;
} tally;

static char *read_all(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    char *text = malloc(*bytes + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, *bytes, file), *bytes);
    text[*bytes] = 0;
    fclose(file);
    return text;
}

static struct tm clock_of(const json_t *vector)
{
    struct tm now = {0};
    const char *text = json_string_value(json_object_get(vector, "now"));
    strptime(text ? text : "2025-03-04T05:06:07", "%Y-%m-%dT%H:%M:%S", &now);
    return now;
}

/* Whether the outcome is the vector's: the same text, or a failure; of the template's own, in its words. */
static bool is_expected(const json_t *vector, cot_status status, const cot_chat_text *out,
                        const cot_jinja_failure *failure)
{
    const json_t *expected = json_object_get(vector, "expected");
    const char *type = json_string_value(json_object_get(vector, "error_type"));
    if (expected)
        return status == COT_OK && out->bytes == json_string_length(expected) &&
               !memcmp(out->text, json_string_value(expected), out->bytes);
    if (!strcmp(type, "raise"))
        return failure->reason == COT_JINJA_RAISED &&
               !strcmp(failure->message, json_string_value(json_object_get(vector, "error")));
    return status != COT_OK && failure->reason != COT_JINJA_RAISED && failure->reason != COT_JINJA_LIMIT;
}

static void complain(const char *name, int line, const json_t *vector, cot_status status,
                     const cot_chat_text *out, const cot_jinja_failure *failure)
{
    const char *expected = json_string_value(json_object_get(vector, "expected"));
    print_error("%s line %d: got %s\n  not %s\n", name, line, status == COT_OK ? out->text : failure->message,
                expected ? expected : json_string_value(json_object_get(vector, "error")));
}

static json_t *next_vector(FILE *file, char **line, size_t *capacity)
{
    ssize_t bytes = getline(line, capacity, file);
    if (bytes < 0) return NULL;
    json_t *vector = json_loadb(*line, (size_t)bytes, JSON_ALLOW_NUL, NULL);
    assert_non_null(vector);
    return vector;
}

static bool check_conversation(const cot_chat_template *chat, const json_t *vector, const char *name,
                               int line)
{
    struct tm now = clock_of(vector);
    cot_chat_text out;
    cot_jinja_failure failure = {0};
    cot_chat_request request = {
        .messages = json_object_get(vector, "messages"),
        .tools = json_object_get(vector, "tools"),
        .documents = json_object_get(vector, "documents"),
        .variables = {json_object_get(vector, "kwargs"), NULL},
        .add_generation_prompt = json_is_true(json_object_get(vector, "add_generation_prompt")),
        .continue_final_message = json_is_true(json_object_get(vector, "continue_final_message")),
        .strict = true,
        .now = &now,
        .limits = cot_chat_limits};
    const bool both = request.add_generation_prompt && request.continue_final_message;
    cot_status status = COT_INVALID_ARGUMENT; // what the public call says to both
    if (both)
        out = (cot_chat_text){0};
    else
        status = cot_chat_render_request(chat, &out, &request, &failure, NULL);
    bool good = is_expected(vector, status, &out, &failure);
    if (!good) complain(name, line, vector, status, &out, &failure);
    cot_chat_text_free(&out);
    return good;
}

/* ---- over OpenAI's API ---- */

static json_t *arguments_of(json_t *call, json_t **holder)
{
    json_t *function = json_object_get(call, "function");
    *holder = json_is_object(function) ? function : call;
    return json_object_get(*holder, "arguments");
}

/* Writes each object that is the arguments of a tool call as text; false where there is none, or others beside. */
static bool write_arguments(json_t *messages)
{
    json_t *message, *call, *holder;
    size_t m, c;
    int written = 0, others = 0;
    json_array_foreach(messages, m, message)
        json_array_foreach(json_object_get(message, "tool_calls"), c, call)
    {
        const json_t *arguments = arguments_of(call, &holder);
        char *text =
            json_is_object(arguments) ? json_dumps(arguments, c % 2 ? JSON_COMPACT : JSON_INDENT(1)) : NULL;
        written += text != NULL;
        others += !text;
        if (text) json_object_set_new(holder, "arguments", json_string(text));
        free(text);
    }
    return written && !others;
}

/* A conversation whose tool calls have objects renders the same when these come as text, as a client of the API sends
 * them. */
static bool check_openai(const cot_chat_template *chat, const json_t *vector, const char *name, int line,
                         int *count)
{
    json_t *messages = json_deep_copy(json_object_get(vector, "messages"));
    struct tm now = clock_of(vector);
    cot_chat_text out;
    cot_jinja_failure failure = {0};
    bool good = true;
    if (json_object_get(vector, "expected") && write_arguments(messages)) {
        const cot_chat_request request = {
            .messages = messages,
            .tools = json_object_get(vector, "tools"),
            .documents = json_object_get(vector, "documents"),
            .variables = {json_object_get(vector, "kwargs"), NULL},
            .add_generation_prompt = json_is_true(json_object_get(vector, "add_generation_prompt")),
            .continue_final_message = json_is_true(json_object_get(vector, "continue_final_message")),
            .openai = true,
            .strict = true,
            .now = &now,
            .limits = cot_chat_limits};
        const cot_status status = cot_chat_render_request(chat, &out, &request, &failure, NULL);
        good = is_expected(vector, status, &out, &failure);
        if (!good) complain(name, line, vector, status, &out, &failure);
        cot_chat_text_free(&out);
        ++*count;
    }
    json_decref(messages);
    return good;
}

/* What transformers made of it before it dropped what is null, where it fails since. */
static bool check_nulls(const cot_chat_template *chat, const json_t *vector, const char *name, int line,
                        int *count)
{
    const json_t *before = json_object_get(json_object_get(vector, "without"), "null"),
                 *expected = json_object_get(before, "expected");
    if (json_object_get(vector, "expected") || !expected) return true;
    struct tm now = clock_of(vector);
    cot_chat_text out;
    cot_jinja_failure failure = {0};
    const cot_chat_request request = {.messages = json_object_get(vector, "messages"),
                                      .tools = json_object_get(vector, "tools"),
                                      .documents = json_object_get(vector, "documents"),
                                      .variables = {json_object_get(vector, "kwargs"), NULL},
                                      .add_generation_prompt =
                                          json_is_true(json_object_get(vector, "add_generation_prompt")),
                                      .now = &now,
                                      .limits = cot_chat_limits};
    const cot_status status = cot_chat_render_request(chat, &out, &request, &failure, NULL);
    const bool good = is_expected(before, status, &out, &failure);
    if (!good) complain(name, line, before, status, &out, &failure);
    cot_chat_text_free(&out);
    ++*count;
    return good;
}

typedef struct counts {
    int lines, bad, objects, other_objects, nulls, other_nulls;
} counts;

static void check_template(const char *name, counts *c)
{
    char path[512];
    cot_chat_template *chat;
    cot_error error;
    size_t bytes, capacity = 0;
    snprintf(path, sizeof path, FOLDER "/%.200s.jinja", name);
    char *text = read_all(path, &bytes), *line = NULL;
    if (cot_chat_template_parse(&chat, text, bytes, name, &error)) fail_msg("%s", error.message);
    free(text);
    snprintf(path, sizeof path, FOLDER "/%.200s.jsonl", name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    int number = 0;
    for (json_t *vector; (vector = next_vector(file, &line, &capacity)); json_decref(vector)) {
        c->bad += !check_conversation(chat, vector, name, ++number);
        c->other_objects += !check_openai(chat, vector, name, number, &c->objects);
        c->other_nulls += !check_nulls(chat, vector, name, number, &c->nulls);
    }
    c->lines += number;
    free(line);
    fclose(file);
    cot_chat_template_close(chat);
}

static void test_conversations(void **state)
{
    (void)state;
    DIR *folder = opendir(FOLDER);
    assert_non_null(folder);
    int templates = 0;
    counts c = {0};
    for (struct dirent *entry; (entry = readdir(folder));) {
        char name[256];
        char *dot = strrchr(entry->d_name, '.');
        if (!dot || strcmp(dot, ".jinja") != 0) continue;
        snprintf(name, sizeof name, "%.*s", (int)(dot - entry->d_name), entry->d_name);
        check_template(name, &c);
        templates++;
    }
    closedir(folder);
    print_message("%d of %d conversations of %d templates\n", c.lines - c.bad, c.lines, templates);
    print_message("%d of %d with objects are the same with text over the API\n", c.objects - c.other_objects,
                  c.objects);
    print_message("%d of %d that fail without what is null are as they were\n", c.nulls - c.other_nulls,
                  c.nulls);
    assert_int_equal(c.bad + c.other_objects + c.other_nulls, 0);
    assert_true(templates >= 31 && c.lines >= 1957 && c.objects >= 188 && c.nulls >= 3);
}

/* A rendering of the template with just the variables of the context. */
typedef struct rendering {
    cot_jinja_run run;
    cot_jinja_template tree;
    cot_jinja_builder text;
} rendering;

static bool render(rendering *r, const json_t *source, const json_t *context, const struct tm *now)
{
    r->run.limits = cot_chat_limits;
    r->run.now = now;
    r->text.run = &r->run;
    if (setjmp(r->run.out)) return false;
    cot_jinja_parse(&r->run, &r->tree, json_string_value(source), json_string_length(source));
    cot_jinja_render(&r->run, &r->tree, cot_chat_value(&r->run, context, false).map, &r->text);
    return true;
}

static bool check_feature(const json_t *vector, int line)
{
    struct tm now = {0};
    strptime("2025-03-04T05:06:07", "%Y-%m-%dT%H:%M:%S", &now);
    rendering *r = calloc(1, sizeof *r);
    assert_non_null(r);
    bool rendered = render(r, json_object_get(vector, "template"), json_object_get(vector, "context"), &now);
    char none[1] = "";
    cot_chat_text out = {r->text.data ? r->text.data : none, r->text.bytes, r->text.own};
    cot_status status = rendered ? COT_OK : COT_INVALID_ARGUMENT;
    bool good = is_expected(vector, status, &out, &r->run.failure);
    if (!good && json_integer_value(json_object_get(vector, "templates"))) {
        char *text = strndup(out.text, out.bytes);
        cot_chat_text shown = {text, out.bytes, NULL};
        print_error("template %s\n", json_string_value(json_object_get(vector, "template")));
        complain(FEATURES, line, vector, status, &shown, &r->run.failure);
        free(text);
    }
    cot_jinja_end(&r->run);
    free(r);
    return good;
}

static void test_features(void **state)
{
    (void)state;
    tally t = {0};
    char *line = NULL;
    size_t capacity = 0;
    int number = 0;
    FILE *file = fopen(FOLDER "/" FEATURES ".jsonl", "r");
    assert_non_null(file);
    for (json_t *vector; (vector = next_vector(file, &line, &capacity)); json_decref(vector)) {
        bool good = check_feature(vector, ++number),
             needed = json_integer_value(json_object_get(vector, "templates"));
        t.good += good;
        t.bad += !good;
        t.needed += needed;
        t.needed_bad += needed && !good;
    }
    free(line);
    fclose(file);
    print_message("%d of %d features that templates use; %d of %d in all\n", t.needed - t.needed_bad,
                  t.needed, t.good, t.good + t.bad);
    assert_int_equal(t.needed_bad, 0);
    assert_true(t.needed >= 301);
}

int main(void)
{
    if (access(FOLDER, R_OK)) {
        printf("SKIPPED: no %s\n", FOLDER);
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_conversations), cmocka_unit_test(test_features)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
