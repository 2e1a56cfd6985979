/* Maps in every format: the samples that the engines' libraries wrote, round trips, refusals. */
#include "harness/cmocka.h"
#include "harness/placement/samples.h"
#include "harness/refused.h"
#include "harness/scratch.h"

#include "coterie/placement.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static cot_expert_map_options options_of(scratch_pad *pad, const char *format, int ranks, int first_layer,
                                         int n_layers)
{
    pad->notes[0] = 0;
    return (cot_expert_map_options){.size = sizeof(cot_expert_map_options),
                                    .format = format,
                                    .ranks = ranks,
                                    .first_layer = first_layer,
                                    .n_layers = n_layers,
                                    .say = hear,
                                    .context = pad};
}

static int by_value(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* Sorts each rank's slots, which omni-infer does not keep in order. */
static void sort_slots(cot_expert_map *map)
{
    for (int32_t i = 0; i < map->n_layers * map->n_ranks; i++)
        qsort(map->expert + i * map->slots_per_rank, (size_t)map->slots_per_rank, sizeof(int32_t), by_value);
}

static void assert_same(const cot_expert_map *a, const cot_expert_map *b)
{
    assert_int_equal(a->n_layers, b->n_layers);
    assert_int_equal(a->n_experts, b->n_experts);
    assert_int_equal(a->n_ranks, b->n_ranks);
    assert_int_equal(a->slots_per_rank, b->slots_per_rank);
    assert_memory_equal(a->layers, b->layers, (size_t)a->n_layers * sizeof(int32_t));
    assert_memory_equal(a->expert, b->expert,
                        (size_t)a->n_layers * (size_t)a->n_ranks * (size_t)a->slots_per_rank *
                            sizeof(int32_t));
    assert_memory_equal(a->dense, b->dense, (size_t)a->n_layers);
    assert_true(a->model_hash == b->model_hash);
}

/* Every sample is the map of the formula; those that list MoE layers alone lack the first two. */
static void test_samples(void **state)
{
    scratch_pad *pad = *state;
    static const struct {
        const char *name;
        bool all_layers, sorted;
    } samples[] = {
        {"sglang-map.json", true, false},
        {"sglang-per-token/expert_distribution_recorder_1.5_0.pt", true, false},
        {"vllm-mapping.jsonl", false, false},
        {"tensorrt.yaml", false, false},
        {"ascend.json", false, false},
        {"omni.npy", false, true},
        {"omni-columns.npy", false, true},
    };
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        int first = samples[i].all_layers ? 0 : SAMPLE_FIRST;
        cot_expert_map_options options = options_of(pad, NULL, SAMPLE_RANKS, SAMPLE_FIRST, 0);
        cot_expert_map map, expected;
        cot_error error = {0};
        char path[512];
        snprintf(path, sizeof path, SAMPLES "%s", samples[i].name);
        if (cot_expert_map_read(&map, path, &options, &error) != COT_OK) fail_msg("%s", error.message);
        assert_int_equal(cot_expert_map_new(&expected, SAMPLE_LAYERS - first, SAMPLE_EXPERTS, SAMPLE_RANKS,
                                            SAMPLE_SLOTS / SAMPLE_RANKS, NULL),
                         COT_OK);
        for (int l = 0; l < SAMPLE_LAYERS - first; l++) {
            expected.layers[l] = first + l;
            for (int s = 0; s < SAMPLE_SLOTS; s++)
                expected.expert[l * SAMPLE_SLOTS + s] = sample_slot(first + l, s);
        }
        if (samples[i].sorted) sort_slots(&expected);
        assert_same(&map, &expected);
        assert_string_equal(pad->notes, "");
        cot_expert_map_free(&map);
        cot_expert_map_free(&expected);
        assert_null(map.expert);
    }
}

