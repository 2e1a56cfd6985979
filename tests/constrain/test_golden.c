/* Schemas with valid and invalid instances, in shared/golden/agents: token by token with a vocabulary of bytes and with one whose
 * tokens are words; and what is refused. Skipped without the library (tools/get-llguidance). */
#include "harness/cmocka.h"

#include "coterie/constraint.h"
#include "coterie/worker.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES, WORDS, VOCABULARIES, SKIPPED = 77 };

typedef struct vocabulary {
    cot_tokenizer *tokenizer;
    cot_constraint_compiler *compiler;
    int32_t eos;
} vocabulary;

static vocabulary all[VOCABULARIES];

static int open_all(void **state)
{
    (void)state;
    cot_error error;
    if (cot_mock_tokenizer_open(&all[BYTES].tokenizer, &error) != COT_OK ||
        cot_tokenizer_open(&all[WORDS].tokenizer, COT_SOURCE "/models/tiny", &error) != COT_OK) {
        print_error("%s\n", error.message);
        return -1;
    }
    for (int v = 0; v < VOCABULARIES; v++) {
        const int64_t size = (int64_t)cot_tokenizer_size(all[v].tokenizer);
        all[v].eos = v == BYTES ? 256 : 0;
        if (cot_constraint_compiler_open(&all[v].compiler, all[v].tokenizer, size + 70, &all[v].eos, 1,
                                         &error) != COT_OK) {
            print_message("SKIPPED: %s\n", error.message);
            exit(SKIPPED);
        }
    }
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    for (int v = 0; v < VOCABULARIES; v++) {
        cot_constraint_compiler_close(all[v].compiler);
        cot_tokenizer_close(all[v].tokenizer);
    }
    return 0;
}

static bool may_come(cot_constraint *c, int32_t token)
{
    const uint32_t *mask;
    return cot_constraint_mask(c, &mask, NULL) == COT_OK && mask[token / 32] >> token % 32 & 1;
}

/* Whether all tokens of a text may come, each where it does, and an end behind them. What the mask says commit says too. */
static bool accepts(const cot_constraint *constraint, const vocabulary *v, const char *text)
{
    cot_constraint *c;
    int32_t *ids;
    size_t count, i = 0;
    assert_int_equal(cot_constraint_copy(&c, constraint, NULL), COT_OK);
    assert_int_equal(cot_tokenizer_encode(v->tokenizer, &ids, &count, text, strlen(text), false, NULL),
                     COT_OK);
    bool good = true;
    while (good && i < count) {
        good = may_come(c, ids[i]);
        assert_int_equal(cot_constraint_commit(c, ids[i++], NULL) == COT_OK, good);
    }
    good = good && may_come(c, v->eos);
    assert_int_equal(cot_constraint_may_end(c), good);
    free(ids);
    cot_constraint_close(c);
    return good;
}

static cot_status compile(cot_constraint **c, int v, cot_constraint_kind kind, const char *text,
                          cot_error *error)
{
    return cot_constraint_compile(c, all[v].compiler, kind, text, strlen(text), error);
}

static FILE *open_golden(const char *name)
{
    char path[200];
    snprintf(path, sizeof path, "%s/golden/agents/%s", COT_SHARED, name);
    FILE *file = fopen(path, "r");
    if (file) return file;
    print_message("SKIPPED: no '%s'\n", path);
    skip();
    return NULL;
}

