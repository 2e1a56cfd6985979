/* `coterie run`: a model continues prompts. */
#include "cli/commands.h"
#include "cli/run/engine_settings.h"
#include "cli/frame/growing_text.h"
#include "cli/frame/paths.h"
#include "cli/run/stats.h"
#include "cli/frame/whole_file.h"

#include "coterie/constraint.h"
#include "coterie/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct run_settings {
    cli_engine_settings engine;
    const char *model, *json_schema;
    cli_list prompts, stops;
    double temperature, top_p, min_p, repetition_penalty;
    int64_t top_k, seed, max_tokens;
    bool ignore_eos;
    cli_optional_text stats;
};

/* One prompt and what has been made of it. Texts come out in the order of the prompts: the first that is not
 * yet over is written as it grows, later ones are kept. */
struct continuation {
    int32_t *prompt;
    size_t prompt_tokens;
    cot_text_stream *stream;
    cli_growing_text text; // not yet written
    bool over;
};

struct run {
    struct continuation *each;
    size_t count, head; // head: the one that is being written
    bool begun;         // something has been written
    cot_error error;
};

/* ---- prompts ---- */

static char *read_prompt(const struct cli_list_item *item, size_t *bytes)
{
    if (item->option->letter == 'f' || strcmp(item->text, "-") == 0) return cli_read_whole(item->text, bytes);
    *bytes = strlen(item->text);
    return strdup(item->text);
}

static bool prepare(struct run *run, const struct run_settings *s, const cot_tokenizer *tokenizer,
                    const char **stops)
{
    for (size_t i = 0; i < run->count; i++) {
        struct continuation *c = &run->each[i];
        size_t bytes;
        char *text = read_prompt(&s->prompts.items[i], &bytes);
        if (!text) return false;
        cot_status status =
            cot_tokenizer_encode(tokenizer, &c->prompt, &c->prompt_tokens, text, bytes, true, &run->error);
        free(text);
        if (status != COT_OK) {
            cli_complain("prompt %zu: %s", i + 1, run->error.message);
            return false;
        }
        cot_text_options options;
        cot_text_options_init(&options);
        options.stops = stops;
        options.stop_count = s->stops.count;
        if (cot_text_stream_open(&c->stream, tokenizer, &options, &run->error) != COT_OK) {
            cli_complain_of(&run->error);
            return false;
        }
        if (!bytes || !c->prompt_tokens) {
            cli_complain("prompt %zu is empty", i + 1);
            return false;
        }
    }
    return true;
}

/* ---- output ---- */

static void write_ready(struct run *run)
{
    errno = 0;
    if (run->count > 1 && !run->begun) printf("== 1 ==\n"); // not before the engine has taken the requests
    run->begun = true;
    while (run->head < run->count) {
        struct continuation *c = &run->each[run->head];
        if (c->text.bytes) fwrite(c->text.text, 1, c->text.bytes, stdout);
        c->text.bytes = 0;
        if (!c->over) break;
        putchar('\n');
        if (++run->head < run->count) printf("== %zu ==\n", run->head + 1);
    }
    if (!fflush(stdout) && !ferror(stdout)) return;
    if (run->error.status != COT_OK) return;
    run->error.status = COT_IO; // nobody listens: generation ends
    snprintf(run->error.message, sizeof run->error.message, "cannot write to standard output: %s",
             strerror(errno));
}

static void append(struct run *run, struct continuation *c, const char *piece, size_t bytes)
{
    if (!cli_growing_text_add(&c->text, piece, bytes))
        run->error = (cot_error){COT_OUT_OF_MEMORY, "out of memory for the text"};
}

static bool take_token(void *context, uint64_t request, int32_t token)
{
    struct run *run = context;
    struct continuation *c = &run->each[request];
    const char *piece;
    size_t bytes;
    bool stopped;
    if (cot_text_stream_push(c->stream, token, &piece, &bytes, &stopped, &run->error) != COT_OK) return false;
    append(run, c, piece, bytes);
    if (request == run->head) write_ready(run);
    return !stopped && run->error.status == COT_OK;
}

static void take_finish(void *context, uint64_t request, cot_finish finish)
{
    struct run *run = context;
    struct continuation *c = &run->each[request];
    const char *piece;
    size_t bytes;
    const bool failed = finish == COT_FINISH_OVERFLOW || finish == COT_FINISH_CONSTRAINT;
    if (failed && run->count == 1 && !run->begun) return; // nothing is said but why
    if (finish != COT_FINISH_STOP && cot_text_stream_finish(c->stream, &piece, &bytes, &run->error) == COT_OK)
        append(run, c, piece, bytes);
    c->over = true;
    if (request == run->head) write_ready(run);
}

/* ---- the command ---- */

