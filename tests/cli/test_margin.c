/* An answer's words stay whole on a terminal that the test plays, however the text was cut on its way. */
#include "harness/cmocka.h"
#include "harness/draw.h"
#include "harness/seed.h"

#include "cli/frame/margin.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 1200, COLUMNS = 100, TEXT = 4000 };

/* A terminal, as xterm does it: what is written in the last column leaves the cursor there until more comes. */
struct screen {
    int columns, row, column;
    bool pending; // the last column was written
    char cell[ROWS][COLUMNS + 1];
};

static void show(struct screen *s, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        int back = 0, used = 0;
        assert_in_range(s->row, 0, ROWS - 1);
        if (text[i] == '\033') {
            if (strncmp(text + i, "\033[K", 3) == 0) {
                memset(s->cell[s->row] + s->column, 0, (size_t)(COLUMNS - s->column));
                i += 2;
                continue;
            }
            assert_int_equal(sscanf(text + i, "\033[%dD%n", &back, &used), 1);
            assert_true(used && back > 0 && back <= s->column);
            s->column -= back;
            s->pending = false;
            i += (size_t)used - 1;
        } else if (text[i] == '\n') {
            s->row++;
            s->column = 0;
            s->pending = false;
        } else {
            if (s->pending) {
                s->row++;
                s->column = 0;
            }
            s->cell[s->row][s->column] = text[i];
            s->pending = s->column == s->columns - 1;
            s->column += !s->pending;
        }
    }
}

static struct draw drawn;

static size_t below(size_t n)
{
    return (size_t)draw_below(&drawn, (int64_t)n);
}

/* What a screen of `columns` shows of `text`, written in pieces of at most `piece` bytes. */
static struct screen *written(const char *text, size_t bytes, int columns, size_t piece)
{
    char *out = NULL;
    size_t out_bytes = 0;
    FILE *file = open_memstream(&out, &out_bytes);
    struct screen *s = calloc(1, sizeof *s);
    assert_true(file && s);
    cli_margin m = {.file = file, .columns = columns};
    for (size_t at = 0, n; at < bytes; at += n) {
        n = piece == 1 ? 1 : 1 + below(piece);
        n = n < bytes - at ? n : bytes - at;
        cli_margin_write(&m, text + at, n);
    }
    fclose(file);
    s->columns = columns;
    show(s, out, out_bytes);
    free(out);
    return s;
}

/* The words of one line of the text, laid out by hand: as many as fit in all columns but the last. */
static int lay_out(char (*rows)[COLUMNS + 1], int row, char *line, int columns)
{
    int column = 0;
    for (char *word = strtok(line, " "); word; word = strtok(NULL, " ")) {
        const int width = (int)strlen(word);
        if (column && column + 1 + width > columns - 1) {
            row++;
            column = 0;
        }
        memcpy(rows[row] + column + (column > 0), word, (size_t)width);
        if (column) rows[row][column] = ' ';
        column += width + (column > 0);
    }
    return row + 1;
}

static void test_words_stay_whole(void **state)
{
    (void)state;
    drawn = (struct draw){.seed = test_seed()};
    for (int round = 0; round < 60; round++) {
        static char text[TEXT + 1], left[TEXT + 1], expected[ROWS][COLUMNS + 1];
        const int columns = 12 + (int)below(COLUMNS - 12);
        size_t n = 0;
        while (n < TEXT - 30) {
            for (size_t letters = 1 + below(10); letters; letters--) text[n++] = (char)('a' + below(26));
            text[n++] = below(12) ? ' ' : '\n';
        }
        text[n] = 0;
        memset(expected, 0, sizeof expected);
        strcpy(left, text);
        int rows = 0;
        for (char *line = left, *end; line && *line; line = end ? end + 1 : NULL) {
            end = strchr(line, '\n');
            if (end) *end = 0;
            rows = lay_out(expected, rows, line, columns);
        }
        struct screen *s = written(text, n, columns, round % 2 ? 1 : 40);
        for (int row = 0; row < rows; row++) {
            char *shown = s->cell[row];
            for (size_t end = strlen(shown); end && shown[end - 1] == ' '; end--) shown[end - 1] = 0;
            if (strcmp(shown, expected[row]) != 0)
                fail_msg("%d columns, row %d: expected '%s', found '%s'", columns, row, expected[row], shown);
        }
        free(s);
    }
}

