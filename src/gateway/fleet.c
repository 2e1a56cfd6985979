#include "gateway/fleet.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json_load.h"
#include "net/http_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MOST_NAME_BYTES = 128 };

static cot_status out_of_memory(cot_error *error)
{
    return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a worker");
}

/* ---- values ---- */

static cot_status read_text(char **out, const json_t *value, const char *what, const char *key,
                            cot_error *error)
{
    const char *text = json_string_value(value);
    if (!text || !*text || strlen(text) != json_string_length(value))
        return cot_fail(error, COT_MALFORMED, "%s: '%s' is no text", what, key);
    *out = strdup(text);
    return *out ? COT_OK : out_of_memory(error);
}

size_t cot_fleet_scheme(const char *url)
{
    return !strncasecmp(url, "https://", 8) ? 8 : !strncasecmp(url, "http://", 7) ? 7 : 0;
}

static cot_status read_url(cot_fleet_entry *e, const char *url, const char *what, cot_error *error)
{
    static const char shape[] = "%s: '%s' is no URL: http://HOST[:PORT][/PREFIX], or https://";
    const size_t scheme = cot_fleet_scheme(url);
    bool plain = true; // visible ASCII, as the URL is the worker's name, too; and no query
    for (const char *c = url; *c; c++) plain &= *c > ' ' && *c < 0x7f && *c != '?' && *c != '#';
    if (!scheme || !url[scheme] || !plain) return cot_fail(error, COT_MALFORMED, shape, what, url);
    e->url = cot_http_api_root(url);
    if (!e->url) return out_of_memory(error);
    return cot_fleet_scheme(e->url) ? COT_OK
                                    : cot_fail(error, COT_MALFORMED, shape, what, url); // slashes alone
}

/* "tcp://HOST:PORT" */
static cot_status check_endpoint(const char *text, const char *what, const char *key, cot_error *error)
{
    const char *colon = strrchr(text, ':');
    char *end = NULL;
    const long port = colon ? strtol(colon + 1, &end, 10) : 0;
    if (!strncmp(text, "tcp://", 6) && colon > text + 6 && end != colon + 1 && !*end && port >= 1 &&
        port <= 65535)
        return COT_OK;
    return cot_fail(error, COT_MALFORMED, "%s: '%s' is not tcp://HOST:PORT", what, key);
}

static cot_status read_key(cot_fleet_entry *e, const char *path, const char *what, cot_error *error)
{
    char *text;
    size_t bytes;
    const cot_status status = cot_file_read(&text, &bytes, path, 1 << 16, error);
    if (status != COT_OK) return status;
    text[strcspn(text, "\r\n")] = 0;
    e->key = text;
    return *text ? COT_OK : cot_fail(error, COT_MALFORMED, "%s: '%s' has no key in it", what, path);
}

static cot_status read_engine(cot_fleet_entry *e, const json_t *value, const char *what, cot_error *error)
{
    static const char *const names[] = {"coterie", "vllm", "sglang", "openai"};
    const char *name = json_string_value(value);
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) {
            e->foreign = i > 0;
            return COT_OK;
        }
    return cot_fail(error, COT_MALFORMED, "%s: 'engine' is none of coterie, vllm, sglang, openai", what);
}

static cot_status read_member(cot_fleet_entry *e, const char *key, const json_t *value, const char *what,
                              cot_error *error)
{
    cot_status status = COT_OK;
    char *text = NULL;
    if (!strcmp(key, "url")) {
        status = read_text(&text, value, what, key, error);
        if (status == COT_OK) status = read_url(e, text, what, error);
    } else if (!strcmp(key, "name")) {
        status = read_text(&e->name, value, what, key, error);
        if (status == COT_OK && (strlen(e->name) > MOST_NAME_BYTES || strpbrk(e->name, "/?#%\"\\")))
            status =
                cot_fail(error, COT_MALFORMED, "%s: 'name' is too long, or has a character of URLs", what);
    } else if (!strcmp(key, "engine")) {
        status = read_engine(e, value, what, error);
    } else if (!strcmp(key, "kv_events") || !strcmp(key, "kv_replay") || !strcmp(key, "step_reports") ||
               !strcmp(key, "popularity")) {
        char **const at = key[0] == 's'   ? &e->step_reports
                          : key[0] == 'p' ? &e->popularity
                          : key[3] == 'e' ? &e->kv_events
                                          : &e->kv_replay;
        status = read_text(at, value, what, key, error);
        if (status == COT_OK) status = check_endpoint(*at, what, key, error);
    } else if (!strcmp(key, "key_file")) {
        status = read_text(&text, value, what, key, error);
        if (status == COT_OK) status = read_key(e, text, what, error);
    } else if (!strcmp(key, "ranks")) {
        const json_int_t ranks = json_integer_value(value);
        if (!json_is_integer(value) || ranks < 1 || ranks > COT_FLEET_MOST_RANKS)
            status =
                cot_fail(error, COT_MALFORMED, "%s: 'ranks' is not in [1, %d]", what, COT_FLEET_MOST_RANKS);
        e->ranks = (int)ranks;
    } else {
        status = cot_fail(error, COT_UNSUPPORTED, "%s: there is no '%.64s'", what, key);
    }
    free(text);
    return status;
}

