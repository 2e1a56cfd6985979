#include "coterie/predict_evaluate.h"

#include "base/rng.h"

#include <math.h>

void cot_trace_split(uint8_t *training, int64_t n_sequences, double share, uint64_t seed)
{
    // Selection sampling: sequence s is taken with probability (still wanted) / (still to come).
    int64_t wanted = llround(share * (double)n_sequences);
    for (int64_t s = 0; s < n_sequences; s++) {
        double draw = cot_random_uniform(seed, 0, (uint64_t)s) * (double)(n_sequences - s);
        training[s] = draw < (double)wanted;
        wanted -= training[s];
    }
}
