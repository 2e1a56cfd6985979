#include "moe/bulk/bulk.h"
#include "moe/fused/fused.h"

#include <string.h>

enum { FUSED, BULK, OPERATORS };

static const cot_moe_operator *const operators[OPERATORS] = {
    [FUSED] = &cot_moe_fused, [BULK] = &cot_moe_bulk};

const cot_moe_operator *cot_moe_operator_find(const char *name)
{
    for (int i = 0; i < OPERATORS; i++)
        if (!strcmp(operators[i]->name, name)) return operators[i];
    return NULL;
}

const char *const *cot_moe_operator_names(void)
{
    static const char *const names[OPERATORS + 1] = {[FUSED] = COT_MOE_FUSED, [BULK] = COT_MOE_BULK};
    return names;
}
