/* Constraints behind reasoning, over one of our own that lets nothing but its tokens come, one after the other. */
#include "constrain/constraint.h"

#include "harness/cmocka.h"

#include <stdlib.h>
#include <string.h>

enum { VOCAB = 70, BEGIN = 1, END = 2, EOS = 3, FIRST = 10, COUNT = 3 }; // FIRST, FIRST + 1, ...: the text

typedef struct counted {
    cot_constraint base;
    size_t at;
} counted;

static const int32_t eos[] = {EOS};

static cot_status copy_counted(cot_constraint **copy, const cot_constraint *c, cot_error *error)
{
    (void)error;
    counted *own = malloc(sizeof *own);
    assert_non_null(own);
    *own = *(const counted *)c;
    *copy = &own->base;
    return COT_OK;
}

static cot_status mask_counted(cot_constraint *c, uint32_t *words, cot_error *error)
{
    (void)error;
    const counted *own = (const counted *)c;
    memset(words, 0, c->words * sizeof *words);
    const size_t token = FIRST + own->at;
    if (own->at < COUNT) words[token / 32] |= 1U << token % 32;
    return COT_OK;
}

static cot_status commit_counted(cot_constraint *c, int32_t token, cot_error *error)
{
    counted *own = (counted *)c;
    if (own->at == COUNT || token != (int32_t)(FIRST + own->at)) {
        *error = (cot_error){COT_INVALID_ARGUMENT, "not in its turn"};
        return COT_INVALID_ARGUMENT;
    }
    own->at++;
    return COT_OK;
}

static cot_status roll_back_counted(cot_constraint *c, size_t tokens, cot_error *error)
{
    (void)error;
    ((counted *)c)->at -= tokens;
    return COT_OK;
}

static bool may_end_counted(const cot_constraint *c)
{
    return ((const counted *)c)->at == COUNT;
}

static void close_counted(cot_constraint *c)
{
    free(c);
}

static const cot_constraint_table table = {copy_counted,      mask_counted,    commit_counted,
                                           roll_back_counted, may_end_counted, close_counted};

static cot_constraint *inner(void)
{
    counted *own = calloc(1, sizeof *own);
    assert_non_null(own);
    own->base = (cot_constraint){.table = &table, .words = (VOCAB + 31) / 32, .eos = eos, .eos_count = 1};
    return &own->base;
}

static cot_constraint *open_behind(bool opened, int64_t budget, cot_constraint *behind)
{
    const cot_constraint_reasoning how = {
        .vocab = VOCAB, .begin = BEGIN, .end = END, .is_opened = opened, .budget = budget};
    cot_constraint *c;
    assert_int_equal(cot_constraint_behind_reasoning(&c, &how, behind, NULL), COT_OK);
    return c;
}

/* How many tokens may come, and whether one of them may. */
static int may_come(cot_constraint *c, int32_t token, bool *may)
{
    const uint32_t *mask;
    int count = 0;
    assert_int_equal(cot_constraint_mask(c, &mask, NULL), COT_OK);
    for (size_t w = 0; w < (VOCAB + 31) / 32; w++) count += __builtin_popcount(mask[w]);
    *may = mask[token / 32] >> token % 32 & 1;
    return count;
}

static void assert_may(cot_constraint *c, int32_t token, int count)
{
    bool may;
    assert_int_equal(may_come(c, token, &may), count);
    assert_true(may);
}

static void commit(cot_constraint *c, int32_t token)
{
    assert_int_equal(cot_constraint_commit(c, token, NULL), COT_OK);
}

static void test_opened_reasoning_comes_first(void **state)
{
    (void)state;
    cot_constraint *c = open_behind(true, -1, inner()), *twin;
    assert_may(c, END, VOCAB - 1); // all but the text's end
    assert_false(cot_constraint_may_end(c));
    commit(c, 40);
    commit(c, FIRST + 2);
    commit(c, END);
    assert_may(c, FIRST, 1);
    commit(c, FIRST);
    assert_int_equal(cot_constraint_copy(&twin, c, NULL), COT_OK);
    commit(c, FIRST + 1);
    assert_int_equal(cot_constraint_rollback(c, 3, NULL), COT_OK); // into the reasoning again
    assert_may(c, 50, VOCAB - 1);
    commit(c, END);
    for (int32_t i = 0; i < COUNT; i++) commit(c, FIRST + i);
    assert_true(cot_constraint_may_end(c));
    assert_may(c, EOS, 1);
    assert_may(twin, FIRST + 1, 1);
    cot_constraint_close(c);
    cot_constraint_close(twin);
}

