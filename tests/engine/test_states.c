/* Layers that have a state in place of keys: a token's logits are the same bits whatever chunks its text is fed in, the company, the
 * number of ranks where sequences stay at home, and after a preemption. Models and requests are drawn. */
#include "harness/cmocka.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/engine/steps.h"
#include "harness/seed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = 67, LONGEST = 150, SEQUENCES = 3 };

struct model {
    char config[1024];
    uint64_t seed; // of weights
};

static int64_t among(uint64_t *seed, int64_t least, int64_t most)
{
    return least + (int64_t)(draw(seed) % (uint64_t)(most - least + 1));
}

/* Heads that divide evenly and not, widths that fill no panel or more than one, a state in all layers but one or in every second. */
static struct model drawn_model(uint64_t *seed)
{
    struct model m = {.seed = draw(seed)};
    const int64_t keys = among(seed, 1, 3), each = among(seed, 1, 3), kv = among(seed, 1, 2);
    snprintf(
        m.config, sizeof m.config,
        "{\"architectures\": [\"%s\"], \"vocab_size\": %d, \"hidden_size\": 48, \"intermediate_size\": 40, "
        "\"num_hidden_layers\": 3, \"num_attention_heads\": %d, \"num_key_value_heads\": %d, "
        "\"head_dim\": 16, \"num_experts\": 6, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "
        "\"shared_expert_intermediate_size\": 20, \"full_attention_interval\": %d, "
        "\"linear_num_key_heads\": %d, \"linear_num_value_heads\": %d, \"linear_key_head_dim\": %d, "
        "\"linear_value_head_dim\": %d, \"linear_conv_kernel_dim\": %d, "
        "\"max_position_embeddings\": 320, \"eos_token_id\": 2}",
        draw(seed) % 2 ? "Qwen3NextForCausalLM" : "Qwen3_5MoeForCausalLM", VOCAB, (int)(2 * kv), (int)kv,
        (int)among(seed, 2, 3), (int)keys, (int)(keys * each), (int)among(seed, 1, 20),
        (int)among(seed, 1, 70), (int)among(seed, 1, 5));
    return m;
}

static struct records run(const struct model *m, const struct setting *s, const cot_request *requests,
                          size_t count, cot_engine_info *info)
{
    cot_engine_options options = options_of(s);
    cot_engine *engine = must_open_random(m->config, m->seed, &options);
    struct records all = must_run(engine, requests, count);
    *info = *cot_engine_describe(engine);
    all.info = info;
    cot_engine_close(engine);
    return all;
}

static void expect_logits(const struct records *found, size_t i, const struct records *expected,
                          int64_t tokens, const struct model *m, const char *when)
{
    if (memcmp(found->record[i].logits, expected->record[0].logits,
               sizeof(float) * (size_t)(tokens * VOCAB)) != 0)
        fail_msg("%s: other logits; %s", when, m->config);
}

/* Each alone, whole and on one rank; then all of them together, in chunks. */
static void chunks_and_company(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    static const char *const precisions[] = {"fp32", "bf16"};
    for (int round = 0; round < 3; round++) {
        const struct model m = drawn_model(&seed);
        const char *precision = precisions[draw(&seed) % 2];
        cot_engine_info info;
        int32_t *ids[SEQUENCES];
        cot_request requests[SEQUENCES];
        struct records alone[SEQUENCES];
        const struct setting whole = {.ranks = 1,
                                      .threads = 1,
                                      .attention = "dp",
                                      .precision = precision,
                                      .step_tokens = 256,
                                      .kv_tokens = 320};
        for (int i = 0; i < SEQUENCES; i++) {
            const int64_t tokens = i ? among(&seed, 1, LONGEST) : LONGEST;
            ids[i] = drawn_ids(tokens, VOCAB, &seed);
            requests[i] = forced_request(ids[i], tokens, among(&seed, (tokens + 1) / 2, tokens));
            alone[i] = run(&m, &whole, &requests[i], 1, &info);
        }
        for (int ranks = 1; ranks <= 3; ranks++) {
            const struct setting s = {.ranks = ranks,
                                      .threads = 2,
                                      .attention = "dp",
                                      .precision = precision,
                                      .sequences = SEQUENCES,
                                      .step_tokens = among(&seed, 3, 40),
                                      .kv_tokens = 640};
            struct records all = run(&m, &s, requests, SEQUENCES, &info);
            for (size_t i = 0; i < SEQUENCES; i++)
                expect_logits(&all, i, &alone[i], requests[i].prompt_tokens + requests[i].forced_tokens, &m,
                              "in chunks, beside others");
            records_free(&all);
        }
        for (int i = 0; i < SEQUENCES; i++) {
            records_free(&alone[i]);
            free(ids[i]);
        }
    }
}

