/* Predictors through their file: the same tables come back; what is damaged is refused or, where a value changed into
 * another that is allowed, still looks up within its tables. */
#include "harness/cmocka.h"
#include "harness/predict/samples.h"
#include "harness/refused.h"

#include "base/safetensors.h"
#include "coterie/trace.h"
#include "predict/predictor.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static char *read_all(const char *path, size_t *bytes)
{
    char *text;
    cot_error error = {0};
    if (cot_file_read(&text, bytes, path, 1 << 24, &error) != COT_OK) fail_msg("%s", error.message);
    return text;
}

static void assert_same(const cot_predictor *a, const cot_predictor *b)
{
    cot_predictor_table x[COT_PREDICTOR_TABLES], y[COT_PREDICTOR_TABLES];
    const int n = cot_predictor_tables(x, (cot_predictor *)(uintptr_t)a);
    assert_int_equal(n, cot_predictor_tables(y, (cot_predictor *)(uintptr_t)b));
    for (int i = 0; i < n; i++) {
        size_t bytes = cot_dtype_bytes(x[i].dtype);
        assert_string_equal(x[i].name, y[i].name);
        assert_memory_equal(x[i].shape, y[i].shape, sizeof x[i].shape);
        for (int d = 0; d < x[i].dims; d++) bytes *= (size_t)x[i].shape[d];
        if (bytes) assert_memory_equal(*x[i].data, *y[i].data, bytes);
    }
    cot_predictor_info p, q;
    cot_predictor_describe(&p, a);
    cot_predictor_describe(&q, b);
    assert_string_equal(p.model, q.model);
    assert_true(p.model_hash == q.model_hash);
    assert_true(p.n_layers == q.n_layers && p.n_experts == q.n_experts && p.top_k == q.top_k &&
                p.n_ranks == q.n_ranks && p.order == q.order && p.trace_hash == q.trace_hash &&
                p.seed == q.seed && p.n_sequences == q.n_sequences && !p.chosen == !q.chosen &&
                p.n_tokens == q.n_tokens && !p.token_strings == !q.token_strings);
    assert_memory_equal(p.layers, q.layers, (size_t)p.n_layers * sizeof *p.layers);
    assert_memory_equal(p.has, q.has, sizeof p.has);
    assert_memory_equal(p.table_bytes, q.table_bytes, sizeof p.table_bytes);
}

static void round_trip(scratch_pad *pad, const sample_shape *shape, int D, bool with_embedding, bool choose)
{
    cot_error error = {0};
    cot_trace trace = sample_trace(pad, shape);
    trace.model_hash = choose ? 0 : (uint64_t)pad_draw(pad, UINT32_MAX) << 32 | 7;
    uint8_t *chosen = calloc((size_t)trace.n_sequences + 1, 1);
    chosen[0] = 200; // anything but 0
    float *rows = malloc(100 * 8 * sizeof *rows);
    for (int i = 0; i < 800; i++) rows[i] = (float)pad_draw(pad, 1000) - 500;
    const cot_predict_embedding embedding = {rows, 100, 8};
    const cot_predictor_options options = {.size = sizeof options,
                                           .ranks = D,
                                           .order = 1 + (int)pad_draw(pad, 5),
                                           .chosen = choose ? chosen : NULL,
                                           .embedding = with_embedding ? &embedding : NULL,
                                           .seed = UINT64_MAX - pad_draw(pad, 10)};
    cot_predictor *made, *opened;
    if (cot_predictor_train(&made, &trace, &options, &error) != COT_OK) fail_msg("%s", error.message);
    assert_int_equal(cot_predictor_write(made, in_scratch(pad, "a.safetensors"), &error), COT_OK);
    if (cot_predictor_open(&opened, in_scratch(pad, "a.safetensors"), &error) != COT_OK)
        fail_msg("%s", error.message);
    assert_same(made, opened);
    assert_int_equal(sample_digest(made, &trace), sample_digest(opened, &trace));
    cot_predictor_info info;
    cot_predictor_describe(&info, opened);
    assert_int_equal(info.trace_hash, cot_trace_hash(&trace));
    assert_true(info.model_hash == trace.model_hash);
    if (choose) assert_int_equal(info.chosen[0], 1);
    assert_int_equal(cot_predictor_write(opened, in_scratch(pad, "b.safetensors"), &error), COT_OK);
    cot_predictor_close(opened);
    size_t bytes, again;
    char *a = read_all(in_scratch(pad, "a.safetensors"), &bytes),
         *b = read_all(in_scratch(pad, "b.safetensors"), &again);
    assert_int_equal(bytes, again);
    assert_memory_equal(a, b, bytes);
    // at any alignment
    char *moved = malloc(bytes + 8);
    for (int by = 1; by < 8; by++) {
        memcpy(moved + by, a, bytes);
        if (cot_predictor_parse(&opened, moved + by, bytes, "moved", &error) != COT_OK)
            fail_msg("%s", error.message);
        assert_same(made, opened);
        cot_predictor_close(opened);
    }
    free(moved);
    free(a);
    free(b);
    free(rows);
    free(chosen);
    cot_predictor_close(made);
    cot_trace_close(&trace);
}

