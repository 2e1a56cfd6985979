/* Traces through the builder, the writer and the reader; every refusal of the reader. */
#include "harness/refused.h"
#include "harness/scratch.h"

#include "base/safetensors.h"
#include "coterie/trace.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct token {
    int32_t id;
    uint16_t *experts; // [L][K]
    float *weights;    // [L][K]
} token;

/* Builds a trace of random tokens, dealt to `S` sequences in turn, and compares what comes back from the
 * file. */
static void round_trip(scratch_pad *pad, int L, int E, int K, int S, int T)
{
    enum { MAX = 512 };
    cot_error error = {0};
    cot_trace_builder *builder;
    int32_t layers[64];
    for (int l = 0; l < L; l++) layers[l] = 3 * l + 1;
    assert_int_equal(cot_trace_builder_open(&builder, "m \"q\" \xc3\xa9", L, layers, E, K, &error), COT_OK);
    token *sequence = calloc((size_t)S * MAX, sizeof *sequence);
    int *length = calloc((size_t)S + 1, sizeof *length);
    for (int t = 0; t < T; t++) {
        int s = (int)pad_draw(pad, (uint32_t)S);
        token *one = &sequence[s * MAX + length[s]++];
        assert_true(length[s] <= MAX);
        one->id = (int32_t)pad_draw(pad, 1000) - 1;
        one->experts = malloc((size_t)(L * K) * sizeof *one->experts);
        one->weights = malloc((size_t)(L * K) * sizeof *one->weights);
        for (int l = 0; l < L; l++) draw_experts(pad, one->experts + l * K, K, E);
        for (int i = 0; i < L * K; i++)
            one->weights[i] = (float)pad_draw(pad, 2000) / 1024 - 0.5f; // exact in float16
        assert_int_equal(cot_trace_builder_append(builder, s, one->id, one->experts, one->weights, &error),
                         COT_OK);
    }
    cot_trace built, trace;
    memset(&built, 0xa5, sizeof built);
    memset(&trace, 0xa5, sizeof trace);
    assert_int_equal(cot_trace_builder_finish(&built, builder, &error), COT_OK);
    cot_trace_builder_close(builder);
    assert_true(built.model_hash == 0 && built.hidden == 0);
    const uint64_t hash = pad_draw(pad, 3) ? (uint64_t)pad_draw(pad, UINT32_MAX) << 29 : 0;
    const int32_t hidden = (int32_t)pad_draw(pad, 3) * 2048;
    built.model_hash = hash;
    built.hidden = hidden;
    assert_int_equal(cot_trace_write(&built, in_scratch(pad, "a.safetensors"), &error), COT_OK);
    cot_trace_close(&built);
    assert_int_equal(cot_trace_open(&trace, in_scratch(pad, "a.safetensors"), &error), COT_OK);
    int last = S;
    while (last && !length[last - 1]) last--; // sequences after the last that got a token do not exist
    assert_string_equal(trace.model, "m \"q\" \xc3\xa9");
    assert_true(trace.model_hash == hash);
    assert_int_equal(trace.hidden, hidden);
    assert_int_equal(trace.kind, COT_TRACE_TOKENS);
    assert_int_equal(trace.n_layers, L);
    assert_int_equal(trace.n_experts, E);
    assert_int_equal(trace.top_k, K);
    assert_int_equal(trace.n_tokens, T);
    assert_int_equal(trace.n_sequences, last);
    assert_memory_equal(trace.layers, layers, (size_t)L * sizeof *layers);
    assert_true(E <= 256 ? trace.experts_u8 && !trace.experts_u16 : trace.experts_u16 && !trace.experts_u8);
    for (int s = 0, t = 0; s < last; s++) {
        assert_int_equal(trace.sequence_offsets[s], t);
        for (int i = 0; i < length[s]; i++, t++) {
            token *one = &sequence[s * MAX + i];
            assert_int_equal(trace.token_ids[t], one->id);
            for (int l = 0; l < L; l++)
                for (int k = 0; k < K; k++) {
                    assert_int_equal(cot_trace_expert(&trace, l, t, k), one->experts[l * K + k]);
                    assert_true(cot_trace_weight(&trace, l, t, k) == one->weights[l * K + k]);
                }
            free(one->experts);
            free(one->weights);
        }
    }
    assert_int_equal(trace.sequence_offsets[last], T);
    cot_trace_close(&trace);
    assert_null(trace.owner);
    free(sequence);
    free(length);
}

