/* Every row of coterie/engine_options.def that commands take: a wrong value is one line that names the option or the value, whatever
 * the command; a right one comes to its field, and nowhere else. */
#include "harness/cli/capture.h"
#include "harness/cmocka.h"

#include "cli/frame/command.h"
#include "cli/run/engine_settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TINY COT_SOURCE "/models/tiny"

static capture c;

const cli_command *const cli_commands[] = {NULL};

/* Whether one line was written, with both texts in it. */
static void must_say(const char *what, int status, const char *one, const char *other)
{
    const char *end = strchr(c.err, '\n');
    if (c.status != status || strncmp(c.err, "coterie: ", 9) != 0 || !end || end[1] || *c.out ||
        !strstr(c.err, one) || !strstr(c.err, other))
        fail_msg("%s: expected status %d and a line with \"%s\" and \"%s\", found %d and '%s'", what, status,
                 one, other, c.status, c.err);
}

/* By the program. */
static void must_refuse(const char *command, const char *name, const char *value, int status, const char *one)
{
    char line[512];
    snprintf(line, sizeof line, "\"$coterie\" %s '--%s=%s' </dev/null", command, name, value);
    capture_shell(&c, line);
    must_say(line, status, one, "");
}

struct parsed {
    const cli_option *rows;
    char *argument; // NULL: none
    cli_engine_settings settings;
};

static int parse(void *context)
{
    struct parsed *p = context;
    bool help;
    const cli_options options = {.groups = (const cli_option_group[]){{"Rows", p->rows, 0}, {0}}};
    return cli_options_parse(&options, &p->settings, p->argument != NULL, &p->argument, &help) ? 0 : 2;
}

/* Commands, and the rows that these have. */
struct commands {
    const char *line[4];
    const cli_option *rows[4];
};
static const struct commands with_ranks = {{"run '" TINY "' -p a", "serve '" TINY "' --port 0",
                                            "eval '" TINY "' --text '" COT_SOURCE "/LICENSE'"},
                                           {cli_engine_option_rows, cli_serving_option_rows,
                                            cli_replaying_option_rows}},
                             served = {{"serve '" TINY "' --port 0"}, {cli_scheduling_option_rows}};

/* The line begins with the option, says what it takes, and ends with what was given. */
static void refuse(const struct commands *commands, const char *name, const char *value)
{
    char begin[64], end[64], argument[128];
    snprintf(begin, sizeof begin, "coterie: --%s takes ", name);
    snprintf(end, sizeof end, ", not '%s'", value);
    snprintf(argument, sizeof argument, "--%s=%s", name, value);
    for (int i = 0; commands->rows[i]; i++) {
        struct parsed p = {commands->rows[i], argument, {{0}}};
        capture_call(&c, parse, &p);
        must_say(argument, 2, begin, end);
    }
}

/* And the commands have these rows. */
static void refuse_by_program(const struct commands *commands, const char *name)
{
    char text[64];
    snprintf(text, sizeof text, "coterie: --%s takes ", name);
    for (int i = 0; commands->line[i]; i++) must_refuse(commands->line[i], name, "no-such", 2, text);
}

#define IN_NOWHERE(...)
#define IN_RANKS(what, ...) what(&with_ranks, __VA_ARGS__)
#define IN_SCHEDULING(what, ...) what(&served, __VA_ARGS__)

static void refuse_numbers(const struct commands *commands, int64_t least, int64_t most, const char *name)
{
    char value[32];
    static const char *const wrong[] = {"", "x", "1x", "1.5", "99999999999999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) refuse(commands, name, wrong[i]);
    snprintf(value, sizeof value, "%lld", (long long)least - 1);
    refuse(commands, name, value);
    refuse_by_program(commands, name);
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
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) refuse(commands, name, wrong[i]);              \
    refuse_by_program(commands, name);
#define COT_DURATION(group, field, initial, said, least, most, agree, table, ...)                            \
    IN_##table(DURATIONS, __VA_ARGS__)
#include "coterie/engine_options.def"
}

static void reals(void **state)
{
    (void)state;
    static const char *const wrong[] = {"", "x", "0.5x", "nan", "inf", "-1", "1e300", "1e-300"};
#define REALS(commands, name, ...)                                                                           \
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) refuse(commands, name, wrong[i]);              \
    refuse_by_program(commands, name);
