/* Texts of config.json of small models that differ by their attention, all with a vocabulary of 67 and a context of 320. */
#ifndef COT_TESTS_HARNESS_ENGINE_SMALL_MODELS_H
#define COT_TESTS_HARNESS_ENGINE_SMALL_MODELS_H

extern const char small_qwen[];    // grouped queries, norms of heads
extern const char small_sliding[]; // windows of 50 positions
extern const char small_latent[];  // latent attention, a dense layer and shared experts
extern const char small_states[];  // states in place of keys in two layers of three

#endif
