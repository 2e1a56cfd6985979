#include "server/moves.h"

#include "access/api_json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void refuse(cot_server *s, cot_http_exchange *exchange, int status, const char *code,
                   const char *message)
{
    cot_api_error error;
    cot_api_fail(&error, status, code, NULL, "%s", message);
    cot_server_refuse(s, exchange, &error);
}

/* Whether the exchange asks for nothing in its query, of which these paths know no member; else it is refused by the first one's name. */
static bool takes_query(cot_server *s, cot_http_exchange *exchange)
{
    const char *query = cot_http_query(exchange);
    cot_api_error error;
    if (!*query) return true;
    cot_api_fail(&error, 400, "unknown_query", NULL,
                 "unknown member '%.*s' in the query of '%s', which takes none", (int)strcspn(query, "=&"),
                 query, cot_http_path(exchange));
    cot_server_refuse(s, exchange, &error);
    return false;
}

/* ---- where experts are, and where they are to go ---- */

static void refuse_for(cot_server *s, cot_http_exchange *exchange, const cot_error *error)
{
    const bool theirs = error->status == COT_INVALID_ARGUMENT || error->status == COT_MALFORMED ||
                        error->status == COT_UNSUPPORTED;
    if (error->status == COT_NOT_FOUND)
        refuse(s, exchange, 404, "not_found", error->message);
    else
        refuse(s, exchange, theirs ? 400 : 503, theirs ? "invalid_placement" : "unavailable", error->message);
}

void cot_server_show_placement(cot_server *s, cot_http_exchange *exchange)
{
    size_t bytes = 0;
    char *text = NULL;
    cot_error error;
    if (!takes_query(s, exchange)) return;
    if (s->backend->table->write_placement(s->backend, &text, &bytes, &error) == COT_OK)
        cot_server_reply(s, exchange, 200, NULL, "application/json", text, bytes);
    else
        refuse_for(s, exchange, &error);
    free(text);
}

static void refuse_while_moving(cot_server *s, cot_http_exchange *exchange, uint64_t id)
{
    cot_api_error error;
    cot_api_fail(&error, 409, "moves_under_way", NULL,
                 "experts are moving already (GET /rebalance/%llu): wait for that, or cancel it (DELETE)",
                 (unsigned long long)id);
    cot_server_refuse(s, exchange, &error);
}

void cot_server_put_placement(cot_server *s, cot_http_exchange *exchange)
{
    size_t bytes;
    const char *text = cot_http_body(exchange, &bytes);
    cot_backend_moves last, all;
    cot_error why;
    if (!takes_query(s, exchange)) return;
    if (bytes > COT_PLACEMENT_BYTES) // a body in chunks did not say so before
        refuse(s, exchange, 413, "request_too_large", "a placement of more than 8 MiB");
    else if (s->backend->table->moves(s->backend, &last, &all))
        refuse_while_moving(s, exchange, last.id);
    else if (s->backend->table->move(s->backend, text, bytes, &why) != COT_OK)
        refuse_for(s, exchange, &why);
    else if (!cot_server_wait(s, COT_WAITING_MOVES, exchange))
        refuse(s, exchange, 503, "unavailable", "out of memory for an answer; the moves go on");
}

void cot_server_on_moves(void *server, uint64_t id, const cot_error *error)
{
    cot_server *s = server;
    cot_http_exchange *exchange = cot_server_take_waiting(s, COT_WAITING_MOVES); // it may have left
    if (!error)
        cot_server_log(s, COT_LOG_INFO, "experts move where PUT /placement wants them (%llu)",
                       (unsigned long long)id);
    if (!exchange) return;
    if (error)
        refuse_for(s, exchange, error);
    else
        cot_server_reply_json(s, exchange, 202, json_pack("{s:I}", "id", (json_int_t)id));
}

/* ---- where the server itself would have them ---- */

