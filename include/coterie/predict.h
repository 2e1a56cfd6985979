/* Where tokens will go: predictors of the experts that a token will call, made of tables counted on a trace
 * (Speculative MoE, section 3.3, appendices A and B), and what their predictions are worth on another one.
 *
 *     cot_predictor_train   tables from the chosen sequences of a trace, for given groups of experts
 *     cot_predictor_write, _open   tables as a safetensors file
 *     cot_predict_ranks, _experts  a batch of one layer's tokens: look-ups, for the hot path
 *     cot_predict_evaluate  recall, locality and balance on a trace
 *
 * At layer l a prediction reads token ids up to now, this token's experts at layers before l and, of `context-decode` alone,
 * earlier tokens' experts at l; nothing else. Pure: no clock, no global state, the same result for the same input.
 *
 * A predictor's file has the metadata format "coterie.predictor", version "1", model, experts (E), top_k (K), layers,
 * ranks (D), order, sequences, seed and trace_hash (hexadecimal), model_hash (the same) where the trace had it, and the
 * tensors below. A share is expected
 * activations of a token, 65535 (255 in bytes) for 1; a pair is a rank and its confidence, 65535 and 0 for none.
 *
 *     expert_rank      uint8  [L][E]             sequence_ranks   uint16 [R][2]       pairs, layer after layer
 *     layer_ranks      uint16 [L][2]   pairs     sequence_shares  uint8  [R][E]
 *     layer_shares     uint16 [L][E]             context_scale    float32 [L]         log-odds that 1 stands for,
 *     token_ids        int32  [N]                context_bias     int16  [L][E]
 *     token_frequency  uint16 [N]                context_tokens   int8   [L][N+1][E]  the last row: unknown tokens
 *     token_offsets    int64  [L*N+1]            context_before   int8   [L][N+1][E]  by the token before
 *     token_experts    uint16 [entries]          context_own      int8   [L][2*E][E]  by own expert at l-1, l-2
 *     token_shares     uint16 [entries]          context_earlier  int8   [L][2*E][E]  by experts at l of the two
 *     token_ranks      uint16 [N][L][2] pairs                                         tokens before
 *     id_row           int32  [V]                chosen           uint8  [sequences]
 *     token_strings    uint8  [bytes]            token_string_offsets  int64 [N+1]
 *
 * Those of context_... are what `context-decode` reads; context_prefill_scale, _bias, _tokens, _before and _own are their like for
 * `context-prefill`.
 *
 * Device sequences of layer l look back at n layers, the least of order and l, and no more than leaves the layer's
 * (1 + D + ... + D^n) E cells at 2^21 or n at 1. Sequences of up to n ranks have a row each, the empty one first, that
 * of r_1 (layer l-1), r_2, ... at the sum of (r_j + 1) D^(j-1); one that was never seen has the row of the sequence
 * without its earliest rank. */
#ifndef COTERIE_PREDICT_H
#define COTERIE_PREDICT_H

#include "coterie/status.h"
#include "coterie/trace.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cot_predict_method {
    COT_PREDICT_GLOBAL,          // the layer's most called experts, whatever the token
    COT_PREDICT_TOKEN_TABLE,     // token id -> experts, counted
    COT_PREDICT_DEVICE_SEQUENCE, // ranks of the token's experts in the layers before -> rank, counted
    COT_PREDICT_ALGORITHM_2,     // whichever of the two tables is more confident
    /* Coterie's own, in two forms that are trained apart. PREFILL reads what every token of a prompt knows when the prompt goes
     * through layer l at once: its id, the id before, its own experts in the layers before. DECODE reads beside these the
     * experts that the tokens before called at layer l, which only tokens that come one after the other have. */
    COT_PREDICT_CONTEXT_PREFILL,
    COT_PREDICT_CONTEXT_DECODE,
    COT_PREDICT_METHODS
} cot_predict_method;
/* As the command line and JSON name them: "global", "token-table", "device-sequence", "algorithm-2", "context-prefill",
 * "context-decode". */
