/* What a walk loads, against the whole weights that it is cut from. */
#include "harness/cmocka.h"
#include "harness/checkpoint/weights.h"
#include "harness/seed.h"

#include "fabric/threads/threads.h"
#include "kernels/isa.h"
#include "model/weights.h"

enum { RANKS = 2 };

/* DeepSeek attention with biases; q_lora 0 leaves q whole, as DeepSeek's small models do. */
static cot_checkpoint *latent_attention(int q_lora)
{
    char config[800];
    snprintf(config, sizeof config,
             "{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"vocab_size\": 31, \"hidden_size\": 34,"
             " \"num_hidden_layers\": 2, \"num_attention_heads\": 6, \"kv_lora_rank\": 20,"
             " \"qk_nope_head_dim\": 12, \"q_lora_rank\": %s, \"qk_rope_head_dim\": 8, \"v_head_dim\": 10,"
             " \"moe_intermediate_size\": 16, \"n_routed_experts\": 8, \"n_group\": 4, \"topk_group\": 2,"
             " \"num_experts_per_tok\": 3, \"first_k_dense_replace\": 1, \"intermediate_size\": 16,"
             " \"attention_bias\": true}",
             q_lora ? "18" : "null");
    cot_checkpoint *checkpoint;
    cot_error error = {0};
    if (cot_checkpoint_random(&checkpoint, config, strlen(config), test_seed(), &error) != COT_OK)
        fail_msg("%s", error.message);
    return checkpoint;
}

/* Walks twice, as the engine does: to measure, then to note what fills it. The caller closes both. */
static cot_arena recorded(cot_attention_weights *attention, const cot_checkpoint *checkpoint,
                          cot_loader **load)
{
    const cot_precision precision = {.type = COT_F32, .attention = {COT_FORMATS, COT_FORMAT_FP32}};
    const cot_config *config = cot_checkpoint_config(checkpoint);
    cot_arena measure = {0}, arena;
    assert_int_equal(cot_loader_open(load, checkpoint, NULL), COT_OK);
    for (int64_t l = 0; l < config->layers; l++) cot_attention_heads(&attention[l], config, l, 1, RANKS);
    cot_attention_weights_walk(attention, checkpoint, precision, &measure, *load);
    assert_int_equal(cot_arena_open(&arena, measure.used, NULL), COT_OK);
    cot_attention_weights_walk(attention, checkpoint, precision, &arena, *load);
    return arena;
}

static cot_arena loaded(cot_attention_weights *attention, const cot_checkpoint *checkpoint)
{
    cot_loader *load;
    cot_error error = {0};
    cot_arena arena = recorded(attention, checkpoint, &load);
    cot_loader_progress progress = {.report = NULL};
    if (cot_loader_run(load, NULL, &progress, NULL, &error) != COT_OK) fail_msg("%s", error.message);
    cot_loader_close(load);
    return arena;
}

/* Who loads learns of it. */
static void a_lost_rank_ends_loading(void **state)
{
    (void)state;
    const cot_fabric_group_options options = {
        .ranks = RANKS, .heap_bytes = 64, .running = RANKS, .timeout_ns = 1000000000};
    cot_fabric_group *group;
    assert_int_equal(cot_fabric_group_open(&group, &options, NULL), COT_OK);
    cot_fabric *own = cot_fabric_group_rank(group, 0), *other = cot_fabric_group_rank(group, 1);
    cot_stage_enter(own, COT_STAGE_LOADING, 0);
    for (int lost = 0; lost < 2; lost++) {
        cot_checkpoint *checkpoint = latent_attention(1);
        cot_attention_weights attention[2];
        cot_loader *load;
        cot_error error = {0};
        cot_arena arena = recorded(attention, checkpoint, &load);
        cot_loader_progress progress = {.report = NULL};
        if (lost) (other->ops->fail)(other); // in parentheses: cmocka has a macro of that name
        assert_int_equal(cot_loader_run(load, NULL, &progress, own, &error), lost ? COT_PEER_FAILED : COT_OK);
        assert_string_equal(error.message, lost ? "rank 1 failed (loading)" : "");
        cot_loader_close(load);
        cot_arena_close(&arena);
        cot_checkpoint_close(checkpoint);
    }
    cot_fabric_group_close(group);
}

