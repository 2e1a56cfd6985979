#include "placement/chain.h"

#include "base/error.h"
#include "placement/heap.h"

#include <stdlib.h>
#include <string.h>

/* A search for a shortest path from the groups beyond their capacity to one with room. Distances are those of reduced
 * costs, which are exact whole numbers: none is negative (a layer's functions are convex), so no distance that is current
 * falls again, and every vertex is left at most once. A path moves one expert or more out of a group beyond its capacity
 * into room, and nothing moves back: there are at most as many searches as experts beyond. */
typedef struct search {
    cot_chain *c;
    cot_units *distance; // [G + C] of vertices with a mark of this search
    int32_t *from;       // [G + C] the vertex before it on the path; -1 of a start
    uint32_t *mark;      // [G + C]
    uint32_t now;
    int32_t *seen; // vertices that have a distance
    int32_t n_seen;
    int32_t *stack; // reached at no more than the current distance
    int32_t n_stack;
    cot_heap heap;
    cot_units current;
    int32_t hit; // a group with room that was reached at the current distance, -1
    bool failed;
} search;

static inline void reach(search *s, int32_t vertex, int32_t from, cot_units distance)
{
    if (s->mark[vertex] == s->now) {
        if (distance >= s->distance[vertex]) return;
    } else {
        s->mark[vertex] = s->now;
        s->seen[s->n_seen++] = vertex;
    }
    s->distance[vertex] = distance;
    s->from[vertex] = from;
    if (distance <= s->current) {
        s->stack[s->n_stack++] = vertex;
        if (vertex < s->c->G && s->c->used[vertex] < s->c->cap[vertex]) s->hit = vertex;
    } else if (!cot_heap_push(&s->heap, distance, vertex)) {
        s->failed = true;
    }
}

/* From a group back to the class of any layer that it has experts of. */
static void from_group(search *s, int32_t g)
{
    const cot_chain *c = s->c;
    const int32_t *count = c->count + (size_t)g * (size_t)c->L,
                  *class_of = c->class_of + (size_t)g * (size_t)c->L;
    cot_units at = s->current + c->potential[g];
    for (int32_t l = 0; l < c->L; l++)
        if (count[l] && s->hit < 0) reach(s, c->G + class_of[l], g, at - c->potential[c->G + class_of[l]]);
}

/* From a class to its groups that have room in the layer, to the next class and the one before. */
static void from_class(search *s, int32_t k)
{
    const cot_chain *c = s->c;
    const cot_units *potential = c->potential + c->G;
    cot_units at = s->current + potential[k];
    int32_t l = c->layer[k], vertex = c->G + k;
    for (int32_t i = c->group_first[k]; i < c->group_first[k + 1] && s->hit < 0; i++) {
        int32_t g = c->group[i];
        if (c->count[(size_t)g * (size_t)c->L + (size_t)l] < c->cap_layer[g])
            reach(s, g, vertex, at - c->potential[g]);
    }
    if (!cot_chain_last(c, k) && c->below[k] > 0)
        reach(s, vertex + 1, vertex, at + cot_chain_pay(c, k, c->below[k] - 1) - potential[k + 1]);
    if (k > c->class_first[l] && c->below[k - 1] < c->E)
        reach(s, vertex - 1, vertex, at - cot_chain_pay(c, k - 1, c->below[k - 1]) - potential[k - 1]);
}

/* Returns the group with room that is nearest, -1 when there is none. */
static int32_t find(search *s)
{
    cot_chain *c = s->c;
    s->now++;
    s->n_seen = s->n_stack = 0;
    s->heap.n = 0;
    s->current = 0;
    s->hit = -1;
    for (int32_t g = 0; g < c->G; g++)
        if (c->used[g] > c->cap[g]) reach(s, g, -1, 0);
    while (!s->failed) {
        int32_t v;
        if (s->hit >= 0) return s->hit;
        if (s->n_stack) {
            v = s->stack[--s->n_stack];
        } else if (s->heap.n) {
            cot_heap_entry e = cot_heap_pop(&s->heap);
            if (e.distance > s->distance[e.vertex]) continue;
            s->current = e.distance;
            v = e.vertex;
        } else
            return -1;
        if (v >= c->G)
            from_class(s, v - c->G);
        else if (c->used[v] < c->cap[v])
            return v;
        else
            from_group(s, v);
    }
    return -1;
}

static inline void least(int64_t *amount, int64_t other)
{
    if (other < *amount) *amount = other;
}

/* How many experts from index i on, in steps of `direction`, pay the same for the way over the arc of class k. */
static int64_t same_pay(const cot_chain *c, int32_t k, int32_t i, int32_t direction, int64_t most)
{
    cot_units pay = cot_chain_pay(c, k, i);
    int64_t n = 1;
    for (; n < most; n++) {
        int32_t next = i + direction * (int32_t)n;
        if (next < 0 || next >= c->E || cot_chain_pay(c, k, next) != pay) break;
    }
    return n;
}

