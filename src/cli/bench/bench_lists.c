#include "cli/bench/bench_lists.h"

#include "cli/frame/command.h"
#include "coterie/engine.h"
#include "coterie/started.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

/* The items of one comma list, one after another. */
struct items {
    const char *option;
    char *next; // NULL at the end
};

static char *next_item(struct items *items)
{
    return items->next ? strsep(&items->next, ",") : NULL;
}

static bool too_many(const char *option, int most)
{
    cli_complain("--%s takes at most %d items", option, most);
    return false;
}

static bool twice(const char *option, const char *item)
{
    cli_complain("--%s has %s twice", option, item);
    return false;
}

static bool integer(int64_t *n, const char *option, const char *text, int64_t most)
{
    char *end;
    errno = 0;
    *n = strtoll(text, &end, 10);
    if (isdigit((unsigned char)*text) && !*end && !errno && *n >= 1 && *n <= most) return true;
    cli_complain("--%s takes integers from 1 to %lld, not '%s'", option, (long long)most, text);
    return false;
}

static bool integers(int64_t *list, size_t *count, struct items items, int64_t most)
{
    for (char *item; (item = next_item(&items));) {
        if (*count == CLI_BENCH_MOST_ITEMS) return too_many(items.option, CLI_BENCH_MOST_ITEMS);
        if (!integer(&list[*count], items.option, item, most)) return false;
        for (size_t i = 0; i < *count; i++)
            if (list[i] == list[*count]) return twice(items.option, item);
        ++*count;
    }
    return true;
}

static bool unknown(const char *option, const char *item, const char *const *names)
{
    char all[512] = "";
    for (; *names; names++) {
        strncat(all, *all ? ", " : "", sizeof all - strlen(all) - 1);
        strncat(all, *names, sizeof all - strlen(all) - 1);
    }
    cli_complain("unknown %s '%s' (%s)", option, item, all);
    return false;
}

/* Four numbers, of which `first` is one: a shape whose name is what was given. */
static bool numbered_shape(cot_bench_shape *shape, char *name, const char *first, struct items *items)
{
    int64_t n[4];
    const char *item = first;
    for (int i = 0; i < 4; i++, item = i < 4 ? next_item(items) : NULL) {
        if (!item) {
            cli_complain("--shape '%s' lacks numbers: a shape is H,I,E,K", first);
            return false;
        }
        if (!integer(&n[i], items->option, item, INT32_MAX)) return false;
    }
    snprintf(name, CLI_BENCH_NAME_BYTES, "%lld,%lld,%lld,%lld", (long long)n[0], (long long)n[1],
             (long long)n[2], (long long)n[3]);
    *shape = (cot_bench_shape){name, n[0], n[1], n[2], n[3], COT_BENCH_SWIGLU};
    return true;
}

static bool named_shape(cot_bench_shape *shape, const char *name)
{
    const char *names[CLI_BENCH_MOST_ITEMS] = {"H,I,E,K"};
    for (int i = 0; cot_bench_shapes[i].name; i++) {
        *shape = cot_bench_shapes[i];
        if (!strcmp(shape->name, name)) return true;
        names[i + 1] = shape->name;
    }
    return unknown("shape", name, names);
}

static bool shapes(cli_bench_lists *lists, struct items items, char *names)
{
    for (char *item; (item = next_item(&items)); lists->n_shapes++) {
        if (lists->n_shapes == CLI_BENCH_MOST_ITEMS) return too_many(items.option, CLI_BENCH_MOST_ITEMS);
        cot_bench_shape *shape = &lists->shapes[lists->n_shapes];
        char *name = names + lists->n_shapes * CLI_BENCH_NAME_BYTES;
        if (isdigit((unsigned char)*item) ? !numbered_shape(shape, name, item, &items)
                                          : !named_shape(shape, item))
            return false;
        for (size_t i = 0; i < lists->n_shapes; i++)
            if (!strcmp(lists->shapes[i].name, shape->name)) return twice(items.option, shape->name);
    }
    return true;
}

static bool operators(cli_bench_lists *lists, struct items items)
{
    const char *const *names = cot_engine_operators();
    if (!items.next)
        for (; names[lists->n_ops] && lists->n_ops < COT_BENCH_MOST_OPS; lists->n_ops++)
            lists->ops[lists->n_ops] = names[lists->n_ops];
    for (char *item; (item = next_item(&items));) {
        size_t n = 0;
        cot_error error;
        const cot_status status = cot_engine_find_operator(item, &error);
        if (status != COT_OK && status != COT_INVALID_ARGUMENT) { // it is known, and cannot be had here
            cli_complain("%s", error.message);
            return false;
        }
        while (names[n] && strcmp(names[n], item) != 0) n++;
        if (!names[n]) return unknown("operator", item, names);
        for (size_t i = 0; i < lists->n_ops; i++)
            if (lists->ops[i] == names[n]) return twice(items.option, item);
        lists->ops[lists->n_ops++] = names[n];
    }
    return true;
}

static bool routings(cli_bench_lists *lists, struct items items)
{
    static const char *const names[] = {"uniform", "zipf", "hot", "trace:FILE", NULL};
    static const char prefix[] = "trace:";
    for (char *item; (item = next_item(&items));) {
        if (lists->n_routings == CLI_BENCH_MOST_ITEMS) return too_many(items.option, CLI_BENCH_MOST_ITEMS);
        for (size_t i = 0; i < lists->n_routings; i++)
            if (!strcmp(lists->routings[i].text, item)) return twice(items.option, item);
        cli_bench_routing *routing = &lists->routings[lists->n_routings++];
        *routing = (cli_bench_routing){.text = item};
        if (!strcmp(item, "uniform"))
            routing->kind = COT_BENCH_UNIFORM;
        else if (!strcmp(item, "zipf"))
            routing->kind = COT_BENCH_ZIPF;
        else if (!strcmp(item, "hot"))
            routing->kind = COT_BENCH_HOT;
        else if (!strncmp(item, prefix, sizeof prefix - 1) && item[sizeof prefix - 1]) {
            routing->kind = COT_BENCH_TRACE;
            routing->trace = item + sizeof prefix - 1;
        } else
            return unknown("routing", item, names);
    }
    return true;
}

