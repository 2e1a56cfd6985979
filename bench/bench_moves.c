/* Measures what experts that move cost those who wait for tokens: pairs of runs of the same requests, one with experts that stay and one whose
 * experts are dealt anew as soon as they are where they were to be, with the share of a step that `--migration-share` gives them. Texts
 * are compared.
 *
 *     bench_moves [MODEL [RANKS [PAIRS [STEPS [SEQUENCES]]]]]    models/tiny, 4, 15, 1000, 8
 *
 * Of each pair: the 99th percentile of the time between two tokens of a request, without moves and with them; then the median of
 * their ratios, what a rank's thread computed at most for copies and placements behind one step, of the median step, and how long ranks
 * took to agree on placements. */
#include "base/clock.h"
#include "base/rng.h"
#include "engine/engine_state.h"
#include "model/runner_state.h"
#include "processor_time.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { PROMPT = 16, TOKENS = 100 };

static void die(const char *message)
{
    fprintf(stderr, "bench_moves: %s\n", message);
    exit(1);
}

static void *allocate(size_t n, size_t bytes)
{
    void *memory = calloc(n + 1, bytes);
    if (!memory) die("out of memory");
    return memory;
}

/* ---- numbers ---- */

struct series {
    double *value;
    size_t count, room;
};

static void add(struct series *s, double value)
{
    if (s->count == s->room) {
        s->room = 2 * s->room + 1024;
        s->value = realloc(s->value, s->room * sizeof *s->value);
        if (!s->value) die("out of memory");
    }
    s->value[s->count++] = value;
}

/* The value that a part of all lie below; 0 of none. */
static double part_of(struct series *s, double part)
{
    if (!s->count) return 0;
    qsort(s->value, s->count, sizeof *s->value, bench_by_size);
    const size_t at = (size_t)(part * (double)s->count);
    return s->value[at < s->count ? at : s->count - 1];
}

/* ---- what ranks compute for moves ---- */

static _Atomic int64_t moving_ns[COT_MAX_RANKS]; // processor time of the rank's thread

cot_status __real_cot_runner_copy(cot_runner *r, const cot_runner_chunk *chunk, int64_t count,
                                  cot_runner_verdict *verdict, cot_error *error);
cot_status __wrap_cot_runner_copy(cot_runner *r, const cot_runner_chunk *chunk, int64_t count,
                                  cot_runner_verdict *verdict, cot_error *error);
cot_status __wrap_cot_runner_copy(cot_runner *r, const cot_runner_chunk *chunk, int64_t count,
                                  cot_runner_verdict *verdict, cot_error *error)
{
    const int64_t began = bench_ns_of(CLOCK_THREAD_CPUTIME_ID);
    const cot_status status = __real_cot_runner_copy(r, chunk, count, verdict, error);
    atomic_fetch_add(&moving_ns[r->fabric->rank], bench_ns_of(CLOCK_THREAD_CPUTIME_ID) - began);
    return status;
}

void __real_cot_runner_place(cot_runner *r, const int32_t *words, int64_t count);
void __wrap_cot_runner_place(cot_runner *r, const int32_t *words, int64_t count);
void __wrap_cot_runner_place(cot_runner *r, const int32_t *words, int64_t count)
{
    const int64_t began = bench_ns_of(CLOCK_THREAD_CPUTIME_ID);
    __real_cot_runner_place(r, words, count);
    atomic_fetch_add(&moving_ns[r->fabric->rank], bench_ns_of(CLOCK_THREAD_CPUTIME_ID) - began);
}

static struct series epochs_ns; // until all ranks had adopted each

cot_status __real_cot_engine_group_place(cot_engine_group *g, const int32_t *words, int64_t count,
                                         cot_error *error);
cot_status __wrap_cot_engine_group_place(cot_engine_group *g, const int32_t *words, int64_t count,
                                         cot_error *error);
cot_status __wrap_cot_engine_group_place(cot_engine_group *g, const int32_t *words, int64_t count,
                                         cot_error *error)
{
    const int64_t began = cot_now_ns();
    const cot_status status = __real_cot_engine_group_place(g, words, count, error);
    add(&epochs_ns, (double)(cot_now_ns() - began));
    return status;
}

