/* Measures what it takes to decide what a step holds: an engine whose sequences all get a token a step, or as many of them as a step has
 * room for, chosen by their experts; of each step the processor time of all threads, and of that what deciding took: admitting, planning, and
 * telling the schedule anew what sequences call.
 *
 *     bench_steps [MODEL [SEQUENCES [TOKENS [STEPS]]]]    models/tiny, 1024, 512, 40
 *
 * Medians of steps; reading the clock is taken off. */
#include "engine/engine_state.h"
#include "processor_time.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PROMPT = 16,
    BEFORE = 300, // steps until all prompts are fed
    MOST_SEQUENCES = 1024,
    MOST_STEPS = 1000
};

static void die(const char *message)
{
    fprintf(stderr, "bench_steps: %s\n", message);
    exit(1);
}

/* ---- what deciding takes, on the thread of the loop ---- */

static bench_part deciding;

cot_request_state *__real_cot_scheduler_admit(cot_scheduler *s);
cot_request_state *__wrap_cot_scheduler_admit(cot_scheduler *s);
cot_request_state *__wrap_cot_scheduler_admit(cot_scheduler *s)
{
    const int64_t began_ns = bench_part_begin();
    cot_request_state *admitted = __real_cot_scheduler_admit(s);
    bench_part_end(&deciding, began_ns);
    return admitted;
}

cot_step __real_cot_scheduler_plan(cot_scheduler *s);
cot_step __wrap_cot_scheduler_plan(cot_scheduler *s);
cot_step __wrap_cot_scheduler_plan(cot_scheduler *s)
{
    const int64_t began_ns = bench_part_begin();
    const cot_step step = __real_cot_scheduler_plan(s);
    bench_part_end(&deciding, began_ns);
    return step;
}

void __real_cot_profiles_go_on(const cot_profiles *p, const cot_profile *profile, cot_request_state *r,
                               const cot_span *span);
void __wrap_cot_profiles_go_on(const cot_profiles *p, const cot_profile *profile, cot_request_state *r,
                               const cot_span *span);
void __wrap_cot_profiles_go_on(const cot_profiles *p, const cot_profile *profile, cot_request_state *r,
                               const cot_span *span)
{
    const int64_t began_ns = bench_part_begin();
    __real_cot_profiles_go_on(p, profile, r, span);
    bench_part_end(&deciding, began_ns);
}

/* ---- the engine ---- */

static cot_engine *open_engine(const char *model, int sequences, int steps)
{
    cot_engine_options o;
    cot_engine_options_init(&o);
    o.batch.sequences = sequences;
    o.batch.step_tokens = sequences;
    o.batch.schedule = "experts";
    o.memory.block_tokens = 16;
    o.memory.kv_tokens = (int64_t)sequences * (PROMPT + 2 * steps + BEFORE + COT_KV_PAGE);
    o.watch.popularity_half_life = 65536;
    cot_engine *engine;
    cot_error error;
    if (cot_engine_open(&engine, model, &o, NULL, &error) != COT_OK) die(error.message);
    return engine;
}

static void submit_all(cot_engine *engine, int sequences, int steps)
{
    for (int i = 0; i < sequences; i++) {
        int32_t ids[PROMPT];
        uint64_t id;
        cot_error error;
        for (int t = 0; t < PROMPT; t++)
            ids[t] = (int32_t)(1 + (7 * i + 13 * t + i * t % 5) % (engine->info.vocab - 1));
        cot_request r;
        cot_request_init(&r);
        r.prompt = ids;
        r.prompt_tokens = PROMPT;
        r.sampling.max_tokens = 2 * steps + BEFORE;
        r.sampling.ignore_eos = true;
        if (cot_engine_submit(engine, &id, &r, COT_HOME_ANY, &(cot_events){0}, &error) != COT_OK)
            die(error.message);
    }
}

/* Whether all prompts are fed. */
static bool all_decode(const cot_engine *engine, int sequences)
{
    const cot_scheduler *s = &engine->loop.scheduler;
    for (int64_t i = 0; i < s->active_count; i++)
        if (s->active[i]->fed < s->active[i]->prompt_tokens) return false;
    return s->active_count == sequences;
}

static void step(cot_engine *engine)
{
    size_t left;
    cot_error error;
    if (cot_engine_step(engine, &left, &error) != COT_OK) die(error.message);
}

static void measure(cot_engine *engine, int tokens, int steps, double own_ns)
{
    double *step_ns = calloc((size_t)steps, sizeof *step_ns),
           *part_ns = calloc((size_t)steps, sizeof *part_ns);
    if (!step_ns || !part_ns) die("out of memory");
    engine->loop.scheduler.limits.step_tokens = tokens;
    for (int i = 0; i < steps; i++) {
        const bench_moment before = bench_now(&deciding);
        step(engine);
        const bench_moment now = bench_now(&deciding);
        step_ns[i] = (double)(now.all_ns - before.all_ns);
        part_ns[i] = (double)(now.part_ns - before.part_ns) - own_ns * (double)(now.parts - before.parts);
    }
    const double all = bench_median(step_ns, steps), part = bench_median(part_ns, steps);
    if (engine->loop.scheduler.active_count < tokens) die("sequences ended before they were measured");
    printf("%d of %lld sequences a step, %d steps: a step takes %.3f ms of processors' time, deciding %.4f "
           "ms of it, %.3f %%\n",
           tokens, (long long)engine->loop.scheduler.active_count, steps, all / 1e6, part / 1e6,
           100 * part / all);
    free(step_ns);
    free(part_ns);
}

int main(int argc, char **argv)
{
    const char *model = argc > 1 ? argv[1] : "models/tiny";
    const int sequences = argc > 2 ? atoi(argv[2]) : 1024, tokens = argc > 3 ? atoi(argv[3]) : 512,
              steps = argc > 4 ? atoi(argv[4]) : 40;
    if (argc > 5 || sequences < 2 || sequences > MOST_SEQUENCES || tokens < 1 || tokens >= sequences ||
        steps < 1 || steps > MOST_STEPS)
        die("usage: bench_steps [MODEL [SEQUENCES [TOKENS [STEPS]]]], with fewer tokens than sequences");
    const double own_ns = bench_part_of_nothing();
    cot_engine *engine = open_engine(model, sequences, steps);
    submit_all(engine, sequences, steps);
    while (!all_decode(engine, sequences)) step(engine);
    measure(engine, sequences, steps, own_ns);
    measure(engine, tokens, steps, own_ns);
    cot_engine_close(engine);
    return 0;
}
