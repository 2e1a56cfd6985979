/* Loads in every format: the samples that the engines' libraries wrote, notes, refusals. */
#include "harness/cmocka.h"
#include "harness/placement/samples.h"
#include "harness/refused.h"
#include "harness/scratch.h"

#include "base/safetensors.h"
#include "coterie/load.h"
#include "coterie/trace.h"
#include "routing/npy.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static cot_status read_with(scratch_pad *pad, cot_load_counts *load, const char *path, int first_layer,
                            cot_error *error)
{
    cot_load_options options = {
        .size = sizeof options, .first_layer = first_layer, .say = hear, .context = pad};
    pad->notes[0] = 0;
    memset(load, 0xa5, sizeof *load);
    return cot_load_counts_read(load, &path, 1, &options, error);
}

static void open_sample(scratch_pad *pad, cot_load_counts *load, const char *name, int first_layer)
{
    char path[512];
    cot_error error = {0};
    snprintf(path, sizeof path, SAMPLES "%s", name);
    if (read_with(pad, load, path, first_layer, &error) != COT_OK) fail_msg("%s: %s", name, error.message);
}

/* The samples' loads, all sources together; `dense`: with rows of the dense layers. */
static void check_sample(const cot_load_counts *load, bool dense)
{
    int first = dense ? 0 : SAMPLE_FIRST;
    assert_int_equal(load->n_layers, SAMPLE_LAYERS - first);
    assert_int_equal(load->n_experts, SAMPLE_EXPERTS);
    for (int l = 0; l < load->n_layers; l++) {
        assert_int_equal(load->layers[l], first + l);
        for (int e = 0; e < SAMPLE_EXPERTS; e++) {
            double sum = 0;
            for (int s = 0; s < load->n_sources; s++)
                sum += load->tokens[(l * load->n_sources + s) * SAMPLE_EXPERTS + e];
            assert_true(sum == sample_tokens(first + l, e));
        }
    }
}

static void test_samples(void **state)
{
    scratch_pad *pad = *state;
    static const struct {
        const char *name, *format;
        int first_layer, sources, top_k;
        bool dense, engine;
        const char *note;
    } samples[] = {
        {"counts.csv", "csv", 0, 1, 0, false, false, "6 experts a layer"},
        {"sglang-stat.pt", "sglang", 0, 1, 0, true, true, "2 of 5 layers, layer 0 the first, have no load"},
        {"sglang-stat-strided.pt", "sglang", 0, 1, 0, true, true, "2 of 5 layers"},
        {"vllm-stats.jsonl", "vllm", SAMPLE_FIRST, 1, 0, false, true, ""},
        {"tensorrt", "tensorrt-llm", 0, SAMPLE_RANKS, 2, false, true, ""},
    };
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        cot_load_counts load;
        open_sample(pad, &load, samples[i].name, samples[i].first_layer);
        check_sample(&load, samples[i].dense);
        assert_string_equal(load.format, samples[i].format);
        assert_int_equal(load.n_sources, samples[i].sources);
        assert_int_equal(load.sources_known, samples[i].sources > 1);
        assert_int_equal(load.from_engine, samples[i].engine);
        assert_int_equal(load.top_k, samples[i].top_k);
        if (!strstr(pad->notes, samples[i].note)) fail_msg("%s: notes '%s'", samples[i].name, pad->notes);
        cot_load_counts_free(&load);
        assert_null(load.tokens);
    }
}

