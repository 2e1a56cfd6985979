/* Every row of coterie/engine_options.def that commands take: a wrong value is one line that names the option or the value, whatever
 * the command. */
#include "harness/cli/capture.h"
#include "harness/cmocka.h"

#include "coterie/engine.h"

#include <stdio.h>
#include <string.h>

#define TINY COT_SOURCE "/models/tiny"

static capture c;

static void must_refuse(const char *command, const char *name, const char *value, int status,
                        const char *text)
{
    char line[512];
    snprintf(line, sizeof line, "\"$coterie\" %s '--%s=%s' </dev/null", command, name, value);
    capture_shell(&c, line);
    const char *end = strchr(c.err, '\n');
    if (c.status != status || strncmp(c.err, "coterie: ", 9) != 0 || !end || end[1] || !strstr(c.err, text) ||
        *c.out)
        fail_msg("%s: expected status %d and a line with \"%s\", found %d and '%s'", line, status, text,
                 c.status, c.err);
}

static const char *const with_ranks[] = {"run '" TINY "' -p a", "serve '" TINY "' --port 0",
                                         "eval '" TINY "' --text '" COT_SOURCE "/LICENSE'", NULL};
static const char *const serving[] = {"serve '" TINY "' --port 0", NULL};

/* The line begins with the option, says what it takes, and ends with what was given. */
static void refuse(const char *const *commands, const char *name, const char *value)
{
    char text[128];
    for (; *commands; commands++) {
        snprintf(text, sizeof text, ", not '%s'", value);
        must_refuse(*commands, name, value, 2, text);
        snprintf(text, sizeof text, "coterie: --%s takes ", name);
        must_refuse(*commands, name, value, 2, text);
    }
}

#define IN_NOWHERE(...)
#define IN_RANKS(what, ...) what(with_ranks, __VA_ARGS__)
#define IN_SCHEDULING(what, ...) what(serving, __VA_ARGS__)

static void refuse_numbers(const char *const *commands, int64_t least, int64_t most, const char *name)
{
    char value[32];
    static const char *const wrong[] = {"", "x", "1x", "1.5", "99999999999999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) refuse(commands, name, wrong[i]);
    snprintf(value, sizeof value, "%lld", (long long)least - 1);
    refuse(commands, name, value);
    if (most == INT64_MAX) return;
    snprintf(value, sizeof value, "%lld", (long long)most + 1);
    refuse(commands, name, value);
}

static void numbers(void **state)
{
    (void)state;
#define NUMBERS(commands, least, most, name, ...) refuse_numbers(commands, least, most, name);
#define COT_NUMBER(group, field, type, initial, said, least, most, agree, table, ...)                        \
    IN_##table(NUMBERS, least, most, __VA_ARGS__)
#include "coterie/engine_options.def"
}

static void durations(void **state)
{
    (void)state;
    static const char *const wrong[] = {"", "x", "1s", "nan", "inf", "-2", "1e300"};
#define DURATIONS(commands, name, ...)                                                                       \
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) refuse(commands, name, wrong[i]);
#define COT_DURATION(group, field, initial, said, least, most, agree, table, ...)                            \
    IN_##table(DURATIONS, __VA_ARGS__)
#include "coterie/engine_options.def"
}

static void words(void **state)
{
    (void)state;
#define CHOICES(commands, name, ...)                                                                         \
    refuse(commands, name, "no-such");                                                                       \
    refuse(commands, name, "");
#define COT_CHOICE(group, field, said, words, agree, table, ...) IN_##table(CHOICES, __VA_ARGS__)
#include "coterie/engine_options.def"
}

static void refuse_name(const char *const *commands, const char *name)
{
    for (; *commands; commands++)
        must_refuse(*commands, name, "/nowhere/no-such",
                    strstr(*commands, "serve") && strcmp(name, "isa") && strcmp(name, "tables") ? 2 : 1,
                    "'/nowhere/no-such'");
}

static void names(void **state)
{
    (void)state;
#define NAMES(commands, name, ...) refuse_name(commands, name);
#define COT_TEXT(group, field, agree, table, ...) IN_##table(NAMES, __VA_ARGS__)
#include "coterie/engine_options.def"
}

/* What is foretold from what was recorded needs a command that replays it; the others say which do. */
static void words_of_some_commands(void **state)
{
    (void)state;
    must_refuse("run '" TINY "' -p a", "predict", "oracle", 2,
                "which eval, profile and bench pipeline replay");
    must_refuse(with_ranks[2], "predict", "oracle", 1, "prediction 'oracle'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers), cmocka_unit_test(durations),
                                       cmocka_unit_test(words), cmocka_unit_test(names),
                                       cmocka_unit_test(words_of_some_commands)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
