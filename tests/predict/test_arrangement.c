/* Arrangements of requests and experts: what is foreseen by summing over every token, request and home; that nothing is lost; that
 * planted groups are found. And the study over them, on real generations where they are at hand. */
#include "harness/scratch.h"
#include "predict/arrangement.h"

#include "coterie/layout.h"
#include "coterie/predict_signature.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TOKENS = 60, MOST_REQUESTS = 12, MOST_LAYERS = 3, MOST_EXPERTS = 24, MOST_CALLS = 3 };

struct known {
    cot_evidence evidence;
    uint16_t token[MOST_TOKENS * MOST_LAYERS * MOST_CALLS];
    float ratio[MOST_REQUESTS * MOST_LAYERS * MOST_EXPERTS];
    int32_t owner[MOST_TOKENS];
    int32_t ranks;
};

static void draw_known(scratch_pad *pad, struct known *k)
{
    const int P = 1 + (int)pad_draw(pad, 4), each = 1 + (int)pad_draw(pad, 6), E = P * each,
              K = 1 + (int)pad_draw(pad, E < MOST_CALLS ? (uint32_t)E : MOST_CALLS);
    k->ranks = P;
    k->evidence = (cot_evidence){.n_layers = 1 + (int)pad_draw(pad, MOST_LAYERS),
                                 .n_experts = E,
                                 .top_k = K,
                                 .n_tokens = 1 + (int)pad_draw(pad, MOST_TOKENS),
                                 .n_requests = 1 + (int)pad_draw(pad, MOST_REQUESTS),
                                 .token = k->token};
    for (int i = 0; i < k->evidence.n_tokens * k->evidence.n_layers; i++)
        draw_experts(pad, k->token + i * K, K, E);
    for (int i = 0; i < k->evidence.n_requests * k->evidence.n_layers * E; i++)
        k->ratio[i] = (float)(1 + pad_draw(pad, 1000)) / 300;
    for (int i = 0; i < k->evidence.n_tokens; i++)
        k->owner[i] = (int32_t)pad_draw(pad, (uint32_t)k->evidence.n_requests);
    if (pad_draw(pad, 3))
        k->evidence.ratio = k->ratio;
    else
        k->evidence.owner = k->owner;
}

/* What one request sends a token, and in load [P] what ranks then serve, all over: through an engine's layout. */
static double plain_request(const struct known *k, const cot_arrangement *a, const cot_expert_layout *layout,
                            int l, int request, double *load)
{
    const cot_evidence *e = &k->evidence;
    const cot_expert_replicas r = cot_expert_layout_layer(layout, l);
    double sum = 0, all = 0, more[64] = {0};
    for (int i = 0; i < e->n_tokens; i++) {
        const uint16_t *token = e->token + (i * e->n_layers + l) * e->top_k;
        double worth = e->ratio ? 1 : e->owner[i] == request;
        bool reached[64] = {false};
        int remote = 0;
        for (int c = 0; e->ratio && c < e->top_k; c++)
            worth *= (double)e->ratio[(request * e->n_layers + l) * e->n_experts + token[c]];
        for (int c = 0; c < e->top_k; c++) {
            const int rank = r.rank[cot_expert_replica(&r, token[c], a->home[request], i % 4)];
            remote += !reached[rank] && rank != a->home[request];
            reached[rank] = true;
            more[rank] += worth;
        }
        all += worth;
        sum += worth * remote;
    }
    for (int p = 0; p < k->ranks && all > 0; p++) load[p] += more[p] / all / e->n_requests;
    return all > 0 ? sum / all : 0;
}

