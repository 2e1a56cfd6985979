#include "model/walk.h"

cot_loader_walk cot_loader_walk_of(const cot_checkpoint *checkpoint, cot_precision precision,
                                   cot_arena *arena, cot_loader *load)
{
    return (cot_loader_walk){checkpoint, cot_checkpoint_config(checkpoint), precision, arena, load};
}

float *cot_loader_vector(const cot_loader_walk *walk, cot_weight weight, int64_t layer, int64_t column0,
                         int64_t columns)
{
    float *to = cot_arena_take(walk->arena, (size_t)columns, sizeof *to);
    cot_loader_read(walk->load, (cot_weight_piece){weight, layer, 0, 0, 1, column0, columns}, to);
    return to;
}

/* Room for a matrix [k][n]. */
static cot_packed room_for(const cot_loader_walk *walk, cot_format format, int64_t k, int64_t n)
{
    return (cot_packed){.b = cot_arena_take(walk->arena, 1, (size_t)cot_packed_bytes(format, k, n)),
                        .format = format,
                        .rounded = walk->precision.rounded &&
                                   cot_format_multiplies(format, walk->precision.type, true),
                        .k = k,
                        .n = n};
}

/* The piece becomes columns n0 .. n0 + rows - 1 of a matrix, which only who loads it writes. */
static void pack(const cot_loader_walk *walk, const cot_packed *to, cot_weight_piece piece, int64_t n0)
{
    cot_loader_pack(walk->load, piece, (uint8_t *)(uintptr_t)to->b, to->format, to->n, n0);
}

cot_packed cot_loader_matrix(const cot_loader_walk *walk, cot_weight weight, int64_t layer, int64_t row0,
                             int64_t rows, int64_t column0, int64_t columns, cot_format format)
{
    const cot_packed to = room_for(walk, format, columns, rows);
    for (int64_t r = 0; r < rows; r += COT_LOADER_ROWS) {
        int64_t n = rows - r < COT_LOADER_ROWS ? rows - r : COT_LOADER_ROWS;
        cot_loader_chain(walk->load);
        pack(walk, &to, (cot_weight_piece){weight, layer, 0, row0 + r, n, column0, columns}, r);
    }
    cot_loader_chain(walk->load);
    return to;
}

cot_format cot_loader_format(const cot_loader_walk *walk, cot_weight_rule rule, cot_weight weight,
                             int64_t layer)
{
    return cot_weight_format(&walk->precision, rule,
                             cot_checkpoint_stored(walk->checkpoint, weight, layer, 0));
}

cot_packed cot_loader_output(const cot_loader_walk *walk, const cot_attention_weights *w, cot_weight weight,
                             int64_t layer, int64_t heads, int64_t width)
{
    cot_format stored = cot_checkpoint_stored(walk->checkpoint, weight, layer, 0);
    if (w->heads < heads) stored = cot_format_cut(stored, width);
    cot_format format = cot_weight_format(&walk->precision, walk->precision.attention, stored);
    if (cot_format_blocks(format))
        format =
            cot_format_skip(format, w->head0 * width % cot_tensor_block_elements(cot_format_blocks(format)));
    return cot_loader_matrix(walk, weight, layer, 0, walk->config->hidden, w->head0 * width, w->heads * width,
                             format);
}

static void pack_side(const cot_loader_walk *walk, const cot_packed *to, const cot_loader_side *side,
                      int64_t k, int64_t layer, int64_t n0)
{
    const int64_t rows = side->part ? side->part : side->rows;
    for (int64_t done = 0, p = side->first; done < side->rows; done += rows, p++) {
        const int64_t at = side->part ? p / side->per * side->every + p % side->per * rows : 0;
        pack(walk, to, (cot_weight_piece){side->weight, layer, 0, side->row0 + at, rows, 0, k}, n0 + done);
    }
}

cot_packed_parts cot_loader_side_by_side(const cot_loader_walk *walk, cot_weight_rule rule,
                                         const cot_loader_side *sides, int count, int64_t k, int64_t layer)
{
    cot_packed_parts to = {0};
    cot_format format[sizeof to.part / sizeof *to.part], all = COT_FORMATS;
    for (int i = 0; i < count; i++) {
        format[i] = cot_loader_format(walk, rule, sides[i].weight, layer);
        all = i ? cot_format_join(all, format[i]) : format[i];
        to.n += sides[i].rows;
    }
    cot_loader_chain(walk->load);
    if (all != COT_FORMATS) to.part[to.parts++] = room_for(walk, all, k, to.n);
    int64_t n0 = 0;
    for (int i = 0; i < count; i++) {
        if (all == COT_FORMATS) {
            to.part[to.parts++] = room_for(walk, format[i], k, sides[i].rows);
            n0 = 0;
        }
        pack_side(walk, &to.part[to.parts - 1], &sides[i], k, layer, n0);
        n0 += sides[i].rows;
    }
    return to;
}
