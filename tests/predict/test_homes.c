/* Homes of tokens against the rule in its plainest words, and the order in which they travel. */
#include "harness/cmocka.h"
#include "harness/predict/plain_homes.h"
#include "harness/predict/samples.h"
#include "predict/assign.h"
#include "predict/homes.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 300, RANKS = 16 };

struct table {
    const float *score;
    const int16_t *rank;
    int ranks, asked;
};

static void look(void *context, float *score, int64_t i)
{
    struct table *t = context;
    assert_true(t->rank[i] >= 0);
    t->asked++;
    memcpy(score, t->score + i * t->ranks, (size_t)t->ranks * sizeof *score);
}

/* Few confidences and many, preferences for one rank and for all, no token known and every one. */
static void shares_are_even_and_go_by_confidence(void **state)
{
    scratch_pad *pad = *state;
    static float score[MOST * RANKS];
    int16_t rank[MOST], home[MOST + 1], want[MOST];
    uint16_t confidence[MOST];
    int32_t order[2 * MOST + 1];
    for (int round = 0; round < 400; round++) {
        const int D = 1 + (int)pad_draw(pad, RANKS), n = (int)pad_draw(pad, round % 2 ? 40 : MOST + 1);
        const uint32_t levels = (const uint32_t[]){1, 5, 300, 65536}[pad_draw(pad, 4)],
                       unknown = (const uint32_t[]){1, 2, 6, 1000000}[pad_draw(pad, 4)];
        for (int i = 0; i < n; i++) {
            rank[i] = (int16_t)(pad_draw(pad, 2) ? 0 : pad_draw(pad, (uint32_t)D));
            if (pad_draw(pad, unknown) == 0) rank[i] = -1;
            confidence[i] = (uint16_t)(levels == 300 ? 65535 - pad_draw(pad, 300) : pad_draw(pad, levels));
            for (int d = 0; d < D; d++) score[i * D + d] = (float)pad_draw(pad, 3);
        }
        struct table table = {score, rank, D, 0};
        memset(home, 0x77, sizeof home);
        order[2 * n] = 0x77777777;
        plain_even_shares(want, rank, confidence, score, n, D);
        cot_assign_evenly(home, order, rank, confidence, n, D, look, &table);
        assert_memory_equal(home, want, (size_t)n * sizeof *home);
        assert_int_equal(home[n], 0x7777);
        assert_int_equal(order[2 * n], 0x77777777);
        int load[RANKS] = {0}, moved = 0;
        for (int i = 0; i < n; i++) {
            load[home[i]]++;
            moved += rank[i] >= 0 && home[i] != rank[i];
        }
        for (int d = 0; d < D; d++) assert_in_range(load[d], n / D, (n + D - 1) / D);
        assert_int_equal(table.asked, moved); // nobody else's scores are worked out
    }
}

/* A batch's homes are the rule over what tables say of its tokens one by one. */
static void homes_follow_the_tables(void **state)
{
    scratch_pad *pad = *state;
    static const cot_predict_method methods[] = {COT_PREDICT_GLOBAL, COT_PREDICT_TOKEN_TABLE,
                                                 COT_PREDICT_DEVICE_SEQUENCE, COT_PREDICT_ALGORITHM_2};
    for (int round = 0; round < 12; round++) {
        const sample_shape shape = {.L = 1 + (int)pad_draw(pad, 4),
                                    .E = 6 + (int)pad_draw(pad, 20),
                                    .K = 1 + (int)pad_draw(pad, 4),
                                    .S = 3,
                                    .T = 260,
                                    .ids = 20,
                                    .follows = true};
        const int D = 1 + (int)pad_draw(pad, 6);
        cot_trace trace = sample_trace(pad, &shape);
        cot_predictor *p = sample_train(pad, &trace, D, 1 + (int)pad_draw(pad, 3), NULL);
        cot_predictor_info info;
        cot_predictor_describe(&info, p);
        cot_arena arena = {0}, measure = {0};
        cot_homes_scratch scratch;
        cot_homes_scratch_lay_out(&scratch, &measure, MOST, shape.E);
        assert_int_equal(cot_arena_open(&arena, measure.used, NULL), COT_OK);
        cot_homes_scratch_lay_out(&scratch, &arena, MOST, shape.E);
        for (int l = 0; l < shape.L; l++) {
            const int n = 1 + (int)pad_draw(pad, 250);
            int64_t token[MOST];
            int16_t home[MOST], want[MOST], rank[MOST];
            uint16_t confidence[MOST];
            static float score[MOST * RANKS], experts[64];
            for (int i = 0; i < n; i++) token[i] = i;
            sample_batch b = sample_batch_of(p, &trace, l, token, n);
            for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
                memset(score, 0, sizeof score);
                for (int i = 0; i < n; i++) {
                    sample_batch one = sample_batch_of(p, &trace, l, &token[i], 1);
                    cot_predict_ranks(&rank[i], &confidence[i], p, methods[m], &one.batch);
                    cot_predict_experts(experts, p, methods[m], &one.batch);
                    for (int e = 0; e < shape.E; e++)
                        score[i * D + info.expert_rank[l * shape.E + e]] += experts[e];
                    sample_batch_free(&one);
                }
                plain_even_shares(want, rank, confidence, score, n, D);
                memset(home, 0x77, sizeof home);
                cot_predict_homes(home, &scratch, p, methods[m], &b.batch);
                assert_memory_equal(home, want, (size_t)n * sizeof *home);
            }
            sample_batch_free(&b);
        }
        cot_arena_close(&arena);
        cot_predictor_close(p);
        cot_trace_close(&trace);
    }
}

