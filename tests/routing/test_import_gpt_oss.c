/* Importing ids.u8, probs.bf16 and index.jsonl: against generated files, against the real ones read another
 * way, every refusal. */
#include "harness/refused.h"
#include "harness/scratch.h"

#include "base/dtype.h"
#include "coterie/trace.h"

#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { T = 5, L = 3, K = 4, CELLS = T * L * K };

static const char good_index[] =
    "{\"row0\": 0, \"rows\": 2, \"tokens\": [\"a\", \" b\"], \"dataset\": \"x\"}\n"
    "{\"row0\": 2, \"rows\": 0, \"tokens\": []}\n"
    "{\"row0\": 2, \"rows\": 3, \"tokens\": [\" b\", \"\\u0000\\u00e9\", \"a\"]}\n";
static uint8_t ids[CELLS + 1];
static uint16_t probs[CELLS + 1];

static void fresh_folder(scratch_pad *pad)
{
    remove_tree(in_scratch(pad, "g"));
    assert_int_equal(mkdir(in_scratch(pad, "g"), 0777), 0);
    for (int i = 0; i < T * L; i++) {
        uint16_t experts[K];
        draw_experts(pad, experts, K, 32);
        for (int k = 0; k < K; k++) {
            ids[i * K + k] = (uint8_t)experts[k];
            probs[i * K + k] = cot_f32_to_bf16((float)(pad_draw(pad, 1000) + 1) / 1000);
        }
    }
}

static void put_folder(scratch_pad *pad, const char *index, size_t id_bytes, size_t prob_bytes)
{
    put_file(pad, "g/ids.u8", ids, id_bytes);
    put_file(pad, "g/probs.bf16", probs, prob_bytes);
    put_text(pad, "g/index.jsonl", index);
}

static void test_generated(void **state)
{
    scratch_pad *pad = *state;
    cot_trace trace;
    cot_error error = {0};
    fresh_folder(pad);
    put_folder(pad, good_index, CELLS, 2 * CELLS);
    if (cot_trace_import(&trace, in_scratch(pad, "g"), NULL, &error) != COT_OK) fail_msg("%s", error.message);
    const int32_t numbers[] = {0, 1, 1, 2, 0};
    const int64_t offsets[] = {0, 2, 2, 5}, string_offsets[] = {0, 1, 3, 6};
    assert_int_equal(trace.n_tokens, T);
    assert_int_equal(trace.n_layers, L);
    assert_int_equal(trace.layers[2], 2);
    assert_int_equal(trace.n_experts, 32);
    assert_int_equal(trace.n_sequences, 3);
    assert_memory_equal(trace.sequence_offsets, offsets, sizeof offsets);
    assert_memory_equal(trace.token_ids, numbers, sizeof numbers);
    assert_int_equal(trace.n_strings, 3);
    assert_memory_equal(trace.string_offsets, string_offsets, sizeof string_offsets);
    assert_memory_equal(trace.strings, "a b\0\xc3\xa9", 6);
    for (int t = 0; t < T; t++)
        for (int l = 0; l < L; l++)
            for (int k = 0; k < K; k++) {
                float expected = cot_bf16_to_f32(probs[(t * L + l) * K + k]);
                assert_int_equal(cot_trace_expert(&trace, l, t, k), ids[(t * L + l) * K + k]);
                assert_true(cot_trace_weight(&trace, l, t, k) ==
                            expected); // bf16 in (2^-10, 1] is exact in float16
            }
    cot_trace_close(&trace);
}

static void refuse(scratch_pad *pad, const char *words, const cot_trace_import_options *options)
{
    cot_trace trace;
    cot_error error = {0};
    assert_refused(cot_trace_import(&trace, in_scratch(pad, "g"), options, &error), &error, words);
    assert_null(trace.owner);
}

