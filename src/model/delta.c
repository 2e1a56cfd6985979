/* Gated DeltaNet (Yang, Kautz, Hatamizadeh 2024): a head has a matrix S [dk][dv] in place of keys and values. A token lets S decay,
 * takes from it what its key finds there, and puts its value in place of that, by beta:
 *
 *     S <- exp(g) S,   S <- S + k (beta (v - k S)),   o = q S
 *
 * q, k and v go through a convolution over the channels before, each by itself, over the last tokens. The state of a sequence in a
 * layer is [taps - 1][channels], the inputs of the convolution that the next tokens see, and behind it S of each head, in panels
 * (kernels/delta.h). Tokens are taken one after the other: a step computes the same of a token whatever else it holds. */
#include "base/integers.h"
#include "model/mixer.h"
#include "model/runner_state.h"

#include <math.h>
#include <string.h>

static const float unit_epsilon = 1e-6f; // of q and k that are divided by their lengths

static void delta_cut(cot_attention_weights *w, const cot_config *c, int rank, int ranks)
{
    cot_attention_heads_share(w, c->delta.values, c->delta.keys, rank, ranks);
}

/* Of q, k and v. */
static int64_t channels_of(const cot_config *c, const cot_attention_weights *heads)
{
    return 2 * heads->kv_heads * c->delta.key_dim + heads->heads * c->delta.value_dim;
}

static cot_mixer_widths delta_widths(const cot_config *c, const cot_attention_weights *heads)
{
    const int64_t v = heads->heads * c->delta.value_dim;
    return (cot_mixer_widths){.input = channels_of(c, heads) + v + 2 * heads->heads, .output = v};
}

static int64_t delta_floats(const cot_config *c, const cot_attention_weights *heads)
{
    return (c->delta.taps - 1) * channels_of(c, heads) + heads->heads * c->delta.key_dim * c->delta.value_dim;
}

/* ---- weights ---- */

/* One input product: first what heads read and their gates, then beta and decay, which are never rounded. */
static cot_packed_parts input_of(const cot_loader_walk *walk, const cot_attention_weights *w, int64_t l)
{
    const cot_config *c = walk->config;
    const cot_weight_rule narrow = {walk->precision.attention.kind, cot_format_of(walk->precision.type)};
    const int64_t dk = c->delta.key_dim, dv = c->delta.value_dim, r = c->delta.values / c->delta.keys,
                  k0 = w->kv_head0 * dk, v0 = w->head0 * dv, k = w->kv_heads * dk, v = w->heads * dv,
                  all_k = c->delta.keys * dk, every = 2 * (dk + r * dv);
    const cot_loader_side apart[] = {cot_loader_rows(COT_WEIGHT_DELTA_QKV, k0, k),
                                     cot_loader_rows(COT_WEIGHT_DELTA_QKV, all_k + k0, k),
                                     cot_loader_rows(COT_WEIGHT_DELTA_QKV, 2 * all_k + v0, v),
                                     cot_loader_rows(COT_WEIGHT_DELTA_Z, v0, v),
                                     cot_loader_rows(COT_WEIGHT_DELTA_BETA, w->head0, w->heads),
                                     cot_loader_rows(COT_WEIGHT_DELTA_DECAY, w->head0, w->heads)},
                          by_head[] = {{COT_WEIGHT_DELTA_QKV, 0, k, dk, w->kv_head0, 1, every},
                                       {COT_WEIGHT_DELTA_QKV, dk, k, dk, w->kv_head0, 1, every},
                                       {COT_WEIGHT_DELTA_QKV, 2 * dk, v, dv, w->head0, r, every},
                                       {COT_WEIGHT_DELTA_QKV, 2 * dk + r * dv, v, dv, w->head0, r, every},
                                       {COT_WEIGHT_DELTA_BETA, 0, w->heads, 1, w->head0, r, 2 * r},
                                       {COT_WEIGHT_DELTA_BETA, r, w->heads, 1, w->head0, r, 2 * r}};
    const cot_loader_side *sides = c->delta.by_head ? by_head : apart;
    cot_packed_parts input = cot_loader_side_by_side(walk, walk->precision.attention, sides, 4, c->hidden, l);
    const cot_packed_parts rest = cot_loader_side_by_side(walk, narrow, sides + 4, 2, c->hidden, l);
    for (int p = 0; p < rest.parts; p++) input.part[input.parts++] = rest.part[p];
    input.n += rest.n;
    return input;
}

