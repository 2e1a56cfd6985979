/* How an answer is written where tools are strict, or its content has a format, as a grammar: outside calls anything, or nothing, and in
 * one the name of a tool and arguments, which meet the tool's schema where it is strict. */
#include "dialect/grammar.h"

#include "base/error.h"
#include "base/json_schema.h"
#include "dialect/parser.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define PUT COT_DIALECT_PUT
#define ANY COT_DIALECT_ANY
/* White space within JSON, and between the parts of a call: of more, models that are unsure write without end. */
#define JSON_SPACE "( |\\r?\\n[ \\t]{0,40})?"
#define SPACE "WS: /[ \\t\\r\\n]{0,12}/\n"

/* ---- parts ---- */

static void out_of_memory(cot_dialect_writer *w)
{
    if (w->status == COT_OK) w->status = cot_fail(w->error, COT_OUT_OF_MEMORY, "out of memory for a grammar");
}

static void put(cot_dialect_writer *w, const char *text, size_t bytes)
{
    if (w->status == COT_OK && !cot_buffer_append(w->out, text, bytes)) out_of_memory(w);
}

void cot_dialect_put(cot_dialect_writer *w, ...)
{
    va_list texts;
    va_start(texts, w);
    for (const char *text; (text = va_arg(texts, const char *));) put(w, text, strlen(text));
    va_end(texts);
}

void cot_dialect_put_number(cot_dialect_writer *w, size_t number)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%zu", number);
    PUT(w, digits);
}

void cot_dialect_put_text(cot_dialect_writer *w, const char *text)
{
    if (!*text) return;
    PUT(w, " \"");
    if (w->status == COT_OK && !cot_dialect_quote(w->out, text, strlen(text))) out_of_memory(w);
    PUT(w, "\" ");
}

void cot_dialect_put_escaped(cot_dialect_writer *w, const char *text)
{
    for (; *text; text++) {
        if (*text != '\n' && strchr("\\/.*+?()[]{}|^$#&~-\"", *text)) PUT(w, "\\");
        put(w, *text == '\n' ? "\\n" : text, *text == '\n' ? 2 : 1);
    }
}

static int32_t token_of(const cot_dialect_writer *w, const char *marker)
{
    return marker ? w->token(w->context, marker) : -1;
}

void cot_dialect_put_marker(cot_dialect_writer *w, const char *marker)
{
    const int32_t id = token_of(w, marker);
    if (id < 0) {
        cot_dialect_put_text(w, marker ? marker : "");
        return;
    }
    PUT(w, " <[");
    cot_dialect_put_number(w, (size_t)id);
    PUT(w, "]> ");
}

void cot_dialect_put_json(cot_dialect_writer *w, const json_t *schema, const json_t *root)
{
    static const char *const named[] = {"$defs", "definitions"};
    json_t *copy = json_is_object(schema) ? json_copy((json_t *)(uintptr_t)schema) : json_object();
    json_t *space = json_pack("{s:s}", "whitespace_pattern", JSON_SPACE);
    bool good =
        copy && space && (json_object_get(copy, "x-guidance") || !json_object_set(copy, "x-guidance", space));
    for (size_t i = 0; root && i < sizeof named / sizeof *named; i++) {
        json_t *schemas = json_object_get(root, named[i]);
        if (schemas) good = good && !json_object_set(copy, named[i], schemas);
    }
    char *text = good ? json_dumps(copy, JSON_COMPACT) : NULL;
    if (text)
        PUT(w, " %json ", text, " ");
    else
        out_of_memory(w);
    free(text);
    json_decref(space);
    json_decref(copy);
}

void cot_dialect_refuse(cot_dialect_writer *w, const char *keyword, const char *argument)
{
    if (w->status == COT_OK)
        w->status = cot_fail(w->error, COT_INVALID_ARGUMENT,
                             "'%s' of '%s' of the strict tool '%s' cannot be kept in calls of format '%s'",
                             keyword, argument, w->tool, w->calls->name);
}

/* ---- arguments ---- */

/* Arguments that are a JSON object, whatever their schema leaves open. */
static void put_object(cot_dialect_writer *w, const json_t *parameters)
{
    json_t *schema = parameters ? json_copy((json_t *)(uintptr_t)parameters) : json_object();
    if (!schema || json_object_set_new(schema, "type", json_string("object"))) out_of_memory(w);
    cot_dialect_put_json(w, schema, NULL);
    json_decref(schema);
}

