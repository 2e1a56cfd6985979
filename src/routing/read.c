#include "routing/import.h"

#include "base/error.h"
#include "base/hash.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The metadata value of `key`; NULL after a message when it is absent. */
static const char *meta(const cot_trace *trace, const char *key, const char *subject, cot_error *error)
{
    const char *value = cot_safetensors_meta(&trace->owner->file, key);
    if (!value)
        cot_fail(error, COT_MALFORMED, "'%s': no routing trace: metadata '%s' is missing", subject, key);
    return value;
}

/* Reads a decimal number of at most `limit` at *text and moves past it; false when there is none. */
static bool number(const char **text, int32_t limit, int32_t *value)
{
    int64_t n = 0;
    const char *c = *text;
    if (!isdigit((unsigned char)*c)) return false;
    for (; isdigit((unsigned char)*c) && n <= limit; c++) n = n * 10 + (*c - '0');
    if (n > limit) return false;
    *value = (int32_t)n;
    *text = c;
    return true;
}

static cot_status meta_number(cot_trace *trace, const char *key, int32_t limit, int32_t *value,
                              const char *subject, cot_error *error)
{
    const char *text = meta(trace, key, subject, error), *end = text;
    if (!text) return COT_MALFORMED;
    if (!number(&end, limit, value) || *end || *value < 1)
        return cot_fail(error, COT_MALFORMED,
                        "'%s': metadata '%s' is '%.40s', expected a number from 1 to %" PRId32, subject, key,
                        text, limit);
    return COT_OK;
}

/* "3,4,5" or "[3, 4, 5]" */
static cot_status meta_layers(cot_trace *trace, const char *subject, cot_error *error)
{
    const char *text = meta(trace, "layers", subject, error);
    if (!text) return COT_MALFORMED;
    int64_t room = 1;
    for (const char *c = text; *c; c++) room += *c == ',';
    int32_t *layers = cot_trace_alloc(trace, room, sizeof *layers), n = 0;
    if (!layers) return cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory", subject);
    const char *c = text;
    bool list = false, more = true;
    while (*c == ' ') c++;
    if ((list = *c == '[')) c++;
    while (more && n < COT_TRACE_MAX_LAYERS) {
        while (*c == ' ') c++;
        if (!number(&c, INT32_MAX, &layers[n])) break;
        n++;
        while (*c == ' ') c++;
        if ((more = *c == ',')) c++;
    }
    if (!more && list && *c++ != ']') more = true;
    while (!more && *c == ' ') c++;
    if (more || *c)
        return cot_fail(error, COT_MALFORMED,
                        "'%s': metadata 'layers' is '%.40s', expected numbers like 0,1,2", subject, text);
    trace->layers = layers;
    trace->n_layers = n;
    return COT_OK;
}

/* That of a trace of an engine. */
static cot_status meta_hash(cot_trace *trace, const char *subject, cot_error *error)
{
    const char *text = cot_safetensors_meta(&trace->owner->file, "model_hash");
    if (!text || cot_hash_parse(&trace->model_hash, text)) return COT_OK;
    return cot_fail(error, COT_MALFORMED,
                    "'%s': metadata 'model_hash' is '%.40s', expected hexadecimal digits", subject, text);
}

/* The tensor's data, aligned (a copy where the file is not); NULL after a message when it is absent or unlike
 * `shape`. A negative size in `shape` is filled in. */
static const void *view(cot_trace *trace, const char *name, cot_dtype dtype, int dims, int64_t *shape,
                        const char *subject, cot_error *error)
{
    const cot_tensor *t = cot_safetensors_find(&trace->owner->file, name);
    if (!t) {
        cot_fail(error, COT_MALFORMED, "'%s': tensor '%s' is missing", subject, name);
        return NULL;
    }
    if (t->dtype != dtype || t->dims != dims) {
        cot_fail(error, COT_MALFORMED, "'%s': tensor '%s' is %s with %d dimensions, expected %s with %d",
                 subject, name, cot_dtype_name(t->dtype), t->dims, cot_dtype_name(dtype), dims);
        return NULL;
    }
    for (int d = 0; d < dims; d++) {
        if (shape[d] < 0) shape[d] = t->shape[d];
        if (shape[d] != t->shape[d]) {
            cot_fail(error, COT_MALFORMED,
                     "'%s': tensor '%s' has size %" PRId64 " in dimension %d, expected %" PRId64, subject,
                     name, t->shape[d], d, shape[d]);
            return NULL;
        }
    }
    size_t element = cot_dtype_bytes(dtype);
    if (t->bytes && (uintptr_t)t->data % element == 0) return t->data;
    void *copy = cot_trace_alloc(trace, (int64_t)(t->bytes / element), element);
    if (!copy)
        cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory for tensor '%s'", subject, name);
    else if (t->bytes)
        memcpy(copy, t->data, t->bytes);
    return copy;
}

static cot_status read_strings(cot_trace *trace, const char *subject, cot_error *error)
{
    int64_t bytes = -1, n = -1;
    cot_error failure = {0};
    if (!(trace->strings = view(trace, "token_strings", COT_U8, 1, &bytes, subject, &failure)) ||
        !(trace->string_offsets = view(trace, "token_string_offsets", COT_I64, 1, &n, subject, &failure)))
        return cot_fail(error, failure.status, "%s", failure.message);
    if (n < 1 || trace->string_offsets[n - 1] != bytes)
        return cot_fail(error, COT_MALFORMED,
                        "'%s': token_string_offsets do not end at token_strings' %" PRId64 " bytes", subject,
                        bytes);
    trace->n_strings = n - 1;
    return COT_OK;
}