/* A random map with every expert in every layer; `full`: no empty slots; no expert twice on a rank. */
static void draw_map(scratch_pad *pad, cot_expert_map *map, bool full)
{
    int ranks = 1 + (int)pad_draw(pad, 5), slots = 1 + (int)pad_draw(pad, 4), all = ranks * slots;
    int experts = slots + (int)pad_draw(pad, (uint32_t)(all - slots) + 1), layers = 1 + (int)pad_draw(pad, 5);
    assert_int_equal(cot_expert_map_new(map, layers, experts, ranks, slots, NULL), COT_OK);
    for (int l = 0, number = 0; l < layers; l++) {
        int shift = (int)pad_draw(pad, (uint32_t)experts);
        map->layers[l] = number += 1 + (int)pad_draw(pad, 3);
        for (int i = 0; i < all; i++) { // runs of `slots` <= experts: distinct on a rank
            bool spare = i >= experts;
            map->expert[l * all + i] = spare && !full && pad_draw(pad, 2) ? -1 : (i + shift) % experts;
        }
    }
}

/* Written and read again, every format gives the map back. */
static void test_round_trips(void **state)
{
    scratch_pad *pad = *state;
    for (const cot_expert_map_format *f = cot_expert_map_formats; f->name; f++)
        for (int round = 0; round < 30; round++) {
            bool own = !strcmp(f->name, "coterie"), omni = !strcmp(f->name, "omni-infer");
            bool counted =
                strcmp(f->name, "coterie") && strcmp(f->name, "tensorrt-llm") && strcmp(f->name, "sglang");
            const char *path = in_scratch(pad, "map");
            cot_expert_map map, again;
            cot_error error = {0};
            draw_map(pad, &map, !own && !omni);
            if (counted) // consecutive layers, which row numbers can tell
                for (int l = 1; l < map.n_layers; l++) map.layers[l] = map.layers[0] + l;
            if (own) map.dense[0] = 1;
            if (own && round % 2) map.model_hash = (uint64_t)pad_draw(pad, UINT32_MAX) << 32 | 1;
            cot_expert_map_options options = options_of(pad, f->name, 0, 0, 0);
            if (cot_expert_map_write(&map, path, &options, &error) != COT_OK)
                fail_msg("%s: %s", f->name, error.message);
            options = options_of(pad, NULL, map.n_ranks, map.layers[0], 0);
            if (cot_expert_map_read(&again, path, &options, &error) != COT_OK)
                fail_msg("%s: %s", f->name, error.message);
            if (omni) { // sorted, and empty slots last
                for (int i = 0; i < map.n_layers * map.n_ranks * map.slots_per_rank; i++)
                    if (map.expert[i] < 0) map.expert[i] = INT32_MAX;
                sort_slots(&map);
                for (int i = 0; i < map.n_layers * map.n_ranks * map.slots_per_rank; i++)
                    if (map.expert[i] == INT32_MAX) map.expert[i] = -1;
            }
            if (!strcmp(f->name, "sglang")) { // all rows of the model: those without a place hold slot mod E
                int slots = map.n_ranks * map.slots_per_rank;
                assert_int_equal(again.n_layers, map.layers[map.n_layers - 1] + 1);
                for (int row = 0, l = 0; row < again.n_layers; row++) {
                    bool placed = map.layers[l] == row;
                    for (int i = 0; i < slots; i++)
                        assert_int_equal(again.expert[row * slots + i],
                                         placed ? map.expert[l * slots + i] : i % map.n_experts);
                    l += placed;
                }
            } else {
                assert_same(&map, &again);
            }
            cot_expert_map_free(&map);
            cot_expert_map_free(&again);
        }
}

