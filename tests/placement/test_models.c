/* Maps for models whose dense layers lie anywhere: written in every format, read for the model and laid out, each expert
 * is where it was drawn; files of other models are refused. */
#include "harness/cmocka.h"
#include "harness/placement/samples.h"
#include "harness/refused.h"
#include "harness/scratch.h"

#include "coterie/layout.h"
#include "coterie/placement.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define LAYERS(...) {__VA_ARGS__}, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t)

static const struct model {
    int32_t layers, moe[6];
    size_t n_moe;
} models[] = {
    {6, LAYERS(1, 3, 5)}, {7, LAYERS(1, 3, 5)}, {4, LAYERS(0, 1, 2, 3)}, {4, LAYERS(2, 3)},
    {6, LAYERS(2, 3)},    {5, LAYERS(0, 3)},    {1, LAYERS(0)},          {9, LAYERS(0, 1, 4, 5, 8)},
};

static const struct format {
    const char *name;
    bool holes, doubles; // whether a map may have empty slots, and an expert twice on a rank
    bool ascending;      // the experts of a rank are, whatever slots they had
} formats[] = {{"coterie", true, true, false},       {"sglang", false, true, false},
               {"vllm", false, true, false},         {"tensorrt-llm", false, true, false},
               {"vllm-ascend", false, false, false}, {"omni-infer", true, false, true}};

static cot_expert_map_options options_of(scratch_pad *pad, const struct model *model, const char *format,
                                         int32_t ranks)
{
    pad->notes[0] = 0;
    return (cot_expert_map_options){.size = sizeof(cot_expert_map_options),
                                    .format = format,
                                    .ranks = ranks,
                                    .n_layers = model->layers,
                                    .moe_layer = model->moe,
                                    .moe_layers = (int32_t)model->n_moe,
                                    .say = hear,
                                    .context = pad};
}

static cot_expert_layout_shape shape_of(const struct model *model, const cot_expert_map *map)
{
    return (cot_expert_layout_shape){.n_layers = (int32_t)model->n_moe,
                                     .n_experts = map->n_experts,
                                     .n_ranks = map->n_ranks,
                                     .layers = model->moe};
}

/* Slots beyond one of each expert are empty or hold any; rows of the model's MoE layers alone. */
static cot_expert_map draw_map(scratch_pad *pad, const struct model *model, const struct format *format)
{
    const int32_t ranks = 1 + (int32_t)pad_draw(pad, 4), slots = 1 + (int32_t)pad_draw(pad, 4),
                  all = ranks * slots;
    const int32_t experts = slots + (int32_t)pad_draw(pad, (uint32_t)(all - slots) + 1);
    cot_expert_map map;
    assert_int_equal(cot_expert_map_new(&map, (int32_t)model->n_moe, experts, ranks, slots, NULL), COT_OK);
    for (int32_t l = 0; l < map.n_layers; l++) {
        int32_t *row = map.expert + l * all;
        const int32_t shift = (int32_t)pad_draw(pad, (uint32_t)experts);
        map.layers[l] = model->moe[l];
        for (int32_t i = 0; i < all; i++) { // runs of `slots` <= experts: distinct on a rank
            const bool spare = i >= experts;
            row[i] = spare && format->holes && pad_draw(pad, 2) ? -1
                     : spare && format->doubles && pad_draw(pad, 2)
                         ? (int32_t)pad_draw(pad, (uint32_t)experts)
                         : (i + shift) % experts;
        }
        for (int32_t i = 0; format->doubles && i < all; i++) {
            const int32_t j = (int32_t)pad_draw(pad, (uint32_t)all), kept = row[i];
            row[i] = row[j];
            row[j] = kept;
        }
    }
    return map;
}

/* The slot in which a reader of the format finds what slot i of the rank's `row` holds. */
static int32_t slot_of(const int32_t *row, int32_t slots, int32_t i, bool ascending)
{
    int32_t before = 0;
    for (int32_t j = 0; ascending && j < slots; j++) before += row[j] >= 0 && row[j] < row[i];
    return ascending ? before : i;
}

static void assert_layout(const cot_expert_layout *layout, const cot_expert_map *map, bool ascending)
{
    const int32_t slots = map->slots_per_rank;
    int64_t seats = 0;
    for (int32_t l = 0; l < map->n_layers; l++)
        for (int32_t i = 0; i < map->n_ranks * slots; i++) {
            const int32_t *row = map->expert + (l * map->n_ranks + i / slots) * slots, e = row[i % slots];
            if (e < 0) continue;
            const cot_expert_replicas r = cot_expert_layout_layer(layout, l);
            const int32_t slot = slot_of(row, slots, i % slots, ascending);
            int found = 0;
            for (int32_t at = r.begin[e]; at < r.begin[e + 1]; at++)
                found += r.rank[at] == i / slots && r.slot[at] == slot;
            assert_int_equal(found, 1);
            seats++;
        }
    assert_int_equal(layout->first[layout->n_layers], seats);
}

