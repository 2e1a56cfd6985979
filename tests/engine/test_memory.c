/* What an engine says that it needs, against what the kernel counts at the worst: in layer l every token goes to rank
 * l mod P, prompts fill whole steps at every home, and all logits are wanted. Never less, and at most half as much
 * again beside what huge pages may add. Settings are drawn;
 * with COT_LONG every pipeline, operator, size of steps and number of ranks meet, and the rest is drawn. */
#include "harness/cmocka.h"
#include "harness/engine/requests.h"
#include "harness/engine/settings.h"
#include "harness/engine/steps.h"
#include "harness/seed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HUGE_PAGES = 32 << 20 }; // what a rank's might add, and do not where the system has none
enum { LAYERS = 8, EXPERTS = 8, TOP_K = 4, VOCAB = 4096, CONTEXT = 2048, SHORT_RUN = 3 };

#define NUMBERS                                                                                              \
    "\"hidden_size\": 512, \"num_hidden_layers\": 8, \"num_experts\": 8, \"num_experts_per_tok\": 4, "       \
    "\"moe_intermediate_size\": 512, \"intermediate_size\": 512, \"vocab_size\": 4096, "                     \
    "\"max_position_embeddings\": 2048, \"norm_topk_prob\": true, \"mlp_only_layers\": [], "                 \
    "\"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, "                            \
    "\"tie_word_embeddings\": false, \"eos_token_id\": 0, \"head_dim\": 64, \"num_key_value_heads\": 4, "    \
    "\"num_attention_heads\": 8}"
static const char *const configs[] = {"{\"architectures\": [\"Qwen3MoeForCausalLM\"], " NUMBERS,
                                      /* a state of 4 MB a sequence in place of most keys */
                                      "{\"architectures\": [\"Qwen3_5MoeForCausalLM\"], "
                                      "\"linear_num_key_heads\": 4, \"linear_num_value_heads\": 8, "
                                      "\"linear_key_head_dim\": 128, \"linear_value_head_dim\": 128, "
                                      "\"shared_expert_intermediate_size\": 64, " NUMBERS};

/* Kilobytes of a line of /proc/self/status. */
static size_t kilobytes(const char *name)
{
    char line[256];
    size_t found = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, name, strlen(name))) found = strtoul(line + strlen(name) + 1, NULL, 10);
    if (file) fclose(file);
    return found;
}

static cot_expert_map worst_map(int ranks)
{
    cot_expert_map map;
    cot_error error;
    if (cot_expert_map_new(&map, LAYERS, EXPERTS, ranks, EXPERTS, &error) != COT_OK)
        fail_msg("%s", error.message);
    for (int32_t l = 0; l < LAYERS; l++)
        for (int32_t e = 0; e < EXPERTS; e++) map.expert[(l * ranks + l % ranks) * EXPERTS + e] = e;
    return map;
}

static void ignore_logits(void *context, uint64_t request, int64_t position, const float *logits)
{
    (void)context, (void)request, (void)position, (void)logits;
}

static void run_worst(const char *config, const struct setting *s)
{
    const cot_engine_options options = options_of(s);
    cot_engine *engine = must_open_random(config, 1, &options);
    cot_error error;
    uint64_t state = 1;
    cot_request requests[8];
    int32_t *ids = drawn_ids(CONTEXT, VOCAB, &state);
    for (int i = 0; i < s->sequences; i++)
        requests[i] = (cot_request){.prompt = ids,
                                    .prompt_tokens = s->kv_tokens / s->sequences - 2,
                                    .forced = ids,
                                    .forced_tokens = 2,
                                    .all_logits = true};
    const cot_events events = {.on_logits = ignore_logits};
    if (cot_engine_run(engine, requests, (size_t)s->sequences, &events, NULL, &error) != COT_OK)
        fail_msg("%s", error.message);
    cot_engine_close(engine);
    free(ids);
}

/* In a process of its own, so that nothing earlier counts; with huge pages, which add to what is touched as far as the
 * system has some, or without. */
