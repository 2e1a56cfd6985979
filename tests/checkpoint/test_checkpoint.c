/* Weights of whole checkpoints: read, in pieces, packed, made up. */
#include "harness/cmocka.h"
#include "harness/checkpoint/folder.h"
#include "harness/checkpoint/weights.h"
#include "harness/seed.h"

#include "base/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void golden(void **state)
{
    (void)state;
    static const char *const names[] = {
        "deepseek-v2", "deepseek-v2-lite", "deepseek-v3", "deepseek-v3-fp8", "gpt-oss",        "mixtral",
        "olmoe",       "olmoe-clip",       "qwen2-moe",   "qwen3-moe",       "qwen3-moe-tied", "rope-linear",
        "rope-llama3", "rope-parameters",  "rope-yarn"};
    if (access(COT_SHARED "/golden", R_OK) != 0) {
        print_message("SKIPPED: no golden checkpoints at %s\n", COT_SHARED "/golden");
        skip();
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = cot_path_join(COT_SHARED "/golden", names[i]);
        cot_checkpoint *checkpoint = opened(path);
        assert_true(cot_checkpoint_bytes(checkpoint) > 100000);
        check_all_pieces(checkpoint);
        cot_checkpoint_close(checkpoint);
        free(path);
    }
}

static void shipped(void **state)
{
    (void)state;
    cot_checkpoint *checkpoint = opened(COT_SOURCE "/models/tiny");
    const cot_config *config = cot_checkpoint_config(checkpoint);
    assert_true(config->tied_embeddings && config->eos_count == 1 && config->eos[0] == 0 && config->bos == 0);
    int64_t rows, columns;
    float *output = whole(checkpoint, COT_WEIGHT_OUTPUT, 0, 0, &rows, &columns);
    float *embedding = whole(checkpoint, COT_WEIGHT_EMBEDDING, 0, 0, &rows, &columns);
    assert_memory_equal(output, embedding, (size_t)(rows * columns) * 4);
    free(output);
    free(embedding);
    cot_checkpoint_close(checkpoint);
}

static void plain(void **state)
{
    (void)state;
    static const cot_dtype types[] = {COT_F32, COT_BF16, COT_F16};
    for (int t = 0; t < 3; t++) {
        folder *f = tiny_mixtral(test_seed() + (uint64_t)t, types[t]);
        write_all(f);
        cot_checkpoint *checkpoint = opened(f->path);
        const cot_tensor *w2 = tensor_of(f, "model.layers.1.block_sparse_moe.experts.2.w2.weight");
        int64_t rows, columns;
        float *down = whole(checkpoint, COT_WEIGHT_EXPERT_DOWN, 1, 2, &rows, &columns);
        assert_int_equal(rows, 24);
        assert_int_equal(columns, 10);
        for (int64_t i = 0; i < rows * columns; i++) {
            float wide;
            uint16_t half;
            memcpy(&wide, (const uint8_t *)w2->data + (t ? 2 : 4) * i, t ? 2 : 4);
            memcpy(&half, (const uint8_t *)w2->data + 2 * i, 2);
            assert_true(down[i] == (t == 0 ? wide : t == 1 ? cot_bf16_to_f32(half) : cot_f16_to_f32(half)));
        }
        free(down);
        check_all_pieces(checkpoint);
        cot_checkpoint_close(checkpoint);
        folder_delete(f);
    }
}

