/* `coterie bench serve`: load on a server, and what its users would feel. */
#include "cli/commands.h"
#include "cli/frame/progress.h"
#include "cli/frame/terminal.h"

#include "coterie/load_test.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_URLS = 1024 };

struct settings {
    cli_list urls;
    const char *model, *key_file, *ca_certs, *trace, *prompts, *length_scale, *label;
    double rate, speed, slo_ttft_ms, slo_tpot_ms, timeout;
    int64_t requests, concurrency, input_tokens, output_tokens, most_input, most_output, vocabulary, seed;
    int backend;
    bool json;
};

static void show(void *progress, int64_t done, int64_t total)
{
    cli_progress_show(progress, (uint64_t)done, (uint64_t)total);
}

/* Tokens of prompts that were found, of all. */
static double hit_of(const cot_load_test_report *r)
{
    return r->input_tokens ? (double)r->cached_tokens / (double)r->input_tokens : 0;
}

/* Blocks that were computed again, of all that were computed. */
static double regret_of(const cot_load_test_report *r)
{
    return (double)r->lost_blocks / (double)(r->lost_blocks + r->novel_blocks);
}

/* "1/32" or "0.5": above 0, up to 1. False after a complaint. */
static bool read_scale(const char *text, double *scale)
{
    char *end = NULL;
    *scale = text ? strtod(text, &end) : 1;
    if (text && *end == '/') *scale /= strtod(end + 1, &end);
    if (!text || (end != text && !*end && *scale > 0 && *scale <= 1)) return true;
    cli_complain("--scale-lengths '%s': a number above 0, up to 1, or a fraction such as 1/32", text);
    return false;
}

static json_t *times_json(const cot_load_test_times *t)
{
    return json_pack("{s:I, s:f, s:f, s:f, s:f}", "count", (json_int_t)t->count, "mean", t->mean, "p50",
                     t->p50, "p90", t->p90, "p99", t->p99);
}

static void print_json(const struct settings *s, const cot_load_test_report *r)
{
    json_t *const failures = json_object();
    for (size_t k = 0; k < r->kinds; k++)
        json_object_set_new(failures, r->failures[k].what, json_integer((json_int_t)r->failures[k].count));
    json_t *const o = json_pack(
        "{s:s*, s:s, s:I, s:I, s:I, s:I, s:o, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:I, s:f, s:o, "
        "s:o, "
        "s:o, "
        "s:o}",
        "policy", s->label, "model", r->model, "sent", (json_int_t)r->sent, "completed",
        (json_int_t)r->completed, "rejected", (json_int_t)r->rejected, "failed", (json_int_t)r->failed,
        "failures", failures, "input_tokens", (json_int_t)r->input_tokens, "cached_tokens",
        (json_int_t)r->cached_tokens, "output_tokens", (json_int_t)r->output_tokens, "events",
        (json_int_t)r->events, "unlike_asked", (json_int_t)r->unlike, "seconds", r->seconds,
        "requests_per_second", r->requests_per_second, "output_tokens_per_second",
        r->output_tokens_per_second, "tokens_per_second", r->tokens_per_second, "good", (json_int_t)r->good,
        "goodput_per_second", r->goodput, "ttft_ms", times_json(&r->ttft), "tpot_ms", times_json(&r->tpot),
        "itl_ms", times_json(&r->itl), "e2e_ms", times_json(&r->e2e));
    json_object_set_new(o, "hit", json_real(hit_of(r)));
    if (r->lost_blocks + r->novel_blocks) json_object_set_new(o, "regret", json_real(regret_of(r)));
    if (r->workers) {
        json_object_set_new(o, "workers", json_integer((json_int_t)r->workers));
        json_object_set_new(o, "busiest_over_mean", json_real(r->busiest_over_mean));
    }
    json_dumpf(o, stdout, JSON_INDENT(1));
    printf("\n");
    json_decref(o);
}

static void print_times(const char *name, const cot_load_test_times *t)
{
    if (t->count) printf("%-12s %10.2f %10.2f %10.2f %10.2f\n", name, t->mean, t->p50, t->p90, t->p99);
}