/* Physical ids go through the map; each file is a rank's own tokens. */
static void test_per_token(void **state)
{
    scratch_pad *pad = *state;
    cot_load_counts load;
    open_sample(pad, &load, "sglang-per-token", 0);
    static double expected[SAMPLE_LAYERS][SAMPLE_RANKS][SAMPLE_EXPERTS];
    memset(expected, 0, sizeof expected);
    for (int rank = 0; rank < SAMPLE_RANKS; rank++)
        for (int step = 0; step < 2; step++)
            for (int layer = SAMPLE_FIRST; layer < SAMPLE_LAYERS; layer++)
                for (int t = 0; t < 3 + rank + step; t++)
                    for (int k = 0; k < 2; k++) {
                        int slot = (layer + t * 3 + k * 5 + rank * 2 + step) % SAMPLE_SLOTS;
                        expected[layer][rank][sample_slot(layer, slot)]++;
                    }
    assert_int_equal(load.n_layers, SAMPLE_LAYERS);
    assert_int_equal(load.n_sources, SAMPLE_RANKS);
    assert_int_equal(load.n_experts, SAMPLE_EXPERTS);
    assert_int_equal(load.top_k, 2);
    assert_true(load.sources_known && load.from_engine);
    assert_memory_equal(load.tokens, expected, sizeof expected);
    cot_load_counts_free(&load);
    // the files by name, in another order, are the same; one of them alone does not tell sources
    const char *both[] = {SAMPLES "sglang-per-token/expert_distribution_recorder_1.5_1.pt",
                          SAMPLES "sglang-per-token/expert_distribution_recorder_1.5_0.pt"};
    cot_load_options options = {
        .size = sizeof options, .say = hear, .context = pad, .top_k = 7, .first_layer = 1};
    assert_int_equal(cot_load_counts_read(&load, both, 2, &options, NULL), COT_OK);
    assert_memory_equal(load.tokens, expected, sizeof expected);
    assert_int_equal(load.top_k, 7);
    assert_non_null(strstr(pad->notes, "the first layer given is not used"));
    cot_load_counts_free(&load);
    assert_int_equal(cot_load_counts_read(&load, both, 1, &options, NULL), COT_OK);
    assert_int_equal(load.n_sources, 1);
    assert_false(load.sources_known);
    for (int l = 0; l < SAMPLE_LAYERS; l++)
        assert_memory_equal(load.tokens + l * SAMPLE_EXPERTS, expected[l][1], sizeof expected[l][1]);
    cot_load_counts_free(&load);
}

/* Several dumps add up; modes do not mix. */
static void test_dumps(void **state)
{
    scratch_pad *pad = *state;
    const char *twice[] = {SAMPLES "sglang-stat.pt", SAMPLES "sglang-stat-strided.pt"};
    cot_load_options options = {.size = sizeof options, .say = hear, .context = pad};
    cot_load_counts load;
    cot_error error = {0};
    pad->notes[0] = 0;
    assert_int_equal(cot_load_counts_read(&load, twice, 2, &options, NULL), COT_OK);
    for (size_t i = 0; i < SAMPLE_LAYERS * SAMPLE_EXPERTS; i++)
        assert_true(load.tokens[i] == 2 * sample_tokens((int)i / SAMPLE_EXPERTS, (int)i % SAMPLE_EXPERTS));
    assert_non_null(strstr(pad->notes, "2 dumps"));
    cot_load_counts_free(&load);
    twice[1] = SAMPLES "sglang-per-token";
    assert_refused(cot_load_counts_read(&load, twice, 2, NULL, &error), &error, "different modes");
    assert_null(load.tokens);
}

/* One record as a line, over several, and behind another that has a brace where safetensors files do. */
static void test_vllm_layout(void **state)
{
    scratch_pad *pad = *state;
#define RECORD(_)                                                                                            \
    "{" _ "\"record_type\":" _ "\"eplb_load_stats\"," _ "\"expert_load\":" _ "[[5," _ "7]]," _               \
    "\"p2l_map\":" _ "[[1,0]]" _ "}"
    static const char *const texts[] = {RECORD("") "\n", RECORD("\n    "), RECORD("\r\n\t") "\r\n",
                                        "{\"dpp\": {\"size\": 1}}\n" RECORD("") "\n",
                                        "{\"dpp\": {\"size\": 1}}" RECORD("")};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        cot_load_counts load;
        cot_error error = {0};
        put_text(pad, "a.jsonl", texts[i]);
        if (read_with(pad, &load, in_scratch(pad, "a.jsonl"), 0, &error) != COT_OK)
            fail_msg("%zu: %s", i, error.message);
        assert_true(load.n_layers == 1 && load.n_experts == 2);
        assert_true(load.tokens[0] == 7 && load.tokens[1] == 5);
        cot_load_counts_free(&load);
    }
}

