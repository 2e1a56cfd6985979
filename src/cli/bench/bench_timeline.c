#include "cli/bench/bench_report.h"

#include "cli/frame/paths.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

bool cli_bench_timeline_open(cli_bench_timeline *timeline, const char *path)
{
    timeline->processes = 0;
    if (!cli_open_output(&timeline->writer, path)) return false;
    fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n", timeline->writer.stream);
    return true;
}

static void add(cli_bench_timeline *timeline, bool first, json_t *event)
{
    if (!first) fputs(",\n", timeline->writer.stream);
    json_dumpf(event, timeline->writer.stream, JSON_REAL_PRECISION(12));
    json_decref(event);
}

void cli_bench_timeline_begin(cli_bench_timeline *timeline, const cli_bench_found *found, const char *op,
                              bool linked)
{
    char name[512];
    snprintf(name, sizeof name, "%s%s: %s, %lld tokens, %d ranks, %.300s", op, linked ? " over the link" : "",
             found->shape->name, (long long)found->tokens, found->ranks, found->routing->text);
    int process = ++timeline->processes;
    json_t *what = json_pack("{s:s}", "name", name);
    if (!what) what = json_pack("{s:s}", "name", op); // the routing's file name is no UTF-8
    add(timeline, process == 1,
        json_pack("{s:s, s:s, s:i, s:o}", "name", "process_name", "ph", "M", "pid", process, "args", what));
}

void cli_bench_timeline_add(cli_bench_timeline *timeline, const cot_bench_event *event)
{
    json_t *args = json_pack("{s:i}", "rank", event->rank);
    if (event->slot >= 0) {
        json_object_set_new(args, "slot", json_integer(event->slot));
        json_object_set_new(args, "rows", json_integer(event->rows));
    }
    add(timeline, false,
        json_pack("{s:s, s:s, s:i, s:i, s:f, s:f, s:o}", "name", event->work, "ph", "X", "pid",
                  timeline->processes, "tid", event->thread, "ts", (double)event->begin_ns / 1e3, "dur",
                  (double)(event->end_ns - event->begin_ns) / 1e3, "args", args));
}

bool cli_bench_timeline_close(cli_bench_timeline *timeline)
{
    if (timeline->writer.stream) fputs("\n]}\n", timeline->writer.stream);
    return cli_close_output(&timeline->writer);
}