#define COT_REAL(group, field, initial, said, least, most, agree, table, ...) IN_##table(REALS, __VA_ARGS__)
#include "coterie/engine_options.def"
}

/* What is switched takes no value. */
static void refuse_value(const struct commands *commands, const char *name)
{
    static const char *const given[] = {"", "1", "true"};
    char text[128], argument[128];
    snprintf(text, sizeof text, "coterie: --%s takes no value", name);
    for (size_t g = 0; g < sizeof given / sizeof *given; g++)
        for (int i = 0; commands->rows[i]; i++) {
            snprintf(argument, sizeof argument, "--%s=%s", name, given[g]);
            struct parsed p = {commands->rows[i], argument, {{0}}};
            capture_call(&c, parse, &p);
            must_say(argument, 2, text, "");
        }
    for (int i = 0; commands->line[i]; i++) must_refuse(commands->line[i], name, "1", 2, text);
}

static void switches(void **state)
{
    (void)state;
    int rows = 0;
#define SWITCHES(commands, name, ...)                                                                        \
    refuse_value(commands, name);                                                                            \
    rows++;
#define COT_SWITCH(group, field, agree, table, ...) IN_##table(SWITCHES, __VA_ARGS__)
#include "coterie/engine_options.def"
    assert_true(rows > 0);
}

static void words(void **state)
{
    (void)state;
#define CHOICES(commands, name, ...)                                                                         \
    refuse_by_program(commands, name);                                                                       \
    refuse(commands, name, "no-such");                                                                       \
    refuse(commands, name, "");
#define COT_CHOICE(group, field, said, words, agree, table, ...) IN_##table(CHOICES, __VA_ARGS__)
#include "coterie/engine_options.def"
}

/* `serve` takes what an engine calls an invalid argument for wrong usage; no such file, or instruction set here, is none. */
static void refuse_name(const struct commands *commands, const char *name)
{
    const bool invalid =
        strcmp(name, "isa") != 0 && strcmp(name, "tables") != 0 && strcmp(name, "signature-tables") != 0;
    for (int i = 0; commands->line[i]; i++)
        must_refuse(commands->line[i], name, "/nowhere/no-such",
                    invalid && !strncmp(commands->line[i], "serve", 5) ? 2 : 1, "'/nowhere/no-such'");
}

/* A setting of the command line, of whatever kind. */
static void refuse_setting(const struct commands *commands, const cli_option *row)
{
    if (row->kind == CLI_OPTION_FLAG)
        refuse_value(commands, row->name);
    else if (row->kind == CLI_OPTION_INTEGER)
        refuse_numbers(commands, row->least, row->most, row->name);
    else {
        const bool is_useless = strcmp(row->name, "hostfile") == 0,        // without --fabric shmem
            is_wrong_use = is_useless || strcmp(row->name, "memory") == 0; // the others name files
        assert_int_equal(row->kind, CLI_OPTION_TEXT);
        for (int i = 0; commands->line[i]; i++)
            must_refuse(commands->line[i], row->name, "/nowhere/no-such", is_wrong_use ? 2 : 1,
                        is_useless ? "--fabric shmem" : "'/nowhere/no-such'");
    }
}

static void settings(void **state)
{
    (void)state;
    int rows = 0;
#define SETTINGS(commands, kind, name, letter, argument, initial, ...)                                       \
    refuse_setting(commands, &(const cli_option){name, letter, kind, argument, initial, __VA_ARGS__});       \
    rows++;
#define COT_SETTING(field, kind, table, ...) IN_##table(SETTINGS, kind, __VA_ARGS__)
#include "coterie/engine_options.def"
    assert_true(rows > 3);
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
    must_refuse(with_ranks.line[2], "predict", "oracle", 1, "prediction 'oracle'");
}

/* ---- what comes of right ones ---- */

static cli_engine_settings defaults_of(const cli_option *rows)
{
    struct parsed p = {rows, NULL, {{0}}};
    assert_int_equal(parse(&p), 0);
    return p.settings;
}

/* Over settings in which each byte is 1, so that one that is written too much is seen. */
static cli_engine_settings parse_over(const cli_option *rows, char *argument)
{
    struct parsed p = {rows, argument, {{0}}};
    memset(&p.settings, 1, sizeof p.settings);
    assert_int_equal(parse(&p), 0);
    return p.settings;
}

