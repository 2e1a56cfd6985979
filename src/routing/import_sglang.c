/* Recordings of SGLang's expert distribution recorder in the mode per_token, a file a rank: `records`, a forward pass each,
 * with `topk_ids_of_layer` [L][T][8] (-1 where a token had fewer experts, in dense layers, of tokens that only fill up a
 * batch), which go through `last_physical_to_logical_map`.
 *
 * A record does not say which request a token is of. It has the tokens' `positions`, and `extend_seq_lens` where it
 * prefilled; the requests of a batch keep their order, new ones behind. So a token that is decoded goes on with the first
 * request, behind that of the token before, which has come to its position. What is prefilled from another position than 0 on
 * is the next part of the newest request where that has come there, else a request whose beginning was cached. */
#include "routing/import.h"

#include "base/error.h"
#include "base/rng.h"
#include "routing/load/reader.h"
#include "routing/sglang.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A request whose tokens may go on. */
typedef struct request {
    int32_t sequence;
    int64_t next; // position
    bool seen;    // in the pass at hand
} request;

/* A record that was taken: its forward pass, and a hash of what it says. */
typedef struct taken_record {
    int64_t pass;
    uint64_t key;
} taken_record;

typedef struct recording {
    cot_import *import;
    cot_error *error;
    const char *path; // of the file at hand
    const cot_torch_value *records;
    int32_t *map;                   // [L][slots]
    int64_t layers, slots, experts; // L and E are those of the first file
    int32_t top_k;                  // experts of a token, the most that occur
    bool *moe;                      // [L] layers that have experts
    cot_trace_builder *builder;
    int32_t n_moe, n_sequences;
    uint16_t *chosen; // [n_moe][top_k] of a token
    request *live;    // of the file at hand
    size_t n_live, room_live;
    int64_t taken, dropped;      // tokens
    taken_record *records_taken; // those of the files before in order, then those of the file at hand
    size_t n_records, n_before, room_records;
    int64_t repeated; // records of other ranks that were left out
} recording;

static cot_status no_memory(const recording *r)
{
    return cot_import_no_memory(r->import, r->error);
}

/* topk_ids_of_layer of a record, checked. */
static cot_status ids_of(const cot_torch_tensor **ids, const recording *r, const cot_torch_value *record)
{
    *ids = cot_torch_get_tensor(record, "topk_ids_of_layer");
    if (!*ids)
        return cot_fail(
            r->error, COT_UNSUPPORTED,
            "'%s' holds counts, which do not say what each token chose: record in the mode per_token "
            "(place --load reads counts)",
            r->path);
    if ((*ids)->dims != 3 || (*ids)->shape[0] != r->layers || (*ids)->shape[2] > COT_TRACE_MAX_EXPERTS)
        return cot_fail(r->error, COT_MALFORMED,
                        "'%s': 'topk_ids_of_layer' does not have the map's %" PRId64 " layers", r->path,
                        r->layers);
    return COT_OK;
}

/* The logical experts of token t in layer l, at most `room` of them, into `chosen`; `*n` is how many it has. */
static cot_status experts_of(uint16_t *chosen, int32_t room, int32_t *n, const recording *r,
                             const cot_torch_tensor *ids, int64_t l, int64_t t)
{
    *n = 0;
    for (int64_t k = 0; k < ids->shape[2]; k++) {
        int64_t slot = 0;
        if (!cot_torch_whole(&slot, ids, l * ids->stride[0] + t * ids->stride[1] + k * ids->stride[2], -1,
                             r->slots - 1))
            return cot_fail(r->error, COT_MALFORMED,
                            "'%s': an element of 'topk_ids_of_layer' is no slot from -1 to %" PRId64, r->path,
                            r->slots - 1);
        if (slot < 0) continue;
        if (*n < room) chosen[*n] = (uint16_t)r->map[l * r->slots + slot];
        ++*n;
    }
    return COT_OK;
}

