#include "engine/migrate.h"

#include "base/error.h"
#include "placement/epoch.h"

#include <stdlib.h>
#include <string.h>

const char *const *cot_engine_move_outcomes(void)
{
    static const char *const names[] = {
#define COT_MOVE_OUTCOME_NAME(name, text) text,
        COT_MOVE_OUTCOME_LIST(COT_MOVE_OUTCOME_NAME)
#undef COT_MOVE_OUTCOME_NAME
            NULL};
    return names;
}

/* ---- places ---- */

static int64_t places_of_layer(const cot_expert_map *map)
{
    return (int64_t)map->n_ranks * map->slots_per_rank;
}

static int64_t place_at(const cot_migrate *m, int32_t layer, int32_t rank, int32_t slot)
{
    return layer * places_of_layer(&m->now) + (int64_t)rank * m->now.slots_per_rank + slot;
}

/* The lowest slot of a rank that holds the expert; -1: none does. */
static int32_t slot_with(const cot_expert_map *map, int32_t layer, int32_t rank, int32_t expert)
{
    const int32_t *slot = map->expert + layer * places_of_layer(map) + (int64_t)rank * map->slots_per_rank;
    for (int32_t s = 0; s < map->slots_per_rank; s++)
        if (slot[s] == expert) return s;
    return -1;
}

static uint8_t *given_up(const cot_migrate *m, int32_t layer, int32_t expert, int32_t rank)
{
    return &m->given_up[((int64_t)layer * m->now.n_experts + expert) * m->now.n_ranks + rank];
}

/* Whether a place that the epoch in force has is of the target: of two of one rank the first. */
static bool is_wanted(const cot_migrate *m, int32_t layer, int32_t rank, int32_t slot)
{
    const int32_t expert = m->now.expert[place_at(m, layer, rank, slot)];
    return slot_with(&m->to, layer, rank, expert) >= 0 && slot_with(&m->now, layer, rank, expert) == slot;
}

static int64_t place_of(const cot_migrate *m, const cot_migrate_move *move)
{
    return place_at(m, move->chunk.layer, move->chunk.to, move->chunk.to_slot);
}

static void give_up(cot_migrate *m, cot_migrate_move *move, cot_move_outcome outcome)
{
    if (move->state >= COT_MIGRATE_RESERVED) {
        m->place[place_of(m, move)] = move->asked ? COT_MIGRATE_DRAINING : COT_MIGRATE_FREE;
        m->advanced = true; // others may want it
    }
    move->state = COT_MIGRATE_GIVEN_UP;
    *given_up(m, move->chunk.layer, move->chunk.expert, move->chunk.to) = 1;
    m->gone[outcome]++;
}

/* Nothing is begun any more, and what is not published is given up. */
static void stop(cot_migrate *m, cot_move_outcome outcome)
{
    m->stopped = true;
    for (int64_t i = 0; i < m->moves; i++)
        if (m->move[i].state < COT_MIGRATE_PUBLISHED) give_up(m, &m->move[i], outcome);
}

/* ---- open ---- */

/* Layers are numbered from 0. */
static cot_status map_of(cot_expert_map *map, const cot_expert_layout *l, cot_error *error)
{
    cot_status status =
        cot_expert_map_new(map, l->n_layers, l->n_experts, l->n_ranks, l->slots_per_rank, error);
    for (int32_t layer = 0; layer < l->n_layers && status == COT_OK; layer++) {
        const cot_expert_replicas r = cot_expert_layout_layer(l, layer);
        for (int32_t e = 0; e < l->n_experts; e++)
            for (int32_t i = r.begin[e]; i < r.begin[e + 1]; i++)
                map->expert[layer * places_of_layer(map) + (int64_t)r.rank[i] * l->slots_per_rank +
                            r.slot[i]] = e;
    }
    return status;
}

/* Slots of a rank's layer that are not free. */
static int32_t slots_used(const cot_migrate *m, int32_t layer, int32_t rank)
{
    int32_t used = 0;
    for (int32_t s = 0; s < m->now.slots_per_rank; s++)
        used += m->place[place_at(m, layer, rank, s)] != COT_MIGRATE_FREE;
    return used;
}

/* How many slots the layer may have on that rank beside the one that is for one layer at a time. */
static int32_t own_slots(const cot_migrate *m, int32_t layer, int32_t rank)
{
    return m->o.own ? m->o.own[layer * m->now.n_ranks + rank] : m->now.slots_per_rank - m->o.transit;
}

