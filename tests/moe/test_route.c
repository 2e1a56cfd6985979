/* The routing of a call: what is refused of one that is given or replayed, which token is named, and which replica serves. */
#include "harness/cmocka.h"
#include "harness/draw.h"
#include "harness/moe/oracle_gate.h"
#include "harness/seed.h"

#include "moe/route.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { EXPERTS = 9, TOP_K = 4, TOKENS = 21, HIDDEN = 8, RANKS = 3 };

/* A call's routing and its layer, of experts with one replica or two. Where a gate chooses, what is replayed takes the place of
 * that. */
struct route {
    struct oracle_gate gate;
    cot_fabric fabric;
    cot_moe_options options;
    cot_moe_layer layer;
    cot_arena arena;
    cot_moe_routing routing;
    int32_t rank[2 * EXPERTS], slot[2 * EXPERTS], begin[EXPERTS + 1];
    uint16_t experts[TOKENS * TOP_K];
    float weights[TOKENS * TOP_K], x[TOKENS * HIDDEN], logits[TOKENS * EXPERTS];
};

static void open_route(struct route *r, bool replayed, struct draw *draw)
{
    memset(r, 0, sizeof *r);
    const cot_gate rules = {
        .hidden = HIDDEN, .experts = EXPERTS, .top_k = TOP_K, .groups = 1, .group_limit = 1, .scaling = 1};
    r->gate = oracle_gate_new(&rules, false, false, draw);
    r->fabric = (cot_fabric){.rank = 1, .ranks = RANKS};
    r->options = (cot_moe_options){.expert = {.hidden = HIDDEN},
                                   .fabric = &r->fabric,
                                   .experts = EXPERTS,
                                   .top_k = TOP_K,
                                   .tokens = TOKENS};
    assert_int_equal(cot_kernels_choose(&r->options.kernels, NULL, NULL), COT_OK);
    for (int32_t e = 0, at = 0; e < EXPERTS; e++) {
        for (int copies = e % 2; copies >= 0; copies--) r->rank[at++] = (int32_t)draw_below(draw, RANKS);
        r->begin[e + 1] = at;
    }
    r->layer.placement = (cot_expert_replicas){r->rank, r->slot, r->begin};
    cot_moe_routing_lay_out(&r->routing, &r->arena, &r->options);
    assert_int_equal(cot_arena_open(&r->arena, r->arena.used, NULL), COT_OK);
    cot_moe_routing_lay_out(&r->routing, &r->arena, &r->options);
    for (int t = 0; t < TOKENS; t++)
        for (int e = 0, left = TOP_K; e < EXPERTS && left; e++)
            if (draw_below(draw, EXPERTS - e) < left) r->experts[t * TOP_K + TOP_K - left--] = (uint16_t)e;
    for (int i = 0; i < TOKENS * TOP_K; i++) r->weights[i] = draw_float(draw, 1, COT_F32);
    for (int i = 0; i < TOKENS * HIDDEN; i++) r->x[i] = draw_float(draw, 1, COT_F32);
    if (!replayed) return;
    r->layer.gate = &r->gate.gate;
    r->layer.replayed_experts = r->experts;
    r->layer.replayed_weights = r->weights;
}

static void close_route(struct route *r)
{
    cot_arena_close(&r->arena);
    oracle_gate_free(&r->gate);
}

/* Routes tokens [first, first + count). */
static cot_status route(struct route *r, int64_t first, int64_t count, cot_error *error)
{
    *error = (cot_error){0};
    cot_moe_routing_begin(&r->routing, &r->options, &r->layer, r->experts, r->weights, TOKENS);
    return cot_moe_route(&r->routing, &r->options, &r->layer, r->x, first, count, r->logits, error);
}

/* It is refused in these words, which name the token, whichever tokens are looked at with it; and not where it is not among them. */
static void refuse(struct route *r, int64_t token, const char *words)
{
    static const int64_t ranges[][2] = {{0, TOKENS}, {0, 8}, {8, 8}, {16, TOKENS - 16}, {20, 1}, {5, 1}};
    char text[160];
    cot_error error;
    snprintf(text, sizeof text, "token %lld %s", (long long)token, words);
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        const int64_t first = ranges[i][0], count = ranges[i][1];
        if (token < first || token >= first + count) {
            assert_int_equal(route(r, first, count, &error), COT_OK);
            continue;
        }
        assert_int_equal(route(r, first, count, &error), COT_INVALID_ARGUMENT);
        assert_string_equal(error.message, text);
    }
}

