/* Every format that weights are rounded to, in an engine: what rounding costs on text, errors of the weights themselves, and the
 * same bits for every number of ranks and in any company. */
#include "harness/cmocka.h"
#include "harness/engine/every_group.h"
#include "harness/engine/golden.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/seed.h"

#include "coterie/eval.h"
#include "kernels/quantise.h"
#include "checkpoint/checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char small[] =
    "{\"architectures\": [\"Qwen2MoeForCausalLM\"], \"vocab_size\": 67, \"hidden_size\": 72, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"num_experts\": 6, "
    "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 56, \"shared_expert_intermediate_size\": 40, "
    "\"intermediate_size\": 40, \"max_position_embeddings\": 64, \"tie_word_embeddings\": false}";

static cot_engine *open_small(const void *what, const struct setting *s)
{
    const cot_engine_options options = options_of(s);
    cot_engine *engine;
    cot_error error = {0};
    fflush(stdout);
    if (cot_engine_open_random(&engine, what, strlen(what), 5, &options, &error) != COT_OK)
        fail_msg("%s", error.message);
    return engine;
}

/* Experts and shared experts of widths that groups do not divide. */
static void same_bits_for_every_group(void **state)
{
    (void)state;
    static const struct {
        const char *weights, *precision, *attention, *head;
    } ways[] = {{"int4", "fp32", "fp8", "int4"},   {"int4", "bf16", NULL, "mxfp4"},
                {"int4", "int8", "int4", NULL},    {"fp8", "bf16", "mxfp4", "fp8"},
                {"int8", "bf16", NULL, "bf16"},    {"mxfp4", "bf16", "int4", "int8"},
                {"fp8", "fp32", "int8", "mxfp4"},  {"mxfp4", "int8", "bf16", "int4"},
                {"as-stored", "int8", "fp8", NULL}};
    uint64_t seed = test_seed();
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
        check_every_group(open_small, small,
                          &(struct setting){.precision = ways[w].precision,
                                            .weights = ways[w].weights,
                                            .weights_attention = ways[w].attention,
                                            .weights_head = ways[w].head},
                          !strcmp(ways[w].weights, "as-stored") ? NULL : ways[w].weights, &seed);
}

/* Loss over that with experts in bf16, of the domain where it is most. */
static double worst_domain(const cot_eval_sequence *s, const double *nats, const double *plain, size_t count)
{
    double worst = -1;
    for (size_t i = 0; i < count;) {
        const size_t length = strcspn(s[i].name, "."), first = i;
        double sum = 0;
        for (; i < count && !strncmp(s[i].name, s[first].name, length + 1); i++) sum += nats[i] - plain[i];
        if (sum / (double)(i - first) > worst) worst = sum / (double)(i - first);
    }
    return worst;
}

static void losses(void **state)
{
    (void)state;
    static const struct {
        const char *weights;
        double most; // nats a token
    } ways[] = {
        {"bf16", 0}, {"int8", 0.0015}, {"fp8", 0.003}, {"int4", 0.018}, {"mxfp4", 0.020}}; // of experts
    if (!folder_exists(TINY)) skip();
    cot_eval_set *set;
    size_t count;
    assert_int_equal(cot_eval_set_open(&set, TINY "/heldout.safetensors", NULL), COT_OK);
    const cot_eval_sequence *sequences = cot_eval_set_sequences(set, &count);
    double *plain = calloc(count, sizeof *plain), *nats = calloc(count, sizeof *nats);
    uint64_t seed = test_seed();
    const size_t one = getenv("COT_LONG") ? 0 : 1 + draw(&seed) % (sizeof ways / sizeof *ways - 1);
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        if (one && w && w != one) continue; // COT_LONG looks at all
        cot_engine *engine = must_open(&(struct setting){.folder = TINY,
                                                         .precision = "bf16",
                                                         .weights = ways[w].weights,
                                                         .weights_attention = "as-stored",
                                                         .weights_head = "as-stored",
                                                         .kv_tokens = 64 * 512});
        assert_int_equal(cot_eval_run(engine, sequences, count, NULL, w ? nats : plain, NULL, NULL, NULL),
                         COT_OK);
        cot_engine_close(engine);
        const double worst = worst_domain(sequences, w ? nats : plain, plain, count);
        printf("%s: %+.4f nats\n", ways[w].weights, worst);
        assert_true(worst <= ways[w].most);
    }
    free(plain), free(nats);
    cot_eval_set_close(set);
}

