#include "harness/cmocka.h"

#include "base/gguf.h"
#include "base/rng.h"
#include "harness/gguf.h"
#include "harness/refused.h"
#include "harness/seed.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#define GOLDEN COT_SHARED "/golden/gguf"

static cot_error error;

/* ---- what is written is read ---- */

static void fill(gguf_file *f, uint64_t seed)
{
    static const char *const words[] = {"", "one", "zwei \xc3\xa9"};
    float numbers[6];
    uint8_t blocks[2 * 18];
    for (int i = 0; i < 6; i++) numbers[i] = (float)cot_random_bits(seed, 1, (uint64_t)i);
    for (int i = 0; i < 36; i++) blocks[i] = (uint8_t)cot_random_bits(seed, 2, (uint64_t)i);
    if (f->alignment) gguf_u32(f, "general.alignment", f->alignment);
    gguf_string(f, "general.name", "a name");
    gguf_strings(f, "words", words, 3);
    gguf_f32(f, "half", 0.5f);
    gguf_key(f, "negative", COT_GGUF_I16);
    gguf_number(&f->pairs, 0xfffe, 2);
    gguf_array(f, "none", COT_GGUF_F64, 0);
    gguf_tensor(f, "plain", 0, (const int64_t[]){2, 3}, 2, numbers, sizeof numbers);
    gguf_tensor(f, "blocks", 2, (const int64_t[]){1, 64}, 2, blocks, sizeof blocks);
    gguf_bool(f, "yes", true);
}

static const cot_tensor *tensor_of(const cot_gguf *file, const char *name)
{
    for (size_t i = 0; i < file->count; i++)
        if (!strcmp(file->tensors[i].name, name)) return &file->tensors[i];
    fail_msg("no tensor '%s'", name);
    return NULL;
}

static void test_reads_what_is_written(void **state)
{
    (void)state;
    static const uint32_t alignments[] = {0, 1, 8, 64, 4096};
    for (size_t a = 0; a < sizeof alignments / sizeof *alignments; a++) {
        gguf_file f = {.version = 2 + a % 2, .alignment = alignments[a]};
        cot_gguf file;
        size_t bytes;
        fill(&f, test_seed() + a);
        uint8_t *data = gguf_bytes(&f, &bytes);
        assert_int_equal(cot_gguf_parse(&file, data, bytes, "f", &error), COT_OK);
        assert_int_equal(file.count, 2);
        const cot_tensor *plain = tensor_of(&file, "plain"), *blocks = tensor_of(&file, "blocks");
        assert_int_equal(plain->dtype, COT_F32);
        assert_int_equal(plain->shape[0], 2);
        assert_int_equal(plain->shape[1], 3);
        assert_memory_equal(plain->data, f.data.data, 24);
        assert_string_equal(cot_tensor_type_name(blocks), "Q4_0");
        assert_int_equal(blocks->bytes, 36);
        assert_memory_equal(blocks->data, f.data.data + f.data.bytes - 36, 36);
        json_t *name = cot_gguf_json(cot_gguf_find(&file, "general.name")),
               *list = cot_gguf_json(cot_gguf_find(&file, "words"));
        assert_string_equal(json_string_value(name), "a name");
        assert_int_equal(json_array_size(list), 3);
        assert_string_equal(json_string_value(json_array_get(list, 2)), "zwei \xc3\xa9");
        assert_true(cot_gguf_number(cot_gguf_find(&file, "half"), 0) == 0.5);
        assert_true(cot_gguf_number(cot_gguf_find(&file, "negative"), 0) == -2);
        assert_int_equal(cot_gguf_find(&file, "none")->count, 0);
        assert_null(cot_gguf_find(&file, "nothing"));
        json_decref(name), json_decref(list);
        cot_gguf_close(&file);
        free(data);
        gguf_free(&f);
    }
}

/* ---- whatever a file says, nothing beyond it is read (memory of its very size; sanitizers look) ---- */

