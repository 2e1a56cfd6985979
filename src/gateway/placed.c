#include "base/error.h"
#include "gateway/gateway_state.h"

#include <stdlib.h>

enum { MOST_PLACEMENT_BYTES = 8 << 20, MOST_SLOTS = 1 << 16 };

/* Sets the rank's bit for each expert in a row of slots, rank after rank. */
static bool read_layer(uint64_t *ranks_of, const json_t *row, size_t ranks, size_t slots, size_t experts)
{
    if (json_array_size(row) != ranks * slots) return false;
    for (size_t i = 0; i < ranks * slots; i++) {
        const json_t *slot = json_array_get(row, i);
        const json_int_t expert = json_integer_value(slot);
        if (!json_is_integer(slot) || expert < -1 || expert >= (json_int_t)experts) return false;
        if (expert >= 0) ranks_of[expert] |= UINT64_C(1) << i / slots;
    }
    for (size_t e = 0; e < experts; e++)
        if (!ranks_of[e]) return false;
    return true;
}

/* Which ranks have each cell, malloc'd, of a placement as GET /placement tells it; *experts of a layer. NULL: it is not of so many cells and
 * ranks, each of which is a home, or memory ran out. */
static uint64_t *read_placement(const json_t *json, size_t *experts, size_t cells, size_t ranks, size_t every)
{
    const json_t *rows = json_object_get(json, "physical_to_logical_map");
    const json_int_t E = json_integer_value(json_object_get(json, "experts")),
                     slots = json_integer_value(json_object_get(json, "slots_per_rank"));
    if (json_integer_value(json_object_get(json, "ranks")) != (json_int_t)ranks || E < 1 ||
        E > COT_ROUTE_MOST_CELLS || slots < 1 || slots > MOST_SLOTS ||
        json_object_get(json, "dense_layers") ||
        (json_array_size(rows) + every - 1) / every * (size_t)E != cells)
        return NULL;
    uint64_t *ranks_of = calloc(cells, sizeof *ranks_of);
    bool good = ranks_of != NULL;
    for (size_t l = 0; good && l < json_array_size(rows); l += every)
        good = read_layer(ranks_of + l / every * (size_t)E, json_array_get(rows, l), ranks, (size_t)slots,
                          (size_t)E);
    if (!good) free(ranks_of);
    *experts = (size_t)E;
    return good ? ranks_of : NULL;
}

static void on_placement(void *context, int status, const char *body, size_t bytes, const cot_error *failure)
{
    cot_gateway_worker *w = context;
    cot_gateway *g = w->gateway;
    cot_error error;
    size_t experts;
    (void)failure;
    json_t *json = status == 200 ? json_loadb(body, bytes, 0, NULL) : NULL;
    uint64_t *ranks_of =
        json ? read_placement(json, &experts, g->cells, w->targets, (size_t)w->layers_every) : NULL;
    if (json && !ranks_of)
        cot_access_tell(
            &g->access, COT_LOG_WARNING,
            "worker '%s': where its experts are cannot be read: what they cost is taken to be the same "
            "on all of its ranks",
            w->entry.name);
    w->is_placed = ranks_of && cot_route_book_set_placement(g->book, w->first_target, w->targets, experts,
                                                            ranks_of, &error) == COT_OK;
    if (!w->is_placed) cot_route_book_set_placement(g->book, w->first_target, w->targets, 1, NULL, &error);
    free(ranks_of);
    json_decref(json);
}

void cot_gateway_follow_placement(cot_gateway_worker *w, uint64_t epoch)
{
    if (w->targets < 2 || !w->gateway->cells || epoch == w->placement_epoch || w->placement.call) return;
    w->placement.done = on_placement;
    w->placement.context = w;
    if (cot_ask_start(&w->placement, w->probing, "/placement", w->authorization, NULL, MOST_PLACEMENT_BYTES))
        w->placement_epoch = epoch;
}

void cot_gateway_forget_placement(cot_gateway_worker *w)
{
    cot_error error;
    cot_ask_cancel(&w->placement);
    if (w->is_placed)
        cot_route_book_set_placement(w->gateway->book, w->first_target, w->targets, 1, NULL, &error);
    w->is_placed = false;
    w->placement_epoch = UINT64_MAX;
}
