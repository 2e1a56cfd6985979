/* An engine's options as the engine works with them: what is a word there is an enum here, found once. */
#ifndef COT_ENGINE_OPTIONS_H
#define COT_ENGINE_OPTIONS_H
#include "coterie/engine.h"
#include "fabric/launch.h"
#include "model/pipeline.h"
#include "model/weights.h"
#include "moe/moe.h"
#include "placement/rebalance.h"

enum { COT_UNSAID = -1 };
/* What a prediction is that goes by tables: a cot_foresight is any other. */
#define COT_FORETOLD_BY(method) (COT_FORESIGHTS + (method))

/* What the table makes of each word, as GROUP_FIELD. */
typedef struct cot_engine_choices {
#define COT_CHOICE(group, field, ...) int group##_##field;
#include "coterie/engine_options.def"
} cot_engine_choices;

/* Errors: INVALID_ARGUMENT, naming what is unknown and what is known. */
cot_status cot_engine_choose(cot_engine_choices *choices, const cot_engine_options *options,
                             cot_error *error);

typedef struct cot_engine_resolved {
    cot_engine_options given; // with numbers in place of 0
    bool snapshots_said;      // and not the default's number
    cot_engine_choices choice;
    const cot_moe_operator *op;
    const cot_fabric_backend *fabric;
    const cot_kernels *kernels;
    int64_t rebalance_steps, rebalance_ns; // between two looks; one of them may be 0
} cot_engine_resolved;

/* Errors: INVALID_ARGUMENT, naming the option; cot_engine_find_operator's; UNSUPPORTED: this CPU or build does not have `isa`. */
cot_status cot_engine_resolve(cot_engine_resolved *resolved, const cot_engine_options *options,
                              cot_error *error);

/* Errors: INVALID_ARGUMENT, where multiprocessors are to be left by an operator that runs on none. */
cot_status cot_engine_check_reserve(const cot_moe_operator *op, int sms_reserve, cot_error *error);

/* What numbers an engine or a benchmark works with. */
typedef struct cot_engine_numbers {
    cot_precision precision;
    cot_moe_combine combine;
    cot_dtype payload; // F32 or BF16: what expert rows travel back as
} cot_engine_numbers;
/* Errors: INVALID_ARGUMENT: weights that are not multiplied in the precision. */
cot_status cot_engine_numbers_of(cot_engine_numbers *numbers, const cot_engine_choices *choices,
                                 cot_error *error);

#endif
