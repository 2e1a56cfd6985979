#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "base/safetensors.h"
#include "harness/seed.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static cot_error error;

/* Parses header text + payload of `payload_bytes` from memory that is exactly as large. */
static cot_status parse(cot_safetensors *file, const char *header, size_t payload_bytes)
{
    size_t length = strlen(header), bytes = 8 + length + payload_bytes;
    uint8_t *data = malloc(bytes);
    assert_non_null(data);
    for (int i = 0; i < 8; i++) data[i] = (uint8_t)(length >> 8 * i);
    memcpy(data + 8, header, length);
    for (size_t i = 0; i < payload_bytes; i++) data[8 + length + i] = (uint8_t)i;
    memset(file, 0x5a, sizeof *file);
    cot_status status = cot_safetensors_parse(file, data, bytes, "f", &error);
    if (status == COT_OK) {
        for (size_t t = 0; t < file->count; t++) // every byte that a tensor claims is there
            for (size_t i = 0; i < file->tensors[t].bytes; i++)
                assert_in_range((const uint8_t *)file->tensors[t].data + i, data + 8 + length,
                                data + bytes - 1);
        cot_safetensors_close(file);
    } else {
        assert_null(file->tensors);
        assert_null(file->header);
        assert_int_equal(file->count, 0);
        assert_int_equal(error.status, status);
    }
    free(data);
    return status;
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t payload_bytes;
        const char *message;
    } cases[] = {
        {"", 0, NULL},
        {"{", 0, NULL},
        {"{}x", 0, NULL},
        {"[]", 0, "'f': header is no JSON object"},
        {"null", 0, NULL},
        {"{}", 1, "'f': its tensors end at byte 0 of 1"},
        {"{\"a\":1}", 0, "'f': tensor 'a' lacks dtype, shape or data_offsets"},
        {"{\"a\":{}}", 0, "'f': tensor 'a' lacks dtype, shape or data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4,
         "'f': tensor 'a' lacks dtype, shape or data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4,
         "'f': tensor 'a' lacks dtype, shape or data_offsets"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "'f': tensor 'a' lacks dtype, shape or data_offsets"},
        {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "'f': tensor 'a' lacks dtype, shape or data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":{},\"data_offsets\":[0,4]}}", 4,
         "'f': tensor 'a' lacks dtype, shape or data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4,
         "'f': tensor 'a' lacks dtype, shape or data_offsets"},
        {"{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
         "'f': tensor 'a' has unknown dtype 'F31'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4,
         "'f': tensor 'a' has a bad shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4,
         "'f': tensor 'a' has a bad shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[\"1\"],\"data_offsets\":[0,4]}}", 4,
         "'f': tensor 'a' has a bad shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,4]}}", 4, NULL},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,4]}}", 4,
         "'f': shape of tensor 'a' overflows"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
         "'f': shape of tensor 'a' overflows"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0,4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
         "'f': shape of tensor 'a' overflows"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1,
         "'f': tensor 'a' has 9 dimensions, at most 8 are supported"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,5]}}", 5,
         "'f': tensor 'a' holds 5 bytes, its shape needs 4"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4,
         "'f': tensor 'a' lies at bytes 4 to 0 of 4"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4,
         "'f': tensor 'a' lies at bytes -4 to 0 of 4"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 3,
         "'f': tensor 'a' lies at bytes 0 to 4 of 3"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[9223372036854775803,9223372036854775807]}"
         "}",
         4, "'f': tensor 'a' lies at bytes 9223372036854775803 to 9223372036854775807 of 4"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0.0,4.0]}}", 4, NULL},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}",
         7, "'f': tensors 'a' and 'b' overlap"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
         4, NULL},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[6,10]}}",
         10, "'f': 2 bytes before tensor 'b' belong to no tensor"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[1,5]}}", 5,
         "'f': 1 bytes before tensor 'a' belong to no tensor"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 5,
         "'f': its tensors end at byte 4 of 5"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
         0, NULL},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
         "\"\\u0061\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
         0, NULL},
        {"{\"\\u0000\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, NULL},
        {"{\"\xff\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, NULL},
        {"{\"__metadata__\":[]}", 0, "'f': __metadata__ is no object of strings"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "'f': __metadata__ is no object of strings"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cot_safetensors file;
        cot_status status = parse(&file, cases[i].header, cases[i].payload_bytes);
        if (status != COT_MALFORMED && status != COT_UNSUPPORTED) fail_msg("taken: %s", cases[i].header);
        if (cases[i].message) assert_string_equal(error.message, cases[i].message);
    }
}

static void test_lengths(void **state)
{
    (void)state;
    cot_safetensors file;
    uint8_t data[16] = {0};
    for (size_t bytes = 0; bytes < 8; bytes++) // with NULL where there is nothing, as an empty map has
        assert_int_equal(cot_safetensors_parse(&file, bytes ? data : NULL, bytes, "f", &error),
                         COT_MALFORMED);
    memcpy(data, "\x09\0\0\0\0\0\0\0{}", 10);
    assert_int_equal(cot_safetensors_parse(&file, data, 16, "f", &error), COT_MALFORMED);
    assert_string_equal(error.message, "'f': header of 9 bytes in a file of 16 (at most 100000000 are read)");
    memset(data, 0xff, 8);
    assert_int_equal(cot_safetensors_parse(&file, data, 16, "f", &error), COT_MALFORMED);
}

/* Arrays nested a hundred thousand deep do not exhaust the stack. */
/* Other files are told for what they probably are, whatever their ninth byte. */
static void test_other_kinds(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *words;
    } cases[] = {
        {"layer\texpert\ttoken_id\tcount\n1\t2\t3\t4\n", "is no safetensors file: it looks like text"},
        {"{\"dpp\": {\"record_type\": 1}}", "is no safetensors file: it looks like JSON"},
        {"12345678{}", "is no safetensors file: it looks like text"},
        {"PK\3\4........", "is no safetensors file: it looks like a zip archive"},
        {"\x93NUMPY.......", "is no safetensors file: it looks like a NumPy array"},
        {"GGUF\3.........", "is no safetensors file: it looks like a GGUF file"},
        {"\1\2\3\4\5\6\7\10{}", "header of 578437695752307201 bytes"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cot_safetensors file;
        const size_t bytes = strlen(cases[i].bytes);
        assert_false(cot_safetensors_is(cases[i].bytes, bytes));
        assert_int_equal(cot_safetensors_parse(&file, cases[i].bytes, bytes, "it", &error), COT_MALFORMED);
        if (!strstr(error.message, cases[i].words))
            fail_msg("'%s' lacks '%s'", error.message, cases[i].words);
    }
    assert_true(cot_safetensors_is("\2\0\0\0\0\0\0\0{}", 10));
    assert_true(cot_safetensors_is("\0\1\0\0\0\0\0\0{", 9)); // cut off
    assert_false(cot_safetensors_is("\2\0\0\0\0\0\0\0{", 8));
    assert_false(cot_safetensors_is("\2\0\0\0\0\0\0\0[]", 10));
}

static void test_deep(void **state)
{
    (void)state;
    enum { DEEP = 100000 };
    char *header = malloc(2 * DEEP + 8);
    strcpy(header, "{\"a\":");
    memset(header + 5, '[', DEEP);
    memset(header + 5 + DEEP, ']', DEEP);
    strcpy(header + 5 + 2 * DEEP, "}");
    cot_safetensors file;
    assert_int_equal(parse(&file, header, 0), COT_MALFORMED);
    free(header);
}

/* A header that claims, and a sparse file that has, a gigabyte is refused without being read. */
static void test_gigabyte_header(void **state)
{
    (void)state;
    char path[] = "safetensors-XXXXXX";
    int fd = mkstemp(path);
    uint64_t length = 1u << 30;
    assert_int_equal(write(fd, &length, 8), 8);
    assert_int_equal(ftruncate(fd, (off_t)length + 8), 0);
    close(fd);
    cot_safetensors file;
    assert_int_equal(cot_safetensors_open(&file, path, &error), COT_MALFORMED);
    assert_non_null(strstr(error.message, "header of 1073741824 bytes"));
    unlink(path);
}

static void test_accepted(void **state)
{
    (void)state;
    cot_safetensors file;
    assert_int_equal(parse(&file, "{}", 0), COT_OK);
    assert_int_equal(parse(&file, " {\"__metadata__\":{}}  ", 0), COT_OK);
    assert_int_equal(parse(&file, "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4),
                     COT_OK);
    assert_int_equal(parse(&file, "{\"a\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[0,0]}}", 0),
                     COT_OK);
    // an empty tensor may stand anywhere, also in another's middle
    assert_int_equal(parse(&file,
                           "{\"b\":{\"dtype\":\"U8\",\"shape\":[2,2],\"data_offsets\":[4,8]},"
                           "\"e\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]},"
                           "\"a\":{\"dtype\":\"I16\",\"shape\":[2],\"data_offsets\":[0,4],\"extra\":null}}",
                           8),
                     COT_OK);
}

/* What was written is read back, tensors in any order, names and metadata with any characters. */
static void test_round_trip(void **state)
{
    (void)state;
    enum { MOST = 12 };
    uint64_t seed = test_seed(), at = 0;
    char path[] = "safetensors-XXXXXX";
    close(mkstemp(path));
    for (int count = 0; count <= MOST; count++) {
        cot_tensor tensors[MOST] = {0};
        uint8_t bytes[MOST][512];
        char names[MOST][32];
        for (int t = 0; t < count; t++) {
            snprintf(names[t], sizeof names[t], "%llu.\"\xe2\x82\xac\n",
                     (unsigned long long)cot_random_bits(seed, 1, at++) % 1000 * 100 + (unsigned)t);
            tensors[t].name = names[t];
            tensors[t].dtype = (cot_dtype)(cot_random_bits(seed, 2, at++) % COT_DTYPE_COUNT);
            tensors[t].dims = (int)(cot_random_bits(seed, 3, at++) % 4);
            for (int d = 0; d < tensors[t].dims; d++)
                tensors[t].shape[d] = (int64_t)(cot_random_bits(seed, 4, at++) % 5);
            tensors[t].bytes = (size_t)cot_tensor_elements(&tensors[t]) * cot_dtype_bytes(tensors[t].dtype);
            assert_true(tensors[t].bytes <= sizeof bytes[t]);
            for (size_t i = 0; i < tensors[t].bytes; i++)
                bytes[t][i] = (uint8_t)cot_random_bits(seed, 5, at++);
            tensors[t].data = bytes[t];
        }
        const char *const meta[] = {"model", "a \"b\"\\", "", "empty key"};
        assert_int_equal(cot_safetensors_write(path, tensors, (size_t)count, meta, 2, &error), COT_OK);
        cot_safetensors file;
        assert_int_equal(cot_safetensors_open(&file, path, &error), COT_OK);
        assert_int_equal(file.count, count);
        assert_string_equal(cot_safetensors_meta(&file, "model"), "a \"b\"\\");
        assert_string_equal(cot_safetensors_meta(&file, ""), "empty key");
        assert_null(cot_safetensors_meta(&file, "absent"));
        assert_null(cot_safetensors_find(&file, "absent"));
        for (int t = 0; t < count; t++) {
            const cot_tensor *found = cot_safetensors_find(&file, names[t]);
            assert_non_null(found);
            assert_int_equal(found->dtype, tensors[t].dtype);
            assert_int_equal(found->dims, tensors[t].dims);
            assert_memory_equal(found->shape, tensors[t].shape, sizeof found->shape);
            assert_int_equal(found->bytes, tensors[t].bytes);
            if (found->bytes) assert_memory_equal(found->data, bytes[t], found->bytes);
        }
        cot_safetensors_close(&file);
        cot_safetensors_close(&file);
    }
    unlink(path);
}

/* Any cut, and any one changed byte of the header, is refused or read; never more. Memory is exactly as
 * large. */
static void test_damaged(void **state)
{
    (void)state;
    const char header[] =
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[2,2],\"data_offsets\":[0,4]},\"__metadata__\":{\"k\":\"v\"}}";
    char damaged[sizeof header];
    for (size_t at = 0; at + 1 < sizeof header; at++) {
        for (int byte = 1; byte < 256; byte += 2) {
            strcpy(damaged, header);
            damaged[at] = (char)byte;
            cot_safetensors file;
            parse(&file, damaged, 4);
        }
        strcpy(damaged, header);
        damaged[at] = 0;
        cot_safetensors file;
        assert_int_equal(parse(&file, damaged, 4), COT_MALFORMED);
    }
}

static void test_write_refused(void **state)
{
    (void)state;
    cot_tensor tensor = {.name = "a\xff", .dtype = COT_U8, .dims = 1};
    assert_int_equal(cot_safetensors_write("absent-folder/f", NULL, 0, NULL, 0, &error), COT_NOT_FOUND);
    assert_int_equal(cot_safetensors_write("/dev/full", NULL, 0, NULL, 0, &error), COT_IO);
    assert_string_equal(error.message, "cannot write '/dev/full': No space left on device");
    assert_int_not_equal(cot_safetensors_write("/dev/null", &tensor, 1, NULL, 0, &error), COT_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),      cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_deep),          cmocka_unit_test(test_gigabyte_header),
        cmocka_unit_test(test_accepted),      cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_other_kinds),   cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_write_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
