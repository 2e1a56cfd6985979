#include "cli/bench/router_decisions.h"
#include "cli/frame/clock.h"
#include "cli/frame/command.h"

#include "coterie/request.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    PARTS = COT_LOAD_TEST_HASHED / CLI_ROUTER_BLOCK,
    HASH_ROUNDS = 101,
    IN_FLIGHT = 4096,
    AT_ONCE = 16,
    PACE = 1200000,
    CELLS = 768, // 24 layers of 32 experts
    KINDS = 64,  // of texts, by the experts that they call
    LEAST_DECISIONS = 100000
};

typedef struct bench {
    const cli_request_trace *trace;
    size_t targets;
    uint64_t *keys; // of all prompts' whole blocks
    size_t *first;  // [count + 1] in keys
    cot_route_index *index;
    cot_route_book *book;
    uint32_t *depth; // [targets]
    cot_route_calls calls[KINDS];
    atomic_bool over, writing;
    uint64_t written; // by the writer, blocks; and what they took
    double written_ns, wall_ns;
    bool failed;
} bench;

static double thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* The ids of a traced block: drawn from its number. */
static void draw_ids(int32_t *ids, uint32_t number)
{
    for (uint32_t i = 0; i < COT_LOAD_TEST_HASHED; i++)
        ids[i] = (int32_t)(mix((uint64_t)number << 10 | i) % 100000);
}

static void hash_blocks(uint64_t *keys, const int32_t *ids, size_t blocks, const uint64_t *parent)
{
    for (size_t i = 0; i < blocks; i++) {
        const uint64_t own = cot_cache_local_hash(ids + i * CLI_ROUTER_BLOCK, CLI_ROUTER_BLOCK);
        keys[i] = parent ? cot_cache_sequence_hash(*parent, own) : own;
        parent = &keys[i];
    }
}

static bool make_keys(bench *b)
{
    const cli_request_trace *t = b->trace;
    b->first = calloc(t->count + 1, sizeof *b->first);
    for (size_t i = 0; b->first && i < t->count; i++)
        b->first[i + 1] = b->first[i] + (size_t)t->requests[i].input_tokens / CLI_ROUTER_BLOCK;
    b->keys = b->first ? calloc(b->first[t->count] + PARTS, sizeof *b->keys) : NULL;
    for (size_t i = 0; b->keys && i < t->count; i++) {
        uint64_t *const keys = b->keys + b->first[i];
        const size_t blocks = b->first[i + 1] - b->first[i];
        for (size_t at = 0; at < blocks; at += PARTS) {
            int32_t ids[COT_LOAD_TEST_HASHED];
            draw_ids(ids, t->blocks.ids[t->requests[i].first_block + at / PARTS]);
            hash_blocks(keys + at, ids, blocks - at < PARTS ? blocks - at : PARTS, at ? &keys[at - 1] : NULL);
        }
    }
    return b->keys;
}

static bool fill(bench *b, cli_decisions_result *result)
{
    cot_route_stored stored = {0};
    const double began = thread_ns();
    for (size_t i = 0; i < b->trace->count; i++)
        if (cot_route_index_store(b->index, i % b->targets, NULL, b->keys + b->first[i],
                                  b->first[i + 1] - b->first[i], &stored))
            return false;
    const double took = thread_ns() - began;
    cot_route_index_figures figures;
    cot_route_index_measure(b->index, &figures);
    result->blocks = figures.blocks;
    result->pairs = figures.pairs;
    result->bytes = figures.bytes;
    result->insert_blocks_per_second = 1e9 * (double)b->first[b->trace->count] / took;
    return true;
}

/* So many blocks a second, while there are so many to be had: prompts go to other targets, and half of each leaves a target again, last block first, as caches let them go: one of three blocks
 * is a removal. */
