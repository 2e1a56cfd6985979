/* Measures how well the time of steps is foreseen (src/schedule/cost.h) where ranks have not the same to do: an engine of two ranks, of which one
 * has 50, 65, then 80 % of the experts' load in turn, serves requests of drawn lengths; each step is foreseen by the engine's own
 * model, which knows what its busiest rank has to do, and by one that takes ranks for alike, both taught by the same steps.
 *
 *     bench_costs [MODEL [TURNS [STEPS [SEQUENCES]]]]    a random model of 0.3 GB, 9, 150, 16
 *
 * MODEL is a folder, or a config.json, whose weights are then random. Prints how far off either is of a step's time, by share: of all steps the
 * mean, and the median. Steps beside which experts move, and those of the first turn, teach and are not counted. */
#include "base/file.h"
#include "base/rng.h"
#include "coterie/engine.h"
#include "engine/engine_state.h"
#include "processor_time.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    RANKS = 2,
    SHARES = 3,
    MOST_PROMPT = 48,
    MOST_TOKENS = 40,
    MOST_SEQUENCES = 256,
    MOST_STEPS = 10000,
    WORD = 20,  // steps for which as many sequences are wanted
    SPARE = 32, // experts that a rank has room for beyond its half
};

static const double shares[SHARES] = {0.5, 0.65, 0.8};

static const char shape[] =
    "{\"architectures\": [\"OlmoeForCausalLM\"], \"vocab_size\": 1024, \"hidden_size\": 768, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 8, \"num_key_value_heads\": 8, \"num_experts\": 64, "
    "\"num_experts_per_tok\": 8, \"intermediate_size\": 512, \"max_position_embeddings\": 512, "
    "\"rms_norm_eps\": 1e-05}";

static void die(const char *message)
{
    fprintf(stderr, "bench_costs: %s\n", message);
    exit(1);
}

static uint64_t drawn;

static int64_t draw(int64_t n)
{
    return (int64_t)(cot_mix64(drawn++) % (uint64_t)n);
}

/* ---- the two models, taught by the same steps ---- */

struct errors {
    double *value; // of each step that counts, |foreseen - observed| / observed
    int count;
};

static struct {
    cot_cost alike; // ranks are one, which computes all
    cot_cost_load load;
    struct errors of[SHARES][2]; // the engine's model, and the other
    int most;
    int turn;        // whose steps count; -1: none do
    uint64_t *calls; // [layers][experts] tokens that called each
    int64_t experts;
} watched = {.turn = -1};

void __real_cot_cost_expect(cot_cost *cost, const cot_cost_step *step);
void __wrap_cot_cost_expect(cot_cost *cost, const cot_cost_step *step);
void __wrap_cot_cost_expect(cot_cost *cost, const cot_cost_step *step)
{
    __real_cot_cost_expect(cost, step);
    if (watched.alike.experts > 0) __real_cot_cost_expect(&watched.alike, step);
}

cot_cost_load __real_cot_cost_learn_routing(cot_cost *cost, const uint16_t *experts, int64_t layers,
                                            int64_t stride, int64_t tokens, const cot_expert_layout *layout,
                                            uint64_t *scratch);
cot_cost_load __wrap_cot_cost_learn_routing(cot_cost *cost, const uint16_t *experts, int64_t layers,
                                            int64_t stride, int64_t tokens, const cot_expert_layout *layout,
                                            uint64_t *scratch);
cot_cost_load __wrap_cot_cost_learn_routing(cot_cost *cost, const uint16_t *experts, int64_t layers,
                                            int64_t stride, int64_t tokens, const cot_expert_layout *layout,
                                            uint64_t *scratch)
{
    const int64_t chosen = (int64_t)cost->chosen;
    if (watched.alike.experts == 0)
        cot_cost_init(&watched.alike, cost->prior, (int64_t)cost->experts, chosen, 1);
    watched.load =
        __real_cot_cost_learn_routing(&watched.alike, experts, layers, stride, tokens, NULL, scratch);
    for (int64_t l = 0; l < layers; l++)
        for (int64_t i = 0; i < tokens * chosen; i++)
            watched.calls[l * watched.experts + experts[l * stride * chosen + i]]++;
    return __real_cot_cost_learn_routing(cost, experts, layers, stride, tokens, layout, scratch);
}

