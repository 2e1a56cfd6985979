/* Expert layouts against the maps and rank lists that they are made of. */
#include "coterie/layout.h"
#include "harness/seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

static uint64_t state;

static int32_t below(int32_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)((state >> 33) % (uint64_t)n);
}

enum { MOST_LAYERS = 5 };

struct sizes {
    int32_t L, E, P, slots, layers[MOST_LAYERS];
};

static struct sizes drawn_sizes(void)
{
    struct sizes s = {.L = 1 + below(MOST_LAYERS), .E = 1 + below(40), .P = 1 + below(9)};
    s.slots = s.E / s.P + 1 + below(6);
    for (int32_t l = 0, layer = below(3); l < s.L; l++, layer += 1 + below(2)) s.layers[l] = layer;
    return s;
}

static cot_expert_layout_shape shape_of(const struct sizes *s)
{
    return (cot_expert_layout_shape){
        .n_layers = s->L, .n_experts = s->E, .n_ranks = s->P, .layers = s->layers};
}

/* A row for each of the sizes' layers, and dense ones for some of those before, between and behind. */
static cot_expert_map drawn_map(const struct sizes *s)
{
    cot_expert_map map;
    cot_error error;
    int32_t layer[3 * MOST_LAYERS + 5], n = 0;
    uint8_t dense[3 * MOST_LAYERS + 5];
    for (int32_t number = 0, l = 0; number < s->layers[s->L - 1] + 3; number++) {
        dense[n] = l == s->L || number != s->layers[l];
        l += !dense[n];
        if (!dense[n] || below(2)) layer[n++] = number;
    }
    if (cot_expert_map_new(&map, n, s->E, s->P, s->slots, &error) != COT_OK) fail_msg("%s", error.message);
    memcpy(map.layers, layer, (size_t)n * sizeof *layer);
    memcpy(map.dense, dense, (size_t)n);
    for (int32_t l = 0; l < map.n_layers; l++) {
        int32_t *row = map.expert + l * s->P * s->slots, all = s->P * s->slots;
        for (int32_t i = 0; i < all; i++) row[i] = i < s->E ? i : below(2) ? -1 : below(s->E);
        for (int32_t i = all - 1; i > 0; i--) {
            const int32_t j = below(i + 1), kept = row[i];
            row[i] = row[j];
            row[j] = kept;
        }
    }
    return map;
}

/* Every slot of the map is a replica, replicas are in the order of the slots, and there are no others. */
static void assert_layout(const cot_expert_layout *layout, const struct sizes *s, const cot_expert_map *map)
{
    assert_int_equal(layout->n_layers, s->L);
    assert_int_equal(layout->n_experts, s->E);
    assert_int_equal(layout->n_ranks, s->P);
    assert_memory_equal(layout->layers, s->layers, (size_t)s->L * sizeof(int32_t));
    int64_t all = 0;
    int32_t used = 0;
    for (int32_t l = 0, at_row = 0; l < s->L; l++) {
        const cot_expert_replicas r = cot_expert_layout_layer(layout, l);
        while (map->layers[at_row] != s->layers[l]) at_row++;
        const int32_t *row = map->expert + at_row * s->P * map->slots_per_rank;
        for (int32_t e = 0; e < s->E; e++) {
            int32_t i = r.begin[e];
            for (int32_t at = 0; at < s->P * map->slots_per_rank; at++)
                if (row[at] == e) {
                    assert_true(i < r.begin[e + 1]);
                    assert_int_equal(r.rank[i], at / map->slots_per_rank);
                    assert_int_equal(r.slot[i], at % map->slots_per_rank);
                    used = r.slot[i] >= used ? r.slot[i] + 1 : used;
                    i++;
                    all++;
                }
            assert_int_equal(i, r.begin[e + 1]);
            assert_true(i > r.begin[e]);
        }
        assert_int_equal(r.begin[0], 0);
    }
    assert_int_equal(layout->first[0], 0);
    assert_int_equal(layout->first[s->L], all);
    assert_int_equal(layout->slots_per_rank, used);
}

static void maps(void **unused)
{
    (void)unused;
    for (int i = 0; i < 500; i++) {
        const struct sizes s = drawn_sizes();
        cot_expert_layout_shape shape = shape_of(&s);
        cot_expert_map map = drawn_map(&s);
        cot_expert_layout layout;
        cot_error error;
        if (cot_expert_layout_of_map(&layout, &shape, &map, "map", &error) != COT_OK)
            fail_msg("%s", error.message);
        assert_layout(&layout, &s, &map);
        const int32_t needed = layout.slots_per_rank;
        cot_expert_layout_free(&layout);
        shape.slots_per_rank = needed + below(3);
        assert_int_equal(cot_expert_layout_of_map(&layout, &shape, &map, "map", &error), COT_OK);
        assert_int_equal(layout.slots_per_rank, shape.slots_per_rank);
        cot_expert_layout_free(&layout);
        shape.slots_per_rank = needed - 1;
        if (needed > 1)
            assert_int_equal(cot_expert_layout_of_map(&layout, &shape, &map, "map", &error),
                             COT_INVALID_ARGUMENT);
        assert_null(layout.rank);
        cot_expert_layout_free(&layout);
        cot_expert_map_free(&map);
    }
}

