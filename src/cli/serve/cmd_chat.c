/* `coterie chat`: a conversation in a terminal. */
#include "cli/serve/chat_server.h"
#include "cli/commands.h"
#include "cli/frame/growing_text.h"
#include "cli/frame/margin.h"
#include "cli/frame/paths.h"

#include "coterie/client.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <editline/readline.h>

struct chat_settings {
    cli_engine_settings engine;
    const char *where, *model, *chat_template, *system;
    int64_t max_tokens, seed;
    double temperature, top_p;
};

struct conversation {
    const struct chat_settings *settings;
    cot_client *client;
    json_t *messages; // what has been said
    const char *model;
    cli_growing_text answer; // what is being said
    cli_margin margin;       // of the terminal where it is
    cli_margin aside;        // of the one where reasoning is told of
    size_t reasoned;         // bytes of reasoning that have come since text did
    size_t asked;            // messages that an answer was asked to
    uint64_t retries;        // of the last one
    bool is_cut;             // the answer has no more room
    bool talks;              // with a person: prompts, hints
    bool failed;
};

static cot_client *listening; // of the signal handler
static volatile sig_atomic_t interrupted_reading;

/* Ctrl-C ends an answer, and nothing else: what has been said would be lost with the program. */
static void on_interrupt(int number)
{
    (void)number;
    interrupted_reading = 1;
    cot_client_interrupt(listening);
}

/* ---- complaints and notes ---- */

/* Begins a line on a terminal, where an answer may have broken off in one. */
static void end_line(struct conversation *c)
{
    if (c->talks && c->answer.bytes) putchar('\n');
    fflush(stdout);
}

/* What the server, or the way to it, has against a request. Of a model that was loaded here there is no server that one would know of. */
static void complain_of(struct conversation *c, const cot_error *error)
{
    static const char answers[] = "the server answers ";
    const bool is_remote = strstr(c->settings->where, "://"),
               is_answer = strncmp(error->message, answers, strlen(answers)) == 0;
    const char *key = getenv("COTERIE_API_KEY"), *said = is_answer ? strstr(error->message, ": ") : NULL;
    end_line(c);
    if (said && !is_remote)
        cli_complain("%s", said + 2);
    else if (is_answer && strncmp(error->message + strlen(answers), "401", 3) == 0)
        cli_complain("%s (the key is taken from COTERIE_API_KEY, %s)", error->message,
                     key && *key ? "and this one is another" : "which is not set");
    else
        cli_complain_of(error);
}

#define MAKE_ROOM "/drop leaves out the oldest turn, /new begins anew"

/* Why an answer breaks off, or there is none, and where a person may make room, how. */
static void tell_of_room(const struct conversation *c, const cot_error *refusal)
{
    const bool is_full = refusal && strstr(refusal->message, "context"), has_limit = c->settings->max_tokens;
    if (is_full && c->talks)
        cli_margin_print(stderr, "[the conversation does not fit the model's context: " MAKE_ROOM "]\n");
    else if (is_full)
        cli_margin_print(stderr,
                         "note: with message %zu the conversation does not fit the model's context; another "
                         "one may begin with it\n",
                         c->asked);
    else if (c->is_cut && c->talks && has_limit)
        cli_margin_print(stderr, "[cut: --max-tokens, or the end of the model's context]\n");
    else if (c->is_cut && c->talks)
        cli_margin_print(stderr, "[cut: the model's context is full; " MAKE_ROOM "]\n");
    else if (c->is_cut && !has_limit)
        cli_margin_print(stderr, "note: the answer to message %zu is cut: the model's context is full\n",
                         c->asked);
}

/* ---- an answer ---- */

/* Begins what is told of reasoning, in the line where the answer stands. */
static void begin_reasoning(struct conversation *c)
{
    static const char begin[] = "[reasoning ...";
    cli_margin_begin(&c->aside, stderr);
    if (c->margin.columns) c->aside.column = c->margin.column;
    cli_margin_write(&c->aside, begin, sizeof begin - 1);
}

/* Ends it, and the line, where there is any. */
static void end_reasoning(struct conversation *c)
{
    char end[64];
    if (!c->reasoned) return;
    const int n = snprintf(end, sizeof end, " %zu bytes]\n", c->reasoned);
    cli_margin_write(&c->aside, end, (size_t)n);
    if (c->aside.columns) cli_margin_begin(&c->margin, stdout); // on the same terminal
    c->reasoned = 0;
}