static cot_sampling sampling_of(const struct run_settings *s)
{
    cot_sampling sampling;
    cot_sampling_init(&sampling);
    sampling.temperature = s->temperature;
    sampling.top_k = s->top_k;
    sampling.top_p = s->top_p;
    sampling.min_p = s->min_p;
    sampling.repetition_penalty = s->repetition_penalty;
    sampling.seed = (uint64_t)s->seed;
    sampling.max_tokens = s->max_tokens;
    sampling.ignore_eos = s->ignore_eos;
    return sampling;
}

struct listeners {
    struct run *run;
    cli_routing_recorder *recorder;
};

static bool on_token(void *context, uint64_t request, int32_t token)
{
    return take_token(((struct listeners *)context)->run, request, token);
}

static void on_finish(void *context, uint64_t request, cot_finish finish)
{
    take_finish(((struct listeners *)context)->run, request, finish);
}

static void on_routing(void *context, uint64_t request, int64_t position, int32_t token,
                       const uint16_t *experts, const float *weights)
{
    cli_routing_recorder_take(((struct listeners *)context)->recorder, request, position, token, experts,
                              weights);
}

static bool generate(struct run *run, const struct run_settings *s, cot_engine *engine, cot_request *requests)
{
    cli_routing_recorder recorder;
    if (!cli_routing_recorder_open(&recorder, s->engine.save_routing, s->model, engine)) return false;
    struct listeners listeners = {run, &recorder};
    cot_events events = {
        .context = &listeners, .on_token = on_token, .on_finish = on_finish, .on_routing = on_routing};
    size_t failed;
    cot_status status = cot_engine_run(engine, requests, run->count, &events, &failed, &run->error);
    bool good = status == COT_OK && run->error.status == COT_OK;
    if (failed < run->count)
        cli_complain("prompt %zu: %s", failed + 1, run->error.message);
    else if (!good)
        cli_complain_of(&run->error);
    good = cli_routing_recorder_finish(&recorder, good) && good;
    return good && cli_show_stats(engine, s->stats);
}

/* Each text is to meet the schema. What is made is the caller's to close, either way. */
static bool constrain(struct run *run, cot_request *requests, cot_constraint_compiler **compiler,
                      const cot_engine *engine, const cot_tokenizer *tokenizer, const char *schema,
                      size_t bytes)
{
    const cot_engine_info *info = cot_engine_describe(engine);
    cot_status status = cot_constraint_compiler_open(compiler, tokenizer, info->vocab, info->eos,
                                                     info->eos_count, &run->error);
    if (status == COT_OK)
        status = cot_constraint_compile(&requests[0].constraint, *compiler, COT_CONSTRAINT_JSON_SCHEMA,
                                        schema, bytes, &run->error);
    for (size_t i = 1; i < run->count && status == COT_OK; i++)
        status = cot_constraint_copy(&requests[i].constraint, requests[0].constraint, &run->error);
    if (status != COT_OK) cli_complain("--json-schema: %s", run->error.message);
    return status == COT_OK;
}

static bool run_prompts(struct run *run, const struct run_settings *s, const cot_tokenizer *tokenizer,
                        cot_request *requests, const char **stops)
{
    cli_engine_needs needs = {.sequences = run->count};
    for (size_t i = 0; i < s->stops.count; i++) stops[i] = s->stops.items[i].text;
    if (!prepare(run, s, tokenizer, stops)) return false;
    for (size_t i = 0; i < run->count; i++) {
        cot_request_init(&requests[i]);
        requests[i].prompt = run->each[i].prompt;
        requests[i].prompt_tokens = (int64_t)run->each[i].prompt_tokens;
        requests[i].sampling = sampling_of(s);
        needs.kv_tokens += (int64_t)run->each[i].prompt_tokens + s->max_tokens;
    }
    char *schema = NULL;
    size_t bytes = 0;
    if (s->json_schema && !(schema = cli_read_whole(s->json_schema, &bytes))) return false;
    cot_engine *engine = NULL;
    cot_constraint_compiler *compiler = NULL;
    const bool good = cli_engine_open(&engine, s->model, &s->engine, &needs) &&
                      (!schema || constrain(run, requests, &compiler, engine, tokenizer, schema, bytes)) &&
                      generate(run, s, engine, requests);
    cot_engine_close(engine);
    for (size_t i = 0; i < run->count; i++) cot_constraint_close(requests[i].constraint);
    cot_constraint_compiler_close(compiler);
    free(schema);
    return good;
}

