#include "moe/weights.h"

static size_t slot_bytes(const cot_ffn_shape *shape)
{
    return cot_ffn_layout_of(shape).bytes;
}

static void store_expert(uint8_t *slot, const cot_ffn_shape *shape, cot_ffn_part part,
                         const cot_moe_rows *rows)
{
    const cot_ffn_layout at = cot_ffn_layout_of(shape);
    const size_t begin[] = {[COT_FFN_GATE] = at.gate,       [COT_FFN_UP] = at.up,
                            [COT_FFN_DOWN] = at.down,       [COT_FFN_GATE_BIAS] = at.gate_bias,
                            [COT_FFN_UP_BIAS] = at.up_bias, [COT_FFN_DOWN_BIAS] = at.down_bias};
    const cot_format format = part == COT_FFN_GATE ? shape->gate
                              : part == COT_FFN_UP ? shape->up
                                                   : shape->down;
    const int64_t hidden = shape->hidden, width = shape->intermediate;
    uint8_t *const to = slot + begin[part];
    if (part <= COT_FFN_DOWN) ((uint32_t *)(void *)slot)[part] = (uint32_t)format; // of cot_ffn_header
    if (part >= COT_FFN_GATE_BIAS)
        cot_pack_floats((float *)(void *)to, rows->in.numbers, rows->in.type,
                        part == COT_FFN_DOWN_BIAS ? hidden : width);
    else if (part == COT_FFN_DOWN)
        cot_pack_any(to, format, width, hidden, rows->row, rows->count, &rows->in);
    else
        cot_pack_any(to, format, hidden, width, rows->row, rows->count, &rows->in);
}

static size_t gate_bytes(int64_t hidden, int64_t experts)
{
    return (size_t)cot_packed_bytes(COT_FORMAT_FP32, hidden, experts);
}

static void store_gate(float *gate, int64_t hidden, int64_t experts, const cot_moe_rows *rows)
{
    cot_pack_any(gate, COT_FORMAT_FP32, hidden, experts, rows->row, rows->count, &rows->in);
}

const cot_moe_weights cot_moe_packed = {slot_bytes, store_expert, gate_bytes, store_gate};