/* Reasoning is told of and not shown: it is no answer. */
static void fold_reasoning(struct conversation *c, const json_t *delta)
{
    const size_t bytes = json_string_length(json_object_get(delta, "reasoning_content"));
    const bool ends = json_string_length(json_object_get(delta, "content")) ||
                      json_array_size(json_object_get(delta, "tool_calls"));
    if (bytes && !c->reasoned) begin_reasoning(c);
    c->reasoned += bytes;
    if (ends) end_reasoning(c);
}

/* Calls are shown, and not made. */
static void show_calls(struct conversation *c, const json_t *delta)
{
    size_t i;
    json_t *call;
    json_array_foreach(json_object_get(delta, "tool_calls"), i, call)
    {
        const json_t *function = json_object_get(call, "function");
        const char *name = json_string_value(json_object_get(function, "name")),
                   *arguments = json_string_value(json_object_get(function, "arguments"));
        if (name) fprintf(stderr, "\n[calls %s] ", name);
        if (arguments) fputs(arguments, stderr);
        cli_margin_leave(&c->margin);
    }
}

/* An event of the stream: some text, or an error. */
static bool on_event(void *context, const char *data, size_t bytes)
{
    struct conversation *c = context;
    if (strcmp(data, "[DONE]") == 0) return false;
    json_t *json = json_loadb(data, bytes, JSON_ALLOW_NUL, NULL);
    const char *said = json ? json_string_value(json_object_get(json_object_get(json, "error"), "message"))
                            : "the server sent an event that is no JSON";
    const json_t *choice = json_array_get(json_object_get(json, "choices"), 0),
                 *delta = json_object_get(choice, "delta"), *text = json_object_get(delta, "content");
    const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
    bool good = true;
    if (said) {
        end_reasoning(c);
        end_line(c);
        cli_complain("%s", said);
        c->failed = true;
    }
    c->is_cut = c->is_cut || (finish && strcmp(finish, "length") == 0);
    fold_reasoning(c, delta);
    show_calls(c, delta);
    if (json_is_string(text)) {
        cli_margin_write(&c->margin, json_string_value(text), json_string_length(text));
        good = fflush(stdout) == 0 &&
               cli_growing_text_add(&c->answer, json_string_value(text), json_string_length(text));
    }
    json_decref(json);
    return good && !said;
}

static bool add_message(struct conversation *c, const char *role, const char *content, size_t bytes)
{
    json_t *text = json_stringn(content, bytes);
    if (!text) cli_complain("the text is not UTF-8");
    return text && !json_array_append_new(c->messages, json_pack("{s:s,s:o}", "role", role, "content", text));
}

static char *request_of(const struct conversation *c)
{
    const struct chat_settings *s = c->settings;
    json_t *body = json_pack("{s:O,s:b}", "messages", c->messages, "stream", 1);
    if (c->model) json_object_set_new(body, "model", json_string(c->model));
    if (s->max_tokens) json_object_set_new(body, "max_tokens", json_integer(s->max_tokens));
    if (s->temperature >= 0) json_object_set_new(body, "temperature", json_real(s->temperature));
    if (s->top_p > 0) json_object_set_new(body, "top_p", json_real(s->top_p));
    if (s->seed >= 0) // another answer takes another seed
        json_object_set_new(body, "seed",
                            json_integer((int64_t)(((uint64_t)s->seed + c->retries) & INT64_MAX)));
    char *text = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    return text;
}

/* Asks for an answer to what has been said. What came of it, whole or not, is part of the conversation. */
static bool answer(struct conversation *c)
{
    cot_error error;
    bool interrupted = false;
    char *request = request_of(c);
    c->answer.bytes = c->reasoned = 0;
    c->is_cut = false;
    cli_margin_begin(&c->margin, stdout);
    c->failed = !request;
    const cot_status status = request ? cot_client_stream(c->client, "/v1/chat/completions", request,
                                                          on_event, c, &interrupted, &error)
                                      : COT_OK;
    free(request);
    end_reasoning(c); // no more than that has come
    if (status != COT_OK) complain_of(c, &error);
    const bool good = status == COT_OK && !c->failed;
    if (good) {
        const char *end = !c->talks ? "" : interrupted ? " [stopped]" : c->answer.bytes ? "" : "[no answer]";
        cli_margin_write(&c->margin, end, strlen(end));
        putchar('\n');
        fflush(stdout);
    }
    tell_of_room(c, status == COT_OK ? NULL : &error);
    if (c->answer.bytes) return add_message(c, "assistant", c->answer.text, c->answer.bytes) && good;
    json_array_remove(c->messages, json_array_size(c->messages) - 1); // nothing was said to it
    return good;
}

/* ---- what is typed ---- */

static void forget(struct conversation *c)
{
    const char *system = c->settings->system;
    json_array_clear(c->messages);
    if (system) add_message(c, "system", system, strlen(system));
}