static void *write_on(void *context)
{
    bench *const b = context;
    uint64_t gone[1024];
    const double began = thread_ns();
    const int64_t from_ns = cli_now_ns();
    for (size_t round = 1; !b->failed && !atomic_load(&b->over); round++) {
        for (size_t i = 0; i < b->trace->count && !atomic_load(&b->over); i++) {
            const size_t n = b->first[i + 1] - b->first[i], to = (i + round) % b->targets;
            cot_route_stored stored = {0};
            if (cot_route_index_store(b->index, to, NULL, b->keys + b->first[i], n, &stored))
                b->failed = true;
            for (size_t left = n / 2; left;) {
                const size_t part = left < 1024 ? left : 1024;
                for (size_t k = 0; k < part; k++) gone[k] = b->keys[b->first[i] + n - n / 2 + --left];
                cot_route_index_remove(b->index, to, gone, part);
            }
            b->written += n + n / 2;
            atomic_store(&b->writing, true);
            const int64_t due_ns = from_ns + (int64_t)(1e9 * (double)b->written / PACE),
                          now_ns = cli_now_ns();
            if (due_ns > now_ns) nanosleep(&(struct timespec){.tv_nsec = due_ns - now_ns}, NULL);
        }
    }
    b->written_ns = thread_ns() - began;
    b->wall_ns = (double)(cli_now_ns() - from_ns);
    return NULL;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A request comes, another is over. */
static bool decide(bench *b, size_t i, const uint64_t *keys, uint64_t *in_flight, uint64_t n)
{
    const cot_load_test_line *r = &b->trace->requests[i];
    const size_t blocks = b->first[i + 1] - b->first[i];
    const int64_t now_ns = (int64_t)n * 1000;
    cot_route_index_match(b->index, b->depth, keys, blocks);
    const cot_route_request request = {.blocks = blocks,
                                       .tokens = (uint64_t)r->input_tokens,
                                       .max_tokens = (uint64_t)r->output_tokens,
                                       .depth = b->depth,
                                       .keys = keys,
                                       .calls = &b->calls[mix(i) % KINDS]};
    cot_route_decision d;
    uint64_t *slot = &in_flight[n % IN_FLIGHT];
    if (*slot) cot_route_ended(b->book, *slot, (uint64_t)r->output_tokens, now_ns);
    *slot = cot_route_choose(b->book, &request, now_ns, &d)
                ? cot_route_assigned(b->book, &request, &d, now_ns)
                : 0;
    return *slot;
}

static bool measure(bench *b, cli_decisions_result *result)
{
    uint64_t in_flight[IN_FLIGHT] = {0}, n = 0;
    const size_t count = b->trace->count, rounds = (LEAST_DECISIONS + count - 1) / count;
    double *took = malloc(count * sizeof *took);
    size_t most = 0;
    for (size_t i = 0; i < count; i += AT_ONCE) {
        const size_t end = i + AT_ONCE < count ? i + AT_ONCE : count;
        if (b->first[end] - b->first[i] > most) most = b->first[end] - b->first[i];
    }
    uint64_t *keys = malloc((most + 1) * sizeof *keys);
    bool good = took && keys;
    pthread_t writer;
    if (!good || pthread_create(&writer, NULL, write_on, b)) {
        free(took);
        free(keys);
        return false;
    }
    while (!atomic_load(&b->writing)) {}
    double all = 0;
    for (size_t round = 0; round <= rounds; round++) { // the last one each by itself
        for (size_t i = 0; i < count; i += AT_ONCE) {
            // Keys were just computed where a request is routed: they are near, as here.
            const size_t end = i + AT_ONCE < count ? i + AT_ONCE : count;
            memcpy(keys, b->keys + b->first[i], (b->first[end] - b->first[i]) * sizeof *keys);
            const double began = thread_ns();
            for (size_t k = i; k < end; k++) {
                const double from = round < rounds ? 0 : thread_ns();
                good &= decide(b, k, keys + (b->first[k] - b->first[i]), in_flight, n++);
                if (round == rounds) took[k] = thread_ns() - from;
            }
            if (round < rounds) all += thread_ns() - began;
        }
    }
    atomic_store(&b->over, true);
    pthread_join(writer, NULL);
    const double clock = thread_ns();
    for (int i = 0; i < 1000; i++) thread_ns();
    result->clock_ns = (thread_ns() - clock) / 1001;
    qsort(took, count, sizeof *took, by_size);
    result->decisions = rounds * count;
    result->decisions_per_second = 1e9 * (double)result->decisions / all;
    result->p50_ns = took[count / 2];
    result->p99_ns = took[count * 99 / 100];
    result->writer_blocks_per_second = 1e9 * (double)b->written / b->wall_ns;
    result->writer_most_per_second = 1e9 * (double)b->written / b->written_ns;
    free(took);
    free(keys);
    return good && !b->failed;
}

static bool time_hashes(bench *b, cli_decisions_result *result)
{
    const size_t blocks = b->first[b->trace->count] / b->trace->count;
    int32_t *ids = malloc((blocks + 1) * CLI_ROUTER_BLOCK * sizeof *ids);
    uint64_t *keys = calloc(blocks + 1, sizeof *keys);
    volatile uint64_t last = 0; // so that none is left out
    double took[HASH_ROUNDS];
    for (size_t i = 0; ids && i < blocks * CLI_ROUTER_BLOCK; i++) ids[i] = (int32_t)(mix(i) % 100000);
    for (int round = 0; ids && keys && round < HASH_ROUNDS; round++) {
        ids[0] = round;
        const double from = thread_ns();
        hash_blocks(keys, ids, blocks, NULL);
        took[round] = thread_ns() - from;
        last = keys[blocks ? blocks - 1 : 0];
    }
    (void)last;
    const bool good = ids && keys;
    if (good) qsort(took, HASH_ROUNDS, sizeof *took, by_size);
    if (good) result->hash_ns = took[HASH_ROUNDS / 2];
    result->prompt_blocks = blocks;
    result->hash_tokens = blocks * CLI_ROUTER_BLOCK;
    free(ids);
    free(keys);
    return good;
}

/* Of each kind of texts so many cells at random, by rising cells; the usual is their mean. */
static cot_status draw_calls(bench *b, cot_error *error)
{
    float usual[CELLS] = {0};
    for (size_t kind = 0; kind < KINDS; kind++) {
        cot_route_calls *calls = &b->calls[kind];
        for (size_t c = 0; c < CELLS; c++) {
            const uint64_t bits = mix(kind * CELLS + c);
            if (bits % (CELLS - c) >= COT_ROUTE_MOST_CALLS - calls->count) continue;
            calls->cell[calls->count] = (uint16_t)c;
            calls->share[calls->count] = (float)(1 + (bits >> 32) % 95) / 100;
            usual[c] += calls->share[calls->count++] / KINDS;
        }
    }
    const cot_status status = cot_route_book_set_cells(b->book, CELLS, error);
    if (status == COT_OK) cot_route_book_set_usual(b->book, usual);
    return status;
}

bool cli_router_decisions(cli_decisions_result *result, const cli_request_trace *trace, size_t targets,
                          cot_route_policy policy)
{
    cot_error error;
    bench b = {.trace = trace, .targets = targets};
    *result = (cli_decisions_result){0};
    if (cot_route_index_open(&b.index, targets, &error) ||
        cot_route_book_open(&b.book, targets, CLI_ROUTER_BLOCK, policy, 1, &error) ||
        draw_calls(&b, &error)) {
        cot_route_book_close(b.book);
        cot_route_index_close(b.index);
        cli_complain_of(&error);
        return false;
    }
    const cot_route_costs costs = {
        .prompt_ns = 1e6, .token_ns = 5e4, .step_ns = 1e5, .pages = 1e5, .expert_ns = 1e3};
    for (size_t t = 0; t < targets; t++) cot_route_book_set_costs(b.book, t, &costs);
    b.depth = calloc(targets, sizeof *b.depth);
    const bool good =
        b.depth && make_keys(&b) && time_hashes(&b, result) && fill(&b, result) && measure(&b, result);
    if (!good) cli_complain("out of memory for %zu targets and %zu requests", targets, trace->count);
    free(b.depth);
    free(b.keys);
    free(b.first);
    cot_route_book_close(b.book);
    cot_route_index_close(b.index);
    return good;
}
