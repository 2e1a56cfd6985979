#include "placement/chain.h"

#include "base/error.h"
#include "placement/methods.h"

#include <stdlib.h>

/* A rank that still takes experts of the class at hand. */
typedef struct seat {
    double load;
    int32_t room, rank;
} seat;

static void sink(seat *heap, int32_t n, int32_t i)
{
    seat moved = heap[i];
    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        child += child + 1 < n && heap[child + 1].load < heap[child].load;
        if (heap[child].load >= moved.load) break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

/* Deals a group's experts of a layer to its members in turn, going on where the layer before ended: no member has two
 * more than another, of the layer or in all, so both capacities hold. */
static int32_t seat_group(seat *seats, int32_t n, const cot_chain *c, int32_t g, int32_t count, int32_t *turn)
{
    int32_t members = c->first[g + 1] - c->first[g], each = count / members, more = count % members;
    for (int32_t i = 0; i < members; i++) {
        int32_t at = *turn + i < members ? *turn + i : *turn + i - members, room = each + (i < more);
        if (room) seats[n++] = (seat){0, room, c->member[c->first[g] + at]};
    }
    *turn = (*turn + more) % members;
    return n;
}

/* The hottest expert left goes to the rank of least load that has room. The first ones go to a rank each: no heap is
 * needed for them, and loads that rise from the last rank to the first are one. */
static void deal_class(int32_t *rank, seat *seats, int32_t n, const int32_t *expert, const double *load,
                       int32_t count)
{
    int32_t dealt = count < n ? count : n, left = 0;
    for (int32_t i = 0; i < dealt; i++) {
        rank[expert[i]] = seats[n - 1 - i].rank;
        seats[n - 1 - i].load = load[i];
        seats[n - 1 - i].room--;
    }
    for (int32_t i = 0; i < n; i++)
        if (seats[i].room) seats[left++] = seats[i];
    n = left;
    for (int32_t i = dealt; i < count; i++) {
        rank[expert[i]] = seats[0].rank;
        seats[0].load += load[i];
        if (!--seats[0].room) seats[0] = seats[--n];
        if (n) sink(seats, n, 0);
    }
}

/* Room to even out a class whose ranks carry unequal loads. */
typedef struct evening {
    int32_t *index;    // [S] where a rank is among the class's, -1
    int32_t *ranks;    // [S]
    int32_t *slot;     // [E + S] experts by rank, padded
    int32_t room;      // of slot
    int32_t *replicas; // [E] ones
    double *sum;       // [S + room]
} evening;

/* Exchanges between the ranks of the class that holds the layer's peak: at no cost. */
static void even_out(int32_t *rank, evening *w, const cot_chain *c, int32_t l)
{
    size_t row = (size_t)l * (size_t)c->E;
    const int32_t *expert = c->expert + row;
    int32_t peak = -1, n = 0, most = 0, which = c->class_first[l];
    for (int32_t e = 0; e < c->E; e++) w->sum[rank[e]] = 0;
    for (int32_t i = 0; i < c->E; i++) {
        int32_t s = rank[expert[i]];
        w->sum[s] += c->load[row + (size_t)i];
        if (peak < 0 || w->sum[s] > w->sum[peak]) peak = s;
    }
    for (int32_t i = 0; i < c->E; i++)
        if (rank[expert[i]] == peak) {
            while (c->below[which] <= i) which++;
            break;
        }
    int32_t from = which > c->class_first[l] ? c->below[which - 1] : 0, to = c->below[which];
    for (int32_t i = from; i < to; i++) w->index[rank[expert[i]]] = -1;
    for (int32_t i = from; i < to; i++) {
        int32_t s = rank[expert[i]];
        if (w->index[s] < 0) {
            w->index[s] = n;
            w->replicas[n] = 0; // counts, for now
            w->ranks[n++] = s;
        }
        int32_t held = ++w->replicas[w->index[s]];
        most = held > most ? held : most;
    }
    // hottest first is mostly near enough; what is left matters where little else does, and takes half a millisecond
    // on 58 layers of 256 experts otherwise
    bool all = n * most <= 16 || to - from == c->E;
    bool worth = all && n > 1 && most > 1 && n < c->E && (int64_t)n * most <= w->room;
    if (worth) {
        for (int32_t i = 0; i < n * most; i++) w->slot[i] = -1;
        for (int32_t i = from; i < to; i++) {
            int32_t at = w->index[rank[expert[i]]];
            w->slot[at * most + --w->replicas[at]] = expert[i];
        }
    }
    for (int32_t i = 0; i < n; i++) w->replicas[i] = 1;
    if (!worth) return;
    cot_slots slots = {n, c->E, most, w->slot, c->problem->load + row, w->replicas};
    cot_slots_balance(&slots, w->sum);
    for (int32_t i = 0; i < n * most; i++)
        if (w->slot[i] >= 0) rank[w->slot[i]] = w->ranks[i / most];
}

static bool open_evening(evening *w, const cot_chain *c)
{
    size_t S = (size_t)c->S, E = (size_t)c->E, wide = E > S ? E : S;
    w->room = (int32_t)(2 * (E + S));
    w->index = malloc((2 * S + (size_t)w->room + wide) * sizeof *w->index);
    w->sum = malloc((S + (size_t)w->room) * sizeof *w->sum);
    if (!w->index || !w->sum) return false;
    w->ranks = w->index + S;
    w->slot = w->ranks + S;
    w->replicas = w->slot + w->room;
    for (size_t i = 0; i < wide; i++) w->replicas[i] = 1;
    return true;
}

cot_status cot_chain_deal(cot_assignment *assignment, const cot_chain *chain, cot_error *error)
{
    seat *seats = malloc((size_t)chain->S * sizeof *seats);
    int32_t *turn = calloc((size_t)chain->G, sizeof *turn);
    evening w = {0};
    cot_status status = COT_OK;
    if (!seats || !turn || !open_evening(&w, chain))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a placement");
    for (int32_t l = 0; status == COT_OK && l < chain->L; l++) {
        size_t row = (size_t)l * (size_t)chain->E;
        int32_t done = 0;
        for (int32_t k = chain->class_first[l]; k < chain->class_first[l + 1] && done < chain->E; k++) {
            int32_t n = 0, count = chain->below[k] - done;
            if (!count) continue;
            for (int32_t i = chain->group_first[k]; i < chain->group_first[k + 1]; i++) {
                int32_t g = chain->group[i], here = chain->count[(size_t)g * (size_t)chain->L + (size_t)l];
                if (here) n = seat_group(seats, n, chain, g, here, &turn[g]);
            }
            deal_class(assignment->rank + row, seats, n, chain->expert + row + done, chain->load + row + done,
                       count);
            done += count;
        }
        even_out(assignment->rank + row, &w, chain, l);
    }
    free(w.index);
    free(w.sum);
    free(seats);
    free(turn);
    return status;
}