/* How many experts a token has at most, and which layers have any. */
static cot_status survey_record(recording *r, const cot_torch_value *record)
{
    const cot_torch_tensor *ids;
    cot_status status = ids_of(&ids, r, record);
    for (int64_t l = 0; status == COT_OK && l < r->layers; l++)
        for (int64_t t = 0; status == COT_OK && t < ids->shape[1]; t++) {
            int32_t n;
            status = experts_of(NULL, 0, &n, r, ids, l, t);
            if (status == COT_OK && n > r->top_k) r->top_k = n;
            r->moe[l] |= status == COT_OK && n > 0;
        }
    return status;
}

/* An integer of a record's list; -1 where it is none. */
static int64_t listed(const cot_torch_value *list, int64_t i)
{
    if (!list || list->kind != COT_TORCH_LIST || i >= list->list.count) return -1;
    const cot_torch_value *item = list->list.items[i];
    return item->kind == COT_TORCH_INTEGER ? item->integer : -1;
}

/* The experts of token t in all layers that have any, into r->chosen; `*whole` is whether it has as many in each. */
static cot_status choose(bool *whole, recording *r, const cot_torch_tensor *ids, int64_t t)
{
    int32_t m = 0;
    cot_status status = COT_OK;
    *whole = true;
    for (int64_t l = 0; status == COT_OK && l < r->layers; l++) {
        int32_t n;
        if (!r->moe[l]) continue;
        status = experts_of(r->chosen + (size_t)m++ * (size_t)r->top_k, r->top_k, &n, r, ids, l, t);
        *whole &= status == COT_OK && n == r->top_k;
    }
    return status;
}

/* The request in `live`, from *from on, that has come to a position; a new one where there is none. */
static request *find_request(recording *r, size_t *from, int64_t position)
{
    size_t i = *from;
    while (position > 0 && i < r->n_live && (r->live[i].next != position || r->live[i].seen)) i++;
    if (position <= 0 || i == r->n_live) {
        if (r->n_live == r->room_live) {
            const size_t room = r->room_live ? 2 * r->room_live : 64;
            request *larger = realloc(r->live, room * sizeof *larger);
            if (!larger) return NULL;
            r->live = larger;
            r->room_live = room;
        }
        r->live[i = r->n_live++] = (request){.sequence = r->n_sequences++};
    } else
        *from = i + 1;
    r->live[i].seen = true;
    return &r->live[i];
}

/* After a pass that decoded, the requests that were not in it have ended. */
static void end_pass(recording *r, bool prefilled)
{
    size_t kept = 0;
    for (size_t i = 0; i < r->n_live; i++) {
        if (!prefilled && !r->live[i].seen) continue;
        r->live[kept] = r->live[i];
        r->live[kept++].seen = false;
    }
    r->n_live = kept;
}

static int by_pass_and_key(const void *a, const void *b)
{
    const taken_record *x = a, *y = b;
    if (x->pass != y->pass) return x->pass < y->pass ? -1 : 1;
    return (x->key > y->key) - (x->key < y->key);
}

/* Whether a rank before has recorded the same; it is remembered if not. */
static cot_status is_repeated(bool *repeated, recording *r, const cot_torch_value *record)
{
    const cot_torch_tensor *ids;
    const cot_torch_value *pass = cot_torch_get(record, "forward_pass_id"),
                          *positions = cot_torch_get(record, "positions"),
                          *input = cot_torch_get(record, "input_ids");
    *repeated = false;
    cot_status status = ids_of(&ids, r, record);
    if (status != COT_OK) return status;
    taken_record own = {.pass = pass && pass->kind == COT_TORCH_INTEGER ? pass->integer : -1,
                        .key = cot_mix64((uint64_t)ids->shape[1])};
    for (int64_t t = 0; t < ids->shape[1]; t++) {
        bool whole;
        if ((status = choose(&whole, r, ids, t)) != COT_OK) return status;
        own.key = cot_mix64(own.key ^ (uint64_t)listed(positions, t));
        own.key = cot_mix64(own.key ^ (uint64_t)listed(input, t));
        own.key = cot_mix64(own.key ^ (uint64_t)whole);
        for (size_t i = 0; whole && i < (size_t)r->n_moe * (size_t)r->top_k; i++)
            own.key = cot_mix64(own.key ^ r->chosen[i]);
    }
    *repeated = r->n_before && bsearch(&own, r->records_taken, r->n_before, sizeof own, by_pass_and_key);
    if (*repeated) return COT_OK;
    if (r->n_records == r->room_records) {
        const size_t room = r->room_records ? 2 * r->room_records : 64;
        taken_record *larger = realloc(r->records_taken, room * sizeof *larger);
        if (!larger) return no_memory(r);
        r->records_taken = larger;
        r->room_records = room;
    }
    r->records_taken[r->n_records++] = own;
    return COT_OK;
}

