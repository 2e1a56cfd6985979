/* Requests that came together. */
#include "route/book.h"

#include <assert.h>

/* Blocks from the first on that two texts have in common: keys tell of all before them. */
static size_t common_blocks(const cot_route_request *a, const cot_route_request *b)
{
    size_t least = 0, most = a->blocks < b->blocks ? a->blocks : b->blocks;
    if (!a->keys || !b->keys) return 0;
    while (least < most) {
        const size_t middle = least + (most - least + 1) / 2;
        if (a->keys[middle - 1] == b->keys[middle - 1])
            least = middle;
        else
            most = middle - 1;
    }
    return least;
}

/* Assigns request k, which finds what those before it will have computed where they went. Those that it leans on, and itself, are to stay
 * where they are. */
static void assign(cot_route_book *book, const cot_route_request *requests, uint32_t *depth,
                   cot_route_decision *decisions, uint64_t *numbers, bool *stays, size_t k, int64_t now_ns)
{
    uint32_t found[COT_ROUTE_MOST_TOGETHER]; // before others were looked at, of those before
    for (size_t i = 0; i < k; i++) {
        if (!numbers[i]) continue;
        const uint32_t common = (uint32_t)common_blocks(&requests[i], &requests[k]);
        uint32_t *there = &depth[decisions[i].target];
        found[i] = *there;
        if (common > *there) *there = common;
    }
    if (cot_route_choose(book, &requests[k], now_ns, &decisions[k]))
        numbers[k] = cot_route_assigned(book, &requests[k], &decisions[k], now_ns);
    else
        decisions[k].target = COT_ROUTE_NOBODY;
    for (size_t i = k; i-- > 0;) {
        if (!numbers[i]) continue;
        uint32_t *there = &depth[decisions[i].target];
        if (decisions[i].target == decisions[k].target && *there > found[i]) stays[i] = stays[k] = true;
        *there = found[i];
    }
    if (numbers[k] && cot_route_is_trial(book, numbers[k])) stays[k] = true;
}

void cot_route_choose_together(cot_route_book *book, cot_route_request *requests, uint32_t *depth,
                               cot_route_decision *decisions, uint64_t *numbers, size_t count, int64_t now_ns)
{
    const size_t targets = cot_route_book_targets(book);
    bool stays[COT_ROUTE_MOST_TOGETHER] = {false};
    size_t place[COT_ROUTE_MOST_TOGETHER], free_ones = 0;
    cot_route_request asked[COT_ROUTE_MOST_TOGETHER];
    cot_route_decision decided[COT_ROUTE_MOST_TOGETHER];
    uint64_t number[COT_ROUTE_MOST_TOGETHER];
    assert(count <= COT_ROUTE_MOST_TOGETHER);
    for (size_t k = 0; k < count; k++) {
        numbers[k] = 0;
        requests[k].depth = depth + k * targets;
        assign(book, requests, depth + k * targets, decisions, numbers, stays, k, now_ns);
    }
    if (!cot_route_book_scores(book)) return;
    for (size_t k = 0; k < count; k++) {
        if (stays[k] || !numbers[k]) continue;
        place[free_ones] = k;
        asked[free_ones] = requests[k];
        decided[free_ones] = decisions[k];
        number[free_ones++] = numbers[k];
    }
    cot_route_exchange(book, asked, decided, number, free_ones, now_ns);
    for (size_t i = 0; i < free_ones; i++) {
        decisions[place[i]] = decided[i];
        numbers[place[i]] = number[i];
    }
}