/* Root of the mean square of errors over that of weights, all experts together: the same number on every machine. */
static void errors_of_weights(void **state)
{
    (void)state;
    static const struct {
        cot_format format;
        double most;
    } ways[] = {{COT_FORMAT_INT8, 0.0085},
                {COT_FORMAT_FP8, 0.027},
                {COT_FORMAT_INT4, 0.085},
                {COT_FORMAT_MXFP4, 0.1135}};
    enum { LAYERS = 6, E = 32, H = 192, I = 64 };
    if (!folder_exists(TINY)) skip();
    cot_checkpoint *checkpoint;
    char *notes;
    assert_int_equal(cot_checkpoint_open(&checkpoint, TINY, &notes, NULL), COT_OK);
    free(notes);
    static float weights[H * I];
    double error[4] = {0}, square = 0;
    for (int i = 0; i < LAYERS * E * 3; i++) {
        const cot_weight weight = COT_WEIGHT_EXPERT_GATE + (cot_weight)(i % 3);
        const int64_t rows = i % 3 == 2 ? H : I, columns = i % 3 == 2 ? I : H;
        const cot_weight_piece all = {weight, i / 3 / E, i / 3 % E, 0, rows, 0, columns};
        assert_int_equal(cot_checkpoint_read(checkpoint, &all, weights, NULL), COT_OK);
        for (int64_t r = 0; r < rows; r++)
            for (int f = 0; f < 4; f++) {
                int8_t codes[H];
                float scales[H / 32];
                const cot_format kind = ways[f].format;
                cot_quantise_row(codes, scales, kind, weights + r * columns, columns);
                for (int64_t c = 0; c < columns; c++) {
                    const float scale = scales[cot_format_group(kind) ? c / 32 : 0],
                                x = weights[r * columns + c],
                                code = kind == COT_FORMAT_FP8     ? cot_f8_e4m3_to_f32((uint8_t)codes[c])
                                       : kind == COT_FORMAT_MXFP4 ? cot_f4_e2m1_to_f32((uint8_t)codes[c])
                                                                  : (float)codes[c];
                    const double off = (double)x - (double)code * (double)scale;
                    error[f] += off * off;
                    if (!f) square += (double)x * (double)x;
                }
            }
    }
    for (int f = 0; f < 4; f++) {
        const double relative = sqrt(error[f] / square);
        printf("%s: off by %.5f\n", cot_formats[ways[f].format].name, relative);
        assert_true(relative <= ways[f].most);
    }
    cot_checkpoint_close(checkpoint);
}

/* Two engines beside each other, against this file's own sums over their logits. */
static void compared(void **state)
{
    (void)state;
    enum { TOKENS = 21, PREFILL = 9, VOCAB = 67 };
    uint64_t seed = test_seed();
    int32_t *ids = drawn_ids(TOKENS, VOCAB, &seed);
    const cot_eval_sequence sequence = {
        .name = "a.1", .ids = ids, .tokens = TOKENS, .prefill_tokens = PREFILL, .unscored = 3};
    static const char *const weights[] = {"mxfp4", "fp32"};
    cot_engine *engines[2];
    struct records all[2];
    double nats[2];
    for (int i = 0; i < 2; i++) {
        cot_engine_options options =
            options_of(&(struct setting){.weights = weights[i], .precision = "fp32", .kv_tokens = 64});
        options.watch.capture_routing = true;
        assert_int_equal(cot_engine_open_random(&engines[i], small, strlen(small), 5, &options, NULL),
                         COT_OK);
        const cot_request q = forced_request(ids, TOKENS, PREFILL);
        all[i] = must_run(engines[i], &q, 1);
        assert_int_equal(cot_eval_run(engines[i], &sequence, 1, NULL, &nats[i], NULL, NULL, NULL), COT_OK);
    }
    double kl = 0;
    int64_t same = 0;
    for (int t = 0; t < TOKENS; t++) {
        const float *x = all[0].record[0].logits + t * VOCAB, *y = all[1].record[0].logits + t * VOCAB;
        double of_x = 0, of_y = 0;
        int best_x = 0, best_y = 0;
        for (int v = 0; v < VOCAB; v++) {
            of_x += exp((double)x[v]);
            of_y += exp((double)y[v]);
            if (x[v] > x[best_x]) best_x = v;
            if (y[v] > y[best_y]) best_y = v;
        }
        for (int v = 0; v < VOCAB; v++)
            kl += exp((double)y[v]) / of_y * log(exp((double)y[v]) / of_y / (exp((double)x[v]) / of_x)) /
                  TOKENS;
        same += best_x == best_y;
    }
    const cot_engine_info *info = cot_engine_describe(engines[0]);
    const int64_t rows = TOKENS * (int64_t)info->moe_layers, k = (int64_t)info->top_k;
    int64_t both = 0;
    for (int64_t r = 0; r < rows; r++) {
        uint64_t chosen[2] = {0, 0};
        for (int i = 0; i < 2; i++)
            for (int64_t j = 0; j < k; j++) chosen[i] |= (uint64_t)1 << all[i].record[0].experts[r * k + j];
        both += __builtin_popcountll(chosen[0] & chosen[1]);
    }
    cot_eval_difference d;
    assert_int_equal(cot_eval_compare(engines[0], engines[1], &sequence, 1, &d, NULL), COT_OK);
    assert_true(fabs(d.nats - nats[0]) < 1e-9 && fabs(d.other_nats - nats[1]) < 1e-9);
    assert_true(kl > 1e-6 && fabs(d.kl - kl) < 1e-9 * (1 + kl));
    assert_true(fabs(d.same_tokens - (double)same / TOKENS) < 1e-12);
    assert_true(fabs(d.same_experts - (double)both / (double)(rows * k)) < 1e-12);
    assert_int_equal(cot_eval_compare(engines[1], engines[1], &sequence, 1, &d, NULL), COT_OK);
    assert_true(d.kl == 0 && d.same_tokens == 1 && d.same_experts == 1);
    for (int i = 0; i < 2; i++) {
        records_free(&all[i]);
        cot_engine_close(engines[i]);
    }
    free(ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits_for_every_group), cmocka_unit_test(losses),
                                       cmocka_unit_test(errors_of_weights), cmocka_unit_test(compared)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
