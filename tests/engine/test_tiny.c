/* The shipped model's loss on text it has not seen is the one that its README states, domain by domain. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/settings.h"
#include "harness/memory.h"

#include "coterie/eval.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DOMAINS = 16 };

struct table {
    size_t count;
    char name[MOST_DOMAINS][16];
    double nats[MOST_DOMAINS];
};

/* The rows of the README's table whose first cell is a word and whose second a number. */
static struct table read_table(void)
{
    struct table table = {0};
    FILE *file = fopen(TINY "/README.md", "r");
    assert_non_null(file);
    char line[512];
    while (fgets(line, sizeof line, file)) {
        struct table *t = &table;
        if (t->count < MOST_DOMAINS &&
            sscanf(line, "| %15[a-z] | %lf |", t->name[t->count], &t->nats[t->count]) == 2)
            t->count++;
    }
    fclose(file);
    assert_int_equal(table.count, 8);
    return table;
}

static size_t domain_of(const struct table *table, const char *sequence)
{
    size_t length = strcspn(sequence, ".");
    for (size_t i = 0; i < table->count; i++)
        if (strlen(table->name[i]) == length && !strncmp(table->name[i], sequence, length)) return i;
    fail_msg("the README has no domain of '%s'", sequence);
    return 0;
}

static void check_losses(const char *precision, const char *attention, int ranks, double tolerance)
{
    struct table table = read_table();
    cot_eval_set *set;
    size_t count, sequences_of[MOST_DOMAINS] = {0};
    double sum[MOST_DOMAINS] = {0}, worst = 0;
    assert_int_equal(cot_eval_set_open(&set, TINY "/heldout.safetensors", NULL), COT_OK);
    const cot_eval_sequence *sequences = cot_eval_set_sequences(set, &count);
    double *nats = must_allocate(count, sizeof *nats);
    struct setting s = {.folder = TINY,
                        .ranks = ranks,
                        .precision = precision,
                        .attention = attention,
                        .kv_tokens = 2048,
                        .step_tokens = 1024,
                        .quiet = true};
    cot_engine *engine = must_open(&s);
    cot_error error;
    if (cot_eval_run(engine, sequences, count, NULL, nats, NULL, NULL, &error) != COT_OK)
        fail_msg("%s", error.message);
    cot_engine_close(engine);
    for (size_t i = 0; i < count; i++) {
        size_t domain = domain_of(&table, sequences[i].name);
        assert_int_equal(sequences[i].tokens, 512);
        sum[domain] += nats[i];
        sequences_of[domain]++;
    }
    for (size_t d = 0; d < table.count; d++) {
        assert_true(sequences_of[d] > 0);
        double found = sum[d] / (double)sequences_of[d], difference = fabs(found - table.nats[d]);
        if (!(difference <= tolerance))
            fail_msg("%s, %s, %d ranks: %s has %.4f nats a token, expected %.4f", precision, attention, ranks,
                     table.name[d], found, table.nats[d]);
        if (difference > worst) worst = difference;
    }
    printf("%s, %s, %d ranks: at most %.5f nats off\n", precision, attention, ranks, worst);
    free(nats);
    cot_eval_set_close(set);
}

static void losses(void **state)
{
    (void)state;
    static const int ranks[] = {1, 2, 3, 4, 8};
    const char *all = getenv("COT_LONG");
    if (!all || strcmp(all, "1") != 0) {
        printf("three of thirty settings; COT_LONG=1 runs them all\n");
        check_losses("fp32", "tp", 1, 0.005);
        check_losses("bf16", "dp", 3, 0.02);
        check_losses("int8", "tp", 2, 0.005);
        return;
    }
    for (size_t r = 0; r < sizeof ranks / sizeof *ranks; r++)
        for (int dp = 0; dp < 2; dp++) {
            check_losses("fp32", dp ? "dp" : "tp", ranks[r], 0.005);
            check_losses("bf16", dp ? "dp" : "tp", ranks[r], 0.02);
            check_losses("int8", dp ? "dp" : "tp", ranks[r], 0.005);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(losses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
