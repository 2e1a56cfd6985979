/* Importing tables of token counts: E and K from the data, every refusal, the real tables row by row. */
#include "harness/refused.h"
#include "harness/scratch.h"

#include "coterie/trace.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEADER "layer\texpert\ttoken_id\tcount\n"

static cot_status import_text(scratch_pad *pad, cot_trace *trace, const char *text, int experts, int top_k,
                              cot_error *error)
{
    pad->notes[0] = 0;
    cot_trace_import_options o = {
        .size = sizeof o, .n_experts = experts, .top_k = top_k, .say = hear, .context = pad};
    put_text(pad, "t.tsv", text);
    return cot_trace_import(trace, in_scratch(pad, "t.tsv"), &o, error);
}

/* Random counts of tokens that occur n times each, K experts at a time, at least one of them once. */
static void test_generated(void **state)
{
    scratch_pad *pad = *state;
    enum { LAYERS = 3, IDS = 40, MAX_E = 70 };
    for (int round = 0; round < 10; round++) {
        static uint32_t counts[LAYERS][IDS][MAX_E];
        static char text[LAYERS * IDS * MAX_E * 24];
        int E = 2 + (int)pad_draw(pad, MAX_E - 1), K = 1 + (int)pad_draw(pad, (uint32_t)(E < 9 ? E : 9));
        const int32_t layer[LAYERS] = {0, 7, 150};
        memset(counts, 0, sizeof counts);
        for (int l = 0; l < LAYERS; l++)
            for (int t = 0; t < IDS; t++)
                for (int n = t ? 1 + t % 7 : 1; n > 0; n--) {
                    uint16_t experts[9];
                    draw_experts(pad, experts, K, E);
                    if (!t && !l) experts[0] = (uint16_t)(E - 1); // E can be told from the data
                    for (int k = 1; k < K && !t && !l; k++) experts[k] = (uint16_t)(k - 1);
                    for (int k = 0; k < K; k++) counts[l][t][experts[k]]++;
                }
        static const char *const headers[] = {HEADER, "count\ttoken_id\tlayer\texpert\r\n"};
        size_t used = (size_t)sprintf(text, "%s", headers[round % 2]);
        for (int e = E - 1; e >= 0; e--) // not the order of the result
            for (int l = 0; l < LAYERS; l++)
                for (int t = 0; t < IDS; t++) {
                    if (!counts[l][t][e]) continue;
                    if (round % 2)
                        used += (size_t)sprintf(text + used, "%u\t%d\t%d\t%d\r\n", counts[l][t][e],
                                                1000 - 7 * t, layer[l], e);
                    else
                        used += (size_t)sprintf(text + used, "%d\t%d\t%d\t%u\n", layer[l], e, 1000 - 7 * t,
                                                counts[l][t][e]);
                }
        cot_trace trace;
        cot_error error = {0};
        if (import_text(pad, &trace, text, 0, 0, &error) != COT_OK) fail_msg("%s", error.message);
        assert_int_equal(trace.kind, COT_TRACE_COUNTS);
        assert_int_equal(trace.n_layers, LAYERS);
        assert_memory_equal(trace.layers, layer, sizeof layer);
        assert_int_equal(trace.n_experts, E);
        assert_int_equal(trace.top_k, K);
        assert_int_equal(trace.n_tokens, IDS);
        for (int l = 0; l < LAYERS; l++)
            for (int t = 0; t < IDS; t++) {
                assert_int_equal(trace.token_ids[IDS - 1 - t], 1000 - 7 * t);
                assert_memory_equal(trace.counts + ((size_t)l * IDS + (size_t)(IDS - 1 - t)) * (size_t)E,
                                    counts[l][t], (size_t)E * 4);
            }
        cot_trace_close(&trace);
    }
}

static void test_derived(void **state)
{
    scratch_pad *pad = *state;
    cot_trace trace;
    cot_error error = {0};
    // id 5 occurs four times: sums of 8 would allow K = 8, 4, 2 or 1, but one expert has 4 of the 8
    assert_int_equal(import_text(pad, &trace, HEADER "0\t0\t5\t4\n0\t1\t5\t3\n0\t2\t5\t1", 0, 0, &error),
                     COT_OK);
    assert_int_equal(trace.top_k, 2);
    assert_int_equal(trace.n_experts, 3);
    assert_non_null(strstr(pad->notes, "3 experts a layer, from the largest id that occurs\n"));
    assert_non_null(strstr(pad->notes, "2 experts a token"));
    cot_trace_close(&trace);
    // sums of 16 with a count of 5: at most 3, of which only 2 divides 16
    assert_int_equal(
        import_text(pad, &trace, HEADER "0\t0\t5\t5\n0\t1\t5\t4\n0\t2\t5\t4\n0\t3\t5\t3", 0, 0, &error),
        COT_OK);
    assert_int_equal(trace.top_k, 2);
    cot_trace_close(&trace);
    assert_int_equal(import_text(pad, &trace, HEADER "0\t0\t5\t4\n0\t1\t5\t3\n0\t2\t5\t1", 64, 1, &error),
                     COT_OK);
    assert_int_equal(trace.top_k, 1);
    assert_int_equal(trace.n_experts, 64);
    assert_null(strstr(pad->notes, "experts"));
    cot_trace_close(&trace);
    assert_refused(import_text(pad, &trace, HEADER "0\t0\t5\t4\n0\t1\t5\t3\n0\t2\t5\t1", 64, 4, &error),
                   &error, "cannot have 4");
    assert_refused(import_text(pad, &trace, HEADER "0\t0\t5\t4\n0\t1\t5\t3\n0\t2\t5\t1", 2, 0, &error),
                   &error, "names expert 2");
}

