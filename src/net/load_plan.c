/* What a load test asks, and when: from a trace, a file of prompts, or drawn. */
#include "net/load_test.h"
#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_REQUESTS = 10000000, MOST_TOKENS = 16 << 20, MOST_BYTES = 1 << 30 };
enum { STREAM_TIMES = 1, STREAM_IDS = 2 };

static bool add(cot_load_test_plan *plan, size_t *room, cot_load_test_request request)
{
    if (plan->count == *room) {
        *room = *room ? 2 * *room : 1024;
        cot_load_test_request *const grown = realloc(plan->requests, *room * sizeof *grown);
        if (!grown) return false;
        plan->requests = grown;
    }
    plan->requests[plan->count++] = request;
    return true;
}

/* "2023-11-16 18:17:03.9799600" in nanoseconds. */
static bool read_time(const char *text, int64_t *ns)
{
    struct tm parts = {0};
    const char *rest = strptime(text, "%Y-%m-%d %H:%M:%S", &parts);
    if (!rest) return false;
    int64_t fraction = 0;
    if (*rest == '.') {
        int64_t unit = 100000000;
        for (rest++; *rest >= '0' && *rest <= '9'; rest++, unit /= 10) fraction += (*rest - '0') * unit;
    }
    *ns = (int64_t)timegm(&parts) * 1000000000 + fraction;
    return *rest == ',';
}

static bool read_csv(const char *line, cot_load_test_request *request)
{
    long long input, output;
    int end = 0;
    const char *const comma = strchr(line, ',');
    if (!read_time(line, &request->at_ns) || !comma) return false;
    if (sscanf(comma, ",%lld,%lld%n", &input, &output, &end) != 2 || comma[end]) return false;
    request->input_tokens = input;
    request->output_tokens = output;
    return true;
}

static bool read_json(const char *line, cot_load_test_request *request)
{
    json_t *const row = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
    const json_t *const at = json_object_get(row, "timestamp"),
                        *const input = json_object_get(row, "input_length"),
                        *const output = json_object_get(row, "output_length");
    const bool good = json_is_number(at) && json_is_integer(input) && json_is_integer(output) &&
                      fabs(json_number_value(at)) < 1e12;
    if (good) {
        request->at_ns = (int64_t)(json_number_value(at) * 1e6);
        request->input_tokens = json_integer_value(input);
        request->output_tokens = json_integer_value(output);
    }
    json_decref(row);
    return good;
}

/* The next line of `*text`, cut out of it; NULL at the end. */
static char *next_line(char **text)
{
    char *const line = *text;
    if (!*line) return NULL;
    char *const stop = line + strcspn(line, "\n");
    *text = *stop ? stop + 1 : stop;
    *stop = '\0';
    if (stop > line && stop[-1] == '\r') stop[-1] = '\0';
    return line;
}

static int64_t cut(int64_t tokens, int64_t most)
{
    return most && tokens > most ? most : tokens;
}

static cot_status read_trace(cot_load_test_plan *plan, const cot_load_test_options *o, cot_error *error)
{
    static const char heading[] = "TIMESTAMP,ContextTokens,GeneratedTokens";
    size_t bytes, room = 0, number = 0;
    cot_status status = cot_file_read(&plan->text, &bytes, o->trace, MOST_BYTES, error);
    if (status) return status;
    const bool csv = !strncmp(plan->text, heading, sizeof heading - 1);
    char *rest = plan->text;
    int64_t first = 0, last = 0;
    const double speed = o->speed > 0 ? o->speed : 1;
    for (char *line; (line = next_line(&rest));) {
        if ((number++ == 0 && csv) || !*line) continue;
        if (o->requests && (int64_t)plan->count == o->requests) break;
        cot_load_test_request r = {0};
        if (!(csv ? read_csv(line, &r) : read_json(line, &r)) || r.input_tokens < 1 ||
            r.input_tokens > MOST_TOKENS || r.output_tokens < 0 || r.output_tokens > MOST_TOKENS ||
            (plan->count && r.at_ns < last)) {
            return cot_fail(
                error, COT_MALFORMED,
                "'%s' line %zu: not a time that does not go back, input tokens from 1, and output tokens",
                o->trace, number);
        }
        if (!plan->count) first = r.at_ns;
        last = r.at_ns;
        r.at_ns = (int64_t)((double)(r.at_ns - first) / speed);
        r.input_tokens = cut(r.input_tokens, o->most_input_tokens);
        r.output_tokens = cut(r.output_tokens ? r.output_tokens : 1, o->most_output_tokens);
        if (!add(plan, &room, r))
            return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for '%s'", o->trace);
    }
    if (!plan->count) return cot_fail(error, COT_MALFORMED, "'%s': no requests", o->trace);
    return COT_OK;
}

