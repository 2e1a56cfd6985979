/* The counted bytes are those of the closed form for the routing that occurred, exactly. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/memory.h"
#include "harness/seed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DISPATCH, COMBINE, ATTENTION, METADATA, CONTROL, PAIRS = 64 * 64 };

/* What the phases should have moved, worked out from what on_routing says. Routing is told a step at a time,
 * span after span, and logits after it. */
struct account {
    const cot_engine_info *info;
    int ranks;
    bool dp, bulk, reduced;
    uint64_t width;                  // bytes an element
    const cot_expert_map *placement; // NULL: consecutive experts
    /* The step under way. */
    int64_t tokens, capacity;
    int *sequence;     // [capacity]
    uint16_t *experts; // [capacity][MoE layers][K]
    bool closed;       // its logits have begun
    /* The whole run. */
    uint64_t entries[PAIRS], rows[PAIRS]; // [home][rank] (token, expert); tokens with any expert there
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
 * slot after slot. */
static int serves(const struct account *a, int64_t l, int64_t expert, int home, int64_t n)
{
    const cot_expert_map *m = a->placement;
    if (!m) return owner(a->info->experts, expert, a->ranks);
    const int32_t *row = m->expert + l * m->n_ranks * m->slots_per_rank;
    int found[3], copies = 0;
    for (int32_t i = 0; i < m->n_ranks * m->slots_per_rank; i++)
        if (row[i] == expert) found[copies++] = i / m->slots_per_rank;
    for (int i = 0; i < copies; i++)
        if (found[i] == home) return home;
    return found[(home + n) % copies];
}

static void settle_step(struct account *a)
{
    int64_t own[64] = {0};
    const cot_engine_info *info = a->info;
    uint64_t p = (uint64_t)a->ranks, t = (uint64_t)a->tokens, h = (uint64_t)info->hidden;
    if (!a->tokens) return;
    if (!a->dp) a->attention_bytes += (uint64_t)info->layers * 3 * (p - 1) * t * h * a->width;
    for (int64_t i = 0; i < a->tokens; i++) {
        int home = a->dp ? a->sequence[i] % a->ranks : owner(a->tokens, i, a->ranks);
        for (int64_t l = 0; l < info->moe_layers; l++) {
            uint64_t others = 0, there = 0;
            for (int64_t k = 0; k < info->top_k; k++) {
                int64_t expert = a->experts[(i * info->moe_layers + l) * info->top_k + k];
                int rank = serves(a, l, expert, home, own[home]);
                a->entries[home * a->ranks + rank]++;
                a->rows[home * a->ranks + rank] += !(there >> rank & 1);
                there |= (uint64_t)1 << rank;
                a->activations++;
                a->local += rank == home;
                if (rank != home) others |= (uint64_t)1 << rank;
            }
            a->remote_ranks += (uint64_t)__builtin_popcountll(others);
            a->moe_tokens++;
        }
        own[home]++;
    }
    a->all_tokens += a->tokens;
    a->steps++;
    a->tokens = 0;
}

static void take_routing(void *context, uint64_t request, int64_t position, int32_t token,
                         const uint16_t *experts, const float *weights)
{
    struct account *a = context;
    (void)position, (void)token, (void)weights;
    if (a->closed) settle_step(a);
    a->closed = false;
    assert_true(a->tokens < a->capacity);
    a->sequence[a->tokens] = (int)request;
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
            int at = from * p + to, back = to * p + from;
            for (int phase = 0; phase < COT_STATS_PHASES; phase++) {
                if (from == to) assert_int_equal(s->bytes[phase][at] + s->messages[phase][at], 0);
                if (s->bytes[phase][at] && phase != METADATA) // which may ride with the rows
                    assert_true(s->messages[phase][at] > 0);
            }
            if (from == to) continue;
            assert_int_equal(s->bytes[DISPATCH][at], row_bytes * (a->bulk ? a->entries : a->rows)[at]);
            assert_int_equal(s->bytes[COMBINE][at], row_bytes * (a->reduced ? a->rows : a->entries)[back]);
            if (!a->bulk)
                assert_true(s->bytes[METADATA][at] >= 4 * a->rows[at] + 8 * a->entries[at]); // norms, too
            assert_true(s->messages[DISPATCH][at] <=
                        a->entries[at] +
                            (uint64_t)(a->steps * a->info->moe_layers)); // at most one a row, one empty
        }
}

static void check(const struct account *a, cot_engine *engine)
{
    cot_stats s;
    assert_int_equal(cot_engine_stats(engine, &s, NULL), COT_OK);
    assert_int_equal(s.ranks, a->ranks);
    check_pairs(a, &s);
    assert_int_equal(total(s.bytes[ATTENTION], a->ranks), a->attention_bytes);
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

/* Two runs on one engine, counted together; of more than MANY ranks one. */
static void account_for(const char *folder, const char *precision, const char *attention, int ranks,
                        int64_t step_tokens, uint64_t *seed)
{
    enum { SEQUENCES = 5, LONGEST = 29 };
    const int way = (int)(draw(seed) % 3);
    struct setting s = {.folder = folder,
                        .ranks = ranks,
                        .precision = precision,
                        .attention = attention,
                        .op = way ? "fused" : "bulk",
                        .combine = way == 2 ? "reduced" : "exact",
                        .step_tokens = step_tokens,
                        .kv_tokens = SEQUENCES * LONGEST};
    cot_expert_map map = drawn_placement(folder, ranks, seed);
    if (draw(seed) % 2) s.placement = &map;
    cot_engine *engine = must_open(&s);
    static struct account a;
    a = (struct account){.info = cot_engine_describe(engine),
                         .ranks = ranks,
                         .dp = !strcmp(attention, "dp"),
                         .bulk = !way,
                         .reduced = way == 2,
                         .placement = s.placement,
                         .width = !strcmp(precision, "bf16") ? 2 : 4,
                         .capacity = step_tokens};
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
    free(a.experts);
    cot_expert_map_free(&map);
    cot_engine_close(engine);
}

static void account_model(const char *folder, const int *ranks, size_t counts)
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
            account_for(folder, ways[k] & 1 ? "bf16" : "fp32", ways[k] & 2 ? "dp" : "tp", ranks[i],
                        steps[ranks[i] > MANY ? 1 + draw(&seed) % 2 : draw(&seed) % 3], &seed);
    }
}

static const int some_ranks[] = {1, 2, 3, 5, 8}, many_ranks[] = {4, 7, 13, 64};

static void grouped_queries(void **state)
{
    (void)state;
    account_model(COT_SHARED "/golden/mixtral", many_ranks, 4);
}

static void dense_layers(void **state)
{
    (void)state;
    account_model(COT_SHARED "/golden/qwen2-moe", some_ranks, 5);
}

static void latent_attention(void **state)
{
    (void)state;
    account_model(COT_SHARED "/golden/deepseek-v3", some_ranks, 5);
}

static void sums_of_norms_stand_apart(void **state)
{
    (void)state;
    account_model(COT_SHARED "/golden/olmoe", some_ranks, 5);
}

static void the_shipped_model(void **state)
{
    (void)state;
    account_model(TINY, some_ranks, 5);
}

static void phases_have_names(void **state)
{
    (void)state;
    static const char *const names[] = {"dispatch", "combine", "attention", "metadata", "control"};
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