/* Whether the layer has on that rank more than its own places. */
static bool is_over(const cot_migrate *m, int32_t layer, int32_t rank)
{
    return slots_used(m, layer, rank) > own_slots(m, layer, rank);
}

/* The first layer, from this one on, that has moves is in hand. */
static void choose_layer(cot_migrate *m, int32_t from)
{
    m->in_hand = m->now.n_layers;
    for (int64_t i = 0; i < m->moves; i++) {
        const int32_t layer = m->move[i].chunk.layer;
        if (layer >= from && layer < m->in_hand) m->in_hand = layer;
    }
}

/* What is still missing, given-up moves aside, is dealt out in rounds; layers before `from` get no more than their own places. */
static cot_status begin_pass(cot_migrate *m, int32_t from, cot_error *error)
{
    cot_transfer *transfers;
    int64_t n;
    cot_status status = cot_place_transfers(&transfers, &n, &m->rounds, &m->now, &m->to, error);
    if (status != COT_OK) return status;
    cot_migrate_move *moves = calloc((size_t)n + 1, sizeof *moves);
    if (!moves) {
        free(transfers);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for moves of experts");
    }
    free(m->move);
    m->move = moves;
    m->moves = 0;
    m->round = 0;
    m->begun = m->advanced = false;
    for (int64_t i = 0; i < n; i++) {
        const cot_transfer *t = &transfers[i];
        if (*given_up(m, t->layer, t->expert, t->to)) continue;
        m->move[m->moves] =
            (cot_migrate_move){.chunk = {.layer = t->layer,
                                         .expert = t->expert,
                                         .from = t->from,
                                         .from_slot = slot_with(&m->now, t->layer, t->from, t->expert),
                                         .to = t->to,
                                         .move = (int32_t)m->moves},
                               .round = t->round,
                               .tries = m->o.tries};
        m->moves++;
    }
    choose_layer(m, from);
    free(transfers);
    return COT_OK;
}

cot_status cot_migrate_open(cot_migrate *m, const cot_migrate_options *options, const cot_expert_layout *now,
                            const cot_expert_layout *to, cot_error *error)
{
    *m = (cot_migrate){.o = *options};
    cot_status status = map_of(&m->now, now, error);
    if (status == COT_OK) status = map_of(&m->to, to, error);
    if (status != COT_OK) return status;
    const size_t layers = (size_t)now->n_layers, experts = (size_t)now->n_experts,
                 ranks = (size_t)now->n_ranks, places = layers * (size_t)places_of_layer(&m->now);
    m->place = calloc(places, sizeof *m->place);
    m->given_up = calloc(layers * experts * ranks, sizeof *m->given_up);
    m->differs = calloc(layers, sizeof *m->differs);
    m->chunk = calloc(ranks, sizeof *m->chunk);
    m->words = calloc((size_t)cot_expert_changes_room(now) + 1, sizeof *m->words);
    m->keeps = calloc(experts, sizeof *m->keeps);
    m->changed = calloc(experts, sizeof *m->changed);
    if (!m->place || !m->given_up || !m->differs || !m->chunk || !m->words || !m->keeps || !m->changed)
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for moves of experts");
    for (size_t at = 0; at < places; at++)
        if (m->now.expert[at] >= 0) m->place[at] = COT_MIGRATE_IN_FORCE;
    status = begin_pass(m, 0, error);
    if (status != COT_OK) return status;
    m->copies = m->moves;
    for (int64_t i = 0; i < m->moves; i++) m->differs[m->move[i].chunk.layer] = 1;
    for (int32_t layer = 0; layer < now->n_layers; layer++)
        for (int32_t r = 0; r < now->n_ranks; r++)
            for (int32_t s = 0; s < now->slots_per_rank; s++) {
                if (m->now.expert[place_at(m, layer, r, s)] < 0 || is_wanted(m, layer, r, s)) continue;
                m->differs[layer] = 1;
                m->drops++;
            }
    return COT_OK;
}

void cot_migrate_close(cot_migrate *m)
{
    void *owned[] = {m->place, m->given_up, m->differs, m->move, m->chunk, m->words, m->keeps, m->changed};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    cot_expert_map_free(&m->now);
    cot_expert_map_free(&m->to);
    *m = (cot_migrate){0};
}

