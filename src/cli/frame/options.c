#include "cli/frame/options.h"

#include "cli/frame/command.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What the parser walks with. */
struct parse {
    const cli_options *options;
    char *settings;
    int argc;
    char **argv;
};

static const cli_option *next_option(const cli_options *options, const cli_option_group **group,
                                     const cli_option *row)
{
    if (!*group)
        *group = options->groups;
    else
        row++;
    if (!*group) return NULL;
    for (; (*group)->title; row = NULL, (*group)++) {
        if (!row) row = (*group)->options;
        if (row->name) return row;
    }
    return NULL;
}

/* The option of that name (or of that letter when name is NULL) and its field. */
static const cli_option *find(const struct parse *p, const char *name, size_t length, char letter,
                              void **field)
{
    const cli_option_group *group = NULL;
    for (const cli_option *row = NULL; (row = next_option(p->options, &group, row));) {
        bool same =
            name ? strlen(row->name) == length && !memcmp(row->name, name, length) : row->letter == letter;
        if (!same) continue;
        *field = p->settings + group->offset + row->offset;
        return row;
    }
    return NULL;
}

static bool unknown(const struct parse *p, const char *name, size_t length)
{
    const char *names[256] = {"help"};
    size_t n = 1;
    const cli_option_group *group = NULL;
    for (const cli_option *row = NULL; n < 255 && (row = next_option(p->options, &group, row));)
        names[n++] = row->name;
    char word[64];
    size_t kept = length < sizeof word ? length : sizeof word - 1;
    memcpy(word, name, kept);
    word[kept] = 0;
    const char *nearest = cli_nearest(word, names);
    if (nearest)
        cli_complain("unknown option '--%.*s' (did you mean '--%s'?)", (int)length, name, nearest);
    else
        cli_complain("unknown option '--%.*s'", (int)length, name);
    return false;
}

static bool bad_integer(const cli_option *row, const char *value)
{
    if (row->most == INT64_MAX && row->least == INT64_MIN)
        cli_complain("--%s takes an integer, not '%s'", row->name, value);
    else if (row->most == INT64_MAX)
        cli_complain("--%s takes an integer of at least %" PRId64 ", not '%s'", row->name, row->least, value);
    else
        cli_complain("--%s takes an integer from %" PRId64 " to %" PRId64 ", not '%s'", row->name, row->least,
                     row->most, value);
    return false;
}

static bool bad_real(const cli_option *row, const char *value)
{
    if (isinf(row->max) && isinf(row->min))
        cli_complain("--%s takes a number, not '%s'", row->name, value);
    else if (isinf(row->max))
        cli_complain("--%s takes a number of at least %g, not '%s'", row->name, row->min, value);
    else
        cli_complain("--%s takes a number from %g to %g, not '%s'", row->name, row->min, row->max, value);
    return false;
}

/* Whether `value` is one of `choices` (NULL ends), and which; otherwise says what `name` takes, and what else there is. */
static bool choose(const char *dashes, const char *name, const char *const *choices, const char *otherwise,
                   const char *value, int *which)
{
    char all[256] = "";
    for (int i = 0; choices[i]; i++) {
        *which = i;
        if (!strcmp(value, choices[i])) return true;
        if (i) strncat(all, choices[i + 1] ? ", " : " or ", sizeof all - strlen(all) - 1);
        strncat(all, choices[i], sizeof all - strlen(all) - 1);
    }
    cli_complain("%s%s takes %s, not '%s'%s%s", dashes, name, all, value, otherwise ? ": " : "",
                 otherwise ? otherwise : "");
    return false;
}

static bool append(cli_list *list, const char *text, const cli_option *option, int most)
{
    if (!list->items && !(list->items = calloc((size_t)most, sizeof *list->items))) {
        cli_complain("out of memory");
        return false;
    }
    list->items[list->count].text = text;
    list->items[list->count++].option = option;
    return true;
}

static bool is_number_start(const char *value)
{
    return *value && !isspace((unsigned char)*value);
}

/* What is less than one is one: 0 may stand for something else. */
static int64_t whole_of(double x)
{
    return x > 0 && x < 1 ? 1 : (int64_t)x;
}

/* Stores `value` (NULL for a flag, or for an optional text without one) in the option's field. */
static bool store(const struct parse *p, const cli_option *row, void *field, const char *value)
{
    char *end = NULL;
    switch (row->kind) {
    case CLI_OPTION_FLAG:
        *(bool *)field = true;
        return true;
    case CLI_OPTION_INTEGER: {
        errno = 0;
        long long n = strtoll(value, &end, 10);
        if (!is_number_start(value) || *end || errno || n < row->least || n > row->most)
            return bad_integer(row, value);
        if (row->narrow)
            *(int32_t *)field = (int32_t)n;
        else
            *(int64_t *)field = n;
        return true;
    }
    case CLI_OPTION_REAL: {
        double x = strtod(value, &end);
        if (!is_number_start(value) || *end || !isfinite(x) || !(x >= row->min && x <= row->max))
            return bad_real(row, value);
        if (row->scale > 0)
            *(int64_t *)field = x < 0 ? -1 : whole_of(x * row->scale);
        else
            *(double *)field = x;
        return true;
    }
    case CLI_OPTION_TEXT:
        *(const char **)field = value;
        return true;
    case CLI_OPTION_CHOICE: {
        int which;
        if (!choose("--", row->name, row->choices, row->otherwise, value, &which)) return false;
        if (row->word)
            *(const char **)field = row->choices[which];
        else
            *(int *)field = which;
        return true;
    }
    case CLI_OPTION_LIST:
        return append(field, value, row, p->argc);
    case CLI_OPTION_OPTIONAL_TEXT:
        *(cli_optional_text *)field = (cli_optional_text){true, value};
        return true;
    }
    return false;
}

