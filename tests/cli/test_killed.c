/* A process of a group is killed: the program says which, ends, and leaves no process behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "harness/cli/capture.h"

static capture c;

/* Begins a long run of four processes, $p and its children $1 to $3, and does `then` once there is text. */
static void run_and(const char *options, const char *then)
{
    char line[2048];
    snprintf(line, sizeof line,
             "d=$(mktemp -d) && cd $d && trap 'rm -r $d' EXIT; for i in $(seq 40); do ps=\"$ps -p $i\"; done;"
             "\"$coterie\" run " COT_SOURCE
             "/models/tiny $ps -n 500 --ignore-eos --ranks 4 --fabric processes"
             " %s >out & p=$!; until [ -s out ]; do kill -0 $p || exit 90; sleep 0.01; done;"
             "set -- $(cat /proc/$p/task/$p/children); [ $# = 3 ] || exit 91;"
             "lives() { grep -q '^State:.[^ZX]' /proc/$1/status 2>/dev/null; }; %s",
             options, then);
    capture_shell(&c, line);
}

/* Stopped, it is in the midst of a step as it dies: the others wait for it. */
static void a_rank_that_is_killed_is_named(void **state)
{
    (void)state;
    static const char *const options[] = {"", "--threads 1", "--op bulk --attention dp"};
    for (int i = 0; i < 3; i++) {
        const char *const want = "coterie: rank 2 was killed by signal 9 while rank 0 waited in '";
        run_and(options[i], "kill -STOP $2; sleep 0.1; kill -KILL $2; wait $p; s=$?; "
                            "for child; do lives $child && echo $child lives; done; exit $s");
        if (strncmp(c.err, want, strlen(want)) || strchr(c.err, '\n') != c.err + strlen(c.err) - 1)
            fail_msg("'%s'", c.err);
        assert_int_equal(c.status, 1);
        assert_string_equal(c.out, "");
    }
}

static void children_end_with_rank_0(void **state)
{
    (void)state;
    run_and("", "kill -KILL $p; wait $p; s=$?; for i in $(seq 200); do n=0; "
                "for child; do lives $child && n=$((n + 1)); done; [ $n = 0 ] && exit $s; sleep 0.1; "
                "done; exit 92");
    assert_int_equal(c.status, 128 + 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_rank_that_is_killed_is_named),
                                       cmocka_unit_test(children_end_with_rank_0)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
