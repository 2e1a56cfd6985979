#include "base/gguf.h"

#include "base/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    LONGEST_NAME = 63,
    LONGEST_KEY = 65535,
    MOST_DIMS = 4,
    LEAST_PAIR = 8 + 1 + 4 + 1,
    LEAST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8
};

/* Bytes of a value that has always as many; 0: a string, an array. */
static const uint8_t widths[COT_GGUF_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/* ---- reading in order, never beyond the end ---- */

typedef struct reader {
    const uint8_t *begin;
    size_t at, end;
    const char *path;
    cot_error *error;
} reader;

static size_t left(const reader *r)
{
    return r->end - r->at;
}

static uint64_t little(const uint8_t *data, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--) value = value << 8 | data[i];
    return value;
}

static cot_status cut_off(const reader *r, const char *what)
{
    return cot_fail(r->error, COT_MALFORMED, "'%s' ends inside %s, at byte %zu", r->path, what, r->end);
}

static cot_status read_number(reader *r, uint64_t *value, int bytes, const char *what)
{
    *value = 0;
    if (left(r) < (size_t)bytes) return cut_off(r, what);
    *value = little(r->begin + r->at, bytes);
    r->at += (size_t)bytes;
    return COT_OK;
}

static cot_status read_string(reader *r, cot_gguf_string *string, const char *what)
{
    uint64_t bytes;
    *string = (cot_gguf_string){0};
    cot_status status = read_number(r, &bytes, 8, what);
    if (status != COT_OK) return status;
    if (bytes > left(r))
        return cot_fail(r->error, COT_MALFORMED,
                        "'%s': %s at byte %zu is said to have %" PRIu64 " bytes, the file ends after %zu",
                        r->path, what, r->at - 8, bytes, left(r));
    *string = (cot_gguf_string){(const char *)r->begin + r->at, (size_t)bytes};
    r->at += (size_t)bytes;
    return COT_OK;
}

/* Whether it is UTF-8 without a NUL. */
static bool is_text(cot_gguf_string s)
{
    const uint8_t *at = (const uint8_t *)s.data, *const end = at + s.bytes;
    while (at < end) {
        const uint8_t lead = *at++;
        const int more = lead < 0x80   ? 0
                         : lead < 0xc2 ? -1
                         : lead < 0xe0 ? 1
                         : lead < 0xf0 ? 2
                         : lead < 0xf5 ? 3
                                       : -1;
        if (!lead || more < 0 || end - at < more) return false;
        for (int i = 0; i < more; i++) {
            const uint8_t low = !i && lead == 0xe0   ? 0xa0
                                : !i && lead == 0xf0 ? 0x90
                                                     : 0x80,
                          high = !i && lead == 0xed   ? 0x9f
                                 : !i && lead == 0xf4 ? 0x8f
                                                      : 0xbf;
            if (at[i] < low || at[i] > high) return false;
        }
        at += more;
    }
    return true;
}

/* A key or a name, copied to where `*room` points, with a NUL after it. */
static cot_status read_name(reader *r, const char **name, char **room, size_t longest, const char *what)
{
    cot_gguf_string s;
    cot_status status = read_string(r, &s, what);
    if (status != COT_OK) return status;
    if (!s.bytes)
        return cot_fail(r->error, COT_MALFORMED, "'%s': %s before byte %zu has no length", r->path, what,
                        r->at);
    if (s.bytes > longest)
        return cot_fail(r->error, COT_MALFORMED, "'%s': %s '%.40s...' has %zu bytes, at most %zu are read",
                        r->path, what, is_text(s) ? s.data : "?", s.bytes, longest);
    if (!is_text(s))
        return cot_fail(r->error, COT_MALFORMED, "'%s': %s before byte %zu is not UTF-8", r->path, what,
                        r->at);
    memcpy(*room, s.data, s.bytes);
    (*room)[s.bytes] = 0;
    *name = *room;
    *room += s.bytes + 1;
    return COT_OK;
}

/* ---- metadata ---- */

