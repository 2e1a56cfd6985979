/* SGLang's expert distribution recorder. In the modes stat and stat_approx a file is one dump of the whole group:
 * `logical_count` [passes][L][E]. In the modes per_token and per_pass a file is one rank's: `records`, a forward pass
 * each, and `last_physical_to_logical_map` [L][P], through which the physical ids of the records go. Rows are all layers
 * of the model; dense ones have no load. Files of one mode add up. */
#include "routing/load/reader.h"

#include "base/error.h"
#include "routing/sglang.h"

#include <inttypes.h>
#include <stdlib.h>

/* What one file counted. */
typedef struct plane {
    int32_t source; // the rank whose tokens they are
    double *tokens; // [L][E]
} plane;

typedef struct recording {
    const cot_load_files *files;
    const char *path; // the file that is being read
    cot_error *error;
    int64_t layers, experts, top_k; // L and E of the first file; K as seen
    bool counted;                   // logical_count: of all ranks together
    bool per_token;                 // the records say which experts their own tokens chose
    plane *planes;                  // [files->count]
    size_t n_planes;
} recording;

static cot_status no_memory(const recording *r)
{
    return cot_fail(r->error, COT_OUT_OF_MEMORY, "cannot read '%s': out of memory", r->path);
}

/* The file's L and E, which all files must have. */
static cot_status set_sizes(recording *r, int64_t layers, int64_t experts)
{
    if (layers < 1 || layers > COT_TRACE_MAX_LAYERS || experts < 1 || experts > COT_TRACE_MAX_EXPERTS)
        return cot_fail(r->error, COT_MALFORMED, "'%s': %" PRId64 " layers of %" PRId64 " experts", r->path,
                        layers, experts);
    if (r->n_planes && (layers != r->layers || experts != r->experts))
        return cot_fail(r->error, COT_MALFORMED,
                        "'%s' has %" PRId64 " layers of %" PRId64 " experts, '%s' %" PRId64 " of %" PRId64,
                        r->path, layers, experts, r->files->paths[0], r->layers, r->experts);
    r->layers = layers;
    r->experts = experts;
    r->planes[r->n_planes].tokens = calloc((size_t)(layers * experts), sizeof(double));
    if (!r->planes[r->n_planes].tokens) return no_memory(r);
    r->n_planes++;
    return COT_OK;
}

static bool element(double *number, const cot_torch_tensor *t, int64_t i)
{
    return cot_torch_number(number, t->dtype, t->data + (size_t)i * cot_dtype_bytes(t->dtype));
}

/* An element of a tensor of whole numbers in [least, most]. */
static cot_status whole(int64_t *n, const recording *r, const cot_torch_tensor *t, int64_t i, int64_t least,
                        int64_t most, const char *name)
{
    if (cot_torch_whole(n, t, i, least, most)) return COT_OK;
    return cot_fail(r->error, COT_MALFORMED,
                    "'%s': an element of '%s' is no whole number from %" PRId64 " to %" PRId64, r->path, name,
                    least, most);
}

static cot_status read_logical_count(recording *r, const cot_torch_tensor *t)
{
    if (t->dims != 2 && t->dims != 3)
        return cot_fail(r->error, COT_MALFORMED, "'%s': 'logical_count' has %d dimensions, expected 2 or 3",
                        r->path, t->dims);
    int first = t->dims - 2; // of layers
    int64_t passes = first ? t->shape[0] : 1, stride = first ? t->stride[0] : 0;
    cot_status status = set_sizes(r, t->shape[first], t->shape[first + 1]);
    double *sum = status == COT_OK ? r->planes[r->n_planes - 1].tokens : NULL, number;
    for (int64_t p = 0; status == COT_OK && p < passes; p++)
        for (int64_t l = 0; status == COT_OK && l < r->layers; l++)
            for (int64_t e = 0; e < r->experts; e++) {
                int64_t at = p * stride + l * t->stride[first] + e * t->stride[first + 1];
                if (!element(&number, t, at) || !(number >= 0)) {
                    status = cot_fail(r->error, COT_MALFORMED,
                                      "'%s': 'logical_count' of layer %" PRId64 ", expert %" PRId64
                                      " is no number of 0 or more",
                                      r->path, l, e);
                    break;
                }
                sum[l * r->experts + e] += number;
            }
    return status;
}

