/* The token table: how often each token called each expert, layer by layer; and the rank that follows. */
#include "predict/predictor.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

void cot_pair_of_counts(uint16_t pair[2], const uint32_t *count, const int32_t *expert_rank,
                        int32_t n_experts, int32_t n_ranks, int32_t given)
{
    uint64_t sum[COT_TRACE_MAX_RANKS] = {0}, total = 0;
    for (int32_t e = 0; e < n_experts; e++) {
        sum[expert_rank[e]] += count[e];
        total += count[e];
    }
    int32_t rank = given;
    if (rank < 0 && total) {
        rank = 0;
        for (int32_t d = 1; d < n_ranks; d++)
            if (sum[d] > sum[rank]) rank = d;
    }
    pair[0] = rank < 0 ? COT_NO_RANK : (uint16_t)rank;
    pair[1] = rank < 0 || !total ? 0 : (uint16_t)(65535 * (double)sum[rank] / (double)total);
}

/* Where the training tokens of each row are. */
typedef struct row_index {
    int64_t *first; // [N + 1] into `token`
    int64_t *token; // [n] positions, by row
} row_index;

/* A layer's part of the table, until all layers' sizes are known. */
typedef struct layer_part {
    int64_t *first; // [N + 1] into the entries
    uint16_t *experts, *shares;
    int64_t n, room;
    bool failed;
} layer_part;

typedef struct counting {
    const cot_training *training;
    row_index index;
    layer_part *part; // [L]
    uint16_t *layer_shares, *layer_ranks, *token_ranks;
    uint32_t *frequency;  // [L][N] of kind counts; NULL
    const int32_t *given; // [N] place of the row's id in options.token_ids, or -1; NULL
} counting;

static void tally(uint32_t *count, const cot_trace *trace, int32_t l, int64_t token)
{
    if (trace->kind == COT_TRACE_COUNTS) {
        const uint32_t *from = trace->counts + (l * trace->n_tokens + token) * trace->n_experts;
        for (int32_t e = 0; e < trace->n_experts; e++) count[e] += from[e];
    } else {
        for (int32_t k = 0; k < trace->top_k; k++) count[cot_trace_expert(trace, l, token, k)]++;
    }
}

static uint16_t share(uint64_t count, uint64_t total, int32_t top_k)
{
    const double s = 65535 * (double)count * top_k / (double)total;
    return s >= 65535 ? 65535 : s < 1 ? 1 : (uint16_t)(s + 0.5); // what was seen is never nothing
}

/* Appends the row's entries; false when out of memory. */
static bool append(layer_part *part, const uint32_t *count, int32_t n_experts, int32_t top_k)
{
    uint64_t total = 0;
    for (int32_t e = 0; e < n_experts; e++) total += count[e];
    if (part->n + n_experts > part->room) {
        const int64_t room = part->room * 2 + n_experts + 1024;
        uint16_t *experts = realloc(part->experts, (size_t)room * sizeof *experts);
        if (experts) part->experts = experts;
        uint16_t *shares = realloc(part->shares, (size_t)room * sizeof *shares);
        if (shares) part->shares = shares;
        if (!experts || !shares) return false;
        part->room = room;
    }
    for (int32_t e = 0; e < n_experts; e++) {
        if (!count[e]) continue;
        part->experts[part->n] = (uint16_t)e;
        part->shares[part->n++] = share(count[e], total, top_k);
    }
    return true;
}

/* Counts one layer. */
static void count_layer(void *context, int64_t l)
{
    const counting *c = context;
    const cot_training *t = c->training;
    const cot_predictor *p = t->predictor;
    const int32_t E = p->n_experts;
    const int64_t N = p->n_tokens;
    const int32_t *expert_rank = p->expert_rank + l * E;
    layer_part *part = &c->part[l];
    uint32_t *all = calloc(2 * (size_t)E, sizeof *all), *count = all + E;
    part->first = calloc((size_t)N + 1, sizeof *part->first);
    part->failed = !all || !part->first;
    for (int64_t i = 0; i < t->n && !part->failed; i++) tally(all, t->trace, (int32_t)l, t->token[i]);
    for (int64_t r = 0; r < N && !part->failed; r++) {
        memset(count, 0, (size_t)E * sizeof *count);
        for (int64_t i = c->index.first[r]; i < c->index.first[r + 1]; i++)
            tally(count, t->trace, (int32_t)l, c->index.token[i]);
        part->failed = !append(part, count, E, p->top_k);
        part->first[r + 1] = part->n;
        const int32_t place = c->given ? c->given[r] : -1;
        cot_pair_of_counts(c->token_ranks + 2 * (r * p->n_layers + l), count, expert_rank, E, p->n_ranks,
                           place < 0 ? -1 : t->options->token_rank[l * t->options->n_tokens + place]);
        if (!c->frequency) continue;
        uint64_t total = 0;
        for (int32_t e = 0; e < E; e++) total += count[e];
        total = (total + (uint64_t)p->top_k - 1) / (uint64_t)p->top_k;
        c->frequency[l * N + r] = total > UINT16_MAX ? UINT16_MAX : (uint32_t)total;
    }
    if (!part->failed) {
        uint64_t total = 0;
        for (int32_t e = 0; e < E; e++) total += all[e];
        for (int32_t e = 0; e < E; e++)
            if (all[e]) c->layer_shares[l * E + e] = share(all[e], total, p->top_k);
        cot_pair_of_counts(c->layer_ranks + 2 * l, all, expert_rank, E, p->n_ranks, -1);
    }
    free(all);
}

