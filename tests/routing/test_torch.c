/* Files of torch.save: what pickles of recordings use is read, everything else is refused by name; nothing crashes. */
#include "harness/refused.h"
#include "harness/routing/torch_archive.h"
#include "harness/scratch.h"

#include "routing/torch/file.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static archive a;

static cot_status parse(cot_torch_file *file, const char *pickle, size_t bytes, cot_error *error)
{
    memset(file, 0xa5, sizeof *file);
    archive_pickle(&a, pickle, bytes, 0);
    return cot_torch_parse(file, a.bytes, a.used, "f.pt", error);
}
#define PARSE(file, pickle, error) parse(file, pickle, sizeof pickle - 1, error)

#define STORAGE                                                                                              \
    "((X\7\0\0\0storagectorch\nIntStorage\nX\1\0\0\0"                                                        \
    "0"                                                                                                      \
    "X\3\0\0\0cpuK\6tQ"
#define TENSOR(offset, shape, stride)                                                                        \
    "ctorch._utils\n_rebuild_tensor_v2\n" STORAGE offset shape stride "\x89"                                 \
    "ccollections\nOrderedDict\n)RtR"

static const cot_torch_value *member(const cot_torch_file *file, const char *key)
{
    const cot_torch_value *value = cot_torch_get(file->value, key);
    assert_non_null(value);
    return value;
}

static void test_values(void **state)
{
    (void)state;
    static const char pickle[] =
        "\x80\2}q\0(X\1\0\0\0aK\xffX\1\0\0\0bM\xff\xffX\1\0\0\0cJ\xfe\xff\xff\xffX\1\0\0\0dN"
        "X\1\0\0\0e\x88X\1\0\0\0f\x89X\1\0\0\0gG\x3f\xe8\0\0\0\0\0\0X\1\0\0\0h](K\1K\2e"
        "X\1\0\0\0i(K\1K\2K\3K\4tX\1\0\0\0j\x8a\5\0\0\0\0\1X\1\0\0\0k\x8a\2\0\x80X\1\0\0\0lh\0"
        "X\1\0\0\0m\x8a\0X\1\0\0\0n]K\7aX\1\0\0\0o}X\1\0\0\0xK\5su.";
    cot_torch_file file;
    cot_error error = {0};
    if (PARSE(&file, pickle, &error) != COT_OK) fail_msg("%s", error.message);
    assert_int_equal(member(&file, "a")->integer, 255);
    assert_int_equal(member(&file, "b")->integer, 65535);
    assert_int_equal(member(&file, "c")->integer, -2);
    assert_int_equal(member(&file, "d")->kind, COT_TORCH_NONE);
    assert_int_equal(member(&file, "e")->integer, 1);
    assert_int_equal(member(&file, "f")->kind, COT_TORCH_BOOL);
    assert_true(member(&file, "g")->real == 0.75);
    assert_int_equal(member(&file, "h")->list.count, 2);
    assert_int_equal(member(&file, "h")->list.items[1]->integer, 2);
    assert_int_equal(member(&file, "i")->list.count, 4);
    assert_int_equal(member(&file, "j")->integer, INT64_C(1) << 32);
    assert_int_equal(member(&file, "k")->integer, -32768);
    assert_ptr_equal(member(&file, "l"), file.value); // the dict holds itself
    assert_int_equal(member(&file, "m")->integer, 0);
    assert_int_equal(member(&file, "n")->list.items[0]->integer, 7);
    assert_int_equal(cot_torch_get(member(&file, "o"), "x")->integer, 5);
    assert_null(cot_torch_get(file.value, "aa"));
    assert_null(cot_torch_get(member(&file, "a"), "a"));
    assert_null(cot_torch_get(NULL, "a"));
    cot_torch_close(&file);
}

