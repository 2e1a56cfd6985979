#include "placement/chain.h"

#include "base/error.h"

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

cot_status cot_chain_deal(cot_assignment *assignment, const cot_chain *chain, cot_error *error)
{
    seat *seats = malloc((size_t)chain->S * sizeof *seats);
    int32_t *turn = calloc((size_t)chain->G, sizeof *turn);
    cot_status status = COT_OK;
    if (!seats || !turn) status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a placement");
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
    }
    free(seats);
    free(turn);
    return status;
}
