/* `coterie bench router`: how fast a router decides, and how well. */
#include "cli/commands.h"
#include "cli/bench/router_decisions.h"
#include "cli/bench/router_queues.h"
#include "cli/frame/terminal.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

struct settings {
    const char *requests;
    int policy; // in policies
    int64_t targets, pages, seed;
    double prefill_rate, token_ms;
    bool queues, generated, pinned, json;
};

enum { DECISION_TARGETS = 256, QUEUE_TARGETS = 8, PAGES = 4000, EACH = 0 };

/* EACH, then cot_route_policy_names. */
static const char *const policies[] = {"each",   "joint",  "kv",          "least",
                                       "dynamo", "random", "round-robin", NULL};
_Static_assert(sizeof policies / sizeof *policies == COT_ROUTE_POLICIES + 2, "a policy has no name here");

static void print_object(json_t *o)
{
    json_dumpf(o, stdout, JSON_INDENT(1));
    printf("\n");
    json_decref(o);
}

static int bench_decisions(const struct settings *s, const cli_request_trace *trace, cot_route_policy policy)
{
    cli_decisions_result r;
    const size_t targets = s->targets ? (size_t)s->targets : DECISION_TARGETS;
    if (!cli_router_decisions(&r, trace, targets, policy)) return CLI_EXIT_FAILURE;
    if (s->json) {
        print_object(json_pack(
            "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:f, s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "policy",
            cot_route_policy_names[policy], "targets", (json_int_t)targets, "requests",
            (json_int_t)trace->count, "blocks_per_request", (json_int_t)r.prompt_blocks, "blocks",
            (json_int_t)r.blocks, "pairs", (json_int_t)r.pairs, "bytes", (json_int_t)r.bytes,
            "insert_blocks_per_second", r.insert_blocks_per_second, "hash_tokens", (json_int_t)r.hash_tokens,
            "hash_ns", r.hash_ns, "decisions", (json_int_t)r.decisions, "decisions_per_second",
            r.decisions_per_second, "decision_p50_ns", r.p50_ns, "decision_p99_ns", r.p99_ns, "clock_ns",
            r.clock_ns, "writer_processor_blocks_per_second", r.writer_most_per_second,
            "writer_blocks_per_second", r.writer_blocks_per_second));
        return CLI_EXIT_OK;
    }
    printf("index        %llu blocks, %llu (block, target) pairs, %.0f MB\n", (unsigned long long)r.blocks,
           (unsigned long long)r.pairs, (double)r.bytes / 1e6);
    printf("insert       %.2f M blocks/s\n", r.insert_blocks_per_second / 1e6);
    printf("hash         %.1f us of %llu ids\n", r.hash_ns / 1e3, (unsigned long long)r.hash_tokens);
    printf("decisions    %.0f a second of %zu targets, %llu blocks a request\n", r.decisions_per_second,
           targets, (unsigned long long)r.prompt_blocks);
    printf("  one takes  p50 %.2f us, p99 %.2f us, with %.2f us of the clock\n", r.p50_ns / 1e3,
           r.p99_ns / 1e3, r.clock_ns / 1e3);
    printf("  beside     %.2f M blocks/s changed, a third of them removed; %.2f M a second of a processor\n",
           r.writer_blocks_per_second / 1e6, r.writer_most_per_second / 1e6);
    return CLI_EXIT_OK;
}

static json_t *queues_json(const char *policy, const cli_queues_result *r)
{
    return json_pack("{s:s, s:f, s:{s:f, s:f, s:f, s:f}, s:f, s:f}", "policy", policy, "hit", r->hit,
                     "ttft_s", "mean", r->ttft_mean, "p50", r->ttft_p50, "p90", r->ttft_p90, "p99",
                     r->ttft_p99, "busiest_over_mean", r->busiest, "regret", r->regret);
}

/* One policy, or all. */
static int bench_queues(const struct settings *s, const cli_request_trace *trace, cot_route_policy policy,
                        bool all)
{
    const cli_queues_options options = {.workers = s->targets ? (size_t)s->targets : QUEUE_TARGETS,
                                        .pages = s->pages,
                                        .tokens_per_second = s->prefill_rate,
                                        .token_ns = s->token_ms * 1e6,
                                        .generated = s->generated,
                                        .pinned = s->pinned,
                                        .seed = (uint64_t)s->seed};
    json_t *const list = json_array();
    if (!s->json)
        cli_heading(stdout, "%-12s %7s %9s %9s %9s %9s %8s %7s\n", "policy", "hit", "TTFT s", "p50", "p90",
                    "p99", "busiest", "regret");
    for (int p = all ? 0 : (int)policy; p <= (all ? COT_ROUTE_POLICIES - 1 : (int)policy); p++) {
        cli_queues_result r;
        if (!cli_router_queues(&r, trace, (cot_route_policy)p, &options)) {
            json_decref(list);
            return CLI_EXIT_FAILURE;
        }
        if (s->json)
            json_array_append_new(list, queues_json(cot_route_policy_names[p], &r));
        else
            printf("%-12s %7.3f %9.3f %9.3f %9.3f %9.3f %8.3f %7.3f\n", cot_route_policy_names[p], r.hit,
                   r.ttft_mean, r.ttft_p50, r.ttft_p90, r.ttft_p99, r.busiest, r.regret);
    }
    if (s->json)
        print_object(list);
    else
        json_decref(list);
    return CLI_EXIT_OK;
}

