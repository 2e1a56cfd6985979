/* Which random number chooses a token: that of (the request's seed, stream 0, the token's place in the sequence), and no
 * other, so that a text can be continued as if it had been made in one go. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/seed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 13, MADE = 40, SEEDS = 4 };
static const double temperature = 1.7;

/* ---- the numbers and the choice, written down once more ---- */

static uint64_t mix(uint64_t x) // splitmix64
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static double uniform(uint64_t seed, uint64_t stream, uint64_t place)
{
    return (double)(mix(mix(mix(seed) ^ stream) ^ place) >> 11) / 9007199254740992.0; // 2^53
}

/* Tokens' chances laid end to end in the order of ids; the token on which `where` of [0, 1) falls. */
static int32_t token_at(const float *logits, int64_t vocab, double where)
{
    float best = logits[0];
    for (int64_t t = 1; t < vocab; t++) best = logits[t] > best ? logits[t] : best;
    double total = 0, sum = 0;
    for (int64_t t = 0; t < vocab; t++) total += exp((float)(((double)logits[t] - best) / temperature));
    for (int32_t t = 0; t < vocab; t++)
        if ((sum += exp((float)(((double)logits[t] - best) / temperature))) > where * total) return t;
    return (int32_t)vocab - 1;
}

/* ---- tests ---- */

static cot_request sampled(const int32_t *prompt, int64_t tokens, int64_t more, uint64_t seed)
{
    cot_request r = {.prompt = prompt, .prompt_tokens = tokens, .all_logits = true};
    cot_sampling_init(&r.sampling);
    r.sampling.temperature = temperature;
    r.sampling.max_tokens = more;
    r.sampling.seed = seed;
    r.sampling.ignore_eos = true;
    return r;
}

static void each_place_has_its_number(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    int32_t *prompt = drawn_ids(PROMPT, 4096, &seed);
    cot_engine *engine = must_open(&(struct setting){.folder = TINY, .ranks = 2, .kv_tokens = 512});
    cot_request requests[SEEDS];
    for (size_t i = 0; i < SEEDS; i++) requests[i] = sampled(prompt, 1 + (int64_t)i * 4, MADE, draw(&seed));
    requests[1].sampling.seed = requests[0].sampling.seed;
    struct records all = must_run(engine, requests, SEEDS);
    for (size_t i = 0; i < SEEDS; i++) {
        const struct record *r = &all.record[i];
        assert_int_equal(r->sampled_tokens, MADE);
        for (int64_t n = 0; n < MADE; n++) {
            const int64_t place = requests[i].prompt_tokens + n;
            const float *logits = r->logits + (place - 1) * all.info->vocab;
            assert_int_equal(r->sampled[n], token_at(logits, all.info->vocab,
                                                     uniform(requests[i].sampling.seed, 0, (uint64_t)place)));
        }
    }
    records_free(&all);
    cot_engine_close(engine);
    free(prompt);
}

/* A text that was begun elsewhere goes on with the very tokens that it would have had. */
static void a_continued_text_is_the_same(void **state)
{
    (void)state;
    static const int64_t begun[] = {1, 2, 19, MADE - 1};
    uint64_t seed = test_seed();
    int32_t text[PROMPT + MADE], *prompt = drawn_ids(PROMPT, 4096, &seed);
    memcpy(text, prompt, PROMPT * sizeof *text);
    cot_engine *engine = must_open(&(struct setting){.folder = TINY, .ranks = 2, .kv_tokens = 1024});
    const uint64_t own = draw(&seed);
    cot_request whole = sampled(prompt, PROMPT, MADE, own);
    struct records one_go = must_run(engine, &whole, 1);
    memcpy(text + PROMPT, one_go.record[0].sampled, MADE * sizeof *text);
    for (size_t i = 0; i < sizeof begun / sizeof *begun; i++) {
        cot_request rest = sampled(text, PROMPT + begun[i], MADE - begun[i], own);
        struct records all = must_run(engine, &rest, 1);
        assert_memory_equal(all.record[0].sampled, text + PROMPT + begun[i],
                            (size_t)(MADE - begun[i]) * sizeof *text);
        records_free(&all);
    }
    records_free(&one_go);
    cot_engine_close(engine);
    free(prompt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_place_has_its_number),
        cmocka_unit_test(a_continued_text_is_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
