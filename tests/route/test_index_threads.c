/* The index of blocks while one thread changes it and another looks up. */
#include "harness/cmocka.h"
#include "harness/engine/requests.h"
#include "harness/memory.h"
#include "harness/seed.h"

#include "coterie/route.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { FAMILIES = 40, SHARED = 20, OWN = 200, READERS_TARGETS = 300 };
typedef struct two {
    cot_route_index *index;
    uint64_t keys[FAMILIES][SHARED + OWN];
    atomic_bool over;
    uint64_t seed;
} two;

static void *change(void *context)
{
    two *w = context;
    for (int round = 0; round < 6000; round++) {
        const size_t family = draw(&w->seed) % FAMILIES, t = 1 + draw(&w->seed) % (READERS_TARGETS - 1);
        cot_route_stored stored = {0};
        if (draw(&w->seed) % 3) {
            assert_int_equal(cot_route_index_store(w->index, t, NULL, w->keys[family], SHARED + OWN, &stored),
                             COT_OK);
        } else if (draw(&w->seed) % 10) {
            const size_t from = SHARED + draw(&w->seed) % OWN;
            cot_route_index_remove(w->index, t, w->keys[family] + from, SHARED + OWN - from);
        } else {
            cot_route_index_clear(w->index, t);
        }
    }
    atomic_store(&w->over, true);
    return NULL;
}

/* Target 0 holds all of the first family's text but its last ten blocks, and nobody changes that. */
static void a_reader_beside_a_writer(void **state)
{
    (void)state;
    two *w = must_allocate(1, sizeof *w);
    w->seed = test_seed();
    for (size_t f = 0; f < FAMILIES; f++)
        for (size_t i = 0; i < SHARED + OWN; i++)
            w->keys[f][i] = f && i < SHARED ? w->keys[0][i] : draw(&w->seed);
    assert_int_equal(cot_route_index_open(&w->index, READERS_TARGETS, NULL), COT_OK);
    cot_route_stored stored = {0};
    assert_int_equal(cot_route_index_store(w->index, 0, NULL, w->keys[0], SHARED + OWN - 10, &stored),
                     COT_OK);
    pthread_t writer;
    uint64_t seed = draw(&w->seed);
    assert_int_equal(pthread_create(&writer, NULL, change, w), 0);
    uint32_t depth[READERS_TARGETS];
    for (int rounds = 0; rounds < 100 || !atomic_load(&w->over); rounds++) {
        const size_t family = draw(&seed) % 3 ? 0 : draw(&seed) % FAMILIES,
                     n = 1 + draw(&seed) % (SHARED + OWN);
        cot_route_index_match(w->index, depth, w->keys[family], n);
        const size_t most = family ? SHARED : SHARED + OWN - 10;
        assert_int_equal(depth[0], n < most ? n : most);
        for (size_t t = 1; t < READERS_TARGETS; t++) assert_in_range(depth[t], 0, n);
    }
    pthread_join(writer, NULL);
    cot_route_index_close(w->index);
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_reader_beside_a_writer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
