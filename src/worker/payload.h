/* What subscribers get: msgpack, written to a buffer. */
#ifndef COT_WORKER_PAYLOAD_H
#define COT_WORKER_PAYLOAD_H
#include "base/buffer.h"

#include <msgpack.h>
#include <string.h>

static inline int cot_payload_write(void *buffer, const char *bytes, size_t count)
{
    return cot_buffer_append(buffer, bytes, count) ? 0 : -1;
}

/* Appends to the buffer; functions of msgpack return 0, or another number where memory has run out. */
static inline msgpack_packer cot_payload_packer(cot_buffer *buffer)
{
    msgpack_packer packer;
    msgpack_packer_init(&packer, buffer, cot_payload_write);
    return packer;
}

static inline int cot_payload_text(msgpack_packer *to, const char *text)
{
    return msgpack_pack_str_with_body(to, text, strlen(text));
}

#endif
