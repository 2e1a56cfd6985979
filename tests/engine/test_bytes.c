/* The counted bytes are those of the closed form for the routing that occurred, exactly. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/engine/tables.h"
#include "harness/memory.h"
#include "harness/predict/plain_homes.h"
#include "harness/seed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DISPATCH, COMBINE, ATTENTION, METADATA, CONTROL, PAIRS = 64 * 64 };

/* What the phases should have moved, worked out from what on_routing says. Routing is told a step at a time,
 * span after span, and logits after it. */
struct account {
    const cot_engine_info *info;
    int ranks;
    bool norms; // over whole rows that are split over ranks, whose sums are metadata too
    bool dp, bulk, reduced, padded, one_shot, dedup, direct;
    uint64_t width;                  // bytes an element
    const cot_expert_map *placement; // NULL: consecutive experts, or the tables'
    bool s_moe;
    const cot_predictor *tables; // NULL: none
    cot_predict_method method;   // COT_PREDICT_METHODS: none
    /* The step under way. */
    int64_t tokens, capacity;
    int *sequence;     // [capacity]
    int32_t *ids;      // [capacity]
    uint16_t *experts; // [capacity][MoE layers][K]
    bool closed;       // its logits have begun
    /* The whole run. */
    uint64_t entries[PAIRS], rows[PAIRS];        // [home][rank] (token, expert); tokens with any expert there
    uint64_t dispatched[PAIRS], combined[PAIRS]; // [from][to] rows
    uint64_t metadata[PAIRS];                    // [from][to] bytes, those of norms aside
    uint64_t attention_bytes, activations, local, remote_ranks, moe_tokens;
    int64_t steps, all_tokens;
};

static int owner(int64_t n, int64_t i, int ranks)
{
    int r = 0;
    while (!(r * n / ranks <= i && i < (r + 1) * n / ranks)) r++;
    return r;
}

/* The rank that serves the n-th of home's tokens: home itself where it has the expert, else those that do in turn,
 * slot after slot. *replica is a number of its own among the layer's. */
static int serves(const struct account *a, int64_t l, int64_t expert, int home, int64_t n, int64_t *replica)
{
    *replica = expert;
    const cot_expert_map *m = a->placement;
    cot_predictor_info groups;
    if (a->tables) {
        cot_predictor_describe(&groups, a->tables);
        return groups.expert_rank[l * a->info->experts + expert];
    }
    if (!m) return owner(a->info->experts, expert, a->ranks);
    const int32_t *row = m->expert + l * m->n_ranks * m->slots_per_rank;
    int32_t found[3];
    int64_t copies = 0, chosen = -1;
    for (int32_t i = 0; i < m->n_ranks * m->slots_per_rank; i++)
        if (row[i] == expert) found[copies++] = i;
    for (int64_t i = copies - 1; i >= 0; i--)
        if (found[i] / m->slots_per_rank == home) chosen = i;
    *replica = found[chosen < 0 ? (home + n) % copies : chosen];
    return (int)(*replica / m->slots_per_rank);
}

/* How many replicas of experts a rank has. */
static uint64_t replicas_on(const struct account *a, int64_t l, int rank)
{
    const cot_expert_map *m = a->placement;
    uint64_t count = 0;
    int64_t replica;
    if (m)
        for (int32_t i = 0; i < m->slots_per_rank; i++)
            count += m->expert[(l * m->n_ranks + rank) * m->slots_per_rank + i] >= 0;
    for (int64_t e = 0; e < a->info->experts && !m; e++) count += serves(a, l, e, 0, 0, &replica) == rank;
    return count;
}

/* Whether ranks of the layers before are told with the rows. */
static bool looks_back(const struct account *a)
{
    return a->method == COT_PREDICT_DEVICE_SEQUENCE || a->method == COT_PREDICT_ALGORITHM_2;
}

