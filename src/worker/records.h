/* What happens to jobs, written on one thread and read on another, a batch at a time. */
#ifndef COT_WORKER_RECORDS_H
#define COT_WORKER_RECORDS_H
#include "worker/backend.h"

typedef struct cot_record {
    cot_job *job;
    cot_job_event event; // pointers are filled in when it is read
    size_t text_at, top_at;
    bool ends_cancelling; // the answer to a cancel: nothing more is told of the job
} cot_record;

/* Grows and is never shrunk, so that a server that has been busy once allocates no more. All zero is empty. */
typedef struct cot_records {
    cot_record *list;
    size_t count, room;
    char *text;
    size_t text_bytes, text_room;
    cot_logprob *top;
    size_t top_count, top_room;
} cot_records;

/* A new record at the end; NULL when memory runs out. Valid until the next one. */
cot_record *cot_records_add(cot_records *records, cot_job *job, cot_job_event_kind kind);
/* Copies what a record points to. False when memory runs out. */
bool cot_records_set_sampled(cot_records *records, cot_record *record, const cot_sampled *sampled);
bool cot_records_add_text(cot_records *records, cot_record *record, const char *text, size_t bytes);
/* The event of a record, to be read before anything is added. */
cot_job_event cot_records_event(const cot_records *records, size_t index);
void cot_records_clear(cot_records *records);
void cot_records_free(cot_records *records);

#endif
