#include "engine/numbers.h"

#include "base/error.h"

#include <string.h>

cot_status cot_engine_numbers_of(cot_engine_numbers *numbers, const char *precision, const char *combine,
                                 const char *payload, cot_error *error)
{
    const bool fp32 = !strcmp(precision, "fp32"), int8 = !strcmp(precision, "int8"),
               reduced = !strcmp(combine, "reduced");
    if (!fp32 && !int8 && strcmp(precision, "bf16") != 0)
        return cot_fail(error, COT_INVALID_ARGUMENT, "unknown precision '%s' (bf16, fp32 or int8)",
                        precision);
    if (!reduced && strcmp(combine, "exact") != 0)
        return cot_fail(error, COT_INVALID_ARGUMENT, "unknown combine '%s' (exact or reduced)", combine);
    if (payload && strcmp(payload, "bf16") != 0 && strcmp(payload, "fp32") != 0)
        return cot_fail(error, COT_INVALID_ARGUMENT, "unknown payload '%s' (bf16 or fp32)", payload);
    const cot_dtype type = fp32 ? COT_F32 : COT_BF16;
    *numbers = (cot_engine_numbers){{.type = type, .rounded = int8},
                                    reduced ? COT_COMBINE_REDUCED : COT_COMBINE_EXACT,
                                    !payload                   ? type
                                    : !strcmp(payload, "fp32") ? COT_F32
                                                               : COT_BF16};
    return COT_OK;
}