/* Heads on two ranks, of which one may have none: sums of two parts have one order. */
static void split_heads(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    static const char *const pipelines[] = {NULL, "s-moe"};
    for (int round = 0; round < 3; round++) {
        const struct model m = drawn_model(&seed);
        cot_engine_info info;
        int32_t *ids = drawn_ids(LONGEST, VOCAB, &seed);
        const cot_request request = forced_request(ids, LONGEST, LONGEST - 3);
        struct setting s = {.ranks = 2,
                            .threads = 2,
                            .attention = "tp",
                            .precision = "fp32",
                            .step_tokens = 256,
                            .kv_tokens = 320,
                            .pipeline = pipelines[draw(&seed) % 2]};
        struct records whole = run(&m, &s, &request, 1, &info);
        s.step_tokens = among(&seed, 1, 40);
        struct records chunks = run(&m, &s, &request, 1, &info);
        expect_logits(&chunks, 0, &whole, LONGEST, &m, "in chunks");
        records_free(&whole);
        records_free(&chunks);
        free(ids);
    }
}

/* More than there are pages for: some begin anew, where another's state was. */
static void preempted(void **state)
{
    (void)state;
    enum { PROMPT = 60, SAID = 20, COPIES = 4 };
    uint64_t seed = test_seed();
    const struct model m = drawn_model(&seed);
    const struct setting s = {
        .ranks = 1, .attention = "tp", .precision = "fp32", .sequences = COPIES, .kv_tokens = 64};
    cot_engine_options options = options_of(&s);
    cot_engine *engine = must_open_random(m.config, m.seed, &options);
    int32_t *ids[COPIES];
    cot_request requests[COPIES];
    struct records alone[COPIES];
    for (int i = 0; i < COPIES; i++) {
        ids[i] = drawn_ids(PROMPT, VOCAB, &seed);
        requests[i] = generating_from(ids[i], PROMPT, SAID);
        requests[i].sampling.ignore_eos = true;
        alone[i] = must_run(engine, &requests[i], 1);
    }
    struct records all = must_run(engine, requests, COPIES);
    cot_engine_load load;
    cot_engine_get_load(engine, &load);
    assert_true(load.preemptions > 0);
    for (int i = 0; i < COPIES; i++) {
        assert_int_equal(all.record[i].sampled_tokens, SAID);
        assert_memory_equal(all.record[i].sampled, alone[i].record[0].sampled, SAID * sizeof(int32_t));
        records_free(&alone[i]);
        free(ids[i]);
    }
    records_free(&all);
    cot_engine_close(engine);
}

/* ---- snapshots ---- */

enum { TURNS = 3, ANSWER = 21 };

/* A conversation so far, and how likely its last answer's tokens were. */
struct talk {
    int32_t ids[320];
    int64_t tokens;
    float logprob[ANSWER];
    int64_t said, cached;
};

static void take_admission(void *context, uint64_t request, int64_t cached)
{
    (void)request;
    ((struct talk *)context)->cached = cached;
}