static void test_refusals(void **state)
{
    scratch_pad *pad = *state;
    static const struct {
        const char *index, *words;
    } cases[] = {
        {"", "no tokens"},
        {"x\n", "line 1 is no JSON object"},
        {"[1]\n", "line 1 is no JSON object"},
        {"{\"row0\": 0, \"rows\": 1, \"tokens\": [\"a\"]\n", "line 1 is no JSON object"},
        {"\n", "line 1 is no JSON object"},
        {"{\"row0\": 0, \"rows\": 1}\n", "lacks"},
        {"{\"row0\": 0.0, \"rows\": 1, \"tokens\": [\"a\"]}\n", "lacks"},
        {"{\"row0\": 1, \"rows\": 1, \"tokens\": [\"a\"]}\n", "begins at row 1, expected 0"},
        {"{\"row0\": 0, \"rows\": 1, \"tokens\": [\"a\"]}\n{\"row0\": 0, \"rows\": 1, \"tokens\": [\"a\"]}\n",
         "line 2 begins at row 0, expected 1"},
        {"{\"row0\": 0, \"rows\": 2, \"tokens\": [\"a\"]}\n", "2 rows but 1 tokens"},
        {"{\"row0\": 0, \"rows\": -1, \"tokens\": []}\n", "-1 rows"},
        {"{\"row0\": 0, \"rows\": 1, \"tokens\": [7]}\n", "token 0 is no string"},
        {"{\"row0\": 0, \"rows\": 4, \"tokens\": [\"a\", \"b\", \"c\", \"d\"]}\n",
         "no whole layers of 4 tokens"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fresh_folder(pad);
        put_folder(pad, cases[i].index, CELLS, 2 * CELLS);
        refuse(pad, cases[i].words, NULL);
    }
    fresh_folder(pad);
    put_folder(pad, good_index, CELLS, 2 * CELLS - 2);
    refuse(pad, "probs.bf16 has 118 bytes, expected twice the 60", NULL);
    put_folder(pad, good_index, CELLS, 2 * CELLS + 1);
    refuse(pad, "probs.bf16 has 121 bytes", NULL);
    put_folder(pad, good_index, CELLS - 1, 2 * CELLS - 2);
    refuse(pad, "no whole layers", NULL);
    put_folder(pad, good_index, 0, 0);
    refuse(pad, "no whole layers", NULL);
    put_folder(pad, good_index, CELLS, 2 * CELLS);
    assert_int_equal(remove(in_scratch(pad, "g/index.jsonl")), 0);
    refuse(pad, "index.jsonl", NULL);
    const uint16_t bad[] = {0x7f80, 0xff80, 0x7fc0, 0x4780}; // inf, -inf, nan, 65536
    for (int i = 0; i < 4; i++) {
        fresh_folder(pad);
        probs[L * K] = bad[i];
        put_folder(pad, good_index, CELLS, 2 * CELLS);
        refuse(pad, "token 1 in layer 0 is not finite", NULL);
    }
    cot_trace_import_options o = {.size = sizeof o, .n_experts = 31};
    fresh_folder(pad);
    ids[7] = 31;
    put_folder(pad, good_index, CELLS, 2 * CELLS);
    refuse(pad, "names expert 31, more than the 31", &o);
    o = (cot_trace_import_options){.size = sizeof o, .top_k = 5};
    refuse(pad, "no whole layers", &o);
    ids[7] = 127; // a larger model
    put_folder(pad, good_index, CELLS, 2 * CELLS);
    cot_trace trace;
    assert_int_equal(cot_trace_import(&trace, in_scratch(pad, "g"), NULL, NULL), COT_OK);
    assert_int_equal(trace.n_experts, 128);
    cot_trace_close(&trace);
}

/* The real trace: every token string spells what the index says, and a sample of cells is where the format
 * has it. */
static void test_real(void **state)
{
    scratch_pad *pad = *state;
    static const char folder[] = COT_SHARED "/data/routing/gpt-oss-20b";
    cot_trace trace;
    cot_error error = {0};
    if (access(folder, R_OK)) {
        print_message("SKIPPED: no '%s'\n", folder);
        skip();
    }
    if (cot_trace_import(&trace, folder, NULL, &error) != COT_OK) fail_msg("%s", error.message);
    assert_int_equal(trace.n_tokens, 106097);
    assert_int_equal(trace.n_layers, 24);
    assert_int_equal(trace.n_experts, 32);
    assert_int_equal(trace.n_sequences, 363);
    assert_string_equal(trace.model, "gpt-oss-20b");
    FILE *index = fopen(COT_SHARED "/data/routing/gpt-oss-20b/index.jsonl", "rb");
    FILE *experts = fopen(COT_SHARED "/data/routing/gpt-oss-20b/ids.u8", "rb");
    FILE *weights = fopen(COT_SHARED "/data/routing/gpt-oss-20b/probs.bf16", "rb");
    assert_true(index && experts && weights);
    char *line = NULL;
    size_t room = 0;
    int64_t t = 0;
    int32_t next = 0; // the first id not seen yet
    for (int64_t s = 0; getline(&line, &room, index) > 0; s++) {
        json_t *o = json_loads(line, 0, NULL), *tokens = json_object_get(o, "tokens"), *one;
        size_t i;
        assert_int_equal(trace.sequence_offsets[s], t);
        json_array_foreach(tokens, i, one)
        {
            int32_t id = trace.token_ids[t++];
            assert_in_range(id, 0, next);
            next += id == next;
            size_t bytes = (size_t)(trace.string_offsets[id + 1] - trace.string_offsets[id]);
            assert_int_equal(bytes, json_string_length(one));
            assert_memory_equal(trace.strings + trace.string_offsets[id], json_string_value(one), bytes);
        }
        json_decref(o);
    }
    free(line);
    assert_int_equal(t, trace.n_tokens);
    assert_int_equal(next, trace.n_strings);
    for (int i = 0; i < 20000; i++) {
        int l = (int)pad_draw(pad, 24), k = (int)pad_draw(pad, 4);
        t = pad_draw(pad, 106097);
        long cell = (long)((t * 24 + l) * 4 + k);
        fseek(experts, cell, SEEK_SET);
        assert_int_equal(cot_trace_expert(&trace, l, t, k), getc(experts));
        fseek(weights, 2 * cell, SEEK_SET);
        int low = getc(weights), high = getc(weights);
        float expected = cot_bf16_to_f32((uint16_t)(low | high << 8));
        assert_true(fabsf(cot_trace_weight(&trace, l, t, k) - expected) <= 0x1p-25f);
    }
    fclose(index);
    fclose(experts);
    fclose(weights);
    cot_trace_close(&trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generated),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_real),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
