/* A model runs with its experts where maps of coterie place and coterie group say: the text is the plain run's, and maps
 * that are not the model's are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "harness/cli/capture.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RUN "\"$coterie\" run '" COT_SOURCE "/models/tiny' -p 'Question: A farmer has 12 hens.' -n 24 "

static char folder[] = "/tmp/coterie-placement-XXXXXX";
static capture c;

static void shell(const char *format, ...)
{
    char line[2048];
    va_list arguments;
    va_start(arguments, format);
    int n = snprintf(line, sizeof line, "cd '%s' && ", folder);
    vsnprintf(line + n, sizeof line - (size_t)n, format, arguments);
    va_end(arguments);
    capture_shell(&c, line);
}

static int profile(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) return 1;
    shell("\"$coterie\" profile '" COT_SOURCE "/models/tiny' --text '" COT_SOURCE "/README.md' -o t.st");
    return c.status;
}

static int tidy(void **state)
{
    (void)state;
    shell("rm -rf '%s'", folder);
    return c.status;
}

static const int ranks[] = {1, 2, 3, 4, 8};

/* Two slots of each rank hold replicas. */
static void make_maps(int P)
{
    shell("\"$coterie\" place --load t.st --ranks %d --method eplb --slots-per-rank %d -o placed%d.json", P,
          (32 + P - 1) / P + 2, P);
    if (c.status) fail_msg("%s", c.err);
    shell("\"$coterie\" group t.st --ranks %d --iterations 1 --placement grouped%d.json --tables tables%d.st",
          P, P, P);
    if (c.status) fail_msg("%s", c.err);
}

static void the_same_text(void **state)
{
    (void)state;
    static const struct {
        const char *attention, *precision;
    } ways[] = {{"tp", "fp32"}, {"dp", "fp32"}, {"dp", "bf16"}};
    char plain[sizeof c.out];
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) make_maps(ranks[i]);
    for (size_t way = 0; way < 3; way++) {
        shell(RUN "--attention %s --precision %s", ways[way].attention, ways[way].precision);
        assert_int_equal(c.status, 0);
        strcpy(plain, c.out);
        assert_true(strlen(plain) > 20);
        for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
            for (int map = 0; map < 3; map++) {
                static const char *const maps[] = {"--placement placed%d.json", "--placement grouped%d.json",
                                                   "--tables tables%d.st"};
                char where[64];
                snprintf(where, sizeof where, maps[map], ranks[i]);
                shell(RUN "--attention %s --precision %s --ranks %d %s", ways[way].attention,
                      ways[way].precision, ranks[i], where);
                if (c.status || strcmp(c.out, plain) != 0)
                    fail_msg("%s, %s, %d ranks, %s: '%s' %s", ways[way].attention, ways[way].precision,
                             ranks[i], where, c.out, c.err);
            }
    }
}

#define COUNTED "--stats=s.json %s && sed '/times_ns/,/}/d; /_ns/d; /_second/d' s.json >%s"

/* The groups of tables are where experts sit: every byte is that of a run with the map of the same groups. */
static void groups_of_tables(void **state)
{
    (void)state;
    shell(RUN "--attention dp --ranks 4 " COUNTED, "", "plain.stats");
    assert_int_equal(c.status, 0);
    shell(RUN "--attention dp --ranks 4 " COUNTED, "--placement grouped4.json", "map.stats");
    assert_int_equal(c.status, 0);
    shell(RUN "--attention dp --ranks 4 " COUNTED " && cmp map.stats tables.stats >&2", "--tables tables4.st",
          "tables.stats");
    if (c.status || *c.err) fail_msg("%s", c.err);
    shell(RUN "--attention dp --ranks 4 " COUNTED " && cmp map.stats tables.stats >&2",
          "--tables tables4.st --placement grouped4.json", "tables.stats");
    if (c.status || *c.err) fail_msg("%s", c.err);
    shell("cmp -s map.stats plain.stats");
    assert_int_equal(c.status, 1);
}

