/* A rank's heads: their memory, and what all kinds of layers do between their norms (mixer.h). */
#include "base/integers.h"
#include "model/mixer.h"
#include "model/runner_state.h"

#include <math.h>

/* ---- memory ---- */

void cot_runner_lay_out_head_weights(cot_runner *r, cot_arena *arena, cot_loader *load)
{
    const cot_config *c = r->c;
    if (r->o.data_parallel) {
        r->heads.weights = r->o.whole->attention;
        return;
    }
    for (int64_t l = 0; l < c->layers; l++)
        cot_attention_heads(&r->heads.own_weights[l], c, l, r->fabric->rank, r->fabric->ranks);
    cot_attention_weights_walk(r->heads.own_weights, r->o.checkpoint, r->o.precision, arena, load);
    r->heads.weights = r->heads.own_weights;
}

cot_attend_scratch *cot_runner_lay_out_attention(cot_arena *arena, const cot_runner_options *o)
{
    const cot_config *c = cot_checkpoint_config(o->checkpoint);
    const cot_attention_weights none = {0};
    const cot_mixer *mixer;
    int64_t width = 0, layer;
    for (int i = 0; (mixer = cot_mixer_used(c, i, &layer)); i++)
        width = cot_larger(width, mixer->widths(c, &none).value_width);
    return cot_attend_scratch_lay_out(arena, o->precision.type, width, o->threads);
}

/* The heads of this rank, in layers like that one. */
static cot_attention_weights heads_like(const cot_runner *r, int64_t layer)
{
    cot_attention_weights heads;
    const bool whole = r->o.data_parallel;
    cot_attention_heads(&heads, r->c, layer, whole ? 0 : r->fabric->rank, whole ? 1 : r->fabric->ranks);
    return heads;
}

/* Of layers with keys, which have as many and of the same widths. */
static void lay_out_pages(cot_runner *r, cot_arena *arena, const cot_attention_weights *heads,
                          const cot_mixer_widths *widths)
{
    cot_runner_heads *s = &r->heads;
    s->kv = (cot_kv){.type = r->o.precision.type,
                     .layers = r->c->key_layers,
                     .heads = heads->kv_heads,
                     .key_width = widths->key_width,
                     .value_width = widths->value_width,
                     .pages = r->o.pages,
                     .sequences = r->o.sequences,
                     .pages_a_sequence = cot_page_count(r->o.context_tokens)};
    cot_kv_lay_out(&s->kv, arena);
    s->attend =
        cot_attend_lay_out(arena, r->o.attention_scratch, heads->kv_heads, heads->heads, r->o.step_tokens);
}

void cot_runner_lay_out_heads(cot_runner *r, cot_arena *arena)
{
    cot_runner_heads *s = &r->heads;
    const size_t n = (size_t)r->o.step_tokens, w = cot_dtype_bytes(r->o.precision.type),
                 half = (size_t)r->c->rope_width / 2;
    const cot_mixer *mixer;
    int64_t layer, input = 0, output = 0, queries = 0;
    for (int i = 0; (mixer = cot_mixer_used(r->c, i, &layer)); i++) {
        const cot_attention_weights heads = heads_like(r, layer);
        const cot_mixer_widths widths = mixer->widths(r->c, &heads);
        input = cot_larger(input, widths.input);
        output = cot_larger(output, widths.output);
        queries = cot_larger(queries, widths.queries);
        if (mixer->keeps_pages && !s->kv.sequences) lay_out_pages(r, arena, &heads, &widths);
        if (mixer->state_floats)
            cot_state_lay_out(&s->state, arena, r->o.sequences, r->o.snapshots, r->c->state_layers,
                              mixer->state_floats(r->c, &heads));
        if (mixer->lay_out) mixer->lay_out(r, arena, &heads);
    }
    s->input = cot_arena_take(arena, n * (size_t)input, sizeof(float));
    s->queries = cot_arena_take(arena, n * (size_t)queries, w);
    s->output = cot_arena_take(arena, n * (size_t)output, w);
    s->width_sums = cot_arena_take(arena, 2 * n, sizeof(float));
    s->cosines = cot_arena_take(arena, n * half, sizeof(float));
    s->sines = cot_arena_take(arena, n * half, sizeof(float));
    s->runs = cot_arena_take(arena, n, sizeof *s->runs);
    s->copies = cot_arena_take(arena, n, sizeof *s->copies);
}