/* ---- a run ---- */

struct run {
    struct series gaps_ns, steps_ns; // between two tokens of a request; of steps, moves aside
    uint64_t *text;                  // [requests] a hash of each one's tokens
    uint64_t requests;               // that were submitted
    int64_t worst_ns;                // that one rank computed for moves behind one step
    int64_t placements;              // that were asked for
};

/* A request that runs. */
struct slot {
    struct run *run;
    uint64_t number;
    int64_t told_ns; // its last token; 0: none was
    bool over;
};

static bool take_token(void *context, uint64_t request, int32_t token)
{
    struct slot *s = context;
    uint64_t *text = &s->run->text[s->number];
    const int64_t now = cot_now_ns();
    (void)request;
    *text = XXH3_64bits_withSeed(&token, sizeof token, *text);
    if (s->told_ns) add(&s->run->gaps_ns, (double)(now - s->told_ns));
    s->told_ns = now;
    return true;
}

static void take_finish(void *context, uint64_t request, cot_finish finish)
{
    (void)request;
    (void)finish;
    ((struct slot *)context)->over = true;
}

static void submit(cot_engine *engine, struct slot *s, struct run *run)
{
    int32_t prompt[PROMPT];
    cot_request request;
    cot_error error;
    uint64_t id;
    *s = (struct slot){.run = run, .number = run->requests++};
    for (uint64_t i = 0; i < PROMPT; i++)
        prompt[i] =
            (int32_t)(cot_mix64(s->number * PROMPT + i) % (uint64_t)cot_engine_describe(engine)->vocab);
    cot_request_init(&request);
    request.prompt = prompt;
    request.prompt_tokens = PROMPT;
    request.sampling.max_tokens = TOKENS;
    request.sampling.ignore_eos = true;
    const cot_events events = {.context = s, .on_token = take_token, .on_finish = take_finish};
    if (cot_engine_submit(engine, &id, &request, COT_HOME_ANY, &events, &error) != COT_OK) die(error.message);
}

/* Every expert of every layer anywhere, where there is room. */
static void move_anywhere(cot_engine *engine)
{
    static uint64_t drawn;
    const cot_engine_info *info = cot_engine_describe(engine);
    const int32_t layers = (int32_t)info->moe_layers, experts = (int32_t)info->experts, ranks = info->ranks,
                  slots = info->expert_slots;
    cot_expert_map map;
    cot_error error;
    uint64_t id;
    if (cot_expert_map_new(&map, layers, experts, ranks, slots, &error) != COT_OK) die(error.message);
    for (int32_t l = 0; l < layers; l++) {
        int32_t *place = map.expert + (int64_t)l * ranks * slots;
        map.layers[l] = info->moe_layer[l];
        for (int32_t e = 0; e < experts; e++) {
            int32_t p;
            do p = (int32_t)(cot_mix64(drawn++) % (uint64_t)(ranks * slots));
            while (place[p] >= 0);
            place[p] = e;
        }
    }
    if (cot_engine_move_experts(engine, &map, "a drawn placement", NULL, &id, &error) != COT_OK)
        die(error.message);
    cot_expert_map_free(&map);
}

static bool is_over(cot_engine *engine)
{
    cot_engine_moves moves;
    cot_engine_get_moves(engine, &moves);
    return !moves.id || moves.over;
}

static size_t step(cot_engine *engine, struct run *run)
{
    int64_t before[COT_MAX_RANKS];
    size_t left;
    cot_error error;
    for (int r = 0; r < COT_MAX_RANKS; r++) before[r] = atomic_load(&moving_ns[r]);
    if (cot_engine_step(engine, &left, &error) != COT_OK) die(error.message);
    for (int r = 0; r < COT_MAX_RANKS; r++) {
        const int64_t ns = atomic_load(&moving_ns[r]) - before[r];
        if (ns > run->worst_ns) run->worst_ns = ns;
    }
    return left;
}

