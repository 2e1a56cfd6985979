/* One MoE layer with drawn weights and tokens, its answer in double precision, and runs of it over groups of
 * ranks with the operator in hand. */
#ifndef COT_TESTS_MOE_WORLD_H
#define COT_TESTS_MOE_WORLD_H
#include "oracle.h"

#include "fabric/launch.h"
#include "moe/moe.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORLD_TOKENS = 2048, WORLD_EXPERTS = 512 };

static const char *world_op = "bulk";
static cot_moe_combine world_combine; // reduced: rows travel back in fp32

static inline const cot_moe_operator *world_operator(void)
{
    return cot_moe_operator_find(world_op);
}

struct world {
    cot_moe_options options; // all but the fabric
    struct oracle_gate gate;
    struct oracle_ffn *experts, shared;
    float *shared_gate; // [H], or NULL
    int64_t tokens;
    float *x;   // [T][H]
    double *y;  // [T][H], what the operator should answer
    bool *sure; // [T]: whether y is the only right answer
    double tolerance;
};

/* Which rank has which experts (in which slot) and which tokens: token t is home on the rank whose
 * begin[r] <= t < begin[r + 1]. */
struct plan {
    int ranks, running;
    bool forked;
    cot_pool *pool;
    int passes;
    int64_t timeout_ns;                 // 0: a minute
    bool (*begins)(cot_fabric *fabric); // called before the first pass: whether the rank takes part; or NULL
    bool given;                         // the routing is an input: what the oracle routes
    int32_t rank[2 * WORLD_EXPERTS], slot[2 * WORLD_EXPERTS]; // [replicas]
    int32_t replica_begin[WORLD_EXPERTS + 1];
    int32_t slots; // a rank
    int64_t begin[COT_MAX_RANKS + 1];
    int64_t order[WORLD_TOKENS]; // the run's token i is the world's token order[i]
};

/* What a run left: the test's record, in memory shared with forked ranks, to which each rank writes its own part. */
struct outcome {
    cot_status status[COT_MAX_RANKS];
    char message[COT_MAX_RANKS][256];
    cot_traffic traffic[COT_MAX_RANKS][COT_MAX_RANKS][COT_PHASES];
    int64_t allocations[COT_MAX_RANKS]; // made within forward
    uint16_t experts[WORLD_TOKENS * COT_MAX_TOP_K];
    float weights[WORLD_TOKENS * COT_MAX_TOP_K];
    float y[]; // [T][H]
};

static inline struct world world_new(const cot_moe_options *options, const cot_gate *rules, bool with_bias,
                                     bool with_correction, bool shared_gated, int64_t tokens,
                                     struct draw *draw)
{
    struct world w = {.options = *options, .tokens = tokens};
    w.options.combine = world_combine;
    w.options.combine_type = world_combine == COT_COMBINE_REDUCED ? COT_F32 : options->expert.type;
    w.options.threads = 4;
    int64_t hidden = options->expert.hidden;
    assert_true(tokens <= WORLD_TOKENS && options->experts <= WORLD_EXPERTS);
    if (!w.options.kernels) assert_int_equal(cot_kernels_choose(&w.options.kernels, NULL, NULL), COT_OK);
    w.options.tokens = tokens ? tokens : 1;
    w.gate = oracle_gate_new(rules, with_bias, with_correction, draw);
    w.experts = calloc((size_t)options->experts, sizeof *w.experts);
    for (int64_t e = 0; e < options->experts; e++) w.experts[e] = oracle_ffn_new(&options->expert, draw);
    if (options->shared.intermediate) w.shared = oracle_ffn_new(&options->shared, draw);
    if (shared_gated) w.shared_gate = draw_floats(draw, hidden, 1);
    w.x = draw_floats(draw, tokens * hidden, 1);
    return w;
}

