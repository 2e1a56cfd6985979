/* Evaluation: what is written is what the engine told, the losses are those of the logits, and what cannot be
 * evaluated is refused by name. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/memory.h"
#include "harness/seed.h"

#include "coterie/eval.h"
#include "base/safetensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SEQUENCES = 4, VOCAB = 4096 };

static void check_tensor(const cot_safetensors *file, const char *name, cot_dtype type, int64_t rows,
                         int64_t columns, const void *data)
{
    const cot_tensor *t = cot_safetensors_find(file, name);
    if (!t) fail_msg("there is no '%s'", name);
    assert_true(t->dtype == type && t->dims == 2 && t->shape[0] == rows && t->shape[1] == columns);
    assert_memory_equal(t->data, data, t->bytes);
}

/* Mean of -log softmax over the predictions after the first `unscored`. */
static double loss_of(const struct record *r, const int32_t *ids, int64_t unscored)
{
    double sum = 0;
    for (int64_t t = unscored; t + 1 < r->capacity; t++) {
        double total = 0;
        for (int64_t v = 0; v < VOCAB; v++) total += exp((double)r->logits[t * VOCAB + v]);
        sum += log(total) - (double)r->logits[t * VOCAB + ids[t + 1]];
    }
    return r->capacity > 1 ? sum / (double)(r->capacity - 1 - unscored) : 0;
}

static void what_is_written(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    static const char *const names[SEQUENCES] = {"a", "a.b.0", "one", "z.1"};
    cot_eval_sequence sequences[SEQUENCES];
    cot_request requests[SEQUENCES];
    for (size_t i = 0; i < SEQUENCES; i++) {
        int64_t tokens = i == 2 ? 1 : 2 + (int64_t)(draw(&seed) % 40),
                first = i == 1 ? tokens : 1 + tokens / 3;
        sequences[i] = (cot_eval_sequence){names[i],
                                           drawn_ids(tokens, VOCAB, &seed),
                                           tokens,
                                           first,
                                           tokens > 2 ? (int64_t)(draw(&seed) % (uint64_t)(tokens - 1)) : 0,
                                           0};
        requests[i] = forced_request(sequences[i].ids, tokens, first);
    }
    char path[] = "coterie-test-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    cot_engine *engine = must_open(&(struct setting){.folder = TINY, .ranks = 2, .kv_tokens = 512});
    double nats[SEQUENCES];
    cot_error error;
    if (cot_eval_run(engine, sequences, SEQUENCES, path, nats, NULL, NULL, &error) != COT_OK)
        fail_msg("%s", error.message);
    struct records all = must_run(engine, requests, SEQUENCES);
    cot_safetensors written;
    assert_int_equal(cot_safetensors_open(&written, path, NULL), COT_OK);
    const cot_engine_info *info = all.info;
    assert_int_equal(written.count, SEQUENCES * (size_t)(1 + 2 * info->moe_layers));
    for (size_t i = 0; i < SEQUENCES; i++) {
        const struct record *r = &all.record[i];
        int64_t k = info->top_k, n = r->capacity;
        char name[64];
        snprintf(name, sizeof name, "logits.%s", names[i]);
        check_tensor(&written, name, COT_F32, n, VOCAB, r->logits);
        int32_t *experts = must_allocate((size_t)(n * k), sizeof *experts);
        float *weights = must_allocate((size_t)(n * k), sizeof *weights);
        for (int64_t l = 0; l < info->moe_layers; l++) {
            for (int64_t t = 0; t < n * k; t++) {
                int64_t at = (t / k * info->moe_layers + l) * k + t % k;
                experts[t] = r->experts[at];
                weights[t] = r->weights[at];
            }
            snprintf(name, sizeof name, "experts.%s.%d", names[i], info->moe_layer[l]);
            check_tensor(&written, name, COT_I32, n, k, experts);
            snprintf(name, sizeof name, "weights.%s.%d", names[i], info->moe_layer[l]);
            check_tensor(&written, name, COT_F32, n, k, weights);
        }
        assert_true(fabs(nats[i] - loss_of(r, sequences[i].ids, sequences[i].unscored)) < 1e-6);
        free(experts);
        free(weights);
    }
    cot_safetensors_close(&written);
    records_free(&all);
    int32_t outside[] = {1, 2, VOCAB};
    cot_eval_sequence bad[] = {sequences[0], {"odd.name", outside, 3, 2, 0, 0}};
    assert_int_equal(cot_eval_run(engine, bad, 2, NULL, nats, NULL, NULL, &error), COT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "sequence 'odd.name': token 0 is 4096"));
    assert_int_equal(cot_eval_run(engine, sequences, 1, "no/such/folder/x", nats, NULL, NULL, &error),
                     COT_NOT_FOUND);
    cot_engine_close(engine);
    unlink(path);
    for (size_t i = 0; i < SEQUENCES; i++) free((void *)(uintptr_t)sequences[i].ids);
}

/* ---- reading ---- */

