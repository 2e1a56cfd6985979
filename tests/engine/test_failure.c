/* A step fails in the middle of a run: everybody learns of it, and the engine can only be closed. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/settings.h"
#include "harness/engine/tiny_copy.h"
#include "harness/memory.h"

#include "base/error.h"
#include "base/safetensors.h"
#include "model/runner_state.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Nothing works any more but closing. */
static void assert_failed(cot_engine *engine, const cot_request *request)
{
    uint64_t id;
    size_t left;
    cot_stats stats;
    cot_error error = {0};
    assert_int_equal(cot_engine_run(engine, request, 1, &(cot_events){0}, NULL, &error), COT_PEER_FAILED);
    assert_int_equal(cot_engine_submit(engine, &id, request, 0, &(cot_events){0}, &error), COT_PEER_FAILED);
    assert_int_equal(cot_engine_cancel(engine, 1, &error), COT_PEER_FAILED);
    assert_int_equal(cot_engine_step(engine, &left, &error), COT_PEER_FAILED);
    assert_int_equal(cot_engine_stats(engine, &stats, &error), COT_PEER_FAILED);
    assert_true(strlen(error.message) > 0);
}

/* The model's file is cut off while the engine runs: the step fails, and nothing ends the process. */
static void the_file_is_cut_off(void **state)
{
    (void)state;
    char folder[] = TINY_COPY, path[64];
    for (int way = 0; way < 8; way++) {
        memcpy(folder, TINY_COPY, sizeof folder);
        tiny_copy_make(folder, NULL, NULL);
        snprintf(path, sizeof path, "%s/model.safetensors", folder);
        const int32_t prompt[] = {40, 50};
        struct setting s = {.folder = folder,
                            .ranks = way & 1 ? 3 : 1,
                            .attention = way & 2 ? "dp" : "tp",
                            .processes = way & 4};
        cot_engine *engine = must_open(&s);
        cot_request request = {.prompt = prompt, .prompt_tokens = 2};
        cot_sampling_init(&request.sampling);
        request.sampling.max_tokens = 3;
        cot_error error = {0};
        assert_int_equal(cot_engine_run(engine, &request, 1, &(cot_events){0}, NULL, &error), COT_OK);
        assert_int_equal(truncate(path, 100), 0);
        assert_int_equal(cot_engine_run(engine, &request, 1, &(cot_events){0}, NULL, &error), COT_IO);
        assert_non_null(strstr(error.message, "embed_tokens"));
        assert_failed(engine, &request);
        cot_engine_close(engine);
        assert_true(waitpid(-1, NULL, WNOHANG) < 0); // no child is left
        tiny_copy_remove(folder);
    }
}

static bool stats_fail;
cot_status __real_cot_runner_stats(cot_runner *r, cot_rank_stats *stats, cot_error *error);
cot_status __wrap_cot_runner_stats(cot_runner *r, cot_rank_stats *stats, cot_error *error);

cot_status __wrap_cot_runner_stats(cot_runner *r, cot_rank_stats *stats, cot_error *error)
{
    if (!stats_fail || r->fabric->rank != 2) return __real_cot_runner_stats(r, stats, error);
    (r->fabric->ops->fail)(r->fabric); // in parentheses: cmocka has a macro of that name
    return cot_fail(error, COT_OUT_OF_MEMORY, "rank 2's own reason");
}

/* What a rank reports comes before that it failed. */
static void counters_fail_with_a_reason(void **state)
{
    (void)state;
    for (int processes = 0; processes < 2; processes++) {
        struct setting s = {.folder = TINY, .ranks = 3, .processes = processes};
        cot_stats stats;
        cot_error error = {0};
        stats_fail = true;
        cot_engine *engine = must_open(&s);
        assert_int_equal(cot_engine_stats(engine, &stats, &error), COT_OUT_OF_MEMORY);
        assert_string_equal(error.message, "rank 2's own reason");
        cot_engine_close(engine);
        stats_fail = false;
    }
}

static pid_t first_child(void)
{
    char path[64];
    int child = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", getpid());
    FILE *file = fopen(path, "r");
    assert_true(file && fscanf(file, "%d", &child) == 1);
    fclose(file);
    return child;
}

/* Killed while rank 0 is with the application, a rank is missed at the next call. */
static void a_rank_is_killed_between_steps(void **state)
{
    (void)state;
    static const int32_t prompt[] = {40, 50};
    for (int stepped = 0; stepped < 2; stepped++) {
        struct setting s = {.folder = TINY, .ranks = 3, .processes = true};
        cot_engine *engine = must_open(&s);
        cot_request request = {.prompt = prompt, .prompt_tokens = 2};
        cot_sampling_init(&request.sampling);
        cot_stats stats;
        cot_error error = {0};
        assert_int_equal(kill(first_child(), SIGKILL), 0);
        const cot_status status = stepped
                                      ? cot_engine_run(engine, &request, 1, &(cot_events){0}, NULL, &error)
                                      : cot_engine_stats(engine, &stats, &error);
        assert_int_equal(status, COT_PEER_FAILED);
        if (strncmp(error.message, "rank 1 was killed by signal 9 while rank 0 waited", 49) != 0)
            fail_msg("%s", error.message);
        cot_engine_close(engine);
        assert_true(waitpid(-1, NULL, WNOHANG) < 0); // no child is left
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_file_is_cut_off),
                                       cmocka_unit_test(counters_fail_with_a_reason),
                                       cmocka_unit_test(a_rank_is_killed_between_steps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
