#include "topology/reader.h"

#include "base/error.h"
#include "base/file.h"
#include "topology/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What `nvidia-smi topo -m` prints. The first line names the columns, GPUs first; a line a GPU follows, whose cells are X
 * (itself), NV and a count, or the kind of way over PCIe. */

static const char blanks[] = " \t\r";

/* Ways over PCIe: hops as a topology of NCCL's counts them, and what carries them where nobody says it, 16 lanes of PCIe 4
 * or the link between two CPUs. */
static const struct {
    const char *name;
    double hops, gbps;
} ways[] = {{"X", 0, 0},      {"PIX", 2, 31.5}, {"PXB", 3, 31.5},
            {"PHB", 4, 31.5}, {"NODE", 5, 20},  {"SYS", 6, 20}};
enum { WAYS = sizeof ways / sizeof *ways };
static const double nvlink_gbps = 25;

/* "GPU" and its number, -1 where the cell is none. */
static int32_t gpu_number(const char *cell)
{
    char *end;
    if (strncmp(cell, "GPU", 3) || cell[3] < '0' || cell[3] > '9') return -1;
    const long number = strtol(cell + 3, &end, 10);
    return *end || number >= COT_TOPOLOGY_MAX_RANKS ? -1 : (int32_t)number;
}

/* How many NVLinks a cell stands for; of a way over PCIe -1 less its place in `ways`; 0 where it is no cell of two GPUs. */
static int32_t read_cell(const char *cell)
{
    char *end;
    for (int32_t i = 0; i < WAYS; i++)
        if (!strcmp(cell, ways[i].name)) return -1 - i;
    if (strncmp(cell, "NV", 2) || cell[2] < '1' || cell[2] > '9') return 0;
    const long count = strtol(cell + 2, &end, 10);
    return *end || count > 1024 ? 0 : (int32_t)count;
}

enum { CELL = 16 };

/* Copies the next cell of a line, what fits of it; returns what is behind it. */
static const char *copy_cell(char cell[CELL], const char *line)
{
    line += strspn(line, blanks);
    const size_t length = strcspn(line, " \t\r\n");
    snprintf(cell, CELL, "%.*s", (int)(length < CELL ? length : CELL), line);
    return line + length;
}

/* Whether a line is a GPU's; the line of columns, which may begin with GPU0 too, has no cell of two GPUs. */
static bool is_row(const char *line)
{
    char cell[CELL];
    line = copy_cell(cell, line);
    const int32_t number = gpu_number(cell);
    copy_cell(cell, line);
    return number > 0 || (number == 0 && read_cell(cell));
}

static size_t count_rows(const char *text)
{
    size_t rows = 0;
    for (; *text; text += strcspn(text, "\n"), text += *text == '\n') rows += is_row(text);
    return rows;
}

/* How many GPUs the line of columns names, which may be underlined; 0 where there is none before the first row. */
static size_t count_columns(const char *text)
{
    size_t columns = 0;
    for (; *text && !columns && !is_row(text); text += strcspn(text, "\n"), text += *text == '\n') {
        const char *end = text + strcspn(text, "\n");
        for (const char *at = text; (at = strstr(at, "GPU")) && at < end; at += 3)
            columns += at[3] >= '0' && at[3] <= '9' && strtoul(at + 3, NULL, 10) == columns;
    }
    return columns;
}

/* `cells` [n][n] as read_cell has them; the text is cut up. */
static cot_status read_rows(int32_t *cells, int32_t n, char *text, const char *path, cot_error *error)
{
    char *line_end, *cell_end;
    int32_t rows = 0;
    const size_t columns = count_columns(text), given = count_rows(text);
    if (columns > given)
        return cot_fail(error, COT_MALFORMED,
                        "'%s' has columns of %zu GPUs, but rows of %zu: it seems to be cut off", path,
                        columns, given);
    for (char *line = strtok_r(text, "\n", &line_end); line; line = strtok_r(NULL, "\n", &line_end)) {
        if (!is_row(line)) continue;
        char *cell = strtok_r(line, blanks, &cell_end);
        if (rows >= n || gpu_number(cell) != rows)
            return cot_fail(error, COT_MALFORMED, "'%s': a row of %s where GPU%d of %d was expected", path,
                            cell, rows, n);
        for (int32_t to = 0; to < n; to++) {
            cell = strtok_r(NULL, blanks, &cell_end);
            const int32_t way = cell ? read_cell(cell) : 0;
            if (way == -1 && to != rows)
                return cot_fail(error, COT_MALFORMED,
                                "'%s': 'X' between GPU%d and GPU%d, expected where they are the same", path,
                                rows, to);
            if (!way)
                return cot_fail(error, COT_MALFORMED, "'%s': '%s' between GPU%d and GPU%d is no link", path,
                                cell ? cell : "", rows, to);
            cells[(size_t)rows * (size_t)n + (size_t)to] = way;
        }
        rows++;
    }
    if (rows != n)
        return cot_fail(error, COT_MALFORMED,
                        "'%s' has rows of %d GPUs, expected %d: the output of nvidia-smi topo -m", path, rows,
                        n);
    return COT_OK;
}

cot_status cot_nvlinks_read(int32_t *links, int32_t n, const char *path, cot_error *error)
{
    char *text;
    size_t bytes;
    cot_status status = cot_file_read(&text, &bytes, path, 1 << 24, error);
    if (status != COT_OK) return status;
    status = read_rows(links, n, text, path, error);
    free(text);
    for (size_t i = 0; status == COT_OK && i < (size_t)n * (size_t)n; i++)
        if (links[i] < 0) links[i] = 0;
    return status;
}

bool cot_nvlinks_is(const char *text)
{
    for (; *text; text += strcspn(text, "\n"), text += *text == '\n')
        if (is_row(text)) return true;
    return false;
}

cot_status cot_read_topology_nvlinks(cot_topology *graph, const cot_topology_text *file, cot_error *error)
{
    const size_t n = count_rows(file->text);
    if (n > COT_TOPOLOGY_MAX_RANKS)
        return cot_fail(error, COT_UNSUPPORTED, "'%s' has more than %d GPUs", file->path,
                        COT_TOPOLOGY_MAX_RANKS);
    int32_t *cells = malloc(n * n * sizeof *cells);
    char *text = strdup(file->text);
    cot_status status = cells && text
                            ? read_rows(cells, (int32_t)n, text, file->path, error)
                            : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for '%s'", file->path);
    bool built = status == COT_OK && cot_graph_ranks(graph, (int32_t)n);
    for (size_t i = 0; built && i < n * n; i++) {
        const int32_t from = (int32_t)(i / n), to = (int32_t)(i % n), way = -1 - cells[i];
        cot_graph_host(graph, from, 0);
        if (from == to) continue;
        built = cot_graph_link(graph, cells[i] > 0 ? cot_graph_inside(from, to, nvlink_gbps * cells[i])
                                                   : (cot_topology_link){from, to, ways[way].hops,
                                                                         ways[way].hops / 2, ways[way].gbps});
    }
    free(cells);
    free(text);
    graph->has_costs = true;
    return status == COT_OK ? cot_graph_finish(graph, built, error) : status;
}
