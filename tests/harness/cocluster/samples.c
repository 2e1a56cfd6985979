#include "harness/cocluster/samples.h"

int32_t below(struct draw *draw, int32_t n)
{
    return (int32_t)draw_below(draw, n);
}

void make_sample(sample *s, struct draw *draw, int32_t L, int32_t E, int32_t N, int32_t D, uint32_t clear)
{
    s->affinities = (cot_affinities){L, E, N, NULL, NULL, s->layer};
    for (int32_t l = 0; l < L; l++) {
        int64_t at = 0;
        s->layer[l] = (cot_affinity){E, N, s->offsets[l], s->expert[l], s->count[l]};
        for (int32_t e = 0; e < E; e++) s->block[l][e] = (e + l) % D;
        for (int32_t e = E - 1; e > 0; e--) {
            int32_t other = below(draw, e + 1), held = s->block[l][e];
            s->block[l][e] = s->block[l][other];
            s->block[l][other] = held;
        }
        s->offsets[l][0] = 0;
        for (int32_t i = 0; i < N; i++) {
            for (int32_t e = 0; e < E; e++) {
                uint32_t n = s->block[l][e] == i % D ? clear : (uint32_t)(below(draw, 3) == 0);
                if (!n) continue;
                s->expert[l][at] = (uint16_t)e;
                s->count[l][at++] = n;
            }
            s->offsets[l][i + 1] = at;
        }
    }
}
