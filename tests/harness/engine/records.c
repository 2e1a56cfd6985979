#include "harness/engine/records.h"

#include "harness/cmocka.h"
#include "harness/memory.h"

#include <stdlib.h>
#include <string.h>

size_t routed(const cot_engine_info *info)
{
    return (size_t)(info->moe_layers * info->top_k);
}

static bool keep_token(void *context, uint64_t request, int32_t token)
{
    struct records *all = context;
    assert_true(request < all->count);
    struct record *r = &all->record[request];
    assert_int_equal(r->finishes, 0);
    assert_true(r->sampled_tokens < r->capacity && token >= 0 && token < all->info->vocab);
    r->sampled[r->sampled_tokens++] = token;
    return !all->stop_after || r->sampled_tokens < all->stop_after;
}

static void keep_logits(void *context, uint64_t request, int64_t position, const float *logits)
{
    struct records *all = context;
    assert_true(request < all->count);
    struct record *r = &all->record[request];
    assert_int_equal(r->finishes, 0);
    assert_true(position >= 0 && position < r->capacity);
    size_t vocab = (size_t)all->info->vocab;
    memcpy(r->logits + (size_t)position * vocab, logits, vocab * sizeof *logits);
    r->logits_told[position]++;
}

static void keep_routing(void *context, uint64_t request, int64_t position, int32_t token,
                         const uint16_t *experts, const float *weights)
{
    struct records *all = context;
    assert_true(request < all->count);
    struct record *r = &all->record[request];
    assert_int_equal(r->finishes, 0);
    assert_true(position >= 0 && position < r->capacity);
    size_t n = routed(all->info), from = (size_t)position * n;
    memcpy(r->experts + from, experts, n * sizeof *experts);
    memcpy(r->weights + from, weights, n * sizeof *weights);
    r->fed[position] = token;
    r->routing_told[position]++;
}

static void keep_finish(void *context, uint64_t request, cot_finish finish)
{
    struct records *all = context;
    assert_true(request < all->count);
    all->record[request].finishes++;
    all->record[request].finish = finish;
}

void records_free(struct records *all)
{
    for (size_t i = 0; i < all->count; i++) {
        struct record *r = &all->record[i];
        void *owned[] = {r->logits,  r->logits_told, r->routing_told, r->experts,
                         r->weights, r->fed,         r->sampled};
        for (size_t j = 0; j < sizeof owned / sizeof *owned; j++) free(owned[j]);
    }
    free(all->record);
    *all = (struct records){0};
}

struct records records_new(const cot_engine *engine, const cot_request *requests, size_t count)
{
    struct records all = {.info = cot_engine_describe(engine), .count = count};
    all.record = must_allocate(count, sizeof *all.record);
    for (size_t i = 0; i < count; i++) {
        struct record *r = &all.record[i];
        const cot_request *q = &requests[i];
        int64_t more = q->forced ? q->forced_tokens : q->sampling.max_tokens,
                context = all.info->context_tokens;
        r->capacity = more < context - q->prompt_tokens ? q->prompt_tokens + more : context;
        size_t n = (size_t)r->capacity, vocab = (size_t)all.info->vocab, each = routed(all.info);
        r->logits = must_allocate(n * vocab, sizeof *r->logits);
        memset(r->logits, 0xff, n * vocab * sizeof *r->logits);
        r->experts = must_allocate(n * each, sizeof *r->experts);
        memset(r->experts, 0xff, n * each * sizeof *r->experts);
        r->weights = must_allocate(n * each, sizeof *r->weights);
        memset(r->weights, 0xff, n * each * sizeof *r->weights);
        r->logits_told = must_allocate(n, 1);
        r->routing_told = must_allocate(n, 1);
        r->fed = must_allocate(n, sizeof *r->fed);
        r->sampled = must_allocate(n, sizeof *r->sampled);
    }
    return all;
}

cot_events events_of(struct records *all)
{
    return (cot_events){.context = all,
                        .on_token = keep_token,
                        .on_logits = keep_logits,
                        .on_routing = keep_routing,
                        .on_finish = keep_finish};
}

struct records must_run(cot_engine *engine, const cot_request *requests, size_t count)
{
    struct records all = records_new(engine, requests, count);
    cot_events events = events_of(&all);
    cot_error error = {0};
    if (cot_engine_run(engine, requests, count, &events, NULL, &error) != COT_OK)
        fail_msg("%s", error.message);
    for (size_t i = 0; i < count; i++) assert_int_equal(all.record[i].finishes, 1);
    return all;
}

struct records run_once(const struct setting *s, const cot_request *requests, size_t count,
                        cot_engine_info *info)
{
    cot_engine *engine = must_open(s);
    struct records all = must_run(engine, requests, count);
    *info = *all.info;
    info->moe_layer = NULL;
    all.info = info;
    cot_engine_close(engine);
    return all;
}

void assert_told_once(const struct records *all, size_t i, const cot_request *q, bool captured)
{
    const struct record *r = &all->record[i];
    assert_int_equal(r->capacity, q->prompt_tokens + q->forced_tokens);
    for (int64_t t = 0; t < r->capacity; t++) {
        assert_int_equal(r->logits_told[t], 1);
        assert_int_equal(r->routing_told[t], captured ? 1 : 0);
        if (captured)
            assert_int_equal(r->fed[t],
                             t < q->prompt_tokens ? q->prompt[t] : q->forced[t - q->prompt_tokens]);
    }
}