/* Visits the arcs of the path that ends at `to`: amount 0 measures and returns what it can carry, else moves. */
static int64_t walk(search *s, int32_t to, int64_t amount)
{
    cot_chain *c = s->c;
    bool measure = !amount;
    int64_t most = INT64_MAX;
    int32_t v = to;
    for (int32_t u; (u = s->from[v]) >= 0; v = u) {
        int32_t k = (u < c->G ? v : u) - c->G;
        if (u < c->G || v < c->G) { // group to class gives back, class to group takes
            int32_t g = u < c->G ? u : v;
            int32_t *count = &c->count[(size_t)g * (size_t)c->L + (size_t)c->layer[k]];
            if (measure)
                least(&most, u < c->G ? *count : c->cap_layer[g] - *count);
            else
                *count += (int32_t)(u < c->G ? -amount : amount);
        } else if (v == u + 1) {
            if (measure)
                most = same_pay(c, k, c->below[k] - 1, -1, most);
            else
                c->below[k] -= (int32_t)amount;
        } else {
            k--;
            if (measure)
                most = same_pay(c, k, c->below[k], 1, most);
            else
                c->below[k] += (int32_t)amount;
        }
    }
    if (measure) {
        least(&most, c->used[v] - c->cap[v]);
        least(&most, c->cap[to] - c->used[to]);
    } else {
        c->used[v] -= amount;
        c->used[to] += amount;
    }
    return most;
}

/* Each layer alone: classes from the nearest on. All but the last that it needs are full; that one is filled by
 * fill_last, when it is known what the full ones leave. Potentials: 0 from there on, and in front of it what the
 * coldest expert that fits saves. */
static void fill_near(cot_chain *c, int32_t *last, int32_t *left)
{
    for (int32_t l = 0; l < c->L; l++) {
        int32_t need = c->E, k = c->class_first[l];
        for (;; k++) {
            int64_t room = 0;
            for (int32_t i = c->group_first[k]; i < c->group_first[k + 1]; i++)
                room += c->cap_layer[c->group[i]];
            if (room >= need) break;
            for (int32_t i = c->group_first[k]; i < c->group_first[k + 1]; i++) {
                int32_t g = c->group[i];
                c->count[(size_t)g * (size_t)c->L + (size_t)l] = c->cap_layer[g];
                c->used[g] += c->cap_layer[g];
            }
            need -= (int32_t)room;
            c->below[k] = c->E - need;
        }
        last[l] = k;
        left[l] = need;
        for (int32_t i = k; i < c->class_first[l + 1]; i++) c->below[i] = c->E;
        for (int32_t i = k - 1; i >= c->class_first[l]; i--)
            c->potential[c->G + i] = c->potential[c->G + i + 1] - cot_chain_pay(c, i, c->below[i]);
    }
}

/* The rest of a layer goes to the groups of one class, in proportion to the room that they have left. */
static void fill_last(cot_chain *c, int32_t l, int32_t k, int32_t need)
{
    for (int pass = 0; need && pass < 3; pass++) {
        int64_t room = 0;
        for (int32_t i = c->group_first[k]; pass == 0 && i < c->group_first[k + 1]; i++) {
            int32_t g = c->group[i];
            int64_t left = c->cap[g] - c->used[g];
            room += left < 0 ? 0 : left < c->cap_layer[g] ? left : c->cap_layer[g];
        }
        int64_t total = room, wanted = need;
        for (int32_t i = c->group_first[k]; need && i < c->group_first[k + 1]; i++) {
            int32_t g = c->group[i], *count = &c->count[(size_t)g * (size_t)c->L + (size_t)l];
            int64_t left = c->cap[g] - c->used[g], free_here = c->cap_layer[g] - *count, give;
            if (left < 0) left = 0;
            if (left > free_here) left = free_here;
            if (pass == 0)
                give = total ? left * (wanted < total ? wanted : total) / total : 0;
            else
                give = pass == 1 ? left : free_here;
            if (give > need) give = need;
            *count += (int32_t)give;
            c->used[g] += give;
            need -= (int32_t)give;
        }
    }
}

static bool open_search(search *s, cot_chain *c)
{
    size_t V = (size_t)c->G + (size_t)c->C;
    *s = (search){.c = c};
    s->distance = malloc(V * sizeof *s->distance);
    s->from = malloc(V * sizeof *s->from);
    s->mark = calloc(V, sizeof *s->mark);
    s->seen = malloc(V * sizeof *s->seen);
    s->stack = malloc(2 * V * sizeof *s->stack);
    return s->distance && s->from && s->mark && s->seen && s->stack;
}

static void close_search(search *s)
{
    free(s->distance);
    free(s->from);
    free(s->mark);
    free(s->seen);
    free(s->stack);
    free(s->heap.entry);
}

cot_status cot_chain_solve(cot_chain *chain, cot_error *error)
{
    search s;
    int32_t *last = malloc(2 * (size_t)chain->L * sizeof *last), target = -1;
    bool good = open_search(&s, chain) && last;
    if (good) {
        fill_near(chain, last, last + chain->L);
        for (int32_t l = 0; l < chain->L; l++) fill_last(chain, l, last[l], last[chain->L + l]);
        while ((target = find(&s)) >= 0) {
            for (int32_t i = 0; i < s.n_seen; i++) {
                int32_t v = s.seen[i];
                if (s.distance[v] < s.current) chain->potential[v] += s.distance[v] - s.current;
            }
            walk(&s, target, walk(&s, target, 0));
        }
        good = !s.failed;
    }
    close_search(&s);
    free(last);
    return good ? COT_OK
                : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a flow of %d classes", chain->C);
}