static const char *end_of_tags(const cot_dialect_writer *w)
{
    return w->calls->function_end ? w->calls->function_end : w->calls->call_end;
}

/* Any tags, and what ends them. */
static void put_any_tags(cot_dialect_writer *w)
{
    const int32_t id = token_of(w, end_of_tags(w));
    if (id < 0) {
        PUT(w, "[lazy]: /" ANY);
        cot_dialect_put_escaped(w, end_of_tags(w));
        PUT(w, "/\n");
        return;
    }
    PUT(w, ": <[^");
    cot_dialect_put_number(w, (size_t)id);
    PUT(w, "]>*");
    cot_dialect_put_marker(w, end_of_tags(w));
    PUT(w, "\n");
}

/* Any keywords and literals of Python. */
#define PYTHON                                                                                               \
    "python: (key (WS \",\" WS key)*)?\n"                                                                    \
    "key: /[A-Za-z_][A-Za-z0-9_]*/ WS \"=\" WS literal\n"                                                    \
    "literal: STRING | /-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+\\-]?[0-9]{1,2})?/ | "                           \
    "/True|False|None|true|false|null/"                                                                      \
    " | \"[\" WS (literal (WS \",\" WS literal)*)? \"]\" | \"{\" WS (entry (WS \",\" WS entry)*)? \"}\"\n"   \
    "entry: STRING WS \":\" WS literal\n"                                                                    \
    "STRING: /\"([^\"\\\\\\n]|\\\\[nrt\"'\\\\])*\"|'([^'\\\\\\n]|\\\\[nrt\"'\\\\])*'/\n"

/* The rule args_NUMBER; of tags with the tag that ends them. */
static void put_arguments(cot_dialect_writer *w, size_t number, const json_t *function)
{
    const json_t *parameters = json_object_get(function, "parameters");
    const bool is_strict = json_is_true(json_object_get(function, "strict"));
    if (!is_strict || !json_is_object(parameters)) parameters = NULL;
    w->tool = json_string_value(json_object_get(function, "name"));
    if (w->status == COT_OK && parameters && !cot_json_schema_ends(parameters))
        w->status = cot_fail(
            w->error, COT_INVALID_ARGUMENT,
            "nothing can meet the 'parameters' of the strict tool '%s': what they ask for holds itself "
            "without an end",
            w->tool);
    if (is_strict && w->calls->form == COT_DIALECT_MARKUP) {
        cot_dialect_put_tags(w, number, parameters, end_of_tags(w));
        return;
    }
    if (is_strict && w->calls->form == COT_DIALECT_PYTHON) {
        cot_dialect_put_keywords(w, number, parameters);
        return;
    }
    PUT(w, "args_");
    cot_dialect_put_number(w, number);
    if (w->calls->form == COT_DIALECT_MARKUP)
        put_any_tags(w);
    else if (w->calls->form == COT_DIALECT_PYTHON)
        PUT(w, ": python\n");
    else {
        PUT(w, ":");
        put_object(w, parameters);
        PUT(w, "\n");
    }
}

/* ---- a call ---- */

static void put_rule(cot_dialect_writer *w, const char *name, size_t number, const char *behind)
{
    PUT(w, name, "_");
    cot_dialect_put_number(w, number);
    PUT(w, behind);
}

/* The rules of a call {"name": NAME, "parameters": {...}}: bare_N is one that begins the answer, whose begin is one word of the
 * grammar, so that other text may begin alike. */
static void put_object_call(cot_dialect_writer *w, size_t n, const char *name)
{
    PUT(w, "\"{\" WS \"\\\"name\\\"\" WS \":\" WS \"\\\"", name, "\\\"\" ");
    put_rule(w, "rest", n, "\n");
    if (w->calls->is_bare) {
        put_rule(w, "bare", n, ": ");
        put_rule(w, "BARE", n, " ");
        put_rule(w, "rest", n, "\n");
        put_rule(w, "BARE", n, ": /\\s*\\{\\s*\"name\"\\s*:\\s*\"");
        cot_dialect_put_escaped(w, name);
        PUT(w, "\"/\n");
    }
    put_rule(w, "rest", n, ": WS \",\" WS \"\\\"");
    PUT(w, w->calls->is_bare ? "parameters" : "arguments", "\\\"\" WS \":\" WS ");
    put_rule(w, "args", n, " WS \"}\"\n");
}

