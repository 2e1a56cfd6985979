#include "moe/bulk/bulk.h"

#include "base/error.h"
#include "base/integers.h"
#include "moe/bulk/state.h"
#include "moe/check.h"

#include <assert.h>
#include <stdlib.h>

/* A batch of rows is enough to hide the reading of an expert's weights, and small enough that its
 * intermediate results stay a small share of memory when many ranks live in one process. */
static const int64_t batch_rows_most = 1024, batch_rows_least = 64, batch_bytes = 64 << 20;

/* A rank has at most so many replicas of a layer. */
static int64_t most_slots(const cot_moe_options *o)
{
    return o->slots ? o->slots : o->experts;
}

static int64_t most_replicas(const cot_moe_options *o, int ranks)
{
    return o->slots ? o->slots * ranks : o->experts;
}

/* With one rank nothing travels: nothing is padded, either. */
static cot_bulk_form form_of(const cot_moe_options *o, int ranks)
{
    const bool whole = o->a2a == COT_A2A_PADDED && ranks == 1;
    return (cot_bulk_form){.a2a = whole ? COT_A2A_TWO_PHASE : o->a2a,
                           .dedup = o->dedup == COT_DEDUP_ON,
                           .reduced = o->combine == COT_COMBINE_REDUCED,
                           .ranks = ranks,
                           .home_tokens = o->home_tokens ? o->home_tokens : o->tokens,
                           .top_k = o->top_k,
                           .row_bytes = o->expert.hidden * (int64_t)cot_dtype_bytes(o->expert.type),
                           .reply_bytes = o->expert.hidden * (int64_t)cot_dtype_bytes(o->combine_type)};
}

static bool tells_counts(const cot_bulk_form *f)
{
    return f->a2a == COT_A2A_TWO_PHASE && !f->dedup;
}

/* Bytes of what is told to a rank before rows come, at most. */
static int64_t told_bytes(const cot_bulk_form *f, int64_t replicas)
{
    return f->ranks * (tells_counts(f) ? replicas * (int64_t)sizeof(int32_t)
                                       : f->ranks * (int64_t)sizeof(cot_bulk_pair));
}

static cot_collectives_options collectives_options(const cot_moe_options *o, int ranks)
{
    const cot_bulk_form f = form_of(o, ranks);
    const int64_t slots = most_slots(o),
                  packets = cot_bulk_receive_rows_most(&f, o->tokens, slots) * f.row_bytes,
                  replies = cot_bulk_replies_got_most(&f, slots) * f.reply_bytes;
    return (cot_collectives_options){
        .exchange_bytes =
            (size_t)cot_larger(told_bytes(&f, most_replicas(o, ranks)), cot_larger(packets, replies))};
}

/* The operator's own in place of AUTO, which open and settle do alike; sizes are of options that have none left. */
static cot_status settle(cot_moe_options *o, cot_error *error)
{
    if (o->a2a == COT_A2A_AUTO) o->a2a = COT_A2A_TWO_PHASE;
    if (o->dedup == COT_DEDUP_AUTO) o->dedup = COT_DEDUP_OFF;
    if (o->a2a == COT_A2A_PADDED && o->dedup == COT_DEDUP_ON)
        return cot_fail(error, COT_UNSUPPORTED,
                        "a2a 'padded' sends a block for each expert: it has no dedup on");
    if (o->combine == COT_COMBINE_REDUCED && o->dedup != COT_DEDUP_ON)
        return cot_fail(error, COT_UNSUPPORTED,
                        "'bulk' without dedup sends every expert's row: combine must be exact");
    return COT_OK;
}

static size_t heap_bytes(const cot_moe_options *options, int ranks)
{
    cot_moe_options settled = *options;
    if (settle(&settled, NULL) != COT_OK) return 0; // open says why
    const cot_collectives_options collectives = collectives_options(&settled, ranks);
    return cot_collectives_heap_bytes(&collectives, ranks);
}

static size_t scratch_bytes(const cot_moe_options *o, int64_t rows)
{
    size_t expert = cot_ffn_scratch_bytes(&o->expert, rows, rows);
    size_t shared = o->shared.intermediate ? cot_ffn_scratch_bytes(&o->shared, rows, 1) : 0;
    return shared > expert ? shared : expert;
}

static int64_t choose_batch_rows(const cot_moe_options *o)
{
    int64_t row_bytes = (int64_t)scratch_bytes(o, 1) + o->expert.hidden * (int64_t)sizeof(float);
    int64_t rows = cot_smaller(batch_bytes / row_bytes, batch_rows_most);
    return cot_smaller(rows > batch_rows_least ? rows : batch_rows_least, o->tokens * o->top_k);
}

static size_t send_bytes(const cot_bulk *moe)
{
    const cot_moe_options *o = &moe->options;
    const int64_t slots = most_slots(o), packets = cot_bulk_send_rows_most(&moe->form, slots),
                  replies = cot_bulk_replies_made_most(&moe->form, o->tokens, slots);
    return (size_t)cot_larger(packets * moe->form.row_bytes, replies * moe->form.reply_bytes);
}

