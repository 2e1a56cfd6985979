/* Affinities to group. */
#ifndef COT_TESTS_COCLUSTER_SAMPLES_H
#define COT_TESTS_COCLUSTER_SAMPLES_H
#include "coterie/group_layers.h"

#include "base/rng.h"
#include "harness/seed.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MAX_L = 4, MAX_E = 24, MAX_N = 120, MAX_D = 8 };

static uint64_t drawn;
static int32_t below(int32_t n)
{
    return (int32_t)(cot_random_bits(test_seed(), 9, drawn++) % (uint64_t)n);
}

/* Tokens of D kinds; in each layer a kind calls a block of experts of its own. */
typedef struct sample {
    cot_affinities affinities;
    cot_affinity layer[MAX_L];
    int64_t offsets[MAX_L][MAX_N + 1];
    uint16_t expert[MAX_L][MAX_N * MAX_E];
    uint32_t count[MAX_L][MAX_N * MAX_E];
    int32_t block[MAX_L][MAX_E];
} sample;

static void make(sample *s, int32_t L, int32_t E, int32_t N, int32_t D, uint32_t clear)
{
    s->affinities = (cot_affinities){L, E, N, NULL, NULL, s->layer};
    for (int32_t l = 0; l < L; l++) {
        int64_t at = 0;
        s->layer[l] = (cot_affinity){E, N, s->offsets[l], s->expert[l], s->count[l]};
        for (int32_t e = 0; e < E; e++) s->block[l][e] = (e + l) % D;
        for (int32_t e = E - 1; e > 0; e--) {
            int32_t other = below(e + 1), held = s->block[l][e];
            s->block[l][e] = s->block[l][other];
            s->block[l][other] = held;
        }
        s->offsets[l][0] = 0;
        for (int32_t i = 0; i < N; i++) {
            for (int32_t e = 0; e < E; e++) {
                uint32_t n = s->block[l][e] == i % D ? clear : (uint32_t)(below(3) == 0);
                if (!n) continue;
                s->expert[l][at] = (uint16_t)e;
                s->count[l][at++] = n;
            }
            s->offsets[l][i + 1] = at;
        }
    }
}

#endif
