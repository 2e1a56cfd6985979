#include "cli/plan/cluster.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void say(void *context, const char *line)
{
    (void)context;
    fprintf(stderr, "note: %s\n", line);
}

bool cli_open_topology(cot_topology *topology, const char *text, const cli_topology_settings *settings)
{
    struct stat info;
    cot_error error = {0};
    const cot_topology_options options = {.size = sizeof options,
                                          .hosts = settings->hosts,
                                          .nvlink = settings->nvlink,
                                          .ranks = settings->ranks,
                                          .say = say};
    bool file = stat(text, &info) == 0;
    if (!file && (settings->hosts || settings->nvlink)) {
        cli_complain("--%s needs a topology's file; there is no file '%s'",
                     settings->hosts ? "hosts" : "nvlink", text);
        return false;
    }
    if (!file && strchr(text, '/')) {
        cli_complain("cannot open topology '%s': no such file", text);
        return false;
    }
    cot_status status = file ? cot_topology_read(topology, text, &options, &error)
                             : cot_topology_build(topology, text, settings->ranks, &error);
    if (status != COT_OK) cli_complain_of(&error);
    return status == COT_OK;
}

/* A rank's links to what no rank is and that counts no hop lead to its host first. */
const char **cli_host_names(const cot_topology *t)
{
    const char **name = t->n_hosts > 1 ? calloc((size_t)t->n_ranks, sizeof *name) : NULL;
    bool known = name != NULL;
    for (int64_t i = 0; known && i < t->n_links; i++) {
        const cot_topology_link *link = &t->links[i];
        if (link->from >= t->n_ranks || link->to < t->n_ranks || link->hops > 0 || name[link->from]) continue;
        const char *label = t->labels[link->to];
        name[link->from] = strncmp(label, "host ", 5) ? label : label + 5;
    }
    for (int32_t r = 0; known && r < t->n_ranks; r++) // a switch that hosts share is no host's name
        known = name[r] && (!r || t->host[r] == t->host[r - 1] || strcmp(name[r], name[r - 1]));
    if (known) return name;
    free(name);
    return NULL;
}

static double *fill(const json_t *array, const char *path, int32_t *rows, int32_t *columns)
{
    const bool flat =
        *rows == 1 && json_is_number(json_array_get(array, 0)); // a row needs no brackets of its own
    size_t m = flat ? 1 : json_array_size(array),
           n = json_array_size(flat ? array : json_array_get(array, 0));
    if (!m || !n || m > 1 << 20 || n > 1 << 20 || (*rows && m != (size_t)*rows) ||
        (*columns && n != (size_t)*columns)) {
        cli_complain("'%s' holds a matrix of %zu x %zu, expected %d x %d", path, m, n, *rows, *columns);
        return NULL;
    }
    double *matrix = malloc(m * n * sizeof *matrix);
    if (!matrix) {
        cli_complain("out of memory for '%s'", path);
        return NULL;
    }
    for (size_t i = 0; i < m * n; i++) {
        const json_t *row = flat ? array : json_array_get(array, i / n), *x = json_array_get(row, i % n);
        matrix[i] = json_number_value(x);
        if (json_array_size(row) != n || !json_is_number(x) || !(matrix[i] >= 0) || !isfinite(matrix[i])) {
            cli_complain("'%s': row %zu is no row of %zu numbers of 0 or more", path, i / n, n);
            free(matrix);
            return NULL;
        }
    }
    *rows = (int32_t)m;
    *columns = (int32_t)n;
    return matrix;
}

double *cli_read_matrix(const char *path, const char *key, int32_t *rows, int32_t *columns)
{
    json_error_t where;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &where);
    if (!root) {
        if (where.line < 0) // it could not be opened; the text says so
            cli_complain("%s", where.text);
        else
            cli_complain("cannot read '%s': line %d: %s", path, where.line, where.text);
        return NULL;
    }
    const json_t *array = json_is_object(root) ? json_object_get(root, key) : root;
    double *matrix = NULL;
    if (json_is_array(array))
        matrix = fill(array, path, rows, columns);
    else
        cli_complain("'%s' holds no matrix \"%s\"", path, key);
    json_decref(root);
    return matrix;
}
