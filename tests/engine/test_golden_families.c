/* Families that others' code computed (golden/families): logits, routing and the likeliest ids of each, with both kinds of attention, at
 * several numbers of ranks, as threads and as processes. The short way takes three settings of each; COT_LONG takes all. */
#include "harness/cmocka.h"
#include "harness/engine/answers.h"
#include "harness/engine/golden.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/refused.h"
#include "harness/scratch.h"

#include "coterie/model.h"
#include "checkpoint/checkpoint.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FAMILIES COT_SHARED "/golden/families/"
enum { FOUND = 25 }; // at least

/* What these need is not there: recurrent mixers, experts of attention, a network beside experts. */
static const char *const absent[] = {"lfm2-moe",       "nemotron-h", "nemotron-h-latent",
                                     "bailing-hybrid", "jetmoe",     "gemma4-moe"};

static bool is_absent(const char *name)
{
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        if (!strcmp(name, absent[i])) return true;
    return false;
}

/* Calls `body` for each family that is there, or for COT_FAMILY's alone; folders of the others have models whose attention is sparse. */
static void each_family(bool beyond, int least, void (*body)(struct answers *a, const char *name))
{
    const char *only = getenv("COT_FAMILY");
    DIR *folder = opendir(FAMILIES);
    assert_non_null(folder);
    int found = 0;
    for (const struct dirent *entry; (entry = readdir(folder));) {
        char path[1024];
        struct answers a;
        snprintf(path, sizeof path, FAMILIES "%s", entry->d_name);
        if ((only && strcmp(only, entry->d_name) != 0) || entry->d_name[0] == '.' || is_absent(entry->d_name))
            continue;
        if ((strstr(entry->d_name, "-beyond") != NULL) != beyond || !answers_open(&a, path)) continue;
        body(&a, entry->d_name);
        answers_close(&a);
        found++;
    }
    closedir(folder);
    assert_true(only || found >= least);
}

static void compare(struct answers *a, const char *name)
{
    static const struct setting settings[] = {
        {.ranks = 2, .attention = "tp", .kv_tokens = 256},
        {.ranks = 2, .attention = "dp", .kv_tokens = 256},
        {.ranks = 2, .attention = "tp", .pipeline = "s-moe", .kv_tokens = 256},
        {.ranks = 1, .attention = "tp", .kv_tokens = 256},
        {.ranks = 4, .attention = "tp", .kv_tokens = 256},
        {.ranks = 4, .attention = "dp", .kv_tokens = 256},
        {.ranks = 4, .processes = true, .attention = "tp", .kv_tokens = 256},
        {.ranks = 2, .processes = true, .attention = "dp", .kv_tokens = 256},
        {.ranks = 4, .attention = "tp", .pipeline = "s-moe", .kv_tokens = 256}};
    const size_t count = getenv("COT_LONG") ? sizeof settings / sizeof *settings : 3;
    for (size_t s = 0; s < count; s++) answers_compare(a, &settings[s]);
    printf("%-20s worst logit %.1e, worst weight %.1e\n", name, a->worst_logit, a->worst_weight);
}

static void compare_logits(const struct answers *a, const char *sequence, const struct record *r,
                           int64_t tokens, int64_t vocab, const char *name)
{
    char key[40];
    snprintf(key, sizeof key, "logits.%s", sequence);
    const cot_tensor *logits = cot_safetensors_find(&a->file, key);
    assert_true(logits && logits->shape[1] == vocab);
    for (int64_t i = 0; i < tokens * vocab; i++) {
        float expected;
        memcpy(&expected, (const uint8_t *)logits->data + 4 * i, 4);
        if (!(fabsf(r->logits[i] - expected) <= 5e-4f))
            fail_msg("%s, sequence %s, token %lld: %g, expected %g", name, sequence, (long long)(i / vocab),
                     (double)r->logits[i], (double)expected);
    }
}

static void logits_and_routing(void **state)
{
    (void)state;
    each_family(false, FOUND, compare);
}

/* ---- the likeliest ids ---- */

enum { GREEDY = 16 };

static void generate(const struct answers *a, cot_engine *engine)
{
    size_t count;
    const cot_eval_sequence *sequences = cot_eval_set_sequences(a->set, &count);
    cot_request requests[8];
    assert_true(count >= 1 && count <= 8);
    for (size_t i = 0; i < count; i++)
        requests[i] = generating_from(sequences[i].ids, sequences[i].prefill_tokens, GREEDY);
    struct records all = must_run(engine, requests, count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(all.record[i].sampled_tokens, GREEDY);
        assert_memory_equal(all.record[i].sampled, sequences[i].ids + sequences[i].prefill_tokens,
                            GREEDY * sizeof(int32_t));
    }
    records_free(&all);
}

