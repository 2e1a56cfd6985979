#include "server/said.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* ---- what the parser says ---- */

static bool on_content(void *context, const char *text, size_t bytes)
{
    cot_said *m = context;
    return cot_buffer_append(&m->content, text, bytes);
}

static bool on_reasoning(void *context, const char *text, size_t bytes)
{
    cot_said *m = context;
    return m->drops_reasoning || cot_buffer_append(&m->reasoning, text, bytes);
}

/* An id that nobody else has: letters and digits. */
static char *new_id(bool is_short)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    unsigned char bits[24];
    const size_t count = is_short ? 9 : sizeof bits;
    cot_buffer id = {0};
    if (getrandom(bits, sizeof bits, 0) != sizeof bits || (!is_short && !cot_buffer_text(&id, "call_")))
        return NULL;
    for (size_t i = 0; i < count; i++)
        if (!cot_buffer_append(&id, &letters[bits[i] % (sizeof letters - 1)], 1)) return NULL;
    return id.data;
}

static bool on_call(void *context, const char *name, size_t bytes, const char *id, size_t id_bytes)
{
    cot_said *m = context;
    void *calls = m->calls;
    m->drops_call = m->is_single && m->call_count;
    if (m->drops_call) return true;
    if (!cot_grow(&calls, &m->call_room, m->call_count + 1, sizeof *m->calls)) return false;
    m->calls = calls;
    m->calls[m->call_count] = (cot_said_call){
        .id = id && id_bytes ? strndup(id, id_bytes) : new_id(m->is_short), .name = strndup(name, bytes)};
    const cot_said_call *call = &m->calls[m->call_count++];
    return call->id && call->name;
}

static bool on_arguments(void *context, const char *text, size_t bytes)
{
    cot_said *m = context;
    return m->drops_call || cot_buffer_append(&m->calls[m->call_count - 1].arguments, text, bytes);
}

/* ---- a message's life ---- */

static bool is_token(void *context, const char *marker)
{
    return cot_tokenizer_added_token(context, marker) >= 0;
}

/* Whether all of the answer behind its reasoning has to be JSON of a schema, or calls. What a regular expression, a grammar or choices say is
 * the model's own text, in which they may have it write calls and reasoning. */
static bool is_held(const cot_api_request *r)
{
    const cot_api_constraint *c = &r->constraint;
    return c->compiled && !c->lets_text && (c->is_of_calls || c->kind == COT_CONSTRAINT_JSON_SCHEMA);
}

/* How the request's calls are written. */
static const cot_dialect *calls_of(const cot_api_request *r, const cot_served_model *model)
{
    const cot_dialect *d = model->dialects.calls;
    const bool is_text = r->tools.choice == COT_API_TOOLS_AUTO && is_held(r) && !r->constraint.is_of_calls;
    switch (is_text ? COT_API_TOOLS_NONE : r->tools.choice) {
    case COT_API_TOOLS_NAMED:
        return &cot_dialect_forced;
    case COT_API_TOOLS_REQUIRED:
        return &cot_dialect_list;
    case COT_API_TOOLS_AUTO:
        return d;
    case COT_API_TOOLS_NONE:
        break;
    }
    return d && d->form == COT_DIALECT_HARMONY ? d : NULL; // whose content is within its messages
}

/* How its reasoning is: of an answer that is held there is none where its constraint lets none come (choice.c). */
static const cot_dialect *reasoning_of(const cot_api_request *r, const cot_served_model *model)
{
    const cot_served_dialects *d = &model->dialects;
    const bool may_reason = d->end >= 0 && (d->begin >= 0 || r->opens_reasoning);
    return is_held(r) && !may_reason ? NULL : d->reasoning;
}

bool cot_said_reads(const cot_api_request *r, const cot_served_model *model)
{
    return r->kind == COT_API_CHAT && (calls_of(r, model) || reasoning_of(r, model));
}

bool cot_said_open(cot_said *m, const cot_api_request *r, const cot_served_model *model)
{
    const cot_dialect *calls = calls_of(r, model), *reasoning = reasoning_of(r, model);
    *m = (cot_said){.legacy = r->tools.legacy,
                    .is_single = !r->tools.parallel || r->tools.legacy,
                    .drops_reasoning = !r->include_reasoning,
                    .is_short = model->dialects.calls && model->dialects.calls->is_short};
    if (!cot_buffer_append(&m->content, "", 0) || !cot_buffer_append(&m->reasoning, "", 0)) return false;
    if (!cot_said_reads(r, model)) return true;
    const cot_dialect_options options = {.calls = calls,
                                         .reasoning = reasoning,
                                         .is_opened = r->opens_reasoning,
                                         .is_held = is_held(r),
                                         .shows_special = !r->skip_special_tokens,
                                         .forced_name = r->tools.named,
                                         .tools =
                                             r->tools.choice == COT_API_TOOLS_NONE ? NULL : r->tools.list,
                                         .is_token = is_token,
                                         .context = (void *)(uintptr_t)model->tokenizer,
                                         .listener = {m, on_content, on_reasoning, on_call, on_arguments}};
    m->parser = cot_dialect_open(&options);
    return m->parser;
}