/* A name, a marker, a JSON object. */
static void put_headed_call(cot_dialect_writer *w, size_t n, const char *name)
{
    const cot_dialect *d = w->calls;
    if (d->has_kind) PUT(w, "\"function\"");
    if (d->has_kind) cot_dialect_put_marker(w, d->separator);
    PUT(w, d->has_address ? " \"functions.\"" : "", " \"", name,
        d->has_address ? ":\" /[0-9]{1,3}/ " : "\" ");
    if (d->id) {
        PUT(w, "(");
        cot_dialect_put_marker(w, d->id);
        PUT(w, "/[A-Za-z0-9]{1,32}/)? ");
    }
    if (d->has_kind)
        PUT(w, "\"\\n```json\\n\" ");
    else
        cot_dialect_put_marker(w, d->separator);
    put_rule(w, "args", n, d->has_kind ? " \"\\n```\"" : " ");
    cot_dialect_put_marker(w, d->call_end);
    PUT(w, "\n");
}

static void put_markup_call(cot_dialect_writer *w, size_t n, const char *name)
{
    const char *quote = w->calls->has_quotes ? "\\\"" : "";
    cot_dialect_put_marker(w, w->calls->function);
    PUT(w, " \"", quote, name, quote, w->calls->function ? ">" : "", "\" WS ");
    put_rule(w, "args", n, "\n");
}

static void put_python_call(cot_dialect_writer *w, size_t n, const char *name)
{
    PUT(w, "\"", name, "(\" ");
    put_rule(w, "args", n, " \")\"\n");
    put_rule(w, "bare", n, ": ");
    put_rule(w, "BARE", n, " ");
    put_rule(w, "args", n, " \")\"\n");
    put_rule(w, "BARE", n, ": /\\s*\\[\\s*");
    cot_dialect_put_escaped(w, name);
    PUT(w, "\\(/\n");
}

/* The end of a header whose recipient is the tool, which is one word of the grammar, and the body. Headers that are longer than
 * the parser reads would be no calls. */
static void put_harmony_call(cot_dialect_writer *w, size_t n, const char *name)
{
    static const char *const rules[] = {"TO", "DIRECT"};
    for (int i = 0; i < 2; i++) { // of a header of its own, of the one that the prompt has begun
        if (i) put_rule(w, "direct", n, ": ");
        put_rule(w, rules[i], n, " (mark KIND?){0,2} ");
        cot_dialect_put_marker(w, "<|message|>");
        put_rule(w, "args", n, "\n");
    }
    for (int i = 0; i < 2; i++) {
        put_rule(w, rules[i], n, i ? ": / to=(functions\\.)?" : ": /([A-Za-z ]{0,64} )?to=(functions\\.)?");
        cot_dialect_put_escaped(w, name);
        PUT(w, "( [a-z]{0,16})?/\n");
    }
}

static void put_call(cot_dialect_writer *w, size_t n, const json_t *function)
{
    const char *name = json_string_value(json_object_get(function, "name"));
    put_rule(w, "call", n, ": ");
    switch (w->calls->form) {
    case COT_DIALECT_OBJECTS:
        put_object_call(w, n, name);
        break;
    case COT_DIALECT_HEADED:
        put_headed_call(w, n, name);
        break;
    case COT_DIALECT_MARKUP:
        put_markup_call(w, n, name);
        break;
    case COT_DIALECT_PYTHON:
        put_python_call(w, n, name);
        break;
    case COT_DIALECT_HARMONY:
        put_harmony_call(w, n, name);
        break;
    case COT_DIALECT_NONE:
    case COT_DIALECT_FORCED:
        break;
    }
    put_arguments(w, n, function);
}

/* ---- an answer ---- */

