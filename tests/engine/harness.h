/* Runs of an engine with everything that it tells kept, to be compared. */
#ifndef COT_TESTS_ENGINE_HARNESS_H
#define COT_TESTS_ENGINE_HARNESS_H
#include "coterie/engine.h"
#include "coterie/eval.h"
#include "coterie/model.h"
#include "test_seed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TINY COT_SOURCE "/models/tiny"

enum { SKIPPED = 77 };

static inline void *must_allocate(size_t n, size_t bytes)
{
    void *memory = calloc(n ? n : 1, bytes);
    assert_non_null(memory);
    return memory;
}

static inline bool folder_exists(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

/* For a main without the golden folders. */
static inline bool golden_absent(const char *test)
{
    if (folder_exists(COT_SHARED "/golden")) return false;
    printf("SKIPPED: %s: there is no '%s'\n", test, COT_SHARED "/golden");
    return true;
}

static inline void golden_path(char path[1024], const char *name, const char *file)
{
    assert_true(snprintf(path, 1024, COT_SHARED "/golden/%s%s%s", name, file ? "/" : "", file ? file : "") <
                1024);
}

/* ---- an engine ---- */

struct setting {
    const char *folder;
    int ranks, threads;
    const char *attention, *precision, *isa, *op, *combine;
    int64_t step_tokens, kv_tokens;
    int sequences;
    bool processes, quiet; // quiet: routing is not captured
    const cot_expert_map *placement;
    int32_t expert_slots;
};

static inline cot_engine_options options_of(const struct setting *s)
{
    cot_engine_options o;
    cot_engine_options_init(&o);
    o.ranks = s->ranks ? s->ranks : 1;
    o.threads = s->threads;
    if (s->attention) o.attention = s->attention;
    o.precision = s->precision ? s->precision : "fp32";
    o.isa = s->isa;
    o.op = s->op;
    if (s->combine) o.combine = s->combine;
    if (s->step_tokens) o.step_tokens = s->step_tokens;
    o.kv_tokens = s->kv_tokens;
    if (s->sequences) o.sequences = s->sequences;
    o.fabric = s->processes ? "processes" : NULL;
    o.capture_routing = !s->quiet;
    o.placement = s->placement;
    o.expert_slots = s->expert_slots;
    return o;
}

static inline cot_engine *must_open(const struct setting *s)
{
    cot_engine_options options = options_of(s);
    cot_engine *engine;
    cot_error error = {0};
    char *notes;
    fflush(stdout); // a forked rank may flush its copy, too
    if (cot_engine_open(&engine, s->folder, &options, &notes, &error) != COT_OK)
        fail_msg("%s", error.message);
    free(notes);
    return engine;
}

/* ---- what a run tells ---- */

struct record {
    int64_t capacity;                    // positions that the sequence can come to
    float *logits;                       // [capacity][V] by position
    uint8_t *logits_told, *routing_told; // [capacity] how often
    uint16_t *experts;                   // [capacity][MoE layers][K]
    float *weights;
    int32_t *fed;     // [capacity] as on_routing names them
    int32_t *sampled; // [capacity]
    int64_t sampled_tokens;
    int finishes; // how often on_finish came
    cot_finish finish;
};

struct records {
    const cot_engine_info *info;
    size_t count;
    struct record *record;
    int64_t stop_after; // on_token returns false at that many tokens; 0: never
};

static inline size_t routed(const cot_engine_info *info)
{
    return (size_t)(info->moe_layers * info->top_k);
}

static inline bool keep_token(void *context, uint64_t request, int32_t token)
{
    struct records *all = context;
    assert_true(request < all->count);
    struct record *r = &all->record[request];
    assert_int_equal(r->finishes, 0);
    assert_true(r->sampled_tokens < r->capacity && token >= 0 && token < all->info->vocab);
    r->sampled[r->sampled_tokens++] = token;
    return !all->stop_after || r->sampled_tokens < all->stop_after;
}

static inline void keep_logits(void *context, uint64_t request, int64_t position, const float *logits)
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

static inline void keep_routing(void *context, uint64_t request, int64_t position, int32_t token,
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

static inline void keep_finish(void *context, uint64_t request, cot_finish finish)
{
    struct records *all = context;
    assert_true(request < all->count);
    all->record[request].finishes++;
    all->record[request].finish = finish;
}

static inline void records_free(struct records *all)
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

/* Room for what `requests` will tell; poisoned, so that what is not told cannot look right. */
static inline struct records records_new(const cot_engine *engine, const cot_request *requests, size_t count)
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

static inline cot_events events_of(struct records *all)
{
    return (cot_events){.context = all,
                        .on_token = keep_token,
                        .on_logits = keep_logits,
                        .on_routing = keep_routing,
                        .on_finish = keep_finish};
}

static inline struct records must_run(cot_engine *engine, const cot_request *requests, size_t count)
{
    struct records all = records_new(engine, requests, count);
    cot_events events = events_of(&all);
    cot_error error = {0};
    if (cot_engine_run(engine, requests, count, &events, NULL, &error) != COT_OK)
        fail_msg("%s", error.message);
    for (size_t i = 0; i < count; i++) assert_int_equal(all.record[i].finishes, 1);
    return all;
}

/* Opens, runs, closes. `all.info` is gone afterwards but for what `info` copies. */
static inline struct records run_once(const struct setting *s, const cot_request *requests, size_t count,
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

/* Every token of a request with all_logits was told once, with the right id. */
static inline void assert_told_once(const struct records *all, size_t i, const cot_request *q, bool captured)
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

/* ---- requests ---- */

/* The whole sequence is fed: `prefill` tokens at once, the others one at a time. */
static inline cot_request forced_request(const int32_t *ids, int64_t tokens, int64_t prefill)
{
    return (cot_request){.prompt = ids,
                         .prompt_tokens = prefill,
                         .forced = ids + prefill,
                         .forced_tokens = tokens - prefill,
                         .all_logits = true};
}

static inline uint64_t draw(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* A placement of the folder's experts, each in one to three slots of any ranks: some ranks have many, some none, some
 * slots stay empty, an expert may be twice on a rank. */
static inline cot_expert_map drawn_placement(const char *folder, int ranks, uint64_t *state)
{
    cot_model_info info;
    cot_expert_map map;
    cot_error error;
    if (cot_model_describe(&info, folder, &error) != COT_OK) fail_msg("%s", error.message);
    const int32_t L = (int32_t)info.moe_layers, E = (int32_t)info.experts, slots = 3 * E;
    if (cot_expert_map_new(&map, L, E, ranks, slots, &error) != COT_OK) fail_msg("%s", error.message);
    for (int32_t l = 0; l < L; l++) {
        int32_t *row = map.expert + l * ranks * slots;
        map.layers[l] = info.moe_layer[l];
        for (int32_t e = 0; e < E; e++)
            for (uint64_t copies = 1 + draw(state) % 3; copies; copies--) {
                int32_t *rank = row + (int32_t)(draw(state) % (uint64_t)ranks) * slots, i = 0;
                while (rank[i] >= 0) i++;
                if (i + 1 < slots && draw(state) % 8 == 0) i += rank[i + 1] < 0; // leaves a hole
                rank[i] = e;
            }
    }
    cot_model_info_clear(&info);
    return map;
}

static inline int32_t *drawn_ids(int64_t n, int64_t vocab, uint64_t *state)
{
    int32_t *ids = must_allocate((size_t)n, sizeof *ids);
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(draw(state) % (uint64_t)vocab);
    return ids;
}

#endif