/* Prompts whole, in chunks, found in the cache, and started over for want of pages. */
static void compare_ids(struct answers *a, const char *name)
{
    (void)name;
    struct setting s = {
        .folder = a->folder, .ranks = 2, .precision = "fp32", .attention = "tp", .sequences = 2};
    cot_engine_load load;
    s.kv_tokens = 256, s.step_tokens = 64, s.block_tokens = 16;
    cot_engine *engine = must_open(&s);
    generate(a, engine);
    generate(a, engine);
    cot_engine_get_load(engine, &load);
    // all whole blocks of prompts of 24 and 70; where layers have states, those that end 8 tokens before
    const bool has_states = strstr(name, "qwen3-next") || strstr(name, "qwen3-5");
    assert_int_equal(load.hit_tokens, has_states ? 16 + 48 : 16 + 64);
    assert_int_equal(load.preemptions, 0);
    cot_engine_close(engine);
    s.kv_tokens = 256, s.step_tokens = 11, s.block_tokens = 0, s.attention = "dp", s.ranks = 1;
    engine = must_open(&s);
    generate(a, engine);
    cot_engine_close(engine);
    printf("%-20s says the same\n", name);
}

/* Four that need a second page each when one is left: some begin anew, and say what each says alone. */
static void compare_preempted(struct answers *a, const char *name)
{
    enum { COPIES = 4, PROMPT = 60, SAID = 20 };
    const struct setting s = {.folder = a->folder,
                              .ranks = 1,
                              .precision = "fp32",
                              .attention = "tp",
                              .sequences = COPIES,
                              .kv_tokens = 64}; // and a page for each
    size_t count;
    const cot_eval_sequence *longest = cot_eval_set_sequences(a->set, &count) + 1;
    assert_int_equal(count, 2);
    const cot_request q = generating_from(longest->ids, PROMPT, SAID), requests[COPIES] = {q, q, q, q};
    cot_engine *engine = must_open(&s);
    cot_engine_load load;
    struct records alone = must_run(engine, &q, 1), all = must_run(engine, requests, COPIES);
    cot_engine_get_load(engine, &load);
    assert_true(load.preemptions > 0);
    for (size_t i = 0; i < COPIES; i++)
        assert_memory_equal(all.record[i].sampled, alone.record[0].sampled, SAID * sizeof(int32_t));
    records_free(&alone);
    records_free(&all);
    cot_engine_close(engine);
    printf("%-20s is preempted\n", name);
}

static void preempted(void **state)
{
    (void)state;
    each_family(false, FOUND, compare_preempted);
}

static void likeliest_ids(void **state)
{
    (void)state;
    each_family(false, FOUND, compare_ids);
}

/* ---- where attention is sparse ---- */

/* Up to the cap all is computed; what is longer is refused. */
static void compare_begin(struct answers *a, const char *name)
{
    enum { CAP = 20 };
    struct setting s = {.folder = a->folder, .ranks = 2, .precision = "fp32", .attention = "tp"};
    cot_engine *engine = must_open(&s);
    size_t count;
    const cot_eval_sequence *sequences = cot_eval_set_sequences(a->set, &count);
    assert_int_equal(cot_engine_describe(engine)->context_tokens, CAP);
    for (size_t q = 0; q < count; q++) {
        cot_request request = forced_request(sequences[q].ids, CAP, CAP);
        struct records all = must_run(engine, &request, 1);
        compare_logits(a, sequences[q].name, &all.record[0], CAP, all.info->vocab, name);
        records_free(&all);
        cot_error error;
        uint64_t id;
        request = forced_request(sequences[q].ids, CAP + 1, CAP + 1);
        assert_int_equal(cot_engine_submit(engine, &id, &request, COT_HOME_ANY, NULL, &error), COT_TOO_LONG);
        assert_non_null(strstr(error.message, "21 tokens, the context is 20"));
    }
    cot_engine_close(engine);
    printf("%s ends at %d tokens\n", name, CAP);
}

static void sparse_attention_is_not_reached(void **state)
{
    (void)state;
    each_family(true, 2, compare_begin);
}

/* Where a context is cut a note says what longer texts would need. */
static void cut_contexts_are_told(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"phimoe",
         "the context ends at 256 tokens, its 'original_max_position_embeddings': longer texts need its "
         "long RoPE factors, which are not supported"},
        {"glm-moe-dsa-beyond",
         "the context ends at 20 tokens, its 'index_topk': longer texts need its sparse "
         "attention, which is not supported"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[1024], *notes;
        cot_checkpoint *checkpoint;
        snprintf(path, sizeof path, FAMILIES "%s", cases[i][0]);
        assert_int_equal(cot_checkpoint_open(&checkpoint, path, &notes, NULL), COT_OK);
        if (!notes || !strstr(notes, cases[i][1])) fail_msg("%s: %s", cases[i][0], notes);
        free(notes);
        cot_checkpoint_close(checkpoint);
    }
}

