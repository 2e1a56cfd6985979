#include "harness/engine/placements.h"

#include "harness/cmocka.h"

#include <string.h>

int32_t *slot_of(const cot_expert_map *map, int32_t layer, int32_t place)
{
    return &map->expert[layer * map->n_ranks * map->slots_per_rank + place];
}

cot_expert_map map_of(cot_engine *engine)
{
    cot_expert_layout l;
    cot_expert_map map;
    assert_int_equal(cot_engine_layout(engine, &l, NULL, NULL), COT_OK);
    assert_int_equal(cot_expert_map_new(&map, l.n_layers, l.n_experts, l.n_ranks, l.slots_per_rank, NULL),
                     COT_OK);
    memcpy(map.layers, l.layers, (size_t)l.n_layers * sizeof *l.layers);
    for (int32_t layer = 0; layer < l.n_layers; layer++) {
        const cot_expert_replicas r = cot_expert_layout_layer(&l, layer);
        for (int32_t e = 0; e < l.n_experts; e++)
            for (int32_t i = r.begin[e]; i < r.begin[e + 1]; i++)
                *slot_of(&map, layer, r.rank[i] * l.slots_per_rank + r.slot[i]) = e;
    }
    cot_expert_layout_free(&l);
    return map;
}

bool rank_has(const cot_expert_map *map, int32_t layer, int32_t rank, int32_t expert)
{
    for (int32_t s = 0; s < map->slots_per_rank; s++)
        if (*slot_of(map, layer, rank * map->slots_per_rank + s) == expert) return true;
    return false;
}

int32_t count_on(const cot_expert_map *map, int32_t layer, int32_t rank)
{
    int32_t n = 0;
    for (int32_t s = 0; s < map->slots_per_rank; s++)
        n += *slot_of(map, layer, rank * map->slots_per_rank + s) >= 0;
    return n;
}

bool put(const cot_expert_map *map, int32_t layer, int32_t rank, int32_t expert)
{
    if (rank_has(map, layer, rank, expert) || count_on(map, layer, rank) + 1 >= map->slots_per_rank)
        return false;
    int32_t s = 0;
    while (*slot_of(map, layer, rank * map->slots_per_rank + s) >= 0) s++;
    *slot_of(map, layer, rank * map->slots_per_rank + s) = expert;
    return true;
}

void assert_reached(cot_engine *engine, const cot_expert_map *to)
{
    const cot_expert_map now = map_of(engine);
    for (int32_t layer = 0; layer < to->n_layers; layer++)
        for (int32_t r = 0; r < to->n_ranks; r++) {
            for (int32_t e = 0; e < to->n_experts; e++)
                assert_int_equal(rank_has(&now, layer, r, e), rank_has(to, layer, r, e));
            assert_int_equal(count_on(&now, layer, r), count_on(to, layer, r));
        }
    cot_expert_map forget = now;
    cot_expert_map_free(&forget);
}

/* ---- moves ---- */

cot_engine_moves_options at_once(void)
{
    cot_engine_moves_options o;
    cot_engine_moves_options_init(&o);
    o.share = 1;
    return o;
}

uint64_t must_move(cot_engine *engine, const cot_expert_map *to)
{
    const cot_engine_moves_options options = at_once();
    uint64_t id = 0;
    cot_error error;
    if (cot_engine_move_experts(engine, to, "the test's", &options, &id, &error) != COT_OK)
        fail_msg("%s", error.message);
    return id;
}

cot_engine_moves moves_of(cot_engine *engine)
{
    cot_engine_moves moves;
    cot_engine_get_moves(engine, &moves);
    return moves;
}

int64_t given_up(const cot_engine_moves *moves)
{
    int64_t n = 0;
    for (int o = 0; o < COT_MOVE_OUTCOMES; o++) n += moves->given_up[o];
    return n;
}
