#include "moe/fused/fused.h"

#include "base/error.h"
#include "base/integers.h"
#include "moe/check.h"
#include "moe/fused/state.h"

#include <stdlib.h>

/* A rank takes at least so many tokens in one pass, if the call may have them: enough to hide an expert's
 * weights behind its rows in most models. */
static const int64_t pass_tokens_least = 512;
enum { SPARE_LANES = 2 };

/* A rank's even share of a call, or a little more where that is little. */
int64_t cot_fused_pass_tokens(const cot_moe_options *o, int ranks)
{
    int64_t tokens = cot_smaller(cot_larger(cot_divide_up(o->tokens, ranks), pass_tokens_least), o->tokens);
    tokens = cot_divide_up(cot_smaller(tokens, COT_FUSED_TOKENS_MOST), COT_FUSED_CHUNK) * COT_FUSED_CHUNK;
    return cot_smaller(tokens, COT_FUSED_REPLIES_MOST / o->top_k / COT_FUSED_CHUNK * COT_FUSED_CHUNK);
}

static cot_fused_layout layout_of(const cot_moe_options *o, int ranks, int64_t tokens)
{
    const int64_t hidden = o->expert.hidden;
    return cot_fused_layout_of(ranks, tokens, o->top_k, hidden * (int64_t)cot_dtype_bytes(o->expert.type),
                               hidden * (int64_t)cot_dtype_bytes(o->combine_type),
                               o->combine == COT_COMBINE_REDUCED);
}

static size_t layout_bytes(const cot_fused_layout *l)
{
    return cot_alloc_bytes((size_t)cot_fused_dispatch_bytes(l)) +
           cot_alloc_bytes((size_t)cot_fused_reply_bytes(l)) +
           2 * cot_alloc_bytes((size_t)l->ranks * COT_FUSED_LINE);
}

static size_t heap_bytes(const cot_moe_options *options, int ranks)
{
    const cot_fused_layout l = layout_of(options, ranks, cot_fused_pass_tokens(options, ranks));
    return layout_bytes(&l);
}

/* An operator's sizes, before any memory: for passes of so many tokens a rank, and so many over all ranks. */
static void size_up(cot_fused *moe, const cot_moe_options *options, int ranks, int64_t tokens, int64_t all)
{
    moe->options = *options;
    moe->layout = layout_of(options, ranks, tokens);
    const int64_t slots = options->slots ? options->slots : options->experts;
    moe->entries_most = all * cot_smaller(options->top_k, slots);
    moe->tiles_most =
        moe->entries_most / COT_FFN_TILE_ROWS + slots + moe->layout.tokens / COT_FFN_TILE_ROWS + 1;
    moe->scratch_floats = cot_larger(cot_larger(COT_FFN_TILE_FLOATS, COT_FUSED_CHUNK * options->experts),
                                     cot_divide_up(options->expert.hidden, 16) * 16);
    moe->lanes = 2 * options->threads + SPARE_LANES;
}

static void lay_out_tiles(cot_fused *moe, cot_arena *arena, size_t slots)
{
    const size_t tiles = (size_t)moe->tiles_most, rows = tiles * COT_FFN_TILE_ROWS;
    moe->open_tile = cot_arena_take(arena, slots, sizeof *moe->open_tile);
    moe->full_tile = cot_arena_take(arena, slots, sizeof *moe->full_tile);
    moe->tile = cot_arena_take(arena, tiles, sizeof *moe->tile);
    moe->tile_row = cot_arena_take(arena, rows, sizeof *moe->tile_row);
    moe->tile_weight = cot_arena_take(arena, rows, sizeof *moe->tile_weight);
    moe->tile_target = cot_arena_take(arena, rows, sizeof *moe->tile_target);
    moe->ready = cot_arena_take(arena, tiles, sizeof *moe->ready);
}

static void lay_out_lanes(cot_fused *moe, cot_arena *arena)
{
    const cot_moe_options *o = &moe->options;
    const size_t lanes = (size_t)moe->lanes,
                 width = (size_t)cot_larger(o->expert.intermediate, o->shared.intermediate),
                 act = COT_FFN_TILE_ROWS * width * cot_dtype_bytes(o->expert.type),
                 out = cot_fused_is_exact(moe) && o->fabric->ranks > 1
                           ? COT_FFN_TILE_ROWS * (size_t)moe->layout.reply_bytes
                           : 0;
    moe->lane = cot_arena_take(arena, lanes, sizeof *moe->lane);
    moe->reply_lane = cot_arena_take(arena, lanes, sizeof *moe->reply_lane);
    for (size_t i = 0; i < lanes; i++) {
        uint8_t *activations = cot_arena_take(arena, act, 1), *replies = cot_arena_take(arena, out, 1);
        if (!cot_arena_measures(arena))
            moe->lane[i] = (cot_fused_lane){.tile = -1, .act = activations, .out = replies};
    }
}

