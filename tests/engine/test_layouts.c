/* Every layout of the hub in an engine: experts that stay as they are stored give what the same numbers in F32 give, but for the
 * order of sums, and the same bits for every number of ranks and in any company. */
#include "harness/cmocka.h"
#include "harness/engine/every_group.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/model/layouts.h"
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

/* Logits of a sequence in fp32, as a mean of squares of what they differ by, over that of their own. */
static double error_of(const char *stored, const char *wide, const int32_t *ids)
{
    enum { TOKENS = 21, PREFILL = 15 };
    const cot_request q = forced_request(ids, TOKENS, PREFILL);
    const char *const folders[] = {stored, wide};
    struct records all[2];
    double errors = 0, squares = 0;
    for (int i = 0; i < 2; i++) {
        cot_engine *engine =
            must_open(&(struct setting){.folder = folders[i], .precision = "fp32", .kv_tokens = 64});
        all[i] = must_run(engine, &q, 1);
        cot_engine_close(engine);
    }
    for (int t = 0; t < TOKENS * LAYOUT_VOCAB; t++) {
        const double x = (double)all[0].record[0].logits[t], y = (double)all[1].record[0].logits[t];
        errors += (x - y) * (x - y);
        squares += y * y;
    }
    records_free(&all[0]), records_free(&all[1]);
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
        int32_t *ids = drawn_ids(21, LAYOUT_VOCAB, &seed);
        const double error = error_of(m.f->path, wide->path, ids);
        if (!(error < 1e-4)) fail_msg("%s: off by %g", l->config, error);
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
