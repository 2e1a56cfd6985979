/* Counter-based random numbers: a pure function of (seed, stream, position), so that the same request draws
 * the same numbers wherever and in whatever company it runs. */
#ifndef COT_BASE_RNG_H
#define COT_BASE_RNG_H
#include <stdint.h>

static inline uint64_t cot_mix64(uint64_t x)
{ // the splitmix64 finaliser (Steele, Lea, Flood 2014)
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static inline uint64_t cot_random_bits(uint64_t seed, uint64_t stream, uint64_t position)
{
    return cot_mix64(cot_mix64(cot_mix64(seed) ^ stream) ^ position);
}

/* Uniform in [0, 1), 53 bits. */
static inline double cot_random_uniform(uint64_t seed, uint64_t stream, uint64_t position)
{
    return (double)(cot_random_bits(seed, stream, position) >> 11) * 0x1p-53;
}

#endif
