/* The page of /metrics, every figure of which is another number here: none stands where another belongs. */
#include "harness/cmocka.h"

#include "coterie/layout.h"
#include "server/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OURS "{engine=\"0\",model_name=\"m\\\"1\""

/* A figure's line without its value is NAME, the labels that all have, and `more`. */
typedef struct expected_line {
    const char *name, *more;
    double value;
} expected_line;

static void assert_lines(const cot_prometheus *page, const expected_line *lines, size_t count)
{
    assert_false(page->failed);
    char *text = calloc(page->text.bytes + 2, 1);
    assert_non_null(text);
    text[0] = '\n';
    memcpy(text + 1, page->text.data, page->text.bytes);
    for (size_t i = 0; i < count; i++) {
        char start[256], type[256];
        snprintf(start, sizeof start, "\n%s" OURS "%s} ", lines[i].name, lines[i].more);
        const char *at = strstr(text, start);
        if (!at) fail_msg("no%s in:%s", start, text);
        const double value = strtod(at + strlen(start), NULL);
        if (value != lines[i].value) fail_msg("%s %.17g, not %.17g", start + 1, value, lines[i].value);
        assert_null(strstr(at + 1, start));
        snprintf(type, sizeof type, "\n# TYPE %s ", lines[i].name);
        const size_t base = strlen(lines[i].name) > 4 ? strlen(lines[i].name) : 4;
        const bool of_histogram = strstr(lines[i].name, "_bucket") ||
                                  strcmp(lines[i].name + base - 4, "_sum") == 0 ||
                                  strstr(lines[i].name, "_count");
        if (!of_histogram && !strstr(text, type)) fail_msg("%s has no type", lines[i].name);
    }
    free(text);
}

