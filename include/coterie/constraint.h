/* Constraints: what a text may be, by a JSON schema, a regular expression, a grammar or a list of choices, as a mask over the
 * vocabulary for each token that comes next. A request that has one (coterie/request.h) gives a text that keeps to it.
 *
 *     tokenizer, ids that end a text -> compiler -> compile -> constraint -> copy, one for each text
 *
 * Masks are computed by llguidance, a library that is opened when a compiler is (tools/get-llguidance brings it): its file is
 * what COTERIE_LLGUIDANCE names, or else `llguidance/_lib.abi3.so` beside this code or a folder above it, or in the site-packages
 * of $VIRTUAL_ENV, of the user or of the system. */
#ifndef COTERIE_CONSTRAINT_H
#define COTERIE_CONSTRAINT_H

#include "coterie/status.h"
#include "coterie/tokenizer.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    COT_CONSTRAINT_MAX_BYTES = 1 << 20, /* of what is compiled */
    COT_CONSTRAINT_MAX_DEPTH = 64,      /* of brackets in a schema */
    COT_CONSTRAINT_COMPILE_MS = 2000,   /* processor time that a compilation may take */
    COT_CONSTRAINT_MASK_MS = 50         /* and a mask */
};

/* The text that is compiled is one of these. */
typedef enum cot_constraint_kind {
    /* JSON: the schema that JSON has to meet. Properties come in the schema's order; between the parts of JSON is nothing, a blank, or a new
     * line and up to 40 blanks and tabs, unless the schema's "x-guidance" says otherwise, as llguidance has it. */
    COT_CONSTRAINT_JSON_SCHEMA,
    COT_CONSTRAINT_REGEX, /* Rust's syntax, without look-around; all of a text matches it */
    COT_CONSTRAINT_LARK,  /* a grammar as llguidance writes them, beginning with `start` */
    COT_CONSTRAINT_CHOICE /* a JSON array of strings, one of which the text is */
} cot_constraint_kind;

/* Makes constraints over one vocabulary. Immutable once open: any number of threads may use one at a time. */
typedef struct cot_constraint_compiler cot_constraint_compiler;
/* A constraint and the tokens that it was told of so far. One thread at a time. */
typedef struct cot_constraint cot_constraint;

/* `vocab` ids, the model's, of which those that the tokenizer lacks or knows as special never are part of a text; eos [eos_count]
 * ids end one. Where an engine has ranks that are processes, it is opened behind it, so that they do not inherit the library. On success
 * the caller owns `*compiler`; on failure it is NULL. The tokenizer need not outlive the call. Errors: UNSUPPORTED (the library
 * is not there, or another version: the message has the command that brings it), INVALID_ARGUMENT (no id ends a text),
 * OUT_OF_MEMORY. */
cot_status cot_constraint_compiler_open(cot_constraint_compiler **compiler, const cot_tokenizer *tokenizer,
                                        int64_t vocab, const int32_t *eos, size_t eos_count,
                                        cot_error *error);
/* Once none of its constraints is left; NULL is fine. */
void cot_constraint_compiler_close(cot_constraint_compiler *compiler);

/* The constraint of a text (UTF-8, `bytes` long) that has been told of no token. `*constraint` is the caller's, NULL on failure.
 * Errors: INVALID_ARGUMENT (it is no such text, says what is not supported, or what nothing can meet; it is beyond a bound above),
 * OUT_OF_MEMORY. Thread-safe. */
cot_status cot_constraint_compile(cot_constraint **constraint, const cot_constraint_compiler *compiler,
                                  cot_constraint_kind kind, const char *text, size_t bytes, cot_error *error);
/* How a model's text has its reasoning. */
typedef struct cot_constraint_reasoning {
    int64_t vocab;  /* ids of the model */
    int32_t begin;  /* the token that begins it, which a text may begin with; -1: there is none */
    int32_t end;    /* the token that ends it */
    bool is_opened; /* the text begins within it */
    int64_t budget; /* most tokens of it, behind which its end alone may come; -1: any number */
    const int32_t
        *without; /* [without_count] tokens that may not come within it, there as long as the constraint */
    size_t without_count;
} cot_constraint_reasoning;
/* A constraint that lets reasoning come first, and is `behind` from behind its end on; NULL: anything may come there, at any time the
 * text's end too. Takes `behind` over, also on failure. `*constraint` is the caller's, NULL on failure. Errors: INVALID_ARGUMENT (tokens
 * that are not in the vocabulary), OUT_OF_MEMORY. */
cot_status cot_constraint_behind_reasoning(cot_constraint **constraint, const cot_constraint_reasoning *how,
                                           cot_constraint *behind, cot_error *error);
/* Another one in the same state, the caller's; NULL on failure. Errors: OUT_OF_MEMORY. */
cot_status cot_constraint_copy(cot_constraint **copy, const cot_constraint *constraint, cot_error *error);
/* Which tokens may come next: bit t % 32 of word t / 32 for token t, [(vocab + 31) / 32] words that are there until the next call
 * with the constraint. Ids that end a text are among them where it may end. Errors: INVALID_ARGUMENT (none may, it took more
 * processor time than a mask may, an earlier call failed). */
cot_status cot_constraint_mask(cot_constraint *constraint, const uint32_t **mask, cot_error *error);
/* The token has come. Behind one that ends the text only such may come. Errors: INVALID_ARGUMENT (it may not come here; the
 * constraint is of no more use), and as above. */
cot_status cot_constraint_commit(cot_constraint *constraint, int32_t token, cot_error *error);
/* The last so many tokens have not come. Errors: INVALID_ARGUMENT (it was not told of so many). */
cot_status cot_constraint_rollback(cot_constraint *constraint, size_t tokens, cot_error *error);
/* Whether what came so far is a whole text. */
bool cot_constraint_may_end(const cot_constraint *constraint);
/* NULL is fine. */
void cot_constraint_close(cot_constraint *constraint);

#ifdef __cplusplus
}
#endif
#endif
