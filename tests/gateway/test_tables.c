/* What tables foretell of prompts at a router, against a mean of the plain table; and workers of another model than the tables'. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/requests.h"
#include "harness/engine/tables.h"
#include "harness/seed.h"

#include "gateway/gateway_state.h"
#include "gateway/relay.h"
#include "net/publisher.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_CELLS = 4096 };
static char path[TABLES_PATH];

static cot_gateway *open_gateway(void)
{
    cot_gateway *g = calloc(1, sizeof *g);
    cot_error error;
    assert_non_null(g);
    g->options.signature_tables = path;
    g->options.scales = (cot_route_scales){1, 1, 1};
    if (cot_gateway_open_tables(g, &error) != COT_OK) fail_msg("%s", error.message);
    assert_true(cot_gateway_begin(g, 16));
    return g;
}

static void close_gateway(cot_gateway *g)
{
    cot_gateway_close_tables(g);
    cot_route_signatures_close(g->signatures);
    free(g->model_hash);
    cot_route_book_close(g->book);
    cot_route_index_close(g->index);
    free(g);
}

/* Of each cell the mean over the last tokens that the table knows, by look-ups of one token each. Returns how many it knows. */
static int64_t look_up_plainly(double share[MOST_CELLS], const cot_gateway_tables *t, const int32_t *ids,
                               int64_t n)
{
    const int32_t E = t->shape.n_experts;
    float *one = malloc((size_t)E * sizeof *one);
    int64_t known = 0;
    for (int32_t c = 0; c < t->shape.cells; c++) share[c] = 0;
    for (int64_t i = n > 128 ? n - 128 : 0; i < n; i++) {
        int32_t row;
        cot_predict_rows(&row, t->predictor, &ids[i], 1);
        if (row < 0) continue;
        known++;
        for (int32_t l = 0; l < t->shape.n_layers; l += t->shape.every) {
            const cot_predict_batch batch = {.layer = l, .n_tokens = 1, .row = &row};
            cot_predict_experts(one, t->predictor, COT_PREDICT_TOKEN_TABLE, &batch);
            for (int32_t e = 0; e < E; e++) share[l / t->shape.every * E + e] += (double)one[e];
        }
    }
    for (int32_t c = 0; c < t->shape.cells && known; c++) share[c] = fmin(share[c] / (double)known, 0.95);
    free(one);
    return known;
}

static void prompts_are_foretold(void **state)
{
    (void)state;
    enum { PROMPTS = 30, MOST = 300 };
    uint64_t seed = test_seed(), foretold = 0;
    double share[MOST_CELLS];
    assert_true(drawn_tables(path, TINY, 3, false, &seed));
    cot_gateway *g = open_gateway();
    const cot_gateway_tables *t = &g->tables;
    assert_true(t->shape.cells > COT_ROUTE_MOST_CALLS &&
                t->shape.cells <= MOST_CELLS); // so that some are left out
    for (int i = 0; i < PROMPTS; i++) {
        const int64_t n = 1 + (int64_t)(draw(&seed) % (i % 2 ? MOST : 3));
        int32_t *ids = drawn_ids(n, i % 4 ? 4096 : 1 << 30, &seed); // ids that none has learnt, too
        const int64_t known = look_up_plainly(share, t, ids, n);
        cot_route_calls *calls = cot_gateway_foretell(g, ids, (size_t)n);
        assert_int_equal(calls != NULL, known > 0);
        double least_kept = 1, largest_left = 0;
        uint32_t k = 0, there = 0;
        for (int32_t c = 0; calls && c < t->shape.cells; c++) {
            there += share[c] > 0;
            if (k < calls->count && calls->cell[k] == c) {
                assert_true(fabs((double)calls->share[k++] - share[c]) < 1e-5);
                least_kept = fmin(least_kept, share[c]);
            } else
                largest_left = fmax(largest_left, share[c]);
        }
        if (calls) assert_int_equal(k, calls->count);
        if (calls) assert_int_equal(k, there < COT_ROUTE_MOST_CALLS ? there : COT_ROUTE_MOST_CALLS);
        assert_true(largest_left <= least_kept + 1e-5);
        foretold += calls != NULL;
        assert_int_equal(g->figures.foretold, foretold);
        if (calls && foretold == 1) // one text is what is usual
            for (uint32_t c = 0; c < calls->count; c++)
                assert_true(cot_route_signatures_usual(g->signatures)[calls->cell[c]] == calls->share[c]);
        free(calls);
        free(ids);
    }
    assert_true(foretold > 0);
    assert_int_equal(cot_route_signatures_count(g->signatures), 0);
    close_gateway(g);
    unlink(path);
}

