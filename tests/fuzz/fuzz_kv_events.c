/* Any bytes are batches of KV events, or none: parts of them come as a feed's batches, by any number and way, or are keys of blocks that
 * were routed there, while time passes. When the target's blocks are taken out of the index nothing is left in it. */
#include "coterie/route.h"
#include "route/feed.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const size_t sizes[] = {1, 2, 4, 16}; // tokens of a block
    cot_route_index *index;
    cot_route_feed *feed;
    int64_t now_ns = 0;
    uint64_t from, until;
    if (cot_route_index_open(&index, 2, NULL) ||
        cot_route_feed_open(&feed, index, 1, sizes[bytes ? data[0] % 4 : 0], bytes % 2, NULL))
        abort();
    for (uint64_t number = 0; bytes > 3;
         number++) { // a way, a number, a length, then a batch in memory of its own
        const uint8_t way = data[0] % 8;
        if (way == 1) number += data[1] % 3;
        const size_t rest = bytes - 3, length = way < 4 || data[2] > rest ? rest : data[2];
        uint8_t *batch = malloc(length + !length);
        if (!batch) abort();
        memcpy(batch, data + 3, length);
        now_ns += data[1] * INT64_C(100000000);
        if (way == 5)
            cot_route_feed_assume(feed, (const uint64_t *)(const void *)batch, length / sizeof(uint64_t),
                                  now_ns);
        else if (way == 6)
            cot_route_feed_snapshot(feed, number, batch, length, NULL);
        else if (way == 7)
            cot_route_feed_replayed(feed, number, batch, length, now_ns, NULL);
        else
            cot_route_feed_live(feed, number, batch, length, now_ns, NULL);
        cot_route_feed_tick(feed, now_ns, &from, &until);
        free(batch);
        data += 3 + length;
        bytes -= 3 + length;
    }
    cot_route_feed_close(feed);
    cot_route_index_figures figures;
    cot_route_index_clear(index, 1);
    cot_route_index_measure(index, &figures);
    if (figures.blocks || figures.pairs) abort();
    cot_route_index_close(index);
    return 0;
}
