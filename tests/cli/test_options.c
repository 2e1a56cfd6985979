/* The frame of the commands, with commands made for the test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cli/frame/command.h"

#include "harness/cli/capture.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct common {
    int64_t ranks;
    int precision;
};

struct settings {
    const char *model, *text;
    cli_list rest, prompts, given;
    bool quiet, verbose;
    int64_t seed;
    double temperature;
    struct common common;
    cli_optional_text stats;
};

static const char *const precisions[] = {"fp32", "bf16", NULL};
static const cli_option common_options[] = {{"ranks", 0, CLI_OPTION_INTEGER, "P", "1", "members of the group",
                                             offsetof(struct common, ranks), .least = 1, .most = 64},
                                            {"precision", 0, CLI_OPTION_CHOICE, "TYPE", "bf16", "arithmetic",
                                             offsetof(struct common, precision), .choices = precisions,
                                             .otherwise = "others are slow"},
                                            {0}};
static const cli_option own_options[] = {
    {"prompt", 'p', CLI_OPTION_LIST, "TEXT", NULL, "a prompt", offsetof(struct settings, prompts)},
    {"file",
     'f',
     CLI_OPTION_LIST,
     "FILE",
     NULL,
     "a file with a prompt",
     offsetof(struct settings, prompts),
     {{0}}},
    {"quiet", 'q', CLI_OPTION_FLAG, NULL, NULL, "says nothing", offsetof(struct settings, quiet)},
    {"verbose", 'v', CLI_OPTION_FLAG, NULL, NULL, "says more", offsetof(struct settings, verbose)},
    {"seed", 's', CLI_OPTION_INTEGER, "N", NULL, "of the random numbers", offsetof(struct settings, seed),
     .least = INT64_MIN, .most = INT64_MAX},
    {"temperature", 't', CLI_OPTION_REAL, "X", "0.5", "of the softmax",
     offsetof(struct settings, temperature), .min = 0, .max = INFINITY},
    {"stats",
     0,
     CLI_OPTION_OPTIONAL_TEXT,
     "FILE",
     NULL,
     "shows counters",
     offsetof(struct settings, stats),
     {{0}}},
    {0}};
static const cli_option_group groups[] = {
    {"options", own_options, 0}, {"the group", common_options, offsetof(struct settings, common)}, {0}};
static const cli_positional positionals[] = {{"MODEL", 1, 1, "a folder", offsetof(struct settings, model)},
                                             {"REST", 0, 99, "more", offsetof(struct settings, rest)},
                                             {"TEXT", 1, 1, "a text", offsetof(struct settings, text)},
                                             {0}};

static int show(const void *argument)
{
    const struct settings *s = argument;
    printf("model=%s text=%s rest=", s->model, s->text);
    for (size_t i = 0; i < s->rest.count; i++) printf("%s,", s->rest.items[i].text);
    printf(" prompts=");
    for (size_t i = 0; i < s->prompts.count; i++)
        printf("%c:%s,", s->prompts.items[i].option->letter, s->prompts.items[i].text);
    printf(" q=%d v=%d seed=%lld t=%g ranks=%lld precision=%s stats=%d:%s\n", s->quiet, s->verbose,
           (long long)s->seed, s->temperature, (long long)s->common.ranks, precisions[s->common.precision],
           s->stats.given, s->stats.text ? s->stats.text : "-");
    return CLI_EXIT_OK;
}

static int show_given(const void *argument)
{
    const struct settings *s = argument;
    for (size_t i = 0; i < s->given.count; i++) printf("%s,", s->given.items[i].option->name);
    return CLI_EXIT_OK;
}

static bool is_not_quiet(const void *argument)
{
    const struct settings *s = argument;
    if (s->quiet) cli_complain("it is never quiet");
    return !s->quiet;
}

static int give_up(const void *argument)
{
    (void)argument;
    return cli_complain("it\nfailed");
}

static const cli_command command_show = {"show",
                                         "shows what it was given",
                                         "A longer text.\n\nIts second paragraph begins a line of its own, "
                                         "and has as much room there as the first one.",
                                         (const char *const[]){"coterie show m t", NULL},
                                         {groups, positionals},
                                         sizeof(struct settings),
                                         show};
static const cli_command command_fail = {"trace fail", "fails", NULL, NULL, {NULL, NULL}, 0, give_up};
static const cli_command command_given = {.name = "given",
                                          .summary = "shows which options were given",
                                          .options = {groups, positionals, offsetof(struct settings, given)},
                                          .settings_bytes = sizeof(struct settings),
                                          .run = show_given,
                                          .check = is_not_quiet};
static const cli_command *const commands[] = {&command_show, &command_fail, &command_given, NULL};

static int call(void *context)
{
    char **argv = context;
    int argc = 0;
    while (argv[argc]) argc++;
    return cli_command_main(commands, argc, argv);
}

static capture c;
#define RUN(...) capture_call(&c, call, (char *[]){(char *)"coterie", __VA_ARGS__, NULL})

/* Exactly this line on stderr, nothing on stdout. */
static void expect_failure(int status, const char *line)
{
    assert_string_equal(c.err, line);
    assert_string_equal(c.out, "");
    assert_int_equal(c.status, status);
}

