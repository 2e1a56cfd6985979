/* The stack machine of Python's pickle protocol 2 (the docstrings of pickletools say what each opcode does), as far as
 * torch.save of dicts, lists, numbers, texts and tensors uses it. A pickle may name any Python object and call it: here
 * the names are a short list, and the only calls are those that make a tensor or an empty dict, both done in C. Every
 * opcode makes at most one value, so memory is bounded by the pickle's length; nothing recurses. */
#include "routing/torch/machine.h"

#include "base/error.h"

#include <inttypes.h>
#include <stdlib.h>

cot_status cot_pickle_broken(const cot_pickle_machine *m, const char *what)
{
    return cot_fail(m->error, COT_MALFORMED, "'%s': broken pickle at byte %zu: %s", m->path, m->at, what);
}

cot_status cot_pickle_no_memory(const cot_pickle_machine *m)
{
    return cot_fail(m->error, COT_OUT_OF_MEMORY, "cannot read '%s': out of memory", m->path);
}

/* A growing array with room for one more element; NULL when out of memory, and the array is as it was. */
static void *grow(void *array, size_t count, size_t *room, size_t size)
{
    if (count < *room) return array;
    size_t wanted = *room ? 2 * *room : 64;
    void *larger = realloc(array, wanted * size);
    if (larger) *room = wanted;
    return larger;
}

/* The next `bytes` of the pickle, or NULL after a message. */
static const uint8_t *next(cot_pickle_machine *m, size_t bytes)
{
    if (bytes > m->bytes - m->at) {
        cot_pickle_broken(m, "it ends within an opcode");
        return NULL;
    }
    const uint8_t *at = m->data + m->at;
    m->at += bytes;
    return at;
}

cot_status cot_pickle_push(cot_pickle_machine *m, cot_torch_value *value)
{
    cot_torch_value **stack = value ? grow(m->stack, m->depth, &m->stack_room, sizeof *stack) : NULL;
    if (!stack) return cot_pickle_no_memory(m);
    m->stack = stack;
    m->stack[m->depth++] = value;
    return COT_OK;
}

cot_torch_value *cot_pickle_make(const cot_pickle_machine *m, cot_torch_kind kind)
{
    cot_torch_value *value = cot_torch_take(m->memory, sizeof *value);
    if (value) value->kind = kind;
    return value;
}

static cot_status push_kind(cot_pickle_machine *m, cot_torch_kind kind)
{
    return cot_pickle_push(m, cot_pickle_make(m, kind));
}

static cot_status push_integer(cot_pickle_machine *m, cot_torch_kind kind, int64_t n)
{
    cot_torch_value *value = cot_pickle_make(m, kind);
    if (value) value->integer = n;
    return cot_pickle_push(m, value);
}

size_t cot_pickle_above(const cot_pickle_machine *m)
{
    return m->depth - (m->n_marks ? m->marks[m->n_marks - 1] : 0);
}

/* Replaces the top `count` values by a tuple of them. */
static cot_status make_tuple(cot_pickle_machine *m, size_t count)
{
    if (count > cot_pickle_above(m)) return cot_pickle_broken(m, "a tuple of values that are not there");
    cot_torch_value *tuple = cot_pickle_make(m, COT_TORCH_TUPLE);
    if (!tuple || !(tuple->list.items = cot_torch_take(m->memory, count * sizeof(void *))))
        return cot_pickle_no_memory(m);
    m->depth -= count;
    if (count) memcpy(tuple->list.items, m->stack + m->depth, count * sizeof(void *));
    tuple->list.count = tuple->list.room = (uint32_t)count;
    return cot_pickle_push(m, tuple);
}

static cot_status set_mark(cot_pickle_machine *m)
{
    size_t *marks = grow(m->marks, m->n_marks, &m->marks_room, sizeof *marks);
    if (!marks) return cot_pickle_no_memory(m);
    m->marks = marks;
    m->marks[m->n_marks++] = m->depth;
    return COT_OK;
}