static int check_instances(const cot_constraint *c, int v, const json_t *row, const char *which, bool valid)
{
    size_t i;
    json_t *instance;
    int wrong = 0;
    json_array_foreach(json_object_get(row, which), i, instance)
    {
        char *text = json_dumps(instance, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
        if (accepts(c, &all[v], text) != valid) {
            print_error("%s: %s %s\n", json_string_value(json_object_get(row, "id")), text,
                        valid ? "is not accepted" : "is accepted");
            wrong++;
        }
        free(text);
    }
    return wrong;
}

static void schemas_take_what_is_valid(void **state)
{
    (void)state;
    FILE *file = open_golden("schemas.jsonl");
    static char line[1 << 16];
    int refused = 0, same = 0, wrong = 0;
    while (fgets(line, sizeof line, file)) {
        json_t *row = json_loads(line, 0, NULL);
        char *schema = json_dumps(json_object_get(row, "schema"), JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
        const json_t *engine = json_object_get(row, "llguidance");
        const bool is_same = json_is_string(engine) && strcmp(json_string_value(engine), "same") == 0;
        for (int v = 0; v < VOCABULARIES; v++) {
            cot_constraint *c;
            cot_error error = {0};
            const cot_status status = compile(&c, v, COT_CONSTRAINT_JSON_SCHEMA, schema, &error);
            if (status != COT_OK) {
                assert_true(status == COT_INVALID_ARGUMENT && *error.message && !is_same);
                refused++;
                continue;
            }
            same += is_same;
            if (is_same)
                wrong +=
                    check_instances(c, v, row, "valid", true) + check_instances(c, v, row, "invalid", false);
            cot_constraint_close(c);
        }
        free(schema);
        json_decref(row);
    }
    fclose(file);
    print_message("%d compiled and compared, %d refused, %d instances wrong, over %d vocabularies\n", same,
                  refused, wrong, VOCABULARIES);
    assert_int_equal(wrong, 0);
    assert_int_equal(same, 235 * VOCABULARIES);
    assert_int_equal(refused, 14 * VOCABULARIES);
}

/* text = prefix + unit x times (%d is the count from 0) + middle + unit2 x times + suffix */
static char *text_of(const json_t *row)
{
    const json_t *recipe = json_object_get(row, "recipe");
    if (!recipe) return json_dumps(json_object_get(row, "schema"), JSON_ENCODE_ANY);
    const json_int_t times = json_integer_value(json_object_get(recipe, "times"));
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    static const char *const parts[] = {"prefix", "unit", "middle", "unit2", "suffix"};
    for (int p = 0; p < 5; p++) {
        const char *part = json_string_value(json_object_get(recipe, parts[p]));
        for (json_int_t i = 0; part && i < (p % 2 ? times : 1); i++) {
            const char *at = strstr(part, "%d");
            if (at)
                fprintf(out, "%.*s%lld%s", (int)(at - part), part, (long long)i, at + 2);
            else
                fputs(part, out);
        }
    }
    fclose(out);
    return text;
}

/* All in a bounded time, which the harness of tests sees to; two are infinite, and compile. */
static void hard_schemas_are_refused_or_bounded(void **state)
{
    (void)state;
    FILE *file = open_golden("schemas-hard.jsonl");
    static char line[1 << 21];
    int taken = 0;
    while (fgets(line, sizeof line, file)) {
        json_t *row = json_loads(line, JSON_DECODE_ANY, NULL);
        char *schema = text_of(row);
        cot_constraint *c;
        cot_error error = {0};
        const cot_status status = compile(&c, BYTES, COT_CONSTRAINT_JSON_SCHEMA, schema, &error);
        const char *want = json_string_value(json_object_get(row, "want"));
        assert_true(status == COT_OK ||
                    (status == COT_INVALID_ARGUMENT && *error.message && !strchr(error.message, '\n')));
        if (status == COT_OK && strcmp(want, "refuse") == 0) {
            print_message("taken: %.90s\n", schema);
            taken++;
        }
        cot_constraint_close(c);
        free(schema);
        json_decref(row);
    }
    fclose(file);
    assert_in_range(taken, 0, 2);
}

static void kinds_and_their_refusals(void **state)
{
    (void)state;
    static const struct {
        cot_constraint_kind kind;
        const char *text, *yes, *no, *refusal;
    } cases[] = {
        {COT_CONSTRAINT_REGEX, "[0-9]{3}-[a-z]+", "123-abc", "12-abc", NULL},
        {COT_CONSTRAINT_REGEX, "(", NULL, NULL, "regex parse error: unclosed group"},
        {COT_CONSTRAINT_REGEX, "", "", "a", NULL},
        {COT_CONSTRAINT_CHOICE, "[\"yes\", \"no \\\"quoted\\\" \\u00e9\"]", "no \"quoted\" é", "yes no",
         NULL},
        {COT_CONSTRAINT_CHOICE, "[\"one\"]", "one", "on", NULL},
        {COT_CONSTRAINT_CHOICE, "[]", NULL, NULL, "at least one"},
        {COT_CONSTRAINT_CHOICE, "[1]", NULL, NULL, "a list of strings"},
        {COT_CONSTRAINT_CHOICE, "{", NULL, NULL, "a list of strings"},
        {COT_CONSTRAINT_LARK, "start: \"(\" start \")\" | \"x\"", "((x))", "((x)", NULL},
        {COT_CONSTRAINT_LARK, "root ::= \"x\"", NULL, NULL, ""},
        {COT_CONSTRAINT_LARK, "start: other", NULL, NULL, "other"},
        {COT_CONSTRAINT_JSON_SCHEMA, "{\"type\": \"object\"}", "{\"a\": [1, {}]}", "[]", NULL},
        {COT_CONSTRAINT_JSON_SCHEMA, " {\t}", "[1, true]", "[1,  2]", NULL},
        {COT_CONSTRAINT_JSON_SCHEMA, "true", "{\n  \"a\": [\n    1\n  ]\n}", "1 2", NULL},
        {COT_CONSTRAINT_JSON_SCHEMA, "{\"type\": \"array\"}", "[\r\n\t1 ]", "[\n\n1]", NULL},
        {COT_CONSTRAINT_JSON_SCHEMA, "{\"x-guidance\": {\"whitespace_flexible\": false}}", "[1,2]", "[1, 2]",
         NULL},
        {COT_CONSTRAINT_JSON_SCHEMA, "{\"not\": {}}", NULL, NULL, "not"},
        {COT_CONSTRAINT_JSON_SCHEMA, "{\"type\": ", NULL, NULL, "the schema is no JSON"},
        {COT_CONSTRAINT_JSON_SCHEMA, "", NULL, NULL, "the schema is no JSON"},
        {COT_CONSTRAINT_JSON_SCHEMA, "{\"enum\": []}", NULL, NULL, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int v = 0; v < VOCABULARIES; v++) {
            cot_constraint *c;
            cot_error error = {0};
            const cot_status status = compile(&c, v, cases[i].kind, cases[i].text, &error);
            if (cases[i].refusal) {
                assert_int_equal(status, COT_INVALID_ARGUMENT);
                if (!strstr(error.message, cases[i].refusal))
                    fail_msg("%s: %s", cases[i].text, error.message);
                continue;
            }
            if (status != COT_OK) fail_msg("%s: %s", cases[i].text, error.message);
            assert_true(accepts(c, &all[v], cases[i].yes));
            assert_false(accepts(c, &all[v], cases[i].no));
            cot_constraint_close(c);
        }
}

static void size_and_depth_are_bounded(void **state)
{
    (void)state;
    cot_constraint *c;
    cot_error error;
    for (int depth = COT_CONSTRAINT_MAX_DEPTH; depth <= COT_CONSTRAINT_MAX_DEPTH + 1; depth++) {
        char text[4096] = "";
        for (int i = 1; i < depth; i++) strcat(text, "{\"items\":");
        strcat(text, "{");
        for (int i = 0; i < depth; i++) strcat(text, "}");
        const cot_status status = compile(&c, BYTES, COT_CONSTRAINT_JSON_SCHEMA, text, &error);
        assert_int_equal(status, depth > COT_CONSTRAINT_MAX_DEPTH ? COT_INVALID_ARGUMENT : COT_OK);
        if (status != COT_OK) assert_string_equal(error.message, "the schema nests deeper than 64");
        cot_constraint_close(c);
    }
    const size_t bytes = COT_CONSTRAINT_MAX_BYTES + 1;
    char *text = malloc(bytes);
    memset(text, ' ', bytes);
    assert_int_equal(
        cot_constraint_compile(&c, all[BYTES].compiler, COT_CONSTRAINT_JSON_SCHEMA, text, bytes, &error),
        COT_INVALID_ARGUMENT);
    assert_string_equal(error.message, "it has 1048577 bytes, at most 1048576 may be");
    assert_int_equal(cot_constraint_compile(&c, all[BYTES].compiler, COT_CONSTRAINT_REGEX, "a\0b", 3, &error),
                     COT_INVALID_ARGUMENT);
    assert_string_equal(error.message, "it has the character U+0000");
    free(text);
}

/* Ids beyond the tokenizer's pad the vocabulary: they come not even where any text may be. */
static void padding_never_comes(void **state)
{
    (void)state;
    const vocabulary *v = &all[WORDS];
    const int32_t size = (int32_t)cot_tokenizer_size(v->tokenizer);
    cot_constraint *c;
    assert_int_equal(compile(&c, WORDS, COT_CONSTRAINT_REGEX, "(?s:.*)", NULL), COT_OK);
    int texts = 0;
    for (int32_t id = 0; id < size + 70; id++) {
        char *text = NULL;
        size_t bytes = 0;
        if (id < size)
            assert_int_equal(cot_tokenizer_decode(v->tokenizer, &text, &bytes, &id, 1, true, NULL), COT_OK);
        if (id >= size || !bytes) assert_int_equal(may_come(c, id), id == v->eos);
        texts += may_come(c, id);
        free(text);
    }
    assert_in_range(texts, size / 2, size);
    cot_constraint_close(c);
}

/* A special token stands for no text, not even for that which it is written as. */
static void special_tokens_never_come(void **state)
{
    (void)state;
    json_t *json = json_load_file(COT_SOURCE "/models/tiny/tokenizer.json", 0, NULL);
    const int32_t id = (int32_t)cot_tokenizer_size(all[WORDS].tokenizer);
    json_array_append_new(json_object_get(json, "added_tokens"),
                          json_pack("{s:i,s:s,s:b,s:b,s:b,s:b,s:b}", "id", id, "content", "<tool>", "special",
                                    1, "normalized", 0, "single_word", 0, "lstrip", 0, "rstrip", 0));
    char *text = json_dumps(json, 0);
    cot_tokenizer *tokenizer;
    cot_constraint_compiler *compiler;
    cot_constraint *c;
    const int32_t eos = 0;
    assert_int_equal(cot_tokenizer_parse(&tokenizer, text, strlen(text), "it", NULL), COT_OK);
    assert_int_equal(cot_constraint_compiler_open(&compiler, tokenizer, id + 1, &eos, 1, NULL), COT_OK);
    assert_int_equal(cot_constraint_compile(&c, compiler, COT_CONSTRAINT_REGEX, "<tool>", 6, NULL), COT_OK);
    assert_true(!may_come(c, id) && accepts(c, &all[WORDS], "<tool>"));
    cot_constraint_close(c);
    cot_constraint_compiler_close(compiler);
    cot_tokenizer_close(tokenizer);
    free(text);
    json_decref(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schemas_take_what_is_valid), cmocka_unit_test(hard_schemas_are_refused_or_bounded),
        cmocka_unit_test(kinds_and_their_refusals),   cmocka_unit_test(size_and_depth_are_bounded),
        cmocka_unit_test(padding_never_comes),        cmocka_unit_test(special_tokens_never_come)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