static void lay_out_packets(cot_fused *moe, cot_arena *arena, size_t slots)
{
    const cot_fused_layout *l = &moe->layout;
    const size_t ranks = (size_t)l->ranks, cells = ranks * (size_t)l->cell_tokens;
    moe->staging = cot_arena_take(arena, ranks, (size_t)(l->cell_rows * l->row_bytes));
    moe->staging_heads = cot_arena_take(arena, cells, sizeof *moe->staging_heads);
    moe->staging_entries = cot_arena_take(arena, cells * (size_t)l->top_k, sizeof *moe->staging_entries);
    moe->cell = cot_arena_take(arena, ranks, sizeof *moe->cell);
    moe->source = cot_arena_take(arena, ranks, sizeof *moe->source);
    moe->slot_replies = cot_arena_take(arena, slots, sizeof *moe->slot_replies);
    if (cot_fused_is_exact(moe))
        moe->reply_row = cot_arena_take(arena, (size_t)l->reply_rows, sizeof *moe->reply_row);
}

static void lay_out_reduced(cot_fused *moe, cot_arena *arena)
{
    const cot_fused_layout *l = &moe->layout;
    const size_t rows = (size_t)(l->ranks * l->tokens);
    moe->partial = cot_arena_take(arena, (size_t)moe->entries_most * (size_t)moe->options.expert.hidden,
                                  sizeof *moe->partial);
    moe->row_left = cot_arena_take(arena, rows, sizeof *moe->row_left);
    moe->row_entry = cot_arena_take(arena, rows, sizeof *moe->row_entry);
    moe->row_entries = cot_arena_take(arena, rows, sizeof *moe->row_entries);
    moe->complete = cot_arena_take(arena, rows, sizeof *moe->complete);
    moe->sent_row = cot_arena_take(arena, rows, sizeof *moe->sent_row);
}

/* All private memory; what a routing does not touch costs address space alone. */
static void lay_out(cot_fused *moe, cot_arena *arena)
{
    const cot_moe_options *o = &moe->options;
    const size_t threads = (size_t)o->threads, slots = (size_t)(o->slots ? o->slots : o->experts);
    cot_moe_routing_lay_out(&moe->routing, arena, o);
    moe->gated = cot_arena_take(arena, (size_t)(o->tokens / COT_FUSED_CHUNK + 2), 1);
    moe->worker_taken = cot_arena_take(arena, threads, sizeof *moe->worker_taken);
    moe->worker_error = cot_arena_take(arena, threads, sizeof *moe->worker_error);
    moe->scratch = cot_arena_take(arena, threads * (size_t)moe->scratch_floats, sizeof *moe->scratch);
    if (o->shared.intermediate)
        moe->shared = cot_arena_take(arena, (size_t)(moe->layout.tokens * o->expert.hidden), sizeof(float));
    lay_out_packets(moe, arena, slots);
    lay_out_tiles(moe, arena, slots);
    lay_out_lanes(moe, arena);
    if (!cot_fused_is_exact(moe)) lay_out_reduced(moe, arena);
    for (size_t i = 0; i < slots && !cot_arena_measures(arena); i++)
        moe->open_tile[i] = moe->full_tile[i] = -1;
}

static size_t touched_bytes(const cot_moe_options *options, int ranks, int64_t home)
{
    // Each block of a rank may begin and end within a huge page, and so may each of the larger arrays behind what is used
    // of them.
    enum { HUGE_PAGE = 2 << 20, ARRAYS = 4, ARRAYS_REDUCED = 6 };
    const int64_t pass = cot_fused_pass_tokens(options, ranks),
                  tokens = cot_smaller(cot_divide_up(home, COT_FUSED_CHUNK) * COT_FUSED_CHUNK, pass);
    cot_fabric fabric = {.ranks = ranks};
    cot_fused moe;
    cot_arena measure = {0}, whole = {0};
    size_up(&moe, options, ranks, pass, ranks * pass);
    moe.options.fabric = &fabric;
    lay_out(&moe, &whole);
    size_up(&moe, options, ranks, tokens, cot_smaller(ranks * tokens, options->tokens));
    moe.options.fabric = &fabric;
    lay_out(&moe, &measure);
    const size_t rounding = (cot_fused_is_exact(&moe) ? ARRAYS : ARRAYS_REDUCED) * HUGE_PAGE,
                 unused = whole.used - measure.used;
    const size_t all = heap_bytes(options, ranks),
                 some = layout_bytes(&moe.layout) + (size_t)ranks * HUGE_PAGE;
    return measure.used + (unused < rounding ? unused : rounding) + (some < all ? some : all);
}

