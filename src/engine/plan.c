#include "engine/plan.h"

#include <string.h>

struct header {
    int32_t kind, tokens, spans, maps, logits, reports;
};

size_t cot_plan_bytes(int64_t tokens, int64_t maps)
{
    return sizeof(struct header) + sizeof(cot_link) + (size_t)tokens * (sizeof(int32_t) + sizeof(cot_span)) +
           (size_t)maps * sizeof(cot_page_map);
}

static uint8_t *append(uint8_t *at, const void *data, size_t bytes)
{
    if (bytes) memcpy(at, data, bytes);
    return at + bytes;
}

size_t cot_plan_write(void *bytes, cot_plan_kind kind, const cot_step *step)
{
    struct header header = {.kind = kind};
    uint8_t *at = (uint8_t *)bytes + sizeof header;
    if (kind == COT_PLAN_STEP) {
        header = (struct header){kind, step->tokens, step->spans, step->maps, step->logits, step->reports};
        at = append(at, step->ids, (size_t)step->tokens * sizeof *step->ids);
        at = append(at, step->span, (size_t)step->spans * sizeof *step->span);
        at = append(at, step->map, (size_t)step->maps * sizeof *step->map);
    }
    memcpy(bytes, &header, sizeof header);
    return (size_t)(at - (uint8_t *)bytes);
}

size_t cot_plan_write_link(void *bytes, const cot_link *link)
{
    const struct header header = {.kind = COT_PLAN_LINK};
    append(append(bytes, &header, sizeof header), link, sizeof *link);
    return sizeof header + sizeof *link;
}

void cot_plan_read_link(cot_link *link, const void *bytes)
{
    memcpy(link, (const uint8_t *)bytes + sizeof(struct header), sizeof *link);
}

cot_plan_kind cot_plan_read(cot_step *step, const void *bytes)
{
    struct header header;
    memcpy(&header, bytes, sizeof header);
    const int32_t *ids = (const int32_t *)bytes + sizeof header / sizeof *ids;
    const cot_span *span = (const cot_span *)(const void *)(ids + header.tokens);
    *step = (cot_step){
        header.tokens,  header.spans, header.maps, header.logits,
        header.reports, ids,          span,        (const cot_page_map *)(const void *)(span + header.spans)};
    return (cot_plan_kind)header.kind;
}
