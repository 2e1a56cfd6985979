/* Heads of attention cut over ranks in every way, so that ranks share heads of keys and values, have different numbers of heads, or
 * none: the logits are one rank's, but for the order of sums. Every expert is every token's, so that no routing hangs on that. */
#include "harness/cmocka.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/engine/steps.h"
#include "harness/seed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { VOCAB = 31, TOKENS = 17, PREFILL = 13, MOST_RANKS = 6 };

/* What follows differs by family: norms over the width of all heads with their clipping, norms of each head, none and biases. */
static const char *const families[] = {
    "\"architectures\": [\"OlmoeForCausalLM\"], \"model_type\": \"olmoe\", \"clip_qkv\": 1.5,"
    " \"num_experts\": 2, \"num_experts_per_tok\": 2, \"norm_topk_prob\": false,"
    " \"attention_bias\": false",
    "\"architectures\": [\"OlmoeForCausalLM\"], \"model_type\": \"olmoe\", \"clip_qkv\": null,"
    " \"num_experts\": 2, \"num_experts_per_tok\": 2, \"norm_topk_prob\": false,"
    " \"attention_bias\": true",
    "\"architectures\": [\"Qwen3MoeForCausalLM\"], \"model_type\": \"qwen3_moe\", \"num_experts\": 2,"
    " \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, \"norm_topk_prob\": true,"
    " \"decoder_sparse_step\": 1, \"mlp_only_layers\": [], \"attention_bias\": true",
};

static cot_engine *open_of(const char *family, const int heads[2], uint64_t seed, const struct setting *s)
{
    char config[1024];
    snprintf(config, sizeof config,
             "{%s, \"vocab_size\": %d, \"hidden_size\": 48, \"intermediate_size\": 40,"
             " \"num_hidden_layers\": 2, \"num_attention_heads\": %d, \"num_key_value_heads\": %d,"
             " \"head_dim\": %d, \"hidden_act\": \"silu\", \"max_position_embeddings\": 64, "
             "\"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"tie_word_embeddings\": false,"
             " \"eos_token_id\": 2}",
             family, VOCAB, heads[0], heads[1], 48 / heads[0]);
    const cot_engine_options options = options_of(s);
    return must_open_random(config, seed, &options);
}

static struct records logits_of(const char *family, const int heads[2], uint64_t seed,
                                const struct setting *s, const int32_t *ids)
{
    cot_engine *engine = open_of(family, heads, seed, s);
    const cot_request q = forced_request(ids, TOKENS, PREFILL);
    const struct records all = must_run(engine, &q, 1);
    cot_engine_close(engine);
    return all;
}

static void ranks_share_heads(void **state)
{
    (void)state;
    static const int shapes[][2] = {{4, 2}, {4, 4}, {4, 1}, {6, 2}, {6, 3}, {2, 1}, {3, 1}};
    static const char *const pipelines[] = {NULL, "s-moe"};
    uint64_t seed = test_seed();
    for (size_t f = 0; f < sizeof families / sizeof *families; f++)
        for (size_t h = 0; h < sizeof shapes / sizeof *shapes; h++) {
            const uint64_t weights = draw(&seed);
            int32_t *ids = drawn_ids(TOKENS, VOCAB, &seed);
            struct records one =
                logits_of(families[f], shapes[h], weights, &(struct setting){.ranks = 1}, ids);
            for (int ranks = 2; ranks <= MOST_RANKS && ranks <= shapes[h][0] + 1; ranks++) {
                const struct setting s = {
                    .ranks = ranks, .attention = "tp", .pipeline = pipelines[draw(&seed) % 2]};
                struct records all = logits_of(families[f], shapes[h], weights, &s, ids);
                double errors = 0, squares = 0;
                for (int i = 0; i < TOKENS * VOCAB; i++) {
                    const double a = (double)all.record[0].logits[i], b = (double)one.record[0].logits[i];
                    errors += (a - b) * (a - b);
                    squares += b * b;
                }
                if (!(sqrt(errors / squares) < 1e-5))
                    fail_msg("family %zu, %d heads over %d of keys and values, %d ranks, %s: off by %g", f,
                             shapes[h][0], shapes[h][1], ranks, s.pipeline ? s.pipeline : "no pipeline",
                             sqrt(errors / squares));
                records_free(&all);
            }
            records_free(&one);
            free(ids);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_share_heads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