static cot_status allocate(cot_fused *moe, cot_error *error)
{
    cot_fabric *fabric = moe->options.fabric;
    const size_t signals = (size_t)fabric->ranks * COT_FUSED_LINE;
    cot_status status =
        cot_alloc(fabric, &moe->dispatch_at, (size_t)cot_fused_dispatch_bytes(&moe->layout), error);
    if (status == COT_OK)
        status = cot_alloc(fabric, &moe->replies_at, (size_t)cot_fused_reply_bytes(&moe->layout), error);
    if (status == COT_OK) status = cot_alloc(fabric, &moe->dispatch_signals, signals, error);
    if (status == COT_OK) status = cot_alloc(fabric, &moe->reply_signals, signals, error);
    if (status != COT_OK) return status;
    moe->received = cot_local(fabric, moe->dispatch_at);
    moe->replies = cot_local(fabric, moe->replies_at);
    cot_arena measure = {0};
    lay_out(moe, &measure);
    status = cot_arena_open(&moe->arena, measure.used, error);
    if (status == COT_OK) lay_out(moe, &moe->arena);
    return status;
}

static void fused_close(cot_moe *open)
{
    cot_fused *moe = (cot_fused *)open;
    if (!moe) return;
    cot_arena_close(&moe->arena);
    free(moe);
}

/* Rows and entries are numbered by 32 bits. */
static cot_status check_rows(const cot_moe_options *o, int ranks, cot_error *error)
{
    const cot_fused_layout l = layout_of(o, ranks, cot_fused_pass_tokens(o, ranks));
    if (l.block_rows <= INT32_MAX / ranks && l.tokens * l.top_k <= INT32_MAX / ranks) return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT,
                    "%lld tokens a call over %d ranks are more rows of %lld bytes than can be numbered",
                    (long long)o->tokens, ranks, (long long)l.row_bytes);
}

/* Rows stream in cells, one a (token, rank), and tell all there is to know themselves: one-shot, as far as a word says it. */
static cot_status settle(cot_moe_options *o, cot_error *error)
{
    if (o->a2a != COT_A2A_AUTO && o->a2a != COT_A2A_ONE_SHOT)
        return cot_fail(error, COT_UNSUPPORTED,
                        "'fused' streams rows as they are ready: a2a '%s' is of 'bulk'",
                        cot_moe_a2a_name(o->a2a));
    if (o->dedup == COT_DEDUP_OFF)
        return cot_fail(error, COT_UNSUPPORTED,
                        "'fused' sends a token once to a rank: dedup off is of 'bulk'");
    o->a2a = COT_A2A_ONE_SHOT;
    o->dedup = COT_DEDUP_ON;
    return COT_OK;
}

static cot_status fused_open(cot_moe **out, const cot_moe_options *options, cot_error *error)
{
    *out = NULL;
    cot_moe_options settled = *options;
    cot_status status = cot_moe_check(options, error);
    if (status == COT_OK) status = settle(&settled, error);
    if (status == COT_OK) status = check_rows(options, options->fabric->ranks, error);
    if (status != COT_OK) return status;
    const int ranks = options->fabric->ranks;
    cot_fused *moe = calloc(1, sizeof *moe);
    if (!moe) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for an operator");
    moe->moe.op = &cot_moe_fused;
    const int64_t tokens = cot_fused_pass_tokens(options, ranks);
    size_up(moe, &settled, ranks, tokens, ranks * tokens);
    status = allocate(moe, error);
    if (status == COT_OK)
        *out = &moe->moe;
    else
        fused_close(&moe->moe);
    return status;
}

static const cot_moe_times *fused_times(const cot_moe *open)
{
    return &((const cot_fused *)open)->times;
}

const cot_moe_operator cot_moe_fused = {.name = COT_MOE_FUSED,
                                        .weights = &cot_moe_packed,
                                        .settle = settle,
                                        .heap_bytes = heap_bytes,
                                        .touched_bytes = touched_bytes,
                                        .open = fused_open,
                                        .forward = cot_fused_forward,
                                        .close = fused_close,
                                        .times = fused_times};
