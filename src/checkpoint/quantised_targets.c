#define PCRE2_CODE_UNIT_WIDTH 8
#include "checkpoint/resolve.h"

#include <fnmatch.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

struct cot_quantised_target {
    char *name;
    pcre2_code *pattern; // NULL: the name itself, or a class
    bool wildcards;      // in the name
};

/* Backtracking steps of a pattern; a name takes some hundreds. */
enum { MOST_STEPS = 100000, MOST_TARGETS = 1 << 16 };

void cot_quantised_clear(cot_quantised_targets *targets)
{
    for (size_t i = 0; i < targets->count; i++) {
        free(targets->items[i].name);
        pcre2_code_free(targets->items[i].pattern);
    }
    free(targets->items);
    *targets = (cot_quantised_targets){0};
}

static const char pattern_mark[] = "re:";

static bool is_pattern(const char *name)
{
    return !strncmp(name, pattern_mark, strlen(pattern_mark));
}

static void add_target(cot_quantised_targets *targets, cot_fields *in, const char *key, const char *name)
{
    struct cot_quantised_target *t = &targets->items[targets->count];
    int code;
    PCRE2_SIZE offset;
    if (!(t->name = strdup(name))) {
        cot_fields_refuse(in, COT_OUT_OF_MEMORY, "out of memory");
        return;
    }
    targets->count++;
    if (t->wildcards || !is_pattern(name)) return;
    const char *text = name + strlen(pattern_mark);
    t->pattern = pcre2_compile((PCRE2_SPTR)text, strlen(text), PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C,
                               &code, &offset, NULL);
    if (t->pattern) return;
    char why[80];
    pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
    cot_fields_refuse(in, COT_MALFORMED, "'%s' has the pattern '%.60s': %s", key, text, why);
}

void cot_quantised_read(cot_quantised_targets *targets, cot_fields *in, const char *key, bool wildcards)
{
    if (!cot_fields_has(in, key) || in->status != COT_OK) return;
    const json_t *list = cot_fields_get(in, key);
    const size_t count = json_array_size(list);
    if (!json_is_array(list) || count > MOST_TARGETS) {
        cot_fields_mistyped(in, key, list, "a list of names");
        return;
    }
    if (count && !(targets->items = calloc(count, sizeof *targets->items)))
        cot_fields_refuse(in, COT_OUT_OF_MEMORY, "out of memory");
    for (size_t i = 0; i < count && in->status == COT_OK; i++) {
        const json_t *name = json_array_get(list, i);
        targets->items[i].wildcards = wildcards;
        if (json_is_string(name))
            add_target(targets, in, key, json_string_value(name));
        else
            cot_fields_mistyped(in, key, name, "names");
    }
}

static bool fits(const pcre2_code *pattern, const char *module, size_t length)
{
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    if (context) pcre2_set_match_limit(context, MOST_STEPS);
    const bool found =
        data && context && pcre2_match(pattern, (PCRE2_SPTR)module, length, 0, 0, data, context) >= 0;
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
    return found;
}

static bool fits_wildcards(const char *pattern, const char *module, size_t length)
{
    char *name = strndup(module, length);
    const bool found = name && !fnmatch(pattern, name, 0);
    free(name);
    return found;
}

int cot_quantised_match(const cot_quantised_targets *targets, const char *module, size_t length,
                        const char *kind)
{
    int best = 0;
    for (size_t i = 0; i < targets->count && best < 3; i++) {
        const struct cot_quantised_target *t = &targets->items[i];
        int match = 0;
        if (t->wildcards)
            match = fits_wildcards(t->name, module, length) ? 2 : 0;
        else if (t->pattern)
            match = best < 2 && fits(t->pattern, module, length) ? 2 : 0;
        else if (strlen(t->name) == length && !memcmp(t->name, module, length))
            match = 3;
        else if (!strcmp(t->name, kind))
            match = 1;
        best = match > best ? match : best;
    }
    return best;
}
