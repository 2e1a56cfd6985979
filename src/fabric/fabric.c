#include "fabric/fabric.h"

const char *cot_phase_name(cot_phase phase)
{
    static const char *const names[] = {
#define COT_PHASE_NAME(name, text) text,
        COT_PHASE_LIST(COT_PHASE_NAME)
#undef COT_PHASE_NAME
    };
    return (unsigned)phase < COT_PHASES ? names[phase] : "?";
}

/* The last rank whose part begins at i or before: floor(r n / P) <= i, that is r n < (i + 1) P. */
int cot_share_owner(int64_t n, int64_t i, int ranks)
{
    return (int)(((i + 1) * ranks - 1) / n);
}
