/* Any file is a load or a refusal: a table, JSON lines, statistics. The first byte chooses how the file begins, so that
 * few inputs are lost on that. */
#include "coterie/load.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[96];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void leave(void)
{
    unlink(path);
}

static void enter(void)
{
    snprintf(path, sizeof path, "%s/cot-fuzz-XXXXXX", P_tmpdir);
    int fd = mkstemp(path);
    if (fd < 0) abort();
    close(fd);
    atexit(leave);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const begins[] = {"", "layer,expert,tokens\n", "tokens,source,layer,expert\n",
                                         "{\"record_type\":\"eplb_load_stats\",\"expert_load\":"};
    cot_load_options options = {.size = sizeof options, .first_layer = 3};
    cot_load_counts load;
    cot_error error = {0};
    const char *one = path;
    if (!bytes) return 0;
    if (!path[0]) enter();
    FILE *file = fopen(path, "wb");
    if (!file || fputs(begins[*data % 4], file) < 0 || fwrite(data + 1, 1, bytes - 1, file) != bytes - 1 ||
        fclose(file))
        abort();
    if (cot_load_counts_read(&load, &one, 1, &options, &error) != COT_OK) {
        if (!error.message[0] || load.tokens) abort();
        return 0;
    }
    double sum = 0;
    for (int64_t i = 0; i < (int64_t)load.n_layers * load.n_sources * load.n_experts; i++) {
        if (!(load.tokens[i] >= 0) || isinf(load.tokens[i])) abort();
        sum += load.tokens[i];
    }
    for (int32_t l = 1; l < load.n_layers; l++)
        if (load.layers[l] <= load.layers[l - 1]) abort();
    if (!(sum > 0)) abort();
    cot_load_counts_free(&load);
    return 0;
}