/* A number and one of the units, each `step` times the one before, the first of which counts 1. */
static bool quantity(double *value, const char *text, const char *const *units, double step)
{
    char *end;
    *value = strtod(text, &end);
    if (!isdigit((unsigned char)*text) || !isfinite(*value)) return false;
    double unit = 1;
    for (; *units; units++, unit *= step)
        if (!strcmp(end, *units)) {
            *value *= unit;
            return true;
        }
    return false;
}

/* A rate of at least 1 B/s and a latency of at most a second. */
static bool wire_of(double *bytes_per_s, int64_t *latency_ns, const char *rate, const char *time)
{
    static const char *const rates[] = {"B/s", "kB/s", "MB/s", "GB/s", NULL};
    static const char *const times[] = {"ns", "us", "ms", "s", NULL};
    const double latency_most_ns = 1e9;
    double ns;
    if (!time || !quantity(bytes_per_s, rate, rates, 1000) || !quantity(&ns, time, times, 1000) ||
        *bytes_per_s < 1 || ns > latency_most_ns)
        return false;
    *latency_ns = (int64_t)ns;
    return true;
}

/* Of "groups=2:B" the rate, which remains. NULL: it is no such thing. */
static const char *groups_of(int *groups, const char *text)
{
    static const char word[] = "groups=";
    if (strncmp(text, word, sizeof word - 1) != 0 || !isdigit((unsigned char)text[sizeof word - 1]))
        return NULL;
    char *end;
    const long n = strtol(text + sizeof word - 1, &end, 10);
    *groups = n >= 2 && n <= 64 ? (int)n : 0;
    return *groups && *end == ':' ? end + 1 : NULL;
}

static bool link_of(cli_bench_lists *lists, struct items items)
{
    if (!items.next) return true;
    const char *rate = next_item(&items), *time = next_item(&items), *rest = next_item(&items);
    bool good = wire_of(&lists->link_bytes_per_s, &lists->link_latency_ns, rate, time);
    if (good && rest) {
        const char *uplink = groups_of(&lists->link_groups, rest);
        good = uplink &&
               wire_of(&lists->uplink_bytes_per_s, &lists->uplink_latency_ns, uplink, next_item(&items));
    }
    if (!good || items.next) {
        cli_complain(
            "--link takes a rate of at least 1 B/s and a latency of at most 1 s, as in "
            "'0.1GB/s,20us', and the same of 2 to 64 groups, as in '0.1GB/s,20us,groups=2:0.1GB/s,0us'");
        return false;
    }
    for (size_t i = 0; i < lists->n_ranks; i++)
        if (lists->ranks[i] < lists->link_groups) {
            cli_complain("--link has %d groups, more than --ranks %lld", lists->link_groups,
                         (long long)lists->ranks[i]);
            return false;
        }
    return true;
}

static size_t length(const char *text)
{
    return text ? strlen(text) + 1 : 0;
}

/* A copy of an option's text that its items are cut from. */
static struct items items_of(const char *option, const char *text, char **at)
{
    if (!text) return (struct items){option, NULL};
    char *copy = memcpy(*at, text, strlen(text) + 1);
    *at += strlen(text) + 1;
    return (struct items){option, copy};
}

bool cli_bench_link_parse(cli_bench_lists *lists, const char *text)
{
    char *copy = strdup(text);
    if (!copy) cli_complain("out of memory");
    const bool good = copy && link_of(lists, (struct items){"link", copy});
    free(copy);
    return good;
}

bool cli_bench_integers_parse(int64_t *list, size_t *count, const char *option, const char *text,
                              int64_t most)
{
    char *copy = strdup(text);
    *count = 0;
    if (!copy) cli_complain("out of memory");
    const bool good = copy && integers(list, count, (struct items){option, copy}, most);
    free(copy);
    return good;
}

bool cli_bench_ranks_check(const int64_t *ranks, size_t count)
{
    const int started = cot_launch_started().ranks;
    for (size_t i = 0; i < count && cli_is_rank(); i++) {
        if (ranks[i] == started) continue;
        cli_complain("--ranks %lld, but %d processes were started, each of which is a rank",
                     (long long)ranks[i], started);
        return false;
    }
    return true;
}

bool cli_bench_lists_parse(cli_bench_lists *lists, const cli_bench_list_texts *t)
{
    const size_t names = CLI_BENCH_MOST_ITEMS * CLI_BENCH_NAME_BYTES;
    *lists = (cli_bench_lists){0};
    lists->text = malloc(names + length(t->shape) + length(t->tokens) + length(t->ranks) + length(t->op) +
                         length(t->routing) + length(t->link));
    if (!lists->text) {
        cli_complain("out of memory");
        return false;
    }
    char *at = lists->text + names;
    return shapes(lists, items_of("shape", t->shape, &at), lists->text) &&
           integers(lists->tokens, &lists->n_tokens, items_of("tokens", t->tokens, &at), INT32_MAX) &&
           integers(lists->ranks, &lists->n_ranks, items_of("ranks", t->ranks, &at), 64) &&
           operators(lists, items_of("op", t->op, &at)) &&
           routings(lists, items_of("routing", t->routing, &at)) &&
           link_of(lists, items_of("link", t->link, &at));
}

void cli_bench_lists_free(cli_bench_lists *lists)
{
    free(lists->text);
}
