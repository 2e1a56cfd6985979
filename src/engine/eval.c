#include "coterie/eval.h"

#include "base/error.h"
#include "base/safetensors.h"
#include "engine/memory.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cot_eval_set {
    cot_safetensors file;
    cot_eval_sequence *sequences;
    size_t count;
};

/* ---- reading ---- */

/* Integers of either width; the caller frees. */
static cot_status read_integers(int32_t **out, const cot_tensor *t, const char *path, cot_error *error)
{
    int64_t n = cot_tensor_elements(t);
    if ((t->dtype != COT_I32 && t->dtype != COT_I64) || t->dims != 1)
        return cot_fail(error, COT_MALFORMED,
                        "'%s': '%s' is %s with %d dimensions, expected I32 or I64 with 1", path, t->name,
                        cot_dtype_name(t->dtype), t->dims);
    *out = malloc(((size_t)n + 1) * sizeof **out);
    if (!*out) return cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory", path);
    if (t->dtype == COT_I32 && n) memcpy(*out, t->data, t->bytes);
    for (int64_t i = 0; i < n && t->dtype == COT_I64; i++) {
        int64_t wide;
        memcpy(&wide, (const uint8_t *)t->data + 8 * i, 8);
        if (wide < INT32_MIN || wide > INT32_MAX) {
            free(*out);
            *out = NULL;
            return cot_fail(error, COT_MALFORMED, "'%s': '%s' holds %" PRId64 ", no token id", path, t->name,
                            wide);
        }
        (*out)[i] = (int32_t)wide;
    }
    return COT_OK;
}

static cot_status read_sequence(cot_eval_set *set, const cot_tensor *ids, const char *path, cot_error *error)
{
    cot_eval_sequence *s = &set->sequences[set->count];
    *s = (cot_eval_sequence){.name = ids->name + strlen("ids."), .tokens = cot_tensor_elements(ids)};
    s->prefill_tokens = s->tokens;
    int32_t *values = NULL;
    cot_status status = read_integers(&values, ids, path, error);
    if (status != COT_OK) return status;
    s->ids = values;
    set->count++;
    char *name;
    if (asprintf(&name, "prefill_tokens.%s", s->name) < 0)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    const cot_tensor *prefill = cot_safetensors_find(&set->file, name);
    free(name);
    if (prefill) {
        int32_t *length;
        status = read_integers(&length, prefill, path, error);
        if (status != COT_OK) return status;
        s->prefill_tokens = cot_tensor_elements(prefill) == 1 ? length[0] : -1;
        free(length);
    }
    if (s->prefill_tokens >= 1 && s->prefill_tokens <= s->tokens) return COT_OK;
    return cot_fail(error, COT_MALFORMED,
                    "'%s': sequence '%s' has %" PRId64 " tokens, %" PRId64 " of them to prefill", path,
                    s->name, s->tokens, s->prefill_tokens);
}

cot_status cot_eval_set_open(cot_eval_set **out, const char *path, cot_error *error)
{
    cot_eval_set *set = *out = calloc(1, sizeof *set);
    if (!set) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    cot_status status = cot_safetensors_open(&set->file, path, error);
    if (status == COT_OK && !(set->sequences = calloc(set->file.count + 1, sizeof *set->sequences)))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    for (size_t i = 0; i < set->file.count && status == COT_OK; i++)
        if (!strncmp(set->file.tensors[i].name, "ids.", 4))
            status = read_sequence(set, &set->file.tensors[i], path, error);
    if (status == COT_OK && !set->count)
        status = cot_fail(error, COT_MALFORMED, "'%s' holds no 'ids.NAME'", path);
    if (status != COT_OK) {
        cot_eval_set_close(set);
        *out = NULL;
    }
    return status;
}

void cot_eval_set_close(cot_eval_set *set)
{
    if (!set) return;
    for (size_t i = 0; i < set->count; i++) free((void *)(uintptr_t)set->sequences[i].ids);
    free(set->sequences);
    cot_safetensors_close(&set->file);
    free(set);
}

