/* What a template computes with: Python's values, as far as templates have them. */
#ifndef COT_TOKENIZER_JINJA_VALUE_H
#define COT_TOKENIZER_JINJA_VALUE_H
#include "tokenizer/jinja/run.h"

typedef enum cot_jinja_type {
    COT_JINJA_ABSENT, // no value at all: an argument that was not given, a key that is not there
    COT_JINJA_IS_UNDEFINED,
    COT_JINJA_NONE,
    COT_JINJA_BOOL,
    COT_JINJA_INTEGER,
    COT_JINJA_REAL,
    COT_JINJA_STRING,
    COT_JINJA_SEQUENCE,
    COT_JINJA_MAP,
    COT_JINJA_NAMESPACE, // a map whose keys are attributes
    COT_JINJA_CALLABLE,
    COT_JINJA_LOOP,
} cot_jinja_type;

typedef struct cot_jinja_value {
    cot_jinja_type type;
    union {
        bool truth;
        int64_t integer;
        double real;
        const struct cot_jinja_string *string;
        struct cot_jinja_sequence *sequence;
        struct cot_jinja_map *map;
        const struct cot_jinja_callable *callable;
        struct cot_jinja_loop *loop;
        const struct cot_jinja_hint *hint;
    };
} cot_jinja_value;

/* UTF-8 with a length, and of each byte whether it is the template's own (its text, its literals, what the interpreter
 * writes) or came with the conversation. Immutable; strings share memory. */
typedef struct cot_jinja_string {
    const char *data;
    const uint8_t *own; // [bytes] 1: the template's
    size_t bytes;
    bool safe;                   // markupsafe's Markup: escapes what is added to it
    struct cot_jinja_room *room; // where the string ends in memory that has room behind it; or NULL
} cot_jinja_string;

typedef enum cot_jinja_sequence_kind {
    COT_JINJA_LIST,
    COT_JINJA_TUPLE,
    COT_JINJA_RANGE,
    COT_JINJA_KEYS, // views of a map
    COT_JINJA_VALUES,
    COT_JINJA_ITEMS,
    COT_JINJA_GENERATOR, // gives its items once
} cot_jinja_sequence_kind;

typedef struct cot_jinja_sequence {
    cot_jinja_sequence_kind kind;
    cot_jinja_value *items;
    size_t count;
    size_t taken;                // of a generator
    int64_t start, stop, stride; // of a range
} cot_jinja_sequence;

typedef struct cot_jinja_entry {
    cot_jinja_value key, value;
} cot_jinja_entry;

/* In the order of insertion. */
typedef struct cot_jinja_map {
    cot_jinja_entry *entries;
    size_t count, capacity;
    bool *read; // set once the template looks into the map; NULL where nobody asks
} cot_jinja_map;

/* Why something is undefined, told when it is used. */
typedef struct cot_jinja_hint {
    const char *message;
    bool unsafe; // the sandbox hides it
} cot_jinja_hint;

/* What a call passes. */
typedef struct cot_jinja_arguments {
    cot_jinja_value *items; // [count]
    size_t count;
    const char **names; // [named], of
    cot_jinja_value *named_items;
    size_t named;
} cot_jinja_arguments;

struct cot_jinja_node;
struct cot_jinja_scope;
typedef cot_jinja_value cot_jinja_function(cot_jinja_run *run, cot_jinja_value self,
                                           const cot_jinja_arguments *arguments);

/* A function or method of ours, or a macro. */
typedef struct cot_jinja_callable {
    const char *name;
    cot_jinja_function *function; // NULL: a macro
    cot_jinja_value self;         // of a method
    const struct cot_jinja_node *macro;
    struct cot_jinja_scope *scope; // where the macro was made
} cot_jinja_callable;

static inline cot_jinja_value cot_jinja_none(void)
{
    return (cot_jinja_value){.type = COT_JINJA_NONE};
}

static inline cot_jinja_value cot_jinja_bool(bool truth)
{
    return (cot_jinja_value){.type = COT_JINJA_BOOL, .truth = truth};
}

static inline cot_jinja_value cot_jinja_integer(int64_t integer)
{
    return (cot_jinja_value){.type = COT_JINJA_INTEGER, .integer = integer};
}