static void refused(cot_expert_layout_shape shape, const cot_expert_map *map, const char *word)
{
    cot_expert_layout layout;
    cot_error error;
    assert_int_equal(cot_expert_layout_of_map(&layout, &shape, map, "map", &error), COT_INVALID_ARGUMENT);
    if (!strstr(error.message, word)) fail_msg("'%s' lacks '%s'", error.message, word);
    assert_null(layout.layers);
}

static void other_models(void **unused)
{
    (void)unused;
    const struct sizes s = {.L = 3, .E = 6, .P = 2, .slots = 4, .layers = {1, 2, 4}};
    cot_expert_map map = drawn_map(&s);
    cot_expert_layout_shape shape = shape_of(&s);
    shape.n_experts = 7;
    refused(shape, &map, "6 experts on 2 ranks, the model has 7");
    shape = shape_of(&s);
    shape.n_ranks = 3;
    refused(shape, &map, "the group 3 ranks");
    shape = shape_of(&s);
    shape.layers = (const int32_t[]){1, 3, 4};
    refused(shape, &map, "does not place the experts of layer 3");
    shape.n_layers = 2;
    static const int32_t fewer[3][2] = {{2, 4}, {1, 4}, {1, 2}}, extra[3] = {1, 2, 4};
    for (int i = 0; i < 3; i++) {
        char words[64];
        snprintf(words, sizeof words, "of layer %d, in which the model has none", extra[i]);
        shape.layers = fewer[i];
        refused(shape, &map, words);
    }
    shape = shape_of(&s);
    for (int32_t row = 0; row < map.n_layers; row++) map.dense[row] |= map.layers[row] == 2;
    refused(shape, &map, "does not place the experts of layer 2");
    cot_expert_map_free(&map);
}

static void rank_lists(void **unused)
{
    (void)unused;
    for (int i = 0; i < 500; i++) {
        const struct sizes s = drawn_sizes();
        cot_expert_layout_shape shape = shape_of(&s);
        int32_t rank[MOST_LAYERS * 40], most = 0;
        const bool consecutive = below(2);
        for (int32_t l = 0; l < s.L; l++)
            for (int32_t e = 0; e < s.E; e++) {
                int32_t r = 0; // floor(r E / P) <= e < floor((r + 1) E / P)
                while (!(r * s.E / s.P <= e && e < (r + 1) * s.E / s.P)) r++;
                rank[l * s.E + e] = consecutive ? r : below(s.P);
            }
        cot_expert_layout layout;
        cot_error error;
        if (cot_expert_layout_of_ranks(&layout, &shape, consecutive ? NULL : rank, &error) != COT_OK)
            fail_msg("%s", error.message);
        for (int32_t l = 0; l < s.L; l++) {
            const cot_expert_replicas r = cot_expert_layout_layer(&layout, l);
            int32_t taken[16] = {0};
            for (int32_t e = 0; e < s.E; e++) {
                assert_int_equal(r.begin[e + 1] - r.begin[e], 1);
                assert_int_equal(r.rank[r.begin[e]], rank[l * s.E + e]);
                assert_int_equal(r.slot[r.begin[e]], taken[rank[l * s.E + e]]++);
            }
            for (int32_t p = 0; p < s.P; p++) most = taken[p] > most ? taken[p] : most;
        }
        assert_int_equal(layout.slots_per_rank, most);
        cot_expert_layout_free(&layout);
        rank[below(s.L * s.E)] = below(2) ? s.P : -1;
        assert_int_equal(cot_expert_layout_of_ranks(&layout, &shape, rank, &error), COT_INVALID_ARGUMENT);
    }
}

static void nothing_to_lay_out(void **unused)
{
    (void)unused;
    const cot_expert_layout_shape shape = {.n_ranks = 3};
    cot_expert_layout layout;
    assert_int_equal(cot_expert_layout_of_ranks(&layout, &shape, NULL, NULL), COT_OK);
    assert_int_equal(layout.first[0], 0);
    cot_expert_layout_free(&layout);
    cot_expert_layout_free(&layout);
}

int main(void)
{
    state = test_seed();
    const struct CMUnitTest tests[] = {cmocka_unit_test(maps), cmocka_unit_test(other_models),
                                       cmocka_unit_test(rank_lists), cmocka_unit_test(nothing_to_lay_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
