#include "net/load_test.h"
#include "base/buffer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool cot_load_test_list_add(cot_load_test_list *list, double ms)
{
    if (list->count == list->room) {
        const size_t room = list->room ? 2 * list->room : 1024;
        double *const grown = realloc(list->ms, room * sizeof *grown);
        if (!grown) return false;
        list->ms = grown;
        list->room = room;
    }
    list->ms[list->count++] = ms;
    return true;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(const cot_load_test_list *sorted, double share)
{
    const double at = share * (double)(sorted->count - 1);
    const size_t below = (size_t)at;
    if (below + 1 >= sorted->count) return sorted->ms[sorted->count - 1];
    return sorted->ms[below] + (at - (double)below) * (sorted->ms[below + 1] - sorted->ms[below]);
}

cot_load_test_times cot_load_test_list_times(cot_load_test_list *list)
{
    if (!list->count) return (cot_load_test_times){0};
    qsort(list->ms, list->count, sizeof *list->ms, by_value);
    double sum = 0;
    for (size_t i = 0; i < list->count; i++) sum += list->ms[i];
    return (cot_load_test_times){(int64_t)list->count, sum / (double)list->count, percentile(list, 0.5),
                                 percentile(list, 0.9), percentile(list, 0.99)};
}

bool cot_load_test_count_worker(cot_load_test_workers *w, const char *name, int64_t tokens)
{
    size_t i = 0;
    w->untold |= !*name;
    while (i < w->count && strncmp(w->worker[i].name, name, sizeof w->worker->name - 1)) i++;
    if (i == w->count) {
        void *grown = w->worker;
        if (!cot_grow(&grown, &w->room, w->count + 1, sizeof *w->worker)) return false;
        w->worker = grown;
        w->worker[w->count++].tokens = 0;
        snprintf(w->worker[i].name, sizeof w->worker->name, "%s", name);
    }
    w->worker[i].tokens += tokens;
    return true;
}

double cot_load_test_busiest(const cot_load_test_workers *w)
{
    double most = 0, sum = 0;
    for (size_t i = 0; i < w->count; i++) {
        const double tokens = (double)w->worker[i].tokens;
        sum += tokens;
        most = tokens > most ? tokens : most;
    }
    return w->untold || !(sum > 0) ? 0 : most * (double)w->count / sum;
}

/* A server's words, without what a terminal would obey. */
static void keep_words(char *kept, size_t room, const char *words)
{
    snprintf(kept, room, "%s", words);
    for (char *c = kept; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127) *c = '?';
}

void cot_load_test_count_failure(cot_load_test_report *report, const char *what, const char *words)
{
    size_t k = 0;
    while (k < report->kinds && strcmp(report->failures[k].what, what)) k++;
    if (k == report->kinds && k == COT_LOAD_TEST_MOST_KINDS) {
        snprintf(report->failures[--k].what, sizeof report->failures->what, "other");
        *report->failures[k].words = '\0';
    } else if (k == report->kinds) {
        snprintf(report->failures[k].what, sizeof report->failures->what, "%s", what);
        keep_words(report->failures[k].words, sizeof report->failures->words, words);
        report->kinds++;
    }
    report->failures[k].count++;
    report->failed++;
}

void cot_load_test_count_rejection(cot_load_test_report *report, const char *words)
{
    if (!report->rejected++) keep_words(report->rejection, sizeof report->rejection, words);
}
