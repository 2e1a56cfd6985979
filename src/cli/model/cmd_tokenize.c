/* `coterie tokenize`. */
#include "cli/commands.h"

#include "coterie/tokenizer.h"
#include "cli/model/tokenize_chat.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct settings {
    const char *model, *text;
    bool lines, json;
    cli_chat_settings chat;
};

static cot_status fail(cot_error *error, cot_status status, const char *message)
{
    error->status = status;
    snprintf(error->message, sizeof error->message, "%s", message);
    return status;
}

/* Puts `value` into the answer and owns it; NULL is what jansson gives when out of memory. */
static cot_status put(json_t *answer, const char *key, json_t *value, cot_error *error)
{
    return json_object_set_new(answer, key, value) ? fail(error, COT_OUT_OF_MEMORY, "out of memory") : COT_OK;
}

static json_t *ids_json(const int32_t *ids, size_t count)
{
    json_t *list = json_array();
    int failed = 0;
    for (size_t i = 0; i < count && !failed; i++) failed = json_array_append_new(list, json_integer(ids[i]));
    if (!failed) return list;
    json_decref(list);
    return NULL;
}

static cot_status set_decoded(json_t *answer, const char *key, const cot_tokenizer *tokenizer,
                              const int32_t *ids, size_t count, bool skip_special, cot_error *error)
{
    char *text;
    size_t bytes;
    cot_status status = cot_tokenizer_decode(tokenizer, &text, &bytes, ids, count, skip_special, error);
    if (status == COT_OK) status = put(answer, key, json_stringn(text, bytes), error);
    free(text);
    return status;
}

/* A text's ids without and with the post-processor's, and what each decodes to. */
static cot_status answer_text(json_t *answer, const cot_tokenizer *tokenizer, const char *text, size_t bytes,
                              cot_error *error)
{
    int32_t *ids = NULL, *special = NULL;
    size_t n_ids, n_special;
    cot_status status = cot_tokenizer_encode(tokenizer, &ids, &n_ids, text, bytes, false, error);
    if (status == COT_OK)
        status = cot_tokenizer_encode(tokenizer, &special, &n_special, text, bytes, true, error);
    if (status == COT_OK) status = put(answer, "ids", ids_json(ids, n_ids), error);
    if (status == COT_OK) status = put(answer, "ids_special", ids_json(special, n_special), error);
    if (status == COT_OK) status = set_decoded(answer, "decoded", tokenizer, ids, n_ids, false, error);
    if (status == COT_OK)
        status = set_decoded(answer, "decoded_skip", tokenizer, special, n_special, true, error);
    free(ids);
    free(special);
    return status;
}

static cot_status answer_ids(json_t *answer, const cot_tokenizer *tokenizer, json_t *list, cot_error *error)
{
    size_t count = json_array_size(list);
    int32_t *ids = malloc(count * sizeof *ids + 1);
    cot_status status = ids ? COT_OK : fail(error, COT_OUT_OF_MEMORY, "out of memory");
    for (size_t i = 0; i < count && status == COT_OK; i++) {
        const json_t *item = json_array_get(list, i);
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < INT32_MIN || id > INT32_MAX)
            status = fail(error, COT_INVALID_ARGUMENT, "'ids' holds what is no token id");
        else
            ids[i] = (int32_t)id;
    }
    if (status == COT_OK) status = put(answer, "ids", json_incref(list), error);
    if (status == COT_OK) status = set_decoded(answer, "decoded", tokenizer, ids, count, false, error);
    if (status == COT_OK) status = set_decoded(answer, "decoded_skip", tokenizer, ids, count, true, error);
    free(ids);
    return status;
}

static cot_status print_json(const json_t *answer, cot_error *error)
{
    if (json_dumpf(answer, stdout, JSON_COMPACT) && !ferror(stdout))
        return fail(error, COT_OUT_OF_MEMORY, "out of memory");
    putchar('\n');
    return COT_OK;
}

