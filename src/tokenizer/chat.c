#include "tokenizer/chat.h"

#include "base/error.h"
#include "tokenizer/jinja/print.h"
#include "tokenizer/parts.h"

#include <stdlib.h>
#include <string.h>

const cot_jinja_limits cot_chat_limits = {.steps = (uint64_t)1 << 26, .bytes = (size_t)512 << 20};

/* One rendering; in the caller's memory, so that a failure's jump leaves it as it is. */
typedef struct rendering {
    cot_jinja_run run;
    cot_jinja_builder text;
    const cot_chat_template *chat;
    const cot_chat_source *source;
    const cot_chat_request *request;
    const json_t *messages;
    cot_chat_no_content without;
    bool *joined, *read; // [messages]
} rendering;

static void put(cot_jinja_run *run, cot_jinja_value map, const char *key, cot_jinja_value value)
{
    cot_jinja_map_put(run, map.map, cot_jinja_text(run, key), value);
}

static void put_all(cot_jinja_run *run, cot_jinja_value map, const json_t *object, bool own)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
        put(run, map, key, cot_chat_value(run, value, own));
}

static void render(rendering *r)
{
    cot_jinja_run *run = &r->run;
    const cot_chat_request *request = r->request;
    const cot_jinja_string *last = NULL;
    cot_jinja_value variables = cot_jinja_map_new(run, 16);
    cot_jinja_value messages = cot_chat_messages(run, r->messages, r->without, r->joined, r->read);
    if (request->continue_final_message) last = cot_chat_tag_last(run, messages);
    put(run, variables, "messages", messages);
    put(run, variables, "tools", cot_chat_value(run, request->tools, false));
    put(run, variables, "documents", cot_chat_value(run, request->documents, false));
    put(run, variables, "add_generation_prompt", cot_jinja_bool(request->add_generation_prompt));
    put_all(run, variables, r->chat->tokens, true);
    for (int i = 0; i < 2; i++) put_all(run, variables, request->variables[i], false);
    cot_jinja_render(run, &r->source->tree, variables.map, &r->text);
    run->line = 0;
    if (last) cot_chat_cut(run, &r->text, last);
}

static bool try_render(rendering *r)
{
    cot_jinja_end(&r->run);
    r->run = (cot_jinja_run){.limits = r->request->limits, .now = r->request->now};
    r->text = (cot_jinja_builder){.run = &r->run};
    if (setjmp(r->run.out)) return false;
    render(r);
    return true;
}

/* Marks the messages in parts of which the template has read none. */
static bool join_unread(rendering *r)
{
    bool any = false;
    size_t i;
    json_t *message;
    json_array_foreach(r->messages, i, message)
    {
        r->joined[i] = json_is_array(json_object_get(message, "content")) && !r->read[i];
        any |= r->joined[i];
    }
    return any;
}

static cot_status fail(const cot_jinja_failure *failure, cot_error *error)
{
    const char *message = failure->message;
    switch (failure->reason) {
    case COT_JINJA_NO_MEMORY:
        return cot_fail(error, COT_OUT_OF_MEMORY, "%s", message);
    case COT_JINJA_STOPPED:
        return cot_fail(error, COT_TIMED_OUT, "%s", message);
    case COT_JINJA_RAISED:
        return cot_fail(error, COT_INVALID_ARGUMENT, "the chat template refuses: %s", message);
    case COT_JINJA_LIMIT:
        return cot_fail(error, COT_MALFORMED, "the chat template fails on line %d: %s", failure->line,
                        message);
    default:
        if (!failure->line) return cot_fail(error, COT_INVALID_ARGUMENT, "%s", message);
        return cot_fail(error, COT_INVALID_ARGUMENT, "the chat template fails on line %d: %s", failure->line,
                        message);
    }
}

static cot_status copy_out(cot_chat_text *out, const cot_jinja_builder *text, cot_error *error)
{
    *out = (cot_chat_text){malloc(text->bytes + 1), text->bytes, malloc(text->bytes + 1)};
    if (!out->text || !out->own) {
        cot_chat_text_free(out);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    }
    if (text->bytes) {
        memcpy(out->text, text->data, text->bytes);
        memcpy(out->own, text->own, text->bytes);
    }
    out->text[text->bytes] = 0;
    return COT_OK;
}

