/* `coterie bench affinity`: what it is worth that a router knows which experts requests call. */
#include "cli/commands.h"
#include "cli/frame/terminal.h"
#include "cli/plan/cmd_predict.h"

#include "coterie/route_affinity.h"

#include <jansson.h>
#include <stdio.h>

struct settings {
    const char *trace;
    int64_t workers, batch, signature, judged, rounds, seed;
    bool json;
};

static const char *const ways[COT_ROUTE_AFFINITY_WAYS] = {
    "least load", "experts, counts within 1", "experts, counts within 4", "all known at once, within 1",
    "all known at once, within 4"};

static int print_json(const cot_route_affinity_study *r, const struct settings *s)
{
    json_t *rows = json_array();
    for (int way = 0; way < COT_ROUTE_AFFINITY_WAYS; way++)
        json_array_append_new(rows, json_pack("{s:s, s:f, s:f, s:o}", "name", ways[way], "distinct_experts",
                                              r->distinct[way], "of_least", r->ratio[way], "of_least_error",
                                              s->rounds > 1 ? json_real(r->error[way]) : json_null()));
    json_t *o =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:I, s:o}", "workers", (json_int_t)s->workers, "batch",
                  (json_int_t)s->batch, "requests", (json_int_t)r->requests, "signature_tokens",
                  (json_int_t)s->signature, "judged_tokens", (json_int_t)s->judged, "rounds",
                  (json_int_t)s->rounds, "cells", (int)r->cells, "seed", (json_int_t)s->seed, "rows", rows);
    json_dumpf(o, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    printf("\n");
    json_decref(o);
    return CLI_EXIT_OK;
}

static int bench_affinity(const void *settings)
{
    const struct settings *s = settings;
    const cot_route_affinity_options options = {.size = sizeof options,
                                                .workers = (int32_t)s->workers,
                                                .batch = (int32_t)s->batch,
                                                .signature_tokens = s->signature,
                                                .judged_tokens = s->judged,
                                                .rounds = (int32_t)s->rounds,
                                                .seed = (uint64_t)s->seed};
    cot_route_affinity_study r;
    cot_trace trace;
    cot_error error;
    const int opened = cli_open_trace(&trace, NULL, s->trace, NULL);
    if (opened != CLI_EXIT_OK) return opened;
    const cot_status status = cot_route_affinity(&r, &trace, &options, &error);
    cot_trace_close(&trace);
    if (status != COT_OK) return cli_complain_of(&error);
    if (s->json) return print_json(&r, s);
    printf("%lld requests, %lld of them at a time on %lld workers: signatures of %lld tokens, judged on the "
           "next %lld\n",
           (long long)r.requests, (long long)(s->workers * s->batch), (long long)s->workers,
           (long long)s->signature, (long long)s->judged);
    cli_heading(stdout, "%-28s %17s %9s%s\n", "requests go by", "distinct experts", "of least",
                s->rounds > 1 ? "      +-" : ""); // one draw has no error
    for (int way = 0; way < COT_ROUTE_AFFINITY_WAYS; way++) {
        printf("%-28s %17.1f %9.3f", ways[way], r.distinct[way], r.ratio[way]);
        if (s->rounds > 1) printf(" %7.3f", r.error[way]);
        printf("\n");
    }
    return CLI_EXIT_OK;
}

#define AT(field) offsetof(struct settings, field)
static const cli_option options[] = {
    {"workers", 'w', CLI_OPTION_INTEGER, "W", "8", "workers", AT(workers), .least = 1, .most = 256},
    {"batch", 'b', CLI_OPTION_INTEGER, "B", "8", "requests of a worker, in the mean", AT(batch), .least = 1,
     .most = 1024},
    {"signature", 0, CLI_OPTION_INTEGER, "N", "64", "tokens of a request that its signature is of",
     AT(signature), .least = 1, .most = 1 << 20},
    {"judged", 0, CLI_OPTION_INTEGER, "N", "192", "tokens behind them, on which all is judged", AT(judged),
     .least = 1, .most = 1 << 20},
    {"rounds", 0, CLI_OPTION_INTEGER, "N", "20", "draws of W x B requests", AT(rounds), .least = 1,
     .most = 100000},
    {"seed", 0, CLI_OPTION_INTEGER, "N", "0", "of the draws", AT(seed), .least = 0, .most = INT64_MAX},
    {"json", 0, CLI_OPTION_FLAG, NULL, NULL, "print JSON", AT(json)},
    {0}};

const cli_command cli_cmd_bench_affinity = {
    .name = "bench affinity",
    .summary = "judge what it is worth that a router knows experts",
    .details =
        "Requests are sequences that are long enough. They go to workers one by one, by load alone or by the "
        "experts that their signatures foretell, as `coterie router --policy joint` does where nothing else "
        "differs. Distinct experts are those of a step of a worker, over its layers, in the mean. "
        "docs/ROUTER.md has figures.",
    .examples = (const char *const[]){"coterie bench affinity trace.safetensors",
                                      "coterie bench affinity trace.safetensors -w 4 -b 16 --json", NULL},
    .options = {.groups = (const cli_option_group[]){{"Options", options, 0}, {0}},
                .positionals = (const cli_positional[]){{"TRACE", 1, 1,
                                                         "a routing trace, in any format that coterie trace "
                                                         "convert reads",
                                                         AT(trace), NULL},
                                                        {0}}},
    .settings_bytes = sizeof(struct settings),
    .run = bench_affinity};