static inline cot_jinja_value cot_jinja_real(double real)
{
    return (cot_jinja_value){.type = COT_JINJA_REAL, .real = real};
}

static inline bool cot_jinja_is_undefined(cot_jinja_value value)
{
    return value.type == COT_JINJA_IS_UNDEFINED;
}

/* A number: a bool is 0 or 1. */
static inline bool cot_jinja_is_integer(cot_jinja_value value)
{
    return value.type == COT_JINJA_BOOL || value.type == COT_JINJA_INTEGER;
}

static inline int64_t cot_jinja_as_integer(cot_jinja_value value)
{
    return value.type == COT_JINJA_BOOL ? value.truth : value.integer;
}

static inline bool cot_jinja_is_number(cot_jinja_value value)
{
    return cot_jinja_is_integer(value) || value.type == COT_JINJA_REAL;
}

static inline double cot_jinja_as_real(cot_jinja_value value)
{
    return value.type == COT_JINJA_REAL ? value.real : (double)cot_jinja_as_integer(value);
}

cot_jinja_value cot_jinja_undefined(cot_jinja_run *run, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* What the sandbox hides. */
cot_jinja_value cot_jinja_hidden(cot_jinja_run *run, cot_jinja_value object, const char *attribute);
/* Fails with the hint of an undefined value. */
_Noreturn void cot_jinja_fail_undefined(cot_jinja_run *run, cot_jinja_value value);

/* A sequence with room for `count` items, all absent. */
cot_jinja_value cot_jinja_sequence_new(cot_jinja_run *run, cot_jinja_sequence_kind kind, size_t count);
/* Adds to the end of a sequence that is being made; `*capacity` begins as the count it was made with. */
void cot_jinja_sequence_add(cot_jinja_run *run, cot_jinja_sequence *sequence, size_t *capacity,
                            cot_jinja_value item);
cot_jinja_value cot_jinja_map_new(cot_jinja_run *run, size_t capacity);
/* The value of an equal key, or absent. */
cot_jinja_value cot_jinja_map_get(cot_jinja_run *run, const cot_jinja_map *map, cot_jinja_value key);
/* The same by a key's text. */
cot_jinja_value cot_jinja_map_find(cot_jinja_run *run, const cot_jinja_map *map, const char *key);
/* Puts a value in place of an equal key's or at the end. */
void cot_jinja_map_put(cot_jinja_run *run, cot_jinja_map *map, cot_jinja_value key, cot_jinja_value value);
/* The same at the end, where the key is known to be new. */
void cot_jinja_map_append(cot_jinja_run *run, cot_jinja_map *map, cot_jinja_value key, cot_jinja_value value);
/* Fails for what cannot be a key. */
void cot_jinja_check_key(cot_jinja_run *run, cot_jinja_value key);

/* Python's bool(). */
bool cot_jinja_truth(cot_jinja_value value);
/* Python's ==. */
bool cot_jinja_equal(cot_jinja_run *run, cot_jinja_value a, cot_jinja_value b);
/* Below 0, 0, above 0 as Python's < has it; `sign` is the operator in the message of what has no order. */
int cot_jinja_compare(cot_jinja_run *run, cot_jinja_value a, cot_jinja_value b, const char *sign);
/* Python's len(), -1 for what has none. */
int64_t cot_jinja_length(cot_jinja_value value);
/* Python's name of the type: "str". */
const char *cot_jinja_type_name(cot_jinja_value value);
/* A list of what iterating gives; fails for what cannot be iterated. The result may be `value`'s own memory. */
cot_jinja_sequence *cot_jinja_items_of(cot_jinja_run *run, cot_jinja_value value);
bool cot_jinja_is_iterable(cot_jinja_value value);

/* Arguments by position or name, into `out` in the order of `names` ("width first blank"), absent where not given.
 * Fails where fewer than `least` or more are given, or one that has no such name; `what` is the function's name. */
void cot_jinja_bind(cot_jinja_run *run, const cot_jinja_arguments *arguments, const char *what,
                    const char *names, size_t least, cot_jinja_value *out);

#endif
