/* bench moe on tiny layers: what stands in its JSON, to the byte where it is known, and what it refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "harness/cli/capture.h"
#include "coterie/engine.h"
#include "coterie/roof.h"
#include "coterie/trace.h"

#include <jansson.h>

static capture c;
static const char trace_path[] = "bench_moe_trace.safetensors";

static json_t *run_json(const char *options)
{
    char line[1024];
    json_error_t error;
    snprintf(line, sizeof line, "\"$coterie\" bench moe --json --threads 2 --repeat 5 %s", options);
    capture_shell(&c, line);
    if (c.status != 0) fail_msg("%s: status %d, '%s'", line, c.status, c.err);
    for (const char *line_of = c.err; *line_of;) { // a busy machine may be noted, nothing else
        const char *end = strchr(line_of, '\n');
        const char *busy = strstr(line_of, "are not to be trusted\n");
        if (strncmp(line_of, "note: ", 6) != 0 || !end || !busy || busy > end) fail_msg("%s", c.err);
        line_of = end + 1;
    }
    json_t *json = json_loads(c.out, JSON_REJECT_DUPLICATES, &error);
    if (!json) fail_msg("%s: %s in '%.200s'", line, error.text, c.out);
    assert_int_equal(json_object_size(json), 2);
    assert_int_equal(json_object_size(json_object_get(json, "summary")), 2);
    return json;
}

static int64_t integer(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value)) fail_msg("'%s' is no integer", key);
    return json_integer_value(value);
}

static const char *string(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value)) fail_msg("'%s' is no string", key);
    return json_string_value(value);
}

/* What stands in every point; the link's wire time for its bytes. */
static void check_point(const json_t *p, double bytes_per_s, int64_t latency_ns)
{
    assert_int_equal(json_object_size(p), 14);
    const json_t *share = json_object_get(p, "roof_share");
    assert_true(json_is_real(share) && json_real_value(share) > 0 && json_real_value(share) <= 1);
    assert_true(integer(p, "tile_ns") > 0);
    assert_true(integer(p, "median_ns") > 0 && integer(p, "median_ns") <= integer(p, "p95_ns"));
    assert_string_equal(string(p, "combine"), "exact");
    if (bytes_per_s > 0) {
        double wire = (double)latency_ns + (double)integer(p, "bytes") * 1e9 / bytes_per_s;
        assert_true(llabs(integer(p, "wire_ns") - (int64_t)(wire + 0.5)) <= 1);
        if (integer(p, "ranks") > 1) // rows there and back, over the link once each at least
            assert_true(integer(p, "median_ns") > 2 * latency_ns);
    } else {
        assert_int_equal(integer(p, "wire_ns"), 0);
        assert_int_equal(integer(p, "tile_ns"), integer(p, "median_ns"));
    }
}

static void check_summary(const json_t *json, bool compared)
{
    static const char *const keys[] = {"bulk_over_fused_median", "bulk_over_fused_worst"};
    for (int i = 0; i < 2; i++) {
        const json_t *value = json_object_get(json_object_get(json, "summary"), keys[i]);
        assert_true(compared ? json_is_real(value) && json_real_value(value) > 0 : json_is_null(value));
    }
}

/* One point for each of everything. */
static void test_points(void **state)
{
    (void)state;
    static const char *const shapes[] = {"96,64,8,2", "64,33,5,5"}, *const routings[] = {"uniform", "zipf",
                                                                                         "hot"};
    const int64_t tokens[] = {1, 37}, ranks[] = {1, 3};
    const char *const *ops = cot_engine_operators();
    size_t n_ops = 0, seen = 0;
    while (ops[n_ops]) n_ops++;
    json_t *json =
        run_json("--shape 96,64,8,2,64,33,5,5 --tokens 1,37 --ranks 1,3 --routing uniform,zipf,hot");
    const json_t *points = json_object_get(json, "points");
    assert_int_equal(json_array_size(points), 24 * n_ops);
    check_summary(json, n_ops > 1);
    for (int s = 0; s < 2; s++)
        for (int t = 0; t < 2; t++)
            for (int r = 0; r < 2; r++)
                for (int how = 0; how < 3; how++)
                    for (size_t op = 0; op < n_ops; op++)
                        for (size_t i = 0; i < json_array_size(points); i++) {
                            const json_t *p = json_array_get(points, i);
                            if (strcmp(string(p, "shape"), shapes[s]) || integer(p, "tokens") != tokens[t] ||
                                integer(p, "ranks") != ranks[r] ||
                                strcmp(string(p, "routing"), routings[how]) ||
                                strcmp(string(p, "op"), ops[op]))
                                continue;
                            seen++;
                            check_point(p, 0, 0);
                            if (ranks[r] == 1) assert_int_equal(integer(p, "bytes"), 0);
                        }
    assert_int_equal(seen, 24 * n_ops);
    json_decref(json);
}

