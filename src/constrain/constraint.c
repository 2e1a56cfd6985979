/* What all constraints have in common: ends of texts, masks that are empty, time, and failures. */
#include "constrain/constraint.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static int64_t thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* It is of no more use. */
static cot_status give_up(cot_constraint *c, cot_error *error)
{
    if (error) *error = c->failed;
    return c->failed.status;
}

static bool ends_text(const cot_constraint *c, int32_t token)
{
    for (size_t i = 0; i < c->eos_count; i++)
        if (c->eos[i] == token) return true;
    return false;
}

static void set_ends(cot_constraint *c, bool allowed)
{
    for (size_t i = 0; i < c->eos_count; i++) {
        const size_t t = (size_t)c->eos[i];
        if (t / 32 >= c->words) continue; // a configuration may say so
        if (allowed)
            c->mask[t / 32] |= 1U << t % 32;
        else
            c->mask[t / 32] &= ~(1U << t % 32);
    }
}

static bool is_empty(const cot_constraint *c)
{
    for (size_t i = 0; i < c->words; i++)
        if (c->mask[i]) return false;
    return true;
}

cot_status cot_constraint_copy(cot_constraint **copy, const cot_constraint *c, cot_error *error)
{
    *copy = NULL;
    const cot_status status = c->table->copy(copy, c, error);
    if (status != COT_OK) return status;
    (*copy)->mask = NULL;
    (*copy)->committed = c->committed;
    (*copy)->ended = c->ended;
    (*copy)->failed = c->failed;
    return COT_OK;
}

cot_status cot_constraint_mask(cot_constraint *c, const uint32_t **mask, cot_error *error)
{
    *mask = NULL;
    if (c->failed.status != COT_OK) return give_up(c, error);
    if (!c->mask) c->mask = calloc(c->words, sizeof *c->mask);
    if (!c->mask) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a mask");
    const int64_t began_ns = thread_ns();
    if (c->ended)
        memset(c->mask, 0, c->words * sizeof *c->mask);
    else if (c->table->mask(c, c->mask, &c->failed) != COT_OK)
        return give_up(c, error);
    set_ends(c, c->ended || c->table->may_end(c));
    const int64_t ms = (thread_ns() - began_ns) / 1000000;
    if (ms > COT_CONSTRAINT_MASK_MS)
        cot_fail(&c->failed, COT_INVALID_ARGUMENT,
                 "the constraint is too costly: a mask took %lld ms, at most %d may be", (long long)ms,
                 COT_CONSTRAINT_MASK_MS);
    else if (is_empty(c))
        cot_fail(&c->failed, COT_INVALID_ARGUMENT,
                 "the constraint cannot be met: no token may come behind %zu tokens", c->committed);
    if (c->failed.status != COT_OK) return give_up(c, error);
    *mask = c->mask;
    return COT_OK;
}

cot_status cot_constraint_commit(cot_constraint *c, int32_t token, cot_error *error)
{
    if (c->failed.status != COT_OK) return give_up(c, error);
    const bool ends = ends_text(c, token);
    if (token < 0 || (size_t)token / 32 >= c->words)
        cot_fail(&c->failed, COT_INVALID_ARGUMENT, "token %d is not in the vocabulary", (int)token);
    else if (ends ? !cot_constraint_may_end(c) : c->ended > 0)
        cot_fail(&c->failed, COT_INVALID_ARGUMENT, "token %d may not come behind %zu tokens", (int)token,
                 c->committed);
    else if (!ends)
        c->table->commit(c, token, &c->failed);
    if (c->failed.status != COT_OK) return give_up(c, error);
    c->committed++;
    c->ended += ends;
    return COT_OK;
}

cot_status cot_constraint_rollback(cot_constraint *c, size_t tokens, cot_error *error)
{
    if (c->failed.status != COT_OK) return give_up(c, error);
    if (tokens > c->committed)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%zu tokens cannot go, there are %zu", tokens,
                        c->committed);
    const size_t ends = tokens < c->ended ? tokens : c->ended;
    if (tokens > ends && c->table->rollback(c, tokens - ends, &c->failed) != COT_OK) return give_up(c, error);
    c->committed -= tokens;
    c->ended -= ends;
    return COT_OK;
}

bool cot_constraint_may_end(const cot_constraint *c)
{
    return c->failed.status == COT_OK && (c->ended || c->table->may_end(c));
}

void cot_constraint_close(cot_constraint *c)
{
    if (!c) return;
    free(c->mask);
    c->table->close(c);
}
