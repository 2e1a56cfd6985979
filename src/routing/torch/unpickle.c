/* The stack machine of Python's pickle protocol 2 (the docstrings of pickletools say what each opcode does), as far as
 * torch.save of dicts, lists, numbers, texts and tensors uses it. A pickle may name any Python object and call it: here
 * the names are a short list, and the only calls are those that make a tensor or an empty dict, both done in C. Every
 * opcode makes at most one value, so memory is bounded by the pickle's length; nothing recurses. */
#include "routing/torch/value.h"

#include "base/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* A storage's dtype, or what a call of the name makes. */
enum { REBUILD_TENSOR = COT_DTYPE_COUNT, ORDERED_DICT };

static const struct known {
    const char *module, *name;
    int global;
} known[] = {
    {"torch", "BoolStorage", COT_BOOL},
    {"torch", "ByteStorage", COT_U8},
    {"torch", "CharStorage", COT_I8},
    {"torch", "ShortStorage", COT_I16},
    {"torch", "IntStorage", COT_I32},
    {"torch", "LongStorage", COT_I64},
    {"torch", "HalfStorage", COT_F16},
    {"torch", "BFloat16Storage", COT_BF16},
    {"torch", "FloatStorage", COT_F32},
    {"torch", "DoubleStorage", COT_F64},
    {"torch._utils", "_rebuild_tensor_v2", REBUILD_TENSOR},
    {"collections", "OrderedDict", ORDERED_DICT},
};

typedef struct machine {
    const uint8_t *data;
    size_t at, bytes;
    cot_torch_value **stack, **memo;
    size_t depth, stack_room, memos, memo_room;
    size_t *marks; // depths at which marks lie
    size_t n_marks, marks_room;
    cot_torch_memory *memory;
    const cot_zip *zip;
    const char *folder, *path;
    size_t folder_bytes;
    cot_error *error;
} machine;

static cot_status broken(const machine *m, const char *what)
{
    return cot_fail(m->error, COT_MALFORMED, "'%s': broken pickle at byte %zu: %s", m->path, m->at, what);
}

static cot_status no_memory(const machine *m)
{
    return cot_fail(m->error, COT_OUT_OF_MEMORY, "cannot read '%s': out of memory", m->path);
}

/* Makes room for one more element in a growing array. */
static bool grow(void *array, size_t count, size_t *room, size_t size)
{
    void **pointer = array;
    if (count < *room) return true;
    size_t wanted = *room ? 2 * *room : 64;
    void *larger = realloc(*pointer, wanted * size);
    if (!larger) return false;
    *pointer = larger;
    *room = wanted;
    return true;
}

/* The next `bytes` of the pickle, or NULL after a message. */
static const uint8_t *next(machine *m, size_t bytes)
{
    if (bytes > m->bytes - m->at) {
        broken(m, "it ends within an opcode");
        return NULL;
    }
    const uint8_t *at = m->data + m->at;
    m->at += bytes;
    return at;
}

static cot_status push(machine *m, cot_torch_value *value)
{
    if (!value || !grow(&m->stack, m->depth, &m->stack_room, sizeof(void *))) return no_memory(m);
    m->stack[m->depth++] = value;
    return COT_OK;
}

static cot_torch_value *make(machine *m, cot_torch_kind kind)
{
    cot_torch_value *value = cot_torch_take(m->memory, sizeof *value);
    if (value) value->kind = kind;
    return value;
}

static cot_status push_kind(machine *m, cot_torch_kind kind)
{
    return push(m, make(m, kind));
}

static cot_status push_integer(machine *m, cot_torch_kind kind, int64_t n)
{
    cot_torch_value *value = make(m, kind);
    if (value) value->integer = n;
    return push(m, value);
}

/* How many values lie above the last mark, or above the bottom where there is none. */
static size_t above(const machine *m)
{
    return m->depth - (m->n_marks ? m->marks[m->n_marks - 1] : 0);
}