/* Foreseen sends, and the sum that choosing seats lowers. */
static void plain(double *sends, double *cost, const struct known *k, const cot_arrangement *a, double peak)
{
    cot_expert_layout layout;
    cot_error error;
    const cot_expert_layout_shape shape = {a->map.n_layers, a->map.n_experts, a->map.n_ranks, a->map.layers,
                                           0};
    assert_int_equal(cot_expert_map_check(&a->map, "map", &error), COT_OK);
    assert_int_equal(cot_expert_layout_of_map(&layout, &shape, &a->map, "map", &error), COT_OK);
    *sends = *cost = 0;
    for (int l = 0; l < a->map.n_layers; l++) {
        double load[64] = {0};
        for (int r = 0; r < a->n_requests; r++)
            *sends += plain_request(k, a, &layout, l, r, load) / a->n_requests / a->map.n_layers;
        for (int p = 0; p < k->ranks; p++)
            *cost += 4 * fmax(0, load[p] - peak * k->evidence.top_k / k->ranks) / a->map.n_layers;
    }
    *cost += *sends;
    cot_expert_layout_free(&layout);
}

/* Every slot has an expert, none twice on a rank; homes have equally many requests, to one. */
static void assert_sound(const struct known *k, const cot_arrangement *a)
{
    const int C = a->map.slots_per_rank, E = k->evidence.n_experts;
    int held[16] = {0};
    for (int i = 0; i < a->map.n_layers * k->ranks; i++)
        for (int x = 0; x < C; x++) {
            assert_in_range(a->map.expert[i * C + x], 0, E - 1);
            for (int y = 0; y < x; y++)
                assert_int_not_equal(a->map.expert[i * C + x], a->map.expert[i * C + y]);
        }
    for (int r = 0; r < a->n_requests; r++) held[a->home[r]]++;
    for (int p = 0; p < k->ranks; p++)
        assert_in_range(held[p], a->n_requests / k->ranks, (a->n_requests + k->ranks - 1) / k->ranks);
}

/* A small weight beside sums of floats: 2^-24 of each of some hundred terms, and `enough`. */
static const double close_to = 1e-4;

/* No exchange of two slots' experts is worth anything any more, as the plain sum has it. */
static void assert_settled(const struct known *k, cot_arrangement *a, double peak)
{
    const int C = a->map.slots_per_rank, slots = k->ranks * C;
    double sends, cost, other;
    plain(&sends, &cost, k, a, peak);
    for (int l = 0; l < a->map.n_layers; l++)
        for (int i = 0; i < slots; i++)
            for (int j = i / C * C + C; j < slots; j++) {
                int32_t *x = &a->map.expert[l * slots + i], *y = &a->map.expert[l * slots + j], kept = *x;
                bool twice = false;
                for (int c = 0; c < C; c++) {
                    twice |= a->map.expert[l * slots + i / C * C + c] == *y;
                    twice |= a->map.expert[l * slots + j / C * C + c] == *x;
                }
                if (twice) continue;
                *x = *y;
                *y = kept;
                plain(&sends, &other, k, a, peak);
                assert_true(other > cost - close_to);
                *y = *x;
                *x = kept;
            }
}

static void choices_lower_what_is_foreseen(void **state)
{
    scratch_pad *pad = *state;
    static struct known k;
    for (int round = 0; round < 60; round++) {
        cot_arrangement a;
        cot_error error;
        double sends, cost, before, foreseen, peak = 1 + pad_draw(pad, 100) / 50.;
        draw_known(pad, &k);
        assert_int_equal(cot_arrangement_open(&a, &k.evidence, k.ranks, &error), COT_OK);
        for (int turn = 0; turn < 4; turn++) {
            plain(&sends, &before, &k, &a, peak);
            assert_int_equal(cot_arrangement_foresee(&foreseen, &a, &k.evidence, &error), COT_OK);
            assert_true(fabs(foreseen - sends) < close_to);
            if (turn % 2)
                assert_int_equal(cot_arrangement_choose_homes(&a, &k.evidence, &error), COT_OK);
            else
                assert_int_equal(cot_arrangement_choose_seats(&a, &k.evidence, peak, &error), COT_OK);
            const double sent = sends;
            plain(&sends, &cost, &k, &a, peak);
            if (turn % 2)
                assert_true(sends < sent + close_to);
            else
                assert_true(cost < before + close_to);
            assert_sound(&k, &a);
            if (turn % 2 == 0 && round < 20) assert_settled(&k, &a, peak);
            if (turn != 1 || k.evidence.n_experts == a.map.slots_per_rank) continue;
            assert_int_equal(cot_arrangement_add_slot(&a, &k.evidence, peak, &error), COT_OK);
            assert_int_equal(a.map.slots_per_rank, k.evidence.n_experts / k.ranks + 1);
            assert_sound(&k, &a);
        }
        cot_arrangement_free(&a);
    }
}

