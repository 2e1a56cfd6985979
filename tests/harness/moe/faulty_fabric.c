#include "harness/moe/faulty_fabric.h"

#include "harness/cmocka.h"

#include <stdlib.h>
#include <string.h>

static struct faulty_endpoint *faulty_self(cot_fabric *fabric)
{
    return (struct faulty_endpoint *)fabric;
}

static cot_status faulty_alloc(cot_fabric *fabric, cot_sym *where, size_t bytes, cot_error *error)
{
    (void)error;
    struct faulty_endpoint *self = faulty_self(fabric);
    *where = (self->used + 63) / 64 * 64;
    self->used = *where + bytes;
    assert_true(self->used <= self->group->heap_bytes);
    return COT_OK;
}

static void *faulty_local(cot_fabric *fabric, cot_sym where)
{
    return faulty_self(fabric)->heap + where;
}

/* Copies so much more of what a message carries. */
static void faulty_copy(struct faulty_group *group, int to, struct faulty_message *m, size_t bytes)
{
    memcpy(group->endpoints[to].heap + m->where + m->there, m->data + m->there, bytes);
    m->there += bytes;
}

static void faulty_raise(struct faulty_group *group, int to, cot_sym signal, uint64_t value)
{
    uint64_t *word = (void *)(group->endpoints[to].heap + signal);
    if (*word >= value) fail_msg("a signal of rank %d goes from %#lx to %#lx", to, *word, value);
    *word = value;
}

static void faulty_send(cot_fabric *fabric, int to, cot_sym where, const void *data, size_t bytes,
                        bool signals, cot_sym signal, uint64_t value)
{
    struct faulty_endpoint *self = faulty_self(fabric);
    struct faulty_group *group = self->group;
    assert_true(to >= 0 && to < group->ranks && where <= group->heap_bytes &&
                bytes <= group->heap_bytes - where);
    assert_true(!signals || (signal % 8 == 0 && signal + 8 <= group->heap_bytes));
    if (group->watch)
        group->watch(group->context, fabric->rank, to, where, bytes, signals ? signal : 0, value);
    struct faulty_message *m = malloc(sizeof *m + bytes);
    assert_non_null(m);
    *m = (struct faulty_message){
        .where = where, .signal = signal, .value = value, .signals = signals, .bytes = bytes};
    if (bytes) memcpy(m->data, data, bytes);
    if (signals && to != fabric->rank && group->signals_sent++ == group->lose) {
        m->lost = true;
        group->lost_from = fabric->rank, group->lost_to = to;
        group->lost_value = value;
    }
    if (to == fabric->rank) {
        faulty_copy(group, to, m, bytes);
        if (signals) faulty_raise(group, to, signal, value);
        free(m);
        return;
    }
    memset(group->endpoints[to].heap + where, 0xff, bytes);
    if (draw_below(group->draw, 4) < group->at_once) faulty_copy(group, to, m, bytes);
    struct faulty_queue *queue = &group->queue[fabric->rank][to];
    if (!queue->first) queue->end = &queue->first;
    *queue->end = m;
    queue->end = &m->next;
    group->undelivered++;
}

static void faulty_put(cot_fabric *fabric, int to, cot_sym where, const void *data, size_t bytes,
                       cot_phase phase)
{
    (void)phase;
    faulty_send(fabric, to, where, data, bytes, false, 0, 0);
}

static void faulty_put_signal(cot_fabric *fabric, int to, cot_sym where, const void *data, size_t bytes,
                              cot_sym signal, uint64_t value, cot_phase phase)
{
    (void)phase;
    faulty_send(fabric, to, where, data, bytes, true, signal, value);
}

uint64_t faulty_load(cot_fabric *fabric, cot_sym signal)
{
    return *(const uint64_t *)(const void *)(faulty_self(fabric)->heap + signal);
}

static int64_t faulty_now_ns(cot_fabric *fabric)
{
    return ++faulty_self(fabric)->group->now_ns;
}

static const cot_fabric_ops faulty_ops = {.alloc = faulty_alloc, // nothing here waits or takes turns
                                          .local = faulty_local,
                                          .put = faulty_put,
                                          .put_signal = faulty_put_signal,
                                          .load = faulty_load,
                                          .now_ns = faulty_now_ns};

bool faulty_deliver(struct faulty_group *group, int from, int to)
{
    struct faulty_queue *queue = &group->queue[from][to];
    struct faulty_message *m = queue->first;
    if (!m) return false;
    if (!draw_below(group->draw, 3)) {
        while (m->next && draw_below(group->draw, 2)) m = m->next;
        if (m->there < m->bytes) {
            faulty_copy(group, to, m, 1 + (size_t)draw_below(group->draw, (int64_t)(m->bytes - m->there)));
            return true;
        }
        m = queue->first;
    }
    faulty_copy(group, to, m, m->bytes - m->there);
    if (m->signals && !m->lost) faulty_raise(group, to, m->signal, m->value);
    queue->first = m->next;
    free(m);
    group->undelivered--;
    return true;
}

struct faulty_group *faulty_open(int ranks, size_t heap_bytes, struct draw *draw)
{
    struct faulty_group *group = calloc(1, sizeof *group);
    assert_non_null(group);
    group->ranks = ranks;
    group->heap_bytes = (heap_bytes + 63) / 64 * 64;
    group->draw = draw;
    group->lose = -1;
    for (int r = 0; r < ranks; r++) {
        struct faulty_endpoint *self = &group->endpoints[r];
        self->fabric = (cot_fabric){.ops = &faulty_ops, .rank = r, .ranks = ranks, .traffic = self->traffic};
        self->group = group;
        self->heap = aligned_alloc(FAULTY_ENDPOINT_ALIGN, group->heap_bytes);
        assert_non_null(self->heap);
        memset(self->heap, 0, group->heap_bytes);
    }
    return group;
}

void faulty_close(struct faulty_group *group)
{
    for (int s = 0; s < group->ranks; s++)
        for (int d = 0; d < group->ranks; d++)
            for (struct faulty_message *m = group->queue[s][d].first, *next; m; m = next) {
                next = m->next;
                free(m);
            }
    for (int r = 0; r < group->ranks; r++) free(group->endpoints[r].heap);
    free(group);
}