static void test_tensors(void **state)
{
    (void)state;
    static const char plain[] = "\x80\2}X\1\0\0\0t" TENSOR("K\0", "K\2K\3\x86", "K\3K\1\x86") "s.";
    static const char view[] = "\x80\2}X\1\0\0\0t" TENSOR("K\1", "K\2K\2\x86", "K\1K\3\x86") "s.";
    static const char none[] = "\x80\2}X\1\0\0\0t" TENSOR("K\0", "K\0K\3\x86", "K\3K\1\x86") "s.";
    static const char scalar[] = "\x80\2}X\1\0\0\0t" TENSOR("K\5", ")", ")") "s.";
    cot_torch_file file;
    double n;
    for (int wide = 0; wide < 2; wide++) {
        archive_pickle(&a, plain, sizeof plain - 1, wide);
        assert_int_equal(cot_torch_parse(&file, a.bytes, a.used, "f.pt", NULL), COT_OK);
        const cot_torch_tensor *t = cot_torch_get_tensor(file.value, "t");
        assert_non_null(t);
        assert_int_equal(t->dtype, COT_I32);
        assert_int_equal(t->dims, 2);
        for (int64_t i = 0; i < 6; i++) {
            assert_true(cot_torch_number(&n, t->dtype, t->data + 4 * i));
            assert_true(n == (double)i);
        }
        cot_torch_close(&file);
    }
    assert_int_equal(PARSE(&file, view, NULL), COT_OK);
    const cot_torch_tensor *t = cot_torch_get_tensor(file.value, "t");
    assert_true(cot_torch_number(&n, t->dtype, t->data + 4 * (t->stride[0] + t->stride[1])));
    assert_true(n == 5);
    cot_torch_close(&file);
    assert_int_equal(PARSE(&file, none, NULL), COT_OK);
    assert_int_equal(cot_torch_get_tensor(file.value, "t")->shape[0], 0);
    cot_torch_close(&file);
    assert_int_equal(PARSE(&file, scalar, NULL), COT_OK);
    assert_int_equal(cot_torch_get_tensor(file.value, "t")->dims, 0);
    cot_torch_close(&file);
}

static void test_numbers(void **state)
{
    (void)state;
    const struct {
        cot_dtype dtype;
        uint64_t bits;
        double number;
    } numbers[] = {{COT_BOOL, 1, 1},
                   {COT_U8, 255, 255},
                   {COT_I8, 255, -1},
                   {COT_I16, 0xfffe, -2},
                   {COT_U16, 0xfffe, 65534},
                   {COT_F16, 0x3c00, 1},
                   {COT_BF16, 0x3f80, 1},
                   {COT_I32, 0xffffffff, -1},
                   {COT_U32, 0xffffffff, 4294967295.0},
                   {COT_F32, 0x3f800000, 1},
                   {COT_I64, UINT64_MAX, -1},
                   {COT_U64, UINT64_C(1) << 63, 0x1p63},
                   {COT_F64, UINT64_C(0x3ff) << 52, 1}};
    double n;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        assert_true(cot_torch_number(&n, numbers[i].dtype, &numbers[i].bits));
        assert_true(n == numbers[i].number);
    }
    assert_false(cot_torch_number(&n, COT_F8_E4M3, numbers));
}

