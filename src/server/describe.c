/* GET /worker: what a router needs to know of the worker behind this server, in one document; GET /tokenizer_info: what a client does that
 * renders conversations itself. */
#include "base/hash.h"
#include "coterie/version.h"
#include "server/server_state.h"

#include <stdlib.h>

/* [count] endpoints, rank after rank; NULL without any. */
static json_t *endpoints(const cot_endpoint *first, int count)
{
    if (!*first->address) return NULL;
    json_t *list = json_array();
    for (int rank = 0; rank < count; rank++) {
        char text[96];
        cot_endpoint_write(text, first, rank);
        json_array_append_new(list, json_string(text));
    }
    return list;
}

static json_t *events(const cot_server *s)
{
    if (!s->kv.enabled) return NULL;
    return json_pack("{s:o, s:o?, s:s, s:s}", "endpoints", endpoints(&s->kv.endpoint, s->info->homes),
                     "replay_endpoints", endpoints(&s->kv.replay_endpoint, s->info->homes), "topic",
                     s->kv.topic, "snapshot", "/kv_events/snapshot");
}

static json_t *reports(const cot_server *s)
{
    if (!*s->reports.address) return NULL;
    char text[96];
    cot_endpoint_write(text, &s->reports, 0);
    return json_pack("{s:s, s:s}", "endpoint", text, "topic", "steps");
}

static json_t *popularity(const cot_server *s)
{
    cot_backend_popularity p;
    char text[96];
    if (!*s->popularity.address || s->backend->table->popularity(s->backend, &p, NULL) != COT_OK) return NULL;
    cot_endpoint_write(text, &s->popularity, 0);
    json_t *told =
        json_pack("{s:s, s:s, s:i, s:i, s:i, s:i, s:I, s:i}", "endpoint", text, "topic", "popularity",
                  "layers", (int)p.layers, "experts", (int)p.experts, "cells", (int)p.cells, "layers_every",
                  (int)p.layers_every, "top_k", (json_int_t)p.top_k, "every", (int)p.every);
    cot_backend_popularity_free(&p);
    return told;
}

/* How often experts have moved; -1: it has none that could, or memory ran out. */
static int64_t epoch_of(const cot_server *s)
{
    cot_backend_placement p = {0};
    if (!s->backend->table->placement || s->backend->table->placement(s->backend, &p, NULL) != COT_OK)
        return -1;
    const int64_t epoch = (int64_t)p.epoch;
    cot_backend_placement_free(&p);
    return epoch;
}

void cot_server_show_worker(cot_server *s, cot_http_exchange *exchange)
{
    const cot_backend_info *info = s->info;
    const int64_t epoch = epoch_of(s);
    cot_backend_state state;
    char hash[COT_HASH_TEXT_BYTES];
    cot_hash_print(hash, info->model_hash);
    s->backend->table->state(s->backend, &state);
    json_t *models = json_array();
    for (size_t i = 0; i < s->model.name_count; i++)
        json_array_append_new(models, json_string(s->model.names[i]));
    json_t *scheme = info->block_tokens ? json_pack("{s:s, s:i, s:b}", "hash", "xxh3-64", "seed",
                                                    (int)COT_CACHE_SEED, "chained", 1)
                                        : NULL;
    cot_server_reply_json(
        s, exchange, 200,
        json_pack("{s:s, s:o, s:s, s:s, s:s?, s:i, s:i, s:s, s:I, s:o?, s:I, s:i, s:I, s:I, s:o?, s:o?, "
                  "s:o?, s:o?}",
                  "version", cot_version(), "models", models, "architecture", info->architecture,
                  "fingerprint", info->fingerprint, "model_hash", info->model_hash ? hash : NULL, "ranks",
                  info->ranks, "kv_homes", info->homes, "attention", info->attention, "block_size",
                  (json_int_t)info->block_tokens, "hash_scheme", scheme, "kv_pages",
                  (json_int_t)state.load.kv_pages, "page_tokens", COT_SERVED_PAGE_TOKENS, "max_model_len",
                  (json_int_t)s->model.max_model_len, "max_num_seqs", (json_int_t)info->sequences, "epoch",
                  epoch < 0 ? NULL : json_integer((json_int_t)epoch), "kv_events", events(s), "step_reports",
                  reports(s), "popularity", popularity(s)));
}

/* Sets a member where there is none yet; `text` NULL: null. False: memory ran out. */
static bool add(json_t *json, const char *name, const char *text)
{
    return json_object_get(json, name) ||
           !json_object_set_new(json, name, text ? json_string(text) : json_null());
}

void cot_server_show_tokenizer(cot_server *s, cot_http_exchange *exchange)
{
    const cot_served_model *m = &s->model;
    char *told = m->chat ? cot_chat_describe(m->chat) : NULL;
    json_t *json = told ? json_loads(told, JSON_ALLOW_NUL, NULL) : m->chat ? NULL : json_object();
    const char *end = m->eos_count ? cot_tokenizer_token(m->tokenizer, *m->eos) : NULL;
    const bool good = json && add(json, "eos_token", end) && add(json, "bos_token", NULL) &&
                      add(json, "pad_token", NULL) && add(json, "chat_template", NULL) &&
                      !json_object_set_new(json, "vocab_size",
                                           json_integer((json_int_t)cot_tokenizer_size(m->tokenizer))) &&
                      !json_object_set_new(json, "model_max_length", json_integer(m->max_model_len));
    free(told);
    if (!good) json_decref(json);
    cot_server_reply_json(s, exchange, 200, good ? json : NULL);
}
