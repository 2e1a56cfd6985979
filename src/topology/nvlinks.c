#include "topology/reader.h"

#include "base/error.h"
#include "base/file.h"

#include <stdlib.h>
#include <string.h>

/* The first line names the columns, GPUs first, behind a tab; a line a GPU follows, whose cells are X (itself), NV and a
 * count, or the kind of way over PCIe. */

static const char blanks[] = " \t\r";

/* "GPU" and its number, -1 where the cell is none. */
static int32_t gpu_number(const char *cell)
{
    char *end;
    if (strncmp(cell, "GPU", 3) || cell[3] < '0' || cell[3] > '9') return -1;
    const long number = strtol(cell + 3, &end, 10);
    return *end || number >= COT_TOPOLOGY_MAX_RANKS ? -1 : (int32_t)number;
}

/* How many NVLinks a cell stands for, -1 where it is no cell of two GPUs. */
static int32_t cell_links(const char *cell)
{
    static const char *const others[] = {"X", "SYS", "NODE", "PHB", "PXB", "PIX"};
    char *end;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(cell, others[i])) return 0;
    if (strncmp(cell, "NV", 2) || cell[2] < '1' || cell[2] > '9') return -1;
    const long count = strtol(cell + 2, &end, 10);
    return *end || count > 1024 ? -1 : (int32_t)count;
}

cot_status cot_nvlinks_read(int32_t *links, int32_t n, const char *path, cot_error *error)
{
    char *text, *line_end, *cell_end;
    size_t bytes;
    int32_t rows = 0;
    cot_status status = cot_file_read(&text, &bytes, path, 1 << 24, error);
    if (status != COT_OK) return status;
    for (char *line = strtok_r(text, "\n", &line_end); status == COT_OK && line;
         line = strtok_r(NULL, "\n", &line_end)) {
        if (strncmp(line, "GPU", 3)) continue;
        char *cell = strtok_r(line, blanks, &cell_end);
        if (rows >= n || gpu_number(cell) != rows)
            status = cot_fail(error, COT_MALFORMED, "'%s': a row of %s where GPU%d of %d was expected", path,
                              cell, rows, n);
        for (int32_t to = 0; status == COT_OK && to < n; to++) {
            cell = strtok_r(NULL, blanks, &cell_end);
            const int32_t count = cell ? cell_links(cell) : -1;
            if (count < 0)
                status = cot_fail(error, COT_MALFORMED, "'%s': '%s' between GPU%d and GPU%d is no link", path,
                                  cell ? cell : "", rows, to);
            else
                links[(size_t)rows * (size_t)n + (size_t)to] = count;
        }
        rows++;
    }
    if (status == COT_OK && rows != n)
        status = cot_fail(error, COT_MALFORMED,
                          "'%s' has rows of %d GPUs, expected %d: the output of nvidia-smi topo -m", path,
                          rows, n);
    free(text);
    return status;
}
