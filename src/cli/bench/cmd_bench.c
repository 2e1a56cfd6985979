/* `coterie bench roof` and `coterie bench model`: what the machine can do, and what share of it a model
 * reaches. */
#include "cli/commands.h"
#include "cli/run/engine_settings.h"
#include "cli/bench/median.h"
#include "cli/frame/progress.h"
#include "cli/bench/roof_trust.h"
#include "cli/frame/whole_file.h"

#include "coterie/roof.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- bench roof ---- */

struct roof_settings {
    int64_t threads;
    const char *isa;
    bool json;
};

static json_t *roof_json(const cot_roof *r)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:I}", "f32_flops", r->f32_flops, "bf16_flops", r->bf16_flops,
                     "int8_ops", r->int8_ops, "read_bytes_per_second", r->read_bytes_per_second,
                     "buffer_bytes", (json_int_t)r->buffer_bytes);
}

static void print_roof(const cot_roof *r, const char *isa, int threads)
{
    printf("cpu          %s, last-level cache %.0f MiB\n", cot_cpu_name(),
           (double)cot_last_level_cache_bytes() / (1 << 20));
    printf("isa          %s, %d threads\n", isa ? isa : cot_isa_names()[0], threads);
    printf("fp32         %.1f GFLOP/s\n", r->f32_flops / 1e9);
    printf("bf16         %.1f GFLOP/s\n", r->bf16_flops / 1e9);
    printf("int8         %.1f GOP/s\n", r->int8_ops / 1e9);
    printf("read         %.1f GB/s over %.1f GB\n", r->read_bytes_per_second / 1e9,
           (double)r->buffer_bytes / 1e9);
}

static int bench_roof(const void *settings)
{
    const struct roof_settings *s = settings;
    const int threads = cli_roof_threads(s->threads);
    cot_roof roof;
    cot_error error;
    cli_progress progress = {"measuring roofs", 0};
    cli_progress_show(&progress, 0, 0);
    const cot_status status = cot_roof_measure(&roof, threads, s->isa, 0, NULL, NULL, &error);
    cli_progress_end(&progress);
    if (status != COT_OK) return cli_complain_of(&error);
    if (!s->json) {
        print_roof(&roof, s->isa, threads);
        return CLI_EXIT_OK;
    }
    json_t *json = roof_json(&roof);
    json_dumpf(json, stdout, JSON_INDENT(1));
    printf("\n");
    json_decref(json);
    return CLI_EXIT_OK;
}

#define ROOF(field) offsetof(struct roof_settings, field)
static const cli_option roof_options[] = {
    {"threads", 't', CLI_OPTION_INTEGER, "N", "0", "threads (0: as many as cores)", ROOF(threads), .least = 0,
     .most = 256},
    {"isa", 0, CLI_OPTION_TEXT, "NAME", NULL, "caps the instruction set (see coterie info)", ROOF(isa)},
    {"json", 0, CLI_OPTION_FLAG, NULL, NULL, "print JSON", ROOF(json)},
    {0}};

const cli_command cli_cmd_bench_roof = {
    .name = "bench roof",
    .summary = "measure what this machine can do at best: multiply-adds and streaming reads",
    .details =
        "fp32, bf16 and int8 are register-resident multiply-adds with the best instruction of the isa (each "
        "counts as two "
        "operations); read streams over a buffer much larger than the last-level cache.",
    .examples =
        (const char *const[]){"coterie bench roof", "coterie bench roof --threads 1 --isa avx2", NULL},
    .options = {.groups = (const cli_option_group[]){{"Options", roof_options, 0}, {0}}},
    .settings_bytes = sizeof(struct roof_settings),
    .run = bench_roof};

/* ---- bench model ---- */

struct model_settings {
    cli_engine_settings engine;
    const char *config; // NULL: OLMoE's, with as many layers as `layers` says
    int64_t layers, prompt_tokens, decode_tokens, sequences, repeat, seed;
    bool json;
};

/* The model that is measured. */
struct bench_model {
    char *config; // its config.json
    size_t bytes;
    cot_model_info info;
    bool tied; // embedding and output are one matrix
};

enum { MOST_REPEATS = 100 };

/* One repetition's steps that hold prompts, or its others. */
struct phase {
    double tokens, flops, bytes;       // a second
    double multiply_share, read_share; // of its roofs
    double over_roof;                  // its time over the least that both roofs allow
    double reads_bound;                // 1 where the larger of these is that of reads, else 0
};

/* One repetition's rates. The machine's speed drifts: each is held against roofs of its own, for which those measured
 * before and after it are taken, whichever is higher. */
