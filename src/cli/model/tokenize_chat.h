/* Conversations of `coterie tokenize`. */
#ifndef COT_CLI_MODEL_TOKENIZE_CHAT_H
#define COT_CLI_MODEL_TOKENIZE_CHAT_H
#include "cli/frame/command.h"

/* What the rows below fill; names are those of vLLM's requests. */
typedef struct cli_chat_settings {
    const char *messages, *chat_template, *chat_template_kwargs;
    bool add_generation_prompt, no_generation_prompt, continue_final_message, openai;
} cli_chat_settings;

extern const cli_option cli_chat_rows[];

/* Whether an option of a chat was given, other than the messages. */
bool cli_is_chat_asked(const cli_chat_settings *settings);
/* Renders the conversation by the model's template, or the one given, and prints the text as it is, or with `json` a
 * line of text and ids. Returns a CLI_EXIT_ value after saying what is wrong. */
int cli_tokenize_chat(const cli_chat_settings *settings, const char *model, bool json);

#endif