extern const char *const cot_predict_method_names[COT_PREDICT_METHODS];

enum {
    COT_PREDICT_MAX_ORDER = 5, // most layers that a device sequence looks back at
    COT_PREDICT_LOOK_BACK = 2  // layers before, and tokens before, whose experts the contexts read
};

/* Embeddings of the vocabulary, from a checkpoint: an id that training never saw is looked up as the known id whose
 * embedding is nearest by cosine. */
typedef struct cot_predict_embedding {
    const float *row; // [V][H]
    int64_t n_ids;    // V
    int64_t width;    // H
} cot_predict_embedding;

typedef struct cot_predictor_options {
    size_t size;   // sizeof(cot_predictor_options)
    int32_t ranks; // D, 1 .. min(E, COT_TRACE_MAX_RANKS)
    /* [L][E] below D: where each expert sits. NULL: contiguous groups, expert e of E on the rank r with
     * floor(rE/D) <= e < floor((r+1)E/D). */
    const int32_t *expert_rank;
    /* Ranks that a grouping gave to token ids; others have the rank of most of their counts. */
    const int32_t *token_ids;  // [n_tokens] ascending; NULL: no token has a given rank
    const int32_t *token_rank; // [L][n_tokens]
    int64_t n_tokens;
    int32_t order;                          // device sequences: layers looked back at, 1 .. 5; 0: 2
    const uint8_t *chosen;                  // [S] sequences to learn from, 0: not; NULL: all. Of kind tokens
    const cot_predict_embedding *embedding; // NULL: unknown ids are unknown
    bool counts_only;                       // leave out what is trained by steps (COT_PREDICT_CONTEXT_...)
    uint64_t seed;                          // of what is trained by steps
    int32_t threads; // that train, whatever their number with the same result; 0: one a core
} cot_predictor_options;

/* Tables, read-only once made: any number of threads may look up. */
typedef struct cot_predictor cot_predictor;

/* Counts and trains every table that the trace allows: without token ids no token table, of kind counts the token
 * table alone, of more than 1024 experts no contexts. Errors: INVALID_ARGUMENT (options, no training sequence or
 * token), OUT_OF_MEMORY. The caller closes. */
cot_status cot_predictor_train(cot_predictor **predictor, const cot_trace *trace,
                               const cot_predictor_options *options, cot_error *error);
/* The file appears whole or not at all. Errors: IO, OUT_OF_MEMORY. */
cot_status cot_predictor_write(const cot_predictor *predictor, const char *path, cot_error *error);
/* Maps the file and checks all of it. Errors: NOT_FOUND, IO, MALFORMED, UNSUPPORTED, OUT_OF_MEMORY. */
cot_status cot_predictor_open(cot_predictor **predictor, const char *path, cot_error *error);
/* The same on a file's bytes in memory, which must outlive the predictor; `subject` names them in messages. */
cot_status cot_predictor_parse(cot_predictor **predictor, const void *data, size_t bytes, const char *subject,
                               cot_error *error);
void cot_predictor_close(cot_predictor *predictor); // NULL is fine
/* Caps the instruction set of look-ups, see cot_isa_names (NULL: the best, as at first). Before the predictor is
 * shared between threads. Errors: UNSUPPORTED. */
cot_status cot_predictor_set_isa(cot_predictor *predictor, const char *isa, cot_error *error);

