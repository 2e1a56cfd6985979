/* `coterie group` and `coterie predict`, run as a user runs them. */
#include "harness/cli/capture.h"
#include "harness/cmocka.h"
#include "harness/predict/samples.h"

#include "coterie/trace.h"

#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static capture c;

static void run_line(scratch_pad *pad, const char *line)
{
    char all[4096];
    snprintf(all, sizeof all, "cd %s && %s", pad->path, line);
    capture_shell(&c, all);
}

/* What the command prints with --json, an array. */
static json_t *run_json(scratch_pad *pad, const char *line)
{
    char all[2048];
    snprintf(all, sizeof all, "%s --json >out.json", line);
    run_line(pad, all);
    if (c.status) fail_msg("%s: %s", line, c.err);
    json_t *list = json_load_file(in_scratch(pad, "out.json"), 0, NULL);
    assert_true(json_is_array(list));
    return list;
}

static double real(const json_t *o, const char *key)
{
    const json_t *value = json_object_get(o, key);
    if (!json_is_number(value)) fail_msg("no number '%s'", key);
    return json_number_value(value);
}

static const json_t *method(const json_t *list, const char *name)
{
    size_t i;
    json_t *row;
    json_array_foreach(list, i,
                       row) if (!strcmp(json_string_value(json_object_get(row, "method")), name)) return row;
    fail_msg("no method '%s'", name);
    return NULL;
}

/* One clear line besides notes and warnings, and a status that says so. */
static void refuse(scratch_pad *pad, const char *line, const char *words)
{
    run_line(pad, line);
    if (!c.status || c.status > 2) fail_msg("%s: status %d", line, c.status);
    if (!strstr(c.err, words)) fail_msg("%s: '%s' lacks '%s'", line, c.err, words);
    const char *end = strchr(strstr(c.err, words), '\n');
    if (!end || end[1]) fail_msg("%s: more than a line: %s", line, c.err);
}

static void write_trace(scratch_pad *pad, const char *name, const cot_trace *trace)
{
    cot_error error;
    if (cot_trace_write(trace, in_scratch(pad, name), &error) != COT_OK) fail_msg("%s", error.message);
}

static void write_sample(scratch_pad *pad, const char *name, const sample_shape *shape)
{
    cot_trace trace = sample_trace(pad, shape);
    write_trace(pad, name, &trace);
    cot_trace_close(&trace);
}

#define GROUP "\"$coterie\" group "
#define PREDICT "\"$coterie\" predict --evaluate "
enum { T = 3000 };

/* The groups that are written are those that are measured, and tables test only what they have not learnt. */
static void test_round(void **state)
{
    scratch_pad *pad = *state;
    json_t *groups = run_json(pad, GROUP "a.st --ranks 3 --iterations 2 --tables t.st --placement p.json");
    json_t *tables = run_json(pad, PREDICT "a.st --tables t.st --placement p.json --resamples 20");
    const json_t *group = json_array_get(groups, 0), *table = method(tables, "token-table");
    assert_int_equal(json_array_size(groups), 1);
    // ids that are unknown have no group
    assert_true(fabs(real(group, "lar_train") - real(table, "lar_known_train")) < 1e-9);
    assert_true(real(group, "lar_train") <= real(group, "lar_bound") + 1e-9);
    assert_true(fabs(real(group, "lar_test") - real(table, "lar_test")) < 1e-9);
    assert_true(real(group, "token_imbalance_train") <= 1.1 + 0.05);
    assert_int_equal((int)(real(table, "tokens_train") + real(table, "tokens_test")), T);
    assert_true(real(table, "tokens_train") > 0 && real(table, "tokens_test") > 0);
    const char *const methods[] = {"global", "device-sequence", "algorithm-2", "context-prefill",
                                   "context-decode"};
    for (int i = 0; i < 5; i++) {
        const json_t *row = method(tables, methods[i]);
        assert_true(real(row, "lar_test") <= real(row, "oracle_lar_test") + 1e-9);
        assert_int_equal(json_array_size(json_object_get(row, "layers")), 4);
        const json_t *interval = json_object_get(row, "lar_test_ci");
        assert_true(json_number_value(json_array_get(interval, 0)) <=
                    json_number_value(json_array_get(interval, 1)));
    }
    json_decref(tables);
    tables = run_json(pad, PREDICT "b.st --tables t.st --resamples 0"); // another text: all of it is test
    assert_int_equal((int)real(method(tables, "context-decode"), "tokens_test"), T);
    assert_true(json_is_null(json_object_get(method(tables, "context-decode"), "lar_train")));
    json_decref(tables);
    json_t *again = run_json(pad, GROUP "a.st --ranks 3 --iterations 2"); // iterations repeat a result
    assert_true(real(json_array_get(again, 0), "lar_train") == real(group, "lar_train"));
    assert_true(real(json_array_get(again, 0), "lar_test") == real(group, "lar_test"));
    json_decref(again);
    json_decref(groups);
}

