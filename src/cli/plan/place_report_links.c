/* The report's part about links: parallel ones are one, many are told in few lines. */
#include "cli/plan/cmd_place.h"

#include "cli/plan/page.h"
#include "cli/plan/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* All links from one vertex to another that count a hop. */
typedef struct bundle {
    int32_t from, to, links;
    double load[2]; // activations over all of them, before and after
} bundle;

static int by_ends(const void *a, const void *b)
{
    const bundle *x = a, *y = b;
    const int32_t p = x->from != y->from ? x->from : x->to, q = x->from != y->from ? y->from : y->to;
    return (p > q) - (p < q);
}

/* Fills `bundles` [n_links], of which `*n` are used; `load` [n_links] is scratch. False where loads are not known. */
static bool bundle_links(bundle *bundles, int64_t *n, double *load, const cot_topology *t,
                         const cli_place_side sides[2])
{
    int64_t links = 0, merged = 0;
    for (int side = 0; side < 2; side++) {
        if (!sides[side].traffic || cot_topology_link_loads(load, t, sides[side].traffic, NULL) != COT_OK)
            return false;
        links = 0;
        for (int64_t i = 0; i < t->n_links; i++)
            if (t->links[i].hops > 0) {
                bundle *b = &bundles[links++];
                if (!side) *b = (bundle){.from = t->links[i].from, .to = t->links[i].to, .links = 1};
                b->load[side] = load[i];
            }
    }
    qsort(bundles, (size_t)links, sizeof *bundles, by_ends);
    for (int64_t i = 0; i < links; i++) {
        bundle *last = merged ? &bundles[merged - 1] : NULL;
        if (!last || by_ends(last, &bundles[i])) {
            bundles[merged++] = bundles[i];
            continue;
        }
        last->links++;
        for (int side = 0; side < 2; side++) last->load[side] += bundles[i].load[side];
    }
    *n = merged;
    return true;
}

/* The fullest with the new placement first. */
static int by_load(const void *a, const void *b)
{
    const bundle *x = a, *y = b;
    if (x->load[1] != y->load[1]) return (x->load[1] < y->load[1]) - (x->load[1] > y->load[1]);
    return x->from != y->from ? x->from - y->from : x->to - y->to;
}

static int descending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

static void row(FILE *f, const char *name, double before, double after)
{
    char text[2][CLI_PEOPLE_BYTES];
    fprintf(f, "<tr><td>%s</td><td>%s</td><td>%s</td></tr>\n", name, cli_people_number(text[0], before),
            cli_people_number(text[1], after));
}

static void heads(FILE *f, const char *what, const cli_place_side sides[2])
{
    fprintf(f, "<table><tr><th>%s</th>", what);
    for (int i = 0; i < 2; i++) {
        fputs("<th>", f);
        cli_page_text(f, sides[i].name);
        fputs("</th>", f);
    }
    fputs("</tr>\n", f);
}

/* `sorted` [2][n]. */
static void summary(FILE *f, const double *sorted, int64_t n, const cli_place_side sides[2])
{
    double mean[2] = {0}, idle[2] = {0};
    for (int side = 0; side < 2; side++)
        for (int64_t i = 0; i < n; i++) {
            mean[side] += sorted[side * n + i] / (double)n;
            idle[side] += sorted[side * n + i] <= 0;
        }
    heads(f, "activations on a link", sides);
    row(f, "the fullest", sorted[0], sorted[n]);
    row(f, "the mean", mean[0], mean[1]);
    row(f, "the median", sorted[n / 2], sorted[n + n / 2]);
    row(f, "links that carry nothing", idle[0], idle[1]);
    fputs("</table>\n", f);
}

static void fullest(FILE *f, const cot_topology *t, const bundle *bundles, int64_t n,
                    const cli_place_side sides[2])
{
    char text[2][CLI_PEOPLE_BYTES];
    heads(f, "the fullest with the new placement", sides);
    for (int64_t i = 0; i < n && i < 10 && bundles[i].load[1] > 0; i++) {
        fputs("<tr><td>", f);
        cli_page_text(f, t->labels[bundles[i].from]);
        fputs(" to ", f);
        cli_page_text(f, t->labels[bundles[i].to]);
        if (bundles[i].links > 1) fprintf(f, " (%d links)", bundles[i].links);
        fprintf(f, "</td><td>%s</td><td>%s</td></tr>\n", cli_people_number(text[0], bundles[i].load[0]),
                cli_people_number(text[1], bundles[i].load[1]));
    }
    fputs("</table>\n", f);
}

void cli_place_report_links(FILE *f, const cot_topology *t, const cli_place_side sides[2])
{
    const size_t room = (size_t)t->n_links + 1;
    bundle *bundles = malloc(room * sizeof *bundles);
    double *load = malloc(room * sizeof *load), *sorted = malloc(2 * room * sizeof *sorted);
    int64_t n = 0;
    if (bundles && load && sorted && bundle_links(bundles, &n, load, t, sides) && n) {
        char title[128], text[CLI_PEOPLE_BYTES];
        for (int side = 0; side < 2; side++) {
            for (int64_t i = 0; i < n; i++) sorted[side * n + i] = bundles[i].load[side];
            qsort(sorted + side * n, (size_t)n, sizeof *sorted, descending);
        }
        qsort(bundles, (size_t)n, sizeof *bundles, by_load);
        fprintf(
            f,
            "<h2>Loads of links</h2>\n<p class=\"note\">Network links in one direction, parallel ones taken "
            "as one; traffic goes along the routes of fewest hops, evenly over equal ones.</p>\n");
        snprintf(title, sizeof title, "activations on each of %s links, the fullest first",
                 cli_people_number(text, (double)n));
        cli_page_bars(f, sorted + n, (int32_t)n,
                      &(cli_plot_chart){.title = title,
                                        .unit = "activations",
                                        .x = {"link, by rank", NULL, NULL},
                                        .name = sides[1].name,
                                        .behind = sorted,
                                        .behind_name = sides[0].name});
        summary(f, sorted, n, sides);
        fullest(f, t, bundles, n, sides);
    }
    free(bundles);
    free(load);
    free(sorted);
}
