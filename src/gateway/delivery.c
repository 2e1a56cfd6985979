#include "gateway/delivery.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

bool cot_delivery_open(cot_delivery *d, size_t choices)
{
    d->choice = calloc(choices, sizeof *d->choice);
    d->choices = d->choice ? choices : 0;
    return d->choice;
}

void cot_delivery_free(cot_delivery *d)
{
    for (size_t i = 0; i < d->choices; i++) free(d->choice[i].ids);
    free(d->choice);
    free(d->id);
    *d = (cot_delivery){0};
}

static size_t index_of(const cot_delivery *d, const json_t *choice)
{
    const json_t *index = json_object_get(choice, "index");
    const json_int_t value = json_integer_value(index);
    return json_is_integer(index) && value >= 0 && (size_t)value < d->choices ? (size_t)value : SIZE_MAX;
}

/* Whether a choice of an event is one of a Coterie worker's: its index, and ids of which there are not too many. */
static bool is_good(const cot_delivery *d, const json_t *choice)
{
    const json_t *ids = json_object_get(choice, "token_ids");
    const size_t index = index_of(d, choice), more = json_array_size(ids);
    if (index == SIZE_MAX) return false;
    if (d->choice[index].finished) return true; // the client has it already
    if (!json_is_array(ids) || d->choice[index].count + more > d->most) return false;
    for (size_t i = 0; i < more; i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
            return false;
    }
    return true;
}

/* False: memory ran out. */
static bool add_ids(cot_delivery *d, cot_delivered_choice *c, const json_t *ids)
{
    void *grown = c->ids;
    const size_t more = json_array_size(ids);
    if (!cot_grow(&grown, &c->room, c->count + more + 1, sizeof *c->ids)) return false;
    c->ids = grown;
    for (size_t i = 0; i < more; i++)
        c->ids[c->count++] = (int32_t)json_integer_value(json_array_get(ids, i));
    d->tokens += more;
    return true;
}

typedef enum kept { KEEP, DROP, WRONG } kept;

/* A choice of an event that is good, as the client is to see it. */
static kept take_choice(cot_delivery *d, json_t *choice)
{
    cot_delivered_choice *c = &d->choice[index_of(d, choice)];
    if (c->finished) return DROP;
    if (!add_ids(d, c, json_object_get(choice, "token_ids"))) return WRONG;
    if (c->begun && d->resumed) {
        json_object_del(json_object_get(choice, "delta"), "role");
        json_object_del(choice, "prompt_token_ids");
    }
    c->begun = true;
    const json_t *reason = json_object_get(choice, "finish_reason");
    c->finished = reason && !json_is_null(reason);
    if (d->hides_ids) {
        json_object_del(choice, "token_ids");
        json_object_del(choice, "prompt_token_ids");
    }
    return KEEP;
}

/* All events of a stream have the id and the time of the first one. */
static bool take_head(cot_delivery *d, json_t *event)
{
    const char *id = json_string_value(json_object_get(event, "id"));
    const json_t *created = json_object_get(event, "created");
    if (!id || !json_is_integer(created)) return false;
    if (!d->id) {
        d->id = strdup(id);
        d->created = json_integer_value(created);
        return d->id;
    }
    return !d->resumed || (!json_object_set_new(event, "id", json_string(d->id)) &&
                           !json_object_set_new(event, "created", json_integer(d->created)));
}

static cot_delivery_kind take_event(cot_delivery *d, json_t *event)
{
    json_t *choices = json_object_get(event, "choices");
    if (json_object_get(event, "error")) return COT_DELIVERY_ERROR;
    const size_t count = json_array_size(choices);
    // an event that is not sent leaves no ids behind
    for (size_t i = 0; i < count; i++)
        if (!is_good(d, json_array_get(choices, i))) return COT_DELIVERY_BAD;
    if (!json_is_array(choices) || !take_head(d, event)) return COT_DELIVERY_BAD;
    for (size_t i = 0; i < json_array_size(choices);) {
        const kept choice = take_choice(d, json_array_get(choices, i));
        if (choice == WRONG) return COT_DELIVERY_BAD;
        if (choice == KEEP)
            i++;
        else
            json_array_remove(choices, i);
    }
    return count && !json_array_size(choices) ? COT_DELIVERY_NOTHING : COT_DELIVERY_EVENT;
}

cot_delivery_kind cot_delivery_take(cot_delivery *d, const char *data, size_t bytes, cot_buffer *out)
{
    out->bytes = 0;
    if (bytes == 6 && !memcmp(data, "[DONE]", 6))
        return cot_buffer_append(out, data, bytes) ? COT_DELIVERY_DONE : COT_DELIVERY_BAD;
    json_t *event = json_loadb(data, bytes, JSON_ALLOW_NUL, NULL);
    cot_delivery_kind kind = event ? take_event(d, event) : COT_DELIVERY_BAD;
    bool good = true;
    if (kind == COT_DELIVERY_ERROR || (kind == COT_DELIVERY_EVENT && !d->hides_ids && !d->resumed)) {
        good = cot_buffer_append(out, data, bytes);
    } else if (kind == COT_DELIVERY_EVENT) { // written as the worker writes
        char *text = json_dumps(event, JSON_COMPACT | JSON_REAL_PRECISION(9));
        good = text && cot_buffer_text(out, text);
        free(text);
    }
    json_decref(event);
    return good ? kind : COT_DELIVERY_BAD;
}

bool cot_delivery_write(const cot_delivery *d, cot_buffer *out)
{
    bool good = cot_buffer_text(out, "[");
    for (size_t i = 0; i < d->choices && good; i++) {
        good = cot_buffer_text(out, i ? ",[" : "[");
        for (size_t at = 0; at < d->choice[i].count && good; at++) {
            char text[16];
            snprintf(text, sizeof text, at ? ",%d" : "%d", (int)d->choice[i].ids[at]);
            good = cot_buffer_text(out, text);
        }
        good = good && cot_buffer_text(out, "]");
    }
    return good && cot_buffer_text(out, "]");
}