/* Without tables, several numbers of ranks, sequences or counts. */
/* Beside a table of even load stands one that has the groups alone, learnt from the same sequences. */
static void test_unbalanced(void **state)
{
    scratch_pad *pad = *state;
    static const char *const keys[] = {"lar_train", "lar_test", "home_peak_test", "recall_at_k_test"};
    json_decref(
        run_json(pad, GROUP "a.st --ranks 3 --seed 5 --iterations 2 --tables u_t.st --placement u_p.json"));
    json_t *tables = run_json(pad, PREDICT "a.st --tables u_t.st --resamples 0"),
           *alone = run_json(pad, PREDICT "a.st --placement u_p.json --seed 5 --resamples 0");
    const json_t *table = method(tables, "token-table"), *unbalanced = method(tables, "unbalanced-table");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        assert_true(real(unbalanced, keys[i]) == real(method(alone, "token-table"), keys[i]));
    assert_true(real(unbalanced, "lar_train") > real(table, "lar_train"));
    assert_true(real(unbalanced, "token_imbalance_train") > real(table, "token_imbalance_train"));
    json_decref(tables);
    json_decref(alone);
    run_line(pad, PREDICT "a.st --tables u_t.st --resamples 0");
    assert_non_null(strstr(c.out, "gap in LAR from token-table to the oracle"));
    assert_non_null(strstr(c.out, "gap in LAR from unbalanced-table"));
    run_line(pad, PREDICT "b.st --tables u_t.st --resamples 0"); // not the sequences that they learnt from
    assert_null(strstr(c.out, "unbalanced-table"));
}

static void test_kinds(void **state)
{
    scratch_pad *pad = *state;
    json_t *list =
        run_json(pad, PREDICT "a.st --ranks 2,5 --split 0.5 --seed 3 --row-bytes 100 --resamples 10");
    assert_int_equal(json_array_size(list), 2 * COT_PREDICT_METHODS);
    const json_t *own = method(list, "context-prefill");
    assert_true(fabs(real(own, "bytes_test") - 200 * real(own, "remote_ranks_test")) < 1e-6);
    assert_true(real(own, "recall_at_k_test") > real(method(list, "global"), "recall_at_k_test"));
    json_decref(list);
    list = run_json(pad, GROUP "c.st --ranks 4 --iterations 1 --tables c_t.st --placement c_p.json");
    assert_true(json_is_null(json_object_get(json_array_get(list, 0), "lar_test")));
    json_decref(list);
    list = run_json(pad, PREDICT "d.st --tables c_t.st --placement c_p.json");
    assert_true(real(method(list, "token-table"), "lar_test") > 0.25);
    assert_int_equal((int)real(method(list, "token-table"), "tokens_test"), T);
    assert_true(json_is_null(json_object_get(method(list, "token-table"), "oracle_lar_test")));
    json_decref(list);
    list = run_json(pad, PREDICT "c.st --tables t.st"); // tables of sequences: what does not look back
    assert_int_equal(json_array_size(list), 2);
    json_decref(list);
    list = run_json(pad, GROUP "anonymous.st --ranks 4 --iterations 1"); // by position
    assert_true(real(json_array_get(list, 0), "lar_train") > 0.25);
    assert_true(
        json_is_null(json_object_get(json_array_get(list, 0), "home_peak_test"))); // there, but not known
    const json_t *layers = json_object_get(json_array_get(list, 0), "layers");
    assert_int_equal(json_array_size(layers), 4);
    assert_true(real(json_array_get(layers, 3), "lar_train") <= real(json_array_get(layers, 3), "lar_bound"));
    assert_int_equal((int)real(json_array_get(layers, 3), "layer"), 7);
    assert_non_null(strstr(c.err, "positions"));
    json_decref(list);
    list = run_json(pad, PREDICT "anonymous.st --ranks 4");
    assert_true(real(method(list, "device-sequence"), "recall_at_k_test") > 0);
    json_decref(list);
    list = run_json(pad, GROUP "a.st --ranks 4 --iterations 1 --nodes 2 --link-cost 1,4");
    assert_true(real(json_array_get(list, 0), "link_cost") <= 4);
    layers = json_object_get(json_array_get(list, 0), "layers"); // over nodes no bound is known
    assert_true(json_is_null(json_object_get(json_array_get(layers, 0), "expert_peak_bound")));
    json_decref(list);
    list = run_json(pad, GROUP
                    "a.st --ranks 4 --iterations 1 --joint --topology complete:ranks=4 --expert-load 1.1");
    assert_true(real(json_array_get(list, 0), "distance") <=
                real(json_array_get(list, 0), "distance_before") + 1e-9);
    json_decref(list);
    list = run_json(pad, GROUP "a.st --ranks 4 --iterations 1 --method all");
    assert_true(json_array_size(list) >= 6);
    json_decref(list);
}

