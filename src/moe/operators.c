#include "moe/bulk/bulk.h"
#include "moe/fused/fused.h"

#include <string.h>

static const cot_moe_operator *const operators[] = {&cot_moe_fused, &cot_moe_bulk};
enum { OPERATORS = sizeof operators / sizeof *operators };

const cot_moe_operator *cot_moe_operator_find(const char *name)
{
    for (int i = 0; i < OPERATORS; i++)
        if (!strcmp(operators[i]->name, name)) return operators[i];
    return NULL;
}

const char *const *cot_moe_operator_names(void)
{
    static const char *const names[OPERATORS + 1] = {COT_MOE_FUSED, COT_MOE_BULK};
    return names;
}
