#include "gateway/delivery.h"

#include "gateway/skim.h"

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
    free(d->created);
    free(d->part);
    *d = (cot_delivery){0};
}

/* ---- what an event says ---- */

/* A choice of an event. */
struct cot_delivery_part {
    cot_skim_span whole, ids;
    size_t index; // SIZE_MAX: of no choice that there is
    bool ends;    // it has a reason to
};

/* An event with the places of what is looked at. What two readers could take for two different events is none of a Coterie worker's:
 * names come once. */
typedef struct event_places {
    cot_skim_span id, created, choices;
    cot_skim_span prompt_ids; // the member, with the comma that it would leave over
    size_t parts;             // of d->part
    bool is_error;
} event_places;

static void read_part(const cot_delivery *d, struct cot_delivery_part *p, cot_skim *s)
{
    enum { INDEX, TOKEN_IDS, FINISH_REASON, DELTA, PROMPT_TOKEN_IDS, NAMES };
    static const cot_skim_name names[NAMES] = {COT_SKIM_NAME("index"), COT_SKIM_NAME("token_ids"),
                                               COT_SKIM_NAME("finish_reason"), COT_SKIM_NAME("delta"),
                                               COT_SKIM_NAME("prompt_token_ids")};
    uint32_t seen = 0;
    cot_skim_span name, value;
    *p = (struct cot_delivery_part){.index = SIZE_MAX};
    const bool in = cot_skim_into(s, '{');
    const char *const begin = s->at - 1;
    while (in && cot_skim_member(s, &name)) {
        const size_t which = cot_skim_which(s, &seen, name, names, NAMES);
        if (which == INDEX) {
            const int64_t index = cot_skim_integer(s);
            if (index >= 0 && (uint64_t)index < d->choices) p->index = (size_t)index;
            continue;
        }
        value = cot_skim_value(s);
        if (which == TOKEN_IDS) p->ids = value;
        if (which == FINISH_REASON) p->ends = !cot_skim_is(value, "null");
    }
    p->whole = (cot_skim_span){begin, (size_t)(s->at - begin)};
}

/* Whether these are ids of which a choice may have so many more. */
static bool are_ids(cot_skim_span ids, uint64_t room)
{
    uint64_t count = 0;
    cot_skim s = cot_skim_of(ids.text, ids.bytes);
    for (bool in = ids.text && cot_skim_into(&s, '['); in && cot_skim_element(&s); count++) {
        const int64_t id = cot_skim_integer(&s);
        if (id < 0 || id > INT32_MAX) s.bad = true;
    }
    return ids.text && !s.bad && count <= room;
}

/* Whether a choice of an event is one of a Coterie worker's: its index, and ids of which there are not too many. */
static bool is_good(const cot_delivery *d, const struct cot_delivery_part *p)
{
    if (p->index == SIZE_MAX) return false;
    const cot_delivered_choice *c = &d->choice[p->index];
    // the client has what is finished already
    return c->finished || (c->count <= d->most && are_ids(p->ids, d->most - c->count));
}

/* The choices of an event. False: one is none of a Coterie worker's, or memory ran out. */
static bool read_choices(cot_delivery *d, event_places *e, cot_skim *s)
{
    bool good = true;
    for (bool in = cot_skim_into(s, '['); in && cot_skim_element(s);) {
        void *grown = d->part;
        if (!cot_grow(&grown, &d->part_room, e->parts + 1, sizeof *d->part)) return false;
        d->part = grown;
        struct cot_delivery_part *const p = &d->part[e->parts++];
        read_part(d, p, s);
        good = good && !s->bad && is_good(d, p);
    }
    return good;
}

