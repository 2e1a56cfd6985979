#include "harness/engine/tables.h"

#include "harness/cmocka.h"
#include "harness/engine/requests.h"
#include "harness/memory.h"

#include "coterie/model.h"
#include "coterie/predict.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* K experts in ascending order: mostly the id's own, which follow one another. */
static void draw_experts_of(uint16_t *experts, int32_t id, int64_t l, const cot_model_info *m,
                            uint64_t *state)
{
    const int64_t first = draw(state) % 4 ? id * 5 + l * 3 : (int64_t)(draw(state) % (uint64_t)m->experts);
    for (int64_t k = 0; k < m->top_k; k++) experts[k] = (uint16_t)((first + k) % m->experts);
    for (int64_t i = 1; i < m->top_k; i++)
        for (int64_t k = i; k > 0 && experts[k] < experts[k - 1]; k--) {
            const uint16_t other = experts[k];
            experts[k] = experts[k - 1];
            experts[k - 1] = other;
        }
}

bool drawn_tables(char path[TABLES_PATH], const char *folder, int ranks, bool one_rank, uint64_t *state)
{
    enum { TOKENS = 600, SEQUENCES = 3 };
    cot_model_info m;
    cot_trace_builder *builder;
    cot_trace trace = {0};
    cot_predictor *tables;
    cot_error error = {0};
    if (cot_model_describe(&m, folder, &error) != COT_OK) fail_msg("%s", error.message);
    if (ranks > m.experts) {
        cot_model_info_clear(&m);
        *path = 0;
        return false;
    }
    snprintf(path, TABLES_PATH, "/tmp/coterie-tables-XXXXXX");
    const int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    const size_t routed = (size_t)(m.moe_layers * m.top_k), all = (size_t)(m.moe_layers * m.experts);
    uint16_t *experts = must_allocate(routed, sizeof *experts);
    float *weights = must_allocate(routed, sizeof *weights);
    int32_t *group = must_allocate(all, sizeof *group);
    for (size_t i = 0; i < routed; i++) weights[i] = 1;
    for (size_t i = 0; i < all; i++)
        group[i] = one_rank ? ranks - 1 : (int32_t)(draw(state) % (uint64_t)ranks);
    cot_status status = cot_trace_builder_open(&builder, "drawn", (int32_t)m.moe_layers, m.moe_layer,
                                               (int32_t)m.experts, (int32_t)m.top_k, &error);
    for (int t = 0; t < TOKENS && status == COT_OK; t++) {
        const int32_t id = (int32_t)(draw(state) % (uint64_t)(m.vocab - m.vocab / 8));
        for (int64_t l = 0; l < m.moe_layers; l++) draw_experts_of(experts + l * m.top_k, id, l, &m, state);
        status = cot_trace_builder_append(builder, t % SEQUENCES, id, experts, weights, &error);
    }
    if (status == COT_OK) status = cot_trace_builder_finish(&trace, builder, &error);
    cot_trace_builder_close(builder);
    const cot_predictor_options options = {.size = sizeof options,
                                           .ranks = ranks,
                                           .expert_rank = group,
                                           .order = 1 + (int32_t)(draw(state) % 3),
                                           .counts_only = true,
                                           .threads = 1};
    if (status == COT_OK) status = cot_predictor_train(&tables, &trace, &options, &error);
    if (status == COT_OK) status = cot_predictor_write(tables, path, &error);
    if (status != COT_OK) fail_msg("%s", error.message);
    cot_predictor_close(tables);
    cot_trace_close(&trace);
    cot_model_info_clear(&m);
    free(experts);
    free(weights);
    free(group);
    return true;
}