static void touch_all(const cot_gguf *file, const uint8_t *data, size_t bytes)
{
    volatile unsigned sum = 0;
    for (size_t i = 0; i < file->count; i++) {
        const uint8_t *at = file->tensors[i].data;
        assert_true(at >= data && file->tensors[i].bytes <= (size_t)(data + bytes - at));
        sum += at[0] + at[file->tensors[i].bytes - 1];
    }
    for (size_t i = 0; i < file->pair_count; i++) {
        json_decref(cot_gguf_json(&file->pairs[i]));
        for (size_t n = 0; n < file->pairs[i].count; n++) sum += cot_gguf_number(&file->pairs[i], n) > 0;
    }
}

static void try_parse(const uint8_t *bytes, size_t count)
{
    cot_gguf file;
    uint8_t *copy = malloc(count + !count);
    assert_non_null(copy);
    memcpy(copy, bytes, count);
    if (cot_gguf_parse(&file, copy, count, "f", &error) == COT_OK)
        touch_all(&file, copy, count);
    else
        assert_true(error.message[0] && !file.tensors && !file.pairs && !file.names);
    cot_gguf_close(&file);
    free(copy);
}

static void test_every_cut_and_change(void **state)
{
    (void)state;
    const uint64_t seed = test_seed();
    gguf_file f = {0};
    size_t bytes;
    fill(&f, seed);
    uint8_t *data = gguf_bytes(&f, &bytes);
    cot_gguf file;
    for (size_t n = 0; n < bytes; n++) {
        try_parse(data, n);
        assert_int_not_equal(cot_gguf_parse(&file, data, n, "f", &error),
                             COT_OK); // the last tensor ends with the file
    }
    for (uint64_t i = 0; i < 20000; i++) {
        uint8_t *changed = malloc(bytes);
        assert_non_null(changed);
        memcpy(changed, data, bytes);
        for (uint64_t c = 0; c <= i % 3; c++) {
            const uint64_t what = cot_random_bits(seed, 3 + c, i);
            changed[what % bytes] = what >> 62 ? (uint8_t)(what >> 32) : 0xff;
        }
        try_parse(changed, bytes);
        free(changed);
    }
    free(data);
    gguf_free(&f);
}

/* ---- refusals by what they say ---- */

static void refuse(gguf_file *f, const char *words)
{
    cot_gguf file;
    size_t bytes;
    uint8_t *data = gguf_bytes(f, &bytes);
    assert_refused(cot_gguf_parse(&file, data, bytes, "f", &error), &error, words);
    free(data);
    gguf_free(f);
}