/* Layers that are dense, by the map or by the first layer given, are no rows of formats that list MoE layers alone. */
static void test_dense(void **state)
{
    scratch_pad *pad = *state;
    static const char *const formats[] = {"vllm", "tensorrt-llm", "vllm-ascend", "omni-infer"};
    cot_expert_map map, again;
    assert_int_equal(cot_expert_map_new(&map, 4, 2, 1, 2, NULL), COT_OK);
    for (int i = 0; i < 8; i++) map.expert[i] = i < 4 ? i % 2 : (i + 1) % 2;
    for (int way = 0; way < 2; way++) {
        map.dense[0] = map.dense[1] = !way;
        for (size_t f = 0; f < 4; f++) {
            cot_expert_map_options options = options_of(pad, formats[f], 1, way ? 2 : 0, 0);
            assert_int_equal(cot_expert_map_write(&map, in_scratch(pad, "d"), &options, NULL), COT_OK);
            options = options_of(pad, NULL, 1, 2, 0);
            assert_int_equal(cot_expert_map_read(&again, in_scratch(pad, "d"), &options, NULL), COT_OK);
            assert_int_equal(again.n_layers, 2);
            assert_int_equal(again.layers[0], 2);
            assert_int_equal(again.layers[1], 3);
            if (f < 3) assert_memory_equal(again.expert, map.expert + 4, 4 * sizeof(int32_t));
            cot_expert_map_free(&again);
        }
    }
    cot_expert_map_options options = options_of(pad, "sglang", 0, 0, 6);
    assert_int_equal(cot_expert_map_write(&map, in_scratch(pad, "s"), &options, NULL), COT_OK);
    assert_non_null(strstr(pad->notes, "2 of 6 rows"));
    char text[512] = "";
    FILE *file = fopen(in_scratch(pad, "s"), "r");
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    assert_string_equal(
        text, "{\"physical_to_logical_map\": [\n[0, 1],\n[0, 1],\n[1, 0],\n[1, 0],\n[0, 1],\n[0, 1]]}\n");
    cot_expert_map_free(&map);
}

static void test_write_refusals(void **state)
{
    scratch_pad *pad = *state;
    static const char *const full[] = {"sglang", "vllm", "tensorrt-llm", "vllm-ascend"};
    cot_expert_map map;
    cot_error error = {0};
    assert_int_equal(cot_expert_map_new(&map, 2, 2, 2, 2, NULL), COT_OK);
    map.layers[0] = 3;
    map.layers[1] = 4;
    memcpy(map.expert, (const int32_t[]){0, 1, 1, 0, 0, 1, 1, -1}, 8 * sizeof(int32_t));
    for (size_t f = 0; f < 4; f++) {
        cot_expert_map_options options = options_of(pad, full[f], 0, 0, 0);
        assert_refused(cot_expert_map_write(&map, in_scratch(pad, "no"), &options, &error), &error,
                       "layer 4 has 1 experts on rank 1");
        assert_int_equal(access(in_scratch(pad, "no"), F_OK), -1);
    }
    cot_expert_map_options options = options_of(pad, "sglang", 0, 0, 4);
    assert_refused(cot_expert_map_write(&map, in_scratch(pad, "no"), &options, &error), &error,
                   "layer 4 has a place");
    memcpy(map.expert, (const int32_t[]){0, 1, 1, 1, 0, 1, 1, 0}, 8 * sizeof(int32_t));
    static const char *const distinct[] = {"vllm-ascend", "omni-infer"};
    for (size_t f = 0; f < 2; f++) {
        options = options_of(pad, distinct[f], 0, 0, 0);
        assert_refused(cot_expert_map_write(&map, in_scratch(pad, "no"), &options, &error), &error,
                       "layer 3 has expert 1 twice on rank 1");
        map.dense[0] = 1; // a dense layer's row is not written
        assert_int_equal(cot_expert_map_write(&map, in_scratch(pad, "yes"), &options, &error), COT_OK);
        map.dense[0] = 0;
    }
    options = options_of(pad, "pytorch", 0, 0, 0);
    assert_refused(cot_expert_map_write(&map, in_scratch(pad, "no"), &options, &error), &error,
                   "unknown format 'pytorch'");
    map.expert[0] = 2;
    assert_refused(cot_expert_map_write(&map, in_scratch(pad, "no"), NULL, &error), &error,
                   "slot 0 holds expert 2");
    map.expert[0] = 1;
    assert_refused(cot_expert_map_write(&map, in_scratch(pad, "no"), NULL, &error), &error,
                   "layer 3 has no slot for expert 0");
    map.expert[0] = 0;
    map.layers[1] = 3;
    assert_refused(cot_expert_map_write(&map, in_scratch(pad, "no"), NULL, &error), &error,
                   "does not ascend");
    cot_expert_map_free(&map);
    assert_refused(cot_expert_map_new(&map, 0, 1, 1, 1, &error), &error, "no map can have 0 layers");
}

