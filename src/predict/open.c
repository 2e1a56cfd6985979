/* Opening a predictor's file: what it says of itself, then its tables. What they hold is checked in check.c. */
#include "predict/check.h"

#include "base/error.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The metadata value of `key`; NULL after a message when it is absent. */
static const char *meta(const cot_predictor *p, const char *key, const char *subject, cot_error *error)
{
    const char *value = cot_safetensors_meta(&p->file, key);
    if (!value) cot_fail(error, COT_MALFORMED, "'%s': no predictor: metadata '%s' is missing", subject, key);
    return value;
}

/* Reads digits of `base` that make a number of at most `limit` at *text and moves past them. */
static bool number(const char **text, int base, uint64_t limit, uint64_t *value)
{
    const unsigned char c = (unsigned char)**text;
    if (!(c >= '0' && c <= '9') && !(base == 16 && c >= 'a' && c <= 'f')) return false; // no sign, no space
    char *end;
    errno = 0;
    *value = strtoull(*text, &end, base);
    *text = end;
    return !errno && *value <= limit;
}

static bool meta_number(const cot_predictor *p, const char *key, int base, uint64_t least, uint64_t limit,
                        uint64_t *value, const char *subject, cot_error *error)
{
    const char *text = meta(p, key, subject, error), *end = text;
    if (!text) return false;
    if (number(&end, base, limit, value) && !*end && *value >= least) return true;
    cot_fail(error, COT_MALFORMED,
             "'%s': metadata '%s' is '%.40s', expected a number from %" PRIu64 " to %" PRIu64, subject, key,
             text, least, limit);
    return false;
}

static cot_status read_layers(cot_predictor *p, const char *subject, cot_error *error)
{
    const char *text = meta(p, "layers", subject, error), *c = text;
    if (!text) return COT_MALFORMED;
    int32_t *layers = cot_predictor_alloc(p, COT_TRACE_MAX_LAYERS, sizeof *layers), n = 0;
    if (!layers) return cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory", subject);
    uint64_t value;
    bool more = true;
    for (; more && n < COT_TRACE_MAX_LAYERS && number(&c, 10, INT32_MAX, &value); n++) {
        layers[n] = (int32_t)value;
        if (n && layers[n] <= layers[n - 1]) break;
        if ((more = *c == ',')) c++;
    }
    if (more || *c)
        return cot_fail(error, COT_MALFORMED,
                        "'%s': metadata 'layers' is '%.40s', expected ascending numbers like 0,1,2", subject,
                        text);
    p->layers = layers;
    p->n_layers = n;
    return COT_OK;
}

static cot_status read_meta(cot_predictor *p, const char *subject, cot_error *error)
{
    const char *format, *version;
    uint64_t experts, top_k, ranks, order, sequences;
    if (!(format = meta(p, "format", subject, error)) || !(version = meta(p, "version", subject, error)) ||
        !(p->model = meta(p, "model", subject, error)))
        return COT_MALFORMED;
    if (strcmp(format, "coterie.predictor") != 0)
        return cot_fail(error, COT_UNSUPPORTED, "'%s': format '%.60s', expected 'coterie.predictor'", subject,
                        format);
    if (strcmp(version, "1") != 0)
        return cot_fail(error, COT_UNSUPPORTED, "'%s': version '%.20s' of the predictor format, expected '1'",
                        subject, version);
    if (!meta_number(p, "experts", 10, 1, COT_TRACE_MAX_EXPERTS, &experts, subject, error) ||
        !meta_number(p, "top_k", 10, 1, experts, &top_k, subject, error) ||
        !meta_number(p, "ranks", 10, 1, experts < COT_TRACE_MAX_RANKS ? experts : COT_TRACE_MAX_RANKS, &ranks,
                     subject, error) ||
        !meta_number(p, "order", 10, 1, COT_PREDICT_MAX_ORDER, &order, subject, error) ||
        !meta_number(p, "sequences", 10, 0, INT64_MAX, &sequences, subject, error) ||
        !meta_number(p, "seed", 10, 0, UINT64_MAX, &p->seed, subject, error) ||
        !meta_number(p, "trace_hash", 16, 0, UINT64_MAX, &p->trace_hash, subject, error) ||
        (cot_safetensors_meta(&p->file, "model_hash") &&
         !meta_number(p, "model_hash", 16, 0, UINT64_MAX, &p->model_hash, subject, error)))
        return COT_MALFORMED;
    p->n_experts = (int32_t)experts;
    p->top_k = (int32_t)top_k;
    p->n_ranks = (int32_t)ranks;
    p->order = (int32_t)order;
    p->n_sequences = (int64_t)sequences;
    return read_layers(p, subject, error);
}

/* Elements of a tensor of one dimension; -1 when it is absent. */
static int64_t elements(const cot_predictor *p, const char *name)
{
    const cot_tensor *t = cot_safetensors_find(&p->file, name);
    return t ? cot_tensor_elements(t) : -1;
}

