/* Measures layers with a state (Gated DeltaNet) as Qwen3.6-35B-A3B has them: what lies between a layer's projections, the
 * convolution, the rule and its norms, beside the projections' own time, while prompts are fed; and what a token a sequence takes beside
 * copying as many bytes as weights and states are.
 *
 *     bench_between [--precision bf16] [--isa NAME] [--tokens 512] [--sequences 1] [--rounds 9]
 *
 * --tokens: of a prompt, which is one step. --sequences: those that get a token a step, 32 times. One thread, whose processor time is
 * taken, so that others on the machine spoil little but the caches. Medians of rounds, least and most. Weights are random, and experts few:
 * they are not measured. */
#include "engine/engine_state.h"
#include "model/mixer.h"
#include "model/runner_state.h"
#include "processor_time.h"

#include "coterie/roof.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DECODED = 32, MOST_ROUNDS = 99, MOST_TOKENS = 8192, COPIED = 256 << 20 };

static const char config[] =
    "{\"architectures\": [\"Qwen3_5MoeForCausalLM\"], \"vocab_size\": 512, \"hidden_size\": 2048, "
    "\"num_hidden_layers\": 4, \"num_attention_heads\": 16, \"num_key_value_heads\": 2, \"head_dim\": 256, "
    "\"num_experts\": 2, \"num_experts_per_tok\": 1, \"moe_intermediate_size\": 32, "
    "\"shared_expert_intermediate_size\": 32, \"linear_num_key_heads\": 16, \"linear_num_value_heads\": 32, "
    "\"linear_key_head_dim\": 128, \"linear_value_head_dim\": 128, \"linear_conv_kernel_dim\": 4, "
    "\"max_position_embeddings\": 16384, \"eos_token_id\": 2}";

static void die(const char *message)
{
    fprintf(stderr, "bench_between: %s\n", message);
    exit(1);
}

/* ---- parts of layers with a state ---- */

static bench_part layers, projections, norms;
static bool inside; // of such a layer

cot_status __real_cot_runner_attention(cot_runner *r, int64_t layer, cot_error *error);
cot_status __wrap_cot_runner_attention(cot_runner *r, int64_t layer, cot_error *error);
cot_status __wrap_cot_runner_attention(cot_runner *r, int64_t layer, cot_error *error)
{
    inside = cot_mixer_of(r->c, layer)->state_floats != NULL;
    const int64_t began_ns = bench_part_begin();
    const cot_status status = __real_cot_runner_attention(r, layer, error);
    if (inside) bench_part_end(&layers, began_ns);
    inside = false;
    return status;
}

void __real_cot_runner_norm(cot_runner *r, const cot_norm *norm, const float *x, int64_t rows);
void __wrap_cot_runner_norm(cot_runner *r, const cot_norm *norm, const float *x, int64_t rows);
void __wrap_cot_runner_norm(cot_runner *r, const cot_norm *norm, const float *x, int64_t rows)
{
    const int64_t began_ns = bench_part_begin();
    __real_cot_runner_norm(r, norm, x, rows);
    if (inside) bench_part_end(&norms, began_ns);
}

void __real_cot_runner_products(cot_runner *r, const void *a, int64_t rows, const cot_packed_parts *b,
                                float *c);
void __wrap_cot_runner_products(cot_runner *r, const void *a, int64_t rows, const cot_packed_parts *b,
                                float *c);
void __wrap_cot_runner_products(cot_runner *r, const void *a, int64_t rows, const cot_packed_parts *b,
                                float *c)
{
    const int64_t began_ns = bench_part_begin();
    __real_cot_runner_products(r, a, rows, b, c);
    if (inside) bench_part_end(&projections, began_ns);
}

static double weight_bytes; // of one such layer's projections

void __real_cot_runner_product(cot_runner *r, const void *a, int64_t rows, const cot_packed *b, float *c);
void __wrap_cot_runner_product(cot_runner *r, const void *a, int64_t rows, const cot_packed *b, float *c);
void __wrap_cot_runner_product(cot_runner *r, const void *a, int64_t rows, const cot_packed *b, float *c)
{
    const int64_t began_ns = bench_part_begin();
    __real_cot_runner_product(r, a, rows, b, c);
    if (inside) bench_part_end(&projections, began_ns);
}

/* ---- rounds ---- */

struct options {
    const char *precision, *isa;
    int64_t tokens, sequences, rounds;
};

struct round {
    double layers, projections, between; // ns
};

static cot_engine *open_engine(const struct options *o)
{
    cot_engine_options e;
    cot_engine *engine;
    cot_error error;
    cot_engine_options_init(&e);
    e.group.threads = 1;
    e.attention.mode = "dp"; // whose weights are where they are counted
    e.group.isa = o->isa;
    e.weights.precision = o->precision;
    e.batch.sequences = (int)o->sequences;
    e.batch.step_tokens = o->tokens > o->sequences ? o->tokens : o->sequences;
    e.memory.kv_tokens = o->sequences * (o->tokens + DECODED + COT_KV_PAGE);
    if (cot_engine_open_random(&engine, config, strlen(config), 1, &e, &error) != COT_OK) die(error.message);
    return engine;
}

