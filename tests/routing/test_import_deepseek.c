/* Importing expert_weights_<layer>.txt: against generated text, against the domains' published scores, every
 * refusal. */
#include "harness/refused.h"
#include "harness/scratch.h"

#include "coterie/trace.h"

#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { K = 6 };

static void put_layer(scratch_pad *pad, int layer, const char *text)
{
    char name[64];
    snprintf(name, sizeof name, "d/expert_weights_%d.txt", layer);
    put_text(pad, name, text);
}

static void fresh_folder(scratch_pad *pad)
{
    remove_tree(in_scratch(pad, "d"));
    assert_int_equal(mkdir(in_scratch(pad, "d"), 0777), 0);
}

/* Random documents in layers 2, 10 and 1 (numbers sort as numbers); text in, the same numbers out. */
static void test_generated(void **state)
{
    scratch_pad *pad = *state;
    const int layers[] = {1, 2, 10}, written[] = {10, 1, 2};
    for (int round = 0; round < 6; round++) {
        int documents = 1 + (int)pad_draw(pad, 5), length[5], tokens = 0;
        for (int s = 0; s < documents; s++) tokens += length[s] = 1 + (int)pad_draw(pad, 20);
        static uint16_t expert[3][100][K];
        static int weight[3][100][K];
        fresh_folder(pad);
        for (int w = 0; w < 3; w++) {
            int l = written[w] == 1 ? 0 : written[w] == 2 ? 1 : 2;
            static char text[100 * K * 20];
            size_t used = 0;
            const char *end = round % 2 ? "\r\n" : "\n";
            for (int s = 0, t = 0; s < documents; t += length[s++]) {
                for (int i = 0; i < length[s]; i++) {
                    draw_experts(pad, expert[l][t + i], K, round == 5 ? 400 : 64);
                    for (int k = 0; k < K; k++) {
                        weight[l][t + i][k] = (int)pad_draw(pad, 10001);
                        used += (size_t)sprintf(text + used, "%s%d", i + k ? "\t" : "", expert[l][t + i][k]);
                    }
                }
                used += (size_t)sprintf(text + used, "\t\t");
                for (int i = 0; i < length[s] * K; i++)
                    used += (size_t)sprintf(text + used, round == 4 ? "%s%.4e" : "%s%.4f", i ? "\t" : "",
                                            weight[l][t + i / K][i % K] / 10000.0);
                if (s + 1 < documents || round % 3) used += (size_t)sprintf(text + used, "%s", end);
            }
            put_layer(pad, written[w], text);
        }
        cot_trace trace;
        cot_error error = {0};
        if (cot_trace_import(&trace, in_scratch(pad, "d"), NULL, &error) != COT_OK)
            fail_msg("%s", error.message);
        assert_int_equal(trace.n_layers, 3);
        assert_int_equal(trace.n_sequences, documents);
        assert_int_equal(trace.n_tokens, tokens);
        assert_int_equal(trace.top_k, K);
        assert_string_equal(trace.model, "d");
        int largest = 0;
        for (int l = 0; l < 3; l++) {
            assert_int_equal(trace.layers[l], layers[l]);
            for (int t = 0; t < tokens; t++) {
                assert_int_equal(trace.token_ids[t], -1);
                for (int k = 0; k < K; k++) {
                    float expected = (float)(weight[l][t][k] / 10000.0);
                    assert_int_equal(cot_trace_expert(&trace, l, t, k), expert[l][t][k]);
                    assert_true(fabsf(cot_trace_weight(&trace, l, t, k) - expected) <=
                                expected * 0x1p-11f + 0x1p-25f);
                    if (expert[l][t][k] > largest) largest = expert[l][t][k];
                }
            }
        }
        assert_int_equal(trace.n_experts, largest < 64 ? 64 : largest + 1);
        for (int s = 0, t = 0; s < documents; t += length[s++])
            assert_int_equal(trace.sequence_offsets[s], t);
        cot_trace_close(&trace);
    }
}

static void refuse(scratch_pad *pad, const char *words)
{
    cot_trace trace;
    cot_error error = {0};
    assert_refused(cot_trace_import(&trace, in_scratch(pad, "d"), NULL, &error), &error, words);
    assert_null(trace.owner);
}

