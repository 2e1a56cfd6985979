/* Prints, as one line of digests each, all that an engine tells while it runs 200 drawn requests on 30 pages of KV cache:
 * admissions, tokens and their chances, logits, routing, ends, blocks that come and go, and what each step was. Two builds
 * whose lines are equal told the same, in the same order. Hashes of blocks are left out: ids say which block it is.
 *
 *     frozen_requests MODEL RANKS ATTENTION FABRIC SEED */
#include "coterie/coterie.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REQUESTS = 200, PAGES = 30, PAGE_TOKENS = 64, SEQUENCES = 12, TEXTS = 5, LONGEST = 400, AT_ONCE = 24 };

static uint64_t draw(uint64_t *state) // splitmix64
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static uint64_t digest(const void *data, size_t bytes) // FNV-1a
{
    const unsigned char *at = data;
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * 0x100000001b3;
    return hash;
}

struct watch {
    cot_engine *engine;
    const cot_engine_info *info;
    uint64_t state, last_id;
    int64_t told;
};

static void on_admit(void *context, uint64_t request, int64_t cached)
{
    (void)context;
    printf("admit %" PRIu64 " cached %" PRId64 "\n", request, cached);
}

static void on_sampled(void *context, uint64_t request, const cot_sampled *sampled)
{
    (void)context;
    uint64_t top = 0;
    for (size_t i = 0; i < sampled->top_count; i++)
        top = top * 31 + digest(&sampled->top[i].token, 4) + digest(&sampled->top[i].logprob, 4);
    printf("sampled %" PRIu64 " token %d ends %d logprob %a rank %d top %" PRIx64 "\n", request,
           sampled->token, sampled->ends, (double)sampled->logprob, sampled->rank, top);
}

static bool on_token(void *context, uint64_t request, int32_t token)
{
    struct watch *watch = context;
    cot_error error;
    printf("token %" PRIu64 " %d\n", request, token);
    if (++watch->told % 97 == 0) { // now and then somebody loses patience, with a request of any state
        const uint64_t id = 1 + draw(&watch->state) % watch->last_id;
        printf("cancel %" PRIu64 "\n", id);
        const cot_status status = cot_engine_cancel(watch->engine, id, &error);
        printf("cancelled %" PRIu64 " status %d\n", id, status);
    }
    return watch->told % 61 != 0;
}

static void on_logits(void *context, uint64_t request, int64_t position, const float *logits)
{
    const struct watch *watch = context;
    printf("logits %" PRIu64 " at %" PRId64 " %" PRIx64 "\n", request, position,
           digest(logits, (size_t)watch->info->vocab * sizeof *logits));
}

static void on_routing(void *context, uint64_t request, int64_t position, int32_t token,
                       const uint16_t *experts, const float *weights)
{
    const struct watch *watch = context;
    const size_t n = (size_t)(watch->info->moe_layers * watch->info->top_k);
    printf("routing %" PRIu64 " at %" PRId64 " of %d %" PRIx64 " %" PRIx64 "\n", request, position, token,
           digest(experts, n * sizeof *experts), digest(weights, n * sizeof *weights));
}

static void on_finish(void *context, uint64_t request, cot_finish finish)
{
    (void)context;
    printf("finish %" PRIu64 " %d\n", request, finish);
}

static void on_stored(void *context, const cot_cache_block *block)
{
    (void)context;
    printf("stored home %d first %d ids %" PRIx64 " tokens %zu salt %zu\n", block->home, block->is_first,
           digest(block->ids, block->tokens * sizeof *block->ids), block->tokens, block->salt_bytes);
}

static void on_removed(void *context, int home, uint64_t hash)
{
    (void)context;
    (void)hash;
    printf("removed home %d\n", home);
}

static void on_step(void *context, const cot_step_report *report)
{
    (void)context;
    printf("step %" PRId64 " sequences %" PRId64 " tokens %" PRId64 " prompt %" PRId64 " routing %" PRIx64
           " bytes %" PRIx64 "\n",
           report->step, report->sequences, report->tokens, report->prompt_tokens,
           digest(report->routing, (size_t)report->ranks * sizeof *report->routing),
           digest(report->bytes, sizeof report->bytes));
}