/* Keeps that the row was given, where somebody asks. */
static bool note(const struct parse *p, const cli_option *row)
{
    int rows = 0;
    if (!p->options->given) return true;
    cli_list *list = (cli_list *)(p->settings + p->options->given);
    for (size_t i = 0; i < list->count; i++)
        if (list->items[i].option == row) return true;
    const cli_option_group *group = NULL;
    for (const cli_option *any = NULL; (any = next_option(p->options, &group, any));) rows++;
    return append(list, NULL, row, rows);
}

bool cli_options_has(const cli_list *given, const char *name)
{
    for (size_t i = 0; i < given->count; i++)
        if (strcmp(given->items[i].option->name, name) == 0) return true;
    return false;
}

static bool takes_value(const cli_option *row)
{
    return row->kind != CLI_OPTION_FLAG && row->kind != CLI_OPTION_OPTIONAL_TEXT;
}

/* argv[*at] is "--name", "--name=value". */
static bool parse_long(const struct parse *p, int *at)
{
    const char *name = p->argv[*at] + 2, *equals = strchr(name, '='), *value = equals ? equals + 1 : NULL;
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    void *field;
    const cli_option *row = find(p, name, length, 0, &field);
    if (!row) return unknown(p, name, length);
    if (row->kind == CLI_OPTION_FLAG && value) {
        cli_complain("--%s takes no value, not '%s'", row->name, value);
        return false;
    }
    if (takes_value(row) && !value) {
        if (*at + 1 == p->argc) {
            cli_complain("--%s lacks its value %s", row->name, row->argument);
            return false;
        }
        value = p->argv[++*at];
    }
    return note(p, row) && store(p, row, field, value);
}

/* argv[*at] is "-x", "-xvalue" or joined flags "-xyz". */
static bool parse_short(const struct parse *p, int *at)
{
    for (const char *c = p->argv[*at] + 1; *c; c++) {
        void *field;
        const cli_option *row = find(p, NULL, 0, *c, &field);
        if (!row) {
            cli_complain("unknown option '-%s'", c);
            return false;
        }
        if (!note(p, row)) return false;
        if (row->kind == CLI_OPTION_FLAG) {
            store(p, row, field, NULL);
            continue;
        }
        const char *value = c[1] ? c + 1 : NULL;
        if (takes_value(row) && !value) {
            if (*at + 1 == p->argc) {
                cli_complain("-%c lacks its value %s", row->letter, row->argument);
                return false;
            }
            value = p->argv[++*at];
        }
        return store(p, row, field, value);
    }
    return true;
}

/* Deals `count` arguments out to the positional rows: each takes as many as leaves the later ones their
 * least. */
static bool place(const struct parse *p, const char **arguments, int count)
{
    int owed = 0, at = 0;
    const cli_positional *row = p->options->positionals;
    for (const cli_positional *r = row; r && r->name; r++) {
        owed += r->least;
        if (owed <= count) continue;
        cli_complain("%s is missing: %s", r->name, r->help);
        return false;
    }
    for (; row && row->name; row++) {
        owed -= row->least;
        int take = count - at - owed;
        for (take = take < row->most ? take : row->most; take > 0; take--, at++) {
            void *field = p->settings + row->offset;
            int which;
            if (row->choices && !choose("", row->name, row->choices, NULL, arguments[at], &which))
                return false;
            if (row->most == 1)
                *(const char **)field = arguments[at];
            else if (!append(field, arguments[at], NULL, p->argc))
                return false;
        }
    }
    if (at < count) cli_complain("unexpected argument '%s'", arguments[at]);
    return at == count;
}

bool cli_options_parse(const cli_options *options, void *settings, int argc, char **argv, bool *help)
{
    struct parse p = {options, settings, argc, argv};
    const cli_option_group *group = NULL;
    *help = false;
    for (const cli_option *row = NULL; (row = next_option(options, &group, row));)
        if (row->initial && !store(&p, row, p.settings + group->offset + row->offset, row->initial))
            return false;
    const char **arguments = calloc((size_t)argc + 1, sizeof *arguments);
    if (!arguments) {
        cli_complain("out of memory");
        return false;
    }
    int count = 0;
    bool good = true, ended = false;
    for (int i = 0; good && !*help && i < argc; i++) {
        const char *word = argv[i];
        if (ended || word[0] != '-' || !word[1])
            arguments[count++] = word;
        else if (!strcmp(word, "--"))
            ended = true;
        else if (!strcmp(word, "--help") || !strcmp(word, "-h"))
            *help = true;
        else
            good = word[1] == '-' ? parse_long(&p, &i) : parse_short(&p, &i);
    }
    if (good && !*help) good = place(&p, arguments, count);
    free(arguments);
    return good;
}

static void free_list(void *field)
{
    free(((cli_list *)field)->items);
    *(cli_list *)field = (cli_list){0}; // rows may share a list
}

void cli_options_free(const cli_options *options, void *settings)
{
    const cli_option_group *group = NULL;
    for (const cli_option *row = NULL; (row = next_option(options, &group, row));)
        if (row->kind == CLI_OPTION_LIST) free_list((char *)settings + group->offset + row->offset);
    if (options->given) free_list((char *)settings + options->given);
    for (const cli_positional *row = options->positionals; row && row->name; row++)
        if (row->most > 1) free_list((char *)settings + row->offset);
}