static const int32_t narrow[] = {5, 6, 7}, two = 2, four = 4, none = 0;
static const int64_t wide[] = {8, 9, 10, 11}, enormous[] = {1, (int64_t)1 << 40};
static const float reals[] = {1, 2};

static cot_tensor vector(const char *name, cot_dtype type, int64_t n, const void *data)
{
    return (cot_tensor){.name = name,
                        .dtype = type,
                        .dims = 1,
                        .shape = {n},
                        .data = data,
                        .bytes = (size_t)n * cot_dtype_bytes(type)};
}

static cot_status read_back(cot_eval_set **set, const cot_tensor *tensors, size_t count, cot_error *error)
{
    char path[] = "coterie-test-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    assert_int_equal(cot_safetensors_write(path, tensors, count, NULL, 0, NULL), COT_OK);
    cot_status status = cot_eval_set_open(set, path, error);
    unlink(path);
    return status;
}

static void what_is_read(void **state)
{
    (void)state;
    cot_tensor tensors[] = {vector("ids.b", COT_I64, 4, wide), vector("ids.a.b.c", COT_I32, 3, narrow),
                            vector("prefill_tokens.a.b.c", COT_I32, 1, &two),
                            vector("other", COT_F32, 2, reals)};
    cot_eval_set *set;
    size_t count;
    assert_int_equal(read_back(&set, tensors, 4, NULL), COT_OK);
    const cot_eval_sequence *s = cot_eval_set_sequences(set, &count);
    assert_int_equal(count, 2);
    assert_string_equal(s[0].name, "a.b.c");
    assert_int_equal(s[0].tokens, 3);
    assert_int_equal(s[0].prefill_tokens, 2);
    assert_memory_equal(s[0].ids, narrow, sizeof narrow);
    assert_string_equal(s[1].name, "b");
    assert_int_equal(s[1].tokens, 4);
    assert_int_equal(s[1].prefill_tokens, 4);
    for (int i = 0; i < 4; i++) assert_int_equal(s[1].ids[i], wide[i]);
    cot_eval_set_close(set);
    cot_eval_set_close(NULL);
}

static void what_cannot_be_read(void **state)
{
    (void)state;
    const cot_tensor good = vector("ids.q", COT_I32, 3, narrow);
    struct {
        cot_tensor tensors[2];
        size_t count;
        const char *what;
    } bad[] = {
        {{vector("other", COT_F32, 2, reals)}, 1, "holds no 'ids.NAME'"},
        {{vector("ids.q", COT_F32, 2, reals)}, 1, "'ids.q' is F32"},
        {{vector("ids.q", COT_I64, 2, enormous)}, 1, "'ids.q' holds 1099511627776"},
        {{vector("ids.q", COT_I32, 0, narrow)}, 1, "sequence 'q' has 0 tokens"},
        {{good, vector("prefill_tokens.q", COT_I32, 1, &none)}, 2, "0 of them to prefill"},
        {{good, vector("prefill_tokens.q", COT_I32, 1, &four)}, 2, "4 of them to prefill"},
        {{good, vector("prefill_tokens.q", COT_I32, 2, narrow)}, 2, "-1 of them to prefill"},
        {{good, vector("prefill_tokens.q", COT_F32, 1, reals)}, 2, "'prefill_tokens.q' is F32"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cot_eval_set *set;
        cot_error error = {0};
        assert_int_equal(read_back(&set, bad[i].tensors, bad[i].count, &error), COT_MALFORMED);
        assert_null(set);
        if (!strstr(error.message, bad[i].what))
            fail_msg("'%s' does not say '%s'", error.message, bad[i].what);
    }
}

struct nested {
    cot_engine *engine;
    const cot_eval_sequence *sequences;
    int calls;
};

static void evaluate_again(void *context, uint64_t request, int64_t position, int32_t token,
                           const uint16_t *experts, const float *weights)
{
    (void)request, (void)position, (void)token, (void)experts, (void)weights;
    struct nested *n = context;
    double nats;
    cot_error error;
    assert_int_equal(cot_eval_run(n->engine, n->sequences, 1, NULL, &nats, NULL, NULL, &error),
                     COT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "a callback may"));
    assert_null(strstr(error.message, "sequence '"));
    n->calls++;
}

/* An error that is about no sequence names none: not the one after the last either. */
static void an_error_of_none(void **state)
{
    (void)state;
    static const int32_t ids[] = {1, 2, 3};
    const cot_eval_sequence sequences[] = {{"first", ids, 3, 3, 0, 0}, {"beyond", ids, 3, 3, 0, 0}};
    struct nested n = {must_open(&(struct setting){.folder = TINY, .kv_tokens = 512}), sequences, 0};
    double nats;
    assert_int_equal(cot_eval_run(n.engine, sequences, 1, NULL, &nats, evaluate_again, &n, NULL), COT_OK);
    assert_int_equal(n.calls, 3);
    cot_engine_close(n.engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_written), cmocka_unit_test(what_is_read),
                                       cmocka_unit_test(what_cannot_be_read),
                                       cmocka_unit_test(an_error_of_none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