/* Whether a body asks for a dry cycle; false, with an error, where it is none. */
static bool read_rebalance(bool *dry, cot_http_exchange *exchange, cot_api_error *error)
{
    enum { MOST_BYTES = 64 << 10 };
    size_t bytes;
    const char *text = cot_http_body(exchange, &bytes), *key;
    json_t *body = cot_api_read_json(text, bytes, MOST_BYTES, error), *value;
    bool good = body;
    *dry = false;
    json_object_foreach(body, key, value)
    {
        if (strcmp(key, "dry_run") != 0)
            good = cot_api_fail(error, 400, NULL, key, "unknown field '%s' (dry_run)", key);
        else if (!json_is_boolean(value))
            good = cot_api_fail(error, 400, NULL, key, "dry_run is not true or false");
        else
            *dry = json_is_true(value);
        if (!good) break;
    }
    json_decref(body);
    return good;
}

static void refuse_cycle(cot_server *s, cot_http_exchange *exchange, const cot_error *error)
{
    if (error->status == COT_UNSUPPORTED)
        refuse(s, exchange, 400, "rebalancing_is_off", error->message);
    else if (error->status == COT_INVALID_ARGUMENT) // they have begun meanwhile
        refuse(s, exchange, 409, "moves_under_way", error->message);
    else
        refuse_for(s, exchange, error);
}

void cot_server_post_rebalance(cot_server *s, cot_http_exchange *exchange)
{
    cot_backend_moves last, all;
    cot_api_error error = {0};
    cot_error why;
    bool dry;
    if (!takes_query(s, exchange)) return;
    if (!read_rebalance(&dry, exchange, &error))
        cot_server_refuse(s, exchange, &error);
    else if (s->backend->table->moves(s->backend, &last, &all))
        refuse_while_moving(s, exchange, last.id);
    else if (s->backend->table->rebalance(s->backend, dry, &why) != COT_OK)
        refuse_cycle(s, exchange, &why);
    else if (!cot_server_wait(s, COT_WAITING_CYCLE, exchange))
        refuse(s, exchange, 503, "unavailable", "out of memory for an answer; the cycle is made");
}

void cot_server_on_cycle(void *server, json_t *cycle, const cot_error *error)
{
    cot_server *s = server;
    cot_http_exchange *exchange = cot_server_take_waiting(s, COT_WAITING_CYCLE); // it may have left
    const json_t *id = json_object_get(cycle, "id");
    if (json_is_integer(id))
        cot_server_log(s, COT_LOG_INFO,
                       "experts move where POST /rebalance has found them to be needed (%lld)",
                       (long long)json_integer_value(id));
    if (exchange && error)
        refuse_cycle(s, exchange, error);
    else if (exchange)
        cot_server_reply_json(s, exchange, json_is_integer(id) ? 202 : 200, json_incref(cycle));
    json_decref(cycle);
}

static json_t *budget_json(const cot_backend_budget *b)
{
    if (!b->bytes) return json_null();
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:s?, s:f}", "bytes", (json_int_t)b->bytes,
                     "states_bytes", (json_int_t)b->states_bytes, "pages_bytes", (json_int_t)b->pages_bytes,
                     "slots_bytes", (json_int_t)b->slots_bytes, "replicas_bytes",
                     (json_int_t)b->replicas_bytes, "turns", (json_int_t)b->turns, "reason",
                     b->last < 0 ? NULL : b->reason[b->last], "gain_seconds", b->gain_ns / 1e9);
}

json_t *cot_server_rebalancing_json(const cot_backend_rebalancing *r)
{
    json_t *layers = json_object(), *compared = json_null();
    for (int i = 0; i < r->reasons; i++)
        if (r->last[i]) json_object_set_new(layers, r->reason[i], json_integer((json_int_t)r->last[i]));
    if (r->compared)
        compared = json_pack("{s:f, s:f}", "foreseen_seconds", r->foreseen_ns / 1e9, "realised_seconds",
                             r->realised_ns / 1e9);
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:o, s:o, s:o}", "mode", r->mode, "moved",
                     (json_int_t)r->moved, "stayed", (json_int_t)r->stayed, "refused", (json_int_t)r->refused,
                     "given_up", (json_int_t)r->given_up, "turns", (json_int_t)r->turns, "since_seconds",
                     (double)r->since_ns / 1e9, "saving_seconds", r->saving_ns / 1e9, "layers", layers,
                     "compared", compared, "memory", budget_json(&r->budget));
}