/* ---- workers ---- */

static cot_status name_by_url(cot_fleet_entry *e, const char *what, cot_error *error)
{
    if (!e->url) return cot_fail(error, COT_MALFORMED, "%s has no 'url'", what);
    if (!e->name) e->name = strdup(e->url + cot_fleet_scheme(e->url));
    return e->name ? COT_OK : out_of_memory(error);
}

cot_status cot_fleet_read_entry(cot_fleet_entry *e, const json_t *json, const char *what, cot_error *error)
{
    cot_status status = COT_OK;
    const char *key;
    json_t *value;
    *e = (cot_fleet_entry){0};
    if (!json_is_object(json)) return cot_fail(error, COT_MALFORMED, "%s is no JSON object", what);
    json_object_foreach((json_t *)json, key, value)
    {
        status = read_member(e, key, value, what, error);
        if (status != COT_OK) break;
    }
    if (status == COT_OK) status = name_by_url(e, what, error);
    if (status == COT_OK && e->kv_replay && !e->kv_events)
        status = cot_fail(error, COT_MALFORMED, "%s has 'kv_replay' without 'kv_events'", what);
    if (status != COT_OK) cot_fleet_entry_free(e);
    return status;
}

cot_status cot_fleet_entry_of_url(cot_fleet_entry *e, const char *url, cot_error *error)
{
    *e = (cot_fleet_entry){0};
    cot_status status = read_url(e, url, "a worker", error);
    if (status == COT_OK) status = name_by_url(e, "a worker", error);
    if (status != COT_OK) cot_fleet_entry_free(e);
    return status;
}

void cot_fleet_entry_free(cot_fleet_entry *e)
{
    free(e->name);
    free(e->url);
    free(e->key);
    free(e->kv_events);
    free(e->kv_replay);
    free(e->step_reports);
    free(e->popularity);
    *e = (cot_fleet_entry){0};
}

static bool is_same(const char *a, const char *b)
{
    return a && b ? !strcmp(a, b) : a == b;
}

bool cot_fleet_entry_equals(const cot_fleet_entry *a, const cot_fleet_entry *b)
{
    return is_same(a->name, b->name) && is_same(a->url, b->url) && is_same(a->key, b->key) &&
           a->foreign == b->foreign && a->ranks == b->ranks && is_same(a->kv_events, b->kv_events) &&
           is_same(a->kv_replay, b->kv_replay) && is_same(a->step_reports, b->step_reports) &&
           is_same(a->popularity, b->popularity);
}

/* ---- lists ---- */

static cot_status read_list(cot_fleet *f, const json_t *list, const char *name, cot_error *error)
{
    const size_t count = json_array_size(list);
    if (!json_is_array(list)) return cot_fail(error, COT_MALFORMED, "'%s' is no list of workers", name);
    if (count > COT_FLEET_MOST_WORKERS)
        return cot_fail(error, COT_MALFORMED, "'%s' has %zu workers, at most %d may be", name, count,
                        COT_FLEET_MOST_WORKERS);
    f->entry = calloc(count + 1, sizeof *f->entry);
    if (!f->entry) return out_of_memory(error);
    for (size_t i = 0; i < count; i++) {
        char what[192];
        snprintf(what, sizeof what, "'%.128s': worker %zu", name, i);
        const cot_status status = cot_fleet_read_entry(&f->entry[i], json_array_get(list, i), what, error);
        if (status != COT_OK) return status;
        f->count++;
        for (size_t other = 0; other < i; other++)
            if (!strcmp(f->entry[other].name, f->entry[i].name))
                return cot_fail(error, COT_MALFORMED, "%s has the name '%.64s', as worker %zu", what,
                                f->entry[i].name, other);
    }
    return COT_OK;
}

cot_status cot_fleet_read(cot_fleet *f, const char *text, size_t bytes, const char *name, cot_error *error)
{
    json_error_t reason;
    *f = (cot_fleet){0};
    json_t *list = cot_json_load(text, bytes, JSON_REJECT_DUPLICATES, &reason);
    cot_status status =
        list ? read_list(f, list, name, error)
             : cot_fail(error, COT_MALFORMED, "'%s' is no JSON: line %d: %s", name, reason.line, reason.text);
    json_decref(list);
    if (status != COT_OK) cot_fleet_free(f);
    return status;
}

void cot_fleet_free(cot_fleet *f)
{
    for (size_t i = 0; i < f->count; i++) cot_fleet_entry_free(&f->entry[i]);
    free(f->entry);
    *f = (cot_fleet){0};
}