static bool has_role(const json_t *message, const char *role)
{
    const char *own = json_string_value(json_object_get(message, "role"));
    return own && strcmp(own, role) == 0;
}

/* Leaves out the oldest message of the user, and what was answered to it. */
static void drop_turn(struct conversation *c)
{
    const size_t first = has_role(json_array_get(c->messages, 0), "system");
    if (json_array_size(c->messages) <= first) {
        cli_margin_print(stdout, "nothing has been said yet\n");
        return;
    }
    do json_array_remove(c->messages, first);
    while (json_array_size(c->messages) > first && !has_role(json_array_get(c->messages, first), "user"));
    printf("%zu messages are left\n", json_array_size(c->messages) - first);
}

/* Text of any length, which a person typed, between two short ones. */
static void print_with(const char *before, const char *text, size_t bytes, const char *after)
{
    cli_margin m;
    cli_margin_begin(&m, stdout);
    cli_margin_write(&m, before, strlen(before));
    cli_margin_write(&m, text, bytes);
    cli_margin_write(&m, after, strlen(after));
}

static void show_system(const struct conversation *c)
{
    const json_t *first = json_array_get(c->messages, 0);
    const char *text = has_role(first, "system") ? json_string_value(json_object_get(first, "content"))
                                                 : "there are no instructions";
    print_with("", text, strlen(text), "\n");
}

static const char help[] = "/new            begin anew\n"
                           "/drop           leave out the oldest turn, where the context is full\n"
                           "/retry          another answer to the last message; --seed goes up by one\n"
                           "/system TEXT    begin anew with other instructions; without TEXT show them\n"
                           "/help           this\n"
                           "/quit           leave (also Ctrl-D)\n"
                           "Ctrl-C stops an answer. A line that ends in \\ goes on in the next one.\n";

/* A message that begins with a slash. Returns false when the conversation is over. */
static bool obey(struct conversation *c, const char *line)
{
    const size_t n = json_array_size(c->messages);
    if (strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0) return false;
    if (strcmp(line, "/new") == 0) {
        forget(c);
        cli_margin_print(stdout, "begun anew\n");
    } else if (strcmp(line, "/drop") == 0)
        drop_turn(c);
    else if (strcmp(line, "/system") == 0)
        show_system(c);
    else if (strncmp(line, "/system ", 8) == 0) {
        json_array_clear(c->messages);
        if (add_message(c, "system", line + 8, strlen(line + 8)))
            cli_margin_print(stdout, "begun anew with these instructions\n");
    } else if (strcmp(line, "/retry") == 0) {
        if (n && has_role(json_array_get(c->messages, n - 1), "assistant")) {
            json_array_remove(c->messages, n - 1);
            c->retries++;
            answer(c);
        } else
            cli_margin_print(stdout, "nothing has been answered yet\n");
    } else {
        if (strcmp(line, "/help") != 0) print_with("unknown command '", line, strcspn(line, " \n"), "'\n");
        cli_margin_print(stdout, "%s", help);
    }
    return true;
}

/* The next line, malloc'd without its end; NULL at the end of what there is. */
static char *read_line(const struct conversation *c, const char *prompt)
{
    char *line = NULL;
    size_t room = 0;
    while (c->talks) { // Ctrl-C drops the line
        interrupted_reading = 0;
        line = readline(prompt);
        if (line || !interrupted_reading) return line;
        putchar('\n');
    }
    ssize_t n = getline(&line, &room, stdin);
    if (n > 0 && line[n - 1] == '\n') line[n - 1] = 0;
    if (n >= 0) return line;
    free(line);
    return NULL;
}

/* A message: a line, and those that follow it while they end in a backslash. */
static char *read_message(const struct conversation *c)
{
    char *message = read_line(c, "> ");
    for (size_t n; message && (n = strlen(message)) && message[n - 1] == '\\';) {
        char *more = read_line(c, "| "), *joined = NULL;
        message[n - 1] = '\n';
        if (more && asprintf(&joined, "%s%s", message, more) < 0) joined = NULL;
        free(more);
        if (!joined) break;
        free(message);
        message = joined;
    }
    return message;
}

static bool converse(struct conversation *c)
{
    bool good = true;
    if (c->talks) cli_margin_print(stderr, "/help tells what can be typed; Ctrl-D leaves.\n");
    for (char *message; (good || c->talks) && (message = read_message(c)); free(message)) {
        if (!*message) continue;
        if (c->talks) add_history(message);
        if (*message == '/' && c->talks) {
            if (!obey(c, message)) {
                free(message);
                break;
            }
        } else {
            c->asked++;
            c->retries = 0;
            good = add_message(c, "user", message, strlen(message)) && answer(c);
        }
        if (ferror(stdout)) {
            free(message);
            break;
        }
    }
    if (c->talks) putchar('\n');
    return good || c->talks;
}

