/* What `coterie bench moe` is told as lists: shapes, numbers, names, routings; and a link. */
#ifndef COT_CLI_BENCH_BENCH_LISTS_H
#define COT_CLI_BENCH_BENCH_LISTS_H
#include "coterie/bench_moe.h"

enum { CLI_BENCH_MOST_ITEMS = 64, CLI_BENCH_NAME_BYTES = 96 };

typedef struct cli_bench_routing {
    cot_bench_routing kind;
    const char *text;  // as given
    const char *trace; // its file, or NULL
} cli_bench_routing;

typedef struct cli_bench_lists {
    cot_bench_shape shapes[CLI_BENCH_MOST_ITEMS];
    int64_t tokens[CLI_BENCH_MOST_ITEMS], ranks[CLI_BENCH_MOST_ITEMS];
    const char *ops[COT_BENCH_MOST_OPS + 1]; // NULL at the end
    cli_bench_routing routings[CLI_BENCH_MOST_ITEMS];
    size_t n_shapes, n_tokens, n_ranks, n_ops, n_routings;
    double link_bytes_per_s; // 0, and the latency too: no link
    int64_t link_latency_ns;
    int link_groups; // 0: ranks are in no groups
    double uplink_bytes_per_s;
    int64_t uplink_latency_ns;
    char *text; // what names point into
} cli_bench_lists;

/* The options' texts; `op` and `link` may be NULL (all operators; no link). All return false after a line on
 * stderr. */
typedef struct cli_bench_list_texts {
    const char *shape, *tokens, *ranks, *op, *routing, *link;
} cli_bench_list_texts;
bool cli_bench_lists_parse(cli_bench_lists *lists, const cli_bench_list_texts *texts);
void cli_bench_lists_free(cli_bench_lists *lists);

/* "B,L[,groups=G:B,L]" into the link of `lists`; false after a line on stderr. */
bool cli_bench_link_parse(cli_bench_lists *lists, const char *text);
/* Cuts a comma list of 1 to `most` integers. */
bool cli_bench_integers_parse(int64_t *list, size_t *count, const char *option, const char *text,
                              int64_t most);
/* Whether ranks that were started from outside, if this is one, are as many as each of these numbers: their group is of all. */
bool cli_bench_ranks_check(const int64_t *ranks, size_t count);

#endif
