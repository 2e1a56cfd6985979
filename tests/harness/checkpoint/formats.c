#include "harness/checkpoint/formats.h"

cot_format stored_format(const cot_checkpoint *checkpoint, const cot_weight *weights, int count,
                         int64_t layer)
{
    const cot_config *config = cot_checkpoint_config(checkpoint);
    cot_format all = COT_FORMATS;
    bool first = true;
    for (int w = 0; w < count; w++) {
        const bool experts = weights[w] >= COT_WEIGHT_EXPERT_GATE && weights[w] <= COT_WEIGHT_EXPERT_DOWN;
        for (int64_t l = layer < 0 ? 0 : layer; l < (layer < 0 ? config->layers : layer + 1); l++)
            for (int64_t e = 0; e < (experts ? config->gate.experts : 1); e++) {
                int64_t rows, columns;
                if (cot_checkpoint_shape(checkpoint, weights[w], l, e, &rows, &columns, NULL) != COT_OK)
                    continue;
                const cot_format own = cot_checkpoint_stored(checkpoint, weights[w], l, e);
                all = first ? own : cot_format_join(all, own);
                first = false;
            }
    }
    return all;
}

static cot_format of_network(const cot_checkpoint *checkpoint, cot_weight gate)
{
    return stored_format(checkpoint, (const cot_weight[]){gate, gate + 1, gate + 2}, 3, -1);
}

cot_format experts_format(const cot_checkpoint *checkpoint)
{
    return of_network(checkpoint, COT_WEIGHT_EXPERT_GATE);
}

cot_format shared_format(const cot_checkpoint *checkpoint)
{
    return of_network(checkpoint, COT_WEIGHT_SHARED_GATE);
}

cot_format dense_format(const cot_checkpoint *checkpoint)
{
    return of_network(checkpoint, COT_WEIGHT_DENSE_GATE);
}