/* A text that comes to a field is there until the next call. */
static cli_engine_settings parse_with(const cli_option *rows, const char *name, const char *value)
{
    static char argument[64];
    snprintf(argument, sizeof argument, "--%s=%s", name, value);
    return parse_over(rows, argument);
}

/* The field is as it should be, and all others as they are without the option. */
#define CAME(rows, name, value, field, expected)                                                             \
    {                                                                                                        \
        const cli_engine_settings without = parse_over(rows, NULL);                                          \
        cli_engine_settings with = parse_with(rows, name, value);                                            \
        if (with.options.field != (expected)) fail_msg("--%s %s does not come to its field", name, value);   \
        with.options.field = without.options.field;                                                          \
        if (memcmp(&with, &without, sizeof with)) fail_msg("--%s %s changes others", name, value);           \
    }

static void values_come_to_their_fields(void **state)
{
    (void)state;
    char value[32];
#undef IN_RANKS
#undef IN_SCHEDULING
#define IN_RANKS(what, ...) what(cli_engine_option_rows, __VA_ARGS__)
#define IN_SCHEDULING(what, ...) what(cli_scheduling_option_rows, __VA_ARGS__)
#define NUMBER_CAME(rows, field, most, name, ...)                                                            \
    snprintf(value, sizeof value, "%lld", (long long)(most));                                                \
    CAME(rows, name, value, field, most)
#define DURATION_CAME(rows, field, name, letter, argument, initial, help, low, high, scale_)                 \
    CAME(rows, name, "0.125", field, (int64_t)(0.125 * (struct cli_option){scale_}.scale))
#define TEXT_CAME(rows, field, name, ...)                                                                    \
    assert_string_equal(parse_with(rows, name, "some").options.field, "some");
#define COT_WORD(text, value) text,
#define COT_NO_WORD COT_WORD
#define COT_REPLAYED_WORD(text, value)
#define WORDS_CAME(rows, field, words, name, ...)                                                            \
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)                                                \
        assert_string_equal(parse_with(rows, name, words[i]).options.field, words[i]);
#define COT_NUMBER(group, field, type, initial, said, least, most, agree, table, ...)                        \
    IN_##table(NUMBER_CAME, group.field, most, __VA_ARGS__)
#define COT_DURATION(group, field, initial, said, least, most, agree, table, ...)                            \
    IN_##table(DURATION_CAME, group.field, __VA_ARGS__)
#define REAL_CAME(rows, field, name, ...) CAME(rows, name, "0.125", field, 0.125)
#define COT_REAL(group, field, initial, said, least, most, agree, table, ...)                                \
    IN_##table(REAL_CAME, group.field, __VA_ARGS__)
#define COT_TEXT(group, field, agree, table, ...) IN_##table(TEXT_CAME, group.field, __VA_ARGS__)
#define COT_CHOICE(group, field, said, words, agree, table, ...)                                             \
    static const char *const group##_##field[] = {words};                                                    \
    IN_##table(WORDS_CAME, group.field, group##_##field, __VA_ARGS__)
#include "coterie/engine_options.def"
    // beside `slots`, with no row of its own
    assert_int_equal(parse_with(cli_engine_option_rows, "expert-slots", "3").options.experts.layers,
                     0x01010101);
    assert_true(parse_over(cli_scheduling_option_rows, (char[]){"--movable"}).options.experts.movable);
    CAME(cli_engine_option_rows, "timeout", "7.5", group.timeout_ns, 7500000000)
    CAME(cli_scheduling_option_rows, "tbt-ms", "0", batch.tbt_ns, 0)
    CAME(cli_scheduling_option_rows, "tbt-ms", "2.5", batch.tbt_ns, 2500000)
    CAME(cli_scheduling_option_rows, "tbt-ms", "0.0000001", batch.tbt_ns, 1) // 0 would be no limit
    CAME(cli_scheduling_option_rows, "tbt-ms", "-0.5", batch.tbt_ns, COT_TBT_AUTO)
}