static cot_status answer_line(const cot_tokenizer *tokenizer, const char *line, size_t bytes,
                              cot_error *error)
{
    json_error_t json_error;
    json_t *question = json_loadb(line, bytes, JSON_ALLOW_NUL, &json_error);
    if (!question) // jansson has no words for having no memory
        return *json_error.text ? fail(error, COT_MALFORMED, json_error.text)
                                : fail(error, COT_OUT_OF_MEMORY, "out of memory");
    json_t *text = json_object_get(question, "text"), *ids = json_object_get(question, "ids");
    json_t *answer = json_object();
    cot_status status;
    if (json_is_string(text) && !ids)
        status = answer_text(answer, tokenizer, json_string_value(text), json_string_length(text), error);
    else if (json_is_array(ids) && !text)
        status = answer_ids(answer, tokenizer, ids, error);
    else
        status = fail(error, COT_MALFORMED, "it is neither {\"text\": a string} nor {\"ids\": a list}");
    if (status == COT_OK) status = print_json(answer, error);
    json_decref(answer);
    json_decref(question);
    return status;
}

/* A line out for each line in, at once, so that a program at the other end can take turns. */
static int answer_lines(const cot_tokenizer *tokenizer)
{
    char *line = NULL;
    size_t capacity = 0;
    uint64_t number = 0;
    int exit_status = CLI_EXIT_OK;
    for (ssize_t bytes; exit_status == CLI_EXIT_OK && (bytes = getline(&line, &capacity, stdin)) >= 0;) {
        cot_error error = {0};
        number++;
        if (answer_line(tokenizer, line, (size_t)bytes, &error) != COT_OK)
            exit_status = cli_complain("line %" PRIu64 ": %s", number, error.message);
        else if (fflush(stdout))
            exit_status = cli_complain("cannot write to standard output: %s", strerror(errno));
    }
    free(line);
    if (exit_status == CLI_EXIT_OK && ferror(stdin)) return cli_complain("cannot read standard input");
    return exit_status;
}

/* Prints `before`, then the text as a JSON string, padded with spaces to `width` characters. */
static cot_status print_quoted(const char *before, const char *text, size_t bytes, int width,
                               cot_error *error)
{
    json_t *string = json_stringn(text, bytes);
    char *quoted = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    cot_status status = quoted ? COT_OK : fail(error, COT_OUT_OF_MEMORY, "out of memory");
    if (quoted) printf("%s%s", before, quoted);
    for (const char *c = quoted; c && *c; c++) width -= ((unsigned char)*c & 0xc0) != 0x80;
    printf("%*s", quoted && width > 0 ? width : 0, "");
    free(quoted);
    json_decref(string);
    return status;
}

/* A row for each token as a prompt has them: id, vocabulary string, the text that it completes. */
static cot_status print_rows(const cot_tokenizer *tokenizer, const char *text, cot_error *error)
{
    int32_t *ids;
    size_t count, bytes;
    const char *piece;
    cot_detokenizer *detokenizer = NULL;
    cot_status status = cot_tokenizer_encode(tokenizer, &ids, &count, text, strlen(text), true, error);
    if (status == COT_OK) status = cot_detokenizer_open(&detokenizer, tokenizer, false, error);
    if (status == COT_OK && count) printf("     id  %-24s text\n", "token");
    for (size_t i = 0; i < count && status == COT_OK; i++) {
        const char *token = cot_tokenizer_token(tokenizer, ids[i]);
        char id[16];
        snprintf(id, sizeof id, "%7" PRId32 "  ", ids[i]);
        status = cot_detokenizer_push(detokenizer, ids[i], &piece, &bytes, error);
        if (status == COT_OK) status = print_quoted(id, token, strlen(token), 24, error);
        if (status == COT_OK) status = print_quoted(" ", piece, bytes, 0, error);
        if (i + 1 == count && status == COT_OK) {
            status = cot_detokenizer_finish(detokenizer, &piece, &bytes, error);
            if (bytes && status == COT_OK) status = print_quoted(" ", piece, bytes, 0, error);
        }
        if (status == COT_OK) putchar('\n');
    }
    if (status == COT_OK) printf("%zu tokens\n", count);
    cot_detokenizer_close(detokenizer);
    free(ids);
    return status;
}

