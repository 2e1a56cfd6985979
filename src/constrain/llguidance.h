/* llguidance as its C functions have it, of the version that is pinned here: they are looked up in the shared object of its Python
 * wheel. */
#ifndef COT_CONSTRAIN_LLGUIDANCE_H
#define COT_CONSTRAIN_LLGUIDANCE_H
#include "coterie/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define COT_LLGUIDANCE_VERSION "1.9.1"

typedef struct cot_llguidance_tokenizer cot_llguidance_tokenizer;
typedef struct cot_llguidance_matcher cot_llguidance_matcher;

/* What these structures are is the library's to say. */
typedef struct cot_llguidance_vocabulary {
    size_t size; // of this structure
    uint32_t vocab, eos;
    const uint32_t *lengths; // [vocab] of the tokens' bytes
    const uint8_t *bytes;    // one token behind the other; 0xff begins a special one
    const char *tokenizer_json;
    bool tokenizes_text;
    size_t (*tokenize)(const void *context, const uint8_t *bytes, size_t count, uint32_t *ids, size_t room);
    bool tokenizes_greedily; // in place of `tokenize`
    const void *context;
    const char *const *slices;
    const uint32_t *more_eos; // [more_eos_count]
    uint32_t more_eos_count;
} cot_llguidance_vocabulary;

typedef struct cot_llguidance_limits {
    size_t row_items;
    uint64_t first_lexer_fuel, step_lexer_fuel;
    size_t step_items, lexer_states, grammar_size;
    bool precomputes_large_lexemes, tells_state;
} cot_llguidance_limits;

typedef struct cot_llguidance_settings {
    const cot_llguidance_tokenizer *tokenizer;
    uint32_t buffered_log_level, stderr_log_level;
    bool fast_forwards, backtracks;
    cot_llguidance_limits limits;
} cot_llguidance_settings;

/* 0 is success where an int32_t is returned. */
typedef struct cot_llguidance {
    const char *(*version)(void);
    cot_llguidance_tokenizer *(*new_tokenizer)(const cot_llguidance_vocabulary *vocabulary, char *error,
                                               size_t error_bytes);
    void (*free_tokenizer)(cot_llguidance_tokenizer *tokenizer);
    void (*set_defaults)(cot_llguidance_settings *settings, const cot_llguidance_tokenizer *tokenizer);
    cot_llguidance_matcher *(*new_matcher)(const cot_llguidance_settings *settings, const char *kind,
                                           const char *text);
    cot_llguidance_matcher *(*copy)(const cot_llguidance_matcher *matcher);
    const char *(*error)(cot_llguidance_matcher *matcher); // NULL: none
    int32_t (*mask)(cot_llguidance_matcher *matcher, uint32_t *words, size_t bytes);
    int32_t (*commit)(cot_llguidance_matcher *matcher, uint32_t token);
    int32_t (*rollback)(cot_llguidance_matcher *matcher, size_t tokens);
    bool (*accepts)(cot_llguidance_matcher *matcher);
    void (*free_matcher)(cot_llguidance_matcher *matcher);
} cot_llguidance;

/* Finds the library, as coterie/constraint.h says, and opens it, once and for good. Errors: UNSUPPORTED (it is nowhere, cannot be
 * loaded, or is of another version). Thread-safe. */
cot_status cot_llguidance_open(const cot_llguidance **library, cot_error *error);

#endif