/* ---- what several kinds do ---- */

void cot_attention_heads_share(cot_attention_weights *w, int64_t heads, int64_t kv_heads, int rank, int ranks)
{
    *w = (cot_attention_weights){.head0 = cot_share_begin(heads, rank, ranks)};
    w->heads = cot_share_begin(heads, rank + 1, ranks) - w->head0;
    if (!w->heads) return;
    int64_t group = heads / kv_heads;
    w->kv_head0 = w->head0 / group;
    w->kv_heads = (w->head0 + w->heads - 1) / group + 1 - w->kv_head0;
}

void cot_attention_heads_cut(cot_attention_weights *w, const cot_config *config, int rank, int ranks)
{
    cot_attention_heads_share(w, config->heads, config->kv_heads, rank, ranks);
}

void cot_runner_normalise(const cot_runner *r, float *x, int64_t n, float sum, int64_t width, float epsilon,
                          const float *weight)
{
    r->o.kernels->scale_by(x, x, 1.0f / sqrtf(sum / (float)width + epsilon), weight, n);
}

void cot_runner_rotate(const cot_runner *r, float *head, int64_t row)
{
    int64_t half = r->c->rope_width / 2;
    r->o.kernels->rope(head, r->heads.cosines + row * half, r->heads.sines + row * half, half,
                       r->c->rope_interleaved);
}

float cot_runner_query_scale(const cot_runner *r, int64_t row)
{
    const cot_config *c = r->c;
    return c->query_beta == 0
               ? 1
               : (float)(1 + c->query_beta * log1p(floor(r->rows.position[row] / c->query_tokens)));
}

void cot_runner_attend(cot_runner *r, const cot_attention_weights *w, int64_t layer, int64_t group, void *out)
{
    cot_attend_run(r->heads.attend, &(cot_attend_args){.kernels = r->o.kernels,
                                                       .pool = r->o.pool,
                                                       .kv = &r->heads.kv,
                                                       .weights = w,
                                                       .group = group,
                                                       .layer = r->c->layer[layer].kept,
                                                       .window = r->c->layer[layer].window,
                                                       .scale = r->c->softmax_scale,
                                                       .runs = r->heads.runs,
                                                       .run_count = r->heads.run_count,
                                                       .q = r->heads.queries,
                                                       .out = out});
}

/* ---- a layer ---- */

static void add_bias(cot_runner *r, int64_t row, const void *context)
{
    const cot_attention_weights *w = context;
    r->o.kernels->add(r->heads.input + row * w->input.n, w->input_bias, COT_F32, w->input_biases);
}

cot_status cot_runner_attention(cot_runner *r, int64_t layer, cot_error *error)
{
    const cot_attention_weights *w = &r->heads.weights[layer];
    if (w->heads && r->rows.count) {
        cot_runner_norm(r, &r->o.whole->layers[layer].attention_norm, r->rows.x, r->rows.count);
        cot_runner_products(r, r->rows.typed, r->rows.count, &w->input, r->heads.input);
        if (w->input_bias) cot_runner_rows(r, r->rows.count, add_bias, w);
    }
    const cot_status status = cot_mixer_of(r->c, layer)->mix(r, w, layer, error);
    if (status != COT_OK || !r->rows.count) return status;
    if (w->heads) cot_runner_product(r, r->heads.output, r->rows.count, &w->output, r->rows.branch);
    for (int64_t i = 0; i < r->rows.count * r->c->hidden && !w->heads; i++) r->rows.branch[i] = 0;
    return COT_OK;
}
