/* Tool calls as OpenAI's API has them, with their arguments as a template wants them. */
#include "base/error.h"
#include "base/json_weight.h"
#include "tokenizer/chat.h"
#include "tokenizer/jinja/print.h"

#include <string.h>

typedef struct translation {
    bool text;
    size_t bytes; // that may still become objects
    size_t message;
    cot_error *error;
} translation;

static cot_status no_memory(const translation *t)
{
    return cot_fail(t->error, COT_OUT_OF_MEMORY, "out of memory");
}

static bool is_blank(const json_t *text)
{
    return strspn(json_string_value(text), " \t\n\r") == json_string_length(text);
}

/* Reads JSON text. What is no object stays text: it is what the model said, and the template may take it. So does one with
 * a number beyond 64 bits, which no value here holds exactly. */
static cot_status read_object(json_t **out, json_t *text, translation *t)
{
    json_error_t why;
    const cot_json_weight weight = cot_json_weigh(json_string_value(text), json_string_length(text));
    if (weight.bytes > t->bytes)
        return cot_fail(t->error, COT_MALFORMED,
                        "the arguments of messages[%zu]'s tool calls take too much memory", t->message);
    json_t *object =
        json_loadb(json_string_value(text), json_string_length(text), JSON_ALLOW_NUL | JSON_DECODE_ANY, &why);
    if (!object && json_error_code(&why) == json_error_out_of_memory) return no_memory(t);
    if (json_is_object(object)) {
        t->bytes -= weight.bytes;
        *out = object;
        return COT_OK;
    }
    *out = json_is_null(object) ? json_object() : json_incref(text);
    json_decref(object);
    return *out ? COT_OK : no_memory(t);
}

/* In the caller's memory, so that a failure's jump leaves it as it is. */
typedef struct writing {
    cot_jinja_run run;
    const cot_jinja_string *text;
} writing;

static bool try_write(writing *w, const json_t *object)
{
    if (setjmp(w->run.out)) return false;
    const cot_jinja_arguments none = {0};
    w->text = cot_jinja_tojson(&w->run, cot_chat_value(&w->run, object, false), &none).string;
    return true;
}

/* Writes JSON text as Python's json.dumps does. */
static cot_status write_text(json_t **out, const json_t *object, const translation *t)
{
    writing w = {.run.limits = cot_chat_limits};
    const bool good = try_write(&w, object);
    const cot_jinja_reason reason = w.run.failure.reason;
    if (good) *out = json_stringn(w.text->data, w.text->bytes);
    cot_jinja_end(&w.run);
    if (good ? !*out : reason == COT_JINJA_NO_MEMORY) return no_memory(t);
    return good ? COT_OK : cot_fail(t->error, COT_MALFORMED, "%s", w.run.failure.message);
}

static cot_status translate_arguments(json_t **out, json_t *arguments, translation *t)
{
    const bool is_text = json_is_string(arguments);
    if (!arguments || json_is_null(arguments) || (is_text && !t->text && is_blank(arguments))) {
        *out = t->text ? json_string("{}") : json_object();
        return *out ? COT_OK : no_memory(t);
    }
    if (is_text && !t->text) return read_object(out, arguments, t);
    if (!is_text && t->text) return write_text(out, arguments, t);
    *out = json_incref(arguments);
    return COT_OK;
}

/* Copies an object with another value under the key. */
static cot_status copy_with(json_t **out, json_t *object, const char *key, json_t *value,
                            const translation *t)
{
    *out = json_copy(object);
    if (*out && !json_object_set_new(*out, key, value)) return COT_OK; // it takes the value over either way
    json_decref(*out);
    *out = NULL;
    return no_memory(t);
}

/* A call is {"function": {"name", "arguments"}}; one without the object around its function is taken too. */
static cot_status translate_call(json_t **out, json_t *call, translation *t)
{
    json_t *function = json_object_get(call, "function"), *inner = NULL;
    cot_status status = COT_OK;
    if (json_is_object(function)) {
        status = translate_call(&inner, function, t);
        return status == COT_OK ? copy_with(out, call, "function", inner, t) : status;
    }
    *out = NULL;
    if (json_object_get(call, "name") || json_object_get(call, "arguments")) {
        status = translate_arguments(&inner, json_object_get(call, "arguments"), t);
        return status == COT_OK ? copy_with(out, call, "arguments", inner, t) : status;
    }
    *out = json_incref(call);
    return COT_OK;
}

/* Clients send an empty list where nothing is called; templates that ask whether there is one would leave the text out. */
static cot_status copy_without_calls(json_t **out, json_t *message, const translation *t)
{
    *out = json_copy(message);
    if (!*out) return no_memory(t);
    json_object_del(*out, "tool_calls");
    return COT_OK;
}

static cot_status translate_message(json_t **out, json_t *message, translation *t)
{
    json_t *calls = json_object_get(message, "tool_calls"), *list, *call, *one;
    size_t i;
    cot_status status = COT_OK;
    if (!json_is_array(calls)) {
        *out = json_incref(message);
        return COT_OK;
    }
    if (!json_array_size(calls)) return copy_without_calls(out, message, t);
    if (!(list = json_array())) return no_memory(t);
    json_array_foreach(calls, i, call)
    {
        if (status != COT_OK) break;
        status = translate_call(&one, call, t);
        if (status == COT_OK && json_array_append_new(list, one)) status = no_memory(t);
    }
    if (status == COT_OK) return copy_with(out, message, "tool_calls", list, t);
    json_decref(list);
    return status;
}

cot_status cot_chat_openai_messages(json_t **out, const json_t *messages, bool text, size_t bytes,
                                    cot_error *error)
{
    translation t = {.text = text, .bytes = bytes, .error = error};
    cot_status status = (*out = json_array()) ? COT_OK : no_memory(&t);
    json_t *message, *one = NULL;
    json_array_foreach(messages, t.message, message)
    {
        if (status != COT_OK) break;
        status = translate_message(&one, message, &t);
        if (status == COT_OK && json_array_append_new(*out, one)) status = no_memory(&t);
    }
    if (status == COT_OK) return COT_OK;
    json_decref(*out);
    *out = NULL;
    return status;
}