static cot_status read_value(reader *r, cot_gguf_pair *pair)
{
    char what[96];
    uint64_t type, count = 1;
    snprintf(what, sizeof what, "the value of '%.60s'", pair->key);
    cot_status status = read_number(r, &type, 4, what);
    if (status == COT_OK && type == COT_GGUF_ARRAY) {
        pair->array = true;
        status = read_number(r, &type, 4, what);
        if (status == COT_OK) status = read_number(r, &count, 8, what);
        if (status == COT_OK && type == COT_GGUF_ARRAY)
            return cot_fail(r->error, COT_UNSUPPORTED, "'%s': %s is an array of arrays, which is not read",
                            r->path, what);
    }
    if (status != COT_OK) return status;
    if (type >= COT_GGUF_TYPES)
        return cot_fail(r->error, COT_MALFORMED, "'%s': %s is of unknown type %" PRIu64, r->path, what, type);
    pair->type = (cot_gguf_type)type;
    const size_t least = widths[type] ? widths[type] : 8;
    if (count > left(r) / least)
        return cot_fail(r->error, COT_MALFORMED,
                        "'%s': %s is said to have %" PRIu64 " elements, the file ends after %zu bytes",
                        r->path, what, count, left(r));
    pair->count = (size_t)count;
    pair->data = r->begin + r->at;
    if (widths[type]) {
        r->at += pair->count * widths[type];
        return COT_OK;
    }
    cot_gguf_string s;
    for (size_t i = 0; i < pair->count && status == COT_OK; i++) status = read_string(r, &s, what);
    return status;
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const cot_gguf_pair *)a)->key, ((const cot_gguf_pair *)b)->key);
}

static cot_status read_pairs(cot_gguf *file, reader *r, size_t count, char **room)
{
    if (!(file->pairs = calloc(count + 1, sizeof *file->pairs)))
        return cot_fail(r->error, COT_OUT_OF_MEMORY, "'%s': out of memory", r->path);
    for (size_t i = 0; i < count; i++) {
        cot_gguf_pair *pair = &file->pairs[i];
        cot_status status = read_name(r, &pair->key, room, LONGEST_KEY, "a key");
        if (status == COT_OK) status = read_value(r, pair);
        if (status != COT_OK) return status;
    }
    file->pair_count = count;
    if (count) qsort(file->pairs, count, sizeof *file->pairs, by_key);
    for (size_t i = 1; i < count; i++)
        if (!by_key(&file->pairs[i - 1], &file->pairs[i]))
            return cot_fail(r->error, COT_MALFORMED, "'%s' has '%.100s' twice", r->path, file->pairs[i].key);
    return COT_OK;
}

static cot_status find_alignment(const cot_gguf *file, const reader *r, uint64_t *alignment)
{
    const cot_gguf_pair *pair = cot_gguf_find(file, "general.alignment");
    *alignment = 32;
    if (!pair) return COT_OK;
    const bool whole = !pair->array && pair->type == COT_GGUF_U32;
    *alignment = whole ? little(pair->data, 4) : 0;
    if (*alignment && !(*alignment & (*alignment - 1))) return COT_OK;
    if (whole)
        return cot_fail(r->error, COT_MALFORMED,
                        "'%s': general.alignment is %" PRIu64 ", expected a power of two", r->path,
                        *alignment);
    return cot_fail(r->error, COT_MALFORMED, "'%s': general.alignment is no whole number of 32 bits",
                    r->path);
}

/* ---- tensors ---- */

static const struct {
    uint32_t number;
    cot_dtype dtype;
} plain_types[] = {{0, COT_F32},  {1, COT_F16},  {24, COT_I8},  {25, COT_I16},
                   {26, COT_I32}, {27, COT_I64}, {28, COT_F64}, {30, COT_BF16}};

static const uint32_t block_numbers[COT_BLOCKS_COUNT] = {UINT32_MAX,
#define COT_BLOCK_NUMBER(name, number, elements, bytes) number,
                                                         COT_BLOCK_LIST(COT_BLOCK_NUMBER)
#undef COT_BLOCK_NUMBER
};

/* False: there is no such type. */
static bool find_type(cot_tensor *t, uint64_t number)
{
    for (size_t i = 0; i < sizeof plain_types / sizeof *plain_types; i++)
        if (number == plain_types[i].number) {
            t->dtype = plain_types[i].dtype;
            return true;
        }
    t->dtype = COT_U8;
    for (int b = 1; b < COT_BLOCKS_COUNT; b++)
        if (number == block_numbers[b]) {
            t->blocks = (cot_tensor_blocks)b;
            return true;
        }
    return false;
}

