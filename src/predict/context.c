/* Coterie's own predictor: the log-odds of each expert are a sum of table rows, one for the token, one for the token
 * before, one for each of the token's experts in the two layers before and, in the form for decoding, one for each expert that the
 * two tokens before called in this layer. Trained layer by layer: stochastic gradient steps on the likelihood of every expert's
 * being called or not, with a step per row that shrinks as the row learns (AdaGrad, one sum a row); then rounded to
 * bytes.
 *
 * Rows of tokens that were seen rarely would learn them by heart, and nothing else would learn what to do without: a
 * token of frequency f is shown as an unknown one with probability 1 / (2 + f / 4), so that the unknown's row is
 * what rare tokens have in common. Numbers below were chosen by holding out a quarter of the training generations of
 * gpt-oss-20b. */
#include "predict/predictor.h"

#include "base/error.h"
#include "base/rng.h"
#include "predict/logistic.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const float first_step = 0.2f, last_step = 0.02f;
enum {
    MOST_EPOCHS = 12,
    LEAST_EPOCHS = 3,
    SHOWN = 1 << 18
}; // about as many tokens are shown, whatever the trace

/* One layer's weights, [rows][stride], before they are rounded. */
typedef struct weights {
    int64_t N, E, stride, rows;           // stride: E up to a whole number of vectors
    int64_t before, own, earlier;         // first rows; the token's are from 0 on
    bool reads_earlier;                   // else there are no rows from `earlier` on
    float *w, *squares, *bias, *gradient; // squares [rows]: of gradients so far
    int64_t *row;                         // [2 + 4K] rows of one token
    int32_t *order;                       // [n] in which tokens are shown
} weights;

typedef struct fitting {
    const cot_training *training;
    bool reads_earlier;
    float *scale;
    int16_t *bias;
    int8_t *tokens, *before, *own, *earlier; // earlier: NULL where none are read
    atomic_bool failed;
} fitting;

static void weights_close(weights *w)
{
    free(w->w);
    free(w->squares);
    free(w->bias);
    free(w->gradient);
    free(w->row);
    free(w->order);
}

static bool weights_open(weights *w, const cot_training *t, bool reads_earlier)
{
    const cot_predictor *p = t->predictor;
    *w = (weights){.N = p->n_tokens, .E = p->n_experts, .reads_earlier = reads_earlier};
    w->stride = (w->E + COT_LOGISTIC_BLOCK - 1) / COT_LOGISTIC_BLOCK * COT_LOGISTIC_BLOCK;
    w->before = w->N + 1;
    w->own = w->before + w->N + 1;
    w->earlier = w->own + 2 * w->E;
    w->rows = w->earlier + (reads_earlier ? 2 * w->E : 0);
    w->w = calloc((size_t)(w->rows * w->stride), sizeof *w->w);
    w->squares = calloc((size_t)w->rows, sizeof *w->squares);
    w->bias = calloc((size_t)w->stride, sizeof *w->bias);
    w->gradient = calloc((size_t)w->stride, sizeof *w->gradient);
    w->row = calloc(2 + 4 * (size_t)p->top_k, sizeof *w->row);
    w->order = calloc((size_t)t->n, sizeof *w->order);
    return w->w && w->squares && w->bias && w->gradient && w->row && w->order;
}

/* Where the token stands, or in `known` of all times where it stands for the unknown. */
static int64_t token_row(const weights *w, const cot_training *t, int64_t token, double draw)
{
    const int32_t row = t->row[token];
    return row < 0 || draw * (2 + t->predictor->token_frequency[row] * 0.25) < 1 ? w->N : row;
}

static int64_t list_rows(weights *w, const cot_training *t, int32_t l, int64_t token, uint64_t stream,
                         uint64_t draw)
{
    const uint64_t seed = t->predictor->seed;
    const int32_t K = t->predictor->top_k;
    const int64_t earlier = token - t->begin[token]; // tokens before it in its sequence
    int64_t n = 0;
    w->row[n++] = token_row(w, t, token, cot_random_uniform(seed, stream, 2 * draw));
    w->row[n++] =
        w->before +
        (earlier ? token_row(w, t, token - 1, cot_random_uniform(seed, stream, 2 * draw + 1)) : w->N);
    for (int32_t j = 0; j < COT_PREDICT_LOOK_BACK; j++)
        for (int32_t k = 0; k < K; k++) {
            if (l > j) w->row[n++] = w->own + j * w->E + cot_trace_expert(t->trace, l - 1 - j, token, k);
            if (w->reads_earlier && earlier > j)
                w->row[n++] = w->earlier + j * w->E + cot_trace_expert(t->trace, l, token - 1 - j, k);
        }
    return n;
}

/* The layer's counts as log-odds, an occurrence more and less added so that they are finite. */
static void start(weights *w, const cot_training *t, int32_t l)
{
    for (int64_t i = 0; i < t->n; i++)
        for (int32_t k = 0; k < t->predictor->top_k; k++)
            w->bias[cot_trace_expert(t->trace, l, t->token[i], k)]++;
    for (int64_t e = 0; e < w->E; e++) {
        const double count = fmin(w->bias[e], (double)t->n); // more where experts repeat
        w->bias[e] = (float)log((count + 0.5) / ((double)t->n - count + 0.5));
    }
}

