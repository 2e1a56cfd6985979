#include "predict/check.h"

#include "base/error.h"

#include <inttypes.h>
#include <math.h>

cot_status cot_check_groups(const cot_predictor *p, const char *subject, cot_error *error)
{
    for (int64_t i = 0; i < (int64_t)p->n_layers * p->n_experts; i++)
        if (p->expert_rank_u8[i] >= p->n_ranks)
            return cot_fail(
                error, COT_MALFORMED,
                "'%s': expert %" PRId64 " of layer %" PRId64 " sits on rank %d, expected 0 to %" PRId32,
                subject, i % p->n_experts, i / p->n_experts, p->expert_rank_u8[i], p->n_ranks - 1);
    return COT_OK;
}

static cot_status check_pairs(const uint16_t *pair, int64_t n, const char *name, const cot_predictor *p,
                              const char *subject, cot_error *error)
{
    for (int64_t i = 0; i < n; i++)
        if (pair[2 * i] == COT_NO_RANK ? pair[2 * i + 1] != 0 : pair[2 * i] >= p->n_ranks)
            return cot_fail(error, COT_MALFORMED,
                            "'%s': '%s' has rank %d with confidence %d at %" PRId64 ", expected 0 to %" PRId32
                            ", or 65535 with 0",
                            subject, name, pair[2 * i], pair[2 * i + 1], i, p->n_ranks - 1);
    return COT_OK;
}

static cot_status check_offsets(const int64_t *offsets, int64_t n, int64_t total, const char *name,
                                const char *subject, cot_error *error)
{
    if (offsets[0] != 0 || offsets[n] != total)
        return cot_fail(error, COT_MALFORMED,
                        "'%s': '%s' go from %" PRId64 " to %" PRId64 ", expected 0 to %" PRId64, subject,
                        name, offsets[0], offsets[n], total);
    for (int64_t i = 0; i < n; i++)
        if (offsets[i + 1] < offsets[i])
            return cot_fail(error, COT_MALFORMED,
                            "'%s': '%s' fall from %" PRId64 " to %" PRId64 " at %" PRId64, subject, name,
                            offsets[i], offsets[i + 1], i + 1);
    return COT_OK;
}

static cot_status check_tokens(const cot_predictor *p, const char *subject, cot_error *error)
{
    const int64_t rows = p->n_layers * p->n_tokens;
    for (int64_t r = 0; r < p->n_tokens; r++)
        if (p->token_ids[r] < 0 || (r && p->token_ids[r] <= p->token_ids[r - 1]))
            return cot_fail(error, COT_MALFORMED, "'%s': token ids are not ascending from 0 at '%" PRId32 "'",
                            subject, p->token_ids[r]);
    cot_status status = check_offsets(p->token_offsets, rows, p->n_entries, "token_offsets", subject, error);
    if (status == COT_OK) status = check_pairs(p->token_ranks, rows, "token_ranks", p, subject, error);
    for (int64_t r = 0; r < rows && status == COT_OK; r++)
        for (int64_t i = p->token_offsets[r]; i < p->token_offsets[r + 1]; i++)
            if (p->token_experts[i] >= p->n_experts ||
                (i > p->token_offsets[r] && p->token_experts[i] <= p->token_experts[i - 1]))
                return cot_fail(error, COT_MALFORMED,
                                "'%s': token_experts has %d at %" PRId64
                                ", expected ascending numbers below %" PRId32,
                                subject, p->token_experts[i], i, p->n_experts);
    for (int64_t id = 0; id < p->n_ids && status == COT_OK; id++)
        if (p->id_row[id] < -1 || p->id_row[id] >= p->n_tokens)
            return cot_fail(error, COT_MALFORMED,
                            "'%s': id %" PRId64 " has row %" PRId32 ", expected -1 to %" PRId64, subject, id,
                            p->id_row[id], p->n_tokens - 1);
    return status;
}

static cot_status check_scale(const float *scale, const char *name, int32_t n_layers, const char *subject,
                              cot_error *error)
{
    for (int32_t l = 0; l < n_layers; l++)
        if (!isfinite(scale[l]) || scale[l] < 0)
            return cot_fail(error, COT_MALFORMED, "'%s': %s of layer %" PRId32 " is %g, expected 0 or more",
                            subject, name, l, (double)scale[l]);
    return COT_OK;
}

cot_status cot_check_tables(const cot_predictor *p, const char *subject, cot_error *error)
{
    cot_status status = check_pairs(p->layer_ranks, p->n_layers, "layer_ranks", p, subject, error);
    if (status == COT_OK && p->has_tokens) status = check_tokens(p, subject, error);
    if (status == COT_OK && p->has_sequences)
        status = check_pairs(p->sequence_ranks, p->sequence_first[p->n_layers], "sequence_ranks", p, subject,
                             error);
    if (status == COT_OK && p->n_string_bytes >= 0)
        status = check_offsets(p->token_string_offsets, p->n_tokens, p->n_string_bytes,
                               "token_string_offsets", subject, error);
    if (status == COT_OK && p->has_context[0])
        status = check_scale(p->context[0].scale, "context_prefill_scale", p->n_layers, subject, error);
    if (status == COT_OK && p->has_context[1])
        status = check_scale(p->context[1].scale, "context_scale", p->n_layers, subject, error);
    for (int64_t s = 0; s < p->n_sequences && p->chosen && status == COT_OK; s++)
        if (p->chosen[s] > 1)
            return cot_fail(error, COT_MALFORMED, "'%s': chosen has %d at %" PRId64 ", expected 0 or 1",
                            subject, p->chosen[s], s);
    return status;
}
