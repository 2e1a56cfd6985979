#include "base/buffer.h"
#include "server/server_state.h"

#include <stdlib.h>

bool cot_server_wait(cot_server *s, cot_server_waiting_kind kind, cot_http_exchange *exchange)
{
    cot_server_waiting *w = &s->waiting[kind];
    void *grown = w->exchange;
    if (!cot_grow(&grown, &w->room, w->count + 1, sizeof *w->exchange)) return false;
    w->exchange = grown;
    w->exchange[w->count++] = exchange;
    return true;
}

cot_http_exchange *cot_server_take_waiting(cot_server *s, cot_server_waiting_kind kind)
{
    cot_server_waiting *w = &s->waiting[kind];
    return w->count ? w->exchange[--w->count] : NULL;
}

void cot_server_forget_waiting(cot_server *s, const cot_http_exchange *exchange)
{
    for (int kind = 0; kind < COT_WAITING_KINDS; kind++) {
        cot_server_waiting *w = &s->waiting[kind];
        for (size_t i = 0; i < w->count; i++)
            if (w->exchange[i] == exchange) w->exchange[i--] = w->exchange[--w->count];
    }
}

void cot_server_free_waiting(cot_server *s)
{
    for (int kind = 0; kind < COT_WAITING_KINDS; kind++) free(s->waiting[kind].exchange);
}
