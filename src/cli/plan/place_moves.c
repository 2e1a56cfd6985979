/* What `coterie place --current` says about moves: a summary for people, and a file of all of them. */
#include "cli/plan/cmd_place.h"

#include "cli/frame/paths.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* By round, what comes from storage (round -1) first. */
static int by_round(const void *a, const void *b)
{
    const cot_transfer *x = a, *y = b;
    const int32_t differ[] = {x->round - y->round, x->layer - y->layer, x->to - y->to, x->expert - y->expert};
    for (int i = 0; i < 4; i++)
        if (differ[i]) return differ[i];
    return 0;
}

int cli_place_write_moves(const char *path, const cli_placed *p)
{
    size_t bytes = (size_t)p->n_transfers * sizeof *p->transfers;
    cot_transfer *sorted = malloc(bytes + 1);
    if (!sorted) return cli_complain("out of memory");
    if (bytes) memcpy(sorted, p->transfers, bytes);
    qsort(sorted, (size_t)p->n_transfers, sizeof *sorted, by_round);
    cot_file_writer writer;
    FILE *f = cli_open_output(&writer, path);
    if (f) fputs("round,layer,expert,from,to\n", f);
    for (int64_t i = 0; f && i < p->n_transfers; i++)
        fprintf(f, "%" PRId32 ",%" PRId32 ",%" PRId32 ",%" PRId32 ",%" PRId32 "\n", sorted[i].round,
                sorted[i].layer, sorted[i].expert, sorted[i].from, sorted[i].to);
    free(sorted);
    return f && cli_close_output(&writer) ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}

/* Moves of each of the L layers, and those that each of the S ranks takes part in; returns how many are from storage. */
static int64_t count(int64_t *by_layer, int64_t *by_rank, const cli_place_inputs *in, const cli_placed *p)
{
    int64_t stored = 0;
    int32_t l = 0;
    for (int64_t i = 0; i < p->n_transfers; i++) { // in the order of layers
        const cot_transfer *t = &p->transfers[i];
        while (in->costs.layers[l] < t->layer) l++;
        by_layer[l]++;
        by_rank[t->to]++;
        if (t->from < 0)
            stored++;
        else
            by_rank[t->from]++;
    }
    return stored;
}

static int32_t most_of(const int64_t *x, int32_t n)
{
    int32_t most = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[most]) most = i;
    return most;
}

static int32_t least_of(const int64_t *x, int32_t n)
{
    int32_t least = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] < x[least]) least = i;
    return least;
}

/* The three ranks that take part in most moves; uses up `by_rank` [S]. */
static void print_busiest(int64_t *by_rank, int32_t S)
{
    int64_t all = 0;
    for (int32_t r = 0; r < S; r++) all += by_rank[r];
    printf("  a rank       %.1f sent or fetched in the mean, most by", (double)all / S);
    for (int shown = 0; shown < 3; shown++) {
        int32_t most = most_of(by_rank, S);
        if (by_rank[most] <= 0) break;
        printf("%s rank %" PRId32 " (%" PRId64 ")", shown ? "," : "", most, by_rank[most]);
        by_rank[most] = 0;
    }
    putchar('\n');
}

double cli_place_move_seconds(const cli_place_settings *s, const cli_placed *p)
{
    return p->rounds * s->expert_bytes / s->link;
}

static void print_bytes(const cli_place_settings *s, const cli_placed *p, bool some_stored)
{
    printf("  bytes        %.6g", (double)p->moves * s->expert_bytes);
    if (s->link > 0)
        printf(", in %.4g s a round after the other%s", cli_place_move_seconds(s, p),
               some_stored ? ", but for those from storage" : "");
    putchar('\n');
}

int cli_place_print_moves(const cli_place_settings *s, const cli_place_inputs *in, const cli_placed *p)
{
    int32_t L = in->costs.n_layers, S = in->costs.n_ranks;
    int64_t *by_layer = calloc((size_t)L + (size_t)S, sizeof *by_layer);
    if (!by_layer) return cli_complain("out of memory");
    int64_t stored = count(by_layer, by_layer + L, in, p);
    printf("moves       %" PRId64 " in %" PRId32 " rounds, no rank twice in one", p->moves, p->rounds);
    if (stored) printf("; %" PRId64 " of them from storage: no rank holds the expert", stored);
    putchar('\n');
    if (p->moves) {
        int32_t least = least_of(by_layer, L), most = most_of(by_layer, L);
        printf("  a layer      %.1f in the mean, %" PRId64 " (layer %" PRId32 ") to %" PRId64
               " (layer %" PRId32 ")\n",
               (double)p->moves / L, by_layer[least], in->costs.layers[least], by_layer[most],
               in->costs.layers[most]);
        print_busiest(by_layer + L, S);
        if (s->expert_bytes > 0) print_bytes(s, p, stored);
    }
    free(by_layer);
    return CLI_EXIT_OK;
}