static void test_every_format(void **state)
{
    scratch_pad *pad = *state;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
            for (int round = 0; round < 20; round++) {
                cot_expert_map map = draw_map(pad, &models[m], &formats[f]), again;
                cot_expert_map_options options = options_of(pad, &models[m], formats[f].name, map.n_ranks);
                cot_expert_layout layout;
                cot_error error = {0};
                if (cot_expert_map_write(&map, in_scratch(pad, "m"), &options, &error) != COT_OK)
                    fail_msg("%s: %s", formats[f].name, error.message);
                options = options_of(pad, &models[m], NULL, map.n_ranks);
                if (cot_expert_map_read(&again, in_scratch(pad, "m"), &options, &error) != COT_OK)
                    fail_msg("%s: %s", formats[f].name, error.message);
                assert_string_equal(pad->notes, ""); // nothing had to be assumed
                const cot_expert_layout_shape shape = shape_of(&models[m], &map);
                if (cot_expert_layout_of_map(&layout, &shape, &again, "m", &error) != COT_OK)
                    fail_msg("%s: %s", formats[f].name, error.message);
                assert_layout(&layout, &map, formats[f].ascending);
                cot_expert_layout_free(&layout);
                cot_expert_map_free(&again);
                cot_expert_map_free(&map);
            }
}

/* The refusal that reading a file for a model, or laying out what was read, ends in. */
static cot_error refusal(scratch_pad *pad, const struct model *model, const cot_expert_map *written)
{
    cot_expert_map_options options = options_of(pad, model, NULL, written->n_ranks);
    cot_expert_map map;
    cot_expert_layout layout = {0};
    cot_error error = {0};
    if (cot_expert_map_read(&map, in_scratch(pad, "o"), &options, &error) == COT_OK) {
        const cot_expert_layout_shape shape = shape_of(model, written);
        assert_int_not_equal(cot_expert_layout_of_map(&layout, &shape, &map, "o", &error), COT_OK);
    }
    assert_null(layout.rank);
    cot_expert_map_free(&map);
    return error;
}

static void test_other_models(void **state)
{
    scratch_pad *pad = *state;
    static const struct model model = {7, LAYERS(1, 3, 5)}, others[] = {{7, LAYERS(1, 3)},
                                                                        {7, LAYERS(3, 5)},
                                                                        {7, LAYERS(1, 3, 5, 6)},
                                                                        {6, LAYERS(1, 3, 5)},
                                                                        {8, LAYERS(1, 3, 5)}};
    static const char *const counted[] = {"'%s' has rows for 3 MoE layers, the model has 2",
                                          "'%s' has rows for 3 MoE layers, the model has 2",
                                          "'%s' has rows for 3 MoE layers, the model has 4", NULL, NULL},
                             *const all[] = {NULL, NULL, NULL, "'%s' has rows for 7 layers, the model has 6",
                                             "'%s' has rows for 7 layers, the model has 8"},
                             *const named[] = {"'o' places experts of layer 5, in which the model has none",
                                               "'o' places experts of layer 1, in which the model has none",
                                               "'o' does not place the experts of layer 6", NULL, NULL};
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        const bool names = !strcmp(formats[f].name, "coterie") || !strcmp(formats[f].name, "tensorrt-llm");
        const char *const *words = names ? named : !strcmp(formats[f].name, "sglang") ? all : counted;
        cot_expert_map map = draw_map(pad, &model, &formats[f]);
        cot_expert_map_options options = options_of(pad, &model, formats[f].name, map.n_ranks);
        assert_int_equal(cot_expert_map_write(&map, in_scratch(pad, "o"), &options, NULL), COT_OK);
        for (size_t i = 0; i < 5; i++) {
            char expected[300];
            if (!words[i]) continue;
            snprintf(expected, sizeof expected, words[i], in_scratch(pad, "o"));
            const cot_error error = refusal(pad, &others[i], &map);
            assert_int_equal(error.status, COT_INVALID_ARGUMENT);
            assert_string_equal(error.message, expected);
        }
        cot_expert_map_free(&map);
    }
}

/* What the rows of a model's dense layers hold is of no concern: neither experts that no layer has nor missing ones. */
static void test_dense_rows(void **state)
{
    scratch_pad *pad = *state;
    static const struct model model = {4, LAYERS(1, 2)};
    cot_expert_map_options options = options_of(pad, &model, NULL, 2);
    cot_expert_map map;
    put_text(pad, "d", "{\"physical_to_logical_map\": [[9, 9], [1, 0], [0, 1], [0, 0]]}");
    assert_int_equal(cot_expert_map_read(&map, in_scratch(pad, "d"), &options, NULL), COT_OK);
    assert_int_equal(map.n_experts, 2);
    assert_memory_equal(map.dense, ((const uint8_t[]){1, 0, 0, 1}), 4);
    assert_memory_equal(map.expert + 2, ((const int32_t[]){1, 0, 0, 1}), 4 * sizeof(int32_t));
    cot_expert_map_free(&map);
}

static void test_bad_models(void **state)
{
    scratch_pad *pad = *state;
    static const struct model bad[] = {
        {4, LAYERS(1, 4)}, {4, LAYERS(2, 1)}, {4, LAYERS(1, 1)}, {4, LAYERS(-1)}, {0, LAYERS(0)}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cot_expert_map_options options = options_of(pad, &bad[i], NULL, 1);
        cot_expert_map map;
        cot_error error = {0};
        assert_refused(cot_expert_map_read(&map, SAMPLES "sglang-map.json", &options, &error), &error,
                       "is no MoE layer of");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_format),
                                       cmocka_unit_test(test_other_models), cmocka_unit_test(test_dense_rows),
                                       cmocka_unit_test(test_bad_models)};
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
