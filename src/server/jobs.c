#include "server/jobs.h"

#include "base/buffer.h"

#include <stdlib.h>

/* A number is a slot's, counted from 1, and behind it how many jobs the slot had before. */
static uint64_t number_of(size_t slot, uint32_t generation)
{
    return (uint64_t)generation << 32 | (slot + 1);
}

bool cot_jobs_add(cot_jobs *j, cot_job *job)
{
    size_t at = j->free - (size_t)1;
    if (j->free)
        j->free = j->slot[at].next_free;
    else {
        void *grown = j->slot;
        if (j->count == UINT32_MAX || !cot_grow(&grown, &j->room, j->count + 1, sizeof *j->slot))
            return false;
        j->slot = grown;
        at = j->count++;
        j->slot[at].generation = 0;
    }
    j->slot[at].job = job;
    job->number = number_of(at, j->slot[at].generation);
    return true;
}

cot_job *cot_jobs_find(const cot_jobs *j, uint64_t number)
{
    const size_t at = (size_t)(number & UINT32_MAX) - 1;
    const bool known = at < j->count && j->slot[at].job && number_of(at, j->slot[at].generation) == number;
    return known ? j->slot[at].job : NULL;
}

void cot_jobs_remove(cot_jobs *j, const cot_job *job)
{
    const size_t at = (size_t)(job->number & UINT32_MAX) - 1;
    j->slot[at].job = NULL;
    j->slot[at].generation++;
    j->slot[at].next_free = j->free;
    j->free = (uint32_t)(at + 1);
}

void cot_jobs_free(cot_jobs *j)
{
    free(j->slot);
    *j = (cot_jobs){0};
}
