/* What blocks hold. "half" is a float of 16 bits; fields lie in this order, without gaps:
 *
 *     Q4_0     half d; 16 bytes: code i low, code i + 16 high              d (code - 8)
 *     Q4_1     half d, m; 16 bytes, as before                              d code + m
 *     Q5_0     half d; 32 fifth bits; 16 bytes                             d (code - 16)
 *     Q5_1     half d, m; 32 fifth bits; 16 bytes                          d code + m
 *     Q8_0     half d; 32 signed bytes                                     d code
 *     IQ4_NL   half d; 16 bytes                                            d levels[code]
 *     MXFP4    E8M0 e; 16 bytes                                            2^(e - 127) E2M1
 *     NVFP4    4 E4M3 d, each of 16 elements; of each 8 bytes: code i low, i + 8 high    d E2M1
 *
 *   and of 256 elements, with scales of 16 or 32 elements that are whole numbers times d:
 *
 *     Q2_K     16 bytes: scale low, minimum high; 64 bytes of 2 bits; half d, dmin
 *     Q3_K     32 bytes of third bits; 64 bytes of 2 bits; 12 bytes of 6-bit scales; half d
 *     Q4_K     half d, dmin; 12 bytes of 6-bit scales and minima; 128 bytes
 *     Q5_K     half d, dmin; the same 12 bytes; 32 bytes of fifth bits; 128 bytes
 *     Q6_K     128 bytes of 4 bits; 64 bytes of 2 bits; 16 signed scales; half d
 *     IQ4_XS   half d; 16 high bits and 4 bytes of low bits of scales; 128 bytes
 *     IQ2_XXS  half d; 8 times 4 bytes, each of which names 8 magnitudes, and a word of signs and a scale
 *     IQ3_XXS  half d; 64 bytes, each of which names 4 magnitudes; 8 words of signs and a scale
 *
 *   such a word has 4 times 7 signs, each of 8 elements whose signs multiply to 1, and a scale of 4 bits.
 *
 * Every product is rounded to fp32 in the order in which it stands here. */
#include "kernels/blocks.h"

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

