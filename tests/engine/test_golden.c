/* Other people's code computed these checkpoints' logits and routing: every family, every rope, every
 * storage, at several numbers of ranks, prefill and token by token, with both kinds of attention and, of tensor-parallel
 * attention, both pipelines; with four ranks as threads and as processes. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/engine/tables.h"
#include "harness/seed.h"

#include "coterie/eval.h"
#include "base/safetensors.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const double most_logit = 5e-4, most_weight = 1e-5;

struct worst {
    double logit, weight; // weight: relative to the scaling
};

static double scaling_of(const char *name)
{
    char path[1024];
    golden_path(path, name, "config.json");
    json_t *config = json_load_file(path, 0, NULL);
    assert_non_null(config);
    const json_t *factor = json_object_get(config, "routed_scaling_factor");
    double scaling = json_is_number(factor) ? json_number_value(factor) : 1;
    json_decref(config);
    return scaling > 1 ? scaling : 1;
}

static const cot_tensor *expected(const cot_safetensors *file, const char *what, const char *q, int layer,
                                  cot_dtype type, int64_t rows, int64_t columns)
{
    char name[64];
    if (layer < 0)
        snprintf(name, sizeof name, "%s.%s", what, q);
    else
        snprintf(name, sizeof name, "%s.%s.%d", what, q, layer);
    const cot_tensor *t = cot_safetensors_find(file, name);
    if (!t) fail_msg("there is no '%s'", name);
    assert_true(t->dtype == type && t->dims == 2 && t->shape[0] == rows && t->shape[1] == columns);
    return t;
}

static float float_at(const cot_tensor *t, int64_t i)
{
    float value;
    memcpy(&value, (const uint8_t *)t->data + (size_t)i * sizeof value, sizeof value);
    return value;
}

static int32_t int_at(const cot_tensor *t, int64_t i)
{
    int32_t value;
    memcpy(&value, (const uint8_t *)t->data + (size_t)i * sizeof value, sizeof value);
    return value;
}

static void compare_logits(const cot_safetensors *file, const char *q, const struct record *r, int64_t vocab,
                           const char *where, struct worst *worst)
{
    const cot_tensor *t = expected(file, "logits", q, -1, COT_F32, r->capacity, vocab);
    for (int64_t i = 0; i < r->capacity * vocab; i++) {
        double difference = fabs((double)r->logits[i] - float_at(t, i));
        if (!(difference <= most_logit))
            fail_msg("%s, sequence %s, token %lld: logit %lld is %g, expected %g", where, q,
                     (long long)(i / vocab), (long long)(i % vocab), (double)r->logits[i],
                     (double)float_at(t, i));
        if (difference > worst->logit) worst->logit = difference;
    }
}

static void compare_routing(const cot_safetensors *file, const char *q, const struct record *r,
                            const cot_engine_info *info, double scaling, const char *where,
                            struct worst *worst)
{
    int64_t k = info->top_k;
    for (int64_t l = 0; l < info->moe_layers; l++) {
        int layer = info->moe_layer[l];
        const cot_tensor *experts = expected(file, "experts", q, layer, COT_I32, r->capacity, k);
        const cot_tensor *weights = expected(file, "weights", q, layer, COT_F32, r->capacity, k);
        for (int64_t t = 0; t < r->capacity; t++)
            for (int64_t i = 0; i < k; i++) {
                int64_t at = (t * info->moe_layers + l) * k + i;
                if (r->experts[at] != int_at(experts, t * k + i))
                    fail_msg("%s, sequence %s, token %lld, layer %d: expert %d, expected %d", where, q,
                             (long long)t, layer, r->experts[at], int_at(experts, t * k + i));
                double difference = fabs((double)r->weights[at] - float_at(weights, t * k + i)) / scaling;
                if (!(difference <= most_weight))
                    fail_msg("%s, sequence %s, token %lld, layer %d: weight %g, expected %g", where, q,
                             (long long)t, layer, (double)r->weights[at],
                             (double)float_at(weights, t * k + i));
                if (difference > worst->weight) worst->weight = difference;
            }
    }
}

/* No MoE layer that the file knows is missing from what the engine tells. */
static void count_layers(const cot_safetensors *file, const char *q, int64_t moe_layers)
{
    char prefix[32];
    int64_t found = 0;
    snprintf(prefix, sizeof prefix, "experts.%s.", q);
    for (size_t i = 0; i < file->count; i++) found += !strncmp(file->tensors[i].name, prefix, strlen(prefix));
    assert_int_equal(found, moe_layers);
}

