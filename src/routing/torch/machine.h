/* What the two halves of the pickle reader share: the stack machine, and the objects it may make. */
#ifndef COT_ROUTING_TORCH_MACHINE_H
#define COT_ROUTING_TORCH_MACHINE_H
#include "routing/torch/value.h"

typedef struct cot_pickle_machine {
    const uint8_t *data;
    size_t at, bytes;
    cot_torch_value **stack, **memo;
    size_t depth, stack_room, memos, memo_room;
    size_t *marks; // depths at which marks lie
    size_t n_marks, marks_room;
    cot_torch_memory *memory;
    cot_torch_storages *storages;
    const char *path;
    cot_error *error;
} cot_pickle_machine;

/* Refuses the pickle (MALFORMED, OUT_OF_MEMORY). */
cot_status cot_pickle_broken(const cot_pickle_machine *m, const char *what);
cot_status cot_pickle_no_memory(const cot_pickle_machine *m);
/* A new value of that kind, zero; NULL when out of memory. */
cot_torch_value *cot_pickle_make(const cot_pickle_machine *m, cot_torch_kind kind);
/* Puts a value on the stack; NULL means that there was no memory for it. */
cot_status cot_pickle_push(cot_pickle_machine *m, cot_torch_value *value);
/* How many values lie above the last mark, or above the bottom where there is none. */
size_t cot_pickle_above(const cot_pickle_machine *m);

/* The three opcodes that make objects: a name that may be called or is a storage's type; a storage, from the
 * persistent id on the stack; a call. */
cot_status cot_pickle_global(cot_pickle_machine *m);
cot_status cot_pickle_storage(cot_pickle_machine *m);
cot_status cot_pickle_reduce(cot_pickle_machine *m);

#endif