enum { TRACE_TOKENS = 50, LAYERS = 3, EXPERTS = 12, TOP_K = 3 };

/* Layer l sends token t's k-th choice there; all different. */
static uint16_t expert_of(int l, int t, int k)
{
    return (uint16_t)((t * (l + 1) + k * (t % 3 + 1) * 4 / 3) % EXPERTS);
}

static void write_trace(void)
{
    cot_trace_builder *builder;
    cot_trace trace;
    assert_int_equal(cot_trace_builder_open(&builder, "m", LAYERS, NULL, EXPERTS, TOP_K, NULL), COT_OK);
    for (int t = 0; t < TRACE_TOKENS; t++) {
        uint16_t experts[LAYERS * TOP_K];
        float weights[LAYERS * TOP_K];
        for (int i = 0; i < LAYERS * TOP_K; i++) {
            experts[i] = expert_of(i / TOP_K, t, i % TOP_K);
            weights[i] = 1.0f / TOP_K;
        }
        assert_int_equal(cot_trace_builder_append(builder, 0, t, experts, weights, NULL), COT_OK);
    }
    assert_int_equal(cot_trace_builder_finish(&trace, builder, NULL), COT_OK);
    assert_int_equal(cot_trace_write(&trace, trace_path, NULL), COT_OK);
    cot_trace_close(&trace);
    cot_trace_builder_close(builder);
}

/* The first thing of n that rank r of P holds. */
static int64_t begin(int64_t n, int r, int ranks)
{
    return n * r / ranks;
}

static int owner(int64_t n, int64_t i, int ranks)
{
    int r = 0;
    while (begin(n, r + 1, ranks) <= i) r++;
    return r;
}

/* The busiest rank's egress by bulk: every choice's row there and back, its weight, and everybody's counts once
 * round the ring. */
