/* Layouts that follow one another while a group runs: epochs. Each is made of the one before by rows that changed, in room that was
 * reserved when the first was opened, so that adopting one allocates nothing.
 *
 * Changes are words, as they travel from rank to rank, a row after the other: the layer's place among the layout's, the expert, how
 * many replicas, and of each its rank and slot. Rows ascend by layer, then expert; a row's replicas by rank, then slot. */
#ifndef COT_PLACEMENT_EPOCH_H
#define COT_PLACEMENT_EPOCH_H
#include "coterie/layout.h"

typedef struct cot_expert_epoch {
    uint64_t number; // 0: what the group was opened with
    cot_expert_layout layout;
} cot_expert_epoch;

enum { COT_EXPERT_CHANGE_WORDS = 3 }; // of a row, before its replicas
static inline int64_t cot_expert_change_words(const int32_t *row)
{
    return COT_EXPERT_CHANGE_WORDS + 2 * (int64_t)row[2];
}

/* cot_expert_layout_copy with room for so many replicas, which are at least those that there are. */
cot_status cot_expert_layout_copy_with_room(cot_expert_layout *copy, const cot_expert_layout *layout,
                                            int64_t room, cot_error *error);

/* The most words that changes of such a layout can have. */
int64_t cot_expert_changes_room(const cot_expert_layout *layout);
/* Bytes of one epoch. */
size_t cot_expert_epoch_bytes(const cot_expert_layout *layout);
/* A copy of `layout` with room for a replica in every slot. Errors: OUT_OF_MEMORY. Close either way. */
cot_status cot_expert_epoch_open(cot_expert_epoch *epoch, const cot_expert_layout *layout, cot_error *error);
void cot_expert_epoch_close(cot_expert_epoch *epoch);

/* Whether each row can be of an epoch that follows `now`. Errors: INVALID_ARGUMENT: rows that are cut off, out of order, of a
 * layer, expert, rank or slot that is not there; an expert that is nowhere. Whether two rows share a slot is for those to say who
 * know what is in it. */
cot_status cot_expert_changes_check(const cot_expert_layout *now, const int32_t *words, int64_t count,
                                    cot_error *error);
/* *next, which was opened for the same model and group, becomes what follows `now`. The changes were checked. */
void cot_expert_epoch_follow(cot_expert_epoch *next, const cot_expert_epoch *now, const int32_t *words,
                             int64_t count);

#endif
