#include "base/error.h"
#include "engine/bench/bench.h"

/* DeepSeek-V3's share is what one of 32 ranks holds of 256 experts: 8. A token visits 8 of the 256, a quarter
 * of one of these in the mean: a case of T tokens and K = 1 is what all ranks' 4 T tokens send this one. */
const cot_bench_shape cot_bench_shapes[] = {{"flashmoe", 2048, 2048, 32, 2, COT_BENCH_TWO_MATRIX},
                                            {"olmoe", 2048, 1024, 64, 8, COT_BENCH_SWIGLU},
                                            {"qwen3-30b", 2048, 768, 128, 8, COT_BENCH_SWIGLU},
                                            {"mixtral", 4096, 14336, 8, 2, COT_BENCH_SWIGLU},
                                            {"deepseek-v2-lite", 2048, 1408, 64, 6, COT_BENCH_SWIGLU},
                                            {"deepseek-v3", 7168, 2048, 8, 1, COT_BENCH_SWIGLU},
                                            {"gpt-oss", 2880, 2880, 32, 4, COT_BENCH_SWIGLU_CLAMPED},
                                            {0}};

static cot_status check_shape(const cot_bench_shape *s, cot_error *error)
{
    enum { DIMENSION_MOST = 1 << 20 };
    long long hidden = s->hidden, intermediate = s->intermediate, experts = s->experts, top_k = s->top_k;
    long long most_k = experts < COT_MAX_TOP_K ? experts : COT_MAX_TOP_K;
    if (hidden < 1 || hidden > DIMENSION_MOST || intermediate < 1 || intermediate > DIMENSION_MOST)
        return cot_fail(error, COT_INVALID_ARGUMENT, "experts of %lld by %lld, expected 1 to %d each", hidden,
                        intermediate, DIMENSION_MOST);
    if (experts < 1 || experts > COT_MAX_EXPERTS)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%lld experts, expected 1 to %d", experts,
                        COT_MAX_EXPERTS);
    if (top_k < 1 || top_k > most_k)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%lld of %lld experts a token, expected 1 to %lld",
                        top_k, experts, most_k);
    if (experts > hidden)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "%lld experts and a hidden size of %lld: a drawn routing needs a hidden size of at "
                        "least as many",
                        experts, hidden);
    return COT_OK;
}

cot_status cot_bench_check(const cot_bench_shape *s, int64_t tokens, cot_bench_routing routing,
                           const char *trace, cot_error *error)
{
    cot_status status = check_shape(s, error);
    if (status != COT_OK) return status;
    if (tokens < 1 || tokens > INT32_MAX / s->top_k)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%lld tokens of %lld experts each, expected 1 to %lld",
                        (long long)tokens, (long long)s->top_k, (long long)(INT32_MAX / s->top_k));
    if (routing != COT_BENCH_TRACE) return COT_OK;
    uint16_t experts[COT_MAX_TOP_K];
    return cot_bench_draw_routing(experts, s, 1, 1, routing, trace, 0, error);
}

int64_t cot_bench_capacity_tokens(const cot_bench_shape *s, int64_t tokens, int ranks)
{
    int64_t most = (tokens + ranks - 1) / ranks;
    int64_t capacity = (most * s->top_k + s->experts - 1) / s->experts;
    return ranks * ((capacity * s->experts + s->top_k - 1) / s->top_k);
}

cot_ffn_shape cot_bench_ffn_of(const cot_bench_shape *s, const cot_precision *precision)
{
    cot_ffn_shape shape = {.type = precision->type,
                           .rounded = precision->rounded,
                           .gate = precision->networks.other,
                           .up = precision->networks.other,
                           .down = precision->networks.other,
                           .hidden = s->hidden,
                           .intermediate = s->intermediate};
    if (s->expert == COT_BENCH_SWIGLU_CLAMPED) {
        shape.biased = true;
        shape.limit = 7;
        shape.alpha = 1.702f;
    }
    if (s->expert == COT_BENCH_TWO_MATRIX) {
        shape.biased = true;
        shape.activation = COT_FFN_GELU;
    }
    return shape;
}
