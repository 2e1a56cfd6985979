/* The first byte chooses the reader: a trace in memory, or a table, a layer's text or an index in a folder.
 * What is accepted must be sound enough to measure, count and write. */
#include "coterie/trace.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64], table[96], layer[96], ids[96], probs[96], index_file[96];

static void leave(void)
{
    char *const all[] = {table, layer, ids, probs, index_file};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) unlink(all[i]);
    rmdir(folder);
}

static void enter(void)
{
    snprintf(folder, sizeof folder, "%s/cot-fuzz-XXXXXX", P_tmpdir);
    if (!mkdtemp(folder)) abort();
    snprintf(table, sizeof table, "%s/table.tsv", folder);
    snprintf(layer, sizeof layer, "%s/expert_weights_1.txt", folder);
    snprintf(ids, sizeof ids, "%s/ids.u8", folder);
    snprintf(probs, sizeof probs, "%s/probs.bf16", folder);
    snprintf(index_file, sizeof index_file, "%s/index.jsonl", folder);
    atexit(leave);
}

static void put(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file)) abort();
}

static void hear(void *context, const char *line)
{
    *(size_t *)context += strlen(line);
}

static void use(const cot_trace *trace)
{
    cot_error error;
    cot_trace counts;
    size_t heard = 0;
    uint64_t *load = calloc((size_t)trace->n_experts, sizeof *load);
    cot_load_spread spread;
    cot_locality locality;
    if (!load) abort();
    cot_trace_load(load, trace, trace->n_layers - 1);
    if (cot_load_measure(&spread, load, trace->n_experts, &error) != COT_OK) abort();
    if (cot_trace_warn(trace, hear, &heard, &error) != COT_OK) abort();
    if (trace->kind == COT_TRACE_TOKENS) {
        if (cot_trace_locality_measure(&locality, trace, 0, 8, &error) != COT_OK) abort();
        if (locality.local + locality.remote_ranks > locality.activations) abort();
        if (cot_trace_count(&counts, trace, &error) == COT_OK) {
            use(&counts);
            cot_trace_close(&counts);
        }
    }
    if (cot_trace_write(trace, "/dev/null", &error) != COT_OK) abort();
    free(load);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    cot_trace trace;
    cot_error error = {0};
    cot_status status;
    cot_trace_import_options options = {.size = sizeof options};
    if (!bytes) return 0;
    if (!folder[0]) enter();
    uint8_t kind = *data++;
    bytes--;
    switch (kind % 4) {
    case 0:
        status = cot_trace_parse(&trace, data, bytes, "input", &error);
        break;
    case 1:
        put(table, data, bytes);
        options.from = "table";
        status = cot_trace_import(&trace, table, &options, &error);
        break;
    case 2:
        put(layer, data, bytes);
        options.from = "deepseek";
        status = cot_trace_import(&trace, folder, &options, &error);
        break;
    default: { // the arrays' length is a byte of its own, their contents follow the text
        size_t cells = kind / 4 * (size_t)4;
        if (bytes < 3 * cells) return 0;
        put(ids, data, cells);
        put(probs, data + cells, 2 * cells);
        put(index_file, data + 3 * cells, bytes - 3 * cells);
        options.from = "gpt-oss";
        status = cot_trace_import(&trace, folder, &options, &error);
    }
    }
    if (status != COT_OK) {
        assert(error.status == status && error.message[0]);
        return 0;
    }
    use(&trace);
    cot_trace_close(&trace);
    return 0;
}