/* Looks through an event that nothing is taken of yet. False: it is none of a Coterie worker's, or memory ran out. */
static bool read_event(cot_delivery *d, event_places *e, const char *data, size_t bytes)
{
    enum { ID, CREATED, CHOICES, ERROR, PROMPT_TOKEN_IDS, NAMES };
    static const cot_skim_name names[NAMES] = {COT_SKIM_NAME("id"), COT_SKIM_NAME("created"),
                                               COT_SKIM_NAME("choices"), COT_SKIM_NAME("error"),
                                               COT_SKIM_NAME("prompt_token_ids")};
    uint32_t seen = 0;
    cot_skim_span name;
    cot_skim s = cot_skim_of(data, bytes);
    const char *behind = NULL; // the member before
    *e = (event_places){0};
    bool good = true, ids_are_first = false;
    for (bool in = cot_skim_into(&s, '{'); in && cot_skim_member(&s, &name);) {
        const size_t which = cot_skim_which(&s, &seen, name, names, NAMES);
        cot_skim ahead = s;
        const char *const begin = name.text - 1;
        if (ids_are_first) e->prompt_ids.bytes = (size_t)(begin - e->prompt_ids.text);
        ids_are_first = which == PROMPT_TOKEN_IDS && !behind;
        const cot_skim_span value = which == CHOICES ? (cot_skim_span){0} : cot_skim_value(&s);
        if (which == ID)
            e->id = value;
        else if (which == CREATED) {
            cot_skim_integer(&ahead);
            good = good && !ahead.bad;
            e->created = value;
        } else if (which == CHOICES) {
            good = read_choices(d, e, &s) && good;
            e->choices = (cot_skim_span){ahead.at, (size_t)(s.at - ahead.at)};
        } else if (which == PROMPT_TOKEN_IDS) {
            const char *const from = behind ? behind : begin;
            e->prompt_ids = (cot_skim_span){from, (size_t)(s.at - from)};
        }
        behind = s.at;
    }
    e->is_error = seen & 1u << ERROR;
    return cot_skim_ends(&s) &&
           (e->is_error || (good && e->choices.text && e->created.text && e->id.text && *e->id.text == '"'));
}

/* ---- what the client is shown ---- */

/* A text on its way to `out`, from which pieces are left out or replaced. */
typedef struct copier {
    cot_buffer *out;
    const char *from; // what comes next
    bool good;        // memory did not run out
} copier;

static void replace(copier *c, const char *begin, const char *end, cot_skim_span by)
{
    c->good = c->good && cot_buffer_append(c->out, c->from, (size_t)(begin - c->from)) &&
              (!by.bytes || cot_buffer_append(c->out, by.text, by.bytes));
    c->from = end;
}

static void leave_out(copier *c, const char *begin, const char *end)
{
    replace(c, begin, end, (cot_skim_span){0});
}

/* Goes through the members or elements of an object or list, some of which are left out, each with the comma that it would leave over. */
typedef struct pruner {
    const char *behind; // what came last; NULL: nothing has
    bool kept;          // something was
} pruner;

static void prune(pruner *p, copier *c, const char *begin, const char *end, bool keeps)
{
    if (!keeps)
        leave_out(c, p->behind ? p->behind : begin, end);
    else if (p->behind && !p->kept)
        leave_out(c, p->behind, begin);
    p->kept |= keeps;
    p->behind = end;
}

/* The role stands in a stream once. */
static void show_delta(copier *out, cot_skim *s)
{
    pruner members = {0};
    cot_skim_span name;
    for (bool in = cot_skim_into(s, '{'); in && cot_skim_member(s, &name);) {
        const cot_skim_span value = cot_skim_value(s);
        prune(&members, out, name.text - 1, value.text + value.bytes, !cot_skim_is(name, "role"));
    }
}

/* A choice, of which some was `told` before by another worker. */
static void show_part(const cot_delivery *d, copier *out, cot_skim *s, bool told)
{
    pruner members = {0};
    cot_skim_span name;
    for (bool in = cot_skim_into(s, '{'); in && cot_skim_member(s, &name);) {
        const bool is_prompt = cot_skim_is(name, "prompt_token_ids");
        const bool hidden = d->hides_ids && (is_prompt || cot_skim_is(name, "token_ids"));
        const char *const begin = name.text - 1;
        cot_skim ahead = *s;
        const cot_skim_span value = cot_skim_value(s);
        const bool keeps = !hidden && !(is_prompt && told);
        prune(&members, out, begin, value.text + value.bytes, keeps);
        if (keeps && told && cot_skim_is(name, "delta") && *value.text == '{') show_delta(out, &ahead);
    }
}

/* ---- what is taken ---- */

