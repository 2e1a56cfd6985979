/* Hashes of blocks against those that routers compute (../shared/golden/blocks), as functions and as the cache tells them. */
#include "harness/cmocka.h"
#include "harness/engine/requests.h"
#include "harness/memory.h"
#include "harness/seed.h"

#include "schedule/prefix.h"
#include "schedule/step.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define VECTORS COT_SHARED "/golden/blocks/blocks.jsonl"

struct chain {
    uint64_t *hash; // what is expected of each block
    int64_t blocks, told;
    int home;
    uint64_t parent; // of the first
};

static void on_stored(void *context, const cot_cache_block *block)
{
    struct chain *c = context;
    assert_in_range(c->told, 0, c->blocks - 1);
    assert_int_equal(block->hash, c->hash[c->told]);
    assert_int_equal(block->parent, c->told ? c->hash[c->told - 1] : c->parent);
    assert_int_equal(block->is_first, c->told == 0);
    assert_int_equal(block->home, c->home);
    c->told++;
}

static void on_removed(void *context, int home, uint64_t hash)
{
    struct chain *c = context;
    assert_int_equal(hash, c->hash[--c->told]);
    assert_int_equal(home, c->home);
}

/* A text of whole blocks goes into a cache and out of it; what is told is the chain. */
static void tell(struct chain *c, const int32_t *ids, int64_t block, const char *salt)
{
    enum { HOMES = 3 };
    cot_page_pool pool;
    cot_prefix_cache cache;
    bool failed;
    const size_t bytes = salt ? strlen(salt) : 0;
    cot_prefix_salt *owner = cot_prefix_salt_new(salt, bytes, &failed);
    assert_int_equal(cot_page_pool_open(&pool, c->blocks + 1, HOMES, NULL), COT_OK);
    assert_int_equal(cot_prefix_open(&cache, &pool, block, NULL), COT_OK);
    cache.watch = (cot_cache_events){.context = c, .on_stored = on_stored, .on_removed = on_removed};
    const cot_prefix_root root = {c->home, salt, bytes, owner};
    int32_t node = -1;
    for (int64_t b = 0; b < c->blocks; b++) {
        const int32_t page = cot_page_pool_take(&pool, c->home);
        node = cot_prefix_extend(&cache, &root, node, ids + b * block, page);
        cot_page_pool_release(&pool, page);
    }
    assert_int_equal(c->told, c->blocks);
    cot_prefix_let_go(&cache, node);
    cot_prefix_close(&cache); // the last block first
    assert_int_equal(c->told, 0);
    cot_prefix_salt_release(owner);
    cot_page_pool_close(&pool);
}

static void check_case(const json_t *vector, uint64_t *seed)
{
    const json_t *list = json_object_get(vector, "ids"), *local = json_object_get(vector, "local"),
                 *sequence = json_object_get(vector, "sequence");
    const int64_t block = json_integer_value(json_object_get(vector, "block_size"));
    const size_t n = json_array_size(list), blocks = json_array_size(local);
    assert_int_equal(blocks, n / (size_t)block);
    int32_t *ids = must_allocate(n + 1, sizeof *ids);
    uint64_t *hash = must_allocate(blocks + 1, sizeof *hash);
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)(uint32_t)json_integer_value(json_array_get(list, i));
    for (size_t b = 0; b < blocks; b++) {
        // of 64 bits without a sign, as text: the reader has no integers above 2^63
        const uint64_t own = strtoull(json_string_value(json_array_get(local, b)), NULL, 10);
        hash[b] = strtoull(json_string_value(json_array_get(sequence, b)), NULL, 10);
        assert_int_equal(cot_cache_local_hash(ids + b * (size_t)block, (size_t)block), own);
        if (b) assert_int_equal(cot_cache_sequence_hash(hash[b - 1], own), hash[b]);
        if (!b) assert_int_equal(own, hash[b]);
    }
    struct chain chain = {.hash = hash, .blocks = (int64_t)blocks, .home = (int)(draw(seed) % 3)};
    tell(&chain, ids, block, NULL);
    char salt[12];
    const int bytes = snprintf(salt, sizeof salt, "%u", (unsigned)draw(seed) % 100000);
    chain.parent = XXH3_64bits_withSeed(salt, (size_t)bytes, 1337);
    for (size_t b = 0; b < blocks; b++) {
        const uint64_t plain = hash[b],
                       link[] = {b ? hash[b - 1] : chain.parent,
                                 XXH3_64bits_withSeed(ids + b * (size_t)block, (size_t)block * 4, 1337)};
        hash[b] = XXH3_64bits_withSeed(link, sizeof link, 1337);
        assert_true(hash[b] != plain);
    }
    tell(&chain, ids, block, salt);
    free(ids);
    free(hash);
}

/* Quotes the numbers of the lists of hashes. */
static char *quoted(const char *line)
{
    char *text = must_allocate(3 * strlen(line) + 1, 1), *to = text;
    const char *from = strstr(line, "\"local\"");
    assert_non_null(from);
    memcpy(to, line, (size_t)(from - line));
    to += from - line;
    for (bool inside = false; *from; from++) {
        const bool digit = *from >= '0' && *from <= '9';
        if (digit != inside) *to++ = '"';
        inside = digit;
        *to++ = *from;
    }
    return text;
}

static void hashes_are_those_of_routers(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    FILE *file = fopen(VECTORS, "r");
    if (!file) {
        print_message("no %s: skipped\n", VECTORS);
        skip();
    }
    char *line = NULL;
    size_t room = 0;
    int cases = 0;
    for (; getline(&line, &room, file) > 0; cases++) {
        char *text = quoted(line);
        json_t *vector = json_loads(text, 0, NULL);
        assert_non_null(vector);
        check_case(vector, &seed);
        json_decref(vector);
        free(text);
    }
    assert_true(cases > 20);
    free(line);
    fclose(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(hashes_are_those_of_routers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