static void test_requests(void **state)
{
    (void)state;
    cot_metrics m = {.unsubmitted_prompt_tokens = 1000,
                     .generation_tokens_total = 2,
                     .stopped = 3,
                     .ended_by_length = 4,
                     .aborted = 5,
                     .refused = 6,
                     .connections = 7,
                     .dropped_connections = 8};
    cot_backend_state backend = {
        .prompt_tokens = 11,
        .cache_batches = 9,
        .cache_losses = 10,
        .load = {.kv_pages = 16,
                 .kv_pages_free = 4,
                 .cached_blocks = 12,
                 .cached_states = 24,
                 .evicted_states = 25,
                 .queried_tokens = 13,
                 .hit_tokens = 14,
                 .preemptions = 15,
                 .ended = {1, 10, 100, [5] = 1000, 1e4, [10] = 1e5, 1e6, [20] = 1e7, 1e8},
                 .ended_restarts = 22,
                 .steps_of = {1, 10, 100, 1000, 1e4, [14] = 1e5, 1e6},
                 .step_tokens = 23,
                 .waited_steps = 16,
                 .tbt_ns = 17000000,
                 .predicted_ns = 18e6,
                 .observed_ns = 19e6,
                 .prediction_error = 0.25}};
    for (int t = 0; t < COT_METRIC_TIMES; t++) { // at a bound, beyond it, and beyond all
        cot_metrics_time(&m, (cot_metrics_kind)t, 1000000);
        for (int i = 0; i <= t; i++) cot_metrics_time(&m, (cot_metrics_kind)t, 1000001);
        cot_metrics_time(&m, (cot_metrics_kind)t, 6000000000000 + t * 1000000000LL);
    }
    cot_metrics_lengths(&m, 5, 50);
    cot_metrics_lengths(&m, 6, 51);
    cot_metrics_longest(&m, 500);
    static const char *const times[COT_METRIC_TIMES] = {
        "time_to_first_token", "inter_token_latency",   "request_time_per_output_token",
        "e2e_request_latency", "request_queue_time",    "request_prefill_time",
        "request_decode_time", "request_inference_time"};
    for (int follows = 0; follows < 2; follows++) {
        cot_prometheus page = {0};
        backend.publishes_cache = follows;
        const cot_backend_info info = {.block_tokens = follows ? 16 : 0};
        cot_metrics_write(&page, &m, &info, &backend, "m\"1", 20, 21);
        const expected_line lines[] = {{"vllm:num_requests_running", "", 20},
                                       {"vllm:num_requests_waiting", "", 21},
                                       {"vllm:num_requests_waiting_by_reason", ",reason=\"capacity\"", 21},
                                       {"vllm:num_requests_waiting_by_reason", ",reason=\"deferred\"", 0},
                                       {"vllm:cache_config_info",
                                        follows
                                            ? ",block_size=\"16\",cache_dtype=\"auto\",enable_prefix_caching="
                                              "\"True\",num_gpu_blocks=\"64\""
                                            : ",block_size=\"64\",cache_dtype=\"auto\",enable_prefix_caching="
                                              "\"False\",num_gpu_blocks=\"16\"",
                                        1},
                                       {"vllm:kv_cache_usage_perc", "", 0.75},
                                       {"vllm:gpu_cache_usage_perc", "", 0.75},
                                       {"vllm:prefix_cache_queries_total", "", 13},
                                       {"vllm:prefix_cache_hits_total", "", 14},
                                       {"vllm:num_preemptions_total", "", 15},
                                       {"vllm:request_num_preemptions_bucket", ",le=\"1\"", 11},
                                       {"vllm:request_num_preemptions_bucket", ",le=\"2\"", 111},
                                       {"vllm:request_num_preemptions_bucket", ",le=\"4\"", 111},
                                       {"vllm:request_num_preemptions_bucket", ",le=\"5\"", 1111},
                                       {"vllm:request_num_preemptions_bucket", ",le=\"10\"", 111111},
                                       {"vllm:request_num_preemptions_bucket", ",le=\"20\"", 11111111},
                                       {"vllm:request_num_preemptions_bucket", ",le=\"+Inf\"", 111111111},
                                       {"vllm:request_num_preemptions_count", "", 111111111},
                                       {"vllm:request_num_preemptions_sum", "", 22},
                                       {"vllm:iteration_tokens_total_bucket", ",le=\"1\"", 1},
                                       {"vllm:iteration_tokens_total_bucket", ",le=\"8\"", 1111},
                                       {"vllm:iteration_tokens_total_bucket", ",le=\"16\"", 11111},
                                       {"vllm:iteration_tokens_total_bucket", ",le=\"8192\"", 11111},
                                       {"vllm:iteration_tokens_total_bucket", ",le=\"16384\"", 111111},
                                       {"vllm:iteration_tokens_total_bucket", ",le=\"+Inf\"", 1111111},
                                       {"vllm:iteration_tokens_total_sum", "", 23},
                                       {"vllm:prompt_tokens_total", "", 1011},
                                       {"vllm:generation_tokens_total", "", 2},
                                       {"vllm:request_success_total", ",finished_reason=\"stop\"", 3},
                                       {"vllm:request_success_total", ",finished_reason=\"length\"", 4},
                                       {"vllm:request_success_total", ",finished_reason=\"abort\"", 5},
                                       {"coterie:requests_refused_total", "", 6},
                                       {"coterie:connections", "", 7},
                                       {"coterie:dropped_connections_total", "", 8},
                                       {"coterie:kv_cached_blocks", "", 12},
                                       {"coterie:cached_states", "", 24},
                                       {"coterie:cached_states_evicted_total", "", 25},
                                       {"coterie:steps_waited_total", "", 16},
                                       {"coterie:tbt_target_seconds", "", 0.017},
                                       {"coterie:step_predicted_seconds", "", 0.018},
                                       {"coterie:step_observed_seconds", "", 0.019},
                                       {"coterie:step_prediction_error", "", 0.25},
                                       {"vllm:request_prompt_tokens_sum", "", 11},
                                       {"vllm:request_prompt_tokens_bucket", ",le=\"5\"", 1},
                                       {"vllm:request_generation_tokens_sum", "", 101},
                                       {"vllm:request_generation_tokens_bucket", ",le=\"50\"", 1},
                                       {"vllm:request_generation_tokens_bucket", ",le=\"100\"", 2},
                                       {"vllm:request_max_num_generation_tokens_sum", "", 500},
                                       {"vllm:request_max_num_generation_tokens_count", "", 1},
                                       {"vllm:time_per_output_token_seconds_count", "", 4}};
        assert_lines(&page, lines, sizeof lines / sizeof *lines);
        for (int t = 0; t < COT_METRIC_TIMES; t++) {
            char count[128], bucket[128];
            snprintf(count, sizeof count, "vllm:%s_seconds_count", times[t]);
            snprintf(bucket, sizeof bucket, "vllm:%s_seconds_bucket", times[t]);
            const expected_line of_time[] = {{count, "", t + 3},
                                             {bucket, ",le=\"0.001\"", 1},
                                             {bucket, ",le=\"0.005\"", t + 2},
                                             {bucket, ",le=\"5120\"", t + 2},
                                             {bucket, ",le=\"+Inf\"", t + 3}};
            assert_lines(&page, of_time, sizeof of_time / sizeof *of_time);
        }
        const expected_line of_kv[] = {{"coterie:kv_event_batches_total", "", 9},
                                       {"coterie:kv_event_losses_total", "", 10}};
        if (follows) assert_lines(&page, of_kv, 2);
        assert_int_equal(memmem(page.text.data, page.text.bytes, "kv_event_", 9) != NULL, follows);
        cot_prometheus_free(&page);
    }
    cot_prometheus page = {0};
    cot_metrics_write(&page, &m, &(cot_backend_info){0}, &(cot_backend_state){0}, "m\"1", 0,
                      0); // nothing is used of nothing
    assert_lines(&page, &(expected_line){"vllm:kv_cache_usage_perc", "", 0}, 1);
    cot_prometheus_free(&page);
}

