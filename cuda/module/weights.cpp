#include "cuda/module/weights.h"

#include <string.h>

static size_t round_up(size_t bytes, size_t multiple)
{
    return (bytes + multiple - 1) / multiple * multiple;
}

cot::network cot_cuda_network_of(const cot_ffn_shape *shape)
{
    cot::network n = {};
    n.hidden = static_cast<int32_t>(shape->hidden);
    n.intermediate = static_cast<int32_t>(shape->intermediate);
    n.act = static_cast<cot::activation>(shape->activation);
    n.biased = shape->biased;
    n.limit = shape->limit;
    n.alpha = shape->alpha;
    const size_t value = cot_dtype_bytes(shape->type), h = static_cast<size_t>(shape->hidden),
                 i = static_cast<size_t>(shape->intermediate), up = static_cast<size_t>(cot::up_columns(n));
    const auto take = [&n](size_t bytes) {
        const size_t at = n.bytes;
        n.bytes += round_up(bytes, 16);
        return at;
    };
    n.up = take(up * h * value);
    n.down = take(h * i * value);
    n.up_bias = take(n.biased ? up * sizeof(float) : 0);
    n.down_bias = take(n.biased ? h * sizeof(float) : 0);
    n.bytes = round_up(n.bytes, 64);
    return n;
}

static size_t slot_bytes(const cot_ffn_shape *shape)
{
    return cot_cuda_network_of(shape).bytes;
}

/* `n` numbers as `type`. */
static void store_row(unsigned char *to, cot_dtype type, const unsigned char *from, cot_dtype from_type,
                      size_t n)
{
    const size_t value = cot_dtype_bytes(type), from_value = cot_dtype_bytes(from_type);
    float some[256];
    if (type == from_type) {
        memcpy(to, from, n * value);
        return;
    }
    for (size_t i = 0, count; i < n; i += count) {
        count = n - i < 256 ? n - i : 256;
        cot_pack_floats(some, from + i * from_value, from_type, static_cast<int64_t>(count));
        if (type == COT_F32) {
            memcpy(to + i * value, some, count * value);
            continue;
        }
        for (size_t j = 0; j < count; j++) {
            const uint16_t half = cot_f32_to_bf16(some[j]);
            memcpy(to + (i + j) * value, &half, value);
        }
    }
}

static void store_expert(uint8_t *slot, const cot_ffn_shape *shape, cot_ffn_part part,
                         const cot_moe_rows *rows)
{
    const cot::network n = cot_cuda_network_of(shape);
    const bool gated = cot_ffn_is_gated(shape),
               up_bias = part == COT_FFN_GATE_BIAS || part == COT_FFN_UP_BIAS,
               odd = gated && (part == COT_FFN_UP || part == COT_FFN_UP_BIAS);
    const size_t value = cot_dtype_bytes(shape->type), h = static_cast<size_t>(shape->hidden),
                 width = static_cast<size_t>(shape->intermediate);
    const unsigned char *from = static_cast<const unsigned char *>(rows->in.numbers);
    const size_t from_value = cot_dtype_bytes(rows->in.type);
    if (part == COT_FFN_DOWN_BIAS) {
        store_row(slot + n.down_bias, COT_F32, from, rows->in.type, h);
        return;
    }
    if (up_bias) {
        for (size_t i = 0; i < width; i++)
            store_row(slot + n.up_bias + (gated ? 2 * i + odd : i) * sizeof(float), COT_F32,
                      from + i * from_value, rows->in.type, 1);
        return;
    }
    const size_t columns = part == COT_FFN_DOWN ? width : h;
    for (int64_t i = 0; i < rows->count; i++) {
        const size_t row = static_cast<size_t>(rows->row + i);
        unsigned char *const to = part == COT_FFN_DOWN
                                      ? slot + n.down + row * columns * value
                                      : slot + n.up + (gated ? 2 * row + odd : row) * columns * value;
        store_row(to, shape->type, from + static_cast<size_t>(i * rows->in.stride) * from_value,
                  rows->in.type, columns);
    }
}

static size_t gate_bytes(int64_t hidden, int64_t experts)
{
    return static_cast<size_t>(hidden * experts) * sizeof(float);
}

static void store_gate(float *gate, int64_t hidden, int64_t experts, const cot_moe_rows *rows)
{
    (void)experts;
    const unsigned char *const from = static_cast<const unsigned char *>(rows->in.numbers);
    const size_t from_row = static_cast<size_t>(rows->in.stride) * cot_dtype_bytes(rows->in.type);
    for (int64_t i = 0; i < rows->count; i++)
        cot_pack_floats(gate + (rows->row + i) * hidden, from + static_cast<size_t>(i) * from_row,
                        rows->in.type, hidden);
}

const cot_moe_weights cot_cuda_weights = {slot_bytes, store_expert, gate_bytes, store_gate};