/* On routing that nothing foretells the tools say that no gain is proven. */
static void test_control(void **state)
{
    scratch_pad *pad = *state;
    run_line(pad, GROUP "uniform.st --ranks 4 --iterations 1");
    assert_int_equal(c.status, 0);
    assert_non_null(strstr(c.out, "no gain is proven"));
    static const int ranks[] = {1, 4, 5, 7}; // of 12 experts: groups of one size, and of two
    for (int i = 0; i < 4; i++) {
        char line[256];
        snprintf(line, sizeof line, PREDICT "uniform.st --ranks %d", ranks[i]);
        run_line(pad, line);
        assert_int_equal(c.status, 0);
        for (int m = 0; m < COT_PREDICT_METHODS; m++) {
            snprintf(line, sizeof line, "%s@%d: no gain is proven", cot_predict_method_names[m], ranks[i]);
            if (!strstr(c.out, line)) fail_msg("without '%s':\n%s", line, c.out);
        }
    }
    run_line(pad, PREDICT "uniform.st --ranks 5 --resamples 0");
    assert_non_null(strstr(c.out, "context-decode@5: no gain is proven"));
    run_line(pad, GROUP "uniform.st --ranks 5 --iterations 1");
    assert_non_null(strstr(c.out, "no gain is proven"));
    run_line(pad, PREDICT "a.st --ranks 4 --plot page.html");
    assert_int_equal(c.status, 0);
    assert_null(strstr(c.out, "context-decode@4: no gain is proven"));
    run_line(pad, "grep -c '<svg' page.html");
    assert_string_equal(c.out, "6\n");
}

