/* Which experts each worker's texts call lately, as its topic of popularity tells each second. */
#include "gateway/gateway_state.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_CELLS = 1 << 16 }; // layers x experts

void cot_gateway_open_heat(cot_gateway_worker *w, const json_t *popularity)
{
    const json_int_t layers = json_integer_value(json_object_get(popularity, "layers")),
                     experts = json_integer_value(json_object_get(popularity, "experts"));
    if (layers < 1 || experts < 1 || layers > MOST_CELLS || experts > MOST_CELLS ||
        layers * experts > MOST_CELLS)
        return;
    cot_gateway_heat *h = &w->heat;
    *h = (cot_gateway_heat){.layers = (size_t)layers, .experts = (size_t)experts, .homes = w->targets};
    h->tokens = calloc(h->homes, sizeof *h->tokens);
    h->counts = calloc(h->homes * h->layers * h->experts, sizeof *h->counts);
    if (!h->tokens || !h->counts) cot_gateway_close_heat(w);
}

void cot_gateway_close_heat(cot_gateway_worker *w)
{
    free(w->heat.tokens);
    free(w->heat.counts);
    w->heat = (cot_gateway_heat){0};
}

bool cot_gateway_take_heat(cot_gateway_worker *w, uint64_t home, double tokens, const void *counts,
                           size_t bytes)
{
    cot_gateway_heat *h = &w->heat;
    const size_t cells = h->layers * h->experts;
    if (!cells || home >= h->homes || bytes != cells * sizeof *h->counts) return false;
    h->tokens[home] = tokens;
    memcpy(h->counts + home * cells, counts, bytes);
    return true;
}

/* The part of the worker's tokens that call an expert, of 255. */
static unsigned share_of(const cot_gateway_heat *h, size_t cell, double tokens)
{
    double calls = 0;
    for (size_t home = 0; home < h->homes; home++)
        calls += (double)h->counts[home * h->layers * h->experts + cell];
    const double share = tokens > 0 ? calls / tokens : 0;
    return share > 0 ? (unsigned)(255 * (share < 1 ? share : 1) + 0.5) : 0;
}

/* [layers] texts of two hexadecimal digits an expert. */
static json_t *heat_json(const cot_gateway_heat *h)
{
    json_t *rows = json_array();
    char *row = malloc(2 * h->experts + 1);
    double tokens = 0;
    for (size_t home = 0; home < h->homes; home++) tokens += h->tokens[home];
    for (size_t l = 0; row && l < h->layers; l++) {
        for (size_t e = 0; e < h->experts; e++) {
            const unsigned share = share_of(h, l * h->experts + e, tokens);
            row[2 * e] = "0123456789abcdef"[share >> 4];
            row[2 * e + 1] = "0123456789abcdef"[share & 15];
        }
        json_array_append_new(rows, json_stringn(row, 2 * h->experts));
    }
    free(row);
    return rows;
}

json_t *cot_gateway_heat_json(const cot_gateway *g)
{
    json_t *list = json_array();
    for (const cot_gateway_worker *w = g->workers; w; w = w->next) {
        const cot_gateway_heat *h = &w->heat;
        if (w->listed && h->counts)
            json_array_append_new(list, json_pack("{s:s, s:i, s:i, s:o}", "worker", w->entry.name, "layers",
                                                  (int)h->layers, "experts", (int)h->experts, "shares",
                                                  heat_json(h)));
    }
    return list ? json_pack("{s:o}", "workers", list) : NULL;
}
