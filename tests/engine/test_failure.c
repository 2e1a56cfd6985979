/* Weights that are finite and yet too large: a step fails in the middle of a run, everybody learns of it, and
 * the engine can only be closed. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/settings.h"
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

/* A copy of the shipped model in `folder` in which every weight whose name ends so (NULL: none) is the largest bf16. */
static void make_model(char *folder, const char *ending)
{
    cot_safetensors file;
    char path[64];
    uint16_t *huge = NULL;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(cot_safetensors_open(&file, TINY "/model.safetensors", NULL), COT_OK);
    cot_tensor *tensors = must_allocate(file.count, sizeof *tensors);
    size_t replaced = 0;
    for (size_t i = 0; i < file.count; i++) {
        tensors[i] = file.tensors[i];
        size_t length = strlen(tensors[i].name), tail = ending ? strlen(ending) : 0;
        if (!ending || length < tail || strcmp(tensors[i].name + length - tail, ending) != 0) continue;
        assert_int_equal(tensors[i].dtype, COT_BF16);
        if (!huge) {
            huge = must_allocate(tensors[i].bytes, 1);
            memset(huge, 0x7e, tensors[i].bytes); // about 8e37
        }
        tensors[i].data = huge;
        replaced++;
    }
    assert_true(replaced > 0 || !ending);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_int_equal(cot_safetensors_write(path, tensors, file.count, NULL, 0, NULL), COT_OK);
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(symlink(TINY "/config.json", path), 0);
    cot_safetensors_close(&file);
    free(tensors);
    free(huge);
}

static void remove_model(const char *folder)
{
    static const char *const names[] = {"model.safetensors", "config.json"};
    for (int i = 0; i < 2; i++) {
        char path[64];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

/* Runs the requests or, `stepped`, submits and steps them. Returns the place of the one that failed, 4: none. */
static size_t run_into_failure(cot_engine *engine, const cot_request requests[4], bool stepped,
                               cot_error *error)
{
    size_t failed = 77, left;
    uint64_t id[4], failed_id = 77;
    cot_status status = COT_OK;
    if (!stepped) {
        status = cot_engine_run(engine, requests, 4, &(cot_events){0}, &failed, error);
    } else {
        for (int i = 0; i < 4; i++)
            assert_int_equal(cot_engine_submit(engine, &id[i], &requests[i], 0, &(cot_events){0}, NULL),
                             COT_OK);
        while (status == COT_OK) status = cot_engine_step(engine, &left, &failed_id, error);
        for (failed = 0; failed < 4 && id[failed] != failed_id;) failed++;
        assert_true(failed < 4 || !failed_id);
    }
    assert_true(status == COT_INVALID_ARGUMENT || status == COT_PEER_FAILED);
    assert_int_equal(error->status, status);
    return failed;
}

static void fail_and_close(const char *folder, const char *attention, int ranks, bool processes, bool stepped,
                           size_t failing)
{
    static const int32_t prompt[] = {40, 50, 60, 70, 80};
    struct setting s = {.folder = folder, .ranks = ranks, .attention = attention, .processes = processes};
    cot_engine *engine = must_open(&s);
    cot_request requests[4];
    for (int i = 0; i < 4; i++) {
        requests[i] = (cot_request){.prompt = prompt, .prompt_tokens = 1 + i};
        cot_sampling_init(&requests[i].sampling);
    }
    cot_error error = {0};
    cot_stats stats;
    assert_int_equal(run_into_failure(engine, requests, stepped, &error), failing);
    assert_true(strlen(error.message) > 0);
    assert_int_equal(cot_engine_run(engine, requests, 4, &(cot_events){0}, NULL, &error), COT_PEER_FAILED);
    uint64_t id;
    size_t left;
    assert_int_equal(cot_engine_submit(engine, &id, &requests[0], 0, &(cot_events){0}, &error),
                     COT_PEER_FAILED);
    assert_int_equal(cot_engine_cancel(engine, 1, &error), COT_PEER_FAILED);
    assert_int_equal(cot_engine_step(engine, &left, NULL, &error), COT_PEER_FAILED);
    assert_int_equal(cot_engine_stats(engine, &stats, &error), COT_PEER_FAILED);
    cot_engine_close(engine);
    if (processes) assert_true(waitpid(-1, NULL, WNOHANG) < 0); // no child is left
}

static void fail_everywhere(const char *ending, size_t failing)
{
    char folder[] = "coterie-test-XXXXXX";
    make_model(folder, ending);
    for (int way = 0; way < 16; way++)
        fail_and_close(folder, way & 1 ? "dp" : "tp", way & 2 ? 3 : 1, way & 4, way & 8, failing);
    remove_model(folder);
}

static void logits_overflow(void **state)
{
    (void)state;
    fail_everywhere("model.norm.weight", 0); // the first whose logits are looked at
}

static void the_gate_overflows(void **state)
{
    (void)state;
    fail_everywhere("post_attention_layernorm.weight", 4); // a step of all of them
}

/* The model's file is cut off while the engine runs: the step fails, and nothing ends the process. */
static void the_file_is_cut_off(void **state)
{
    (void)state;
    char folder[] = "coterie-test-XXXXXX", path[64];
    for (int way = 0; way < 4; way++) {
        memcpy(folder, "coterie-test-XXXXXX", sizeof folder);
        make_model(folder, NULL);
        snprintf(path, sizeof path, "%s/model.safetensors", folder);
        const int32_t prompt[] = {40, 50};
        struct setting s = {.folder = folder, .ranks = way & 1 ? 3 : 1, .attention = way & 2 ? "dp" : "tp"};
        cot_engine *engine = must_open(&s);
        cot_request request = {.prompt = prompt, .prompt_tokens = 2};
        cot_sampling_init(&request.sampling);
        request.sampling.max_tokens = 3;
        cot_error error = {0};
        assert_int_equal(cot_engine_run(engine, &request, 1, &(cot_events){0}, NULL, &error), COT_OK);
        assert_int_equal(truncate(path, 100), 0);
        assert_int_equal(cot_engine_run(engine, &request, 1, &(cot_events){0}, NULL, &error), COT_IO);
        assert_non_null(strstr(error.message, "embed_tokens"));
        cot_engine_close(engine);
        remove_model(folder);
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_overflow), cmocka_unit_test(the_file_is_cut_off),
        cmocka_unit_test(the_gate_overflows), cmocka_unit_test(counters_fail_with_a_reason),
        cmocka_unit_test(a_rank_is_killed_between_steps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