/* Measures a round: prompts of `tokens`, then as many tokens a sequence as are forced. */
static struct round run(cot_engine *engine, int64_t sequences, int64_t tokens, int64_t forced)
{
    int32_t *ids = malloc((size_t)(tokens + forced) * sizeof *ids);
    cot_request *requests = calloc((size_t)sequences, sizeof *requests);
    cot_error error;
    if (!ids || !requests) die("out of memory");
    for (int64_t i = 0; i < tokens + forced; i++) ids[i] = (int32_t)(3 + i * 31 % 500);
    for (int64_t i = 0; i < sequences; i++) {
        cot_request_init(&requests[i]);
        requests[i].prompt = ids;
        requests[i].prompt_tokens = tokens;
        requests[i].sampling.max_tokens = 1; // which is not fed
        if (!forced) continue;
        requests[i].forced = ids + tokens;
        requests[i].forced_tokens = forced;
    }
    layers = projections = norms = (bench_part){0};
    if (cot_engine_run(engine, requests, (size_t)sequences, &(cot_events){0}, NULL, &error) != COT_OK)
        die(error.message);
    free(ids);
    free(requests);
    return (struct round){(double)layers.ns, (double)projections.ns,
                          (double)(layers.ns - projections.ns - norms.ns)};
}

static double spread(double *value, int n, double *least, double *most)
{
    const double median = bench_median(value, n);
    *least = value[0];
    *most = value[n - 1];
    return median;
}

static void prefill(cot_engine *engine, const struct options *o)
{
    double share[MOST_ROUNDS], own[MOST_ROUNDS], least, most, own_least, own_most;
    for (int i = 0; i < o->rounds; i++) {
        const struct round r = run(engine, 1, o->tokens, 0);
        share[i] = 100 * r.between / r.projections;
        own[i] = r.between / 3 / (double)o->tokens / 1e3;
    }
    const double median = spread(share, (int)o->rounds, &least, &most),
                 each = spread(own, (int)o->rounds, &own_least, &own_most);
    printf(
        "prompt of %lld tokens: between projections %.1f %% (%.1f to %.1f) of the projections' time, %.2f us "
        "(%.2f to %.2f) a token and layer\n",
        (long long)o->tokens, median, least, most, each, own_least, own_most);
}

/* Bytes a second that copying reads and writes. */
static double copy_roof(void)
{
    char *from = malloc(COPIED), *to = malloc(COPIED);
    double best = 0;
    if (!from || !to) die("out of memory");
    memset(from, 1, COPIED);
    memset(to, 2, COPIED);
    for (int i = 0; i < 5; i++) {
        const int64_t began_ns = bench_part_begin();
        memcpy(to, from, COPIED);
        __asm__ volatile("" ::"r"(to) : "memory");
        const double rate = 2.0 * COPIED / (double)(bench_part_begin() - began_ns);
        if (rate > best) best = rate;
    }
    free(from);
    free(to);
    return best * 1e9;
}

static void decode(cot_engine *engine, const struct options *o)
{
    enum { PROMPT = 1 };
    double share[MOST_ROUNDS], part[MOST_ROUNDS], least, most, part_least, part_most;
    const double moved = weight_bytes + 2.0 * 4 * 32 * 128 * 128 * (double)o->sequences;
    for (int i = 0; i < o->rounds; i++) {
        const double roof = copy_roof();
        const struct round r = run(engine, o->sequences, PROMPT, DECODED);
        const double steps = (double)layers.count;
        share[i] = 100 * moved * steps / (r.layers / 1e9) / roof;
        part[i] = 100 * r.between / r.layers;
    }
    const double median = spread(share, (int)o->rounds, &least, &most),
                 between = spread(part, (int)o->rounds, &part_least, &part_most);
    printf("%lld sequences, a token each: %.1f %% (%.1f to %.1f) of the roof of copies over weights (%.1f MB "
           "a layer), states "
           "read and written; between projections %.1f %% (%.1f to %.1f) of a layer\n",
           (long long)o->sequences, median, least, most, weight_bytes / 1e6, between, part_least, part_most);
}

/* Of the first layer, which has a state. */
static double bytes_of(const cot_engine *engine)
{
    const cot_attention_weights *w = &engine->whole.attention[0];
    double bytes = (double)cot_packed_bytes(w->output.format, w->output.k, w->output.n);
    for (int p = 0; p < w->input.parts; p++)
        bytes += (double)cot_packed_bytes(w->input.part[p].format, w->input.part[p].k, w->input.part[p].n);
    return bytes;
}

int main(int argc, char **argv)
{
    struct options o = {"bf16", NULL, 512, 1, 9};
    for (int i = 1; i < argc; i += 2) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!value) die("an option has no value");
        if (!strcmp(name, "--precision"))
            o.precision = value;
        else if (!strcmp(name, "--isa"))
            o.isa = value;
        else if (!strcmp(name, "--tokens"))
            o.tokens = atoll(value);
        else if (!strcmp(name, "--sequences"))
            o.sequences = atoll(value);
        else if (!strcmp(name, "--rounds"))
            o.rounds = atoll(value);
        else
            die("usage: bench_between [--precision NAME] [--isa NAME] [--tokens N] [--sequences N] [--rounds "
                "N]");
    }
    if (o.tokens < 1 || o.tokens > MOST_TOKENS || o.sequences < 1 || o.sequences > 256 || o.rounds < 1 ||
        o.rounds > MOST_ROUNDS)
        die("1 to 8192 tokens, 1 to 256 sequences, 1 to 99 rounds");
    cot_engine *engine = open_engine(&o);
    weight_bytes = bytes_of(engine);
    printf("%s, isa %s, %s, one thread\n", cot_cpu_name(), cot_engine_describe(engine)->isa, o.precision);
    run(engine, 1, o.tokens, 0);
    prefill(engine, &o);
    decode(engine, &o);
    cot_engine_close(engine);
    return 0;
}
