/* GET /popularity: how much each expert is called lately, by tokens at home on each rank and in all; JSON, or safetensors. */
#include "base/hash.h"
#include "base/safetensors.h"
#include "server/server_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void refuse(cot_server *s, cot_http_exchange *exchange, int status, const char *code,
                   const char *message)
{
    cot_api_error error;
    cot_api_fail(&error, status, code, NULL, "%s", message);
    cot_server_refuse(s, exchange, &error);
}

static json_t *reals(const double *values, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) json_array_append_new(list, json_real(values[i]));
    return list;
}

/* [layers][experts] */
static json_t *counts_json(const cot_backend_popularity *p, const double *counts)
{
    json_t *list = json_array();
    for (int32_t l = 0; l < p->layers; l++)
        json_array_append_new(list, reals(counts + (size_t)l * (size_t)p->experts, (size_t)p->experts));
    return list;
}

static json_t *as_json(const cot_server *s, const cot_backend_popularity *p, const double *all)
{
    const size_t cells = (size_t)p->layers * (size_t)p->experts;
    char hash[COT_HASH_TEXT_BYTES];
    json_t *layers = json_array(), *homes = json_array();
    cot_hash_print(hash, s->info->model_hash);
    for (int32_t l = 0; l < p->layers; l++) json_array_append_new(layers, json_integer(p->layer[l]));
    for (int32_t h = 0; h < p->homes; h++)
        json_array_append_new(homes, counts_json(p, p->counts + (size_t)h * cells));
    return json_pack("{s:s?, s:o, s:i, s:I, s:o?, s:o?, s:i, s:o, s:o, s:o}", "model_hash",
                     s->info->model_hash ? hash : NULL, "layers", layers, "experts", (int)p->experts, "top_k",
                     (json_int_t)p->top_k, "half_life_tokens",
                     p->half_life_tokens > 0 ? json_real(p->half_life_tokens) : NULL, "half_life_seconds",
                     p->half_life_seconds > 0 ? json_real(p->half_life_seconds) : NULL, "every",
                     (int)p->every, "tokens", reals(p->tokens, (size_t)p->homes), "counts",
                     counts_json(p, all), "counts_of_homes", homes);
}

/* Tensors counts [L][E], counts_of_homes [homes][L][E] and tokens [homes], float64, and layers [L], int32. */
static bool as_safetensors(FILE *out, const cot_server *s, const cot_backend_popularity *p, const double *all)
{
    char hash[COT_HASH_TEXT_BYTES];
    cot_hash_print(hash, s->info->model_hash);
    const char *const meta[] = {"format", "coterie.popularity", "version", "1", "model_hash", hash};
    const int64_t L = p->layers, E = p->experts, H = p->homes;
    const size_t cells = (size_t)(L * E);
    const cot_tensor tensors[] = {
        {.name = "counts", .dtype = COT_F64, .dims = 2, .shape = {L, E}, .data = all, .bytes = cells * 8},
        {.name = "counts_of_homes",
         .dtype = COT_F64,
         .dims = 3,
         .shape = {H, L, E},
         .data = p->counts,
         .bytes = (size_t)H * cells * 8},
        {.name = "layers",
         .dtype = COT_I32,
         .dims = 1,
         .shape = {L},
         .data = p->layer,
         .bytes = (size_t)L * 4},
        {.name = "tokens",
         .dtype = COT_F64,
         .dims = 1,
         .shape = {H},
         .data = p->tokens,
         .bytes = (size_t)H * 8}};
    const size_t count = sizeof tensors / sizeof *tensors;
    if (cot_safetensors_begin(out, "popularity", tensors, count, meta, s->info->model_hash ? 3 : 2, NULL) !=
        COT_OK)
        return false;
    for (size_t i = 0; i < count; i++) fwrite(tensors[i].data, 1, tensors[i].bytes, out);
    return true;
}

static void send_safetensors(cot_server *s, cot_http_exchange *exchange, const cot_backend_popularity *p,
                             const double *all)
{
    char *bytes = NULL;
    size_t count = 0;
    FILE *out = open_memstream(&bytes, &count);
    const bool good = out && as_safetensors(out, s, p, all);
    if (out && fclose(out) == 0 && good)
        cot_server_reply(s, exchange, 200, NULL, "application/octet-stream", bytes, count);
    else
        cot_server_reply_json(s, exchange, 200, NULL);
    free(bytes);
}

void cot_server_show_popularity(cot_server *s, cot_http_exchange *exchange)
{
    cot_backend_popularity p;
    const char *query = cot_http_query(exchange);
    const bool tensors = query && strcmp(query, "format=safetensors") == 0;
    if (query && *query && !tensors && strcmp(query, "format=json") != 0) {
        refuse(s, exchange, 400, "invalid_format", "a popularity is of format=json or format=safetensors");
        return;
    }
    if (s->backend->table->popularity(s->backend, &p, NULL) != COT_OK) {
        cot_server_reply_json(s, exchange, 200, NULL);
        return;
    }
    if (!p.layers) {
        refuse(s, exchange, 404, "not_found", "the model has no experts, or they are not counted");
        return;
    }
    const size_t cells = (size_t)p.layers * (size_t)p.experts;
    double *all = calloc(cells, sizeof *all);
    for (size_t i = 0; all && i < cells * (size_t)p.homes; i++) all[i % cells] += p.counts[i];
    if (all && tensors)
        send_safetensors(s, exchange, &p, all);
    else
        cot_server_reply_json(s, exchange, 200, all ? as_json(s, &p, all) : NULL);
    free(all);
    cot_backend_popularity_free(&p);
}