static void test_refusals(void **state)
{
    (void)state;
    static const float zeros[64];
    static const int64_t one[] = {8}, many[] = {1, 1, 1, 1, 8}, huge[] = {INT64_C(1) << 40, INT64_C(1) << 40};
    gguf_file f = {.version = 1};
    refuse(&f, "'f' is GGUF of version 1, 2 and 3 are read");
    f.version = 0x03000000;
    refuse(&f, "big-endian");
    gguf_u32(&f, "a", 1), gguf_u32(&f, "a", 1);
    refuse(&f, "'f' has 'a' twice");
    gguf_u32(&f, "", 1);
    refuse(&f, "has no length");
    gguf_u32(&f, "a\xff", 1);
    refuse(&f, "is not UTF-8");
    gguf_key(&f, "a", COT_GGUF_TYPES), gguf_number(&f.pairs, 0, 8);
    refuse(&f, "the value of 'a' is of unknown type 13");
    gguf_array(&f, "a", COT_GGUF_ARRAY, 1), gguf_number(&f.pairs, 0, 8);
    refuse(&f, "array of arrays");
    gguf_array(&f, "a", COT_GGUF_U64, UINT64_C(1) << 61);
    refuse(&f, "2305843009213693952 elements");
    gguf_key(&f, "a", COT_GGUF_STRING), gguf_number(&f.pairs, UINT64_C(1) << 60, 8);
    refuse(&f, "1152921504606846976 bytes");
    f.pair_count = UINT64_C(1) << 60;
    refuse(&f, "metadata pairs, more than its");
    gguf_u32(&f, "general.alignment", 24);
    refuse(&f, "general.alignment is 24, expected a power of two");
    gguf_u32(&f, "general.alignment", 0);
    refuse(&f, "expected a power of two");
    gguf_string(&f, "general.alignment", "8");
    refuse(&f, "no whole number");
    gguf_tensor(&f, "t", 0, one, 1, zeros, 32), gguf_tensor(&f, "t", 0, one, 1, zeros, 32);
    refuse(&f, "'f' has tensor 't' twice");
    gguf_tensor(&f, "t", 99, one, 1, zeros, 32);
    refuse(&f, "tensor 't' is of unknown type 99");
    gguf_tensor(&f, "t", 12, one, 1, zeros, 32);
    refuse(&f, "rows of 8 elements, which are no whole blocks of Q4_K, 256");
    gguf_tensor(&f, "t", 0, many, 5, zeros, 32);
    refuse(&f, "has 5 dimensions");
    gguf_tensor(&f, "t", 0, many, 0, zeros, 32);
    refuse(&f, "has 0 dimensions");
    gguf_tensor(&f, "t", 0, (const int64_t[]){-8}, 1, zeros, 32);
    refuse(&f, "has a dimension of -8");
    gguf_tensor(&f, "t", 0, (const int64_t[]){0, 8}, 2, zeros, 32);
    refuse(&f, "has a dimension of 0");
    gguf_tensor(&f, "t", 0, huge, 2, zeros, 32);
    refuse(&f, "shape of tensor 't' overflows");
    gguf_tensor(&f, "t", 0, one, 1, zeros, 28);
    refuse(&f, "cut off?");
    gguf_tensor(&f, "t", 0, one, 1, zeros, 32), gguf_tensor(&f, "u", 0, one, 1, zeros, 32);
    memset(f.entries.data + f.entries.bytes - 8, 0, 8); // u lies where t does
    refuse(&f, "overlap");
    gguf_tensor(&f, "t", 0, one, 1, zeros, 64);
    f.entries.data[f.entries.bytes - 8] = 4;
    refuse(&f, "no multiple of the alignment");
    gguf_tensor(&f, "a name that has more than the sixty-three bytes that names may have", 0, one, 1, zeros,
                32);
    refuse(&f, "at most 63 are read");
}

/* ---- the golden files ---- */

static void compare(const cot_gguf_pair *pair, json_t *wanted)
{
    json_t *list = json_is_array(wanted) ? json_incref(wanted) : json_pack("[O]", wanted), *item;
    json_t *found = cot_gguf_json(pair);
    size_t i;
    assert_int_equal(pair->array, json_is_array(wanted));
    assert_int_equal(pair->count, json_array_size(list));
    json_array_foreach(list, i, item)
    {
        if (json_is_number(item))
            assert_true(cot_gguf_number(pair, i) == json_number_value(item));
        else
            assert_true(json_equal(item, pair->array ? json_array_get(found, i) : found));
    }
    if (pair->type != COT_GGUF_U64) assert_non_null(found);
    json_decref(list), json_decref(found);
}

static void test_every_type(void **state)
{
    (void)state;
    json_error_t why;
    cot_gguf file;
    json_t *values = json_load_file(GOLDEN "/container/types.json", JSON_DECODE_INT_AS_REAL, &why), *wanted;
    if (!values && access(GOLDEN, F_OK)) {
        printf("SKIPPED: there is no '%s'\n", GOLDEN);
        skip();
    }
    const char *key;
    assert_int_equal(cot_gguf_open(&file, GOLDEN "/container/types.gguf", &error), COT_OK);
    assert_true(json_object_size(values) > 20);
    json_object_foreach(values, key, wanted)
    {
        assert_non_null(cot_gguf_find(&file, key));
        compare(cot_gguf_find(&file, key), wanted);
    }
    json_decref(values);
    cot_gguf_close(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_what_is_written),
        cmocka_unit_test(test_every_cut_and_change),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_every_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
