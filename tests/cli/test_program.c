/* The program itself: its version, its help, and what it does when nobody can hear it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "capture.h"

static capture c;

static void test_version(void **state)
{
    (void)state;
    capture_shell(&c, "\"$coterie\" --version");
    assert_string_equal(c.out, "coterie " COT_VERSION "\n");
    assert_string_equal(c.err, "");
    assert_int_equal(c.status, 0);
}

/* Every command that the overview lists explains itself, with an example. */
static void test_help_of_each(void **state)
{
    (void)state;
    capture_shell(&c, "\"$coterie\" --help");
    assert_int_equal(c.status, 0);
    assert_string_equal(c.err, "");
    assert_true(strstr(c.out, "usage: coterie COMMAND") != NULL);
    capture_shell(
        &c,
        "\"$coterie\" --help | sed -n '/^commands:/,/^$/s/^  \\(.*[^ ]\\)   *.*/\\1/p' | sed 's/   *.*//' |"
        "while read -r name; do"
        "  \"$coterie\" help $name >help.txt && grep -q \"^usage: coterie $name\" help.txt &&"
        "  grep -q '^examples:' help.txt && \"$coterie\" $name --help | cmp - help.txt ||"
        "  echo \"help of '$name' is incomplete\";"
        "done; rm -f help.txt");
    assert_string_equal(c.out, "");
    assert_string_equal(c.err, "");
}

static void test_unwritable_output(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "\"$coterie\" --help >/dev/full",
        "\"$coterie\" --help >&-",
        "{ sleep 0.2; \"$coterie\" --help; echo $? >status; } | true; read s <status; rm status; exit $s",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        capture_shell(&c, lines[i]);
        assert_string_equal(c.out, "");
        assert_int_equal(strncmp(c.err, "coterie: cannot write to standard output: ", 42), 0);
        assert_int_equal(strchr(c.err, '\n') - c.err, strlen(c.err) - 1);
        assert_int_equal(c.status, 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version),
        cmocka_unit_test(test_help_of_each),
        cmocka_unit_test(test_unwritable_output),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
