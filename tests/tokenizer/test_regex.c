/* Oniguruma's expressions through PCRE2, against what Hugging Face tokenizers 0.23 splits. */
#include "coterie/tokenizer.h"
#include "tokenizer/regex.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

typedef struct row {
    const char *pattern, *text, *pieces; // pieces with '|' between
} row;

// clang-format off
static const row rows[] = {
    {"\\s+$", "a  \012b ", "a|  |\012b| "},
    {"\\s", "a\302\240b\341\240\216c\343\200\200\302\205", "a|\302\240|b\341\240\216c|\343\200\200|\302\205"},
    {"\\w+", "a_\302\262b \303\251\302\275\314\201\320\226-\342\223\220", "a_\302\262b| |\303\251\302\275\314\201\320\226|-|\342\223\220"},
    {"[\\w]+", "a_\302\262b \303\251\302\275\320\226", "a_|\302\262|b| |\303\251|\302\275|\320\226"},
    {"[^\\w]+", "a_\302\262b -", "a_|\302\262|b| -"},
    {"\\W", "a-\302\262", "a|-|\302\262"},
    {"\\b", "ab \302\275a", "ab| |\302\275a"},
    {"\\B", "abc, d", "a|b|c,| d"},
    {"\\h+", "xAf9g", "x|Af9|g"},
    {"\\v", "a\013b\012c", "a|\013|b\012c"},
    {"\\d+", "a1\331\243\302\262", "a|1\331\243|\302\262"},
    {"\\p{N}{1,3}", "1234\302\2755", "123|4\302\2755"},
    {"\\p{N}{1,3}+", "12345a", "12345|a"},
    {"(?:ab){2}+", "ababababab", "abababab|ab"},
    {"a{2}?", "aaab", "aa|a|b"},
    {"a{1,2}?", "aaa", "a|a|a"},
    {"a{,2}", "aaab", "aa|a|b"},
    {"a{", "aa{b", "a|a{|b"},
    {"{", "a{b", "a|{|b"},
    {"a++b|a", "aabaa", "aab|a|a"},
    {"(?m:a.b)|(?-m:c.d)", "a\012bc\012d", "a\012b|c\012d"},
    {".", "a\012", "a|\012"},
    {"[a-c[1 ]]+", "za1 bz", "z|a1 b|z"},
    {"[^a[bc]]+", "abxyc", "ab|xy|c"},
    {"[a\\-z]+", "a-zb", "a-z|b"},
    {"[!-/]+", "a!*/b", "a|!*/|b"},
    {"[\\[\\]]", "a[b]", "a|[|b|]"},
    {"a]|}", "a]}", "a]|}"},
    {"\\p{^L}", "a1b", "a|1|b"},
    {"\\P{L}+", "a12b", "a|12|b"},
    {"\\p{Han}", "\346\274\242\343\200\201\343\200\205\343\203\274", "\346\274\242|\343\200\201|\343\200\205|\343\203\274"},
    {"[\\p{Hiragana}\\p{Katakana}]+", "\343\201\262\343\202\253\343\203\274\346\274\242", "\343\201\262\343\202\253|\343\203\274\346\274\242"},
    {"\\p{Cyrillic}|\\p{Latin}{2}", "ab\320\226c", "ab|\320\226|c"},
    {"\\p{Alphabetic}+", "a\342\223\2201", "a\342\223\220|1"},
    {"x*", "ab", "a|b"},
    {"", "ab", "a|b"},
    {"(?i:'s|'LL)", "a'Sb'llc'\305\277", "a|'S|b|'ll|c|'\305\277"},
    {"(?i)k", "kK\342\204\252", "k|K|\342\204\252"},
    {"^a|b$", "ab\012ab\012", "a|b|\012|a|b|\012"},
    {"\\Aa|b\\z", "abab", "a|ba|b"},
    {"(?<=a)b|(?<!b)c(?!d)", "abbcaccd", "a|b|bca|c|cd"},
    {"(a)(b)\\1", "aabab", "a|aba|b"},
    {"\\u0041|\\x{e9}|\\x42", "A\303\251B", "A|\303\251|B"},
    {"(?:a|b)(?=c)", "acbb", "a|cbb"},
    {"\\.|\\(|\\ ", "a.( b", "a|.|(| |b"},
    {"(?>a+)b|a", "aaab", "aaab"},
    {"[a-z&&[^aeiou]]+", "hello ab2", "h|e|ll|o a|b|2"},
    {"[a-z&&b-d]", "abcde", "a|b|c|d|e"},
    {"[^a-z&&b-d]+", "abcde", "a|bcd|e"},
    {"[a-z&&[^b]&&[^d]]+", "abcdef", "a|b|c|d|ef"},
    {"[a-c&&b-d&&c-e]", "abcde", "ab|c|de"},
    {"[[a-c][x-z]&&b-y]+", "abcwxyz", "a|bc|w|xy|z"},
    {"[a-z&&^b]", "ab^", "a|b|^"},
    {"[a&&]|b", "ab", "a|b"},
    {"[^&&a]", "ab", "a|b"},
    {"[a-&&b-]", "a-b", "a|-|b"},
    {"[a-z&&[^b[c-d]]]+", "abcde", "a|bcd|e"},
    {"[x[a-z&&[^b]]0]+", "ab0x1", "a|b|0x|1"},
    {"[a[^b]]+", "abcab", "a|b|ca|b"},
    {"[^[^a]]", "ba", "b|a"},
    {"[\\W]+", "a-\302\262b \302\275", "a|-\302\262|b| \302\275"},
    {"[\\H_]+", "aG_1", "a|G_|1"},
    {"[\\w&&\\W]|a", "ab", "a|b"},
    {"[\\p{L}&&[^\\p{Han}]]+", "a\303\251\346\274\242\345\255\227\320\266b\346\274\242", "a\303\251|\346\274\242\345\255\227|\320\266b|\346\274\242"},
    {"[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+", "Hello\346\274\242\343\201\202aBc\343\200\201", "Hello|\346\274\242|\343\201\202a|Bc|\343\200\201"},
    {"(?i)[A-Z&&[^b]]+", "aBbc1", "aBbc|1"},
    {"(?i)[^a-z&&[^b]]+", "aBb1", "a|Bb1"},
    {"(?<=[a-z&&[^b]])1", "a1b1", "a|1|b1"},
    {"[\\x41-\\x5a&&[^A]]{2}", "ABCD", "A|BC|D"},
    {"[\\p{L}&&\\P{Lu}]+?", "aBc", "a|B|c"},
    {"[&-z&&[^a]]", "a&b", "a|&|b"},
    {"[a[^\\x{e000}-\\x{10ffff}]]+", "a\356\200\200b\355\237\277c", "a|\356\200\200|b\355\237\277c"},
    {"[\\x{d7ff}-\\x{e001}&&[^\\x{e000}]]", "\355\237\277\356\200\200\356\200\201", "\355\237\277|\356\200\200|\356\200\201"},
};