/* False: memory ran out. */
static bool add_ids(cot_delivery *d, cot_delivered_choice *c, cot_skim_span ids)
{
    cot_skim s = cot_skim_of(ids.text, ids.bytes);
    for (bool in = cot_skim_into(&s, '['); in && cot_skim_element(&s);) {
        void *grown = c->ids;
        if (!cot_grow(&grown, &c->room, c->count + 1, sizeof *c->ids)) return false;
        c->ids = grown;
        c->ids[c->count++] = (int32_t)cot_skim_integer(&s);
        d->tokens++;
    }
    return true;
}

/* The choices of an event that is good, as the client is to see them. False: there were some, and it has all of them already. */
static bool take_choices(cot_delivery *d, copier *out, const event_places *e)
{
    pruner choices = {0};
    for (size_t i = 0; i < e->parts; i++) {
        const struct cot_delivery_part *const p = &d->part[i];
        cot_delivered_choice *const c = &d->choice[p->index];
        const bool keeps = !c->finished;
        prune(&choices, out, p->whole.text, p->whole.text + p->whole.bytes, keeps);
        if (!keeps) continue;
        const bool told = c->begun && d->resumed;
        cot_skim s = cot_skim_of(p->whole.text, p->whole.bytes);
        if (!add_ids(d, c, p->ids)) out->good = false;
        if (d->hides_ids || told) show_part(d, out, &s, told);
        c->begun = true;
        c->finished = p->ends;
    }
    return choices.kept || !e->parts;
}

/* All events of a stream have the id and the time of the first one. False: memory ran out. */
static bool keep_head(cot_delivery *d, const event_places *e)
{
    if (d->id) return true;
    d->id = strndup(e->id.text, e->id.bytes);
    d->created = strndup(e->created.text, e->created.bytes);
    return d->id && d->created;
}

/* Copies what stands `before` the choices of an event, or behind them, with the id and time of the first event, and without the prompt's
 * ids where the client is not to see them. */
static void show_head(const cot_delivery *d, copier *out, const event_places *e, bool before, bool hides_ids)
{
    struct {
        cot_skim_span own, by;
    } piece[3];
    size_t count = 0;
    if (d->resumed) {
        piece[count].own = e->id;
        piece[count++].by = (cot_skim_span){d->id, strlen(d->id)};
        piece[count].own = e->created;
        piece[count++].by = (cot_skim_span){d->created, strlen(d->created)};
    }
    if (hides_ids && e->prompt_ids.text) {
        piece[count].own = e->prompt_ids;
        piece[count++].by = (cot_skim_span){0};
    }
    for (size_t done = 0; done < count; done++) { // in the order in which they stand
        size_t next = done;
        for (size_t i = done + 1; i < count; i++)
            if (piece[i].own.text < piece[next].own.text) next = i;
        const cot_skim_span own = piece[next].own, by = piece[next].by;
        piece[next] = piece[done];
        if ((own.text < e->choices.text) == before) replace(out, own.text, own.text + own.bytes, by);
    }
}

static cot_delivery_kind take_event(cot_delivery *d, const char *data, size_t bytes, cot_buffer *out)
{
    event_places e;
    copier shown = {out, data, true};
    if (!read_event(d, &e, data, bytes)) return COT_DELIVERY_BAD;
    if (e.is_error) return cot_buffer_append(out, data, bytes) ? COT_DELIVERY_ERROR : COT_DELIVERY_BAD;
    const bool hides_ids = d->hides_ids || (d->resumed && d->id); // an event before had the prompt's
    if (!keep_head(d, &e)) return COT_DELIVERY_BAD;
    show_head(d, &shown, &e, true, hides_ids);
    const bool news = take_choices(d, &shown, &e);
    show_head(d, &shown, &e, false, hides_ids);
    leave_out(&shown, data + bytes, data + bytes);
    return !shown.good ? COT_DELIVERY_BAD : news ? COT_DELIVERY_EVENT : COT_DELIVERY_NOTHING;
}

cot_delivery_kind cot_delivery_take(cot_delivery *d, const char *data, size_t bytes, cot_buffer *out)
{
    out->bytes = 0;
    if (bytes == 6 && !memcmp(data, "[DONE]", 6))
        return cot_buffer_append(out, data, bytes) ? COT_DELIVERY_DONE : COT_DELIVERY_BAD;
    return take_event(d, data, bytes, out);
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
