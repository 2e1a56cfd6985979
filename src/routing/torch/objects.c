/* The objects that a pickle of torch.save may make: names from a short list, storages in the archive, tensors over
 * them, and empty dicts. Nothing else is made, and nothing is ever called but the two functions here. */
#include "routing/torch/machine.h"

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

/* A line of text, without its end. */
static const char *line(cot_pickle_machine *m, size_t *length)
{
    const uint8_t *at = m->data + m->at, *end = memchr(at, '\n', m->bytes - m->at);
    if (!end) {
        cot_pickle_broken(m, "a name without an end");
        return NULL;
    }
    *length = (size_t)(end - at);
    m->at += *length + 1;
    return (const char *)at;
}

cot_status cot_pickle_global(cot_pickle_machine *m)
{
    size_t module_bytes, name_bytes = 0;
    const char *module = line(m, &module_bytes), *name = module ? line(m, &name_bytes) : NULL;
    if (!name) return COT_MALFORMED;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i].module) == module_bytes && !memcmp(known[i].module, module, module_bytes) &&
            strlen(known[i].name) == name_bytes && !memcmp(known[i].name, name, name_bytes)) {
            cot_torch_value *value = cot_pickle_make(m, COT_TORCH_GLOBAL);
            if (value) value->global = known[i].global;
            return cot_pickle_push(m, value);
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

/* Lists a storage whose bytes are not there yet. */
static cot_status note_storage(cot_pickle_machine *m, cot_torch_value *storage, const cot_torch_value *key)
{
    cot_torch_storages *s = m->storages;
    if (s->n_found == s->room_found) {
        const size_t room = s->room_found ? 2 * s->room_found : 16;
        cot_torch_found *larger = realloc(s->found, room * sizeof *larger);
        if (!larger) return cot_pickle_no_memory(m);
        s->found = larger;
        s->room_found = room;
    }
    s->found[s->n_found++] = (cot_torch_found){key->text.at, key->text.bytes, storage->storage.dtype};
    return cot_pickle_push(m, storage);
}

/* ('storage', torch.XStorage, KEY, device, elements) -> the storage's bytes in the archive. The older form has a sixth
 * part, what the storage is a view of, which nobody has written for long. */
cot_status cot_pickle_storage(cot_pickle_machine *m)
{
    if (!cot_pickle_above(m)) return cot_pickle_broken(m, "a persistent id that is not there");
    const cot_torch_value *id = m->stack[--m->depth];
    const cot_torch_value *type = item(id, 1, COT_TORCH_GLOBAL), *key = item(id, 2, COT_TORCH_TEXT);
    const cot_torch_value *count = item(id, 4, COT_TORCH_INTEGER);
    if (!type || !key || !count || type->global >= COT_DTYPE_COUNT)
        return cot_pickle_broken(m, "a persistent id of no storage");
    cot_torch_value *storage = cot_pickle_make(m, COT_TORCH_STORAGE);
    if (!storage) return cot_pickle_no_memory(m);
    storage->storage.dtype = (cot_dtype)type->global;
    storage->storage.count = count->integer < 0 ? 0 : (size_t)count->integer;
    if (id->list.count > 5 && id->list.items[5]->kind != COT_TORCH_NONE)
        return cot_fail(m->error, COT_UNSUPPORTED, "'%s': a storage that is a view of another", m->path);
    if (!m->storages->zip) return note_storage(m, storage, key);
    char name[64];
    int length = snprintf(name, sizeof name, "data/%.*s", key->text.bytes < 50 ? (int)key->text.bytes : 50,
                          key->text.at);
    const cot_zip_member *member =
        cot_zip_find(m->storages->zip, m->storages->folder, m->storages->folder_bytes, name, (size_t)length);
    if (!member)
        return cot_fail(m->error, COT_MALFORMED, "'%s': the archive lacks storage '%s'", m->path, name);
    storage->storage.data = member->data;
    storage->storage.count = member->bytes / cot_dtype_bytes(storage->storage.dtype);
    if (count->integer < 0 || (uint64_t)count->integer > storage->storage.count)
        return cot_fail(m->error, COT_MALFORMED,
                        "'%s': storage '%s' has %zu elements, the pickle says %" PRId64, m->path, name,
                        storage->storage.count, count->integer);
    storage->storage.count = (size_t)count->integer;
    return cot_pickle_push(m, storage);
}

/* (storage, offset, shape, stride, ...) -> the tensor */
static cot_status rebuild_tensor(cot_pickle_machine *m, const cot_torch_value *args, cot_torch_value **made)
{
    const cot_torch_value *storage = item(args, 0, COT_TORCH_STORAGE),
                          *offset = item(args, 1, COT_TORCH_INTEGER);
    const cot_torch_value *shape = item(args, 2, COT_TORCH_TUPLE), *stride = item(args, 3, COT_TORCH_TUPLE);
    if (!storage || !offset || !shape || !stride || shape->list.count != stride->list.count)
        return cot_pickle_broken(m, "a tensor of wrong arguments");
    if (shape->list.count > COT_TORCH_MAX_DIMS)
        return cot_fail(m->error, COT_UNSUPPORTED,
                        "'%s': a tensor of %" PRIu32 " dimensions, at most %d are supported", m->path,
                        shape->list.count, COT_TORCH_MAX_DIMS);
    cot_torch_tensor *tensor = cot_torch_take(m->memory, sizeof *tensor);
    *made = cot_pickle_make(m, COT_TORCH_TENSOR);
    if (!tensor || !*made) return cot_pickle_no_memory(m);
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
        return cot_pickle_broken(m, "a tensor beyond its storage");
    // a view that repeats its storage could have any number of elements
    if (!empty && (uint64_t)elements > storage->storage.count)
        return cot_fail(m->error, COT_UNSUPPORTED, "'%s': a tensor that repeats elements of its storage",
                        m->path);
    if (storage->storage.data)
        tensor->data =
            storage->storage.data + (empty ? 0 : (size_t)offset->integer * cot_dtype_bytes(tensor->dtype));
    return COT_OK;
}

cot_status cot_pickle_reduce(cot_pickle_machine *m)
{
    if (cot_pickle_above(m) < 2) return cot_pickle_broken(m, "a call without its arguments");
    const cot_torch_value *args = m->stack[m->depth - 1], *callee = m->stack[m->depth - 2];
    cot_torch_value *made = NULL;
    cot_status status = COT_OK;
    if (callee->kind != COT_TORCH_GLOBAL || args->kind != COT_TORCH_TUPLE)
        return cot_pickle_broken(m, "a call of no function");
    if (callee->global == REBUILD_TENSOR)
        status = rebuild_tensor(m, args, &made);
    else if (callee->global == ORDERED_DICT && !args->list.count)
        made = cot_pickle_make(m, COT_TORCH_DICT);
    else
        return cot_pickle_broken(m, "a call that makes neither a tensor nor an empty dict");
    if (status != COT_OK) return status;
    m->depth -= 2;
    return cot_pickle_push(m, made);
}
