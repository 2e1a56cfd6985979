/* Any bytes are batches of KV events, or none: parts of them come as a feed's batches, by any number and way. When the
 * target's blocks are taken out of the index nothing is left in it. */
#include "coterie/route.h"
#include "route/feed.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    cot_route_index *index;
    cot_route_feed *feed;
    if (cot_route_index_open(&index, 2, NULL) ||
        cot_route_feed_open(&feed, index, 1, bytes ? data[0] % 4 + 1u : 1, bytes % 2, NULL))
        abort();
    for (uint64_t number = 0; bytes > 3;
         number++) { // a way, a number, a length, then a batch in memory of its own
        const uint8_t way = data[0] % 8;
        if (way == 1) number += data[1] % 3;
        const size_t rest = bytes - 3, length = way < 4 || data[2] > rest ? rest : data[2];
        uint8_t *batch = malloc(length + !length);
        if (!batch) abort();
        memcpy(batch, data + 3, length);
        if (way == 6)
            cot_route_feed_snapshot(feed, number, batch, length, NULL);
        else if (way == 7)
            cot_route_feed_replayed(feed, number, batch, length, 0, NULL);
        else
            cot_route_feed_live(feed, number, batch, length, 0, NULL);
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
