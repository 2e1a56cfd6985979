/* Blocks of the prefix cache are told apart by their hashes, and by all that they are where hashes are alike. */
#include "harness/cmocka.h"

#include "schedule/prefix.h"

#include <stdlib.h>
#include <string.h>

static uint64_t same(const uint64_t *parent, const int32_t *ids, size_t tokens)
{
    (void)parent;
    (void)ids;
    (void)tokens;
    return 7;
}

static int in_order(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Blocks of few different ids are told apart by their hashes, whatever salt they begin with; a text has one hash at all homes,
 * and each home finds its own. */
static void few_ids_have_hashes_of_their_own(void **state)
{
    (void)state;
    enum { IDS = 3, BLOCK = 4, TEXTS_OF_A_ROOT = IDS * IDS * IDS * IDS, HOMES = 64 };
    static const char *const of_users[] = {NULL, "0", "1", "a", "ab", "user-1", "user-2"};
    enum { USERS = sizeof of_users / sizeof *of_users, ALL = USERS * TEXTS_OF_A_ROOT };
    cot_page_pool pool;
    cot_prefix_cache cache;
    assert_int_equal(cot_page_pool_open(&pool, HOMES, HOMES, NULL), COT_OK);
    assert_int_equal(cot_prefix_open(&cache, &pool, BLOCK, NULL), COT_OK);
    uint64_t hash[ALL], *at = hash;
    for (int u = 0; u < USERS; u++) {
        bool failed = false;
        const size_t bytes = of_users[u] ? strlen(of_users[u]) : 0;
        cot_prefix_salt *salt = cot_prefix_salt_new(of_users[u], bytes, &failed);
        assert_false(failed);
        for (int text = 0; text < TEXTS_OF_A_ROOT; text++, at++) {
            const int32_t ids[BLOCK] = {text % 3, text / 3 % 3, text / 9 % 3, text / 27};
            int32_t node[HOMES];
            for (int32_t home = 0; home < HOMES; home++) {
                const int32_t page = cot_page_pool_take(&pool, home);
                const cot_prefix_root root = {home, of_users[u], bytes, salt};
                node[home] = cot_prefix_extend(&cache, &root, -1, ids, page);
                cot_page_pool_release(&pool, page);
                *at = cache.node[node[0]].hash;
                assert_int_equal(cache.node[node[home]].hash, *at);
            }
            for (int32_t home = 0; home < HOMES; home++) {
                const cot_prefix_root root = {home, of_users[u], bytes, NULL};
                assert_int_equal(cot_prefix_find(&cache, &root, -1, ids), node[home]);
            }
            for (int32_t home = 0; home < HOMES; home++) {
                cot_prefix_let_go(&cache, node[home]);
                cot_prefix_evict(&cache);
            }
        }
        cot_prefix_salt_release(salt);
    }
    qsort(hash, ALL, sizeof *hash, in_order);
    for (int i = 1; i < ALL; i++) assert_true(hash[i - 1] != hash[i]);
    cot_prefix_close(&cache);
    cot_page_pool_close(&pool);
}

/* Where all hashes are one, a block is found by what it is: its home, every byte of its salt, what stands before it and every
 * one of its ids. */
static void blocks_of_one_hash_are_told_apart(void **state)
{
    (void)state;
    enum { BLOCK = 2, SALTED = 7, HOMES = 2, ROOTS = SALTED * HOMES, TEXTS_OF_A_ROOT = 3 };
    static const struct {
        const char *data;
        size_t bytes;
    } of[SALTED] = {{NULL, 0}, {"a", 1}, {"b", 1}, {"ab", 2}, {"bb", 2}, {"a\0b", 3}, {"a\0c", 3}};
    static const int32_t ids[TEXTS_OF_A_ROOT][BLOCK] = {{1, 2}, {1, 3}, {2, 2}};
    cot_page_pool pool;
    cot_prefix_cache cache;
    cot_prefix_root root[ROOTS];
    int32_t first[ROOTS][TEXTS_OF_A_ROOT], second[ROOTS][TEXTS_OF_A_ROOT];
    assert_int_equal(cot_page_pool_open(&pool, ROOTS, HOMES, NULL), COT_OK);
    assert_int_equal(cot_prefix_open(&cache, &pool, BLOCK, NULL), COT_OK);
    cache.hash = same;
    for (int r = 0; r < ROOTS; r++) {
        bool failed = false;
        const int s = r / HOMES;
        cot_prefix_salt *salt = cot_prefix_salt_new(of[s].data, of[s].bytes, &failed);
        root[r] = (cot_prefix_root){r % HOMES, of[s].data, of[s].bytes, salt};
        const int32_t page = cot_page_pool_take(&pool, r % HOMES);
        for (int t = 0; t < TEXTS_OF_A_ROOT; t++) {
            assert_int_equal(cot_prefix_find(&cache, &root[r], -1, ids[t]), -1);
            first[r][t] = cot_prefix_extend(&cache, &root[r], -1, ids[t], page);
        }
        for (int t = 0; t < TEXTS_OF_A_ROOT; t++) { // the same ids behind each of them
            assert_int_equal(cot_prefix_find(&cache, &root[r], first[r][t], ids[0]), -1);
            second[r][t] = cot_prefix_extend(&cache, &root[r], first[r][t], ids[0], page);
        }
        cot_page_pool_release(&pool, page);
        cot_prefix_salt_release(salt); // nodes have it
    }
    assert_int_equal(cache.nodes, 2 * ROOTS * TEXTS_OF_A_ROOT);
    for (int r = 0; r < ROOTS; r++)
        for (int t = 0; t < TEXTS_OF_A_ROOT; t++) {
            assert_int_equal(cot_prefix_find(&cache, &root[r], -1, ids[t]), first[r][t]);
            assert_int_equal(cot_prefix_find(&cache, &root[r], first[r][t], ids[0]), second[r][t]);
            assert_int_equal(cot_prefix_find(&cache, &root[r], first[r][t], ids[1]), -1);
            cot_prefix_let_go(&cache, second[r][t]);
        }
    cot_prefix_close(&cache);
    assert_int_equal(pool.free_pages, ROOTS);
    cot_page_pool_close(&pool);
}
int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(few_ids_have_hashes_of_their_own),
                                       cmocka_unit_test(blocks_of_one_hash_are_told_apart)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