static void test_round_trip(void **state)
{
    scratch_pad *pad = *state;
    const sample_shape shapes[] = {{4, 8, 2, 5, 200, 20, true},
                                   {3, 300, 7, 3, 60, 5, true},
                                   {1, 1, 1, 1, 5, 1, false},
                                   {4, 9, 2, 3, 80, 0, true}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int kind = 0; kind < 4; kind++)
            round_trip(pad, &shapes[i], 1 + (int)pad_draw(pad, (uint32_t)(shapes[i].E < 9 ? shapes[i].E : 9)),
                       kind & 1, kind & 2);
}

/* Whatever a predictor says must be a rank or -1, and finite scores. */
static void use(const cot_predictor *p)
{
    cot_predictor_info info;
    cot_predictor_describe(&info, p);
    enum { T = 3 };
    const int E = info.n_experts, K = info.top_k;
    const int32_t ids[T] = {0, 5, -1};
    int32_t row[T];
    int16_t ranks[COT_PREDICT_MAX_ORDER * T], rank[T];
    uint16_t *experts = malloc((size_t)(2 * T * K) * sizeof *experts), sure[T];
    float *score = malloc((size_t)(T * E) * sizeof *score);
    cot_predict_rows(row, p, ids, T);
    for (int i = 0; i < 2 * T * K; i++) experts[i] = (uint16_t)(i * 7);
    for (int i = 0; i < COT_PREDICT_MAX_ORDER * T; i++) ranks[i] = (int16_t)(i % 4 - 1);
    for (int l = 0; l < info.n_layers; l++)
        for (int m = 0; m < COT_PREDICT_METHODS; m++) {
            const cot_predict_batch batch = {.layer = l,
                                             .n_tokens = T,
                                             .row = row,
                                             .row_before = row,
                                             .own_before = experts,
                                             .earlier = experts,
                                             .ranks_before = ranks};
            cot_predict_ranks(rank, sure, p, (cot_predict_method)m, &batch);
            cot_predict_experts(score, p, (cot_predict_method)m, &batch);
            for (int i = 0; i < T; i++) assert_true(rank[i] >= -1 && rank[i] < info.n_ranks);
            for (int i = 0; i < T * E; i++) assert_true(isfinite(score[i]) && score[i] >= 0);
        }
    free(experts);
    free(score);
}

static void test_damage(void **state)
{
    scratch_pad *pad = *state;
    cot_error error = {0};
    const sample_shape shape = {2, 4, 2, 2, 12, 3, true};
    cot_trace trace = sample_trace(pad, &shape);
    const uint8_t chosen[] = {1, 0};
    const float rows[8] = {1, 0, 0, 1, 1, 1, 0, 0};
    const cot_predict_embedding embedding = {rows, 4, 2};
    const cot_predictor_options options = {
        .size = sizeof options, .ranks = 2, .chosen = chosen, .embedding = &embedding};
    cot_predictor *p;
    if (cot_predictor_train(&p, &trace, &options, &error) != COT_OK) fail_msg("%s", error.message);
    assert_int_equal(cot_predictor_write(p, in_scratch(pad, "small.safetensors"), &error), COT_OK);
    cot_predictor_close(p);
    cot_trace_close(&trace);
    size_t bytes;
    char *file = read_all(in_scratch(pad, "small.safetensors"), &bytes);
    for (size_t n = 0; n < bytes; n++) {
        char *cut = malloc(n + 1); // of its own, so that sanitizers see what is read beyond
        memcpy(cut, file, n);
        error = (cot_error){0};
        assert_refused(cot_predictor_parse(&p, cut, n, "cut", &error), &error, "'cut'");
        assert_null(p);
        free(cut);
    }
    int opened = 0;
    for (size_t i = 0; i < bytes; i++)
        for (int bit = 0; bit < 9; bit++) {
            const char kept = file[i];
            file[i] = (char)(bit < 8 ? kept ^ 1 << bit : (int)pad_draw(pad, 256));
            if (cot_predictor_parse(&p, file, bytes, "flipped", &error) == COT_OK) {
                use(p);
                opened++;
            } else {
                assert_non_null(strstr(error.message, "'flipped'"));
                assert_null(p);
            }
            cot_predictor_close(p);
            file[i] = kept;
        }
    assert_true(opened > 0); // shares and names may be other ones
    free(file);
}