/* ---- the command ---- */

/* The first model that the server names, where none was chosen. The caller frees *list. */
static bool choose_model(struct conversation *c, json_t **list)
{
    char *body;
    size_t bytes;
    cot_error error;
    c->model = c->settings->model;
    if (cot_client_call(c->client, "/v1/models", NULL, &body, &bytes, &error) != COT_OK) {
        complain_of(c, &error);
        return false;
    }
    *list = json_loadb(body, bytes, 0, NULL);
    free(body);
    if (!c->model)
        c->model =
            json_string_value(json_object_get(json_array_get(json_object_get(*list, "data"), 0), "id"));
    return true;
}

static bool talk(const struct chat_settings *s, const char *url, const char *key)
{
    struct conversation c = {
        .settings = s, .messages = json_array(), .talks = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)};
    cot_error error;
    json_t *models = NULL;
    bool good = cot_client_open(&c.client, url, key, &error) == COT_OK;
    if (!good) cli_complain_of(&error);
    listening = c.client;
    if (good && (good = choose_model(&c, &models))) {
        const struct sigaction stop = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
        if (c.talks) sigaction(SIGINT, &stop, NULL);
        forget(&c);
        good = converse(&c);
    }
    cot_client_close(c.client);
    json_decref(models);
    json_decref(c.messages);
    free(c.answer.text);
    return good;
}

static int run_command(const void *settings)
{
    const struct chat_settings *s = settings;
    signal(SIGPIPE, SIG_IGN);
    if (strstr(s->where, "://")) {
        const char *key = getenv("COTERIE_API_KEY");
        return talk(s, s->where, key && *key ? key : NULL) ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
    }
    cli_chat_server server = {0};
    bool good =
        cli_check_model(s->where) && cli_chat_server_open(&server, s->where, s->chat_template, &s->engine);
    good = good && talk(s, server.url, server.key);
    cli_chat_server_close(&server);
    return good ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}

#define AT(field) offsetof(struct chat_settings, field)
static const cli_option chat_options[] = {
    {"system", 0, CLI_OPTION_TEXT, "TEXT", NULL, "instructions before the conversation", AT(system)},
    {"max-tokens", 'n', CLI_OPTION_INTEGER, "N", "0", "most tokens of an answer (0: what the context holds)",
     AT(max_tokens), .least = 0, .most = 1 << 24},
    {"temperature", 0, CLI_OPTION_REAL, "X", "-1", "0 is greedy (-1: as the model's makers say)",
     AT(temperature), .min = -1, .max = 1e6},
    {"top-p", 0, CLI_OPTION_REAL, "P", "0",
     "sample among the likeliest tokens that together reach P (0: as above)", AT(top_p), .min = 0, .max = 1},
    {"seed", 's', CLI_OPTION_INTEGER, "N", "-1",
     "the same seed draws the same answers (-1: a new one each time)", AT(seed), .least = -1,
     .most = INT64_MAX},
    {"model", 'm', CLI_OPTION_TEXT, "NAME", NULL, "of a server with several: which one", AT(model)},
    {"chat-template", 0, CLI_OPTION_TEXT, "FILE", NULL, "of a model folder: a template in place of its own",
     AT(chat_template)},
    {0}};

const cli_command cli_cmd_chat = {
    .name = "chat",
    .summary = "talk with a model in the terminal",
    .details =
        "MODEL is a model folder or a GGUF file, which is loaded, or the URL of a server with the OpenAI "
        "API, asked with "
        "the key in "
        "COTERIE_API_KEY where that is set. Ctrl-C stops an answer, /help tells what else can be typed. "
        "Where "
        "standard input is no terminal each of its lines is a message, and the answers alone are written.",
    .examples = (const char *const[]){"coterie chat models/tiny",
                                      "coterie chat MODEL --ranks 4 --system \"Be brief.\"",
                                      "coterie chat http://localhost:8000/v1", NULL},
    .options = {.groups = (const cli_option_group[]){{"Options", chat_options, 0},
                                                     {"Group of ranks", cli_engine_option_rows, AT(engine)},
                                                     {0}},
                .positionals =
                    (const cli_positional[]){
                        {"MODEL", 1, 1, "a model folder, a GGUF file, or a URL", AT(where)}, {0}}},
    .settings_bytes = sizeof(struct chat_settings),
    .run = run_command};
