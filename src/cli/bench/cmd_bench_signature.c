/* `coterie bench signature`: what a request's first tokens are worth to those that follow. */
#include "cli/commands.h"
#include "cli/frame/terminal.h"
#include "cli/plan/cmd_predict.h"

#include "coterie/predict_signature.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

struct settings {
    const char *trace;
    int64_t ranks, signature, judged, reservoir, replicas;
    double peak;
    bool json;
};

static void name_row(char name[40], const cot_predict_signature_row *row)
{
    if (row->replica_slots)
        snprintf(name, 40, "and %d replica slot%s", (int)row->replica_slots,
                 row->replica_slots > 1 ? "s" : "");
    else
        snprintf(name, 40, "%s",
                 row->homes && row->swaps ? "homes and swaps"
                 : row->homes             ? "homes"
                 : row->swaps             ? "swaps"
                                          : "contiguous");
}

static json_t *figures_json(const cot_predict_signature_figures *f)
{
    return json_pack("{s:f, s:f}", "remote_ranks", f->remote_ranks, "peak", f->peak);
}

static int print_json(const cot_predict_signature_study *r, const struct settings *s)
{
    json_t *rows = json_array();
    for (int32_t i = 0; i < r->rows; i++) {
        const cot_predict_signature_row *row = &r->row[i];
        char name[40];
        name_row(name, row);
        json_array_append_new(rows, json_pack("{s:s, s:b, s:b, s:i, s:f, s:o, s:o}", "name", name, "homes",
                                              row->homes, "swaps", row->swaps, "replica_slots",
                                              (int)row->replica_slots, "foreseen_remote_ranks", row->foreseen,
                                              "judged", figures_json(&row->judged), "oracle",
                                              figures_json(&row->oracle)));
    }
    json_t *o =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:f, s:o}", "ranks", (json_int_t)s->ranks,
                  "requests", (json_int_t)r->requests, "signature_tokens", (json_int_t)s->signature,
                  "judged_tokens", (json_int_t)s->judged, "other_sequences", (json_int_t)r->other_sequences,
                  "other_tokens", (json_int_t)r->other_tokens, "reservoir", (json_int_t)s->reservoir,
                  "layers_kept_every", (int)r->every, "peak", s->peak, "rows", rows);
    json_dumpf(o, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    printf("\n");
    json_decref(o);
    return CLI_EXIT_OK;
}

static int bench_signature(const void *settings)
{
    const struct settings *s = settings;
    const cot_predict_signature_options options = {.size = sizeof options,
                                                   .ranks = (int32_t)s->ranks,
                                                   .signature_tokens = s->signature,
                                                   .judged_tokens = s->judged,
                                                   .reservoir = (int32_t)s->reservoir,
                                                   .replica_slots = (int32_t)s->replicas,
                                                   .peak = s->peak};
    cot_predict_signature_study r;
    cot_trace trace;
    cot_error error;
    const int opened = cli_open_trace(&trace, NULL, s->trace, NULL);
    if (opened != CLI_EXIT_OK) return opened;
    const cot_status status = cot_predict_signatures(&r, &trace, &options, &error);
    cot_trace_close(&trace);
    if (status != COT_OK) return cli_complain_of(&error);
    if (s->json) return print_json(&r, s);
    printf("%lld requests: signatures of %lld tokens, judged on the next %lld; %lld shorter texts known\n",
           (long long)r.requests, (long long)s->signature, (long long)s->judged,
           (long long)r.other_sequences);
    cli_heading(stdout, "%-22s %9s %9s %6s %9s %6s\n", "chosen", "foreseen", "sends", "peak", "oracle",
                "peak");
    for (int32_t i = 0; i < r.rows; i++) {
        const cot_predict_signature_row *row = &r.row[i];
        char name[40];
        name_row(name, row);
        printf("%-22s %9.2f %9.2f %6.2f %9.2f %6.2f\n", name, row->foreseen, row->judged.remote_ranks,
               row->judged.peak, row->oracle.remote_ranks, row->oracle.peak);
    }
    return CLI_EXIT_OK;
}

#define AT(field) offsetof(struct settings, field)
static const cli_option options[] = {
    {"ranks", 'r', CLI_OPTION_INTEGER, "P", "8", "ranks; they hold equally many experts", AT(ranks),
     .least = 1, .most = COT_TRACE_MAX_RANKS},
    {"signature", 0, CLI_OPTION_INTEGER, "N", "64", "tokens of a request that its signature is of",
     AT(signature), .least = 1, .most = 1 << 20},
    {"judged", 0, CLI_OPTION_INTEGER, "N", "192", "tokens behind them, on which all is judged", AT(judged),
     .least = 1, .most = 1 << 20},
    {"reservoir", 0, CLI_OPTION_INTEGER, "N", "4096", "tokens of shorter texts that are known whole",
     AT(reservoir), .least = 1, .most = 1 << 20},
    {"replicas", 0, CLI_OPTION_INTEGER, "N", "2", "replica slots of a rank, in each layer, at most",
     AT(replicas), .least = 0, .most = COT_SIGNATURE_MOST_REPLICAS},
    {"peak", 0, CLI_OPTION_REAL, "R", "1.35",
     "what a rank may be foreseen to serve of a layer, in means of all ranks", AT(peak), .min = 1, .max = 64},
    {"json", 0, CLI_OPTION_FLAG, NULL, NULL, "print JSON", AT(json)},
    {0}};

const cli_command cli_cmd_bench_signature = {
    .name = "bench signature",
    .summary = "judge homes and placements that requests' first tokens choose",
    .details =
        "A sequence that is long enough is a request; of shorter ones some whole tokens are known. Sends "
        "are other ranks that a token needs in a layer; peak is what the rank that serves most serves of a "
        "layer, in means, the mean over layers. Homes get equally many requests, to one. The oracle chooses "
        "by tokens of what it is judged on. docs/PLACEMENT_NUMBERS.md has figures.",
    .examples =
        (const char *const[]){"coterie bench signature trace.safetensors --ranks 8",
                              "coterie bench signature trace.safetensors -r 4 --replicas 0 --json", NULL},
    .options = {.groups = (const cli_option_group[]){{"Options", options, 0}, {0}},
                .positionals = (const cli_positional[]){{"TRACE", 1, 1,
                                                         "a routing trace, in any format that coterie trace "
                                                         "convert reads",
                                                         AT(trace), NULL},
                                                        {0}}},
    .settings_bytes = sizeof(struct settings),
    .run = bench_signature};