typedef struct change {
    const char *name; // a tensor or a metadata key
    int64_t element;  // of the tensor; -1: metadata
    int64_t value;
    const char *text; // of metadata; NULL: leave it (or the tensor) out
    const char *words;
} change;

enum { META_WORDS = 24 };

/* The file's pairs of key and value, one of them changed where `c` is not NULL; returns how many. */
static size_t copy_meta(const char *meta[META_WORDS], const cot_safetensors *file, const change *c)
{
    static const char *const keys[] = {"format",    "version", "model",      "experts",
                                       "top_k",     "layers",  "ranks",      "order",
                                       "sequences", "seed",    "trace_hash", "model_hash"};
    size_t n = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *value =
            c && strcmp(keys[i], c->name) == 0 ? c->text : cot_safetensors_meta(file, keys[i]);
        if (!value) continue;
        meta[2 * n] = keys[i];
        meta[2 * n++ + 1] = value;
    }
    return n;
}

/* Writes the file with one thing changed, and expects to be told of it. */
static void refuse(scratch_pad *pad, const cot_safetensors *file, const change *c)
{
    const char *meta[META_WORDS];
    size_t n = 0;
    const size_t n_meta = copy_meta(meta, file, c);
    cot_error error = {0};
    cot_tensor tensors[COT_PREDICTOR_TABLES];
    char *copy = NULL;
    for (size_t i = 0; i < file->count; i++) {
        tensors[n] = file->tensors[i];
        if (strcmp(tensors[n].name, c->name) == 0) {
            if (c->element < 0) continue;
            copy = malloc(tensors[n].bytes);
            memcpy(copy, tensors[n].data, tensors[n].bytes);
            const size_t element = cot_dtype_bytes(tensors[n].dtype);
            memcpy(copy + (size_t)c->element * element, &c->value, element);
            tensors[n].data = copy;
        }
        n++;
    }
    assert_int_equal(
        cot_safetensors_write(in_scratch(pad, "c.safetensors"), tensors, n, meta, n_meta, &error), COT_OK);
    cot_predictor *p;
    if (cot_predictor_open(&p, in_scratch(pad, "c.safetensors"), &error) == COT_OK)
        fail_msg("'%s' at %lld changed to %lld or '%s' is accepted", c->name, (long long)c->element,
                 (long long)c->value, c->text ? c->text : "nothing");
    assert_refused(error.status, &error, c->words);
    free(copy);
}

static void test_refusals(void **state)
{
    scratch_pad *pad = *state;
    cot_error error = {0};
    const sample_shape shape = {3, 6, 2, 2, 60, 9, true};
    cot_trace trace = sample_trace(pad, &shape);
    const uint8_t chosen[] = {1, 0};
    const float rows[8] = {1, 0, 0, 1, 1, 1, 0, 0};
    const cot_predict_embedding embedding = {rows, 4, 2};
    const cot_predictor_options options = {
        .size = sizeof options, .ranks = 3, .chosen = chosen, .embedding = &embedding};
    cot_predictor *p;
    if (cot_predictor_train(&p, &trace, &options, &error) != COT_OK) fail_msg("%s", error.message);
    assert_int_equal(cot_predictor_write(p, in_scratch(pad, "r.safetensors"), &error), COT_OK);
    cot_predictor_close(p);
    cot_trace_close(&trace);
    const change changes[] = {
        {"format", -1, 0, NULL, "'format' is missing"},
        {"format", -1, 0, "coterie.trace", "expected 'coterie.predictor'"},
        {"version", -1, 0, "2", "version '2'"},
        {"experts", -1, 0, "7", "dimension 1, expected 7"},
        {"experts", -1, 0, "65537", "1 to 65536"},
        {"experts", -1, 0, " 6", "' 6'"},
        {"top_k", -1, 0, "7", "1 to 6"},
        {"ranks", -1, 0, "2", "sits on rank 2"},
        {"ranks", -1, 0, "4", "dimension 0, expected"},
        {"order", -1, 0, "6", "1 to 5"},
        {"order", -1, 0, "1", "expected"},
        {"layers", -1, 0, "1,3", "expected 2"},
        {"layers", -1, 0, "1,3,3", "ascending"},
        {"layers", -1, 0, "1,3,", "ascending"},
        {"sequences", -1, 0, "-1", "'-1'"},
        {"sequences", -1, 0, "3", "expected 3"},
        {"seed", -1, 0, "99999999999999999999", "seed"},
        {"trace_hash", -1, 0, "x", "'x'"},
        {"model_hash", -1, 0, "-1", "'-1'"},
        {"token_ids", 0, -1, NULL, "ascending from 0"},
        {"token_ids", 1, 0, NULL, "ascending"},
        {"id_row", 2, 1000, NULL, "row 1000"},
        {"id_row", 2, -2, NULL, "row -2"},
        {"token_offsets", 0, 1, NULL, "go from 1"},
        {"token_offsets", 2, INT64_MAX, NULL, "fall"},
        {"token_offsets", 2, -1, NULL, "fall"},
        {"token_experts", 0, 6, NULL, "has 6"},
        {"token_ranks", 0, 3, NULL, "rank 3"},
        {"token_ranks", 4, 65535, NULL, "or 65535 with 0"},
        {"layer_ranks", 0, 3, NULL, "rank 3"},
        {"sequence_ranks", 2 * 4, 3, NULL, "rank 3"},
        {"expert_rank", 5, 3, NULL, "expert 5 of layer 0 sits on rank 3"},
        {"context_scale", 1, 0x7f800000, NULL, "layer 1 is inf"},
        {"context_scale", 1, 0xbf800000, NULL, "layer 1 is -1"},
        {"context_prefill_scale", 2, 0x7fc00000, NULL, "context_prefill_scale of layer 2 is nan"},
        {"context_prefill_scale", 1, 0xbf800000, NULL, "context_prefill_scale of layer 1 is -1"},
        {"chosen", 1, 2, NULL, "has 2 at 1"},
        {"token_ids", -1, 0, NULL, "neighbours"},
        {"token_experts", -1, 0, NULL, "tensors"},
        {"token_shares", -1, 0, NULL, "tensors"},
        {"sequence_ranks", -1, 0, NULL, "tensors"},
        {"sequence_shares", -1, 0, NULL, "tensors"},
        {"context_own", -1, 0, NULL, "tensors"},
        {"context_prefill_own", -1, 0, NULL, "tensors"},
        {"expert_rank", -1, 0, NULL, "missing"},
    };
    cot_safetensors file;
    assert_int_equal(cot_safetensors_open(&file, in_scratch(pad, "r.safetensors"), &error), COT_OK);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) refuse(pad, &file, &changes[i]);
    cot_safetensors_close(&file);
    assert_refused(cot_predictor_open(&p, in_scratch(pad, "none"), &error), &error, "none");
    assert_int_equal(error.status, COT_NOT_FOUND);
    cot_predictor_close(NULL);
}