static void test_round_trip(void **state)
{
    scratch_pad *pad = *state;
    round_trip(pad, 1, 1, 1, 1, 0);
    round_trip(pad, 1, 1, 1, 1, 1);
    round_trip(pad, 3, 256, 7, 5, 100);
    round_trip(pad, 2, 257, 3, 4, 65);
    round_trip(pad, 2, 65536, 9, 2, 20);
    for (int i = 0; i < 10; i++) {
        int E = 1 + (int)pad_draw(pad, 300);
        round_trip(pad, 1 + (int)pad_draw(pad, 6), E, 1 + (int)pad_draw(pad, (uint32_t)(E < 12 ? E : 12)),
                   1 + (int)pad_draw(pad, 9), (int)pad_draw(pad, 200));
    }
}

static void test_builder_refuses(void **state)
{
    (void)state;
    cot_error error;
    cot_trace_builder *builder;
    const int32_t falling[] = {1, 1}, below[] = {-1, 0}, late[] = {0, 2, 1};
    assert_refused(cot_trace_builder_open(&builder, "m", 1, NULL, 4, 5, &error), &error, "5 of 4");
    assert_refused(cot_trace_builder_open(&builder, "m", 0, NULL, 4, 2, &error), &error, "0 layers");
    assert_refused(cot_trace_builder_open(&builder, "m", 1, NULL, 65537, 2, &error), &error, "65537");
    assert_refused(cot_trace_builder_open(&builder, "m", 2, falling, 4, 2, &error), &error, "ascending");
    assert_refused(cot_trace_builder_open(&builder, "m", 2, below, 4, 2, &error), &error, "ascending");
    assert_refused(cot_trace_builder_open(&builder, "m", 3, late, 4, 2, &error), &error, "ascending at '1'");
    assert_int_equal(cot_trace_builder_open(&builder, "m", 2, NULL, 4, 2, &error), COT_OK);
    uint16_t experts[] = {0, 1, 2, 3};
    float weights[] = {0.5f, 0.25f, 1, 0};
    assert_refused(cot_trace_builder_append(builder, 0, -2, experts, weights, &error), &error, "-2");
    assert_refused(cot_trace_builder_append(builder, -1, 1, experts, weights, &error), &error, "-1");
    experts[2] = 4;
    assert_refused(cot_trace_builder_append(builder, 0, 1, experts, weights, &error), &error,
                   "layer 1 goes to expert 4 of 4");
    experts[2] = 2;
    const float bad[] = {NAN, INFINITY, -INFINITY, 65520};
    for (int i = 0; i < 4; i++) {
        weights[1] = bad[i];
        assert_refused(cot_trace_builder_append(builder, 0, 1, experts, weights, &error), &error, "float16");
    }
    weights[1] = 65504;
    assert_int_equal(cot_trace_builder_append(builder, 2, 1, experts, weights, &error), COT_OK);
    cot_trace trace;
    assert_int_equal(cot_trace_builder_finish(&trace, builder, &error), COT_OK);
    assert_int_equal(trace.n_tokens, 1); // nothing of what was refused
    assert_int_equal(trace.n_sequences, 3);
    assert_int_equal(trace.sequence_offsets[2], 0);
    cot_trace_close(&trace);
    assert_int_equal(cot_trace_builder_finish(&trace, builder, &error), COT_OK);
    assert_int_equal(trace.n_tokens, 0); // it starts anew
    cot_trace_close(&trace);
    cot_trace_builder_close(builder);
}

/* A small valid file as tensors and metadata, of which a test spoils one thing. */
enum {
    OFFSETS,
    IDS,
    WEIGHTS,
    EXPERTS,
    TENSORS,
    FORMAT = 1,
    VERSION = 3,
    KIND = 5,
    MODEL = 7,
    N_EXPERTS = 9,
    TOP_K = 11,
    LAYERS = 13,
    HASH = 15,
    META = 16
};
typedef struct sample {
    int64_t offsets[3];
    int32_t ids[3];
    uint16_t weights[12];
    uint8_t experts[12];
    cot_tensor tensor[TENSORS];
    const char *meta[META];
} sample;

