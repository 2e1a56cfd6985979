#include "route/groups.h"

bool cot_route_groups_choose(cot_route_groups *g, const cot_route_batch *batch)
{
    for (size_t i = 0; i < batch->count && !g->base_is_full; i++) {
        const cot_route_event *e = &batch->events[i];
        if (e->kind != COT_ROUTE_STORED || (e->layers != COT_ROUTE_FULL && g->has_base) || !e->ids) continue;
        const bool another = g->has_base && e->group != g->base;
        g->has_base = true;
        g->base = e->group;
        g->base_is_full = e->layers == COT_ROUTE_FULL;
        if (another) return true;
    }
    return false;
}

bool cot_route_groups_store(cot_route_groups *g, const cot_route_event *e)
{
    cot_route_group *group = &g->group[e->group];
    g->count += !group->is_told;
    group->is_told = true;
    group->layers = e->layers;
    group->window = (size_t)((e->window + e->block_tokens - 2) / e->block_tokens); // itself needs no block
    for (size_t i = 0; i < e->count; i++) {
        const cot_route_alias block = {e->hashes[i], 0, 0};
        if (!cot_route_aliases_find(&group->blocks, block.name) &&
            !cot_route_aliases_add(&group->blocks, block))
            return false;
    }
    return true;
}

void cot_route_groups_remove(cot_route_groups *g, const cot_route_event *e)
{
    cot_route_aliases *blocks = &g->group[e->group].blocks;
    for (size_t i = 0; i < e->count; i++)
        if (cot_route_aliases_find(blocks, e->hashes[i])) cot_route_aliases_remove(blocks, e->hashes[i]);
}

void cot_route_groups_clear(cot_route_groups *g)
{
    for (size_t i = 0; i < COT_ROUTE_MOST_GROUPS; i++) cot_route_aliases_free(&g->group[i].blocks);
}

static bool holds(const cot_route_group *group, uint64_t name, bool assumed)
{
    return assumed || cot_route_aliases_find(&group->blocks, name);
}

/* The largest end of a text up to `end` that the group may keep what it needs of: `end`, where it does. */
static uint32_t look_back(const cot_route_group *group, uint32_t end, cot_route_name *name,
                          const void *context)
{
    const size_t needed = group->layers == COT_ROUTE_STATE ? 1 : group->window;
    for (uint32_t i = 0; i < needed && i < end; i++) {
        bool assumed = false;
        const uint64_t block = name(context, end - 1 - i, &assumed);
        if (!holds(group, block, assumed)) return end - 1 - i;
    }
    return end;
}

/* Blocks in turn from the first on. */
static uint32_t look_ahead(const cot_route_group *group, uint32_t end, cot_route_name *name,
                           const void *context)
{
    for (uint32_t i = 0; i < end; i++) {
        bool assumed = false;
        const uint64_t block = name(context, i, &assumed);
        if (!holds(group, block, assumed)) return i;
    }
    return end;
}

uint32_t cot_route_groups_match(const cot_route_groups *g, uint32_t depth, cot_route_name *name,
                                const void *context)
{
    uint32_t end = depth, before;
    for (size_t k = 0; k < COT_ROUTE_MOST_GROUPS; k++)
        if (g->group[k].is_told && g->group[k].layers == COT_ROUTE_FULL)
            end = look_ahead(&g->group[k], end, name, context);
    do {
        before = end;
        for (size_t k = 0; k < COT_ROUTE_MOST_GROUPS; k++)
            if (g->group[k].is_told && g->group[k].layers != COT_ROUTE_FULL)
                end = look_back(&g->group[k], end, name, context);
    } while (end != before);
    return end;
}