/* A file that was written when there was one form of context has that form, and the others' figures as they were. */
static void test_without_prefill(void **state)
{
    scratch_pad *pad = *state;
    cot_error error = {0};
    const sample_shape shape = {3, 6, 2, 2, 60, 9, true};
    cot_trace trace = sample_trace(pad, &shape);
    cot_predictor *whole = sample_train(pad, &trace, 3, 2, NULL), *older;
    assert_int_equal(cot_predictor_write(whole, in_scratch(pad, "w.safetensors"), &error), COT_OK);
    cot_safetensors file;
    assert_int_equal(cot_safetensors_open(&file, in_scratch(pad, "w.safetensors"), &error), COT_OK);
    cot_tensor tensors[COT_PREDICTOR_TABLES];
    const char *meta[META_WORDS];
    size_t n = 0;
    for (size_t i = 0; i < file.count; i++)
        if (strncmp(file.tensors[i].name, "context_prefill_", 16) != 0) tensors[n++] = file.tensors[i];
    assert_int_equal(n, file.count - 5);
    const size_t n_meta = copy_meta(meta, &file, NULL);
    assert_int_equal(
        cot_safetensors_write(in_scratch(pad, "o.safetensors"), tensors, n, meta, n_meta, &error), COT_OK);
    if (cot_predictor_open(&older, in_scratch(pad, "o.safetensors"), &error) != COT_OK)
        fail_msg("%s", error.message);
    cot_predictor_info info;
    cot_predictor_describe(&info, older);
    assert_true(info.has[COT_PREDICT_CONTEXT_DECODE] && !info.has[COT_PREDICT_CONTEXT_PREFILL]);
    assert_int_equal(info.table_bytes[COT_PREDICT_CONTEXT_PREFILL], 0);
    for (int64_t t = 0; t < 60; t++) {
        float score[2][6];
        sample_batch b = sample_batch_of(whole, &trace, 1, &t, 1);
        cot_predict_experts(score[0], whole, COT_PREDICT_CONTEXT_DECODE, &b.batch);
        cot_predict_experts(score[1], older, COT_PREDICT_CONTEXT_DECODE, &b.batch);
        assert_memory_equal(score[0], score[1], sizeof score[0]);
        cot_predict_experts(score[0], older, COT_PREDICT_GLOBAL, &b.batch);
        cot_predict_experts(score[1], older, COT_PREDICT_CONTEXT_PREFILL, &b.batch); // which it does not have
        assert_memory_equal(score[0], score[1], sizeof score[0]);
        sample_batch_free(&b);
    }
    cot_predictor_close(older);
    cot_predictor_close(whole);
    cot_safetensors_close(&file);
    cot_trace_close(&trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_without_prefill),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
