/* The bytes that steps had to read, against a closed form written down here from the shapes: models of every kind of
 * attention and network, with sizes that fill no panel, in every precision. */
#include "harness/cmocka.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/seed.h"

#include <stdlib.h>
#include <string.h>

typedef struct shape {
    const char *name, *config;
    int64_t hidden, vocab, layers, heads, kv_heads, head_dim;
    int64_t q_lora, kv_lora, nope, rope, v; // kv_lora 0: grouped queries
    int64_t experts, top_k, expert_width, shared_width, dense_width;
    bool expert_bias;
    unsigned dense_layers; // a bit each
    unsigned
        state_layers; // likewise: these have a state of so many heads, and attention in the others is gated
    int64_t state_keys, state_values, key_dim, value_dim, taps;
    int64_t window[4];
} shape;

#define COMMON                                                                                               \
    "\"vocab_size\": 331, \"max_position_embeddings\": 128, \"hidden_act\": \"silu\", \"rope_theta\": "      \
    "10000.0, "
#define LATENT                                                                                               \
    COMMON                                                                                                   \
    "\"hidden_size\": 70, \"num_hidden_layers\": 3, \"num_attention_heads\": 3, \"kv_lora_rank\": 45, "      \
    "\"qk_nope_head_dim\": 22, \"qk_rope_head_dim\": 16, \"v_head_dim\": 20, \"intermediate_size\": "        \
    "101, "                                                                                                  \
    "\"moe_intermediate_size\": 37, \"first_k_dense_replace\": 1, \"n_routed_experts\": 8, "                 \
    "\"num_experts_per_tok\": 3, \"n_group\": 1, \"topk_group\": 1, "

