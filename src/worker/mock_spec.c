/* What a mock is told to be: a JSON object, of which every key has a row here. */
#include "base/error.h"
#include "base/json_load.h"
#include "worker/mock.h"

#include <stddef.h>
#include <string.h>

typedef struct spec_row {
    const char *name;
    size_t at; // an int64_t, or a double where it is real
    bool is_real;
    double least, most;
} spec_row;

#define AT(field) offsetof(cot_mock, field)
static const spec_row spec_rows[] = {{"workers", AT(workers), false, 1, 1000},
                                     {"ranks", AT(homes), false, 1, 64},
                                     {"max_num_seqs", AT(sequences), false, 1, 65536},
                                     {"ttft_ms", AT(ttft_ms), true, 0, 1e7},
                                     {"ttft_ms_per_token", AT(ttft_ms_per_token), true, 0, 1e5},
                                     {"tpot_ms", AT(tpot_ms), true, 0, 1e7},
                                     {"tokens", AT(tokens), false, 0, 1e9},
                                     {"seed", AT(seed), false, 0, 9e15},
                                     {"block_size", AT(block_tokens), false, 1, 64},
                                     {"cached_blocks", AT(blocks), false, 0, 1e7},
                                     {"max_model_len", AT(context_tokens), false, 2, 1 << 30},
                                     {0}};
#undef AT
#define AT(field) offsetof(cot_mock_fault, field)
static const spec_row fault_rows[] = {{"worker", AT(worker), false, 0, 999},
                                      {"every", AT(every), false, 1, 1e9},
                                      {"after_tokens", AT(after_tokens), false, 0, 1e9},
                                      {"ms", AT(ms), true, 0, 1e9},
                                      {0}};
#undef AT
static const char *const fault_names[COT_MOCK_FAULTS] = {"die", "fail", "stall", "refuse", "late", "twice"};

/* Whether a fault of the kind has a use for the key. */
static bool takes(cot_mock_fault_kind kind, const char *key)
{
    const bool ends_worker = kind == COT_MOCK_DIE || kind == COT_MOCK_FAIL;
    if (strcmp(key, "every") == 0) return !ends_worker;
    if (strcmp(key, "after_tokens") == 0) return ends_worker || kind == COT_MOCK_STALL;
    if (strcmp(key, "ms") == 0) return kind == COT_MOCK_LATE;
    return true;
}

/* Fills in what the key says. Errors name it by `where`. */
static cot_status read_number(void *out, const spec_row *row, const json_t *value, const char *where,
                              cot_error *error)
{
    const double number = json_number_value(value);
    const bool good = row->is_real ? json_is_number(value) : json_is_integer(value);
    if (!good || !(number >= row->least && number <= row->most))
        return cot_fail(error, COT_MALFORMED, "%s: '%s' is not %s of %g to %g", where, row->name,
                        row->is_real ? "a number" : "a whole number", row->least, row->most);
    if (row->is_real)
        *(double *)((char *)out + row->at) = number;
    else
        *(int64_t *)((char *)out + row->at) = json_integer_value(value);
    return COT_OK;
}

static const spec_row *find_row(const spec_row *rows, const char *name)
{
    while (rows->name && strcmp(rows->name, name) != 0) rows++;
    return rows->name ? rows : NULL;
}

static cot_status read_fault(cot_mock_fault *fault, const json_t *object, int64_t workers, const char *where,
                             cot_error *error)
{
    const char *kind = json_string_value(json_object_get(object, "fault")), *name;
    json_t *value;
    *fault = (cot_mock_fault){.worker = -1, .every = 1};
    if (!json_is_object(object)) return cot_fail(error, COT_MALFORMED, "%s is no object", where);
    int k = 0;
    while (kind && k < COT_MOCK_FAULTS && strcmp(fault_names[k], kind) != 0) k++;
    if (!kind || k == COT_MOCK_FAULTS)
        return cot_fail(error, COT_UNSUPPORTED,
                        "%s: 'fault' is none of die, fail, stall, refuse, late, twice", where);
    fault->kind = (cot_mock_fault_kind)k;
    json_object_foreach((json_t *)object, name, value)
    {
        if (strcmp(name, "fault") == 0) continue;
        const spec_row *row = find_row(fault_rows, name);
        if (!row)
            return cot_fail(error, COT_UNSUPPORTED,
                            "%s: there is no '%.64s'; there are fault, worker, every, after_tokens, ms",
                            where, name);
        if (!takes(fault->kind, name))
            return cot_fail(error, COT_UNSUPPORTED, "%s: '%s' says nothing of '%s'", where, name, kind);
        const cot_status status = read_number(fault, row, value, where, error);
        if (status != COT_OK) return status;
    }
    if (fault->worker >= workers)
        return cot_fail(error, COT_MALFORMED, "%s: 'worker' %lld is not in [0, %lld)", where,
                        (long long)fault->worker, (long long)workers);
    return COT_OK;
}

static cot_status read_faults(cot_mock *mock, const json_t *list, const char *name, cot_error *error)
{
    char where[300];
    if (!json_is_array(list) || json_array_size(list) > COT_MOCK_MOST_FAULTS)
        return cot_fail(error, COT_MALFORMED, "'%s': 'faults' is no list of at most %d", name,
                        COT_MOCK_MOST_FAULTS);
    for (; mock->fault_count < json_array_size(list); mock->fault_count++) {
        snprintf(where, sizeof where, "'%.200s': fault %zu", name, mock->fault_count);
        const cot_status status =
            read_fault(&mock->faults[mock->fault_count], json_array_get(list, mock->fault_count),
                       mock->workers, where, error);
        if (status != COT_OK) return status;
    }
    return COT_OK;
}

static cot_status read_spec(cot_mock *mock, json_t *spec, const char *name, cot_error *error)
{
    const char *key;
    json_t *value;
    char where[300];
    cot_status status = COT_OK;
    snprintf(where, sizeof where, "'%.250s'", name);
    json_object_foreach(spec, key, value)
    {
        const spec_row *row = find_row(spec_rows, key);
        if (strcmp(key, "faults") == 0) continue;
        if (!row)
            return cot_fail(error, COT_UNSUPPORTED,
                            "%s: there is no '%.64s'; there are workers, ranks, max_num_seqs, ttft_ms, "
                            "ttft_ms_per_token, tpot_ms, tokens, seed, block_size, cached_blocks, "
                            "max_model_len, faults",
                            where, key);
        status = read_number(mock, row, value, where, error);
        if (status != COT_OK) return status;
    }
    if (mock->block_tokens & (mock->block_tokens - 1))
        return cot_fail(error, COT_MALFORMED, "%s: 'block_size' %lld is no power of two", where,
                        (long long)mock->block_tokens);
    const json_t *faults = json_object_get(spec, "faults");
    return faults ? read_faults(mock, faults, name, error) : COT_OK;
}

cot_status cot_mock_read_spec(cot_mock *mock, const char *text, size_t bytes, const char *name,
                              cot_error *error)
{
    json_error_t why;
    json_t *spec = cot_json_load(text, bytes, JSON_REJECT_DUPLICATES, &why);
    cot_status status;
    mock->workers = mock->homes = 1;
    mock->sequences = 64;
    mock->ttft_ms = 50;
    mock->tpot_ms = 20;
    mock->block_tokens = 16;
    mock->blocks = 1024;
    mock->context_tokens = 32768;
    if (json_is_object(spec))
        status = read_spec(mock, spec, name, error);
    else
        status = cot_fail(error, COT_MALFORMED, "'%s' is no JSON object: %s", name,
                          spec ? "it is another value" : why.text);
    json_decref(spec);
    return status;
}