static void learn(weights *w, const cot_training *t, int32_t l, int64_t token, float step, int64_t n)
{
    float *gradient = w->gradient;
    memcpy(gradient, w->bias, (size_t)w->stride * sizeof *gradient);
    for (int64_t r = 0; r < n; r++) cot_add_row(gradient, w->w + w->row[r] * w->stride, 1, w->stride);
    cot_logistic(gradient, w->stride);
    for (int64_t e = w->E; e < w->stride; e++) gradient[e] = 0;
    for (int32_t k = 0; k < t->predictor->top_k; k++) {
        float *called = &gradient[cot_trace_expert(t->trace, l, token, k)];
        if (*called > 0) *called -= 1; // once, where an expert repeats
    }
    const float square = cot_mean_square(gradient, w->stride);
    for (int64_t r = 0; r < n; r++) {
        const int64_t row = w->row[r];
        w->squares[row] += square;
        cot_add_row(w->w + row * w->stride, gradient, -step / sqrtf(w->squares[row] + 1e-8f), w->stride);
    }
}

static void fit(weights *w, const cot_training *t, int32_t l)
{
    const uint64_t seed = t->predictor->seed;
    const int64_t n = t->n, wanted = SHOWN / n;
    const int64_t epochs = wanted < LEAST_EPOCHS ? LEAST_EPOCHS : wanted > MOST_EPOCHS ? MOST_EPOCHS : wanted;
    start(w, t, l);
    for (int64_t i = 0; i < n; i++) w->order[i] = (int32_t)i;
    for (int64_t epoch = 0; epoch < epochs; epoch++) {
        const uint64_t stream = 2 * ((uint64_t)l * MOST_EPOCHS + (uint64_t)epoch);
        const float step = first_step + (last_step - first_step) * (float)epoch / (float)epochs;
        for (int64_t i = n - 1; i > 0; i--) {
            const int64_t j = (int64_t)(cot_random_bits(seed, stream, (uint64_t)i) % (uint64_t)(i + 1));
            const int32_t swap = w->order[i];
            w->order[i] = w->order[j];
            w->order[j] = swap;
        }
        for (int64_t i = 0; i < n; i++) {
            const int64_t token = t->token[w->order[i]];
            learn(w, t, l, token, step, list_rows(w, t, l, token, stream + 1, (uint64_t)i));
        }
    }
}

static void round_rows(int8_t *out, const weights *w, int64_t first, int64_t rows, float scale)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t e = 0; e < w->E; e++)
            out[r * w->E + e] = (int8_t)lrintf(w->w[(first + r) * w->stride + e] / scale);
}

/* In units of one scale, the least that holds every weight in a byte and every bias in two. */
static void round_layer(const fitting *f, const weights *w, int64_t l)
{
    const int64_t E = w->E, N = w->N;
    float scale = 1e-6f;
    for (int64_t i = 0; i < w->rows * w->stride; i++) scale = fmaxf(scale, fabsf(w->w[i]) / 127);
    for (int64_t e = 0; e < E; e++) scale = fmaxf(scale, fabsf(w->bias[e]) / 32767);
    f->scale[l] = scale;
    for (int64_t e = 0; e < E; e++) f->bias[l * E + e] = (int16_t)lrintf(w->bias[e] / scale);
    round_rows(f->tokens + l * (N + 1) * E, w, 0, N + 1, scale);
    round_rows(f->before + l * (N + 1) * E, w, w->before, N + 1, scale);
    round_rows(f->own + l * 2 * E * E, w, w->own, 2 * E, scale);
    if (f->reads_earlier) round_rows(f->earlier + l * 2 * E * E, w, w->earlier, 2 * E, scale);
}

static void fit_layer(void *context, int64_t l)
{
    fitting *f = context;
    weights w;
    if (weights_open(&w, f->training, f->reads_earlier)) {
        fit(&w, f->training, (int32_t)l);
        round_layer(f, &w, l);
    } else {
        atomic_store(&f->failed, true);
    }
    weights_close(&w);
}

cot_status cot_train_context(cot_training *t, int form, cot_error *error)
{
    cot_predictor *p = t->predictor;
    const int64_t L = p->n_layers, E = p->n_experts, N = p->n_tokens;
    fitting f = {.training = t,
                 .reads_earlier = form == COT_PREDICT_CONTEXT_DECODE - COT_PREDICT_CONTEXT_PREFILL};
    f.scale = cot_predictor_alloc(p, L, sizeof *f.scale);
    f.bias = cot_predictor_alloc(p, L * E, sizeof *f.bias);
    f.tokens = cot_predictor_alloc(p, L * (N + 1) * E, 1);
    f.before = cot_predictor_alloc(p, L * (N + 1) * E, 1);
    f.own = cot_predictor_alloc(p, L * 2 * E * E, 1);
    if (f.reads_earlier) f.earlier = cot_predictor_alloc(p, L * 2 * E * E, 1);
    const bool fine = f.scale && f.bias && f.tokens && f.before && f.own && (f.earlier || !f.reads_earlier) &&
                      t->n <= INT32_MAX;
    if (fine) cot_pool_run(t->pool, L, fit_layer, &f);
    p->context[form] = (cot_predictor_context){f.scale, f.bias, f.tokens, f.before, f.own, f.earlier};
    p->has_context[form] = fine && !atomic_load(&f.failed);
    return p->has_context[form] ? COT_OK
                                : cot_fail(error, COT_OUT_OF_MEMORY,
                                           "out of memory to learn from %lld tokens", (long long)t->n);
}