static const shape shapes[] = {
    {.name = "grouped queries, shared experts, a dense layer",
     .config =
         "{\"architectures\": [\"Qwen2MoeForCausalLM\"], \"model_type\": \"qwen2_moe\", " COMMON
         "\"hidden_size\": 72, \"num_hidden_layers\": 3, \"num_attention_heads\": 6, "
         "\"num_key_value_heads\": 2, "
         "\"num_experts\": 10, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 41, "
         "\"shared_expert_intermediate_size\": 87, \"intermediate_size\": 121, \"mlp_only_layers\": [1]}",
     .hidden = 72,
     .vocab = 331,
     .layers = 3,
     .heads = 6,
     .kv_heads = 2,
     .head_dim = 12,
     .experts = 10,
     .top_k = 3,
     .expert_width = 41,
     .shared_width = 87,
     .dense_width = 121,
     .dense_layers = 2},
    {.name = "every layer has a window",
     .config = "{\"architectures\": [\"MixtralForCausalLM\"], \"model_type\": \"mixtral\", " COMMON
               "\"hidden_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
               "\"num_key_value_heads\": 4, "
               "\"num_local_experts\": 8, \"num_experts_per_tok\": 2, \"intermediate_size\": 96, "
               "\"sliding_window\": 7}",
     .hidden = 64,
     .vocab = 331,
     .layers = 2,
     .heads = 4,
     .kv_heads = 4,
     .head_dim = 16,
     .experts = 8,
     .top_k = 2,
     .expert_width = 96,
     .window = {7, 7}},
    {.name = "windows by turns, biases",
     .config =
         "{\"architectures\": [\"GptOssForCausalLM\"], \"model_type\": \"gpt_oss\", " COMMON
         "\"hidden_size\": 90, \"num_hidden_layers\": 4, \"num_attention_heads\": 6, "
         "\"num_key_value_heads\": 2, "
         "\"head_dim\": 14, \"num_local_experts\": 9, \"num_experts_per_tok\": 4, \"intermediate_size\": 50, "
         "\"sliding_window\": 16, \"layer_types\": [\"sliding_attention\", \"full_attention\", "
         "\"sliding_attention\", \"full_attention\"]}",
     .hidden = 90,
     .vocab = 331,
     .layers = 4,
     .heads = 6,
     .kv_heads = 2,
     .head_dim = 14,
     .experts = 9,
     .top_k = 4,
     .expert_width = 50,
     .expert_bias = true,
     .window = {16, 0, 16, 0}},
    {.name = "latents",
     .config = "{\"architectures\": [\"DeepseekV2ForCausalLM\"], \"model_type\": \"deepseek_v2\", " LATENT
               "\"q_lora_rank\": null, \"n_shared_experts\": 2, \"topk_method\": \"greedy\"}",
     .hidden = 70,
     .vocab = 331,
     .layers = 3,
     .heads = 3,
     .kv_lora = 45,
     .nope = 22,
     .rope = 16,
     .v = 20,
     .experts = 8,
     .top_k = 3,
     .expert_width = 37,
     .shared_width = 74,
     .dense_width = 101,
     .dense_layers = 1},
    {.name = "latents, of queries too",
     .config = "{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"model_type\": \"deepseek_v3\", " LATENT
               "\"q_lora_rank\": 33, \"n_shared_experts\": 1}",
     .hidden = 70,
     .vocab = 331,
     .layers = 3,
     .heads = 3,
     .q_lora = 33,
     .kv_lora = 45,
     .nope = 22,
     .rope = 16,
     .v = 20,
     .experts = 8,
     .top_k = 3,
     .expert_width = 37,
     .shared_width = 37,
     .dense_width = 101,
     .dense_layers = 1},
    {.name = "states",
     .config = "{\"architectures\": [\"Qwen3NextForCausalLM\"], \"model_type\": \"qwen3_next\", " COMMON
               "\"hidden_size\": 72, \"num_hidden_layers\": 4, \"num_attention_heads\": 3, "
               "\"num_key_value_heads\": 1, \"head_dim\": 24, \"full_attention_interval\": 2, "
               "\"linear_num_key_heads\": 2, \"linear_num_value_heads\": 6, \"linear_key_head_dim\": 13, "
               "\"linear_value_head_dim\": 11, \"linear_conv_kernel_dim\": 3, \"num_experts\": 10, "
               "\"num_experts_per_tok\": 3, \"moe_intermediate_size\": 41, "
               "\"shared_expert_intermediate_size\": 27}",
     .hidden = 72,
     .vocab = 331,
     .layers = 4,
     .heads = 3,
     .kv_heads = 1,
     .head_dim = 24,
     .experts = 10,
     .top_k = 3,
     .expert_width = 41,
     .shared_width = 27,
     .state_layers = 5,
     .state_keys = 2,
     .state_values = 6,
     .key_dim = 13,
     .value_dim = 11,
     .taps = 3},
};

/* ---- the closed form ---- */

typedef enum precision { FP32, BF16, INT8 } precision;

