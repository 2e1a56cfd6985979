#include "worker/records.h"

#include "base/clock.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* `items` with room for `more` of `bytes` each behind `count`; NULL when memory runs out, and `items` is as it was. */
static void *reserved(void *items, size_t *room, size_t count, size_t more, size_t bytes)
{
    if (items && count + more <= *room) return items;
    const size_t wanted = 2 * (count + more) + 16;
    void *grown = realloc(items, wanted * bytes);
    if (grown) *room = wanted;
    return grown;
}

cot_record *cot_records_add(cot_records *r, cot_job *job, cot_job_event_kind kind)
{
    cot_record *list = reserved(r->list, &r->room, r->count, 1, sizeof *list);
    if (!list) return NULL;
    r->list = list;
    cot_record *record = &r->list[r->count++];
    *record = (cot_record){.job = job, .event = {.kind = kind, .at_ns = cot_now_ns(), .stopped_by = -1}};
    return record;
}

bool cot_records_set_sampled(cot_records *r, cot_record *record, const cot_sampled *sampled)
{
    cot_logprob *top = reserved(r->top, &r->top_room, r->top_count, sampled->top_count, sizeof *top);
    if (!top) return false;
    r->top = top;
    record->event.sampled = *sampled;
    record->top_at = r->top_count;
    if (sampled->top_count) memcpy(r->top + r->top_count, sampled->top, sampled->top_count * sizeof *r->top);
    r->top_count += sampled->top_count;
    return true;
}

bool cot_records_add_text(cot_records *r, cot_record *record, const char *text, size_t bytes)
{
    char *grown = reserved(r->text, &r->text_room, r->text_bytes, bytes, 1);
    if (!grown) return false;
    r->text = grown;
    if (!record->event.bytes) record->text_at = r->text_bytes;
    assert(record->text_at + record->event.bytes == r->text_bytes);
    if (bytes) memcpy(r->text + r->text_bytes, text, bytes);
    r->text_bytes += bytes;
    record->event.bytes += bytes;
    return true;
}

cot_job_event cot_records_event(const cot_records *r, size_t index)
{
    const cot_record *record = &r->list[index];
    cot_job_event event = record->event;
    event.text = event.bytes ? r->text + record->text_at : "";
    event.sampled.top = event.sampled.top_count ? r->top + record->top_at : NULL;
    // until its last record the error is the engine thread's
    event.error = event.last && record->job->error.status != COT_OK ? &record->job->error : NULL;
    return event;
}

void cot_records_clear(cot_records *r)
{
    r->count = r->text_bytes = r->top_count = 0;
}

void cot_records_free(cot_records *r)
{
    free(r->list);
    free(r->text);
    free(r->top);
    *r = (cot_records){0};
}