static bool index_rows(row_index *index, const cot_training *t)
{
    const int64_t N = t->predictor->n_tokens;
    index->first = calloc((size_t)N + 2, sizeof *index->first);
    index->token = calloc((size_t)t->n + 1, sizeof *index->token);
    if (!index->first || !index->token) return false;
    for (int64_t i = 0; i < t->n; i++)
        if (t->row[t->token[i]] >= 0) index->first[t->row[t->token[i]] + 2]++;
    for (int64_t r = 0; r < N; r++) index->first[r + 2] += index->first[r + 1];
    for (int64_t i = 0; i < t->n; i++)
        if (t->row[t->token[i]] >= 0) index->token[index->first[t->row[t->token[i]] + 1]++] = t->token[i];
    return true;
}

/* The parts one after another. */
static bool join(cot_predictor *p, const counting *c)
{
    const int64_t L = p->n_layers, N = p->n_tokens;
    int64_t n = 0;
    for (int64_t l = 0; l < L; l++) {
        if (c->part[l].failed) return false;
        n += c->part[l].n;
    }
    if (!p->has_tokens) return true;
    int64_t *offsets = cot_predictor_alloc(p, L * N + 1, sizeof *offsets);
    uint16_t *experts = cot_predictor_alloc(p, n, sizeof *experts);
    uint16_t *shares = cot_predictor_alloc(p, n, sizeof *shares);
    uint16_t *frequency = cot_predictor_alloc(p, N, sizeof *frequency);
    if (!offsets || !experts || !shares || !frequency) return false;
    n = 0;
    for (int64_t l = 0; l < L; l++) {
        const layer_part *part = &c->part[l];
        for (int64_t r = 0; r < N; r++) offsets[l * N + r] = n + part->first[r];
        if (part->n) {
            memcpy(experts + n, part->experts, (size_t)part->n * sizeof *experts);
            memcpy(shares + n, part->shares, (size_t)part->n * sizeof *shares);
        }
        n += part->n;
    }
    offsets[L * N] = n;
    for (int64_t r = 0; r < N; r++) {
        int64_t most = c->index.first[r + 1] - c->index.first[r];
        if (c->frequency) {
            most = 0;
            for (int64_t l = 0; l < L; l++)
                if (c->frequency[l * N + r] > most) most = c->frequency[l * N + r];
        }
        frequency[r] = most > UINT16_MAX ? UINT16_MAX : (uint16_t)most;
    }
    p->n_entries = n;
    p->token_offsets = offsets;
    p->token_experts = experts;
    p->token_shares = shares;
    p->token_frequency = frequency;
    return true;
}

/* Where each row's id is among those of given rank. Both ascend. */
static int32_t *places(const cot_predictor *p, const cot_predictor_options *options)
{
    int32_t *place = malloc(((size_t)p->n_tokens + 1) * sizeof *place);
    for (int64_t r = 0, i = 0; place && r < p->n_tokens; r++) {
        while (i < options->n_tokens && options->token_ids[i] < p->token_ids[r]) i++;
        place[r] = i < options->n_tokens && options->token_ids[i] == p->token_ids[r] ? (int32_t)i : -1;
    }
    return place;
}

cot_status cot_train_tokens(cot_training *t, cot_error *error)
{
    cot_predictor *p = t->predictor;
    const int64_t L = p->n_layers, N = p->n_tokens;
    counting c = {.training = t};
    int32_t *given = NULL;
    c.part = calloc((size_t)L, sizeof *c.part);
    c.layer_shares = cot_predictor_alloc(p, L * p->n_experts, sizeof *c.layer_shares);
    c.layer_ranks = cot_predictor_alloc(p, L * 2, sizeof *c.layer_ranks);
    c.token_ranks = cot_predictor_alloc(p, L * N * 2, sizeof *c.token_ranks);
    bool fine = c.part && c.layer_shares && c.layer_ranks && c.token_ranks && index_rows(&c.index, t);
    if (fine && t->options->n_tokens) fine = (c.given = given = places(p, t->options));
    if (fine && t->trace->kind == COT_TRACE_COUNTS)
        fine = (c.frequency = calloc((size_t)(L * N) + 1, sizeof *c.frequency));
    if (fine) {
        cot_pool_run(t->pool, L, count_layer, &c);
        fine = join(p, &c);
        p->layer_shares = c.layer_shares;
        p->layer_ranks = c.layer_ranks;
        p->token_ranks = c.token_ranks;
    }
    for (int64_t l = 0; c.part && l < L; l++) {
        free(c.part[l].first);
        free(c.part[l].experts);
        free(c.part[l].shares);
    }
    free(c.part);
    free(c.index.first);
    free(c.index.token);
    free(c.frequency);
    free(given);
    return fine
               ? COT_OK
               : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a table of %lld tokens", (long long)N);
}
