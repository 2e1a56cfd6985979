/* What a model would take, told before it is loaded, is what it takes: every golden model and the tiny one, in every
 * precision, on several numbers of ranks, with both kinds of attention. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/engine/tiny_copy.h"
#include "harness/seed.h"

#include "coterie/model.h"
#include "base/safetensors.h"
#include "engine/engine_state.h"
#include "checkpoint/checkpoint.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

cot_status __real_cot_checkpoint_open(cot_checkpoint **checkpoint, const char *folder, char **notes,
                                      cot_error *error);
cot_status __wrap_cot_checkpoint_open(cot_checkpoint **checkpoint, const char *folder, char **notes,
                                      cot_error *error);

static int opened_times;

cot_status __wrap_cot_checkpoint_open(cot_checkpoint **checkpoint, const char *folder, char **notes,
                                      cot_error *error)
{
    opened_times++;
    return __real_cot_checkpoint_open(checkpoint, folder, notes, error);
}

static void compare_sizes(const char *folder)
{
    static const char *const precisions[] = {"fp32", "bf16", "int8"}, *const attentions[] = {"tp", "dp"};
    for (int p = 0; p < 3; p++)
        for (int ranks = 1; ranks <= 4; ranks += ranks)
            for (int a = 0; a < (ranks > 1 ? 2 : 1); a++) {
                const struct setting s = {
                    .folder = folder, .ranks = ranks, .precision = precisions[p], .attention = attentions[a]};
                const cot_engine_options options = options_of(&s);
                cot_engine_sizes sizes;
                cot_error error;
                if (cot_engine_measure(&sizes, folder, &options, 1, &error) != COT_OK)
                    fail_msg("%s", error.message);
                cot_engine *engine = must_open(&s);
                if (sizes.weight_bytes != cot_engine_describe(engine)->weight_bytes)
                    fail_msg("%s, %s, %d ranks, %s: %zu, not %zu bytes", folder, precisions[p], ranks,
                             attentions[a], sizes.weight_bytes, cot_engine_describe(engine)->weight_bytes);
                cot_engine_close(engine);
                // The fullest rank's are at least the mean of what is not shared, and all of it on one rank.
                const size_t own = sizes.weight_bytes - sizes.shared_bytes;
                assert_true(sizes.rank_bytes * (size_t)ranks >= own && sizes.rank_bytes <= own);
                assert_true(ranks > 1 || sizes.rank_bytes == own);
                assert_true(ranks == 1 || sizes.rank_bytes < own);
                assert_true(sizes.total_bytes > sizes.weight_bytes && sizes.available_bytes > 0);
            }
}

/* Counts the numbers in a checkpoint that stores them plainly; false for one that does not. */
static bool count_stored(const char *folder, int64_t experts, int64_t top_k, int64_t *all, int64_t *active)
{
    char path[1024];
    cot_safetensors file;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_int_equal(cot_safetensors_open(&file, path, NULL), COT_OK);
    bool plain = true;
    int64_t of_experts = 0;
    *all = 0;
    for (size_t i = 0; i < file.count && plain; i++) {
        const cot_tensor *t = &file.tensors[i];
        plain = t->dtype == COT_F32 || t->dtype == COT_BF16 || t->dtype == COT_F16;
        int64_t count = 1;
        for (int d = 0; d < t->dims; d++) count *= t->shape[d];
        *all += count;
        of_experts += strstr(t->name, ".experts.") ? count : 0;
    }
    *active = *all - of_experts + of_experts / experts * top_k;
    cot_safetensors_close(&file);
    return plain;
}

static void compare_parameters(const char *folder, int *compared)
{
    cot_model_info info;
    int64_t all, active;
    assert_int_equal(cot_model_describe(&info, folder, NULL), COT_OK);
    if (count_stored(folder, info.experts, info.top_k, &all, &active)) {
        if (info.parameters != all || info.active_parameters != active)
            fail_msg("%s: %lld and %lld parameters, not %lld and %lld", folder, (long long)info.parameters,
                     (long long)info.active_parameters, (long long)all, (long long)active);
        ++*compared;
    }
    cot_model_info_clear(&info);
}

static void test_tiny(void **state)
{
    (void)state;
    int compared = 0;
    compare_sizes(TINY);
    compare_parameters(TINY, &compared);
    assert_int_equal(compared, 1);
}

