/* What a stream of a Coterie worker has delivered: the ids of each choice, by which another worker can go on, and the events as the
 * client is to see them, whoever sends them. Pure. */
#ifndef COT_GATEWAY_DELIVERY_H
#define COT_GATEWAY_DELIVERY_H
#include "base/buffer.h"

#include <stdint.h>

typedef struct cot_delivered_choice {
    int32_t *ids; // [count]
    size_t count, room;
    bool begun, finished; // an event of it was seen; its last one was
} cot_delivered_choice;

/* Zero it, set `choices` (cot_delivery_open), `hides_ids` and `most`. */
typedef struct cot_delivery {
    size_t choices;
    cot_delivered_choice *choice;   // [choices]
    bool hides_ids;                 // the router asked for the ids, the client did not
    uint64_t most;                  // ids that a choice may have
    bool resumed;                   // another worker goes on
    char *id, *created;             // of the first event, as JSON; NULL: none has come
    uint64_t tokens;                // ids in all
    struct cot_delivery_part *part; // [part_room] of the event that is looked at
    size_t part_room;
} cot_delivery;

typedef enum cot_delivery_kind {
    COT_DELIVERY_EVENT,   // to be sent on
    COT_DELIVERY_NOTHING, // the client has it already
    COT_DELIVERY_DONE,    // "[DONE]"
    COT_DELIVERY_ERROR,   // an error of the worker's; to be sent on where nobody else goes on
    COT_DELIVERY_BAD,     // no event of a Coterie worker, more ids than `most`, or memory ran out
} cot_delivery_kind;

bool cot_delivery_open(cot_delivery *delivery, size_t choices);
void cot_delivery_free(cot_delivery *delivery);
/* Takes an event's data. `out` is emptied, and has what the client is to be sent as an event's data, where that is not
 * COT_DELIVERY_NOTHING or BAD. */
cot_delivery_kind cot_delivery_take(cot_delivery *delivery, const char *data, size_t bytes, cot_buffer *out);
/* The JSON of continue_token_ids; false when memory runs out. */
bool cot_delivery_write(const cot_delivery *delivery, cot_buffer *out);

#endif
