/* What the arithmetic of a model is done in, and what its weights become for it. */
#ifndef COT_MODEL_PRECISION_H
#define COT_MODEL_PRECISION_H
#include "coterie/status.h"
#include "kernels/format.h"

/* What weights become: as they are stored, if that is of `kind` (COT_FORMATS: of any) and can be multiplied; else `other`. */
typedef struct cot_weight_rule {
    cot_format kind, other;
} cot_weight_rule;

/* What the arithmetic is done in. The gate, and what MLA absorbs, have weights of the type's own (the gate: fp32; MLA's are as they
 * are stored where files have them in two halves). */
typedef struct cot_precision {
    cot_dtype type; // F32 or BF16, of all but the gate; what ranks send each other is of this type, too
    bool
        rounded; // rows are rounded to whole numbers within products (kernels.h): those with networks, and with other weights
    // that can be multiplied so
    cot_weight_rule networks, attention, head;
} cot_precision;

/* What weights are to be: a cot_format, or COT_FORMATS: as stored. */
enum { COT_WEIGHTS_OF_NETWORKS = -1 }; // as networks, but where these have less than 8 bits as stored or int8
typedef struct cot_weight_kinds {
    int networks, attention, head;
} cot_weight_kinds;

/* Sets what weights are, of a precision whose other fields are set. As stored: what they are stored as if such weights can be
 * multiplied in this precision, else the precision's own kind (INT8 of networks whose rows are rounded). A format: that
 * kind, as it is stored where it is stored so, and where not rounded to it. Errors: INVALID_ARGUMENT (a format that is not multiplied so). */
cot_status cot_precision_set_weights(cot_precision *precision, cot_weight_kinds kinds, cot_error *error);
/* What weights that are stored as `stored` (COT_FORMATS: to be widened or rounded) become by a rule, and those of networks. */
cot_format cot_weight_format(const cot_precision *precision, cot_weight_rule rule, cot_format stored);
cot_format cot_network_format(const cot_precision *precision, cot_format stored);

#endif
