/* A launch of the fused operator held against double precision and the CPU's operator. */
#ifndef COT_TESTS_CUDA_FUSED_CHECK_H
#define COT_TESTS_CUDA_FUSED_CHECK_H
#include "fused_variants.h"

inline void all_is_written(const Layer &layer, const struct world &w, const struct plan &p)
{
    for (int r = 0; r < p.ranks; r++) {
        const size_t count =
            static_cast<size_t>(p.begin[r + 1] - p.begin[r]) * static_cast<size_t>(w.options.expert.hidden);
        assert_int_equal(layer.session.unwritten(layer.ranks[static_cast<size_t>(r)].y, count * 4), 0);
    }
}

/* The right answer, and byte for byte and message for message what the CPU's operator sends. */
inline Outcome check(const struct world &w, const struct plan &p, const Grid &grid,
                     const emulate::Options &options)
{
    Layer layer(w, p, grid);
    expect_none(layer.launch(options));
    all_is_written(layer, w, p);
    Outcome found = layer.outcome();
    outcome_agrees(found.get(), &w, &p);
    outcome_counts(found.get(), &w, &p);
    struct outcome *const cpu = world_run(&w, &p);
    bool alike = true; // a token that may rightly be routed otherwise
    for (int64_t i = 0; i < w.tokens * w.options.top_k; i++)
        alike = alike && cpu->experts[i] == found->experts[i];
    for (int from = 0; alike && from < p.ranks; from++)
        for (int to = 0; to < p.ranks; to++)
            for (int phase = 0; phase < COT_PHASES; phase++) {
                assert_int_equal(found->traffic[from][to][phase].bytes, cpu->traffic[from][to][phase].bytes);
                assert_int_equal(found->traffic[from][to][phase].messages,
                                 cpu->traffic[from][to][phase].messages);
            }
    outcome_free(cpu, &w);
    return found;
}

#endif
