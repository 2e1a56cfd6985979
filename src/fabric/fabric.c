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
