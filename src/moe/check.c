#include "moe/check.h"

#include "base/error.h"

static const int64_t dimension_most = 1 << 24; // of H and I: no product of sizes overflows

static bool multiplied(const cot_ffn_shape *shape, cot_format format)
{
    return cot_format_kind(format) < COT_FORMATS &&
           cot_format_multiplies(format, shape->type, shape->rounded);
}

static bool right_shape(const cot_ffn_shape *shape, int64_t intermediate_least)
{
    return (shape->type == COT_F32 || shape->type == COT_BF16) && shape->hidden >= 1 &&
           shape->hidden <= dimension_most && shape->activation <= COT_FFN_RELU &&
           shape->intermediate >= intermediate_least && shape->intermediate <= dimension_most &&
           (!cot_ffn_is_gated(shape) || multiplied(shape, shape->gate)) && multiplied(shape, shape->up) &&
           multiplied(shape, shape->down);
}

cot_status cot_moe_check(const cot_moe_options *o, cot_error *error)
{
    long long experts = o->experts, top_k = o->top_k, tokens = o->tokens, slots = o->slots;
    long long most_k = experts < COT_MAX_TOP_K ? experts : COT_MAX_TOP_K;
    if (experts < 1 || experts > COT_MAX_EXPERTS)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%lld experts, expected 1 to %d", experts,
                        COT_MAX_EXPERTS);
    if (top_k < 1 || top_k > most_k)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%lld experts a token, expected 1 to %lld", top_k,
                        most_k);
    if (tokens < 1 || tokens > INT32_MAX / top_k)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%lld tokens a call, expected 1 to %lld", tokens,
                        INT32_MAX / top_k);
    if (!right_shape(&o->expert, 1))
        return cot_fail(error, COT_INVALID_ARGUMENT, "experts of %lld by %lld %s cannot be run",
                        (long long)o->expert.hidden, (long long)o->expert.intermediate,
                        cot_dtype_name(o->expert.type));
    if (o->shared.intermediate && (!right_shape(&o->shared, 1) || o->shared.hidden != o->expert.hidden ||
                                   o->shared.type != o->expert.type))
        return cot_fail(
            error, COT_INVALID_ARGUMENT, "a shared expert of %lld by %lld %s cannot be run beside %lld %s",
            (long long)o->shared.hidden, (long long)o->shared.intermediate, cot_dtype_name(o->shared.type),
            (long long)o->expert.hidden, cot_dtype_name(o->expert.type));
    if (o->combine_type != COT_F32 && o->combine_type != COT_BF16)
        return cot_fail(error, COT_INVALID_ARGUMENT, "rows cannot travel back as %s",
                        cot_dtype_name(o->combine_type));
    if (slots < 0 || slots > COT_MAX_EXPERTS / o->fabric->ranks)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%lld slots a rank, expected 0 to %d", slots,
                        COT_MAX_EXPERTS / o->fabric->ranks);
    return COT_OK;
}

cot_status cot_moe_fail_with(int rank, cot_error *error)
{
    return cot_fail(error, COT_INVALID_ARGUMENT,
                    "the routing of rank %d's tokens is not sound: not finite, or an expert out of range",
                    rank);
}

cot_status cot_moe_fail_empty(cot_error *error)
{
    return cot_fail(error, COT_INVALID_ARGUMENT, "no rank has a token");
}
