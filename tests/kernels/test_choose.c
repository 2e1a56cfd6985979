/* The choice of a table: the best, a named one, one that is not here; what coterie/roof.h tells of this
 * machine. */
#include "harness/kernels/check.h"

#include "coterie/roof.h"

#include <stdio.h>
#include <string.h>

int main(void)
{
    const cot_kernels *kernels = NULL;
    cot_error error = {0};
    const char *const *names = cot_isa_names();
    CHECK(cot_kernels_choose(&kernels, NULL, &error) == COT_OK, "%s", error.message);
    CHECK(strcmp(kernels->name, names[0]) == 0, "%s is not the best", kernels->name);
    int count = 0;
    for (; names[count]; count++) {
        CHECK(cot_kernels_choose(&kernels, names[count], &error) == COT_OK, "%s", error.message);
        CHECK(strcmp(kernels->name, names[count]) == 0, "%s for %s", kernels->name, names[count]);
    }
    CHECK(strcmp(names[count - 1], "ref") == 0, "the oracle is always there");
    int tables = 0;
    FOR_EACH_TABLE(table) tables++;
    CHECK(tables == count, "%d tables, %d names", tables, count);
    kernels = NULL;
    CHECK(cot_kernels_choose(&kernels, "mmx", &error) == COT_UNSUPPORTED && !kernels, "took 'mmx'");
    CHECK(strstr(error.message, "'mmx'") && strstr(error.message, "ref"), "%s", error.message);
    CHECK(cot_kernels_choose(&kernels, "", NULL) == COT_UNSUPPORTED, "took ''");
    printf("%s\n", error.message);
    return 0;
}
