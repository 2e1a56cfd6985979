/* Files that the user asks for, of every command that writes one: links stay, a descriptor is written where it stands,
 * and "-" is standard output where that holds nothing else. Links to /proc/self/fd/1 stand in for /dev/stdout, which a
 * program that replaces links would destroy for the whole machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "harness/cli/capture.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL COT_SOURCE "/models/tiny"
#define GROUP "group trace --ranks 2 --iterations 2 --split 0.5 "

static capture c;
static char folder[] = "/tmp/cot_outputs_XXXXXX";

static void run_line(const char *line)
{
    char all[2048];
    snprintf(all, sizeof all, "cd %s && %s", folder, line);
    capture_shell(&c, all);
}

/* Runs a line that must succeed. */
static void must(const char *line)
{
    run_line(line);
    if (c.status) fail_msg("%s: status %d, '%s'", line, c.status, c.err);
}

/* What is before the name of the file, and what the file begins with. */
static const struct output {
    const char *command, *head;
    const char *holds; // what standard output holds, so that "-" is refused; NULL: nothing
    bool varies;       // times are in it
} outputs[] = {
    {"profile '" MODEL "' --text a.txt -o ", "", NULL, false},
    {"profile '" MODEL "' --text a.txt -o t --stats=", "{\n", NULL, true},
    {"run '" MODEL "' -p The -n 2 --save-routing ", "", "the text", false},
    {"run '" MODEL "' -p The -n 2 --stats=", "{\n", "the text", true},
    {"eval '" MODEL "' --text a.txt -o ", "", "the losses", false},
    {"eval '" MODEL "' --text a.txt --save-routing ", "", "the losses", false},
    {"eval '" MODEL "' --text a.txt --stats=", "{\n", "the losses", true},
    {"trace convert trace -o ", "", NULL, false},
    {"place --load load.csv --ranks 2 -o ", "{", "the figures", false},
    {"place --load load.csv --topology complete:ranks=2 --report ", "<!DOCTYPE html>", "the figures", false},
    {"place --load load.csv --ranks 2 --current map --moves ", "round,", "the figures", false},
    {"place convert map -o ", "{", NULL, false},
    {"place convert map --to omni-infer -o ", "\x93NUMPY", NULL, false},
    {"topology distances complete:ranks=4 --plot ", "<svg", NULL, false},
    {GROUP "--tables ", "", "the figures", false},
    {GROUP "--placement ", "{", "the figures", false},
    {"predict --evaluate trace --ranks 2 --resamples 0 --plot ", "<!DOCTYPE html>", "the figures", false},
    {"bench moe --shape 64,64,4,2 --tokens 4 --repeat 5 --timeline ", "{", "the results", true},
    {"bench moe --shape 64,64,4,2 --tokens 4 --repeat 5 --details ", "[", "the results", true},
};

static void run_output(const struct output *o, const char *before, const char *path, const char *after)
{
    char line[1024];
    snprintf(line, sizeof line, "%s\"$coterie\" %s%s%s", before, o->command, path, after);
    run_line(line);
}

static void test_links(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        const struct output *o = &outputs[i];
        must("rm -rf x && mkdir x && ln -s ../x/file x/link");
        run_output(o, "", "x/link", " >out.txt");
        if (c.status) fail_msg("%s: status %d, '%s'", o->command, c.status, c.err);
        run_line("test -s x/file && readlink x/link && ls -A x && head -c 20 x/file");
        if (strncmp(c.out, "../x/file\nfile\nlink\n", 20) != 0 || !c.out[20] ||
            strncmp(c.out + 20, o->head, strlen(o->head)) != 0)
            fail_msg("%s: '%s'", o->command, c.out);
        if (o->varies) continue;
        must("cp x/file x/first"); // and once more to what stands for a descriptor
        must("echo before >log && ln -s /proc/self/fd/3 x/stand-in");
        run_output(o, "", "x/stand-in", " 3>>log >out.txt");
        if (c.status) fail_msg("%s: status %d, '%s'", o->command, c.status, c.err);
        // Pages say when and by which command they were made.
        run_line("readlink x/stand-in; { echo before; cat x/first; } | sed '/>Coterie .*<code>/d' >one; "
                 "sed '/>Coterie .*<code>/d' log | cmp - one");
        if (strcmp(c.out, "/proc/self/fd/3\n") != 0) fail_msg("%s: '%s'", o->command, c.out);
    }
}

static void test_standard_output(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        const struct output *o = &outputs[i];
        char expected[128];
        if (!o->holds) {
            run_output(o, "echo before >log; ", "-", " >>log");
            if (c.status) fail_msg("%s: status %d, '%s'", o->command, c.status, c.err);
            if (!o->varies) {
                run_output(o, "", "file", "");
                run_line("{ echo before; cat file; } | cmp - log");
            } else
                run_line("head -c 10 log | grep -q before");
            if (c.status || *c.out) fail_msg("%s: standard output is not the file: %s", o->command, c.out);
            continue;
        }
        run_output(o, "", "-", "");
        snprintf(expected, sizeof expected, "coterie: '-' is standard output, which holds %s: name a file\n",
                 o->holds);
        if (c.status != 1 || *c.out || strcmp(c.err, expected) != 0)
            fail_msg("%s: status %d, '%s' and '%s'", o->command, c.status, c.err, c.out);
    }
    run_line("\"$coterie\" profile '" MODEL "' --text a.txt -o - --stats=-"); // one of them at most
    assert_int_equal(c.status, 1);
    assert_string_equal(c.err, "coterie: '-' is standard output, which holds the trace: name a file\n");
    run_line("\"$coterie\" place convert map -o - >/dev/full");
    assert_int_equal(c.status, 1);
    assert_non_null(strstr(c.err, "No space left"));
    run_line("ls -A | grep -e '^-$'");
    assert_string_equal(c.out, "");
}

static int prepare(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) return -1;
    must("printf 'The cat sat on the mat and the dog sat on the cat.' >a.txt;"
         "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do"
         "  cat a.txt a.txt a.txt; done >long.txt;"
         "printf 'layer,expert,tokens\\n0,0,10\\n0,1,20\\n0,2,30\\n0,3,4\\n' >load.csv;"
         "\"$coterie\" profile '" MODEL "' --text long.txt -o trace && "
         "\"$coterie\" place --load load.csv --ranks 2 -o map");
    return 0;
}

static int clean(void **state)
{
    (void)state;
    char line[64];
    snprintf(line, sizeof line, "rm -rf '%s'", folder);
    return system(line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_links),
        cmocka_unit_test(test_standard_output),
    };
    return cmocka_run_group_tests(tests, prepare, clean);
}
