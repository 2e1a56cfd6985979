#include "gateway/request.h"

#include "coterie/request.h"
#include "coterie/route.h"
#include "gateway/skim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_true(const json_t *json, const char *name)
{
    return json_is_true(json_object_get(json, name));
}

/* A whole number, also one written as 2.0: workers take both. */
static size_t positive(const json_t *json, const char *name, size_t otherwise)
{
    const json_t *value = json_object_get(json, name);
    const double real = json_real_value(value);
    if (json_is_real(value))
        return real >= 1 && real < 0x1p53 && real == floor(real) ? (size_t)real : otherwise;
    return json_integer_value(value) > 0 ? (size_t)json_integer_value(value) : otherwise;
}

/* Whether a prompt, or a list of them, is a list of ids. */
static bool is_ids(const json_t *prompt)
{
    return json_array_size(prompt) && json_is_integer(json_array_get(prompt, 0));
}

void cot_relay_read(cot_relay_request *r, const json_t *json, bool chat)
{
    const json_t *prompt = json_object_get(json, "prompt"), *salt = json_object_get(json, "cache_salt"),
                 *seed = json_object_get(json, "seed");
    const bool many = json_array_size(prompt) && !is_ids(prompt);
    const size_t n = positive(json, "n", 1), prompts = !chat && many ? json_array_size(prompt) : 1;
    *r = (cot_relay_request){.chat = chat,
                             .stream = is_true(json, "stream"),
                             .seeded = seed && !json_is_null(seed),
                             .echo = is_true(json, "echo"),
                             .wants_ids = is_true(json, "return_token_ids"),
                             .choices = 1,
                             .max_tokens = positive(json, "max_tokens", UINT32_MAX),
                             .salt = json_string_value(salt),
                             .salt_bytes = json_string_length(salt)};
    if (chat) r->max_tokens = positive(json, "max_completion_tokens", (size_t)r->max_tokens);
    if (n <= COT_RELAY_MOST_CHOICES && prompts <= COT_RELAY_MOST_CHOICES / n) r->choices = n * prompts;
}

/* ---- without values ---- */

static bool is(cot_skim_span value, const char *text)
{
    return value.text && cot_skim_is(value, text);
}

/* A number from 1 to `most`, where one is given. */
static bool skim_number(uint64_t *out, cot_skim_span value, uint64_t most)
{
    if (!value.text) return true;
    cot_skim s = cot_skim_of(value.text, value.bytes);
    const int64_t number = cot_skim_integer(&s);
    *out = (uint64_t)number;
    return !s.bad && number >= 1 && *out <= most;
}

/* A text without escapes, where one is given. */
static bool skim_salt(cot_relay_request *r, cot_skim_span value)
{
    if (!value.text) return true;
    r->salt = value.text + 1;
    r->salt_bytes = value.bytes - 2;
    return *value.text == '"' && !memchr(value.text, '\\', value.bytes);
}

/* False: no list of ids, or memory ran out. */
static bool skim_ids(int32_t **ids, size_t *count, cot_skim_span list)
{
    size_t most = 1;
    cot_skim s = cot_skim_of(list.text, list.bytes);
    for (size_t i = 0; i < list.bytes; i++) most += list.text[i] == ',';
    int32_t *own = list.text && *list.text == '[' ? malloc(most * sizeof *own) : NULL;
    for (bool in = own && cot_skim_into(&s, '['); in && *count < most && cot_skim_element(&s);) {
        const int64_t id = cot_skim_integer(&s);
        if (id < INT32_MIN || id > INT32_MAX) s.bad = true;
        own[(*count)++] = (int32_t)id;
    }
    *ids = own;
    return own && *count && !s.bad;
}