/* Tables that say they are of this trace, but of fewer sequences. */
static void write_fewer(scratch_pad *pad, const char *from, const char *to)
{
    enum { LESS = 30 };
    char *at;
    FILE *f = fopen(in_scratch(pad, from), "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    const long size = ftell(f);
    char *bytes = malloc((size_t)size);
    assert_non_null(bytes);
    rewind(f);
    assert_int_equal(fread(bytes, 1, (size_t)size, f), size);
    assert_int_equal(fclose(f), 0);
    assert_non_null(at = memmem(bytes, 4096, "\"sequences\":\"40\"", 16));
    at[13] = '1';
    assert_non_null(at = memmem(bytes, 4096, "\"chosen\":", 9));
    assert_non_null(at = memmem(at, 200, "[40]", 4));
    at[1] = '1';
    assert_non_null(at = memmem(at, 200, "\"data_offsets\":[", 16));
    at = strchr(at, ',') + 1; // it is the file's last tensor
    char end[24];
    const int digits = (int)strcspn(at, "]");
    assert_int_equal(snprintf(end, sizeof end, "%0*ld", digits, atol(at) - LESS), digits);
    if (*end == '0') memmove(end, end + 1, sizeof end - 1); // numbers have no leading zero
    memcpy(at, "                        ", (size_t)digits);
    memcpy(at, end, strlen(end));
    assert_non_null(f = fopen(in_scratch(pad, to), "wb"));
    assert_int_equal(fwrite(bytes, 1, (size_t)(size - LESS), f), size - LESS);
    assert_int_equal(fclose(f), 0);
    free(bytes);
}

static void test_refusals(void **state)
{
    scratch_pad *pad = *state;
    write_fewer(pad, "t.st", "fewer.st");
    refuse(pad, PREDICT "a.st --tables fewer.st", "of 10 sequences, the trace has 40");
    refuse(pad, "\"$coterie\" predict", "no trace given: TRACE");
    refuse(pad, "\"$coterie\" predict a.st --evaluate a.st", "give one of them");
    refuse(pad, PREDICT "none.st", "none.st");
    refuse(pad, GROUP "a.st --ranks 13", "13 ranks");
    refuse(pad, PREDICT "a.st --ranks 13", "13 ranks");
    refuse(pad, PREDICT "a.st --ranks 2,x", "--ranks '2,x'");
    refuse(pad, GROUP "a.st --split 0", "training split is empty");
    refuse(pad, PREDICT "a.st --split 0.0001", "training split is empty");
    refuse(pad, GROUP "a.st --method metix", "--method 'metix'");
    refuse(pad, GROUP "a.st --method ce,metis --tables x.st", "several");
    refuse(pad, GROUP "a.st --ranks 4 --nodes 3", "3 nodes do not divide 4 ranks");
    refuse(pad, GROUP "a.st --ranks 4 --nodes 2 --shrink 4", "--shrink goes neither");
    refuse(pad, GROUP "a.st --ranks 4 --joint --shrink 4", "--shrink goes neither");
    refuse(pad, GROUP "a.st --shrink -1", "--shrink");
    refuse(pad, GROUP "a.st --ranks 4 --nodes 2 --link-cost 2,1", "--link-cost '2,1'");
    refuse(pad, GROUP "a.st --ranks 4 --topology complete:ranks=5", "5 ranks");
    refuse(pad, GROUP "a.st --iterations 1 --tables no/such.st", "no/such.st");
    refuse(pad, PREDICT "c.st", "counts have no sequences");
    // Of plots that cannot be made the reason is told, once, and no page is left.
    refuse(pad, PREDICT "one.st --tables t.st --plot one.html",
           "the training split is empty: 0.25 of 1 sequences");
    run_line(pad, "test ! -e one.html");
    assert_int_equal(c.status, 0);
    refuse(pad, PREDICT "a.st --tables t.st --plot no/page.html", "no/page.html");
    refuse(pad, PREDICT "a.st --tables t.st --plot /dev/full", "/dev/full");
    refuse(pad, PREDICT "a.st --tables t.st --ranks 4", "--ranks");
    refuse(pad, PREDICT "a.st --tables a.st", "a.st");
    refuse(pad, PREDICT "wide.st --tables t.st", "the trace has");
    refuse(pad, PREDICT "a.st --tables t.st --placement c_p.json", "other groups");
    refuse(pad, PREDICT "a.st --placement wide.json", "wide.json");
    run_line(pad, GROUP "a.st --iterations 1 --split 1 --tables all.st");
    assert_int_equal(c.status, 0);
    refuse(pad, PREDICT "a.st --tables all.st", "all of this very trace");
    refuse(pad, PREDICT "a.st --embeddings '" COT_SOURCE "/models/nowhere'", "nowhere");
    refuse(pad, PREDICT "far.st --embeddings '" COT_SOURCE "/models/tiny'", "beyond the vocabulary");
    refuse(pad, PREDICT "a.st --tokenizer '" COT_SOURCE "/models/tiny'", "no token strings");
    refuse(pad, PREDICT "a.st --tables t.st --isa sse9", "no instruction set 'sse9'");
    run_line(pad, GROUP "warm.st --iterations 1");
    assert_int_equal(c.status, 0);
    assert_non_null(strstr(c.err, "constant rows"));
    run_line(pad, GROUP "single.st --ranks 2 --iterations 1");
    assert_int_equal(c.status, 0);
    assert_non_null(strstr(c.err, "single token id"));
}

/* Ids of a tokenizer in place of strings, and the nearest known embedding for ids that were never seen. */
static void test_vocabulary(void **state)
{
    scratch_pad *pad = *state;
    json_t *list =
        run_json(pad, PREDICT "strings.st --tokenizer '" COT_SOURCE "/models/tiny' --ranks 2 --resamples 0");
    json_t *same = run_json(pad, PREDICT "strings.st --ranks 2 --resamples 0");
    assert_true(fabs(real(method(list, "token-table"), "lar_test") -
                     real(method(same, "token-table"), "lar_test")) < 1e-9);
    json_decref(list);
    json_decref(same);
    // Strings, not the numbers that a trace gives them, say what a token is: in counts too.
    run_line(pad,
             "\"$coterie\" trace convert strings.st --counts -o strings_c.st && \"$coterie\" trace convert "
             "turned.st --counts -o turned_c.st && \"$coterie\" group strings.st --ranks 2 --iterations 1 "
             "--split 1 --tables strings_t.st");
    assert_int_equal(c.status, 0);
    list = run_json(pad, PREDICT "strings_c.st --tables strings_t.st");
    same = run_json(pad, PREDICT "turned_c.st --tables strings_t.st");
    assert_true(fabs(real(method(list, "token-table"), "lar_test") -
                     real(method(same, "token-table"), "lar_test")) < 1e-9);
    json_decref(list);
    json_decref(same);
    list = run_json(pad, PREDICT "a.st --ranks 4 --split 0.1 --resamples 0");
    same = run_json(pad, PREDICT "a.st --ranks 4 --split 0.1 --resamples 0 --embeddings '" COT_SOURCE
                                 "/models/tiny'");
    assert_true(real(method(same, "token-table"), "unknown_test") <=
                real(method(list, "token-table"), "unknown_test"));
    json_decref(list);
    json_decref(same);
}

/* Texts whose tokens are known by strings of the shipped vocabulary. */
static void write_strings(scratch_pad *pad)
{
    static const char strings[] = " the of and";
    static const int64_t offsets[] = {0, 4, 7, 11};
    const sample_shape shape = {4, 12, 3, 20, 600, 3, true};
    cot_trace trace = sample_trace(pad, &shape), named = trace;
    int32_t ids[600];
    for (int t = 0; t < 600; t++) ids[t] = trace.token_ids[t] < 0 ? 0 : trace.token_ids[t] / 3;
    named.token_ids = ids;
    named.n_strings = 3;
    named.string_offsets = offsets;
    named.strings = strings;
    write_trace(pad, "strings.st", &named);
    static const char turned[] = " and of the"; // the same tokens, numbered the other way round
    static const int64_t turned_offsets[] = {0, 4, 7, 11};
    for (int t = 0; t < 600; t++) ids[t] = 2 - ids[t];
    named.string_offsets = turned_offsets;
    named.strings = turned;
    write_trace(pad, "turned.st", &named);
    cot_trace_close(&trace);
}

static int set_up(void **state)
{
    const sample_shape plain = {4, 12, 3, 40, T, 60, true}, wide = {4, 14, 3, 10, 200, 20, true},
                       anonymous = {4, 12, 3, 40, 800, 0, true}, uniform = {4, 12, 3, 40, T, 60, false},
                       single = {4, 12, 3, 20, 300, 1, true}, one = {4, 12, 3, 1, 50, 60, true};
    assert_int_equal(scratch_open(state), 0);
    scratch_pad *pad = *state;
    assert_int_equal(setenv("coterie", capture_program(), 1), 0);
    write_sample(pad, "a.st", &plain);
    write_sample(pad, "b.st", &plain);
    write_sample(pad, "one.st", &one);
    write_sample(pad, "wide.st", &wide);
    write_sample(pad, "anonymous.st", &anonymous);
    write_sample(pad, "uniform.st", &uniform);
    write_sample(pad, "single.st", &single);
    cot_trace trace = sample_trace(pad, &plain), counts;
    assert_int_equal(cot_trace_count(&counts, &trace, NULL), COT_OK);
    write_trace(pad, "c.st", &counts);
    cot_trace_close(&counts);
    ((int32_t *)(uintptr_t)trace.token_ids)[5] = 1 << 20;
    write_trace(pad, "far.st", &trace);
    for (int l = 0; l < 4; l++)
        for (int i = 0; i < 40 * 3; i++)
            ((uint8_t *)(uintptr_t)trace.experts_u8)[l * T * 3 + i] = (uint8_t)(i % 3);
    write_trace(pad, "warm.st", &trace);
    cot_trace_close(&trace);
    trace = sample_trace(pad, &plain);
    assert_int_equal(cot_trace_count(&counts, &trace, NULL), COT_OK);
    write_trace(pad, "d.st", &counts);
    cot_trace_close(&counts);
    cot_trace_close(&trace);
    write_strings(pad);
    run_line(pad, GROUP "wide.st --iterations 1 --placement wide.json");
    return c.status;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_round),    cmocka_unit_test(test_unbalanced),
                                       cmocka_unit_test(test_kinds),    cmocka_unit_test(test_control),
                                       cmocka_unit_test(test_refusals), cmocka_unit_test(test_vocabulary)};
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