static void test_read_refusals(void **state)
{
    scratch_pad *pad = *state;
#define OWN "{\"format\":\"coterie.placement\",\"version\":1,\"experts\":2,\"ranks\":1,\"slots_per_rank\":2,"
#define SIZED(experts, ranks, slots)                                                                         \
    "{\"format\":\"coterie.placement\",\"version\":1,\"experts\":" #experts ",\"ranks\":" #ranks             \
    ",\"slots_per_rank\":" #slots ",\"layers\":[0],\"physical_to_logical_map\":[[]]}"
#define VLLM "{\"record_type\":\"eplb_initial_mapping\","
#define YAML "initial_global_assignments:\n"
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"", "no map of experts"},
        {"[1]", "no map of experts"},
        {"{", "line 1 is no JSON"},
        {"{\"format\":\"coterie.placement\",\"version\":2}", "version 2 of Coterie's maps"},
        {"{\"format\":\"coterie.placement\"}", "'version' is missing"},
        {OWN "\"layers\":[0],\"physical_to_logical_map\":[[0]]}", "row 0 of 'physical_to_logical_map'"},
        {OWN "\"layers\":[0],\"physical_to_logical_map\":[[0,2]]}", "no whole number from -1 to 1"},
        {OWN "\"layers\":[0],\"physical_to_logical_map\":[[0,-1]]}", "layer 0 has no slot for expert 1"},
        {OWN "\"layers\":[0,1],\"physical_to_logical_map\":[[0,1]]}", "'layers' is no array of 1 numbers"},
        {OWN "\"layers\":[0],\"dense_layers\":[1],\"physical_to_logical_map\":[[0,1]]}", "'dense_layers'"},
        {OWN "\"layers\":[0],\"model_hash\":\"0x1\",\"physical_to_logical_map\":[[0,1]]}", "'model_hash'"},
        {OWN "\"layers\":[0],\"model_hash\":\"00000000000000001\",\"physical_to_logical_map\":[[0,1]]}",
         "'model_hash'"},
        {OWN "\"layers\":[0],\"model_hash\":1,\"physical_to_logical_map\":[[0,1]]}", "'model_hash'"},
        {SIZED(0, 1, 1), "'experts' is something else, expected a whole number from 1"},
        {SIZED(1, 0, 1), "'ranks' is something else, expected a whole number from 1"},
        {SIZED(1, 1, 0), "'slots_per_rank' is something else, expected a whole number from 1"},
        {SIZED(1, 65537, 1), "expected a whole number from 1 to 65536"},
        {SIZED(1, 1, 65537), "expected a whole number from 1 to 65536"},
        {SIZED(1, 65536, 65536), "no array of 4294967296 numbers"},
        {OWN "\"layers\":[0],\"physical_to_logical_map\":[]}", "no array of 1 to 1024 layers"},
        {"{\"physical_to_logical_map\":[[0,1],[0]]}", "row 1 of 'physical_to_logical_map' is no array of 2"},
        {"{\"physical_to_logical_map\":[[0,1.5]]}", "no whole number"},
        {"{\"physical_to_logical_map\":[[0,-1]]}", "no whole number from 0"},
        {"{\"physical_to_logical_map\":[[]]}", "1 layers of 0 slots"},
        {"{\"physical_to_logical_map\":7}", "0 layers"},
        {"{\"physical_to_logical_map\":[[0,2]]}", "layer 0 has no slot for expert 1"},
        {VLLM "\"num_slots\":2,\"num_redundant_experts\":0,\"initial_global_assignments\":{\"1\":[0,1]}}",
         "layer 0 has 0 slots, 'num_slots' says 2"},
        {VLLM "\"num_slots\":2,\"num_redundant_experts\":0,\"initial_global_assignments\":{\"0\":[0,1],\"2\":"
              "[0,1]}}",
         "layer 1 is no array"},
        {VLLM "\"num_slots\":3,\"num_redundant_experts\":0,\"initial_global_assignments\":{\"0\":[0,1,0]}}",
         "names 2 experts, but has 3 slots of which 0"},
        {"\n{\"record_type\":\"other\"} eplb_initial_mapping", "no line of record_type"},
        {YAML "  3: [0, 1]\n  3: [1, 0]\n", "layer number 3 does not ascend"},
        {YAML "  3: [0, 1]\n  4: [1]\n", "layer 4 has 1 slots, expected 2"},
        {YAML "  3: [0, 1]\nnum_slots: 4\n", "layer 3 has 2 slots, expected 4"},
        {YAML "  3: [0, one]\n", "line 2 is no placement: expected a whole number"},
        {YAML "  x: [0, 1]\n", "expected a whole number"},
        {YAML "  3: 7\n", "the slots of a layer are no list"},
        {YAML "  3: &a [0, 1]\n  4: *a\n", "aliases are not read"},
        {YAML "  3: [0, 1\n", "no YAML"},
        {"initial_global_assignments: []\n", "no mapping of layers"},
        {"initial_global_assignments: {}\n", "it has no 'initial_global_assignments'"},
        {"- initial_global_assignments\n", "expected a mapping"},
        {"other: initial_global_assignments\n", "it has no 'initial_global_assignments'"},
        {"{\"layer_list\":[]}", "no list of layers"},
        {"{\"layer_list\":[{\"device_list\":[{\"device_expert\":[0]}]}]}", "'moe_layer_count'"},
        {"{\"moe_layer_count\":1,\"layer_list\":[{\"device_list\":[{\"device_expert\":[]}]}]}",
         "without a 'device_expert'"},
        {"{\"moe_layer_count\":2,\"layer_list\":[{\"device_list\":[{\"device_expert\":[0]}]},{\"device_"
         "list\":[]}]}",
         "another number of devices"},
        {"\x93NUMPY\1", "no .npy file"},
        {"PK\3\4", "broken zip archive"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cot_expert_map map;
        cot_error error = {0};
        put_text(pad, "m", bad[i].text);
        assert_refused(cot_expert_map_read(&map, in_scratch(pad, "m"), NULL, &error), &error, bad[i].words);
        assert_null(map.expert);
    }
    cot_expert_map map;
    cot_error error = {0};
    cot_expert_map_options options = options_of(pad, NULL, 3, 0, 0);
    assert_refused(cot_expert_map_read(&map, SAMPLES "tensorrt.yaml", &options, &error), &error,
                   "8 slots a layer, which 3 ranks do not divide");
    assert_refused(cot_expert_map_read(&map, SAMPLES "sglang-stat.pt", NULL, &error), &error,
                   "holds no matrix");
    options = options_of(pad, "sglang", 0, 0, 0);
    assert_refused(cot_expert_map_read(&map, SAMPLES "tensorrt.yaml", &options, &error), &error, "no JSON");
    options = options_of(pad, "omni-infer", 0, 0, 0);
    assert_refused(cot_expert_map_read(&map, SAMPLES "tensorrt.yaml", &options, &error), &error,
                   "no .npy file");
    options.size--;
    assert_refused(cot_expert_map_read(&map, SAMPLES "omni.npy", &options, &error), &error, "map options of");
    static const int32_t layers[][3] = {{0, 2, 1}, {0, 1, 1}, {0, 1, 3}, {-1, 0, 1}};
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        options = options_of(pad, NULL, 1, 0, 3);
        options.moe_layer = layers[i];
        options.moe_layers = 3;
        assert_refused(cot_expert_map_read(&map, SAMPLES "tensorrt.yaml", &options, &error), &error,
                       "is no MoE layer of 3 layers that ascend");
    }
}

