/* bench fabric: which rows there are, what is sane of them, and what it refuses. */
#include "harness/cli/capture.h"
#include "harness/cmocka.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static capture c;

static double number(const json_t *row, const char *name)
{
    const json_t *value = json_object_get(row, name);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static void each_size_of_each_transfer_is_a_row(void **state)
{
    (void)state;
    static const char *const transfers[] = {"put + signal", "allgather", "reduce-scatter"};
    static const char *const groups[] = {"", "--ranks 7 --fabric processes"};
    enum { SIZES = 5 }; // 8 to 2048
    for (int g = 0; g < 2; g++) {
        char line[256];
        snprintf(line, sizeof line, "\"$coterie\" bench fabric --bytes 2050 --seconds 0.001 --json %s",
                 groups[g]);
        capture_shell(&c, line);
        if (c.status) fail_msg("%s", c.err);
        assert_string_equal(c.err, "");
        json_t *rows = json_loads(c.out, 0, NULL);
        assert_int_equal(json_array_size(rows), 3 * SIZES);
        for (size_t i = 0; i < 3 * SIZES; i++) {
            const json_t *row = json_array_get(rows, i);
            assert_string_equal(json_string_value(json_object_get(row, "transfer")), transfers[i / SIZES]);
            assert_true(number(row, "bytes") == 8 << 2 * (i % SIZES));
            assert_string_equal(json_string_value(json_object_get(row, "carriers")), "memory");
            const double repeats = number(row, "repeats"), least = number(row, "least_ns"),
                         median = number(row, "median_ns"), average = number(row, "average_ns");
            assert_true(repeats >= 5 && repeats <= 1000);
            assert_true(0 < least && least <= median && least <= average);
            assert_true(number(row, "bytes_per_second") > 0);
        }
        json_decref(rows);
    }
}

static void a_table_has_them_too(void **state)
{
    (void)state;
    capture_shell(&c, "\"$coterie\" bench fabric --bytes 8 --seconds 0.001");
    if (c.status) fail_msg("%s", c.err);
    int lines = 0;
    for (const char *at = c.out; (at = strchr(at, '\n')); at++) lines++;
    assert_int_equal(lines, 2 + 3 * 2 + 2); // what carries it, a heading and a row each, and what parts them
    assert_memory_equal(c.out, "carried by memory\n\n", 19);
}

static void what_goes_wrong_is_one_line(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *options, *message;
    } bad[] = {{2, "--ranks 1", "coterie: --ranks"},
               {2, "--bytes 7", "coterie: --bytes"},
               {1, "--fabric nosuch", "coterie: unknown fabric 'nosuch' (threads, processes or shmem)\n"},
               {2, "--hostfile x", "coterie: --hostfile is for --fabric shmem\n"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char line[256];
        snprintf(line, sizeof line, "\"$coterie\" bench fabric %s", bad[i].options);
        capture_shell(&c, line);
        assert_int_equal(c.status, bad[i].status);
        assert_string_equal(c.out, "");
        if (strncmp(c.err, bad[i].message, strlen(bad[i].message)) != 0) fail_msg("%s", c.err);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_size_of_each_transfer_is_a_row),
        cmocka_unit_test(a_table_has_them_too),
        cmocka_unit_test(what_goes_wrong_is_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
