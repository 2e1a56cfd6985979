/* Any frames are a request for a replay or none. The first byte says how many there are, the next ones how long each is. */
#include "net/publisher.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    enum { FRAMES = 8 };
    void *frames[FRAMES];
    size_t counts[FRAMES], n = 0;
    uint64_t number = 0, expected = 0;
    const size_t most = bytes ? *data++ % (FRAMES + 1) : 0;
    bytes -= bytes != 0;
    for (; n < most && bytes; n++) { // each in memory of its own, so that a read beyond is seen
        counts[n] = data[0] < bytes ? data[0] : bytes - 1;
        frames[n] = malloc(counts[n] + !counts[n]);
        if (!frames[n]) abort();
        memcpy(frames[n], data + 1, counts[n]);
        data += 1 + counts[n];
        bytes -= 1 + counts[n];
    }
    const bool is_request = n == 2 && counts[0] == 0 && counts[1] == 8;
    if (cot_publisher_read_request((const void *const *)frames, counts, n, &number) != is_request) abort();
    for (int i = 0; is_request && i < 8; i++) expected = expected * 256 + ((const uint8_t *)frames[1])[i];
    if (is_request && number != expected) abort();
    while (n) free(frames[--n]);
    return 0;
}