/* The most ranks and slots that a map can have, and one more. */
static void test_bounds(void **state)
{
    scratch_pad *pad = *state;
    for (int more = 0; more < 2; more++) {
        cot_expert_map map;
        cot_error error = {0};
        cot_expert_map_options options = options_of(pad, NULL, COT_MAP_MAX_RANKS + more, 0, 0);
        assert_refused(cot_expert_map_read(&map, SAMPLES "tensorrt.yaml", &options, &error), &error,
                       more ? "no map can have 65537 ranks" : "which 65536 ranks do not divide");
        FILE *file = fopen(in_scratch(pad, "m"), "w");
        assert_non_null(file);
        fputs("{\"physical_to_logical_map\":[[0", file);
        for (int i = 1; i < COT_MAP_MAX_SLOTS + more; i++) fputs(",0", file);
        fputs("]]}", file);
        assert_int_equal(fclose(file), 0);
        options = options_of(pad, NULL, 1, 0, 0);
        const cot_status status = cot_expert_map_read(&map, in_scratch(pad, "m"), &options, &error);
        if (more)
            assert_refused(status, &error, "65537 slots a rank, at most 65536 are read");
        else {
            assert_int_equal(status, COT_OK);
            assert_int_equal(map.slots_per_rank, COT_MAP_MAX_SLOTS);
            cot_expert_map_free(&map);
        }
    }
}