static void test_refusals(void **state)
{
    scratch_pad *pad = *state;
#define IDS "1\t2\t3\t4\t5\t6"
#define WEIGHTS "0.1\t0.2\t0.3\t.4\t5e-1\t6E+0"
    static const char good[] = IDS "\t\t" WEIGHTS "\n" IDS "\t" IDS "\t\t" WEIGHTS "\t" WEIGHTS "\n";
    static const struct {
        const char *text, *words;
    } first[] = {
        {"", "holds no documents"},
        {"\n", "no two tabs"},
        {"\t\t\n", "1 ids, no multiple of the 6"},
        {"1\t2\t3\t4\t5\t\t1\t1\t1\t1\t1\n",
         "5 ids, no multiple of the 6 a token has, unless another top-k is given (--top-k)"},
        {IDS " " WEIGHTS "\n", "no two tabs"},
        {IDS "\t\t" WEIGHTS "\t0.5\n", "expected 6 weights"},
        {IDS "\t\t0.1\t0.2\n", "bad at number 3"},
        {"1\t2\t3\tx\t5\t6\t\t" WEIGHTS "\n", "bad at number 4"},
        {"1\t2\t-3\t4\t5\t6\t\t" WEIGHTS "\n", "expected 6 ids"},
        {"1\t2\t65536\t4\t5\t6\t\t" WEIGHTS "\n", "expected 6 ids"},
        {"1\t2\t99999999999999999999\t4\t5\t6\t\t" WEIGHTS "\n", "expected 6 ids"},
        {IDS "\t\tnan\t1\t1\t1\t1\t1\n", "weights"},
        {IDS "\t\tinf\t1\t1\t1\t1\t1\n", "weights"},
        {IDS "\t\t0x1\t1\t1\t1\t1\t1\n", "weights"},
        {IDS "\t\t1e\t1\t1\t1\t1\t1\n", "weights"},
        {IDS "\t\t.\t1\t1\t1\t1\t1\n", "weights"},
        {IDS "\t\t1e999\t1\t1\t1\t1\t1\n", "weights"},
        {IDS "\t\t1e5\t1\t1\t1\t1\t1\n", "not finite"}, // no float16
        {IDS "\t\t1\t1\t1\t1\t1\t1 \n", "weights"},
        {IDS "\t\t1\t1\t1\t1\t1", "weights"},
    };
    for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
        fresh_folder(pad);
        put_layer(pad, 1, first[i].text);
        refuse(pad, first[i].words);
    }
    static const struct {
        const char *text, *words;
    } second[] = {
        {IDS "\t\t" WEIGHTS "\n", "has 1 documents, the first layer 2"},
        {IDS "\t\t" WEIGHTS "\n" IDS "\t\t" WEIGHTS "\n",
         "expected 12 ids as in the first layer, bad at number 7"},
        {IDS "\t" IDS "\t\t" WEIGHTS "\t" WEIGHTS "\n" IDS "\t\t" WEIGHTS "\n",
         "expected 6 ids as in the first layer"},
        {IDS "\t\t" WEIGHTS "\n" IDS "\t" IDS "\t\t" WEIGHTS "\t" WEIGHTS "\n\n",
         "more than the 2 documents"},
        {"", "has 0 documents"},
    };
    for (size_t i = 0; i < sizeof second / sizeof *second; i++) {
        fresh_folder(pad);
        put_layer(pad, 3, good);
        put_layer(pad, 20, second[i].text);
        refuse(pad, second[i].words);
    }
    fresh_folder(pad);
    put_layer(pad, 3, good);
    put_text(pad, "d/expert_weights_03.txt", good);
    refuse(pad, "two files of layer 3");
    fresh_folder(pad);
    put_text(pad, "d/expert_weights_.txt", good);
    put_text(pad, "d/expert_weights_1.txt.bak", good);
    refuse(pad, "neither ids.u8 nor expert_weights_<layer>.txt");
}