/* Workers that say so have their way, and tables of another model are not looked at any more. */
static void tables_of_other_models_are_ignored(void **state)
{
    (void)state;
    enum { SAME, HASH, CELLS, EVERY, WAYS };
    uint64_t seed = test_seed();
    assert_true(drawn_tables(path, TINY, 2, false, &seed));
    for (int way = 0; way < WAYS; way++) {
        cot_gateway *g = open_gateway();
        cot_gateway_worker w = {.gateway = g, .entry = {.name = (char[]){"w"}}};
        int32_t *ids = drawn_ids(64, 64, &seed);
        strcpy(g->tables.model_hash, "0123456789abcdef");
        assert_true(cot_gateway_layers_every(g) == g->tables.shape.every);
        json_t *document = json_pack("{s:s, s:{s:i, s:i}}", "model_hash",
                                     way == HASH ? "0123456789abcdee" : "0123456789abcdef", "popularity",
                                     "cells", g->tables.shape.cells + (way == CELLS), "layers_every",
                                     g->tables.shape.every + (way == EVERY));
        cot_gateway_check_tables(&w, NULL); // who says nothing is believed
        assert_non_null(g->tables.predictor);
        json_t *silent = json_pack("{s:n, s:n}", "model_hash", "popularity");
        cot_gateway_check_tables(&w, silent);
        json_decref(silent);
        assert_non_null(g->tables.predictor);
        cot_gateway_check_tables(&w, document);
        assert_int_equal(g->tables.predictor != NULL, way == SAME);
        cot_route_calls *calls = cot_gateway_foretell(g, ids, 64);
        assert_int_equal(calls != NULL, way == SAME);
        free(calls);
        // signatures of other cells, or of another model than the tables', are none of this router's
        if (way == SAME) {
            assert_false(cot_gateway_begin_experts(g, g->cells + 1, "0123456789abcdef"));
            assert_false(cot_gateway_begin_experts(g, g->cells, "0123456789abcdee"));
            assert_true(cot_gateway_begin_experts(g, g->cells, "0123456789abcdef"));
            *g->model_hash = 0; // nobody had said
            assert_true(cot_gateway_begin_experts(g, g->cells, "0123456789abcdee"));
            assert_string_equal(g->model_hash, "0123456789abcdee");
        }
        json_decref(document);
        free(ids);
        close_gateway(g);
    }
    unlink(path);
}

/* Tables may foretell before the first worker that tells its model comes. If it is another one, what they said is gone: of what is under
 * way, too, which is booked with calls that the worker's model may not have. */
static void ignored_tables_leave_nothing_behind(void **state)
{
    (void)state;
    enum { OTHER_CELLS = 3, LEAVES = 2 };
    uint64_t seed = test_seed(), number[LEAVES];
    const uint32_t depth[COT_GATEWAY_PLACES] = {0};
    assert_true(drawn_tables(path, TINY, 2, false, &seed));
    cot_gateway *g = open_gateway();
    char name[] = "w";
    cot_gateway_worker silent = {.gateway = g, .entry = {.name = name}, .layers_every = 2},
                       w = {.gateway = g, .entry = {.name = name}};
    cot_relay relay = {.gateway = g};
    json_t *document = json_pack("{s:s, s:{s:i, s:i}}", "model_hash", "0123456789abcdef", "popularity",
                                 "cells", OTHER_CELLS, "layers_every", 1);
    g->workers = &silent;
    g->relays = &relay;
    for (int32_t id = 0; !relay.foretold && id < 4096; id++) relay.foretold = cot_gateway_foretell(g, &id, 1);
    assert_non_null(relay.foretold);
    cot_route_request request = {.tokens = 10, .max_tokens = 20, .depth = depth, .calls = relay.foretold};
    cot_route_decision decision;
    for (int i = 0; i < LEAVES;
         i++) { // both of one worker, so that it has calls to take away when one leaves
        cot_route_weigh(g->book, &request, 0, 0, &decision);
        number[i] = cot_route_assigned(g->book, &request, &decision, 0);
        assert_true(number[i] > 0);
    }
    cot_gateway_check_tables(&w, document);
    assert_null(g->tables.predictor);
    assert_null(relay.foretold);
    assert_null(g->signatures);
    assert_true(silent.layers_every == 1);
    assert_true(cot_gateway_begin_experts(g, OTHER_CELLS, "0123456789abcdef"));
    assert_string_equal(g->model_hash, "0123456789abcdef");
    cot_route_calls calls = {.count = 1, .cell = {OTHER_CELLS - 1}, .share = {0.5F}};
    request.calls = &calls;
    cot_route_weigh(g->book, &request, 0, 0, &decision);
    const uint64_t told = cot_route_assigned(g->book, &request, &decision, 0);
    for (int i = 0; i < LEAVES; i++) cot_route_ended(g->book, number[i], 1, 0);
    cot_route_ended(g->book, told, 1, 0);
    json_decref(document);
    close_gateway(g);
    unlink(path);
}

/* A worker that agreed with the tables keeps its cells when one of another model comes. */
static void told_cells_stay(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    assert_true(drawn_tables(path, TINY, 2, false, &seed));
    cot_gateway *g = open_gateway();
    cot_gateway_worker w = {.gateway = g, .entry = {.name = (char[]){"w"}}};
    const size_t cells = (size_t)g->tables.shape.cells;
    json_t *document = json_pack("{s:s, s:{s:i, s:i}}", "model_hash", "0123456789abcdef", "popularity",
                                 "cells", (int)cells + 1, "layers_every", 1);
    cot_gateway_worker like = {.gateway = g, .entry = {.name = (char[]){"like"}}};
    json_t *agreeing = json_pack("{s:s, s:{s:i, s:i}}", "model_hash", "0123456789abcdee", "popularity",
                                 "cells", (int)cells, "layers_every", (int)g->tables.shape.every);
    g->zmq = cot_publisher_context_open();
    assert_int_equal(cot_gateway_follow_experts(&like, agreeing, "tcp://127.0.0.1:9", NULL), COT_OK);
    assert_false(like.is_stranger);
    cot_gateway_check_tables(&w, document);
    assert_null(g->tables.predictor);
    assert_int_equal(g->cells, cells);
    assert_non_null(g->signatures);
    cot_subscriber_close(like.popularity);
    cot_gateway_close_heat(&like);
    cot_publisher_context_close(g->zmq);
    json_decref(agreeing);
    json_decref(document);
    close_gateway(g);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_are_foretold),
        cmocka_unit_test(tables_of_other_models_are_ignored),
        cmocka_unit_test(ignored_tables_leave_nothing_behind),
        cmocka_unit_test(told_cells_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
