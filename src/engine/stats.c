#include "base/error.h"
#include "engine/engine_state.h"
#include "kernels/pack.h"

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

static uint64_t matrix_bytes(const cot_engine *e, int64_t in, int64_t out)
{
    return (uint64_t)in * (uint64_t)out * cot_dtype_bytes(e->runner.type);
}

static uint64_t attention_bytes(const cot_engine *e)
{
    const cot_config *c = e->config;
    if (c->attention == COT_ATTENTION_GQA)
        return matrix_bytes(e, c->hidden, (2 * c->heads + 2 * c->kv_heads) * c->head_dim);
    int64_t q = c->heads * (c->nope_dim + c->rope_dim), latent = c->kv_lora_rank + c->rope_dim;
    uint64_t queries =
        c->q_lora_rank ? matrix_bytes(e, c->hidden + q, c->q_lora_rank) : matrix_bytes(e, c->hidden, q);
    return queries + matrix_bytes(e, c->hidden, latent) +
           matrix_bytes(e, c->kv_lora_rank, c->heads * (c->nope_dim + c->v_dim)) +
           matrix_bytes(e, c->hidden, c->heads * c->v_dim);
}

static uint64_t kv_bytes(const cot_engine *e, const cot_span *span, int64_t layer)
{
    const cot_config *c = e->config;
    int64_t keys = span->position + span->tokens, window = c->layer[layer].window;
    if (window && keys > window + span->tokens - 1) keys = window + span->tokens - 1;
    int64_t width =
        c->attention == COT_ATTENTION_MLA ? c->kv_lora_rank + c->rope_dim : 2 * c->kv_heads * c->head_dim;
    return (uint64_t)(keys * width) * cot_dtype_bytes(e->runner.type);
}

uint64_t cot_engine_read_bytes(cot_engine *e, const cot_step *step, const uint16_t *experts)
{
    const cot_config *c = e->config;
    int64_t k = c->gate.top_k, moe_layer = 0;
    uint64_t bytes = step->logits ? matrix_bytes(e, c->hidden, c->vocab) : 0;
    for (int64_t l = 0; l < c->layers; l++) {
        bytes += attention_bytes(e);
        for (int32_t i = 0; i < step->spans; i++) bytes += kv_bytes(e, &step->span[i], l);
        if (!c->layer[l].moe) {
            bytes += 3 * matrix_bytes(e, c->hidden, c->dense_intermediate);
            continue;
        }
        const uint16_t *chosen = experts + moe_layer++ * e->runner.step_tokens * k;
        int64_t distinct = 0;
        memset(e->touched, 0, (size_t)c->gate.experts);
        for (int64_t i = 0; i < step->tokens * k; i++) {
            distinct += !e->touched[chosen[i]];
            e->touched[chosen[i]] = 1;
        }
        bytes += (uint64_t)distinct * 3 * matrix_bytes(e, c->hidden, c->moe_intermediate) +
                 3 * matrix_bytes(e, c->hidden, c->shared_intermediate) +
                 (uint64_t)(c->hidden * c->gate.experts) * sizeof(float);
    }
    return bytes;
}

/* ---- gathering ---- */

static cot_status allocate(cot_stats *s, int ranks, cot_error *error)
{
    *s = (cot_stats){.ranks = ranks};
    bool failed = false;
    for (int p = 0; p < COT_STATS_PHASES; p++) {
        s->bytes[p] = calloc((size_t)(ranks * ranks), sizeof **s->bytes);
        s->messages[p] = calloc((size_t)(ranks * ranks), sizeof **s->messages);
        failed |= !s->bytes[p] || !s->messages[p];
    }
    return failed ? cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the counters of %d ranks", ranks)
                  : COT_OK;
}

static void add_rank(cot_stats *s, int rank, const cot_rank_stats *r, uint64_t *tokens, uint64_t *remote)
{
    const struct {
        const char *name;
        int64_t ns;
    } times[COT_STATS_TIMES] = {{"attention", r->attention_ns}, {"allreduce", r->reduce_ns},
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
    s->activations += r->activations;
    s->local_activations += r->local;
    *tokens += r->tokens;
    *remote += r->remote_ranks;
}

cot_status cot_engine_stats(cot_engine *e, cot_stats *s, cot_error *error)
{
    int ranks = e->info.ranks;
    uint64_t tokens = 0, remote = 0;
    if (e->failed)
        return cot_fail(error, COT_PEER_FAILED, "an earlier step failed: the engine must be closed");
    cot_rank_stats *gathered = calloc((size_t)ranks, sizeof *gathered);
    cot_status status = allocate(s, ranks, error);
    if (status == COT_OK && !gathered)
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the counters");
    if (status == COT_OK) status = cot_group_stats(e->group, gathered, error);
    for (int rank = 0; rank < ranks && status == COT_OK; rank++)
        add_rank(s, rank, &gathered[rank], &tokens, &remote);
    free(gathered);
    if (status != COT_OK) {
        cot_stats_clear(s);
        return status;
    }
    s->lar = s->activations ? (double)s->local_activations / (double)s->activations : 0;
    s->remote_ranks = tokens ? (double)remote / (double)tokens : 0;
    s->prefill_tokens = e->prefill_tokens;
    s->decode_tokens = e->decode_tokens;
    s->prefill_ns = e->prefill_ns;
    s->decode_ns = e->decode_ns;
    s->last_step_ns = e->last_step_ns;
    s->steps = e->steps;
    s->prefill_read_bytes = e->prefill_read_bytes;
    s->decode_read_bytes = e->decode_read_bytes;
    return COT_OK;
}

void cot_stats_clear(cot_stats *s)
{
    for (int p = 0; p < COT_STATS_PHASES; p++) {
        free(s->bytes[p]);
        free(s->messages[p]);
    }
    *s = (cot_stats){0};
}
