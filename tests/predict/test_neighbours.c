/* Unknown ids by the nearest known embedding, against brute force; on the shipped model's own embeddings too. */
#include "harness/cmocka.h"
#include "harness/predict/samples.h"

#include "base/safetensors.h"
#include "coterie/trace.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static double cosine(const float *a, const float *b, int64_t width)
{
    double ab = 0, aa = 0, bb = 0;
    for (int64_t i = 0; i < width; i++) {
        ab += (double)a[i] * b[i];
        aa += (double)a[i] * a[i];
        bb += (double)b[i] * b[i];
    }
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : 0;
}

static void compare(scratch_pad *pad, const cot_predict_embedding *embedding)
{
    cot_error error = {0};
    const sample_shape shape = {2, 6, 2, 3, 150, 40, true};
    cot_trace trace = sample_trace(pad, &shape);
    const cot_predictor_options options = {.size = sizeof options, .ranks = 3, .embedding = embedding};
    cot_predictor *p;
    cot_predictor_info info;
    if (cot_predictor_train(&p, &trace, &options, &error) != COT_OK) fail_msg("%s", error.message);
    cot_predictor_describe(&info, p);
    int strangers = 0;
    for (int32_t id = -2; id < embedding->n_ids + 3; id++) {
        int32_t row, known = -1;
        cot_predict_rows(&row, p, &id, 1);
        for (int64_t r = 0; r < info.n_tokens; r++)
            if (info.token_ids[r] == id) known = (int32_t)r;
        if (known >= 0 || id < 0 || id >= embedding->n_ids) {
            assert_int_equal(row, known);
            continue;
        }
        const float *own = embedding->row + id * embedding->width;
        double best = -2;
        for (int64_t r = 0; r < info.n_tokens; r++)
            if (info.token_ids[r] < embedding->n_ids)
                best = fmax(best, cosine(own, embedding->row + info.token_ids[r] * embedding->width,
                                         embedding->width));
        if (cosine(own, own, embedding->width) == 0) {
            assert_int_equal(row, -1); // it points nowhere
            continue;
        }
        strangers++;
        assert_true(row >= 0 && row < info.n_tokens);
        const double found =
            cosine(own, embedding->row + info.token_ids[row] * embedding->width, embedding->width);
        if (found < best - 1e-5) fail_msg("id %d: cosine %g, the nearest has %g", id, found, best);
    }
    assert_true(strangers > 10);
    cot_predictor_close(p);
    cot_trace_close(&trace);
}

static void test_random(void **state)
{
    scratch_pad *pad = *state;
    const int64_t widths[] = {1, 7, 32, 65};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        const int64_t n = 150 + (int64_t)pad_draw(pad, 100);
        float *row = malloc((size_t)(n * widths[w]) * sizeof *row);
        for (int64_t i = 0; i < n * widths[w]; i++) row[i] = (float)pad_draw(pad, 2001) - 1000;
        for (int64_t i = 0; i < widths[w]; i++) row[(n - 1) * widths[w] + i] = 0;
        const cot_predict_embedding embedding = {row, n, widths[w]};
        compare(pad, &embedding);
        free(row);
    }
}

static void test_shipped_model(void **state)
{
    scratch_pad *pad = *state;
    cot_error error = {0};
    cot_safetensors file;
    if (cot_safetensors_open(&file, COT_SOURCE "/models/tiny/model.safetensors", &error) != COT_OK) {
        print_message("SKIPPED: %s\n", error.message);
        skip();
    }
    const cot_tensor *t = cot_safetensors_find(&file, "model.embed_tokens.weight");
    assert_non_null(t);
    assert_true(t->dims == 2 && (t->dtype == COT_BF16 || t->dtype == COT_F32));
    const int64_t n = t->shape[0] * t->shape[1];
    float *row = malloc((size_t)n * sizeof *row);
    for (int64_t i = 0; i < n; i++) {
        uint16_t bits;
        if (t->dtype == COT_F32) {
            memcpy(&row[i], (const char *)t->data + 4 * i, 4);
        } else {
            memcpy(&bits, (const char *)t->data + 2 * i, 2);
            row[i] = cot_bf16_to_f32(bits);
        }
    }
    const cot_predict_embedding embedding = {row, t->shape[0], t->shape[1]};
    compare(pad, &embedding);
    free(row);
    cot_safetensors_close(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_shipped_model)};
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
