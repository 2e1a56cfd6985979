/* `coterie trace info` and `coterie trace convert`, run as a user runs them. */
#include "harness/cli/capture.h"
#include "harness/placement/samples.h"
#include "harness/scratch.h"

#include "coterie/trace.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static capture c;

/* Runs a command line in the scratch folder. */
static void run_line(scratch_pad *pad, const char *line)
{
    char all[1024];
    snprintf(all, sizeof all, "cd %s && %s", pad->path, line);
    capture_shell(&c, all);
}

static void put_table(scratch_pad *pad)
{
    put_text(pad, "t.tsv",
             "layer\texpert\ttoken_id\tcount\n3\t0\t7\t2\n3\t1\t7\t1\n3\t3\t7\t1\n3\t0\t9\t1\n3\t2\t9\t1\n");
}

/* Two documents of 2 tokens and 1, one layer, experts 0 to 63. */
static void put_documents(scratch_pad *pad)
{
    mkdir(in_scratch(pad, "docs"), 0777);
    put_text(pad, "docs/expert_weights_5.txt",
             "0\t1\t2\t3\t4\t5\t58\t59\t60\t61\t62\t63\t\t.1\t.1\t.1\t.1\t.1\t.1\t.1\t.1\t.1\t.1\t.1\t.1\n"
             "0\t1\t2\t3\t32\t63\t\t.1\t.1\t.1\t.1\t.1\t.1\n");
}

static void test_convert_and_info(void **state)
{
    scratch_pad *pad = *state;
    put_documents(pad);
    run_line(pad, "\"$coterie\" trace convert docs -o d.safetensors");
    assert_int_equal(c.status, 0);
    assert_string_equal(c.out, "");
    assert_non_null(strstr(c.err, "coterie: note: 6 experts a token\n"));
    assert_non_null(strstr(c.err, "coterie: warning: 3 of 3 tokens have an unknown id\n"));
    assert_null(strchr(c.err, '\r')); // no bar off a terminal
    run_line(pad, "\"$coterie\" trace info d.safetensors --json");
    assert_int_equal(c.status, 0);
    json_t *o = json_loads(c.out, 0, NULL), *all = json_object_get(o, "overall");
    assert_int_equal(json_integer_value(json_object_get(o, "tokens")), 3);
    assert_int_equal(json_integer_value(json_object_get(o, "sequences")), 2);
    assert_int_equal(json_integer_value(json_object_get(o, "unknown_ids")), 3);
    assert_int_equal(json_integer_value(json_object_get(o, "experts")), 64);
    assert_int_equal(
        json_integer_value(json_object_get(json_array_get(json_object_get(o, "layers"), 0), "layer")), 5);
    // at 2 ranks the first document is all local; the second's token is home on rank 1 (floor(1/2) = 0), 2 of
    // 6 local
    assert_true(fabs(json_real_value(json_object_get(json_object_get(all, "lar"), "2")) - 14.0 / 18) < 1e-8);
    assert_true(fabs(json_real_value(json_object_get(json_object_get(all, "remote_ranks"), "2")) - 1.0 / 3) <
                1e-8);
    assert_int_equal(json_integer_value(json_object_get(all, "unused_experts")), 64 - 13);
    assert_int_equal(json_array_size(json_object_get(o, "warnings")), 2);
    json_decref(o);
    run_line(pad, "\"$coterie\" trace info d.safetensors");
    assert_int_equal(c.status, 0);
    assert_non_null(strstr(c.out, "sequences   2\n"));
    assert_non_null(strstr(c.out, "0.7778  0.333"));
    assert_non_null(strstr(c.err, "warning: 51 (layer, expert) pairs are never used, in layers 5\n"));
}

