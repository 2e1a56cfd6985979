/* What numbers an engine or a benchmark works with, from their names in the options. */
#ifndef COT_ENGINE_NUMBERS_H
#define COT_ENGINE_NUMBERS_H
#include "model/weights.h"
#include "moe/moe.h"

typedef struct cot_engine_numbers {
    cot_precision precision;
    cot_moe_combine combine;
    cot_dtype payload; // F32 or BF16: what expert rows travel back as
} cot_engine_numbers;

/* precision.experts and precision.shared are those of weights that are not stored otherwise (cot_precision_set_weights).
 * precision: "bf16", "fp32" or "int8"; combine: "exact" or "reduced"; payload: "bf16", "fp32" or NULL, as the precision
 * has it. Errors: INVALID_ARGUMENT, naming what is unknown. */
cot_status cot_engine_numbers_of(cot_engine_numbers *numbers, const char *precision, const char *combine,
                                 const char *payload, cot_error *error);

#endif