static bool all_have_content(const json_t *messages)
{
    json_t *message;
    size_t i;
    json_array_foreach(messages, i, message) if (!cot_chat_has_content(message)) return false;
    return true;
}

static bool try_with(rendering *r, cot_chat_no_content without)
{
    const size_t count = json_array_size(r->messages);
    r->without = without;
    memset(r->joined, 0, 2 * count);
    const bool good = try_render(r);
    return !r->request->strict && join_unread(r) ? try_render(r) : good;
}

/* Content that transformers leaves undefined is none where the template fails so, and empty where it fails on that too;
 * but an empty text is nothing to be continued. Of all failures the first is told. */
static bool try_all(rendering *r)
{
    if (try_with(r, COT_CHAT_UNDEFINED)) return true;
    const cot_jinja_failure first = r->run.failure;
    const bool may_differ =
        first.reason <= COT_JINJA_SECURITY && !r->request->strict && !all_have_content(r->messages);
    if (may_differ && try_with(r, COT_CHAT_NONE)) return true;
    if (may_differ && !r->request->continue_final_message && try_with(r, COT_CHAT_EMPTY)) return true;
    r->run.failure = first;
    return false;
}

static cot_status render_messages(rendering *r, cot_chat_text *out, cot_jinja_failure *failure,
                                  cot_error *error)
{
    const size_t count = json_array_size(r->messages);
    r->joined = malloc(2 * count + 1);
    if (!r->joined) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    r->read = r->joined + count;
    const bool good = try_all(r);
    if (failure) *failure = r->run.failure;
    const cot_status status = good ? copy_out(out, &r->text, error) : fail(&r->run.failure, error);
    cot_jinja_end(&r->run);
    free(r->joined);
    return status;
}

cot_status cot_chat_render_request(const cot_chat_template *chat, cot_chat_text *out,
                                   const cot_chat_request *request, cot_jinja_failure *failure,
                                   cot_error *error)
{
    const bool tools = request->tools && !json_is_null(request->tools);
    const cot_chat_source *source = tools && chat->tool_use ? chat->tool_use : chat->plain;
    rendering r = {.chat = chat, .source = source, .request = request, .messages = request->messages};
    json_t *decoded = NULL;
    cot_status status = COT_OK;
    *out = (cot_chat_text){0};
    if (tools && chat->tool_use_error.status != COT_OK)
        return cot_fail(error, COT_INVALID_ARGUMENT, "%s", chat->tool_use_error.message);
    if (!source)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "the model's chat template is for conversations with tools alone");
    if (request->openai) {
        status = cot_chat_openai_messages(&decoded, request->messages, source->wants_text,
                                          request->limits.bytes, error);
        r.messages = decoded;
    }
    if (status == COT_OK) status = render_messages(&r, out, failure, error);
    json_decref(decoded);
    return status;
}

static cot_status check_part(const json_t *part, size_t index, cot_error *error)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    if (json_is_string(part)) return COT_OK;
    if (type && strcmp(type, "text") != 0)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "messages[%zu] has a part of type '%s', text alone is supported", index, type);
    if (!type || !json_is_string(json_object_get(part, "text")))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "messages[%zu] has a part that is not {\"type\": \"text\", \"text\": a string}",
                        index);
    return COT_OK;
}

static cot_status check_message(const json_t *message, size_t index, cot_error *error)
{
    const json_t *content = json_object_get(message, "content");
    cot_status status = COT_OK;
    if (!json_is_string(json_object_get(message, "role")))
        return cot_fail(error, COT_INVALID_ARGUMENT, "messages[%zu] is not an object with a 'role'", index);
    if (content && !json_is_null(content) && !json_is_string(content) && !json_is_array(content))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "the content of messages[%zu] is neither text nor a list of parts", index);
    for (size_t i = 0; i < json_array_size(content) && status == COT_OK; i++)
        status = check_part(json_array_get(content, i), index, error);
    return status;
}

static cot_status check_list(const json_t *list, const char *name, cot_error *error)
{
    if (list && !json_is_null(list) && !json_is_array(list))
        return cot_fail(error, COT_INVALID_ARGUMENT, "'%s' is not a list", name);
    return COT_OK;
}

