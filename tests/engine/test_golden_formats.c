/* Checkpoints in few bits that others' packers made (tests/golden/formats/make.py): their matrices widened, to the bit what
 * others unpack; logits and routing, computed in fp32 from what is stored, and the likeliest text, what transformers computes
 * of the widened copy. */
#include "harness/cli/capture.h"
#include "harness/cmocka.h"
#include "harness/engine/answers.h"
#include "harness/engine/golden.h"

#include "checkpoint/checkpoint.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMATS COT_SOURCE "/tests/golden/formats/"

static capture c;

/* What an engine says that experts are kept as, and how many ranks it has with either kind of attention. */
static const struct {
    const char *name, *weights;
    int dp, tp;
} cases[] = {{"gpt-oss-mxfp4", "mxfp4", 4, 2}, {"fp8", "fp8", 2, 4},
             {"gptq", "int4", 4, 2},           {"awq", "int4", 2, 4},
             {"packed-int4", "int4", 4, 2},    {"gptq-asym", "int4", 2, 4},
             {"gptq-v2-8bits", "int8", 4, 2},  {"packed-int4-asym", "int4", 2, 4},
             {"packed-int8", "int8", 4, 2},    {"int-quantized", "int8", 2, 4},
             {"float-quantized", "fp8", 4, 2}, {"naive-quantized", "fp8", 2, 4},
             {"packed-mxfp4", "mxfp4", 4, 2},  {"packed-nvfp4", "nvfp4", 2, 4},
             {"modelopt-nvfp4", "nvfp4", 4, 2}};
enum { CASES = sizeof cases / sizeof *cases };

static void logits_and_routing(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        char folder[1024];
        struct answers a;
        snprintf(folder, sizeof folder, FORMATS "%s", cases[i].name);
        assert_true(answers_open(&a, folder));
        cot_engine *engine =
            must_open(&(struct setting){.folder = folder, .precision = "fp32", .kv_tokens = 64});
        assert_string_equal(cot_engine_describe(engine)->weights, cases[i].weights); // these are multiplied
        cot_engine_close(engine);
        const struct setting settings[] = {{.ranks = 1, .attention = i % 2 ? "dp" : "tp", .kv_tokens = 256},
                                           {.ranks = cases[i].dp, .attention = "dp", .kv_tokens = 256},
                                           {.ranks = cases[i].tp, .attention = "tp", .kv_tokens = 256}};
        for (int s = 0; s < 3; s++) answers_compare(&a, &settings[s]);
        printf("%-18s worst logit %.1e, worst weight %.1e\n", cases[i].name, a.worst_logit, a.worst_weight);
        answers_close(&a);
    }
}

/* ---- matrices ---- */

static uint32_t crc32(const void *data, size_t bytes)
{
    static uint32_t table[256];
    const uint8_t *x = data;
    uint32_t crc = ~0u;
    for (uint32_t i = 0; i < 256 && !table[255]; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320u : 0);
    }
    for (size_t i = 0; i < bytes; i++) crc = crc >> 8 ^ table[(crc ^ x[i]) & 255];
    return ~crc;
}

struct widened {
    const cot_checkpoint *checkpoint;
    const int64_t *crc;
    int64_t count, next;
    const char *name;
};

static void check_matrix(struct widened *w, cot_weight weight, int64_t layer, int64_t expert)
{
    int64_t rows, columns;
    assert_int_equal(cot_checkpoint_shape(w->checkpoint, weight, layer, expert, &rows, &columns, NULL),
                     COT_OK);
    const cot_weight_piece all = {weight, layer, expert, 0, rows, 0, columns};
    const size_t bytes = (size_t)(rows * columns) * sizeof(float);
    float *numbers = malloc(bytes);
    assert_non_null(numbers);
    assert_int_equal(cot_checkpoint_read(w->checkpoint, &all, numbers, NULL), COT_OK);
    assert_true(w->next < w->count);
    if (crc32(numbers, bytes) != (uint32_t)w->crc[w->next++])
        fail_msg("%s: layer %lld, expert %lld, weight %d is not what others unpack", w->name,
                 (long long)layer, (long long)expert, (int)weight);
    free(numbers);
}

