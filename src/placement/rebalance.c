#include "placement/rebalance_layer.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const cot_rebalance_mode_names[] = {"off", "load", "joint", NULL};

/* ---- intervals ---- */

/* One part, up to `end`; whether it is one, and the first of its unit. */
static bool read_part(int64_t *steps, int64_t *ns, const char *part, const char *end)
{
    const double most_steps = 1e12, most_s = 1e9;
    const char *unit = part + strspn(part, "0123456789.");
    char *behind;
    const double value = strtod(part, &behind);
    if (behind == part || behind != unit) return false;
    const size_t length = (size_t)(end - unit);
    if (length == 5 && !strncmp(unit, "steps", length)) {
        if (*steps || !(value >= 1 && value <= most_steps) || value != floor(value)) return false;
        *steps = (int64_t)value;
        return true;
    }
    if (length != 1 || *unit != 's' || *ns || !(value >= 1e-9 && value <= most_s)) return false;
    *ns = (int64_t)(value * 1e9);
    return true;
}

cot_status cot_rebalance_read_interval(int64_t *steps, int64_t *ns, const char *text, cot_error *error)
{
    const char *part = text;
    bool good = true;
    *steps = *ns = 0;
    while (good) {
        const char *end = part + strcspn(part, ",");
        good = read_part(steps, ns, part, end);
        if (!*end) break;
        part = end + 1;
    }
    return good ? COT_OK
                : cot_fail(
                      error, COT_INVALID_ARGUMENT,
                      "'%s' is no interval to rebalance: it is written as 4096steps, 60s or 4096steps,60s",
                      text);
}

/* ---- opening ---- */

static cot_status check_costs(const cot_rebalance_options *o, cot_error *error)
{
    const double ns[] = {o->row_ns, o->expert_ns, o->send_ns};
    bool good = o->row_ns + o->expert_ns > 0;
    for (size_t i = 0; i < sizeof ns / sizeof *ns; i++) good &= ns[i] >= 0 && isfinite(ns[i]);
    for (int32_t l = 0; l < o->layers; l++) good &= o->copy_ns[l] >= 0 && isfinite(o->copy_ns[l]);
    for (int64_t i = 0; o->distance && i < (int64_t)o->ranks * o->ranks; i++)
        good &= o->distance[i] >= 0 && isfinite(o->distance[i]);
    return good ? COT_OK
                : cot_fail(error, COT_INVALID_ARGUMENT,
                           "rebalancing by times and distances that are not 0 or more");
}

static cot_status check(const cot_rebalance_options *o, cot_error *error)
{
    if (o->mode != COT_REBALANCE_LOAD && o->mode != COT_REBALANCE_JOINT)
        return cot_fail(error, COT_INVALID_ARGUMENT, "rebalancing that is off");
    if (o->ranks < 1 || o->ranks > COT_REBALANCE_MOST_RANKS)
        return cot_fail(error, COT_INVALID_ARGUMENT, "rebalancing of %d ranks, expected 1 to %d",
                        (int)o->ranks, COT_REBALANCE_MOST_RANKS);
    if (o->layers < 1 || o->experts < 1 || o->top_k < 1 || o->top_k > o->experts || o->slots < 1 ||
        (int64_t)o->slots * o->ranks < o->experts)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "rebalancing of %d of %d experts in %d layers and %d slots of %d ranks",
                        (int)o->top_k, (int)o->experts, (int)o->layers, (int)o->slots, (int)o->ranks);
    if (o->interval_steps < 0 || o->interval_ns < 0 || (!o->interval_steps && !o->interval_ns))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "an interval of %lld steps and %lld ns to rebalance, expected one above 0",
                        (long long)o->interval_steps, (long long)o->interval_ns);
    if (o->cool_down < 1 || o->moves_a_cycle < 1 || !(o->margin > 0 && isfinite(o->margin)))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "%lld moves a cycle, a cool-down of %d intervals and a margin of %g",
                        (long long)o->moves_a_cycle, (int)o->cool_down, o->margin);
    return check_costs(o, error);
}

