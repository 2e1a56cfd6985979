#include "cli/model/tokenize_chat.h"

#include "coterie/chat.h"
#include "cli/frame/whole_file.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

const cli_option cli_chat_rows[] = {
    {"messages", 0, CLI_OPTION_TEXT, "FILE", NULL,
     "render a conversation: JSON, a list of messages or an object of 'messages', 'tools', 'documents' and "
     "'chat_template_kwargs' (- for standard input)",
     offsetof(cli_chat_settings, messages)},
    {"chat-template", 0, CLI_OPTION_TEXT, "FILE", NULL, "render by this template, not by the model's",
     offsetof(cli_chat_settings, chat_template)},
    {"add-generation-prompt", 0, CLI_OPTION_FLAG, NULL, NULL,
     "end with what begins an answer (so it is, unless the final message is continued)",
     offsetof(cli_chat_settings, add_generation_prompt)},
    {"no-generation-prompt", 0, CLI_OPTION_FLAG, NULL, NULL, "end with the last message",
     offsetof(cli_chat_settings, no_generation_prompt)},
    {"continue-final-message", 0, CLI_OPTION_FLAG, NULL, NULL,
     "leave the last message open, to be gone on with", offsetof(cli_chat_settings, continue_final_message)},
    {"openai", 0, CLI_OPTION_FLAG, NULL, NULL,
     "tool calls have 'arguments' of JSON text, as over the API: objects are made of it where the template "
     "wants some",
     offsetof(cli_chat_settings, openai)},
    {"chat-template-kwargs", 0, CLI_OPTION_TEXT, "JSON", NULL,
     "further variables of the template, an object: '{\"enable_thinking\": false}'",
     offsetof(cli_chat_settings, chat_template_kwargs)},
    {0}};

bool cli_is_chat_asked(const cli_chat_settings *s)
{
    return s->chat_template || s->chat_template_kwargs || s->add_generation_prompt ||
           s->no_generation_prompt || s->continue_final_message || s->openai;
}

static json_t *ids_json(const int32_t *ids, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count && list; i++)
        if (json_array_append_new(list, json_integer(ids[i]))) {
            json_decref(list);
            list = NULL;
        }
    return list;
}

static int print_line(const cot_chat_text *text, const int32_t *ids, size_t count)
{
    json_t *line = json_object();
    const bool good = !json_object_set_new(line, "text", json_stringn(text->text, text->bytes)) &&
                      !json_object_set_new(line, "ids", ids_json(ids, count)) &&
                      (!json_dumpf(line, stdout, JSON_COMPACT) || ferror(stdout));
    json_decref(line);
    if (!good) return cli_complain("out of memory");
    putchar('\n');
    return CLI_EXIT_OK;
}

static int print_ids(const cot_chat_text *text, const char *model)
{
    cot_tokenizer *tokenizer;
    cot_error error = {0};
    int32_t *ids = NULL;
    size_t count = 0;
    cot_status status = cot_tokenizer_open(&tokenizer, model, &error);
    if (status == COT_OK) status = cot_chat_encode(tokenizer, &ids, &count, text, &error);
    int exit_status = status == COT_OK ? print_line(text, ids, count) : cli_complain_of(&error);
    free(ids);
    cot_tokenizer_close(tokenizer);
    return exit_status;
}

static int print(const cot_chat_text *text, const char *model, bool json)
{
    if (json) return print_ids(text, model);
    fwrite(text->text, 1, text->bytes, stdout);
    return CLI_EXIT_OK;
}

int cli_tokenize_chat(const cli_chat_settings *s, const char *model, bool json)
{
    cot_chat_template *chat;
    cot_chat_text text = {0};
    cot_error error = {0};
    size_t bytes;
    if (s->no_generation_prompt && s->add_generation_prompt) {
        cli_complain("--no-generation-prompt and --add-generation-prompt exclude one another");
        return CLI_EXIT_USAGE;
    }
    const cot_chat_options options = {.size = sizeof options,
                                      .add_generation_prompt =
                                          s->add_generation_prompt ||
                                          !(s->no_generation_prompt || s->continue_final_message),
                                      .continue_final_message = s->continue_final_message,
                                      .openai = s->openai,
                                      .chat_template_kwargs = s->chat_template_kwargs};
    if (cot_chat_template_open(&chat, model, s->chat_template, &error) != COT_OK)
        return cli_complain_of(&error);
    char *conversation = cli_read_whole(s->messages, &bytes);
    int exit_status = CLI_EXIT_FAILURE;
    if (conversation)
        exit_status = cot_chat_render(chat, &text, conversation, bytes, &options, &error) == COT_OK
                          ? print(&text, model, json)
                          : cli_complain_of(&error);
    free(conversation);
    cot_chat_text_free(&text);
    cot_chat_template_close(chat);
    return exit_status;
}
