#include "engine/profiles.h"

#include "base/error.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RESERVOIR = 4096 }; // whole tokens that are kept

static int64_t nodes_of(const cot_scheduler_limits *limits)
{
    return limits->block ? limits->pages * (COT_KV_PAGE / limits->block) : 0;
}

size_t cot_profiles_bytes(const cot_profiles_options *o, const cot_scheduler_limits *limits)
{
    cot_signature_shape shape;
    if (!o->n_layers || cot_signature_shape_of(&shape, o->n_layers, o->n_experts, o->top_k, NULL) != COT_OK)
        return 0;
    const size_t cells = (size_t)o->n_layers * (size_t)o->n_experts;
    return (size_t)nodes_of(limits) * (size_t)shape.cells + (size_t)limits->homes * cells * sizeof(double) +
           RESERVOIR * (size_t)o->n_layers * (size_t)o->top_k * sizeof(uint16_t);
}

cot_status cot_profiles_open(cot_profiles *p, const cot_profiles_options *o, cot_scheduler *scheduler,
                             cot_error *error)
{
    const cot_scheduler_limits *limits = &scheduler->limits;
    *p = (cot_profiles){.options = *o, .scheduler = scheduler};
    if (!o->n_layers) return COT_OK;
    const double half_life_tokens = o->half_life_seconds > 0 ? 0 : o->half_life_tokens / o->every;
    const cot_popularity_options options = {.n_layers = o->n_layers,
                                            .n_experts = o->n_experts,
                                            .top_k = o->top_k,
                                            .n_homes = limits->homes,
                                            .half_life_tokens = half_life_tokens, // of those counted
                                            .half_life_seconds = o->half_life_seconds,
                                            .reservoir = RESERVOIR};
    cot_status status = cot_popularity_open(&p->popularity, &options, error);
    if (status == COT_OK)
        status = cot_signature_shape_of(&p->shape, o->n_layers, o->n_experts, o->top_k, error);
    if (status != COT_OK || !limits->block) return status;
    p->of_node = calloc((size_t)nodes_of(limits) + 1, (size_t)p->shape.cells);
    p->nodes = calloc((size_t)(limits->step_tokens / limits->block) + 2, sizeof *p->nodes);
    return p->of_node && p->nodes
               ? COT_OK
               : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for signatures of %lld blocks",
                          (long long)nodes_of(limits));
}

void cot_profiles_close(cot_profiles *p)
{
    cot_popularity_close(&p->popularity);
    free(p->of_node);
    free(p->nodes);
    *p = (cot_profiles){0};
}

/* ---- a request ---- */

size_t cot_profile_bytes(const cot_profiles *p)
{
    return 3 * (size_t)p->shape.cells;
}

void cot_profile_begin(cot_profile *profile, const cot_profiles *p, void *memory)
{
    const size_t cells = (size_t)p->shape.cells;
    memset(memory, 0, cot_profile_bytes(p));
    *profile = (cot_profile){memory, (uint8_t *)memory + cells, (uint8_t *)memory + 2 * cells, 0};
}

static uint8_t *signature_of(const cot_profiles *p, int32_t node)
{
    return p->of_node + (size_t)node * (size_t)p->shape.cells;
}

/* The prompt was fed or found. */
static void take_prompt(const cot_profiles *p, cot_profile *profile)
{
    memcpy(profile->prompt, profile->text, (size_t)p->shape.cells);
}

void cot_profiles_admit(const cot_profiles *p, cot_profile *profile, const cot_request_state *r)
{
    const size_t cells = (size_t)p->shape.cells;
    if (!cells) return;
    if (r->node >= 0)
        memcpy(profile->text, signature_of(p, r->node), cells);
    else
        memset(profile->text, 0, cells);
    if (profile->counted < r->fed) { // what was found is in no step of this request
        profile->counted = r->fed;
        if (r->fed >= r->text_begin) take_prompt(p, profile);
    }
}

/* Its blocks that this span completed, the last first: nodes. */
static int64_t list_new_blocks(const cot_profiles *p, const cot_request_state *r, const cot_span *span)
{
    const int64_t block = p->scheduler->limits.block;
    int64_t count = 0;
    for (int32_t node = r->node; block && node >= 0 && (r->blocks - count) * block > span->position;
         node = p->scheduler->prefix.node[node].parent)
        p->nodes[count++] = node;
    return count;
}

void cot_profiles_want(const cot_profiles *p, cot_step *step, int64_t number)
{
    const int32_t every = p->options.every;
    step->routed_every = every;
    step->routed_first = (int32_t)(cot_random_bits(0, 0, (uint64_t)number) % (uint64_t)every);
}