/* homes [MoE layers][tokens] of the step. */
static void settle_homes(const struct account *a, int16_t *homes)
{
    const int64_t n = a->tokens, layers = a->info->moe_layers, k = a->info->top_k;
    int16_t *before = must_allocate((size_t)n * COT_PREDICT_MAX_ORDER, sizeof *before);
    for (int64_t l = 0; l < layers; l++) {
        int16_t *home = homes + l * n;
        for (int64_t i = 0; i < n; i++)
            home[i] = (int16_t)(a->dp ? a->sequence[i] % a->ranks : owner(n, i, a->ranks));
        for (int64_t i = 0; i < n * COT_PREDICT_MAX_ORDER; i++) {
            const int64_t at = l - 1 - i % COT_PREDICT_MAX_ORDER, token = i / COT_PREDICT_MAX_ORDER;
            before[i] = -1;
            if (a->tables && at >= 0)
                before[i] = plain_rank_of_most(a->tables, (int)at, a->experts + (token * layers + at) * k);
        }
        if (a->method != COT_PREDICT_METHODS)
            plain_homes(home, a->tables, a->method, (int)l, a->ids, before, n);
    }
    free(before);
}

/* All ranks together, the layers that are dense included. */
static uint64_t attention_bytes(const struct account *a)
{
    const uint64_t p = (uint64_t)a->ranks, t = (uint64_t)a->tokens,
                   row = (uint64_t)a->info->hidden * a->width;
    if (a->dp) return 0;
    const uint64_t rows = (uint64_t)a->info->layers * (a->s_moe ? 2 : 3) * (p - 1) * t * row;
    return rows + (looks_back(a) ? (uint64_t)a->info->moe_layers * (p - 1) * t : 0);
}

/* What goes from whom to whom in one layer of a step: docs/BYTES.md's equalities. */
struct layer {
    uint64_t entries[PAIRS], rows[PAIRS]; // [home][rank]
    uint64_t longest;                     // most rows of any replica from any rank
};

static void settle_layer(struct account *a, const struct layer *x, int64_t l)
{
    const uint64_t p = (uint64_t)a->ranks;
    uint64_t on[64], all = 0;
    for (int r = 0; r < a->ranks; r++) all += on[r] = replicas_on(a, l, r);
    for (int s = 0; s < a->ranks; s++)
        for (int d = 0; d < a->ranks; d++) {
            const int at = s * a->ranks + d, back = d * a->ranks + s;
            const uint64_t entries = x->entries[at], padded = on[d] * x->longest,
                           rows = a->dedup ? x->rows[at] : entries,
                           told = (a->dedup ? 4 * rows : 0) + 8 * entries;
            a->entries[at] += entries;
            a->rows[at] += x->rows[at];
            if (s == d) continue;
            a->dispatched[at] += a->padded ? padded : rows;
            a->combined[at] += a->padded ? on[s] * x->longest : a->reduced ? x->rows[back] : x->entries[back];
            if (!a->bulk)
                a->metadata[at] += told;
            else if (a->padded)
                a->metadata[at] += 4 + (padded ? 4 * (on[d] + padded) : 0);
            else if (a->one_shot)
                a->metadata[at] += rows ? 4 + told : 0;
            else
                a->metadata[at] += a->dedup ? 8 * p + told : 4 * all + 4 * entries;
        }
}

static void settle_step(struct account *a)
{
    const cot_engine_info *info = a->info;
    if (!a->tokens) return;
    a->attention_bytes += attention_bytes(a);
    int16_t *homes = must_allocate((size_t)(a->tokens * info->moe_layers) + 1, sizeof *homes);
    int64_t own[64] = {0};
    settle_homes(a, homes);
    const int64_t most = a->placement ? a->ranks * a->placement->slots_per_rank : info->experts;
    for (int64_t l = 0; l < info->moe_layers; l++) {
        struct layer *x = calloc(1, sizeof *x);
        uint64_t *block = calloc((size_t)(a->ranks * most), sizeof *block);
        assert_non_null(x);
        assert_non_null(block);
        memset(own, 0, sizeof own);
        for (int64_t i = 0; i < a->tokens; i++) {
            const int home = homes[l * a->tokens + i];
            uint64_t others = 0, there = 0;
            for (int64_t k = 0; k < info->top_k; k++) {
                int64_t expert = a->experts[(i * info->moe_layers + l) * info->top_k + k], replica;
                int rank = serves(a, l, expert, home, own[home], &replica);
                x->entries[home * a->ranks + rank]++;
                x->rows[home * a->ranks + rank] += !(there >> rank & 1);
                if (++block[home * most + replica] > x->longest) x->longest = block[home * most + replica];
                there |= (uint64_t)1 << rank;
                a->activations++;
                a->local += rank == home;
                if (rank != home) others |= (uint64_t)1 << rank;
            }
            a->remote_ranks += (uint64_t)__builtin_popcountll(others);
            a->moe_tokens++;
            own[home]++;
        }
        settle_layer(a, x, l);
        free(block);
        free(x);
    }
    free(homes);
    a->all_tokens += a->tokens;
    a->steps++;
    a->tokens = 0;
}