static cot_status find_bytes(cot_tensor *t, const reader *r)
{
    const int64_t row = t->shape[t->dims - 1], elements = cot_tensor_block_elements(t->blocks);
    uint64_t bytes = t->blocks ? (uint64_t)cot_tensor_block_bytes(t->blocks) : cot_dtype_bytes(t->dtype);
    if (row % elements)
        return cot_fail(r->error, COT_MALFORMED,
                        "'%s': tensor '%s' has rows of %" PRId64
                        " elements, which are no whole blocks of %s, %" PRId64 " elements each",
                        r->path, t->name, row, cot_tensor_type_name(t), elements);
    uint64_t all = (uint64_t)(row / elements), shape = (uint64_t)row;
    bool over = __builtin_mul_overflow(bytes, all, &bytes);
    for (int d = 0; d + 1 < t->dims; d++) {
        over |= __builtin_mul_overflow(bytes, (uint64_t)t->shape[d], &bytes);
        over |= __builtin_mul_overflow(shape, (uint64_t)t->shape[d], &shape);
    }
    if (over || bytes > INT64_MAX || shape > INT64_MAX)
        return cot_fail(r->error, COT_MALFORMED, "'%s': shape of tensor '%s' overflows", r->path, t->name);
    t->bytes = (size_t)bytes;
    return COT_OK;
}

/* `offset` from the begin of data, which is not known yet. */
static cot_status read_tensor(reader *r, cot_tensor *t, uint64_t *offset, char **room)
{
    char what[96];
    uint64_t dims, type, size;
    cot_status status = read_name(r, &t->name, room, LONGEST_NAME, "a tensor's name");
    if (status != COT_OK) return status;
    snprintf(what, sizeof what, "the entry of tensor '%s'", t->name);
    if ((status = read_number(r, &dims, 4, what)) != COT_OK) return status;
    if (dims < 1 || dims > MOST_DIMS)
        return cot_fail(r->error, COT_MALFORMED,
                        "'%s': tensor '%s' has %" PRIu64 " dimensions, expected 1 to %d", r->path, t->name,
                        dims, MOST_DIMS);
    t->dims = (int)dims;
    for (int d = t->dims - 1; d >= 0; d--) {
        if ((status = read_number(r, &size, 8, what)) != COT_OK) return status;
        if (!size || size > INT64_MAX)
            return cot_fail(r->error, COT_MALFORMED, "'%s': tensor '%s' has a dimension of %" PRId64, r->path,
                            t->name, (int64_t)size);
        t->shape[d] = (int64_t)size;
    }
    status = read_number(r, &type, 4, what);
    if (status == COT_OK) status = read_number(r, offset, 8, what);
    if (status != COT_OK) return status;
    if (!find_type(t, type))
        return cot_fail(r->error, COT_UNSUPPORTED, "'%s': tensor '%s' is of unknown type %" PRIu64, r->path,
                        t->name, type);
    return find_bytes(t, r);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const cot_tensor *)a)->name, ((const cot_tensor *)b)->name);
}

static int by_place(const void *a, const void *b)
{
    const uintptr_t p = (uintptr_t)((const cot_tensor *)a)->data,
                    q = (uintptr_t)((const cot_tensor *)b)->data;
    return p < q ? -1 : p > q;
}

static cot_status place_tensor(const reader *r, cot_tensor *t, size_t data, uint64_t offset,
                               uint64_t alignment)
{
    if (offset % alignment)
        return cot_fail(r->error, COT_MALFORMED,
                        "'%s': tensor '%s' lies at %" PRIu64 ", no multiple of the alignment, %" PRIu64,
                        r->path, t->name, offset, alignment);
    if (data > r->end || offset > r->end - data || t->bytes > r->end - data - offset)
        return cot_fail(r->error, COT_MALFORMED,
                        "'%s': tensor '%s' of %zu bytes lies at %" PRIu64
                        " behind byte %zu of a file of %zu (cut off?)",
                        r->path, t->name, t->bytes, offset, data, r->end);
    t->data = r->begin + data + offset;
    return COT_OK;
}