static void test_golden(void **state)
{
    (void)state;
    if (golden_absent("sizes of golden models")) skip();
    DIR *folder = opendir(COT_SHARED "/golden");
    assert_non_null(folder);
    int measured = 0, compared = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        char path[1024], file[1100];
        golden_path(path, entry->d_name, NULL);
        snprintf(file, sizeof file, "%s/model.safetensors", path);
        struct stat s;
        if (entry->d_name[0] == '.' || stat(file, &s) != 0) continue;
        compare_sizes(path);
        compare_parameters(path, &compared);
        measured++;
    }
    closedir(folder);
    assert_true(measured >= 8 && compared >= 6);
}

/* Bad options and folders are refused as by opening; a larger cache takes more. */
static void test_limits(void **state)
{
    (void)state;
    cot_engine_options options;
    cot_engine_sizes sizes;
    cot_error error = {0};
    cot_engine_options_init(&options);
    options.size--;
    assert_int_equal(cot_engine_measure(&sizes, TINY, &options, 1, &error), COT_INVALID_ARGUMENT);
    cot_engine_options_init(&options);
    assert_int_equal(cot_engine_measure(&sizes, COT_SOURCE "/docs", &options, 1, &error), COT_NOT_FOUND);
    assert_int_equal(sizes.weight_bytes, 0);
    options.group.ranks = 4;
    options.memory.kv_tokens = 512;
    assert_int_equal(cot_engine_measure(&sizes, TINY, &options, 1, &error), COT_OK);
    const size_t few = sizes.total_bytes;
    options.memory.kv_tokens = 4096;
    assert_int_equal(cot_engine_measure(&sizes, TINY, &options, 1, &error), COT_OK);
    assert_true(sizes.total_bytes > few);
    // several at once, for which the folder is opened once
    cot_engine_options three[3];
    cot_engine_sizes of[3];
    for (int i = 0; i < 3; i++) {
        three[i] = options;
        three[i].group.ranks = 1 << i;
        three[i].weights.precision = i == 1 ? "int8" : "bf16";
    }
    const int before = opened_times;
    assert_int_equal(cot_engine_measure(of, TINY, three, 3, &error), COT_OK);
    assert_int_equal(opened_times, before + 1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cot_engine_measure(&sizes, TINY, &three[i], 1, &error), COT_OK);
        sizes.available_bytes = of[i].available_bytes; // which changes by itself
        assert_memory_equal(&sizes, &of[i], sizeof sizes);
    }
    three[2].group.ranks = -1;
    assert_int_equal(cot_engine_measure(of, TINY, three, 3, &error), COT_INVALID_ARGUMENT);
    assert_int_equal(of[0].weight_bytes, 0);
}

/* Where experts may move each rank has room for one more, of any layer; and slots that are empty take room as others do. */
static void test_slots_that_experts_come_into(void **state)
{
    (void)state;
    enum { RANKS = 4, SPARE = 100, LAYERS = 6, EXPERT_BYTES = 3 * 192 * 64 * 2 }; // of models/tiny in bf16
    enum { STAY, MOVE, SPARED, WAYS };
    cot_engine_options options[WAYS];
    cot_engine_sizes sizes[WAYS];
    cot_error error;
    for (int i = 0; i < WAYS; i++) {
        cot_engine_options_init(&options[i]);
        options[i].group.ranks = RANKS;
        options[i].experts.movable = i != STAY;
        options[i].experts.spare_slots = i == SPARED ? SPARE : 0;
    }
    if (cot_engine_measure(sizes, TINY, options, WAYS, &error) != COT_OK) fail_msg("%s", error.message);
    const size_t more = sizes[MOVE].total_bytes - sizes[STAY].total_bytes, one = (size_t)RANKS * EXPERT_BYTES;
    assert_int_equal(sizes[STAY].weight_bytes, sizes[MOVE].weight_bytes);
    assert_int_equal(sizes[MOVE].weight_bytes, sizes[SPARED].weight_bytes);
    assert_in_range(more, one, 2 * one - 1); // tables are some bytes a slot
    assert_true(sizes[SPARED].total_bytes - sizes[MOVE].total_bytes >= LAYERS * SPARE * one);
    // where the split of memory moves, slots take what pages leave: more of them may be there, and no more bytes but for tables
    for (int i = 0; i < 2; i++) {
        options[i].experts.movable = false;
        options[i].experts.rebalance = "load";
        options[i].experts.spare_slots = i ? SPARE : 1;
        options[i].memory.total_bytes = (size_t)256 << 20;
        options[i].memory.block_tokens = 16;
    }
    if (cot_engine_measure(sizes, TINY, options, 2, &error) != COT_OK) fail_msg("%s", error.message);
    assert_true(sizes[1].total_bytes >= sizes[0].total_bytes);
    assert_true(sizes[1].total_bytes - sizes[0].total_bytes < LAYERS * SPARE * one / 100);
}