/* Texts of some kinds, each of which calls its own pair of experts in each layer and no other: once both are chosen no token leaves
 * home. Experts of a pair sit apart at first; so do requests of a kind, though most of them are together. */
static void plant(scratch_pad *pad, cot_trace *trace, int kinds, int L, int requests, int length)
{
    cot_trace_builder *builder;
    cot_error error;
    uint16_t experts[8 * 2];
    assert_int_equal(cot_trace_builder_open(&builder, "planted", L, NULL, 2 * kinds, 2, &error), COT_OK);
    for (int s = 0; s < 2 * requests; s++)
        for (int t = 0; t < (s % 2 ? length : length / 4); t++) {
            const int request = s / 2,
                      kind = (request + (request < kinds)) % kinds; // the first ones at other homes
            for (int l = 0; l < L; l++) {
                experts[2 * l] = (uint16_t)((kind + l) % kinds);
                experts[2 * l + 1] = (uint16_t)(experts[2 * l] + kinds);
            }
            assert_int_equal(
                cot_trace_builder_append(builder, s, (int32_t)pad_draw(pad, 9), experts, NULL, &error),
                COT_OK);
        }
    assert_int_equal(cot_trace_builder_finish(trace, builder, &error), COT_OK);
    cot_trace_builder_close(builder);
}

static void planted_groups_are_found(void **state)
{
    scratch_pad *pad = *state;
    cot_trace trace;
    cot_error error;
    cot_predict_signature_study r;
    plant(pad, &trace, 4, 3, 16, 40);
    const cot_predict_signature_options o = {.size = sizeof o,
                                             .ranks = 4,
                                             .signature_tokens = 10,
                                             .judged_tokens = 30,
                                             .replica_slots = 1,
                                             .peak = 1.2};
    assert_int_equal(cot_predict_signatures(&r, &trace, &o, &error), COT_OK);
    assert_int_equal(r.requests, 16);
    assert_int_equal(r.other_sequences, 16);
    assert_int_equal(r.other_tokens, 160);
    assert_int_equal(r.rows, 5);
    assert_true(r.row[0].judged.remote_ranks > 1); // dealt out: most tokens need two ranks
    assert_true(r.row[2].judged.remote_ranks < 1); // pairs are together
    for (int i = 3; i < 5; i++) {
        assert_true(r.row[i].judged.remote_ranks == 0 && r.row[i].oracle.remote_ranks == 0);
        assert_true(r.row[i].judged.peak == 1);
    }
    cot_trace_close(&trace);
}