/* The answer for the tokens as they are now. */
static inline void world_solve(struct world *w)
{
    int64_t hidden = w->options.expert.hidden, top_k = w->options.top_k;
    cot_dtype type = w->options.expert.type;
    free(w->y), free(w->sure);
    w->y = calloc((size_t)(w->tokens * hidden) + 1, sizeof *w->y);
    w->sure = calloc((size_t)w->tokens + 1, sizeof *w->sure);
    double *row = calloc((size_t)hidden, sizeof *row), largest = 0;
    for (int64_t t = 0; t < w->tokens; t++) {
        int64_t experts[COT_MAX_TOP_K];
        double weights[COT_MAX_TOP_K], *y = w->y + t * hidden, logit = 0;
        const float *x = w->x + t * hidden;
        w->sure[t] = oracle_route(experts, weights, &w->gate, x);
        for (int64_t k = 0; k < top_k; k++) {
            oracle_ffn_apply(row, &w->experts[experts[k]], x);
            for (int64_t h = 0; h < hidden; h++) {
                y[h] += rounded(weights[k] * row[h], type);
                largest = fmax(largest, fabs(weights[k] * row[h]));
            }
        }
        if (!w->options.shared.intermediate) continue;
        oracle_ffn_apply(row, &w->shared, x);
        for (int64_t h = 0; h < hidden && w->shared_gate; h++)
            logit += (double)x[h] * (double)w->shared_gate[h];
        for (int64_t h = 0; h < hidden; h++) {
            row[h] *= w->shared_gate ? 1 / (1 + exp(-logit)) : 1;
            y[h] += row[h];
            largest = fmax(largest, fabs(row[h]));
        }
    }
    w->tolerance = (1 + largest) * (type == COT_BF16 ? 0.02 : 3e-5);
    free(row);
}

static inline void world_free(struct world *w)
{
    for (int64_t e = 0; e < w->options.experts; e++) oracle_ffn_free(&w->experts[e]);
    oracle_ffn_free(&w->shared);
    oracle_gate_free(&w->gate);
    free(w->experts), free(w->shared_gate), free(w->x), free(w->y), free(w->sure);
}

/* Tokens and experts split by the rule of equal shares, experts in slots 0, 1, ... */
static inline struct plan plan_even(const struct world *w, int ranks)
{
    struct plan p = {.ranks = ranks, .running = 2, .passes = 1};
    int64_t experts = w->options.experts;
    for (int r = 0; r <= ranks; r++) p.begin[r] = cot_share_begin(w->tokens, r, ranks);
    for (int r = 0; r < ranks; r++) {
        const int64_t first = cot_share_begin(experts, r, ranks);
        for (int64_t e = first; e < cot_share_begin(experts, r + 1, ranks); e++) {
            p.rank[e] = r;
            p.slot[e] = (int32_t)(e - first);
            p.replica_begin[e + 1] = (int32_t)e + 1;
        }
    }
    p.slots = (int32_t)(experts / ranks + 1);
    for (int64_t t = 0; t < w->tokens; t++) p.order[t] = t;
    return p;
}

/* Each expert on one or more ranks, tokens split evenly. */
static inline struct plan plan_replicated(const struct world *w, int ranks, struct draw *draw)
{
    struct plan p = plan_even(w, ranks);
    int32_t used[COT_MAX_RANKS] = {0}, n = 0;
    for (int64_t e = 0; e < w->options.experts; e++) {
        p.replica_begin[e] = n;
        const int64_t first = draw_below(draw, ranks), copies = 1 + draw_below(draw, ranks < 3 ? ranks : 3);
        for (int64_t c = 0; c < copies && n < 2 * WORLD_EXPERTS; c++, n++) {
            p.rank[n] = (int32_t)((first + c) % ranks);
            p.slot[n] = used[p.rank[n]]++;
        }
    }
    p.replica_begin[w->options.experts] = n;
    p.slots = (int32_t)w->options.experts;
    return p;
}

/* Experts anywhere, in any slots; tokens split anyhow and in any order, some ranks without. */
static inline struct plan plan_drawn(const struct world *w, int ranks, struct draw *draw)
{
    struct plan p = plan_even(w, ranks);
    int64_t experts = w->options.experts;
    p.slots = (int32_t)experts + 1;
    for (int64_t e = 0; e < experts; e++) {
        p.rank[e] = (int32_t)draw_below(draw, ranks);
        p.slot[e] = (int32_t)e;
        int64_t other = draw_below(draw, e + 1);
        p.slot[e] = p.slot[other], p.slot[other] = (int32_t)e;
    }
    for (int r = 1; r < ranks; r++) {
        int64_t cut = draw_below(draw, w->tokens + 1);
        int at = r;
        for (; at > 1 && p.begin[at - 1] > cut; at--) p.begin[at] = p.begin[at - 1];
        p.begin[at] = cut;
    }
    for (int64_t t = w->tokens - 1; t > 0; t--) {
        int64_t other = draw_below(draw, t + 1), kept = p.order[t];
        p.order[t] = p.order[other], p.order[other] = kept;
    }
    return p;
}