static void print_text(const struct settings *s, const cot_load_test_report *r)
{
    if (s->label) printf("policy       %s\n", s->label);
    printf("model        %s\n", r->model);
    printf("requests     %lld sent, %lld completed, %lld rejected, %lld failed, in %.2f s\n",
           (long long)r->sent, (long long)r->completed, (long long)r->rejected, (long long)r->failed,
           r->seconds);
    if (r->rejected)
        printf("  rejected   %lld: HTTP 429%s%s\n", (long long)r->rejected, *r->rejection ? ": " : "",
               r->rejection);
    for (size_t k = 0; k < r->kinds; k++)
        printf("  failed     %lld: %s%s%s\n", (long long)r->failures[k].count, r->failures[k].what,
               *r->failures[k].words ? ": " : "", r->failures[k].words);
    if (!r->completed) return;
    printf("tokens       %lld in (%lld of them cached), %lld out, in %lld events\n",
           (long long)r->input_tokens, (long long)r->cached_tokens, (long long)r->output_tokens,
           (long long)r->events);
    printf("hit          %.3f of input tokens", hit_of(r));
    if (r->lost_blocks + r->novel_blocks)
        printf(", regret %.3f (%lld blocks computed again, %lld new)", regret_of(r),
               (long long)r->lost_blocks, (long long)r->novel_blocks);
    printf("\n");
    if (r->workers)
        printf("workers      %lld, tokens computed by the busiest %.3f of the mean\n", (long long)r->workers,
               r->busiest_over_mean);
    else
        printf("workers      not told: not each answer has a head X-Worker\n");
    if (r->unlike) {
        printf("             %lld answers with another number of tokens than was asked for\n",
               (long long)r->unlike);
    }
    printf("throughput   %.2f requests/s, %.1f output tokens/s, %.1f tokens/s in all\n",
           r->requests_per_second, r->output_tokens_per_second, r->tokens_per_second);
    if (s->slo_ttft_ms > 0 || s->slo_tpot_ms > 0) {
        printf("goodput      %.2f requests/s keep the SLOs (%lld of %lld)\n", r->goodput, (long long)r->good,
               (long long)r->completed);
    }
    cli_heading(stdout, "%-12s %10s %10s %10s %10s\n", "ms", "mean", "p50", "p90", "p99");
    print_times("TTFT", &r->ttft);
    print_times("TPOT", &r->tpot);
    print_times("ITL", &r->itl);
    print_times("e2e", &r->e2e);
}

/* The key: the file's first line, else COTERIE_API_KEY, else none. false after a complaint. */
static bool read_key(const struct settings *s, char *key, size_t room)
{
    const char *const given = getenv("COTERIE_API_KEY");
    snprintf(key, room, "%s", given ? given : "");
    if (!s->key_file) return true;
    FILE *const file = fopen(s->key_file, "r");
    const bool good = file && fgets(key, (int)room, file);
    if (file) fclose(file);
    if (!good) {
        cli_complain("cannot read a key from '%s'", s->key_file);
        return false;
    }
    key[strcspn(key, "\r\n")] = '\0';
    return true;
}

/* The exit status, and a line where it is not 0. What an open loop's server sent away is no failure, unless it was
 * everybody. */
static int judge(const cot_load_test_report *r)
{
    if (r->kinds) {
        const bool words = *r->failures[0].words;
        return cli_complain("%lld of %lld requests failed, the first by: %s%s%s", (long long)r->failed,
                            (long long)r->sent, r->failures[0].what, words ? ": " : "", r->failures[0].words);
    }
    if (r->completed) return CLI_EXIT_OK;
    return cli_complain("all %lld requests were rejected: HTTP 429%s%s", (long long)r->rejected,
                        *r->rejection ? ": " : "", r->rejection);
}

