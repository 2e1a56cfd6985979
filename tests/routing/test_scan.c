/* Decimal numbers, and the first row of a text: what is skipped, and how far it looks. */
#include "harness/cmocka.h"

#include "routing/scan.h"

#include <string.h>

static void assert_row(const char *text, size_t bytes, const char *expected)
{
    const cot_scan row = cot_scan_first_row(text, bytes);
    assert_int_equal(row.end - row.at, strlen(expected));
    assert_memory_equal(row.at, expected, strlen(expected));
}

static void test_first_row(void **state)
{
    (void)state;
    static const char *const rows[][2] = {{"", ""},
                                          {"a", "a"},
                                          {"a\nb", "a"},
                                          {"\n\n \t\r\nb c\nd", "b c"},
                                          {"# a\n  # b\nc", "c"},
                                          {"# a\n#\nc\n", "c"},
                                          {"# a\n", ""},
                                          {" \n", ""}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_row(rows[i][0], strlen(rows[i][0]), rows[i][1]);
    assert_row("# a\nb", 4, ""); // what stands behind is not the text's
    assert_row("ab\nc", 1, "a");

    char text[8192]; // a row that begins beyond 4096 bytes is not looked for
    memset(text, '\n', sizeof text);
    text[4095] = text[4096] = 'x';
    assert_row(text, sizeof text, "x");
    text[4095] = '\n';
    assert_row(text, sizeof text, "");
}

static void test_decimals(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double value;
        const char *rest; // NULL: no number
    } rows[] = {{"0", 0, ""},         {"-1.5x", -1.5, "x"},     {".1", 0.1, ""},     {"1.,", 1, ","},
                {"1.2.3", 1.2, ".3"}, {"12e3", 12000, ""},      {"1E+2 ", 100, " "}, {"25e-1", 2.5, ""},
                {"0.07", 0.07, ""},   {"123.456", 123.456, ""}, {"", 0, NULL},       {"-", 0, NULL},
                {".", 0, NULL},       {"1e", 0, NULL},          {"1e-", 0, NULL},    {"1e400", 0, NULL},
                {"x", 0, NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cot_scan scan = {rows[i].text, rows[i].text + strlen(rows[i].text)};
        double value = 7;
        if (cot_scan_decimal(&scan, &value) != (rows[i].rest != NULL)) fail_msg("'%s'", rows[i].text);
        if (!rows[i].rest) continue;
        if (value != rows[i].value) fail_msg("'%s' is %.17g", rows[i].text, value);
        assert_string_equal(scan.at, rows[i].rest);
    }
    char digits[302]; // more than these are refused, not overflowed
    memset(digits, '1', sizeof digits);
    for (size_t n = 300; n < 302; n++) {
        cot_scan scan = {digits, digits + n};
        double value;
        assert_int_equal(cot_scan_decimal(&scan, &value), n == 300);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_first_row), cmocka_unit_test(test_decimals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
