/* With data-parallel attention a sequence's logits are the same bits whatever the number of ranks and
 * threads, where experts sit, the company, and the steps its tokens come in. With tensor-parallel attention the greedy text is
 * the same. */
#include "harness/cmocka.h"
#include "harness/engine/golden.h"
#include "harness/engine/records.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/seed.h"

#include "coterie/roof.h"
#include "coterie/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SEQUENCES = 5 };

/* Sequences to run, and what each gives alone on one rank. */
struct question {
    size_t count;
    int32_t *ids[MOST_SEQUENCES];
    cot_request request[MOST_SEQUENCES];
    struct records alone[MOST_SEQUENCES];
    cot_engine_info info;
};

static void question_free(struct question *q)
{
    for (size_t i = 0; i < q->count; i++) {
        free(q->ids[i]);
        records_free(&q->alone[i]);
    }
}

/* Sequences of drawn lengths, some of one token, some all prompt. */
static struct question question_new(const char *folder, const char *precision, const char *isa,
                                    int64_t longest, size_t count, uint64_t *seed)
{
    struct question q = {.count = count};
    struct setting s = {
        .folder = folder, .precision = precision, .attention = "dp", .threads = 1, .isa = isa};
    cot_engine *engine = must_open(&s);
    q.info = *cot_engine_describe(engine);
    assert_true(longest <= q.info.context_tokens);
    for (size_t i = 0; i < count; i++) {
        int64_t tokens = i == 0 ? longest : i == 1 ? 1 : 2 + (int64_t)(draw(seed) % (uint64_t)(longest - 1));
        int64_t prefill = i == 0   ? longest - 9
                          : i == 2 ? tokens
                                   : 1 + (int64_t)(draw(seed) % (uint64_t)tokens);
        if (tokens - prefill > 20) prefill = tokens - 20;
        q.ids[i] = drawn_ids(tokens, q.info.vocab, seed);
        q.request[i] = forced_request(q.ids[i], tokens, prefill);
        q.alone[i] = must_run(engine, &q.request[i], 1);
        assert_told_once(&q.alone[i], 0, &q.request[i], true);
        q.alone[i].info = &q.info;
    }
    cot_engine_close(engine);
    return q;
}

static void assert_same(const struct record *a, const struct record *b, const cot_engine_info *info,
                        const struct setting *s, size_t sequence)
{
    size_t vocab = (size_t)info->vocab, n = routed(info);
    assert_int_equal(a->capacity, b->capacity);
    for (int64_t t = 0; t < a->capacity; t++) {
        size_t at = (size_t)t * vocab, route = (size_t)t * n;
        if (!memcmp(a->logits + at, b->logits + at, vocab * sizeof *a->logits) &&
            !memcmp(a->experts + route, b->experts + route, n * sizeof *a->experts) &&
            !memcmp(a->weights + route, b->weights + route, n * sizeof *a->weights))
            continue;
        fail_msg(
            "%s, %s, %s: sequence %zu of %lld tokens differs from token %lld on at %d ranks, %d threads, "
            "%lld tokens a step, %s experts, %s",
            s->folder, s->precision, s->isa ? s->isa : "best", sequence, (long long)a->capacity, (long long)t,
            s->ranks, s->threads, (long long)s->step_tokens, s->placement ? "placed" : "consecutive",
            s->op ? s->op : "the first operator");
    }
}

/* `count` of the question's sequences, from a drawn one on, together. */
static void ask(struct question *q, const struct setting *given, size_t count, uint64_t *seed)
{
    struct setting placed = *given, *s = &placed;
    cot_expert_map map = {0};
    if (draw(seed) % 2) {
        map = drawn_placement(s->folder, s->ranks, seed);
        s->placement = &map;
        s->op = draw(seed) % 2 ? "bulk" : "fused";
    }
    size_t first = draw(seed) % q->count;
    cot_request requests[MOST_SEQUENCES];
    for (size_t i = 0; i < count; i++) requests[i] = q->request[(first + i) % q->count];
    cot_engine_info info;
    struct records all = run_once(s, requests, count, &info);
    for (size_t i = 0; i < count; i++) {
        size_t which = (first + i) % q->count;
        assert_told_once(&all, i, &requests[i], true);
        assert_same(&q->alone[which].record[0], &all.record[i], &q->info, s, which);
    }
    records_free(&all);
    cot_expert_map_free(&map);
}

/* These numbers of ranks with a drawn number of threads and size of step; half of the sizes of step with a drawn
 * number of ranks. */
static void ask_everything(const char *folder, const char *precision, const char *isa, int64_t longest,
                           const int *ranks, size_t rank_counts, uint64_t *seed)
{
    static const int64_t steps[] = {1, 2, 7, 64, 512};
    static const int threads[] = {1, 2, 3, 5, 11};
    struct question q = question_new(folder, precision, isa, longest, MOST_SEQUENCES, seed);
    struct setting s = {.folder = folder,
                        .precision = precision,
                        .attention = "dp",
                        .isa = isa,
                        .kv_tokens = MOST_SEQUENCES * longest};
    for (size_t i = 0; i < rank_counts; i++) {
        s.ranks = ranks[i];
        s.threads = threads[draw(seed) % 5];
        s.step_tokens = steps[2 + draw(seed) % 3];
        s.sequences = draw(seed) % 2 ? MOST_SEQUENCES : 2;
        ask(&q, &s, MOST_SEQUENCES, seed);
    }
    for (size_t i = draw(seed) % 2; i < 5; i += 2) {
        s.ranks = 1 + (int)(draw(seed) % 4);
        s.threads = threads[i];
        s.step_tokens = steps[i];
        s.sequences = MOST_SEQUENCES;
        ask(&q, &s, i ? 1 + draw(seed) % MOST_SEQUENCES : 2, seed);
    }
    question_free(&q);
}

