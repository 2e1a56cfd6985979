#include "engine/masks.h"

#include "base/thread.h"
#include "constrain/constraint.h"

#include <stdlib.h>

/* Stop tokens end a text: they come where it may end, and nowhere else but the end of reasoning, which ends the text where it comes if it is
 * one of them. False: nothing is left. */
static bool allow_stops(uint32_t *mask, const cot_constraint *c, const cot_sampling *s)
{
    const bool allowed = cot_constraint_may_end(c);
    for (size_t i = 0; i < s->stop_count; i++) {
        const size_t t = (size_t)s->stop_tokens[i];
        if (t / 32 >= c->words) continue; // one that never comes
        if (allowed)
            mask[t / 32] |= 1U << t % 32;
        else if (!cot_constraint_ends_reasoning(c, s->stop_tokens[i]))
            mask[t / 32] &= ~(1U << t % 32);
    }
    for (size_t i = 0; i < c->words; i++)
        if (mask[i]) return true;
    return false;
}

/* Tells the constraint of the tokens that it does not know yet, and asks for what may follow. */
static const uint32_t *mask_of(const cot_request_state *r)
{
    cot_loop_request *own = r->beside;
    cot_constraint *c = own->constraint;
    const uint32_t *mask;
    for (; r->text_begin + own->constrained < r->known; own->constrained++)
        if (cot_constraint_commit(c, r->tokens[r->text_begin + own->constrained], NULL) != COT_OK)
            return NULL;
    if (cot_constraint_mask(c, &mask, NULL) != COT_OK) return NULL;
    return allow_stops(c->mask, c, &own->sampling) ? mask : NULL;
}

static void compute(cot_masks *m)
{
    for (int32_t i = 0; i < m->count; i++)
        if (m->span[i].request) m->span[i].mask = mask_of(m->span[i].request);
}

static void *run(void *argument)
{
    cot_masks *m = argument;
    pthread_mutex_lock(&m->lock);
    for (;;) {
        while (!m->asked && !m->ends) pthread_cond_wait(&m->changed, &m->lock);
        if (m->ends) break;
        pthread_mutex_unlock(&m->lock);
        compute(m);
        pthread_mutex_lock(&m->lock);
        m->asked = false;
        pthread_cond_broadcast(&m->changed);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

bool cot_masks_open(cot_masks *m, size_t spans)
{
    *m = (cot_masks){.span = calloc(spans, sizeof *m->span)};
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, NULL);
    return m->span;
}

void cot_masks_begin(cot_masks *m, const cot_step *step, cot_request_state *const *by_row)
{
    m->count = step->spans;
    m->any = false;
    for (int32_t i = 0; i < step->spans; i++) {
        const cot_request_state *r = by_row[step->span[i].sequence];
        const bool has =
            !r->forced && cot_loop_request_of(r)->constraint && cot_request_draws(r, &step->span[i]);
        m->span[i] = (cot_masks_span){.request = has ? r : NULL};
        m->any |= has;
    }
    if (!m->any) return;
    if (!m->runs) m->runs = cot_thread_start(&m->thread, run, m);
    if (!m->runs) return; // then where they are waited for
    pthread_mutex_lock(&m->lock);
    m->asked = true;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

void cot_masks_wait(cot_masks *m)
{
    if (!m->any) return;
    if (!m->runs) {
        compute(m);
        return;
    }
    pthread_mutex_lock(&m->lock);
    while (m->asked) pthread_cond_wait(&m->changed, &m->lock);
    pthread_mutex_unlock(&m->lock);
}

bool cot_masks_get(const cot_masks *m, int32_t span, const uint32_t **mask)
{
    *mask = m->span[span].mask;
    return *mask || !m->span[span].request;
}

void cot_masks_close(cot_masks *m)
{
    if (!m->span) return; // it was not opened, or has neither
    pthread_mutex_lock(&m->lock);
    m->ends = true;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    if (m->runs) pthread_join(m->thread, NULL);
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->changed);
    free(m->span);
    m->span = NULL;
}