/* Replaces the top `count` values by a tuple of them. */
static cot_status make_tuple(machine *m, size_t count)
{
    if (count > above(m)) return broken(m, "a tuple of values that are not there");
    cot_torch_value *tuple = make(m, COT_TORCH_TUPLE);
    if (!tuple || !(tuple->list.items = cot_torch_take(m->memory, count * sizeof(void *))))
        return no_memory(m);
    m->depth -= count;
    if (count) memcpy(tuple->list.items, m->stack + m->depth, count * sizeof(void *));
    tuple->list.count = tuple->list.room = (uint32_t)count;
    return push(m, tuple);
}

static cot_status set_mark(machine *m)
{
    if (!grow(&m->marks, m->n_marks, &m->marks_room, sizeof *m->marks)) return no_memory(m);
    m->marks[m->n_marks++] = m->depth;
    return COT_OK;
}

/* Moves the top `count` values to the end of the list or dict below them. */
static cot_status extend(machine *m, cot_torch_kind kind, size_t count)
{
    if (count >= above(m)) return broken(m, "values for a container that is not there");
    cot_torch_value *to = m->stack[m->depth - count - 1];
    if (to->kind != kind || (kind == COT_TORCH_DICT && count % 2))
        return broken(m, "values for a wrong container");
    if (count > UINT32_MAX / 4 || to->list.count > UINT32_MAX / 4)
        return broken(m, "a container that is too long");
    if (to->list.count + count > to->list.room) {
        size_t room = 2 * (to->list.count + count);
        void *items = cot_torch_take(m->memory, room * sizeof(void *));
        if (!items) return no_memory(m);
        if (to->list.count) memcpy(items, to->list.items, to->list.count * sizeof(void *));
        to->list.items = items;
        to->list.room = (uint32_t)room;
    }
    m->depth -= count;
    if (count) memcpy(to->list.items + to->list.count, m->stack + m->depth, count * sizeof(void *));
    to->list.count += (uint32_t)count;
    return COT_OK;
}

/* The same with all values above the mark, which goes. */
static cot_status extend_to_mark(machine *m, cot_torch_kind kind)
{
    if (!m->n_marks) return broken(m, "no mark");
    size_t count = above(m);
    m->n_marks--;
    return extend(m, kind, count);
}

/* The text of `length` bytes that comes next. */
static cot_status push_text(machine *m, size_t length)
{
    const uint8_t *at = next(m, length);
    if (!at) return COT_MALFORMED;
    cot_torch_value *value = make(m, COT_TORCH_TEXT);
    if (value) {
        value->text.at = (const char *)at;
        value->text.bytes = length;
    }
    return push(m, value);
}

static cot_status push_real(machine *m)
{
    const uint8_t *at = next(m, 8);
    uint64_t bits = 0;
    if (!at) return COT_MALFORMED;
    for (int i = 0; i < 8; i++) bits = bits << 8 | at[i]; // the one big-endian number of the format
    cot_torch_value *value = make(m, COT_TORCH_REAL);
    if (value) memcpy(&value->real, &bits, 8);
    return push(m, value);
}

/* A little-endian two's complement number of `bytes` bytes; those that do not fit 64 bits are refused. */
static cot_status push_long(machine *m, size_t bytes)
{
    const uint8_t *at = next(m, bytes);
    uint64_t bits = 0;
    if (!at) return COT_MALFORMED;
    if (bytes > 8)
        return cot_fail(m->error, COT_UNSUPPORTED,
                        "'%s': a number of %zu bytes in the pickle, expected at most 8", m->path, bytes);
    if (bytes && at[bytes - 1] & 0x80) bits = ~(uint64_t)0;
    for (size_t i = bytes; i-- > 0;) bits = bits << 8 | at[i];
    int64_t n;
    memcpy(&n, &bits, 8);
    return push_integer(m, COT_TORCH_INTEGER, n);
}