static struct run live(cot_engine *engine, int64_t steps, int sequences, bool moving)
{
    const uint64_t most = (uint64_t)sequences * (uint64_t)(steps / TOKENS + 2);
    struct run run = {.text = allocate(most, sizeof *run.text)};
    struct slot *slot = allocate((size_t)sequences, sizeof *slot);
    for (int i = 0; i < sequences; i++) submit(engine, &slot[i], &run);
    for (int64_t n = 0; n < steps; n++) {
        if (moving && is_over(engine)) {
            move_anywhere(engine);
            run.placements++;
        }
        const int64_t began = cot_now_ns();
        step(engine, &run);
        add(&run.steps_ns, (double)(cot_now_ns() - began));
        for (int i = 0; i < sequences; i++)
            if (slot[i].over && run.requests < most) submit(engine, &slot[i], &run);
    }
    while (step(engine, &run)) continue;
    while (!is_over(engine)) step(engine, &run);
    free(slot);
    return run;
}

/* ---- pairs ---- */

static void compare_texts(const struct run *a, const struct run *b)
{
    if (a->requests != b->requests) die("runs differ in their requests");
    for (uint64_t i = 0; i < a->requests; i++)
        if (a->text[i] != b->text[i]) die("a text is another where experts move");
}

static void forget(struct run *run)
{
    free(run->gaps_ns.value);
    free(run->steps_ns.value);
    free(run->text);
}

static int64_t number_of(int argc, char **argv, int i, int64_t usual)
{
    const int64_t n = argc > i ? atoll(argv[i]) : usual;
    if (n < 1) die("takes numbers from 1");
    return n;
}

static cot_engine *open_engine(const char *model, int ranks, int sequences)
{
    cot_engine *engine;
    cot_engine_options options;
    cot_error error;
    cot_engine_options_init(&options);
    options.group.ranks = ranks;
    options.batch.sequences = sequences;
    options.experts.combine = "exact"; // or texts differ, as they do by placements
    options.experts.movable = true;
    options.experts.spare_slots = 1;
    if (cot_engine_open(&engine, model, &options, NULL, &error) != COT_OK) die(error.message);
    return engine;
}

int main(int argc, char **argv)
{
    const int ranks = (int)number_of(argc, argv, 2, 4), pairs = (int)number_of(argc, argv, 3, 15),
              sequences = (int)number_of(argc, argv, 5, 8);
    const int64_t steps = number_of(argc, argv, 4, 1000);
    cot_engine *engine = open_engine(argc > 1 ? argv[1] : "models/tiny", ranks, sequences);
    struct series ratios = {0};
    double worst = 0;
    int64_t placements = 0;
    uint64_t texts = 0;
    struct run first = live(engine, steps / 4 + 1, sequences, false); // which nobody counts
    forget(&first);
    printf("pair  step ms  p99 between tokens, ms: still  moving   ratio  moves beside a step at most\n");
    for (int p = 0; p < pairs; p++) {
        struct run run[2]; // still, moving: each is the first as often as the other
        for (int i = 0; i < 2; i++) run[(p + i) % 2] = live(engine, steps, sequences, (p + i) % 2);
        compare_texts(&run[0], &run[1]);
        const double step_ns = part_of(&run[0].steps_ns, 0.5), still = part_of(&run[0].gaps_ns, 0.99),
                     moving = part_of(&run[1].gaps_ns, 0.99), share = (double)run[1].worst_ns / step_ns;
        printf("%4d %8.3f %30.3f %7.3f %7.3f %27.1f %%\n", p + 1, step_ns / 1e6, still / 1e6, moving / 1e6,
               moving / still, 100 * share);
        add(&ratios, moving / still);
        if (share > worst) worst = share;
        placements += run[1].placements;
        texts += run[1].requests;
        forget(&run[0]);
        forget(&run[1]);
    }
    printf("median ratio %.3f; a rank's moves beside one step took %.1f %% of the median step at most\n",
           part_of(&ratios, 0.5), 100 * worst);
    printf("%zu epochs, of which ranks adopted half in %.0f us, 99 of 100 in %.0f us\n", epochs_ns.count,
           part_of(&epochs_ns, 0.5) / 1e3, part_of(&epochs_ns, 0.99) / 1e3);
    printf("%lld placements, %llu texts the same\n", (long long)placements, (unsigned long long)texts);
    cot_engine_close(engine);
    free(ratios.value);
    free(epochs_ns.value);
    return 0;
}
