#include "model/precision.h"

#include "base/error.h"

static const char *name_of(const cot_precision *p)
{
    return p->rounded ? "int8" : p->type == COT_F32 ? "fp32" : "bf16";
}

static cot_format choose(const cot_precision *p, cot_weight_rule rule, cot_format stored, bool rounded)
{
    const bool good = stored != COT_FORMATS && cot_format_multiplies(stored, p->type, rounded) &&
                      (rule.kind == COT_FORMATS || cot_format_kind(stored) == rule.kind);
    return good ? stored : rule.other;
}

cot_format cot_weight_format(const cot_precision *p, cot_weight_rule rule, cot_format stored)
{
    return choose(p, rule, stored, false);
}

cot_format cot_network_format(const cot_precision *p, cot_format stored)
{
    return choose(p, p->networks, stored, p->rounded);
}

/* Of weights that become `own` where they are not as they are stored, and whose rows are rounded or not. */
static cot_status rule_of(cot_weight_rule *rule, const cot_precision *p, int kind, cot_format own,
                          bool rounded, cot_error *error)
{
    *rule = (cot_weight_rule){(cot_format)kind, kind == COT_FORMATS ? own : (cot_format)kind};
    if (cot_format_multiplies(rule->other, p->type, rounded)) return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT, "weights in %s are not multiplied in precision %s",
                    cot_formats[rule->other].name, name_of(p));
}

/* Of matrices that are multiplied by rows as they are, too. */
static cot_status dense_rule(cot_weight_rule *rule, const cot_precision *p, int kind,
                             cot_weight_rule networks, cot_error *error)
{
    const cot_format own = cot_format_of(p->type);
    if (kind != COT_WEIGHTS_OF_NETWORKS) return rule_of(rule, p, kind, own, false, error);
    *rule = networks;
    if (cot_formats[networks.other].bits < 8) *rule = (cot_weight_rule){COT_FORMATS, COT_FORMAT_INT8};
    if (networks.kind == COT_FORMATS) rule->other = own;
    return COT_OK;
}

cot_status cot_precision_set_weights(cot_precision *p, cot_weight_kinds kinds, cot_error *error)
{
    cot_status status = rule_of(&p->networks, p, kinds.networks,
                                p->rounded ? COT_FORMAT_INT8 : cot_format_of(p->type), p->rounded, error);
    if (status == COT_OK) status = dense_rule(&p->attention, p, kinds.attention, p->networks, error);
    return status == COT_OK ? dense_rule(&p->head, p, kinds.head, p->networks, error) : status;
}