static void test_hostile_pickles(void **state)
{
    (void)state;
#define BAD(pickle, words)                                                                                   \
    {                                                                                                        \
        pickle, sizeof(pickle) - 1, words                                                                    \
    }
    static const struct {
        const char *pickle;
        size_t bytes;
        const char *words;
    } bad[] = {
        BAD("\x80\2cos\nsystem\n(X\4\0\0\0evilt", "names 'os.system'"),
        BAD("\x80\2cbuiltins\neval\n",
            "names 'builtins.eval', which no recording needs: nothing of it is run"),
        BAD("\x80\2ctorch._utils\n_rebuild_parameter\n", "names 'torch._utils._rebuild_parameter'"),
        BAD("\x80\2ctorch\nIntStorage_\n", "names 'torch.IntStorage_'"),
        BAD("\x80\2ccollections.abc\nOrderedDict\n", "names 'collections.abc.OrderedDict'"),
        BAD("\x80\2cevil\n\nname\n", "names 'evil.'"),
        BAD("\x80\2cevil", "a name without an end"),
        BAD("\x80\4.", "pickle protocol 4, expected 2"),
        BAD("\x80\2X\2\0\0\0osX\6\0\0\0system\x93.", "opcode 0x93"),   // STACK_GLOBAL
        BAD("\x80\2(X\4\0\0\0evilios\nsystem\n.", "opcode 0x69"),      // INST
        BAD("\x80\2ccollections\nOrderedDict\n)\x81.", "opcode 0x81"), // NEWOBJ
        BAD("\x80\2}}b.", "opcode 0x62"),                              // BUILD
        BAD("\x80\2\x82\1.", "opcode 0x82"),                           // EXT1
        BAD("\x80\2Pevil\n.", "opcode 0x50"),                          // PERSID
        BAD("\x80\2S'text'\n.", "opcode 0x53"),
        BAD("\x80\2", "it ends within an opcode"),
        BAD("\x80\2.", "more or less than one value"),
        BAD("\x80\2NN.", "more or less than one value"),
        BAD("\x80\2N(.", "more or less than one value"),
        BAD("\x80\2X\xff\xff\xff\xffx.", "it ends within an opcode"),
        BAD("\x80\2\x8a\x09\0\0\0\0\0\0\0\0\1.", "a number of 9 bytes"),
        BAD("\x80\2h\0.", "the memo has no such place"),
        BAD("\x80\2Nr\xff\xff\xff\xff.", "the memo skips a place"),
        BAD("\x80\2q\0.", "nothing to memorise"),
        BAD("\x80\2e.", "no mark"),
        BAD("\x80\2t.", "no mark"),
        BAD("\x80\2(K\1e.", "a container that is not there"),
        BAD("\x80\2K\1a.", "a container that is not there"),
        BAD("\x80\2](K\1a.", "a container that is not there"), // the list lies under the mark
        BAD("\x80\2}K\1a.", "values for a wrong container"),
        BAD("\x80\2](K\1K\2u.", "values for a wrong container"),
        BAD("\x80\2}(K\1u.", "values for a wrong container"),
        BAD("\x80\2K\1\x86.", "a tuple of values that are not there"),
        BAD("\x80\2R.", "a call without its arguments"),
        BAD("\x80\2})R.", "a call of no function"),
        BAD("\x80\2ccollections\nOrderedDict\n}R.", "a call of no function"),
        BAD("\x80\2ccollections\nOrderedDict\n(K\1tR.", "neither a tensor nor an empty dict"),
        BAD("\x80\2ctorch\nIntStorage\n)R.", "neither a tensor nor an empty dict"),
        BAD("\x80\2ctorch._utils\n_rebuild_tensor_v2\n)R.", "a tensor of wrong arguments"),
        BAD("\x80\2Q.", "a persistent id that is not there"),
        BAD("\x80\2K\1Q.", "a persistent id of no storage"),
        BAD("\x80\2((X\7\0\0\0storageccollections\nOrderedDict\nX\1\0\0\0"
            "0"
            "X\3\0\0\0cpuK\6tQ.",
            "of no storage"),
        BAD("\x80\2(X\7\0\0\0storagectorch\nIntStorage\nX\1\0\0\0"
            "9"
            "X\3\0\0\0cpuK\6tQ.",
            "lacks storage 'data/9'"),
        BAD("\x80\2(X\7\0\0\0storagectorch\nIntStorage\nX\x0c\0\0\0../byteorderX\3\0\0\0cpuK\1tQ.",
            "lacks storage 'data/../byteorder'"),
        BAD("\x80\2(X\7\0\0\0storagectorch\nLongStorage\nX\1\0\0\0"
            "0"
            "X\3\0\0\0cpuK\4tQ.",
            "has 3 elements"),
        BAD("\x80\2(X\7\0\0\0storagectorch\nIntStorage\nX\1\0\0\0"
            "0"
            "X\3\0\0\0cpuJ\xff\xff\xff\xfftQ.",
            "has 6 elements"),
        BAD("\x80\2" TENSOR("K\0", "K\2K\4\x86", "K\4K\1\x86"), "a tensor beyond its storage"),
        BAD("\x80\2" TENSOR("K\6", ")", ")"), "a tensor beyond its storage"),
        BAD("\x80\2" TENSOR("J\xff\xff\xff\xff", "K\2\x85", "K\1\x85"), "a tensor beyond its storage"),
        BAD("\x80\2" TENSOR("K\5", "K\2\x85", "J\xff\xff\xff\xff\x85"), "a tensor beyond its storage"),
        BAD("\x80\2" TENSOR("K\0", "J\xff\xff\xff\xff\x85", "K\1\x85"), "a tensor beyond its storage"),
        BAD("\x80\2" TENSOR("K\0", "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85", "K\2\x85"),
            "beyond its storage"),
        BAD("\x80\2" TENSOR("K\0", "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85", "K\0\x85"),
            "that repeats elements"),
        BAD("\x80\2" TENSOR("K\0", "K\7\x85", "K\0\x85"), "that repeats elements"),
        BAD("\x80\2" TENSOR("K\0", "K\2\x85", ")"), "a tensor of wrong arguments"),
        BAD("\x80\2" TENSOR("K\0", "(K\1K\1K\1K\1K\1K\1K\1K\1K\1t", "(K\1K\1K\1K\1K\1K\1K\1K\1K\1t"),
            "9 dimensions"),
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cot_torch_file file;
        cot_error error = {0};
        cot_status status = parse(&file, bad[i].pickle, bad[i].bytes, &error);
        if (status == COT_OK) fail_msg("case %zu (%s) is taken", i, bad[i].words);
        assert_refused(status, &error, bad[i].words);
        assert_null(file.value);
    }
}