static const int small_ranks[] = {1, 2, 3, 4, 5, 6, 7, 8, 16, 64}, tiny_ranks[] = {2, 3, 5, 8};

static void golden(const char *name)
{
    char folder[1024];
    uint64_t seed = test_seed();
    golden_path(folder, name, NULL);
    if (!folder_exists(folder)) {
        printf("SKIPPED: there is no '%s'\n", folder);
        skip();
    }
    size_t counts = sizeof small_ranks / sizeof *small_ranks, some[2] = {0};
    if (strcmp(name, "mixtral") != 0) counts -= 2; // the largest groups with one model
    int ranks[2][sizeof small_ranks / sizeof *small_ranks];
    for (size_t i = 0; i < counts; i++) { // each in one of the precisions, or not this time
        const size_t which = draw(&seed) % 3;
        if (which < 2) ranks[which][some[which]++] = small_ranks[i];
    }
    ask_everything(folder, "fp32", NULL, 83, ranks[0], some[0], &seed);
    ask_everything(folder, "bf16", NULL, 83, ranks[1], some[1], &seed);
}

static void grouped_queries(void **state)
{
    (void)state;
    golden("mixtral");
}

/* The law holds within each instruction set. */
static void instruction_sets(void **state)
{
    (void)state;
    char folder[1024];
    uint64_t seed = test_seed();
    golden_path(folder, "qwen3-moe-tied", NULL);
    if (!folder_exists(folder)) {
        printf("SKIPPED: there is no '%s'\n", folder);
        skip();
    }
    for (const char *const *isa = cot_isa_names(); *isa; isa++) {
        ask_everything(folder, "fp32", *isa, 40, small_ranks + 2, 1, &seed);
        ask_everything(folder, "bf16", *isa, 40, small_ranks + 3, 1, &seed);
    }
}

static void latent_attention(void **state)
{
    (void)state;
    golden("deepseek-v3");
}

static void sinks_and_windows(void **state)
{
    (void)state;
    golden("gpt-oss");
}

static void norms_of_the_whole_width(void **state)
{
    (void)state;
    golden("olmoe");
}

static void shared_experts_and_dense_layers(void **state)
{
    (void)state;
    golden("qwen2-moe");
}

static void the_shipped_model(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    size_t counts = sizeof tiny_ranks / sizeof *tiny_ranks;
    ask_everything(TINY, "fp32", NULL, 150, tiny_ranks, counts, &seed);
    ask_everything(TINY, "bf16", NULL, 150, tiny_ranks, counts, &seed);
}

/* ---- tp ---- */

static void tensor_parallel_text(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "Question: A farmer has 12 hens. Each hen lays 3 eggs a day. How many eggs does he get in a week?",
        "def read_lines(path):\n", "Das Paket"};
    enum { TEXTS = sizeof texts / sizeof *texts };
    uint64_t seed = test_seed();
    cot_tokenizer *tokenizer;
    assert_int_equal(cot_tokenizer_open(&tokenizer, TINY, NULL), COT_OK);
    int32_t *ids[TEXTS];
    cot_request requests[TEXTS] = {0};
    for (size_t i = 0; i < TEXTS; i++) {
        size_t count;
        assert_int_equal(
            cot_tokenizer_encode(tokenizer, &ids[i], &count, texts[i], strlen(texts[i]), true, NULL), COT_OK);
        requests[i].prompt = ids[i];
        requests[i].prompt_tokens = (int64_t)count;
        cot_sampling_init(&requests[i].sampling);
        requests[i].sampling.max_tokens = 40;
    }
    struct records first = {0};
    cot_engine_info info[9];
    for (int ranks = 1; ranks <= 8; ranks++) {
        cot_expert_map map = drawn_placement(TINY, ranks, &seed);
        struct setting s = {.folder = TINY, .ranks = ranks, .kv_tokens = 512, .quiet = true};
        if (ranks > 1 && draw(&seed) % 2) s.placement = &map;
        struct records all = run_once(&s, requests, TEXTS, &info[ranks]);
        cot_expert_map_free(&map);
        for (size_t i = 0; i < TEXTS && ranks > 1; i++) {
            const struct record *a = &first.record[i], *b = &all.record[i];
            assert_int_equal(a->sampled_tokens, b->sampled_tokens);
            assert_memory_equal(a->sampled, b->sampled, (size_t)a->sampled_tokens * sizeof *a->sampled);
            assert_int_equal(a->finish, b->finish);
        }
        assert_true(all.record[0].sampled_tokens > 10);
        if (ranks == 1)
            first = all;
        else
            records_free(&all);
    }
    records_free(&first);
    for (size_t i = 0; i < TEXTS; i++) free(ids[i]);
    cot_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grouped_queries),          cmocka_unit_test(instruction_sets),
        cmocka_unit_test(latent_attention),         cmocka_unit_test(sinks_and_windows),
        cmocka_unit_test(norms_of_the_whole_width), cmocka_unit_test(shared_experts_and_dense_layers),
        cmocka_unit_test(the_shipped_model),        cmocka_unit_test(tensor_parallel_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
