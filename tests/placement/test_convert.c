/* `coterie place convert`, and the formats of `coterie place`, run as a user runs them. */
#include "harness/cli/capture.h"
#include "harness/cmocka.h"
#include "harness/placement/samples.h"
#include "harness/scratch.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static capture c;

/* Runs a command line in the scratch folder. */
static void run_line(scratch_pad *pad, const char *line)
{
    char all[2048];
    snprintf(all, sizeof all, "cd %s && samples=" SAMPLES " && %s", pad->path, line);
    capture_shell(&c, all);
}

static void test_chain(void **state)
{
    scratch_pad *pad = *state;
    run_line(pad,
             "\"$coterie\" place convert $samples/sglang-map.json --ranks 2 --first-layer 2 --to vllm -o "
             "a.jsonl && "
             "\"$coterie\" place convert a.jsonl --ranks 2 --first-layer 2 --to tensorrt-llm -o b.yaml && "
             "\"$coterie\" place convert b.yaml --ranks 2 --to vllm-ascend -o c.json && "
             "\"$coterie\" place convert c.json --first-layer 2 --to sglang --layers 5 -o d.json && "
             "cmp a.jsonl $samples/vllm-mapping.jsonl && cmp b.yaml $samples/tensorrt.yaml && "
             "tr -d ' \\n' <$samples/sglang-map.json >e.json && tr -d ' \\n' <d.json | cmp - e.json");
    if (c.status) fail_msg("%s%s", c.out, c.err);
    assert_non_null(strstr(c.err, "coterie: note: 2 of 5 rows of 'd.json' have no place in the map"));
}

/* A recording becomes a map of its engine; dense layers stay in SGLang's rows and out of vLLM's. */
static void test_place(void **state)
{
    scratch_pad *pad = *state;
    run_line(pad,
             "\"$coterie\" place --load $samples/sglang-stat.pt --topology complete:ranks=2 --slots 8 --to "
             "sglang -o a.json "
             "--json >figures && grep -c '\\[' a.json && \"$coterie\" place --load $samples/sglang-stat.pt "
             "--topology "
             "complete:ranks=2 --slots 8 --to vllm -o b.jsonl >/dev/null && grep -o '\"[0-9]\":' b.jsonl");
    assert_int_equal(c.status, 0);
    assert_string_equal(c.out,
                        "6\n\"0\":\n\"1\":\n\"2\":\n"); // 5 rows and the line that opens them; 3 MoE layers
    assert_non_null(strstr(c.err, "2 of 5 layers, layer 0 the first, have no load"));
    // A rank's file each, with and without --load, is what their folder is.
    run_line(
        pad,
        "\"$coterie\" place --load $samples/sglang-per-token --ranks 2 -o folder --json >a && "
        "set -- $samples/sglang-per-token/*.pt && test $# -eq 2 && "
        "\"$coterie\" place \"$@\" --ranks 2 -o bare --json >b && "
        "\"$coterie\" place --load \"$1\" \"$2\" --ranks 2 -o mixed --json >c && "
        "cmp folder bare && cmp folder mixed && grep objective a >want && grep objective b | cmp - want && "
        "grep -A9 peak_load a >want && grep -A9 peak_load c | cmp - want");
    if (c.status) fail_msg("%s%s", c.out, c.err);
}

/* Engines whose maps have no empty slots: where a method may give ranks unequal numbers of experts, that is refused before it
 * is solved, with what would do; a map of the same limits is written where ranks may be unequal, or cannot be. */