static void take_routing(void *context, uint64_t request, int64_t position, int32_t token,
                         const uint16_t *experts, const float *weights)
{
    struct account *a = context;
    (void)position, (void)weights;
    if (a->closed) settle_step(a);
    a->closed = false;
    assert_true(a->tokens < a->capacity);
    a->sequence[a->tokens] = (int)request;
    a->ids[a->tokens] = token;
    memcpy(a->experts + (size_t)a->tokens * routed(a->info), experts, routed(a->info) * sizeof *experts);
    a->tokens++;
}

static void take_logits(void *context, uint64_t request, int64_t position, const float *logits)
{
    struct account *a = context;
    (void)request, (void)position, (void)logits;
    a->closed = true;
}

/* ---- against what was counted ---- */

static uint64_t total(const uint64_t *pairs, int ranks)
{
    uint64_t sum = 0;
    for (int i = 0; i < ranks * ranks; i++) sum += pairs[i];
    return sum;
}

static void check_pairs(const struct account *a, const cot_stats *s)
{
    int p = a->ranks;
    uint64_t row_bytes = (uint64_t)a->info->hidden * a->width;
    for (int from = 0; from < p; from++)
        for (int to = 0; to < p; to++) {
            int at = from * p + to;
            for (int phase = 0; phase < COT_STATS_PHASES; phase++) {
                if (from == to) assert_int_equal(s->bytes[phase][at] + s->messages[phase][at], 0);
                if (s->bytes[phase][at] && phase != METADATA) // which may ride with the rows
                    assert_true(s->messages[phase][at] > 0);
            }
            if (from == to) continue;
            assert_int_equal(s->bytes[DISPATCH][at], row_bytes * a->dispatched[at]);
            assert_int_equal(s->bytes[COMBINE][at], row_bytes * a->combined[at]);
            if (a->norms)
                assert_true(s->bytes[METADATA][at] >= a->metadata[at]);
            else
                assert_int_equal(s->bytes[METADATA][at], a->metadata[at]);
            if (a->bulk) { // one message each, empty or not
                const uint64_t layers = (uint64_t)(a->steps * a->info->moe_layers);
                assert_int_equal(s->messages[DISPATCH][at], layers);
                assert_int_equal(s->messages[COMBINE][at], layers);
                if (!a->norms) assert_int_equal(s->messages[METADATA][at], a->one_shot ? 0 : layers);
                continue;
            }
            assert_true(s->messages[DISPATCH][at] <=
                        a->entries[at] +
                            (uint64_t)(a->steps * a->info->moe_layers)); // at most one a row, one empty
        }
}

/* Steps of the network that follow one another: docs/BYTES.md's, too. */
static void check_rounds(const struct account *a, const cot_stats *s)
{
    const uint64_t steps = a->ranks > 1 ? (uint64_t)a->steps : 0, others = (uint64_t)a->ranks - 1,
                   layers = steps * (uint64_t)a->info->layers, moe = steps * (uint64_t)a->info->moe_layers,
                   allreduce = a->s_moe    ? a->direct ? 1 : others
                               : a->direct ? 2
                                           : 2 * others,
                   gather = a->direct ? 1 : others;
    assert_int_equal(s->rounds[ATTENTION], a->dp ? 0 : layers * (allreduce + gather));
    if (!a->dp) assert_int_equal(s->rounds[CONTROL], 2 * steps);
    if (!a->bulk) return; // a call may take several passes
    assert_int_equal(s->rounds[DISPATCH], moe);
    assert_int_equal(s->rounds[COMBINE], moe);
    if (!a->norms) assert_int_equal(s->rounds[METADATA], a->one_shot ? 0 : moe);
}

