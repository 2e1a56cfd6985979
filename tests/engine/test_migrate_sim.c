/* The protocol of moves against a model of ranks: each has memory, its own epoch, and takes what rank 0 sends in its turn and at
 * its own pace; chunks come late, changed or both, answers come late or much later than a move may take, epochs are refused, all is
 * cancelled at any moment. Ten thousand drawn schedules, two to four ranks. At any time:
 *
 *     1. each slot that the epoch of any rank has holds its expert, whole, in the place that its rank knows, and each expert has one;
 *     2. no chunk is on its way to a place that any rank's epoch has, or will have before the chunk is answered; nor are two to one place;
 *     3. without faults, and where none was so at first, one layer at a time has more than its own places on a rank;
 *     4. no rank takes part in two chunks of one command;
 *     5. at the end each place is free or of the epoch in force, all ranks have that epoch, every move has come or been given up with
 *        a reason; without faults and with a free place a rank and layer the target is reached; with them all of it but what was
 *        given up; nothing is published after a cancellation but what is under way then. */
#include "harness/cmocka.h"
#include "harness/seed.h"

#include "base/rng.h"
#include "engine/migrate.h"
#include "placement/epoch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SCHEDULES = 10000,
    RANKS = 4,
    LAYERS = 3,
    EXPERTS = 6,
    SLOTS = 5,
    UNITS = 5,
    PLACES = LAYERS * SLOTS,
    PLANS = 1024,
    FLIGHTS = 64
};
enum { NOBODY = -1, CHANGED = -2 };
typedef int8_t table[LAYERS][RANKS][SLOTS]; // the expert of each place, NOBODY

enum kind { STEP, COPY, PLACE };
struct plan {
    enum kind kind;
    cot_runner_chunk chunk[RANKS];
    int32_t chunks;
    table epoch; // PLACE: what it makes
};

/* A chunk that is put, or was and is not answered yet. */
struct flight {
    cot_runner_chunk chunk;
    int8_t carried[UNITS], sum[UNITS]; // what arrives; what was sent
    int plan;
    bool sent, arrived, judged, used;
    cot_runner_verdict verdict;
};

struct world {
    uint64_t seed;
    int ranks, layers, experts, slots;
    int64_t units[LAYERS]; // of a slot of each layer; layers that have as many share a pool
    bool faults, transit,
        lent; // transit: the last slots of a pool have one place together; lent: and some had it at first
    int32_t place_of[PLACES * RANKS]; // rank 0's account: [layers][ranks][slots]
    cot_migrate m;
    table target;
    int places[UNITS + 1];                          // of the pool of slots of so many units
    int8_t memory[RANKS][UNITS + 1][PLACES][UNITS]; // of each pool
    int32_t known[RANKS][LAYERS][SLOTS];            // each rank's own: the places of its slots
    table epoch[RANKS];
    struct plan plan[PLANS];
    int plans, done[RANKS]; // of the plans, each rank
    int place;              // the PLACE that is not answered, -1
    struct flight flight[FLIGHTS];
    int64_t now_ns;
    table unusable; // the expert that a rank could not take there
    bool cancelled, refused, over;
    int64_t epochs;
    const char *broken;
};

static uint64_t draw(uint64_t *seed)
{
    return cot_mix64((*seed)++);
}

static uint32_t below(struct world *w, uint32_t n)
{
    return (uint32_t)(draw(&w->seed) % n);
}

#define HOLD(condition, text)                                                                                \
    do {                                                                                                     \
        if (!(condition) && !w->broken) w->broken = text;                                                    \
    } while (0)

/* ---- drawing where experts are ---- */

static int used(const struct world *w, table t, int layer, int rank)
{
    int n = 0;
    for (int s = 0; s < w->slots; s++) n += t[layer][rank][s] >= 0;
    return n;
}

static bool has(const struct world *w, table t, int layer, int rank, int expert)
{
    for (int s = 0; s < w->slots; s++)
        if (t[layer][rank][s] == expert) return true;
    return false;
}

static int replicas(const struct world *w, table t, int layer, int expert)
{
    int n = 0;
    for (int r = 0; r < w->ranks; r++)
        for (int s = 0; s < w->slots; s++) n += t[layer][r][s] == expert;
    return n;
}

