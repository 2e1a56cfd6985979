#include "base/error.h"
#include "engine/engine_state.h"
#include "model/mixer.h"

#include <stdlib.h>
#include <string.h>

const char *const *cot_engine_phases(void)
{
    static const char *const names[] = {
#define COT_PHASE_TEXT(name, text) text,
        COT_PHASE_LIST(COT_PHASE_TEXT)
#undef COT_PHASE_TEXT
            NULL};
    return names;
}
_Static_assert((int)COT_STATS_PHASES == (int)COT_PHASES, "the public count of phases is the fabric's");

/* ---- what a step had to read ---- */

static uint64_t network_bytes(const cot_moe_weights *weights, const cot_ffn_shape *shape)
{
    return shape->intermediate ? weights->slot_bytes(shape) : 0;
}

static uint64_t head_bytes(const cot_engine *e)
{
    return (uint64_t)cot_packed_bytes(e->whole.output.format, e->config->hidden, e->config->vocab);
}

/* Keys and values of one position. */
static uint64_t position_bytes(const cot_engine *e)
{
    const cot_config *c = e->config;
    int64_t width = c->attention == COT_ATTENTION_MLA
                        ? c->head_dim + c->kv_lora_rank // the latent is stored twice
                        : 2 * c->kv_heads * c->head_dim;
    return (uint64_t)width * cot_dtype_bytes(e->runner.precision.type);
}

/* Keys and values of the positions that the span's tokens see; or the state that they find, if any. */
static uint64_t kept_bytes(const cot_engine *e, const cot_span *span, int64_t layer)
{
    const cot_mixer *mixer = cot_mixer_of(e->config, layer);
    if (mixer->state_floats)
        return !span->position
                   ? 0
                   : (uint64_t)mixer->state_floats(e->config, &e->whole.attention[layer]) * sizeof(float);
    int64_t positions = span->position + span->tokens, window = e->config->layer[layer].window;
    if (window && positions > window + span->tokens - 1) positions = window + span->tokens - 1;
    return (uint64_t)positions * position_bytes(e);
}

uint64_t cot_engine_read_bytes(cot_engine *e, const cot_step *step, const uint16_t *experts)
{
    const cot_config *c = e->config;
    int64_t k = c->gate.top_k, moe_layer = 0;
    const cot_moe_weights *weights = e->runner.op->weights;
    const uint64_t gate_bytes = weights->gate_bytes(c->hidden, c->gate.experts);
    uint64_t bytes = step->logits ? head_bytes(e) : 0;
    for (int64_t l = 0; l < c->layers; l++) {
        bytes += cot_attention_weights_bytes(&e->whole.attention[l]); // what ranks hold twice is read once
        for (int32_t i = 0; i < step->spans; i++) bytes += kept_bytes(e, &step->span[i], l);
        if (!c->layer[l].moe) {
            bytes += network_bytes(&cot_moe_packed, &e->networks.dense[l]);
            continue;
        }
        const uint64_t expert_bytes = (uint64_t)e->networks.slot_bytes[moe_layer];
        const uint16_t *chosen = experts + moe_layer++ * e->runner.step_tokens * k;
        memset(e->ranks.touched, 0, (size_t)c->gate.experts * sizeof *e->ranks.touched);
        const int64_t distinct = cot_cost_touch(e->ranks.touched, chosen, step->tokens * k);
        bytes +=
            gate_bytes + (uint64_t)distinct * expert_bytes + network_bytes(weights, &e->networks.shared[l]);
    }
    return bytes;
}

void cot_engine_cost_prior(const cot_engine *e, double prior[COT_COST_TERMS])
{
    enum {
        STEP = 1 << 20, // bytes that could be read while a step is sent around
        ROWS = 8 // of which the arithmetic takes as long as reading the matrix that they are multiplied with
    };
    const cot_config *c = e->config;
    const cot_moe_weights *weights = e->runner.op->weights;
    double networks = (double)c->moe_layers * (double)weights->gate_bytes(c->hidden, c->gate.experts);
    for (int64_t l = 0; l < c->layers; l++)
        networks += (double)network_bytes(weights, &e->networks.shared[l]) +
                    (double)network_bytes(&cot_moe_packed, &e->networks.dense[l]);
    double experts = 0; // one of each layer
    for (int64_t m = 0; m < c->moe_layers; m++) experts += (double)e->networks.slot_bytes[m];
    double all = networks;
    for (int64_t l = 0; l < c->layers; l++)
        all += (double)cot_attention_weights_bytes(&e->whole.attention[l]);
    const double position = (double)c->key_layers * (double)position_bytes(e),
                 group = (double)c->heads / (double)(c->attention == COT_ATTENTION_MLA ? 1 : c->kv_heads);
    prior[COT_COST_FIXED] = STEP + all + (double)head_bytes(e);
    prior[COT_COST_EXPERTS] = experts;
    prior[COT_COST_ROWS] = experts / ROWS;
    prior[COT_COST_SENDS] =
        2.0 * (double)(c->moe_layers * c->hidden) * (double)cot_dtype_bytes(e->runner.payload);
    prior[COT_COST_TOKENS] = all / ROWS;
    prior[COT_COST_POSITIONS] = position;
    prior[COT_COST_PAIRS] = position * group / ROWS;
}

/* ---- gathering ---- */

