#include "model/mixer.h"

static const cot_mixer *const mixers[COT_MIXER_KINDS] = {
    [COT_MIXER_FULL] = &cot_mixer_full,
    [COT_MIXER_SLIDING] = &cot_mixer_sliding,
    [COT_MIXER_MLA] = &cot_mixer_mla,
    [COT_MIXER_DELTA] = &cot_mixer_delta,
};

const cot_mixer *cot_mixer_of(const cot_config *config, int64_t layer)
{
    return mixers[config->layer[layer].mixer];
}

const cot_mixer *cot_mixer_used(const cot_config *config, int i, int64_t *layer)
{
    for (int kind = 0; kind < COT_MIXER_KINDS; kind++) {
        int64_t l = 0;
        while (l < config->layers && config->layer[l].mixer != (cot_mixer_kind)kind) l++;
        if (l == config->layers || i--) continue;
        *layer = l;
        return mixers[kind];
    }
    return NULL;
}

bool cot_mixer_all_keep_pages(const cot_config *config)
{
    const cot_mixer *mixer;
    int64_t layer;
    for (int i = 0; (mixer = cot_mixer_used(config, i, &layer)); i++)
        if (!mixer->keeps_pages) return false;
    return true;
}
