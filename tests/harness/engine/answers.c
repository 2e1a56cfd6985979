#include "harness/engine/answers.h"

#include "harness/cmocka.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/engine/tables.h"
#include "harness/seed.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const double most_logit = 5e-4, most_weight = 1e-5;

static double scaling_of(const char *path)
{
    json_t *config = json_load_file(path, 0, NULL);
    assert_non_null(config);
    static const char *const names[] = {"routed_scaling_factor", "router_scaling_factor", "route_scale"};
    const json_t *text = json_object_get(config, "text_config");
    double scaling = 1;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *factor = json_object_get(text ? text : config, names[i]);
        if (json_is_number(factor)) scaling = json_number_value(factor);
    }
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
                           const char *where, double *worst)
{
    const cot_tensor *t = expected(file, "logits", q, -1, COT_F32, r->capacity, vocab);
    for (int64_t i = 0; i < r->capacity * vocab; i++) {
        double difference = fabs((double)r->logits[i] - float_at(t, i));
        if (!(difference <= most_logit))
            fail_msg("%s, sequence %s, token %lld: logit %lld is %g, expected %g", where, q,
                     (long long)(i / vocab), (long long)(i % vocab), (double)r->logits[i],
                     (double)float_at(t, i));
        if (difference > *worst) *worst = difference;
    }
}

static void compare_routing(const cot_safetensors *file, const char *q, const struct record *r,
                            const cot_engine_info *info, double scaling, const char *where, double *worst)
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
                if (difference > *worst) *worst = difference;
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

bool answers_open_of(struct answers *a, const char *model, const char *config, const char *file)
{
    struct stat s;
    *a = (struct answers){0};
    assert_true(snprintf(a->folder, sizeof a->folder, "%s", model) < (int)sizeof a->folder);
    if (stat(config, &s) != 0) return false;
    a->scaling = scaling_of(config);
    if (stat(file, &s) != 0) return false;
    assert_int_equal(cot_eval_set_open(&a->set, file, NULL), COT_OK);
    assert_int_equal(cot_safetensors_open(&a->file, file, NULL), COT_OK);
    return true;
}

bool answers_open(struct answers *a, const char *folder)
{
    char config[1100], file[1100];
    snprintf(config, sizeof config, "%s/config.json", folder);
    snprintf(file, sizeof file, "%s/expected.safetensors", folder);
    return answers_open_of(a, folder, config, file);
}

void answers_close(struct answers *a)
{
    cot_safetensors_close(&a->file);
    cot_eval_set_close(a->set);
}

void answers_compare(struct answers *a, const struct setting *of)
{
    uint64_t seed = test_seed();
    char tables[TABLES_PATH] = "", where[1300];
    size_t count;
    const cot_eval_sequence *sequences = cot_eval_set_sequences(a->set, &count);
    cot_request requests[8];
    assert_true(count >= 1 && count <= 8);
    for (size_t i = 0; i < count; i++) {
        requests[i] = forced_request(sequences[i].ids, sequences[i].tokens, sequences[i].prefill_tokens);
        assert_true(requests[i].forced_tokens > 0); // both ways are tried
    }
    struct setting s = *of;
    s.folder = a->folder;
    snprintf(where, sizeof where, "%s at %d ranks%s, %s%s", strrchr(a->folder, '/') + 1, s.ranks,
             s.processes ? " in processes" : "", s.attention, s.pipeline ? " s-moe" : "");
    if (s.pipeline && drawn_tables(tables, a->folder, s.ranks, false, &seed)) s.tables = tables;
    cot_engine *engine = must_open(&s);
    if (*tables) unlink(tables);
    struct records all = must_run(engine, requests, count);
    for (size_t i = 0; i < count; i++) {
        assert_told_once(&all, i, &requests[i], true);
        count_layers(&a->file, sequences[i].name, all.info->moe_layers);
        compare_logits(&a->file, sequences[i].name, &all.record[i], all.info->vocab, where, &a->worst_logit);
        compare_routing(&a->file, sequences[i].name, &all.record[i], all.info, a->scaling, where,
                        &a->worst_weight);
    }
    records_free(&all);
    cot_engine_close(engine);
}
