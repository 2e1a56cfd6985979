#include "harness/moe/run.h"

#include "harness/cmocka.h"
#include "harness/poisoned.h"

#include "fabric/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* What every rank is given. */
struct task {
    const struct world *world;
    const struct plan *plan;
    struct outcome *outcome;
};

/* ---- rows and routing of a rank, in memory of the kind that its operator names ---- */

struct rows {
    const cot_moe_memory *memory;
    void *at;
    size_t bytes;
};

/* Of NaN. Whole pages where they are pinned, since another's may be, too. */
static cot_status rows_take(struct rows *rows, const cot_moe_operator *op, size_t bytes, cot_error *error)
{
    enum { PAGE = 4096 };
    *rows = (struct rows){0};
    if (!op->memory) {
        rows->at = poisoned(bytes);
        return COT_OK;
    }
    const size_t whole = (bytes / PAGE + 1) * PAGE;
    void *at = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(at, MAP_FAILED);
    memset(at, 0xff, whole);
    const cot_status status = op->memory->pin(at, whole, error);
    *rows = (struct rows){status == COT_OK ? op->memory : NULL, at, whole};
    return status;
}

static void rows_free(struct rows *rows)
{
    if (rows->memory) rows->memory->unpin(rows->at, rows->bytes);
    if (rows->bytes)
        munmap(rows->at, rows->bytes);
    else
        free(rows->at);
}

enum { X, Y, EXPERTS, WEIGHTS, ROWS };

static cot_status all_rows_take(struct rows rows[ROWS], const struct world *w, int64_t tokens,
                                cot_error *error)
{
    const size_t row = (size_t)(tokens * w->options.expert.hidden) * sizeof(float),
                 chosen = (size_t)(tokens * w->options.top_k),
                 bytes[ROWS] = {row, row, chosen * sizeof(uint16_t), chosen * sizeof(float)};
    cot_status status = COT_OK;
    memset(rows, 0, ROWS * sizeof *rows);
    for (int i = 0; i < ROWS && status == COT_OK; i++) status = rows_take(&rows[i], w->op, bytes[i], error);
    return status;
}

static void all_rows_free(struct rows rows[ROWS])
{
    for (int i = 0; i < ROWS; i++) rows_free(&rows[i]);
}

/* ---- runs ---- */

/* The oracle's routing of a rank's tokens. */
static void world_route(const struct world *w, const struct plan *p, int64_t begin, int64_t tokens,
                        uint16_t *experts, float *weights)
{
    const int64_t top_k = w->options.top_k;
    for (int64_t i = 0; i < tokens; i++) {
        int64_t chosen[COT_MAX_TOP_K];
        double weight[COT_MAX_TOP_K];
        oracle_route(chosen, weight, &w->gate, w->x + p->order[begin + i] * w->options.expert.hidden);
        for (int64_t k = 0; k < top_k; k++) {
            experts[i * top_k + k] = (uint16_t)chosen[k];
            weights[i * top_k + k] = (float)weight[k];
        }
    }
}

/* What is left of this pass in an operator's buffers is not what the next one writes there. */
static cot_status warm_up(const struct task *m, cot_fabric *fabric, cot_moe *moe, cot_moe_layer layer,
                          const float *x, int64_t tokens, cot_error *error)
{
    const struct world *w = m->world;
    const int64_t top_k = w->options.top_k;
    struct rows rows[ROWS];
    cot_status status = all_rows_take(rows, w, tokens, error);
    uint16_t *experts = rows[EXPERTS].at;
    float *weights = rows[WEIGHTS].at;
    for (int64_t i = 0; i < tokens * top_k && status == COT_OK; i++) {
        experts[i] = (uint16_t)(i % top_k);
        weights[i] = 1;
    }
    layer.gate = NULL;
    if (status == COT_OK)
        status = w->op->forward(moe, &layer, rows[Y].at, experts, weights, x, tokens, error);
    all_rows_free(rows);
    memset(fabric->traffic, 0, (size_t)fabric->ranks * sizeof *fabric->traffic);
    memset(fabric->rounds, 0, sizeof fabric->rounds);
    return status;
}

/* The gate, and the shared expert where there is one, as the operator keeps them. */
static float *store_whole(const struct world *w, uint8_t **shared)
{
    const cot_moe_weights *weights = w->op->weights;
    const int64_t hidden = w->gate.gate.hidden, experts = w->gate.gate.experts;
    float *gate = poisoned(weights->gate_bytes(hidden, experts));
    const cot_moe_rows rows = {0, experts, {.numbers = w->gate.plain, .type = COT_F32, .stride = hidden}};
    weights->store_gate(gate, hidden, experts, &rows);
    if (!w->options.shared.intermediate) return gate;
    *shared = poisoned(weights->slot_bytes(&w->options.shared));
    oracle_ffn_store(&w->shared, weights, *shared);
    return gate;
}

