#include "base/error.h"
#include "gateway/gateway_state.h"
#include "gateway/relay.h"
#include "gateway/reports.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_MESSAGE_BYTES = 4 << 20,
    MOST_BLOCKS = 65536, // whose calls are known
    MOST_PATH =
        1024 // blocks of a prompt that a signature counts for: its first ones, which others may share, and its last
};

/* A request is over: what it called counts for each block of its prompt, the first one last, so that beginnings stay longest. */
static void on_popularity(void *context, bool replayed, uint64_t number, const void *payload, size_t bytes)
{
    cot_gateway_worker *w = context;
    cot_gateway *g = w->gateway;
    cot_route_calls calls;
    uint64_t block, keys[MOST_PATH];
    (void)replayed, (void)number;
    cot_gateway_home home;
    const cot_gateway_told told =
        cot_gateway_read_popularity(&calls, &block, &home, payload, bytes, g->cells);
    if (told == COT_GATEWAY_TOLD_HOME && !w->is_stranger &&
        !cot_gateway_take_heat(w, home.home, home.tokens, home.counts, home.bytes))
        w->ignored_signatures++;
    if (told == COT_GATEWAY_TOLD_OTHER || told == COT_GATEWAY_TOLD_HOME) return;
    w->signatures++;
    const size_t count = told == COT_GATEWAY_TOLD_REQUEST && !w->is_stranger
                             ? cot_route_index_path(g->index, cot_route_key(block, NULL), keys, MOST_PATH)
                             : 0;
    if (count)
        cot_route_signatures_put(g->signatures, keys, count, &calls);
    else
        w->ignored_signatures++;
}

bool cot_gateway_begin_experts(cot_gateway *g, size_t cells, const char *model_hash)
{
    if (g->cells) {
        const bool is_like =
            cells == g->cells && (!*model_hash || !*g->model_hash || !strcmp(model_hash, g->model_hash));
        char *hash = is_like && !*g->model_hash ? strdup(model_hash) : NULL;
        if (hash) {
            free(g->model_hash);
            g->model_hash = hash;
        }
        return is_like;
    }
    g->signatures = cot_route_signatures_open(MOST_BLOCKS, cells);
    g->model_hash = strdup(model_hash);
    if (!g->signatures || !g->model_hash || cot_route_book_set_cells(g->book, cells, NULL) != COT_OK) {
        cot_route_signatures_close(g->signatures);
        free(g->model_hash);
        g->signatures = NULL;
        g->model_hash = NULL;
        return false;
    }
    g->cells = cells;
    return true;
}

void cot_gateway_forget_experts(cot_gateway *g)
{
    for (cot_gateway_worker *w = g->workers; w; w = w->next) cot_gateway_forget_placement(w);
    for (cot_relay *r = g->relays; r;
         r = r->behind) { // one that is not assigned yet would be booked with them
        free(r->foretold);
        r->foretold = NULL;
    }
    cot_route_signatures_close(g->signatures);
    free(g->model_hash);
    g->signatures = NULL;
    g->model_hash = NULL;
    g->cells = 0;
    g->cells_are_told = false;
}

/* Reads how the worker's signatures are to be read; what of them is none of this router's is not, but counted, which the log says. Errors:
 * OUT_OF_MEMORY. */
static cot_status meet(cot_gateway_worker *w, const json_t *document, cot_error *error)
{
    cot_gateway *g = w->gateway;
    const json_t *said = json_object_get(document, "popularity");
    const json_int_t cells = json_integer_value(json_object_get(said, "cells")),
                     every = json_integer_value(json_object_get(said, "layers_every"));
    const char *hash = json_string_value(json_object_get(document, "model_hash"));
    w->is_stranger = true;
    if (cells < 1 || cells > COT_ROUTE_MOST_CELLS || every < 1 || !hash) {
        cot_access_tell(&g->access, COT_LOG_WARNING,
                        "worker '%s': it does not say how its signatures are to be read: they are ignored",
                        w->entry.name);
        return COT_OK;
    }
    if (!cot_gateway_begin_experts(g, (size_t)cells, hash)) {
        if (!g->cells)
            return cot_fail(error, COT_OUT_OF_MEMORY,
                            "out of memory for signatures of %" JSON_INTEGER_FORMAT " experts", cells);
        cot_access_tell(&g->access, COT_LOG_WARNING,
                        "worker '%s': its signatures are of another model than the others': they are ignored",
                        w->entry.name);
        return COT_OK;
    }
    g->cells_are_told = true;
    w->is_stranger = false;
    w->layers_every = (double)every;
    cot_gateway_open_heat(w, said);
    return COT_OK;
}

cot_status cot_gateway_follow_experts(cot_gateway_worker *w, const json_t *document, const char *endpoint,
                                      cot_error *error)
{
    const cot_subscriber_options options = {.endpoint = endpoint,
                                            .topic = "popularity",
                                            .max_bytes = MOST_MESSAGE_BYTES,
                                            .on_message = on_popularity,
                                            .context = w};
    const cot_status status = meet(w, document, error);
    return status != COT_OK ? status // taken with reports of steps
                            : cot_subscriber_open(&w->popularity, w->gateway->zmq, NULL, &options, error);
}

const cot_route_calls *cot_gateway_calls(cot_gateway *g, const uint64_t *keys, size_t blocks)
{
    return g->signatures ? cot_route_signatures_find(g->signatures, keys, blocks) : NULL;
}

void cot_gateway_tick_experts(cot_gateway *g)
{
    if (g->signatures) cot_route_book_set_usual(g->book, cot_route_signatures_usual(g->signatures));
}
