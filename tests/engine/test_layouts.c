/* Every layout of the hub in an engine: experts, attention and head that stay as they are stored give what the same numbers in F32
 * give, but for the order of sums, on any number of ranks, and the same bits where sequences have homes. */
#include "harness/cmocka.h"
#include "harness/engine/every_group.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/checkpoint/layouts.h"
#include "harness/seed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static cot_engine *open_folder(const void *what, const struct setting *s)
{
    struct setting all = *s;
    all.folder = what;
    return must_open(&all);
}

enum { TOKENS = 21, PREFILL = 15 };

/* Logits of a sequence in fp32. */
static struct records logits_of(const char *path, int ranks, const layout *l, const int32_t *ids)
{
    const cot_request q = forced_request(ids, TOKENS, PREFILL);
    cot_engine *engine =
        must_open(&(struct setting){.folder = path, .precision = "fp32", .kv_tokens = 64, .ranks = ranks});
    const cot_engine_info *info = cot_engine_describe(engine);
    const char *const stored = l ? layout_kept(l) : NULL, *const kept = stored ? stored : "fp32";
    assert_string_equal(info->weights, kept);
    assert_string_equal(info->weights_attention, kept);
    assert_string_equal(info->weights_head, kept);
    const struct records all = must_run(engine, &q, 1);
    cot_engine_close(engine);
    return all;
}

/* The root of the mean of squares of what logits differ by, over that of their own. */
static double error_of(const struct records *x, const struct records *y)
{
    double errors = 0, squares = 0;
    for (int t = 0; t < TOKENS * LAYOUT_VOCAB; t++) {
        const double a = (double)x->record[0].logits[t], b = (double)y->record[0].logits[t];
        errors += (a - b) * (a - b);
        squares += b * b;
    }
    return sqrt(errors / squares);
}

static void every_layout(void **state)
{
    (void)state;
    static const char *const precisions[] = {"fp32", "bf16", "int8"};
    uint64_t seed = test_seed();
    for (int i = 0; i < LAYOUTS; i++) {
        const layout *l = &layouts[i];
        model m = layout_make(l, &seed);
        folder *wide = layout_widened(l, &m);
        int32_t *ids = drawn_ids(TOKENS, LAYOUT_VOCAB, &seed);
        struct records plain = logits_of(wide->path, 1, NULL, ids);
        const int more = 2 << draw(&seed) % 2;
        for (int ranks = 1; ranks <= more; ranks += more - 1) {
            struct records stored = logits_of(m.f->path, ranks, l, ids);
            const double error = error_of(&stored, &plain);
            if (!(error < 1e-4)) fail_msg("%s, %d ranks: off by %g", l->config, ranks, error);
            records_free(&stored);
        }
        records_free(&plain);
        check_every_group(open_folder, m.f->path, &(struct setting){.precision = precisions[draw(&seed) % 3]},
                          NULL, &seed);
        free(ids);
        folder_delete(wide);
        layout_discard(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_layout)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