/* A tap of all channels after the other. */
static const float *taps_of(const cot_loader_walk *walk, const cot_attention_weights *w, int64_t l)
{
    const cot_config *c = walk->config;
    const int64_t dk = c->delta.key_dim, dv = c->delta.value_dim, all_k = c->delta.keys * dk;
    const struct {
        int64_t row0, rows;
    } part[] = {{w->kv_head0 * dk, w->kv_heads * dk},
                {all_k + w->kv_head0 * dk, w->kv_heads * dk},
                {2 * all_k + w->head0 * dv, w->heads * dv}};
    float *const taps =
        cot_arena_take(walk->arena, (size_t)(c->delta.taps * channels_of(c, w)), sizeof *taps);
    if (!taps) return NULL;
    float *to = taps;
    for (int64_t t = 0; t < c->delta.taps; t++)
        for (int p = 0; p < 3; to += part[p++].rows)
            cot_loader_read(
                walk->load,
                (cot_weight_piece){COT_WEIGHT_DELTA_CONVOLUTION, l, 0, part[p].row0, part[p].rows, t, 1}, to);
    return taps;
}

static void delta_walk(const cot_loader_walk *walk, cot_attention_weights *w, int64_t l)
{
    const cot_config *c = walk->config;
    w->input = input_of(walk, w, l);
    w->taps = taps_of(walk, w, l);
    w->decay_log = cot_loader_vector(walk, COT_WEIGHT_DELTA_DECAY_LOG, l, w->head0, w->heads);
    w->decay_bias = cot_loader_vector(walk, COT_WEIGHT_DELTA_DECAY_BIAS, l, w->head0, w->heads);
    w->state_norm = cot_loader_vector(walk, COT_WEIGHT_DELTA_NORM, l, 0, c->delta.value_dim);
    w->output = cot_loader_output(walk, w, COT_WEIGHT_DELTA_O, l, c->delta.values, c->delta.value_dim);
}

/* ---- a step ---- */

static void delta_lay_out(cot_runner *r, cot_arena *arena, const cot_attention_weights *heads)
{
    const size_t channels = (size_t)channels_of(r->c, heads);
    r->heads.mixed = cot_arena_take(arena, (size_t)r->o.step_tokens * channels, sizeof(float));
    r->heads.ones = cot_arena_take(arena, channels, sizeof(float));
    for (size_t i = 0; i < channels && r->heads.ones; i++) r->heads.ones[i] = 1;
}

/* A layer in hand. */
struct delta {
    const cot_attention_weights *w;
    int64_t state; // the layer's number among those that have one
    int64_t channels;
};

static float *state_of(const cot_runner *r, const struct delta *d, int64_t row)
{
    return cot_state_of(&r->heads.state, row, d->state);
}

/* What the convolution read `back` tokens before a row's, in the step or before it; NULL: before the text. */
static const float *input_before(const cot_runner *r, const struct delta *d, int64_t row, int64_t back)
{
    const int32_t *sequence = r->rows.sequence;
    if (r->rows.position[row] < back) return NULL;
    int64_t at = row; // rows of a run follow one another, and a sequence has one run
    while (at > row - back && at > 0 && sequence[at - 1] == sequence[row]) at--;
    const int64_t left = back - (row - at);
    if (!left) return r->heads.input + at * d->w->input.n;
    return state_of(r, d, sequence[row]) + (r->c->delta.taps - 1 - left) * d->channels;
}

/* The row's q, k, v: through the convolution and SiLU; q and k of length 1, q divided by the root of dk. */
static void convolve(cot_runner *r, int64_t row, const void *context)
{
    const struct delta *d = context;
    const cot_kernels *kernels = r->o.kernels;
    const int64_t n = d->channels, taps = r->c->delta.taps, dk = r->c->delta.key_dim;
    float *out = r->heads.mixed + row * n;
    memset(out, 0, (size_t)n * sizeof *out);
    for (int64_t t = 0; t < taps; t++) {
        const float *in = input_before(r, d, row, taps - 1 - t), *weight = d->w->taps + t * n;
        for (int64_t i = 0; i < n && in; i++) out[i] += weight[i] * in[i];
    }
    kernels->swiglu(out, COT_F32, out, r->heads.ones, n);
    for (int64_t h = 0; h < 2 * d->w->kv_heads; h++) {
        const float width = h < d->w->kv_heads ? (float)dk : 1;
        float *x = out + h * dk;
        kernels->scale(x, COT_F32, x, 1 / sqrtf((kernels->sum_squares(x, dk) + unit_epsilon) * width), dk);
    }
}

/* A state's inputs become those that are seen behind so many tokens of a run. */
static void keep_inputs_behind(const cot_runner *r, const struct delta *d, const cot_run *run, int64_t tokens,
                               float *state)
{
    const int64_t kept = r->c->delta.taps - 1;
    const float *before = state_of(r, d, run->sequence); // which may be the same
    for (int64_t i = 0; i < kept; i++) {
        const int64_t token = tokens - kept + i;
        const float *from = token < 0 ? before + (kept + token) * d->channels
                                      : r->heads.input + (run->row + token) * d->w->input.n;
        memmove(state + i * d->channels, from, (size_t)d->channels * sizeof *state);
    }
}

static float *copy_of(const cot_runner *r, const struct delta *d, const cot_state_copy *copy)
{
    return state_of(r, d, cot_state_row(&r->heads.state, copy->snapshot));
}