/* What the tables were made of. Pointers are the predictor's. */
typedef struct cot_predictor_info {
    const char *model;
    uint64_t model_hash; // of its gates, as the trace had it; 0: nobody said
    int32_t n_layers, n_experts, top_k, n_ranks, order;
    const int32_t *layers;      // [L] the model's numbers
    const int32_t *expert_rank; // [L][E]
    uint64_t trace_hash;        // of the trace it learnt from, see cot_trace_hash
    uint64_t seed;              // as it was given
    const uint8_t *chosen;      // [n_sequences] that were learnt from; NULL: all, or a trace of kind counts
    int64_t n_sequences;        // of that trace; 0 of kind counts
    const int32_t *token_ids;   // [n_tokens] ascending: ids that have a row
    const uint16_t *token_frequency; // [n_tokens] tokens learnt from, at most 65535
    int64_t n_tokens;
    const char *token_strings;           // bytes, not NUL-terminated; NULL where the trace had none
    const int64_t *token_string_offsets; // [n_tokens + 1] string i is the bytes from offset i to offset i + 1
    bool has[COT_PREDICT_METHODS];
    uint64_t table_bytes[COT_PREDICT_METHODS]; // what each method reads, its own tables alone
} cot_predictor_info;
void cot_predictor_describe(cot_predictor_info *info, const cot_predictor *predictor);

/* A hash of a trace's content: of its experts and sequences, or, of kind counts, of its ids and counts. It stays the same
 * when a tokenizer gives other ids to the tokens of the sequences. Not cryptographic. */
uint64_t cot_trace_hash(const cot_trace *trace);

/* Rows of the token tables for ids [n]: below info.n_tokens, or -1 for an id that is unknown (and has no neighbour by
 * embedding). Once a token, not once a layer. */
void cot_predict_rows(int32_t *rows, const cot_predictor *predictor, const int32_t *ids, int64_t n);

/* The rank that holds most of each token's experts [n][K] in a layer (ties: the lowest; -1 where no expert is known):
 * what ranks_before below wants for the layers to come. Thread-safe. */
void cot_predict_home(int16_t *rank, const cot_predictor *predictor, int32_t layer, const uint16_t *experts,
                      int64_t n);

/* One layer's tokens. What a method does not read may be NULL; -1 (65535 of experts) is unknown. */
typedef struct cot_predict_batch {
    int32_t layer;               // index l, 0 .. L-1
    int64_t n_tokens;            // T
    const int32_t *row;          // [T] from cot_predict_rows
    const int32_t *row_before;   // [T] the row of the token before in its sequence
    const uint16_t *own_before;  // [2][T][K] this token's experts at layers l-1, l-2
    const uint16_t *earlier;     // [2][T][K] experts at layer l of the token before, and of the one before it
    const int16_t *ranks_before; // [order][T] the rank of most of the token's experts at layers l-1, l-2, ...
} cot_predict_batch;

/* Each token's likely rank, -1 where the method has nothing to say (an unknown token), and how sure it is: the share
 * of its activations expected there, 0 .. 65535. `confidence` may be NULL. Of equal confidence, algorithm-2 takes the
 * token table's rank; device-sequence has nothing to say where no rank before is known, as at layer 0. Methods that the
 * predictor does not have say -1. Never allocates. Thread-safe. */
void cot_predict_ranks(int16_t *rank, uint16_t *confidence, const cot_predictor *predictor,
                       cot_predict_method method, const cot_predict_batch *batch);
/* Expected activations of each expert, [T][E], 0 or more: the K largest are the prediction. A token that the method
 * does not know has the layer's counts, as has every token of a method that the predictor does not have. Never
 * allocates. Thread-safe. */
void cot_predict_experts(float *score, const cot_predictor *predictor, cot_predict_method method,
                         const cot_predict_batch *batch);

/* What a text calls, foretold from its last tokens by the token table: the rows [the result] of those that the table knows of the last
 * COT_PREDICT_TEXT_TOKENS of `ids` [n]; and of one layer the mean of what these say, at most 1, to share [E]. `known` is 1 or more;
 * scratch [COT_PREDICT_TEXT_TOKENS][E]. Thread-safe. */
enum { COT_PREDICT_TEXT_TOKENS = 128 };
int64_t cot_predict_text_rows(int32_t rows[COT_PREDICT_TEXT_TOKENS], const cot_predictor *predictor,
                              const int32_t *ids, int64_t n);
void cot_predict_text_shares(float *share, float *scratch, const cot_predictor *predictor, int32_t layer,
                             const int32_t *rows, int64_t known);

#ifdef __cplusplus
}
#endif
#endif