void cot_said_close(cot_said *m)
{
    for (size_t i = 0; i < m->call_count; i++) {
        free(m->calls[i].id);
        free(m->calls[i].name);
        cot_buffer_free(&m->calls[i].arguments);
    }
    free(m->calls);
    cot_dialect_close(m->parser);
    cot_buffer_free(&m->content);
    cot_buffer_free(&m->reasoning);
}

bool cot_said_take(cot_said *m, const char *text, size_t bytes)
{
    return m->parser ? cot_dialect_push(m->parser, text, bytes) : cot_buffer_append(&m->content, text, bytes);
}

bool cot_said_end(cot_said *m, bool is_cut)
{
    return !m->parser || cot_dialect_finish(m->parser, is_cut);
}

void cot_said_forget(cot_said *m)
{
    m->content.bytes = m->reasoning.bytes = 0;
    for (size_t i = 0; i < m->call_count; i++) {
        m->calls[i].told = true;
        m->calls[i].arguments.bytes = 0;
    }
}

size_t cot_said_unread(const cot_said *m)
{
    return m->parser ? cot_dialect_unread(m->parser) : 0;
}

/* ---- as JSON ---- */

/* Sets a member, which is taken over; false: it could not be had. */
static bool set(json_t *object, const char *name, json_t *value)
{
    return !json_object_set_new(object, name, value);
}

static json_t *text_of(const cot_buffer *text)
{
    return json_stringn(text->bytes ? text->data : "", text->bytes);
}

/* The reasoning has two names: OpenAI's clients and servers agree on none. */
static bool set_reasoning(json_t *message, const cot_said *m)
{
    return set(message, "reasoning_content", text_of(&m->reasoning)) &&
           set(message, "reasoning", text_of(&m->reasoning));
}

/* A call, or what is new of one; `index` of a stream, else -1. */
static json_t *call_json(const cot_said_call *call, json_int_t index, bool named)
{
    json_t *function = json_object(), *json = json_object();
    bool good = function && json && (index < 0 || set(json, "index", json_integer(index)));
    if (named)
        good = good && set(json, "id", json_string(call->id)) && set(json, "type", json_string("function")) &&
               set(function, "name", json_string(call->name));
    good = good && set(function, "arguments", text_of(&call->arguments));
    good = set(json, "function", function) && good;
    if (good) return json;
    json_decref(json);
    return NULL;
}

static bool set_function_call(json_t *message, const cot_said_call *call, bool named)
{
    json_t *json = call_json(call, -1, named);
    const bool good = json && !json_object_set(message, "function_call", json_object_get(json, "function"));
    json_decref(json);
    return good;
}

json_t *cot_said_delta(cot_said *m, bool role)
{
    json_t *delta = json_object(), *calls = NULL;
    bool good = delta && (!role || set(delta, "role", json_string("assistant")));
    if (!m->parser || m->content.bytes || role) good = good && set(delta, "content", text_of(&m->content));
    if (m->reasoning.bytes) good = good && set_reasoning(delta, m);
    for (size_t i = 0; i < m->call_count && good; i++) {
        cot_said_call *call = &m->calls[i];
        if (call->told && !call->arguments.bytes) continue;
        if (!calls) calls = json_array();
        good = m->legacy ? set_function_call(delta, call, !call->told)
                         : !json_array_append_new(calls, call_json(call, (json_int_t)i, !call->told));
        call->told = true;
        call->arguments.bytes = 0;
    }
    if (calls && !m->legacy)
        good = set(delta, "tool_calls", calls) && good;
    else
        json_decref(calls);
    m->content.bytes = m->reasoning.bytes = 0;
    if (good) return delta;
    json_decref(delta);
    return NULL;
}

json_t *cot_said_whole(const cot_said *m)
{
    json_t *message = json_object(), *calls = m->call_count && !m->legacy ? json_array() : NULL;
    // OpenAI's clients take no content for null where there are calls
    const bool is_null = !m->content.bytes && (m->call_count || m->reasoning.bytes);
    bool good = message && set(message, "role", json_string("assistant")) &&
                set(message, "content", is_null ? json_null() : text_of(&m->content)) &&
                set(message, "refusal", json_null());
    if (m->reasoning.bytes) good = good && set_reasoning(message, m);
    for (size_t i = 0; i < m->call_count && good; i++)
        good = m->legacy ? set_function_call(message, &m->calls[i], true)
                         : !json_array_append_new(calls, call_json(&m->calls[i], -1, true));
    if (calls) good = set(message, "tool_calls", calls) && good;
    if (good) return message;
    json_decref(message);
    return NULL;
}