static int bench_serve(const void *settings)
{
    const struct settings *s = settings;
    if (s->trace && s->prompts) {
        cli_complain("--trace and --prompts: a trace says lengths, prompts are texts; give one of them");
        return CLI_EXIT_USAGE;
    }
    double scale;
    if (!read_scale(s->length_scale, &scale)) return CLI_EXIT_USAGE;
    char key[1000];
    if (!read_key(s, key, sizeof key)) return CLI_EXIT_FAILURE;
    cli_progress progress = {"sending", 0};
    const char *urls[MOST_URLS];
    for (size_t i = 0; i < s->urls.count; i++) urls[i] = s->urls.items[i].text;
    const cot_load_test_options options = {.size = sizeof options,
                                           .url = urls[0],
                                           .more_urls = urls + 1,
                                           .more_url_count = s->urls.count - 1,
                                           .model = s->model,
                                           .key = *key ? key : NULL,
                                           .backend = (cot_load_test_backend)s->backend,
                                           .requests = s->requests,
                                           .rate = s->rate,
                                           .concurrency = s->concurrency,
                                           .trace = s->trace,
                                           .speed = s->speed,
                                           .length_scale = scale,
                                           .prompts = s->prompts,
                                           .input_tokens = s->input_tokens,
                                           .output_tokens = s->output_tokens,
                                           .most_input_tokens = s->most_input,
                                           .most_output_tokens = s->most_output,
                                           .vocabulary = s->vocabulary,
                                           .seed = (uint64_t)s->seed,
                                           .slo_ttft_ms = s->slo_ttft_ms,
                                           .slo_tpot_ms = s->slo_tpot_ms,
                                           .ca_certs = s->ca_certs,
                                           .timeout_ms = (int64_t)(s->timeout * 1000),
                                           .context = &progress,
                                           .progress = show};
    cot_load_test_report report;
    cot_error error;
    const cot_status status = cot_load_test_run(&options, &report, &error);
    cli_progress_end(&progress);
    if (status != COT_OK) return cli_complain_of(&error);
    if (s->json)
        print_json(s, &report);
    else
        print_text(s, &report);
    return judge(&report);
}

#define AT(field) offsetof(struct settings, field)
static const cli_option requests_options[] = {
    {"num-requests", 'n', CLI_OPTION_INTEGER, "N", "0",
     "requests in all (0: 100, or as many as the file has)", AT(requests), .least = 0, .most = 10000000},
    {"input-tokens", 0, CLI_OPTION_INTEGER, "N", "128", "random ids, or of a chat words, in each prompt",
     AT(input_tokens), .least = 1, .most = 16 << 20},
    {"output-tokens", 0, CLI_OPTION_INTEGER, "N", "64", "tokens that each answer is to have, EOS or not",
     AT(output_tokens), .least = 1, .most = 16 << 20},
    {"prompts", 0, CLI_OPTION_TEXT, "FILE", NULL,
     "a prompt a line, or JSON lines with a \"prompt\"; taken in turn, instead of random ones", AT(prompts)},
    {"trace", 0, CLI_OPTION_TEXT, "FILE", NULL,
     "arrival times and lengths: JSON lines as Mooncake's, whose hash_ids are common beginnings, or CSV as "
     "Azure's",
     AT(trace)},
    {"scale-lengths", 0, CLI_OPTION_TEXT, "X", NULL,
     "a trace's lengths, its blocks of 512 too, are multiplied by this, such as 1/32", AT(length_scale)},
    {"trace-speed", 0, CLI_OPTION_REAL, "X", "1", "the trace's clock runs so many times as fast", AT(speed),
     .min = 1e-6, .max = 1e6},
    {"max-input-tokens", 0, CLI_OPTION_INTEGER, "N", "0", "cuts longer prompts of a trace (0: none)",
     AT(most_input), .least = 0, .most = 16 << 20},
    {"max-output-tokens", 0, CLI_OPTION_INTEGER, "N", "0", "cuts longer answers of a trace (0: none)",
     AT(most_output), .least = 0, .most = 16 << 20},
    {"vocabulary", 0, CLI_OPTION_INTEGER, "N", "1000",
     "random ids lie in the upper nine tenths of 0 to N - 1", AT(vocabulary), .least = 10, .most = 1 << 30},
    {"seed", 0, CLI_OPTION_INTEGER, "N", "1", "of random ids and times", AT(seed), .least = 0,
     .most = INT64_MAX},
    {0}};