static cot_engine *open_tiny(const cot_engine_options *options)
{
    cot_engine *engine;
    cot_error error;
    if (cot_engine_open(&engine, TINY, options, NULL, &error) != COT_OK) fail_msg("%s", error.message);
    return engine;
}

static int64_t pages_of(const cot_engine_options *options)
{
    cot_engine *engine = open_tiny(options);
    cot_engine_load load;
    cot_engine_get_load(engine, &load);
    cot_engine_close(engine);
    return load.kv_pages;
}

static void must_not_measure(const cot_engine_options *options, const char *text)
{
    cot_engine_sizes sizes;
    cot_error error = {0};
    if (cot_engine_measure(&sizes, TINY, options, 1, &error) != COT_INVALID_ARGUMENT ||
        !strstr(error.message, text))
        fail_msg("'%s', expected '%s'", error.message, text);
}

/* What pages share with spare slots: they get what slots leave, where experts are movable, and all where they are not; without slots the
 * sizes are to the byte those of as many bytes of KV cache, and without either those of the model's context. */
static void test_memory_that_pages_share_with_slots(void **state)
{
    (void)state;
    enum { SPARE = 3, LAYERS = 6, SEQUENCES = 16, MOST_RANKS = 4 };
    for (int way = 0; way < 2 * MOST_RANKS; way++) {
        const int ranks = 1 + way / 2, attention = way % 2;
        cot_engine_options o, cache;
        cot_engine_sizes sizes[2];
        cot_error error;
        cot_engine_options_init(&o);
        o.group.ranks = ranks;
        o.attention.mode = attention ? "dp" : "tp";
        o.memory.block_tokens = 16;
        cot_engine *engine = open_tiny(&o);
        const int64_t context = (engine->config->max_context + 63) / 64;
        const size_t slots = (size_t)(ranks * SPARE * LAYERS * engine->networks.slot_bytes[0]);
        assert_false(engine->runner.gives_back); // pages and slots lie as they do where nothing is shared
        assert_null(engine->loop.scheduler.worth);
        cot_engine_close(engine);
        assert_int_equal(pages_of(&o), context + SEQUENCES);
        cache = o;
        cache.memory.kv_bytes = 8 << 20;
        engine = open_tiny(&cache);
        const size_t page_bytes = engine->budgeting.page_bytes;
        cot_engine_close(engine);
        // keys and values of 64 positions in bf16, of 6 layers with 2 heads of 32 each; ranks that split heads may share some
        if (attention || ranks == 1) assert_int_equal(page_bytes, 64 * 2 * 6 * 2 * 32 * 2);
        const int64_t pages = (int64_t)(cache.memory.kv_bytes / page_bytes);
        assert_int_equal(pages_of(&cache), pages);
        o.memory.total_bytes = cache.memory.kv_bytes;
        const cot_engine_options both[] = {o, cache};
        if (cot_engine_measure(sizes, TINY, both, 2, &error) != COT_OK) fail_msg("%s", error.message);
        sizes[0].available_bytes = sizes[1].available_bytes; // which changes by itself
        assert_memory_equal(&sizes[0], &sizes[1], sizeof *sizes);
        assert_int_equal(pages_of(&o), pages);
        o.experts.spare_slots = SPARE;
        o.experts.movable = true;
        o.memory.total_bytes += slots;
        assert_int_equal(pages_of(&o), pages);
        char text[256];
        o.memory.total_bytes = slots + (size_t)context * page_bytes;
        assert_int_equal(pages_of(&o), context);
        o.memory.total_bytes += page_bytes - 1;
        assert_int_equal(pages_of(&o), context);
        o.memory.total_bytes++;
        assert_int_equal(pages_of(&o), context + 1);
        o.memory.total_bytes -= page_bytes + 1;
        snprintf(text, sizeof text, "%zu bytes of memory hold %lld KV pages of ", o.memory.total_bytes,
                 (long long)context - 1);
        must_not_measure(&o, text);
        o.memory.total_bytes = slots + page_bytes / 2;
        snprintf(text, sizeof text, "%zu bytes of memory hold 0 KV pages of ", o.memory.total_bytes);
        must_not_measure(&o, text);
        snprintf(text, sizeof text,
                 " beside %zu bytes of spare slots, the model's context of %lld tokens needs %lld pages",
                 slots, (long long)context * 64, (long long)context);
        must_not_measure(&o, text);
        o.memory.total_bytes = 1;
        must_not_measure(&o, "1 bytes of memory hold 0 KV pages");
    }
}

