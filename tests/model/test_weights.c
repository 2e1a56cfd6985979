/* What a walk loads, against the whole weights that it is cut from. */
#include "harness/cmocka.h"
#include "harness/model/weights.h"
#include "harness/seed.h"

#include "fabric/threads/threads.h"
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
    const cot_config *config = cot_checkpoint_config(checkpoint);
    cot_arena measure = {0}, arena;
    assert_int_equal(cot_loader_open(load, checkpoint, NULL), COT_OK);
    for (int64_t l = 0; l < config->layers; l++) cot_attention_heads(&attention[l], config, 1, RANKS);
    cot_attention_weights_walk(attention, config, COT_F32, &measure, *load);
    assert_int_equal(cot_arena_open(&arena, measure.used, NULL), COT_OK);
    cot_attention_weights_walk(attention, config, COT_F32, &arena, *load);
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
                assert_int_equal(attention[l].input_columns, 18 + 20 + 8);
                assert_biases(bias, checkpoint, l,
                              (const cot_weight[]){COT_WEIGHT_Q_A_BIAS, COT_WEIGHT_KV_A_BIAS}, 2);
                continue;
            }
            assert_int_equal(attention[l].input_columns, own + 20 + 8);
            for (int64_t c = 0; c < own; c++) assert_true(bias[c] == 0); // q_proj alone has none
            assert_biases(bias + own, checkpoint, l, (const cot_weight[]){COT_WEIGHT_KV_A_BIAS}, 1);
        }
        cot_arena_close(&arena);
        cot_checkpoint_close(checkpoint);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(biases_of_latent_attention),
                                       cmocka_unit_test(a_lost_rank_ends_loading)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