static cot_status check_tensors(cot_gguf *file, const reader *r)
{
    cot_tensor *t = file->tensors;
    if (!file->count) return COT_OK;
    qsort(t, file->count, sizeof *t, by_name);
    for (size_t i = 1; i < file->count; i++)
        if (!by_name(&t[i - 1], &t[i]))
            return cot_fail(r->error, COT_MALFORMED, "'%s' has tensor '%s' twice", r->path, t[i].name);
    qsort(t, file->count, sizeof *t, by_place);
    for (size_t i = 1; i < file->count; i++)
        if ((const uint8_t *)t[i].data < (const uint8_t *)t[i - 1].data + t[i - 1].bytes)
            return cot_fail(r->error, COT_MALFORMED, "'%s': tensors '%s' and '%s' overlap", r->path,
                            t[i - 1].name, t[i].name);
    qsort(t, file->count, sizeof *t, by_name);
    return COT_OK;
}

static cot_status read_tensors(cot_gguf *file, reader *r, size_t count, char **room)
{
    uint64_t alignment, *offsets = malloc((count + 1) * sizeof *offsets);
    cot_status status = COT_OK;
    if (!(file->tensors = calloc(count + 1, sizeof *file->tensors)) || !offsets)
        status = cot_fail(r->error, COT_OUT_OF_MEMORY, "'%s': out of memory", r->path);
    for (size_t i = 0; i < count && status == COT_OK; i++)
        status = read_tensor(r, &file->tensors[i], &offsets[i], room);
    if (status == COT_OK) status = find_alignment(file, r, &alignment);
    for (size_t i = 0; i < count && status == COT_OK; i++) {
        const size_t data = (size_t)((r->at + alignment - 1) / alignment * alignment);
        status = place_tensor(r, &file->tensors[i], data, offsets[i], alignment);
    }
    free(offsets);
    file->count = count;
    return status == COT_OK ? check_tensors(file, r) : status;
}

/* ---- the file ---- */

bool cot_gguf_is(const void *data, size_t bytes)
{
    return bytes >= 4 && !memcmp(data, "GGUF", 4);
}

bool cot_gguf_is_file(const char *path)
{
    cot_file_map map;
    char first[4];
    if (cot_file_map_open(&map, path, NULL) != COT_OK) return false;
    const bool is = cot_path_ends(path, ".gguf") ||
                    (cot_file_map_read(&map, first, 0, sizeof first) && cot_gguf_is(first, sizeof first));
    cot_file_map_close(&map);
    return is;
}

static cot_status read_header(reader *r, uint64_t *tensors, uint64_t *pairs)
{
    uint64_t version;
    if (!cot_gguf_is(r->begin, r->end))
        return cot_fail(r->error, COT_MALFORMED, "'%s' is no GGUF file: it does not begin with GGUF",
                        r->path);
    r->at = 4;
    cot_status status = read_number(r, &version, 4, "its version");
    if (status == COT_OK && version && !(version & 0xffff))
        return cot_fail(r->error, COT_UNSUPPORTED, "'%s' is a big-endian GGUF file, which is not read",
                        r->path);
    if (status == COT_OK && version != 2 && version != 3)
        return cot_fail(r->error, COT_UNSUPPORTED, "'%s' is GGUF of version %" PRIu64 ", 2 and 3 are read",
                        r->path, version);
    if (status == COT_OK) status = read_number(r, tensors, 8, "the number of tensors");
    if (status == COT_OK) status = read_number(r, pairs, 8, "the number of metadata pairs");
    if (status != COT_OK) return status;
    if (*pairs > left(r) / LEAST_PAIR || *tensors > left(r) / LEAST_TENSOR)
        return cot_fail(r->error, COT_MALFORMED,
                        "'%s' is said to have %" PRIu64 " tensors and %" PRIu64
                        " metadata pairs, more than its %zu bytes hold",
                        r->path, *tensors, *pairs, r->end);
    return COT_OK;
}