enum { RANKS = 3, EXPERTS = 4, LAYERS = 2 };

static void test_engine(void **state)
{
    (void)state;
    enum { PHASES = 3 };
    static const char *const names[PHASES] = {"dispatch", "combine", "control"};
    cot_backend_rank rank_counts[RANKS];
    uint64_t sums[2][PHASES];
    const uint64_t calls[LAYERS * EXPERTS] = {6, 3, 2, 5, 0, 0, 0, 0};
    cot_backend_metrics stats = {.ranks = RANKS,
                                 .rank = rank_counts,
                                 .phases = PHASES,
                                 .phase = names,
                                 .bytes = sums[0],
                                 .messages = sums[1],
                                 .calls = (uint64_t *)calls,
                                 .steps = 1,
                                 .prefill_tokens = 2,
                                 .decode_tokens = 3,
                                 .prefill_ns = 4000000,
                                 .decode_ns = 5000000};
    for (uint64_t r = 0; r < RANKS; r++)
        rank_counts[r] = (cot_backend_rank){.tokens = 100 + r,
                                            .activations = 200 + r,
                                            .local = 300 + r,
                                            .sends = 400 + r,
                                            .distinct_experts = 500 + r};
    for (uint64_t p = 0; p < PHASES; p++) {
        sums[0][p] = (p + 1) * 511;
        sums[1][p] = (p + 1) * 9000 + 36;
    }
    // expert 0 on ranks 0 and 2, expert 1 on rank 1, experts 2 and 3 on rank 2: 3, 3 and 3 + 2 + 5 calls
    int32_t layers[LAYERS] = {1, 7}, begin[LAYERS][EXPERTS + 1] = {{0, 2, 3, 4, 5}, {0, 2, 3, 4, 5}};
    int32_t rank[] = {0, 2, 1, 2, 2, 0, 2, 1, 2, 2};
    int64_t first[LAYERS + 1] = {0, 5, 10};
    cot_backend_placement placement = {.layers = LAYERS,
                                       .experts = EXPERTS,
                                       .layer = layers,
                                       .begin = begin[0],
                                       .first = first,
                                       .rank = rank};
    cot_prometheus page = {0};
    cot_metrics_write_backend(&page, &stats, &placement, "m\"1");
    const expected_line lines[] = {{"coterie:steps_total", "", 1},
                                   {"coterie:step_tokens_total", ",kind=\"prefill\"", 2},
                                   {"coterie:step_tokens_total", ",kind=\"decode\"", 3},
                                   {"coterie:step_seconds_total", ",kind=\"prefill\"", 0.004},
                                   {"coterie:step_seconds_total", ",kind=\"decode\"", 0.005},
                                   {"coterie:moe_layers", "", LAYERS},
                                   {"coterie:balancedness", ",layer=\"1\"", 16 / 3.0 / 10},
                                   {"coterie:balancedness", ",layer=\"7\"", 1}};
    assert_lines(&page, lines, sizeof lines / sizeof *lines);
    for (int p = 0; p < PHASES; p++) {
        char more[64];
        snprintf(more, sizeof more, ",phase=\"%s\"", names[p]);
        const expected_line sent[] = {{"coterie:sent_bytes_total", more, (p + 1) * 511},
                                      {"coterie:sent_messages_total", more, (p + 1) * 9000 + 36}};
        assert_lines(&page, sent, 2);
    }
    for (int r = 0; r < RANKS; r++) {
        char more[64];
        snprintf(more, sizeof more, ",rank=\"%d\"", r);
        const expected_line of_rank[] = {{"coterie:routed_tokens_total", more, 100 + r},
                                         {"coterie:activations_total", more, 200 + r},
                                         {"coterie:local_activations_total", more, 300 + r},
                                         {"coterie:remote_sends_total", more, 400 + r},
                                         {"coterie:distinct_experts_total", more, 500 + r}};
        assert_lines(&page, of_rank, sizeof of_rank / sizeof *of_rank);
    }
    assert_null(memmem(page.text.data, page.text.bytes, "rank=\"3\"", 8));
    cot_prometheus_free(&page);
    page = (cot_prometheus){0};
    placement.layers = 0; // a dense model has no experts to tell of
    cot_metrics_write_backend(&page, &stats, &placement, "m\"1");
    assert_null(memmem(page.text.data, page.text.bytes, "activations", 11));
    cot_prometheus_free(&page);
}