static void test_vllm_notes(void **state)
{
    scratch_pad *pad = *state;
    cot_load_counts load;
    open_sample(pad, &load, "vllm-stats.jsonl", 0);
    assert_int_equal(load.layers[0], 0);
    assert_non_null(strstr(pad->notes, "row 0 is taken for the model's layer 0"));
    cot_load_counts_free(&load);
}

/* A trace of tokens and its counts give one load. */
static void test_trace(void **state)
{
    scratch_pad *pad = *state;
    enum { L = 2, E = 5, K = 2, T = 40 };
    const int32_t layers[L] = {1, 4};
    double expected[L][E] = {{0}};
    cot_trace_builder *builder;
    cot_trace trace, counts;
    assert_int_equal(cot_trace_builder_open(&builder, "m", L, layers, E, K, NULL), COT_OK);
    for (int t = 0; t < T; t++) {
        uint16_t experts[L * K];
        const float weights[L * K] = {0};
        for (int l = 0; l < L; l++) {
            draw_experts(pad, experts + l * K, K, E);
            for (int k = 0; k < K; k++) expected[l][experts[l * K + k]]++;
        }
        assert_int_equal(cot_trace_builder_append(builder, 0, t % 7, experts, weights, NULL), COT_OK);
    }
    assert_int_equal(cot_trace_builder_finish(&trace, builder, NULL), COT_OK);
    cot_trace_builder_close(builder);
    assert_int_equal(cot_trace_count(&counts, &trace, NULL), COT_OK);
    for (int i = 0; i < 2; i++) {
        const char *path = in_scratch(pad, "t.safetensors");
        cot_load_counts load;
        assert_int_equal(cot_trace_write(i ? &counts : &trace, path, NULL), COT_OK);
        assert_int_equal(cot_load_counts_read(&load, &path, 1, NULL, NULL), COT_OK);
        assert_string_equal(load.format, "trace");
        assert_int_equal(load.top_k, K);
        assert_false(load.from_engine || load.sources_known);
        assert_memory_equal(load.layers, layers, sizeof layers);
        assert_memory_equal(load.tokens, expected, sizeof expected);
        cot_load_counts_free(&load);
    }
    cot_trace_close(&trace);
    cot_trace_close(&counts);
}

/* Random tables, columns in any order, with and without sources, missing pairs. */
static void test_csv(void **state)
{
    scratch_pad *pad = *state;
    enum { L = 3, S = 4, E = 9 };
    const int32_t layers[L] = {0, 7, 60};
    for (int round = 0; round < 20; round++) {
        static double expected[L][S][E];
        static char text[L * S * E * 32];
        bool source = round % 2;
        int sources = source ? S : 1,
            used = sprintf(text, "%s", source ? "tokens,source,expert,layer\r\n" : "layer,expert,tokens\n");
        memset(expected, 0, sizeof expected);
        for (int l = L - 1; l >= 0; l--)
            for (int s = 0; s < sources; s++)
                for (int e = 0; e < E; e++) {
                    double n = pad_draw(pad, 1000) / 8.0;
                    if (!pad_draw(pad, 3) && e < E - 1) continue; // the last expert and source tell E and S
                    expected[l][s][e] = n;
                    used += source ? sprintf(text + used, "%.3f,%d,%d,%d\r\n", n, s, e, layers[l])
                                   : sprintf(text + used, "%d,%d,%.3f\n", layers[l], e, n);
                }
        put_text(pad, "c.csv", text);
        cot_load_counts load;
        cot_error error = {0};
        if (read_with(pad, &load, in_scratch(pad, "c.csv"), 0, &error) != COT_OK)
            fail_msg("%s", error.message);
        assert_int_equal(load.n_layers, L);
        assert_int_equal(load.n_experts, E);
        assert_int_equal(load.n_sources, sources);
        assert_int_equal(load.sources_known, source);
        assert_memory_equal(load.layers, layers, sizeof layers);
        for (int l = 0; l < L; l++)
            for (int s = 0; s < sources; s++)
                for (int e = 0; e < E; e++)
                    assert_true(load.tokens[(l * sources + s) * E + e] == expected[l][s][e]);
        cot_load_counts_free(&load);
    }
}