static void widened_to_the_bit(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        char path[1024];
        cot_checkpoint *checkpoint;
        cot_safetensors file;
        char *notes;
        snprintf(path, sizeof path, FORMATS "%s/expected.safetensors", cases[i].name);
        assert_int_equal(cot_safetensors_open(&file, path, NULL), COT_OK);
        snprintf(path, sizeof path, FORMATS "%s", cases[i].name);
        assert_int_equal(cot_checkpoint_open(&checkpoint, path, &notes, NULL), COT_OK);
        const cot_tensor *crc = cot_safetensors_find(&file, "crc32");
        assert_true(crc && crc->dtype == COT_I64 && crc->dims == 1);
        struct widened w = {checkpoint, malloc(crc->bytes), crc->shape[0], 0, cases[i].name};
        assert_non_null(w.crc);
        memcpy((void *)(uintptr_t)w.crc, crc->data, crc->bytes);
        for (int64_t l = 0; l < cot_checkpoint_config(checkpoint)->layers; l++) {
            static const cot_weight attention[] = {COT_WEIGHT_Q, COT_WEIGHT_K, COT_WEIGHT_V, COT_WEIGHT_O};
            for (int a = 0; a < 4; a++) check_matrix(&w, attention[a], l, 0);
            for (int64_t e = 0; e < cot_checkpoint_config(checkpoint)->gate.experts; e++)
                for (int part = 0; part < 3; part++) check_matrix(&w, COT_WEIGHT_EXPERT_GATE + part, l, e);
        }
        check_matrix(&w, COT_WEIGHT_EMBEDDING, 0, 0);
        check_matrix(&w, COT_WEIGHT_OUTPUT, 0, 0);
        assert_int_equal(w.next, w.count);
        free((void *)(uintptr_t)w.crc);
        free(notes);
        cot_checkpoint_close(checkpoint);
        cot_safetensors_close(&file);
    }
}

/* What is weighed besides weights, of models of one shape: the embedding is more where it has to be widened. */
static void widened_embedding_is_weighed(void **state)
{
    (void)state;
    static const char *const folders[] = {FORMATS "packed-int8", FORMATS "int-quantized"};
    size_t beside[2];
    for (int i = 0; i < 2; i++) {
        cot_engine_sizes sizes;
        const cot_engine_options options = options_of(&(struct setting){.ranks = 2, .kv_tokens = 256});
        assert_int_equal(cot_engine_measure(&sizes, folders[i], &options, 1, NULL), COT_OK);
        beside[i] = sizes.total_bytes - sizes.weight_bytes;
    }
    assert_int_equal(beside[0] - beside[1], 128 * 256 * sizeof(float));
}

static bool is_multiplied_whole(const char *weights)
{
    return strcmp(weights, "fp8") != 0 && strcmp(weights, "nvfp4") != 0;
}

/* By rows in whole numbers all that holds whole numbers stays as it is, too; FP8 and NVFP4 get a scale a column. */
static void kept_by_whole_numbers(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        size_t bytes[2];
        for (int rounded = 0; rounded < 2; rounded++) {
            char folder[1024];
            snprintf(folder, sizeof folder, FORMATS "%s", cases[i].name);
            cot_engine *engine = must_open(
                &(struct setting){.folder = folder, .precision = rounded ? "int8" : "bf16", .kv_tokens = 64});
            bytes[rounded] = cot_engine_describe(engine)->weight_bytes;
            const char *weights =
                rounded && !is_multiplied_whole(cases[i].weights) ? "int8" : cases[i].weights;
            assert_string_equal(cot_engine_describe(engine)->weights, weights);
            cot_engine_close(engine);
        }
        if (is_multiplied_whole(cases[i].weights)) assert_int_equal(bytes[0], bytes[1]);
    }
}

