#include "engine/options.h"

#include "base/error.h"

#include <string.h>

void cot_engine_options_init(cot_engine_options *options)
{
    *options = (cot_engine_options){.size = sizeof *options, .version = COT_ENGINE_OPTIONS_VERSION};
}

struct word {
    const char *text; // NULL ends
    int value;
    bool told; // where messages list what there is
};

/* NULL is the first word. */
static cot_status choose(int *value, const char *said, const struct word *words, const char *given,
                         cot_error *error)
{
    char all[128] = "";
    for (const struct word *w = words; w->text; w++) {
        *value = w->value;
        if (!given || !strcmp(w->text, given)) return COT_OK;
        if (*all) strncat(all, w[1].text ? ", " : " or ", sizeof all - strlen(all) - 1);
        if (w->told) strncat(all, w->text, sizeof all - strlen(all) - 1);
    }
    return cot_fail(error, COT_INVALID_ARGUMENT, "unknown %s '%s' (%s)", said, given, all);
}

cot_status cot_engine_choose(cot_engine_choices *choices, const cot_engine_options *options, cot_error *error)
{
    cot_status status = COT_OK;
#define COT_WORD(text, value) {text, value, true},
#define COT_NO_WORD(text, value) {text, value, false},
#define COT_REPLAYED_WORD COT_WORD
#define COT_CHOICE(group, field, said, words, ...)                                                           \
    if (status == COT_OK)                                                                                    \
        status = choose(&choices->group##_##field, said, (const struct word[]){words{0}},                    \
                        options->group.field, error);
#include "coterie/engine_options.def"
    return status;
}

static cot_status in_range(const char *said, int64_t value, int64_t least, int64_t most, cot_error *error)
{
    if (value >= least && value <= most) return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT, "%s %lld is not in [%lld, %lld]", said, (long long)value,
                    (long long)least, (long long)most);
}

static cot_status real_in_range(const char *said, double value, double least, double most, cot_error *error)
{
    if (value >= least && value <= most) return COT_OK; // nan is not
    return cot_fail(error, COT_INVALID_ARGUMENT, "%s %g is not in [%g, %g]", said, value, least, most);
}

static cot_status set_numbers(cot_engine_options *o, cot_error *error)
{
    cot_status status = COT_OK;
#define COT_NUMBER(group, field, type, initial, said, least, most, ...)                                      \
    if (!o->group.field)                                                                                     \
        o->group.field = initial;                                                                            \
    else if (status == COT_OK)                                                                               \
        status = in_range(said, (int64_t)o->group.field, least, most, error);
#define COT_DURATION(group, field, ...) COT_NUMBER(group, field, int64_t, __VA_ARGS__)
#define COT_REAL(group, field, initial, said, least, most, ...)                                              \
    if (o->group.field == 0)                                                                                 \
        o->group.field = initial;                                                                            \
    else if (status == COT_OK)                                                                               \
        status = real_in_range(said, o->group.field, least, most, error);
#include "coterie/engine_options.def"
    if (status == COT_OK && o->experts.slots && o->experts.spare_slots)
        status = cot_fail(error, COT_INVALID_ARGUMENT,
                          "expert slots %d and spare slots %d: one of them says how many slots a rank has",
                          (int)o->experts.slots, (int)o->experts.spare_slots);
    if (status == COT_OK && o->memory.kv_bytes && o->memory.total_bytes)
        status =
            cot_fail(error, COT_INVALID_ARGUMENT,
                     "%zu bytes of KV cache, and %zu bytes of memory that it shares with spare slots: one of "
                     "them says how much there is",
                     o->memory.kv_bytes, o->memory.total_bytes);
    if (status == COT_OK)
        status = in_range("expert slots", o->experts.slots, 0, COT_MAX_EXPERTS / o->group.ranks, error);
    if (status == COT_OK && o->memory.block_tokens & (o->memory.block_tokens - 1))
        status = cot_fail(error, COT_INVALID_ARGUMENT, "tokens of a block %lld are no power of two",
                          (long long)o->memory.block_tokens);
    return status;
}

