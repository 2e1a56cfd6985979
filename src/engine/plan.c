#include "engine/plan.h"

#include <string.h>

struct header {
    _Alignas(8) int32_t kind;
    int32_t tokens, spans, maps, states, logits, reports, routed_every, routed_first;
};

size_t cot_plan_bytes(int64_t tokens, int64_t maps, int64_t states, int ranks)
{
    const size_t step = (size_t)tokens * (sizeof(int32_t) + sizeof(cot_span)) +
                        (size_t)maps * sizeof(cot_page_map) + (size_t)states * sizeof(cot_state_copy);
    const size_t chunks = (size_t)ranks / 2 * sizeof(cot_runner_chunk);
    return sizeof(struct header) + sizeof(cot_link) + (step > chunks ? step : chunks);
}

int64_t cot_plan_words(size_t bytes)
{
    return (int64_t)((bytes - sizeof(struct header)) / sizeof(int32_t));
}

static uint8_t *append(uint8_t *at, const void *data, size_t bytes)
{
    if (bytes) memcpy(at, data, bytes);
    return at + bytes;
}

size_t cot_plan_write(void *bytes, const cot_plan *plan)
{
    const cot_step *step = &plan->step;
    struct header header = {.kind = plan->kind};
    uint8_t *at = (uint8_t *)bytes + sizeof header;
    if (plan->kind == COT_PLAN_STEP) {
        header =
            (struct header){plan->kind,   step->tokens,  step->spans,        step->maps,        step->states,
                            step->logits, step->reports, step->routed_every, step->routed_first};
        at = append(at, step->ids, (size_t)step->tokens * sizeof *step->ids);
        at = append(at, step->span, (size_t)step->spans * sizeof *step->span);
        at = append(at, step->map, (size_t)step->maps * sizeof *step->map);
        at = append(at, step->state, (size_t)step->states * sizeof *step->state);
    } else if (plan->kind == COT_PLAN_PLACE || plan->kind == COT_PLAN_RESIZE) {
        header.tokens = (int32_t)plan->count;
        header.spans = plan->open;
        header.reports = plan->last;
        at = append(at, plan->words, (size_t)plan->count * sizeof *plan->words);
    } else if (plan->kind == COT_PLAN_COPY) {
        header.tokens = (int32_t)plan->count;
        at = append(at, plan->chunk, (size_t)plan->count * sizeof *plan->chunk);
    } else if (plan->kind == COT_PLAN_LINK) {
        at = append(at, &plan->link, sizeof plan->link);
    }
    memcpy(bytes, &header, sizeof header);
    return (size_t)(at - (uint8_t *)bytes);
}

void cot_plan_read(cot_plan *plan, const void *bytes)
{
    struct header header;
    memcpy(&header, bytes, sizeof header);
    const int32_t *words = (const int32_t *)bytes + sizeof header / sizeof *words;
    *plan = (cot_plan){.kind = (cot_plan_kind)header.kind};
    if (plan->kind == COT_PLAN_STEP) {
        const cot_span *span = (const cot_span *)(const void *)(words + header.tokens);
        const cot_page_map *map = (const cot_page_map *)(const void *)(span + header.spans);
        plan->step = (cot_step){.tokens = header.tokens,
                                .spans = header.spans,
                                .maps = header.maps,
                                .states = header.states,
                                .logits = header.logits,
                                .reports = header.reports,
                                .routed_every = header.routed_every,
                                .routed_first = header.routed_first,
                                .ids = words,
                                .span = span,
                                .map = map,
                                .state = (const cot_state_copy *)(const void *)(map + header.maps)};
    } else if (plan->kind == COT_PLAN_PLACE || plan->kind == COT_PLAN_RESIZE) {
        plan->words = words;
        plan->count = header.tokens;
        plan->open = header.spans;
        plan->last = header.reports;
    } else if (plan->kind == COT_PLAN_COPY) {
        plan->chunk = (const cot_runner_chunk *)(const void *)words;
        plan->count = header.tokens;
    } else if (plan->kind == COT_PLAN_LINK) {
        memcpy(&plan->link, words, sizeof plan->link);
    }
}