/* What else a configuration of TensorRT-LLM says is passed over, whatever it is made of. */
static void test_other_keys(void **state)
{
    scratch_pad *pad = *state;
    cot_expert_map map;
    cot_error error = {0};
    put_text(pad, "m",
             "a: {b: [1, {c: [2], d: {}}], e: []}\n? [f, {g: h}]\n: 3\n"
             "initial_global_assignments:\n  3: [1, 0]\ni: [[4]]\nnum_slots: 2\n");
    const cot_expert_map_options options = options_of(pad, NULL, 1, 0, 0);
    if (cot_expert_map_read(&map, in_scratch(pad, "m"), &options, &error) != COT_OK)
        fail_msg("%s", error.message);
    assert_int_equal(map.n_layers, 1);
    assert_int_equal(map.layers[0], 3);
    assert_memory_equal(map.expert, ((const int32_t[]){1, 0}), 2 * sizeof(int32_t));
    cot_expert_map_free(&map);
}

/* Arrays that are no pattern. */
static void test_npy_refusals(void **state)
{
    scratch_pad *pad = *state;
    static const struct {
        const char *header;
        size_t data;
        const char *words;
    } bad[] = {
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (1, 1, 2), }", 2, NULL},
        {"{'shape':(1,1,2),'fortran_order':True,'descr':'|b1'}", 2, NULL},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (1, 1, 2), }", 3,
         "3 bytes of data, its shape needs 2"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (1, 2), }", 2,
         "no array of ranks, layers and experts"},
        {"{'descr': '>i4', 'fortran_order': False, 'shape': (1, 1, 2), }", 8, "little-endian"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (1, 1, 2), }", 8, "little-endian"},
        {"{'descr': '|u1', 'fortran_order': False}", 2, "npy header"},
        {"{'descr': '|u1', 'descr': '|u1', 'fortran_order': False, 'shape': (1, 1, 2)}", 2, "npy header"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (1, 1, 2, 1, 1)}", 2, "npy header"},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (2147483647, 2147483647, 2147483647)}", 2,
         "its shape needs"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char file[512] = "\x93NUMPY\1";
        size_t header = strlen(bad[i].header);
        cot_expert_map map;
        cot_error error = {0};
        file[8] = (char)header;
        memcpy(file + 10, bad[i].header, header);
        memset(file + 10 + header, 1, bad[i].data);
        put_file(pad, "n", file, 10 + header + bad[i].data);
        cot_status status = cot_expert_map_read(&map, in_scratch(pad, "n"), NULL, &error);
        if (bad[i].words)
            assert_refused(status, &error, bad[i].words);
        else
            assert_int_equal(status, COT_OK);
        cot_expert_map_free(&map);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_samples),       cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_dense),         cmocka_unit_test(test_write_refusals),
        cmocka_unit_test(test_read_refusals), cmocka_unit_test(test_npy_refusals),
        cmocka_unit_test(test_bounds),        cmocka_unit_test(test_other_keys),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