static int run_command(const void *settings)
{
    const struct run_settings *s = settings;
    struct run run = {.count = s->prompts.count};
    cot_tokenizer *tokenizer;
    if (!run.count) {
        cli_complain("no prompt given: -p TEXT, -p - or -f FILE");
        return CLI_EXIT_USAGE;
    }
    if (!cli_check_model(s->model) || !cli_check_output(s->engine.save_routing, "the text") ||
        !cli_check_output(s->stats.text, "the text"))
        return CLI_EXIT_FAILURE;
    if (cot_tokenizer_open(&tokenizer, s->model, &run.error) != COT_OK) return cli_complain_of(&run.error);
    run.each = calloc(run.count, sizeof *run.each);
    cot_request *requests = calloc(run.count, sizeof *requests);
    const char **stops = calloc(s->stops.count + 1, sizeof *stops);
    bool good = run.each && requests && stops;
    if (!good) cli_complain("out of memory");
    good = good && run_prompts(&run, s, tokenizer, requests, stops);
    for (size_t i = 0; run.each && i < run.count; i++) {
        free(run.each[i].prompt);
        free(run.each[i].text.text);
        cot_text_stream_close(run.each[i].stream);
    }
    free(run.each);
    free(requests);
    free(stops);
    cot_tokenizer_close(tokenizer);
    return good ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}

#define AT(field) offsetof(struct run_settings, field)
static const cli_option prompt_options[] = {
    {"prompt", 'p', CLI_OPTION_LIST, "TEXT", NULL, "a prompt; - reads standard input", AT(prompts)},
    {"file", 'f', CLI_OPTION_LIST, "FILE", NULL, "a prompt from a file", AT(prompts)},
    {"max-tokens", 'n', CLI_OPTION_INTEGER, "N", "256", "most tokens to generate for each prompt",
     AT(max_tokens), .least = 0, .most = 1 << 24},
    {"stop", 0, CLI_OPTION_LIST, "TEXT", NULL, "ends a text before this string", AT(stops)},
    {"json-schema", 0, CLI_OPTION_TEXT, "FILE", NULL,
     "texts are JSON that meets the schema in this file (-: standard input)", AT(json_schema)},
    {"ignore-eos", 0, CLI_OPTION_FLAG, NULL, NULL, "go on after an end-of-sequence token", AT(ignore_eos)},
    {"stats", 0, CLI_OPTION_OPTIONAL_TEXT, "FILE.json", NULL,
     "show bytes, messages, locality and speed on standard error, or write them to a file", AT(stats)},
    {0}};
static const cli_option sampling_options[] = {
    {"temperature", 0, CLI_OPTION_REAL, "X", "0", "0 is greedy: always the likeliest token", AT(temperature),
     .min = 0, .max = 1e6},
    {"top-k", 0, CLI_OPTION_INTEGER, "K", "0", "sample among the K likeliest tokens (0: all)", AT(top_k),
     .least = 0, .most = INT32_MAX},
    {"top-p", 0, CLI_OPTION_REAL, "P", "1", "sample among the likeliest tokens that together reach P",
     AT(top_p), .min = 1e-9, .max = 1},
    {"min-p", 0, CLI_OPTION_REAL, "P", "0", "sample among tokens at least P times as likely as the likeliest",
     AT(min_p), .min = 0, .max = 1},
    {"repetition-penalty", 0, CLI_OPTION_REAL, "X", "1",
     "above 1 makes tokens that have occurred less likely", AT(repetition_penalty), .min = 1e-6, .max = 1e6},
    {"seed", 's', CLI_OPTION_INTEGER, "N", "0", "the same seed draws the same text", AT(seed), .least = 0,
     .most = INT64_MAX},
    {0}};

const cli_command cli_cmd_run = {
    .name = "run",
    .summary = "continue prompts with a model spread over a group of ranks",
    .details = "Standard output is the continuation alone; of several prompts, each after a line == N ==. "
               "Text ends at an "
               "end-of-sequence token of the model, a stop string, --max-tokens, or the end of the context.",
    .examples =
        (const char *const[]){"coterie run models/tiny -p \"Question: What is 2 + 3?\" --ranks 4 --stats",
                              "coterie run MODEL -f prompt.txt --temperature 0.7 --top-p 0.9 --seed 1",
                              "coterie run MODEL -p \"one\" -p \"two\" --attention dp --ranks 2", NULL},
    .options = {.groups = (const cli_option_group[]){{"Options", prompt_options, 0},
                                                     {"Sampling", sampling_options, 0},
                                                     {"Group of ranks", cli_engine_option_rows, AT(engine)},
                                                     {"Routing", cli_routing_option_rows, AT(engine)},
                                                     {0}},
                .positionals =
                    (const cli_positional[]){{"MODEL", 1, 1, "a model folder, or a GGUF file", AT(model)},
                                             {0}}},
    .settings_bytes = sizeof(struct run_settings),
    .run = run_command};