static void check(const struct account *a, cot_engine *engine)
{
    cot_stats s;
    assert_int_equal(cot_engine_stats(engine, &s, NULL), COT_OK);
    assert_int_equal(s.ranks, a->ranks);
    check_pairs(a, &s);
    assert_int_equal(total(s.bytes[ATTENTION], a->ranks), a->attention_bytes);
    check_rounds(a, &s);
    if (a->dp) assert_int_equal(total(s.messages[ATTENTION], a->ranks), 0);
    assert_int_equal(total(s.bytes[CONTROL], a->ranks) > 0, a->ranks > 1);
    assert_int_equal(s.steps, a->steps);
    assert_int_equal(s.prefill_tokens + s.decode_tokens, a->all_tokens);
    assert_int_equal(s.activations, a->activations);
    assert_int_equal(s.local_activations, a->local);
    assert_true(s.lar == (double)a->local / (double)a->activations);
    assert_true(s.remote_ranks == (double)a->remote_ranks / (double)a->moe_tokens);
    cot_stats_clear(&s);
}

enum { MANY = 16 }; // ranks

/* A pipeline in place of the default, with tables or without. */
static void draw_pipeline(struct setting *s, struct account *a, char tables[TABLES_PATH], uint64_t *seed)
{
    static const char *const predictions[] = {"none", "token-table", "device-sequence", "algorithm-2", NULL};
    static const cot_predict_method methods[] = {COT_PREDICT_METHODS, COT_PREDICT_TOKEN_TABLE,
                                                 COT_PREDICT_DEVICE_SEQUENCE, COT_PREDICT_ALGORITHM_2,
                                                 COT_PREDICT_ALGORITHM_2};
    const uint64_t way = draw(seed) % 4;
    if (way == 1) s->collective = "direct"; // the same bytes
    a->direct = way > 0;
    if (way < 2) return;
    a->s_moe = true;
    s->pipeline = "s-moe";
    a->direct = draw(seed) % 3 > 0;
    if (!a->direct) s->collective = "ring"; // the same bytes
    const uint64_t which = draw(seed) % 5;
    cot_predictor *opened;
    if (way == 2 || !drawn_tables(tables, s->folder, s->ranks, draw(seed) % 4 == 0, seed)) return;
    s->tables = tables;
    s->predict = predictions[which];
    a->method = methods[which];
    assert_int_equal(cot_predictor_open(&opened, tables, NULL), COT_OK);
    a->tables = opened;
}

/* A way of sending rows, or the default one. */
static void draw_exchange(struct setting *s, struct account *a, uint64_t *seed)
{
    static const char *const kinds[] = {NULL, "padded", "two-phase", "one-shot"};
    const uint64_t kind = draw(seed) % 4;
    s->a2a = kinds[kind];
    a->padded = kind == 1;
    a->one_shot = kind == 3 || (kind == 0 && a->tables);
    const uint64_t once = draw(seed) % 3;
    if (once) s->dedup = once == 1 && !a->padded ? "on" : "off";
    a->dedup = once ? !strcmp(s->dedup, "on") : a->tables && !a->padded;
    a->reduced = a->dedup && draw(seed) % 2;
    s->combine = a->reduced ? "reduced" : "exact";
}

