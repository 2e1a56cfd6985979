/* The engine: a checkpoint, a group of ranks that hold it, and sequences that go in as tokens and come out as
 * tokens.
 *
 * One engine belongs to one thread at a time: the thread that calls it works as rank 0. Everything the engine
 * returns is owned by the caller unless said otherwise; paths and names passed in are copied or used only
 * during the call.
 */
#ifndef COTERIE_ENGINE_H
#define COTERIE_ENGINE_H
#include "coterie/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cot_engine cot_engine;

/* Fill with cot_engine_options_init, then change what differs. */
typedef struct cot_engine_options {
    size_t size; /* sizeof this structure */
    int ranks;   /* members of the expert-parallel group, 1 to 64; 1 */
    int threads; /* in all; beyond `ranks` they help, below they limit how many ranks compute at once; 0: the
                    cores */
    const char *
        precision; /* arithmetic and payload: "bf16", "fp32", or "int8" (routed and shared experts int8, a scale
                              a column, their rows rounded in blocks of 256; the rest as bf16); "bf16" */
    const char *attention; /* "tp": heads split over ranks; "dp": a sequence stays on its home rank; "tp" */
    const char *op;        /* the MoE operator, see cot_engine_operators; NULL: the first */
    const char *combine;   /* "exact": an expert's row travels back and is added at home, the same bits for
                              every number of ranks; "reduced": each rank adds its experts' rows first, fewer
                              bytes ("fused" alone); "exact" */
    const char *payload;   /* what travels back, "bf16" or "fp32"; rows travel there as experts read them;
                              NULL: as `precision` */
    const char *isa;       /* caps the instruction set, see cot_isa_names; NULL: the best */
    bool capture_routing;  /* routing of every token comes to rank 0 (callbacks, weight bytes in the stats);
                              false */
    bool processes;        /* ranks beyond 0 are forked processes instead of threads; false */
    int64_t step_tokens;   /* most tokens a step, 1 to 65536; 512 */
    int64_t
        kv_tokens; /* positions of KV cache over all sequences, no more are made than `sequences` can fill;
                              0: the context of one sequence */
    int sequences; /* most sequences at once, 1 to 1024; 16 */
    void (*progress)(void *context, size_t done_bytes,
                     size_t total_bytes); /* while weights load, from any thread; NULL */
    void *progress_context;
} cot_engine_options;
void cot_engine_options_init(cot_engine_options *options);

/* Loads a model folder and starts the group. `*notes`, where not NULL, receives a malloc'd line about tensors
 * that were skipped, or NULL; the caller frees it. Errors: what reading the model gives; INVALID_ARGUMENT (an
 * option, named); UNSUPPORTED (`isa` is not to be had here); OUT_OF_MEMORY with the bytes needed and
 * available, before anything is loaded. On failure `*engine` is NULL. */
cot_status cot_engine_open(cot_engine **engine, const char *folder, const cot_engine_options *options,
                           char **notes, cot_error *error);
/* The same for random weights (a function of `seed`) in the shape that a config.json's text describes. For
 * benchmarks. */
cot_status cot_engine_open_random(cot_engine **engine, const char *config_json, size_t bytes, uint64_t seed,
                                  const cot_engine_options *options, cot_error *error);
void cot_engine_close(cot_engine *engine); /* NULL is fine */
/* Names of the MoE operators, the default first, NULL at the end. Constant. */
const char *const *cot_engine_operators(void);

typedef struct cot_engine_info {
    const char *architecture, *isa;
    int64_t vocab, hidden, layers, heads, kv_heads, experts, top_k, context_tokens;
    int64_t moe_layers;
    const int32_t *moe_layer; /* [moe_layers] the model's numbers of its MoE layers */
    size_t weight_bytes;      /* packed, over all ranks */
    int ranks, threads;
} cot_engine_info;
/* Constant while the engine lives; owned by it. */
const cot_engine_info *cot_engine_describe(const cot_engine *engine);