static int64_t bulk_bytes(int64_t tokens, int ranks, int64_t hidden, int64_t element_bytes)
{
    int64_t most = 0;
    for (int r = 0; r < ranks; r++) {
        int64_t bytes = (ranks - 1) * EXPERTS * 4;
        for (int64_t t = 0; t < tokens; t++)
            for (int k = 0; k < TOP_K; k++) {
                int home = owner(tokens, t, ranks);
                int there = owner(EXPERTS, expert_of(LAYERS / 2, (int)(t % TRACE_TOKENS), k), ranks);
                if (home == there) continue;
                if (home == r) bytes += hidden * element_bytes + 4;
                if (there == r) bytes += hidden * element_bytes;
            }
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* A trace's routing is known, so bulk's bytes are; its tokens begin again where there are not enough. */
static void test_bytes(void **state)
{
    (void)state;
    char options[512];
    for (int i = 0; i < 2; i++) {
        const double bytes_per_s = i ? 5e7 : 0;
        snprintf(
            options, sizeof options,
            "--op bulk --shape 70,40,%d,%d --tokens 7,120 --ranks 2,5 --precision %s --routing trace:%s %s",
            EXPERTS, TOP_K, i ? "fp32" : "bf16", trace_path,
            i ? "--link 50MB/s,300us,groups=2:20MB/s,100us --fabric processes" : "--fabric threads");
        json_t *json = run_json(options);
        const json_t *points = json_object_get(json, "points");
        assert_int_equal(json_array_size(points), 4);
        check_summary(json, false);
        for (size_t p = 0; p < 4; p++) {
            const json_t *point = json_array_get(points, p);
            check_point(point, bytes_per_s, 300000);
            assert_int_equal(
                integer(point, "bytes"),
                bulk_bytes(integer(point, "tokens"), (int)integer(point, "ranks"), 70, i ? 4 : 2));
            assert_int_equal(strncmp(string(point, "routing"), "trace:", 6), 0);
        }
        json_decref(json);
    }
}

/* Every process of the timeline has a name and events, every event a time within the run. */
static void check_timeline(const char *fabric)
{
    char options[256];
    json_error_t error;
    snprintf(options, sizeof options,
             "--shape 64,32,8,2 --tokens 64 --ranks 2 --op bulk --fabric %s --link 1GB/s,20us "
             "--timeline bench_moe_timeline.json",
             fabric);
    json_decref(run_json(options));
    json_t *json = json_load_file("bench_moe_timeline.json", 0, &error);
    if (!json) fail_msg("%s", error.text);
    const json_t *events = json_object_get(json, "traceEvents");
    int named = 0;
    size_t works = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *event = json_array_get(events, i);
        if (!strcmp(string(event, "ph"), "M")) {
            const char *name = string(json_object_get(event, "args"), "name");
            assert_int_equal(integer(event, "pid"), ++named);
            assert_string_equal(name, named == 1
                                          ? "bulk: 64,32,8,2, 64 tokens, 2 ranks, uniform"
                                          : "bulk over the link: 64,32,8,2, 64 tokens, 2 ranks, uniform");
            continue;
        }
        assert_string_equal(string(event, "ph"), "X");
        assert_int_equal(integer(event, "pid"), named);
        assert_true(json_real_value(json_object_get(event, "ts")) >= 0);
        assert_true(json_real_value(json_object_get(event, "dur")) >= 0);
        assert_true(integer(json_object_get(event, "args"), "rank") < 2);
        works++;
    }
    assert_int_equal(named, 2);
    assert_true(works >= 2 * 2 * 4); // a gate, a dispatch, experts, a combine on each rank
    json_decref(json);
    remove("bench_moe_timeline.json");
}

static void test_timeline(void **state)
{
    (void)state;
    check_timeline("threads");
    check_timeline("processes");
}

static void test_text(void **state)
{
    (void)state;
    capture_shell(&c, "\"$coterie\" bench moe --shape 64,32,8,2 --tokens 20 --ranks 1,2 --repeat 5 "
                      "--link 1GB/s,1us --combine reduced --details bench_moe_details.json");
    assert_int_equal(c.status, 0);
    assert_string_equal(c.err, "");
    json_t *details = json_load_file("bench_moe_details.json", 0, NULL);
    assert_true(json_array_size(details) >= 2);
    for (size_t i = 0; i < json_array_size(details); i++) {
        const json_t *point = json_array_get(details, i);
        assert_int_equal(integer(point, "rows"), 40);
        assert_int_equal(integer(point, "repeats"), 5);
        assert_int_equal(integer(point, "capacity_rows"), integer(point, "ranks") == 1 ? 5 : 3);
        assert_true(integer(point, "median_ns") > 0);
    }
    json_decref(details);
    remove("bench_moe_details.json");
    static const char *const parts[] = {
        "64,32,8,2 (H 64, I 32, top 2 of 8), 20 tokens, 2 ranks, uniform, bf16\n", "40 rows to ",
        "  bulk     exact ", "over the link: median ", "capacity factor 1 (3 rows): "};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(c.out, parts[i])) fail_msg("no '%s' in '%s'", parts[i], c.out);
}