/* ---- how far they are ---- */

json_t *cot_server_moves_json(const cot_backend_moves *m)
{
    json_t *given_up = json_object(), *copying = json_array();
    for (int o = 0; o < m->outcomes; o++)
        json_object_set_new(given_up, m->outcome[o], json_integer((json_int_t)m->given_up[o]));
    for (int i = 0; i < m->copying; i++) {
        const struct cot_backend_copy *c = &m->copy[i];
        json_array_append_new(copying, json_pack("{s:i,s:i,s:i,s:i,s:I,s:I}", "layer", c->layer, "expert",
                                                 c->expert, "from", c->from, "to", c->to, "bytes",
                                                 (json_int_t)c->bytes, "of_bytes", (json_int_t)c->of_bytes));
    }
    return json_pack("{s:I,s:b,s:I,s:I,s:I,s:I,s:o,s:I,s:I,s:I,s:f,s:f,s:o}", "id", (json_int_t)m->id, "over",
                     m->over, "copies", (json_int_t)m->copies, "copied", (json_int_t)m->copied, "drops",
                     (json_int_t)m->drops, "dropped", (json_int_t)m->dropped, "given_up", given_up, "bytes",
                     (json_int_t)m->bytes, "chunks", (json_int_t)m->chunks, "epochs", (json_int_t)m->epochs,
                     "copy_seconds", (double)m->copy_ns / 1e9, "place_seconds", (double)m->place_ns / 1e9,
                     "copying", copying);
}

/* The number of moves that the path ends in, written as the server writes it; false: something else. */
static bool read_id(uint64_t *id, const char *name)
{
    char *end;
    if (*name < '1' || *name > '9') return false;
    errno = 0;
    *id = strtoull(name, &end, 10);
    return !*end && !errno;
}

/* The moves that the path names, if they are still known; else it is refused. */
static bool find(cot_server *s, cot_http_exchange *exchange, cot_backend_moves *found)
{
    cot_backend_moves last, all;
    const char *name = cot_http_path(exchange) + strlen(COT_REBALANCE_PATH);
    cot_api_error error;
    uint64_t id = 0;
    if (!takes_query(s, exchange)) return false;
    const bool is_number = read_id(&id, name);
    if (is_number && s->backend->table->find_moves(s->backend, id, found)) return true;
    s->backend->table->moves(s->backend, &last, &all);
    if (!last.id)
        cot_api_fail(&error, 404, "not_found", NULL, "there are no moves '%s': none were asked for", name);
    else if (is_number && id < last.id)
        cot_api_fail(&error, 404, "not_found", NULL,
                     "moves '%s' are forgotten: the last are %llu, and %d are known", name,
                     (unsigned long long)last.id, COT_BACKEND_MOVES);
    else
        cot_api_fail(&error, 404, "not_found", NULL, "there are no moves '%s'; the last are %llu", name,
                     (unsigned long long)last.id);
    cot_server_refuse(s, exchange, &error);
    return false;
}

void cot_server_show_rebalance(cot_server *s, cot_http_exchange *exchange)
{
    cot_backend_moves found;
    if (find(s, exchange, &found)) cot_server_reply_json(s, exchange, 200, cot_server_moves_json(&found));
}

void cot_server_cancel_rebalance(cot_server *s, cot_http_exchange *exchange)
{
    cot_backend_moves found;
    if (!find(s, exchange, &found)) return;
    if (!found.over) s->backend->table->cancel_moves(s->backend, found.id);
    cot_server_reply_json(s, exchange, found.over ? 200 : 202, cot_server_moves_json(&found));
}