/* The rule `calls`: what comes behind the marker that begins a call, or a list of them, with what ends it. */
static void put_calls(cot_dialect_writer *w)
{
    const cot_dialect *d = w->calls;
    PUT(w, "calls: ");
    if (d->form == COT_DIALECT_HEADED)
        PUT(w, "call ");
    else if (d->form == COT_DIALECT_PYTHON)
        PUT(w, "WS \"[\" WS call more WS ");
    else if (d->form == COT_DIALECT_MARKUP)
        PUT(w, d->function ? "WS call (WS call)* WS " : "WS call ");
    else if (d->call_end)
        PUT(w, "WS call WS ");
    else
        PUT(w, d->is_bare ? "WS call more " : "WS \"[\" WS call more WS \"]\" ");
    if (d->form != COT_DIALECT_HEADED && (d->form != COT_DIALECT_MARKUP || d->function))
        cot_dialect_put_marker(w, d->call_end);
    PUT(w, "\n");
    if (d->form == COT_DIALECT_PYTHON)
        PUT(w, "more: (WS \",\" WS call)* WS \"]\" WS\n");
    else if (d->form == COT_DIALECT_OBJECTS)
        PUT(w, d->is_bare ? "more: (NEXT call)*\nNEXT: /\\s*;?\\s*/\n" : "more: (WS \",\" WS call)*\n");
    if (!d->section) return;
    PUT(w, "section: WS ");
    cot_dialect_put_marker(w, d->call);
    PUT(w, "calls (WS ");
    cot_dialect_put_marker(w, d->call);
    PUT(w, "calls)* WS ");
    cot_dialect_put_marker(w, d->section_end);
    PUT(w, "\n");
}

/* The tools' names as a regular expression. */
static void put_names(cot_dialect_writer *w, const json_t *tools)
{
    size_t i;
    json_t *tool;
    PUT(w, "(");
    json_array_foreach(tools, i, tool)
    {
        PUT(w, i ? "|" : "");
        cot_dialect_put_escaped(
            w, json_string_value(json_object_get(json_object_get(tool, "function"), "name")));
    }
    PUT(w, ")");
}

static void put_alternatives(cot_dialect_writer *w, const char *name, size_t count)
{
    PUT(w, name, ":");
    for (size_t i = 0; i < count; i++) {
        PUT(w, i ? " | " : " ");
        put_rule(w, name, i, "");
    }
    PUT(w, "\n");
}

/* Ids of those of `markers`, up to a NULL, that are tokens: a token of them, or, `not`, none of them. */
static bool put_tokens(cot_dialect_writer *w, const char *const *markers, bool not )
{
    bool any = false;
    for (; *markers; markers++) {
        const int32_t id = token_of(w, *markers);
        if (id < 0) continue;
        PUT(w, any ? "," : not ? "<[^" : "<[");
        cot_dialect_put_number(w, (size_t)id);
        any = true;
    }
    PUT(w, any ? "]>" : "");
    return any;
}

/* Messages: one whose header names a tool is a call of it. */
static void put_any_messages(cot_dialect_writer *w)
{
    PUT(w, "start: message (end message)* end?\nmessage: ");
    cot_dialect_put_marker(w, "<|start|>");
    PUT(w, "? (PLAIN? mark)* (call | PLAIN? ");
    cot_dialect_put_marker(w, "<|message|>");
    PUT(w, "body)\n");
}

/* Analysis, then the final message, which has the format, or calls. */
static void put_formatted_messages(cot_dialect_writer *w, size_t tools)
{
    PUT(w, "start: (begin \"analysis\" ");
    cot_dialect_put_marker(w, "<|message|>");
    PUT(w, " body end)* (begin /final ?/ (mark /[A-Za-z]{1,16}/)? ");
    cot_dialect_put_marker(w, "<|message|>");
    PUT(w, " answer | called (end called)*) end? | direct (end called)* end?\nbegin: (");
    cot_dialect_put_marker(w, "<|start|>");
    PUT(w, " \"assistant\")? ");
    cot_dialect_put_marker(w, "<|channel|>");
    PUT(w, "\ncalled: (begin | ");
    cot_dialect_put_marker(w, "<|start|>");
    PUT(w, ") call\n");
    put_alternatives(w, "direct", tools);
}

static void put_messages(cot_dialect_writer *w, const json_t *tools, bool is_formatted)
{
    static const char *const ends[] = {"<|end|>", "<|call|>", "<|return|>", NULL},
                             *const marks[] = {"<|channel|>", "<|constrain|>", NULL},
                             *const within[] = {"<|end|>",   "<|call|>",    "<|return|>",
                                                "<|start|>", "<|message|>", NULL};
    if (is_formatted)
        put_formatted_messages(w, json_array_size(tools));
    else
        put_any_messages(w);
    PUT(w, "end: ");
    put_tokens(w, ends, false);
    PUT(w, "\nmark: ");
    put_tokens(w, marks, false);
    PUT(w, "\nbody: ");
    put_tokens(w, within, true);
    PUT(w, "*\nKIND: / ?[A-Za-z]{1,16}( [a-z]{0,16})?/\nPLAIN: /[^\\n]+/ & ~/[^\\n]*to=(functions\\.)?");
    put_names(w, tools);
    PUT(w, "[^\\n]*/\n");
}