/* Puts the expert into a free slot, of the rank or, -1, of any that has less than `most` experts; whether there was one. */
static bool put(struct world *w, table t, int layer, int rank, int expert, int most)
{
    for (int tries = 0; tries < 64; tries++) {
        const int r = rank < 0 ? (int)below(w, (uint32_t)w->ranks) : rank,
                  s = (int)below(w, (uint32_t)w->slots);
        if (t[layer][r][s] >= 0 || used(w, t, layer, r) >= most) continue;
        t[layer][r][s] = (int8_t)expert;
        return true;
    }
    return false;
}

static void draw_table(struct world *w, table t, int most)
{
    memset(t, NOBODY, sizeof(table));
    for (int l = 0; l < w->layers; l++) {
        for (int e = 0; e < w->experts; e++)
            for (int r = 0; !put(w, t, l, -1, e, most) && !put(w, t, l, r % w->ranks, e, most);)
                r++; // the next has room, perhaps
        for (int i = (int)below(w, 4); i > 0; i--)
            put(w, t, l, -1, (int)below(w, (uint32_t)w->experts), most);
    }
}

/* A few experts are copied, dropped, exchanged. */
static void change_table(struct world *w, table t, int most)
{
    for (int i = 1 + (int)below(w, 3); i > 0; i--) {
        const int l = (int)below(w, (uint32_t)w->layers), a = (int)below(w, (uint32_t)w->ranks),
                  b = (int)below(w, (uint32_t)w->ranks), x = (int)below(w, (uint32_t)w->slots),
                  y = (int)below(w, (uint32_t)w->slots);
        const int8_t at_a = t[l][a][x], at_b = t[l][b][y];
        if (draw(&w->seed) % 2 && at_a >= 0 && replicas(w, t, l, at_a) > 1) {
            t[l][a][x] = NOBODY;
        } else if (draw(&w->seed) % 2 && at_a >= 0) {
            put(w, t, l, -1, at_a, most);
        } else {
            t[l][a][x] = at_b;
            t[l][b][y] = at_a;
            const int own = w->slots - w->transit;
            if (used(w, t, l, a) <= own && used(w, t, l, b) <= own) continue;
            t[l][a][x] = at_a; // no target may have that
            t[l][b][y] = at_b;
        }
    }
}

static void layout_of(const struct world *w, table t, cot_expert_layout *l)
{
    cot_expert_map map;
    int32_t numbers[LAYERS] = {0, 1, 2};
    assert_int_equal(cot_expert_map_new(&map, w->layers, w->experts, w->ranks, w->slots, NULL), COT_OK);
    for (int layer = 0; layer < w->layers; layer++)
        for (int r = 0; r < w->ranks; r++)
            for (int s = 0; s < w->slots; s++)
                map.expert[(layer * w->ranks + r) * w->slots + s] = t[layer][r][s];
    const cot_expert_layout_shape shape = {w->layers, w->experts, w->ranks, numbers, w->slots};
    assert_int_equal(cot_expert_layout_of_map(l, &shape, &map, "a", NULL), COT_OK);
    cot_expert_map_free(&map);
}

static int32_t *account_of(struct world *w, int layer, int rank, int slot)
{
    return &w->place_of[(layer * w->ranks + rank) * w->slots + slot];
}

/* As earlier moves may have left them: slots in use have one each, and others of the pool what is left. */
static void lay_out_pool(struct world *w, int rank, int64_t units, table now)
{
    int32_t left[PLACES];
    for (int p = 0; p < w->places[units]; p++) left[p] = p;
    for (int p = w->places[units] - 1; p > 0; p--) {
        const int other = (int)below(w, (uint32_t)p + 1);
        const int32_t kept = left[p];
        left[p] = left[other];
        left[other] = kept;
    }
    int n = w->places[units];
    for (int empty = 0; empty < 2; empty++)
        for (int l = 0; l < w->layers; l++)
            for (int s = 0; s < w->slots; s++) {
                if (w->units[l] != units || (now[l][rank][s] < 0) != empty) continue;
                const int32_t place = n > 0 ? left[--n] : -1;
                *account_of(w, l, rank, s) = w->known[rank][l][s] = place;
                if (!empty) memset(w->memory[rank][units][place], now[l][rank][s], UNITS);
            }
}

/* How many places each pool has. */
static void count_places(struct world *w)
{
    const int own = w->slots - w->transit;
    for (int l = 0; l < w->layers; l++)
        w->places[w->units[l]] += own + (w->places[w->units[l]] ? 0 : w->transit);
}