static int64_t up(int64_t n, int64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

/* A matrix in panels of 32 columns, rows in pairs; int8 in fours of rows, behind a float for each column. */
static int64_t matrix(precision p, int64_t rows, int64_t columns)
{
    if (p == INT8) return up(columns, 32) * (up(rows, 32) + 4);
    return up(columns, 32) * up(rows, 2) * (p == FP32 ? 4 : 2);
}

static int64_t network(precision p, int64_t hidden, int64_t width, bool biased)
{
    if (!width) return 0;
    return 64 /* of a header */ + 2 * matrix(p, hidden, width) + matrix(p, width, hidden) +
           (biased ? 2 * up(4 * width, 64) + up(4 * hidden, 64) : 0);
}

/* What MLA absorbs is not rounded. */
static int64_t attention(const shape *s, precision p, precision cold, int64_t layer)
{
    if (s->state_layers >> layer & 1) { // what says how fast it decays is not rounded either
        int64_t k = s->state_keys * s->key_dim, v = s->state_values * s->value_dim;
        return matrix(p, s->hidden, 2 * k + 2 * v) + matrix(cold, s->hidden, 2 * s->state_values) +
               matrix(p, v, s->hidden);
    }
    if (!s->kv_lora) {
        int64_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
        return matrix(p, s->hidden, q + 2 * kv + (s->state_layers ? q : 0)) + matrix(p, q, s->hidden);
    }
    int64_t q = s->heads * (s->nope + s->rope), latent = s->kv_lora + s->rope;
    int64_t queries = s->q_lora ? matrix(p, s->hidden, s->q_lora + latent) + matrix(p, s->q_lora, q)
                                : matrix(p, s->hidden, q + latent);
    return queries + s->heads * (matrix(cold, s->nope, s->kv_lora) + matrix(cold, s->kv_lora, s->v)) +
           matrix(p, s->heads * s->v, s->hidden);
}

/* A key and a value of each position that some of `tokens` tokens from `position` on sees: all, or with a window the
 * last so many of each. */
static int64_t keys_and_values(const shape *s, precision p, int64_t layer, int64_t position, int64_t tokens)
{
    if (s->state_layers >> layer & 1) // what tokens before have left, in fp32
        return position
                   ? 4 * ((s->taps - 1) * (2 * s->state_keys * s->key_dim + s->state_values * s->value_dim) +
                          s->state_values * s->key_dim * s->value_dim)
                   : 0;
    bool seen[128] = {false};
    int64_t positions = 0, element = p == FP32 ? 4 : 2,
            width = s->kv_lora ? s->kv_lora + s->rope + s->kv_lora : 2 * s->kv_heads * s->head_dim;
    for (int64_t t = position; t < position + tokens; t++)
        for (int64_t k = 0; k <= t; k++)
            if (!s->window[layer] || k > t - s->window[layer]) seen[k] = true;
    for (int k = 0; k < 128; k++) positions += seen[k];
    return positions * width * element;
}

/* ---- steps, as they are told ---- */

enum { SEQUENCES = 4, LONGEST = 40, STEP_TOKENS = 11 };

struct account {
    const shape *shape;
    precision precision, attention, head; // of networks, and of those
    bool all_logits;
    int64_t prompt_tokens[SEQUENCES];
    bool any[SEQUENCES]; // the step under way
    int64_t first[SEQUENCES], tokens[SEQUENCES];
    bool touched[4][16], logits, closed;
    int64_t prefill, decode; // expected
};

static void settle(struct account *a)
{
    const shape *s = a->shape;
    const precision p = a->precision, cold = p == INT8 ? BF16 : p;
    bool any = false, prefill = false;
    int64_t bytes = a->logits ? matrix(a->head, s->hidden, s->vocab) : 0;
    for (int i = 0; i < SEQUENCES; i++) {
        any |= a->any[i];
        prefill |= a->any[i] && a->first[i] < a->prompt_tokens[i];
    }
    for (int64_t l = 0, moe = 0; any && l < s->layers; l++) {
        bytes += attention(s, a->attention, cold, l);
        for (int i = 0; i < SEQUENCES; i++)
            if (a->any[i]) bytes += keys_and_values(s, cold, l, a->first[i], a->tokens[i]);
        if (s->dense_layers >> l & 1) {
            bytes += network(p, s->hidden, s->dense_width, false);
            continue;
        }
        bytes += matrix(FP32, s->hidden, s->experts) + network(p, s->hidden, s->shared_width, false);
        for (int e = 0; e < s->experts; e++)
            if (a->touched[moe][e]) bytes += network(p, s->hidden, s->expert_width, s->expert_bias);
        moe++;
    }
    if (any) *(prefill ? &a->prefill : &a->decode) += bytes;
    memset(a->any, 0, sizeof a->any);
    memset(a->touched, 0, sizeof a->touched);
    a->logits = a->closed = false;
}

static void take_routing(void *context, uint64_t request, int64_t position, int32_t token,
                         const uint16_t *experts, const float *weights)
{
    struct account *a = context;
    const shape *s = a->shape;
    (void)token, (void)weights;
    if (a->closed) settle(a);
    if (!a->any[request]) {
        a->any[request] = true;
        a->first[request] = position;
        a->tokens[request] = 0;
    }
    assert_int_equal(position, a->first[request] + a->tokens[request]++);
    int64_t moe_layers = s->layers - __builtin_popcount(s->dense_layers);
    for (int64_t l = 0; l < moe_layers; l++)
        for (int64_t k = 0; k < s->top_k; k++) a->touched[l][experts[l * s->top_k + k]] = true;
    if (a->all_logits) return;
    // One sequence, whose steps are known: full ones while there is prompt, then a token each.
    int64_t fed = position + 1, prompt = a->prompt_tokens[0];
    a->logits = fed >= prompt;
    if (fed >= prompt || fed % STEP_TOKENS == 0) settle(a);
}

static void take_logits(void *context, uint64_t request, int64_t position, const float *logits)
{
    struct account *a = context;
    (void)request, (void)position, (void)logits;
    a->logits = a->closed = true;
}

static void account_for(const shape *s, precision p, bool all_logits, uint64_t *seed)
{
    static const char *const precisions[] = {"fp32", "bf16", "int8"};
    static struct account a;
    const struct setting setting = {.ranks = draw(seed) % 2 ? 1 : 3,
                                    .threads = 2,
                                    .attention = draw(seed) % 2 ? "tp" : "dp",
                                    .precision = precisions[p],
                                    .weights_attention = draw(seed) % 2 ? "int8" : NULL,
                                    .weights_head = draw(seed) % 2 ? "int8" : NULL,
                                    .step_tokens = STEP_TOKENS,
                                    .kv_tokens = SEQUENCES * 64};
    cot_engine_options options = options_of(&setting);
    cot_engine *engine;
    cot_error error;
    if (cot_engine_open_random(&engine, s->config, strlen(s->config), 1, &options, &error) != COT_OK)
        fail_msg("%s: %s", s->name, error.message);
    const precision cold = p == INT8 ? BF16 : p;
    a = (struct account){.shape = s,
                         .precision = p,
                         .attention = setting.weights_attention ? INT8 : cold,
                         .head = setting.weights_head ? INT8 : cold,
                         .all_logits = all_logits};
    cot_request requests[SEQUENCES];
    int32_t *ids[SEQUENCES];
    const size_t count = all_logits ? SEQUENCES : 1;
    for (size_t i = 0; i < count; i++) {
        int64_t tokens = 30 + (int64_t)(draw(seed) % (LONGEST - 30)), prompt = 1 + (int64_t)(draw(seed) % 29);
        ids[i] = drawn_ids(tokens, s->vocab, seed);
        requests[i] = forced_request(ids[i], tokens, prompt);
        requests[i].all_logits = all_logits;
        a.prompt_tokens[i] = prompt;
    }
    cot_events events = {.context = &a, .on_routing = take_routing, .on_logits = take_logits};
    if (cot_engine_run(engine, requests, count, &events, NULL, &error) != COT_OK)
        fail_msg("%s: %s", s->name, error.message);
    settle(&a);
    cot_stats stats;
    assert_int_equal(cot_engine_stats(engine, &stats, NULL), COT_OK);
    assert_true(a.prefill > 0 && a.decode > 0);
    if (stats.prefill_read_bytes != (uint64_t)a.prefill || stats.decode_read_bytes != (uint64_t)a.decode)
        fail_msg("%s, %s, %d ranks, %s: %llu and %llu bytes, expected %lld and %lld", s->name, precisions[p],
                 setting.ranks, setting.attention, (unsigned long long)stats.prefill_read_bytes,
                 (unsigned long long)stats.decode_read_bytes, (long long)a.prefill, (long long)a.decode);
    cot_stats_clear(&stats);
    cot_engine_close(engine);
    for (size_t i = 0; i < count; i++) free(ids[i]);
}

static void every_shape_and_precision(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int p = FP32; p <= INT8; p++) {
            account_for(&shapes[i], (precision)p, true, &seed);
            account_for(&shapes[i], (precision)p, false, &seed);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_shape_and_precision)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