struct rates {
    struct phase prefill, decode;
    double f32_roof, bf16_roof, read_roof;
    double multiply_drift, read_drift; // the higher of the two roofs over the lower
};

struct spread {
    double median, least, most;
};

static struct spread spread_of(const struct rates *rates, int n, size_t field)
{
    double values[MOST_REPEATS];
    for (int i = 0; i < n; i++) memcpy(&values[i], (const char *)&rates[i] + field, sizeof *values);
    const double median = cli_sort_median(values, (size_t)n);
    return (struct spread){median, values[0], values[n - 1]};
}

/* Of a sequence's tokens before `tokens`, of which `outputs` meet the output: two operations for each weight that they meet
 * but for the embedding, which is looked up. Of OLMoE's shape, with as many KV heads as heads, the scores of attention too; of
 * others they are left out, so that their share of the roof is rather too low. */
static double flops_before(int64_t tokens, int64_t outputs, const struct model_settings *s,
                           const struct bench_model *m)
{
    const double t = (double)tokens, output = (double)m->info.hidden * (double)m->info.vocab;
    const double weights = (double)m->info.active_parameters - (m->tied ? 1 : 2) * output;
    const double scores =
        s->config ? 0 : (double)m->info.layers * t * (t + 1) / 2 * 2 * (double)m->info.hidden;
    return 2 * (t * weights + scores + (double)outputs * output);
}

/* Tokens that look like nothing: each step is routed to other experts. */
static void fill_tokens(int32_t *tokens, int64_t n, int64_t vocab, uint64_t *state)
{
    for (int64_t i = 0; i < n; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        tokens[i] = (int32_t)((*state >> 33) % (uint64_t)vocab);
    }
}

static bool repeat(struct rates *rates, const struct model_settings *s, const struct bench_model *model,
                   cot_engine *engine, int32_t *tokens, cot_request *requests, uint64_t *state)
{
    const cot_engine_info *info = cot_engine_describe(engine);
    int64_t each = s->prompt_tokens + s->decode_tokens;
    cot_stats before, after;
    cot_error error;
    cot_events none = {0};
    fill_tokens(tokens, each * s->sequences, info->vocab, state);
    for (int64_t i = 0; i < s->sequences; i++)
        requests[i] = (cot_request){.prompt = tokens + i * each,
                                    .prompt_tokens = s->prompt_tokens,
                                    .forced = tokens + i * each + s->prompt_tokens,
                                    .forced_tokens = s->decode_tokens};
    cot_status status = cot_engine_stats(engine, &before, &error);
    if (status == COT_OK)
        status = cot_engine_run(engine, requests, (size_t)s->sequences, &none, NULL, &error);
    if (status == COT_OK) status = cot_engine_stats(engine, &after, &error);
    if (status != COT_OK) {
        cli_complain_of(&error);
        return false;
    }
    const double prefill = (double)(after.prefill_ns - before.prefill_ns) / 1e9,
                 decode = (double)(after.decode_ns - before.decode_ns) / 1e9,
                 decoded = (double)(after.decode_tokens - before.decode_tokens),
                 prompt_flops = flops_before(s->prompt_tokens, 1, s, model),
                 all_flops = flops_before(each, 1 + s->decode_tokens, s, model);
    *rates = (struct rates){
        .prefill = {.tokens = (double)(after.prefill_tokens - before.prefill_tokens) / prefill,
                    .flops = (double)s->sequences * prompt_flops / prefill,
                    .bytes = (double)(after.prefill_read_bytes - before.prefill_read_bytes) / prefill},
        .decode = {.tokens = decoded / decode,
                   .flops = decoded * (all_flops - prompt_flops) / (double)s->decode_tokens / decode,
                   .bytes = (double)(after.decode_read_bytes - before.decode_read_bytes) / decode}};
    cot_stats_clear(&before);
    cot_stats_clear(&after);
    return true;
}

/* What the repetitions of a phase came to. */
struct phase_spread {
    struct spread tokens, flops, bytes;
    struct spread share; // of the roof that is always named: of prefill multiplying, of decode reading
    struct spread over_roof;
    bool reads_bound; // in most repetitions the larger of both roofs was that of reads
    char doubt[96],
        over_doubt[96]; // why the share, and the time over the larger roof, are not to be trusted, or ""
};