static void expect_success(const char *text)
{
    assert_string_equal(c.err, "");
    assert_string_equal(c.out, text);
    assert_int_equal(c.status, 0);
}

static void test_defaults(void **state)
{
    (void)state;
    RUN("show", "m", "t");
    expect_success("model=m text=t rest= prompts= q=0 v=0 seed=0 t=0.5 ranks=1 precision=bf16 stats=0:-\n");
}

static void test_every_spelling(void **state)
{
    (void)state;
    RUN("show", "--prompt", "a", "m", "-f", "b", "--prompt=c=d", "-pe", "-qv", "-s-7", "--temperature=1e-3",
        "--ranks", "64", "--precision=fp32", "x", "y", "--stats=s", "--", "--text");
    expect_success(
        "model=m text=--text rest=x,y, prompts=p:a,f:b,p:c=d,p:e, q=1 v=1 seed=-7 t=0.001 ranks=64 "
        "precision=fp32 stats=1:s\n");
    RUN("show", "--stats", "m", "-", "-qp", "-q", "-p", "");
    expect_success(
        "model=m text=- rest= prompts=p:-q,p:, q=1 v=0 seed=0 t=0.5 ranks=1 precision=bf16 stats=1:-\n");
    RUN("show", "m", "t", "--ranks=3", "--ranks=4");
    expect_success("model=m text=t rest= prompts= q=0 v=0 seed=0 t=0.5 ranks=4 precision=bf16 stats=0:-\n");
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *argument, *line;
    } cases[] = {
        {"--ranks=0", "--ranks takes an integer from 1 to 64, not '0'"},
        {"--ranks=65", "--ranks takes an integer from 1 to 64, not '65'"},
        {"--ranks=", "--ranks takes an integer from 1 to 64, not ''"},
        {"--ranks= 2", "--ranks takes an integer from 1 to 64, not ' 2'"},
        {"--ranks=2x", "--ranks takes an integer from 1 to 64, not '2x'"},
        {"--ranks=99999999999999999999", "--ranks takes an integer from 1 to 64, not '99999999999999999999'"},
        {"--seed=99999999999999999999", "--seed takes an integer, not '99999999999999999999'"},
        {"--temperature=-1", "--temperature takes a number of at least 0, not '-1'"},
        {"--temperature=nan", "--temperature takes a number of at least 0, not 'nan'"},
        {"--temperature=inf", "--temperature takes a number of at least 0, not 'inf'"},
        {"--precision=fp16", "--precision takes fp32 or bf16, not 'fp16': others are slow"},
        {"--quiet=yes", "--quiet takes no value, not 'yes'"},
        {"--ranks", "--ranks lacks its value P"},
        {"-p", "-p lacks its value TEXT"},
        {"--rank=3", "unknown option '--rank' (did you mean '--ranks'?)"},
        {"--pormpt", "unknown option '--pormpt' (did you mean '--prompt'?)"},
        {"--zzzzzzzzz", "unknown option '--zzzzzzzzz'"},
        {"--=", "unknown option '--'"},
        {"-x", "unknown option '-x'"},
        {"--a\nb\x1b", "unknown option '--a?b?'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[256];
        snprintf(line, sizeof line, "coterie: %s\n", cases[i].line);
        RUN("show", "m", "t", (char *)(uintptr_t)cases[i].argument);
        expect_failure(2, line);
    }
    RUN("show", "m");
    expect_failure(2, "coterie: TEXT is missing: a text\n");
    RUN("show");
    expect_failure(2, "coterie: MODEL is missing: a folder\n");
    RUN("trace", "fail", "a");
    expect_failure(2, "coterie: unexpected argument 'a'\n");
}