static void decode_nvfp4(float *out, const uint8_t *b)
{
    static const float elements[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};
    for (int g = 0; g < 4; g++) {
        const float d = cot_f8_e4m3_to_f32(b[g]);
        const uint8_t *codes = b + 4 + 8 * g;
        for (int i = 0; i < 8; i++) {
            out[16 * g + i] = d * elements[codes[i] & 15];
            out[16 * g + 8 + i] = d * elements[codes[i] >> 4];
        }
    }
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

/* Magnitudes that a byte of IQ2_XXS names, 2 bits each of 8, 25 and 43, and of IQ3_XXS, 3 bits each of 4, 12, ..., 52 and 62. */
static const uint16_t eights[256] = {
    0x0000, 0x0002, 0x0005, 0x0008, 0x000a, 0x0011, 0x0014, 0x0020, 0x0022, 0x0028, 0x002a, 0x0041, 0x0044,
    0x0050, 0x0058, 0x0061, 0x0064, 0x0080, 0x0082, 0x008a, 0x00a2, 0x0101, 0x0104, 0x0110, 0x0115, 0x0140,
    0x0184, 0x0198, 0x0200, 0x0202, 0x0222, 0x0282, 0x0401, 0x0404, 0x0410, 0x0421, 0x0424, 0x0440, 0x0442,
    0x0448, 0x0460, 0x0481, 0x0484, 0x0490, 0x04a4, 0x0500, 0x0502, 0x0508, 0x0520, 0x0546, 0x0569, 0x0580,
    0x0591, 0x0609, 0x0610, 0x0640, 0x0684, 0x06a4, 0x0800, 0x0805, 0x0808, 0x0814, 0x0828, 0x0841, 0x0844,
    0x0850, 0x0852, 0x0888, 0x0904, 0x0940, 0x0a02, 0x0a14, 0x1001, 0x1004, 0x1010, 0x1021, 0x1040, 0x1060,
    0x1084, 0x1090, 0x1095, 0x1100, 0x1108, 0x1120, 0x1150, 0x115a, 0x1180, 0x1224, 0x1245, 0x1400, 0x1408,
    0x1420, 0x1425, 0x1449, 0x1480, 0x1518, 0x1562, 0x1600, 0x1616, 0x1801, 0x1804, 0x1810, 0x1840, 0x1881,
    0x1900, 0x1905, 0x19a0, 0x1a51, 0x2000, 0x2002, 0x200a, 0x2044, 0x2061, 0x2080, 0x2082, 0x2129, 0x2148,
    0x2200, 0x2202, 0x2401, 0x2404, 0x2410, 0x2440, 0x2456, 0x2500, 0x2541, 0x2564, 0x2690, 0x2808, 0x2820,
    0x2894, 0x2a44, 0x4001, 0x4004, 0x4010, 0x4018, 0x4021, 0x4024, 0x4040, 0x4048, 0x4056, 0x4060, 0x4081,
    0x4084, 0x4090, 0x4100, 0x4120, 0x4161, 0x4180, 0x4185, 0x4201, 0x4210, 0x4248, 0x4256, 0x4268, 0x4400,
    0x4408, 0x4420, 0x4480, 0x4499, 0x4512, 0x4524, 0x4600, 0x4801, 0x4804, 0x4810, 0x4840, 0x4845, 0x4900,
    0x4958, 0x4961, 0x4982, 0x4a45, 0x4a90, 0x5000, 0x5008, 0x5011, 0x5019, 0x5020, 0x5080, 0x5088, 0x5104,
    0x5142, 0x51a4, 0x5291, 0x5490, 0x5492, 0x550a, 0x5601, 0x5654, 0x5800, 0x5811, 0x5819, 0x5864, 0x5940,
    0x5a08, 0x6004, 0x6010, 0x6040, 0x6068, 0x6100, 0x6155, 0x6218, 0x6260, 0x6400, 0x6405, 0x6510, 0x6512,
    0x6584, 0x6842, 0x8000, 0x8002, 0x800a, 0x8041, 0x8082, 0x8104, 0x8118, 0x8140, 0x8211, 0x8401, 0x8404,
    0x8410, 0x8415, 0x8440, 0x8460, 0x8500, 0x8546, 0x8594, 0x8609, 0x8640, 0x8660, 0x8802, 0x8904, 0x8a11,
    0x9004, 0x9010, 0x9024, 0x9040, 0x90a1, 0x9116, 0x9180, 0x9245, 0x9400, 0x9422, 0x9444, 0x9551, 0x9881,
    0x9920, 0xa002, 0xa050, 0xa085, 0xa109, 0xa200, 0xa418, 0xa850, 0xa904,
};
static const uint16_t fours[256] = {
    0x000, 0x002, 0x004, 0x009, 0x00b, 0x00f, 0x010, 0x012, 0x019, 0x022, 0x03b, 0x03d, 0x041, 0x043, 0x048,
    0x04a, 0x051, 0x055, 0x058, 0x05a, 0x061, 0x06c, 0x078, 0x080, 0x082, 0x084, 0x089, 0x090, 0x092, 0x099,
    0x09b, 0x09f, 0x0a9, 0x0af, 0x0bd, 0x0c1, 0x0c7, 0x0c8, 0x0ca, 0x0d5, 0x0f8, 0x10b, 0x11f, 0x124, 0x12f,
    0x13b, 0x13d, 0x141, 0x147, 0x15a, 0x16a, 0x19d, 0x1b4, 0x1c8, 0x1cc, 0x1ce, 0x1e3, 0x1f1, 0x201, 0x203,
    0x208, 0x20a, 0x211, 0x213, 0x218, 0x21a, 0x21c, 0x227, 0x228, 0x240, 0x242, 0x249, 0x250, 0x252, 0x281,
    0x283, 0x288, 0x28a, 0x291, 0x298, 0x2ba, 0x2c0, 0x2c2, 0x2d0, 0x2d9, 0x2e6, 0x2f6, 0x301, 0x305, 0x328,
    0x350, 0x354, 0x366, 0x379, 0x385, 0x3d2, 0x3e0, 0x400, 0x402, 0x409, 0x40b, 0x410, 0x412, 0x416, 0x419,
    0x422, 0x441, 0x443, 0x445, 0x448, 0x44a, 0x451, 0x458, 0x473, 0x477, 0x478, 0x480, 0x482, 0x489, 0x48f,
    0x490, 0x492, 0x49f, 0x4a0, 0x4ad, 0x4c1, 0x4c8, 0x4cc, 0x4f8, 0x4fc, 0x51d, 0x52b, 0x543, 0x557, 0x561,
    0x57c, 0x5c1, 0x5c3, 0x5ce, 0x5e5, 0x601, 0x608, 0x60a, 0x611, 0x613, 0x628, 0x635, 0x63a, 0x640, 0x642,
    0x650, 0x659, 0x664, 0x666, 0x681, 0x683, 0x688, 0x695, 0x6aa, 0x6ba, 0x6c9, 0x6db, 0x718, 0x727, 0x73a,
    0x740, 0x746, 0x752, 0x76d, 0x78c, 0x79e, 0x7b3, 0x7db, 0x7f0, 0x804, 0x80f, 0x81d, 0x81f, 0x82b, 0x82f,
    0x87c, 0x890, 0x89f, 0x8a0, 0x8b0, 0x8b6, 0x8c7, 0x8e5, 0x904, 0x929, 0x934, 0x955, 0x963, 0x978, 0x9c5,
    0x9c8, 0x9ca, 0x9d8, 0xa0a, 0xa21, 0xa38, 0xa40, 0xa46, 0xa56, 0xa6d, 0xa8c, 0xa9a, 0xaba, 0xac2, 0xaeb,
    0xb08, 0xb13, 0xb17, 0xb3a, 0xb42, 0xb59, 0xba8, 0xbd4, 0xbe2, 0xc14, 0xc24, 0xc26, 0xc34, 0xc51, 0xc71,
    0xc8f, 0xcb4, 0xcd8, 0xcde, 0xd24, 0xd45, 0xd6a, 0xd9b, 0xdc3, 0xdd1, 0xe03, 0xe05, 0xe07, 0xe08, 0xe1a,
    0xe2a, 0xe56, 0xe60, 0xe8a, 0xea5, 0xeaa, 0xec0, 0xecd, 0xedb, 0xef0, 0xf11, 0xf21, 0xf40, 0xf42, 0xf54,
    0xf98,
};

/* Sign i of 8 out of 7 bits. */
static bool is_negative(uint32_t signs, int i)
{
    return i < 7 ? signs >> i & 1 : __builtin_parity(signs & 127) != 0;
}

static float codes_iq2_xxs(int8_t *codes, const uint8_t *b, int group)
{
    static const int8_t magnitudes[4] = {8, 25, 43, 0};
    const uint8_t *names = b + 2 + 8 * group;
    const uint32_t word = word_at(names + 4);
    for (int i = 0; i < 32; i++) {
        const int8_t magnitude = magnitudes[eights[names[i / 8]] >> i % 8 * 2 & 3];
        codes[i] = is_negative(word >> i / 8 * 7, i % 8) ? (int8_t)-magnitude : magnitude;
    }
    return half_at(b) * (0.5f + (float)(word >> 28)) * 0.25f;
}

static float codes_iq3_xxs(int8_t *codes, const uint8_t *b, int group)
{
    static const int8_t magnitudes[8] = {4, 12, 20, 28, 36, 44, 52, 62};
    const uint8_t *names = b + 2 + 8 * group;
    const uint32_t word = word_at(b + 66 + 4 * group);
    for (int i = 0; i < 32; i++) {
        const int8_t magnitude = magnitudes[fours[names[i / 4]] >> i % 4 * 3 & 7];
        codes[i] = is_negative(word >> i / 8 * 7, i % 8) ? (int8_t)-magnitude : magnitude;
    }
    return half_at(b) * (0.5f + (float)(word >> 28)) * 0.5f;
}

/* ---- the table ---- */

/* Either makes numbers of a block, or codes of its group `group` of 32. */
static const struct kind {
    void (*decode)(float *out, const uint8_t *block);
    float (*codes)(int8_t *codes, const uint8_t *block, int group);
    cot_format format;
    cot_dtype scale;  // where codes are what the format keeps: a type that holds their scales
    int half, halves; // where blocks are: bytes before the first half, and how many there are
} kinds[COT_BLOCKS_COUNT] = {
    [COT_BLOCKS_Q4_0] = {NULL, codes_q4_0, COT_FORMAT_INT4, COT_F16},
    [COT_BLOCKS_Q4_1] = {decode_q4_1, NULL, COT_FORMAT_Q4_1, .halves = 2},
    [COT_BLOCKS_Q5_0] = {NULL, codes_q5_0, COT_FORMAT_Q5_0, .halves = 1},
    [COT_BLOCKS_Q5_1] = {decode_q5_1, NULL, COT_FORMAT_Q5_1, .halves = 2},
    [COT_BLOCKS_Q8_0] = {NULL, codes_q8_0, COT_FORMAT_INT8, COT_F16},
    [COT_BLOCKS_Q2_K] = {decode_q2_k, NULL, COT_FORMAT_Q2_K, .half = 80, .halves = 2},
    [COT_BLOCKS_Q3_K] = {decode_q3_k, codes_q3_k, COT_FORMAT_INT8, COT_F32},
    [COT_BLOCKS_Q4_K] = {decode_q4_k, NULL, COT_FORMAT_Q4_K, .halves = 2},
    [COT_BLOCKS_Q5_K] = {decode_q5_k, NULL, COT_FORMAT_Q5_K, .halves = 2},
    [COT_BLOCKS_Q6_K] = {decode_q6_k, NULL, COT_FORMAT_Q6_K, .half = 208, .halves = 1},
    [COT_BLOCKS_IQ4_NL] = {NULL, codes_iq4_nl, COT_FORMAT_IQ4_NL, .halves = 1},
    [COT_BLOCKS_IQ4_XS] = {NULL, codes_iq4_xs, COT_FORMAT_INT8, COT_F32},
    [COT_BLOCKS_IQ2_XXS] = {NULL, codes_iq2_xxs, COT_FORMAT_INT8, COT_F32},
    [COT_BLOCKS_IQ3_XXS] = {NULL, codes_iq3_xxs, COT_FORMAT_INT8, COT_F32},
    [COT_BLOCKS_MXFP4] = {decode_mxfp4, NULL, COT_FORMAT_MXFP4, COT_F8_E8M0},
    [COT_BLOCKS_NVFP4] = {decode_nvfp4, NULL, COT_FORMAT_NVFP4},
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
    const struct kind *k = &kinds[kind];
    if (!cot_blocks_are_read(kind)) return COT_FORMATS;
    return cot_format_blocks(k->format) ? k->format
                                        : cot_format_with(k->format, COT_BLOCKS_GROUP, k->scale, false);
}

bool cot_blocks_are_finite(const void *blocks, cot_tensor_blocks kind, int64_t n)
{
    const struct kind *k = &kinds[kind];
    const uint8_t *block = blocks, *end = block + cot_blocks_bytes(kind, n);
    for (; block < end;
         block += cot_tensor_block_bytes(kind)) { // whole numbers times a half are no more than 2^26
        for (int h = 0; h < k->halves; h++)
            if ((block[k->half + 2 * h + 1] & 0x7c) == 0x7c) return false;
        for (int g = 0; g < 4 && kind == COT_BLOCKS_NVFP4; g++)
            if ((block[g] & 0x7f) == 0x7f) return false;
    }
    return true;
}

void cot_blocks_of_panel(float *out, const void *panel, cot_format format, int64_t column, int64_t at)
{
    const cot_tensor_blocks kind = cot_format_blocks(format);
    const int64_t elements = cot_tensor_block_elements(kind), scales = cot_format_block_scales(format);
    const uint8_t *bytes = panel;
    cot_blocks_decode(out, bytes + scales + (at * COT_PANEL + column) * cot_tensor_block_bytes(kind), kind,
                      elements);
    if (!scales) return;
    float scale;
    memcpy(&scale, bytes + column * 4, 4);
    for (int64_t i = 0; i < elements; i++) out[i] *= scale;
}

void cot_blocks_gather(uint8_t *blocks, const uint8_t *codes, const uint8_t *scales, int64_t n)
{
    memset(blocks, 0, (size_t)((n + 63) / 64 * 36));
    for (int64_t i = 0; i < n; i++) {
        uint8_t *block = blocks + i / 64 * 36;
        const int64_t group = i % 64 / 16;
        block[group] = scales[i / 16];
        block[4 + 8 * group + i % 8] |= (uint8_t)((codes[i / 2] >> i % 2 * 4 & 15) << i % 16 / 8 * 4);
    }
}

void cot_blocks_strip(float *strip, const cot_gemm *g, int64_t panel, int64_t k0, int64_t rows)
{
    const cot_tensor_blocks kind = cot_format_blocks(g->format);
    const int64_t elements = cot_tensor_block_elements(kind), begin = cot_format_skipped(g->format) + k0,
                  end = begin + rows;
    const uint8_t *b = (const uint8_t *)g->b + cot_gemm_panel_at(g, panel);
    for (int64_t c = 0; c < COT_PANEL; c++)
        for (int64_t first = begin / elements * elements; first < end; first += elements) {
            float block[COT_BLOCKS_LONGEST];
            const int64_t from = first > begin ? first : begin,
                          to = first + elements < end ? first + elements : end;
            cot_blocks_of_panel(block, b, g->format, c, first / elements);
            for (int64_t i = from; i < to; i++) strip[(i - begin) * COT_PANEL + c] = block[i - first];
        }
    if (rows % 2) memset(strip + rows * COT_PANEL, 0, COT_PANEL * sizeof *strip);
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
