#include "moe/bulk/bulk.h"
#include "moe/fused/fused.h"

#include <string.h>

enum { FUSED, BULK, OPERATORS };

static const cot_moe_operator *const operators[OPERATORS] = {
    [FUSED] = &cot_moe_fused, [BULK] = &cot_moe_bulk};

const char *cot_moe_a2a_name(cot_moe_a2a a2a)
{
#define COT_A2A_TEXT(name, text) [COT_A2A_##name] = text,
    static const char *const names[] = {COT_A2A_LIST(COT_A2A_TEXT)};
#undef COT_A2A_TEXT
    return names[a2a];
}

bool cot_moe_a2a_find(cot_moe_a2a *a2a, const char *name)
{
    for (*a2a = COT_A2A_PADDED; *a2a <= COT_A2A_ONE_SHOT; ++*a2a)
        if (!strcmp(cot_moe_a2a_name(*a2a), name)) return true;
    return false;
}

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