/* A request whose prompt begins with a part of one of a few texts, so that blocks are found again. */
static cot_status submit(struct watch *watch, int32_t text[TEXTS][LONGEST], cot_error *error)
{
    static const char *const salts[] = {NULL, NULL, NULL, "a", "bb"};
    uint64_t *state = &watch->state;
    int32_t prompt[LONGEST], stop[2];
    cot_request r;
    cot_request_init(&r);
    r.prompt_tokens = 1 + (int64_t)(draw(state) % (draw(state) % 4 ? 120 : LONGEST - 60));
    memcpy(prompt, text[draw(state) % TEXTS], sizeof prompt);
    for (int64_t i = r.prompt_tokens * (int64_t)(draw(state) % 5) / 4; i < r.prompt_tokens; i++)
        prompt[i] = (int32_t)(draw(state) % (uint64_t)watch->info->vocab);
    r.prompt = prompt;
    r.sampling.max_tokens = (int64_t)(draw(state) % 160);
    r.sampling.seed = draw(state);
    r.sampling.temperature = draw(state) % 3 ? 0.9 : 0;
    r.sampling.top_p = draw(state) % 2 ? 0.8 : 1;
    r.sampling.repetition_penalty = draw(state) % 3 ? 1 : 1.2;
    r.sampling.min_tokens = (int64_t)(draw(state) % 4);
    for (size_t i = 0; i < 2; i++) stop[i] = (int32_t)(draw(state) % (uint64_t)watch->info->vocab);
    r.sampling.stop_tokens = stop;
    r.sampling.stop_count = draw(state) % 3;
    r.logprobs = (int32_t)(draw(state) % 4) - 1;
    r.all_logits = draw(state) % 9 == 0;
    r.output_tokens = (int64_t)(draw(state) % 3) * (r.prompt_tokens / 4);
    r.cache_salt = salts[draw(state) % 5];
    r.cache_salt_bytes = r.cache_salt ? strlen(r.cache_salt) : 0;
    r.after = watch->last_id && draw(state) % 6 == 0 ? watch->last_id : 0;
    if (draw(state) % 10 == 0) { // a text that is known
        r.forced = text[draw(state) % TEXTS];
        r.forced_tokens = 1 + (int64_t)(draw(state) % 20);
        r.output_tokens = 0;
    }
    const int homes = watch->info->kv_homes;
    const int home = draw(state) % 2 ? COT_HOME_ANY : (int)(draw(state) % (uint64_t)homes);
    const cot_events events = {.context = watch,
                               .on_admit = on_admit,
                               .on_sampled = on_sampled,
                               .on_token = on_token,
                               .on_logits = on_logits,
                               .on_routing = on_routing,
                               .on_finish = on_finish};
    uint64_t id = 0;
    const cot_status status = cot_engine_submit(watch->engine, &id, &r, home, &events, error);
    printf("submit %" PRIu64 " of %" PRId64 " home %d status %d\n", id, r.prompt_tokens, home, status);
    if (id) watch->last_id = id;
    return COT_OK;
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: frozen_requests MODEL RANKS ATTENTION FABRIC SEED\n");
        return 2;
    }
    static int32_t text[TEXTS][LONGEST];
    struct watch watch = {.state = strtoull(argv[5], NULL, 10)};
    cot_error error = {0};
    cot_engine_options options;
    cot_engine_options_init(&options);
    options.group.ranks = atoi(argv[2]);
    options.attention.mode = argv[3];
    options.group.fabric = argv[4];
    options.weights.precision = "fp32";
    options.watch.capture_routing = true;
    options.memory.kv_tokens =
        (PAGES - SEQUENCES) * PAGE_TOKENS; // the engine adds a page for each sequence's last one
    options.memory.block_tokens = 16;
    options.batch.step_tokens = 96;
    options.batch.sequences = SEQUENCES;
    cot_status status = cot_engine_open(&watch.engine, argv[1], &options, NULL, &error);
    if (status != COT_OK) {
        fprintf(stderr, "frozen_requests: %s\n", error.message);
        return 1;
    }
    watch.info = cot_engine_describe(watch.engine);
    for (int i = 0; i < TEXTS; i++)
        for (int t = 0; t < LONGEST; t++)
            text[i][t] = (int32_t)(draw(&watch.state) % (uint64_t)watch.info->vocab);
    const cot_cache_events cache = {.on_stored = on_stored, .on_removed = on_removed};
    const cot_step_events steps = {.on_step = on_step};
    cot_engine_watch_cache(watch.engine, &cache);
    cot_engine_watch_steps(watch.engine, &steps);
    size_t left = 0;
    for (int submitted = 0; status == COT_OK && (submitted < REQUESTS || left);) {
        while (status == COT_OK && submitted < REQUESTS && left < AT_ONCE &&
               (left < 4 || draw(&watch.state) % 3)) {
            status = submit(&watch, text, &error);
            left++;
            submitted++;
        }
        if (status == COT_OK) status = cot_engine_step(watch.engine, &left, &error);
    }
    cot_engine_load load;
    cot_engine_get_load(watch.engine, &load);
    printf("load queried %" PRIu64 " hit %" PRIu64 " preempted %" PRIu64 " evicted %" PRIu64 " steps %" PRId64
           " waited %" PRIu64 " free %" PRId64 " blocks %" PRId64 "\n",
           load.queried_tokens, load.hit_tokens, load.preemptions, load.evicted_blocks, load.steps,
           load.waited_steps, load.kv_pages_free, load.cached_blocks);
    cot_engine_close(watch.engine);
    if (status != COT_OK) fprintf(stderr, "frozen_requests: %s\n", error.message);
    return status != COT_OK;
}
