#include "base/error.h"
#include "model/weights.h"

static const char *name_of(const cot_precision *p)
{
    return p->rounded ? "int8" : p->type == COT_F32 ? "fp32" : "bf16";
}

/* What is stored, if it is of that kind (COT_FORMATS: of any) and is multiplied in this precision; else `other`. */
static cot_format choose(const cot_precision *p, cot_format kind, cot_format stored, cot_format other)
{
    const bool good = stored != COT_FORMATS && cot_format_multiplies(stored, p->type, p->rounded) &&
                      (kind == COT_FORMATS || cot_format_kind(stored) == kind);
    return good ? stored : other;
}

cot_status cot_precision_set_weights(cot_precision *p, const char *weights, cot_stored_formats stored,
                                     cot_error *error)
{
    const bool as_stored = !weights || !strcmp(weights, "as-stored");
    const cot_format own = p->rounded ? COT_FORMAT_INT8 : cot_format_of(p->type),
                     kind = as_stored ? COT_FORMATS : cot_format_parse(weights),
                     other = as_stored ? own : kind;
    if (!as_stored && kind == COT_FORMATS) {
        char names[128] = "as-stored";
        for (int f = 0; f < COT_FORMATS; f++) {
            strncat(names, f + 1 < COT_FORMATS ? ", " : " or ", sizeof names - strlen(names) - 1);
            strncat(names, cot_formats[f].name, sizeof names - strlen(names) - 1);
        }
        return cot_fail(error, COT_INVALID_ARGUMENT, "unknown weights '%s' (%s)", weights, names);
    }
    if (!cot_format_multiplies(other, p->type, p->rounded))
        return cot_fail(error, COT_INVALID_ARGUMENT, "weights in %s are not multiplied in precision %s",
                        weights, name_of(p));
    p->experts = choose(p, kind, stored.experts, other);
    p->shared = choose(p, kind, stored.shared, other);
    return COT_OK;
}
