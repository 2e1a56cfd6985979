#include "placement/epoch.h"

#include "base/error.h"

#include <string.h>

static int64_t slots_of(const cot_expert_layout *l)
{
    return (int64_t)l->n_ranks * l->slots_per_rank;
}

int64_t cot_expert_changes_room(const cot_expert_layout *l)
{
    return l->n_layers * (l->n_experts * (int64_t)COT_EXPERT_CHANGE_WORDS + 2 * slots_of(l));
}

size_t cot_expert_epoch_bytes(const cot_expert_layout *l)
{
    const size_t layers = (size_t)l->n_layers;
    return layers * (sizeof *l->layers + (size_t)(l->n_experts + 1) * sizeof *l->begin + sizeof *l->first +
                     (size_t)slots_of(l) * (sizeof *l->rank + sizeof *l->slot));
}

cot_status cot_expert_epoch_open(cot_expert_epoch *epoch, const cot_expert_layout *from, cot_error *error)
{
    epoch->number = 0;
    return cot_expert_layout_copy_with_room(&epoch->layout, from, from->n_layers * slots_of(from), error);
}

void cot_expert_epoch_close(cot_expert_epoch *epoch)
{
    cot_expert_layout_free(&epoch->layout);
}

/* ---- whether it can follow ---- */

static cot_status check_row(const cot_expert_layout *now, const int32_t *row, int64_t left, cot_error *error)
{
    if (left < COT_EXPERT_CHANGE_WORDS || row[2] > (left - COT_EXPERT_CHANGE_WORDS) / 2)
        return cot_fail(error, COT_INVALID_ARGUMENT, "changes of a placement are cut off");
    if (row[0] < 0 || row[0] >= now->n_layers || row[1] < 0 || row[1] >= now->n_experts)
        return cot_fail(
            error, COT_INVALID_ARGUMENT,
            "a placement has expert %d in MoE layer number %d, there are %d layers of %d experts: it "
            "is another model's",
            (int)row[1], (int)row[0], (int)now->n_layers, (int)now->n_experts);
    const int layer = (int)now->layers[row[0]], expert = (int)row[1];
    if (row[2] < 1)
        return cot_fail(error, COT_INVALID_ARGUMENT, "a placement has expert %d of layer %d nowhere", expert,
                        layer);
    if (row[2] > slots_of(now))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "a placement has %d replicas of expert %d of layer %d, there are %lld slots",
                        (int)row[2], expert, layer, (long long)slots_of(now));
    const int32_t *replica = row + COT_EXPERT_CHANGE_WORDS;
    for (int32_t i = 0; i < row[2]; i++, replica += 2) {
        if (replica[0] < 0 || replica[0] >= now->n_ranks || replica[1] < 0 ||
            replica[1] >= now->slots_per_rank)
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "a placement has expert %d of layer %d in slot %d of rank %d, "
                            "there are %d ranks of %d slots",
                            expert, layer, (int)replica[1], (int)replica[0], (int)now->n_ranks,
                            (int)now->slots_per_rank);
        if (i && (replica[0] < replica[-2] || (replica[0] == replica[-2] && replica[1] <= replica[-1])))
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "replicas of expert %d of layer %d are not in the order of ranks and slots",
                            expert, layer);
    }
    return COT_OK;
}

cot_status cot_expert_changes_check(const cot_expert_layout *now, const int32_t *words, int64_t count,
                                    cot_error *error)
{
    const int32_t *const end = words + count, *before = NULL;
    for (const int32_t *row = words; row < end; before = row, row += cot_expert_change_words(row)) {
        const cot_status status = check_row(now, row, end - row, error);
        if (status != COT_OK) return status;
        if (before && (row[0] < before[0] || (row[0] == before[0] && row[1] <= before[1])))
            return cot_fail(error, COT_INVALID_ARGUMENT,
                            "changes of a placement are not in the order of layers and experts");
    }
    return COT_OK;
}

/* ---- following ---- */

/* A layer that is written. */
struct writing {
    int32_t *begin, *rank, *slot, count; // count: replicas so far
};

/* Experts from `expert` up to `end` stay where they are. */
static void keep(struct writing *w, const cot_expert_replicas *old, int32_t expert, int32_t end)
{
    const int32_t from = old->begin[expert], shift = w->count - from;
    const size_t bytes = (size_t)(old->begin[end] - from) * sizeof *w->rank;
    memcpy(w->rank + w->count, old->rank + from, bytes);
    memcpy(w->slot + w->count, old->slot + from, bytes);
    for (int32_t e = expert; e < end; e++) w->begin[e + 1] = old->begin[e + 1] + shift;
    w->count = w->begin[end];
}

void cot_expert_epoch_follow(cot_expert_epoch *next, const cot_expert_epoch *now, const int32_t *words,
                             int64_t count)
{
    cot_expert_layout *l = &next->layout;
    const int32_t *row = words, *const end = words + count;
    next->number = now->number + 1;
    for (int32_t layer = 0; layer < l->n_layers; layer++) {
        const cot_expert_replicas old = cot_expert_layout_layer(&now->layout, layer);
        struct writing w = {.begin = l->begin + (int64_t)layer * (l->n_experts + 1),
                            .rank = l->rank + l->first[layer],
                            .slot = l->slot + l->first[layer]};
        int32_t expert = 0;
        for (; row < end && row[0] == layer; row += cot_expert_change_words(row)) {
            keep(&w, &old, expert, row[1]);
            for (int32_t i = 0; i < row[2]; i++, w.count++) {
                w.rank[w.count] = row[COT_EXPERT_CHANGE_WORDS + 2 * i];
                w.slot[w.count] = row[COT_EXPERT_CHANGE_WORDS + 2 * i + 1];
            }
            expert = row[1] + 1;
            w.begin[expert] = w.count;
        }
        keep(&w, &old, expert, l->n_experts);
        l->first[layer + 1] = l->first[layer] + w.count;
    }
}
