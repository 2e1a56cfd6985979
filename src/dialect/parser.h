/* What the forms of calls share: the text that waits, its markers, and what goes out. */
#ifndef COT_DIALECT_PARSER_H
#define COT_DIALECT_PARSER_H
#include "base/buffer.h"
#include "dialect/dialect.h"

enum {
    COT_DIALECT_NAME_BYTES = 512,
    COT_DIALECT_GAP_BYTES = 256
}; // most of a name or key; of white space between tags

/* What came of looking at the text. */
typedef enum cot_dialect_look {
    COT_DIALECT_NO,
    COT_DIALECT_YES,
    COT_DIALECT_MORE, // the text has to go on before anybody knows
} cot_dialect_look;

/* A marker, and whether it is a token. */
typedef struct cot_dialect_marker {
    const char *text; // NULL: there is none
    size_t bytes;
    bool is_token;
} cot_dialect_marker;

/* Where the bytes of a JSON value go. */
typedef enum cot_dialect_sink { COT_DIALECT_DROP, COT_DIALECT_KEEP, COT_DIALECT_SEND } cot_dialect_sink;

/* A JSON value that goes by, of which nothing is asked but where it ends. */
typedef struct cot_dialect_scan {
    size_t depth;
    bool begun, in_string, escaped, is_scalar;
} cot_dialect_scan;

/* Where a parser is: outside calls, between those of a section, or in one. */
enum { COT_DIALECT_IN_TEXT, COT_DIALECT_IN_SECTION, COT_DIALECT_IN_CALL };

struct cot_dialect_parser {
    cot_dialect_options options;
    const cot_dialect *calls;
    cot_buffer in; // [at, in.bytes) waits; what is before is kept from `begin` on
    size_t at, begin;
    bool is_over, is_cut, failed;
    size_t unread;

    int state; // one of below, or, from COT_DIALECT_IN_CALL on, the form's own
    bool in_reasoning, in_section;
    bool ends_loosely;             // a call ended without its end marker, which may still come
    bool is_bare;                  // the call under way began without a marker
    bool is_announced;             // the call under way has been told
    bool has_begun;                // something of the text, white space too, has been read
    bool had_marker;               // content is no longer all of the text
    bool has_content;              // more than white space of it has gone out
    bool has_reasoning;            // the same
    bool has_called;               // a call has, since content last did
    cot_buffer gap, reasoning_gap; // white space that waits for what follows it

    cot_dialect_marker section, section_end, call, call_end, reasoning, reasoning_end, separator, id,
        function, function_end, key, key_end, value, value_end;

    /* The call under way. */
    cot_dialect_scan scan;
    cot_dialect_sink sink;
    cot_buffer *kept; // where KEEP puts them
    cot_buffer name, key_text, early,
        call_id; // early: arguments before the name is known, or a value before its type is
    bool has_name, has_arguments;
    size_t items;       // arguments of MARKUP so far; calls of a list
    size_t done;        // MARKUP: calls before, between the same markers
    unsigned types;     // of the value under way
    bool is_list;       // OBJECTS: in brackets
    int kind;           // HARMONY: what the message under way is
    const json_t *tool; // the tool that is called; NULL: not known
};

/* ---- looking ---- */

static inline bool cot_dialect_is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* Whether a marker is at `at`; `*next` is what comes behind it. */
cot_dialect_look cot_dialect_match(const cot_dialect_parser *p, const cot_dialect_marker *marker, size_t at,
                                   size_t *next);
/* Moves over white space. MORE: it may go on; NO: something else follows; YES: nothing follows any more. */
cot_dialect_look cot_dialect_skip_space(const cot_dialect_parser *p, size_t *at);
/* Whether an added token is at `at`: its name [*bytes], and what comes behind. */
cot_dialect_look cot_dialect_token(const cot_dialect_parser *p, size_t at, const char **name, size_t *bytes,
                                   size_t *next);

/* ---- telling ---- */

void cot_dialect_say(cot_dialect_parser *p, const char *text, size_t bytes);    // content
void cot_dialect_reason(cot_dialect_parser *p, const char *text, size_t bytes); // reasoning
/* The call under way, by its name; `id` NULL: it has none. */
void cot_dialect_announce(cot_dialect_parser *p, const char *name, size_t bytes, const char *id,
                          size_t id_bytes);
void cot_dialect_argue(cot_dialect_parser *p, const char *text, size_t bytes); // arguments
/* The same of a text as the inside of a JSON string. */
void cot_dialect_argue_quoted(cot_dialect_parser *p, const char *text, size_t bytes);
bool cot_dialect_quote(cot_buffer *out, const char *text, size_t bytes);
/* Content [from, to) of what waits, tokens by their names. */
void cot_dialect_say_raw(cot_dialect_parser *p, size_t from, size_t to);
bool cot_dialect_keep(cot_dialect_parser *p, cot_buffer *buffer, const char *text, size_t bytes);

/* ---- calls ---- */

/* A call begins at `begin`, and the parser goes on at `at`. */
void cot_dialect_begin_call(cot_dialect_parser *p, size_t begin, size_t at, bool is_bare);
/* What began as a call is content up to `at`. */
void cot_dialect_unread_call(cot_dialect_parser *p);
/* A form goes on at `at` in a state of its own. YES. */
cot_dialect_look cot_dialect_go(cot_dialect_parser *p, int state, size_t at);
/* The call is none: cot_dialect_unread_call at `at`. YES. */
cot_dialect_look cot_dialect_fault(cot_dialect_parser *p, size_t at);
/* The call, or list of calls, has ended at `at`: content again, or the next call of a section. */
void cot_dialect_end_call(cot_dialect_parser *p);
/* The tool of a name; NULL: there is none. */
const json_t *cot_dialect_tool(const cot_dialect_parser *p, const char *name, size_t bytes);
bool cot_dialect_is_name(const char *name, size_t bytes);

/* Lets a JSON value go by, to p->sink. YES: it ended, or something that ends it is at `at`. */
cot_dialect_look cot_dialect_scan_value(cot_dialect_parser *p);

/* A step of a form. YES: it went on, and wants another; MORE: it waits for text. */
cot_dialect_look cot_dialect_step_objects(cot_dialect_parser *p);
cot_dialect_look cot_dialect_step_headed(cot_dialect_parser *p);
cot_dialect_look cot_dialect_step_markup(cot_dialect_parser *p);
cot_dialect_look cot_dialect_step_python(cot_dialect_parser *p);
cot_dialect_look cot_dialect_step_harmony(cot_dialect_parser *p);
/* The text has ended within a call: what is there of it goes out. One that is not announced then is content. */
void cot_dialect_over_objects(cot_dialect_parser *p);
void cot_dialect_over_headed(cot_dialect_parser *p);
void cot_dialect_over_markup(cot_dialect_parser *p);
void cot_dialect_over_python(cot_dialect_parser *p);
void cot_dialect_over_harmony(cot_dialect_parser *p);

/* ---- types ---- */

enum {
    COT_DIALECT_STRING = 1,
    COT_DIALECT_NUMBER = 2,
    COT_DIALECT_INTEGER = 4,
    COT_DIALECT_BOOLEAN = 8,
    COT_DIALECT_NULL = 16,
    COT_DIALECT_OBJECT = 32,
    COT_DIALECT_ARRAY = 64,
};
/* Types that a tool's schema gives an argument; 0: nothing is said. */
unsigned cot_dialect_types(const json_t *tool, const char *key);
/* The JSON of a text of one of these types, appended. False: out of memory. */
bool cot_dialect_typed(cot_buffer *out, const char *text, size_t bytes, unsigned types);

#endif
