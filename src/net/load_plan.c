/* What a load test asks, and when: from a trace, a file of prompts, or drawn. */
#include "net/load_test.h"
#include "base/buffer.h"
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
static const uint64_t STREAM_BLOCKS = UINT64_C(1) << 32; // and a hash id, beyond all requests

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

/* NULL, or what is wrong. */
static const char *read_csv(const char *line, cot_load_test_request *request)
{
    long long input, output;
    int end = 0;
    const char *const comma = strchr(line, ',');
    if (!comma || !read_time(line, &request->at_ns)) return "its first column is no time";
    if (sscanf(comma, ",%lld,%lld%n", &input, &output, &end) != 2 || comma[end] || input < 1 ||
        input > MOST_TOKENS || output < 0 || output > MOST_TOKENS)
        return "its columns behind the time are not input tokens, 1 to 16777216, and output tokens, 0 to "
               "16777216";
    request->input_tokens = input;
    request->output_tokens = output;
    return NULL;
}

/* Counts those of its hash ids that no request had before. False: out of memory. */
static bool count_novel(cot_load_test_plan *plan, cot_load_test_request *request)
{
    for (size_t i = 0; i < request->blocks; i++) {
        const uint32_t id = plan->blocks.ids[request->first_block + i];
        const size_t had = plan->seen_bytes;
        void *seen = plan->seen;
        if (!cot_grow(&seen, &plan->seen_bytes, id / 8 + 1, 1)) return false;
        plan->seen = seen;
        if (plan->seen_bytes > had) memset(plan->seen + had, 0, plan->seen_bytes - had);
        request->novel += !(plan->seen[id / 8] >> id % 8 & 1);
        plan->seen[id / 8] |= (uint8_t)(1 << id % 8);
    }
    return true;
}

/* NULL, or what is wrong. */
static const char *read_json(cot_load_test_plan *plan, const char *text, cot_load_test_request *request)
{
    cot_load_test_line line;
    const char *const wrong = cot_load_test_read_line(&line, &plan->blocks, text);
    if (wrong) return wrong;
    request->at_ns = line.at_ns;
    request->input_tokens = line.input_tokens;
    request->output_tokens = line.output_tokens;
    request->first_block = line.first_block;
    request->blocks = line.blocks;
    return count_novel(plan, request) ? NULL : "out of memory";
}

/* Lengths times the scale, 1 at least; of a prompt of blocks its last one keeps a token. */
static void scale(const cot_load_test_plan *plan, cot_load_test_request *request, double by)
{
    const double output = (double)request->output_tokens * by;
    int64_t input = (int64_t)lround((double)request->input_tokens * by);
    if (request->blocks) {
        const int64_t most = (int64_t)request->blocks * plan->block_tokens,
                      least = most - plan->block_tokens + 1;
        input = input < least ? least : input > most ? most : input;
    }
    request->input_tokens = input < 1 ? 1 : input;
    request->output_tokens = output < 1 ? 1 : (int64_t)lround(output);
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
    const double speed = o->speed > 0 ? o->speed : 1, by = o->length_scale > 0 ? o->length_scale : 1;
    plan->block_tokens = (int64_t)lround(COT_LOAD_TEST_HASHED * by);
    if (plan->block_tokens < 1) plan->block_tokens = 1;
    for (char *line; (line = next_line(&rest));) {
        if ((number++ == 0 && csv) || !*line) continue;
        if (o->requests && (int64_t)plan->count == o->requests) break;
        cot_load_test_request r = {0};
        const char *wrong = csv ? read_csv(line, &r) : read_json(plan, line, &r);
        if (!wrong && plan->count && r.at_ns < last) wrong = "its time goes back";
        if (wrong) return cot_fail(error, COT_MALFORMED, "'%s' line %zu: %s", o->trace, number, wrong);
        if (!plan->count) first = r.at_ns;
        last = r.at_ns;
        r.at_ns = (int64_t)((double)(r.at_ns - first) / speed);
        if (by != 1) scale(plan, &r, by);
        r.input_tokens = cut(r.input_tokens, o->most_input_tokens);
        const size_t left =
            ((size_t)r.input_tokens + (size_t)plan->block_tokens - 1) / (size_t)plan->block_tokens;
        if (r.blocks > left) { // what is cut off was new if anything was
            r.novel -= r.novel < r.blocks - left ? r.novel : r.blocks - left;
            r.blocks = left;
        }
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
        o->concurrency < 0 || !(o->rate >= 0) || !(o->speed >= 0) ||
        !(o->length_scale >= 0 && o->length_scale <= 1) || o->vocabulary < 0 || o->vocabulary > INT32_MAX ||
        (o->trace && o->prompts) || o->backend > COT_LOAD_TEST_CHATS) {
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
    free(plan->blocks.ids);
    free(plan->seen);
    *plan = (cot_load_test_plan){0};
}

const char *cot_load_test_path(const cot_load_test_options *o)
{
    return o->backend == COT_LOAD_TEST_CHATS ? "/v1/chat/completions" : "/v1/completions";
}

/* Where token t of a request's prompt is drawn: with hash ids, in its block's stream. */
static uint64_t bits_of(const cot_load_test_plan *plan, size_t index, uint64_t seed, int64_t t)
{
    const cot_load_test_request *const r = &plan->requests[index];
    if (!r->blocks) return cot_random_bits(seed, STREAM_IDS + index, (uint64_t)t);
    const uint32_t id = plan->blocks.ids[r->first_block + (size_t)(t / plan->block_tokens)];
    return cot_random_bits(seed, STREAM_BLOCKS + id, (uint64_t)(t % plan->block_tokens));
}

static json_t *random_ids(const cot_load_test_plan *plan, size_t index, uint64_t seed, uint64_t vocabulary)
{
    const uint64_t low = vocabulary / 10;
    json_t *const ids = json_array();
    for (int64_t t = 0; t < plan->requests[index].input_tokens; t++) {
        const uint64_t bits = bits_of(plan, index, seed, t);
        json_array_append_new(ids, json_integer((json_int_t)(low + bits % (vocabulary - low))));
    }
    return ids;
}

/* Words with a blank before each, which most vocabularies have as one token. */
static json_t *random_words(const cot_load_test_plan *plan, size_t index, uint64_t seed)
{
    const int64_t count = plan->requests[index].input_tokens;
    static const char words[][6] = {" the",  " of",  " and",  " to",  " in",   " is",  " that", " for",
                                    " it",   " was", " on",   " be",  " with", " as",  " by",   " at",
                                    " have", " are", " this", " not", " but",  " had", " his",  " from",
                                    " or",   " one", " all",  " we",  " can",  " her", " has",  " if"};
    enum { WORDS = sizeof words / sizeof *words };
    char *const text = malloc((size_t)count * sizeof *words + 1), *end = text;
    for (int64_t t = 0; text && t < count; t++) {
        const char *const word = words[bits_of(plan, index, seed, t) % WORDS];
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
    const uint64_t vocabulary = o->vocabulary ? (uint64_t)o->vocabulary : 1000;
    json_t *prompt = r->prompt ? json_string(r->prompt)
                     : chats   ? random_words(plan, index, o->seed)
                               : random_ids(plan, index, o->seed, vocabulary);
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
