#include "cli/frame/command.h"

#include <string.h>

enum { LONGEST = 32 };

static int min(int a, int b)
{
    return a < b ? a : b;
}

/* Edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`; both at most LONGEST
 * characters. */
static int distance(const char *a, const char *b)
{
    int n = (int)strlen(a), m = (int)strlen(b), d[LONGEST + 1][LONGEST + 1];
    for (int i = 0; i <= n; i++) {
        for (int j = 0; j <= m; j++) {
            if (!i || !j) {
                d[i][j] = i + j;
                continue;
            }
            d[i][j] = min(min(d[i - 1][j], d[i][j - 1]) + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d[i][j] = min(d[i][j], d[i - 2][j - 2] + 1);
        }
    }
    return d[n][m];
}

const char *cli_nearest(const char *word, const char *const *names)
{
    const char *best = NULL;
    size_t length = strlen(word);
    int limit = length < 3 ? 1 : length < 6 ? 2 : 3;
    if (length < 2 || length > LONGEST) return NULL;
    for (; *names; names++) {
        if (strlen(*names) > LONGEST) continue;
        int edits = strncmp(word, *names, length) ? distance(word, *names)
                                                  : 1; // its beginning is as good as one edit
        if (edits > limit) continue;
        limit = edits - 1;
        best = *names;
    }
    return best;
}
