/* What a rank sends in each exchange of a step: the fabric's counters, looked at when one is over. */
#include "model/runner_state.h"

#include <string.h>

static uint64_t *sent_by(const cot_runner *r, int rank)
{
    return (uint64_t *)cot_local(r->fabric, r->sent.at) +
           (size_t)rank * cot_runner_sent_words(r, r->fabric->ranks);
}

void cot_runner_begin_exchanges(cot_runner *r)
{
    if (!r->o.count_exchanges) return;
    memset(sent_by(r, r->fabric->rank), 0, cot_runner_sent_words(r, r->fabric->ranks) * sizeof(uint64_t));
    for (int to = 0; to < r->fabric->ranks; to++)
        for (int p = 0; p < COT_PHASES; p++) r->sent.seen[to][p] = r->fabric->traffic[to][p].bytes;
}

void cot_runner_exchanged(cot_runner *r, int64_t layer, int exchange, unsigned phases)
{
    if (!r->o.count_exchanges) return;
    uint64_t *sent = sent_by(r, r->fabric->rank) + (layer * COT_EXCHANGES + exchange) * r->fabric->ranks;
    for (int to = 0; to < r->fabric->ranks; to++)
        for (int p = 0; p < COT_PHASES; p++) {
            if (!(phases >> p & 1)) continue;
            sent[to] += r->fabric->traffic[to][p].bytes - r->sent.seen[to][p];
            r->sent.seen[to][p] = r->fabric->traffic[to][p].bytes;
        }
}

void cot_runner_get_exchanged(const cot_runner *r, uint64_t *bytes)
{
    const size_t ranks = (size_t)r->fabric->ranks, exchanges = cot_runner_exchanges(r->c->layers);
    for (size_t x = 0; x < exchanges; x++)
        for (size_t from = 0; from < ranks; from++)
            memcpy(bytes + (x * ranks + from) * ranks, sent_by(r, (int)from) + x * ranks,
                   ranks * sizeof *bytes);
}
