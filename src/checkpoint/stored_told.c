/* Whether quantization_config tells the truth about what is stored. */
#include "base/error.h"
#include "checkpoint/stored.h"

#include <inttypes.h>

/* Rows and columns that share a scale; what is beyond the matrix counts for nothing. */
typedef struct span {
    int64_t rows, columns;
} span;

static int64_t at_most(int64_t n, int64_t most)
{
    return n < most ? n : most;
}

static span span_of(const cot_stored *s)
{
    span of = {1, s->storage == COT_STORAGE_NVFP4 ? 16 : 32}; // or MXFP4
    if (s->storage == COT_STORAGE_FP8) of = (span){s->block_rows, s->block_columns};
    if (s->storage == COT_STORAGE_WHOLE) of = (span){s->whole.scale_row ? 1 : s->rows, s->whole.group};
    return (span){at_most(of.rows, s->rows), at_most(of.columns, s->columns)};
}

static span span_told(const cot_quantised_group *g, const cot_stored *s)
{
    switch (g->strategy) {
    case COT_QUANTISED_TENSOR:
        return (span){s->rows, s->columns};
    case COT_QUANTISED_CHANNEL:
        return (span){1, s->columns};
    case COT_QUANTISED_GROUP:
        return (span){1, at_most(g->columns, s->columns)};
    case COT_QUANTISED_BLOCK:
        if (g->rows) return (span){at_most(g->rows, s->rows), at_most(g->columns, s->columns)};
        break;
    case COT_QUANTISED_ANYHOW:
        break;
    }
    return span_of(s);
}

static cot_status hold_against(const cot_quantised_group *g, const cot_stored *s, const char *file,
                               cot_error *error)
{
    const bool floats = s->storage != COT_STORAGE_WHOLE;
    const int bits = s->storage == COT_STORAGE_FP8 ? 8 : floats ? 4 : s->whole.bits;
    const span found = span_of(s), told = span_told(g, s);
    if (g->bits && g->bits != bits)
        return cot_fail(error, COT_MALFORMED, "tensor '%s' has weights of %d bits, %s says %d", s->name, bits,
                        file, g->bits);
    if (floats ? g->whole : g->floats)
        return cot_fail(error, COT_MALFORMED, "tensor '%s' has weights of type %s, %s says %s", s->name,
                        floats ? "float" : "int", file, floats ? "int" : "float");
    if (found.rows != told.rows || found.columns != told.columns)
        return cot_fail(error, COT_MALFORMED,
                        "tensor '%s' has a scale for %" PRId64 " x %" PRId64 " elements, %s says for %" PRId64
                        " x %" PRId64,
                        s->name, found.rows, found.columns, file, told.rows, told.columns);
    if (g->reordered && !s->whole.order && !floats && s->whole.group < s->columns)
        return cot_stored_refuse_order(s, "actorder", "weight_g_idx", error);
    if (g->zeros && !s->whole.zeros)
        return cot_fail(error, COT_MALFORMED, "tensor '%s' has no zero points, config.json says that it has",
                        s->name);
    if (g->symmetric && !s->whole.symmetric &&
        !cot_stored_is_symmetric(s)) // else all groups say so: reading looks
        return cot_fail(error, COT_MALFORMED,
                        "tensor '%s' has a zero point that is not the middle, config.json says symmetric",
                        s->name);
    return COT_OK;
}

cot_status cot_stored_hold(const cot_stored *stored, cot_weight weight, const cot_config *config,
                           cot_error *error)
{
    const cot_quantisation *q = &config->quantisation;
    const char *dot = strrchr(stored->name, '.');
    const size_t length = dot ? (size_t)(dot - stored->name) : strlen(stored->name);
    const bool quantised = stored->storage == COT_STORAGE_FP8 || stored->storage == COT_STORAGE_MXFP4 ||
                           stored->storage == COT_STORAGE_NVFP4 || stored->storage == COT_STORAGE_WHOLE,
               told = q->method == COT_QUANTISED_COMPRESSED || q->method == COT_QUANTISED_MODELOPT;
    if (!told || !quantised) return COT_OK;
    const char *file = q->beside ? "hf_quant_config.json" : "config.json",
               *kind = weight == COT_WEIGHT_EMBEDDING ? "Embedding" : "Linear";
    if (cot_quantised_match(&q->ignored, stored->name, length, kind))
        return cot_fail(error, COT_MALFORMED, "tensor '%s' is quantised, %s says '%s'", stored->name, file,
                        q->beside ? "exclude_modules" : "ignore");
    int best = 0;
    cot_status status = COT_OK;
    for (size_t g = 0; g < q->group_count; g++) {
        const cot_quantised_targets *targets = &q->groups[g].targets;
        const int match = targets->count ? cot_quantised_match(targets, stored->name, length, kind) : 1;
        if (match < best || !match || (match == best && status == COT_OK)) continue;
        best = match;
        status = hold_against(&q->groups[g], stored, file, error);
    }
    return status;
}