/* Two runs on one engine, counted together; of more than MANY ranks one. */
static void account_for(const char *folder, bool norms, const char *precision, const char *attention,
                        int ranks, int64_t step_tokens, uint64_t *seed)
{
    enum { SEQUENCES = 5, LONGEST = 29 };
    const int way = (int)(draw(seed) % 3);
    struct setting s = {.folder = folder,
                        .ranks = ranks,
                        .precision = precision,
                        .attention = attention,
                        .op = way == 2 ? "fused" : "bulk",
                        .combine = "exact",
                        .step_tokens = step_tokens,
                        .kv_tokens = SEQUENCES * LONGEST};
    cot_expert_map map = drawn_placement(folder, ranks, seed);
    if (draw(seed) % 2) s.placement = &map;
    char tables[TABLES_PATH] = "";
    static struct account a;
    a = (struct account){.ranks = ranks,
                         .dp = !strcmp(attention, "dp"),
                         .bulk = way < 2,
                         .norms = norms,
                         .method = COT_PREDICT_METHODS,
                         .width = !strcmp(precision, "bf16") ? 2 : 4,
                         .capacity = step_tokens};
    if (!a.dp) draw_pipeline(&s, &a, tables, seed);
    if (a.s_moe) s.placement = NULL; // whose replicas it refuses
    if (a.bulk)
        draw_exchange(&s, &a, seed);
    else {
        a.dedup = true;
        a.reduced = draw(seed) % 2;
        if (a.reduced) s.combine = "reduced";
    }
    a.placement = s.placement;
    cot_engine *engine = must_open(&s);
    a.info = cot_engine_describe(engine);
    a.ids = must_allocate((size_t)step_tokens, sizeof *a.ids);
    a.sequence = must_allocate((size_t)step_tokens, sizeof *a.sequence);
    a.experts = must_allocate((size_t)step_tokens * routed(a.info), sizeof *a.experts);
    cot_events events = {.context = &a, .on_logits = take_logits, .on_routing = take_routing};
    // One alone, then several; of many ranks, whose steps are a long chain of waits, only several.
    for (size_t count = ranks > MANY ? SEQUENCES : 1; count <= SEQUENCES; count += SEQUENCES - 1) {
        cot_request requests[SEQUENCES];
        int32_t *ids[SEQUENCES];
        for (size_t i = 0; i < count; i++) {
            int64_t tokens = 2 + (int64_t)(draw(seed) % (LONGEST - 1));
            ids[i] = drawn_ids(tokens, a.info->vocab, seed);
            requests[i] = forced_request(
                ids[i], tokens,
                tokens - 1 - (int64_t)(draw(seed) % (tokens > 8 ? 7 : (uint64_t)(tokens - 1))));
        }
        cot_error error;
        if (cot_engine_run(engine, requests, count, &events, NULL, &error) != COT_OK)
            fail_msg("%s", error.message);
        settle_step(&a);
        for (size_t i = 0; i < count; i++) free(ids[i]);
    }
    check(&a, engine);
    free(a.sequence);
    free(a.ids);
    free(a.experts);
    cot_predictor_close((cot_predictor *)(uintptr_t)a.tables);
    if (*tables) unlink(tables);
    cot_expert_map_free(&map);
    cot_engine_close(engine);
}

static void account_model(const char *folder, bool norms, const int *ranks, size_t counts)
{
    static const int64_t steps[] = {3, 16, 512};
    uint64_t seed = test_seed();
    if (!folder_exists(folder)) {
        printf("SKIPPED: there is no '%s'\n", folder);
        skip();
    }
    for (size_t i = 0; i < counts; i++) { // both precisions and both attentions, drawn together
        const int drawn = (int)(draw(&seed) % 4), ways[] = {drawn, drawn ^ 3};
        for (int k = 0; k < 2; k++)
            account_for(folder, norms && !(ways[k] & 2), ways[k] & 1 ? "bf16" : "fp32",
                        ways[k] & 2 ? "dp" : "tp", ranks[i],
                        steps[ranks[i] > MANY ? 1 + draw(&seed) % 2 : draw(&seed) % 3], &seed);
    }
}

static const int some_ranks[] = {1, 2, 3, 5, 8}, many_ranks[] = {4, 7, 13, 64};

static void grouped_queries(void **state)
{
    (void)state;
    account_model(COT_SHARED "/golden/mixtral", false, many_ranks, 4);
}

static void dense_layers(void **state)
{
    (void)state;
    account_model(COT_SHARED "/golden/qwen2-moe", false, some_ranks, 5);
}

static void latent_attention(void **state)
{
    (void)state;
    account_model(COT_SHARED "/golden/deepseek-v3", false, some_ranks, 5);
}

static void sums_of_norms_stand_apart(void **state)
{
    (void)state;
    account_model(COT_SHARED "/golden/olmoe", true, some_ranks, 5);
}

static void the_shipped_model(void **state)
{
    (void)state;
    account_model(TINY, false, some_ranks, 5);
}

static void phases_have_names(void **state)
{
    (void)state;
    static const char *const names[] = {"dispatch", "combine", "attention",
                                        "metadata", "control", "migration"};
    const char *const *phases = cot_engine_phases();
    for (int p = 0; p < COT_STATS_PHASES; p++) assert_string_equal(phases[p], names[p]);
    assert_null(phases[COT_STATS_PHASES]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(phases_have_names),
        cmocka_unit_test(grouped_queries),
        cmocka_unit_test(dense_layers),
        cmocka_unit_test(latent_attention),
        cmocka_unit_test(sums_of_norms_stand_apart),
        cmocka_unit_test(the_shipped_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
