#include "moe/bulk/bulk.h"
#include "moe/fused/fused.h"

#include <assert.h>
#include <string.h>

enum { MOST = 8 };

static int count = 2;
static const cot_moe_operator *operators[MOST] = {&cot_moe_fused, &cot_moe_bulk};
static const char *names[MOST + 1] = {COT_MOE_FUSED, COT_MOE_BULK};

const char *cot_moe_a2a_name(cot_moe_a2a a2a)
{
#define COT_A2A_TEXT(name, text) [COT_A2A_##name] = text,
    static const char *const a2a_names[] = {COT_A2A_LIST(COT_A2A_TEXT)};
#undef COT_A2A_TEXT
    return a2a_names[a2a];
}

void cot_moe_operator_add(const cot_moe_operator *op)
{
    assert(count < MOST && !cot_moe_operator_find(op->name));
    names[count] = op->name;
    operators[count++] = op;
}

const cot_moe_operator *cot_moe_operator_find(const char *name)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(names[i], name)) return operators[i];
    return NULL;
}

const char *const *cot_moe_operator_names(void)
{
    return names;
}