static struct phase_spread phase_spread_of(const struct rates *rates, int n, size_t phase, bool reads)
{
#define OF(field) spread_of(rates, n, phase + offsetof(struct phase, field))
#define DRIFT(field) spread_of(rates, n, offsetof(struct rates, field)).median
    const double drifts[] = {DRIFT(multiply_drift), DRIFT(read_drift)};
    struct phase_spread p = {.tokens = OF(tokens),
                             .flops = OF(flops),
                             .bytes = OF(bytes),
                             .share = reads ? OF(read_share) : OF(multiply_share),
                             .over_roof = OF(over_roof),
                             .reads_bound = OF(reads_bound).median > 0.5};
#undef DRIFT
#undef OF
    cli_roof_doubt(p.doubt, p.share.most, drifts[reads]);
    cli_roof_doubt(p.over_doubt, 1 / p.over_roof.least, drifts[p.reads_bound]);
    return p;
}

static json_t *unless_doubted(const char *doubt, double value)
{
    return *doubt ? json_null() : json_real(value);
}

static const char *larger_roof(const struct phase_spread *p)
{
    return p->reads_bound ? "read" : "multiply";
}

static void print_json(const cot_engine_info *i, const struct phase_spread *prefill,
                       const struct phase_spread *decode, const struct spread *roofs)
{
    json_t *o =
        json_pack("{s:f, s:f, s:f, s:o, s:o, s:s, s:f, s:f, s:f, s:o, s:o, s:s, s:I, s:{s:f, s:f, s:f}}",
                  "prefill_tokens_per_second", prefill->tokens.median, "prefill_flops", prefill->flops.median,
                  "prefill_bytes_per_second", prefill->bytes.median, "prefill_roof_share",
                  unless_doubted(prefill->doubt, prefill->share.median), "prefill_over_roof",
                  unless_doubted(prefill->over_doubt, prefill->over_roof.median), "prefill_larger_roof",
                  larger_roof(prefill), "decode_tokens_per_second", decode->tokens.median, "decode_flops",
                  decode->flops.median, "decode_bytes_per_second", decode->bytes.median, "decode_roof_share",
                  unless_doubted(decode->doubt, decode->share.median), "decode_over_roof",
                  unless_doubted(decode->over_doubt, decode->over_roof.median), "decode_larger_roof",
                  larger_roof(decode), "weight_bytes", (json_int_t)i->weight_bytes, "roof", "f32_flops",
                  roofs[0].median, "bf16_flops", roofs[1].median, "read_bytes_per_second", roofs[2].median);
    json_dumpf(o, stdout, JSON_INDENT(1));
    printf("\n");
    json_decref(o);
}

static void print_share(const struct phase_spread *p, const char *roof)
{
    if (*p->doubt)
        printf("share of the %s roof not to be trusted: the machine was busy (%s)", roof, p->doubt);
    else
        printf("%.1f %% (%.1f to %.1f) of the %s roof", 100 * p->share.median, 100 * p->share.least,
               100 * p->share.most, roof);
    if (!*p->over_doubt) printf("; %.2fx the larger roof (%s)", p->over_roof.median, larger_roof(p));
    printf("\n");
}

static void print_result(const struct model_settings *s, const cot_engine_info *i, const struct rates *rates)
{
    const int n = (int)s->repeat;
    const struct spread roofs[] = {spread_of(rates, n, offsetof(struct rates, f32_roof)),
                                   spread_of(rates, n, offsetof(struct rates, bf16_roof)),
                                   spread_of(rates, n, offsetof(struct rates, read_roof))};
    const struct phase_spread prefill = phase_spread_of(rates, n, offsetof(struct rates, prefill), false),
                              decode = phase_spread_of(rates, n, offsetof(struct rates, decode), true);
    if (s->json) {
        print_json(i, &prefill, &decode, roofs);
        return;
    }
    printf("cpu          %s, last-level cache %.0f MiB\n", cot_cpu_name(),
           (double)cot_last_level_cache_bytes() / (1 << 20));
    printf("shape        %s, %lld layers, hidden %lld, %lld experts, top %lld; %.2f GB of %s weights\n",
           i->architecture, (long long)i->layers, (long long)i->hidden, (long long)i->experts,
           (long long)i->top_k, (double)i->weight_bytes / 1e9, i->weights);
    printf("group        %d ranks, %d threads, isa %s; %lld sequences of %lld + %lld tokens\n", i->ranks,
           i->threads, i->isa, (long long)s->sequences, (long long)s->prompt_tokens,
           (long long)s->decode_tokens);
    printf("roofs        fp32 %.1f, bf16 %.1f GFLOP/s, read %.1f GB/s; %d runs, each beside its own: median "
           "(least to most)\n",
           roofs[0].median / 1e9, roofs[1].median / 1e9, roofs[2].median / 1e9, n);
    printf("prefill      %.1f tokens/s, %.1f GFLOP/s, ", prefill.tokens.median, prefill.flops.median / 1e9);
    print_share(&prefill, s->engine.options.weights.precision);
    printf("decode       %.1f tokens/s, %.1f GB/s of weights and KV, ", decode.tokens.median,
           decode.bytes.median / 1e9);
    print_share(&decode, "read");
}