/* Tests that count allocations have a counter that every thread keeps for itself; see test_bulk_allocation.c.
 */
static int64_t (*count_allocations)(void);

/* What every rank is given. */
struct task {
    const struct world *world;
    const struct plan *plan;
    struct outcome *outcome;
};

/* The oracle's routing of a rank's tokens. */
static inline void world_route(const struct world *w, const struct plan *p, int64_t begin, int64_t tokens,
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

static inline cot_status rank_passes(const struct task *m, int rank, cot_moe *moe, cot_sym slots,
                                     cot_error *error)
{
    const struct world *w = m->world;
    const struct plan *p = m->plan;
    int64_t hidden = w->options.expert.hidden, begin = p->begin[rank], tokens = p->begin[rank + 1] - begin;
    cot_moe_layer layer = {.gate = &w->gate.gate,
                           .placement = {p->rank, p->slot, p->replica_begin},
                           .slots = slots,
                           .shared = w->options.shared.intermediate ? w->shared.packed : NULL,
                           .shared_gate = w->shared_gate};
    float *x = poisoned((size_t)(tokens * hidden) * sizeof *x);
    for (int64_t i = 0; i < tokens; i++)
        memcpy(x + i * hidden, w->x + p->order[begin + i] * hidden, (size_t)hidden * sizeof *x);
    uint16_t *experts = m->outcome->experts + begin * w->options.top_k;
    float *weights = m->outcome->weights + begin * w->options.top_k;
    if (p->given) {
        layer.gate = NULL;
        world_route(w, p, begin, tokens, experts, weights);
    }
    cot_status status = COT_OK;
    for (int pass = 0; pass < p->passes && status == COT_OK; pass++) {
        float *y = m->outcome->y + begin * hidden;
        memset(y, 0xff, (size_t)(tokens * hidden) * sizeof *y);
        int64_t before = count_allocations ? count_allocations() : 0;
        status = world_operator()->forward(moe, &layer, y, experts, weights, x, tokens, error);
        if (count_allocations) m->outcome->allocations[rank] += count_allocations() - before;
    }
    free(x);
    return status;
}

static inline void rank_main(const cot_rank *rank)
{
    const struct task *m = rank->argument;
    const struct plan *p = m->plan;
    cot_fabric *fabric = rank->fabric;
    cot_moe_options options = m->world->options;
    size_t slot_bytes = cot_ffn_layout_of(&options.expert).bytes;
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
                    memcpy(memory + (size_t)p->slot[i] * slot_bytes, m->world->experts[e].packed, slot_bytes);
        status = world_operator()->open(&moe, &options, &error);
    }
    if (status == COT_OK && (!p->begins || p->begins(fabric)))
        status = rank_passes(m, fabric->rank, moe, slots, &error);
    cot_turns_leave(fabric);
    m->outcome->status[fabric->rank] = status;
    memcpy(m->outcome->message[fabric->rank], error.message, sizeof error.message);
    memcpy(m->outcome->traffic[fabric->rank], fabric->traffic,
           (size_t)fabric->ranks * sizeof *fabric->traffic);
    world_operator()->close(moe);
}

static inline size_t outcome_bytes(const struct world *w)
{
    return sizeof(struct outcome) + (size_t)(w->tokens * w->options.expert.hidden) * sizeof(float);
}

static inline void outcome_free(struct outcome *outcome, const struct world *w)
{
    munmap(outcome, outcome_bytes(w));
}