/* An unsigned number of `bytes` bytes in the pickle itself. */
static bool operand(machine *m, int bytes, uint64_t *n)
{
    const uint8_t *at = next(m, (size_t)bytes);
    *n = 0;
    for (int i = bytes; at && i-- > 0;) *n = *n << 8 | at[i];
    return at != NULL;
}

/* A line of text, without its end. */
static const char *line(machine *m, size_t *length)
{
    const uint8_t *at = m->data + m->at, *end = memchr(at, '\n', m->bytes - m->at);
    if (!end) {
        broken(m, "a name without an end");
        return NULL;
    }
    *length = (size_t)(end - at);
    m->at += *length + 1;
    return (const char *)at;
}

static cot_status push_global(machine *m)
{
    size_t module_bytes, name_bytes = 0;
    const char *module = line(m, &module_bytes), *name = module ? line(m, &name_bytes) : NULL;
    if (!name) return COT_MALFORMED;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i].module) == module_bytes && !memcmp(known[i].module, module, module_bytes) &&
            strlen(known[i].name) == name_bytes && !memcmp(known[i].name, name, name_bytes)) {
            cot_torch_value *value = make(m, COT_TORCH_GLOBAL);
            if (value) value->global = known[i].global;
            return push(m, value);
        }
    return cot_fail(m->error, COT_UNSUPPORTED,
                    "'%s': the pickle names '%.*s.%.*s', which no recording needs: nothing of it is run",
                    m->path, module_bytes < 60 ? (int)module_bytes : 60, module,
                    name_bytes < 60 ? (int)name_bytes : 60, name);
}

static const cot_torch_value *item(const cot_torch_value *tuple, uint32_t i, cot_torch_kind kind)
{
    if (tuple->kind != COT_TORCH_TUPLE || i >= tuple->list.count || tuple->list.items[i]->kind != kind)
        return NULL;
    return tuple->list.items[i];
}

/* ('storage', torch.XStorage, KEY, device, elements) -> the storage's bytes in the archive */
static cot_status load_storage(machine *m)
{
    if (!above(m)) return broken(m, "a persistent id that is not there");
    const cot_torch_value *id = m->stack[--m->depth];
    const cot_torch_value *type = item(id, 1, COT_TORCH_GLOBAL), *key = item(id, 2, COT_TORCH_TEXT);
    const cot_torch_value *count = item(id, 4, COT_TORCH_INTEGER);
    if (!type || !key || !count || type->global >= COT_DTYPE_COUNT)
        return broken(m, "a persistent id of no storage");
    char name[64];
    int length = snprintf(name, sizeof name, "data/%.*s", key->text.bytes < 50 ? (int)key->text.bytes : 50,
                          key->text.at);
    const cot_zip_member *member = cot_zip_find(m->zip, m->folder, m->folder_bytes, name, (size_t)length);
    if (!member)
        return cot_fail(m->error, COT_MALFORMED, "'%s': the archive lacks storage '%s'", m->path, name);
    cot_torch_value *storage = make(m, COT_TORCH_STORAGE);
    if (!storage) return no_memory(m);
    storage->storage.dtype = (cot_dtype)type->global;
    storage->storage.data = member->data;
    storage->storage.count = member->bytes / cot_dtype_bytes(storage->storage.dtype);
    if (count->integer < 0 || (uint64_t)count->integer > storage->storage.count)
        return cot_fail(m->error, COT_MALFORMED,
                        "'%s': storage '%s' has %zu elements, the pickle says %" PRId64, m->path, name,
                        storage->storage.count, count->integer);
    storage->storage.count = (size_t)count->integer;
    return push(m, storage);
}

