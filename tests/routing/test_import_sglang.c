/* Recordings of SGLang as traces: experts through the map, and requests through batches. */
#include "harness/placement/samples.h"
#include "harness/refused.h"
#include "harness/routing/torch_archive.h"
#include "harness/scratch.h"

#include "coterie/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LAYERS = 3, SLOTS = 5, K = 2, COLUMNS = 3 }; // layer 0 is dense; no token has a third expert
static const int32_t map[LAYERS][SLOTS] = {{0, 1, 2, 3, 0}, {3, 2, 1, 0, 2}, {1, 0, 3, 2, 1}};

/* A pickle in the making, with the storages of its tensors. */
typedef struct writer {
    archive pickle, file;
    int32_t numbers[8][LAYERS * 16 * COLUMNS];
    size_t counts[8];
    int storages;
    int passes;
    int turned; // slots that the map's rows are turned by
} writer;
static writer w;

static void put(const char *text)
{
    archive_put(&w.pickle, text, strlen(text));
}

static void put_word(const char *text)
{
    put("X");
    archive_number(&w.pickle, strlen(text), 4);
    put(text);
}

static void put_integer(int64_t n)
{
    put("J");
    archive_number(&w.pickle, (uint64_t)n, 4);
}

static void put_list(const char *key, const int *values, int n)
{
    put_word(key);
    put("](");
    for (int i = 0; i < n; i++) put_integer(values[i]);
    put("e");
}

static void put_tensor(const char *key, const int32_t *values, const int *shape, int dims)
{
    static const char *const names[] = {"0", "1", "2", "3", "4", "5", "6", "7"};
    const int s = w.storages++;
    size_t n = 1;
    for (int d = 0; d < dims; d++) n *= (size_t)shape[d];
    memcpy(w.numbers[s], values, n * sizeof *values);
    w.counts[s] = n;
    put_word(key);
    put("ctorch._utils\n_rebuild_tensor_v2\n((");
    put_word("storage");
    put("ctorch\nIntStorage\n");
    put_word(names[s]);
    put_word("cpu");
    put_integer((int64_t)n);
    put("tQ");
    put_integer(0);
    put("(");
    for (int d = 0; d < dims; d++) put_integer(shape[d]);
    put("t(");
    for (int d = 0; d < dims; d++) {
        int stride = 1;
        for (int k = d + 1; k < dims; k++) stride *= shape[k];
        put_integer(stride);
    }
    put("t\x89"
        "ccollections\nOrderedDict\n)RtR");
}

/* A file whose map has each expert `turned` slots further on than `map`. */
static void begin_turned(int turned)
{
    int32_t own[LAYERS][SLOTS];
    for (int l = 0; l < LAYERS; l++)
        for (int s = 0; s < SLOTS; s++) own[l][(s + turned) % SLOTS] = map[l][s];
    w = (writer){.turned = turned};
    put("\x80\2}(");
    put_tensor("last_physical_to_logical_map", &own[0][0], (const int[]){LAYERS, SLOTS}, 2);
    put_word("records");
    put("](");
}

static void begin(void)
{
    begin_turned(0);
}

/* Which slot a token's k-th expert sits in. */
static int slot_of(int id, int layer, int k)
{
    return (id * 3 + layer + 2 * k) % SLOTS;
}

/* A pass of tokens whose ids are `ids`; negative ones only fill it up. `lengths` NULL: it decoded. `positions` may be NULL. */
static void put_pass(const int *ids, const int *positions, int n, const int *lengths, int n_lengths)
{
    int32_t slots[LAYERS * 16 * COLUMNS];
    for (int l = 0; l < LAYERS; l++)
        for (int t = 0; t < n; t++)
            for (int k = 0; k < COLUMNS; k++)
                slots[(l * n + t) * COLUMNS + k] =
                    l && k < K && ids[t] >= 0 ? (slot_of(ids[t], l, k) + w.turned) % SLOTS : -1;
    put("}(");
    put_word("rank");
    put_integer(0);
    put_word("forward_pass_id");
    put_integer(w.passes++);
    put_list("input_ids", ids, n);
    if (positions) put_list("positions", positions, n);
    if (lengths)
        put_list("extend_seq_lens", lengths, n_lengths);
    else {
        put_word("extend_seq_lens");
        put("N");
    }
    put_tensor("topk_ids_of_layer", slots, (const int[]){LAYERS, n, COLUMNS}, 3);
    put("u");
}

