/* What memory a rank asks for and what it says of it to the system, counted by hand. */
#include "harness/cmocka.h"
#include "harness/seed.h"

#include "checkpoint/checkpoint.h"
#include "model/shuffle.h"
#include "model/state.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- what the linker sends here ---- */

static struct advice {
    uint8_t *begin, *end;
    int kind;
} advice[8];
static int advices;

int __real_madvise(void *begin, size_t bytes, int kind);
int __wrap_madvise(void *begin, size_t bytes, int kind);
int __wrap_madvise(void *begin, size_t bytes, int kind)
{
    assert_true(advices < 8);
    advice[advices++] = (struct advice){begin, (uint8_t *)begin + bytes, kind};
    return __real_madvise(begin, bytes, kind);
}

/* ---- what holds ---- */

/* An exchange takes the most of: whole blocks of rows from every rank; all rows, each rank's from a line on; two sums of a token from
 * every rank. */
static void an_exchange_has_room_for_the_most(void **state)
{
    (void)state;
    static const struct {
        int64_t tokens, hidden;
        int ranks;
        size_t bytes;
    } cases[] = {{8, 128, 4, 8 * 512 + 5 * 64}, // as many rows each: the lines add to what is gathered
                 {5, 128, 4, 4 * 2 * 512},      // blocks of two
                 {64, 2, 8, 8 * 2 * 64 * 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const cot_runner_options o = {.step_tokens = cases[i].tokens, .precision.type = COT_F32};
        assert_int_equal(cot_runner_exchange_bytes(&o, cases[i].hidden, cases[i].ranks), cases[i].bytes);
    }
}

static size_t none(const cot_moe_options *options, int ranks)
{
    (void)options, (void)ranks;
    return 0;
}

/* Logits of other ranks come to the heap: one rank's own are not in it. */
static void logits_of_other_ranks_are_in_the_heap(void **state)
{
    (void)state;
    static const char config[] =
        "{\"architectures\": [\"MixtralForCausalLM\"], \"vocab_size\": 31, \"hidden_size\": 24, "
        "\"intermediate_size\": 10, \"num_hidden_layers\": 1, \"num_attention_heads\": 3, "
        "\"num_key_value_heads\": 1, \"num_local_experts\": 3, \"num_experts_per_tok\": 2}";
    cot_checkpoint *checkpoint;
    assert_int_equal(cot_checkpoint_random(&checkpoint, config, strlen(config), 1, NULL), COT_OK);
    cot_ffn_shape shape = {0};
    int32_t layer = 0;
    const cot_networks networks = {.experts = 3, .expert = &shape, .shared = &shape, .dense = &shape};
    const cot_expert_layout layout = {.layers = &layer};
    const cot_moe_operator op = {.heap_bytes = none};
    for (int ranks = 1; ranks <= 3; ranks++) {
        cot_runner_options o = {.checkpoint = checkpoint,
                                .networks = &networks,
                                .layout = &layout,
                                .op = &op,
                                .precision.type = COT_F32,
                                .step_tokens = 40,
                                .step_logits = 1};
        const size_t few = cot_runner_heap_bytes(&o, ranks);
        o.step_logits = 40;
        assert_int_equal(cot_runner_heap_bytes(&o, ranks) - few, ranks > 1 ? 39 * 31 * 4 : 0);
    }
    cot_checkpoint_close(checkpoint);
}

/* Wherever the states begin, the system's pages that they are on are small ones. */
static void states_are_on_small_pages(void **state)
{
    (void)state;
    const size_t small = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t before = 0; before < 2; before++) {
        cot_state s;
        cot_arena arena = {0};
        for (int measures = 1; measures >= 0; measures--) {
            if (!measures) assert_int_equal(cot_arena_open(&arena, arena.used, NULL), COT_OK);
            cot_arena_take(&arena, before, small - 64); // they begin 64 bytes behind it
            cot_state_lay_out(&s, &arena, 2, 1, 3, 1000);
        }
        advices = 0;
        cot_state_use_small_pages(&s);
        uint8_t *begin = (uint8_t *)s.memory, *end = begin + 3 * cot_state_bytes(&s);
        int found = 0;
        for (int i = 0; i < advices; i++) {
            if (advice[i].kind != MADV_NOHUGEPAGE) continue;
            assert_int_equal((uintptr_t)advice[i].begin % small, 0);
            assert_true(advice[i].begin <= begin && begin - advice[i].begin < (ptrdiff_t)small &&
                        advice[i].end == end);
            found++;
        }
        assert_int_equal(found, 1);
        cot_arena_close(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_exchange_has_room_for_the_most),
                                       cmocka_unit_test(logits_of_other_ranks_are_in_the_heap),
                                       cmocka_unit_test(states_are_on_small_pages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
