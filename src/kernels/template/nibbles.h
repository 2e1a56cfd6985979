/* What the sixteen codes of four bits stand for, as the instruction sets look them up. Included by their files (x86/avx2_widen.h
 * and the like). */
#ifndef COT_KERNELS_TEMPLATE_NIBBLES_H
#define COT_KERNELS_TEMPLATE_NIBBLES_H
#include <stdint.h>

struct nibbles {
    uint16_t bf16[16];
    uint8_t high[16], low[16]; // its bytes
    uint8_t whole[16];         // whole numbers, those of 1 / `unit`, plus `offset`: from 0 to 24
    int32_t offset;
    float unit;
};

#define NIBBLES_HIGH(x) (x) >> 8,
#define NIBBLES_LOW(x) (x) & 255,
#define NIBBLES_BOTH(x) (x),
#define NIBBLES(X, ...)                                                                                      \
    {                                                                                                        \
        {X(NIBBLES_BOTH)}, {X(NIBBLES_HIGH)}, {X(NIBBLES_LOW)}, __VA_ARGS__                                  \
    }

// clang-format off
#define E2M1_CODES(X) \
    X(0x0000) X(0x3f00) X(0x3f80) X(0x3fc0) X(0x4000) X(0x4040) X(0x4080) X(0x40c0) \
    X(0x8000) X(0xbf00) X(0xbf80) X(0xbfc0) X(0xc000) X(0xc040) X(0xc080) X(0xc0c0)
#define INT4_CODES(X) \
    X(0x0000) X(0x3f80) X(0x4000) X(0x4040) X(0x4080) X(0x40a0) X(0x40c0) X(0x40e0) \
    X(0xc100) X(0xc0e0) X(0xc0c0) X(0xc0a0) X(0xc080) X(0xc040) X(0xc000) X(0xbf80)
// clang-format on

static const struct nibbles e2m1_nibbles =
    NIBBLES(E2M1_CODES, {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0}, 12, 0.5f);
static const struct nibbles int4_nibbles =
    NIBBLES(INT4_CODES, {8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7}, 8, 1);

#endif