/* The golden model of MoE layers 0, 2 and 3, layer 1 being dense, with a tokenizer of its first 26 ids. */
static bool link_model(void)
{
    shell("mkdir m && ln -s '" COT_SHARED "/golden/qwen2-moe/config.json' '" COT_SHARED
          "/golden/qwen2-moe/model.safetensors' m && test -r m/model.safetensors");
    if (c.status) return false;
    char path[64];
    snprintf(path, sizeof path, "%s/m/tokenizer.json", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(
        "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
        "\"use_regex\": true}, \"decoder\": {\"type\": \"ByteLevel\"}, "
        "\"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {",
        file);
    for (int i = 0; i < 331; i++)
        fprintf(file, i < 26 ? "%s\"%c\": %d" : "%s\"<%d>\": %d", i ? ", " : "", i < 26 ? 'a' + i : i, i);
    fputs("}}}", file);
    assert_int_equal(fclose(file), 0);
    return true;
}

/* A map in every format places the experts of layers between which a dense one lies: text and bytes are those of Coterie's
 * own map, which differ from layer to layer. */
static void every_format(void **state)
{
    (void)state;
    static const char *const formats[] = {"sglang", "vllm", "tensorrt-llm", "vllm-ascend", "omni-infer"};
    if (!link_model()) {
        print_message("SKIPPED: there is no '%s'\n", COT_SHARED "/golden/qwen2-moe");
        return;
    }
    char path[64];
    snprintf(path, sizeof path, "%s/own.json", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("{\"format\": \"coterie.placement\", \"version\": 1, \"experts\": 12, \"ranks\": 3, "
          "\"slots_per_rank\": 5, \"layers\": [0, 2, 3], \"physical_to_logical_map\": [",
          file);
    for (int l = 0; l < 3; l++)
        for (int i = 0; i < 15; i++) // runs of five distinct experts, other ones in each layer
            fprintf(file, "%s%d%s",
                    i   ? ", "
                    : l ? ", ["
                        : "[",
                    (i * (l == 1 ? 5 : 1) + 4 * l) % 12, i == 14 ? "]" : "");
    fputs("]}", file);
    assert_int_equal(fclose(file), 0);
#define RUN_M "\"$coterie\" run m -p abcdefgh -n 20 --precision fp32 "
    shell(RUN_M);
    assert_int_equal(c.status, 0);
    char plain[sizeof c.out];
    strcpy(plain, c.out);
    assert_true(strlen(plain) > 20);
    shell(RUN_M "--ranks 3 " COUNTED, "--placement own.json", "own.stats");
    if (c.status || strcmp(c.out, plain) != 0) fail_msg("'%s' %s", c.out, c.err);
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        shell("\"$coterie\" place convert own.json --to %s --layers 4 -o map", formats[i]);
        if (c.status) fail_msg("%s", c.err);
        shell(RUN_M "--ranks 3 " COUNTED " && cmp own.stats map.stats >&2", "--placement map", "map.stats");
        if (c.status || *c.err || strcmp(c.out, plain) != 0)
            fail_msg("%s: '%s' %s", formats[i], c.out, c.err);
    }
}

static void refuse(const char *options, const char *word)
{
    shell(RUN "%s", options);
    const char *end = strchr(c.err, '\n');
    if (c.status != 1 || !strstr(c.err, word) || !end || end[1] || *c.out)
        fail_msg("%s: status %d, '%s' lacks '%s'", options, c.status, c.err, word);
}

static void other_maps(void **state)
{
    (void)state;
    shell("printf '{' >broken.json");
    refuse("--ranks 3 --placement placed4.json", "the group 3 ranks");
    refuse("--ranks 4 --placement none.json", "none.json");
    refuse("--ranks 4 --placement broken.json", "broken.json");
    refuse("--ranks 4 --placement placed4.json --expert-slots 2", "2 are asked for");
    refuse("--ranks 4 --expert-slots 2", "2 are asked for");
    refuse("--ranks 4 --expert-slots 16384", "expert slots 16384 is not in [0, 16383]");
    shell("python3 -c 'import json; m = json.load(open(\"placed4.json\")); n = 20000; s = "
          "m[\"slots_per_rank\"]; "
          "m[\"slots_per_rank\"] = n; m[\"physical_to_logical_map\"] = [sum((row[r * s:r * s + s - 1] + [-1] "
          "* (n - s) + "
          "[row[r * s + s - 1]] for r in range(4)), []) for row in m[\"physical_to_logical_map\"]]; "
          "json.dump(m, open(\"high.json\", \"w\"))'");
    refuse("--ranks 4 --placement high.json",
           "'high.json' uses 20000 slots of a rank, at most 16383 can be on 4 ranks");
    shell("\"$coterie\" bench model --layers 1 --prompt-tokens 2 --decode-tokens 1 --repeat 1 --ranks 4 "
          "--placement placed4.json");
    if (c.status != 1 || !strstr(c.err, "the model has 64 experts")) fail_msg("%d: %s", c.status, c.err);
}

/* Tables that are not this model's, this group's, or those of the placement beside them. */
static void other_tables(void **state)
{
    (void)state;
    shell("printf '{' >broken.st");
    refuse("--ranks 3 --tables tables4.st", "'tables4.st' has tables for 4 ranks, not for 3");
    refuse("--ranks 4 --tables none.st", "none.st");
    refuse("--ranks 4 --tables broken.st", "broken.st");
    refuse("--ranks 4 --tables t.st", "t.st");
    refuse("--ranks 4 --tables tables4.st --expert-slots 2", "2 are asked for");
    refuse("--ranks 4 --tables tables4.st --placement placed4.json", "'placed4.json' has expert ");
    shell("python3 -c 'import json; m = json.load(open(\"grouped4.json\")); row = "
          "m[\"physical_to_logical_map\"][2]; s = m[\"slots_per_rank\"]; "
          "row[0], row[s] = row[s], row[0]; json.dump(m, open(\"swapped.json\", \"w\"))\n"
          "m = json.load(open(\"grouped4.json\")); m[\"slots_per_rank\"] = s + 1\n"
          "m[\"physical_to_logical_map\"] = [sum((row[r * s:r * s + s] + [row[(r + 1) %% 4 * s]] "
          "for r in range(4)), []) for row in m[\"physical_to_logical_map\"]]\n"
          "json.dump(m, open(\"twice.json\", \"w\"))'");
    if (c.status) fail_msg("%s", c.err);
    refuse("--ranks 4 --tables tables4.st --placement swapped.json", "of layer 2 on rank ");
    refuse("--ranks 4 --tables tables4.st --placement twice.json",
           " of layer 0 more than once, the tables 'tables4.st' once");
    refuse("--ranks 4 --tables tables4.st --op fused --a2a padded", "a2a 'padded' is of 'bulk'");
    refuse("--ranks 4 --tables tables4.st --pipeline s-moe --attention dp", "of attention tp");
    refuse("--ranks 4 --placement placed4.json --pipeline s-moe", "takes no replicas: 'placed4.json'");
    // A trace of other layers, of more experts, of another K.
    static const struct {
        int layers, experts, top_k;
        const char *word;
    } others[] = {{5, 32, 4, "5 layers from 0 to 4, the model's MoE layers are 6 from 0 to 5"},
                  {6, 33, 4, "tables of 4 of 33 experts a token, the model has 4 of 32"},
                  {6, 32, 3, "tables of 3 of 32 experts a token, the model has 4 of 32"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        shell("python3 -c 'L, E, K = %d, %d, %d\n"
              "print(\"layer\", \"expert\", \"token_id\", \"count\", sep=\"\\t\")\n"
              "for l in range(L):\n"
              "  for t in range(40):\n"
              "    for k in range(K): print(l, (t * 3 + k * 7) %% E, t, 1, sep=\"\\t\")\n' >o.tsv && "
              "\"$coterie\" group o.tsv --ranks 4 --split 1 --iterations 1 --tables other.st",
              others[i].layers, others[i].experts, others[i].top_k);
        if (c.status) fail_msg("%s", c.err);
        refuse("--ranks 4 --tables other.st", others[i].word);
    }
}

/* A profile says how long a token's row is, by which place tells bytes. */
static void bytes_of_a_profile(void **state)
{
    (void)state;
    shell("\"$coterie\" trace info t.st");
    assert_non_null(strstr(c.out, "hidden      192 columns"));
    shell("\"$coterie\" place --load t.st --ranks 2x2 | grep 'their bytes'");
    assert_int_equal(c.status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bytes_of_a_profile), cmocka_unit_test(the_same_text),
                                       cmocka_unit_test(groups_of_tables),   cmocka_unit_test(every_format),
                                       cmocka_unit_test(other_maps),         cmocka_unit_test(other_tables)};
    return cmocka_run_group_tests(tests, profile, tidy);
}