static void fill(sample *s)
{
    *s = (sample){.offsets = {0, 1, 3},
                  .ids = {5, -1, 7},
                  .experts = {0, 1, 2, 3, 0, 3, 1, 0, 3, 2, 2, 0},
                  .tensor = {{"sequence_offsets", COT_I64, 1, {3}, s->offsets, 24},
                             {"token_ids", COT_I32, 1, {3}, s->ids, 12},
                             {"weights", COT_F16, 3, {2, 3, 2}, s->weights, 24},
                             {"experts", COT_U8, 3, {2, 3, 2}, s->experts, 12}},
                  .meta = {"format", "coterie.trace", "version", "1", "kind", "tokens", "model", "m",
                           "experts", "4", "top_k", "2", "layers", "0,9", "model_hash", "fedcba9876543210"}};
    for (int i = 0; i < 12; i++) s->weights[i] = cot_f32_to_f16((float)i);
}

static cot_status read_sample(scratch_pad *pad, const sample *s, size_t tensors, size_t meta,
                              cot_trace *trace, cot_error *error)
{
    cot_error ignored;
    assert_int_equal(
        cot_safetensors_write(in_scratch(pad, "s.safetensors"), s->tensor, tensors, s->meta, meta, &ignored),
        COT_OK);
    cot_status status = cot_trace_open(trace, in_scratch(pad, "s.safetensors"), error);
    if (status != COT_OK) assert_null(trace->owner);
    return status;
}

static void refuse(scratch_pad *pad, const sample *s, const char *words)
{
    cot_error error = {0};
    cot_trace trace;
    assert_refused(read_sample(pad, s, TENSORS, META / 2, &trace, &error), &error, words);
}

static void test_reader_accepts(void **state)
{
    scratch_pad *pad = *state;
    sample s;
    cot_trace trace;
    cot_error error = {0};
    const char *spellings[] = {"0,9", "[0, 9]", " 0 , 9 ", "[0,9]"};
    for (int i = 0; i < 4; i++) {
        fill(&s);
        s.meta[LAYERS] = spellings[i];
        assert_int_equal(read_sample(pad, &s, TENSORS, META / 2, &trace, &error), COT_OK);
        assert_int_equal(trace.n_layers, 2);
        assert_int_equal(trace.layers[1], 9);
        assert_true(cot_trace_weight(&trace, 1, 0, 1) == 7);
        assert_true(trace.model_hash == 0xfedcba9876543210);
        cot_trace_close(&trace);
    }
    assert_int_equal(read_sample(pad, &s, TENSORS, META / 2 - 1, &trace, &error), COT_OK);
    assert_true(trace.model_hash == 0);
    cot_trace_close(&trace);
    // tensors in an order that leaves some unaligned, wide experts although 4 fit a byte, no weights
    uint16_t wide[12];
    for (int i = 0; i < 12; i++) wide[i] = s.experts[i];
    const uint8_t odd = 7;
    cot_tensor shuffled[] = {{"a_stranger", COT_U8, 1, {1}, &odd, 1, COT_BLOCKS_NONE},
                             {"experts", COT_U16, 3, {2, 3, 2}, wide, 24, COT_BLOCKS_NONE},
                             s.tensor[IDS],
                             s.tensor[OFFSETS]};
    assert_int_equal(
        cot_safetensors_write(in_scratch(pad, "u.safetensors"), shuffled, 4, s.meta, META / 2, &error),
        COT_OK);
    assert_int_equal(cot_trace_open(&trace, in_scratch(pad, "u.safetensors"), &error), COT_OK);
    assert_null(trace.weights);
    assert_true(cot_trace_weight(&trace, 0, 0, 0) == 0);
    for (int i = 0; i < 12; i++)
        assert_int_equal(cot_trace_expert(&trace, i / 6, i / 2 % 3, i % 2), s.experts[i]);
    assert_memory_equal(trace.token_ids, s.ids, sizeof s.ids);
    assert_memory_equal(trace.sequence_offsets, s.offsets, sizeof s.offsets);
    // narrowed nowhere: written and read again it is the same
    assert_int_equal(cot_trace_write(&trace, in_scratch(pad, "v.safetensors"), &error), COT_OK);
    cot_trace_close(&trace);
    assert_int_equal(cot_trace_open(&trace, in_scratch(pad, "v.safetensors"), &error), COT_OK);
    assert_memory_equal(trace.experts_u16, wide, sizeof wide);
    cot_trace_close(&trace);
}