/* `bias` begins with these vectors of the layer, one after the other. */
static void assert_biases(const float *bias, const cot_checkpoint *checkpoint, int64_t layer,
                          const cot_weight *parts, int n)
{
    int64_t at = 0, rows, columns;
    for (int i = 0; i < n; i++) {
        float *expected = whole(checkpoint, parts[i], layer, 0, &rows, &columns);
        assert_non_null(expected);
        bool zero = true;
        for (int64_t c = 0; c < rows * columns; c++) zero &= expected[c] == 0;
        assert_false(zero);
        assert_memory_equal(bias + at, expected, (size_t)(rows * columns) * sizeof *bias);
        at += rows * columns;
        free(expected);
    }
}

/* Both parts of a latent's input have a bias: the query's where it is compressed too. */
static void biases_of_latent_attention(void **state)
{
    (void)state;
    for (int q_lora = 0; q_lora < 2; q_lora++) {
        cot_checkpoint *checkpoint = latent_attention(q_lora);
        const cot_config *config = cot_checkpoint_config(checkpoint);
        cot_attention_weights attention[2];
        cot_arena arena = loaded(attention, checkpoint);
        const int64_t own = 3 * (12 + 8);
        for (int64_t l = 0; l < config->layers; l++) {
            const float *bias = attention[l].input_bias;
            assert_non_null(bias);
            if (q_lora) {
                assert_int_equal(attention[l].input.n, 18 + 20 + 8);
                assert_biases(bias, checkpoint, l,
                              (const cot_weight[]){COT_WEIGHT_Q_A_BIAS, COT_WEIGHT_KV_A_BIAS}, 2);
                continue;
            }
            assert_int_equal(attention[l].input.n, own + 20 + 8);
            for (int64_t c = 0; c < own; c++) assert_true(bias[c] == 0); // q_proj alone has none
            assert_biases(bias + own, checkpoint, l, (const cot_weight[]){COT_WEIGHT_KV_A_BIAS}, 1);
        }
        cot_arena_close(&arena);
        cot_checkpoint_close(checkpoint);
    }
}

/* Element (k, n) of a packed matrix, by a product with one 1 among zeros. */
static float element(const cot_packed *b, int64_t k, int64_t n)
{
    float a[256] = {0}, c[256];
    assert_true(b->k <= 256 && b->n <= 256);
    cot_gemm g = cot_packed_gemm(b, COT_F32, 1, 0, b->n);
    g.rounded = false;
    g.a = a;
    g.c = c;
    a[k] = 1;
    cot_isa_ref.kernels.gemm(&g, 0, 1, 0, cot_panels(b->n));
    return c[n];
}

/* Heads of 20 rows of the output's weight. Of rank 1 of 2 an output that is rounded by columns is a part of what it is on a rank that
 * has all heads; groups are not cut. */