void cot_profiles_feed(cot_profiles *p, cot_profile *profile, const cot_request_state *r,
                       const cot_step *step, const cot_span *span, int64_t token, const uint16_t *experts,
                       int64_t stride)
{
    if (!experts) return; // nothing is counted
    const int64_t K = p->options.top_k, block = p->scheduler->limits.block,
                  count = list_new_blocks(p, r, span);
    const int32_t home = span->home % p->scheduler->limits.homes;
    for (int64_t i = 0; i < span->tokens; i++) {
        const int64_t position = span->position + i, end = position + 1;
        if (cot_step_wants_routing(step, token + i)) {
            const uint16_t *chosen = experts + (token + i) * K;
            cot_popularity_add(&p->popularity, home, chosen, stride * K);
            cot_signature_add(profile->text, &p->shape, chosen, stride * K);
            if (position >= r->text_begin && position >= profile->counted)
                cot_signature_add(profile->answer, &p->shape, chosen, stride * K);
        }
        if (end == r->text_begin && end > profile->counted) take_prompt(p, profile);
        const int64_t back = block && end % block == 0 ? r->blocks - end / block : count;
        if (back >= 0 && back < count) // below 0 where the request has no blocks any more
            memcpy(signature_of(p, p->nodes[back]), profile->text, (size_t)p->shape.cells);
    }
    if (profile->counted < span->position + span->tokens) profile->counted = span->position + span->tokens;
}

/* The sequence hash of the prompt's last whole block. */
static uint64_t hash_of_prompt(const cot_request_state *r, int64_t block, int64_t blocks)
{
    uint64_t hash = r->salt ? cot_cache_salt_hash(r->salt->data, r->salt->bytes) : 0;
    for (int64_t b = 0; b < blocks; b++) {
        const uint64_t local = cot_cache_local_hash(r->tokens + b * block, (size_t)block);
        hash = b || r->salt ? cot_cache_sequence_hash(hash, local) : local;
    }
    return hash;
}

void cot_profiles_finish(const cot_profiles *p, const cot_profile *profile, const cot_request_state *r,
                         uint64_t epoch)
{
    if (!p->watch.on_profile || !p->shape.cells || profile->counted < r->text_begin) return;
    const int64_t block = p->scheduler->limits.block, blocks = block ? r->text_begin / block : 0;
    const cot_profile_told told = {.home = r->home % p->scheduler->limits.homes,
                                   .epoch = epoch,
                                   .has_block = blocks > 0,
                                   .block_hash = blocks ? hash_of_prompt(r, block, blocks) : 0,
                                   .cells = p->shape.cells,
                                   .prompt = profile->prompt,
                                   .answer = profile->answer};
    p->watch.on_profile(p->watch.context, &told);
}

const uint8_t *cot_profiles_find(const cot_profiles *p, const cot_request *request)
{
    const cot_scheduler *s = p->scheduler;
    int64_t most = 0;
    int32_t best = -1;
    for (int home = 0; p->of_node && home < s->limits.homes; home++) {
        const cot_prefix_root root = {
            .home = home, .salt = request->cache_salt, .salt_bytes = request->cache_salt_bytes};
        int64_t blocks;
        const int32_t node =
            cot_prefix_match(&s->prefix, &root, request->prompt, request->prompt_tokens, &blocks);
        if (blocks <= most) continue;
        most = blocks;
        best = node;
    }
    return best < 0 ? NULL : signature_of(p, best);
}

/* Fills in, of the layers that a signature keeps and that counted something, what a token that calls alike calls. False: none did. */
static bool expect_of(const cot_signature_shape *shape, uint8_t *share, const uint8_t *signature)
{
    bool any = false;
    for (int32_t l = 0; l < shape->kept; l++) {
        const uint8_t *count = signature + (int64_t)l * shape->n_experts;
        uint8_t *out = share + (int64_t)l * shape->every * shape->n_experts;
        int32_t sum = 0; // K a token
        for (int32_t e = 0; e < shape->n_experts; e++) sum += count[e];
        any |= sum > 0;
        const float each = sum ? (float)(shape->top_k * UINT8_MAX) / (float)sum : 0;
        for (int32_t e = 0; sum && e < shape->n_experts; e++)
            out[e] = (uint8_t)(fminf(each * (float)count[e], UINT8_MAX) + 0.5f);
    }
    return any;
}

bool cot_profiles_expect(const cot_profiles *p, uint8_t *share, const cot_request *request)
{
    const uint8_t *signature = cot_profiles_find(p, request);
    return signature && expect_of(&p->shape, share, signature);
}

void cot_profiles_go_on(const cot_profiles *p, const cot_profile *profile, cot_request_state *r,
                        const cot_span *span)
{
    const bool was_told =
        span->position >= r->prompt_tokens && r->fed / COT_PROFILE_TOLD == span->position / COT_PROFILE_TOLD;
    if (!p->shape.cells || r->fed < r->prompt_tokens || was_told) return;
    const bool known = r->share;
    uint8_t *share = cot_scheduler_retell(p->scheduler, r);
    if (!share) return;
    const int32_t L = p->options.n_layers, E = p->options.n_experts, K = p->options.top_k;
    if (!known) memset(share, (K * UINT8_MAX + E / 2) / E, (size_t)L * (size_t)E);
    expect_of(&p->shape, share, profile->text);
}