static cot_status read_tokens(cot_trace *trace, const char *subject, cot_error *error)
{
    int64_t ids = -1, sequences = -1, routing[3] = {trace->n_layers, -1, trace->top_k};
    cot_error failure = {0};
    if (!(trace->token_ids = view(trace, "token_ids", COT_I32, 1, &ids, subject, &failure)) ||
        !(trace->sequence_offsets =
              view(trace, "sequence_offsets", COT_I64, 1, &sequences, subject, &failure)))
        return cot_fail(error, failure.status, "%s", failure.message);
    if (sequences < 1)
        return cot_fail(error, COT_MALFORMED, "'%s': sequence_offsets is empty, expected at least [0]",
                        subject);
    trace->n_tokens = routing[1] = ids;
    trace->n_sequences = sequences - 1;
    const cot_tensor *experts = cot_safetensors_find(&trace->owner->file, "experts");
    if (experts && experts->dtype == COT_U16)
        trace->experts_u16 = view(trace, "experts", COT_U16, 3, routing, subject, &failure);
    else
        trace->experts_u8 = view(trace, "experts", COT_U8, 3, routing, subject, &failure);
    if (!trace->experts_u8 && !trace->experts_u16)
        return cot_fail(error, failure.status, "%s", failure.message);
    if (cot_safetensors_find(&trace->owner->file, "weights") &&
        !(trace->weights = view(trace, "weights", COT_F16, 3, routing, subject, &failure)))
        return cot_fail(error, failure.status, "%s", failure.message);
    return COT_OK;
}

static cot_status read_counts(cot_trace *trace, const char *subject, cot_error *error)
{
    int64_t ids = -1, shape[3] = {trace->n_layers, -1, trace->n_experts};
    cot_error failure = {0};
    if (!(trace->token_ids = view(trace, "token_ids", COT_I32, 1, &ids, subject, &failure)))
        return cot_fail(error, failure.status, "%s", failure.message);
    trace->n_tokens = shape[1] = ids;
    trace->counts = view(trace, "counts", COT_U32, 3, shape, subject, &failure);
    return trace->counts ? COT_OK : cot_fail(error, failure.status, "%s", failure.message);
}

/* Reads what owner->file holds. */
static cot_status read_trace(cot_trace *trace, const char *subject, cot_error *error)
{
    const char *format, *version, *kind, *model;
    if (!(format = meta(trace, "format", subject, error)) ||
        !(version = meta(trace, "version", subject, error)) ||
        !(kind = meta(trace, "kind", subject, error)) || !(model = meta(trace, "model", subject, error)))
        return COT_MALFORMED;
    if (strcmp(format, "coterie.trace") != 0)
        return cot_fail(error, COT_UNSUPPORTED, "'%s': format '%.60s', expected 'coterie.trace'", subject,
                        format);
    if (strcmp(version, "1") != 0)
        return cot_fail(error, COT_UNSUPPORTED, "'%s': version '%.20s' of the trace format, expected '1'",
                        subject, version);
    bool counts = !strcmp(kind, "counts");
    if (!counts && strcmp(kind, "tokens") != 0)
        return cot_fail(error, COT_MALFORMED, "'%s': kind '%.40s', expected 'tokens' or 'counts'", subject,
                        kind);
    trace->kind = counts ? COT_TRACE_COUNTS : COT_TRACE_TOKENS;
    trace->model = model;
    cot_status status =
        meta_number(trace, "experts", COT_TRACE_MAX_EXPERTS, &trace->n_experts, subject, error);
    if (status == COT_OK)
        status = meta_number(trace, "top_k", COT_TRACE_MAX_EXPERTS, &trace->top_k, subject, error);
    if (status == COT_OK) status = meta_layers(trace, subject, error);
    if (status == COT_OK && cot_safetensors_meta(&trace->owner->file, "hidden"))
        status = meta_number(trace, "hidden", INT32_MAX, &trace->hidden, subject, error);
    if (status == COT_OK) status = meta_hash(trace, subject, error);
    if (status == COT_OK)
        status = counts ? read_counts(trace, subject, error) : read_tokens(trace, subject, error);
    if (status == COT_OK && (cot_safetensors_find(&trace->owner->file, "token_strings") ||
                             cot_safetensors_find(&trace->owner->file, "token_string_offsets")))
        status = read_strings(trace, subject, error);
    return status == COT_OK ? cot_trace_validate(trace, subject, error) : status;
}

static cot_status finish(cot_trace *trace, cot_status status, const char *subject, cot_error *error)
{
    if (status == COT_OK) status = read_trace(trace, subject, error);
    if (status != COT_OK) cot_trace_close(trace);
    return status;
}

cot_status cot_trace_open(cot_trace *trace, const char *path, cot_error *error)
{
    *trace = (cot_trace){0};
    cot_status status = cot_trace_own(trace, error);
    if (status == COT_OK) status = cot_safetensors_open(&trace->owner->file, path, error);
    const char *found = status == COT_OK ? NULL : cot_import_description(path);
    if (found)
        status = cot_fail(error, COT_MALFORMED, "'%s' is no trace, but can be made one (trace convert): %s",
                          path, found);
    return finish(trace, status, path, error);
}

cot_status cot_trace_parse(cot_trace *trace, const void *data, size_t bytes, const char *subject,
                           cot_error *error)
{
    *trace = (cot_trace){0};
    cot_status status = cot_trace_own(trace, error);
    if (status == COT_OK) status = cot_safetensors_parse(&trace->owner->file, data, bytes, subject, error);
    return finish(trace, status, subject, error);
}