/* Those of snapshots, then what the next tokens see. */
static void keep_inputs(void *context, int64_t index)
{
    cot_runner *r = ((void **)context)[0];
    const struct delta *d = ((void **)context)[1];
    const cot_run *run = &r->heads.runs[index];
    const cot_runner_copies *copies = &r->heads.copies[index];
    for (int32_t i = 0; i < copies->count; i++) {
        const cot_state_copy *copy = &copies->first[i];
        r->heads.state.held[cot_state_row(&r->heads.state, copy->snapshot)] = true;
        keep_inputs_behind(r, d, run, copy->position - run->position, copy_of(r, d, copy));
    }
    r->heads.state.held[run->sequence] = true;
    keep_inputs_behind(r, d, run, run->tokens, state_of(r, d, run->sequence));
}

static float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

/* Rows of a run, which for a head are worked on together: what they read stays in a core's cache for all of the state's panels. */
enum { PIECE = 32 };

/* A value head of rows that follow one another, from its state before them to that behind. o goes where the rows' v was before the
 * convolution. */
static void mix_piece(cot_runner *r, const struct delta *d, int64_t h, int64_t row0, int64_t rows,
                      float *state)
{
    const cot_attention_weights *w = d->w;
    const cot_kernels *kernels = r->o.kernels;
    const int64_t dk = r->c->delta.key_dim, dv = r->c->delta.value_dim,
                  key = (w->head0 + h) / (r->c->delta.values / r->c->delta.keys) - w->kv_head0,
                  keys = w->kv_heads * dk, v = 2 * keys + h * dv, z = d->channels + h * dv,
                  rates = d->channels + w->heads * dv + h;
    float *in = r->heads.input + row0 * w->input.n, *mixed = r->heads.mixed + row0 * d->channels, a[PIECE],
          beta[PIECE];
    for (int64_t i = 0; i < rows; i++) {
        const float *rate = in + i * w->input.n + rates;
        beta[i] = 1 / (1 + expf(-rate[0]));
        a[i] = expf(-expf(w->decay_log[h]) * softplus(rate[w->heads] + w->decay_bias[h]));
    }
    kernels->delta(&(cot_delta){.tokens = rows,
                                .dk = dk,
                                .dv = dv,
                                .state = state,
                                .q = mixed + key * dk,
                                .k = mixed + keys + key * dk,
                                .v = mixed + v,
                                .stride = d->channels,
                                .a = a,
                                .beta = beta,
                                .o = in + v,
                                .o_stride = w->input.n});
    for (int64_t i = 0; i < rows; i++, in += w->input.n) {
        float *o = in + v;
        cot_runner_normalise(r, o, dv, kernels->sum_squares(o, dv), dv, r->c->norm_eps, w->state_norm);
        kernels->swiglu(cot_runner_row(r, r->heads.output, (row0 + i) * w->heads + h, dv),
                        r->o.precision.type, in + z, o, dv);
    }
}

/* A value head of a run. */
static void run_head(void *context, int64_t index)
{
    cot_runner *r = ((void **)context)[0];
    const struct delta *d = ((void **)context)[1];
    const int64_t heads = d->w->heads, h = index % heads, size = r->c->delta.key_dim * r->c->delta.value_dim,
                  at = (r->c->delta.taps - 1) * d->channels + h * size;
    const cot_run *run = &r->heads.runs[index / heads];
    const cot_runner_copies *copies = &r->heads.copies[index / heads];
    const cot_state_copy *copy = copies->first, *last = copy + copies->count;
    float *state = state_of(r, d, run->sequence) + at;
    if (!run->position) memset(state, 0, (size_t)size * sizeof *state);
    for (int64_t done = 0, tokens; done < run->tokens; done += tokens) {
        tokens = cot_smaller(run->tokens - done, PIECE);
        if (copy < last) tokens = cot_smaller(tokens, copy->position - run->position - done);
        mix_piece(r, d, h, run->row + done, tokens, state);
        if (copy < last && run->position + done + tokens == copy->position)
            memcpy(copy_of(r, d, copy++) + at, state, (size_t)size * sizeof *state);
    }
}

static cot_status delta_mix(cot_runner *r, const cot_attention_weights *w, int64_t layer, cot_error *error)
{
    (void)error;
    if (!w->heads || !r->rows.count) return COT_OK;
    struct delta d = {w, r->c->layer[layer].kept, channels_of(r->c, w)};
    void *context[] = {r, &d};
    cot_runner_rows(r, r->rows.count, convolve, &d);
    cot_pool_run(r->o.pool, r->heads.run_count, keep_inputs, context);
    cot_pool_run(r->o.pool, r->heads.run_count * w->heads, run_head, context);
    return COT_OK;
}

const cot_mixer cot_mixer_delta = {.name = "Gated DeltaNet",
                                   .state_floats = delta_floats,
                                   .cut = delta_cut,
                                   .walk = delta_walk,
                                   .widths = delta_widths,
                                   .lay_out = delta_lay_out,
                                   .mix = delta_mix};
