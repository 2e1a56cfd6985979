/* Epochs of a layout against a plain table of who is where; changes that cannot follow. */
#include "harness/cmocka.h"
#include "harness/engine/requests.h"
#include "harness/memory.h"
#include "harness/seed.h"

#include "placement/epoch.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_LAYERS = 58, MOST_EXPERTS = 256, MOST_SLOTS = 300 };

/* Who is where: the expert in each slot of all ranks, -1: none. */
struct table {
    int32_t layers, experts, ranks, slots; // slots: of a rank
    int32_t numbers[MOST_LAYERS];
    int32_t in[MOST_LAYERS][MOST_SLOTS];
};

static int32_t below(uint64_t *seed, int64_t n)
{
    return (int32_t)(draw(seed) % (uint64_t)n);
}

static struct table *new_table(int32_t layers, int32_t experts, int32_t ranks, int32_t spare, uint64_t *seed)
{
    struct table *t = must_allocate(1, sizeof *t);
    *t = (struct table){.layers = layers, .experts = experts, .ranks = ranks};
    t->slots = (experts + ranks - 1) / ranks + spare;
    for (int32_t l = 0; l < layers; l++) {
        t->numbers[l] = (l ? t->numbers[l - 1] : 0) + 1 + below(seed, 2);
        for (int32_t s = 0; s < MOST_SLOTS; s++) t->in[l][s] = -1;
        for (int32_t e = 0; e < experts; e++) t->in[l][e % ranks * t->slots + e / ranks] = e;
    }
    return t;
}

static cot_expert_epoch epoch_of(const struct table *t)
{
    int32_t *ranks = must_allocate((size_t)(t->layers * t->experts) + 1, sizeof *ranks);
    for (int32_t i = 0; i < t->layers * t->experts; i++) ranks[i] = i % t->experts % t->ranks;
    const cot_expert_layout_shape shape = {t->layers, t->experts, t->ranks, t->numbers, t->slots};
    cot_expert_layout layout;
    cot_expert_epoch epoch;
    assert_int_equal(cot_expert_layout_of_ranks(&layout, &shape, ranks, NULL), COT_OK);
    assert_int_equal(cot_expert_epoch_open(&epoch, &layout, NULL), COT_OK);
    cot_expert_layout_free(&layout);
    free(ranks);
    return epoch;
}

static int32_t count_of(const struct table *t, int32_t layer, int32_t expert)
{
    int32_t n = 0;
    for (int32_t s = 0; s < t->ranks * t->slots; s++) n += t->in[layer][s] == expert;
    return n;
}

/* Moves, adds and drops replicas of some experts of some layers; returns the words that say so. */
static int64_t draw_changes(struct table *t, int32_t *words, int rows, uint64_t *seed)
{
    const int32_t all = t->ranks * t->slots;
    static bool changed[MOST_LAYERS][MOST_EXPERTS];
    memset(changed, 0, sizeof changed);
    for (int i = 0; i < rows; i++) {
        const int32_t l = below(seed, t->layers), e = below(seed, t->experts), to = below(seed, all);
        int32_t from = below(seed, all);
        while (t->in[l][from] != e) from = (from + 1) % all;
        if (t->in[l][to] >= 0) continue;
        if (draw(seed) % 2 || count_of(t, l, e) > 2) t->in[l][from] = -1;
        t->in[l][to] = e;
        changed[l][e] = true;
    }
    int32_t *at = words;
    for (int32_t l = 0; l < t->layers; l++)
        for (int32_t e = 0; e < t->experts; e++) {
            if (!changed[l][e]) continue;
            int32_t *row = at;
            *at++ = l, *at++ = e, *at++ = count_of(t, l, e);
            for (int32_t s = 0; s < all; s++)
                if (t->in[l][s] == e) *at++ = s / t->slots, *at++ = s % t->slots;
            assert_int_equal(at - row, COT_EXPERT_CHANGE_WORDS + 2 * row[2]);
        }
    return at - words;
}