/* Moves the top `count` values to the end of the list or dict below them. */
static cot_status extend(cot_pickle_machine *m, cot_torch_kind kind, size_t count)
{
    if (count >= cot_pickle_above(m)) return cot_pickle_broken(m, "values for a container that is not there");
    cot_torch_value *to = m->stack[m->depth - count - 1];
    if (to->kind != kind || (kind == COT_TORCH_DICT && count % 2))
        return cot_pickle_broken(m, "values for a wrong container");
    if (count > UINT32_MAX / 4 || to->list.count > UINT32_MAX / 4)
        return cot_pickle_broken(m, "a container that is too long");
    if (to->list.count + count > to->list.room) {
        size_t room = 2 * (to->list.count + count);
        void *items = cot_torch_take(m->memory, room * sizeof(void *));
        if (!items) return cot_pickle_no_memory(m);
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
static cot_status extend_to_mark(cot_pickle_machine *m, cot_torch_kind kind)
{
    if (!m->n_marks) return cot_pickle_broken(m, "no mark");
    size_t count = cot_pickle_above(m);
    m->n_marks--;
    return extend(m, kind, count);
}

/* The text of `length` bytes that comes next. */
static cot_status push_text(cot_pickle_machine *m, size_t length)
{
    const uint8_t *at = next(m, length);
    if (!at) return COT_MALFORMED;
    cot_torch_value *value = cot_pickle_make(m, COT_TORCH_TEXT);
    if (value) {
        value->text.at = (const char *)at;
        value->text.bytes = length;
    }
    return cot_pickle_push(m, value);
}

static cot_status push_real(cot_pickle_machine *m)
{
    const uint8_t *at = next(m, 8);
    uint64_t bits = 0;
    if (!at) return COT_MALFORMED;
    for (int i = 0; i < 8; i++) bits = bits << 8 | at[i]; // the one big-endian number of the format
    cot_torch_value *value = cot_pickle_make(m, COT_TORCH_REAL);
    if (value) memcpy(&value->real, &bits, 8);
    return cot_pickle_push(m, value);
}

/* A little-endian two's complement number of `bytes` bytes; those that do not fit 64 bits are refused. */
static cot_status push_long(cot_pickle_machine *m, size_t bytes)
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
static bool operand(cot_pickle_machine *m, int bytes, uint64_t *n)
{
    const uint8_t *at = next(m, (size_t)bytes);
    *n = 0;
    for (int i = bytes; at && i-- > 0;) *n = *n << 8 | at[i];
    return at != NULL;
}

static cot_status memorise(cot_pickle_machine *m, uint64_t i)
{
    if (!cot_pickle_above(m)) return cot_pickle_broken(m, "nothing to memorise");
    if (i > m->memos) return cot_pickle_broken(m, "the memo skips a place");
    if (i == m->memos) {
        cot_torch_value **memo = grow(m->memo, m->memos, &m->memo_room, sizeof *memo);
        if (!memo) return cot_pickle_no_memory(m);
        m->memo = memo;
        m->memos++;
    }
    m->memo[i] = m->stack[m->depth - 1];
    return COT_OK;
}

static cot_status recall(cot_pickle_machine *m, uint64_t i)
{
    if (i >= m->memos) return cot_pickle_broken(m, "the memo has no such place");
    return cot_pickle_push(m, m->memo[i]);
}

/* Runs one opcode other than STOP. */
static cot_status step(cot_pickle_machine *m, uint8_t opcode)
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
        if (!m->n_marks) return cot_pickle_broken(m, "no mark");
        n = cot_pickle_above(m);
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
        return cot_pickle_global(m);
    case 'Q':
        return cot_pickle_storage(m);
    case 'R':
        return cot_pickle_reduce(m);
    default:
        return cot_fail(m->error, COT_UNSUPPORTED,
                        "'%s': opcode 0x%02x in the pickle, which no recording needs", m->path, opcode);
    }
}

cot_status cot_torch_unpickle(const cot_torch_value **value, size_t *used, cot_torch_memory *memory,
                              const uint8_t *data, size_t bytes, cot_torch_storages *storages,
                              const char *path, cot_error *error)
{
    cot_pickle_machine m = {
        .data = data, .bytes = bytes, .memory = memory, .storages = storages, .path = path, .error = error};
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
        status = cot_pickle_broken(&m, "it ends with more or less than one value");
    if (status == COT_OK) *value = m.stack[0];
    *used = m.at;
    free(m.stack);
    free(m.memo);
    free(m.marks);
    return status;
}
