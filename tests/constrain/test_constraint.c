/* What all constraints have in common, over a table of our own: texts are the digits 0 to 9, as many as a limit says, each above
 * the one before. */
#include "harness/cmocka.h"

#include "base/error.h"
#include "constrain/constraint.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { VOCAB = 70, WORDS = 3, EOS = 66, OTHER_EOS = 40 };

typedef struct rising {
    cot_constraint base;
    int32_t digits[16];
    size_t count, least;
    bool is_slow, fails;
    int *open;
} rising;

static cot_status rising_copy(cot_constraint **copy, const cot_constraint *c, cot_error *error)
{
    (void)error;
    rising *r = malloc(sizeof *r);
    memcpy(r, c, sizeof *r);
    ++*r->open;
    *copy = &r->base;
    return COT_OK;
}

static cot_status rising_mask(cot_constraint *c, uint32_t *words, cot_error *error)
{
    const rising *r = (rising *)c;
    if (r->fails) return cot_fail(error, COT_INVALID_ARGUMENT, "as it was told to");
    memset(words, 0, WORDS * sizeof *words);
    for (int32_t t = r->count ? r->digits[r->count - 1] + 1 : 0; t < 10; t++) words[0] |= 1U << t;
    words[OTHER_EOS / 32] |= 1U << OTHER_EOS % 32; // of no meaning: may_end has the word
    struct timespec now, begin;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    for (now = begin;
         r->is_slow && (now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000 <
                           COT_CONSTRAINT_MASK_MS + 5;)
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return COT_OK;
}

static cot_status rising_commit(cot_constraint *c, int32_t token, cot_error *error)
{
    rising *r = (rising *)c;
    if (token >= 10 || (r->count && token <= r->digits[r->count - 1]))
        return cot_fail(error, COT_INVALID_ARGUMENT, "%d does not rise", (int)token);
    r->digits[r->count++] = token;
    return COT_OK;
}

static cot_status rising_rollback(cot_constraint *c, size_t tokens, cot_error *error)
{
    (void)error;
    ((rising *)c)->count -= tokens;
    return COT_OK;
}

static bool rising_may_end(const cot_constraint *c)
{
    return ((const rising *)c)->count >= ((const rising *)c)->least;
}

static void rising_close(cot_constraint *c)
{
    --*((rising *)c)->open;
    free(c);
}

static const cot_constraint_table table = {rising_copy,     rising_mask,    rising_commit,
                                           rising_rollback, rising_may_end, rising_close};
static int open_ones;

static cot_constraint *open_rising(size_t least)
{
    static const int32_t eos[] = {EOS, OTHER_EOS, 2000000000}; // the last far behind any mask
    rising *r = calloc(1, sizeof *r);
    *r = (rising){.base = {.table = &table, .words = WORDS, .eos = eos, .eos_count = 3},
                  .least = least,
                  .open = &open_ones};
    open_ones++;
    return &r->base;
}

static bool may_come(cot_constraint *c, int32_t token)
{
    const uint32_t *mask;
    cot_error error;
    if (cot_constraint_mask(c, &mask, &error) != COT_OK) fail_msg("%s", error.message);
    return mask[token / 32] >> token % 32 & 1;
}

static void must_commit(cot_constraint *c, int32_t token)
{
    cot_error error;
    if (cot_constraint_commit(c, token, &error) != COT_OK) fail_msg("%s", error.message);
}

static void ends_come_where_a_text_may_end(void **state)
{
    (void)state;
    cot_constraint *c = open_rising(1);
    cot_error error;
    assert_false(may_come(c, EOS) || may_come(c, OTHER_EOS) || cot_constraint_may_end(c));
    must_commit(c, 3);
    assert_true(may_come(c, EOS) && may_come(c, OTHER_EOS) && cot_constraint_may_end(c));
    assert_true(may_come(c, 4) && !may_come(c, 3));
    must_commit(c, OTHER_EOS);
    assert_true(cot_constraint_may_end(c) && may_come(c, EOS) && !may_come(c, 4)); // as long as one likes
    must_commit(c, EOS);
    assert_int_equal(cot_constraint_rollback(c, 1, &error), COT_OK); // the first end stands
    assert_true(may_come(c, EOS) && !may_come(c, 4));
    must_commit(c, EOS);
    assert_int_equal(cot_constraint_rollback(c, 2, &error), COT_OK);
    assert_true(may_come(c, 4) && may_come(c, EOS));
    must_commit(c, EOS);
    assert_int_equal(cot_constraint_rollback(c, 2, &error), COT_OK); // an end and a digit
    assert_true(may_come(c, 0) && !may_come(c, EOS));
    assert_int_equal(cot_constraint_rollback(c, 1, &error), COT_INVALID_ARGUMENT);
    must_commit(c, 8); // that was no failure
    cot_constraint_close(c);
    assert_int_equal(open_ones, 0);
}

static void a_failure_is_for_good(void **state)
{
    (void)state;
    for (int how = 0; how < 6; how++) {
        cot_constraint *c = open_rising(how == 4 ? 5 : 1), *copy;
        cot_error error = {0}, again = {0};
        const uint32_t *mask;
        must_commit(c, how == 4 ? 9 : 3);
        ((rising *)c)->fails = how == 0;
        ((rising *)c)->is_slow = how == 5;
        if (how == 2) must_commit(c, EOS);
        if (how == 0 || how == 4 || how == 5)
            assert_int_equal(cot_constraint_mask(c, &mask, &error), COT_INVALID_ARGUMENT);
        if (how == 1) assert_int_equal(cot_constraint_commit(c, 2, &error), COT_INVALID_ARGUMENT);
        if (how == 2) assert_int_equal(cot_constraint_commit(c, 4, &error), COT_INVALID_ARGUMENT);
        if (how == 3) assert_int_equal(cot_constraint_commit(c, 96, &error), COT_INVALID_ARGUMENT);
        static const char *const words[] = {"as it was told to",
                                            "2 does not rise",
                                            "token 4 may not come behind 2 tokens",
                                            "token 96 is not in the vocabulary",
                                            "no token may come behind 1 tokens",
                                            "too costly"};
        assert_non_null(strstr(error.message, words[how]));
        ((rising *)c)->fails = ((rising *)c)->is_slow = false;
        assert_int_equal(cot_constraint_mask(c, &mask, &again), COT_INVALID_ARGUMENT);
        assert_string_equal(again.message, error.message);
        assert_int_equal(cot_constraint_commit(c, 4, NULL), COT_INVALID_ARGUMENT);
        assert_int_equal(cot_constraint_rollback(c, 1, NULL), COT_INVALID_ARGUMENT);
        assert_false(cot_constraint_may_end(c));
        assert_int_equal(cot_constraint_copy(&copy, c, &error), COT_OK);
        assert_int_equal(cot_constraint_mask(copy, &mask, &again), COT_INVALID_ARGUMENT);
        cot_constraint_close(c);
        cot_constraint_close(copy);
    }
    assert_int_equal(open_ones, 0);
}

static void copies_go_their_own_ways(void **state)
{
    (void)state;
    cot_constraint *c = open_rising(2), *copy;
    must_commit(c, 1);
    assert_true(may_come(c, 2));
    assert_int_equal(cot_constraint_copy(&copy, c, NULL), COT_OK);
    must_commit(copy, 5);
    assert_true(may_come(c, 2) && !may_come(copy, 2));
    assert_true(may_come(copy, EOS) && !may_come(c, EOS));
    must_commit(copy, EOS);
    must_commit(c, 2);
    cot_constraint_close(c);
    assert_true(may_come(copy, EOS) && !may_come(copy, 6));
    cot_constraint_close(copy);
    cot_constraint_close(NULL);
    assert_int_equal(open_ones, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ends_come_where_a_text_may_end),
                                       cmocka_unit_test(a_failure_is_for_good),
                                       cmocka_unit_test(copies_go_their_own_ways)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