static void take_sampled(void *context, uint64_t request, const cot_sampled *sampled)
{
    (void)request;
    struct talk *talk = context;
    assert_true(talk->said < ANSWER);
    talk->logprob[talk->said++] = sampled->logprob;
    talk->ids[talk->tokens++] = sampled->token;
}

/* The next turn's answers, which all talks get at once. */
static void answer(cot_engine *engine, struct talk *talks, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        cot_request request = generating_from(talks[i].ids, talks[i].tokens, ANSWER);
        request.sampling.ignore_eos = true;
        request.logprobs = 0;
        talks[i].said = 0;
        const cot_events events = {
            .context = &talks[i], .on_admit = take_admission, .on_sampled = take_sampled};
        must_submit(engine, &request, COT_HOME_ANY, &events);
    }
    must_finish(engine);
}

static struct talk talk_of(const struct talk *of, int64_t more, uint64_t *seed)
{
    struct talk talk = *of;
    for (int64_t i = 0; i < more; i++) talk.ids[talk.tokens++] = (int32_t)(3 + draw(seed) % (VOCAB - 3));
    return talk;
}

/* Turns of conversations, each of which goes on from the last snapshot of the one before, beside others: every answer is what an
 * engine says that keeps nothing, to the bit, and only what is behind the last whole block is computed. Where heads are split bf16 is
 * left out: a row's home rounds what comes from the other rank alone, and where its home is the company says. */
static void turns_go_on(void **state)
{
    (void)state;
    enum { BLOCK = 16, TALKS = 2, TAIL = 8 /* of a prompt, behind what is kept */ };
    uint64_t seed = test_seed();
    for (int round = 0; round < 4; round++) {
        const struct model m = drawn_model(&seed);
        struct setting s = {.ranks = 1 + round % 2,
                            .threads = 2,
                            .attention = round < 2 ? "dp" : "tp",
                            .precision = round < 3 && draw(&seed) % 2 ? "bf16" : "fp32",
                            .sequences = 3,
                            .step_tokens = among(&seed, 3, 90),
                            .kv_tokens = 1280};
        cot_engine_options options = options_of(&s);
        cot_engine *plain = must_open_random(m.config, m.seed, &options);
        options.memory.block_tokens = BLOCK;
        cot_engine *keeps = must_open_random(m.config, m.seed, &options);
        assert_int_equal(cot_engine_describe(keeps)->block_tokens, BLOCK);
        struct talk talks[TALKS] = {0}, again[TALKS];
        for (int turn = 0; turn < TURNS; turn++) {
            struct talk expected[TALKS];
            int64_t fed[TALKS];
            for (int i = 0; i < TALKS; i++) {
                fed[i] = turn ? talks[i].tokens - 1 : 0;
                talks[i] = expected[i] = talk_of(&talks[i], among(&seed, 1, turn ? 40 : 90), &seed);
            }
            memcpy(again, talks, sizeof again);
            answer(keeps, talks, TALKS);
            answer(plain, expected, TALKS);
            if (!turn) answer(keeps, again, TALKS); // the same prompts, from within what was one span
            for (int i = 0; !turn && i < TALKS; i++) {
                assert_int_equal(again[i].cached, (again[i].tokens - ANSWER - TAIL) / BLOCK * BLOCK);
                if (memcmp(again[i].logprob, expected[i].logprob, sizeof expected[i].logprob) != 0)
                    fail_msg("again: another answer; %d ranks, %s, %s", s.ranks, s.attention, m.config);
            }
            for (int i = 0; i < TALKS; i++) {
                assert_int_equal(expected[i].cached, 0);
                assert_int_equal(talks[i].cached, fed[i] / BLOCK * BLOCK);
                if (memcmp(talks[i].logprob, expected[i].logprob, sizeof expected[i].logprob) != 0 ||
                    memcmp(talks[i].ids, expected[i].ids, sizeof expected[i].ids) != 0)
                    fail_msg("turn %d: another answer; %d ranks, %s, %s", turn, s.ranks, s.attention,
                             m.config);
            }
        }
        cot_engine_close(plain);
        cot_engine_close(keeps);
    }
}