/* ---- what is not there ---- */

static void absent_families_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) {
        char path[1024];
        cot_model_info info;
        cot_error error;
        snprintf(path, sizeof path, FAMILIES "%s", absent[i]);
        assert_refused(cot_model_describe(&info, path, &error), &error, "unknown architecture '");
    }
}

/* Of models whose tensors have other names or hold several matrices no folder is written. */
static void not_converted(void **state)
{
    (void)state;
    static const char *const folders[][2] = {
        {"granitemoe", "of granitemoe no folder is written: its matrices lie together in tensors"},
        {"kimi-k25", "it is a part of a model that does more than texts"}};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        char path[1024];
        cot_model_convert_options options;
        cot_error error;
        snprintf(path, sizeof path, FAMILIES "%s", folders[i][0]);
        cot_model_convert_options_init(&options);
        assert_refused(cot_model_convert(path, "families-not-converted", &options, NULL, &error), &error,
                       folders[i][1]);
        assert_false(folder_exists("families-not-converted"));
    }
}

/* Of all others the folder that is written computes, to the bit, what rounding at load does. */
static int written;
static scratch_pad *pad;

static void compare_written(struct answers *a, const char *name)
{
    const struct setting rounded = {.folder = a->folder,
                                    .ranks = 1,
                                    .precision = "fp32",
                                    .attention = "tp",
                                    .weights = "int8",
                                    .weights_attention = "int8",
                                    .weights_head = "as-stored",
                                    .kv_tokens = 256},
                         as_written = {.folder = in_scratch(pad, "written"),
                                       .ranks = 1,
                                       .precision = "fp32",
                                       .attention = "tp",
                                       .kv_tokens = 256};
    cot_model_convert_options options;
    cot_error error;
    cot_model_convert_options_init(&options);
    options.weights = options.weights_attention = "int8";
    options.weights_head = "as-stored";
    const cot_status status = cot_model_convert(a->folder, as_written.folder, &options, NULL, &error);
    if (status == COT_UNSUPPORTED) return;
    if (status != COT_OK) fail_msg("%s: %s", name, error.message);
    size_t count;
    const cot_eval_sequence *sequence = cot_eval_set_sequences(a->set, &count);
    const int64_t tokens = sequence->tokens;
    const cot_request request = forced_request(sequence->ids, tokens, tokens);
    cot_engine_info info;
    struct records expected = run_once(&rounded, &request, 1, &info),
                   found = run_once(&as_written, &request, 1, &info);
    if (memcmp(expected.record[0].logits, found.record[0].logits,
               sizeof(float) * (size_t)(tokens * info.vocab)) != 0)
        fail_msg("%s: the folder that is written computes others", name);
    records_free(&expected);
    records_free(&found);
    remove_tree(as_written.folder);
    written++;
    printf("%-20s is written\n", name);
}

static void converted(void **state)
{
    pad = *state;
    each_family(false, FOUND, compare_written);
    assert_true(getenv("COT_FAMILY") || written >= FOUND - 6);
}

/* Sarvam's layout is Ling 2's: under its names, which its folders have, the same numbers come. */
static void ling_2(void **state)
{
    pad = *state;
    json_t *config = json_load_file(FAMILIES "sarvam-moe/config.json", 0, NULL);
    struct answers a;
    assert_non_null(config);
    json_object_set_new(config, "architectures", json_pack("[s]", "BailingMoeV2ForCausalLM"));
    json_object_set_new(config, "model_type", json_string("bailing_moe"));
    json_object_set_new(config, "moe_router_enable_expert_bias", json_true());
    json_object_set_new(config, "num_nextn_predict_layers", json_integer(0));
    char *text = json_dumps(config, 0);
    put_text(pad, "config.json", text);
    assert_int_equal(symlink(FAMILIES "sarvam-moe/model.safetensors", in_scratch(pad, "model.safetensors")),
                     0);
    assert_int_equal(
        symlink(FAMILIES "sarvam-moe/expected.safetensors", in_scratch(pad, "expected.safetensors")), 0);
    assert_true(answers_open(&a, pad->path));
    compare(&a, "Ling 2");
    answers_close(&a);
    free(text);
    json_decref(config);
}

int main(void)
{
    if (golden_absent("golden answers of families")) return SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_and_routing),
        cmocka_unit_test(likeliest_ids),
        cmocka_unit_test(preempted),
        cmocka_unit_test(sparse_attention_is_not_reached),
        cmocka_unit_test(cut_contexts_are_told),
        cmocka_unit_test(absent_families_are_named),
        cmocka_unit_test(not_converted),
        cmocka_unit_test_setup_teardown(converted, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(ling_2, scratch_open, scratch_close)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