static void commands_have_their_defaults(void **state)
{
    (void)state;
    const cot_engine_options all = defaults_of(cli_engine_option_rows).options,
                             serving = defaults_of(cli_serving_option_rows).options;
    assert_string_equal(all.attention.mode, "tp");
    assert_string_equal(serving.attention.mode, "dp");
    assert_string_equal(all.weights.precision, "bf16");
    assert_true(all.group.timeout_ns == 300000000000);
    assert_int_equal(all.group.ranks, 0);
    assert_null(all.experts.op);
    const cli_engine_settings s = defaults_of(cli_scheduling_option_rows);
    assert_int_equal(s.options.batch.sequences, 64);
    assert_int_equal(s.options.batch.step_tokens, 512);
    assert_int_equal(s.options.batch.tbt_ns, COT_TBT_AUTO);
    assert_int_equal(s.options.batch.max_wait_steps, 8);
    assert_int_equal(s.options.memory.block_tokens, 16);
    assert_int_equal(s.options.memory.kv_bytes, 0);
    assert_int_equal(s.max_queue, 256);
}

/* What a command needs fills in what its rows left open, and no more. */
static void needs_fill_what_is_open(void **state)
{
    (void)state;
    cli_engine_settings s = defaults_of(cli_scheduling_option_rows);
    cot_engine_options o = cli_engine_options_of(&s, &(cli_engine_needs){.sequences = 3, .kv_tokens = 9});
    assert_int_equal(o.batch.sequences, 64);
    assert_int_equal(o.memory.block_tokens, 16);
    assert_int_equal(o.memory.kv_tokens, 9);
    assert_int_equal(o.group.ranks, 1);
    s.no_prefix_caching = true;
    assert_int_equal(cli_engine_options_of(&s, &(cli_engine_needs){0}).memory.block_tokens, 0);
    s = defaults_of(cli_engine_option_rows);
    assert_int_equal(cli_engine_options_of(&s, &(cli_engine_needs){.sequences = 3}).batch.sequences, 3);
    assert_int_equal(cli_engine_options_of(&s, &(cli_engine_needs){.sequences = 1000}).batch.sequences, 64);
    assert_int_equal(cli_engine_options_of(&s, &(cli_engine_needs){0}).batch.sequences, 1);
    assert_false(cli_engine_options_of(&s, &(cli_engine_needs){0}).watch.capture_routing);
    s.save_routing = "file";
    o = cli_engine_options_of(&s, &(cli_engine_needs){.step_tokens = 5, .block_tokens = 32});
    assert_true(o.watch.capture_routing);
    assert_int_equal(o.batch.step_tokens, 5);
    assert_int_equal(o.memory.block_tokens, 32);
}

static int64_t pages_with(cli_engine_settings *s, const cli_engine_needs *needs)
{
    cot_engine *engine;
    cot_error error;
    char *notes;
    cot_engine_load load;
    s->options.group.threads = 1;
    if (cli_engine_open_with(&engine, TINY, s, needs, &notes, &error) != COT_OK)
        fail_msg("%s", error.message);
    cot_engine_get_load(engine, &load);
    cot_engine_close(engine);
    free(notes);
    return load.kv_pages;
}

/* Of a server, unless it is given some: far more than the context of one text. */
static void memory_that_is_free_is_for_kv(void **state)
{
    (void)state;
    cli_engine_settings s = defaults_of(cli_scheduling_option_rows);
    s.options.batch.sequences = 1;
    const int64_t context = pages_with(&s, &(cli_engine_needs){0}),
                  free_for = pages_with(&s, &(cli_engine_needs){.kv_of_free = true});
    assert_true(free_for > 2 * context);
    s.options.memory.kv_bytes = (size_t)1 << 22;
    const int64_t given = pages_with(&s, &(cli_engine_needs){.kv_of_free = true});
    assert_true(given > 0 && given < free_for / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers),
                                       cmocka_unit_test(durations),
                                       cmocka_unit_test(reals),
                                       cmocka_unit_test(switches),
                                       cmocka_unit_test(settings),
                                       cmocka_unit_test(words),
                                       cmocka_unit_test(names),
                                       cmocka_unit_test(words_of_some_commands),
                                       cmocka_unit_test(values_come_to_their_fields),
                                       cmocka_unit_test(commands_have_their_defaults),
                                       cmocka_unit_test(needs_fill_what_is_open),
                                       cmocka_unit_test(memory_that_is_free_is_for_kv)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