/* way: "dp", "tp", or a pipeline of tp. */
static void compare(const char *name, int ranks, bool processes, const char *way, const cot_eval_set *set,
                    const cot_safetensors *file, struct worst *worst)
{
    const bool s_moe = !strcmp(way, "s-moe");
    uint64_t seed = test_seed();
    char tables[TABLES_PATH] = "";
    char folder[1024], where[512];
    size_t count;
    const cot_eval_sequence *sequences = cot_eval_set_sequences(set, &count);
    cot_request requests[8];
    assert_true(count >= 1 && count <= 8);
    for (size_t i = 0; i < count; i++) {
        requests[i] = forced_request(sequences[i].ids, sequences[i].tokens, sequences[i].prefill_tokens);
        assert_true(requests[i].forced_tokens > 0); // both ways are tried
    }
    golden_path(folder, name, NULL);
    snprintf(where, sizeof where, "%s at %d ranks%s, %s", name, ranks, processes ? " in processes" : "", way);
    struct setting s = {.folder = folder,
                        .ranks = ranks,
                        .processes = processes,
                        .attention = s_moe ? "tp" : way,
                        .kv_tokens = 256};
    if (s_moe) s.pipeline = way;
    if (s_moe && drawn_tables(tables, folder, ranks, false, &seed)) s.tables = tables;
    cot_engine *engine = must_open(&s);
    if (*tables) unlink(tables);
    struct records all = must_run(engine, requests, count);
    for (size_t i = 0; i < count; i++) {
        assert_told_once(&all, i, &requests[i], true);
        count_layers(file, sequences[i].name, all.info->moe_layers);
        compare_logits(file, sequences[i].name, &all.record[i], all.info->vocab, where, worst);
        compare_routing(file, sequences[i].name, &all.record[i], all.info, scaling_of(name), where, worst);
    }
    records_free(&all);
    cot_engine_close(engine);
}

static bool is_golden(const char *name)
{
    char config[1024], answers[1024];
    struct stat s;
    golden_path(config, name, "config.json");
    golden_path(answers, name, "expected.safetensors");
    return name[0] != '.' && stat(config, &s) == 0 && stat(answers, &s) == 0;
}

static void golden_answers(void **state)
{
    (void)state;
    DIR *folder = opendir(COT_SHARED "/golden");
    assert_non_null(folder);
    int found = 0;
    struct worst all = {0};
    for (const struct dirent *entry; (entry = readdir(folder));) {
        if (!is_golden(entry->d_name)) continue;
        char path[1024];
        golden_path(path, entry->d_name, "expected.safetensors");
        cot_eval_set *set;
        cot_safetensors file;
        assert_int_equal(cot_eval_set_open(&set, path, NULL), COT_OK);
        assert_int_equal(cot_safetensors_open(&file, path, NULL), COT_OK);
        struct worst worst = {0};
        for (size_t r = 0; r < 6; r++)
            for (int way = 0; way < 3; way++)
                compare(entry->d_name, (const int[]){1, 2, 3, 4, 8, 4}[r], r == 5,
                        (const char *const[]){"dp", "tp", "s-moe"}[way], set, &file, &worst);
        printf("%-18s worst logit %.1e, worst weight %.1e\n", entry->d_name, worst.logit, worst.weight);
        if (worst.logit > all.logit) all.logit = worst.logit;
        if (worst.weight > all.weight) all.weight = worst.weight;
        cot_safetensors_close(&file);
        cot_eval_set_close(set);
        found++;
    }
    closedir(folder);
    printf("%-18s worst logit %.1e, worst weight %.1e\n", "all", all.logit, all.weight);
    assert_true(found >= 15);
}

int main(void)
{
    if (golden_absent("golden answers")) return SKIPPED;
    const struct CMUnitTest tests[] = {cmocka_unit_test(golden_answers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