typedef struct cot_sampling {
    size_t size;               /* sizeof this structure */
    double temperature;        /* 0: greedy; 0 */
    int64_t top_k;             /* 0: all; 0 */
    double top_p;              /* (0, 1]; 1 */
    double min_p;              /* [0, 1]; 0 */
    double repetition_penalty; /* > 0, over prompt and text; 1 */
    uint64_t seed;             /* the same request draws the same tokens in any company; 0 */
    int64_t max_tokens;        /* most tokens to generate; 256 */
    bool ignore_eos;           /* go on after an end-of-sequence token; false */
} cot_sampling;
void cot_sampling_init(cot_sampling *sampling);

/* One sequence. With `forced`, tokens are not sampled: the forced ones are fed, a token at a time. */
typedef struct cot_request {
    const int32_t *prompt;
    int64_t prompt_tokens; /* at least 1 */
    const int32_t *forced; /* NULL: generate as `sampling` says */
    int64_t forced_tokens;
    bool all_logits; /* on_logits for every token, the prompt's included */
    cot_sampling sampling;
} cot_request;

typedef enum cot_finish {
    COT_FINISH_LENGTH,  /* max_tokens, or the end of the forced tokens */
    COT_FINISH_EOS,     /* an end-of-sequence token */
    COT_FINISH_STOP,    /* on_token said so */
    COT_FINISH_CONTEXT, /* the model's context is full */
} cot_finish;

/* What happens, told on the caller's thread while cot_engine_run runs. Any may be NULL. `request` is the
 * index in the array. */
typedef struct cot_events {
    void *context;
    /* A sampled token (not an end-of-sequence token that ends the text). Returning false ends the sequence.
     */
    bool (*on_token)(void *context, size_t request, int32_t token);
    /* Logits [vocab] after the token at `position`. */
    void (*on_logits)(void *context, size_t request, int64_t position, const float *logits);
    /* Routing of `token` at `position`: experts and weights [moe_layers][top_k], ascending experts
     * (capture_routing). */
    void (*on_routing)(void *context, size_t request, int64_t position, int32_t token,
                       const uint16_t *experts, const float *weights);
    void (*on_finish)(void *context, size_t request, cot_finish finish);
} cot_events;

/* Runs requests to their ends, many at once; request s is home on rank s mod P. Errors: INVALID_ARGUMENT
 * (empty prompt, a token that is not in the vocabulary, an option out of range: the request is named),
 * TOO_LONG (prompt beyond the context), OUT_OF_MEMORY (a sequence larger than the KV cache): checked before
 * anything runs. INVALID_ARGUMENT (logits no longer finite), TIMED_OUT, PEER_FAILED: the engine must be
 * closed. */
cot_status cot_engine_run(cot_engine *engine, const cot_request *requests, size_t count,
                          const cot_events *events, cot_error *error);

/* The phases that traffic is counted for, NULL at the end. Constant. */
const char *const *cot_engine_phases(void);
enum { COT_STATS_PHASES = 5, COT_STATS_TIMES = 10 };

/* Counted since the engine was opened. */
typedef struct cot_stats {
    int ranks;
    uint64_t *bytes[COT_STATS_PHASES], *messages[COT_STATS_PHASES]; /* [source][destination] */
    double lar;          /* (token, expert) activations served on the token's home rank / all */
    double remote_ranks; /* distinct other ranks a token needs, mean over tokens and MoE layers */
    uint64_t activations, local_activations;
    int64_t prefill_tokens, decode_tokens, steps;
    int64_t prefill_ns, decode_ns; /* of steps that hold prompt tokens, and of the others */
    int64_t last_step_ns;
    uint64_t prefill_read_bytes, decode_read_bytes; /* weights and KV that those steps had to read, once a
                                                       step each (0 without capture_routing) */
    struct {
        const char *name;
        int64_t ns; /* summed over ranks, waiting included */
    } times[COT_STATS_TIMES];
} cot_stats;
/* Gathers the counters of all ranks (itself not counted in what it returns). Free with cot_stats_clear.
 * Errors: OUT_OF_MEMORY, TIMED_OUT, PEER_FAILED. */
cot_status cot_engine_stats(cot_engine *engine, cot_stats *stats, cot_error *error);
void cot_stats_clear(cot_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