/* The tiny model with another context. */
static void make_model_of_context(char *folder, int64_t context)
{
    static const char said[] = "\"max_position_embeddings\": 512";
    char path[64], config[4096];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_int_equal(symlink(TINY "/model.safetensors", path), 0);
    FILE *file = fopen(TINY "/config.json", "r");
    assert_non_null(file);
    config[fread(config, 1, sizeof config - 1, file)] = 0;
    fclose(file);
    char *at = strstr(config, said);
    assert_non_null(at);
    snprintf(path, sizeof path, "%s/config.json", folder);
    file = fopen(path, "w");
    assert_non_null(file);
    *at = 0;
    fprintf(file, "%s\"max_position_embeddings\": %lld%s", config, (long long)context, at + strlen(said));
    assert_int_equal(fclose(file), 0);
}

/* A prompt that is too long by one is refused, and a text goes as far as the context does. Returns what was said. */
static struct records fill_context(cot_engine *engine, const int32_t *ids, int64_t context)
{
    cot_request r = generating_from(ids, context + 1, 1);
    cot_events events = {0};
    cot_error error = {0};
    size_t failed;
    char text[64];
    r.sampling.ignore_eos = true;
    assert_int_equal(cot_engine_describe(engine)->context_tokens, context);
    assert_int_equal(cot_engine_run(engine, &r, 1, &events, &failed, &error), COT_TOO_LONG);
    snprintf(text, sizeof text, "%lld tokens, the context is %lld", (long long)context + 1,
             (long long)context);
    assert_string_equal(error.message, text);
    r.prompt_tokens = (context + 1) / 2;
    r.sampling.max_tokens = context + 1;
    struct records all = must_run(engine, &r, 1);
    assert_int_equal(all.record[0].sampled_tokens, context - r.prompt_tokens);
    assert_int_equal(all.record[0].finish, COT_FINISH_CONTEXT);
    return all;
}

/* An engine that is told how long a sequence may be takes, to the byte, what one takes whose model has no longer context, and says
 * what that says. */
static void test_shorter_sequences(void **state)
{
    (void)state;
    enum { CONTEXT = 512, SEQUENCES = 16, WAYS = 8 };
    uint64_t seed = test_seed();
    for (int way = 0; way < WAYS; way++) {
        const int64_t most = way ? 1 + (int64_t)(draw(&seed) % (CONTEXT - 64)) : 1;
        char folder[] = TINY_COPY;
        cot_engine_options o, told;
        cot_engine_sizes sizes[3];
        cot_error error;
        make_model_of_context(folder, most);
        cot_engine_options_init(&o);
        o.group.ranks = 1 + way % 4;
        o.attention.mode = way < 4 ? "dp" : "tp";
        o.memory.block_tokens = way % 3 ? 16 : 0;
        o.memory.kv_tokens = way == 3 ? 1 << 30 : 0; // more than sequences can fill
        o.memory.kv_bytes = way == 6 ? 1 << 30 : 0;
        told = o;
        told.memory.sequence_tokens = most;
        const cot_engine_options both[] = {told, o};
        if (cot_engine_measure(sizes, TINY, both, 2, &error) != COT_OK) fail_msg("%s", error.message);
        if (cot_engine_measure(&sizes[2], folder, &o, 1, &error) != COT_OK) fail_msg("%s", error.message);
        sizes[0].available_bytes = sizes[2].available_bytes; // which changes by itself
        assert_memory_equal(&sizes[0], &sizes[2], sizeof *sizes);
        assert_true(sizes[0].total_bytes < sizes[1].total_bytes);
        if (!o.memory.kv_tokens && !o.memory.kv_bytes)
            assert_int_equal(pages_of(&told), (most + 63) / 64 + SEQUENCES);
        int32_t *ids = drawn_ids(most + 1, 4096, &seed);
        cot_engine *engine = open_tiny(&told), *model;
        if (cot_engine_open(&model, folder, &o, NULL, &error) != COT_OK) fail_msg("%s", error.message);
        struct records all = fill_context(engine, ids, most), expected = fill_context(model, ids, most);
        assert_memory_equal(all.record[0].sampled, expected.record[0].sampled,
                            (size_t)all.record[0].sampled_tokens * sizeof *ids);
        records_free(&all);
        records_free(&expected);
        cot_engine_close(engine);
        cot_engine_close(model);
        free(ids);
        tiny_copy_remove(folder);
    }
}

