/* What which thread did when: for pictures and for measuring idleness. */
#ifndef COT_MOE_TIMELINE_H
#define COT_MOE_TIMELINE_H
#include <stdatomic.h>
#include <stdint.h>

/* X(NAME, "name") */
#define COT_MOE_WORK_LIST(X)                                                                                 \
    X(GATE, "gate")                                                                                          \
    X(DISPATCH, "dispatch")                                                                                  \
    X(UP, "up")                                                                                              \
    X(DOWN, "down") X(EXPERTS, "experts") X(SHARED, "shared") X(REPLY, "reply") X(COMBINE, "combine")

typedef enum cot_moe_work {
#define COT_MOE_WORK_ENUM(name, text) COT_MOE_##name,
    COT_MOE_WORK_LIST(COT_MOE_WORK_ENUM)
#undef COT_MOE_WORK_ENUM
        COT_MOE_WORKS
} cot_moe_work;

const char *cot_moe_work_name(cot_moe_work work);

typedef struct cot_moe_event {
    int64_t begin_ns, end_ns;
    int32_t thread; // counted from 0 in the order in which threads first recorded something
    int32_t rank, work;
    int32_t slot, rows; // where an expert's tile was computed: its slot and its rows; else -1 and 0
} cot_moe_event;

/* Several ranks of a process may share one. Events beyond `capacity` are counted and dropped. */
typedef struct cot_moe_timeline {
    _Atomic int64_t count;
    int64_t capacity;
    cot_moe_event *events;
} cot_moe_timeline;

/* Records one event, its thread filled in. Thread-safe; a NULL timeline is fine. */
void cot_moe_record(cot_moe_timeline *timeline, cot_moe_event event);

#endif