static void note(struct errors *to, const cot_cost *cost, double ns)
{
    if (to->count < watched.most && cost->predicted_ns > 0)
        to->value[to->count++] = fabs(cost->predicted_ns - ns) / ns;
}

void __real_cot_cost_learn(cot_cost *cost, const cot_cost_step *step, const cot_cost_load *load, double ns);
void __wrap_cot_cost_learn(cot_cost *cost, const cot_cost_step *step, const cot_cost_load *load, double ns);
void __wrap_cot_cost_learn(cot_cost *cost, const cot_cost_step *step, const cot_cost_load *load, double ns)
{
    if (watched.turn > 0) {
        note(&watched.of[watched.turn % SHARES][0], cost, ns);
        note(&watched.of[watched.turn % SHARES][1], &watched.alike, ns);
    }
    __real_cot_cost_learn(cost, step, load, ns);
    __real_cot_cost_learn(&watched.alike, step, &watched.load, ns);
}

/* ---- the engine ---- */

static cot_engine *open_engine(const char *model, int sequences)
{
    cot_engine_options o;
    cot_engine *engine;
    cot_error error;
    char *text = NULL;
    size_t bytes = sizeof shape - 1;
    cot_engine_options_init(&o);
    o.group.ranks = RANKS;
    o.batch.sequences = sequences;
    o.batch.step_tokens = 64;
    o.memory.kv_tokens = (int64_t)sequences * (MOST_PROMPT + MOST_TOKENS + 2 * COT_KV_PAGE);
    o.experts.movable = true;
    o.experts.spare_slots = SPARE;
    o.experts.migration_share = 1;
    if (model && !cot_path_ends(model, ".json")) {
        if (cot_engine_open(&engine, model, &o, NULL, &error) != COT_OK) die(error.message);
        return engine;
    }
    if (model && cot_file_read(&text, &bytes, model, 1 << 20, &error) != COT_OK) die(error.message);
    if (cot_engine_open_random(&engine, text ? text : shape, bytes, 1, &o, &error) != COT_OK)
        die(error.message);
    free(text);
    return engine;
}

/* Rank 0 gets experts, drawn one after the other, until they bear the share of each layer's calls so far. */
static void move_to(cot_engine *engine, double share)
{
    const cot_engine_info *info = cot_engine_describe(engine);
    const int32_t layers = (int32_t)info->moe_layers, experts = (int32_t)info->experts,
                  slots = info->expert_slots;
    cot_expert_map map;
    cot_error error;
    uint64_t id;
    if (cot_expert_map_new(&map, layers, experts, RANKS, slots, &error) != COT_OK) die(error.message);
    int32_t *order = calloc((size_t)experts, sizeof *order);
    if (!order) die("out of memory");
    for (int32_t l = 0; l < layers; l++) {
        const uint64_t *calls = watched.calls + (int64_t)l * experts;
        uint64_t all = 0, held = 0;
        int32_t taken[RANKS] = {0};
        map.layers[l] = info->moe_layer[l];
        for (int32_t e = 0; e < experts; e++) {
            const int64_t at = draw(e + 1);
            order[e] = order[at];
            order[at] = e;
            all += calls[e] + 1;
        }
        for (int32_t i = 0; i < experts; i++) {
            const int32_t e = order[i];
            const double with = (double)(held + calls[e] + 1);
            const int r =
                (with <= (share + 0.01) * (double)all && taken[0] < slots) || taken[1] == slots ? 0 : 1;
            if (!r) held += calls[e] + 1;
            map.expert[((int64_t)l * RANKS + r) * slots + taken[r]++] = e;
        }
    }
    if (cot_engine_move_experts(engine, &map, "a drawn placement", NULL, &id, &error) != COT_OK)
        die(error.message);
    cot_expert_map_free(&map);
    free(order);
}

static bool is_over(cot_engine *engine)
{
    cot_engine_moves moves;
    cot_engine_get_moves(engine, &moves);
    return !moves.id || moves.over;
}

