/* The program itself: its version, its help, and what it does when nobody can hear it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "harness/cli/capture.h"

#include <jansson.h>

static capture c;

static void test_version(void **state)
{
    (void)state;
    capture_shell(&c, "\"$coterie\" --version");
    assert_string_equal(c.out, "coterie " COT_VERSION "\n");
    assert_string_equal(c.err, "");
    assert_int_equal(c.status, 0);
}

static void test_info(void **state)
{
    (void)state;
    capture_shell(&c,
                  "\"$coterie\" info | grep -cE '^tokenizer   PCRE2 [0-9.]+ with Unicode [0-9.]+, utf8proc "
                  "[0-9.]+ with Unicode [0-9.]+$'");
    assert_string_equal(c.out, "1\n");
}

static void test_info_of_models(void **state)
{
    (void)state;
    capture_shell(&c, "\"$coterie\" info " COT_SOURCE "/models/tiny");
    assert_int_equal(c.status, 0);
    static const char *const lines[] = {
        "architecture  Qwen3MoeForCausalLM\n", "parameters    8.49 M, of which a token uses 2.3 M\n",
        "layers        6, of which 6 have experts: 32 each, 4 a token\n",
        "vocabulary    4096, tokenizer of 4096 tokens\n", "\nint8       int8     bf16       bf16       8 "};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (!strstr(c.out, lines[i])) fail_msg("'%s' is not in: %s", lines[i], c.out);

    // The configuration is enough; the numbers of ranks are as told; a model beyond all memory is described, too.
    capture_shell(&c, "d=$(mktemp -d) && sed 's/\"num_hidden_layers\": 6/\"num_hidden_layers\": 900/;"
                      "s/\"moe_intermediate_size\": [0-9]*/\"moe_intermediate_size\": 1000000/' " COT_SOURCE
                      "/models/tiny/config.json >$d/config.json && \"$coterie\" info $d --ranks 3 --json; "
                      "s=$?; rm -r $d; exit $s");
    assert_int_equal(c.status, 0);
    json_t *o = json_loads(c.out, 0, NULL);
    assert_non_null(o);
    assert_true(json_is_null(json_object_get(o, "tokenizer_tokens")));
    const json_t *sizes = json_object_get(o, "sizes");
    assert_int_equal(json_array_size(sizes), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *row = json_array_get(sizes, i);
        assert_int_equal(json_integer_value(json_object_get(row, "ranks")), 3);
        assert_true(json_is_false(json_object_get(row, "fits")));
    }
    json_decref(o);

    capture_shell(&c, "\"$coterie\" info --json");
    o = json_loads(c.out, 0, NULL);
    assert_true(json_integer_value(json_object_get(o, "cores")) >= 1);
    json_decref(o);
    capture_shell(&c, "\"$coterie\" info --ranks 2");
    assert_int_equal(c.status, 2);
    capture_shell(&c, "\"$coterie\" info /nowhere");
    assert_int_equal(c.status, 1);
    assert_string_equal(c.err, "coterie: cannot open '/nowhere': No such file or directory\n");
    capture_shell(&c, "\"$coterie\" info / ");
    assert_int_equal(c.status, 1);
    assert_string_equal(c.err, "coterie: '/' is no model: there is no config.json in it\n");
}

static json_int_t number_of(const json_t *of, const char *key)
{
    const json_t *number = json_object_get(of, key);
    if (!json_is_integer(number)) fail_msg("'%s' is no integer", key);
    return json_integer_value(number);
}

/* Of layers that have a state in place of keys: what a sequence and a snapshot take is told, and in what is needed those of serve are counted. */
static void test_info_of_states(void **state)
{
    (void)state;
    enum {
        LAYERS = 30,
        TAPS = 4,
        K = 16,
        V = 32,
        DK = 128,
        DV = 128,
        SNAPSHOTS = 32,
        SEQUENCES = 64
    }; // Qwen3.6-35B-A3B's
    static const char model[] =
        "d=$(mktemp -d) && echo '{\"architectures\": [\"Qwen3_5MoeForCausalLM\"], \"eos_token_id\": 0, "
        "\"max_position_embeddings\": 4096}' >$d/config.json && \"$coterie\" info $d %s; s=$?; rm -r $d; "
        "exit "
        "$s";
    char line[512];
    const json_int_t bytes = LAYERS * 4 * ((TAPS - 1) * (2 * K * DK + V * DV) + V * DK * DV);
    snprintf(line, sizeof line, model, "--json");
    capture_shell(&c, line);
    assert_int_equal(c.status, 0);
    json_t *o = json_loads(c.out, 0, NULL);
    assert_non_null(o);
    const json_t *sizes = json_object_get(o, "sizes");
    assert_int_equal(json_array_size(sizes), 12);
    for (size_t i = 0; i < 12; i++) { // heads of states divide among 1, 2, 4 and 8 ranks
        const json_t *row = json_array_get(sizes, i);
        assert_int_equal(number_of(row, "state_bytes"), bytes);
        assert_int_equal(number_of(row, "snapshots"), SNAPSHOTS);
        assert_int_equal(number_of(row, "states_bytes"), (SNAPSHOTS + SEQUENCES) * bytes);
        assert_true(number_of(row, "total_bytes") >
                    number_of(row, "weight_bytes") + number_of(row, "states_bytes"));
    }
    json_decref(o);
    snprintf(line, sizeof line, model, "");
    capture_shell(&c, line);
    assert_int_equal(c.status, 0);
    char told[256];
    snprintf(told, sizeof told,
             "\nstates        %.2f MB a sequence and a snapshot, of which serve has %d (--max-num-seqs) and "
             "%d (--state-snapshots): %.3f GB\n",
             (double)bytes / 1e6, SEQUENCES, SNAPSHOTS, (double)((SEQUENCES + SNAPSHOTS) * bytes) / 1e9);
    if (!strstr(c.out, told)) fail_msg("'%s' is not in: %s", told, c.out);

    capture_shell(&c, "\"$coterie\" info " COT_SOURCE "/models/tiny | grep ^states"); // it has none
    assert_string_equal(c.out, "");
    capture_shell(&c, "\"$coterie\" info " COT_SOURCE "/models/tiny --ranks 1 --json");
    o = json_loads(c.out, 0, NULL);
    const json_t *row = json_array_get(json_object_get(o, "sizes"), 0);
    assert_int_equal(
        number_of(row, "state_bytes") + number_of(row, "snapshots") + number_of(row, "states_bytes"), 0);
    json_decref(o);
}