/* Each once, whatever it says and however often; what a command refuses it does not run with. */
static void test_what_was_given(void **state)
{
    (void)state;
    RUN("given", "m", "t");
    expect_success("");
    RUN("given", "m", "-vv", "--ranks", "1", "t", "-pa", "-pb", "--ranks=2", "--stats", "--prompt", "-p",
        "-vvvvvvvvvvvv");
    expect_success("verbose,ranks,prompt,stats,");
    RUN("given", "m", "t", "--ranks", "3", "-q");
    expect_failure(2, "coterie: it is never quiet\n");
    RUN("given", "m", "t", "--ranks", "x", "-q");
    expect_failure(2, "coterie: --ranks takes an integer from 1 to 64, not 'x'\n");
    RUN("given", "-q", "--help");
    assert_int_equal(c.status, 0);
}

static void test_commands(void **state)
{
    (void)state;
    RUN("trace", "fail");
    expect_failure(1, "coterie: it?failed\n");
    RUN("trace");
    expect_failure(2, "coterie: 'trace' is one of 'trace fail'\n");
    RUN("shwo", "m");
    expect_failure(2, "coterie: unknown command 'shwo' (did you mean 'show'?)\n");
    RUN("help", "sho");
    expect_failure(2, "coterie: unknown command 'sho' (did you mean 'show'?)\n");
    RUN("xyzzyxyzzy");
    expect_failure(2, "coterie: unknown command 'xyzzyxyzzy' (see coterie --help)\n");
    RUN(NULL);
    expect_failure(2, "coterie: no command given (see coterie --help)\n");
    RUN("");
    expect_failure(2, "coterie: unknown command '' (see coterie --help)\n");
}

static void test_help(void **state)
{
    (void)state;
    static const char help[] =
        "coterie show: shows what it was given\n\n"
        "usage: coterie show MODEL [REST...] TEXT [options]\n\n"
        "A longer text.\n\n"
        "Its second paragraph begins a line of its own, and has as much room there as the first\n"
        "one.\n\n"
        "arguments:\n"
        "  MODEL                       a folder\n"
        "  REST                        more\n"
        "  TEXT                        a text\n\n"
        "options:\n"
        "  -p, --prompt TEXT           a prompt (repeatable)\n"
        "  -f, --file FILE             a file with a prompt (repeatable)\n"
        "  -q, --quiet                 says nothing\n"
        "  -v, --verbose               says more\n"
        "  -s, --seed N                of the random numbers\n"
        "  -t, --temperature X         of the softmax (at least 0; default 0.5)\n"
        "      --stats[=FILE]          shows counters\n\n"
        "the group:\n"
        "      --ranks P               members of the group (1 to 64; default 1)\n"
        "      --precision TYPE        arithmetic (fp32, bf16; default bf16)\n\n"
        "examples:\n"
        "  coterie show m t\n";
    RUN("help", "show");
    expect_success(help);
    RUN("show", "--help");
    expect_success(help);
    RUN("show", "m", "-h");
    expect_success(help);
    RUN("show", "m", "--", "--help");
    assert_true(strstr(c.out, "text=--help") != NULL);
    RUN("help");
    assert_true(strstr(c.out, "  show                shows what it was given\n") != NULL);
    assert_int_equal(c.status, 0);
}

/* The first word of two-word commands explains itself too. */
static void test_help_of_a_family(void **state)
{
    (void)state;
    static const char help[] = "usage: coterie trace COMMAND [arguments] [options]\n"
                               "       coterie help trace COMMAND    what a command does and takes\n\n"
                               "commands:\n"
                               "  fail                fails\n";
    RUN("trace", "--help");
    expect_success(help);
    RUN("trace", "-h");
    expect_success(help);
    RUN("help", "trace");
    expect_success(help);
    RUN("xyzzyxyzzy", "--help");
    expect_failure(2, "coterie: unknown command 'xyzzyxyzzy' (see coterie --help)\n");
    RUN("trace", "foo", "--help");
    expect_failure(2, "coterie: 'trace' is one of 'trace fail'\n");
    RUN("help", "trace", "foo");
    expect_failure(2, "coterie: 'trace' is one of 'trace fail'\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),         cmocka_unit_test(test_every_spelling),
        cmocka_unit_test(test_refusals),         cmocka_unit_test(test_what_was_given),
        cmocka_unit_test(test_commands),         cmocka_unit_test(test_help),
        cmocka_unit_test(test_help_of_a_family),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