static cot_status allocate(cot_stats *s, const cot_engine *e, cot_error *error)
{
    const cot_engine_info *info = &e->info;
    const int ranks = info->ranks;
    *s = (cot_stats){.ranks = ranks};
    s->calls = calloc((size_t)(info->moe_layers * info->experts) + 1, sizeof *s->calls);
    s->routing = calloc((size_t)ranks, sizeof *s->routing);
    s->exchanges = e->runner.count_exchanges ? cot_runner_exchanges(info->layers) : 0;
    if (s->exchanges) s->exchanged = calloc(s->exchanges * (size_t)(ranks * ranks), sizeof *s->exchanged);
    bool failed = !s->calls || !s->routing || (s->exchanges && !s->exchanged);
    for (int p = 0; p < COT_STATS_PHASES; p++) {
        s->bytes[p] = calloc((size_t)(ranks * ranks), sizeof **s->bytes);
        s->messages[p] = calloc((size_t)(ranks * ranks), sizeof **s->messages);
        failed |= !s->bytes[p] || !s->messages[p];
    }
    return failed ? cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the counters of %d ranks", ranks)
                  : COT_OK;
}

/* `reduction`: what heads' sums go by. */
static void add_rank(cot_stats *s, int rank, const cot_rank_stats *r, const char *reduction,
                     cot_locality *all)
{
    const struct {
        const char *name;
        int64_t ns;
    } times[COT_STATS_TIMES] = {{"attention", r->attention_ns}, {reduction, r->reduce_ns},
                                {"gate", r->moe.gate_ns},       {"dispatch", r->moe.dispatch_ns},
                                {"experts", r->moe.expert_ns},  {"shared experts", r->moe.shared_ns},
                                {"combine", r->moe.combine_ns}, {"dense layers", r->dense_ns},
                                {"allgather", r->gather_ns},    {"logits", r->logits_ns}};
    for (int i = 0; i < COT_STATS_TIMES; i++) {
        s->times[i].name = times[i].name;
        s->times[i].ns += times[i].ns;
    }
    for (int to = 0; to < s->ranks; to++)
        for (int p = 0; p < COT_STATS_PHASES; p++) {
            s->bytes[p][rank * s->ranks + to] = r->traffic[to][p].bytes;
            s->messages[p][rank * s->ranks + to] = r->traffic[to][p].messages;
        }
    s->routing[rank] = (cot_rank_routing){.tokens = (uint64_t)r->locality.tokens,
                                          .activations = (uint64_t)r->locality.activations,
                                          .local = (uint64_t)r->locality.local,
                                          .sends = (uint64_t)r->locality.remote_ranks,
                                          .distinct_experts = r->distinct,
                                          .served = r->moe.served_rows,
                                          .served_experts = r->moe.served_experts,
                                          .received = r->moe.received_rows};
    all->tokens += r->locality.tokens;
    all->activations += r->locality.activations;
    all->local += r->locality.local;
    all->remote_ranks += r->locality.remote_ranks;
}

cot_status cot_engine_stats(cot_engine *e, cot_stats *s, cot_error *error)
{
    int ranks = e->info.ranks;
    cot_locality locality = {0};
    const char *const reduction =
        e->runner.pipeline.s_moe && !e->runner.data_parallel ? "reduce-scatter" : "allreduce";
    cot_status status = cot_loop_usable(&e->loop, error);
    if (status != COT_OK) return status;
    cot_rank_stats *gathered = calloc((size_t)ranks, sizeof *gathered);
    status = allocate(s, e, error);
    if (status == COT_OK && !gathered)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the counters");
    if (status == COT_OK) status = cot_engine_group_stats(e->group, gathered, s->calls, s->exchanged, error);
    for (int rank = 0; rank < ranks && status == COT_OK; rank++)
        add_rank(s, rank, &gathered[rank], reduction, &locality);
    for (int p = 0; p < COT_STATS_PHASES && status == COT_OK; p++) s->rounds[p] = gathered[0].rounds[p];
    if (status == COT_OK) s->padded_rows = gathered[0].moe.padded_rows;
    free(gathered);
    if (status != COT_OK) {
        cot_stats_clear(s);
        return status;
    }
    s->activations = (uint64_t)locality.activations;
    s->local_activations = (uint64_t)locality.local;
    s->lar = cot_locality_lar(&locality);
    s->remote_ranks = cot_locality_remote_ranks(&locality);
    s->prefill_tokens = e->loop.prefill_tokens;
    s->decode_tokens = e->loop.decode_tokens;
    s->prefill_ns = e->loop.prefill_ns;
    s->decode_ns = e->loop.decode_ns;
    s->last_step_ns = e->loop.last_step_ns;
    s->steps = e->loop.steps;
    s->prefill_read_bytes = e->loop.prefill_read_bytes;
    s->decode_read_bytes = e->loop.decode_read_bytes;
    return COT_OK;
}

void cot_stats_clear(cot_stats *s)
{
    for (int p = 0; p < COT_STATS_PHASES; p++) {
        free(s->bytes[p]);
        free(s->messages[p]);
    }
    free(s->calls);
    free(s->exchanged);
    free(s->routing);
    *s = (cot_stats){0};
}

cot_status cot_engine_set_link(cot_engine *e, const cot_engine_link *l, cot_error *error)
{
    if (!(l->bytes_per_s >= 0) || l->latency_ns < 0 || !(l->uplink_bytes_per_s >= 0) ||
        l->uplink_latency_ns < 0 || l->groups < 0 || l->groups > e->info.ranks)
        return cot_fail(error, COT_INVALID_ARGUMENT, "no link is of such a shape");
    const cot_link link = {l->bytes_per_s, l->latency_ns, l->groups, l->uplink_bytes_per_s,
                           l->uplink_latency_ns};
    const cot_status status = cot_loop_usable(&e->loop, error);
    if (status != COT_OK) return status;
    return cot_loop_survives(&e->loop, cot_engine_group_link(e->group, &link, error));
}