/* (storage, offset, shape, stride, ...) -> the tensor */
static cot_status rebuild_tensor(machine *m, const cot_torch_value *args, cot_torch_value **made)
{
    const cot_torch_value *storage = item(args, 0, COT_TORCH_STORAGE),
                          *offset = item(args, 1, COT_TORCH_INTEGER);
    const cot_torch_value *shape = item(args, 2, COT_TORCH_TUPLE), *stride = item(args, 3, COT_TORCH_TUPLE);
    if (!storage || !offset || !shape || !stride || shape->list.count != stride->list.count)
        return broken(m, "a tensor of wrong arguments");
    if (shape->list.count > COT_TORCH_MAX_DIMS)
        return cot_fail(m->error, COT_UNSUPPORTED,
                        "'%s': a tensor of %" PRIu32 " dimensions, at most %d are supported", m->path,
                        shape->list.count, COT_TORCH_MAX_DIMS);
    cot_torch_tensor *tensor = cot_torch_take(m->memory, sizeof *tensor);
    *made = make(m, COT_TORCH_TENSOR);
    if (!tensor || !*made) return no_memory(m);
    (*made)->tensor = tensor;
    tensor->dtype = storage->storage.dtype;
    tensor->dims = (int)shape->list.count;
    int64_t last = offset->integer, elements = 1; // the last element's place in the storage
    bool empty = false, good = last >= 0;
    for (int d = 0; good && d < tensor->dims; d++) {
        const cot_torch_value *n = item(shape, (uint32_t)d, COT_TORCH_INTEGER);
        const cot_torch_value *step = item(stride, (uint32_t)d, COT_TORCH_INTEGER);
        int64_t way;
        good = n && step && n->integer >= 0 && step->integer >= 0;
        if (!good) break;
        empty |= !n->integer;
        tensor->shape[d] = n->integer;
        tensor->stride[d] = step->integer;
        if (n->integer)
            good = !__builtin_mul_overflow(n->integer - 1, step->integer, &way) &&
                   !__builtin_add_overflow(last, way, &last) &&
                   !__builtin_mul_overflow(elements, n->integer, &elements);
    }
    if (!good || (!empty && (uint64_t)last >= storage->storage.count))
        return broken(m, "a tensor beyond its storage");
    // a view that repeats its storage could have any number of elements
    if (!empty && (uint64_t)elements > storage->storage.count)
        return cot_fail(m->error, COT_UNSUPPORTED, "'%s': a tensor that repeats elements of its storage", m->path);
    tensor->data =
        storage->storage.data + (empty ? 0 : (size_t)offset->integer * cot_dtype_bytes(tensor->dtype));
    return COT_OK;
}

static cot_status reduce(machine *m)
{
    if (above(m) < 2) return broken(m, "a call without its arguments");
    const cot_torch_value *args = m->stack[m->depth - 1], *callee = m->stack[m->depth - 2];
    cot_torch_value *made = NULL;
    cot_status status = COT_OK;
    if (callee->kind != COT_TORCH_GLOBAL || args->kind != COT_TORCH_TUPLE)
        return broken(m, "a call of no function");
    if (callee->global == REBUILD_TENSOR)
        status = rebuild_tensor(m, args, &made);
    else if (callee->global == ORDERED_DICT && !args->list.count)
        made = make(m, COT_TORCH_DICT);
    else
        return broken(m, "a call that makes neither a tensor nor an empty dict");
    if (status != COT_OK) return status;
    m->depth -= 2;
    return push(m, made);
}

static cot_status memorise(machine *m, uint64_t i)
{
    if (!above(m)) return broken(m, "nothing to memorise");
    if (i > m->memos) return broken(m, "the memo skips a place");
    if (i == m->memos) {
        if (!grow(&m->memo, m->memos, &m->memo_room, sizeof(void *))) return no_memory(m);
        m->memos++;
    }
    m->memo[i] = m->stack[m->depth - 1];
    return COT_OK;
}

static cot_status recall(machine *m, uint64_t i)
{
    if (i >= m->memos) return broken(m, "the memo has no such place");
    return push(m, m->memo[i]);
}

