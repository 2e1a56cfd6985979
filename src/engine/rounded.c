#include "engine/rounded.h"

#include "base/error.h"
#include "checkpoint/convert.h"

#include <stdio.h>
#include <stdlib.h>

/* The four bits that all experts have and none is stored in; COT_FORMATS: it is not so. */
static cot_format rounded_to(const cot_engine *e)
{
    cot_format all = COT_FORMATS;
    for (int64_t i = 0; i < e->config->moe_layers * e->networks.experts * 3; i++) {
        const int64_t layer = e->moe_layer[i / 3 / e->networks.experts], expert = i / 3 % e->networks.experts;
        const cot_weight weight = COT_WEIGHT_EXPERT_GATE + (cot_weight)(i % 3);
        const cot_ffn_shape *shape = cot_networks_expert(&e->networks, layer, expert);
        const cot_format to = i % 3 == 0 ? shape->gate : i % 3 == 1 ? shape->up : shape->down;
        if (!i) all = cot_format_kind(to);
        if ((all != COT_FORMAT_INT4 && all != COT_FORMAT_MXFP4) || cot_format_kind(to) != all)
            return COT_FORMATS;
        const cot_format stored = cot_checkpoint_stored(e->checkpoint, weight, layer, expert);
        if (stored != COT_FORMATS && cot_format_kind(stored) == all) return COT_FORMATS;
    }
    return all;
}

cot_status cot_engine_note_rounded(char **notes, const cot_engine *e, cot_error *error)
{
    const cot_format to = rounded_to(e);
    const cot_convert_formats formats = {
        .experts = to, .others = COT_FORMATS, .attention = COT_FORMATS, .head = COT_FORMATS, .scheme = to};
    char *all;
    if (to == COT_FORMATS || cot_convert_check(e->checkpoint, formats, NULL) != COT_OK) return COT_OK;
    const char *name = cot_format_row_of(to)->name;
    if (asprintf(&all,
                 "%s%sexperts were rounded to %s while they were loaded, which takes its time at each start: "
                 "`coterie convert MODEL -o FOLDER --weights %s` does it once",
                 *notes ? *notes : "", *notes ? "\n" : "", name, name) < 0)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for notes");
    free(*notes);
    *notes = all;
    return COT_OK;
}
