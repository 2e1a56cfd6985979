/* The first byte chooses: a spec, a file, or one with a list of hosts or of NVLinks before it, cut at the first NUL. What
 * is accepted must be sound enough to measure distances and to route on. */
#include "coterie/topology.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char file[64], hosts[80];

static void leave(void)
{
    unlink(file);
    unlink(hosts);
}

static void put(const char *path, const char *text, size_t bytes)
{
    FILE *f = fopen(path, "wb");
    if (!f) abort();
    fwrite(text, 1, bytes, f);
    fclose(f);
}

static void use(const cot_topology *t)
{
    size_t S = (size_t)t->n_ranks;
    if (S > 64 || t->n_links > 10000) return;
    double *d = malloc(S * S * sizeof *d), *load = malloc((size_t)t->n_links * sizeof *load + 1);
    if (!d || !load) abort();
    cot_topology_distances(d, t, (cot_metric){true, 1000}, NULL);
    if (cot_topology_distances(d, t, (cot_metric){0}, NULL) == COT_OK)
        cot_topology_link_loads(load, t, d, NULL);
    free(d);
    free(load);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    cot_topology t;
    cot_error error;
    if (bytes < 2) return 0;
    if (!*file) {
        snprintf(file, sizeof file, "%s/cot-fuzz-topology-%d", P_tmpdir, (int)getpid());
        snprintf(hosts, sizeof hosts, "%s.hosts", file);
        atexit(leave);
    }
    char *text = malloc(bytes);
    if (!text) abort();
    memcpy(text, data + 1, bytes - 1);
    text[bytes - 1] = 0;
    cot_status status;
    if (*data % 3 == 0)
        status = cot_topology_build(&t, text, 16, &error);
    else {
        size_t cut = strlen(text);
        bool listed = *data % 3 == 2 && cut + 1 < bytes - 1, links = *data >= 128;
        const cot_topology_options options = {.size = sizeof options,
                                              .hosts = listed && !links ? hosts : NULL,
                                              .nvlink = listed && links ? hosts : NULL};
        if (listed) put(hosts, text, cut);
        size_t from = listed ? cut + 1 : 0;
        put(file, text + from, bytes - 1 - from);
        status = cot_topology_read(&t, file, &options, &error);
        char *template;
        cot_topology_host_template(&template, file, NULL);
        free(template);
    }
    if (status == COT_OK) {
        use(&t);
        cot_topology_free(&t);
    }
    free(text);
    return 0;
}
