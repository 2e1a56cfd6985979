/* Weights that are finite and yet too large: a step fails in the middle of a run, everybody learns of it, and
 * the engine can only be closed. */
#include "harness.h"

#include "base/safetensors.h"

#include <sys/wait.h>
#include <unistd.h>

/* A copy of the shipped model in `folder` in which every weight whose name ends so is the largest bf16. */
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
        size_t length = strlen(tensors[i].name), tail = strlen(ending);
        if (length < tail || strcmp(tensors[i].name + length - tail, ending) != 0) continue;
        assert_int_equal(tensors[i].dtype, COT_BF16);
        if (!huge) {
            huge = must_allocate(tensors[i].bytes, 1);
            memset(huge, 0x7e, tensors[i].bytes); // about 8e37
        }
        tensors[i].data = huge;
        replaced++;
    }
    assert_true(replaced > 0);
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

static void fail_and_close(const char *folder, const char *attention, int ranks, bool processes)
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
    cot_status status = cot_engine_run(engine, requests, 4, &(cot_events){0}, &error);
    assert_true(status == COT_INVALID_ARGUMENT || status == COT_PEER_FAILED);
    assert_int_equal(error.status, status);
    assert_true(strlen(error.message) > 0);
    assert_int_equal(cot_engine_run(engine, requests, 4, &(cot_events){0}, &error), COT_PEER_FAILED);
    assert_int_equal(cot_engine_stats(engine, &stats, &error), COT_PEER_FAILED);
    cot_engine_close(engine);
    if (processes) assert_true(waitpid(-1, NULL, WNOHANG) < 0); // no child is left
}

static void fail_everywhere(const char *ending)
{
    char folder[] = "coterie-test-XXXXXX";
    make_model(folder, ending);
    for (int way = 0; way < 8; way++) fail_and_close(folder, way & 1 ? "dp" : "tp", way & 2 ? 3 : 1, way & 4);
    remove_model(folder);
}

static void logits_overflow(void **state)
{
    (void)state;
    fail_everywhere("model.norm.weight");
}

static void the_gate_overflows(void **state)
{
    (void)state;
    fail_everywhere("post_attention_layernorm.weight");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(logits_overflow),
                                       cmocka_unit_test(the_gate_overflows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