static void assert_layout(const struct table *t, const cot_expert_layout *layout)
{
    int64_t all = 0;
    assert_int_equal(layout->n_layers, t->layers);
    assert_int_equal(layout->slots_per_rank, t->slots);
    for (int32_t l = 0; l < t->layers; l++) {
        const cot_expert_replicas r = cot_expert_layout_layer(layout, l);
        assert_int_equal(layout->layers[l], t->numbers[l]);
        assert_int_equal(layout->first[l], all);
        assert_int_equal(r.begin[0], 0);
        for (int32_t e = 0; e < t->experts; e++) {
            int32_t at = r.begin[e];
            for (int32_t s = 0; s < t->ranks * t->slots; s++) {
                if (t->in[l][s] != e) continue;
                assert_int_equal(r.rank[at], s / t->slots);
                assert_int_equal(r.slot[at++], s % t->slots);
            }
            assert_int_equal(at, r.begin[e + 1]);
        }
        all += r.begin[t->experts];
    }
    assert_int_equal(layout->first[t->layers], all);
}

static void epochs_follow_one_another(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    for (int way = 0; way < 60; way++) {
        struct table *t =
            new_table(below(&seed, 5), 1 + below(&seed, 20), 1 + below(&seed, 6), below(&seed, 4), &seed);
        cot_expert_epoch epoch[2] = {epoch_of(t), epoch_of(t)};
        int32_t *words = must_allocate((size_t)cot_expert_changes_room(&epoch[0].layout) + 1, sizeof *words);
        assert_layout(t, &epoch[0].layout);
        for (uint64_t n = 0; n < 50; n++) {
            const int64_t count = t->layers ? draw_changes(t, words, below(&seed, 12), &seed) : 0;
            assert_true(count <= cot_expert_changes_room(&epoch[0].layout));
            cot_error error;
            if (cot_expert_changes_check(&epoch[n % 2].layout, words, count, &error) != COT_OK)
                fail_msg("%s", error.message);
            cot_expert_epoch_follow(&epoch[!(n % 2)], &epoch[n % 2], words, count);
            assert_int_equal(epoch[!(n % 2)].number, n + 1);
            assert_layout(t, &epoch[!(n % 2)].layout);
        }
        for (int i = 0; i < 2; i++) cot_expert_epoch_close(&epoch[i]);
        free(words);
        free(t);
    }
}