/* As moves that were cancelled leave it: one expert more than the layer has places of its own, which may be nowhere else. */
static void lend(struct world *w, table now, int rank)
{
    const int layer = (int)below(w, (uint32_t)w->layers), expert = (int)below(w, (uint32_t)w->experts);
    if (has(w, now, layer, rank, expert) || !put(w, now, layer, rank, expert, w->slots)) return;
    w->lent = true;
    for (int r = 0; r < w->ranks && below(w, 2); r++)
        for (int s = 0; s < w->slots; s++)
            if (r != rank && now[layer][r][s] == expert) now[layer][r][s] = NOBODY;
}

static void open_world(struct world *w, uint64_t seed)
{
    *w = (struct world){.seed = seed, .place = -1};
    w->ranks = 2 + (int)below(w, RANKS - 1);
    w->layers = 1 + (int)below(w, LAYERS);
    w->experts = 2 + (int)below(w, EXPERTS - 1);
    const int64_t sizes[] = {1 + below(w, UNITS), 1 + below(w, UNITS)};
    for (int l = 0; l < LAYERS; l++) w->units[l] = sizes[below(w, 4) == 0]; // most share a pool
    const int least = (w->experts + w->ranks - 1) / w->ranks;
    w->slots = least + (int)below(w, 3);
    w->transit = w->slots > least && draw(&w->seed) % 2;
    w->faults = below(w, 3) > 0;
    table now;
    const int most = w->slots > least && draw(&w->seed) % 4 ? w->slots - 1 : w->slots;
    const int full = w->transit           ? w->slots - 1
                     : draw(&w->seed) % 4 ? most
                                          : w->slots,
              wanted = w->transit ? w->slots - 1 : most;
    draw_table(w, now, full);
    for (int r = 0; r < w->ranks && w->transit; r++)
        if (draw(&w->seed) % 4 == 0) lend(w, now, r);
    memcpy(w->target, now, sizeof now);
    if (draw(&w->seed) % 3)
        draw_table(w, w->target, wanted);
    else
        change_table(w, w->target, wanted);
    memset(w->memory, CHANGED, sizeof w->memory);
    memset(w->unusable, NOBODY, sizeof w->unusable);
    count_places(w);
    for (int r = 0; r < w->ranks; r++) {
        memcpy(w->epoch[r], now, sizeof now);
        for (int64_t units = 1; units <= UNITS; units++) lay_out_pool(w, r, units, now);
    }
    cot_expert_layout from, to;
    layout_of(w, now, &from);
    layout_of(w, w->target, &to);
    const cot_migrate_options options = {
        .slot_bytes = w->units, .timeout_ns = 60, .tries = 2, .transit = w->transit, .place = w->place_of};
    assert_int_equal(cot_migrate_open(&w->m, &options, &from, &to, NULL), COT_OK);
    cot_expert_layout_free(&from);
    cot_expert_layout_free(&to);
}

/* ---- what must hold ---- */

static bool is_whole(const struct world *w, int rank, int layer, int slot, int expert)
{
    const int32_t place = w->known[rank][layer][slot];
    for (int u = 0; u < w->units[layer]; u++)
        if (place < 0 || w->memory[rank][w->units[layer]][place][u] != expert) return false;
    return true;
}

static void check_epochs(struct world *w)
{
    for (int r = 0; r < w->ranks; r++)
        for (int l = 0; l < w->layers; l++) {
            unsigned there = 0;
            for (int q = 0; q < w->ranks; q++)
                for (int s = 0; s < w->slots; s++) {
                    const int e = w->epoch[r][l][q][s];
                    if (e < 0) continue;
                    there |= 1u << e;
                    HOLD(is_whole(w, q, l, s, e), "a place that is read is not its expert's");
                }
            HOLD(there == (1u << w->experts) - 1, "an expert is nowhere");
        }
}

/* Nobody reads the place, nor will before this chunk is answered. */
static void check_target(struct world *w, const cot_runner_chunk *c)
{
    const int64_t units = w->units[c->layer];
    HOLD(c->place >= 0 && c->place < w->places[units], "a chunk goes to no place");
    for (int l = 0; l < w->layers; l++)
        for (int s = 0; s < w->slots; s++) {
            if (w->units[l] != units || w->known[c->to][l][s] != c->place) continue;
            for (int r = 0; r < w->ranks; r++)
                HOLD(w->epoch[r][l][c->to][s] < 0, "a place that is read is written");
            if (w->place >= 0)
                HOLD(w->plan[w->place].epoch[l][c->to][s] < 0, "a place that is published is written");
        }
}

/* ---- rank 0 ---- */