/* ---- copying ---- */

/* Whether two layers share a pool. */
static bool is_alike(const cot_migrate *m, int32_t layer, int32_t other)
{
    return m->o.slot_bytes[layer] == m->o.slot_bytes[other];
}

/* Whether a layer but this one has the place of their pool that is for one at a time. */
static bool is_lent(const cot_migrate *m, int32_t layer, int32_t rank)
{
    for (int32_t l = 0; l < m->now.n_layers; l++)
        if (l != layer && is_alike(m, layer, l) && is_over(m, l, rank)) return true;
    return false;
}

/* The slot has a place from now on: its own, or that of a free slot of another layer of the pool, of which there is one. */
static void take_place(cot_migrate *m, int32_t layer, int32_t rank, int32_t slot)
{
    int32_t *const place = &m->o.place[place_at(m, layer, rank, slot)];
    for (int32_t l = 0; l < m->now.n_layers && *place < 0; l++)
        for (int32_t s = 0; s < m->now.slots_per_rank && *place < 0; s++) {
            const int64_t at = place_at(m, l, rank, s);
            if (!is_alike(m, layer, l) || m->place[at] != COT_MIGRATE_FREE || m->o.place[at] < 0) continue;
            *place = m->o.place[at];
            m->o.place[at] = -1;
        }
}

/* A free slot that the layer may have on that rank, of those that have a place the lowest; -1: there is none. */
static int32_t free_slot(const cot_migrate *m, int32_t layer, int32_t rank)
{
    const int32_t own = own_slots(m, layer, rank), used = slots_used(m, layer, rank);
    if (used >= own + m->o.transit || (used == own && (layer != m->in_hand || is_lent(m, layer, rank))))
        return -1;
    int32_t slot = -1;
    for (int32_t s = m->now.slots_per_rank - 1; s >= 0; s--) {
        const int64_t at = place_at(m, layer, rank, s);
        if (m->place[at] == COT_MIGRATE_FREE && (slot < 0 || m->o.place[at] >= 0)) slot = s;
    }
    return slot;
}

/* A round begins: its moves get a place, where there is one. */
static void reserve(cot_migrate *m, int64_t now_ns)
{
    m->begun = true;
    for (int64_t i = 0; i < m->moves; i++) {
        cot_migrate_move *move = &m->move[i];
        if (move->state != COT_MIGRATE_WAITING || move->round != m->round) continue;
        const int32_t slot = free_slot(m, move->chunk.layer, move->chunk.to);
        if (slot < 0) continue;
        take_place(m, move->chunk.layer, move->chunk.to, slot);
        move->chunk.to_slot = slot;
        move->state = COT_MIGRATE_RESERVED;
        move->since_ns = now_ns;
        m->place[place_of(m, move)] = COT_MIGRATE_TAKEN;
    }
}

static bool is_copied(const cot_migrate_move *move)
{
    return move->state == COT_MIGRATE_RESERVED || move->state == COT_MIGRATE_COPYING;
}

/* Whether a move's chunks are not all there. */
static bool copies(const cot_migrate *m)
{
    for (int64_t i = 0; i < m->moves; i++)
        if (is_copied(&m->move[i])) return true;
    return false;
}

/* The next chunk of each move that has a place. */
static void send_chunks(cot_migrate *m, cot_migrate_command *command, int64_t bytes)
{
    *command = (cot_migrate_command){.kind = COT_MIGRATE_COPY, .chunk = m->chunk};
    for (int64_t i = 0; i < m->moves; i++) {
        cot_migrate_move *move = &m->move[i];
        if (!is_copied(move)) continue;
        const int64_t left = m->o.slot_bytes[move->chunk.layer] - move->chunk.begin;
        move->chunk.bytes = left < bytes ? left : bytes;
        move->chunk.last = move->chunk.bytes == left;
        move->state = COT_MIGRATE_COPYING;
        move->asked = true;
        m->bytes += (uint64_t)move->chunk.bytes;
        m->chunks++;
        m->chunk[command->chunks++] = move->chunk;
    }
}