cot_status cot_rebalance_open(cot_rebalance *r, const cot_rebalance_options *o, cot_rebalance_clock now,
                              cot_error *error)
{
    *r = (cot_rebalance){0};
    const cot_status status = check(o, error);
    if (status != COT_OK) return status;
    const size_t L = (size_t)o->layers, n = L * (size_t)o->experts,
                 pairs = (size_t)o->ranks * (size_t)o->ranks;
    *r = (cot_rebalance){.o = *o,
                         .last = now,
                         .copy_ns = malloc(L * sizeof *r->copy_ns),
                         .distance = o->distance ? malloc(pairs * sizeof *r->distance) : NULL,
                         .slot_bytes = calloc(L, sizeof *r->slot_bytes),
                         .spare_bytes = INT64_MAX,
                         .changed = calloc(n, sizeof *r->changed),
                         .has_changed = calloc(n, sizeof *r->has_changed)};
    if (!r->copy_ns || !r->slot_bytes || (o->distance && !r->distance) || !r->changed || !r->has_changed)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for rebalancing");
    memcpy(r->copy_ns, o->copy_ns, L * sizeof *r->copy_ns);
    if (r->distance) memcpy(r->distance, o->distance, pairs * sizeof *r->distance);
    if (o->slot_bytes)
        memcpy(r->slot_bytes, o->slot_bytes, L * sizeof *r->slot_bytes);
    else
        r->o.base = o->slots;
    r->o.copy_ns = r->copy_ns;
    r->o.distance = r->distance;
    r->o.slot_bytes = r->slot_bytes;
    return COT_OK;
}

cot_status cot_rebalance_learn(cot_rebalance *r, const cot_rebalance_costs *costs, cot_error *error)
{
    cot_rebalance_options o = r->o;
    o.row_ns = costs->row_ns;
    o.expert_ns = costs->expert_ns;
    o.send_ns = costs->send_ns;
    o.copy_ns = costs->copy_ns;
    const cot_status status = check_costs(&o, error);
    if (status != COT_OK) return status;
    memcpy(r->copy_ns, costs->copy_ns, (size_t)o.layers * sizeof *r->copy_ns);
    r->o = o;
    r->o.copy_ns = r->copy_ns;
    return COT_OK;
}

void cot_rebalance_close(cot_rebalance *r)
{
    free(r->copy_ns);
    free(r->distance);
    free(r->slot_bytes);
    free(r->changed);
    free(r->has_changed);
    *r = (cot_rebalance){0};
}

void cot_rebalance_allow(cot_rebalance *r, int64_t spare_bytes)
{
    r->spare_bytes = spare_bytes;
}

/* ---- the clock ---- */

bool cot_rebalance_passed(const cot_rebalance_options *o, cot_rebalance_clock from, cot_rebalance_clock to,
                          int64_t intervals)
{
    return (o->interval_steps && to.steps - from.steps >= intervals * o->interval_steps) ||
           (o->interval_ns && to.ns - from.ns >= intervals * o->interval_ns);
}

bool cot_rebalance_due(const cot_rebalance *r, cot_rebalance_clock now)
{
    return cot_rebalance_passed(&r->o, r->last, now, 1);
}

bool cot_rebalance_turns(cot_rebalance *r, double change, double chance)
{
    static const double far = 2; // times the usual
    enum { OF_LATE = 8 };
    if (!(chance > 0)) return false;
    const bool turns = r->changes && change > far * r->usual_change && change > far * chance;
    if (r->changes < OF_LATE) r->changes++;
    // what changes to and fro all the time is usual in the end
    r->usual_change += (change - r->usual_change) / (turns ? OF_LATE : r->changes);
    return turns;
}

void cot_rebalance_adopt(cot_rebalance *r, const cot_rebalance_plan *plan, cot_rebalance_clock now)
{
    const size_t E = (size_t)plan->experts;
    int64_t left = r->o.moves_a_cycle + r->saved_moves;
    for (size_t l = 0; l < (size_t)plan->layers; l++) {
        bool changes = false;
        for (size_t i = l * E; i < (l + 1) * E; i++) {
            if (!plan->changes[i]) continue;
            r->changed[i] = now;
            r->has_changed[i] = changes = true;
        }
        if (changes) left -= plan->layer[l].moves;
    }
    r->saved_moves = left < r->o.moves_a_cycle ? left : r->o.moves_a_cycle;
    r->last = now;
    r->cycles++;
}