const cot_eval_sequence *cot_eval_set_sequences(const cot_eval_set *set, size_t *count)
{
    *count = set->count;
    return set->sequences;
}

/* ---- running ---- */

/* What one sequence leaves behind when it is written. */
struct record {
    float *logits;    // [T][V]
    int32_t *experts; // [MoE layers][T][K]
    float *weights;
};

struct evaluation {
    const cot_engine_info *info;
    const cot_eval_sequence *sequences;
    struct record *records; // NULL when nothing is written
    double *nats;
    void (*on_routing)(void *, size_t, int64_t, int32_t, const uint16_t *, const float *);
    void *context;
};

/* -log softmax(logits)[target], in double. */
static double loss(const float *logits, int64_t vocab, int32_t target)
{
    float best = logits[0];
    for (int64_t v = 1; v < vocab; v++)
        if (logits[v] > best) best = logits[v];
    double sum = 0;
    for (int64_t v = 0; v < vocab; v++) sum += exp((double)logits[v] - best);
    return log(sum) + best - logits[target];
}

static void take_logits(void *context, uint64_t request, int64_t position, const float *logits)
{
    struct evaluation *e = context;
    const cot_eval_sequence *s = &e->sequences[request];
    if (position >= s->unscored && position + 1 < s->tokens)
        e->nats[request] +=
            loss(logits, e->info->vocab, s->ids[position + 1]) / (double)(s->tokens - 1 - s->unscored);
    if (e->records)
        memcpy(e->records[request].logits + position * e->info->vocab, logits,
               (size_t)e->info->vocab * sizeof *logits);
}

static void take_routing(void *context, uint64_t request, int64_t position, int32_t token,
                         const uint16_t *experts, const float *weights)
{
    struct evaluation *e = context;
    int64_t k = e->info->top_k, tokens = e->sequences[request].tokens;
    for (int64_t l = 0; e->records && l < e->info->moe_layers; l++)
        for (int64_t i = 0; i < k; i++) {
            e->records[request].experts[(l * tokens + position) * k + i] = experts[l * k + i];
            e->records[request].weights[(l * tokens + position) * k + i] = weights[l * k + i];
        }
    if (e->on_routing) e->on_routing(e->context, request, position, token, experts, weights);
}

/* A tensor over `data` named "WHAT.q" or, with layer >= 0, "WHAT.q.L". */
static bool add_tensor(cot_tensor *t, const char *what, const char *q, int64_t layer, cot_dtype type,
                       const void *data, int64_t rows, int64_t columns)
{
    char *name;
    int length =
        layer < 0 ? asprintf(&name, "%s.%s", what, q) : asprintf(&name, "%s.%s.%" PRId64, what, q, layer);
    if (length < 0) return false;
    *t = (cot_tensor){.name = name,
                      .dtype = type,
                      .dims = 2,
                      .shape = {rows, columns},
                      .data = data,
                      .bytes = (size_t)(rows * columns) * cot_dtype_bytes(type)};
    return true;
}

static cot_status write_records(const struct evaluation *e, size_t count, const char *output,
                                cot_error *error)
{
    size_t tensors = 0, layers = (size_t)e->info->moe_layers;
    cot_tensor *list = calloc(count * (1 + 2 * layers) + 1, sizeof *list);
    bool good = list != NULL;
    for (size_t i = 0; i < count && good; i++) {
        const cot_eval_sequence *s = &e->sequences[i];
        int64_t k = e->info->top_k;
        good = add_tensor(&list[tensors], "logits", s->name, -1, COT_F32, e->records[i].logits, s->tokens,
                          e->info->vocab);
        tensors += good;
        for (size_t l = 0; l < layers && good; l++) {
            int64_t layer = e->info->moe_layer[l], from = (int64_t)l * s->tokens * k;
            good = add_tensor(&list[tensors], "experts", s->name, layer, COT_I32,
                              e->records[i].experts + from, s->tokens, k);
            tensors += good;
            if (good)
                good = add_tensor(&list[tensors], "weights", s->name, layer, COT_F32,
                                  e->records[i].weights + from, s->tokens, k);
            tensors += good;
        }
    }
    cot_status status = good ? cot_safetensors_write(output, list, tensors, NULL, 0, error)
                             : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for '%s'", output);
    for (size_t i = 0; i < tensors; i++) free((void *)(uintptr_t)list[i].name);
    free(list);
    return status;
}