/* As the terminal alone would show it. */
static void must_be_left(const char *text, int columns)
{
    struct screen *s = written(text, strlen(text), columns, 5), *plain = calloc(1, sizeof *plain);
    assert_non_null(plain);
    plain->columns = columns;
    show(plain, text, strlen(text));
    for (int row = 0; row < ROWS; row++) assert_string_equal(s->cell[row], plain->cell[row]);
    free(plain);
    free(s);
}

static void test_what_no_line_holds_is_left(void **state)
{
    (void)state;
    char long_word[1201];
    memset(long_word, 'w', 1200);
    long_word[1200] = 0;
    must_be_left(long_word, 37);
    must_be_left("", 37);
    must_be_left("\n\n\n", 37);
    must_be_left("```python\nprint('a line of code that is longer than the terminal is wide', 1, 2)\n```\n",
                 37);
    must_be_left("  ```\nif a line of code is longer than the terminal is wide: it is broken anywhere\n```\n",
                 37);
}

/* Behind lines of code words are whole again. */
static void test_code_ends(void **state)
{
    (void)state;
    static const char text[] = "```\nx\n```\none two three four";
    struct screen *s = written(text, sizeof text - 1, 13, 3);
    assert_string_equal(s->cell[3], "one two ");
    assert_string_equal(s->cell[4], "three four");
    free(s);
}

/* Bytes that the margin's text becomes, whose characters are not all one column wide. */
static void must_become(const char *text, int columns, const char *expected)
{
    char *out = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&out, &bytes);
    assert_non_null(file);
    cli_margin m = {.file = file, .columns = columns};
    cli_margin_write(&m, text, strlen(text));
    fclose(file);
    assert_string_equal(out, expected);
    free(out);
}

static void test_widths(void **state)
{
    (void)state;
    must_become("\u00e9\u00e9\u00e9\u00e9 \u00e9\u00e9\u00e9\u00e9\u00e9", 10,
                "\u00e9\u00e9\u00e9\u00e9 "
                "\u00e9\u00e9\u00e9\u00e9\033[4D\033[K\n\u00e9\u00e9\u00e9\u00e9\u00e9"); // one each
    must_become("e\u0301e\u0301 abcdefg", 10,
                "e\u0301e\u0301 abcdef\033[6D\033[K\nabcdefg"); // none of its own
    must_become("\u4f60\u597d\u4e16\u754c\u4f60\u597d", 10,
                "\u4f60\u597d\u4e16\u754c\n\u4f60\u597d"); // two each: lines break between them
    must_become("ab\u4e16cdefghij", 10, "ab\u4e16cdefg\033[5D\033[K\ncdefghij");
    must_become("abcdefghi    jk", 10, "abcdefghi \njk"); // spaces behind the margin
    must_become("ab \xff\xfe c", 10, "ab \xff\xfe c");    // no characters
    must_become("one two three", 0, "one two three");     // no terminal
}

/* A word of more bytes than are kept is the terminal's to break. */
static void test_many_bytes(void **state)
{
    (void)state;
    char text[4 + 1 + 2 * 130 + 8] = "one a";
    for (int i = 0; i < 130; i++) memcpy(text + 5 + 2 * i, "\u0301", 2);
    memcpy(text + 5 + 2 * 130, "bcdefg", 7);
    must_become(text, 10, text);
}

/* What stands before something else on the terminal is not written twice. */
static void test_what_is_left_behind_stays(void **state)
{
    (void)state;
    char *out = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&out, &bytes);
    assert_non_null(file);
    cli_margin m = {.file = file, .columns = 10};
    cli_margin_write(&m, "one twoth", 9);
    cli_margin_leave(&m);
    cli_margin_write(&m, "ree", 3);
    fclose(file);
    assert_string_equal(out, "one twoth\nree");
    free(out);
}

static int locales; // that were made

locale_t __real_newlocale(int categories, const char *name, locale_t base);
locale_t __wrap_newlocale(int categories, const char *name, locale_t base);
locale_t __wrap_newlocale(int categories, const char *name, locale_t base)
{
    locales++;
    return __real_newlocale(categories, name, base);
}

/* Text comes in pieces of a few bytes, and a locale takes longer to make than they to be written. */
static void test_a_locale_is_made_once(void **state)
{
    (void)state;
    free(written("one two three", 13, 20, 1));
    free(written("one two three", 13, 20, 1));
    assert_int_equal(locales, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words_stay_whole),
        cmocka_unit_test(test_what_no_line_holds_is_left),
        cmocka_unit_test(test_code_ends),
        cmocka_unit_test(test_widths),
        cmocka_unit_test(test_many_bytes),
        cmocka_unit_test(test_what_is_left_behind_stays),
        cmocka_unit_test(test_a_locale_is_made_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