static void test_moves(void **state)
{
    (void)state;
    static const char *const why[] = {"cancelled", "no slot"};
    const cot_backend_moves all = {.copied = 3,
                                   .dropped = 4,
                                   .outcomes = 2,
                                   .outcome = why,
                                   .given_up = {5, 6},
                                   .bytes = 700,
                                   .copy_ns = 8000000,
                                   .place_ns = 9000000};
    int64_t first[LAYERS + 1] = {0, 5, 11};
    const cot_backend_placement placement = {.layers = LAYERS,
                                             .experts = EXPERTS,
                                             .ranks = RANKS,
                                             .slots = 5,
                                             .own_slots = 4,
                                             .transit = 2,
                                             .epoch = 12,
                                             .first = first};
    for (int under_way = 0; under_way < 2; under_way++) {
        cot_prometheus page = {0};
        cot_metrics_write_moves(&page, &all, under_way, &placement, "m\"1");
        const expected_line lines[] = {
            {"coterie:expert_moves_total", ",action=\"copy\",outcome=\"done\"", 3},
            {"coterie:expert_moves_total", ",action=\"copy\",outcome=\"cancelled\"", 5},
            {"coterie:expert_moves_total", ",action=\"copy\",outcome=\"no slot\"", 6},
            {"coterie:expert_moves_total", ",action=\"drop\",outcome=\"done\"", 4},
            {"coterie:expert_move_bytes_total", "", 700},
            {"coterie:expert_move_seconds_total", ",state=\"copying\"", 0.008},
            {"coterie:expert_move_seconds_total", ",state=\"placing\"", 0.009},
            {"coterie:expert_moves_under_way", "", under_way},
            {"coterie:placement_epoch", "", 12},
            {"coterie:expert_slots", "", RANKS * (LAYERS * 4 + 2)},
            {"coterie:expert_slots_used", "", 11}};
        assert_lines(&page, lines, sizeof lines / sizeof *lines);
        cot_prometheus_free(&page);
    }
}