static void test_reader_refuses_metadata(void **state)
{
    scratch_pad *pad = *state;
    static const struct {
        int key;
        const char *value, *words;
    } cases[] = {
        {FORMAT, "pt", "format 'pt'"},
        {VERSION, "2", "version '2'"},
        {KIND, "sums", "kind 'sums'"},
        {N_EXPERTS, "0", "'experts' is '0'"},
        {N_EXPERTS, "-4", "'experts'"},
        {N_EXPERTS, "4.0", "'experts'"},
        {N_EXPERTS, "65537", "'experts'"},
        {N_EXPERTS, "99999999999999999999", "'experts'"},
        {N_EXPERTS, "3", "goes to expert 3 of 3"},
        {N_EXPERTS, "1", "2 experts, expected 1 to the model's 1"},
        {TOP_K, "3", "size 2 in dimension 2, expected 3"},
        {TOP_K, "", "'top_k' is ''"},
        {LAYERS, "0", "size 2 in dimension 0, expected 1"},
        {LAYERS, "0,1,2", "dimension 0, expected 3"},
        {LAYERS, "0;9", "'layers'"},
        {LAYERS, "", "'layers'"},
        {LAYERS, "0,", "'layers'"},
        {LAYERS, "[0,9", "'layers'"},
        {LAYERS, "0,9]", "'layers'"},
        {LAYERS, "9,0", "ascending"},
        {LAYERS, "3,3", "ascending"},
        {LAYERS, "0,99999999999", "'layers'"},
        {LAYERS, "-1,2", "'layers'"},
        {HASH, "", "'model_hash'"},
        {HASH, "0x1", "'model_hash'"},
        {HASH, "00000000000000001", "'model_hash'"},
    };
    sample s;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fill(&s);
        s.meta[cases[i].key] = cases[i].value;
        refuse(pad, &s, cases[i].words);
    }
    for (int gone = 0; gone < HASH - 1; gone += 2) { // each key missing
        fill(&s);
        char words[64];
        snprintf(words, sizeof words, "metadata '%s' is missing", s.meta[gone]);
        s.meta[gone] = "other";
        refuse(pad, &s, words);
    }
}

