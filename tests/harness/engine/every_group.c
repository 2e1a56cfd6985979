#include "harness/engine/every_group.h"

#include "harness/cmocka.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"

#include <math.h>
#include <stdlib.h>

enum { SEQUENCES = 3 };

static void expect_same(const struct records *a, const struct records *b, size_t count, int64_t vocab)
{
    const size_t numbers = (size_t)GROUP_TOKENS * (size_t)vocab;
    for (size_t i = 0; i < count; i++)
        assert_memory_equal(a->record[i].logits, b->record[i].logits, numbers * sizeof(float));
}

/* Each engine is closed before the next one opens: one whose ranks are processes forks. */
void check_every_group(open_with *open, const void *what, const struct setting *setting, const char *weights,
                       uint64_t *seed)
{
    int32_t *ids = NULL;
    struct records first = {0};
    for (int i = 0; i < 3; i++) {
        struct setting s = *setting;
        s.ranks = 1 << i;
        s.attention = "dp";
        s.kv_tokens = 256;
        s.processes = i == 2;
        cot_engine *engine = open(what, &s);
        const cot_engine_info *info = cot_engine_describe(engine);
        const int64_t vocab = info->vocab;
        if (weights) assert_string_equal(info->weights, weights);
        if (!ids) ids = drawn_ids((int64_t)SEQUENCES * GROUP_TOKENS, vocab, seed);
        cot_request q[SEQUENCES];
        for (int k = 0; k < SEQUENCES; k++)
            q[k] = forced_request(ids + k * GROUP_TOKENS, GROUP_TOKENS, GROUP_PREFILL + k);
        const size_t count = i ? SEQUENCES : 1; // the first of them alone
        struct records all = must_run(engine, q, count);
        if (!i) first = must_run(engine, q, SEQUENCES);
        expect_same(&all, &first, count, vocab);
        for (int64_t t = 0; !i && t < GROUP_TOKENS * vocab; t++)
            for (int k = 0; k < SEQUENCES; k++) assert_true(isfinite(first.record[k].logits[t]));
        records_free(&all);
        cot_engine_close(engine);
    }
    records_free(&first);
    free(ids);
}