bool cot_relay_skim(cot_relay_request *r, int32_t **ids, size_t *count, const char *body, size_t bytes)
{
    enum { PROMPT, STREAM, SEED, ECHO, WANTS_IDS, N, MAX_TOKENS, SALT, NAMES };
    static const cot_skim_name names[NAMES] = {
        COT_SKIM_NAME("prompt"),     COT_SKIM_NAME("stream"),           COT_SKIM_NAME("seed"),
        COT_SKIM_NAME("echo"),       COT_SKIM_NAME("return_token_ids"), COT_SKIM_NAME("n"),
        COT_SKIM_NAME("max_tokens"), COT_SKIM_NAME("cache_salt")};
    uint32_t seen = 0;
    cot_skim_span name, value[NAMES + 1] = {0};
    cot_skim s = cot_skim_of(body, bytes);
    *r = (cot_relay_request){.choices = 1, .max_tokens = UINT32_MAX};
    *ids = NULL;
    *count = 0;
    for (bool in = cot_skim_into(&s, '{'); in && cot_skim_member(&s, &name);) {
        const size_t which = cot_skim_which(&s, &seen, name, names, NAMES);
        value[which] = cot_skim_value(&s);
    }
    if (!cot_skim_ends(&s)) return false;
    r->stream = is(value[STREAM], "true");
    r->echo = is(value[ECHO], "true");
    r->wants_ids = is(value[WANTS_IDS], "true");
    r->seeded = value[SEED].text && !is(value[SEED], "null");
    if (skim_number(&r->choices, value[N], COT_RELAY_MOST_CHOICES) &&
        skim_number(&r->max_tokens, value[MAX_TOKENS], UINT32_MAX) && skim_salt(r, value[SALT]) &&
        skim_ids(ids, count, value[PROMPT]))
        return true;
    free(*ids);
    *ids = NULL;
    *count = 0;
    return false;
}

/* ---- ids ---- */

void cot_relay_read_list(int32_t **ids, size_t *count, const json_t *list)
{
    const size_t n = json_array_size(list);
    *ids = n ? malloc(n * sizeof **ids) : NULL;
    *count = *ids ? n : 0;
    for (size_t i = 0; i < *count; i++) (*ids)[i] = (int32_t)json_integer_value(json_array_get(list, i));
}

void cot_relay_read_ids(int32_t **ids, size_t *count, const json_t *json)
{
    const json_t *prompt = json_object_get(json, "prompt");
    if (!is_ids(prompt)) prompt = json_array_get(prompt, 0);
    cot_relay_read_list(ids, count, is_ids(prompt) ? prompt : NULL);
}

char *cot_relay_tokenize_body(const json_t *json, bool chat)
{
    static const char *const members[] = {"model",
                                          "add_special_tokens",
                                          "messages",
                                          "tools",
                                          "documents",
                                          "add_generation_prompt",
                                          "continue_final_message",
                                          "chat_template_kwargs"};
    const json_t *prompt = json_object_get(json, "prompt"),
                 *effort = json_object_get(json, "reasoning_effort");
    if (json_is_array(prompt)) prompt = json_array_get(prompt, 0);
    if (chat ? !json_is_array(json_object_get(json, "messages")) : !json_is_string(prompt)) return NULL;
    json_t *body = json_object();
    for (size_t i = 0; i < (chat ? sizeof members / sizeof *members : 2); i++) {
        json_t *value = json_object_get(json, members[i]);
        if (value && !json_is_null(value)) json_object_set(body, members[i], value);
    }
    if (!chat) json_object_set(body, "prompt", (json_t *)prompt);
    if (chat && json_is_string(effort)) { // a variable of the template, which /tokenize takes as such alone
        json_t *given = json_object_get(body, "chat_template_kwargs");
        json_t *variables = json_is_object(given) ? json_copy(given) : json_object();
        json_object_set(variables, "reasoning_effort", (json_t *)effort);
        json_object_set_new(body, "chat_template_kwargs", variables);
    }
    char *text = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    return text;
}

uint64_t *cot_relay_keys(size_t *blocks, const int32_t *ids, size_t count, size_t block_tokens,
                         const cot_relay_request *r)
{
    *blocks = count / block_tokens;
    uint64_t *keys = *blocks ? malloc(*blocks * sizeof *keys) : NULL;
    uint64_t parent = r->salt_bytes ? cot_cache_salt_hash(r->salt, r->salt_bytes) : 0;
    if (!keys) *blocks = 0;
    for (size_t i = 0; i < *blocks; i++) {
        const uint64_t own = cot_cache_local_hash(ids + i * block_tokens, block_tokens);
        parent = i || r->salt_bytes ? cot_cache_sequence_hash(parent, own) : own;
        keys[i] = cot_route_key(parent, NULL);
    }
    return keys;
}