static cot_status allocate(struct evaluation *e, size_t count, cot_error *error)
{
    size_t token_bytes = (size_t)e->info->vocab * sizeof(float) +
                         (size_t)(e->info->moe_layers * e->info->top_k) * (sizeof(int32_t) + sizeof(float));
    double needed = 0, available = (double)cot_memory_available();
    for (size_t i = 0; i < count; i++) needed += (double)e->sequences[i].tokens * (double)token_bytes;
    if (needed > available)
        return cot_fail(error, COT_OUT_OF_MEMORY, "the logits need %.2f GB of memory, %.2f GB are available",
                        needed / 1e9, available / 1e9);
    e->records = calloc(count + 1, sizeof *e->records);
    bool failed = !e->records;
    for (size_t i = 0; i < count && !failed; i++) {
        size_t tokens = (size_t)e->sequences[i].tokens,
               routed = (size_t)(e->info->moe_layers * e->info->top_k) * tokens + 1;
        e->records[i].logits = malloc(tokens * (size_t)e->info->vocab * sizeof(float));
        e->records[i].experts = malloc(routed * sizeof(int32_t));
        e->records[i].weights = malloc(routed * sizeof(float));
        failed = !e->records[i].logits || !e->records[i].experts || !e->records[i].weights;
    }
    return failed ? cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the logits of %zu sequences", count)
                  : COT_OK;
}

static void name_sequence(const cot_eval_sequence *sequence, cot_error *error)
{
    if (!error) return;
    cot_error detail = *error;
    cot_fail(error, detail.status, "sequence '%s': %s", sequence->name, detail.message);
}

cot_status cot_eval_run(cot_engine *engine, const cot_eval_sequence *sequences, size_t count,
                        const char *output, double *nats,
                        void (*on_routing)(void *context, uint64_t request, int64_t position, int32_t token,
                                           const uint16_t *experts, const float *weights),
                        void *context, cot_error *error)
{
    struct evaluation e = {.info = cot_engine_describe(engine),
                           .sequences = sequences,
                           .nats = nats,
                           .on_routing = on_routing,
                           .context = context};
    cot_request *requests = calloc(count + 1, sizeof *requests);
    cot_status status =
        requests ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %zu sequences", count);
    for (size_t i = 0; i < count && status == COT_OK; i++) {
        const cot_eval_sequence *s = &sequences[i];
        requests[i] = (cot_request){.prompt = s->ids,
                                    .prompt_tokens = s->prefill_tokens,
                                    .forced = s->ids + s->prefill_tokens,
                                    .forced_tokens = s->tokens - s->prefill_tokens,
                                    .all_logits = true,
                                    .recorded = s->recorded};
        nats[i] = 0;
    }
    if (status == COT_OK && output) status = allocate(&e, count, error);
    cot_events events = {.context = &e, .on_logits = take_logits, .on_routing = take_routing};
    if (status == COT_OK) {
        size_t failed;
        status = cot_engine_run(engine, requests, count, &events, &failed, error);
        if (status != COT_OK && failed < count) name_sequence(&sequences[failed], error);
    }
    if (status == COT_OK && output) status = write_records(&e, count, output, error);
    for (size_t i = 0; e.records && i < count; i++) {
        free(e.records[i].logits);
        free(e.records[i].experts);
        free(e.records[i].weights);
    }
    free(e.records);
    free(requests);
    return status;
}