void cot_migrate_copied(cot_migrate *m, int32_t i, cot_runner_verdict verdict)
{
    cot_migrate_move *move = &m->move[i];
    move->asked = false;
    if (move->state == COT_MIGRATE_GIVEN_UP) {
        m->place[place_of(m, move)] = COT_MIGRATE_FREE;
        m->advanced = true;
    } else if (verdict == COT_RUNNER_FAILED) {
        give_up(m, move, COT_MOVE_FAILED);
    } else if (verdict == COT_RUNNER_DIFFERS) {
        if (--move->tries == 0) give_up(m, move, COT_MOVE_DIFFERED);
    } else {
        move->tries = m->o.tries;
        move->chunk.begin += move->chunk.bytes;
        if (move->chunk.begin == m->o.slot_bytes[move->chunk.layer]) move->state = COT_MIGRATE_COMPARED;
    }
}

void cot_migrate_tick(cot_migrate *m, int64_t now_ns)
{
    for (int64_t i = 0; i < m->moves; i++)
        if (is_copied(&m->move[i]) && now_ns - m->move[i].since_ns > m->o.timeout_ns)
            give_up(m, &m->move[i], COT_MOVE_TIMED_OUT);
}

/* ---- publishing ---- */

/* Whether no move of the layer waits for a later round. */
static bool is_ready(const cot_migrate *m, int32_t layer)
{
    for (int64_t i = 0; i < m->moves; i++)
        if (m->move[i].chunk.layer == layer && m->move[i].state == COT_MIGRATE_WAITING &&
            m->move[i].round > m->round)
            return false;
    return true;
}

/* Marks what comes to the layer and what goes: places of experts that change. */
static void change_layer(cot_migrate *m, int32_t layer)
{
    const int32_t slots = m->now.slots_per_rank;
    const int64_t first = layer * places_of_layer(&m->now), end = first + places_of_layer(&m->now);
    memset(m->keeps, 0, (size_t)m->now.n_experts * sizeof *m->keeps);
    memset(m->changed, 0, (size_t)m->now.n_experts);
    for (int64_t i = 0; i < m->moves; i++) {
        cot_migrate_move *move = &m->move[i];
        if (move->state != COT_MIGRATE_COMPARED || move->chunk.layer != layer) continue;
        move->state = COT_MIGRATE_PUBLISHED;
        m->keeps[move->chunk.expert]++;
        m->changed[move->chunk.expert] = 1;
    }
    for (int64_t at = first; at < end; at++) {
        const int32_t rank = (int32_t)(at - first) / slots, slot = (int32_t)(at - first) % slots;
        if (m->place[at] == COT_MIGRATE_IN_FORCE && is_wanted(m, layer, rank, slot))
            m->keeps[m->now.expert[at]]++;
    }
    for (int64_t at = first; at < end; at++) {
        const int32_t rank = (int32_t)(at - first) / slots, slot = (int32_t)(at - first) % slots,
                      expert = m->now.expert[at];
        if (m->place[at] != COT_MIGRATE_IN_FORCE || is_wanted(m, layer, rank, slot)) continue;
        if (m->keeps[expert]++ == 0) continue; // the last replica stays
        m->place[at] = COT_MIGRATE_RETIRING;
        m->changed[expert] = 1;
    }
}

/* Whether the epoch published has the expert in that place. */
static bool is_published(const cot_migrate *m, int64_t at, int32_t layer, int32_t expert)
{
    if (m->place[at] == COT_MIGRATE_IN_FORCE) return m->now.expert[at] == expert;
    for (int64_t i = 0; i < m->moves && m->place[at] == COT_MIGRATE_TAKEN; i++)
        if (m->move[i].state == COT_MIGRATE_PUBLISHED && m->move[i].chunk.layer == layer &&
            m->move[i].chunk.expert == expert && place_of(m, &m->move[i]) == at)
            return true;
    return false;
}

/* The rows of what changes in the layer, from *row on; returns where they end. */
static int32_t *write_layer(const cot_migrate *m, int32_t layer, int32_t *row)
{
    const int32_t slots = m->now.slots_per_rank;
    const int64_t first = layer * places_of_layer(&m->now), places = places_of_layer(&m->now);
    for (int32_t expert = 0; expert < m->now.n_experts; expert++) {
        if (!m->changed[expert]) continue;
        row[0] = layer;
        row[1] = expert;
        row[2] = 0;
        for (int32_t p = 0; p < places; p++) {
            if (!is_published(m, first + p, layer, expert)) continue;
            int32_t *replica = row + COT_EXPERT_CHANGE_WORDS + 2 * row[2]++;
            replica[0] = p / slots;
            replica[1] = p % slots;
        }
        row += cot_expert_change_words(row);
    }
    return row;
}