static void lay_out(cot_bulk *moe, cot_arena *arena)
{
    const cot_moe_options *o = &moe->options;
    const cot_bulk_form *f = &moe->form;
    const size_t ranks = (size_t)f->ranks, entries = (size_t)(o->tokens * o->top_k),
                 choices = (size_t)(f->home_tokens * o->top_k),
                 replicas = (size_t)most_replicas(o, (int)f->ranks),
                 jobs = (size_t)cot_smaller(moe->batch_rows, (int64_t)replicas);
    moe->counts = cot_arena_take(arena, (tells_counts(f) ? ranks : 1) * replicas, sizeof *moe->counts);
    moe->cursor = cot_arena_take(arena, replicas, sizeof *moe->cursor);
    moe->totals = cot_arena_take(arena, replicas, sizeof *moe->totals);
    moe->pairs = cot_arena_take(arena, f->a2a == COT_A2A_ONE_SHOT ? 0 : ranks * ranks, sizeof *moe->pairs);
    moe->row_of = cot_arena_take(arena, choices, sizeof *moe->row_of);
    moe->entry_of = cot_arena_take(arena, choices, sizeof *moe->entry_of);
    moe->entry_row = cot_arena_take(arena, entries, sizeof *moe->entry_row);
    moe->entry_reply = cot_arena_take(arena, entries, sizeof *moe->entry_reply);
    moe->entry_replica = cot_arena_take(arena, entries, sizeof *moe->entry_replica);
    moe->entry_weight = cot_arena_take(arena, entries, sizeof *moe->entry_weight);
    moe->order = cot_arena_take(arena, entries, sizeof *moe->order);
    moe->rows = cot_arena_take(arena, entries, sizeof *moe->rows);
    cot_moe_routing_lay_out(&moe->routing, arena, o);
    moe->logits = cot_arena_take(arena, (size_t)(o->tokens * o->experts), sizeof *moe->logits);
    moe->send = cot_arena_take(arena, send_bytes(moe), 1);
    if (f->reduced)
        moe->sums = cot_arena_take(arena, (size_t)(o->tokens * o->expert.hidden), sizeof *moe->sums);
    moe->scratch = cot_arena_take(arena, 1, scratch_bytes(o, moe->batch_rows));
    moe->batch = cot_arena_take(arena, (size_t)(moe->batch_rows * o->expert.hidden), sizeof *moe->batch);
    moe->jobs = cot_arena_take(arena, jobs, sizeof *moe->jobs);
}

static void size_up(cot_bulk *moe, const cot_moe_options *settled, int ranks)
{
    *moe = (cot_bulk){.moe = {.op = &cot_moe_bulk},
                      .options = *settled,
                      .form = form_of(settled, ranks),
                      .batch_rows = choose_batch_rows(settled)};
}

/* All rows may come to one rank; it sends those of its own tokens. */
static size_t touched_bytes(const cot_moe_options *options, int ranks, int64_t home)
{
    cot_moe_options settled = *options;
    cot_arena measure = {0};
    cot_bulk moe;
    if (settle(&settled, NULL) != COT_OK) return 0; // open says why
    settled.tokens = settled.home_tokens = home;
    size_up(&moe, &settled, ranks);
    lay_out(&moe, &measure);
    return measure.used + heap_bytes(options, ranks);
}

static void bulk_close(cot_moe *open)
{
    cot_bulk *moe = (cot_bulk *)open;
    if (!moe) return;
    cot_collectives_close(moe->collectives);
    cot_arena_close(&moe->arena);
    free(moe);
}

/* Rows are numbered by 32 bits. */
static cot_status check_rows(const cot_moe_options *o, int ranks, cot_error *error)
{
    const cot_bulk_form f = form_of(o, ranks);
    const int64_t slots = most_slots(o);
    const int64_t most = cot_larger(
        cot_larger(cot_bulk_send_rows_most(&f, slots), cot_bulk_receive_rows_most(&f, o->tokens, slots)),
        cot_larger(cot_bulk_replies_made_most(&f, o->tokens, slots), cot_bulk_replies_got_most(&f, slots)));
    if (most <= INT32_MAX) return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT,
                    "%lld tokens a call over %d ranks are more rows with a2a '%s' than can be numbered",
                    (long long)o->tokens, ranks, cot_moe_a2a_name(o->a2a));
}