static void test_options(void **state)
{
    scratch_pad *pad = *state;
    cot_trace trace;
    cot_error error = {0};
    cot_trace_import_options o = {
        .size = sizeof o, .say = hear, .context = pad, .top_k = 2, .model = "other"};
    fresh_folder(pad);
    put_layer(pad, 0, IDS "\t\t" WEIGHTS "\n");
    assert_int_equal(cot_trace_import(&trace, in_scratch(pad, "d"), &o, &error), COT_OK);
    assert_string_equal(pad->notes, "2 experts a token\n64 experts a layer, as the format's model has\n");
    assert_string_equal(trace.model, "other");
    assert_int_equal(trace.n_tokens, 3);
    assert_int_equal(trace.top_k, 2);
    cot_trace_close(&trace);
    o.n_experts = 7;
    assert_int_equal(cot_trace_import(&trace, in_scratch(pad, "d"), &o, &error), COT_OK);
    assert_int_equal(trace.n_experts, 7);
    cot_trace_close(&trace);
    o.n_experts = 6;
    assert_refused(cot_trace_import(&trace, in_scratch(pad, "d"), &o, &error), &error, "names expert 6");
    o.n_experts = -1;
    assert_refused(cot_trace_import(&trace, in_scratch(pad, "d"), &o, &error), &error, "-1 experts");
    o.size = 3;
    assert_refused(cot_trace_import(&trace, in_scratch(pad, "d"), &o, &error), &error, "3 bytes");
    o = (cot_trace_import_options){.size = sizeof o, .from = "gptoss"};
    assert_refused(cot_trace_import(&trace, in_scratch(pad, "d"), &o, &error), &error,
                   "unknown format 'gptoss'");
    o.from = "gpt-oss";
    assert_refused(cot_trace_import(&trace, in_scratch(pad, "d"), &o, &error), &error, "ids.u8");
}

/* summary.json: token_scores = count / (6 tokens) to 4 decimals, gate_scores = sum of weights / tokens,
 * likewise. */
static void check_domain(const char *domain, int64_t tokens)
{
    char folder[512], path[600];
    snprintf(folder, sizeof folder, "%s/data/routing/deepseek-v2-lite/expert_scores/%s", COT_SHARED, domain);
    snprintf(path, sizeof path, "%s/summary.json", folder);
    if (access(path, R_OK)) {
        print_message("SKIPPED: no '%s'\n", path);
        skip();
    }
    cot_trace trace;
    cot_error error = {0};
    if (cot_trace_import(&trace, folder, NULL, &error) != COT_OK) fail_msg("%s", error.message);
    assert_int_equal(trace.n_tokens, tokens);
    assert_int_equal(trace.n_layers, 26);
    assert_int_equal(trace.n_experts, 64);
    assert_string_equal(trace.model, "deepseek-v2-lite");
    json_t *summary = json_load_file(path, 0, NULL);
    assert_non_null(summary);
    for (int l = 0; l < 26; l++) {
        char layer[12];
        snprintf(layer, sizeof layer, "%d", l + 1);
        assert_int_equal(trace.layers[l], l + 1);
        uint64_t load[64];
        double sum[64] = {0};
        cot_trace_load(load, &trace, l);
        for (int64_t t = 0; t < tokens; t++)
            for (int k = 0; k < K; k++)
                sum[cot_trace_expert(&trace, l, t, k)] += (double)cot_trace_weight(&trace, l, t, k);
        for (int e = 0; e < 64; e++) {
            char expert[12];
            snprintf(expert, sizeof expert, "%d", e);
            const json_t *score =
                json_object_get(json_object_get(json_object_get(summary, "token_scores"), layer), expert);
            const json_t *gate =
                json_object_get(json_object_get(json_object_get(summary, "gate_scores"), layer), expert);
            assert_true(json_is_number(score) && json_is_number(gate));
            assert_true(fabs((double)load[e] / (double)(K * tokens) - json_number_value(score)) <
                        0.5e-4 + 1e-9);
            // the weights in the text have 4 decimals, float16 keeps 11 bits of them
            assert_true(fabs(sum[e] / (double)tokens - json_number_value(gate)) <
                        0.5e-4 + 0.5e-4 + json_number_value(gate) * 0x1p-12);
        }
    }
    json_decref(summary);
    cot_trace_close(&trace);
}

static void test_scores(void **state)
{
    (void)state;
    check_domain("intent", 8222);
    check_domain("summary", 8479);
    check_domain("law", 8327);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generated),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_scores),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