static int answer_argument(const cot_tokenizer *tokenizer, const struct settings *s)
{
    cot_error error = {0};
    cot_status status;
    if (s->json) {
        json_t *answer = json_object();
        status = answer_text(answer, tokenizer, s->text, strlen(s->text), &error);
        if (status == COT_OK) status = print_json(answer, &error);
        json_decref(answer);
    } else {
        status = print_rows(tokenizer, s->text, &error);
    }
    return status == COT_OK ? CLI_EXIT_OK : cli_complain_of(&error);
}

static int run(const void *context)
{
    const struct settings *s = context;
    cot_tokenizer *tokenizer;
    cot_error error = {0};
    if (s->chat.messages) {
        if (s->lines || s->text) {
            cli_complain("--messages takes the place of TEXT and --jsonl");
            return CLI_EXIT_USAGE;
        }
        return cli_tokenize_chat(&s->chat, s->model, s->json);
    }
    if (cli_is_chat_asked(&s->chat)) {
        cli_complain("the options of chats need --messages FILE");
        return CLI_EXIT_USAGE;
    }
    if (s->lines == (s->text != NULL)) {
        cli_complain(s->lines ? "--jsonl takes its texts from standard input, not from TEXT"
                              : "no text given: TEXT, or --jsonl and standard input");
        return CLI_EXIT_USAGE;
    }
    if (cot_tokenizer_open(&tokenizer, s->model, &error) != COT_OK) return cli_complain_of(&error);
    int exit_status = s->lines ? answer_lines(tokenizer) : answer_argument(tokenizer, s);
    cot_tokenizer_close(tokenizer);
    return exit_status;
}

static const cli_option options[] = {
    {"jsonl", 0, CLI_OPTION_FLAG, NULL, NULL,
     "answer each line of standard input, {\"text\"} or {\"ids\"}, by a line",
     offsetof(struct settings, lines)},
    {"json", 0, CLI_OPTION_FLAG, NULL, NULL, "answer TEXT by such a line; a conversation by its text and ids",
     offsetof(struct settings, json)},
    {0}};

const cli_command cli_cmd_tokenize = {
    .name = "tokenize",
    .summary = "show what a model's tokenizer makes of a text, or of token ids",
    .details = "A line of JSON answers a text by 'ids' (of the text alone), 'ids_special' (with the tokens "
               "that a prompt "
               "begins or ends with), 'decoded' (from ids) and 'decoded_skip' (from ids_special, special "
               "tokens left "
               "out), and ids by 'ids', 'decoded' and 'decoded_skip'. A conversation is rendered by the "
               "model's chat template, as "
               "transformers does it; in its ids the template alone spells special tokens, no message does.",
    .examples =
        (const char *const[]){
            "coterie tokenize models/tiny 'Once upon a time'",
            "echo '{\"ids\": [1, 2, 3]}' | coterie tokenize tokenizer.json --jsonl",
            "echo '[{\"role\": \"user\", \"content\": \"Who is there?\"}]' | coterie tokenize models/tiny "
            "--messages - --json",
            NULL},
    .options = {.groups =
                    (const cli_option_group[]){{"Options", options, 0},
                                               {"Chats", cli_chat_rows, offsetof(struct settings, chat)},
                                               {0}},
                .positionals =
                    (const cli_positional[]){{"MODEL", 1, 1,
                                              "a model folder, a tokenizer.json, or a GGUF file",
                                              offsetof(struct settings, model)},
                                             {"TEXT", 0, 1, "the text", offsetof(struct settings, text)},
                                             {0}}},
    .settings_bytes = sizeof(struct settings),
    .run = run};