static void end(scratch_pad *pad, const char *name)
{
    static const char *const members[] = {"s/data/0", "s/data/1", "s/data/2", "s/data/3",
                                          "s/data/4", "s/data/5", "s/data/6", "s/data/7"};
    put("eu.");
    archive_add(&w.file, "s/data.pkl", w.pickle.bytes, w.pickle.used);
    for (int i = 0; i < w.storages; i++)
        archive_add(&w.file, members[i], w.numbers[i], w.counts[i] * sizeof **w.numbers);
    archive_end(&w.file, 0);
    FILE *f = fopen(in_scratch(pad, name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(w.file.bytes, 1, w.file.used, f), w.file.used);
    assert_int_equal(fclose(f), 0);
}

static void import(scratch_pad *pad, cot_trace *trace, const char *name)
{
    const cot_trace_import_options options = {.size = sizeof options, .say = hear, .context = pad};
    cot_error error = {0};
    pad->notes[0] = 0;
    if (cot_trace_import(trace, in_scratch(pad, name), &options, &error) != COT_OK)
        fail_msg("%s", error.message);
}

/* The trace's sequences are these ids, and its experts those of the map. */
static void check(const cot_trace *trace, const int *ids, const int *offsets, int sequences)
{
    assert_int_equal(trace->n_layers, LAYERS - 1);
    assert_int_equal(trace->layers[0], 1);
    assert_int_equal(trace->n_experts, 4);
    assert_int_equal(trace->top_k, K);
    assert_null(trace->weights);
    assert_int_equal(trace->n_sequences, sequences);
    for (int s = 0; s <= sequences; s++) assert_int_equal(trace->sequence_offsets[s], offsets[s]);
    for (int t = 0; t < offsets[sequences]; t++) {
        assert_int_equal(trace->token_ids[t], ids[t]);
        for (int l = 1; l < LAYERS; l++)
            for (int k = 0; k < K; k++)
                assert_int_equal(cot_trace_expert(trace, l - 1, t, k), map[l][slot_of(ids[t], l, k)]);
    }
}

/* Two requests are prefilled, decoded, a third comes, the first ends, and one that is prefilled in two parts. */
static void test_requests(void **state)
{
    scratch_pad *pad = *state;
    cot_trace trace;
    begin();
    put_pass((const int[]){10, 11, 12, 20, 21}, (const int[]){0, 1, 2, 0, 1}, 5, (const int[]){3, 2}, 2);
    put_pass((const int[]){13, 22, -1}, (const int[]){3, 2, 0}, 3, NULL, 0);
    put_pass((const int[]){30, 31, 40, 41}, (const int[]){0, 1, 0, 1}, 4, (const int[]){2, 2}, 2);
    put_pass((const int[]){42, 43}, (const int[]){2, 3}, 2, (const int[]){2}, 1);
    put_pass((const int[]){23, 32, 44}, (const int[]){3, 2, 4}, 3, NULL, 0);
    put_pass((const int[]){33, 45}, (const int[]){3, 5}, 2, NULL, 0);
    put_pass((const int[]){34, 46}, (const int[]){4, 6}, 2, NULL,
             0); // where the first and the second had come to
    end(pad, "a.pt");
    import(pad, &trace, "a.pt");
    check(&trace,
          (const int[]){10, 11, 12, 13, 20, 21, 22, 23, 30, 31, 32, 33, 34, 40, 41, 42, 43, 44, 45, 46},
          (const int[]){0, 4, 8, 13, 20}, 4);
    assert_non_null(strstr(pad->notes, "1 tokens left out"));
    cot_trace_close(&trace);
}

/* Nothing says what follows what: a pass is a sequence. */
static void test_no_positions(void **state)
{
    scratch_pad *pad = *state;
    cot_trace trace;
    begin();
    put_pass((const int[]){5, 6, 7}, NULL, 3, NULL, 0);
    put_pass((const int[]){8, 9}, NULL, 2, NULL, 0);
    end(pad, "b.pt");
    import(pad, &trace, "b.pt");
    check(&trace, (const int[]){5, 6, 7, 8, 9}, (const int[]){0, 3, 5}, 2);
    cot_trace_close(&trace);
}

/* Ranks of tensor parallelism record the same tokens, under slots of their own: they are taken once. What differs in its pass, a
 * token, a position or an expert is not the same, nor is what one rank records twice. */
static void test_ranks_alike(void **state)
{
    scratch_pad *pad = *state;
    cot_trace trace;
    static const int ids[] = {10, 11, 12}, others[] = {10, 11, 17}, from_0[] = {0, 1, 2}, length[] = {3};
    assert_int_equal(mkdir(in_scratch(pad, "ranks"), 0777), 0);
    for (int rank = 0; rank < 3; rank++) {
        char name[32];
        begin_turned(rank);
        put_pass(ids, from_0, 3, length, 1);
        w.passes = 0;
        put_pass(ids, from_0, 3, length, 1);
        put_pass((const int[]){13}, (const int[]){3}, 1, NULL, 0);
        if (rank == 2) { // each after the pass of the same number, of which one thing differs
            w.passes = 0;
            put_pass(others, from_0, 3, length, 1);
            put_pass((const int[]){13}, (const int[]){4}, 1, NULL, 0);
            put_pass((const int[]){13}, (const int[]){3}, 1, NULL, 0);
        }
        snprintf(name, sizeof name, "ranks/%d.pt", rank);
        end(pad, name);
    }
    import(pad, &trace, "ranks");
    check(&trace, (const int[]){10, 11, 12, 13, 10, 11, 12, 10, 11, 17, 13, 13},
          (const int[]){0, 4, 7, 10, 11, 12}, 5);
    assert_non_null(strstr(pad->notes, "6 records left out, which ranks before have recorded too"));
    cot_trace_close(&trace);
    // the same tokens, of which other experts are recorded
    remove_tree(in_scratch(pad, "ranks"));
    assert_int_equal(mkdir(in_scratch(pad, "ranks"), 0777), 0);
    for (int rank = 0; rank < 2; rank++) {
        begin();
        w.turned = rank;
        put_pass(ids, from_0, 3, length, 1);
        end(pad, rank ? "ranks/1.pt" : "ranks/0.pt");
    }
    import(pad, &trace, "ranks");
    assert_int_equal(trace.n_sequences, 2);
    cot_trace_close(&trace);
}

/* A folder holds a file a rank: what torch itself wrote. */
static void test_samples(void **state)
{
    scratch_pad *pad = *state;
    cot_trace trace;
    cot_error error = {0};
    const cot_trace_import_options options = {.size = sizeof options, .say = hear, .context = pad};
    if (cot_trace_import(&trace, SAMPLES "sglang-per-token", &options, &error) != COT_OK)
        fail_msg("%s", error.message);
    assert_int_equal(trace.n_layers, SAMPLE_LAYERS - SAMPLE_FIRST);
    assert_int_equal(trace.n_experts, SAMPLE_EXPERTS);
    assert_int_equal(trace.n_tokens, 3 + 4 + 4 + 5);
    assert_int_equal(trace.layers[0], SAMPLE_FIRST);
    for (int t = 0; t < 3; t++) // the first rank's prefill
        for (int l = SAMPLE_FIRST; l < SAMPLE_LAYERS; l++)
            for (int k = 0; k < 2; k++)
                assert_int_equal(cot_trace_expert(&trace, l - SAMPLE_FIRST, t, k),
                                 sample_slot(l, (l + t * 3 + k * 5) % SAMPLE_SLOTS));
    cot_trace_close(&trace);
    assert_refused(cot_trace_import(&trace, SAMPLES "sglang-stat.pt", &options, &error), &error,
                   "place --load reads counts");
}

static void test_refusals(void **state)
{
    scratch_pad *pad = *state;
    cot_trace trace;
    cot_error error = {0};
    begin();
    put_pass((const int[]){-1, -1}, (const int[]){0, 1}, 2, NULL, 0);
    end(pad, "c.pt");
    assert_refused(cot_trace_import(&trace, in_scratch(pad, "c.pt"), NULL, &error), &error,
                   "no tokens with experts");
    begin();
    end(pad, "d.pt");
    assert_refused(cot_trace_import(&trace, in_scratch(pad, "d.pt"), NULL, &error), &error,
                   "no tokens with experts");
    begin();
    put_tensor("x", &map[0][0], (const int[]){1}, 1);
    end(pad, "e.pt");
    assert_refused(cot_trace_import(&trace, in_scratch(pad, "e.pt"), NULL, &error), &error,
                   "record in the mode per_token");
    begin();
    put_pass((const int[]){1}, (const int[]){0}, 1, NULL, 0);
    w.numbers[1][COLUMNS] = SLOTS;
    end(pad, "f.pt");
    assert_refused(cot_trace_import(&trace, in_scratch(pad, "f.pt"), NULL, &error), &error,
                   "is no slot from -1 to 4");
    const cot_trace_import_options few = {.size = sizeof few, .n_experts = 3};
    begin();
    put_pass((const int[]){1}, (const int[]){0}, 1, NULL, 0);
    end(pad, "g.pt");
    assert_refused(cot_trace_import(&trace, in_scratch(pad, "g.pt"), &few, &error), &error,
                   "more than the 3 experts given allow");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_requests), cmocka_unit_test(test_no_positions),
                                       cmocka_unit_test(test_ranks_alike), cmocka_unit_test(test_samples),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
