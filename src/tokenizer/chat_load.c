/* A model's chat template and special tokens, found in its folder. */
#include "base/error.h"
#include "base/file.h"
#include "base/json_load.h"
#include "tokenizer/chat.h"
#include "tokenizer/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LARGEST_TEMPLATE = 1 << 24, LARGEST_CONFIG = 1 << 28 };

static bool try_parse(cot_chat_source *source, const char *text, size_t bytes)
{
    if (setjmp(source->run.out)) return false;
    cot_jinja_parse(&source->run, &source->tree, text, bytes);
    return true;
}

static void source_close(cot_chat_source *source)
{
    if (!source) return;
    cot_jinja_end(&source->run);
    free(source->text);
    free(source);
}

cot_status cot_chat_source_open(cot_chat_source **out, const char *text, size_t bytes, const char *name,
                                cot_error *error)
{
    size_t valid = cot_utf8_check(text, bytes);
    *out = NULL;
    if (bytes > LARGEST_TEMPLATE)
        return cot_fail(error, COT_MALFORMED, "the chat template '%s' has more than %d bytes", name,
                        LARGEST_TEMPLATE);
    if (valid < bytes)
        return cot_fail(error, COT_MALFORMED, "the chat template '%s' is not UTF-8 at offset %zu", name,
                        valid);
    cot_chat_source *source = calloc(1, sizeof *source);
    if (!source || !(source->text = strndup(text, bytes))) {
        free(source);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    }
    source->run.limits = cot_chat_limits;
    if (try_parse(source, text, bytes)) {
        *out = source;
        return COT_OK;
    }
    const cot_jinja_failure failure = source->run.failure;
    source_close(source);
    if (failure.reason == COT_JINJA_NO_MEMORY)
        return cot_fail(error, COT_OUT_OF_MEMORY, "%s", failure.message);
    return cot_fail(error, COT_MALFORMED, "cannot read the chat template '%s': line %d: %s", name,
                    failure.line, failure.message);
}

/* A JSON object of the model's folder, or an empty one where the file is missing. */
static cot_status read_object(json_t **out, const char *folder, const char *name, cot_error *error)
{
    char *path = cot_path_join(folder, name), *text = NULL;
    size_t bytes = 0;
    json_error_t why;
    *out = NULL;
    if (!path) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    cot_status status = cot_file_read(&text, &bytes, path, LARGEST_CONFIG, error);
    if (status == COT_OK) {
        *out = cot_json_load(text, bytes, JSON_ALLOW_NUL, &why);
        if (!*out && json_error_code(&why) == json_error_out_of_memory)
            status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
        else if (!json_is_object(*out))
            status = cot_fail(error, COT_MALFORMED, "'%s' is not a JSON object", path);
    } else if (status == COT_NOT_FOUND) {
        *out = json_object();
        status = *out ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    }
    free(text);
    free(path);
    return status;
}

/* bos_token and its kind: a string, or an object with the string as its content. What is there already stays. */
static cot_status add_tokens(json_t *tokens, const json_t *config, cot_error *error)
{
    const char *key;
    json_t *token;
    json_object_foreach((json_t *)(uintptr_t)config, key, token)
    {
        size_t bytes = strlen(key);
        json_t *text = json_is_object(token) ? json_object_get(token, "content") : token;
        if (bytes < 6 || strcmp(key + bytes - 6, "_token") != 0 || !json_is_string(text)) continue;
        if (!json_object_get(tokens, key) && json_object_set(tokens, key, text))
            return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    }
    return COT_OK;
}

/* Reads a template of this name; one of the same name that was read before is gone. Other names than "default" and
 * "tool_use" are for who chooses templates by hand. A "tool_use" that cannot be read is told where tools are given. */
static cot_status add_source(cot_chat_template *chat, const char *kind, const char *text, size_t bytes,
                             const char *name, cot_error *error)
{
    const bool tool_use = !strcmp(kind, "tool_use");
    cot_chat_source **out = tool_use ? &chat->tool_use : &chat->plain;
    if (!tool_use && strcmp(kind, "default") != 0) return COT_OK;
    source_close(*out);
    if (!tool_use) return cot_chat_source_open(out, text, bytes, name, error);
    chat->tool_use_error = (cot_error){0};
    const cot_status status = cot_chat_source_open(out, text, bytes, name, &chat->tool_use_error);
    return status == COT_OUT_OF_MEMORY ? cot_fail(error, status, "out of memory") : COT_OK;
}

static cot_status read_file(cot_chat_template *chat, const char *kind, const char *path, cot_error *error)
{
    char *text = NULL;
    size_t bytes = 0;
    cot_status status = cot_file_read(&text, &bytes, path, LARGEST_TEMPLATE, error);
    if (status == COT_OK) status = add_source(chat, kind, text, bytes, path, error);
    free(text);
    return status;
}

static cot_status read_value(cot_chat_template *chat, const char *kind, const json_t *value, cot_error *error)
{
    if (!kind || !json_is_string(value)) return COT_OK;
    return add_source(chat, kind, json_string_value(value), json_string_length(value),
                      "chat_template of tokenizer_config.json", error);
}

/* 'chat_template' of tokenizer_config.json: a template, a list of templates with names, or an object of them. */
static cot_status read_config(cot_chat_template *chat, const json_t *config, cot_error *error)
{
    json_t *value = json_object_get(config, "chat_template"), *item;
    const char *kind;
    size_t i;
    cot_status status = read_value(chat, "default", value, error);
    json_array_foreach(value, i, item)
    {
        kind = json_string_value(json_object_get(item, "name"));
        if (status == COT_OK) status = read_value(chat, kind, json_object_get(item, "template"), error);
    }
    json_object_foreach(value, kind, item) if (status == COT_OK) status = read_value(chat, kind, item, error);
    return status;
}