/* Two layers of four experts on two ranks of three slots: 0 and 2 on rank 0, 1 and 3 on rank 1, in slots 0 and 1. */
static void changes_that_cannot_follow(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    struct table *t = new_table(2, 4, 2, 1, &seed);
    t->numbers[0] = 3, t->numbers[1] = 4;
    cot_expert_epoch epoch = epoch_of(t);
    static const struct {
        int32_t words[24];
        int64_t count;
        const char *message; // NULL: it can
    } cases[] = {
        {{0}, 0, NULL},
        {{0, 1, 1, 0, 2}, 5, NULL},
        {{0, 0, 1, 1, 0, 0, 1, 1, 0, 0}, 10, NULL}, // two change places
        {{0, 0, 1, 0, 2, 1, 0, 2, 0, 0, 0, 2}, 12, NULL},
        {{0, 1}, 2, "changes of a placement are cut off"},
        {{0, 1, 2, 0, 2}, 5, "changes of a placement are cut off"},
        {{0, 1, INT32_MAX, 0, 2}, 5, "changes of a placement are cut off"},
        {{2, 1, 1, 0, 2},
         5,
         "a placement has expert 1 in MoE layer number 2, there are 2 layers of 4 experts: it is another "
         "model's"},
        {{-1, 1, 1, 0, 2},
         5,
         "a placement has expert 1 in MoE layer number -1, there are 2 layers of 4 experts: it is another "
         "model's"},
        {{0, 4, 1, 0, 2},
         5,
         "a placement has expert 4 in MoE layer number 0, there are 2 layers of 4 experts: it is another "
         "model's"},
        {{0, -1, 1, 0, 2},
         5,
         "a placement has expert -1 in MoE layer number 0, there are 2 layers of 4 experts: it is another "
         "model's"},
        {{1, 3, 0}, 3, "a placement has expert 3 of layer 4 nowhere"},
        {{1, 3, -1}, 3, "a placement has expert 3 of layer 4 nowhere"},
        {{1, 3, 7, 0, 0, 0, 1, 0, 2, 1, 0, 1, 1, 1, 2, 1, 3},
         17,
         "a placement has 7 replicas of expert 3 of layer 4, there are 6 slots"},
        {{0, 1, 1, 2, 0},
         5,
         "a placement has expert 1 of layer 3 in slot 0 of rank 2, there are 2 ranks of 3 slots"},
        {{0, 1, 1, -1, 0},
         5,
         "a placement has expert 1 of layer 3 in slot 0 of rank -1, there are 2 ranks of 3 slots"},
        {{0, 1, 1, 1, 3},
         5,
         "a placement has expert 1 of layer 3 in slot 3 of rank 1, there are 2 ranks of 3 slots"},
        {{0, 1, 1, 1, -1},
         5,
         "a placement has expert 1 of layer 3 in slot -1 of rank 1, there are 2 ranks of 3 slots"},
        {{0, 1, 2, 1, 0, 1, 0}, 7, "replicas of expert 1 of layer 3 are not in the order of ranks and slots"},
        {{0, 1, 2, 1, 0, 0, 2}, 7, "replicas of expert 1 of layer 3 are not in the order of ranks and slots"},
        {{0, 2, 1, 0, 2, 0, 1, 1, 1, 2},
         10,
         "changes of a placement are not in the order of layers and experts"},
        {{0, 2, 1, 0, 2, 0, 2, 1, 0, 2},
         10,
         "changes of a placement are not in the order of layers and experts"},
        {{1, 2, 1, 0, 2, 0, 3, 1, 1, 2},
         10,
         "changes of a placement are not in the order of layers and experts"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cot_error error = {0};
        const cot_status status =
            cot_expert_changes_check(&epoch.layout, cases[i].words, cases[i].count, &error);
        if (!cases[i].message)
            assert_int_equal(status, COT_OK);
        else {
            assert_int_equal(status, COT_INVALID_ARGUMENT);
            assert_string_equal(error.message, cases[i].message);
        }
    }
    cot_expert_epoch_close(&epoch);
    free(t);
}

/* What a rank takes to adopt an epoch: 64 experts of 58 layers of 256, 8 ranks. */
static void how_long_it_takes(void **state)
{
    (void)state;
    enum { ROWS = 64, TIMES = 200 };
    uint64_t seed = test_seed();
    struct table *t = new_table(58, 256, 8, 2, &seed);
    cot_expert_epoch epoch[2] = {epoch_of(t), epoch_of(t)};
    int32_t *words = must_allocate((size_t)cot_expert_changes_room(&epoch[0].layout), sizeof *words);
    clock_t ticks = 0;
    for (int n = 0; n < TIMES; n++) {
        const int64_t count = draw_changes(t, words, ROWS, &seed);
        const clock_t began = clock();
        cot_expert_epoch_follow(&epoch[!(n % 2)], &epoch[n % 2], words, count);
        ticks += clock() - began;
    }
    assert_layout(t, &epoch[0].layout);
    printf("an epoch follows in %.1f us\n", (double)ticks / CLOCKS_PER_SEC / TIMES * 1e6);
    for (int i = 0; i < 2; i++) cot_expert_epoch_close(&epoch[i]);
    free(words);
    free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(epochs_follow_one_another),
                                       cmocka_unit_test(changes_that_cannot_follow),
                                       cmocka_unit_test(how_long_it_takes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