static const struct refusal {
    int status;
    const char *options, *word;
} refusals[] = {
    {2, "--shape nosuch", "'nosuch'"},
    {2, "--shape ''", "unknown shape"},
    {2, "--shape 64,32,8", "H,I,E,K"},
    {2, "--shape 64,32,8,2,1", "H,I,E,K"},
    {2, "--shape 64,32,8,0", "'0'"},
    {2, "--shape 64,32,8,-1", "'-1'"},
    {2, "--shape 64,32,olmoe,2", "'olmoe'"},
    {2, "--shape 99999999999999999999,1,1,1", "'99999999999999999999'"},
    {1, "--shape 64,32,8,9", "9 of 8 experts"},
    {1, "--shape 16,32,17,2", "17 experts"},
    {1, "--shape 2000000,32,8,2", "2000000"},
    {1, "--shape 1048576,1048576,65535,1", "GB"},
    {1, "--shape 100,1,100,65", "65 of 100"},
    {2, "--tokens 0", "'0'"},
    {2, "--tokens -5", "'-5'"},
    {2, "--tokens 1,,2", "''"},
    {2, "--tokens 8,8", "twice"},
    {2, "--tokens 99999999999", "'99999999999'"},
    {1, "--shape 64,32,8,8 --tokens 2147483647", "tokens"},
    {1, "--shape 1000000,1,8,1 --tokens 2000000000", "GB"},
    {2, "--ranks 65", "'65'"},
    {2, "--ranks 0", "'0'"},
    {2, "--op nosuch", "'nosuch'"},
    {2, "--routing cold", "'cold'"},
    {2, "--routing trace:", "'trace:'"},
    {1, "--routing trace:nosuch", "'nosuch'"},
    {1, "--shape 64,32,12,2 --routing uniform,trace:bench_moe_trace.safetensors", "3 of 12"},
    {1, "--shape olmoe --routing trace:bench_moe_trace.safetensors", "8 of 64"},
    {2, "--link 0.1GB/s", "0.1GB/s,20us"},
    {2, "--link 0.1GB,20us", "0.1GB/s,20us"},
    {2, "--link 0.1GB/s,20", "0.1GB/s,20us"},
    {2, "--link -1GB/s,20us", "0.1GB/s,20us"},
    {2, "--link 0B/s,20us", "0.1GB/s,20us"},
    {2, "--link infGB/s,20us", "0.1GB/s,20us"},
    {2, "--link 1GB/s,20us,5us", "0.1GB/s,20us"},
    {2, "--link 1GB/s,-20us", "0.1GB/s,20us"},
    {2, "--link 1GB/s,2s", "0.1GB/s,20us"},
    {2, "--link 1GB/s,2us,groups=2", "groups=2:0.1GB/s,0us"},
    {2, "--link 1GB/s,2us,groups=1:1GB/s,2us --ranks 4", "groups=2:0.1GB/s,0us"},
    {2, "--link 1GB/s,2us,groups=65:1GB/s,2us --ranks 4", "groups=2:0.1GB/s,0us"},
    {2, "--link 1GB/s,2us,groups=-2:1GB/s,2us --ranks 4", "groups=2:0.1GB/s,0us"},
    {2, "--link 1GB/s,2us,groups=2:1GB/s", "groups=2:0.1GB/s,0us"},
    {2, "--link 1GB/s,2us,groups=2:0B/s,1us", "groups=2:0.1GB/s,0us"},
    {2, "--link 1GB/s,2us,group=2:1GB/s,1us", "groups=2:0.1GB/s,0us"},
    {2, "--link 1GB/s,2us,groups=2:1GB/s,1us,1us --ranks 4", "groups=2:0.1GB/s,0us"},
    {2, "--link 1GB/s,2us,groups=3:1GB/s,1us --ranks 4,2", "more than --ranks 2"},
    {2, "--precision fp64", "'fp64'"},
    {2, "--weights int5", "takes as-stored, bf16, fp32, int8, fp8, int4 or mxfp4, not 'int5'"},
    {1, "--weights fp8 --precision int8", "fp8 are not multiplied in precision int8"},
    {1, "--shape 64,48,12,2 --weights mxfp4", "64 by 48 are not whole groups of 32"},
    {2, "--combine no", "'no'"},
    {2, "--a2a no", "'no'"},
    {2, "--dedup no", "'no'"},
    {1, "--op fused,bulk --sms-reserve 3", "'bulk' runs on no device that could leave 3 multiprocessors"},
    {2, "--sms-reserve 4097", "--sms-reserve takes an integer from 0 to 4096"},
    {1, "--op fused --a2a padded", "a2a 'padded' is of 'bulk'"},
    {1, "--op fused --dedup off", "dedup off is of 'bulk'"},
    {1, "--a2a padded --dedup on", "no dedup"},
    {2, "--repeat 4", "'4'"},
    {2, "--threads 257", "'257'"},
    {1, "--isa nosuch", "'nosuch'"},
    {1, "--fabric nosuch", "'nosuch'"},
    {1, "--timeline /nosuch/file", "'/nosuch"},
    {1, "--details /nosuch/file", "'/nosuch"},
};