static struct plan *new_plan(struct world *w, enum kind kind)
{
    assert_in_range(w->plans, 0, PLANS - 1);
    struct plan *p = &w->plan[w->plans++];
    p->kind = kind;
    return p;
}

static void send_copy(struct world *w, const cot_migrate_command *command)
{
    struct plan *p = new_plan(w, COPY);
    unsigned busy = 0;
    p->chunks = command->chunks;
    HOLD(command->chunks > 0, "a command of no chunks");
    for (int i = 0; i < command->chunks && !w->broken; i++) {
        const cot_runner_chunk *c = &p->chunk[i];
        p->chunk[i] = command->chunk[i];
        p->chunk[i].place = *account_of(w, c->layer, c->to, c->to_slot); // as the engine sends it
        HOLD(!(busy & (1u << c->from | 1u << c->to)) && c->from != c->to, "a rank takes part in two chunks");
        busy |= 1u << c->from | 1u << c->to;
        HOLD(c->bytes > 0 && c->begin >= 0 && c->begin + c->bytes <= w->units[c->layer],
             "a chunk is beyond its slot");
        HOLD(c->last == (c->begin + c->bytes == w->units[c->layer]), "a slot's end is not told");
        check_target(w, c);
        int at = 0;
        for (int f = 0; f < FLIGHTS; f++) {
            const struct flight *other = &w->flight[f];
            if (other->used)
                HOLD(other->chunk.to != c->to || other->chunk.place != c->place ||
                         w->units[other->chunk.layer] != w->units[c->layer],
                     "two chunks are on their way to one place");
            else
                at = f;
        }
        w->flight[at] = (struct flight){.chunk = *c, .plan = w->plans - 1, .used = true};
    }
}

static void send_place(struct world *w, const cot_migrate_command *command)
{
    HOLD(w->place < 0, "two epochs are under way");
    HOLD(!w->cancelled, "an epoch after the cancellation");
    HOLD(!w->refused, "an epoch after one was refused");
    if (w->faults && below(w, 24) == 0) {
        w->refused = true;
        cot_migrate_placed(&w->m, false);
        return;
    }
    struct plan *p = new_plan(w, PLACE);
    w->place = w->plans - 1;
    memcpy(p->epoch, w->epoch[0], sizeof(table));
    for (int q = 0; q < w->place; q++)
        if (w->plan[q].kind == PLACE) memcpy(p->epoch, w->plan[q].epoch, sizeof(table));
    for (const int32_t *row = command->words; row < command->words + command->count;
         row += cot_expert_change_words(row)) {
        HOLD(row[2] > 0, "an expert is published nowhere");
        for (int r = 0; r < w->ranks; r++)
            for (int s = 0; s < w->slots; s++)
                if (p->epoch[row[0]][r][s] == row[1]) p->epoch[row[0]][r][s] = NOBODY;
    }
    for (const int32_t *row = command->words; row < command->words + command->count;
         row += cot_expert_change_words(row))
        for (int i = 0; i < row[2]; i++) {
            int8_t *at = &p->epoch[row[0]][row[3 + 2 * i]][row[4 + 2 * i]];
            HOLD(*at < 0, "two experts are published in one place");
            HOLD(w->unusable[row[0]][row[3 + 2 * i]][row[4 + 2 * i]] != row[1],
                 "an expert is published that its rank could not take");
            *at = (int8_t)row[1];
        }
}

/* How many layers have more than their own places somewhere. */
static int layers_over(const struct world *w)
{
    int over = 0;
    for (int l = 0; l < w->layers; l++) {
        bool is_over = false;
        for (int r = 0; r < w->ranks; r++) {
            int n = 0;
            for (int s = 0; s < w->slots; s++)
                n += w->m.place[(l * w->ranks + r) * w->slots + s] != COT_MIGRATE_FREE;
            is_over |= n == w->slots;
        }
        over += is_over;
    }
    return over;
}

static void ask(struct world *w)
{
    cot_migrate_command command;
    assert_int_equal(
        cot_migrate_next(&w->m, &command, below(w, 2) ? below(w, UNITS + 1) : UNITS, w->now_ns, NULL),
        COT_OK);
    if (w->transit && !w->faults && !w->lent)
        HOLD(layers_over(w) <= 1, "two layers have more than their own");
    if (command.kind == COT_MIGRATE_COPY) send_copy(w, &command);
    if (command.kind == COT_MIGRATE_PLACE) send_place(w, &command);
    w->over = command.kind == COT_MIGRATE_OVER;
}

/* ---- ranks ---- */