static cot_status rank_passes(const struct task *m, cot_fabric *fabric, cot_moe *moe, cot_sym slots,
                              cot_error *error)
{
    const int rank = fabric->rank;
    const struct world *w = m->world;
    const struct plan *p = m->plan;
    const int64_t hidden = w->options.expert.hidden, top_k = w->options.top_k, begin = p->begin[rank],
                  tokens = p->begin[rank + 1] - begin;
    cot_gate gate = w->gate.gate;
    uint8_t *shared = NULL;
    float *gate_weight = store_whole(w, &shared);
    gate.weight = gate_weight;
    cot_moe_layer layer = {.gate = &gate,
                           .placement = {p->rank, p->slot, p->replica_begin},
                           .slots = slots,
                           .slot_bytes = w->op->weights->slot_bytes(&w->options.expert),
                           .shared = shared,
                           .shared_gate = w->shared_gate};
    struct rows rows[ROWS];
    cot_status status = all_rows_take(rows, w, tokens, error);
    float *x = rows[X].at, *y = rows[Y].at, *weights = rows[WEIGHTS].at;
    uint16_t *experts = rows[EXPERTS].at;
    for (int64_t i = 0; i < tokens && status == COT_OK; i++)
        memcpy(x + i * hidden, w->x + p->order[begin + i] * hidden, (size_t)hidden * sizeof *x);
    if (p->given && status == COT_OK) {
        layer.gate = NULL;
        world_route(w, p, begin, tokens, experts, weights);
    }
    if (status == COT_OK && w->op->keep) status = w->op->keep(moe, &layer, COT_MOE_ALL_SLOTS, error);
    if (status == COT_OK && p->warmed) status = warm_up(m, fabric, moe, layer, x, tokens, error);
    for (int pass = 0; pass < p->passes && status == COT_OK; pass++) {
        memset(y, 0xff, (size_t)(tokens * hidden) * sizeof *y);
        int64_t before = p->count_allocations ? p->count_allocations() : 0;
        status = w->op->forward(moe, &layer, y, experts, weights, x, tokens, error);
        if (p->count_allocations) m->outcome->allocations[rank] += p->count_allocations() - before;
    }
    if (rows[WEIGHTS].at) { // all are there
        memcpy(m->outcome->y + begin * hidden, y, (size_t)(tokens * hidden) * sizeof *y);
        memcpy(m->outcome->experts + begin * top_k, experts, (size_t)(tokens * top_k) * sizeof *experts);
        memcpy(m->outcome->weights + begin * top_k, weights, (size_t)(tokens * top_k) * sizeof *weights);
    }
    all_rows_free(rows);
    free(shared), free(gate_weight);
    return status;
}

static void rank_main(const cot_rank *rank)
{
    const struct task *m = rank->argument;
    const struct plan *p = m->plan;
    cot_fabric *fabric = rank->fabric;
    cot_moe_options options = m->world->options;
    const cot_moe_weights *weights = m->world->op->weights;
    const size_t slot_bytes = weights->slot_bytes(&options.expert);
    cot_error error = {0};
    cot_moe *moe = NULL;
    cot_sym slots;
    options.fabric = fabric;
    options.pool = rank->shared;
    options.slots = p->slots;
    cot_turns_enter(fabric);
    cot_status status = cot_alloc(fabric, &slots, (size_t)p->slots * slot_bytes, &error);
    if (status == COT_OK) {
        uint8_t *memory = cot_local(fabric, slots);
        memset(memory, 0xff, (size_t)p->slots * slot_bytes);
        for (int64_t e = 0; e < options.experts; e++)
            for (int32_t i = p->replica_begin[e]; i < p->replica_begin[e + 1]; i++)
                if (p->rank[i] == fabric->rank)
                    oracle_ffn_store(&m->world->experts[e], weights,
                                     memory + (size_t)p->slot[i] * slot_bytes);
        status = m->world->op->open(&moe, &options, &error);
    }
    if (status == COT_OK && (!p->begins || p->begins(fabric)))
        status = rank_passes(m, fabric, moe, slots, &error);
    cot_turns_leave(fabric);
    m->outcome->status[fabric->rank] = status;
    memcpy(m->outcome->message[fabric->rank], error.message, sizeof error.message);
    memcpy(m->outcome->traffic[fabric->rank], fabric->traffic,
           (size_t)fabric->ranks * sizeof *fabric->traffic);
    memcpy(m->outcome->rounds[fabric->rank], fabric->rounds, sizeof fabric->rounds);
    m->world->op->close(moe);
}

static size_t outcome_bytes(const struct world *w)
{
    return sizeof(struct outcome) + (size_t)(w->tokens * w->options.expert.hidden) * sizeof(float);
}

void outcome_free(struct outcome *outcome, const struct world *w)
{
    munmap(outcome, outcome_bytes(w));
}

static void world_launch(const struct task *task)
{
    const struct world *w = task->world;
    const struct plan *p = task->plan;
    cot_moe_options moe = w->options;
    moe.slots = p->slots;
    const cot_launch_options options = {
        .ranks = p->ranks,
        .threads = p->running < p->ranks ? p->running : p->ranks,
        .heap_bytes = cot_alloc_bytes((size_t)p->slots * w->op->weights->slot_bytes(&w->options.expert)) +
                      w->op->heap_bytes(&moe, p->ranks),
        .timeout_ns = p->timeout_ns ? p->timeout_ns : 60000000000,
        .main = rank_main,
        .argument = task,
        .shared = p->pool};
    cot_launch *launch;
    const cot_rank *root;
    cot_error error;
    const cot_fabric_backend *backend = cot_fabric_backend_find(p->forked ? "processes" : "threads");
    if (cot_launch_open(&launch, &root, backend, &options, &error) != COT_OK) fail_msg("%s", error.message);
    rank_main(root);
    cot_launch_close(launch);
}

struct outcome *world_run(const struct world *w, const struct plan *p)
{
    struct outcome *outcome =
        mmap(NULL, outcome_bytes(w), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(outcome, MAP_FAILED);
    for (int r = 0; r < p->ranks; r++) outcome->status[r] = COT_IO; // until the rank says otherwise
    const struct task task = {w, p, outcome};
    if (!p->forked) {
        world_launch(&task);
        return outcome;
    }
    fflush(NULL);
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    const pid_t root = fork();
    assert_true(root >= 0);
    if (!root) {
        world_launch(&task);
        _exit(0);
    }
    while (wait(NULL) > 0) continue;
    return outcome;
}