/* chat_template.jinja and additional_chat_templates/NAME.jinja, any of which may be missing. */
static cot_status read_files(cot_chat_template *chat, const char *folder, cot_error *error)
{
    static const char *const files[][2] = {{"default", "chat_template.jinja"},
                                           {"default", "additional_chat_templates/default.jinja"},
                                           {"tool_use", "additional_chat_templates/tool_use.jinja"}};
    cot_status status = COT_OK;
    for (size_t i = 0; i < sizeof files / sizeof *files && status == COT_OK; i++) {
        char *path = cot_path_join(folder, files[i][1]);
        status = path ? read_file(chat, files[i][0], path, error)
                      : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
        if (status == COT_NOT_FOUND) status = COT_OK;
        free(path);
    }
    return status;
}

static bool has_any(const cot_chat_template *chat)
{
    return chat->plain || chat->tool_use || chat->tool_use_error.status != COT_OK;
}

/* Files go before tokenizer_config.json, which is not looked into then. */
static cot_status read_template(cot_chat_template *chat, const char *model, const char *folder,
                                const char *file, const json_t *config, cot_error *error)
{
    if (file) return read_file(chat, "default", file, error);
    cot_status status = folder ? read_files(chat, folder, error) : COT_OK;
    if (status == COT_OK && !has_any(chat)) status = read_config(chat, config, error);
    const cot_error *broken = &chat->tool_use_error;
    if (status == COT_OK && broken->status != COT_OK && !chat->plain) // nothing else is there
        return cot_fail(error, broken->status, "%s", broken->message);
    if (status == COT_OK && !has_any(chat))
        status = cot_fail(error, COT_NOT_FOUND,
                          "'%s' has no chat template (%s): give one with --chat-template FILE", model,
                          folder ? "chat_template.jinja, or 'chat_template' of tokenizer_config.json"
                                 : "'tokenizer.chat_template' of its metadata");
    return status;
}

/* `folder`: NULL where the model is a GGUF file. */
static cot_status read_model(cot_chat_template *chat, const char *model, const char *folder, const char *file,
                             cot_error *error)
{
    json_t *config = NULL, *map = NULL;
    cot_status status = folder ? read_object(&config, folder, "tokenizer_config.json", error)
                               : cot_chat_gguf_config(&config, model, error);
    if (status == COT_OK && folder) status = read_object(&map, folder, "special_tokens_map.json", error);
    if (status == COT_OK) status = add_tokens(chat->tokens, config, error);
    if (status == COT_OK) status = add_tokens(chat->tokens, map, error);
    if (status == COT_OK) status = read_template(chat, model, folder, file, config, error);
    json_decref(config);
    json_decref(map);
    return status;
}

/* The model's folder: of a tokenizer.json, the one that it is in. NULL when out of memory. */
static char *folder_of(const char *model, const struct stat *info)
{
    const char *slash = strrchr(model, '/');
    if (S_ISDIR(info->st_mode)) return strdup(model);
    return slash ? strndup(model, (size_t)(slash - model + 1)) : strdup(".");
}

static cot_status finish(cot_chat_template **out, cot_chat_template *chat, cot_status status)
{
    *out = status == COT_OK ? chat : NULL;
    if (status == COT_OK) cot_chat_probe(chat);
    if (status != COT_OK) cot_chat_template_close(chat);
    return status;
}

char *cot_chat_describe(const cot_chat_template *chat)
{
    const cot_chat_source *source = chat->plain ? chat->plain : chat->tool_use;
    json_t *json = json_copy(chat->tokens);
    char *text = json && !json_object_set_new(json, "chat_template", json_string(source->text))
                     ? json_dumps(json, JSON_COMPACT)
                     : NULL;
    json_decref(json);
    return text;
}

static cot_chat_template *chat_new(void)
{
    cot_chat_template *chat = calloc(1, sizeof *chat);
    if (!chat || (chat->tokens = json_object())) return chat;
    free(chat);
    return NULL;
}

cot_status cot_chat_template_open(cot_chat_template **out, const char *model, const char *file,
                                  cot_error *error)
{
    struct stat info;
    *out = NULL;
    if (stat(model, &info))
        return cot_fail(error, COT_NOT_FOUND, "cannot open '%s': %s", model, strerror(errno));
    cot_chat_template *chat = chat_new();
    const bool gguf = !S_ISDIR(info.st_mode) && cot_gguf_is_file(model);
    char *folder = gguf ? NULL : folder_of(model, &info);
    cot_status status = chat && (folder || gguf) ? read_model(chat, model, folder, file, error)
                                                 : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    free(folder);
    return finish(out, chat, status);
}

cot_status cot_chat_template_parse(cot_chat_template **out, const char *text, size_t bytes, const char *name,
                                   cot_error *error)
{
    cot_chat_template *chat = chat_new();
    cot_status status = chat ? cot_chat_source_open(&chat->plain, text, bytes, name, error)
                             : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    return finish(out, chat, status);
}

void cot_chat_template_close(cot_chat_template *chat)
{
    if (!chat) return;
    source_close(chat->plain);
    source_close(chat->tool_use);
    json_decref(chat->tokens);
    free(chat);
}