static void refuses_unsound_routing(bool replayed)
{
    struct draw draw = {test_seed(), 1, 0};
    static const float not_finite[] = {NAN, INFINITY, -INFINITY};
    static const uint16_t beyond[] = {EXPERTS, EXPERTS + 1, 255, 32768, UINT16_MAX};
    struct route r;
    char words[128];
    cot_error error;
    open_route(&r, replayed, &draw);
    assert_int_equal(route(&r, 0, TOKENS, &error), COT_OK);
    for (int64_t token = 0; token < TOKENS; token++)
        for (int k = 0; k < TOP_K; k++) {
            uint16_t *experts = r.experts + token * TOP_K, whole[TOP_K];
            float *weight = &r.weights[token * TOP_K + k];
            const float was = *weight;
            memcpy(whole, experts, sizeof whole);
            for (int i = 0; i < 3; i++) {
                *weight = not_finite[i];
                snprintf(words, sizeof words, "has a weight that is not finite for expert %d", whole[k]);
                refuse(&r, token, words);
            }
            *weight = was;
            for (int i = 0; i < 5; i++) {
                experts[k] = beyond[i];
                snprintf(words, sizeof words, "goes to expert %d of %d", beyond[i], EXPERTS);
                refuse(&r, token, words);
            }
            memcpy(experts, whole, sizeof whole);
            if (!k) continue;
            experts[k] = whole[k - 1]; // twice
            snprintf(words, sizeof words, "goes to expert %d after expert %d, expected ascending", experts[k],
                     experts[k - 1]);
            refuse(&r, token, words);
            experts[k - 1] = whole[k], experts[k] = whole[k - 1];
            snprintf(words, sizeof words, "goes to expert %d after expert %d, expected ascending", experts[k],
                     experts[k - 1]);
            refuse(&r, token, words);
            memcpy(experts, whole, sizeof whole);
        }
    close_route(&r);
}

static void unsound_routing_is_refused(void **state)
{
    (void)state;
    for (int replayed = 0; replayed < 2; replayed++) refuses_unsound_routing(replayed);
}

/* Of several tokens that are refused the first is named, and of one its first fault. */
static void the_first_fault_is_named(void **state)
{
    (void)state;
    struct draw draw = {test_seed(), 2, 0};
    struct route r;
    cot_error error;
    char text[64];
    open_route(&r, false, &draw);
    for (int64_t token = TOKENS - 1; token >= 0; token--) {
        r.weights[token * TOP_K + token % TOP_K] = NAN;
        if (token % 2) r.experts[token * TOP_K + TOP_K - 1] = EXPERTS;
        assert_int_equal(route(&r, 0, TOKENS, &error), COT_INVALID_ARGUMENT);
        snprintf(text, sizeof text, "token %lld has a weight", (long long)token);
        if (token % 2 && token % TOP_K == TOP_K - 1)
            snprintf(text, sizeof text, "token %lld goes to expert %d of", (long long)token, EXPERTS);
        if (strncmp(error.message, text, strlen(text)) != 0) fail_msg("'%s', not '%s'", error.message, text);
    }
    close_route(&r);
}

/* What serves a choice: its expert's replica on this rank, else all in turn. */
static int32_t replica_of(const struct route *r, int e, int token)
{
    const int32_t begin = r->begin[e], end = r->begin[e + 1];
    for (int32_t i = begin; i < end; i++)
        if (r->rank[i] == r->fabric.rank) return i;
    return begin + (r->fabric.rank + token) % (end - begin);
}

/* What is unusual and sound: weights of zero, negative ones, the largest; the first and the last experts. It is kept as it is, and
 * no token of others is touched. */
static void sound_routing_is_kept(void **state)
{
    (void)state;
    struct draw draw = {test_seed(), 3, 0};
    enum { FIRST = 3, END = 14 };
    static const float odd[] = {0, -0.0f, -3, 3.4e38f, -3.4e38f, 1e-45f};
    for (int replayed = 0; replayed < 2; replayed++) {
        struct route r;
        cot_error error;
        open_route(&r, replayed, &draw);
        for (int i = 0; i < TOKENS * TOP_K; i++) r.weights[i] = odd[i % 6];
        for (int k = 0; k < TOP_K; k++) {
            r.experts[FIRST * TOP_K + k] = (uint16_t)k;
            r.experts[(END - 1) * TOP_K + k] = (uint16_t)(EXPERTS - TOP_K + k);
        }
        for (int i = 0; i < TOKENS * TOP_K; i++) r.routing.chosen[i] = -7;
        assert_int_equal(route(&r, FIRST, END - FIRST, &error), COT_OK);
        for (int t = 0; t < TOKENS; t++) {
            const bool is_routed = t >= FIRST && t < END;
            const size_t at = (size_t)(t * TOP_K);
            if (is_routed || !replayed) {
                assert_memory_equal(r.routing.experts + at, r.experts + at, TOP_K * sizeof *r.experts);
                assert_memory_equal(r.routing.weights + at, r.weights + at, TOP_K * sizeof *r.weights);
            }
            for (int k = 0; k < TOP_K; k++)
                assert_int_equal(r.routing.chosen[at + (size_t)k],
                                 is_routed ? replica_of(&r, r.experts[at + (size_t)k], t) : -7);
        }
        assert_int_equal(route(&r, TOKENS, 0, &error), COT_OK);
        close_route(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unsound_routing_is_refused),
        cmocka_unit_test(the_first_fault_is_named),
        cmocka_unit_test(sound_routing_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
