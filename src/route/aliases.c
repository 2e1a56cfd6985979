#include "route/aliases.h"

#include "base/rng.h"

#include <stdlib.h>

static size_t first_of(const cot_route_aliases *a, uint64_t name)
{
    return (size_t)cot_mix64(name) & (a->room - 1);
}

/* Where the name is, or would be. */
static size_t place_of(const cot_route_aliases *a, uint64_t name)
{
    size_t at = first_of(a, name);
    while (a->taken[at] && a->slot[at].name != name) at = (at + 1) & (a->room - 1);
    return at;
}

const cot_route_alias *cot_route_aliases_find(const cot_route_aliases *a, uint64_t name)
{
    const size_t at = a->room ? place_of(a, name) : 0;
    return a->room && a->taken[at] ? &a->slot[at] : NULL;
}

static void put(cot_route_aliases *a, cot_route_alias alias)
{
    const size_t at = place_of(a, alias.name);
    a->slot[at] = alias;
    a->taken[at] = true;
    a->count++;
}

bool cot_route_aliases_add(cot_route_aliases *a, cot_route_alias alias)
{
    if (2 * (a->count + 1) > a->room) {
        const size_t room = a->room ? 2 * a->room : 64;
        cot_route_aliases to = {calloc(room, sizeof *to.slot), calloc(room, sizeof *to.taken), 0, room};
        if (!to.slot || !to.taken) {
            cot_route_aliases_free(&to);
            return false;
        }
        for (size_t i = 0; i < a->room; i++)
            if (a->taken[i]) put(&to, a->slot[i]);
        cot_route_aliases_free(a);
        *a = to;
    }
    put(a, alias);
    return true;
}

/* What stands behind moves up, unless its first place lies behind the hole. */
void cot_route_aliases_remove(cot_route_aliases *a, uint64_t name)
{
    const size_t mask = a->room - 1;
    size_t hole = place_of(a, name);
    for (size_t at = (hole + 1) & mask; a->taken[at]; at = (at + 1) & mask) {
        if (((at - first_of(a, a->slot[at].name)) & mask) < ((at - hole) & mask)) continue;
        a->slot[hole] = a->slot[at];
        hole = at;
    }
    a->taken[hole] = false;
    a->count--;
}

void cot_route_aliases_free(cot_route_aliases *a)
{
    free(a->slot);
    free(a->taken);
    *a = (cot_route_aliases){0};
}
