#include "model/loader.h"

#include "base/error.h"

#include <pthread.h>
#include <stdlib.h>

enum kind { READ, PACK, PACK_TRANSPOSED, STORE_EXPERT, STORE_GATE, CHECK };

struct job {
    cot_weight_piece piece;
    enum kind kind;
    cot_packed_part to;
    const cot_moe_weights *weights; // of STORE_...
    cot_ffn_shape shape;            // of STORE_EXPERT
    cot_ffn_part part;
    bool starts_group;
};

struct cot_loader {
    const cot_checkpoint *checkpoint;
    struct job *jobs;
    size_t count, room;
    bool group_pending, out_of_memory;
    /* While running: */
    size_t *group; // [groups + 1] first job of each
    cot_loader_progress *progress;
    cot_fabric *fabric;
    pthread_mutex_t mutex;
    atomic_bool failed;
    cot_error error;
};

cot_status cot_loader_open(cot_loader **load, const cot_checkpoint *checkpoint, cot_error *error)
{
    *load = calloc(1, sizeof **load);
    if (!*load) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the list of weights");
    (*load)->checkpoint = checkpoint;
    pthread_mutex_init(&(*load)->mutex, NULL);
    return COT_OK;
}

void cot_loader_close(cot_loader *load)
{
    if (!load) return;
    pthread_mutex_destroy(&load->mutex);
    free(load->jobs);
    free(load);
}

void cot_loader_chain(cot_loader *load)
{
    load->group_pending = true;
}

static void record(cot_loader *load, struct job job)
{
    if ((!job.to.b && job.kind != CHECK) || load->out_of_memory) return;
    if (load->count == load->room) {
        size_t room = load->room ? load->room * 2 : 256;
        struct job *jobs = realloc(load->jobs, room * sizeof *jobs);
        if (!jobs) {
            load->out_of_memory = true;
            return;
        }
        load->jobs = jobs;
        load->room = room;
    }
    job.starts_group = load->group_pending || !load->count;
    load->group_pending = false;
    load->jobs[load->count++] = job;
}

void cot_loader_read(cot_loader *load, cot_weight_piece piece, float *to)
{
    record(load, (struct job){.piece = piece, .kind = READ, .to = {.b = to, .format = COT_FORMAT_FP32}});
}

void cot_loader_pack(cot_loader *load, cot_weight_piece piece, void *to, cot_format format, int64_t n,
                     int64_t n0)
{
    record(load, (struct job){.piece = piece, .kind = PACK, .to = {to, format, n, n0}});
}

void cot_loader_pack_transposed(cot_loader *load, cot_weight_piece piece, void *to, cot_format format)
{
    record(load, (struct job){.piece = piece, .kind = PACK_TRANSPOSED, .to = {.b = to, .format = format}});
}

void cot_loader_store_expert(cot_loader *load, cot_weight_piece piece, const cot_moe_weights *weights,
                             uint8_t *slot, const cot_ffn_shape *shape, cot_ffn_part part)
{
    const cot_format format = part == COT_FFN_GATE   ? shape->gate
                              : part == COT_FFN_UP   ? shape->up
                              : part == COT_FFN_DOWN ? shape->down
                                                     : COT_FORMAT_FP32;
    record(load, (struct job){.piece = piece,
                              .kind = STORE_EXPERT,
                              .to = {.b = slot, .format = format},
                              .weights = weights,
                              .shape = *shape,
                              .part = part});
}

void cot_loader_store_gate(cot_loader *load, cot_weight_piece piece, const cot_moe_weights *weights,
                           float *gate)
{
    record(load, (struct job){.piece = piece,
                              .kind = STORE_GATE,
                              .to = {.b = gate, .format = COT_FORMAT_FP32},
                              .weights = weights});
}

void cot_loader_check(cot_loader *load, cot_weight_piece piece)
{
    record(load, (struct job){.piece = piece, .kind = CHECK, .to = {.format = COT_FORMAT_BF16}});
}

