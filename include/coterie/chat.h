/* Chat templates: a conversation to the text that a model was trained on, and to its ids.
 *
 *     conversation (JSON) --template (Jinja)--> text, of which each byte knows whose it is --tokenizer--> ids
 *
 * A template is text that came with a model, in the language of Jinja. It is run by an interpreter of our own that has
 * no access to anything, and as transformers runs it: apply_chat_template's preparations of messages, its settings of
 * Jinja, its functions. A rendering takes at most 2^26 steps and 512 MiB. */
#ifndef COTERIE_CHAT_H
#define COTERIE_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "coterie/status.h"
#include "coterie/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Immutable once open: any number of threads may use one at a time. */
typedef struct cot_chat_template cot_chat_template;

/* Reads the template of the model `model`, a GGUF file (tokenizer.chat_template and tokenizer.chat_template.NAME of its metadata) or a
 * folder: chat_template.jinja with additional_chat_templates/NAME.jinja, or
 * 'chat_template' of tokenizer_config.json, one text or several with names; of several, "tool_use" for conversations with
 * tools and "default" (chat_template.jinja) for the others. `file`, where it is not NULL, is read instead. The model's special tokens (bos_token, ...) come from tokenizer_config.json and
 * special_tokens_map.json either way. On success the caller owns `*chat`; on failure it is NULL. Errors: NOT_FOUND
 * (also: the model has no template), IO, MALFORMED (no JSON; no template: the line is named), OUT_OF_MEMORY. */
cot_status cot_chat_template_open(cot_chat_template **chat, const char *model, const char *file,
                                  cot_error *error);
/* The same of a template's `text` [bytes], UTF-8, which need not outlive the call; there are no special tokens. `name`
 * is used in messages only. */
cot_status cot_chat_template_parse(cot_chat_template **chat, const char *text, size_t bytes, const char *name,
                                   cot_error *error);
void cot_chat_template_close(cot_chat_template *chat); /* NULL is fine */

/* A rendered conversation. */
typedef struct cot_chat_text {
    char *text; /* [bytes], with a NUL behind it; may hold NULs */
    size_t bytes;
    uint8_t *own; /* [bytes] 1 where the byte is the template's own, 0 where it came with the conversation */
} cot_chat_text;

/* Frees what it holds; it is empty then. */
void cot_chat_text_free(cot_chat_text *text);

typedef struct cot_chat_options {
    size_t size; /* sizeof (cot_chat_options) */
    bool
        add_generation_prompt; /* end with what begins an assistant's turn; default false, as in transformers */
    bool continue_final_message; /* leave the last message open, so that it is gone on with; default false */
    /* Tool calls are as OpenAI's API has them, with 'arguments' of JSON text: the template gets the objects that these
     * are, or, where it was found to want text when it was opened, text. Default false: as transformers, it gets what
     * the conversation has. */
    bool openai;
    const char
        *chat_template_kwargs; /* a JSON object: further variables of the template; default NULL, none */
    /* Asked every few milliseconds of the template's work; true: nobody wants the text any more. NULL: somebody does. */
    bool (*is_stopped)(void *context);
    void *context;
} cot_chat_options;

/* Renders a conversation: JSON [bytes], a list of messages or an object of 'messages' and, optional, 'tools',
 * 'documents' and 'chat_template_kwargs' (which the options' go before). A message is an object with a 'role'; its
 * 'content' is text, or a list of parts {"type": "text", "text": ...}, which are joined by LF where the template looks
 * into none of them. What is null in a message is left out, as transformers does it; where the template fails so, it is
 * rendered with none in its place, and for content that is not there. On success `*out` is the caller's, to be freed by cot_chat_text_free; on failure it is empty.
 * Errors: INVALID_ARGUMENT (options that exclude one another; JSON that is no conversation; the template refuses it or
 * fails on it: in the template's words), MALFORMED (too many steps or too much memory), TIMED_OUT (it was stopped),
 * OUT_OF_MEMORY. Thread-safe. */
cot_status cot_chat_render(const cot_chat_template *chat, cot_chat_text *out, const char *conversation,
                           size_t bytes, const cot_chat_options *options, cot_error *error);

/* A JSON object of what the model's configuration says of its special tokens, "bos_token" and its kind as strings, and of
 * "chat_template", the text of the one for conversations without tools. NUL-terminated, the caller's to free; NULL: out of
 * memory. Thread-safe. */
char *cot_chat_describe(const cot_chat_template *chat);

/* Encodes a rendered conversation. Special and other added tokens are found where the template's own bytes spell them
 * and nowhere else: no message can put one in, whatever its text is. (Added tokens of nothing but white space are
 * text.) Where no message spells one, the ids are those of transformers. `*ids` and errors are as
 * cot_tokenizer_encode's. Thread-safe. */
cot_status cot_chat_encode(const cot_tokenizer *tokenizer, int32_t **ids, size_t *count,
                           const cot_chat_text *text, cot_error *error);

#ifdef __cplusplus
}
#endif
#endif
