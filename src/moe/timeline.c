#include "moe/timeline.h"

#include <stddef.h>

const char *cot_moe_work_name(cot_moe_work work)
{
#define COT_MOE_WORK_NAME(name, text) text,
    static const char *const names[COT_MOE_WORKS] = {COT_MOE_WORK_LIST(COT_MOE_WORK_NAME)};
    return names[work];
}

static int32_t this_thread(void)
{
    static atomic_int threads;
    static _Thread_local int32_t number = -1;
    if (number < 0) number = atomic_fetch_add(&threads, 1);
    return number;
}

void cot_moe_record(cot_moe_timeline *timeline, cot_moe_event event)
{
    if (!timeline) return;
    const int64_t i = atomic_fetch_add(&timeline->count, 1);
    if (i >= timeline->capacity) return;
    event.thread = this_thread();
    timeline->events[i] = event;
}