static void test_unequal_ranks(void **state)
{
    scratch_pad *pad = *state;
    static const struct {
        const char *options;
        int status;
        const char *words;
    } rows[] = {
        // 6 experts
        {"--ranks 2 --method ilpload --to sglang", 0, "start SGLang"},
        {"--ranks 2 --method ilpload --slots 6 --to sglang", 0, "start SGLang"},
        {"--ranks 2 --c-layer 3 --to tensorrt-llm", 0, "start TensorRT-LLM"},
        {"--ranks 2 --c-layer 4 --to sglang", 2,
         "--to sglang needs as many experts on every rank, which ilpload does not give 6 experts on 2 ranks "
         "where "
         "--c-layer lets some have more: --method balance"},
        {"--ranks 2 --c-layer 4 --to omni-infer", 0, ""},
        {"--ranks 4 --method ilpload --to sglang", 2,
         "6 experts on 4 ranks: --method balance fills every slot"},
        {"--ranks 4 --method greedy --to vllm", 2,
         "--to vllm needs as many experts on every rank, which greedy "},
        {"--ranks 4 --method rr --to tensorrt-llm", 2, "--to tensorrt-llm needs"},
        {"--ranks 4 --method ilp --to vllm-ascend", 2, "--to vllm-ascend needs"},
        {"--ranks 4 --method ilpload --to coterie", 0, ""},
        {"--ranks 4 --method balance --to sglang", 0, "--ep-num-redundant-experts 2 "},
        {"--ranks 4 --method eplb --slots 12 --to vllm", 0, "\"num_redundant_experts\": 6"},
        {"--ranks 4 --method none --to vllm", 1, "'none' is no placement method"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char line[512];
        snprintf(line, sizeof line, "rm -f no; \"$coterie\" place --load $samples/sglang-per-token -o no %s",
                 rows[i].options);
        run_line(pad, line);
        if (c.status != rows[i].status || !strstr(c.err, rows[i].words))
            fail_msg("%s: %d, %s", rows[i].options, c.status, c.err);
        assert_int_equal(c.out[0] != 0, c.status == 0);
        assert_int_equal(access(in_scratch(pad, "no"), F_OK), c.status ? -1 : 0);
    }
    // What no method made is refused while it is written.
    run_line(pad,
             "\"$coterie\" place --load $samples/sglang-per-token --ranks 4 --method ilpload -o uneven && "
             "\"$coterie\" place convert uneven --to sglang -o no");
    assert_int_equal(c.status, 1);
    assert_non_null(strstr(c.err, "the format needs the same number"));
}

/* Rows without layer numbers, fewer than the model has layers, are the model's first ones if that is said, and never else. */
static void test_first_layer(void **state)
{
    scratch_pad *pad = *state;
    static const char load
        [] = "echo '{\"logical_count\": [[1, 2, 3, 4], [4, 3, 2, 1]]}' >load.json && \"$coterie\" place "
             "--load load.json --ranks 2 --to sglang -o a.json >figures --layers ",
    map[] =
        "\"$coterie\" place convert $samples/vllm-mapping.jsonl --ranks 2 --to sglang -o a.json --layers ";
    static const struct {
        const char *command, *options;
        int status;
        const char *words;
    } rows[] = {
        {load, "4", 2,
         "coterie: the load has 2 rows, --layers says 4: which are they? --first-layer N says the first"},
        {load, "4 --first-layer 1", 0, "2 of 4 rows of 'a.json' have no place"},
        {load, "4 --first-layer 0", 0, "2 of 4 rows of 'a.json' have no place"},
        {load, "2", 0, "start SGLang"},
        {map, "5", 1,
         "has rows for 3 MoE layers, the model has 5 layers: which are they? give the first layer"},
        {map, "5 --first-layer 2", 0, "2 of 5 rows of 'a.json' have no place"},
        {map, "5 --first-layer 0", 0, "2 of 5 rows of 'a.json' have no place"},
        {map, "3", 0, "start SGLang"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char line[1024];
        snprintf(line, sizeof line, "rm -f a.json; %s%s", rows[i].command, rows[i].options);
        run_line(pad, line);
        if (c.status != rows[i].status || !strstr(c.err, rows[i].words))
            fail_msg("row %zu: %d, %s", i, c.status, c.err);
        assert_int_equal(access(in_scratch(pad, "a.json"), F_OK), rows[i].status ? -1 : 0);
    }
}

/* The options with which each engine loads what was written: ranks, slots beyond the experts, the file. */
static void test_launch(void **state)
{
    static const struct {
        const char *to, *says;
    } lines[] = {
        {"sglang", "with --tp-size 2 --ep-size 2 --ep-num-redundant-experts 2 --init-expert-location map "
                   "--moe-a2a-backend deepep --ep-dispatch-algorithm static ("},
        {"vllm",
         "on 2 ranks (tensor times data parallel) with --enable-expert-parallel --enable-eplb --eplb-config "
         "'{\"num_redundant_experts\": 2, \"initial_mapping_path\": \"map\", "},
        {"tensorrt-llm",
         "ep_size 2 and, in its configuration, moe_config: {backend: WIDEEP, load_balancer: map}"},
        {"vllm-ascend", "{\"expert_map_path\": \"map\", \"num_redundant_experts\": 2}"},
        {"coterie", NULL}};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        for (int way = 0; way < 2; way++) {
            char line[256];
            snprintf(
                line, sizeof line,
                way ? "\"$coterie\" place --load $samples/sglang-stat.pt --ranks 2 --slots 8 --to %s -o map"
                    : "\"$coterie\" place convert placed --to %s -o map",
                lines[i].to);
            run_line(*state,
                     "\"$coterie\" place --load $samples/sglang-stat.pt --ranks 2 --slots 8 -o placed");
            run_line(*state, line);
            if (c.status) fail_msg("%s: %s", line, c.err);
            const char *at = strstr(c.err, "note: start ");
            if (!lines[i].says)
                assert_null(at);
            else if (!at || !strstr(at, lines[i].says) || at + strlen(at) - 1 != strchr(at, '\n'))
                fail_msg("%s: %s", line, c.err);
        }
    run_line(*state, // the table of figures ends before the options
             "\"$coterie\" place --load $samples/sglang-stat.pt --ranks 2x1 --slots 8 --to sglang -o map "
             ">both 2>&1 && tail -n 1 both");
    assert_int_equal(c.status, 0);
    assert_ptr_equal(strstr(c.out, "coterie: note: start SGLang with "), c.out);
    run_line(
        *state,
        "\"$coterie\" place convert $samples/sglang-map.json --to vllm -o map"); // of nobody knows how many ranks
    assert_int_equal(c.status, 0);
    assert_null(strstr(c.err, "note: start "));
}

static void test_refusals(void **state)
{
    scratch_pad *pad = *state;
    static const struct {
        const char *line;
        int status;
        const char *words;
    } bad[] = {
        {"place convert $samples/omni.npy", 2, "no output given: -o OUT"},
        {"place convert -o x", 2, "IN"},
        {"place convert $samples/omni.npy -o x --to pt", 1, "unknown format 'pt' of maps"},
        {"place convert $samples/omni.npy -o x --ranks 0", 2, "--ranks"},
        {"place convert $samples/counts.csv -o x", 1, "is no map of experts in a known format"},
        {"place convert nowhere -o x", 1, "'nowhere'"},
        {"place convert $samples/omni.npy -o nowhere/x", 1, "cannot write 'nowhere/x'"},
        {"place convert $samples/sglang-map.json --ranks 3 -o x", 1, "which 3 ranks do not divide"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char line[512];
        snprintf(line, sizeof line, "\"$coterie\" %s", bad[i].line);
        run_line(pad, line);
        assert_int_equal(c.status, bad[i].status);
        assert_string_equal(c.out, "");
        if (!strstr(c.err, bad[i].words)) fail_msg("%s: %s", bad[i].line, c.err);
        assert_int_equal(access(in_scratch(pad, "x"), F_OK), -1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chain),         cmocka_unit_test(test_place),
        cmocka_unit_test(test_unequal_ranks), cmocka_unit_test(test_first_layer),
        cmocka_unit_test(test_launch),        cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
