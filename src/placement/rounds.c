#include "placement/rounds.h"

#include "base/error.h"

#include <assert.h>
#include <stdlib.h>

/* An edge gets the first colour that is free at both ends. Where that would be a new one, a path of two colours is
 * turned over (Kempe): free at one end is made free at the other. */
typedef struct colouring {
    cot_transfer *edge;
    int64_t *at; // [ranks][room] the edge of each colour at a rank, -1
    int32_t ranks, room, used;
} colouring;

static int64_t *edge_at(const colouring *c, int32_t rank, int32_t colour)
{
    return &c->at[(size_t)rank * (size_t)c->room + (size_t)colour];
}

static int32_t other_end(const cot_transfer *e, int32_t rank)
{
    return e->from == rank ? e->to : e->from;
}

static void give(colouring *c, int64_t i, int32_t colour)
{
    c->edge[i].round = colour;
    *edge_at(c, c->edge[i].from, colour) = i;
    *edge_at(c, c->edge[i].to, colour) = i;
}

static bool free_at(const colouring *c, int32_t rank, int32_t colour)
{
    return *edge_at(c, rank, colour) < 0;
}

/* Turns over the path of colours x and y that leaves `start` by x; false, and nothing done, when it ends at `stop`. */
static bool turn_over(colouring *c, int32_t start, int32_t stop, int32_t x, int32_t y)
{
    int32_t rank = start, colour = x, length = 0;
    for (int64_t i; (i = *edge_at(c, rank, colour)) >= 0; length++) {
        rank = other_end(&c->edge[i], rank);
        colour = colour == x ? y : x;
    }
    if (rank == stop) return false;
    rank = start;
    colour = x;
    int64_t i = *edge_at(c, rank, colour), next;
    *edge_at(c, rank, colour) = -1;
    for (; length > 0; length--, i = next) {
        int32_t end = other_end(&c->edge[i], rank), turned = colour == x ? y : x;
        next = *edge_at(c, end, turned);
        *edge_at(c, end, colour) = -1; // unless the next edge of the path takes it
        give(c, i, turned);
        rank = end;
        colour = turned;
    }
    return true;
}

static void colour_edge(colouring *c, int64_t i)
{
    int32_t a = c->edge[i].from, b = c->edge[i].to;
    for (int32_t x = 0; x < c->used; x++)
        if (free_at(c, a, x) && free_at(c, b, x)) {
            give(c, i, x);
            return;
        }
    for (int32_t x = 0; x < c->used; x++) // x free at a, y free at b
        for (int32_t y = 0; free_at(c, a, x) && y < c->used; y++)
            if (free_at(c, b, y) && turn_over(c, b, a, x, y)) {
                give(c, i, x);
                return;
            }
    give(c, i, c->used++);
}

cot_status cot_colour_transfers(cot_transfer *transfers, int64_t n, int32_t ranks, int32_t *rounds,
                                cot_error *error)
{
    int32_t *degree = calloc((size_t)ranks, sizeof *degree), most = 0;
    if (!degree) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for rounds of transfers");
    for (int64_t i = 0; i < n; i++) {
        if (transfers[i].from < 0) continue;
        assert(transfers[i].from != transfers[i].to);
        degree[transfers[i].from]++;
        degree[transfers[i].to]++;
    }
    for (int32_t r = 0; r < ranks; r++) most = degree[r] > most ? degree[r] : most;
    free(degree);
    colouring c = {
        .edge = transfers, .ranks = ranks, .room = 2 * most + 1}; // never more: both ends block fewer
    c.at = malloc((size_t)ranks * (size_t)c.room * sizeof *c.at);
    if (!c.at) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for rounds of transfers");
    for (size_t i = 0; i < (size_t)ranks * (size_t)c.room; i++) c.at[i] = -1;
    c.used = most;
    for (int64_t i = 0; i < n; i++)
        if (transfers[i].from >= 0) colour_edge(&c, i);
    *rounds = c.used;
    free(c.at);
    return COT_OK;
}
