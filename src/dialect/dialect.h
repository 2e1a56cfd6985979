/* What a model's answer means: reasoning, content and calls of tools, out of the text that the model writes.
 *
 *     pieces of text, added tokens marked --parser of a family--> reasoning, content, calls: name, then pieces of arguments
 *
 * Families are data: a row says which markers there are and in which form a call is written. A parser takes text in pieces that
 * are cut anywhere and hands on what is certain; what comes of a text does not depend on the cuts. A marker that the vocabulary
 * has as an added token counts only as that token, so that text which imitates it stays text.
 *
 * An added token stands in the text between two bytes that UTF-8 does not have, which are nowhere else in it. */
#ifndef COT_DIALECT_DIALECT_H
#define COT_DIALECT_DIALECT_H
#include "base/buffer.h"
#include "coterie/status.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Bytes around an added token: the first says whether decoding may skip the token. */
enum { COT_DIALECT_SPECIAL = 0xff, COT_DIALECT_ADDED = 0xfe, COT_DIALECT_END = 0xfd };

/* How a call is written. */
typedef enum cot_dialect_form {
    COT_DIALECT_NONE,    // there are no calls
    COT_DIALECT_OBJECTS, // JSON objects of a name and arguments, alone, in a row or in a list
    COT_DIALECT_HEADED,  // a name, a marker, a JSON object of arguments
    COT_DIALECT_MARKUP,  // tags around a name, keys and values
    COT_DIALECT_PYTHON,  // a list of calls in Python's form
    COT_DIALECT_HARMONY, // messages with a header of their own, whose recipient is the tool
    COT_DIALECT_FORCED,  // nothing but the arguments of a call whose name is known
} cot_dialect_form;

/* A family; NULL: it has no such marker. */
typedef struct cot_dialect {
    const char *name;
    cot_dialect_form form;
    const char *section, *section_end;     // around all calls
    const char *call, *call_end;           // around a call, or a list of them
    const char *reasoning, *reasoning_end; // around the reasoning
    bool is_bare;                          // calls may begin the message without a marker
    bool is_short;                         // ids of calls have nine letters or digits
    /* HEADED */
    const char *separator; // between name and arguments
    const char *id;        // before an id between name and separator
    bool has_kind;         // a kind of tool and the separator come first, then the name on a line of its own
    bool has_address;      // "functions.NAME:INDEX" stands for the name, and is the id
    /* MARKUP; without `function` the name stands behind `call`. */
    const char *function, *function_end, *key, *key_end, *value, *value_end;
    bool has_lines;  // values are on lines of their own
    bool has_quotes; // names and keys are in quotes
} cot_dialect;

extern const cot_dialect cot_dialects[]; // ends with a NULL name
/* Of JSON lists of calls and of one call's arguments, as constraints make them. */
extern const cot_dialect cot_dialect_list, cot_dialect_forced;
/* The family of that name; NULL: there is none. */
const cot_dialect *cot_dialect_named(const char *name);
/* The tokens, from number 0 on, that a vocabulary must have or texts of the family cannot be read; NULL: there are no more. */
const char *cot_dialect_needed_token(const cot_dialect *dialect, size_t number);

/* ---- a parser ---- */

/* Who is told what the text means, in its order; false: memory ran out, and the parser ends. Text is UTF-8 where the pieces are cut
 * between characters. */
typedef struct cot_dialect_listener {
    void *context;
    bool (*content)(void *context, const char *text, size_t bytes);
    bool (*reasoning)(void *context, const char *text, size_t bytes);
    /* A call begins; arguments that follow are its own. `id` NULL: the text has none. */
    bool (*call)(void *context, const char *name, size_t bytes, const char *id, size_t id_bytes);
    bool (*arguments)(void *context, const char *text, size_t bytes);
} cot_dialect_listener;

typedef struct cot_dialect_options {
    const cot_dialect *calls;     // NULL: calls are text
    const cot_dialect *reasoning; // NULL: reasoning is text
    bool is_opened;               // the prompt ended within the reasoning
    bool
        is_held; // behind reasoning, which may begin the text alone, comes content or calls: markers within either are its text
    bool shows_special;      // tokens that decoding may skip are text
    const char *forced_name; // of FORCED
    const json_t *tools;     // a list as OpenAI's API has it, borrowed while the parser lives; NULL: none
    /* Whether the vocabulary has a marker as an added token. */
    bool (*is_token)(void *context, const char *marker);
    void *context;
    cot_dialect_listener listener;
} cot_dialect_options;

typedef struct cot_dialect_parser cot_dialect_parser;
/* NULL: out of memory. What options point to is borrowed, strings of families too. */
cot_dialect_parser *cot_dialect_open(const cot_dialect_options *options);
/* Takes the next piece. False: memory ran out. */
bool cot_dialect_push(cot_dialect_parser *parser, const char *text, size_t bytes);
/* The text is over; `is_cut`: it would have gone on. Nothing is pushed behind it. False: memory ran out. */
bool cot_dialect_finish(cot_dialect_parser *parser, bool is_cut);
/* Calls that could not be read and went on as content. */
size_t cot_dialect_unread(const cot_dialect_parser *parser);
void cot_dialect_close(cot_dialect_parser *parser); /* NULL is fine */

/* ---- answers with calls, as a grammar ---- */

/* A grammar, in the form that llguidance has, of answers in which each call, once its marker has come, has the name of one of the
 * tools and arguments that meet its schema, where that tool says `strict`. `format` NULL: all else is free; else an answer is JSON of
 * that schema, or calls alone. `token`: the id of a marker that the vocabulary has as an added token, -1: it has not. Appended to `out`,
 * also where it fails. Errors: INVALID_ARGUMENT (a schema says what calls of this family cannot be held to; the message is for users),
 * OUT_OF_MEMORY. */
cot_status cot_dialect_grammar(cot_buffer *out, const cot_dialect *calls, const json_t *tools,
                               const json_t *format, int32_t (*token)(void *context, const char *marker),
                               void *context, cot_error *error);

/* ---- a family by what a template writes ---- */

/* The family of a text in which a template has written a call of `name` with an argument `key` of the text `value`; NULL: none
 * of which it is certain. */
const cot_dialect *cot_dialect_of_call(const char *text, size_t bytes, const char *name, const char *key,
                                       const char *value);
/* A family in whose markers a template has written the reasoning `thought`, or, NULL, whose first marker ends the text; NULL: none. Of
 * families with the same markers any. */
const cot_dialect *cot_dialect_of_reasoning(const char *text, size_t bytes, const char *thought);

#endif
