#include "coterie/version.h"

const char *cot_version(void)
{
    return COT_VERSION;
}