/* What Oniguruma accepts and is not translated, or neither accepts. */
static const struct { const char *pattern; cot_status status; const char *says; } refused[] = {
    {"[a&&[]]", COT_UNSUPPORTED, "'[a&&[]]'"},
    {"[a&&[:alpha:]]", COT_UNSUPPORTED, "'[a&&[:alpha:]]'"},
    {"[a&&\\p{No}\\q]", COT_UNSUPPORTED, "'\\q]' in a regular expression is not supported"},
    {"[a&&[^b]", COT_MALFORMED, "has no ']'"},
    {"[a&&z-b]", COT_MALFORMED, "a regular expression's set is wrong: "},
    {"\\q\303\251\303\251\303\251\303\251\303\251\303\251\303\251\303\251", COT_UNSUPPORTED,
     "'\\q\303\251\303\251\303\251\303\251\303\251\303\251\303\251' in"},
    {"[[:alpha:]]", COT_UNSUPPORTED, "'[[:alpha:]]'"},
    {"\\p{Nonsense}", COT_UNSUPPORTED, "'\\p{Nonsense}'"},
    {"\\pL", COT_UNSUPPORTED, "'\\pL'"},
    {"\\x80", COT_UNSUPPORTED, "'\\x80'"},
    {"(?<n>a)\\k<n>", COT_UNSUPPORTED, "'(?<n>a)"},
    {"(?s)a", COT_UNSUPPORTED, "'(?s)a'"},
    {"(*LIMIT_MATCH=1)a", COT_UNSUPPORTED, "'(*LIMIT_MATCH=1)"},
    {"a\\Kb", COT_UNSUPPORTED, "'\\Kb'"},
    {"(?x) a", COT_UNSUPPORTED, "'(?x) a'"},
    {"(?C1)a", COT_UNSUPPORTED, "'(?C1)a'"},
    {"a\\", COT_UNSUPPORTED, "'\\'"},
    {"(a", COT_MALFORMED, "a regular expression is wrong: "},
    {"a)", COT_MALFORMED, "a ')' too many"},
    {"[ab", COT_MALFORMED, "has no ']'"},
    {"*a", COT_MALFORMED, "a regular expression is wrong: "},
};
// clang-format on

