/* Schemas that nothing can meet as they hold themselves without an end, and their like that something can. */
#include "base/json_schema.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static void check(const char *const *texts, size_t count, bool wanted)
{
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
        json_t *schema = json_loads(texts[i], JSON_DECODE_ANY, NULL);
        assert_non_null(schema);
        if (cot_json_schema_ends(schema) != wanted) {
            print_message("%s\n", texts[i]);
            wrong++;
        }
        json_decref(schema);
    }
    assert_int_equal(wrong, 0);
}

#define NODE "{\"type\": \"object\", \"properties\": {\"next\": {\"$ref\": \"#\"}}"
#define DEFS(a, b) "{\"$ref\": \"#/$defs/a\", \"$defs\": {\"a\": " a ", \"b\": " b "}}"

static void test_without_an_end(void **state)
{
    static const char *const texts[] = {
        "{\"$ref\": \"#\"}",
        NODE ", \"required\": [\"next\"]}",
        "{\"type\": [\"object\", \"array\"], \"properties\": {\"next\": {\"$ref\": \"#\"}}, \"required\": "
        "[\"next\"], \"items\": {\"$ref\": \"#\"}, \"minItems\": 1}",
        "{\"type\": \"array\", \"items\": {\"$ref\": \"#\"}, \"minItems\": 1}",
        "{\"type\": \"array\", \"prefixItems\": [{}, {\"$ref\": \"#\"}], \"minItems\": 2}",
        "{\"type\": \"array\", \"items\": [{}], \"additionalItems\": {\"$ref\": \"#\"}, \"minItems\": 2}",
        "{\"anyOf\": [{\"$ref\": \"#\"}, {\"$ref\": \"#/anyOf/0\"}]}",
        "{\"allOf\": [{\"type\": \"object\"}, {\"$ref\": \"#\"}]}",
        "{\"oneOf\": [{\"$ref\": \"#\"}]}",
        DEFS("{\"$ref\": \"#/$defs/b\"}", "{\"$ref\": \"#/$defs/a\"}"),
        DEFS("{\"type\": \"object\", \"properties\": {\"x\": {\"$ref\": \"#/$defs/b\"}}, \"required\": "
             "[\"x\"]}",
             "{\"type\": \"array\", \"items\": {\"$ref\": \"#/$defs/a\"}, \"minItems\": 1}"),
        "{\"$ref\": \"#/$defs/a~1b~0\", \"$defs\": {\"a/b~\": {\"$ref\": \"#/$defs/a~1b~0\"}}}",
    };
    (void)state;
    check(texts, sizeof texts / sizeof *texts, false);
}

static void test_with_an_end(void **state)
{
    static const char *const texts[] = {
        "true",
        "false", // which has other reasons
        "5",
        "{}",
        NODE "}",
        NODE ", \"required\": [\"other\"]}",
        "{\"type\": [\"object\", \"null\"], \"properties\": {\"next\": {\"$ref\": \"#\"}}, \"required\": "
        "[\"next\"]}",
        "{\"type\": \"array\", \"items\": {\"$ref\": \"#\"}}",
        "{\"type\": \"array\", \"prefixItems\": [{}], \"items\": {\"$ref\": \"#\"}, \"minItems\": 1}",
        "{\"anyOf\": [{\"$ref\": \"#\"}, {\"type\": \"null\"}]}",
        // members that any type but an object lacks
        "{\"properties\": {\"next\": {\"$ref\": \"#\"}}, \"required\": [\"next\"]}",
        // names, not references
        "{\"type\": \"object\", \"properties\": {\"$ref\": {\"type\": \"string\"}}, \"required\": "
        "[\"$ref\"]}",
        DEFS("{\"type\": \"object\", \"properties\": {\"x\": {\"$ref\": \"#/$defs/b\"}}, \"required\": "
             "[\"x\"]}",
             "{\"type\": \"array\", \"items\": {\"$ref\": \"#/$defs/a\"}}"),
        // nobody knows here what these are
        "{\"$ref\": \"#/$defs/none\"}",
        "{\"$ref\": \"https://example.invalid\"}",
        "{\"$ref\": \"#/$defs/a\", \"$defs\": {\"a\": {\"$id\": \"https://example.invalid/a\", \"$ref\": "
        "\"#\"}}}",
    };
    (void)state;
    check(texts, sizeof texts / sizeof *texts, true);
}

/* A chain whose last link ends or does not, each found by way of all that come behind it; and one that is beyond the bound. */
static void test_long_chains(void **state)
{
    (void)state;
    for (int ending = 0; ending < 2; ending++)
        for (int links = 1; links <= 30000; links = links * 6 + 1) {
            json_t *defs = json_object(),
                   *schema = json_pack("{s:s, s:o}", "$ref", "#/$defs/0", "$defs", defs);
            for (int i = 0; i < links; i++) {
                char name[16];
                snprintf(name, sizeof name, "%d", i);
                const bool is_last = i + 1 == links;
                json_object_set_new(
                    defs, name,
                    is_last && ending
                        ? json_pack("{s:s}", "type", "null")
                        : json_pack("{s:o}", "$ref", json_sprintf("#/$defs/%d", is_last ? 0 : i + 1)));
            }
            assert_true(cot_json_schema_ends(schema) == (ending == 1));
            json_decref(schema);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_without_an_end),
                                       cmocka_unit_test(test_with_an_end),
                                       cmocka_unit_test(test_long_chains)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
