/* What a predictor is made of: sizes, and tables that lie in its file or in memory of its own. */
#ifndef COT_PREDICT_PREDICTOR_H
#define COT_PREDICT_PREDICTOR_H
#include "coterie/predict.h"
#include "base/pool.h"
#include "base/safetensors.h"
#include "kernels/kernels.h"
#include "kernels/lookup.h"

enum {
    COT_NO_RANK = 0xffff,           // in a pair of rank and confidence
    COT_SEQUENCE_CELLS = 1 << 21,   // most cells (sequence, expert) a layer; longer sequences are cut
    COT_CONTEXT_MAX_EXPERTS = 1024, // contexts are not trained beyond: their tables have E squared cells
    COT_CONTEXT_FORMS = 2
};

/* What one form of context reads. */
typedef struct cot_predictor_context {
    const float *scale;   // [L] what 1 stands for in the layer's tables
    const int16_t *bias;  // [L][E]
    const int8_t *tokens; // [L][N + 1][E], the last row is unknown tokens'
    const int8_t *before; // [L][N + 1][E] by the token before
    const int8_t *own;    // [L][2][E][E] by own expert at layer l - 1, l - 2
    const int8_t
        *earlier; // [L][2][E][E] by expert at layer l of the two tokens before, nearer first; DECODE alone
} cot_predictor_context;

struct cot_predictor {
    const char *model;
    int32_t n_layers, n_experts, top_k, n_ranks, order; // L E K D
    const int32_t *layers;                              // [L]
    int32_t *expert_rank;                               // [L][E]
    uint64_t trace_hash, model_hash, seed;
    int64_t n_sequences;
    int64_t n_tokens;       // N, rows of the token tables
    int64_t n_ids;          // V, ids that id_row knows; 0: no embedding was given
    int64_t n_entries;      // of the token table
    int64_t n_string_bytes; // of token_strings; -1: no strings
    bool has_tokens, has_sequences, has_context[COT_CONTEXT_FORMS];

    /* A share is the expected activations of a token there, 65535 (255 where it is a byte) for 1. A pair is a rank and
     * its confidence, COT_NO_RANK and 0 where there is nothing to say. */
    const uint8_t *expert_rank_u8;   // [L][E]
    const uint16_t *layer_shares;    // [L][E]
    const uint16_t *layer_ranks;     // [L][2]
    const uint8_t *chosen;           // [n_sequences], or NULL
    const int32_t *token_ids;        // [N] ascending
    const int32_t *id_row;           // [V] row, or -1
    const uint16_t *token_frequency; // [N] tokens learnt from, at most 65535
    const int64_t *token_offsets;    // [L * N + 1] entries of row n in layer l begin at [l * N + n]
    const uint16_t *token_experts;   // [n_entries] ascending within a row
    const uint16_t *token_shares;    // [n_entries]
    const uint16_t *token_ranks;     // [N][L][2]: a token that goes through all layers touches a line or two
    const uint16_t *sequence_ranks;  // [cot_sequence_rows][2], layer after layer
    const uint8_t *sequence_shares;  // [cot_sequence_rows][E]
    cot_predictor_context context[COT_CONTEXT_FORMS]; // of method COT_PREDICT_CONTEXT_PREFILL, of the next
    const int64_t *token_string_offsets;              // [N + 1]
    const uint8_t *token_strings;

    uint16_t *rank_experts;  // [L][E] those of rank 0, of rank 1, ...
    int32_t *rank_first;     // [L][D + 1] where each rank's begin
    int64_t *sequence_first; // [L + 1] first row of each layer in the sequence tables
    const cot_kernels *kernels;
    const cot_lookup_kernels *lookup;
    cot_safetensors file;
    void **blocks;
    size_t n_blocks;
};

/* A tensor of the file. */
typedef struct cot_predictor_table {
    const char *name;
    cot_dtype dtype;
    int dims;
    int64_t shape[3];
    const void **data;         // the predictor's pointer to it
    cot_predict_method method; // that reads it; COT_PREDICT_METHODS: none
} cot_predictor_table;
enum { COT_PREDICTOR_TABLES = 32 };
/* Writes the tables that a predictor of these sizes has to `tables` [COT_PREDICTOR_TABLES]; returns how many. */
int cot_predictor_tables(cot_predictor_table *tables, cot_predictor *predictor);

/* What a method reads; NULL where it is no context, or the predictor has none of that form. */
const cot_predictor_context *cot_predictor_context_of(const cot_predictor *predictor,
                                                      cot_predict_method method);

/* Zeroed memory that lives as long as the predictor; NULL when out of memory or when the product overflows. */
void *cot_predictor_alloc(cot_predictor *predictor, int64_t count, size_t bytes);
/* Once sizes, layers and expert_rank_u8 are there: what follows from them. Errors: OUT_OF_MEMORY. */
cot_status cot_predictor_finish(cot_predictor *predictor, cot_error *error);

/* Layers that a sequence looks back at in layer l: no more than `order`, than there are, and than COT_SEQUENCE_CELLS
 * allows. */
int32_t cot_sequence_order(const cot_predictor *predictor, int32_t l);
/* Rows of the sequence tables for sequences of up to `order` ranks: 1 + D + D^2 + ... The row of ranks r0 (layer l - 1),
 * r1, ... is the sum of (r_j + 1) D^j: the empty sequence first, then those of one rank, of two ... */
int64_t cot_sequence_rows(int32_t n_ranks, int32_t order);

/* The pair of what `count` [E] activations say: the rank with most of them (ties: the lowest), or `given` where it is
 * not below 0, and its share. No rank where there are none and none is given. */
void cot_pair_of_counts(uint16_t pair[2], const uint32_t *count, const int32_t *expert_rank,
                        int32_t n_experts, int32_t n_ranks, int32_t given);

/* What the parts of training share. */
typedef struct cot_training {
    cot_predictor *predictor;
    const cot_trace *trace;
    const cot_predictor_options *options;
    cot_pool *pool;
    int64_t n;      // training tokens; of kind counts, rows of known id
    int64_t *token; // [n] their positions, ascending
    int32_t *row;   // [T] row of each of the trace's tokens in the token tables, or -1
    int64_t *begin; // [T] where the token's sequence begins; NULL of kind counts
} cot_training;

/* Each makes its tables. Errors: OUT_OF_MEMORY. */
cot_status cot_train_tokens(cot_training *training, cot_error *error);
cot_status cot_train_sequences(cot_training *training, cot_error *error);
/* Of that form, an index of cot_predictor.context. */
cot_status cot_train_context(cot_training *training, int form, cot_error *error);
cot_status cot_train_neighbours(cot_training *training, cot_error *error);

#endif