static size_t touched_bytes(const char *config, const struct setting *s, bool huge_pages)
{
    int ends[2];
    size_t kib = 0;
    assert_int_equal(pipe(ends), 0);
    fflush(stdout);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        if (!huge_pages) prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
        const size_t before = kilobytes("VmRSS");
        run_worst(config, s);
        kib = kilobytes("VmHWM") - before;
        _exit(write(ends[1], &kib, sizeof kib) != sizeof kib);
    }
    close(ends[1]);
    const bool told = read(ends[0], &kib, sizeof kib) == sizeof kib;
    int status;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(told && status == 0);
    return kib * 1024;
}

static size_t said_bytes(const char *folder, const struct setting *s)
{
    const cot_engine_options options = options_of(s);
    cot_engine_sizes sizes;
    cot_error error;
    if (cot_engine_measure(&sizes, folder, &options, 1, &error) != COT_OK) fail_msg("%s", error.message);
    return sizes.total_bytes;
}

/* Whether a setting keeps both bounds; says so, too. */
static bool check(const char *folder, const char *config, struct setting s, bool huge_pages)
{
    cot_expert_map map = worst_map(s.ranks);
    s.placement = &map;
    const size_t said = said_bytes(folder, &s), touched = touched_bytes(config, &s, huge_pages);
    const size_t most = touched + touched / 2 + (size_t)s.ranks * HUGE_PAGES;
    // What has room for each rank's largest packet is never full of them: this routing is not its worst.
    const char *breach = said < touched ? ", TOO LOW" : said > most && !s.a2a ? ", TOO HIGH" : "";
    printf("%s, P %d %s %s %s %s %s, %lld tokens a step, %d threads, %s pages: %.1f MB said, %.1f touched, "
           "%.2f%s\n",
           config == configs[0] ? "keys" : "states", s.ranks, s.pipeline ? s.pipeline : s.attention, s.op,
           s.combine, s.a2a ? s.a2a : "-", s.precision, (long long)s.step_tokens, s.threads,
           huge_pages ? "huge" : "small", (double)said / 1e6, (double)touched / 1e6,
           (double)said / (double)touched, breach);
    cot_expert_map_free(&map);
    return !*breach;
}

static void test_memory(void **state)
{
    (void)state;
    char folder[] = "/tmp/cot_memory_XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/config.json", folder);
    static const char *const precisions[] = {"fp32", "bf16", "int8"};
    static const struct {
        const char *op, *combine, *a2a, *dedup;
    } how[] = {{"fused", "exact", NULL, NULL},
               {"fused", "reduced", NULL, NULL},
               {"bulk", "exact", NULL, NULL},
               {"bulk", "exact", "padded", "off"},
               {"bulk", "reduced", "one-shot", "on"}};
    enum { RANKS = 4, STEPS = 3, HOW = sizeof how / sizeof *how, CELLS = RANKS * STEPS * 3 * HOW };
    static const int64_t steps[STEPS] = {64, 512, 1536};
    uint64_t seed = test_seed();
    const bool all = getenv("COT_LONG");
    int wrong = 0; // of all settings, so that one run tells every one that breaks a bound
    for (int i = 0; i < (all ? CELLS : SHORT_RUN); i++) {
        int cell = all ? i : (int)(draw(&seed) % CELLS);
        struct setting s = {.quiet = true};
        // what adds to memory by itself, whatever the rest, is drawn
        const bool huge_pages = draw(&seed) % 2;
        s.precision = precisions[draw(&seed) % 3];
        s.threads = 1 + (int)(draw(&seed) % 2);
        s.op = how[cell % HOW].op, s.combine = how[cell % HOW].combine;
        s.a2a = how[cell % HOW].a2a, s.dedup = how[cell % HOW].dedup, cell /= HOW;
        s.attention = cell % 3 == 1 ? "dp" : "tp", s.pipeline = cell % 3 == 2 ? "s-moe" : NULL, cell /= 3;
        s.step_tokens = steps[cell % STEPS], cell /= STEPS;
        s.ranks = 1 << cell;
        s.sequences = s.ranks;
        s.kv_tokens = s.sequences * (s.step_tokens < 256 ? 256 : s.step_tokens);
        const char *config = configs[draw(&seed) % 2];
        FILE *file = fopen(path, "w");
        assert_true(file && fputs(config, file) >= 0 && fclose(file) == 0);
        wrong += !check(folder, config, s, huge_pages);
    }
    if (wrong) fail_msg("%d settings break a bound", wrong);
    unlink(path);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