/* A line that is an object with a "prompt" stands for that text: it is written over the line, which is longer. */
static bool unwrap(char *line)
{
    if (*line != '{') return true;
    json_t *const row = json_loads(line, 0, NULL);
    const char *const prompt = json_string_value(json_object_get(row, "prompt"));
    if (prompt && strlen(prompt) <= strlen(line)) memmove(line, prompt, strlen(prompt) + 1);
    json_decref(row);
    return prompt;
}

static cot_status read_prompts(cot_load_test_plan *plan, const cot_load_test_options *o, cot_error *error)
{
    size_t bytes, room = 0, number = 0;
    cot_status status = cot_file_read(&plan->text, &bytes, o->prompts, MOST_BYTES, error);
    if (status) return status;
    char *rest = plan->text;
    for (char *line; (line = next_line(&rest));) {
        number++;
        if (!*line) continue;
        if (!unwrap(line)) {
            return cot_fail(error, COT_MALFORMED, "'%s' line %zu: no \"prompt\" in it", o->prompts, number);
        }
        json_t *const spelt = json_string(line);
        json_decref(spelt);
        if (!spelt) {
            return cot_fail(error, COT_MALFORMED, "'%s' line %zu: not UTF-8", o->prompts, number);
        }
        const cot_load_test_request r = {.prompt = line,
                                         .output_tokens = o->output_tokens ? o->output_tokens : 64};
        if (!add(plan, &room, r))
            return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for '%s'", o->prompts);
    }
    if (!plan->count) return cot_fail(error, COT_MALFORMED, "'%s': no prompts", o->prompts);
    const size_t wanted = o->requests ? (size_t)o->requests : plan->count, have = plan->count;
    if (wanted < plan->count) plan->count = wanted;
    while (plan->count < wanted) { // in turn
        if (!add(plan, &room, plan->requests[plan->count % have])) {
            return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %zu requests", wanted);
        }
    }
    return COT_OK;
}

static cot_status draw(cot_load_test_plan *plan, const cot_load_test_options *o, cot_error *error)
{
    const int64_t wanted = o->requests ? o->requests : 100;
    plan->requests = calloc((size_t)wanted, sizeof *plan->requests);
    if (!plan->requests)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %lld requests", (long long)wanted);
    plan->count = (size_t)wanted;
    for (size_t i = 0; i < plan->count; i++) {
        plan->requests[i].input_tokens = o->input_tokens ? o->input_tokens : 128;
        plan->requests[i].output_tokens = o->output_tokens ? o->output_tokens : 64;
    }
    return COT_OK;
}