static void test_splits(void **state)
{
    (void)state;
    cot_regex_scratch scratch = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cot_regex *regex;
        cot_error error = {0};
        char joined[128] = "";
        size_t used = 0, pieces = 0;
        if (cot_regex_open(&regex, rows[i].pattern, strlen(rows[i].pattern), false, &error))
            fail_msg("'%s': %s", rows[i].pattern, error.message);
        assert_int_equal(
            cot_regex_split(regex, &scratch, rows[i].text, strlen(rows[i].text), SIZE_MAX, &error), COT_OK);
        for (size_t s = 0; s < scratch.spans.count; s++) {
            cot_text_span span = scratch.spans.items[s];
            if (span.start == span.end) continue;
            if (pieces++) joined[used++] = '|';
            memcpy(joined + used, rows[i].text + span.start, span.end - span.start);
            used += span.end - span.start;
        }
        joined[used] = 0;
        if (strcmp(joined, rows[i].pieces))
            fail_msg("'%s' cuts '%s' into '%s', not '%s'", rows[i].pattern, rows[i].text, joined,
                     rows[i].pieces);
        cot_regex_close(regex);
    }
    cot_regex_scratch_free(&scratch);
}

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        cot_regex *regex;
        cot_error error = {0};
        cot_status status =
            cot_regex_open(&regex, refused[i].pattern, strlen(refused[i].pattern), false, &error);
        if (status != refused[i].status || regex || !strstr(error.message, refused[i].says))
            fail_msg("'%s' ends with %d: %s", refused[i].pattern, status, error.message);
    }
}

/* Sets that take long to work out, or that nest without end, are refused soon. */
static void test_many_sets(void **state)
{
    (void)state;
    static const struct {
        const char *before, *again, *behind;
        int times;
        bool good;
    } many[] = {{"[a", "&&a", "]", 70, false}, {"", "[b&&", "b", 20, true}, {"", "[^", "b", 40, false}};
    for (size_t i = 0; i < sizeof many / sizeof *many; i++) {
        char pattern[512] = "";
        cot_regex *regex;
        cot_error error = {0};
        strcpy(pattern, many[i].before);
        for (int k = 0; k < many[i].times; k++) strcat(pattern, many[i].again);
        strcat(pattern, many[i].behind);
        for (int k = 0; !*many[i].before && k < many[i].times; k++) strcat(pattern, "]");
        const cot_status status = cot_regex_open(&regex, pattern, strlen(pattern), false, &error);
        if (status != (many[i].good ? COT_OK : COT_UNSUPPORTED)) fail_msg("%zu: %s", i, error.message);
        cot_regex_close(regex);
    }
}

/* A pattern that takes exponential time on some text ends with an error, on that text alone. */
static void test_limit(void **state)
{
    (void)state;
    cot_regex *regex;
    cot_regex_scratch scratch = {0};
    cot_error error = {0};
    char text[64];
    memset(text, 'a', sizeof text);
    assert_int_equal(cot_regex_open(&regex, "(a|aa)+$", 8, false, &error), COT_OK);
    assert_int_equal(cot_regex_split(regex, &scratch, text, sizeof text, SIZE_MAX, &error), COT_OK);
    text[63] = 'b';
    assert_int_equal(cot_regex_split(regex, &scratch, text, sizeof text, SIZE_MAX, &error), COT_MALFORMED);
    assert_non_null(strstr(error.message, "does not end on this text"));
    assert_int_equal(cot_regex_split(regex, &scratch, text, 10, SIZE_MAX, &error), COT_OK);
    cot_regex_close(regex);
    cot_regex_scratch_free(&scratch);
}

/* Letters that Unicode took in one a version, from 11.0 on: those that the version told of has are letters, the others
 * are not. */
static void test_unicode_version(void **state)
{
    (void)state;
    static const struct {
        int version;
        const char *letter;
    } letters[] = {
        {11, "\341\262\220"},     {12, "\360\220\277\240"}, {13, "\360\220\272\200"},
        {14, "\360\220\225\260"}, {15, "\360\221\274\204"}, {16, "\360\220\227\200"},
    };
    cot_regex *regex;
    cot_regex_scratch scratch = {0};
    char pcre2[64], unicode[64], text[256], expected[256];
    cot_regex_versions(pcre2, unicode);
    int version = atoi(unicode);
    assert_true(version >= 14 && atof(pcre2) >= 10.3 && strlen(pcre2) < 8);
    assert_int_equal(cot_regex_open(&regex, "\\p{L}", 5, false, NULL), COT_OK);
    for (size_t i = 0; i < sizeof letters / sizeof *letters; i++) {
        const char *letter = letters[i].letter;
        assert_int_equal(cot_regex_split(regex, &scratch, letter, strlen(letter), SIZE_MAX, NULL), COT_OK);
        assert_int_equal(scratch.spans.count, 1);
        assert_int_equal(scratch.spans.items[0].matched, version >= letters[i].version);
    }
    cot_regex_close(regex);
    cot_regex_scratch_free(&scratch);
    cot_tokenizer_libraries(text, sizeof text);
    snprintf(expected, sizeof expected, "PCRE2 %s with Unicode %s, utf8proc ", pcre2, unicode);
    assert_int_equal(strncmp(text, expected, strlen(expected)), 0);
    cot_tokenizer_libraries(text, 7);
    assert_string_equal(text, "PCRE2 ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_splits),          cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_limit),           cmocka_unit_test(test_many_sets),
        cmocka_unit_test(test_unicode_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
