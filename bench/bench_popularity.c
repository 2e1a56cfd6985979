/* Measures what counting experts takes of decode: an engine with random weights in OLMoE's layer shape runs steps in which every sequence
 * gets a token, with popularity counted; of each step the processor time of all its threads, and of that what counting took: ranks'
 * sending of experts, and rank 0's adding them to popularity and signatures.
 *
 *     bench_popularity [LAYERS [RANKS [SEQUENCES [STEPS]]]]    1, 4, 16, 100
 *
 * Medians of steps; reading the clock is taken off. Under `valgrind --tool=callgrind` the same functions' instructions can be read, which no
 * other program disturbs. */
#include "coterie/engine.h"
#include "engine/profiles.h"
#include "model/results.h"
#include "processor_time.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 16, VOCAB = 256, MOST_STEPS = 100000 };

static void die(const char *message)
{
    fprintf(stderr, "bench_popularity: %s\n", message);
    exit(1);
}

/* ---- what counting takes ---- */

static bench_part counting;

void __real_cot_runner_send_popular(cot_runner *r, const cot_step *step);
void __wrap_cot_runner_send_popular(cot_runner *r, const cot_step *step);
void __wrap_cot_runner_send_popular(cot_runner *r, const cot_step *step)
{
    const int64_t began_ns = bench_part_begin();
    __real_cot_runner_send_popular(r, step);
    bench_part_end(&counting, began_ns);
}

void __real_cot_profiles_feed(cot_profiles *p, cot_profile *profile, const cot_request_state *request,
                              const cot_step *step, const cot_span *span, int64_t token,
                              const uint16_t *experts, int64_t stride);
void __wrap_cot_profiles_feed(cot_profiles *p, cot_profile *profile, const cot_request_state *request,
                              const cot_step *step, const cot_span *span, int64_t token,
                              const uint16_t *experts, int64_t stride);
void __wrap_cot_profiles_feed(cot_profiles *p, cot_profile *profile, const cot_request_state *request,
                              const cot_step *step, const cot_span *span, int64_t token,
                              const uint16_t *experts, int64_t stride)
{
    const int64_t began_ns = bench_part_begin();
    __real_cot_profiles_feed(p, profile, request, step, span, token, experts, stride);
    bench_part_end(&counting, began_ns);
}

/* ---- the engine ---- */

static cot_engine *open_engine(int layers, int ranks, int sequences, int steps)
{
    char config[1024];
    snprintf(config, sizeof config,
             "{\"architectures\": [\"OlmoeForCausalLM\"], \"model_type\": \"olmoe\", \"hidden_size\": 2048, "
             "\"intermediate_size\": 1024, \"num_hidden_layers\": %d, \"num_attention_heads\": 16, "
             "\"num_key_value_heads\": 16, \"num_experts\": 64, \"num_experts_per_tok\": 8, "
             "\"norm_topk_prob\": false, \"vocab_size\": %d, \"max_position_embeddings\": %d, "
             "\"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"eos_token_id\": 0, "
             "\"tie_word_embeddings\": false, \"hidden_act\": \"silu\"}",
             layers, VOCAB, PROMPT + steps + 64);
    cot_engine_options o;
    cot_engine_options_init(&o);
    o.group.ranks = ranks;
    o.batch.sequences = sequences;
    o.memory.block_tokens = 16;
    o.watch.popularity_half_life = 65536;
    cot_engine *engine;
    cot_error error;
    if (cot_engine_open_random(&engine, config, strlen(config), 1, &o, &error) != COT_OK) die(error.message);
    return engine;
}

static void submit_all(cot_engine *engine, int sequences, int steps)
{
    for (int i = 0; i < sequences; i++) {
        int32_t ids[PROMPT];
        uint64_t id;
        cot_error error;
        for (int t = 0; t < PROMPT; t++) ids[t] = 1 + (7 * i + 13 * t) % (VOCAB - 1);
        cot_request r;
        cot_request_init(&r);
        r.prompt = ids;
        r.prompt_tokens = PROMPT;
        r.sampling.max_tokens = steps + 8;
        r.sampling.ignore_eos = true;
        if (cot_engine_submit(engine, &id, &r, COT_HOME_ANY, &(cot_events){0}, &error) != COT_OK)
            die(error.message);
    }
}

int main(int argc, char **argv)
{
    const int layers = argc > 1 ? atoi(argv[1]) : 1, ranks = argc > 2 ? atoi(argv[2]) : 4,
              sequences = argc > 3 ? atoi(argv[3]) : 16, steps = argc > 4 ? atoi(argv[4]) : 100;
    if (argc > 5 || layers < 1 || ranks < 1 || ranks > 64 || sequences < 1 || sequences > 1024 || steps < 1 ||
        steps > MOST_STEPS)
        die("usage: bench_popularity [LAYERS [RANKS [SEQUENCES [STEPS]]]]");
    const double own_ns = bench_part_of_nothing();
    cot_engine *engine = open_engine(layers, ranks, sequences, steps);
    double *step_ns = calloc((size_t)steps, sizeof *step_ns),
           *part_ns = calloc((size_t)steps, sizeof *part_ns);
    if (!step_ns || !part_ns) die("out of memory");
    submit_all(engine, sequences, steps);
    for (int i = -3; i < steps; i++) { // the first ones feed prompts, and touch memory
        size_t left;
        cot_error error;
        const bench_moment before = bench_now(&counting);
        if (cot_engine_step(engine, &left, &error) != COT_OK) die(error.message);
        if (i < 0) continue;
        const bench_moment now = bench_now(&counting);
        step_ns[i] = (double)(now.all_ns - before.all_ns);
        part_ns[i] = (double)(now.part_ns - before.part_ns) - own_ns * (double)(now.parts - before.parts);
    }
    const double step = bench_median(step_ns, steps), part = bench_median(part_ns, steps);
    printf("%d layers of 8 of 64 experts, %d ranks, %d sequences, %d steps: a step takes %.3f ms of "
           "processors' time, counting "
           "%.4f ms of it, %.3f %%\n",
           layers, ranks, sequences, steps, step / 1e6, part / 1e6, 100 * part / step);
    free(step_ns);
    free(part_ns);
    cot_engine_close(engine);
    return 0;
}