/* A pickle may nest as deep as it is long. */
static void test_deep(void **state)
{
    (void)state;
    enum { DEPTH = 20000 };
    static char pickle[3 * DEPTH + 8] = "\x80\2";
    size_t used = 2;
    for (int i = 0; i < DEPTH; i++) pickle[used++] = ']';
    for (int i = 1; i < DEPTH; i++) pickle[used++] = 'a';
    pickle[used++] = '.';
    cot_torch_file file;
    assert_int_equal(parse(&file, pickle, used, NULL), COT_OK);
    cot_torch_close(&file);
}

static void test_archives(void **state)
{
    scratch_pad *pad = *state;
    static const char pickle[] = "\x80\2}.";
    cot_torch_file file;
    cot_error error = {0};
    archive_pickle(&a, pickle, sizeof pickle - 1, 0);
    size_t entry = a.used - 22;
    while (memcmp(a.bytes + entry, "PK\1\2", 4) != 0 ||
           memcmp(a.bytes + entry + 46, "stem/data.pkl", 13) != 0)
        entry--;
    static const struct {
        int from_entry; // else from the end record
        size_t at;
        uint8_t value;
        const char *words;
    } bad[] = {
        {1, 0, 'Q', "its directory is garbled"},
        {1, 8, 1, "is compressed or encrypted"},
        {1, 10, 8, "is compressed or encrypted"},
        {1, 20, 99, "its directory is garbled"},
        {1, 29, 0xff, "its directory is garbled"},
        {1, 45, 0x7f, "a member lies outside"},
        {0, 4, 1, "in several volumes"},
        {0, 10, 200, "its directory is too short"},
        {0, 12, 1, "its directory"},
        {0, 15, 1, "its directory lies outside"},
        {0, 19, 1, "its directory lies outside"},
        {0, 0, 'Q', "it has no directory"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint8_t *byte = a.bytes + (bad[i].from_entry ? entry : a.used - 22) + bad[i].at, old = *byte;
        *byte = bad[i].value;
        assert_refused(cot_torch_parse(&file, a.bytes, a.used, "f.pt", &error), &error, bad[i].words);
        *byte = old;
    }
    assert_refused(cot_torch_parse(&file, "PK", 2, "f.pt", &error), &error, "it is too short");
    a.used = a.members = 0;
    archive_add(&a, "stem/other", "", 0);
    archive_end(&a, 0);
    assert_refused(cot_torch_parse(&file, a.bytes, a.used, "f.pt", &error), &error, "without a data.pkl");
    a.used = a.members = 0;
    archive_add(&a, "stem/data.pkl", pickle, sizeof pickle - 1);
    archive_add(&a, "stem/byteorder", "big", 3);
    archive_end(&a, 0);
    assert_refused(cot_torch_parse(&file, a.bytes, a.used, "f.pt", &error), &error, "big-endian");
    assert_refused(cot_torch_open(&file, in_scratch(pad, "none.pt"), &error), &error, "none.pt");
}

/* What torch wrote before its archives, or writes when asked to: storages "0" of six int32 and "1" of two doubles, listed in
 * another order than they occur in. */
#define OLDER_STORAGE(type, key, count)                                                                      \
    "((X\7\0\0\0storagectorch\n" type "Storage\nX\1\0\0\0" key "X\3\0\0\0cpuK" count "NtQ"
#define OLDER_TENSOR(type, key, count, offset, shape, stride)                                                \
    "ctorch._utils\n_rebuild_tensor_v2\n" OLDER_STORAGE(type, key, count) offset shape stride                \
        "\x89"                                                                                               \
        "ccollections\nOrderedDict\n)RtR"
static void put_older(archive *to, const char *version, const char *little, int64_t count)
{
    static const char magic[] = "\x80\2\x8a\12\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
    static const char saved[] = "\x80\2}q\0(X\1\0\0\0t" OLDER_TENSOR(
        "Int", "0", "\6", "K\1", "K\2K\2\x86",
        "K\3K\1\x86") "X\1\0\0\0u" OLDER_TENSOR("Double", "1", "\2", "K\0", "K\2\x85",
                                                "K\1\x85") "X\1\0\0\0v" OLDER_TENSOR("Int", "0", "\6", "K\0",
                                                                                     "K\6\x85",
                                                                                     "K\1\x85") "u.";
    static const char keys[] = "\x80\2]q\0(X\1\0\0\0"
                               "1X\1\0\0\0"
                               "0e.";
    static const int32_t six[] = {5, 6, 7, 8, 9, 10};
    static const double two[] = {0.5, -2};
    to->used = to->members = 0;
    archive_put(to, magic, sizeof magic - 1);
    archive_put(to, version, 6);
    archive_put(to, "\x80\2}q\0X\15\0\0\0little_endian", 23);
    archive_put(to, little, 1);
    archive_put(to, "s.", 2);
    archive_put(to, saved, sizeof saved - 1);
    archive_put(to, keys, sizeof keys - 1);
    archive_number(to, 2, 8);
    archive_put(to, two, sizeof two);
    archive_number(to, (uint64_t)count, 8);
    archive_put(to, six, sizeof six);
}

static const char version_1001[] = "\x80\2M\xe9\3.";

static void test_older_form(void **state)
{
    (void)state;
    cot_torch_file file;
    cot_error error = {0};
    put_older(&a, version_1001, "\x88", 6);
    if (cot_torch_parse(&file, a.bytes, a.used, "f.pt", &error) != COT_OK) fail_msg("%s", error.message);
    const cot_torch_tensor *t = cot_torch_get_tensor(file.value, "t"),
                           *u = cot_torch_get_tensor(file.value, "u"),
                           *v = cot_torch_get_tensor(file.value, "v");
    assert_true(t && u && v && t->dims == 2 && t->dtype == COT_I32 && u->dtype == COT_F64);
    double n[5];
    for (int i = 0; i < 2; i++) assert_true(cot_torch_number(&n[i], u->dtype, u->data + 8 * i));
    for (int i = 0; i < 3; i++)
        assert_true(
            cot_torch_number(&n[2 + i], COT_I32, (i ? t : v)->data + 4 * (i == 2 ? t->stride[0] : 0)));
    assert_memory_equal(n, ((const double[]){0.5, -2, 5, 6, 9}), sizeof n);
    cot_torch_close(&file);
    put_older(&a, "\x80\2M\xe8\3.", "\x88", 6);
    assert_refused(cot_torch_parse(&file, a.bytes, a.used, "f.pt", &error), &error, "of another version");
    put_older(&a, version_1001, "\x89", 6);
    assert_refused(cot_torch_parse(&file, a.bytes, a.used, "f.pt", &error), &error, "big-endian");
    put_older(&a, version_1001, "\x88", 7);
    assert_refused(cot_torch_parse(&file, a.bytes, a.used, "f.pt", &error), &error, "ends within a storage");
    put_older(&a, version_1001, "\x88", 5); // fewer than the pickle says
    assert_refused(cot_torch_parse(&file, a.bytes, a.used, "f.pt", &error), &error, "there is more behind");
    put_older(&a, version_1001, "\x88", 6);
    archive_number(&a, 0, 1);
    assert_refused(cot_torch_parse(&file, a.bytes, a.used, "f.pt", &error), &error, "there is more behind");
}

/* Every way to cut the file short and to change one byte of it ends in values or a refusal. */
static void test_damage(void **state)
{
    scratch_pad *pad = *state;
    static const char pickle[] =
        "\x80\2}q\0(X\1\0\0\0t" TENSOR("K\0", "K\2K\3\x86", "K\3K\1\x86") "X\1\0\0\0l](K\1K\2eu.";
    static uint8_t copy[sizeof a.bytes];
    cot_torch_file file;
    for (int form = 0; form < 3; form++) {
        if (form < 2)
            archive_pickle(&a, pickle, sizeof pickle - 1, form);
        else
            put_older(&a, version_1001, "\x88", 6);
        for (size_t n = 0; n < a.used; n++) {
            uint8_t *exact = malloc(n ? n : 1); // so that a sanitizer sees a read past the end
            assert_non_null(exact);
            memcpy(exact, a.bytes, n);
            if (cot_torch_parse(&file, exact, n, "f.pt", NULL) == COT_OK) fail_msg("%zu bytes are taken", n);
            free(exact);
        }
        for (size_t i = 0; i < a.used; i++)
            for (int change = 0; change < 4; change++) {
                memcpy(copy, a.bytes, a.used);
                copy[i] = (uint8_t)(change < 2 ? (change ? 0xff : 0) : pad_draw(pad, 256));
                cot_error error = {0};
                cot_status status = cot_torch_parse(&file, copy, a.used, "f.pt", &error);
                if (status != COT_OK) assert_true(error.message[0] && error.status == status);
                cot_torch_close(&file);
            }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),  cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_numbers), cmocka_unit_test(test_hostile_pickles),
        cmocka_unit_test(test_deep),    cmocka_unit_test(test_archives),
        cmocka_unit_test(test_damage),  cmocka_unit_test(test_older_form),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
