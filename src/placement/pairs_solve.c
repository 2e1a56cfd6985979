#include "placement/pairs.h"

#include "base/error.h"
#include "placement/heap.h"

#include <stdlib.h>

/* A search for a shortest path through places and ranks. As in chain_solve.c, reduced costs are exact and never negative, so
 * that a search ends; each moves one expert fewer beyond a capacity, so that there are at most as many as experts. */
typedef struct search {
    cot_pairs *p;
    cot_units *distance;
    int32_t *from;  // the vertex before
    int32_t *moved; // the expert that goes from the place before to this one
    uint32_t *mark, now;
    int32_t *seen, n_seen;
    cot_heap heap;
    cot_units current;
    bool failed;
} search;

static void reach(search *s, int32_t vertex, int32_t from, int32_t moved, cot_units distance)
{
    if (s->mark[vertex] == s->now) {
        if (distance >= s->distance[vertex]) return;
    } else {
        s->mark[vertex] = s->now;
        s->seen[s->n_seen++] = vertex;
    }
    s->distance[vertex] = distance;
    s->from[vertex] = from;
    s->moved[vertex] = moved;
    if (!cot_heap_push(&s->heap, distance, vertex)) s->failed = true;
}

/* From a place to every other of its layer: the expert that pays the least goes. */
static void from_place(search *s, int32_t l, int32_t r)
{
    const cot_pairs *p = s->p;
    size_t S = (size_t)p->S, row = (size_t)l * (size_t)p->E, first = (size_t)l * S;
    int32_t here = (int32_t)first + r;
    for (int32_t e = p->head[here]; e >= 0; e = p->next[row + (size_t)e]) {
        const cot_units *cost = p->cost + (row + (size_t)e) * S;
        cot_units at = s->current + p->potential[here] - cost[r];
        for (int32_t t = 0; t < p->S; t++) {
            int32_t there = (int32_t)first + t;
            if (t != r) reach(s, there, here, e, at + cost[t] - p->potential[there]);
        }
    }
}

static void begin(search *s)
{
    s->now++;
    s->n_seen = 0;
    s->heap.n = 0;
    s->current = 0;
}

/* Within one layer to a place with room; -1 when there is none. */
static int32_t find_in_layer(search *s, int32_t place)
{
    const cot_pairs *p = s->p;
    int32_t l = place / p->S;
    begin(s);
    reach(s, place, -1, -1, 0);
    while (s->heap.n && !s->failed) {
        cot_heap_entry e = cot_heap_pop(&s->heap);
        if (e.distance > s->distance[e.vertex]) continue;
        s->current = e.distance;
        int32_t r = e.vertex - l * p->S;
        if (p->count[e.vertex] < p->problem->c_layer[r]) return e.vertex;
        from_place(s, l, r);
    }
    return -1;
}

/* Through all layers from any rank beyond its capacity to one with room; -1 when there is none. */
static int32_t find_rank(search *s)
{
    const cot_pairs *p = s->p;
    int32_t ranks = p->L * p->S;
    begin(s);
    for (int32_t r = 0; r < p->S; r++)
        if (p->used[r] > p->problem->c_exp[r]) reach(s, ranks + r, -1, -1, 0);
    while (s->heap.n && !s->failed) {
        cot_heap_entry e = cot_heap_pop(&s->heap);
        if (e.distance > s->distance[e.vertex]) continue;
        s->current = e.distance;
        if (e.vertex < ranks) {
            int32_t l = e.vertex / p->S, r = e.vertex % p->S;
            if (p->count[e.vertex] < p->problem->c_layer[r])
                reach(s, ranks + r, e.vertex, -1,
                      s->current + p->potential[e.vertex] - p->potential[ranks + r]);
            from_place(s, l, r);
            continue;
        }
        int32_t r = e.vertex - ranks;
        if (p->used[r] < p->problem->c_exp[r]) return e.vertex;
        for (int32_t l = 0; l < p->L; l++) {
            int32_t place = l * p->S + r;
            if (p->count[place])
                reach(s, place, e.vertex, -1, s->current + p->potential[e.vertex] - p->potential[place]);
        }
    }
    return -1;
}

static void go(search *s, int32_t to)
{
    cot_pairs *p = s->p;
    for (int32_t i = 0; i < s->n_seen; i++) {
        int32_t v = s->seen[i];
        if (s->distance[v] < s->current) p->potential[v] += s->distance[v] - s->current;
    }
    for (int32_t v = to; s->from[v] >= 0; v = s->from[v])
        if (s->moved[v] >= 0) cot_pairs_move(p, v / p->S, s->moved[v], v % p->S);
}

cot_status cot_pairs_solve(cot_pairs *pairs, cot_error *error)
{
    size_t V = ((size_t)pairs->L + 1) * (size_t)pairs->S;
    search s = {.p = pairs};
    s.distance = malloc(V * sizeof *s.distance);
    s.from = malloc(V * sizeof *s.from);
    s.moved = malloc(V * sizeof *s.moved);
    s.mark = calloc(V, sizeof *s.mark);
    s.seen = malloc(V * sizeof *s.seen);
    bool good = s.distance && s.from && s.moved && s.mark && s.seen;
    for (int32_t place = 0, to; good && !s.failed && place < pairs->L * pairs->S; place++)
        while (pairs->count[place] > pairs->problem->c_layer[place % pairs->S] &&
               (to = find_in_layer(&s, place)) >= 0)
            go(&s, to);
    for (int32_t to; good && !s.failed && (to = find_rank(&s)) >= 0;) go(&s, to);
    good = good && !s.failed;
    free(s.distance);
    free(s.from);
    free(s.moved);
    free(s.mark);
    free(s.seen);
    free(s.heap.entry);
    return good ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a flow over %zu places", V);
}