/* Reads as many bytes as the weights are, but no more than far exceed any cache: what is left of memory may be little. */
static bool measure_roof(cot_roof *roof, const struct model_settings *s, const cot_engine_info *info)
{
    cot_error error;
    const size_t most = (size_t)2 << 30, bytes = info->weight_bytes < most ? info->weight_bytes : most;
    if (cot_roof_measure(roof, info->threads, s->engine.options.group.isa, bytes, NULL, NULL, &error) ==
        COT_OK)
        return true;
    cli_complain_of(&error);
    return false;
}

static double flop_roof(const cot_roof *roof, const char *precision)
{
    return !strcmp(precision, "fp32")   ? roof->f32_flops
           : !strcmp(precision, "int8") ? roof->int8_ops
                                        : roof->bf16_flops;
}

static double drift(double a, double b)
{
    return fmax(a, b) / fmin(a, b);
}

static void hold_phase(struct phase *p, double multiply_roof, double read_roof)
{
    p->multiply_share = p->flops / multiply_roof;
    p->read_share = p->bytes / read_roof;
    p->over_roof = 1 / fmax(p->multiply_share, p->read_share);
    p->reads_bound = p->read_share > p->multiply_share;
}

static void hold_against_roofs(struct rates *rates, const char *precision, const cot_roof *before,
                               const cot_roof *after)
{
    const double multiply[] = {flop_roof(before, precision), flop_roof(after, precision)},
                 higher = fmax(multiply[0], multiply[1]);
    rates->f32_roof = fmax(before->f32_flops, after->f32_flops);
    rates->bf16_roof = fmax(before->bf16_flops, after->bf16_flops);
    rates->read_roof = fmax(before->read_bytes_per_second, after->read_bytes_per_second);
    hold_phase(&rates->prefill, higher, rates->read_roof);
    hold_phase(&rates->decode, higher, rates->read_roof);
    rates->multiply_drift = drift(multiply[0], multiply[1]);
    rates->read_drift = drift(before->read_bytes_per_second, after->read_bytes_per_second);
}

static bool measure(const struct model_settings *s, const struct bench_model *model, cot_engine *engine)
{
    const cot_engine_info *info = cot_engine_describe(engine);
    struct rates rates[MOST_REPEATS], warm;
    uint64_t state = (uint64_t)s->seed;
    size_t tokens = (size_t)((s->prompt_tokens + s->decode_tokens) * s->sequences);
    int32_t *ids = calloc(tokens, sizeof *ids);
    cot_request *requests = calloc((size_t)s->sequences, sizeof *requests);
    bool good = ids && requests;
    if (!good) cli_complain("out of memory");
    cot_roof before, after;
    cli_progress progress = {"measuring", 0};
    cli_progress_show(&progress, 0, (uint64_t)s->repeat + 1);
    good = good && repeat(&warm, s, model, engine, ids, requests, &state) && measure_roof(&before, s, info);
    for (int i = 0; i < s->repeat && good; i++, before = after) {
        cli_progress_show(&progress, (uint64_t)i + 1, (uint64_t)s->repeat + 1);
        good = repeat(&rates[i], s, model, engine, ids, requests, &state) && measure_roof(&after, s, info);
        if (good) hold_against_roofs(&rates[i], s->engine.options.weights.precision, &before, &after);
    }
    cli_progress_end(&progress);
    free(ids);
    free(requests);
    if (good) print_result(s, info, rates);
    return good;
}

