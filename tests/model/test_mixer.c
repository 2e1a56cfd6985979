/* The table of mixers: every layer has a row, and widths that are told before weights are laid out are those of the weights. */
#include "harness/cmocka.h"
#include "harness/seed.h"

#include "model/mixer.h"

#include <stdlib.h>
#include <string.h>

#define NUMBERS                                                                                              \
    "\"vocab_size\": 40, \"hidden_size\": 96, \"num_hidden_layers\": 4, \"num_attention_heads\": 6, "        \
    "\"max_position_embeddings\": 64, \"moe_intermediate_size\": 16, \"intermediate_size\": 16, "            \
    "\"num_experts_per_tok\": 1"
#define MLA_NUMBERS                                                                                          \
    "{\"architectures\": [\"DeepseekV2ForCausalLM\"], " NUMBERS                                              \
    ", \"n_routed_experts\": 4, \"kv_lora_rank\": 40, "                                                      \
    "\"qk_nope_head_dim\": 24, \"qk_rope_head_dim\": 16, \"v_head_dim\": 20, \"topk_method\": \"greedy\", "
#define STATE_NUMBERS(name)                                                                                  \
    "{\"architectures\": [\"" name "\"], " NUMBERS                                                           \
    ", \"num_key_value_heads\": 2, \"head_dim\": 24, \"num_experts\": 4, "                                   \
    "\"linear_num_key_heads\": 3, \"linear_num_value_heads\": 6, \"linear_key_head_dim\": 11, "              \
    "\"linear_value_head_dim\": 7, \"linear_conv_kernel_dim\": 3"

static const struct {
    const char *config, *kinds[4]; // of the layers
    bool keeps_pages;
} models[] = {
    {"{\"architectures\": [\"Qwen3MoeForCausalLM\"], " NUMBERS
     ", \"num_key_value_heads\": 3, \"head_dim\": 14, "
     "\"num_experts\": 4}",
     {"full attention", "full attention", "full attention", "full attention"},
     true},
    {"{\"architectures\": [\"AfmoeForCausalLM\"], " NUMBERS ", \"num_key_value_heads\": 2, \"head_dim\": 10, "
     "\"num_experts\": 4, \"sliding_window\": 8}",
     {"sliding attention", "sliding attention", "sliding attention", "full attention"},
     true},
    {MLA_NUMBERS "\"q_lora_rank\": 18}",
     {"multi-head latent attention", "multi-head latent attention", "multi-head latent attention",
      "multi-head latent attention"},
     true},
    {MLA_NUMBERS "\"q_lora_rank\": null}",
     {"multi-head latent attention", "multi-head latent attention", "multi-head latent attention",
      "multi-head latent attention"},
     true},
    {STATE_NUMBERS("Qwen3NextForCausalLM") "}",
     {"Gated DeltaNet", "Gated DeltaNet", "Gated DeltaNet", "full attention"},
     false},
    {STATE_NUMBERS("Qwen3_5MoeForCausalLM") ", \"layer_types\": [\"full_attention\", \"linear_attention\", "
                                            "\"linear_attention\", \"full_attention\"]}",
     {"full attention", "Gated DeltaNet", "Gated DeltaNet", "full attention"},
     false},
};
enum { MODELS = sizeof models / sizeof *models };

static cot_checkpoint *model(int m)
{
    cot_checkpoint *checkpoint;
    cot_error error;
    if (cot_checkpoint_random(&checkpoint, models[m].config, strlen(models[m].config), test_seed(), &error) !=
        COT_OK)
        fail_msg("model %d: %s", m, error.message);
    return checkpoint;
}

static void layers_have_rows(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        cot_checkpoint *checkpoint = model(m);
        const cot_config *config = cot_checkpoint_config(checkpoint);
        bool all = true;
        for (int64_t l = 0; l < config->layers; l++) {
            assert_string_equal(cot_mixer_of(config, l)->name, models[m].kinds[l]);
            all = all && cot_mixer_of(config, l)->keeps_pages;
        }
        assert_true(all == models[m].keeps_pages && all == cot_mixer_all_keep_pages(config));
        cot_checkpoint_close(checkpoint);
    }
}

/* Each that layers have once, with the first layer of it. */
static void those_used_are_listed(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        cot_checkpoint *checkpoint = model(m);
        const cot_config *config = cot_checkpoint_config(checkpoint);
        const cot_mixer *mixer;
        int64_t first, of_those = 0;
        int i = 0;
        for (; (mixer = cot_mixer_used(config, i, &first)); i++)
            for (int64_t l = 0; l < config->layers; l++) {
                if (cot_mixer_of(config, l) != mixer) continue;
                assert_true(l >= first);
                of_those++;
            }
        assert_int_equal(of_those, config->layers);
        assert_null(cot_mixer_used(config, i + 1, &first));
        cot_checkpoint_close(checkpoint);
    }
}

static void widths_are_those_of_weights(void **state)
{
    (void)state;
    const cot_precision precision = {.type = COT_F32, .attention = {COT_FORMATS, COT_FORMAT_FP32}};
    for (int m = 0; m < MODELS; m++)
        for (int ranks = 1; ranks <= 8; ranks++)
            for (int rank = 0; rank < ranks; rank++) {
                cot_checkpoint *checkpoint = model(m);
                const cot_config *config = cot_checkpoint_config(checkpoint);
                cot_attention_weights weights[4];
                cot_arena measure = {0};
                cot_loader *load;
                assert_int_equal(cot_loader_open(&load, checkpoint, NULL), COT_OK);
                for (int64_t l = 0; l < 4; l++) cot_attention_heads(&weights[l], config, l, rank, ranks);
                cot_attention_weights_walk(weights, checkpoint, precision, &measure, load);
                for (int64_t l = 0; l < 4; l++) {
                    const cot_mixer_widths widths = cot_mixer_of(config, l)->widths(config, &weights[l]);
                    if (!weights[l].heads) continue;
                    assert_int_equal(widths.input, weights[l].input.n);
                    assert_int_equal(widths.output, weights[l].output.k);
                    assert_true(!cot_mixer_of(config, l)->keeps_pages ==
                                (cot_mixer_of(config, l)->state_floats != NULL));
                    assert_int_equal(weights[l].output.n, config->hidden);
                }
                cot_loader_close(load);
                cot_checkpoint_close(checkpoint);
            }
}

/* All query heads are on some rank, once and in order. */
static void heads_are_cut(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        cot_checkpoint *checkpoint = model(m);
        const cot_config *config = cot_checkpoint_config(checkpoint);
        for (int64_t l = 0; l < config->layers; l++)
            for (int ranks = 1; ranks <= 8; ranks++) {
                cot_attention_weights all, part;
                int64_t heads = 0;
                cot_attention_heads(&all, config, l, 0, 1);
                for (int rank = 0; rank < ranks; rank++, heads += part.heads) {
                    cot_attention_heads(&part, config, l, rank, ranks);
                    assert_int_equal(part.head0, heads);
                }
                assert_int_equal(heads, all.heads);
            }
        cot_checkpoint_close(checkpoint);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_have_rows), cmocka_unit_test(those_used_are_listed),
        cmocka_unit_test(widths_are_those_of_weights), cmocka_unit_test(heads_are_cut)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