cot_status cot_load_test_plan_make(cot_load_test_plan *plan, const cot_load_test_options *o, cot_error *error)
{
    *plan = (cot_load_test_plan){0};
    if (o->requests < 0 || o->requests > MOST_REQUESTS || o->input_tokens < 0 ||
        o->input_tokens > MOST_TOKENS || o->output_tokens < 0 || o->output_tokens > MOST_TOKENS ||
        o->concurrency < 0 || !(o->rate >= 0) || !(o->speed >= 0) || o->vocabulary < 0 ||
        o->vocabulary > INT32_MAX || (o->trace && o->prompts) || o->backend > COT_LOAD_TEST_CHATS) {
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "a load test's options are out of range, or name a trace and prompts");
    }
    const cot_status status = o->trace     ? read_trace(plan, o, error)
                              : o->prompts ? read_prompts(plan, o, error)
                                           : draw(plan, o, error);
    if (status) {
        cot_load_test_plan_free(plan);
        return status;
    }
    double at = 0;
    for (size_t i = 0; i < plan->count && o->rate > 0; i++) { // the first at once, gaps are exponential
        plan->requests[i].at_ns = at < 1e9 ? (int64_t)(at * 1e9) : (int64_t)1e18;
        at -= log1p(-cot_random_uniform(o->seed, STREAM_TIMES, i)) / o->rate;
    }
    return COT_OK;
}

void cot_load_test_plan_free(cot_load_test_plan *plan)
{
    free(plan->requests);
    free(plan->text);
    *plan = (cot_load_test_plan){0};
}

const char *cot_load_test_path(const cot_load_test_options *o)
{
    return o->backend == COT_LOAD_TEST_CHATS ? "/v1/chat/completions" : "/v1/completions";
}

static json_t *random_ids(int64_t count, uint64_t seed, uint64_t stream, uint64_t vocabulary)
{
    const uint64_t low = vocabulary / 10;
    json_t *const ids = json_array();
    for (int64_t t = 0; t < count; t++) {
        const uint64_t bits = cot_random_bits(seed, stream, (uint64_t)t);
        json_array_append_new(ids, json_integer((json_int_t)(low + bits % (vocabulary - low))));
    }
    return ids;
}

/* Words with a blank before each, which most vocabularies have as one token. */
static json_t *random_words(int64_t count, uint64_t seed, uint64_t stream)
{
    static const char words[][6] = {" the",  " of",  " and",  " to",  " in",   " is",  " that", " for",
                                    " it",   " was", " on",   " be",  " with", " as",  " by",   " at",
                                    " have", " are", " this", " not", " but",  " had", " his",  " from",
                                    " or",   " one", " all",  " we",  " can",  " her", " has",  " if"};
    enum { WORDS = sizeof words / sizeof *words };
    char *const text = malloc((size_t)count * sizeof *words + 1), *end = text;
    for (int64_t t = 0; text && t < count; t++) {
        const char *const word = words[cot_random_bits(seed, stream, (uint64_t)t) % WORDS];
        const size_t bytes = strnlen(word, sizeof *words);
        memcpy(end, word, bytes);
        end += bytes;
    }
    json_t *const json = text ? json_stringn(text, (size_t)(end - text)) : NULL;
    free(text);
    return json;
}

char *cot_load_test_body(const cot_load_test_plan *plan, size_t index, const cot_load_test_options *o,
                         const char *model)
{
    const cot_load_test_request *const r = &plan->requests[index];
    const bool chats = o->backend == COT_LOAD_TEST_CHATS;
    const uint64_t stream = STREAM_IDS + index, vocabulary = o->vocabulary ? (uint64_t)o->vocabulary : 1000;
    json_t *prompt = r->prompt ? json_string(r->prompt)
                     : chats   ? random_words(r->input_tokens, o->seed, stream)
                               : random_ids(r->input_tokens, o->seed, stream, vocabulary);
    if (chats) prompt = json_pack("[{s:s, s:o}]", "role", "user", "content", prompt);
    json_t *const body =
        json_pack("{s:s, s:o, s:I, s:I, s:b, s:b, s:{s:b}, s:f}", "model", model,
                  chats ? "messages" : "prompt", prompt, chats ? "max_completion_tokens" : "max_tokens",
                  (json_int_t)r->output_tokens, "min_tokens", (json_int_t)r->output_tokens, "ignore_eos", 1,
                  "stream", 1, "stream_options", "include_usage", 1, "temperature", 0.0);
    char *const text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    return text;
}