static const cli_option load_options[] = {
    {"request-rate", 0, CLI_OPTION_REAL, "R", "0",
     "open loop: requests a second, at random (Poisson); 0: closed loop, or the trace's times", AT(rate),
     .min = 0, .max = 1e6},
    {"max-concurrency", 'c', CLI_OPTION_INTEGER, "N", "0",
     "requests at once: the closed loop's clients (0: 1), the open loop's limit (0: none)", AT(concurrency),
     .least = 0, .most = 65536},
    {"slo-ttft-ms", 0, CLI_OPTION_REAL, "MS", "0", "a request counts as good with a TTFT up to this (0: any)",
     AT(slo_ttft_ms), .min = 0, .max = 1e9},
    {"slo-tpot-ms", 0, CLI_OPTION_REAL, "MS", "0", "and a TPOT up to this (0: any)", AT(slo_tpot_ms),
     .min = 0, .max = 1e9},
    {"timeout", 0, CLI_OPTION_REAL, "S", "600", "a request has failed when nothing comes for so many seconds",
     AT(timeout), .min = 0.001, .max = 1e6},
    {0}};
static const cli_option server_options[] = {
    {"backend", 0, CLI_OPTION_CHOICE, "API", "openai",
     "what is asked: openai is /v1/completions, openai-chat is /v1/chat/completions", AT(backend),
     .choices = (const char *const[]){"openai", "openai-chat", NULL}},
    {"model", 'm', CLI_OPTION_TEXT, "NAME", NULL, "the model to ask for; the first that the server names",
     AT(model)},
    {"api-key-file", 0, CLI_OPTION_TEXT, "FILE", NULL, "its first line is the key; else COTERIE_API_KEY is",
     AT(key_file)},
    {"ca-certs", 0, CLI_OPTION_TEXT, "FILE", NULL,
     "certificates that a server's with https:// must come from (PEM; default: the system's)", AT(ca_certs)},
    {"policy-label", 0, CLI_OPTION_TEXT, "NAME", NULL, "what the server routes by, told beside the figures",
     AT(label)},
    {"json", 0, CLI_OPTION_FLAG, NULL, NULL, "print JSON", AT(json)},
    {0}};

const cli_command cli_cmd_bench_serve = {
    .name = "bench serve",
    .summary = "load a server as OpenAI's clients do, and tell what its users would feel",
    .details =
        "Closed loop: N clients that each wait for their answer (--max-concurrency). Open loop: requests "
        "come by a "
        "clock, whether or not the server keeps up (--request-rate, or --trace with its own times). TTFT: "
        "from sending "
        "to the first token; ITL: between two tokens; TPOT: from the first token to the last, over the "
        "tokens between; "
        "e2e: from sending to the last token. Answers are streamed, and tokens counted as the server counts "
        "them. "
        "Failed requests are told by kind and count in no time; if there is one, the exit status is 1. A "
        "server "
        "that answers 429 in an open loop does what it should: that request is rejected, not failed, and "
        "does not "
        "change the exit status unless all are.",
    .examples =
        (const char *const[]){"coterie bench serve http://127.0.0.1:8000 -n 20 -c 4 --output-tokens 16",
                              "coterie bench serve http://127.0.0.1:8000 -n 20 --request-rate 50 "
                              "--slo-ttft-ms 200 --slo-tpot-ms 50",
                              NULL},
    .options = {.groups = (const cli_option_group[]){{"Requests", requests_options, 0},
                                                     {"Load", load_options, 0},
                                                     {"Server", server_options, 0},
                                                     {0}},
                .positionals =
                    (const cli_positional[]){
                        {"URL", 1, MOST_URLS,
                         "the server, http://HOST[:PORT][/v1] or https://; of several, each in turn",
                         AT(urls)},
                        {0}}},
    .settings_bytes = sizeof(struct settings),
    .run = bench_serve};