static cot_status add_record(recording *r, const cot_torch_value *record)
{
    const cot_torch_tensor *ids;
    bool repeated;
    const cot_torch_value *positions = cot_torch_get(record, "positions"),
                          *lengths = cot_torch_get(record, "extend_seq_lens"),
                          *input = cot_torch_get(record, "input_ids");
    const bool prefilled = lengths && lengths->kind == COT_TORCH_LIST;
    size_t from = prefilled && r->n_live ? r->n_live - 1 : 0;
    int64_t part = 0, left = 0; // of a prefilled request
    request *at = NULL;
    cot_status status = is_repeated(&repeated, r, record);
    if (status == COT_OK && repeated) r->repeated++;
    if (status != COT_OK || repeated) return status;
    status = ids_of(&ids, r, record);
    for (int64_t t = 0; status == COT_OK && t < ids->shape[1]; t++) {
        const int64_t position = listed(positions, t), id = listed(input, t);
        bool whole;
        while (prefilled && left <= 0 && part < lengths->list.count) {
            left = listed(lengths, part++);
            if (left > 0) at = NULL;
        }
        left--;
        status = choose(&whole, r, ids, t);
        if (status != COT_OK || !whole) {
            r->dropped += status == COT_OK;
            if (at && prefilled) at->next = position + 1;
            continue;
        }
        // without positions a pass is one sequence
        if (!at || (!prefilled && position >= 0)) at = find_request(r, &from, position);
        if (!at) return no_memory(r);
        at->next = position < 0 ? -1 : position + 1;
        r->taken++;
        status = cot_trace_builder_append(
            r->builder, at->sequence, id < 0 || id > INT32_MAX ? -1 : (int32_t)id, r->chosen, NULL, r->error);
    }
    end_pass(r, prefilled);
    return status;
}

static cot_status each_record(recording *r, cot_status (*use)(recording *r, const cot_torch_value *record))
{
    cot_status status = COT_OK;
    for (uint32_t i = 0; status == COT_OK && i < r->records->list.count; i++)
        status = use(r, r->records->list.items[i]);
    return status;
}

/* Reads a file's map and hands its records out. */
static cot_status read_file(recording *r, const char *path,
                            cot_status (*use)(recording *r, const cot_torch_value *record))
{
    cot_torch_file file;
    int64_t experts;
    r->path = path;
    r->n_live = 0;
    if (r->n_records) qsort(r->records_taken, r->n_records, sizeof *r->records_taken, by_pass_and_key);
    r->n_before = r->n_records;
    cot_status status = cot_torch_open(&file, path, r->error);
    if (status != COT_OK) return status;
    const cot_torch_tensor *map = cot_torch_get_tensor(file.value, "last_physical_to_logical_map");
    r->records = cot_torch_get(file.value, "records");
    if (!r->records && cot_torch_get_tensor(file.value, "logical_count"))
        status =
            cot_fail(r->error, COT_UNSUPPORTED,
                     "'%s' holds counts (logical_count), which do not say what each token chose: record in "
                     "the mode per_token (place --load reads counts)",
                     path);
    else if (!r->records || r->records->kind != COT_TORCH_LIST)
        status =
            cot_fail(r->error, COT_UNSUPPORTED, "'%s' is no recording of experts: it has no 'records'", path);
    if (status == COT_OK) status = cot_sglang_map(&r->map, &experts, map, path, r->error);
    if (status == COT_OK && r->layers && map->shape[0] != r->layers)
        status = cot_fail(r->error, COT_MALFORMED, "'%s' has %" PRId64 " layers, the file before it %" PRId64,
                          path, map->shape[0], r->layers);
    if (status == COT_OK) {
        r->layers = map->shape[0];
        r->slots = map->shape[1];
        if (experts > r->experts) r->experts = experts;
        if (!r->moe && !(r->moe = calloc((size_t)r->layers, sizeof *r->moe))) status = no_memory(r);
    }
    if (status == COT_OK) status = each_record(r, use);
    free(r->map);
    r->map = NULL;
    cot_torch_close(&file);
    return status;
}