/* Refuses what would do nothing beside the other options, as they were given. */
static cot_status check_uses(const cot_engine_options *o, int rebalance, cot_error *error)
{
    const bool rebalances = rebalance != COT_REBALANCE_OFF, joint = rebalance == COT_REBALANCE_JOINT,
               moves = rebalances || o->experts.movable;
    const struct {
        bool given, heeded;
        const char *what;
    } rows[] = {{o->experts.spare_slots, moves,
                 "spare slots: experts do not move (movable, or rebalance), and nothing would fill them"},
                {o->experts.migration_share != 0, moves,
                 "migration share: experts do not move (movable, or rebalance)"},
                {o->experts.migration_bandwidth != 0, moves,
                 "migration bandwidth: experts do not move (movable, or rebalance)"},
                {o->experts.migration_share != 0, !o->experts.migration_bandwidth,
                 "migration share and migration bandwidth: one of them says how fast experts move"},
                {o->experts.rebalance_interval, rebalances, "rebalance interval: rebalance is off"},
                {o->experts.moves_a_cycle != 0, rebalances, "moves a cycle: rebalance is off"},
                {o->experts.distances, joint,
                 "distances of ranks: rebalance is not joint, which alone looks at them"},
                {o->memory.snapshots != 0, o->memory.block_tokens != 0,
                 "snapshots of states: there is no prefix cache that would keep them"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].given && !rows[i].heeded)
            return cot_fail(error, COT_INVALID_ARGUMENT, "%s", rows[i].what);
    return COT_OK;
}

/* What rebalancing implies. */
static cot_status set_rebalancing(cot_engine_resolved *r, cot_error *error)
{
    enum { HALF_LIFE = 65536 };
    cot_engine_options *o = &r->given;
    if (r->choice.experts_rebalance != COT_REBALANCE_OFF) {
        o->experts.movable = true;
        if (!o->watch.popularity_half_life && !o->watch.popularity_half_life_ns)
            o->watch.popularity_half_life = HALF_LIFE;
    }
    if (!o->experts.rebalance_interval) o->experts.rebalance_interval = "4096steps,60s";
    return cot_rebalance_read_interval(&r->rebalance_steps, &r->rebalance_ns, o->experts.rebalance_interval,
                                       error);
}

cot_status cot_engine_resolve(cot_engine_resolved *r, const cot_engine_options *o, cot_error *error)
{
    if (o->size != sizeof *o || o->version != COT_ENGINE_OPTIONS_VERSION)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "engine options of %zu bytes, version %d, expected %zu, version %d", o->size,
                        o->version, sizeof *o, COT_ENGINE_OPTIONS_VERSION);
    *r = (cot_engine_resolved){.given = *o, .snapshots_said = o->memory.snapshots != 0};
    cot_status status = cot_engine_choose(&r->choice, o, error);
    if (status == COT_OK) status = set_numbers(&r->given, error);
    if (status == COT_OK) status = set_rebalancing(r, error);
    if (status == COT_OK) status = check_uses(o, r->choice.experts_rebalance, error);
    const char *op = o->experts.op ? o->experts.op : cot_moe_operator_names()[0];
    if (status == COT_OK) status = cot_engine_find_operator(op, error);
    if (status == COT_OK) status = cot_fabric_backend_check(o->group.fabric, error);
    if (status == COT_OK) status = cot_kernels_choose(&r->kernels, o->group.isa, error);
    if (status != COT_OK) return status;
    r->op = cot_moe_operator_find(op);
    r->fabric = cot_fabric_backend_find(o->group.fabric);
    return COT_OK;
}

cot_status cot_engine_check_reserve(const cot_moe_operator *op, int sms_reserve, cot_error *error)
{
    if (!sms_reserve || op->on_device) return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT,
                    "'%s' runs on no device that could leave %d multiprocessors to others", op->name,
                    sms_reserve);
}

cot_status cot_engine_numbers_of(cot_engine_numbers *numbers, const cot_engine_choices *c, cot_error *error)
{
    const cot_dtype type = c->weights_precision == COT_F32 ? COT_F32 : COT_BF16;
    *numbers = (cot_engine_numbers){
        .precision = {.type = type, .rounded = c->weights_precision == COT_I8},
        .combine = (cot_moe_combine)c->experts_combine,
        .payload = c->experts_payload == COT_DTYPE_COUNT ? type : (cot_dtype)c->experts_payload};
    const cot_weight_kinds kinds = {c->weights_networks, c->weights_attention, c->weights_head};
    return cot_precision_set_weights(&numbers->precision, kinds, error);
}
