/* `coterie place` and `coterie topology`, run as a user runs them. */
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "harness/cli/capture.h"
#include "coterie/version.h"

static capture c;
static char folder[] = "/tmp/cot_place_XXXXXX";

static void put(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void run_line(const char *line)
{
    char all[2048];
    snprintf(all, sizeof all, "cd %s && %s", folder, line);
    capture_shell(&c, all);
}

static json_t *run_json(const char *line)
{
    run_line(line);
    if (c.status) fail_msg("%s: %s", line, c.err);
    json_t *o = json_loads(c.out, 0, NULL);
    assert_non_null(o);
    return o;
}

static double real(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

/* One clear line, and a status that says so. */
static void refuse(const char *line, const char *words)
{
    run_line(line);
    if (!c.status || c.status > 2) fail_msg("%s: status %d", line, c.status);
    if (!strstr(c.err, words)) fail_msg("%s: '%s' lacks '%s'", line, c.err, words);
    const char *end = strchr(strstr(c.err, words), '\n');
    if (!end || end[1]) fail_msg("%s: more than a line: %s", line, c.err);
}

#define PLACE "\"$coterie\" place "

static void test_place(void **state)
{
    (void)state;
    json_t *o = run_json(
        PLACE "--load a.csv --topology complete:ranks=2 --attention paper --c-layer 2 --json -o a.json "
              "--top-k 2");
    // layer 4 is sent by rank 0 and collected by rank 1, layer 6 the other way: one hop wherever the expert is
    assert_true(real(o, "objective") == 110 && real(o, "dual") == 110 && real(o, "gap") == 0);
    assert_true(real(o, "objective_per_activation") == 1 && real(o, "objective_per_token") == 4);
    assert_int_equal(json_array_size(json_object_get(o, "peak_load")), 2);
    assert_true(real(o, "moves") == 0 && real(o, "milliseconds") >= 0);
    json_decref(o);
    o = run_json(PLACE "--load a.csv --cost cost.json --c-layer 3 --c-exp 8 --json");
    assert_true(real(o, "objective") == 5 * 4 + 9 * 9 && real(o, "gap") == 0);
    json_decref(o);
    o = run_json(PLACE
                 "--evaluate a.csv --placement a.json --topology complete:ranks=2 --attention paper --json");
    assert_true(real(o, "objective") == 110);
    assert_true(real(json_object_get(o, "link_load"), "max") == 64); // layer 4 one way, layer 6 the other
    json_decref(o);
}

/* Rows without load are kept in the map, and are nothing in the objective. */
static void test_dense_rows(void **state)
{
    (void)state;
    put("dense.csv", "layer,expert,tokens\n0,1,0\n4,0,10\n4,1,20\n4,2,30\n4,3,4\n");
    json_t *o = run_json(PLACE "--load dense.csv --ranks 2 --json -o dense.json"), *map;
    assert_int_equal(real(o, "layers"), 1);
    json_decref(o);
    o = run_json("cat dense.json");
    map = json_object_get(o, "physical_to_logical_map");
    assert_int_equal(json_array_size(map), 2);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(json_integer_value(json_array_get(json_array_get(map, 0), i)), i);
    json_decref(o);
}

static void test_replan(void **state)
{
    (void)state;
    json_t *o = run_json(PLACE "--load a.csv --ranks 2 --slots 6 --method eplb -o old.json --json");
    json_decref(o);
    put("b.csv", "layer,expert,tokens\n4,0,30\n4,1,2\n4,2,29\n4,3,3\n6,0,10\n6,1,9\n6,2,18\n6,3,9\n");
    o = run_json(PLACE "--load b.csv --ranks 2 --slots 6 --method eplb --current old.json --json");
    assert_true(real(o, "moves") == (double)json_array_size(json_object_get(o, "transfers")));
    json_decref(o);
    o = run_json(PLACE
                 "--load b.csv --ranks 2 --slots 6 --method eplb --current old.json --max-moves 0 --json");
    assert_true(real(o, "moves") == 0);
    json_decref(o);
    refuse(PLACE "--load b.csv --ranks 2 --method ilpload --current old.json --max-moves 3", "--max-moves");
}

/* Three layers of 16 experts, loads of everyone different, as CSV. */
static void put_load(const char *name, int factor)
{
    char text[2048], *end = text + sprintf(text, "layer,expert,tokens\n");
    for (int l = 0; l < 3; l++)
        for (int e = 0; e < 16; e++)
            end += sprintf(end, "%d,%d,%d\n", 2 * l, e, 1 + factor * (e + 1) * (l + 3) % 97);
    put(name, text);
}

/* The lines of moves.csv are the rows of `list`, in the order of rounds. */
static void check_moves_file(const json_t *list)
{
    static const char header[] = "round,layer,expert,from,to\n";
    size_t found = 0;
    int last = -1;
    run_line("cat moves.csv");
    assert_memory_equal(c.out, header, strlen(header));
    for (char *line = c.out + strlen(header); *line; line = strchr(line, '\n') + 1, found++) {
        int row[5], equal = 0;
        assert_int_equal(sscanf(line, "%d,%d,%d,%d,%d", row, row + 1, row + 2, row + 3, row + 4), 5);
        assert_true(row[0] >= last);
        last = row[0];
        for (size_t i = 0; i < json_array_size(list); i++) {
            const json_t *t = json_array_get(list, i);
            int same = 0;
            for (size_t k = 0; k < 5; k++) same += json_integer_value(json_array_get(t, k)) == row[k];
            equal += same == 5;
        }
        assert_int_equal(equal, 1);
    }
    assert_int_equal(found, json_array_size(list));
}

/* The summary on the terminal says of four ranks and the layers 0, 2 and 4 what `list` does. */
static void check_summary(const json_t *list, long all_rounds)
{
    const long n = (long)json_array_size(list);
    long by_layer[5] = {0}, by_rank[4] = {0}, most = 0, fewest = n, busiest = 0;
    for (size_t i = 0; i < (size_t)n; i++) {
        const json_t *t = json_array_get(list, i);
        by_layer[json_integer_value(json_array_get(t, 1))]++;
        by_rank[json_integer_value(json_array_get(t, 3))]++;
        by_rank[json_integer_value(json_array_get(t, 4))]++;
    }
    for (int l = 0; l < 5; l += 2) {
        most = by_layer[l] > most ? by_layer[l] : most;
        fewest = by_layer[l] < fewest ? by_layer[l] : fewest;
    }
    for (int r = 0; r < 4; r++) busiest = by_rank[r] > busiest ? by_rank[r] : busiest;
    long moves, rounds, low, low_layer, high, high_layer, rank, at_rank;
    double mean, rank_mean;
    const char *summary = strstr(c.out, "moves ");
    assert_non_null(summary);
    int read =
        sscanf(summary,
               "moves %ld in %ld rounds, no rank twice in one a layer %lf in the mean, %ld (layer %ld) "
               "to %ld (layer %ld) a rank %lf sent or fetched in the mean, most by rank %ld (%ld)",
               &moves, &rounds, &mean, &low, &low_layer, &high, &high_layer, &rank_mean, &rank, &at_rank);
    assert_int_equal(read, 10);
    assert_true(moves == n && rounds == all_rounds);
    assert_true(fabs(mean - (double)n / 3) < 0.06 && fabs(rank_mean - (double)n / 2) < 0.06);
    assert_true(low == fewest && by_layer[low_layer] == low && high == most && by_layer[high_layer] == high);
    assert_true(at_rank == busiest && by_rank[rank] == busiest);
    int lines = 0;
    for (const char *at = c.out; (at = strchr(at, '\n')); at++) lines++;
    assert_true(lines < 20);
}

/* What so many moves send, and how long so many rounds of them take, a rank's link being its own. */
static void check_bytes(const char *replan, double moves, double rounds)
{
    char line[512], expected[128];
    snprintf(line, sizeof line, "%s --expert-bytes 12582912 --link 5e8", replan);
    run_line(line);
    snprintf(expected, sizeof expected, "  bytes        %.6g, in %.4g s a round after the other\n",
             moves * 12582912, rounds * 12582912 / 5e8);
    if (!strstr(c.out, expected)) fail_msg("%s: %s", expected, c.out);
    snprintf(line, sizeof line, "%s --expert-bytes 12582912 --link 5e8 --json", replan);
    json_t *o = run_json(line);
    assert_true(real(o, "move_bytes") == moves * 12582912);
    assert_true(fabs(real(o, "move_seconds") - rounds * 12582912 / 5e8) < 1e-12);
    json_decref(o);
    snprintf(line, sizeof line, "%s --expert-bytes 12582912 --json", replan);
    o = run_json(line);
    assert_null(json_object_get(o, "move_seconds"));
    json_decref(o);
}

/* The terminal shows a summary; --moves writes what --json lists. */
static void test_moves(void **state)
{
    (void)state;
    put_load("before.csv", 13);
    put_load("after.csv", 29);
    run_line(PLACE "--load before.csv --ranks 4 --slots 24 --method eplb -o running.json");
#define REPLAN PLACE "--load after.csv --ranks 4 --slots 24 --method eplb --current running.json "
    json_t *o = run_json(REPLAN "--json --moves moves.csv"), *list = json_object_get(o, "transfers");
    assert_true(json_array_size(list) > 3);
    check_moves_file(list);
    run_line(REPLAN);
    check_summary(list, (long)real(o, "rounds"));
    assert_null(strstr(c.out, "  bytes"));
    check_bytes(REPLAN, (double)json_array_size(list), real(o, "rounds"));
    json_decref(o);
    refuse(PLACE "--load after.csv --ranks 4 --moves moves.csv", "need --current");
    refuse(PLACE "--load after.csv --ranks 4 --expert-bytes 8", "need --current");
    refuse(REPLAN "--link 8", "--link needs --expert-bytes");
    refuse(PLACE "--load nowhere.csv --ranks 4 --current running.json --moves none/such.csv",
           "none/such.csv");
}

/* Who runs without a map has no file of it. */
static void test_moves_from_contiguous(void **state)
{
    (void)state;
    static const struct {
        const char *options, *map;
    } rows[] = {{"--ranks 2 --method balance", "[[0,1,2,3],[0,1,2,3]]"},
                {"--ranks 2 --slots 6 --method balance", "[[0,1,2,3,0,1],[0,1,2,3,0,1]]"},
                {"--ranks 2x1 --method ilpload", "[[0,1,2,3],[0,1,2,3]]"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char line[256], map[128];
        json_t *o[2];
        snprintf(map, sizeof map, "{\"physical_to_logical_map\": %s}", rows[i].map);
        put("plain.json", map);
        for (int k = 0; k < 2; k++) {
            snprintf(line, sizeof line, PLACE "c.csv %s --current %s --json", rows[i].options,
                     k ? "contiguous" : "plain.json");
            o[k] = run_json(line);
        }
        assert_true(i == 1 || real(o[0], "moves") > 0);
        assert_true(real(o[0], "moves") == real(o[1], "moves"));
        assert_true(json_equal(json_object_get(o[0], "transfers"), json_object_get(o[1], "transfers")));
        const json_t *before = json_object_get(o[1], "before");
        assert_string_equal(json_string_value(json_object_get(before, "name")), "contiguous");
        assert_true(real(before, "worst_peak") == real(json_object_get(o[0], "before"), "worst_peak"));
        json_decref(o[0]), json_decref(o[1]);
    }
}

/* Layers that do not run yet come from storage. */
static void test_moves_from_storage(void **state)
{
    (void)state;
    put("one.csv", "layer,expert,tokens\n4,0,10\n4,1,20\n4,2,30\n4,3,4\n");
    run_line(PLACE "--load one.csv --ranks 2 --method rr -o one.json");
    run_line(PLACE
             "--load a.csv --ranks 2 --method rr --current one.json --moves moves.csv && cat moves.csv");
    assert_int_equal(c.status, 0);
    assert_non_null(strstr(c.out, "; 4 of them from storage"));
    assert_non_null(strstr(c.out, "\n-1,6,0,-1,"));
}

/* A running placement with other slots: the new one has those that are asked for, all filled. */
static void test_other_slots(void **state)
{
    (void)state;
    static const char *const running[] = {"--slots 6", "--slots 4", "--c-layer 4"};
    for (int from = 0; from < 3; from++)
        for (int slots = 4; slots <= 8; slots += 2) {
            char line[256];
            snprintf(line, sizeof line, PLACE "--load a.csv --ranks 2 %s -o from.json", running[from]);
            run_line(line);
            snprintf(line, sizeof line,
                     PLACE
                     "--load b.csv --ranks 2 --slots %d --method replicate --current from.json -o to.json "
                     "--json && cat to.json >&2",
                     slots);
            json_t *o = run_json(line),
                   *map = json_loads(c.err + strcspn(c.err, "{"), JSON_DISABLE_EOF_CHECK, NULL);
            assert_int_equal(real(o, "slots_per_rank"), slots / 2);
            assert_true(real(o, "moves") == (double)json_array_size(json_object_get(o, "transfers")));
            const json_t *rows = json_object_get(map, "physical_to_logical_map");
            assert_int_equal(json_array_size(rows), 2);
            for (size_t l = 0; l < 2; l++) {
                const json_t *row = json_array_get(rows, l);
                assert_int_equal(json_array_size(row), slots);
                for (int i = 0; i < slots; i++)
                    assert_true(json_integer_value(json_array_get(row, (size_t)i)) >= 0);
            }
            json_decref(o);
            json_decref(map);
        }
    refuse(PLACE "--load b.csv --ranks 2 --slots 8 --current from.json --max-moves 0", "0 moves are too few");
}

static void test_refusals(void **state)
{
    (void)state;
    put("negative.csv", "layer,expert,tokens\n0,0,-1\n");
    put("nan.csv", "layer,expert,tokens\n0,0,nan\n");
    put("zero.csv", "layer,expert,tokens\n0,0,0\n");
    put("cut.json", "{\"nodes\": [{\"id\": 0}, {\"id\": 1}], \"edges\": []}");
    put("wide.json", "[[0, 1, 2], [0, 1, 2]]");
    refuse(PLACE, "no load given");
    refuse(PLACE "--load a.csv", "no cluster given");
    refuse(PLACE "--load negative.csv --ranks 1", "negative.csv");
    refuse(PLACE "--load nan.csv --ranks 1", "nan.csv");
    refuse(PLACE "--load zero.csv --ranks 1", "holds no load");
    refuse(PLACE "--load a.csv --topology cut.json", "is not connected");
    refuse(PLACE "--load a.csv --topology torus:ranks=2", "'torus' is neither a file nor a topology");
    refuse(PLACE "--load a.csv --topology complete:ranks=2 --ranks 4", "has 2 ranks, expected 4");
    refuse(PLACE "--load a.csv --topology none/such.json", "no such file");
    refuse(PLACE "--load a.csv --ranks 2 --c-layer 1",
           "c_layer is too small: 2 ranks hold 2 experts of a layer, 2 fewer");
    refuse(PLACE "--load a.csv --ranks 2 --c-exp 3",
           "c_exp is too small: 2 ranks hold 6 experts, 2 fewer than the 8");
    refuse(PLACE "--load a.csv --ranks 2 --slots 3", "3 slots are too few for 4 experts, 1 short");
    refuse(PLACE "--load a.csv --ranks 2 --slots 5", "2 ranks do not divide 5 slots");
    refuse(PLACE "--load a.csv --ranks 4 --method ilpload --max-load 1.5",
           "expert 2 of layer 4 alone has 1.875");
    refuse(PLACE "--load a.csv --cost wide.json --ranks 2", "expected 2 x 2");
    refuse(PLACE "--load a.csv --cost cost.json --topology node", "give one of them");
    refuse(PLACE "--load a.csv --method magic --ranks 2", "'magic' is no placement method");
    refuse(PLACE "--evaluate a.csv --ranks 2", "--placement");
    refuse(PLACE "--evaluate a.csv --placement old.json --topology complete:ranks=3",
           "has 2 ranks, the cluster 3");
    refuse(PLACE "--evaluate a.csv b.csv --placement a.json --ranks 2", "unexpected argument 'b.csv'");
    refuse(PLACE "--evaluate a.csv --load a.csv --placement a.json --ranks 2", "exclude each other");
    refuse(PLACE "--ranks 2", "no load given: LOAD");
    refuse(PLACE "nowhere.csv --ranks 2", "nowhere.csv");
    put("huge.csv", "layer,expert,tokens\n0,0,1e308\n0,1,1e308\n");
    refuse(PLACE "--load huge.csv --ranks 2", "too large");
    refuse(PLACE "--load a.csv --ranks 2 --to magic -o x.json", "'magic' is no format");
    refuse(PLACE "--load a.csv --ranks 2 --to sglang", "need -o");
    refuse(PLACE "--load a.csv --ranks 2 --slots 6 --max-moves 1", "need --current");
    refuse(PLACE "--load a.csv --ranks 2 --slots 6 --c-layer 2",
           "c_layer of rank 0 is too small: 2, 1 fewer than its 3 slots");
    refuse(PLACE "--load a.csv --ranks 2 --slots 6 --c-exp 5", "c_exp of rank 0 is too small: 5, 1 fewer");
    refuse(PLACE "--load a.csv --topology complete:ranks=2 --attention dpp",
           "neither paper nor dp nor a file");
    refuse(PLACE "--load a.csv --cost none.json", "unable to open none.json");
    refuse(PLACE "--load a.csv --topology complete:ranks=2,ranks=4", "says ranks twice");
}

/* What users write: rows without brackets of their own, byte order marks, formats that do not say how many ranks. */
static void test_leniency(void **state)
{
    (void)state;
    put("row.json", "[3, 1]");
    json_t *o = run_json(PLACE "--load a.csv --cost cost.json --c-layer row.json --c-exp 8 --json");
    assert_true(real(o, "gap") == 0);
    json_decref(o);
    put("bom.csv", "\xef\xbb\xbflayer,expert,tokens\n4,0,10\n4,1,20\n");
    json_decref(run_json(PLACE "--load bom.csv --ranks 2 --json"));
    json_decref(run_json(PLACE "--load a.csv --ranks 2 --slots 4 --to sglang -o s.json --json"));
    json_decref(run_json(PLACE "--evaluate a.csv --placement s.json --ranks 2 --json"));
}

/* Bytes of an activation: as given, else of the rows that the trace tells of, else none are told. */
static void test_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *load, *options;
        double
            bytes; // there and back, a token that leaves its node in half of its activations; below 0: not told
    } cases[] = {{"plain.safetensors", "", -1},
                 {"plain.safetensors", "--bytes 1000", 2000},
                 {"rows.safetensors", "", 2 * 2 * 96},
                 {"rows.safetensors", "--bytes 1000", 2000},
                 {"counts.safetensors", "", 2 * 2 * 96}};
    put("t.tsv", "layer\texpert\ttoken_"
                 "id\tcount\n1\t0\t7\t4\n1\t1\t7\t4\n1\t2\t7\t4\n1\t3\t7\t4\n1\t0\t8\t1\n1\t1\t8\t1\n");
    run_line(
        "\"$coterie\" trace convert t.tsv -o plain.safetensors && \"$coterie\" trace convert t.tsv --hidden "
        "96 -o "
        "rows.safetensors && \"$coterie\" trace convert rows.safetensors --counts -o counts.safetensors && "
        "\"$coterie\" trace info counts.safetensors");
    if (c.status) fail_msg("%s", c.err);
    assert_non_null(strstr(c.out, "hidden      96 columns"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[256];
        snprintf(line, sizeof line, PLACE "--load %s --ranks 2x1 %s --json", cases[i].load, cases[i].options);
        json_t *o = run_json(line);
        const json_t *told = json_object_get(json_object_get(o, "before"), "bytes_per_token");
        if (cases[i].bytes < 0)
            assert_true(json_is_null(told));
        else
            assert_true(fabs(json_number_value(told) - cases[i].bytes) < 1e-9);
        json_decref(o);
        snprintf(line, sizeof line, PLACE "--load %s --ranks 2x1 %s", cases[i].load, cases[i].options);
        run_line(line);
        assert_int_equal(c.status, 0);
        assert_int_equal(strstr(c.out, "their bytes a token") != NULL, cases[i].bytes > 0);
    }
    refuse(PLACE "--load plain.safetensors --ranks 2x1 --bytes 0", "--bytes");
}

/* The figures of the map in use, else of contiguous experts, and of the new one are those of the loads. */
static void test_goal(void **state)
{
    (void)state;
    put("pairs.csv", "layer,expert,tokens,source\n2,0,40,0\n2,1,40,1\n2,2,10,0\n2,3,10,1\n");
    json_t *o =
        run_json(PLACE "--load pairs.csv --ranks 2x1 --top-k 2 --bytes 100 --json --to sglang -o g.json");
    const json_t *before = json_object_get(o, "before"), *after = json_object_get(o, "after");
    // Contiguous: experts 0 and 1 on rank 0, of whose 100 tokens 40 and 10 cross; then 0 with 2 or 3, whichever is near
    assert_true(real(after, "bytes_per_token") == 0);
    assert_string_equal(json_string_value(json_object_get(before, "name")), "contiguous");
    assert_true(real(before, "worst_peak") == 1.6 && real(after, "worst_peak") == 1);
    assert_true(real(before, "between_nodes") == 0.5 && real(after, "between_nodes") == 0);
    assert_true(real(before, "between_nodes_per_token") == 1 && real(before, "bytes_per_token") == 200);
    assert_true(fabs(real(json_object_get(before, "balancedness"), "sglang") - 0.625) < 1e-6);
    json_decref(o);
    run_line("tr -d ' \\n' <g.json");
    assert_non_null(strstr(c.out, "[0,2,1,3]"));
    run_line(PLACE "--load pairs.csv --ranks 2x1 --to vllm -o g.jsonl");
    assert_non_null(strstr(c.out, "every rank what the load says"));
    assert_non_null(strstr(c.out, "balancedness (vllm)"));
    assert_non_null(strstr(c.out, "a token, in all layers                              ?               ?"));
    assert_non_null(strstr(c.out, "--top-k K gives"));
    assert_null(strstr(c.err, "warning"));
    for (const char *line = c.out; line && *line; line = strchr(line, '\n') + 1)
        assert_true(strcspn(line, "\n") <= 100);
    // the same map again is no better than what runs, and says so; nobody knows who sent the tokens of a.csv
    run_line(PLACE "--load pairs.csv --ranks 2x1 --current g.json --to tensorrt-llm -o g.yaml");
    assert_non_null(strstr(c.err, "warning: the new map is no better than 'g.json'"));
    assert_non_null(strstr(c.out, "imbalance ratio (tensorrt-llm)                   0.0000          0.0000"));
    run_line(PLACE "--load a.csv --ranks 2x2");
    assert_non_null(strstr(c.out, "every rank evenly: the load does not say"));
    assert_non_null(strstr(c.out, "all maps cost the same"));
    // A row of the distance, in the unit that the report has it in; none where there is no distance.
    run_line(PLACE "pairs.csv --ranks 2x1"); // half of the activations go 1 hop and come back: 2 hops each
    assert_non_null(strstr(c.out, "hops an activation                               1.0000          0.0000"));
    run_line(PLACE "pairs.csv --ranks 2x1 --distance cost");
    assert_non_null(strstr(c.out, "microseconds an activation"));
    put("near.json", "[[1, 3]]"); // 80 of 100 are on the first rank's side, and 50 after
    run_line(PLACE "pairs.csv --cost near.json");
    assert_non_null(strstr(c.out, "cost an activation                               1.4000          2.0000"));
    run_line(PLACE "pairs.csv --ranks 2");
    assert_null(strstr(c.out, "an activation  "));
    run_line(PLACE "--load a.csv --ranks 2x2 --attention paper");
    assert_non_null(strstr(c.out, "--attention paper"));
    run_line(PLACE "--evaluate a.csv --placement a.json --topology complete:ranks=2");
    assert_non_null(strstr(c.out, "not known: the load does not say K"));
    refuse(PLACE "--load a.csv --ranks 2x", "neither a number of ranks nor NODESxRANKS");
    refuse(PLACE "--load a.csv --ranks x4", "neither a number");
    refuse(PLACE "--load a.csv --ranks 0", "neither a number");
    refuse(PLACE "--load a.csv --ranks 3x-1", "neither a number");
    refuse(PLACE "--load a.csv --ranks 200x200", "neither a number");
    refuse(PLACE "--load a.csv --ranks 1x2 --topology complete:ranks=2", "says 1 nodes");
}

/* What the default makes, every engine's format can say, whatever the sizes. */
static void test_formats(void **state)
{
    (void)state;
    static const char *const formats[] = {"sglang", "vllm", "tensorrt-llm", "vllm-ascend", "omni-infer"};
    for (int ranks = 1; ranks <= 6; ranks++)
        for (int f = 0; f < 5; f++) {
            char line[256];
            snprintf(line, sizeof line,
                     PLACE "--load a.csv --ranks %d -o f.json && " PLACE
                           "convert f.json --to %s -o f.map && " PLACE
                           "--load a.csv --ranks %d --to %s -o f.map",
                     ranks, formats[f], ranks, formats[f]);
            run_line(line);
            if (c.status) fail_msg("%s: %s", line, c.err);
        }
}

/* One layer that cannot meet a limit does not veto the others. */
static void test_soft_limit(void **state)
{
    (void)state;
    run_line(PLACE "--load a.csv --ranks 4 --max-load 1.5");
    assert_int_equal(c.status, 0);
    assert_non_null(strstr(c.out, "max load    1.5 is not met in 2 of 2 layers"));
    assert_non_null(strstr(c.out, "the least peak found: 1.875"));
    assert_non_null(strstr(c.out, "layer 4 at worst"));
    run_line(PLACE "--load a.csv --ranks 4 --max-load 1.6");
    assert_non_null(strstr(c.out, "max load    1.6 is not met in 1 of 2 layers"));
    run_line(PLACE "--load a.csv --ranks 4 --max-load 1.9");
    assert_null(strstr(c.out, "max load"));
    const double limits[] = {1.5, 1.6, 1.9};
    for (int i = 0; i < 3; i++) {
        char line[256];
        snprintf(line, sizeof line, PLACE "--load a.csv --ranks 4 --max-load %g --json", limits[i]);
        json_t *o = run_json(line);
        const json_t *said = json_object_get(o, "max_load"), *above = json_object_get(said, "layers_above");
        assert_true(real(said, "limit") == limits[i]);
        assert_true(json_is_boolean(json_object_get(said, "met")));
        assert_int_equal(json_is_true(json_object_get(said, "met")), i == 2);
        assert_int_equal(json_array_size(above), 2 - i);
        if (i < 2) assert_int_equal(json_integer_value(json_array_get(above, 0)), 4);
        json_decref(o);
    }
    json_t *o = run_json(PLACE "--load a.csv --ranks 4 --json");
    assert_true(json_is_null(json_object_get(o, "max_load")));
    json_decref(o);
}

static void test_topology(void **state)
{
    (void)state;
    json_t *o = run_json("\"$coterie\" topology distances fattree:ranks=8,gpus=2,servers=1,leaves=2 --json");
    const json_t *row = json_array_get(json_object_get(o, "distances"), 1);
    static const double want[] = {0, 0, 4, 4, 6, 6, 6, 6};
    for (size_t i = 0; i < 8; i++) assert_true(json_number_value(json_array_get(row, i)) == want[i]);
    json_decref(o);
    run_line("\"$coterie\" topology distances fattree:ranks=8 --plot d.svg && head -c 4 d.svg");
    assert_int_equal(c.status, 0);
    assert_string_equal(c.out, "<svg");
    run_line("\"$coterie\" topology show fattree:ranks=64");
    assert_int_equal(c.status, 0);
    assert_non_null(strstr(c.out, "64 on 16 hosts"));
}

static void test_report(void **state)
{
    (void)state;
    run_line(PLACE
             "--load a.csv --topology complete:ranks=2 --report r.html > /dev/null && grep -c '<svg' r.html");
    assert_int_equal(c.status, 0);
    assert_true(atoi(c.out) >= 4);
    // Who made it, when and how; a word that a shell would split is in quotes.
    run_line(
        PLACE
        "--load a.csv --ranks 2 --report 'a & b.html' > /dev/null && grep -o '<p class=\"note\">Coterie .*' "
        "'a & b.html'");
    assert_int_equal(c.status, 0);
    int year;
    char version[32];
    assert_int_equal(sscanf(c.out, "<p class=\"note\">Coterie %31[0-9.], %d-", version, &year), 2);
    assert_string_equal(version, cot_version());
    assert_true(year >= 2026);
    assert_non_null(strstr(c.out, "<code>coterie place"));
    assert_non_null(strstr(c.out, "--load a.csv --ranks 2 --report 'a &amp; b.html'</code>"));
}

/* Whether the page shows `cost` an activation for a method. */
static bool reports(const char *method, double cost)
{
    char row[64];
    snprintf(row, sizeof row, "><td>%s", method);
    run_line("cat r.html");
    const char *at = strstr(c.out, row), *cell = at ? strstr(at + strlen(row), "<td>") : NULL;
    if (!cell) fail_msg("the page lacks %s", method);
    return fabs(strtod(cell + 4, NULL) - cost) <= 1e-4 * cost;
}

static double an_activation(const char *line)
{
    json_t *o = run_json(line);
    double cost = real(o, "objective_per_activation");
    json_decref(o);
    return cost;
}

/* A page's methods obey the run's limit, and its own method is what the run printed. */
static void test_report_limits(void **state)
{
    (void)state;
    put_load("before.csv", 13);
    put_load("after.csv", 29);
#define ON_TREE                                                                                              \
    PLACE "--load after.csv --topology fattree:ranks=8,gpus=2,servers=2,leaves=2 --attention paper --json "
    double limited = an_activation(ON_TREE "--method replicate --slots 16 --max-load 2"),
           rr = an_activation(ON_TREE "--method rr --slots 16"),
           freely = an_activation(ON_TREE "--method replicate --slots 16");
    assert_true(limited < freely);
    assert_true(an_activation(ON_TREE "--method replicate --slots 16 --max-load 2 --report r.html") ==
                limited);
    assert_true(reports("replicate", limited) && !reports("replicate", freely) && reports("rr", rr));
    double exact = an_activation(ON_TREE "--method ilpload --slots 16 --max-load 2 --report r.html");
    assert_true(reports("ilpload", exact) && reports("replicate", limited));
    run_line("grep -c \"At most 2 mean ranks' loads in a layer with ilpload replicate balance;\" r.html");
    assert_int_equal(atoi(c.out), 1);
    run_line(PLACE "--load before.csv --ranks 8 --slots 24 -o running.json");
    double kept = an_activation(ON_TREE "--slots 24 --method replicate --current running.json --max-moves 0 "
                                        "--report r.html"),
           fresh = an_activation(ON_TREE "--method replicate --slots 24");
    assert_true(reports("replicate", kept) && !reports("replicate", fresh));
}

int main(void)
{
    if (!mkdtemp(folder)) return 1;
    put("a.csv", "layer,expert,tokens\n4,0,10\n4,1,20\n4,2,30\n4,3,4\n6,0,10\n6,1,9\n6,2,18\n6,3,9\n");
    put("c.csv", "layer,expert,tokens\n0,0,20\n0,1,21\n0,2,4\n0,3,3\n1,0,10\n1,1,9\n1,2,1\n1,3,2\n");
    put("cost.json", "[[0, 5], [0, 9]]");
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_place),
                                       cmocka_unit_test(test_dense_rows),
                                       cmocka_unit_test(test_replan),
                                       cmocka_unit_test(test_moves),
                                       cmocka_unit_test(test_moves_from_contiguous),
                                       cmocka_unit_test(test_moves_from_storage),
                                       cmocka_unit_test(test_other_slots),
                                       cmocka_unit_test(test_leniency),
                                       cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_goal),
                                       cmocka_unit_test(test_bytes),
                                       cmocka_unit_test(test_formats),
                                       cmocka_unit_test(test_soft_limit),
                                       cmocka_unit_test(test_topology),
                                       cmocka_unit_test(test_report),
                                       cmocka_unit_test(test_report_limits)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char line[64];
    snprintf(line, sizeof line, "rm -r %s", folder);
    return system(line) ? 1 : failed;
}