static struct flight *flight_of(struct world *w, int plan, int rank, bool source)
{
    for (int f = 0; f < FLIGHTS; f++) {
        struct flight *x = &w->flight[f];
        if (x->used && x->plan == plan && (source ? x->chunk.from : x->chunk.to) == rank) return x;
    }
    return NULL;
}

/* The source's part: what it has there is on its way from now on. */
static void send_chunk(struct world *w, struct flight *x)
{
    const cot_runner_chunk *c = &x->chunk;
    const int32_t from = w->known[c->from][c->layer][c->from_slot];
    memcpy(x->sum, &w->memory[c->from][w->units[c->layer]][from][c->begin], (size_t)c->bytes);
    memcpy(x->carried, x->sum, (size_t)c->bytes);
    if (w->faults && below(w, 6) == 0) x->carried[below(w, (uint32_t)c->bytes)] = CHANGED;
    x->sent = true;
}

static void judge(struct world *w, struct flight *x)
{
    const cot_runner_chunk *c = &x->chunk;
    const bool same =
        !memcmp(&w->memory[c->to][w->units[c->layer]][c->place][c->begin], x->sum, (size_t)c->bytes);
    x->verdict = !same                                       ? COT_RUNNER_DIFFERS
                 : c->last && w->faults && below(w, 16) == 0 ? COT_RUNNER_FAILED
                                                             : COT_RUNNER_SAME;
    x->judged = true;
}

/* A rank does what it can of its next plan. */
static void run_rank(struct world *w, int rank)
{
    if (w->done[rank] == w->plans) return;
    const int number = w->done[rank];
    const struct plan *p = &w->plan[number];
    if (p->kind == STEP) {
        check_epochs(w); // it reads all that it has
    } else if (p->kind == COPY) {
        struct flight *out = flight_of(w, number, rank, true), *in = flight_of(w, number, rank, false);
        if (out && !out->sent) {
            send_chunk(w, out);
            return;
        }
        if (in) w->known[rank][in->chunk.layer][in->chunk.to_slot] = in->chunk.place;
        if (in && !in->arrived) return;
        if (in && !in->judged) judge(w, in);
    } else {
        memcpy(w->epoch[rank], p->epoch, sizeof(table));
        check_epochs(w);
    }
    w->done[rank]++;
}

static void arrive(struct world *w, struct flight *x)
{
    const cot_runner_chunk *c = &x->chunk;
    check_target(w, c);
    memcpy(&w->memory[c->to][w->units[c->layer]][c->place][c->begin], x->carried, (size_t)c->bytes);
    x->arrived = true;
}

/* Something of what is in flight happens: a chunk arrives, or its answer does. */
static void move_flight(struct world *w)
{
    struct flight *x = &w->flight[below(w, FLIGHTS)];
    for (int f = 0; f < FLIGHTS && !x->used; f++) x = x + 1 == w->flight + FLIGHTS ? w->flight : x + 1;
    if (!x->used || !x->sent || (w->faults && below(w, 8))) return; // as slow as may be
    if (!x->arrived) {
        arrive(w, x);
        check_epochs(w);
    } else if (x->judged) {
        const cot_runner_chunk *c = &x->chunk, *known = &w->m.move[c->move].chunk;
        x->used = false;
        if (x->verdict == COT_RUNNER_FAILED) w->unusable[c->layer][c->to][c->to_slot] = (int8_t)c->expert;
        const bool same = c->move < w->m.moves && known->layer == c->layer && known->expert == c->expert &&
                          known->to == c->to && known->begin == c->begin;
        HOLD(same, "an answer is another move's");
        if (same) cot_migrate_copied(&w->m, c->move, x->verdict);
    }
}

static void answer_place(struct world *w)
{
    if (w->place < 0) return;
    for (int r = 0; r < w->ranks; r++)
        if (w->done[r] <= w->place) return;
    w->place = -1;
    w->epochs++;
    cot_migrate_placed(&w->m, true);
}

/* ---- the end ---- */