static inline void world_launch(const struct task *task)
{
    const struct world *w = task->world;
    const struct plan *p = task->plan;
    cot_moe_options moe = w->options;
    moe.slots = p->slots;
    const cot_launch_options options = {
        .ranks = p->ranks,
        .threads = p->running < p->ranks ? p->running : p->ranks,
        .heap_bytes = cot_alloc_bytes((size_t)p->slots * cot_ffn_layout_of(&w->options.expert).bytes) +
                      world_operator()->heap_bytes(&moe, p->ranks),
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

/* Runs all ranks to their end, as threads or as processes, of which none is the test's, since a test may kill any:
 * it is left with those whose parent was killed. Freed by outcome_free. */
static inline struct outcome *world_run(const struct world *w, const struct plan *p)
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

/* Every rank succeeded and every token whose routing is certain has the right answer. */
static inline void outcome_agrees(const struct outcome *outcome, const struct world *w, const struct plan *p)
{
    int64_t hidden = w->options.expert.hidden, sure = 0;
    for (int r = 0; r < p->ranks; r++)
        if (outcome->status[r] != COT_OK) fail_msg("rank %d of %d: %s", r, p->ranks, outcome->message[r]);
    for (int64_t t = 0; t < p->begin[p->ranks]; t++) {
        if (!w->sure[p->order[t]]) continue;
        sure++;
        for (int64_t h = 0; h < hidden; h++)
            near(outcome->y[t * hidden + h], w->y[p->order[t] * hidden + h], w->tolerance);
    }
    assert_true(sure >= p->begin[p->ranks] * 8 / 10);
}

/* What every pair of ranks exchanges: (token, expert) pairs, and tokens with any expert there. */
struct exchange {
    uint64_t entries[COT_MAX_RANKS][COT_MAX_RANKS], rows[COT_MAX_RANKS][COT_MAX_RANKS];
};

static inline void exchange_of(struct exchange *x, const struct outcome *outcome, const struct world *w,
                               const struct plan *p)
{
    const cot_expert_replicas placement = {p->rank, p->slot, p->replica_begin};
    const int64_t top_k = w->options.top_k;
    memset(x, 0, sizeof *x);
    for (int home = 0; home < p->ranks; home++)
        for (int64_t t = p->begin[home]; t < p->begin[home + 1]; t++) {
            bool there[COT_MAX_RANKS] = {false};
            for (int64_t k = 0; k < top_k; k++) {
                int rank = p->rank[cot_expert_replica(&placement, outcome->experts[t * top_k + k], home,
                                                      t - p->begin[home])];
                x->entries[home][rank]++;
                x->rows[home][rank] += !there[rank];
                there[rank] = true;
            }
        }
}

/* The bytes of every phase and pair of ranks are those of the closed form. */
static inline void outcome_counts(const struct outcome *outcome, const struct world *w, const struct plan *p)
{
    static struct exchange x;
    exchange_of(&x, outcome, w, p);
    const bool bulk = !strcmp(world_op, "bulk"), exact = w->options.combine == COT_COMBINE_EXACT;
    const uint64_t row = (uint64_t)w->options.expert.hidden * cot_dtype_bytes(w->options.expert.type),
                   reply = (uint64_t)w->options.expert.hidden * cot_dtype_bytes(w->options.combine_type),
                   passes = (uint64_t)p->passes, ranks = (uint64_t)p->ranks;
    uint64_t metadata = 0, entries = 0;
    for (int s = 0; s < p->ranks; s++)
        for (int d = 0; d < p->ranks; d++) {
            const cot_traffic *t = outcome->traffic[s][d];
            const uint64_t there = bulk ? x.entries[s][d] : x.rows[s][d],
                           back = bulk || exact ? x.entries[d][s] : x.rows[d][s];
            assert_int_equal(t[COT_PHASE_DISPATCH].bytes, s == d ? 0 : passes * row * there);
            assert_int_equal(t[COT_PHASE_COMBINE].bytes, s == d ? 0 : passes * reply * back);
            assert_int_equal(t[COT_PHASE_ATTENTION].bytes + t[COT_PHASE_CONTROL].bytes, 0);
            metadata += t[COT_PHASE_METADATA].bytes;
            entries += s == d ? 0 : x.entries[s][d];
            if (!bulk)
                assert_int_equal(t[COT_PHASE_METADATA].bytes,
                                 s == d ? 0 : passes * (4 * x.rows[s][d] + 8 * x.entries[s][d]));
        }
    const int64_t replicas = p->replica_begin[w->options.experts];
    if (bulk) assert_int_equal(metadata, passes * 4 * (entries + (ranks - 1) * ranks * (uint64_t)replicas));
}

#endif