/* topk_ids_of_layer [L][T][K], -1 where a token had no more experts */
static cot_status add_tokens(recording *r, const cot_torch_tensor *t, const int32_t *map, int64_t P,
                             double *sum)
{
    if (t->dims != 3 || t->shape[0] != r->layers)
        return cot_fail(r->error, COT_MALFORMED,
                        "'%s': 'topk_ids_of_layer' does not have the map's %" PRId64 " layers", r->path,
                        r->layers);
    for (int64_t l = 0; l < r->layers; l++)
        for (int64_t i = 0; i < t->shape[1]; i++) {
            int64_t chosen = 0;
            for (int64_t k = 0; k < t->shape[2]; k++) {
                int64_t p = 0;
                cot_status status = whole(&p, r, t, l * t->stride[0] + i * t->stride[1] + k * t->stride[2],
                                          -1, P - 1, "topk_ids_of_layer");
                if (status != COT_OK) return status;
                if (p < 0) continue;
                sum[l * r->experts + map[l * P + p]]++;
                chosen++;
            }
            if (chosen > r->top_k) r->top_k = chosen;
        }
    return COT_OK;
}

/* global_physical_count [L][P] */
static cot_status add_counts(const recording *r, const cot_torch_tensor *t, const int32_t *map, int64_t P,
                             double *sum)
{
    if (t->dims != 2 || t->shape[0] != r->layers || t->shape[1] != P)
        return cot_fail(r->error, COT_MALFORMED,
                        "'%s': 'global_physical_count' does not have the shape of the map", r->path);
    for (int64_t l = 0; l < r->layers; l++)
        for (int64_t p = 0; p < P; p++) {
            int64_t n = 0;
            cot_status status = whole(&n, r, t, l * t->stride[0] + p * t->stride[1], 0, INT64_MAX / 1024,
                                      "global_physical_count");
            if (status != COT_OK) return status;
            sum[l * r->experts + map[l * P + p]] += (double)n;
        }
    return COT_OK;
}

static cot_status add_record(recording *r, const cot_torch_value *record, const int32_t *map, int64_t P,
                             bool first)
{
    const cot_torch_value *rank = cot_torch_get(record, "rank");
    const cot_torch_tensor *ids = cot_torch_get_tensor(record, "topk_ids_of_layer");
    const cot_torch_tensor *counts = cot_torch_get_tensor(record, "global_physical_count");
    plane *to = &r->planes[r->n_planes - 1];
    if (!rank || rank->kind != COT_TORCH_INTEGER || rank->integer < 0 ||
        rank->integer >= COT_LOAD_MAX_SOURCES)
        return cot_fail(r->error, COT_MALFORMED, "'%s': a record without a 'rank' from 0 to %d", r->path,
                        COT_LOAD_MAX_SOURCES - 1);
    if (first) to->source = (int32_t)rank->integer;
    if (rank->integer != to->source)
        return cot_fail(r->error, COT_MALFORMED, "'%s' holds records of ranks %" PRId32 " and %" PRId64,
                        r->path, to->source, rank->integer);
    if (ids) {
        r->per_token = true;
        return add_tokens(r, ids, map, P, to->tokens);
    }
    if (counts) return add_counts(r, counts, map, P, to->tokens);
    return cot_fail(r->error, COT_MALFORMED,
                    "'%s': a record with neither 'topk_ids_of_layer' nor 'global_physical_count'", r->path);
}