static cot_status bulk_open(cot_moe **out, const cot_moe_options *options, cot_error *error)
{
    *out = NULL;
    cot_moe_options settled = *options;
    cot_status status = cot_moe_check(options, error);
    if (status == COT_OK) status = settle(&settled, error);
    if (status == COT_OK) status = check_rows(&settled, options->fabric->ranks, error);
    if (status != COT_OK) return status;
    const int ranks = options->fabric->ranks;
    cot_bulk *moe = calloc(1, sizeof *moe);
    if (!moe) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for an operator");
    size_up(moe, &settled, ranks);
    cot_arena measure = {0};
    lay_out(moe, &measure);
    status = cot_arena_open(&moe->arena, measure.used, error);
    if (status == COT_OK) {
        lay_out(moe, &moe->arena);
        const cot_collectives_options collectives = collectives_options(&settled, ranks);
        status = cot_collectives_open(&moe->collectives, options->fabric, &collectives, error);
    }
    if (status == COT_OK)
        *out = &moe->moe;
    else
        bulk_close(&moe->moe);
    return status;
}

static void lap(cot_bulk *moe, cot_moe_work work, int64_t *total_ns)
{
    const cot_moe_options *o = &moe->options;
    int64_t now_ns = o->fabric->ops->now_ns(o->fabric);
    *total_ns += now_ns - moe->lap_ns;
    cot_moe_record(o->timeline, (cot_moe_event){.begin_ns = moe->lap_ns,
                                                .end_ns = now_ns,
                                                .rank = o->fabric->rank,
                                                .work = (int32_t)work,
                                                .slot = -1});
    moe->lap_ns = now_ns;
}

/* Each rank's replies to where their tokens are at home. */
static cot_status reply(cot_bulk *moe, const void **replies, cot_error *error)
{
    const cot_bulk_form *f = &moe->form;
    const cot_bulk_layout *l = &moe->layout;
    cot_message block[COT_MAX_RANKS];
    for (int to = 0; to < f->ranks; to++)
        block[to] = (cot_message){.data = moe->send + l->reply_send_at[to] * f->reply_bytes,
                                  .bytes = (size_t)(cot_bulk_reply_rows(f, l->from[to]) * f->reply_bytes),
                                  .place = (size_t)(l->reply_place[to] * f->reply_bytes)};
    return cot_exchange(moe->collectives, replies, NULL, block, COT_PHASE_COMBINE, error);
}

/* Everything after dispatch: only a network that fails can stop it. */
static cot_status mix(cot_bulk *moe, const cot_moe_layer *layer, float *y, const float *x, int64_t tokens,
                      const void *received, cot_error *error)
{
    const void *replies;
    cot_bulk_unpack(moe, layer, received);
    cot_bulk_experts(moe, layer, received);
    lap(moe, COT_MOE_EXPERTS, &moe->times.expert_ns);
    if (layer->shared) {
        cot_bulk_shared(moe, layer, y, x, tokens);
        lap(moe, COT_MOE_SHARED, &moe->times.shared_ns);
    }
    const cot_status status = reply(moe, &replies, error);
    if (status == COT_OK) cot_bulk_sum(moe, layer, y, replies, tokens);
    lap(moe, COT_MOE_COMBINE, &moe->times.combine_ns);
    return status;
}

static cot_status bulk_forward(cot_moe *open, const cot_moe_layer *layer, float *y, uint16_t *experts,
                               float *weights, const float *x, int64_t tokens, cot_error *error)
{
    cot_bulk *moe = (cot_bulk *)open;
    const cot_moe_options *o = &moe->options;
    assert(tokens <= moe->form.home_tokens);
    cot_moe_routing_begin(&moe->routing, o, layer, experts, weights, tokens);
    moe->lap_ns = o->fabric->ops->now_ns(o->fabric);
    moe->times.passes++;
    moe->replicas = layer->placement.begin[o->experts];
    assert(moe->replicas <= most_replicas(o, o->fabric->ranks));
    const void *received;
    cot_status routed = cot_moe_route(&moe->routing, o, layer, x, 0, tokens, moe->logits, error);
    lap(moe, COT_MOE_GATE, &moe->times.gate_ns);
    cot_status status = cot_bulk_dispatch(moe, layer, &received, x, tokens, routed, error);
    lap(moe, COT_MOE_DISPATCH, &moe->times.dispatch_ns);
    if (status == COT_INVALID_ARGUMENT)
        return status; // all ranks return it, and the group is as good as before
    if (status == COT_OK) status = mix(moe, layer, y, x, tokens, received, error);
    if (status != COT_OK) {
        o->fabric->ops->fail(o->fabric);
        return status;
    }
    cot_moe_routing_tell(&moe->routing, o, layer, experts, weights, tokens);
    return COT_OK;
}

static const cot_moe_times *bulk_times(const cot_moe *open)
{
    return &((const cot_bulk *)open)->times;
}

const cot_moe_operator cot_moe_bulk = {.name = COT_MOE_BULK,
                                       .weights = &cot_moe_packed,
                                       .settle = settle,
                                       .heap_bytes = heap_bytes,
                                       .touched_bytes = touched_bytes,
                                       .open = bulk_open,
                                       .forward = bulk_forward,
                                       .close = bulk_close,
                                       .times = bulk_times};