/* What a method does not read may be absent. */
static void methods_say_what_they_read(void **state)
{
    (void)state;
    for (int m = 0; m < COT_PREDICT_METHODS; m++) {
        const bool both = m == COT_PREDICT_ALGORITHM_2;
        assert_int_equal(cot_homes_read_ids(m), both || m == COT_PREDICT_TOKEN_TABLE);
        assert_int_equal(cot_homes_look_back(m), both || m == COT_PREDICT_DEVICE_SEQUENCE);
    }
}

static void rows_travel_by_home_then_index(void **state)
{
    scratch_pad *pad = *state;
    int16_t home[MOST];
    int32_t token[MOST + 1], begin[66];
    for (int round = 0; round < 200; round++) {
        const int D = 1 + (int)pad_draw(pad, 64), n = (int)pad_draw(pad, MOST + 1);
        const bool by_index = round % 4 == 0;
        for (int i = 0; i < n; i++)
            home[i] = (int16_t)(round % 4 == 1 ? D - 1 : (int)pad_draw(pad, (uint32_t)D));
        if (by_index) cot_homes_by_index(home, n, D);
        memset(token, 0x77, sizeof token);
        begin[D + 1] = 0x77;
        cot_homes_order(token, begin, home, n, D);
        int at = 0;
        for (int d = 0; d < D; d++) {
            assert_int_equal(begin[d], at);
            for (int i = 0; i < n; i++) {
                if (home[i] != d) continue;
                assert_int_equal(token[at++], i);
                if (by_index) assert_true(d * n / D <= i && i < (d + 1) * n / D);
            }
        }
        assert_int_equal(begin[D], n);
        assert_int_equal(begin[D + 1], 0x77);
        assert_int_equal(token[n], 0x77777777);
    }
}

/* Who knows where a token's experts are takes it where most of them are, or fewest, the surest first; who has guesses and no more
 * puts those that find no room where there is some. */
static void homes_follow_what_is_known(void **state)
{
    scratch_pad *pad = *state;
    enum { EXPERTS = 20, TOP_K = 5, TOKENS = 90 };
    static float score[TOKENS * RANKS], none[TOKENS * RANKS];
    for (int round = 0; round < 300; round++) {
        const int D = 1 + (int)pad_draw(pad, RANKS), n = (int)pad_draw(pad, TOKENS + 1), worst = round % 2;
        int16_t home[TOKENS + 1], want[TOKENS], rank[TOKENS], guessed[TOKENS];
        uint16_t experts[TOKENS * TOP_K], confidence[TOKENS];
        int32_t expert_rank[EXPERTS];
        cot_homes_scratch s = {0};
        cot_arena arena = {0};
        cot_homes_scratch_lay_out(&s, &arena, TOKENS, EXPERTS);
        assert_int_equal(cot_arena_open(&arena, arena.used, NULL), COT_OK);
        cot_homes_scratch_lay_out(&s, &arena, TOKENS, EXPERTS);
        for (int e = 0; e < EXPERTS; e++) expert_rank[e] = (int32_t)pad_draw(pad, (uint32_t)D);
        for (int i = 0; i < n; i++) {
            int here[RANKS] = {0}, best = 0;
            draw_experts(pad, experts + i * TOP_K, TOP_K, EXPERTS);
            for (int k = 0; k < TOP_K; k++) here[expert_rank[experts[i * TOP_K + k]]]++;
            for (int d = 1; d < D; d++)
                if (worst ? here[d] < here[best] : here[d] > here[best]) best = d;
            rank[i] = (int16_t)best;
            confidence[i] = (uint16_t)(worst ? TOP_K - here[best] : here[best]);
            for (int d = 0; d < D; d++) score[i * D + d] = (float)(worst ? -here[d] : here[d]);
            guessed[i] = (int16_t)(pad_draw(pad, 4) ? rank[i] : -1);
        }
        home[n] = 0x7777;
        plain_even_shares(want, rank, confidence, score, n, D);
        cot_homes_by_experts(home, &s, experts, TOP_K, expert_rank, n, D, worst);
        assert_memory_equal(home, want, (size_t)n * sizeof *home);
        plain_even_shares(want, guessed, confidence, none, n, D);
        cot_homes_by_guess(home, &s, guessed, confidence, n, D);
        assert_memory_equal(home, want, (size_t)n * sizeof *home);
        assert_int_equal(home[n], 0x7777);
        cot_arena_close(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(homes_follow_what_is_known),

        cmocka_unit_test(shares_are_even_and_go_by_confidence), cmocka_unit_test(homes_follow_the_tables),
        cmocka_unit_test(methods_say_what_they_read), cmocka_unit_test(rows_travel_by_home_then_index)};
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