/* What begins an answer that is a call without a marker: no other text begins so. */
static void put_bare_begin(cot_dialect_writer *w, const json_t *tools)
{
    const bool is_object = w->calls->form == COT_DIALECT_OBJECTS;
    PUT(w, "\\s*", is_object ? "\\{\\s*(\"(type|id|parameters|arguments)\"|\"name\"\\s*:\\s*\"" : "\\[\\s*");
    put_names(w, tools);
    PUT(w, is_object ? "\")" : "\\(");
}

/* Text and calls in turn. */
static void put_answer(cot_dialect_writer *w, const json_t *tools)
{
    const cot_dialect *d = w->calls;
    const char *const openings[] = {d->call, d->section, NULL}, *const rules[] = {"calls", "section"};
    const bool is_token = token_of(w, d->call) >= 0 || token_of(w, d->section) >= 0;
    if (d->is_bare) {
        PUT(w, "FIRST: /" ANY "/ & ~/");
        put_bare_begin(w, tools);
        PUT(w, ANY "/\n", is_token ? "" : "OPENING: /" ANY);
        if (!is_token) {
            cot_dialect_put_escaped(w, d->call);
            PUT(w, "/ & ~/");
            put_bare_begin(w, tools);
            PUT(w, ANY "/\nopening[lazy]: OPENING\n");
        }
        put_alternatives(w, "bare", json_array_size(tools));
        PUT(w, "start: bare more | FIRST ", is_token ? "(" : "| opening calls open* TEXT\n");
        if (is_token) {
            cot_dialect_put_marker(w, d->call);
            PUT(w, "calls TEXT)*\n");
            return;
        }
    } else if (is_token) {
        PUT(w, "start: (other* open)* other*\nother: ");
        put_tokens(w, openings, true);
        PUT(w, "\n");
    } else
        PUT(w, "start: open* TEXT\n");
    PUT(w, "open:");
    bool any = false;
    for (size_t i = 0; openings[i]; i++) {
        if (is_token && token_of(w, openings[i]) < 0) continue;
        PUT(w, any ? " | " : " ");
        any = true;
        if (is_token)
            cot_dialect_put_marker(w, openings[i]);
        else
            PUT(w, "to_", rules[i]);
        PUT(w, " ", rules[i]);
    }
    PUT(w, "\n");
    for (size_t i = 0; openings[i] && !is_token; i++) {
        PUT(w, "to_", rules[i], "[lazy]: /" ANY);
        cot_dialect_put_escaped(w, openings[i]);
        PUT(w, "/\n");
    }
}

/* An answer that has the format, or calls, with nothing but white space around them. */
static void put_formatted_answer(cot_dialect_writer *w)
{
    const cot_dialect *d = w->calls;
    PUT(w, "start: WS (answer | open (WS open)*");
    if (d->is_bare) PUT(w, d->form == COT_DIALECT_PYTHON ? " | \"[\" WS call more" : " | call more");
    PUT(w, ") WS\nopen: ");
    cot_dialect_put_marker(w, d->call);
    PUT(w, " calls");
    if (d->section) {
        PUT(w, " | ");
        cot_dialect_put_marker(w, d->section);
        PUT(w, " section");
    }
    PUT(w, "\n");
}

cot_status cot_dialect_grammar(cot_buffer *out, const cot_dialect *calls, const json_t *tools,
                               const json_t *format, int32_t (*token)(void *context, const char *marker),
                               void *context, cot_error *error)
{
    cot_dialect_writer w = {.calls = calls, .out = out, .token = token, .context = context, .error = error};
    size_t i;
    json_t *tool;
    PUT(&w, "%llguidance {}\n" SPACE "TEXT: /" ANY "/\n");
    if (calls->form == COT_DIALECT_HARMONY)
        put_messages(&w, tools, format);
    else {
        if (format)
            put_formatted_answer(&w);
        else
            put_answer(&w, tools);
        put_calls(&w);
        PUT(&w, calls->form == COT_DIALECT_PYTHON ? PYTHON : "");
    }
    if (format) {
        PUT(&w, "answer:");
        cot_dialect_put_json(&w, format, NULL);
        PUT(&w, "\n");
    }
    put_alternatives(&w, "call", json_array_size(tools));
    json_array_foreach(tools, i, tool) put_call(&w, i, json_object_get(tool, "function"));
    return w.status;
}