/* Memory for states that there is not is told with the numbers. */
static void too_many_snapshots(void **state)
{
    (void)state;
    static const char config[] =
        "{\"architectures\": [\"Qwen3_5MoeForCausalLM\"], \"vocab_size\": 67, \"hidden_size\": 48, "
        "\"num_hidden_layers\": 8, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 16, "
        "\"num_experts\": 6, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "
        "\"shared_expert_intermediate_size\": 20, \"max_position_embeddings\": 320, \"eos_token_id\": 2}";
    struct setting s = {.ranks = 1, .kv_tokens = 64, .sequences = 2};
    cot_engine_options options = options_of(&s);
    options.memory.block_tokens = 16;
    options.memory.snapshots = 1 << 20;
    cot_engine *engine;
    cot_error error;
    assert_int_equal(cot_engine_open_random(&engine, config, sizeof config - 1, 1, &options, &error),
                     COT_OUT_OF_MEMORY);
    assert_non_null(strstr(error.message, "states of 2 sequences and 1048576 snapshots, 13.2 MB each"));
    options.memory.total_bytes = (size_t)16 << 40; // states are in it
    assert_int_equal(cot_engine_open_random(&engine, config, sizeof config - 1, 1, &options, &error),
                     COT_OUT_OF_MEMORY);
    assert_non_null(strstr(error.message, ", 17592.19 GB of it for KV pages, states and spare slots, "));
    assert_non_null(
        strstr(error.message, " of that for states of 2 sequences and 1048576 snapshots, 13.2 MB each; "));
    options.memory.total_bytes = 64 << 20;
    assert_int_equal(cot_engine_open_random(&engine, config, sizeof config - 1, 1, &options, &error),
                     COT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "67108864 bytes of memory hold 0 KV pages of "));
    assert_non_null(strstr(
        error.message,
        " of states of 2 sequences and 1048576 snapshots, the model's context of 320 tokens needs 5 pages"));
    options.memory.total_bytes = 0;
    options.memory.block_tokens = 0;
    assert_int_equal(cot_engine_open_random(&engine, config, sizeof config - 1, 1, &options, &error),
                     COT_INVALID_ARGUMENT);
    assert_string_equal(error.message, "snapshots of states: there is no prefix cache that would keep them");
    options.memory.snapshots = 0; // none is kept
    assert_int_equal(cot_engine_open_random(&engine, config, sizeof config - 1, 1, &options, &error), COT_OK);
    cot_engine_close(engine);
}

/* Where no layer has a state snapshots of such are refused, and what is not said is not. */
static void snapshots_of_nothing(void **state)
{
    (void)state;
    static const char config[] =
        "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"vocab_size\": 67, \"hidden_size\": 48, "
        "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 16, "
        "\"num_experts\": 6, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, "
        "\"intermediate_size\": 24, \"max_position_embeddings\": 320, \"eos_token_id\": 2}";
    struct setting s = {.ranks = 1, .kv_tokens = 64, .sequences = 2, .block_tokens = 16};
    cot_engine_options options = options_of(&s);
    cot_engine *engine;
    cot_error error;
    for (options.memory.snapshots = 1; options.memory.snapshots <= 32; options.memory.snapshots += 31) {
        assert_int_equal(cot_engine_open_random(&engine, config, sizeof config - 1, 1, &options, &error),
                         COT_INVALID_ARGUMENT);
        assert_string_equal(error.message,
                            "snapshots of states: the model's layers all have keys, and no states");
    }
    options.memory.snapshots = 0;
    cot_engine_close(must_open_random(config, 1, &options));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_and_company), cmocka_unit_test(split_heads),
        cmocka_unit_test(preempted),          cmocka_unit_test(turns_go_on),
        cmocka_unit_test(too_many_snapshots), cmocka_unit_test(snapshots_of_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
