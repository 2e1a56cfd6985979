/* A constraint that begins behind a model's reasoning, which it bounds. */
#include "base/buffer.h"
#include "base/error.h"
#include "constrain/constraint.h"

#include <stdlib.h>
#include <string.h>

typedef struct reasoned {
    cot_constraint base;
    cot_constraint_reasoning how;
    cot_constraint *behind; // NULL: anything may come there
    int64_t tokens;         // so far
    int64_t *turns;         // [turn_count] of which reasoning begins with one and ends with the next, in turn
    size_t turn_count, turn_room;
} reasoned;

/* Where the text is, behind the tokens so far. */
static bool is_within(const reasoned *r)
{
    return r->how.is_opened != (r->turn_count % 2 == 1);
}

/* Whether reasoning may begin here: before what has to come, or anywhere where nothing has to. */
static bool may_begin(const reasoned *r)
{
    return !is_within(r) && (!r->behind || !r->tokens);
}

/* Tokens since reasoning began or ended last. */
static int64_t since_turn(const reasoned *r)
{
    return r->turn_count ? r->tokens - r->turns[r->turn_count - 1] - 1 : r->tokens;
}

/* Tokens that `behind` was told of. */
static int64_t told(const reasoned *r)
{
    return is_within(r) ? 0 : since_turn(r);
}

static bool is_spent(const reasoned *r)
{
    return is_within(r) && r->how.budget >= 0 && since_turn(r) >= r->how.budget;
}

static void set_bit(uint32_t *words, int64_t token)
{
    words[token / 32] |= 1U << token % 32;
}

static void clear_bit(uint32_t *words, int64_t token)
{
    words[token / 32] &= ~(1U << token % 32);
}

static bool is_left_out(const reasoned *r, int32_t token)
{
    for (size_t i = 0; i < r->how.without_count; i++)
        if (r->how.without[i] == token) return is_within(r);
    return false;
}

static cot_status compute_mask(cot_constraint *c, uint32_t *words, cot_error *error)
{
    const reasoned *r = (const reasoned *)c;
    if (is_spent(r)) {
        memset(words, 0, c->words * sizeof *words);
        set_bit(words, r->how.end);
        return COT_OK;
    }
    if (is_within(r) || !r->behind) {
        memset(words, 0xff, c->words * sizeof *words);
        for (int64_t t = r->how.vocab; t < (int64_t)c->words * 32; t++) clear_bit(words, t);
        for (size_t i = 0; is_within(r) && i < r->how.without_count; i++) clear_bit(words, r->how.without[i]);
        return COT_OK;
    }
    const uint32_t *mask;
    const cot_status status = cot_constraint_mask(r->behind, &mask, error);
    if (status != COT_OK) return status;
    memcpy(words, mask, c->words * sizeof *words);
    if (may_begin(r) && r->how.begin >= 0) set_bit(words, r->how.begin);
    return COT_OK;
}

static cot_status commit(cot_constraint *c, int32_t token, cot_error *error)
{
    reasoned *r = (reasoned *)c;
    const bool turns = token == (is_within(r) ? r->how.end : r->how.begin) && (is_within(r) || may_begin(r));
    if (is_spent(r) && token != r->how.end)
        return cot_fail(error, COT_INVALID_ARGUMENT, "token %d goes on with reasoning that is to end",
                        (int)token);
    if (is_left_out(r, token))
        return cot_fail(error, COT_INVALID_ARGUMENT, "token %d may not come within reasoning", (int)token);
    if (turns) {
        void *room = r->turns;
        if (!cot_grow(&room, &r->turn_room, r->turn_count + 1, sizeof *r->turns))
            return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a constraint");
        r->turns = room;
        r->turns[r->turn_count++] = r->tokens;
    } else if (!is_within(r) && r->behind) {
        const cot_status status = cot_constraint_commit(r->behind, token, error);
        if (status != COT_OK) return status;
    }
    r->tokens++;
    return COT_OK;
}

static cot_status roll_back(cot_constraint *c, size_t tokens, cot_error *error)
{
    reasoned *r = (reasoned *)c;
    const int64_t behind = told(r) < (int64_t)tokens ? told(r) : (int64_t)tokens;
    const cot_status status = r->behind ? cot_constraint_rollback(r->behind, (size_t)behind, error) : COT_OK;
    r->tokens -= (int64_t)tokens;
    while (r->turn_count && r->turns[r->turn_count - 1] >= r->tokens) r->turn_count--;
    return status;
}

static bool may_end(const cot_constraint *c)
{
    const reasoned *r = (const reasoned *)c;
    if (is_within(r)) return !r->behind && !is_spent(r);
    return !r->behind || cot_constraint_may_end(r->behind);
}

static void close_reasoned(cot_constraint *c)
{
    reasoned *r = (reasoned *)c;
    cot_constraint_close(r->behind);
    free(r->turns);
    free(r);
}

static cot_status copy(cot_constraint **out, const cot_constraint *c, cot_error *error)
{
    const reasoned *from = (const reasoned *)c;
    reasoned *r = malloc(sizeof *r);
    if (!r) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a constraint");
    *r = *from;
    r->turn_room = from->turn_count;
    r->turns = malloc((r->turn_room + 1) * sizeof *r->turns);
    cot_status status =
        r->turns ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a constraint");
    if (status == COT_OK && from->turn_count)
        memcpy(r->turns, from->turns, from->turn_count * sizeof *r->turns);
    if (status == COT_OK && from->behind) status = cot_constraint_copy(&r->behind, from->behind, error);
    if (status == COT_OK) {
        *out = &r->base;
        return COT_OK;
    }
    free(r->turns);
    free(r);
    return status;
}

static const cot_constraint_table table = {copy, compute_mask, commit, roll_back, may_end, close_reasoned};

bool cot_constraint_ends_reasoning(const cot_constraint *c, int32_t token)
{
    return c->table == &table && ((const reasoned *)c)->how.end == token;
}

cot_status cot_constraint_behind_reasoning(cot_constraint **out, const cot_constraint_reasoning *how,
                                           cot_constraint *behind, cot_error *error)
{
    *out = NULL;
    const size_t words = ((size_t)how->vocab + 31) / 32;
    cot_status status = COT_OK;
    if (how->vocab < 1 || how->end < 0 || how->end >= how->vocab || how->begin < -1 ||
        how->begin >= how->vocab)
        status = cot_fail(error, COT_INVALID_ARGUMENT,
                          "reasoning ends with token %d, which is not in the vocabulary", (int)how->end);
    else if (behind && behind->words != words)
        status = cot_fail(error, COT_INVALID_ARGUMENT, "the constraint is of another vocabulary");
    reasoned *r = status == COT_OK ? malloc(sizeof *r) : NULL;
    if (status == COT_OK && !r) status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a constraint");
    if (status != COT_OK) {
        cot_constraint_close(behind);
        return status;
    }
    *r = (reasoned){.base = {.table = &table,
                             .words = words,
                             .eos = behind ? behind->eos : NULL, // without one ends are as any other token
                             .eos_count = behind ? behind->eos_count : 0},
                    .how = *how,
                    .behind = behind};
    *out = &r->base;
    return COT_OK;
}