static cot_status describe_bench_model(struct bench_model *m, const struct model_settings *s,
                                       cot_error *error)
{
    *m = (struct bench_model){0};
    if (s->config) {
        m->config = cli_read_whole(s->config, &m->bytes);
        if (!m->config) return error->status = COT_IO;
    } else {
        cli_model_shape olmoe;
        if (!cli_model_shape_make(&olmoe, "olmoe", &(cli_model_shape_wanted){.layers = s->layers}))
            return error->status = COT_OUT_OF_MEMORY;
        m->config = olmoe.config;
        m->bytes = strlen(m->config);
    }
    const cot_status status =
        cot_model_describe_config(&m->info, m->config ? m->config : "", m->bytes, error);
    if (status != COT_OK) cli_complain_of(error);
    json_t *json = status == COT_OK ? json_loadb(m->config, m->bytes, 0, NULL) : NULL;
    m->tied = json_is_true(json_object_get(json, "tie_word_embeddings"));
    json_decref(json);
    if (status != COT_OK || s->prompt_tokens + s->decode_tokens <= m->info.context_tokens) return status;
    cli_complain("%lld tokens are beyond the context of %lld",
                 (long long)(s->prompt_tokens + s->decode_tokens), (long long)m->info.context_tokens);
    return COT_TOO_LONG;
}

/* Opens the engine, with random weights. Returns false after a line on stderr. */
static bool open_bench_engine(cot_engine **engine, const struct model_settings *s,
                              const struct bench_model *m)
{
    const cli_engine_needs needs = {.kv_tokens = (s->prompt_tokens + s->decode_tokens) * s->sequences,
                                    .sequences = (size_t)s->sequences,
                                    .capture_routing = true,
                                    .config = m->config,
                                    .seed = (uint64_t)s->seed,
                                    .loading = "drawing weights"};
    cot_error error;
    char *notes;
    const cot_status status = cli_engine_open_with(engine, NULL, &s->engine, &needs, &notes, &error);
    if (status != COT_OK) cli_complain_of(&error);
    return status == COT_OK;
}

static int bench_model(const void *settings)
{
    const struct model_settings *s = settings;
    struct bench_model model;
    cot_engine *engine = NULL;
    cot_error error;
    bool good = describe_bench_model(&model, s, &error) == COT_OK && open_bench_engine(&engine, s, &model);
    good = good && measure(s, &model, engine);
    cot_engine_close(engine);
    cot_model_info_clear(&model.info);
    free(model.config);
    return good ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}

#define AT(field) offsetof(struct model_settings, field)
static const cli_option model_options[] = {
    {"layers", 0, CLI_OPTION_INTEGER, "L", "2", "layers of OLMoE-1B-7B's shape", AT(layers), .least = 1,
     .most = 16},
    {"config", 0, CLI_OPTION_TEXT, "FILE", NULL, "a model's config.json: its shape instead of OLMoE's",
     AT(config)},
    {"prompt-tokens", 0, CLI_OPTION_INTEGER, "N", "1024", "tokens of each prompt", AT(prompt_tokens),
     .least = 1, .most = 1000000},
    {"decode-tokens", 0, CLI_OPTION_INTEGER, "N", "32", "tokens fed one at a time after it",
     AT(decode_tokens), .least = 1, .most = 1000000},
    {"sequences", 0, CLI_OPTION_INTEGER, "N", "1", "sequences at once", AT(sequences), .least = 1,
     .most = 64},
    {"repeat", 0, CLI_OPTION_INTEGER, "N", "5", "timed runs, after one that is not counted", AT(repeat),
     .least = 1, .most = MOST_REPEATS},
    {"seed", 0, CLI_OPTION_INTEGER, "N", "1", "of weights and tokens", AT(seed), .least = 0,
     .most = INT64_MAX},
    {"json", 0, CLI_OPTION_FLAG, NULL, NULL, "print JSON", AT(json)},
    {0}};

const cli_command cli_cmd_bench_model = {
    .name = "bench model",
    .summary = "measure a random model's prefill and decode beside this machine's roofs",
    .details =
        "The layers are OLMoE-1B-7B's (hidden 2048, 64 experts of 1024, top 8), or those of --config. "
        "Prefill is held "
        "against the multiply-add "
        "roof; decode against the read roof, over the weights and KV that each step must read once. "
        "After it, of both: how many times as long it takes as the larger of both roofs' times, and which "
        "one is "
        "larger (\"prefill_over_roof\" and so on in JSON). "
        "Roofs are measured before and after each run, reads over a buffer as large as the weights, but "
        "2 GiB at most, and the higher ones count. Where they differ 1.5 times, or a run comes to more than "
        "105 % of them, "
        "other programs kept the machine busy: no share is told then (null in JSON).",
    .examples = (const char *const[]){"coterie bench model",
                                      "coterie bench model --ranks 4 --attention dp --sequences 8", NULL},
    .options = {.groups = (const cli_option_group[]){{"Options", model_options, 0},
                                                     {"Group of ranks", cli_engine_option_rows, AT(engine)},
                                                     {0}}},
    .settings_bytes = sizeof(struct model_settings),
    .run = bench_model};