static void no_such_piece(void **state)
{
    (void)state;
    folder *f = tiny_mixtral(test_seed(), COT_F32);
    write_all(f);
    cot_checkpoint *checkpoint = opened(f->path);
    float x[1000];
    cot_error error = {0};
    static const cot_weight_piece bad[] = {
        {COT_WEIGHT_Q, 0, 0, 0, 25, 0, 1},        {COT_WEIGHT_Q, 0, 0, -1, 1, 0, 1},
        {COT_WEIGHT_Q, 0, 0, 0, 1, 24, 1},        {COT_WEIGHT_Q, 2, 0, 0, 1, 0, 1},
        {COT_WEIGHT_Q, 0, 0, INT64_MAX, 1, 0, 1}, {COT_WEIGHT_EXPERT_UP, 0, 3, 0, 1, 0, 1},
        {COT_WEIGHT_SINKS, 0, 0, 0, 1, 0, 1},     {COT_WEIGHT_Q, 0, 0, 1, INT64_MAX, 0, 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(cot_checkpoint_read(checkpoint, &bad[i], x, &error), COT_INVALID_ARGUMENT);
    static const cot_weight_piece nothing[] = {{COT_WEIGHT_Q, 0, 0, 24, 0, 0, 24},
                                               {COT_WEIGHT_Q, 0, 0, 0, 24, 24, 0}};
    for (int i = 0; i < 2; i++)
        assert_int_equal(cot_checkpoint_read(checkpoint, &nothing[i], NULL, NULL), COT_OK);
    cot_checkpoint_close(checkpoint);
    folder_delete(f);
}

static uint64_t hash_of(const char *path)
{
    uint64_t hash;
    cot_checkpoint *checkpoint = opened(path);
    assert_int_equal(cot_checkpoint_hash(&hash, checkpoint, NULL), COT_OK);
    cot_checkpoint_close(checkpoint);
    return hash;
}

/* A model is known by how many experts a token calls, and by the gates of its first and last MoE layer in bf16. */
static void known_again(void **state)
{
    (void)state;
    folder *f = tiny_mixtral(test_seed(), COT_F32);
    write_all(f);
    const uint64_t hash = hash_of(f->path);
    assert_true(hash != 0);
    static const struct {
        const char *tensor;
        uint32_t flipped; // bits of an element
        bool same;
    } changes[] = {{"model.layers.0.block_sparse_moe.gate.weight", 1u << 20, false},
                   {"model.layers.1.block_sparse_moe.gate.weight", 1u << 20, false},
                   {"model.layers.1.block_sparse_moe.gate.weight", 1u << 31, false},
                   {"model.layers.1.block_sparse_moe.experts.2.w2.weight", 1u << 20, true},
                   {"model.layers.0.input_layernorm.weight", 1u << 20, true}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        uint32_t *element = (uint32_t *)(uintptr_t)tensor_of(f, changes[i].tensor)->data + 5;
        *element ^= changes[i].flipped;
        write_all(f);
        if ((hash_of(f->path) == hash) != changes[i].same) fail_msg("change %zu", i);
        *element ^= changes[i].flipped;
    }
    char config[sizeof TINY_MIXTRAL] = TINY_MIXTRAL;
    *(strstr(config, "\"num_experts_per_tok\": ") + strlen("\"num_experts_per_tok\": ")) = '1';
    write_all(f);
    assert_true(hash_of(f->path) == hash);
    write_text(f, "config.json", config);
    assert_true(hash_of(f->path) != hash);
    write_text(f, "config.json", TINY_MIXTRAL);
    for (int l = 0; l < 2; l++) { // as a checkpoint in bf16 has it
        char name[64];
        snprintf(name, sizeof name, "model.layers.%d.block_sparse_moe.gate.weight", l);
        const cot_tensor *gate = tensor_of(f, name);
        float *at = (float *)(uintptr_t)gate->data;
        for (int64_t e = 0; e < cot_tensor_elements(gate); e++)
            at[e] = cot_bf16_to_f32(cot_f32_to_bf16(at[e]));
    }
    write_all(f);
    assert_true(hash_of(f->path) == hash);
    folder_delete(f);
    cot_checkpoint *drawn;
    uint64_t none = 1;
    assert_int_equal(cot_checkpoint_random(&drawn, TINY_MIXTRAL, strlen(TINY_MIXTRAL), 1, NULL), COT_OK);
    assert_int_equal(cot_checkpoint_hash(&none, drawn, NULL), COT_OK);
    assert_true(none == 0);
    cot_checkpoint_close(drawn);
}

static void random_weights(void **state)
{
    (void)state;
    static const char config[] =
        "{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"vocab_size\": 331, \"hidden_size\": 98,"
        "\"num_hidden_layers\": 2, \"num_attention_heads\": 6, \"kv_lora_rank\": 40, \"qk_nope_head_dim\": "
        "24, \"q_lora_rank\": 33,"
        "\"qk_rope_head_dim\": 16, \"v_head_dim\": 20, \"moe_intermediate_size\": 301, \"n_routed_experts\": "
        "16, \"n_group\": 4,"
        "\"topk_group\": 2, \"num_experts_per_tok\": 3, \"first_k_dense_replace\": 1, \"intermediate_size\": "
        "111}";
    cot_checkpoint *a, *b;
    assert_int_equal(cot_checkpoint_random(&a, config, strlen(config), test_seed(), NULL), COT_OK);
    assert_int_equal(cot_checkpoint_random(&b, config, strlen(config), test_seed() + 1, NULL), COT_OK);
    check_all_pieces(a);
    int64_t rows, columns;
    float *x = whole(a, COT_WEIGHT_EXPERT_UP, 1, 3, &rows, &columns),
          *y = whole(b, COT_WEIGHT_EXPERT_UP, 1, 3, &rows, &columns);
    float *z = whole(a, COT_WEIGHT_EXPERT_UP, 1, 4, &rows, &columns);
    double sum = 0, squares = 0, same = 0, n = (double)(rows * columns);
    for (int64_t i = 0; i < rows * columns; i++) {
        sum += (double)x[i];
        squares += (double)x[i] * (double)x[i];
        same += (x[i] == y[i]) + (x[i] == z[i]);
        assert_true(x[i] == cot_bf16_to_f32(cot_f32_to_bf16(x[i])));
    }
    assert_true(fabs(sum / n) < 0.01 && fabs(squares / n * (double)columns - 1) < 0.03 && same < n / 100);
    free(x);
    free(y);
    free(z);
    static const cot_weight norms[] = {COT_WEIGHT_FINAL_NORM, COT_WEIGHT_ATTENTION_NORM, COT_WEIGHT_FFN_NORM,
                                       COT_WEIGHT_Q_A_NORM, COT_WEIGHT_KV_A_NORM};
    for (size_t w = 0; w < sizeof norms / sizeof *norms; w++) {
        x = whole(a, norms[w], 0, 0, &rows, &columns);
        for (int64_t i = 0; i < columns; i++) assert_true(x[i] > 0.9f && x[i] < 1.1f);
        free(x);
    }
    assert_true(cot_checkpoint_bytes(a) > 2 * 16 * 3 * 301 * 98);
    cot_checkpoint_close(a);
    cot_checkpoint_close(b);
    cot_error error = {0};
    assert_int_equal(cot_checkpoint_random(&a, "{}", 2, 0, &error), COT_MALFORMED);
    assert_null(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden),        cmocka_unit_test(shipped),     cmocka_unit_test(plain),
        cmocka_unit_test(no_such_piece), cmocka_unit_test(known_again), cmocka_unit_test(random_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