static void test_rebalancing(void **state)
{
    (void)state;
    static const char *const why[] = {"experts move", "no move helps"};
    const cot_backend_rebalancing r = {.moved = 3,
                                       .stayed = 4,
                                       .turns = 6,
                                       .refused = 5,
                                       .reasons = 2,
                                       .reason = why,
                                       .layers = {6, 7},
                                       .copies = 8,
                                       .drops = 9,
                                       .saving_ns = 1000000,
                                       .since_ns = 2500000000,
                                       .plan_ns = 12000000};
    cot_prometheus page = {0};
    cot_metrics_write_rebalancing(&page, &r, "m\"1");
    assert_null(memmem(page.text.data, page.text.bytes, "coterie:memory", strlen("coterie:memory")));
    const expected_line lines[] = {{"coterie:rebalance_cycles_total", ",outcome=\"moved\"", 3},
                                   {"coterie:rebalance_cycles_total", ",outcome=\"stayed\"", 4},
                                   {"coterie:rebalance_turns_total", "", 6},
                                   {"coterie:rebalance_cycles_total", ",outcome=\"refused\"", 5},
                                   {"coterie:rebalance_layers_total", ",reason=\"experts move\"", 6},
                                   {"coterie:rebalance_layers_total", ",reason=\"no move helps\"", 7},
                                   {"coterie:rebalance_replicas_total", ",action=\"copy\"", 8},
                                   {"coterie:rebalance_replicas_total", ",action=\"drop\"", 9},
                                   {"coterie:rebalance_saving_seconds", "", 0.001},
                                   {"coterie:rebalance_since_seconds", "", 2.5},
                                   {"coterie:rebalance_seconds_total", "", 0.012}};
    assert_lines(&page, lines, sizeof lines / sizeof *lines);
    cot_prometheus_free(&page);
}

static void test_budget(void **state)
{
    (void)state;
    static const char *const why[] = {"no other split saves more", "pages save more"};
    const cot_backend_rebalancing r = {.budget = {.bytes = 1000,
                                                  .states_bytes = 100,
                                                  .pages_bytes = 600,
                                                  .slots_bytes = 300,
                                                  .replicas_bytes = 200,
                                                  .reasons = 2,
                                                  .reason = why,
                                                  .looks = {5, 2},
                                                  .last = 1,
                                                  .turns = 1,
                                                  .gain_ns = 3000000}};
    cot_prometheus page = {0};
    cot_metrics_write_rebalancing(&page, &r, "m\"1");
    const expected_line lines[] = {{"coterie:memory_bytes", ",part=\"all\"", 1000},
                                   {"coterie:memory_bytes", ",part=\"states\"", 100},
                                   {"coterie:memory_bytes", ",part=\"pages\"", 600},
                                   {"coterie:memory_bytes", ",part=\"slots\"", 300},
                                   {"coterie:memory_bytes", ",part=\"replicas\"", 200},
                                   {"coterie:memory_looks_total", ",reason=\"no other split saves more\"", 5},
                                   {"coterie:memory_looks_total", ",reason=\"pages save more\"", 2},
                                   {"coterie:memory_turns_total", "", 1},
                                   {"coterie:memory_gain_seconds", "", 0.003}};
    assert_lines(&page, lines, sizeof lines / sizeof *lines);
    cot_prometheus_free(&page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_requests), cmocka_unit_test(test_engine),
                                       cmocka_unit_test(test_moves), cmocka_unit_test(test_rebalancing),
                                       cmocka_unit_test(test_budget)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