static cot_status check_variables(const json_t *variables, cot_error *error)
{
    static const char *const taken[] = {"messages", "tools", "documents", "add_generation_prompt",
                                        "continue_final_message"};
    if (variables && !json_is_object(variables) && !json_is_null(variables))
        return cot_fail(error, COT_INVALID_ARGUMENT, "chat_template_kwargs is not an object");
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        if (json_object_get(variables, taken[i]))
            return cot_fail(error, COT_INVALID_ARGUMENT, "chat_template_kwargs cannot set '%s'", taken[i]);
    return COT_OK;
}

/* Takes the request's lists out of the conversation. */
static cot_status read_conversation(cot_chat_request *request, const json_t *root, cot_error *error)
{
    static const char *const known[] = {"messages", "tools", "documents", "chat_template_kwargs"};
    const json_t **fields[] = {&request->messages, &request->tools, &request->documents,
                               &request->variables[0]};
    const char *key;
    json_t *value;
    if (json_is_array(root)) request->messages = root;
    json_object_foreach((json_t *)(uintptr_t)root, key, value)
    {
        size_t i = 0;
        while (i < 4 && strcmp(key, known[i]) != 0) i++;
        if (i == 4)
            return cot_fail(
                error, COT_INVALID_ARGUMENT,
                "the conversation has '%.100s', not messages, tools, documents or chat_template_kwargs", key);
        *fields[i] = value;
    }
    if (!json_array_size(request->messages))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "the conversation is neither a list of messages nor an object with 'messages'");
    cot_status status = check_list(request->tools, "tools", error);
    if (status == COT_OK) status = check_list(request->documents, "documents", error);
    for (size_t i = 0; i < json_array_size(request->messages) && status == COT_OK; i++)
        status = check_message(json_array_get(request->messages, i), i, error);
    for (int i = 0; i < 2 && status == COT_OK; i++) status = check_variables(request->variables[i], error);
    return status;
}

static cot_status load_json(json_t **out, const char *text, size_t bytes, const char *name, cot_error *error)
{
    json_error_t why;
    *out = json_loadb(text, bytes, JSON_ALLOW_NUL, &why);
    if (*out) return COT_OK;
    if (json_error_code(&why) == json_error_out_of_memory)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    return cot_fail(error, COT_INVALID_ARGUMENT, "%s is not JSON: line %d: %s", name, why.line, why.text);
}

cot_status cot_chat_render(const cot_chat_template *chat, cot_chat_text *out, const char *conversation,
                           size_t bytes, const cot_chat_options *options, cot_error *error)
{
    json_t *root = NULL, *variables = NULL;
    cot_status status = COT_OK;
    *out = (cot_chat_text){0};
    if (options->size != sizeof *options)
        return cot_fail(error, COT_INVALID_ARGUMENT, "cot_chat_options has %zu bytes, not %zu", options->size,
                        sizeof *options);
    if (options->add_generation_prompt && options->continue_final_message)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "continue_final_message and add_generation_prompt exclude one another");
    if (options->chat_template_kwargs)
        status = load_json(&variables, options->chat_template_kwargs, strlen(options->chat_template_kwargs),
                           "chat_template_kwargs", error);
    if (status == COT_OK) status = load_json(&root, conversation, bytes, "the conversation", error);
    cot_chat_request request = {.add_generation_prompt = options->add_generation_prompt,
                                .continue_final_message = options->continue_final_message,
                                .openai = options->openai,
                                .variables = {NULL, variables},
                                .limits = cot_chat_limits};
    request.limits.is_stopped = options->is_stopped;
    request.limits.context = options->context;
    if (status == COT_OK) status = read_conversation(&request, root, error);
    if (status == COT_OK) status = cot_chat_render_request(chat, out, &request, NULL, error);
    json_decref(root);
    json_decref(variables);
    return status;
}

void cot_chat_text_free(cot_chat_text *text)
{
    free(text->text);
    free(text->own);
    *text = (cot_chat_text){0};
}

cot_status cot_chat_encode(const cot_tokenizer *tokenizer, int32_t **ids, size_t *count,
                           const cot_chat_text *text, cot_error *error)
{
    return cot_tokenizer_encode_within(tokenizer, ids, count, text->text, text->bytes, text->own, false, NULL,
                                       error);
}