static void test_reader_refuses_tensors(void **state)
{
    scratch_pad *pad = *state;
    sample s;
    for (int i = 0; i < 12; i++) {
        fill(&s);
        s.experts[i] = (uint8_t)(4 + pad_draw(pad, 252));
        char words[80];
        snprintf(words, sizeof words, "token %d in layer %d goes to expert %d of 4", i / 2 % 3, i < 6 ? 0 : 9,
                 s.experts[i]);
        refuse(pad, &s, words);
        fill(&s);
        s.weights[i] = (uint16_t)(0x7c00 | pad_draw(pad, 1024) | pad_draw(pad, 2) << 15);
        snprintf(words, sizeof words, "token %d in layer %d is not finite", i / 2 % 3, i < 6 ? 0 : 9);
        refuse(pad, &s, words);
    }
    static const struct {
        int64_t offsets[3];
        const char *words;
    } cases[] = {{{1, 1, 3}, "from 1 to 3, expected 0 to 3"},
                 {{0, 1, 2}, "from 0 to 2"},
                 {{0, 1, 4}, "from 0 to 4"},
                 {{0, 4, 3}, "fall from 4 to 3"},
                 {{0, -1, 3}, "fall from 0 to -1"},
                 {{0, INT64_MAX, 3}, "fall"},
                 {{INT64_MIN, 0, 3}, "expected 0 to 3"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fill(&s);
        memcpy(s.offsets, cases[i].offsets, sizeof s.offsets);
        refuse(pad, &s, cases[i].words);
    }
    fill(&s);
    s.ids[1] = -2;
    refuse(pad, &s, "token 1 has id -2");
    fill(&s);
    s.tensor[OFFSETS].shape[0] = 0;
    s.tensor[OFFSETS].bytes = 0;
    refuse(pad, &s, "sequence_offsets is empty");
    fill(&s);
    s.tensor[IDS].dtype = COT_U32;
    refuse(pad, &s, "'token_ids' is U32 with 1 dimensions, expected I32 with 1");
    fill(&s);
    s.tensor[EXPERTS].dtype = COT_I8;
    refuse(pad, &s, "'experts' is I8");
    fill(&s);
    s.tensor[WEIGHTS].dtype = COT_BF16;
    refuse(pad, &s, "'weights' is BF16");
    fill(&s);
    s.tensor[IDS].shape[0] = 2;
    s.tensor[IDS].bytes = 8;
    refuse(pad, &s, "'experts' has size 3 in dimension 1, expected 2");
    fill(&s);
    s.tensor[WEIGHTS].shape[1] = 2;
    s.tensor[WEIGHTS].bytes = 16;
    refuse(pad, &s, "'weights' has size 2");
    for (int gone = 0; gone < TENSORS; gone++) {
        if (gone == WEIGHTS) continue;
        fill(&s);
        char words[64];
        snprintf(words, sizeof words, "tensor '%s' is missing", s.tensor[gone].name);
        s.tensor[gone].name = "other";
        refuse(pad, &s, words);
    }
}

/* No prefix of a valid file is valid, and a header that claims a gigabyte is refused at once. */
static void test_truncated(void **state)
{
    scratch_pad *pad = *state;
    sample s;
    cot_error error = {0};
    cot_trace trace;
    fill(&s);
    assert_int_equal(read_sample(pad, &s, TENSORS, META / 2, &trace, &error), COT_OK);
    cot_trace_close(&trace);
    cot_file_map map;
    assert_int_equal(cot_file_map_open(&map, in_scratch(pad, "s.safetensors"), &error), COT_OK);
    for (size_t bytes = 0; bytes < map.bytes; bytes++) {
        uint8_t *copy = malloc(bytes + 1); // its own block, so that a sanitizer sees every byte too many
        memcpy(copy, map.data, bytes);
        assert_int_not_equal(cot_trace_parse(&trace, copy, bytes, "cut", &error), COT_OK);
        free(copy);
    }
    uint8_t *copy = malloc(map.bytes);
    memcpy(copy, map.data, map.bytes);
    copy[3] = 0x40; // header length + 2^30
    assert_refused(cot_trace_parse(&trace, copy, map.bytes, "huge", &error), &error, "header");
    free(copy);
    cot_file_map_close(&map);
    assert_refused(cot_trace_open(&trace, in_scratch(pad, "absent"), &error), &error, "absent");
    assert_refused(cot_trace_open(&trace, pad->path, &error), &error, "directory");
}

static void test_counts(void **state)
{
    scratch_pad *pad = *state;
    sample s;
    cot_error error = {0};
    cot_trace trace, counts, again;
    fill(&s);
    s.ids[0] = 7;
    assert_int_equal(read_sample(pad, &s, TENSORS, META / 2, &trace, &error), COT_OK);
    assert_int_equal(cot_trace_count(&counts, &trace, &error), COT_OK);
    cot_trace_close(&trace);
    assert_int_equal(cot_trace_write(&counts, in_scratch(pad, "c.safetensors"), &error), COT_OK);
    assert_int_equal(cot_trace_open(&again, in_scratch(pad, "c.safetensors"), &error), COT_OK);
    const int32_t ids[] = {-1, 7};
    // layer 0: token 0 (id 7) {0,1}, 1 (-1) {2,3}, 2 (7) {0,3}; layer 9: {1,0}, {3,2}, {2,0}
    const uint32_t expected[2][2][4] = {{{0, 0, 1, 1}, {2, 1, 0, 1}}, {{0, 0, 1, 1}, {2, 1, 1, 0}}};
    for (int i = 0; i < 2; i++) {
        const cot_trace *c = i ? &again : &counts;
        assert_true(c->model_hash == 0xfedcba9876543210);
        assert_int_equal(c->kind, COT_TRACE_COUNTS);
        assert_int_equal(c->n_tokens, 2);
        assert_int_equal(c->top_k, 2);
        assert_int_equal(c->layers[1], 9);
        assert_memory_equal(c->token_ids, ids, sizeof ids);
        assert_memory_equal(c->counts, expected, sizeof expected);
    }
    assert_refused(cot_trace_count(&trace, &again, &error), &error, "already");
    cot_trace_close(&counts);
    cot_trace_close(&again);

    // the reader's refusals of its own kind
    uint32_t cells[16] = {0};
    int32_t twice[] = {3, 3};
    s.meta[KIND] = "counts";
    cot_tensor tensors[] = {{"token_ids", COT_I32, 1, {2}, twice, 8, COT_BLOCKS_NONE},
                            {"counts", COT_U32, 3, {2, 2, 4}, cells, 64, COT_BLOCKS_NONE}};
    assert_int_equal(
        cot_safetensors_write(in_scratch(pad, "d.safetensors"), tensors, 2, s.meta, META / 2, &error),
        COT_OK);
    assert_refused(cot_trace_open(&trace, in_scratch(pad, "d.safetensors"), &error), &error,
                   "two rows count token id 3");
    tensors[1].shape[1] = 4;
    tensors[1].shape[2] = 2;
    assert_int_equal(
        cot_safetensors_write(in_scratch(pad, "d.safetensors"), tensors, 2, s.meta, META / 2, &error),
        COT_OK);
    assert_refused(cot_trace_open(&trace, in_scratch(pad, "d.safetensors"), &error), &error,
                   "dimension 1, expected 2");
}

static void test_strings(void **state)
{
    scratch_pad *pad = *state;
    sample s;
    cot_error error = {0};
    cot_trace trace, counts;
    int64_t offsets[] = {0, 2, 2, 5};
    cot_tensor tensors[6];
    fill(&s);
    s.ids[0] = 2;
    s.ids[2] = 0;
    memcpy(tensors, s.tensor, sizeof s.tensor);
    tensors[4] = (cot_tensor){"token_string_offsets", COT_I64, 1, {4}, offsets, 32, COT_BLOCKS_NONE};
    tensors[5] = (cot_tensor){"token_strings", COT_U8, 1, {5}, "ab\0de", 5, COT_BLOCKS_NONE};
    const char *path = in_scratch(pad, "t.safetensors");
    assert_int_equal(cot_safetensors_write(path, tensors, 6, s.meta, META / 2, &error), COT_OK);
    assert_int_equal(cot_trace_open(&trace, path, &error), COT_OK);
    assert_int_equal(trace.n_strings, 3);
    assert_int_equal(cot_trace_count(&counts, &trace, &error), COT_OK);
    cot_trace_close(&trace);
    assert_int_equal(cot_trace_write(&counts, path, &error), COT_OK);
    cot_trace_close(&counts);
    assert_int_equal(cot_trace_open(&trace, path, &error), COT_OK);
    assert_int_equal(trace.n_strings, 3);
    assert_memory_equal(trace.string_offsets, offsets, sizeof offsets);
    assert_memory_equal(trace.strings, "ab\0de", 5);
    cot_trace_close(&trace);

    const int64_t bad[][4] = {{0, 3, 2, 5}, {1, 2, 2, 5}, {0, 2, 2, 6}, {0, 2, 2, -1}, {0, 9, 9, 5}};
    for (int i = 0; i < 5; i++) {
        memcpy(offsets, bad[i], sizeof offsets);
        assert_int_equal(cot_safetensors_write(path, tensors, 6, s.meta, META / 2, &error), COT_OK);
        assert_refused(cot_trace_open(&trace, path, &error), &error, "token_string_offsets");
    }
    memcpy(offsets, (int64_t[]){0, 2, 2, 5}, sizeof offsets);
    s.ids[1] = 3; // of strings 0 to 2
    assert_int_equal(cot_safetensors_write(path, tensors, 6, s.meta, META / 2, &error), COT_OK);
    assert_refused(cot_trace_open(&trace, path, &error), &error, "id 3, expected -1 to 2");
    assert_int_equal(cot_safetensors_write(path, tensors, 5, s.meta, META / 2, &error), COT_OK);
    assert_refused(cot_trace_open(&trace, path, &error), &error, "token_strings");
}

/* The writer checks as the reader does, and leaves nothing behind. */
static void test_writer_refuses(void **state)
{
    scratch_pad *pad = *state;
    sample s;
    cot_error error = {0};
    cot_trace trace;
    fill(&s);
    assert_int_equal(read_sample(pad, &s, TENSORS, META / 2, &trace, &error), COT_OK);
    cot_trace bad = trace;
    bad.n_experts = 3;
    assert_refused(cot_trace_write(&bad, in_scratch(pad, "w.safetensors"), &error), &error, "of 3");
    assert_int_not_equal(access(in_scratch(pad, "w.safetensors"), F_OK), 0);
    assert_refused(cot_trace_write(&trace, in_scratch(pad, "no/such/folder"), &error), &error,
                   "no/such/folder");
    cot_trace_close(&trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_builder_refuses),
        cmocka_unit_test(test_reader_accepts),
        cmocka_unit_test(test_reader_refuses_metadata),
        cmocka_unit_test(test_reader_refuses_tensors),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_writer_refuses),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