/* The same counts with semicolons, as spreadsheets write them where a comma is the decimal point. */
static void test_semicolons(void **state)
{
    scratch_pad *pad = *state;
    static const char *const texts[] = {"layer;expert;tokens\n3;0;1,5\n3;1;20\n4;1;0,25\n",
                                        "tokens;layer;expert\r\n1,5;3;0\r\n20;3;1\r\n,25;4;1\r\n",
                                        "\xef\xbb\xbflayer;expert;tokens\r\n3;0;1.5\r\n3;1;2e1\r\n4;1;0,25"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        cot_load_counts load;
        cot_error error = {0};
        put_text(pad, "c.csv", texts[i]);
        if (read_with(pad, &load, in_scratch(pad, "c.csv"), 0, &error) != COT_OK)
            fail_msg("%s", error.message);
        assert_int_equal(load.n_layers, 2);
        assert_memory_equal(load.tokens, ((const double[]){1.5, 20, 0, 0.25}), 4 * sizeof(double));
        assert_string_equal(load.format, "csv");
        cot_load_counts_free(&load);
    }
}

/* Counts alone: one pass or several that add up, as JSON and as arrays of several types. */
static void test_logical_count(void **state)
{
    scratch_pad *pad = *state;
    static const char *const names[] = {"one.json", "three.json", "alone.json", "two.npy", "three.npy"};
    char text[5][4096];
    int used[3] = {sprintf(text[0], " {\"rank\": 0, \"logical_count\": ["),
                   sprintf(text[1], "{\"logical_count\": ["), sprintf(text[2], "\n[")};
    for (int pass = 0; pass < 3; pass++) {
        used[1] += sprintf(text[1] + used[1], pass ? ", [" : "[");
        for (int l = 0; l < SAMPLE_LAYERS; l++)
            for (int e = 0; e < SAMPLE_EXPERTS; e++) {
                const char *open = e ? ", " : l ? ", [" : "[", *close = e + 1 < SAMPLE_EXPERTS ? "" : "]";
                const double whole = sample_tokens(l, e), part = pass == 1 ? 0 : pass ? whole - 1 : 1;
                used[1] += sprintf(text[1] + used[1], "%s%g%s", open, l < SAMPLE_FIRST ? 0 : part, close);
                for (int i = 0; !pass && i < 3; i += 2)
                    used[i] += sprintf(text[i] + used[i], "%s%g%s", open, whole, close);
            }
        used[1] += sprintf(text[1] + used[1], "]");
    }
    strcat(text[0], "]}"), strcat(text[1], "]}"), strcat(text[2], "]\n");
    for (int i = 0; i < 3; i++) put_text(pad, names[i], text[i]);
    for (int i = 3; i < 5; i++) {
        FILE *f = fopen(in_scratch(pad, names[i]), "wb");
        const int64_t shape[] = {2, SAMPLE_LAYERS, SAMPLE_EXPERTS};
        assert_non_null(f);
        cot_npy_write_header(f, shape + (i == 3), i == 3 ? 2 : 3);
        for (int pass = i == 3; pass < 2; pass++)
            for (int l = 0; l < SAMPLE_LAYERS; l++)
                for (int e = 0; e < SAMPLE_EXPERTS; e++) {
                    const int32_t whole = (int32_t)sample_tokens(l, e), n = i == 3 ? whole
                                                                            : pass ? whole / 3
                                                                                   : whole - whole / 3;
                    fwrite(&n, sizeof n, 1, f);
                }
        assert_int_equal(fclose(f), 0);
    }
    for (int i = 0; i < 5; i++) {
        cot_load_counts load;
        cot_error error = {0};
        if (read_with(pad, &load, in_scratch(pad, names[i]), 0, &error) != COT_OK)
            fail_msg("%s: %s", names[i], error.message);
        check_sample(&load, true);
        assert_string_equal(load.format, "logical_count");
        assert_true(load.from_engine && !load.sources_known && !load.top_k);
        assert_non_null(strstr(pad->notes, "2 of 5 layers, layer 0 the first, have no load"));
        assert_null(strstr(pad->notes, "does not number its"));
        cot_load_counts_free(&load);
        assert_int_equal(read_with(pad, &load, in_scratch(pad, names[i]), 3, &error),
                         COT_OK); // rows from layer 3 on
        assert_int_equal(load.layers[0], 3);
        assert_null(strstr(pad->notes, "is not used"));
        cot_load_counts_free(&load);
    }
    // a first row with tokens may be that of another layer than 0
    put_text(pad, "moe.json", "[[1, 2], [3, 4]]");
    for (int first = 0; first < 4; first += 3) {
        cot_load_counts load;
        cot_error error;
        assert_int_equal(read_with(pad, &load, in_scratch(pad, "moe.json"), first, &error), COT_OK);
        assert_int_equal(strstr(pad->notes, "does not number its 2 rows") != NULL, !first);
        cot_load_counts_free(&load);
    }
}

