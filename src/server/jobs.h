/* The jobs that a backend has, by the numbers that it is told: a number is never given twice, and one that is over finds
 * nothing, however often the backend tells of it. */
#ifndef COT_SERVER_JOBS_H
#define COT_SERVER_JOBS_H
#include "worker/backend.h"

/* All zero is empty. */
typedef struct cot_jobs {
    struct cot_jobs_slot {
        cot_job *job;        // NULL: free
        uint32_t generation; // counts its jobs
        uint32_t next_free;
    } * slot; // [count]
    size_t count, room;
    uint32_t free; // the first free slot, counted from 1; 0: none
} cot_jobs;

/* Numbers the job. False when out of memory. */
bool cot_jobs_add(cot_jobs *jobs, cot_job *job);
/* NULL: there is none of that number any more. */
cot_job *cot_jobs_find(const cot_jobs *jobs, uint64_t number);
/* It is over. */
void cot_jobs_remove(cot_jobs *jobs, const cot_job *job);
void cot_jobs_free(cot_jobs *jobs);

#endif