/* The trace's shape is known. */
static cot_status open_builder(recording *r, cot_trace *trace)
{
    int32_t *layers = malloc((size_t)r->layers * sizeof *layers);
    cot_status status =
        layers ? cot_import_experts(trace, r->import, (uint32_t)r->experts - 1, 0, r->error) : no_memory(r);
    for (int64_t l = 0; status == COT_OK && l < r->layers; l++)
        if (r->moe[l]) layers[r->n_moe++] = (int32_t)l;
    if (status == COT_OK && !r->n_moe)
        status = cot_fail(r->error, COT_MALFORMED, "'%s' holds no tokens with experts", r->import->path);
    if (status == COT_OK)
        status =
            cot_trace_builder_open(&r->builder, "", r->n_moe, layers, trace->n_experts, r->top_k, r->error);
    free(layers);
    if (status != COT_OK) return status;
    r->chosen = malloc((size_t)r->n_moe * (size_t)r->top_k * sizeof *r->chosen);
    return r->chosen ? COT_OK : no_memory(r);
}

static cot_status read_all(recording *r, const cot_load_paths *files,
                           cot_status (*use)(recording *r, const cot_torch_value *record))
{
    cot_status status = COT_OK;
    for (size_t i = 0; status == COT_OK && i < files->count; i++) status = read_file(r, files->paths[i], use);
    return status;
}

static cot_status finish(recording *r, cot_trace *trace)
{
    if (!r->taken)
        return cot_fail(r->error, COT_MALFORMED,
                        "'%s' holds no token with %" PRId32 " experts in every layer", r->import->path,
                        r->top_k);
    cot_import_note(r->import, "%" PRId32 " layers of %" PRId64 " have experts; %" PRId32 " of them a token",
                    r->n_moe, r->layers, r->top_k);
    if (r->repeated)
        cot_import_note(r->import,
                        "%" PRId64 " records left out, which ranks before have recorded too (tensor-parallel "
                        "ranks each record all tokens)",
                        r->repeated);
    if (r->dropped)
        cot_import_note(r->import,
                        "%" PRId64
                        " tokens left out, which have fewer experts in a layer (they fill up a batch)",
                        r->dropped);
    cot_import_note(r->import,
                    "%" PRId32
                    " sequences: decoded tokens are taken for the next of the request at their position",
                    r->n_sequences);
    cot_trace_close(trace);
    return cot_trace_builder_finish(trace, r->builder, r->error);
}

cot_status cot_import_sglang(cot_trace *trace, cot_import *import, cot_error *error)
{
    recording r = {.import = import, .error = error};
    cot_load_paths files;
    cot_status status = cot_load_paths_open(&files, &import->path, 1, error);
    if (status != COT_OK) return status;
    status = read_all(&r, &files, survey_record);
    if (status == COT_OK) status = open_builder(&r, trace);
    if (status == COT_OK) status = read_all(&r, &files, add_record);
    if (status == COT_OK) status = finish(&r, trace);
    cot_trace_builder_close(r.builder);
    free(r.moe);
    free(r.chosen);
    free(r.live);
    free(r.records_taken);
    cot_load_paths_close(&files);
    return status;
}
