#include "harness/checkpoint/config_text.h"

#include "harness/cmocka.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* JSON with ' for ", so that it can be read in C. */
json_t *config_json(const char *text)
{
    char copy[2048];
    snprintf(copy, sizeof copy, "%s", text);
    for (char *c = copy; *c; c++)
        if (*c == '\'') *c = '"';
    json_error_t detail;
    json_t *json = json_loads(copy, 0, &detail);
    if (!json) fail_msg("%s: %s", detail.text, text);
    return json;
}

/* The base with the edit's members instead of its own; a member "remove" goes. */
char *config_edited(const char *base, const char *edit)
{
    json_t *json = config_json(base), *changes = config_json(edit), *value;
    const char *key;
    json_object_foreach(changes, key, value)
    {
        if (json_is_string(value) && !strcmp(json_string_value(value), "remove"))
            json_object_del(json, key);
        else
            json_object_set(json, key, value);
    }
    char *text = json_dumps(json, 0);
    json_decref(json);
    json_decref(changes);
    return text;
}

cot_config config_accept_with(const char *base, const char *edit, const char *generation)
{
    cot_config config;
    cot_error error = {0};
    char *text = config_edited(base, edit);
    cot_status status = cot_config_parse(&config, text, strlen(text), generation,
                                         generation ? strlen(generation) : 0, "config.json", &error);
    if (status != COT_OK) fail_msg("%s: %s", edit, error.message);
    free(text);
    return config;
}

cot_config config_accept(const char *base, const char *edit)
{
    return config_accept_with(base, edit, NULL);
}

void config_refuse_text(const char *text, cot_status expected, const char *words)
{
    cot_config config, empty = {0};
    cot_error error = {0};
    cot_status status = cot_config_parse(&config, text, strlen(text), NULL, 0, "config.json", &error);
    if (status != expected)
        fail_msg("%s: status %d (%s), expected %d", text, (int)status, error.message, (int)expected);
    if (!strstr(error.message, words)) fail_msg("%s: '%s' does not say '%s'", text, error.message, words);
    assert_non_null(strstr(error.message, "config.json"));
    assert_null(strchr(error.message, '\n'));
    assert_memory_equal(&config, &empty, sizeof config);
    assert_int_equal(cot_config_parse(&config, text, strlen(text), NULL, 0, "config.json", NULL), expected);
}

void config_refuse(const char *base, const char *edit, cot_status expected, const char *words)
{
    char *text = config_edited(base, edit);
    config_refuse_text(text, expected, words);
    free(text);
}