static cot_status read_records(recording *r, const cot_torch_value *records, const cot_torch_tensor *stored)
{
    int32_t *map = NULL;
    int64_t experts;
    if (records->kind != COT_TORCH_LIST || !stored)
        return cot_fail(r->error, COT_MALFORMED,
                        "'%s': 'records' is no list, or 'last_physical_to_logical_map' is missing", r->path);
    cot_status status = cot_sglang_map(&map, &experts, stored, r->path, r->error);
    if (status == COT_OK) status = set_sizes(r, stored->shape[0], experts);
    for (uint32_t i = 0; status == COT_OK && i < records->list.count; i++)
        status = add_record(r, records->list.items[i], map, stored->shape[1], !i);
    free(map);
    return status;
}

static cot_status read_file(recording *r)
{
    cot_torch_file file;
    cot_status status = cot_torch_open(&file, r->path, r->error);
    if (status != COT_OK) return status;
    const cot_torch_tensor *counts = cot_torch_get_tensor(file.value, "logical_count");
    const cot_torch_value *records = cot_torch_get(file.value, "records");
    if (r->n_planes && r->counted != !!counts)
        status = cot_fail(r->error, COT_MALFORMED, "'%s' and '%s' were recorded in different modes",
                          r->files->paths[0], r->path);
    else if (counts)
        status = read_logical_count(r, counts);
    else if (records)
        status = read_records(r, records, cot_torch_get_tensor(file.value, "last_physical_to_logical_map"));
    else
        status = cot_fail(r->error, COT_UNSUPPORTED,
                          "'%s' is no recording of experts: it has neither 'logical_count' nor 'records'",
                          r->path);
    r->counted = counts != NULL;
    cot_torch_close(&file);
    return status;
}

/* Which ranks are known to have sent what, and how many there are. */
static int32_t sources_of(const recording *r, const cot_load_files *files)
{
    int32_t largest = 0;
    if (r->counted || !r->per_token) return 0;
    for (size_t i = 0; i < r->n_planes; i++)
        if (r->planes[i].source > largest) largest = r->planes[i].source;
    bool several = false;
    for (size_t i = 1; i < r->n_planes; i++) several |= r->planes[i].source != r->planes[0].source;
    if (!several) {
        cot_load_note(files, "one rank's tokens: taken for everyone's, whichever rank sends them");
        return 0;
    }
    for (int32_t rank = 0; rank <= largest; rank++) {
        bool found = false;
        for (size_t i = 0; i < r->n_planes; i++) found |= r->planes[i].source == rank;
        if (!found) cot_load_note(files, "no file of rank %" PRId32 ": taken to have sent no tokens", rank);
    }
    return largest + 1;
}

static cot_status assemble(cot_load_counts *load, const recording *r, const cot_load_files *files,
                           cot_error *error)
{
    int32_t sources = sources_of(r, files), S = sources ? sources : 1;
    cot_status status = cot_load_counts_new(load, (int32_t)r->layers, S, (int32_t)r->experts, error);
    if (status != COT_OK) return status;
    for (size_t i = 0; i < r->n_planes; i++)
        for (int64_t l = 0; l < r->layers; l++) {
            double *to = load->tokens + (l * S + (sources ? r->planes[i].source : 0)) * r->experts;
            for (int64_t e = 0; e < r->experts; e++) to[e] += r->planes[i].tokens[l * r->experts + e];
        }
    load->sources_known = sources > 0;
    load->from_engine = true;
    load->top_k = (int32_t)r->top_k;
    if (r->counted && r->n_planes > 1) cot_load_note(files, "%zu dumps of counts, added up", r->n_planes);
    return COT_OK;
}

cot_status cot_load_read_sglang(cot_load_counts *load, const cot_load_files *files, cot_error *error)
{
    recording r = {.files = files, .error = error, .path = files->paths[0]};
    cot_status status = COT_OK;
    if (!(r.planes = calloc(files->count, sizeof *r.planes))) status = no_memory(&r);
    for (size_t i = 0; status == COT_OK && i < files->count; i++) {
        r.path = files->paths[i];
        status = read_file(&r);
    }
    if (status == COT_OK) status = assemble(load, &r, files, error);
    for (size_t i = 0; i < r.n_planes; i++) free(r.planes[i].tokens);
    free(r.planes);
    return status;
}
