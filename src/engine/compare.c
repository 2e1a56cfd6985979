/* Two models side by side on the same tokens. */
#include "coterie/eval.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What one model said of a sequence, and what is made of it while the other speaks. */
struct comparison {
    const cot_engine_info *info;
    const cot_eval_sequence *sequence;
    float *logits;     // [T][V], the other's
    uint16_t *experts; // [T][MoE layers][K]
    bool second;
    cot_eval_difference *out;
    int64_t same_tokens, same_experts;
};

/* log of the sum of exp(logits), in double. */
static double log_sum(const float *logits, int64_t n, int64_t *best)
{
    *best = 0;
    for (int64_t i = 1; i < n; i++)
        if (logits[i] > logits[*best]) *best = i;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += exp((double)logits[i] - (double)logits[*best]);
    return log(sum) + (double)logits[*best];
}

static void take_logits(void *context, uint64_t request, int64_t position, const float *logits)
{
    (void)request;
    struct comparison *c = context;
    const int64_t n = c->info->vocab, t = c->sequence->tokens;
    float *kept = c->logits + position * n;
    if (!c->second) {
        memcpy(kept, logits, (size_t)n * sizeof *kept);
        return;
    }
    int64_t best, other_best;
    const double sum = log_sum(logits, n, &best), other_sum = log_sum(kept, n, &other_best);
    double kl = 0;
    for (int64_t i = 0; i < n; i++) {
        const double log_other = (double)kept[i] - other_sum, log_this = (double)logits[i] - sum;
        kl += exp(log_other) * (log_other - log_this);
    }
    c->out->kl += kl / (double)t;
    c->same_tokens += best == other_best;
    const int64_t scored = t - 1 - c->sequence->unscored;
    if (position < c->sequence->unscored || position + 1 >= t) return;
    const int32_t target = c->sequence->ids[position + 1];
    c->out->nats += (sum - (double)logits[target]) / (double)scored;
    c->out->other_nats += (other_sum - (double)kept[target]) / (double)scored;
}

static void take_routing(void *context, uint64_t request, int64_t position, int32_t token,
                         const uint16_t *experts, const float *weights)
{
    (void)request, (void)token, (void)weights;
    struct comparison *c = context;
    const int64_t k = c->info->top_k, n = c->info->moe_layers * k;
    uint16_t *kept = c->experts + position * n;
    if (!c->second) {
        memcpy(kept, experts, (size_t)n * sizeof *kept);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i / k * k; j < i / k * k + k; j++) c->same_experts += experts[i] == kept[j];
}

static cot_status run(cot_engine *engine, struct comparison *c, cot_error *error)
{
    const cot_eval_sequence *s = c->sequence;
    const cot_request request = {.prompt = s->ids,
                                 .prompt_tokens = s->prefill_tokens,
                                 .forced = s->ids + s->prefill_tokens,
                                 .forced_tokens = s->tokens - s->prefill_tokens,
                                 .all_logits = true,
                                 .recorded = s->recorded};
    const cot_events events = {.context = c, .on_logits = take_logits, .on_routing = take_routing};
    size_t failed;
    return cot_engine_run(engine, &request, 1, &events, &failed, error);
}

cot_status cot_eval_compare(cot_engine *engine, cot_engine *other, const cot_eval_sequence *sequences,
                            size_t count, cot_eval_difference *differences, cot_error *error)
{
    const cot_engine_info *a = cot_engine_describe(engine), *b = cot_engine_describe(other);
    if (a->vocab != b->vocab || a->moe_layers != b->moe_layers || a->experts != b->experts ||
        a->top_k != b->top_k)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "models of %lld and %lld tokens, %lld and %lld MoE layers of %lld and %lld experts "
                        "cannot be compared",
                        (long long)a->vocab, (long long)b->vocab, (long long)a->moe_layers,
                        (long long)b->moe_layers, (long long)a->experts, (long long)b->experts);
    cot_status status = COT_OK;
    for (size_t i = 0; i < count && status == COT_OK; i++) {
        const cot_eval_sequence *s = &sequences[i];
        const size_t chosen = (size_t)(s->tokens * a->moe_layers * a->top_k);
        struct comparison c = {.info = a,
                               .sequence = s,
                               .logits = malloc((size_t)s->tokens * (size_t)a->vocab * sizeof(float)),
                               .experts = calloc(chosen + 1, sizeof(uint16_t)),
                               .out = &differences[i]};
        differences[i] = (cot_eval_difference){0};
        status = c.logits && c.experts
                     ? run(other, &c, error)
                     : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the logits of '%s'", s->name);
        c.second = true;
        if (status == COT_OK) status = run(engine, &c, error);
        differences[i].same_tokens = (double)c.same_tokens / (double)s->tokens;
        differences[i].same_experts = chosen ? (double)c.same_experts / (double)chosen : 1;
        free(c.logits);
        free(c.experts);
    }
    return status;
}