static void outputs_are_cut_after_rounding(void **state)
{
    (void)state;
    static const char config[] =
        "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"vocab_size\": 31, \"hidden_size\": 34, "
        "\"num_hidden_layers\": 1, \"num_attention_heads\": 6, \"num_key_value_heads\": 2, \"head_dim\": 20, "
        "\"num_experts\": 3, \"num_experts_per_tok\": 1, \"moe_intermediate_size\": 16}";
    static const cot_format formats[] = {COT_FORMAT_INT8, COT_FORMAT_FP8, COT_FORMAT_INT4};
    for (int f = 0; f < 3; f++) {
        cot_checkpoint *checkpoint;
        assert_int_equal(cot_checkpoint_random(&checkpoint, config, strlen(config), test_seed(), NULL),
                         COT_OK);
        const cot_precision precision = {.type = COT_F32, .attention = {formats[f], formats[f]}};
        cot_attention_weights of[2]; // all heads, and rank 1's
        cot_arena arenas[2];
        for (int part = 0; part < 2; part++) {
            cot_loader *load;
            cot_error error = {0};
            cot_arena measure = {0};
            assert_int_equal(cot_loader_open(&load, checkpoint, NULL), COT_OK);
            cot_attention_heads(&of[part], cot_checkpoint_config(checkpoint), 0, part, 1 + part);
            cot_attention_weights_walk(&of[part], checkpoint, precision, &measure, load);
            assert_int_equal(cot_arena_open(&arenas[part], measure.used, NULL), COT_OK);
            cot_attention_weights_walk(&of[part], checkpoint, precision, &arenas[part], load);
            const cot_status status = cot_loader_run(load, NULL, NULL, NULL, &error);
            cot_loader_close(load);
            if (part && formats[f] == COT_FORMAT_INT4) {
                assert_int_equal(status, COT_INVALID_ARGUMENT);
                assert_non_null(strstr(error.message, "cannot be cut inside its groups of 32"));
                continue;
            }
            assert_int_equal(status, COT_OK);
            assert_int_equal(of[part].output.format, formats[f]);
            assert_int_equal(of[part].output.k, part ? 60 : 120);
            for (int64_t k = 0; part && k < 60; k++)
                for (int64_t n = 0; n < 34; n++) {
                    const float x = element(&of[1].output, k, n), all = element(&of[0].output, 60 + k, n);
                    if (x != all)
                        fail_msg("row %d of %d: %g, not %g", (int)k, (int)n, (double)x, (double)all);
                }
        }
        cot_arena_close(&arenas[0]), cot_arena_close(&arenas[1]);
        cot_checkpoint_close(checkpoint);
    }
}

/* What is wanted of weights that are stored otherwise. */
static void kinds(void **state)
{
    (void)state;
    enum {
        NO = COT_FORMATS,
        FP32 = COT_FORMAT_FP32,
        BF16 = COT_FORMAT_BF16,
        I8 = COT_FORMAT_INT8,
        FP8 = COT_FORMAT_FP8,
        I4 = COT_FORMAT_INT4,
        MX = COT_FORMAT_MXFP4,
        OF = COT_WEIGHTS_OF_NETWORKS
    };
    static const struct {
        bool fp32, rounded;
        int networks, attention;    // a format, NO: as stored, or OF: as networks
        int stored, network, other; // what networks and attention are stored as, and become
    } cases[] = {{false, false, NO, OF, NO, BF16, BF16},   {true, false, NO, OF, NO, FP32, FP32},
                 {false, false, NO, OF, I4, I4, I4},       {false, true, NO, OF, NO, I8, BF16},
                 {false, true, NO, OF, FP8, I8, FP8},      {false, true, NO, OF, MX, MX, MX},
                 {false, false, I4, OF, NO, I4, I8},       {false, false, I4, OF, MX, I4, MX},
                 {false, false, MX, OF, NO, MX, I8},       {false, false, I8, OF, NO, I8, I8},
                 {false, false, I8, OF, I4, I8, I8},       {false, false, FP8, OF, NO, FP8, FP8},
                 {false, false, BF16, OF, I4, BF16, BF16}, {false, false, I4, NO, NO, I4, BF16},
                 {false, true, I4, BF16, I4, I4, BF16},    {false, false, NO, I4, NO, BF16, I4},
                 {true, false, NO, FP8, NO, FP32, FP8}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const cot_format stored = (cot_format)cases[i].stored;
        for (int head = 0; head < 2; head++) {
            cot_precision p = {.type = cases[i].fp32 ? COT_F32 : COT_BF16, .rounded = cases[i].rounded};
            const cot_weight_kinds said = {cases[i].networks, head ? FP8 : cases[i].attention,
                                           head ? cases[i].attention : FP8};
            assert_int_equal(cot_precision_set_weights(&p, said, NULL), COT_OK);
            assert_int_equal(cot_network_format(&p, stored), cases[i].network);
            assert_int_equal(cot_weight_format(&p, head ? p.head : p.attention, stored), cases[i].other);
            assert_int_equal(cot_weight_format(&p, head ? p.attention : p.head, COT_FORMATS), FP8);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(outputs_are_cut_after_rounding),
                                       cmocka_unit_test(kinds), cmocka_unit_test(biases_of_latent_attention),
                                       cmocka_unit_test(a_lost_rank_ends_loading)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
