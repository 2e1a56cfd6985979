/* Ranks that are forked processes give the bits and count the bytes of ranks that are threads. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/seed.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SEQUENCES = 4 };

struct outcome {
    struct records records;
    cot_engine_info info;
    cot_stats stats;
};

static void run(struct outcome *o, const struct setting *s, const cot_request *requests)
{
    cot_engine *engine = must_open(s);
    o->records = must_run(engine, requests, SEQUENCES);
    o->info = *cot_engine_describe(engine);
    o->records.info = &o->info;
    assert_int_equal(cot_engine_stats(engine, &o->stats, NULL), COT_OK);
    cot_engine_close(engine);
    if (s->processes) assert_true(waitpid(-1, NULL, WNOHANG) < 0); // no child is left
}

static void compare(const char *folder, const char *attention, const char *precision, int ranks)
{
    uint64_t seed = test_seed();
    if (!folder_exists(folder)) {
        printf("SKIPPED: there is no '%s'\n", folder);
        return;
    }
    struct setting s = {.folder = folder,
                        .ranks = ranks,
                        .precision = precision,
                        .attention = attention,
                        .kv_tokens = 64 * SEQUENCES,
                        .step_tokens = 40};
    int32_t *ids = drawn_ids(70, 331, &seed);
    cot_request requests[SEQUENCES];
    for (int i = 0; i < SEQUENCES; i++) requests[i] = forced_request(ids + 11 * i, 30 - 7 * i, 25 - 7 * i);
    struct outcome threads, processes;
    run(&threads, &s, requests);
    s.processes = true;
    run(&processes, &s, requests);
    for (size_t i = 0; i < SEQUENCES; i++) {
        const struct record *a = &threads.records.record[i], *b = &processes.records.record[i];
        size_t n = (size_t)a->capacity;
        assert_told_once(&threads.records, i, &requests[i], true);
        assert_told_once(&processes.records, i, &requests[i], true);
        assert_memory_equal(a->logits, b->logits, n * (size_t)threads.info.vocab * sizeof *a->logits);
        assert_memory_equal(a->experts, b->experts, n * routed(&threads.info) * sizeof *a->experts);
        assert_memory_equal(a->weights, b->weights, n * routed(&threads.info) * sizeof *a->weights);
    }
    for (int p = 0; p < COT_STATS_PHASES; p++) {
        size_t bytes = (size_t)(ranks * ranks) * sizeof(uint64_t);
        assert_memory_equal(threads.stats.bytes[p], processes.stats.bytes[p], bytes);
        assert_memory_equal(threads.stats.messages[p], processes.stats.messages[p], bytes);
    }
    assert_int_equal(threads.stats.activations, processes.stats.activations);
    assert_int_equal(threads.stats.local_activations, processes.stats.local_activations);
    cot_stats_clear(&threads.stats);
    cot_stats_clear(&processes.stats);
    records_free(&threads.records);
    records_free(&processes.records);
    free(ids);
}

static void threads_and_processes_agree(void **state)
{
    (void)state;
    static const int ranks[] = {1, 2, 3, 5};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
        for (int way = 0; way < 4; way++) {
            const char *attention = way & 1 ? "dp" : "tp", *precision = way & 2 ? "bf16" : "fp32";
            compare(COT_SHARED "/golden/olmoe", attention, precision, ranks[i]);
            compare(COT_SHARED "/golden/deepseek-v3-fp8", attention, precision, ranks[i]);
        }
    compare(TINY, "tp", "bf16", 3);
    compare(TINY, "dp", "fp32", 5);
}

/* Processes that never saw a step end too. */
static void closing_without_a_run(void **state)
{
    (void)state;
    struct setting s = {.folder = TINY, .ranks = 5, .processes = true};
    cot_engine_close(must_open(&s));
    assert_true(waitpid(-1, NULL, WNOHANG) < 0);
}

/* A process that is forked off frees its copy, at once and without touching the ranks, whatever they are. */
static void a_copy_is_closed(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    int32_t *ids = drawn_ids(30, 331, &seed);
    cot_request requests[SEQUENCES];
    for (int i = 0; i < SEQUENCES; i++) requests[i] = forced_request(ids + 5 * i, 12, 6);
    for (int processes = 0; processes < 2; processes++) {
        struct setting s = {.folder = TINY, .ranks = 3, .threads = 5, .processes = processes};
        cot_engine *engine = must_open(&s);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (!child) {
            alarm(30); // threads that are not there, and ranks that do not end, would be waited for
            cot_engine_close(engine);
            _exit(0);
        }
        int status = -1;
        assert_true(waitpid(child, &status, 0) == child);
        assert_int_equal(status, 0);
        struct records records = must_run(engine, requests, SEQUENCES);
        for (size_t i = 0; i < SEQUENCES; i++) assert_told_once(&records, i, &requests[i], true);
        records_free(&records);
        cot_engine_close(engine);
        assert_true(waitpid(-1, NULL, WNOHANG) < 0);
    }
    free(ids);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_and_processes_agree),
                                       cmocka_unit_test(closing_without_a_run),
                                       cmocka_unit_test(a_copy_is_closed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