/* Whether there is something to publish. */
static bool publish(cot_migrate *m, cot_migrate_command *command)
{
    int32_t *end = m->words;
    for (int32_t layer = 0; layer < m->now.n_layers; layer++) {
        if (!m->differs[layer] || !is_ready(m, layer)) continue;
        change_layer(m, layer);
        end = write_layer(m, layer, end);
    }
    if (end == m->words) return false;
    m->placing = m->advanced = true;
    *command = (cot_migrate_command){.kind = COT_MIGRATE_PLACE, .words = m->words, .count = end - m->words};
    return true;
}

void cot_migrate_placed(cot_migrate *m, bool adopted)
{
    const int64_t places = m->now.n_layers * places_of_layer(&m->now);
    m->placing = false;
    for (int64_t at = 0; at < places; at++) {
        if (m->place[at] != COT_MIGRATE_RETIRING) continue;
        m->place[at] = adopted ? COT_MIGRATE_FREE : COT_MIGRATE_IN_FORCE;
        if (!adopted) continue;
        m->now.expert[at] = -1;
        m->dropped++;
    }
    for (int64_t i = 0; i < m->moves; i++) {
        cot_migrate_move *move = &m->move[i];
        if (move->state != COT_MIGRATE_PUBLISHED) continue;
        if (!adopted) {
            give_up(m, move, COT_MOVE_REFUSED);
            continue;
        }
        move->state = COT_MIGRATE_RELEASED;
        m->place[place_of(m, move)] = COT_MIGRATE_IN_FORCE;
        m->now.expert[place_of(m, move)] = move->chunk.expert;
        m->copied++;
    }
    m->epochs += adopted;
    if (!adopted) stop(m, COT_MOVE_REFUSED);
}

/* ---- the course of it ---- */

void cot_migrate_cancel(cot_migrate *m)
{
    stop(m, COT_MOVE_CANCELLED);
}

void cot_migrate_time_out(cot_migrate *m)
{
    stop(m, COT_MOVE_TIMED_OUT);
}

static bool awaits(const cot_migrate *m, bool draining)
{
    for (int64_t i = 0; i < m->moves; i++)
        if (m->move[i].asked && (m->move[i].state == COT_MIGRATE_GIVEN_UP) == draining) return true;
    return false;
}

/* Whether moves wait of that layer or those behind it. */
static bool waits_from(const cot_migrate *m, int32_t layer)
{
    for (int64_t i = 0; i < m->moves; i++)
        if (m->move[i].state == COT_MIGRATE_WAITING && m->move[i].chunk.layer >= layer) return true;
    return false;
}

cot_status cot_migrate_next(cot_migrate *m, cot_migrate_command *command, int64_t bytes, int64_t now_ns,
                            cot_error *error)
{
    *command = (cot_migrate_command){.kind = COT_MIGRATE_NOTHING};
    if (m->placing || awaits(m, false)) return COT_OK;
    while (!m->stopped) {
        if (!m->begun) reserve(m, now_ns);
        if (copies(m)) {
            if (bytes > 0) send_chunks(m, command, bytes);
            return COT_OK;
        }
        if (publish(m, command)) return COT_OK;
        m->begun = false;
        if (++m->round < m->rounds) continue;
        if (awaits(m, true)) return COT_OK; // places may yet become free
        // where nothing came of a pass the layer in hand can do no more, and others may
        const int32_t from = m->advanced ? 0 : m->o.transit ? m->in_hand + 1 : m->now.n_layers;
        if (!waits_from(m, from)) {
            stop(m, COT_MOVE_NO_SLOT);
            break;
        }
        const cot_status status = begin_pass(m, from, error);
        if (status != COT_OK) {
            stop(m, COT_MOVE_FAILED);
            return status;
        }
    }
    if (!awaits(m, true)) command->kind = COT_MIGRATE_OVER;
    return COT_OK;
}

const cot_migrate_move *cot_migrate_at_work(const cot_migrate *m)
{
    for (int64_t i = 0; i < m->moves; i++)
        if (m->move[i].state == COT_MIGRATE_COPYING) return &m->move[i];
    return NULL;
}