/* Runs `words` in a folder that has the model, and the tokenizer that all of them have. */
static void run_beside_tokenizer(const char *name, const char *words)
{
    char line[4096];
    snprintf(line, sizeof line,
             "cd \"$(mktemp -d)\" && cp '" FORMATS "%s/'[cm]*.json '" FORMATS
             "%s'/model.safetensors '" FORMATS
             "'tokenizer.json . && { %s; }; status=$?; rm -r \"$PWD\"; exit $status",
             name, name, words);
    capture_shell(&c, line);
    if (c.status != 0) fail_msg("%s: %s", line, c.err);
}

/* `coterie run` prints it. */
static void likeliest_text(void **state)
{
    (void)state;
    for (size_t i = 0; i < CASES; i++) {
        char path[1024], line[2048];
        snprintf(path, sizeof path, FORMATS "%s/greedy.json", cases[i].name);
        json_t *greedy = json_load_file(path, 0, NULL);
        const char *prompt, *text;
        int tokens;
        assert_int_equal(
            json_unpack(greedy, "{s:s, s:i, s:s}", "prompt", &prompt, "tokens", &tokens, "text", &text), 0);
        snprintf(line, sizeof line, "$coterie run . -p '%s' -n %d --precision fp32 -r %d", prompt, tokens,
                 cases[i].tp);
        run_beside_tokenizer(cases[i].name, line);
        snprintf(line, sizeof line, "%s\n", text);
        assert_string_equal(c.out, line);
        json_decref(greedy);
    }
}

/* --stats tells the bytes that the library counted, of prefill and of decoding. */
static void bytes_in_stats(void **state)
{
    (void)state;
    cot_eval_set *set;
    cot_stats counted;
    size_t count;
    double nats[8];
    const char *const model = FORMATS "gpt-oss-mxfp4", *const ids =
                                                           FORMATS "gpt-oss-mxfp4/expected.safetensors";
    cot_engine *engine = must_open(&(struct setting){.folder = model, .precision = "fp32", .kv_tokens = 256});
    assert_int_equal(cot_eval_set_open(&set, ids, NULL), COT_OK);
    const cot_eval_sequence *sequences = cot_eval_set_sequences(set, &count);
    assert_true(count <= sizeof nats / sizeof *nats);
    assert_int_equal(cot_eval_run(engine, sequences, count, NULL, nats, NULL, NULL, NULL), COT_OK);
    assert_int_equal(cot_engine_stats(engine, &counted, NULL), COT_OK);
    assert_true(counted.prefill_read_bytes > 0 && counted.decode_read_bytes > counted.prefill_read_bytes);
    capture_shell(&c,
                  "cd \"$(mktemp -d)\" && $coterie eval '" FORMATS "gpt-oss-mxfp4' --tokens '" FORMATS
                  "gpt-oss-mxfp4/expected.safetensors' --precision fp32 --ranks 1 -o o --stats=s >losses && "
                  "cat s; status=$?; rm -r \"$PWD\"; exit $status");
    json_error_t why;
    json_t *told = json_loads(c.out, 0, &why);
    json_int_t prefill, decode;
    if (!told ||
        json_unpack(told, "{s:I, s:I}", "prefill_read_bytes", &prefill, "decode_read_bytes", &decode))
        fail_msg("%s%s", c.out, c.err);
    assert_int_equal(prefill, counted.prefill_read_bytes);
    assert_int_equal(decode, counted.decode_read_bytes);
    json_decref(told);
    cot_stats_clear(&counted);
    cot_eval_set_close(set);
    cot_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(widened_to_the_bit),
                                       cmocka_unit_test(logits_and_routing),
                                       cmocka_unit_test(widened_embedding_is_weighed),
                                       cmocka_unit_test(kept_by_whole_numbers),
                                       cmocka_unit_test(likeliest_text),
                                       cmocka_unit_test(bytes_in_stats)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