static int bench_router(const void *settings)
{
    const struct settings *s = settings;
    const bool plain = s->pages == PAGES && s->seed == 1 && s->prefill_rate == 20000 && s->token_ms == 30 &&
                       !s->generated && !s->pinned;
    if (!s->queues && !plain) {
        cli_complain(
            "--pages, --prefill-rate, --token-ms, --keep-answers, --pin and --seed go with --queues");
        return CLI_EXIT_USAGE;
    }
    cli_request_trace trace;
    if (!cli_request_trace_read(&trace, s->requests)) return CLI_EXIT_FAILURE;
    const cot_route_policy policy = s->policy == EACH ? COT_ROUTE_JOINT : (cot_route_policy)(s->policy - 1);
    const int status =
        s->queues ? bench_queues(s, &trace, policy, s->policy == EACH) : bench_decisions(s, &trace, policy);
    cli_request_trace_free(&trace);
    return status;
}

#define AT(field) offsetof(struct settings, field)
static const cli_option router_options[] = {
    {"targets", 0, CLI_OPTION_INTEGER, "N", "0", "targets (0: 256, or 8 with --queues)", AT(targets),
     .least = 0, .most = COT_ROUTE_MOST_TARGETS},
    {"policy", 0, CLI_OPTION_CHOICE, "NAME", "each",
     "by what a target is taken; without --queues each is joint alone", AT(policy), .choices = policies},
    {"json", 0, CLI_OPTION_FLAG, NULL, NULL, "print JSON", AT(json)},
    {0}};
static const cli_option queue_options[] = {
    {"queues", 0, CLI_OPTION_FLAG, NULL, NULL,
     "simulate workers that compute one prompt at a time, first come, first served: how well each policy "
     "does",
     AT(queues)},
    {"pages", 0, CLI_OPTION_INTEGER, "N", "4000", "blocks of 512 tokens that a worker keeps", AT(pages),
     .least = 1, .most = 1 << 24},
    {"prefill-rate", 0, CLI_OPTION_REAL, "R", "20000", "tokens of prompts that a worker computes a second",
     AT(prefill_rate), .min = 1, .max = 1e12},
    {"token-ms", 0, CLI_OPTION_REAL, "MS", "30", "a token of an answer takes so long; it delays nothing else",
     AT(token_ms), .min = 0, .max = 1e6},
    {"keep-answers", 0, CLI_OPTION_FLAG, NULL, NULL, "answers' blocks are kept, too, as long as others",
     AT(generated)},
    {"pin", 0, CLI_OPTION_FLAG, NULL, NULL, "blocks of a request stay until it is over", AT(pinned)},
    {"seed", 0, CLI_OPTION_INTEGER, "N", "1", "of policy random", AT(seed), .least = 0, .most = INT64_MAX},
    {0}};

const cli_command cli_cmd_bench_router = {
    .name = "bench router",
    .summary = "measure how fast a router decides here, or how well in simulated time",
    .details = "The index is filled with the trace's prompts, in blocks of 16 tokens, dealt to the targets "
               "in turn. Then one thread "
               "looks up each prompt, scores all targets and enters the request in the book, while another "
               "stores and "
               "removes blocks. Times are the threads' own processor time. docs/ROUTER.md defines policies "
               "and has the figures.",
    .examples = (const char *const[]){"coterie bench router conversation_trace.jsonl --targets 256",
                                      "coterie bench router conversation_trace.jsonl --queues", NULL},
    .options = {.groups = (const cli_option_group[]){{"Options", router_options, 0},
                                                     {"Queues", queue_options, 0},
                                                     {0}},
                .positionals =
                    (const cli_positional[]){{"REQUESTS", 1, 1,
                                              "a trace of requests: JSON lines as Mooncake's, with hash_ids",
                                              AT(requests), NULL},
                                             {0}}},
    .settings_bytes = sizeof(struct settings),
    .run = bench_router};
