/* What blocks hold. "half" is a float of 16 bits; fields lie in this order, without gaps:
 *
 *     Q4_0     half d; 16 bytes: code i low, code i + 16 high              d (code - 8)
 *     Q4_1     half d, m; 16 bytes, as before                              d code + m
 *     Q5_0     half d; 32 fifth bits; 16 bytes                             d (code - 16)
 *     Q5_1     half d, m; 32 fifth bits; 16 bytes                          d code + m
 *     Q8_0     half d; 32 signed bytes                                     d code
 *     IQ4_NL   half d; 16 bytes                                            d levels[code]
 *     MXFP4    E8M0 e; 16 bytes                                            2^(e - 127) E2M1
 *
 *   and of 256 elements, with scales of 16 or 32 elements that are whole numbers times d:
 *
 *     Q2_K     16 bytes: scale low, minimum high; 64 bytes of 2 bits; half d, dmin
 *     Q3_K     32 bytes of third bits; 64 bytes of 2 bits; 12 bytes of 6-bit scales; half d
 *     Q4_K     half d, dmin; 12 bytes of 6-bit scales and minima; 128 bytes
 *     Q5_K     half d, dmin; the same 12 bytes; 32 bytes of fifth bits; 128 bytes
 *     Q6_K     128 bytes of 4 bits; 64 bytes of 2 bits; 16 signed scales; half d
 *     IQ4_XS   half d; 16 high bits and 4 bytes of low bits of scales; 128 bytes
 *
 * Every product is rounded to fp32 in the order in which it stands here. */
#include "checkpoint/blocks.h"

enum { LONG = 256 };

static float half_at(const uint8_t *data)
{
    return cot_f16_to_f32((uint16_t)(data[0] | data[1] << 8));
}