static void check_end(struct world *w)
{
    const cot_migrate *m = &w->m;
    int64_t gone = 0;
    for (int i = 0; i < COT_MOVE_OUTCOMES; i++) gone += m->gone[i];
    HOLD(m->copied + gone == m->copies, "moves are lost");
    HOLD(m->epochs == w->epochs, "epochs are lost");
    HOLD(w->place < 0, "it is over while an epoch is");
    bool tight = false;
    for (int l = 0; l < w->layers; l++)
        for (int r = 0; r < w->ranks; r++) tight |= used(w, w->target, l, r) == w->slots;
    for (int r = 0; r < w->ranks; r++) {
        unsigned there[UNITS + 1] = {0};
        for (int l = 0; l < w->layers; l++)
            for (int s = 0; s < w->slots; s++) {
                const int32_t place = *account_of(w, l, r, s);
                unsigned *pool = &there[w->units[l]];
                HOLD(place < 0 || !(*pool >> place & 1), "two slots have one place");
                *pool |= place < 0 ? 0 : 1u << place;
            }
        for (int u = 1; u <= UNITS; u++) HOLD(there[u] == (1u << w->places[u]) - 1, "a place is lost");
    }
    const bool stopped = w->cancelled || w->refused;
    if (!w->faults && !tight) HOLD(!gone && m->dropped == m->drops, "the target is not reached");
    for (int l = 0; l < w->layers; l++)
        for (int r = 0; r < w->ranks; r++) {
            for (int s = 0; s < w->slots; s++) {
                const int64_t at = (l * w->ranks + r) * w->slots + s;
                const int e = w->epoch[0][l][r][s];
                HOLD(m->place[at] == (e < 0 ? COT_MIGRATE_FREE : COT_MIGRATE_IN_FORCE), "a place leaks");
                HOLD(m->now.expert[at] == e, "rank 0's account is wrong");
                if (e >= 0 && !has(w, w->target, l, r, e) && !stopped && !tight)
                    HOLD(replicas(w, w->epoch[0], l, e) == 1, "a replica is not dropped");
            }
            for (int e = 0; e < w->experts && !stopped; e++)
                HOLD(!has(w, w->target, l, r, e) || has(w, w->epoch[0], l, r, e) ||
                         m->given_up[(l * w->experts + e) * w->ranks + r],
                     "an expert is missing for no reason");
        }
    for (int r = 1; r < w->ranks; r++)
        HOLD(!memcmp(w->epoch[r], w->epoch[0], sizeof(table)), "ranks differ at the end");
}

static void live_through(struct world *w)
{
    enum { MOST_EVENTS = 200000 };
    int events = 0;
    const bool cancels = w->faults && below(w, 3) == 0;
    const uint32_t when = 1 + below(w, 200);
    check_epochs(w);
    for (; !w->over && !w->broken && events < MOST_EVENTS; events++) {
        w->now_ns += below(w, 4) == 0;
        const uint32_t what = below(w, 10);
        if (what < 2)
            ask(w);
        else if (what < 5)
            run_rank(w, (int)below(w, (uint32_t)w->ranks));
        else if (what < 8)
            move_flight(w);
        else if (what == 8)
            answer_place(w);
        else if (w->faults && below(w, 4) == 0)
            cot_migrate_tick(&w->m, w->now_ns);
        else if (w->plans < PLANS / 2 && below(w, 8) == 0)
            new_plan(w, STEP);
        if (cancels && !w->cancelled && below(w, when) == 0) {
            w->cancelled = true;
            cot_migrate_cancel(&w->m);
        }
    }
    HOLD(w->over, "it does not end");
    for (int f = 0; f < FLIGHTS; f++) HOLD(!w->flight[f].used, "it is over while a chunk is under way");
    for (int r = 0; r < w->ranks; r++)
        while (w->done[r] < w->plans && !w->broken) run_rank(w, r);
    check_end(w);
}

static void no_schedule_breaks_it(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    static struct world w;
    int64_t moved = 0, gone[COT_MOVE_OUTCOMES] = {0}, epochs = 0;
    for (int i = 0; i < SCHEDULES; i++) {
        const uint64_t own = draw(&seed);
        open_world(&w, own);
        live_through(&w);
        if (w.broken) fail_msg("schedule %d (%llu): %s", i, (unsigned long long)own, w.broken);
        moved += w.m.copied;
        epochs += w.epochs;
        for (int o = 0; o < COT_MOVE_OUTCOMES; o++) gone[o] += w.m.gone[o];
        cot_migrate_close(&w.m);
    }
    printf("%lld copies in %lld epochs", (long long)moved, (long long)epochs);
    for (int o = 0; o < COT_MOVE_OUTCOMES; o++)
        printf(", %s %lld", cot_engine_move_outcomes()[o], (long long)gone[o]);
    printf("\n");
    assert_true(moved > SCHEDULES);
    for (int o = 0; o < COT_MOVE_OUTCOMES; o++) assert_true(gone[o] > 100); // each way to fail was gone
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_schedule_breaks_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