/* Files that people reported, where this machine has them. */
static void test_reported(void **state)
{
    scratch_pad *pad = *state;
    static const struct {
        const char *name;
        int layers, experts;
        double first; // count above 0
    } files[] = {{"logical_count2d.json", 6, 16, 1514},
                 {"logical_count.npy", 6, 16, 1514},
                 {"statold.pt", 6, 16, 1514},
                 {"csv_semi.csv", 3, 8, 1}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[512];
        cot_load_counts load;
        cot_error error = {0};
        snprintf(path, sizeof path, "%s/cases/place/%s", COT_SHARED, files[i].name);
        if (access(path, R_OK)) {
            print_message("SKIPPED: no %s\n", path);
            skip();
        }
        if (read_with(pad, &load, path, 0, &error) != COT_OK) fail_msg("%s", error.message);
        assert_int_equal(load.n_layers, files[i].layers);
        assert_int_equal(load.n_experts, files[i].experts);
        double first = 0;
        for (int k = 0; first == 0; k++) first = load.tokens[k];
        assert_true(first == files[i].first);
        cot_load_counts_free(&load);
    }
}

static void test_refusals(void **state)
{
    scratch_pad *pad = *state;
#define STATS "{\"record_type\":\"eplb_load_stats\","
    static const struct {
        const char *name, *text, *words;
    } bad[] = {
        {"a.csv", "layer,expert,tokens\n1,2,-3\n", "line 2: column 3 (tokens) is no finite number"},
        {"a.csv", "layer,expert,tokens\n1,2,nan\n", "line 2: column 3 (tokens)"},
        {"a.csv", "layer,expert,tokens\n1,2,1e999\n", "line 2: column 3 (tokens)"},
        {"a.csv", "layer,expert,tokens\n1,2,3\n1,2,4\n",
         "line 3: layer 1, expert 2, source 0 is counted twice"},
        {"a.csv", "layer,expert,tokens\n1,2,0\n", "holds no load: all counts are 0"},
        {"a.csv", "layer,expert,tokens\n", "holds no loads"},
        {"a.csv", "layer,expert\n1,2\n", "names the columns"},
        {"a.csv", "layer,expert,load\n1,2,3\n", "column 3 is 'load'"},
        {"a.csv", "# counts\nlayer,expert,tokens\n1,2,3\n",
         "no CSV of loads: its first line is a comment, expected the columns' names"},
        {"a.csv", "\r\n \nlayer,expert,tokens\n1,2,3\n", "no CSV of loads: its first line is blank"},
        {"a.csv", "layer,expert,tokens\n1,2,3\n\n1,3,3\n", "line 3 is blank: in a CSV of loads a row"},
        {"a.csv", "layer,expert,tokens\r\n \t\r\n1,3,3\r\n", "line 2 is blank: in a CSV of loads a row"},
        {"a.csv", "layer,expert,tokens\n1,2,3\n#1,3,3\n", "line 3 is a comment: in a CSV of loads a row"},
        {"a.csv", "layer,expert,tokens\n1,2,3\n ", "line 3 is blank"},
        {"a.csv", "# counts\nlayer\texpert\ttoken_id\tcount\n",
         "no table of token counts: its first line is a"},
        {"a.csv", "layer\texpert,tokens\n1,2\n", "is no table of token counts"},
        {"a.txt", "# counts\n\n", "no routing data"},
        {"a.csv", "layer,expert,tokens,tokens\n1,2,3,3\n", "column 4 is 'tokens'"},
        {"a.csv", "layer,expert,tokens\n1,65536,3\n", "column 2 (expert) is no number from 0 to 65535"},
        {"a.csv", "layer;expert;tokens\n1;2;3,4,5\n", "line 2: column 3 (tokens)"},
        {"a.csv", "layer;expert,tokens\n1;2;3\n", "column 1 is 'layer;expert'"},
        {"a.json", "{\"logical_count\": [[1, 2], [3]]}", "layer 1 is no row of 2 counts"},
        {"a.json", "{\"logical_count\": [[1, -2]]}", "layer 0, expert 1 is no number of 0 or more"},
        {"a.json", "{\"logical_count\": [[[1, 2]], [[1, 2], [3, 4]]]}", "passes of 1 and of 2 layers"},
        {"a.json", "{\"logical_count\": 3}", "is no load: expected"},
        {"a.json", "[1, 2]", "is no load: expected"},
        {"a.json", "[]", "is no load: expected"},
        {"a.json", "[[0, 0]]", "all counts are 0"},
        {"a.json", "[[1, 2]", "is no JSON"},
        {"a.json", "{\"physical_to_logical_map\": [[0, 1]]}", "is a placement"},
        {"a.csv", "layer,expert,tokens\n1,2\n", "column 3"},
        {"a.csv", "layer,expert,tokens\n1,2,3,4\n", "expected 3 columns"},
        {"a.csv", "layer,expert,tokens,source\n1,65535,3,65535\n", "too many for"},
        {"a.txt", "hello\n", "no routing data"},
        {"a.txt", "", "no routing data"},
        {"a.jsonl", "{\n", "line 1 is no JSON"},
        {"a.jsonl", "{}\n\n{},\n", "line 3 is no JSON"},
        {"a.jsonl", "{}\n{\n\"a\": 1,\n\"b\"\n}\n", "line 2 is no JSON"},
        {"a.jsonl", "{}\n\n", "no line of record_type 'eplb_load_stats'"},
        {"a.jsonl", STATS "\"expert_load\":[[1,2]],\"p2l_map\":[[0]]}", "differ in shape"},
        {"a.jsonl", STATS "\"expert_load\":[[1,2]],\"p2l_map\":[[0,1],[0,1]]}", "as many layers"},
        {"a.jsonl", STATS "\"expert_load\":[[1,-2]],\"p2l_map\":[[0,1]]}", "no number of 0 or more"},
        {"a.jsonl", STATS "\"expert_load\":[[1,true]],\"p2l_map\":[[0,1]]}", "no number of 0 or more"},
        {"a.jsonl", STATS "\"expert_load\":[[1,2]],\"p2l_map\":[[0,65536]]}", "is no expert"},
        {"a.jsonl",
         STATS "\"expert_load\":[[1,2]],\"p2l_map\":[[0,1]]}\n" STATS
               "\"expert_load\":[[1],[1]],\"p2l_map\":[[0],[0]]}",
         "line 2: another number of layers"},
        {"a.jsonl", STATS "\"expert_load\":[[0,0]],\"p2l_map\":[[0,1]]}", "holds no load"},
        {"a.pt", "PK\3\4 and nothing more", "broken zip archive"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cot_load_counts load;
        cot_error error = {0};
        put_text(pad, bad[i].name, bad[i].text);
        assert_refused(read_with(pad, &load, in_scratch(pad, bad[i].name), 0, &error), &error, bad[i].words);
        assert_null(load.tokens);
    }
    const char *two[] = {SAMPLES "counts.csv", SAMPLES "counts.csv"};
    cot_load_options wrong = {.size = 1};
    cot_load_counts load;
    cot_error error = {0};
    assert_refused(cot_load_counts_read(&load, two, 2, NULL, &error), &error, "are two recordings");
    assert_refused(cot_load_counts_read(&load, two, 0, NULL, &error), &error, "no file");
    assert_refused(cot_load_counts_read(&load, two, 1, &wrong, &error), &error, "load options of 1 bytes");
    assert_refused(read_with(pad, &load, "/nowhere", 0, &error), &error, "/nowhere");
    mkdir(in_scratch(pad, "empty"), 0777);
    assert_refused(read_with(pad, &load, in_scratch(pad, "empty"), 0, &error), &error, "no routing data");
}

/* Files of one recording that disagree. */
static void test_tensorrt_refusals(void **state)
{
    scratch_pad *pad = *state;
    mkdir(in_scratch(pad, "trt"), 0777);
    const int32_t numbers[4] = {1, 2, 3, 4};
    const float bad[2] = {1, NAN};
    cot_tensor four = {"10_3", COT_I32, 1, {4}, numbers, 16, COT_BLOCKS_NONE},
               two = {"10_3", COT_I32, 1, {2}, numbers, 8, COT_BLOCKS_NONE};
    cot_tensor named = {"3", COT_I32, 1, {4}, numbers, 16, COT_BLOCKS_NONE},
               nan = {"10_3", COT_F32, 1, {2}, bad, 8, COT_BLOCKS_NONE};
    const char *folder = in_scratch(pad, "trt");
    cot_load_counts load;
    cot_error error = {0};
    assert_int_equal(cot_safetensors_write(in_scratch(pad, "trt/rank0.safetensors"), &four, 1, NULL, 0, NULL),
                     COT_OK);
    assert_int_equal(
        cot_safetensors_write(in_scratch(pad, "trt/rank0_raw.safetensors"), &named, 1, NULL, 0, NULL),
        COT_OK);
    assert_int_equal(read_with(pad, &load, folder, 0, NULL),
                     COT_OK); // without meta_info.json; other files are passed over
    assert_int_equal(load.top_k, 0);
    assert_int_equal(load.layers[0], 3);
    cot_load_counts_free(&load);
    put_text(pad, "trt/meta_info.json", "{\"num_experts\": 5, \"num_experts_per_token\": 1}");
    assert_refused(read_with(pad, &load, folder, 0, &error), &error,
                   "does not say the statistics' 4 experts");
    remove(in_scratch(pad, "trt/meta_info.json"));
    assert_int_equal(cot_safetensors_write(in_scratch(pad, "trt/rank1.safetensors"), &two, 1, NULL, 0, NULL),
                     COT_OK);
    assert_refused(read_with(pad, &load, folder, 0, &error), &error, "counts 2 experts, others 4");
    remove(in_scratch(pad, "trt/rank0.safetensors"));
    assert_int_equal(cot_safetensors_write(in_scratch(pad, "trt/rank1.safetensors"), &nan, 1, NULL, 0, NULL),
                     COT_OK);
    assert_refused(read_with(pad, &load, folder, 0, &error), &error, "no numbers of 0 or more");
    assert_int_equal(
        cot_safetensors_write(in_scratch(pad, "trt/rank1.safetensors"), &named, 1, NULL, 0, NULL), COT_OK);
    assert_refused(read_with(pad, &load, folder, 0, &error), &error, "tensor '3' is no expert statistic");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_samples),       cmocka_unit_test(test_per_token),
        cmocka_unit_test(test_dumps),         cmocka_unit_test(test_vllm_notes),
        cmocka_unit_test(test_vllm_layout),   cmocka_unit_test(test_trace),
        cmocka_unit_test(test_csv),           cmocka_unit_test(test_semicolons),
        cmocka_unit_test(test_logical_count), cmocka_unit_test(test_reported),
        cmocka_unit_test(test_refusals),      cmocka_unit_test(test_tensorrt_refusals),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