/* What experts are kept as tells what is read of them: 4.25 bits an element, and 64 bytes that tell their matrices' forms. */
static void test_weights(void **state)
{
    (void)state;
    for (int rounded = 0; rounded < 2; rounded++) {
        char options[256];
        snprintf(options, sizeof options,
                 "--shape 64,128,8,2 --tokens 5 --ranks 2 --weights mxfp4 --details "
                 "bench_moe_weights.json %s",
                 rounded ? "--precision int8" : "");
        json_decref(run_json(options));
        json_t *details = json_load_file("bench_moe_weights.json", 0, NULL);
        const json_t *point = json_array_get(details, 0);
        assert_int_equal(integer(point, "weight_bytes"),
                         integer(point, "experts_touched") * (3 * 64 * 128 * 17 / 32 + 64));
        json_decref(details);
        remove("bench_moe_weights.json");
    }
}

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const struct refusal *r = &refusals[i];
        char line[512];
        snprintf(line, sizeof line, "\"$coterie\" bench moe --json %s", r->options);
        capture_shell(&c, line);
        const char *end = strchr(c.err, '\n');
        if (c.status != r->status || strncmp(c.err, "coterie: ", 9) != 0 || !end || end[1] ||
            !strstr(c.err, r->word) || *c.out)
            fail_msg("%s: expected status %d and a line with '%s', found %d, '%s' and output '%.100s'", line,
                     r->status, r->word, c.status, c.err, c.out);
    }
}

/* A system of that many KiB, as this process is told. Whether it can be made up. */
static bool run_within(long kib, const char *options)
{
    char line[1024];
    snprintf(
        line, sizeof line,
        "echo 'MemAvailable: %ld kB' >bench_moe_meminfo; unshare -m sh -c \"mount --bind bench_moe_meminfo "
        "/proc/meminfo && echo mounted >&2 && exec $coterie bench moe --shape 64,32,8,2 --repeat 5 %s\"; "
        "s=$?; "
        "rm bench_moe_meminfo; exit $s",
        kib, options);
    capture_shell(&c, line);
    static const char mounted[] = "mounted\n";
    if (strncmp(c.err, mounted, strlen(mounted)) != 0) return false;
    memmove(c.err, c.err + strlen(mounted), strlen(c.err + strlen(mounted)) + 1);
    return true;
}

/* What is read between runs and to measure roofs is most of it where caches are large and the layer is small. */
static void test_memory(void **state)
{
    (void)state;
    const double cache = (double)cot_last_level_cache_bytes(), megabyte = 1 << 20,
                 least = (double)cot_roof_buffer_bytes() + (cache <= 0                   ? 64 * megabyte
                                                            : 2 * cache < 512 * megabyte ? 2 * cache
                                                                                         : 512 * megabyte);
    for (int fabric = 0; fabric < 2; fabric++) {
        double needed, available;
        if (!run_within(400000, fabric ? "--ranks 2 --fabric processes" : "--ranks 2")) {
            fprintf(stderr, "SKIPPED: this system gives no /proc/meminfo of its own\n");
            return;
        }
        assert_int_equal(c.status, 1);
        assert_string_equal(c.out, "");
        if (sscanf(c.err,
                   "coterie: weights, rows and what is read between runs and to measure roofs need %lf GB of "
                   "memory, %lf GB are",
                   &needed, &available) != 2 ||
            strchr(c.err, '\n')[1])
            fail_msg("%s", c.err);
        assert_true(available > 0.409 && available < 0.411);
        if (needed * 1e9 < least - 6e6 || needed * 1e9 > least * 1.05)
            fail_msg("%g needed, %g expected", needed * 1e9, least);
        // Rows of several numbers of tokens, of each operator, and of capacity, all of which stay open.
        assert_true(run_within(400000, "--ranks 2 --op bulk --tokens 65536 --json"));
        double one, all;
        assert_int_equal(sscanf(strstr(c.err, "need "), "need %lf", &one), 1);
        assert_true(run_within(400000, "--ranks 2 --op bulk,fused --tokens 65536,65535 --json"));
        assert_int_equal(sscanf(strstr(c.err, "need "), "need %lf", &all), 1);
        const double rows = 4.0 * 65536 * 2 * 64 * 2;
        assert_true((all - one) * 1e9 > 3 * rows - 0.02e9 && (all - one) * 1e9 < 3 * rows + 0.02e9);
    }
}

int main(void)
{
    write_trace();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_weights),  cmocka_unit_test(test_points),
        cmocka_unit_test(test_bytes),    cmocka_unit_test(test_timeline), cmocka_unit_test(test_text),
        cmocka_unit_test(test_memory),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    remove(trace_path);
    return failed;
}