static uint32_t word_at(const uint8_t *data)
{
    return (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
}

/* Nibble i of 32: a byte has i low and i + 16 high. */
static int nibble(const uint8_t *data, int i)
{
    return data[i % 16] >> i / 16 * 4 & 15;
}

/* The levels that IQ4 chooses from. */
static const int8_t levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* ---- blocks of 32: a code and perhaps a minimum ---- */

static int q5_code(const uint8_t *fifth, const uint8_t *data, int i)
{
    return nibble(data, i) | (int)(word_at(fifth) >> i & 1) << 4;
}

static void decode_q4_1(float *out, const uint8_t *b)
{
    const float d = half_at(b), m = half_at(b + 2);
    for (int i = 0; i < 32; i++) out[i] = (float)nibble(b + 4, i) * d + m;
}

static void decode_q5_1(float *out, const uint8_t *b)
{
    const float d = half_at(b), m = half_at(b + 2);
    for (int i = 0; i < 32; i++) out[i] = (float)q5_code(b + 4, b + 8, i) * d + m;
}

static void decode_mxfp4(float *out, const uint8_t *b)
{
    const float d = cot_f8_e8m0_to_f32(b[0]);
    for (int i = 0; i < 32; i++) out[i] = cot_f4_e2m1_to_f32((uint8_t)nibble(b + 1, i)) * d;
}

/* ---- blocks of 256 ---- */

static void decode_q2_k(float *out, const uint8_t *b)
{
    const float d = half_at(b + 80), dmin = half_at(b + 82);
    for (int i = 0; i < LONG; i++) { // 2 bits: 128 elements on 32 bytes
        const uint8_t scale = b[i / 16], code = b[16 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
        out[i] = d * (float)(scale & 15) * (float)code - dmin * (float)(scale >> 4);
    }
}

/* Of 16 scales of 6 bits: four low bits in 8 bytes, as nibbles, two high ones in 4 bytes. */
static int q3_scale(const uint8_t scales[12], int i)
{
    const int low = scales[i % 8] >> i / 8 * 4 & 15, high = scales[8 + i % 4] >> i / 4 * 2 & 3;
    return (low | high << 4) - 32;
}

static int q3_code(const uint8_t *b, int i)
{
    const int third = b[i % 32] >> i / 32 & 1, low = b[32 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
    return low - (third ? 0 : 4);
}

static void decode_q3_k(float *out, const uint8_t *b)
{
    const float d = half_at(b + 108);
    for (int i = 0; i < LONG; i++) out[i] = d * (float)q3_scale(b + 96, i / 16) * (float)q3_code(b, i);
}

/* Scale and minimum `i` of 8, of 6 bits each: four whole in the low bits of 4 and 4 bytes, whose high bits the others share. */
static void k_scales(float *d, float *m, const uint8_t *b, int i)
{
    const uint8_t *s = b + 4;
    const int scale = i < 4 ? s[i] & 63 : (s[i + 4] & 15) | s[i - 4] >> 6 << 4,
              minimum = i < 4 ? s[i + 4] & 63 : s[i + 4] >> 4 | s[i] >> 6 << 4;
    *d = half_at(b) * (float)scale;
    *m = half_at(b + 2) * (float)minimum;
}

/* Nibble i of 256: 64 elements on 32 bytes, of which the second 32 are the high ones. */
static int k_nibble(const uint8_t *data, int i)
{
    return data[i / 64 * 32 + i % 32] >> i % 64 / 32 * 4 & 15;
}

static void decode_q4_k(float *out, const uint8_t *b)
{
    for (int g = 0; g < 8; g++) {
        float d, m;
        k_scales(&d, &m, b, g);
        for (int i = 32 * g; i < 32 * (g + 1); i++) out[i] = d * (float)k_nibble(b + 16, i) - m;
    }
}

static void decode_q5_k(float *out, const uint8_t *b)
{
    for (int g = 0; g < 8; g++) {
        float d, m;
        k_scales(&d, &m, b, g);
        for (int i = 32 * g; i < 32 * (g + 1); i++)
            out[i] = d * (float)(k_nibble(b + 48, i) + (b[16 + i % 32] >> g & 1) * 16) - m;
    }
}

static void decode_q6_k(float *out, const uint8_t *b)
{
    const float d = half_at(b + 208);
    for (int i = 0; i < LONG; i++) { // 128 elements on 64 bytes of nibbles and 32 of pairs of bits
        const int in = i % 128, low = b[i / 128 * 64 + in % 64] >> in / 64 * 4 & 15,
                  high = b[128 + i / 128 * 32 + in % 32] >> in / 32 * 2 & 3;
        out[i] = d * (float)(int8_t)b[192 + i / 16] * (float)((low | high << 4) - 32);
    }
}

/* ---- blocks that whole numbers times a scale hold ---- */

static float codes_q4_0(int8_t *codes, const uint8_t *b, int group)
{
    (void)group;
    for (int i = 0; i < 32; i++) codes[i] = (int8_t)(nibble(b + 2, i) - 8);
    return half_at(b);
}

static float codes_q5_0(int8_t *codes, const uint8_t *b, int group)
{
    (void)group;
    for (int i = 0; i < 32; i++) codes[i] = (int8_t)(q5_code(b + 2, b + 6, i) - 16);
    return half_at(b);
}

static float codes_q8_0(int8_t *codes, const uint8_t *b, int group)
{
    (void)group;
    memcpy(codes, b + 2, 32);
    return half_at(b);
}

static float codes_iq4_nl(int8_t *codes, const uint8_t *b, int group)
{
    (void)group;
    for (int i = 0; i < 32; i++) codes[i] = levels[nibble(b + 2, i)];
    return half_at(b);
}

static float codes_iq4_xs(int8_t *codes, const uint8_t *b, int group)
{
    const int low = b[4 + group / 2] >> group % 2 * 4 & 15, high = (b[2] | b[3] << 8) >> 2 * group & 3;
    for (int i = 0; i < 32; i++) codes[i] = levels[nibble(b + 8 + 16 * group, i)];
    return half_at(b) * (float)((low | high << 4) - 32);
}

/* A scale of 6 bits times a code of 3 is from -124 to 128: with the sign of both turned a byte holds it. */
static float codes_q3_k(int8_t *codes, const uint8_t *b, int group)
{
    for (int i = 0; i < 32; i++)
        codes[i] = (int8_t) - (q3_scale(b + 96, 2 * group + i / 16) * q3_code(b, 32 * group + i));
    return -half_at(b + 108);
}

/* ---- the table ---- */

/* Either makes numbers of a block, or codes of its group `group` of 32. */
static const struct kind {
    void (*decode)(float *out, const uint8_t *block);
    float (*codes)(int8_t *codes, const uint8_t *block, int group);
    cot_format format; // where there are codes
} kinds[COT_BLOCKS_COUNT] = {
    [COT_BLOCKS_Q4_0] = {NULL, codes_q4_0, COT_FORMAT_INT4},
    [COT_BLOCKS_Q4_1] = {decode_q4_1},
    [COT_BLOCKS_Q5_0] = {NULL, codes_q5_0, COT_FORMAT_INT8},
    [COT_BLOCKS_Q5_1] = {decode_q5_1},
    [COT_BLOCKS_Q8_0] = {NULL, codes_q8_0, COT_FORMAT_INT8},
    [COT_BLOCKS_Q2_K] = {decode_q2_k},
    [COT_BLOCKS_Q3_K] = {decode_q3_k, codes_q3_k, COT_FORMAT_INT8},
    [COT_BLOCKS_Q4_K] = {decode_q4_k},
    [COT_BLOCKS_Q5_K] = {decode_q5_k},
    [COT_BLOCKS_Q6_K] = {decode_q6_k},
    [COT_BLOCKS_IQ4_NL] = {NULL, codes_iq4_nl, COT_FORMAT_INT8},
    [COT_BLOCKS_IQ4_XS] = {NULL, codes_iq4_xs, COT_FORMAT_INT8},
    [COT_BLOCKS_MXFP4] = {decode_mxfp4},
};

bool cot_blocks_are_read(cot_tensor_blocks kind)
{
    return kinds[kind].decode || kinds[kind].codes;
}

size_t cot_blocks_bytes(cot_tensor_blocks kind, int64_t n)
{
    return (size_t)(n / cot_tensor_block_elements(kind)) * (size_t)cot_tensor_block_bytes(kind);
}

void cot_blocks_decode(float *out, const void *blocks, cot_tensor_blocks kind, int64_t n)
{
    const struct kind *k = &kinds[kind];
    const int elements = cot_tensor_block_elements(kind), bytes = cot_tensor_block_bytes(kind);
    const uint8_t *block = blocks;
    for (const float *end = out + n; out < end; block += bytes) {
        if (k->decode) {
            k->decode(out, block);
            out += elements;
            continue;
        }
        for (int g = 0; g < elements / COT_BLOCKS_GROUP; g++, out += COT_BLOCKS_GROUP) {
            int8_t codes[COT_BLOCKS_GROUP];
            const float scale = k->codes(codes, block, g);
            for (int i = 0; i < COT_BLOCKS_GROUP; i++) out[i] = scale * (float)codes[i];
        }
    }
}

cot_format cot_blocks_format(cot_tensor_blocks kind)
{
    if (kind == COT_BLOCKS_MXFP4) return COT_FORMAT_MXFP4;
    if (!kinds[kind].codes) return COT_FORMATS;
    const cot_format format = kinds[kind].format;
    return cot_format_with(format, COT_BLOCKS_GROUP, format == COT_FORMAT_INT4 ? COT_F16 : COT_F32, false);
}

float cot_blocks_codes(int8_t codes[COT_BLOCKS_GROUP], const void *tensor, cot_tensor_blocks kind, int64_t at)
{
    const int64_t elements = cot_tensor_block_elements(kind);
    const uint8_t *block = (const uint8_t *)tensor + cot_blocks_bytes(kind, at / elements * elements);
    return kinds[kind].codes(codes, block, (int)(at % elements / COT_BLOCKS_GROUP));
}

void cot_blocks_turn(uint8_t codes[COT_BLOCKS_GROUP / 2], uint8_t *scale, const void *tensor, int64_t at)
{
    const uint8_t *block = (const uint8_t *)tensor + cot_blocks_bytes(COT_BLOCKS_MXFP4, at);
    *scale = block[0];
    for (int i = 0; i < 16; i++)
        codes[i] = (uint8_t)(nibble(block + 1, 2 * i) | nibble(block + 1, 2 * i + 1) << 4);
}