static void test_refusals(void **state)
{
    scratch_pad *pad = *state;
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "neither a trace, a tab-separated table nor"},
        {"layer expert token_id count\n", "neither a trace, a tab-separated table nor"},
        {HEADER, "holds no counts"},
        {"from_layer\tto_layer\texpert_from\texpert_to\tcount\n0\t7\t0\t0\t4407\n",
         "column 1 is 'from_layer'"},
        {"layer\texpert\ttoken_id\n0\t0\t0\n", "no table"},
        {"layer\texpert\ttoken_id\tcount\tmore\n", "no table"},
        {"layer\tlayer\ttoken_id\tcount\n", "column 2 is 'layer'"},
        {HEADER "0\t0\t5\n", "line 2: column 4"},
        {HEADER "0\t0\t5\t1\t1\n", "line 2: expected 4 columns"},
        {HEADER "0\t0\t5\t1\n\n", "line 3 is blank: in a table of token counts a row is expected"},
        {HEADER "\r\n0\t0\t5\t1\n", "line 2 is blank"},
        {HEADER "# a\tb\n0\t0\t5\t1\n", "line 2 is a comment: in a table of token counts a row is expected"},
        {"\n" HEADER "0\t0\t5\t1\n", "no table of token counts: its first line is blank"},
        {"#\n" HEADER "0\t0\t5\t1\n", "no table of token counts: its first line is a comment"},
        {HEADER "0\t0\t5\t1\n0\t0\t6 \t1\n", "line 3: column 4"},
        {HEADER "0\t0\t-5\t1\n", "column 3"},
        {HEADER "0\t65536\t5\t1\n", "column 2 is no number from 0 to 65535"},
        {HEADER "0\t0\t2147483648\t1\n", "column 3"},
        {HEADER "0\t0\t5\t4294967296\n", "column 4 is no number from 0 to 4294967295"},
        {HEADER "0\t0\t5\t0x1\n", "expected 4 columns"},
        {HEADER "0\t0\t5\t1.5\n", "expected 4 columns"},
        {HEADER "0\t0\t5\t1\n0\t0\t5\t2\n", "line 3: layer 0, expert 0, token id 5 is counted twice"},
        {HEADER "0\t0\t5\t0\n", "all counts are 0"},
        {HEADER "0\t0\t5\t1\n7\t0\t5\t2\n", "token id 5 has 2 counts in layer 7 but 1 in layer 0"},
        {HEADER "0\t0\t5\t1\n7\t0\t6\t1\n", "in layer 7"},
        {HEADER "0\t65535\t5\t1\n", "too many for"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cot_trace trace;
        cot_error error = {0};
        assert_refused(import_text(pad, &trace, cases[i].text, 0, 0, &error), &error, cases[i].words);
        assert_null(trace.owner);
    }
}

/* Row by row: the cells hold the table's counts and, in sum, nothing else. */
static void check_real(const char *name, int E, int K)
{
    char path[512];
    snprintf(path, sizeof path, "%s/data/routing/%s", COT_SHARED, name);
    if (access(path, R_OK)) {
        print_message("SKIPPED: no '%s'\n", path);
        skip();
    }
    cot_trace trace;
    cot_error error = {0};
    if (cot_trace_import(&trace, path, NULL, &error) != COT_OK) fail_msg("%s", error.message);
    const int32_t layers[] = {0, 7, 15};
    assert_int_equal(trace.n_experts, E);
    assert_int_equal(trace.top_k, K);
    assert_int_equal(trace.n_layers, 3);
    assert_memory_equal(trace.layers, layers, sizeof layers);
    FILE *file = fopen(path, "r");
    int layer, expert, id;
    unsigned count, wrong = 0;
    uint64_t total[3] = {0};
    assert_int_equal(fscanf(file, "layer expert token_id count"), 0);
    while (fscanf(file, "%d %d %d %u", &layer, &expert, &id, &count) == 4) {
        int l = layer == 0 ? 0 : layer == 7 ? 1 : 2;
        int64_t low = 0, high = trace.n_tokens - 1;
        while (low < high) {
            int64_t middle = (low + high) / 2;
            if (trace.token_ids[middle] < id)
                low = middle + 1;
            else
                high = middle;
        }
        wrong += trace.token_ids[low] != id || trace.counts[(l * trace.n_tokens + low) * E + expert] != count;
        total[l] += count;
    }
    fclose(file);
    assert_int_equal(wrong, 0);
    uint64_t *load = malloc((size_t)E * sizeof *load);
    for (int l = 0; l < 3; l++) {
        uint64_t sum = 0;
        cot_trace_load(load, &trace, l);
        for (int e = 0; e < E; e++) sum += load[e];
        assert_int_equal(sum, total[l]);
        assert_int_equal(sum, 208896 * K);
    }
    free(load);
    cot_trace_close(&trace);
}

static void test_real(void **state)
{
    (void)state;
    check_real("olmoe/token_expert.book.tsv", 64, 8);
    check_real("olmoe/token_expert.github.tsv", 64, 8);
    check_real("mixtral-8x7b/token_expert.book.tsv", 8, 2);
    check_real("mixtral-8x7b/token_expert.c4.tsv", 8, 2);
    check_real("mixtral-8x7b/token_expert.github.tsv", 8, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generated),
        cmocka_unit_test(test_derived),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_real),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