static void test_counts(void **state)
{
    scratch_pad *pad = *state;
    put_table(pad);
    run_line(pad, "\"$coterie\" trace convert t.tsv --model mine --experts 8 -o t.safetensors && "
                  "\"$coterie\" trace info t.safetensors");
    assert_int_equal(c.status, 0);
    assert_non_null(strstr(c.out, "model       mine\n"));
    assert_non_null(strstr(c.out, "experts     2 of 8 a token\n"));
    assert_non_null(strstr(c.out, "tokens      3\n"));
    assert_non_null(strstr(c.out, "LAR is not defined for counts"));
    run_line(pad, "\"$coterie\" trace info t.safetensors --json");
    json_t *o = json_loads(c.out, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(o, "kind")), "counts");
    assert_true(json_is_null(json_object_get(o, "sequences")));
    assert_null(json_object_get(json_object_get(o, "overall"), "lar"));
    assert_int_equal(json_integer_value(json_object_get(o, "token_ids")), 2);
    json_decref(o);
    // counts of counts are the same file; a trace converted onto itself survives
    run_line(
        pad,
        "\"$coterie\" trace convert t.safetensors --counts -o u.safetensors 2>&1 && cmp t.safetensors "
        "u.safetensors && "
        "\"$coterie\" trace convert u.safetensors -o u.safetensors 2>&1 && cmp t.safetensors u.safetensors");
    assert_int_equal(c.status, 0);
    put_documents(pad);
    run_line(pad, "\"$coterie\" trace convert docs --counts -o c.safetensors 2>&1 && \"$coterie\" trace info "
                  "c.safetensors --json");
    assert_int_equal(c.status, 0);
    o = json_loads(strchr(c.out, '{'), 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(o, "tokens")), 3);
    assert_int_equal(json_integer_value(json_object_get(o, "unknown_ids")), 1);
    json_decref(o);
}

static void test_refusals(void **state)
{
    scratch_pad *pad = *state;
    static const struct {
        const char *line;
        int status;
        const char *words;
    } cases[] = {
        {"trace info", 2, "FILE"},
        {"trace convert t.tsv", 2, "no output given"},
        {"trace convert t.tsv -o x --top-k 0", 2, "--top-k"},
        {"trace convert t.tsv -o x --experts 65537", 2, "--experts"},
        {"trace convert t.tsv -o x --experts 3", 1, "names expert 3"},
        {"trace convert t.tsv -o x --from csv", 1, "unknown format 'csv'"},
        {"trace convert t.tsv -o x --from trace", 1, "t.tsv"},
        {"trace convert t.tsv -o no/such/x", 1, "no/such/x"},
        {"trace convert t.tsv -o /dev/full", 1, "/dev/full"},
        {"trace convert absent -o x", 1, "absent"},
        {"trace convert . -o x", 1, "neither ids.u8 nor"},
        {"trace info .", 1, "neither ids.u8 nor"},
        {"trace info \"" SAMPLES "sglang-stat.pt\"", 1, "place --load reads counts"},
        {"trace", 2, "'trace info', 'trace convert'"},
    };
    put_table(pad);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[256];
        snprintf(line, sizeof line, "\"$coterie\" %s", cases[i].line);
        run_line(pad, line);
        assert_string_equal(c.out, "");
        assert_int_equal(c.status, cases[i].status);
        if (!strstr(c.err, cases[i].words)) fail_msg("\"%s\" lacks \"%s\"", c.err, cases[i].words);
        assert_int_not_equal(access(in_scratch(pad, "x"), F_OK), 0);
    }
    // every format that the library reads is named in the help
    run_line(pad, "\"$coterie\" trace convert --help");
    for (const cot_trace_format *f = cot_trace_formats; f->name; f++) assert_non_null(strstr(c.out, f->name));
}

/* What can be made a trace is shown, and measured by other commands, without one. */
static void test_other_formats(void **state)
{
    scratch_pad *pad = *state;
    put_table(pad);
    run_line(pad, "\"$coterie\" trace info t.tsv");
    assert_int_equal(c.status, 0);
    assert_non_null(strstr(c.out, "kind        counts"));
    run_line(pad, "\"$coterie\" trace info \"" SAMPLES "sglang-per-token\"");
    assert_int_equal(c.status, 0);
    assert_non_null(strstr(c.out, "tokens      16\n"));
    assert_non_null(strstr(c.out, "layers      3 (2 to 4)\n"));
    assert_non_null(strstr(c.err, "note: 3 layers of 5 have experts; 2 of them a token"));
    run_line(pad, "\"$coterie\" group \"" SAMPLES "sglang-per-token\" --ranks 2 --split 0.5 --json");
    if (c.status) fail_msg("%s", c.err);
    run_line(pad,
             "\"$coterie\" predict --evaluate \"" SAMPLES "sglang-per-token\" --ranks 2 --split 0.5 --json");
    if (c.status) fail_msg("%s", c.err);
    assert_non_null(strstr(c.out, "\"token-table\""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convert_and_info),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_other_formats),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
