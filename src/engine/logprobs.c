/* Chances of tokens, of the softmax of a row of logits. */
#include "coterie/engine.h"

#include <assert.h>
#include <math.h>

/* Puts a token among the best so far, [count] of at most k in order; returns their new count. */
static size_t insert(cot_logprob *top, size_t count, size_t k, int32_t token, float logit)
{
    if (count == k && (!k || top[k - 1].logprob >= logit)) return count;
    size_t at = count < k ? count++ : k - 1;
    for (; at > 0 && top[at - 1].logprob < logit; at--) top[at] = top[at - 1];
    top[at] = (cot_logprob){token, logit};
    return count;
}

void cot_logprobs_of(const float *logits, int64_t vocab, int32_t token, const int32_t *of, size_t k,
                     cot_sampled *out, cot_logprob *top)
{
    assert((of || k <= COT_MAX_LOGPROBS) && token >= 0 && token < vocab);
    const float own = logits[token];
    float best = logits[0];
    for (int64_t t = 1; t < vocab; t++) best = logits[t] > best ? logits[t] : best;
    double sum = 0;
    int32_t rank = 1;
    size_t count = 0;
    for (int64_t t = 0; t < vocab; t++) {
        sum += exp((double)logits[t] - (double)best);
        rank += logits[t] > own;
        if (!of) count = insert(top, count, k, (int32_t)t, logits[t]); // until the sum is known, of logits
    }
    for (; of && count < k; count++) top[count] = (cot_logprob){of[count], logits[of[count]]};
    const double offset = (double)best + log(sum);
    for (size_t i = 0; i < count; i++) top[i].logprob = (float)((double)top[i].logprob - offset);
    out->token = token;
    out->logprob = (float)((double)own - offset);
    out->rank = rank;
    out->top = top;
    out->top_count = count;
}