/* A KV cache that does not hold a sequence as long as the options say is refused, however its room is told; so is a sequence beyond the
 * model's context. */
static void test_room_for_a_sequence(void **state)
{
    (void)state;
    enum { PAGE_BYTES = 64 * 2 * 6 * 2 * 32 * 2, MOST = 150, PAGES = 3 };
    cot_engine_options o;
    cot_engine_options_init(&o);
    o.memory.sequence_tokens = 513;
    must_not_measure(&o, "max model length 513 is not in [0, 512]");
    o.memory.sequence_tokens = 512;
    assert_int_equal(pages_of(&o), 8 + 16);
    o.memory.sequence_tokens = MOST;
    o.memory.block_tokens = 16;
    o.memory.kv_bytes = PAGES * PAGE_BYTES;
    assert_int_equal(pages_of(&o), PAGES);
    o.memory.kv_bytes--;
    must_not_measure(&o,
                     "the KV cache has 2 pages of 98304 bytes, the max model length of 150 tokens needs 3");
    o.memory.sequence_tokens = 128;
    assert_int_equal(pages_of(&o), 2);
    o.memory.sequence_tokens = 0; // of the model's context any part may be held
    assert_int_equal(pages_of(&o), 2);
    o.memory.sequence_tokens = MOST;
    o.memory.total_bytes = o.memory.kv_bytes;
    o.memory.kv_bytes = 0;
    must_not_measure(
        &o, "294911 bytes of memory hold 2 KV pages of 98304 bytes beside 0 bytes of spare slots, the "
            "max model length of 150 tokens needs 3 pages");
    o.memory.total_bytes++;
    assert_int_equal(pages_of(&o), PAGES);
    o.memory.total_bytes = 0;
    o.memory.kv_tokens = 64;
    o.batch.sequences = 1;
    must_not_measure(&o, "the KV cache has 2 pages, the max model length of 150 tokens needs 3");
    o.memory.kv_tokens++;
    assert_int_equal(pages_of(&o), PAGES);
    // and as many stay open, however memory is split
    o.memory.kv_tokens = 0;
    o.memory.total_bytes = 6000000;
    o.group.ranks = 2;
    o.experts.spare_slots = 2;
    o.experts.rebalance = "load";
    cot_engine *engine = open_tiny(&o);
    assert_int_equal(engine->budgeting.least, PAGES);
    cot_engine_close(engine);
}

/* Of four processes that were started on two hosts, two are here, each with all weights that ranks share; ranks of one process
 * are here with all they have, wherever that process was started. */
static void test_started_ranks(void **state)
{
    (void)state;
    const struct {
        const char *name, *value;
    } told[] = {
        {"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
    enum { TOLD = sizeof told / sizeof *told };
    const struct setting s = {.folder = TINY, .ranks = 4};
    cot_engine_options options = options_of(&s);
    cot_engine_sizes sizes;
    cot_error error;
    for (int i = 0; i < TOLD; i++) assert_int_equal(setenv(told[i].name, told[i].value, 1), 0);
    options.group.fabric = "shmem";
    assert_int_equal(cot_engine_measure(&sizes, TINY, &options, 1, &error), COT_OK);
    const size_t rank = sizes.shared_bytes + sizes.rank_bytes + (sizes.total_bytes - sizes.weight_bytes) / 4;
    assert_int_equal(sizes.here_bytes, 2 * rank);
    options.group.fabric = "threads";
    assert_int_equal(cot_engine_measure(&sizes, TINY, &options, 1, &error), COT_OK);
    assert_int_equal(sizes.here_bytes, sizes.total_bytes);
    for (int i = 0; i < TOLD; i++) unsetenv(told[i].name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tiny),
                                       cmocka_unit_test(test_golden),
                                       cmocka_unit_test(test_limits),
                                       cmocka_unit_test(test_slots_that_experts_come_into),
                                       cmocka_unit_test(test_memory_that_pages_share_with_slots),
                                       cmocka_unit_test(test_shorter_sequences),
                                       cmocka_unit_test(test_room_for_a_sequence),
                                       cmocka_unit_test(test_started_ranks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