cot_status cot_gguf_parse(cot_gguf *file, const void *data, size_t bytes, const char *path, cot_error *error)
{
    reader r = {data, 0, bytes, path, error};
    uint64_t tensors = 0, pairs = 0;
    *file = (cot_gguf){0};
    cot_status status = read_header(&r, &tensors, &pairs);
    if (status != COT_OK) return status;
    reader sizes = r; // a first walk sums up the keys' lengths; where it ends early the second tells why
    sizes.error = NULL;
    size_t room = 0;
    for (uint64_t i = 0; i < pairs; i++) {
        cot_gguf_string key;
        cot_gguf_pair pair = {.key = ""};
        if (read_string(&sizes, &key, "") != COT_OK) break;
        room += key.bytes + 1;
        if (read_value(&sizes, &pair) != COT_OK) break;
    }
    if (!(file->names = malloc(room + tensors * (LONGEST_NAME + 1) + 1)))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "'%s': out of memory", path);
    char *names = file->names;
    if (status == COT_OK) status = read_pairs(file, &r, (size_t)pairs, &names);
    if (status == COT_OK) status = read_tensors(file, &r, (size_t)tensors, &names);
    if (status != COT_OK) cot_gguf_close(file);
    return status;
}

cot_status cot_gguf_open(cot_gguf *file, const char *path, cot_error *error)
{
    cot_file_map map;
    *file = (cot_gguf){0};
    cot_status status = cot_file_map_open(&map, path, error);
    if (status != COT_OK) return status;
    status = cot_gguf_parse(file, map.data, map.bytes, path, error);
    if (status == COT_OK)
        file->map = map;
    else
        cot_file_map_close(&map);
    return status;
}

void cot_gguf_close(cot_gguf *file)
{
    free(file->tensors);
    free(file->pairs);
    free(file->names);
    cot_file_map_close(&file->map);
    *file = (cot_gguf){0};
}

/* ---- values ---- */

const cot_gguf_pair *cot_gguf_find(const cot_gguf *file, const char *key)
{
    const cot_gguf_pair wanted = {.key = key};
    if (!file->pair_count) return NULL;
    return bsearch(&wanted, file->pairs, file->pair_count, sizeof *file->pairs, by_key);
}

cot_gguf_string cot_gguf_next_string(const cot_gguf_pair *pair, const uint8_t **at)
{
    if (!*at) *at = pair->data;
    const cot_gguf_string s = {(const char *)*at + 8, (size_t)little(*at, 8)};
    *at += 8 + s.bytes;
    return s;
}

static int64_t signed_of(uint64_t value, int bytes)
{
    const int shift = 64 - 8 * bytes;
    return (int64_t)(value << shift) >> shift;
}

static double real_of(uint64_t bits, cot_gguf_type type)
{
    if (type == COT_GGUF_F32) {
        const uint32_t narrow = (uint32_t)bits;
        float value;
        memcpy(&value, &narrow, sizeof value);
        return (double)value;
    }
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static bool is_signed(cot_gguf_type type)
{
    return type == COT_GGUF_I8 || type == COT_GGUF_I16 || type == COT_GGUF_I32 || type == COT_GGUF_I64;
}

double cot_gguf_number(const cot_gguf_pair *pair, size_t i)
{
    const int width = widths[pair->type];
    if (!width) return 0;
    const uint64_t bits = little(pair->data + i * (size_t)width, width);
    if (pair->type == COT_GGUF_F32 || pair->type == COT_GGUF_F64) return real_of(bits, pair->type);
    return is_signed(pair->type) ? (double)signed_of(bits, width) : (double)bits;
}

static json_t *json_of(cot_gguf_type type, const uint8_t *data)
{
    const uint64_t bits = little(data, widths[type]);
    if (type == COT_GGUF_BOOL) return json_boolean(bits != 0);
    if (type == COT_GGUF_F32 || type == COT_GGUF_F64)
        return json_real(real_of(bits, type)); // NULL: no number
    if (is_signed(type)) return json_integer(signed_of(bits, widths[type]));
    return bits > INT64_MAX ? NULL : json_integer((json_int_t)bits);
}

json_t *cot_gguf_json(const cot_gguf_pair *pair)
{
    json_t *list = pair->array ? json_array() : NULL, *item = NULL;
    const uint8_t *at = NULL;
    for (size_t i = 0; i < pair->count; i++) {
        if (pair->type == COT_GGUF_STRING) {
            const cot_gguf_string s = cot_gguf_next_string(pair, &at);
            item = json_stringn(s.data, s.bytes);
        } else {
            item = json_of(pair->type, pair->data + i * widths[pair->type]);
        }
        if (pair->array && (!item || json_array_append_new(list, item))) {
            json_decref(list);
            return NULL;
        }
    }
    return pair->array ? list : item;
}