/* The tensor's data, aligned (a copy where the file is not). */
static cot_status view(cot_predictor *p, const cot_predictor_table *table, const char *subject,
                       cot_error *error)
{
    const cot_tensor *t = cot_safetensors_find(&p->file, table->name);
    if (!t) return cot_fail(error, COT_MALFORMED, "'%s': tensor '%s' is missing", subject, table->name);
    if (t->dtype != table->dtype || t->dims != table->dims)
        return cot_fail(
            error, COT_MALFORMED, "'%s': tensor '%s' is %s with %d dimensions, expected %s with %d", subject,
            table->name, cot_dtype_name(t->dtype), t->dims, cot_dtype_name(table->dtype), table->dims);
    for (int d = 0; d < t->dims; d++)
        if (t->shape[d] != table->shape[d])
            return cot_fail(error, COT_MALFORMED,
                            "'%s': tensor '%s' has size %" PRId64 " in dimension %d, expected %" PRId64,
                            subject, table->name, t->shape[d], d, table->shape[d]);
    const size_t element = cot_dtype_bytes(t->dtype);
    *table->data = t->data;
    if (t->bytes && (uintptr_t)t->data % element == 0) return COT_OK;
    void *copy = cot_predictor_alloc(p, (int64_t)(t->bytes / element), element);
    if (!copy)
        return cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory for tensor '%s'", subject,
                        table->name);
    if (t->bytes) memcpy(copy, t->data, t->bytes);
    *table->data = copy;
    return COT_OK;
}

/* Which tables there are, and how large. One tensor of each method says that it is there; the others must then be. */
static cot_status read_tables(cot_predictor *p, const char *subject, cot_error *error)
{
    static const uint8_t some;
    const int64_t tokens = elements(p, "token_ids"), ids = elements(p, "id_row");
    p->has_tokens = tokens >= 0;
    p->n_tokens = tokens > 0 ? tokens : 0;
    p->n_ids = ids > 0 ? ids : 0;
    p->n_entries = elements(p, "token_experts");
    p->n_string_bytes = elements(p, "token_strings");
    p->has_sequences = elements(p, "sequence_ranks") >= 0;
    p->has_context[0] = elements(p, "context_prefill_bias") >= 0;
    p->has_context[1] = elements(p, "context_bias") >= 0;
    p->chosen = elements(p, "chosen") >= 0 ? &some : NULL;
    if (tokens == 0 || tokens > INT32_MAX || ids == 0 || ids > INT32_MAX || (ids > 0 && !p->has_tokens))
        return cot_fail(error, COT_MALFORMED, "'%s': %" PRId64 " token ids and %" PRId64 " neighbours",
                        subject, tokens, ids);
    p->expert_rank_u8 = &some; // until it is read
    cot_predictor_table tables[COT_PREDICTOR_TABLES];
    int n = cot_predictor_tables(tables, p), at = 0;
    while (tables[at].data != (const void **)&p->expert_rank_u8) at++;
    cot_status status = view(p, &tables[at], subject, error);
    if (status == COT_OK) status = cot_check_groups(p, subject, error);
    if (status == COT_OK) status = cot_predictor_finish(p, error); // the sizes of the sequence tables
    if (status != COT_OK) return status;
    n = cot_predictor_tables(tables, p);
    if ((size_t)n != p->file.count)
        return cot_fail(error, COT_MALFORMED, "'%s': %zu tensors, expected the %d of a predictor like this",
                        subject, p->file.count, n);
    for (int i = 0; i < n && status == COT_OK; i++) status = view(p, &tables[i], subject, error);
    return status == COT_OK ? cot_check_tables(p, subject, error) : status;
}

static cot_status finish(cot_predictor **predictor, cot_predictor *p, cot_status status, const char *subject,
                         cot_error *error)
{
    if (status == COT_OK) status = read_meta(p, subject, error);
    if (status == COT_OK) status = read_tables(p, subject, error);
    if (status == COT_OK)
        *predictor = p;
    else
        cot_predictor_close(p);
    return status;
}

static cot_predictor *begin(cot_predictor **predictor, const char *subject, cot_error *error)
{
    *predictor = NULL;
    cot_predictor *p = calloc(1, sizeof *p);
    if (!p) cot_fail(error, COT_OUT_OF_MEMORY, "cannot open '%s': out of memory", subject);
    return p;
}

cot_status cot_predictor_open(cot_predictor **predictor, const char *path, cot_error *error)
{
    cot_predictor *p = begin(predictor, path, error);
    return p ? finish(predictor, p, cot_safetensors_open(&p->file, path, error), path, error)
             : COT_OUT_OF_MEMORY;
}

cot_status cot_predictor_parse(cot_predictor **predictor, const void *data, size_t bytes, const char *subject,
                               cot_error *error)
{
    cot_predictor *p = begin(predictor, subject, error);
    return p ? finish(predictor, p, cot_safetensors_parse(&p->file, data, bytes, subject, error), subject,
                      error)
             : COT_OUT_OF_MEMORY;
}