static void submit(cot_engine *engine)
{
    int32_t prompt[MOST_PROMPT];
    cot_request request;
    cot_error error;
    uint64_t id;
    cot_request_init(&request);
    request.prompt = prompt;
    request.prompt_tokens = 1 + draw(MOST_PROMPT);
    for (int64_t i = 0; i < request.prompt_tokens; i++)
        prompt[i] = (int32_t)draw(cot_engine_describe(engine)->vocab);
    request.sampling.max_tokens = 1 + draw(MOST_TOKENS);
    request.sampling.ignore_eos = true;
    if (cot_engine_submit(engine, &id, &request, COT_HOME_ANY, &(cot_events){0}, &error) != COT_OK)
        die(error.message);
}

/* A number of sequences runs, another one after each WORD steps. */
static void step(cot_engine *engine, int sequences)
{
    static int64_t steps, wanted;
    static size_t left;
    cot_error error;
    if (steps++ % WORD == 0) wanted = 1 + draw(sequences);
    for (; (int64_t)left < wanted; left++) submit(engine);
    if (cot_engine_step(engine, &left, &error) != COT_OK) die(error.message);
}

/* ---- figures ---- */

static double mean(const struct errors *e)
{
    double sum = 0;
    for (int i = 0; i < e->count; i++) sum += e->value[i];
    return e->count ? sum / e->count : 0;
}

static void tell(void)
{
    double sum[2] = {0};
    int steps = 0;
    printf(
        "share of rank 0   steps   off by, mean: busiest rank   ranks alike   median: busiest rank   ranks "
        "alike\n");
    for (int s = 0; s < SHARES; s++) {
        struct errors *e = watched.of[s];
        if (!e[0].count) continue;
        const double means[2] = {mean(&e[0]), mean(&e[1])};
        for (int k = 0; k < 2; k++) sum[k] += means[k] * e[k].count;
        steps += e[0].count;
        printf("%13.0f %%   %5d %25.2f %% %11.2f %% %20.2f %% %11.2f %%\n", 100 * shares[s], e[0].count,
               100 * means[0], 100 * means[1], 100 * bench_median(e[0].value, e[0].count),
               100 * bench_median(e[1].value, e[1].count));
    }
    if (steps)
        printf("all: %.2f %% of a step's time with the busiest rank, %.2f %% with ranks alike: %.2f of it\n",
               100 * sum[0] / steps, 100 * sum[1] / steps, sum[0] / sum[1]);
}

int main(int argc, char **argv)
{
    const int turns = argc > 2 ? atoi(argv[2]) : 9, steps = argc > 3 ? atoi(argv[3]) : 150,
              sequences = argc > 4 ? atoi(argv[4]) : 16;
    if (argc > 5 || turns < 1 || turns > 1000 || steps < 1 || steps > MOST_STEPS || sequences < 1 ||
        sequences > MOST_SEQUENCES)
        die("usage: bench_costs [MODEL [TURNS [STEPS [SEQUENCES]]]]");
    cot_engine *engine = open_engine(argc > 1 && strcmp(argv[1], "-") != 0 ? argv[1] : NULL, sequences);
    const cot_engine_info *info = cot_engine_describe(engine);
    watched.experts = info->experts;
    watched.calls = calloc((size_t)(info->moe_layers * info->experts), sizeof *watched.calls);
    watched.most = turns * steps;
    for (int s = 0; s < SHARES; s++)
        for (int k = 0; k < 2; k++) {
            watched.of[s][k].value = calloc((size_t)watched.most, sizeof(double));
            if (!watched.of[s][k].value || !watched.calls) die("out of memory");
        }
    for (int i = 0; i < steps; i++) step(engine, sequences); // tells what is called
    for (int turn = 0; turn <= turns; turn++) {
        move_to(engine, shares[turn % SHARES]);
        while (!is_over(engine)) step(engine, sequences);
        watched.turn = turn;
        for (int i = 0; i < steps; i++) step(engine, sequences);
        watched.turn = -1;
    }
    tell();
    for (int s = 0; s < SHARES; s++)
        for (int k = 0; k < 2; k++) free(watched.of[s][k].value);
    free(watched.calls);
    cot_engine_close(engine);
    return 0;
}
