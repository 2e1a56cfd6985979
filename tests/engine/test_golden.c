/* Other people's code computed these checkpoints' logits and routing: every family, every rope, every
 * storage, at several numbers of ranks, prefill and token by token, with both kinds of attention and, of tensor-parallel
 * attention, both pipelines; with four ranks as threads and as processes. */
#include "harness/cmocka.h"
#include "harness/engine/answers.h"
#include "harness/engine/golden.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

static void golden_answers(void **state)
{
    (void)state;
    DIR *folder = opendir(COT_SHARED "/golden");
    assert_non_null(folder);
    int found = 0;
    double worst_logit = 0, worst_weight = 0;
    for (const struct dirent *entry; (entry = readdir(folder));) {
        char path[1024];
        struct answers a;
        golden_path(path, entry->d_name, NULL);
        if (entry->d_name[0] == '.' || !answers_open(&a, path)) continue;
        for (size_t r = 0; r < 6; r++)
            for (int way = 0; way < 3; way++)
                answers_compare(&a, &(struct setting){.ranks = (const int[]){1, 2, 3, 4, 8, 4}[r],
                                                      .processes = r == 5,
                                                      .attention = way == 0 ? "dp" : "tp",
                                                      .pipeline = way == 2 ? "s-moe" : NULL,
                                                      .kv_tokens = 256});
        printf("%-18s worst logit %.1e, worst weight %.1e\n", entry->d_name, a.worst_logit, a.worst_weight);
        if (a.worst_logit > worst_logit) worst_logit = a.worst_logit;
        if (a.worst_weight > worst_weight) worst_weight = a.worst_weight;
        answers_close(&a);
        found++;
    }
    closedir(folder);
    printf("%-18s worst logit %.1e, worst weight %.1e\n", "all", worst_logit, worst_weight);
    assert_true(found >= 15);
}

int main(void)
{
    if (golden_absent("golden answers")) return SKIPPED;
    const struct CMUnitTest tests[] = {cmocka_unit_test(golden_answers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