/* Packing is what lets go of the file's pages as it reads them. */
static cot_status check(const cot_loader *load, const cot_weight_piece *p, cot_error *error)
{
    const cot_packed_part nowhere = {
        .b = malloc((size_t)cot_packed_bytes(COT_FORMAT_BF16, p->columns, p->rows)),
        .format = COT_FORMAT_BF16,
        .n = p->rows};
    if (!nowhere.b) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a look at the embedding");
    cot_status status = cot_checkpoint_pack(load->checkpoint, p, &nowhere, error);
    free(nowhere.b);
    return status;
}

static void store(void *context, int64_t row, int64_t count, const cot_pack_input *in)
{
    const struct job *job = context;
    const cot_moe_rows rows = {job->piece.row0 + row, count, *in};
    if (job->kind == STORE_GATE)
        job->weights->store_gate(job->to.b, job->piece.columns, job->piece.rows, &rows);
    else
        job->weights->store_expert(job->to.b, &job->shape, job->part, &rows);
}

static cot_status run_job(const cot_loader *load, struct job *job, cot_error *error)
{
    switch (job->kind) {
    case READ:
        return cot_checkpoint_read(load->checkpoint, &job->piece, job->to.b, error);
    case PACK:
        return cot_checkpoint_pack(load->checkpoint, &job->piece, &job->to, error);
    case PACK_TRANSPOSED:
        return cot_checkpoint_pack_transposed(load->checkpoint, &job->piece, job->to.b, job->to.format,
                                              error);
    case STORE_EXPERT:
    case STORE_GATE:
        return cot_checkpoint_hand_on(load->checkpoint, &job->piece, job->to.format, store, job, error);
    case CHECK:
        return check(load, &job->piece, error);
    }
    return COT_OK;
}

static void report(cot_loader_progress *progress, size_t bytes)
{
    if (!progress) return;
    size_t done = atomic_fetch_add(&progress->done_bytes, bytes) + bytes;
    if (progress->report && !atomic_flag_test_and_set(&progress->reporting)) {
        progress->report(progress->context, done, progress->total_bytes);
        atomic_flag_clear(&progress->reporting);
    }
}

static void run_group(void *context, int64_t g)
{
    cot_loader *load = context;
    for (size_t j = load->group[g]; j < load->group[g + 1] && !atomic_load(&load->failed); j++) {
        struct job *job = &load->jobs[j];
        cot_error error = {0};
        cot_status status = load->fabric ? cot_fabric_check(load->fabric, &error) : COT_OK;
        if (status == COT_OK) status = run_job(load, job, &error);
        if (job->kind != CHECK)
            report(load->progress, (size_t)(job->piece.rows * job->piece.columns *
                                            cot_format_row_of(job->to.format)->bits / 8));
        if (status == COT_OK) continue;
        pthread_mutex_lock(&load->mutex);
        if (!atomic_exchange(&load->failed, true)) load->error = error;
        pthread_mutex_unlock(&load->mutex);
    }
}

cot_status cot_loader_run(cot_loader *load, cot_pool *pool, cot_loader_progress *progress, cot_fabric *fabric,
                          cot_error *error)
{
    int64_t groups = 0;
    load->group = malloc((load->count + 1) * sizeof *load->group);
    if (!load->group || load->out_of_memory) {
        free(load->group);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the list of weights");
    }
    for (size_t j = 0; j < load->count; j++)
        if (load->jobs[j].starts_group) load->group[groups++] = j;
    load->group[groups] = load->count;
    load->progress = progress;
    load->fabric = fabric;
    atomic_store(&load->failed, false);
    cot_pool_run(pool, groups, run_group, load);
    free(load->group);
    load->count = 0;
    if (!atomic_load(&load->failed)) return COT_OK;
    return cot_fail(error, load->error.status, "%s", load->error.message);
}