/* Every command that the overview lists explains itself, with an example. */
static void test_help_of_each(void **state)
{
    (void)state;
    capture_shell(&c, "\"$coterie\" --help");
    assert_int_equal(c.status, 0);
    assert_string_equal(c.err, "");
    assert_true(strstr(c.out, "usage: coterie COMMAND") != NULL);
    capture_shell(
        &c,
        "\"$coterie\" --help | sed -n '/^commands:/,/^$/s/^  \\(.*[^ ]\\)   *.*/\\1/p' | sed 's/   *.*//' |"
        "while read -r name; do"
        "  \"$coterie\" help $name >help.txt && grep -q \"^usage: coterie $name\" help.txt &&"
        "  grep -q '^examples:' help.txt && \"$coterie\" $name --help | cmp - help.txt ||"
        "  echo \"help of '$name' is incomplete\";"
        "done; rm -f help.txt");
    assert_string_equal(c.out, "");
    assert_string_equal(c.err, "");
}

static void test_help_of_families(void **state)
{
    (void)state;
    static const char *const families[][2] = {
        {"topology", "show,distances"},
        {"trace", "info,convert"},
        {"bench", "roof,model,kernels,moe,fabric,pipeline,serve,router,schedule,signature,affinity,drift"}};
    for (size_t i = 0; i < 3; i++) {
        char line[256];
        snprintf(line, sizeof line,
                 "\"$coterie\" %s --help | sed -n 's/^  \\([a-z][a-z]*\\)  .*/\\1/p' | paste -sd,; "
                 "\"$coterie\" %s --help >/dev/null",
                 families[i][0], families[i][0]);
        capture_shell(&c, line);
        c.out[strcspn(c.out, "\n")] = 0;
        assert_string_equal(c.out, families[i][1]);
        assert_string_equal(c.err, "");
        assert_int_equal(c.status, 0);
    }
}

static void test_unwritable_output(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "\"$coterie\" --help >/dev/full",
        "\"$coterie\" --help >&-",
        "{ sleep 0.2; \"$coterie\" --help; echo $? >status; } | true; read s <status; rm status; exit $s",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        capture_shell(&c, lines[i]);
        assert_string_equal(c.out, "");
        assert_int_equal(strncmp(c.err, "coterie: cannot write to standard output: ", 42), 0);
        assert_int_equal(strchr(c.err, '\n') - c.err, strlen(c.err) - 1);
        assert_int_equal(c.status, 1);
    }
}

/* Whatever ranks are, a command says the same: texts, losses, and all counters, which come before the times. */
static void test_fabrics(void **state)
{
    (void)state;
    capture_shell(&c, "\"$coterie\" info | grep '^fabrics  *threads, processes, shmem$'");
    assert_int_equal(c.status, 0);
    static const char told[] =
        "d=$(mktemp -d) && cd $d && trap 'rm -r $d' EXIT; m=" COT_SOURCE "/models/tiny;"
        "echo 'The town was quiet.' >words;"
        "\"$coterie\" run $m -p 'The town was' -n 9 --ranks 3 --stats=s --fabric $fabric &&"
        "\"$coterie\" eval $m --text words --ranks 3 --stats=t --fabric $fabric &&"
        "for f in s t; do sed '/\"prefill_ns\"/,$d' $f; done";
    static char threads[sizeof c.out];
    setenv("fabric", "threads", 1);
    capture_shell(&c, told);
    assert_int_equal(c.status, 0);
    memcpy(threads, c.out, sizeof threads);
    size_t tables = 0;
    for (const char *at = threads; (at = strstr(at, "\"bytes\": [")); at++) tables++;
    assert_int_equal(tables, 2 * 6); // one a phase
    assert_non_null(strstr(threads, "\"decode_tokens\": 8"));
    setenv("fabric", "processes", 1);
    capture_shell(&c, told);
    assert_int_equal(c.status, 0);
    assert_string_equal(c.out, threads);
    capture_shell(&c, "\"$coterie\" run " COT_SOURCE "/models/tiny -p A --fabric nosuch");
    assert_int_equal(c.status, 1);
    assert_string_equal(c.out, "");
    assert_string_equal(c.err, "coterie: unknown fabric 'nosuch' (threads, processes or shmem)\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version),           cmocka_unit_test(test_info),
        cmocka_unit_test(test_info_of_models),    cmocka_unit_test(test_info_of_states),
        cmocka_unit_test(test_help_of_each),      cmocka_unit_test(test_help_of_families),
        cmocka_unit_test(test_unwritable_output), cmocka_unit_test(test_fabrics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