/* Runs one opcode other than STOP. */
static cot_status step(machine *m, uint8_t opcode)
{
    uint64_t n;
    switch (opcode) {
    case 0x80: // PROTO
        if (!operand(m, 1, &n)) return COT_MALFORMED;
        if (n == 2) return COT_OK;
        return cot_fail(m->error, COT_UNSUPPORTED, "'%s': pickle protocol %" PRIu64 ", expected 2", m->path,
                        n);
    case 'N':
        return push_kind(m, COT_TORCH_NONE);
    case 0x88:
        return push_integer(m, COT_TORCH_BOOL, 1);
    case 0x89:
        return push_integer(m, COT_TORCH_BOOL, 0);
    case 'K':
        return operand(m, 1, &n) ? push_integer(m, COT_TORCH_INTEGER, (int64_t)n) : COT_MALFORMED;
    case 'M':
        return operand(m, 2, &n) ? push_integer(m, COT_TORCH_INTEGER, (int64_t)n) : COT_MALFORMED;
    case 'J':
        return push_long(m, 4);
    case 0x8a:
        return operand(m, 1, &n) ? push_long(m, n) : COT_MALFORMED;
    case 'G':
        return push_real(m);
    case 'X':
        return operand(m, 4, &n) ? push_text(m, n) : COT_MALFORMED;
    case ')':
        return make_tuple(m, 0);
    case 0x85:
        return make_tuple(m, 1);
    case 0x86:
        return make_tuple(m, 2);
    case 0x87:
        return make_tuple(m, 3);
    case 't': // TUPLE, of all above the mark
        if (!m->n_marks) return broken(m, "no mark");
        n = above(m);
        m->n_marks--;
        return make_tuple(m, n);
    case ']':
        return push_kind(m, COT_TORCH_LIST);
    case '}':
        return push_kind(m, COT_TORCH_DICT);
    case 'a':
        return extend(m, COT_TORCH_LIST, 1);
    case 's':
        return extend(m, COT_TORCH_DICT, 2);
    case 'e':
        return extend_to_mark(m, COT_TORCH_LIST);
    case 'u':
        return extend_to_mark(m, COT_TORCH_DICT);
    case '(':
        return set_mark(m);
    case 'q':
        return operand(m, 1, &n) ? memorise(m, n) : COT_MALFORMED;
    case 'r':
        return operand(m, 4, &n) ? memorise(m, n) : COT_MALFORMED;
    case 'h':
        return operand(m, 1, &n) ? recall(m, n) : COT_MALFORMED;
    case 'j':
        return operand(m, 4, &n) ? recall(m, n) : COT_MALFORMED;
    case 'c':
        return push_global(m);
    case 'Q':
        return load_storage(m);
    case 'R':
        return reduce(m);
    default:
        return cot_fail(m->error, COT_UNSUPPORTED,
                        "'%s': opcode 0x%02x in the pickle, which no recording needs", m->path, opcode);
    }
}

cot_status cot_torch_unpickle(const cot_torch_value **value, cot_torch_memory *memory, const uint8_t *data,
                              size_t bytes, const cot_zip *zip, const char *folder, size_t folder_bytes,
                              const char *path, cot_error *error)
{
    machine m = {.data = data,
                 .bytes = bytes,
                 .memory = memory,
                 .zip = zip,
                 .folder = folder,
                 .folder_bytes = folder_bytes,
                 .path = path,
                 .error = error};
    cot_status status = COT_OK;
    bool done = false;
    while (status == COT_OK && !done) {
        const uint8_t *opcode = next(&m, 1);
        if (!opcode)
            status = COT_MALFORMED;
        else if (!(done = *opcode == '.'))
            status = step(&m, *opcode);
    }
    if (status == COT_OK && (m.depth != 1 || m.n_marks))
        status = broken(&m, "it ends with more or less than one value");
    if (status == COT_OK) *value = m.stack[0];
    free(m.stack);
    free(m.memo);
    free(m.marks);
    return status;
}
