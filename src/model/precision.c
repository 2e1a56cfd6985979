#include "base/error.h"
#include "model/weights.h"

static const char *name_of(const cot_precision *p)
{
    return p->rounded ? "int8" : p->type == COT_F32 ? "fp32" : "bf16";
}

cot_stored_formats cot_checkpoint_formats(const cot_checkpoint *checkpoint)
{
    static const cot_weight experts[] = {COT_WEIGHT_EXPERT_GATE, COT_WEIGHT_EXPERT_UP,
                                         COT_WEIGHT_EXPERT_DOWN},
                            shared[] = {COT_WEIGHT_SHARED_GATE, COT_WEIGHT_SHARED_UP, COT_WEIGHT_SHARED_DOWN},
                            dense[] = {COT_WEIGHT_DENSE_GATE, COT_WEIGHT_DENSE_UP, COT_WEIGHT_DENSE_DOWN};
    return (cot_stored_formats){cot_checkpoint_format(checkpoint, experts, 3, -1),
                                cot_checkpoint_format(checkpoint, shared, 3, -1),
                                cot_checkpoint_format(checkpoint, dense, 3, -1)};
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

cot_status cot_precision_set_weights(cot_precision *p, cot_weight_kinds kinds, cot_stored_formats stored,
                                     cot_error *error)
{
    cot_weight_rule networks;
    cot_status status = rule_of(&networks, p, kinds.networks,
                                p->rounded ? COT_FORMAT_INT8 : cot_format_of(p->type), p->rounded, error);
    if (status == COT_OK) status = dense_rule(&p->attention, p, kinds.attention, networks, error);
    if (status == COT_OK) status = dense_rule(&p->head, p, kinds.head, networks, error);
    if (status != COT_OK) return status;
    p->experts = choose(p, networks, stored.experts, p->rounded);
    p->shared = choose(p, networks, stored.shared, p->rounded);
    p->dense = choose(p, networks, stored.dense, p->rounded);
    return COT_OK;
}
