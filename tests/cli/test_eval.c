/* `coterie eval`'s table: the mean of each domain is that of its sequences' losses, wherever its names sort. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/safetensors.h"
#include "harness/cli/capture.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVAL "cd %s && \"$coterie\" eval '" COT_SOURCE "/models/tiny' --tokens ids.safetensors %s"

static capture c;
static char folder[] = "/tmp/cot_eval_XXXXXX";

/* Names of deeper domains sort between those of x, and others that merely begin alike right beside them. */
static const struct sequence {
    const char *name, *domain;
    int64_t tokens;
} sequences[] = {
    {"x.1", "x", 9},     {"x.1.5", "x.1", 8},  {"x.1.6", "x.1", 7}, {"x.1.6.0", "x.1.6", 6},
    {"x.2", "x", 5},     {"x.2.0", "x.2", 4},  {"x.3", "x", 1},     {"x.4", "x", 12},
    {"x-1.2", "x-1", 6}, {"x-1.3", "x-1", 10}, {"xx.1", "xx", 4},   {"xx.10", "xx", 3},
    {"alone", "", 5},    {"also", "", 3},      {"y.1.0", "y.1", 6}, {"y.1.1", "y.1", 4},
    {"y.2", "y", 3},     {"y.3", "y", 8},      {"z.0", "z", 1},     {"z.1", "z", 1},
};
enum { COUNT = sizeof sequences / sizeof *sequences, MOST = 12 };

static void run_eval(const char *options)
{
    char line[512];
    snprintf(line, sizeof line, EVAL, folder, options);
    capture_shell(&c, line);
    if (c.status) fail_msg("%s: %s", options, c.err);
}

static void test_domains(void **state)
{
    (void)state;
    static int32_t ids[COUNT][MOST];
    static char names[COUNT][32];
    cot_tensor tensors[COUNT];
    char path[64];
    for (size_t i = 0; i < COUNT; i++) {
        for (int32_t t = 0; t < MOST; t++) ids[i][t] = (int32_t)(37 * i + 101) * (t + 1) % 4096;
        snprintf(names[i], sizeof names[i], "ids.%s", sequences[i].name);
        tensors[i] = (cot_tensor){.name = names[i],
                                  .dtype = COT_I32,
                                  .dims = 1,
                                  .shape = {sequences[i].tokens},
                                  .data = ids[i],
                                  .bytes = 4 * (size_t)sequences[i].tokens};
    }
    snprintf(path, sizeof path, "%s/ids.safetensors", folder);
    assert_int_equal(cot_safetensors_write(path, tensors, COUNT, NULL, 0, NULL), COT_OK);
    run_eval("--json");
    json_t *json = json_loads(c.out, 0, NULL), *each = json_object_get(json, "sequences");
    assert_non_null(each);
    run_eval("");
    int lines = 0, expected_lines = 0;
    for (const char *at = c.out; (at = strstr(at, " sequences ")); at++) lines++;
    for (size_t i = 0; i < COUNT; i++) {
        const char *domain = sequences[i].domain;
        size_t members = 0, with = 0, before = 0;
        double sum = 0;
        for (size_t k = 0; k < COUNT; k++) {
            if (strcmp(sequences[k].domain, domain) != 0) continue;
            const json_t *nats = json_object_get(json_object_get(each, sequences[k].name), "nats");
            before += k < i;
            members++;
            with += json_is_real(nats);
            sum += json_number_value(nats);
        }
        if (before || !*domain || members < 2 || !with) continue;
        char line[128], *at;
        snprintf(line, sizeof line, "\n%-24s %8zu sequences ", domain, with);
        at = strstr(c.out, line);
        if (!at || strstr(at + 1, line)) fail_msg("%s is not there once in %s", line + 1, c.out);
        assert_true(fabs(strtod(at + strlen(line), NULL) - sum / (double)with) < 1e-4);
        expected_lines++;
    }
    assert_int_equal(expected_lines, 6);
    assert_int_equal(lines, expected_lines);
    json_decref(json);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char line[64];
    snprintf(line, sizeof line, "rm -rf '%s'", folder);
    return system(line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_domains)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
