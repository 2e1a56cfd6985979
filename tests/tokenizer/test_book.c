/* A long text against data that others measured: OLMoE's routing table of the book text counts the tokens
 * that its tokenizer made. */
#include "coterie/tokenizer.h"

#include "base/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#define TEXT COT_SHARED "/data/routing/olmoe/text.book.txt"
#define TABLE COT_SHARED "/data/routing/olmoe/token_expert.book.tsv"
#define OLMO COT_SHARED "/data/tokenizers/olmo/allenai_gpt-neox-olmo-dolma-v1_5.json"

enum { TOKENS = 208896, TOP_K = 8, IDS = 1 << 16 };

/* counts[id] of the table's layer 0, summed over experts; returns how many rows it had. */
static int read_table(int64_t *counts)
{
    char line[128];
    int rows = 0, layer, expert, id;
    long count;
    FILE *file = fopen(TABLE, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file)); // the columns' names
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%d %d %d %ld", &layer, &expert, &id, &count) != 4 || layer != 0) continue;
        assert_in_range(id, 0, IDS - 1);
        counts[id] += count;
        rows++;
    }
    fclose(file);
    return rows;
}

static void test_histogram(void **state)
{
    (void)state;
    static int64_t expected[IDS], seen[IDS];
    cot_tokenizer *tokenizer;
    cot_error error;
    char *text;
    size_t bytes, count;
    int32_t *ids;
    assert_int_equal(cot_tokenizer_open(&tokenizer, OLMO, &error), COT_OK);
    assert_int_equal(cot_file_read(&text, &bytes, TEXT, SIZE_MAX, &error), COT_OK);
    assert_int_equal(cot_tokenizer_encode(tokenizer, &ids, &count, text, bytes, false, &error), COT_OK);
    assert_true(count >= TOKENS);
    assert_true(read_table(expected) > 1000);
    for (size_t i = 0; i < TOKENS; i++) seen[ids[i]]++;
    int64_t total = 0, differ = 0;
    for (int id = 0; id < IDS; id++) {
        assert_int_equal(expected[id] % TOP_K, 0);
        total += expected[id] / TOP_K;
        differ += llabs(expected[id] / TOP_K - seen[id]);
    }
    assert_int_equal(total, TOKENS);
    assert_int_equal(differ, 2); // one token here, another there
    free(ids);
    free(text);
    cot_tokenizer_close(tokenizer);
}

int main(void)
{
    if (access(TABLE, R_OK)) {
        printf("SKIPPED: no %s\n", TABLE);
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_histogram)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
