#include "topology/paths.h"

#include "topology/graph.h"

#include <math.h>
#include <stdlib.h>

bool cot_paths_open(cot_paths *paths, const cot_topology *graph)
{
    size_t V = (size_t)graph->n_vertices;
    *paths = (cot_paths){.room = 64};
    paths->heap = malloc((size_t)paths->room * sizeof *paths->heap);
    paths->best = malloc(V * sizeof *paths->best);
    paths->widest = malloc(V * sizeof *paths->widest);
    paths->order = malloc(V * sizeof *paths->order);
    paths->level = malloc(V * sizeof *paths->level);
    paths->unit_hops = true;
    for (int64_t i = 0; i < graph->n_links; i++)
        paths->unit_hops = paths->unit_hops && (graph->links[i].hops == 0 || graph->links[i].hops == 1);
    return paths->heap && paths->best && paths->widest && paths->order && paths->level;
}

void cot_paths_close(cot_paths *paths)
{
    free(paths->heap);
    free(paths->best);
    free(paths->widest);
    free(paths->order);
    free(paths->level);
}

/* Near ones first; of equally near ones the wider, so that it is not followed by a useless second. */
static bool before(const struct cot_paths_entry *a, const struct cot_paths_entry *b)
{
    return a->key != b->key ? a->key < b->key : a->width > b->width;
}

static bool push(cot_paths *p, struct cot_paths_entry entry)
{
    if (p->n_heap == p->room) {
        void *heap = realloc(p->heap, 2 * (size_t)p->room * sizeof *p->heap);
        if (!heap) return false;
        p->heap = heap;
        p->room *= 2;
    }
    int64_t i = p->n_heap++;
    for (; i && before(&entry, &p->heap[(i - 1) / 2]); i = (i - 1) / 2) p->heap[i] = p->heap[(i - 1) / 2];
    p->heap[i] = entry;
    return true;
}

static struct cot_paths_entry pop(cot_paths *p)
{
    struct cot_paths_entry top = p->heap[0], last = p->heap[--p->n_heap];
    int64_t i = 0;
    for (int64_t child; (child = 2 * i + 1) < p->n_heap; i = child) {
        if (child + 1 < p->n_heap && before(&p->heap[child + 1], &p->heap[child])) child++;
        if (!before(&p->heap[child], &last)) break;
        p->heap[i] = p->heap[child];
    }
    p->heap[i] = last;
    return top;
}

/* What a link adds to the key. */
typedef enum { BY_HOPS, BY_LINKS, BY_LATENCY } key_kind;

static double length(const cot_topology_link *link, key_kind kind)
{
    return kind == BY_LATENCY ? link->latency_us
           : kind == BY_LINKS ? link->hops * COT_PATHS_HOP + 1
                              : link->hops;
}

/* Labels leave the heap by rising latency. One is worth following only if it is wider than all that came to its vertex
 * before: those are both sooner and as wide. Without bandwidths the first label of a vertex is its last. */
static bool search(cot_paths *p, const cot_topology *graph, key_kind kind, double bytes, int32_t start,
                   bool backwards)
{
    const struct cot_topology_owner *o = graph->owner;
    for (int32_t v = 0; v < graph->n_vertices; v++) {
        p->best[v] = INFINITY;
        p->widest[v] = 0;
    }
    p->n_heap = p->n_order = 0;
    if (!push(p, (struct cot_paths_entry){0, INFINITY, start})) return false;
    while (p->n_heap) {
        struct cot_paths_entry at = pop(p);
        int32_t v = at.vertex;
        if (at.width <= p->widest[v]) continue;
        if (p->widest[v] == 0) p->order[p->n_order++] = v;
        p->widest[v] = at.width;
        // GB/s are bytes per nanosecond; 0 / infinity is 0
        p->best[v] = fmin(p->best[v], kind == BY_LATENCY ? at.key + bytes / at.width * 1e-3 : at.key);
        if (v < graph->n_ranks && v != start && !graph->ranks_forward) continue;
        const int64_t *first = backwards ? o->into_first : o->first;
        for (int64_t i = first[v]; i < first[v + 1]; i++) {
            const cot_topology_link *link = &graph->links[backwards ? o->into[i] : i];
            int32_t to = backwards ? link->from : link->to;
            double width = kind == BY_LATENCY ? fmin(at.width, link->bandwidth_gbps) : INFINITY;
            if (width <= p->widest[to]) continue;
            if (!push(p, (struct cot_paths_entry){at.key + length(link, kind), width, to})) return false;
        }
    }
    return true;
}

/* Where every link is no hop or one, level by level: links of no hop lead to this level, the others to the next. A vertex
 * comes to a level's list at most once, and one that was reached sooner in the meantime is passed over. */
static void search_levels(cot_paths *p, const cot_topology *graph, int32_t start, bool backwards)
{
    const struct cot_topology_owner *o = graph->owner;
    const int64_t *first = backwards ? o->into_first : o->first;
    int32_t *now = p->order, *next = p->level, n_now = 1, n_next = 0;
    for (int32_t v = 0; v < graph->n_vertices; v++) p->best[v] = INFINITY;
    p->best[start] = 0;
    now[0] = start;
    for (double hops = 0; n_now; hops++) {
        while (n_now) {
            const int32_t v = now[--n_now];
            if (p->best[v] < hops || (v < graph->n_ranks && v != start && !graph->ranks_forward)) continue;
            for (int64_t i = first[v]; i < first[v + 1]; i++) {
                const cot_topology_link *link = &graph->links[backwards ? o->into[i] : i];
                const int32_t to = backwards ? link->from : link->to;
                if (p->best[to] <= hops + link->hops) continue;
                p->best[to] = hops + link->hops;
                if (link->hops > 0)
                    next[n_next++] = to;
                else
                    now[n_now++] = to;
            }
        }
        int32_t *swap = now;
        now = next;
        next = swap;
        n_now = n_next;
        n_next = 0;
    }
}

bool cot_paths_search(cot_paths *paths, const cot_topology *graph, cot_metric metric, int32_t vertex,
                      bool backwards)
{
    if (!metric.cost && paths->unit_hops) {
        search_levels(paths, graph, vertex, backwards);
        return true;
    }
    return search(paths, graph, metric.cost ? BY_LATENCY : BY_HOPS, metric.bytes, vertex, backwards);
}

bool cot_paths_search_links(cot_paths *paths, const cot_topology *graph, int32_t vertex, bool backwards)
{
    return search(paths, graph, BY_LINKS, 0, vertex, backwards);
}