static void bad_studies_are_refused(void **state)
{
    scratch_pad *pad = *state;
    cot_trace trace, counts;
    cot_error error;
    cot_predict_signature_study r;
    const cot_predict_signature_options good = {
        .size = sizeof good, .ranks = 4, .signature_tokens = 10, .judged_tokens = 30};
    cot_predict_signature_options o = good;
    plant(pad, &trace, 4, 1, 4, 40);
    o.ranks = 3;
    assert_int_equal(cot_predict_signatures(&r, &trace, &o, &error), COT_INVALID_ARGUMENT);
    assert_string_equal(error.message, "3 ranks cannot hold equally many of 8 experts");
    o = good;
    o.judged_tokens = 31; // no text is so long
    assert_int_equal(cot_predict_signatures(&r, &trace, &o, &error), COT_INVALID_ARGUMENT);
    assert_string_equal(
        error.message,
        "of 8 sequences 0 have 41 tokens or more: there must be some, and shorter ones to learn from");
    o = good;
    o.signature_tokens = o.judged_tokens = 5; // and now all are
    assert_int_equal(cot_predict_signatures(&r, &trace, &o, &error), COT_INVALID_ARGUMENT);
    o = good;
    o.replica_slots = 7; // 2 experts of 8 and 6 more are all
    assert_int_equal(cot_predict_signatures(&r, &trace, &o, &error), COT_INVALID_ARGUMENT);
    assert_string_equal(error.message, "every rank holds all of the 8 experts already");
    o = good;
    o.peak = 0.5;
    assert_int_equal(cot_predict_signatures(&r, &trace, &o, &error), COT_INVALID_ARGUMENT);
    assert_int_equal(cot_trace_count(&counts, &trace, &error), COT_OK);
    assert_int_equal(cot_predict_signatures(&r, &counts, &good, &error), COT_INVALID_ARGUMENT);
    cot_trace_close(&counts);
    cot_trace_close(&trace);
}

/* Three layers of gpt-oss-20b's generations: the smallest part of docs/PLACEMENT.md's table that still shows each step. */
static void generations_stay_at_home(void **state)
{
    (void)state;
    cot_trace all, trace;
    cot_trace_builder *builder;
    cot_error error;
    cot_predict_signature_study r;
    if (cot_trace_import(&all, COT_SHARED "/data/routing/gpt-oss-20b", NULL, &error) != COT_OK) {
        print_message("SKIPPED: %s\n", error.message);
        skip();
    }
    enum { L = 2, K = 4 };
    assert_int_equal(cot_trace_builder_open(&builder, "part", L, NULL, 32, K, &error), COT_OK);
    for (int s = 0; s < all.n_sequences; s++)
        for (int64_t t = all.sequence_offsets[s]; t < all.sequence_offsets[s + 1]; t++) {
            uint16_t experts[L * K];
            for (int i = 0; i < L * K; i++)
                experts[i] = (uint16_t)cot_trace_expert(&all, 5 + 12 * (i / K), t, i % K);
            assert_int_equal(cot_trace_builder_append(builder, s, 0, experts, NULL, &error), COT_OK);
        }
    assert_int_equal(cot_trace_builder_finish(&trace, builder, &error), COT_OK);
    cot_trace_builder_close(builder);
    cot_trace_close(&all);
    const cot_predict_signature_options o = {.size = sizeof o, .reservoir = 1024, .replica_slots = 1};
    assert_int_equal(cot_predict_signatures(&r, &trace, &o, &error), COT_OK);
    for (int i = 0; i < r.rows; i++)
        printf("%d %d %d: foreseen %.3f judged %.3f at %.3f, oracle %.3f at %.3f\n", r.row[i].homes,
               r.row[i].swaps, (int)r.row[i].replica_slots, r.row[i].foreseen, r.row[i].judged.remote_ranks,
               r.row[i].judged.peak, r.row[i].oracle.remote_ranks, r.row[i].oracle.peak);
    assert_int_equal(r.requests, 178);
    assert_true(r.row[1].judged.remote_ranks < 0.99 * r.row[0].judged.remote_ranks);
    assert_true(r.row[2].judged.remote_ranks < 0.85 * r.row[0].judged.remote_ranks);
    assert_true(r.row[3].judged.remote_ranks < 0.98 * r.row[2].judged.remote_ranks);
    assert_true(r.row[4].judged.remote_ranks < 0.95 * r.row[3].judged.remote_ranks);
    for (int i = 2; i < r.rows; i++) assert_true(r.row[i].judged.peak < 1.6);
    cot_trace_close(&trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(choices_lower_what_is_foreseen), cmocka_unit_test(planted_groups_are_found),
        cmocka_unit_test(bad_studies_are_refused), cmocka_unit_test(generations_stay_at_home)};
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