static void test_reasoning_may_begin_or_not(void **state)
{
    (void)state;
    cot_constraint *c = open_behind(false, -1, inner());
    assert_may(c, BEGIN, 2);
    assert_may(c, FIRST, 2);
    commit(c, FIRST);
    assert_may(c, FIRST + 1, 1); // it may not begin any more
    assert_int_equal(cot_constraint_rollback(c, 1, NULL), COT_OK);
    commit(c, BEGIN);
    assert_may(c, 9, VOCAB - 1);
    commit(c, 9);
    commit(c, END);
    assert_may(c, FIRST, 1);
    assert_int_equal(cot_constraint_commit(c, FIRST + 1, NULL), COT_INVALID_ARGUMENT);
    cot_constraint_close(c);
}

static void test_budgets_force_the_end(void **state)
{
    (void)state;
    for (int64_t budget = 0; budget < 4; budget++) {
        cot_constraint *c = open_behind(true, budget, NULL);
        for (int64_t i = 0; i < budget; i++) {
            assert_may(c, EOS, VOCAB); // nothing is forced: the text may end
            commit(c, 40);
        }
        assert_may(c, END, 1);
        assert_false(cot_constraint_may_end(c));
        commit(c, END);
        assert_may(c, 40, VOCAB);
        commit(c, EOS); // one that is to be ignored
        assert_may(c, 40, VOCAB);
        cot_constraint_close(c);
        c = open_behind(false, budget, NULL);
        commit(c, 40);
        commit(c, BEGIN);
        for (int64_t i = 0; i < budget; i++) commit(c, 41);
        assert_may(c, END, 1);
        assert_int_equal(cot_constraint_commit(c, 41, NULL), COT_INVALID_ARGUMENT);
        cot_constraint_close(c);
    }
}

enum { BUDGET = 2 };

/* Whether a text that begins within reasoning is to end it here. */
static bool is_forced(const int32_t *text, size_t tokens)
{
    bool within = true;
    int used = 0;
    for (size_t i = 0; i < tokens; i++) {
        used = within && text[i] != END ? used + 1 : 0;
        within = within ? text[i] != END : text[i] == BEGIN;
    }
    return within && used >= BUDGET;
}

/* Where nothing has to come reasoning may begin again and again, and each time it has a bound; tokens are taken back over its turns. */
static void test_later_reasoning_is_bounded(void **state)
{
    (void)state;
    static const int32_t text[] = {40, END, BEGIN, 41, 42, END, 43, BEGIN, END, BEGIN, 44, 45};
    enum { TOKENS = sizeof text / sizeof *text };
    cot_constraint *c = open_behind(true, BUDGET, NULL), *twin;
    for (size_t i = 0; i < TOKENS; i++) commit(c, text[i]);
    for (size_t left = 0; left <= TOKENS; left++) {
        assert_int_equal(cot_constraint_copy(&twin, c, NULL), COT_OK);
        assert_int_equal(cot_constraint_rollback(twin, TOKENS - left, NULL), COT_OK);
        for (size_t i = left;; i++) {
            assert_may(twin, END, is_forced(text, i) ? 1 : VOCAB);
            if (i == TOKENS) break;
            commit(twin, text[i]);
        }
        cot_constraint_close(twin);
    }
    assert_true(is_forced(text, 5) && is_forced(text, TOKENS) && !is_forced(text, 4));
    cot_constraint_close(c);
}

static void test_tokens_that_reasoning_is_without(void **state)
{
    (void)state;
    static const int32_t without[] = {7, 33};
    const cot_constraint_reasoning how = {.vocab = VOCAB,
                                          .begin = BEGIN,
                                          .end = END,
                                          .is_opened = true,
                                          .budget = -1,
                                          .without = without,
                                          .without_count = 2};
    for (int fails = 0; fails < 2; fails++) {
        cot_constraint *c;
        bool may;
        assert_int_equal(cot_constraint_behind_reasoning(&c, &how, NULL, NULL), COT_OK);
        assert_int_equal(may_come(c, 7, &may), VOCAB - 2);
        assert_false(may);
        if (fails)
            assert_int_equal(cot_constraint_commit(c, 33, NULL), COT_INVALID_ARGUMENT);
        else { // they may come again where it has ended
            assert_int_equal(cot_constraint_commit(c, END, NULL), COT_OK);
            assert_may(c, 7, VOCAB);
            assert_int_equal(cot_constraint_commit(c, 33, NULL), COT_OK);
        }
        cot_constraint_close(c);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    cot_constraint_reasoning how = {
        .vocab = VOCAB, .begin = -1, .end = VOCAB, .is_opened = true, .budget = -1};
    cot_constraint *c;
    assert_int_equal(cot_constraint_behind_reasoning(&c, &how, inner(), NULL), COT_INVALID_ARGUMENT);
    assert_null(c);
    how.end = END;
    how.vocab = 33;
    assert_int_equal(cot_constraint_behind_reasoning(&c, &how, inner(), NULL), COT_INVALID_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opened_reasoning_comes_first),
        cmocka_unit_test(test_reasoning_may_begin_or_not),
        cmocka_unit_test(test_budgets_force_the_end),
        cmocka_unit_test(test_later_reasoning_is_bounded),
        cmocka_unit_test(test_tokens_that_reasoning_is_without),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
