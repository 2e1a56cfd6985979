/* Routing traces: what a model's router did, token by token, and the statistics and file formats around it.
 *
 * A trace is one safetensors file. Its metadata are strings: format "coterie.trace", version "1", kind
 * "tokens" or "counts", model, experts (E), top_k (K), layers (the model's layer numbers, as "0,1,2"), and, where
 * they are known, hidden (H, columns of a token's row) and model_hash (hexadecimal). Its tensors:
 *
 *     kind tokens                                    kind counts
 *     token_ids         int32   [T]                  token_ids  int32   [N]
 *     sequence_offsets  int64   [S+1]                counts     uint32  [L][N][E]
 *     experts           uint8 or uint16  [L][T][K]
 *     weights           float16 [L][T][K]            (may be absent)
 *
 * and in both, where ids were made from strings: token_strings uint8 [bytes], token_string_offsets int64
 * [V+1], so that string i is the bytes from offset i to offset i + 1. An id that is not known is -1. */
#ifndef COTERIE_TRACE_H
#define COTERIE_TRACE_H

#include "coterie/status.h"
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { COT_TRACE_MAX_EXPERTS = 65536, COT_TRACE_MAX_LAYERS = 1024, COT_TRACE_MAX_RANKS = 64 };

typedef enum cot_trace_kind {
    COT_TRACE_TOKENS, // every token's experts, in order
    COT_TRACE_COUNTS  // how often each token id was sent to each expert
} cot_trace_kind;

/* A trace in memory. Every pointer belongs to the trace and lives until cot_trace_close; the arrays may lie
 * in a mapped file and are read-only. Any number of threads may read one trace. All zero is a closed trace.
 */
typedef struct cot_trace {
    cot_trace_kind kind;
    const char *model;               // its name, UTF-8; "" when nobody said
    uint64_t model_hash;             // of its gates, see cot_engine_info; 0: nobody said
    int32_t n_layers;                // L, 1 .. COT_TRACE_MAX_LAYERS
    int32_t n_experts;               // E, 1 .. COT_TRACE_MAX_EXPERTS
    int32_t top_k;                   // K, 1 .. E
    int32_t hidden;                  // H, columns of a token's row between layers; 0: nobody said
    const int32_t *layers;           // [L] the model's layer numbers, ascending
    int64_t n_tokens;                // T of kind tokens, N (distinct ids) of kind counts
    const int32_t *token_ids;        // [T] or [N], -1 where not known
    int64_t n_sequences;             // S; 0 of kind counts
    const int64_t *sequence_offsets; // [S+1] from 0 to T, never falling; NULL of kind counts
    const uint8_t *experts_u8;       // [L][T][K] when E <= 256, or NULL
    const uint16_t *experts_u16;     // [L][T][K] otherwise, or NULL
    const uint16_t *weights;         // [L][T][K] bits of float16; NULL when the trace has none
    const uint32_t *counts;          // [L][N][E]; NULL of kind tokens
    int64_t n_strings;               // V, 0 when there are none
    const int64_t *string_offsets;   // [V+1]; NULL when V is 0
    const char *strings;             // [string_offsets[V]] bytes, not NUL-terminated
    struct cot_trace_owner *owner;   // private
} cot_trace;

/* Expert `k` of token `t` in the `l`-th recorded layer; indices are not checked. Kind tokens only. */
static inline int32_t cot_trace_expert(const cot_trace *trace, int32_t l, int64_t t, int32_t k)
{
    int64_t i = ((int64_t)l * trace->n_tokens + t) * trace->top_k + k;
    return trace->experts_u8 ? trace->experts_u8[i] : trace->experts_u16[i];
}
/* Its weight as the router gave it, rounded to float16; 0 when the trace has no weights. */
float cot_trace_weight(const cot_trace *trace, int32_t l, int64_t t, int32_t k);

/* Maps the trace file at `path` and checks all of it: shapes that agree, experts below E, offsets that rise
 * from 0 to T, ids of -1 or more, finite weights. Errors: NOT_FOUND, IO, MALFORMED, UNSUPPORTED (a later
 * version), OUT_OF_MEMORY. On failure `*trace` is closed; on success the caller closes it. */
cot_status cot_trace_open(cot_trace *trace, const char *path, cot_error *error);
/* The same on a file's bytes in memory, which must outlive the trace; `subject` names them in messages. */
cot_status cot_trace_parse(cot_trace *trace, const void *data, size_t bytes, const char *subject,
                           cot_error *error);
/* Frees what the trace holds. A closed trace is fine. */
void cot_trace_close(cot_trace *trace);
/* Checks `trace` as cot_trace_open does, then writes it; the file appears whole or not at all. Errors:
 * MALFORMED, IO, OUT_OF_MEMORY. */
cot_status cot_trace_write(const cot_trace *trace, const char *path, cot_error *error);
/* Makes the counts of a trace of kind tokens: its ids ascending, tokens of unknown id together under -1.
 * `*counts` is the caller's to close and needs `trace` no more. Errors: INVALID_ARGUMENT (it is counts
 * already), OUT_OF_MEMORY. */
cot_status cot_trace_count(cot_trace *counts, const cot_trace *trace, cot_error *error);

/* Collects a trace of kind tokens. Not thread-safe: one thread at a time. */
typedef struct cot_trace_builder cot_trace_builder;

/* Starts a trace of `n_layers` layers numbered `layers` [L] (ascending; NULL: 0, 1, ...), each choosing
 * `top_k` of `n_experts`. Errors: INVALID_ARGUMENT, OUT_OF_MEMORY. The caller closes the builder. */
cot_status cot_trace_builder_open(cot_trace_builder **builder, const char *model, int32_t n_layers,
                                  const int32_t *layers, int32_t n_experts, int32_t top_k, cot_error *error);
/* Appends a token to sequence `sequence`, 0 or more, at its end; sequences may grow in turn, as they do in a
 * batch. A number that is skipped becomes an empty sequence. `experts` [L][K], `weights` [L][K] (finite;
 * stored as float16; NULL: not known, and the trace has none). Errors: INVALID_ARGUMENT (the builder is as before), OUT_OF_MEMORY (likewise). */
cot_status cot_trace_builder_append(cot_trace_builder *builder, int32_t sequence, int32_t token_id,
                                    const uint16_t *experts, const float *weights, cot_error *error);
/* Moves everything appended into `*trace`, sequence after sequence, and leaves the builder without tokens.
 * The caller closes `*trace`. Errors: OUT_OF_MEMORY (the tokens are lost). */
cot_status cot_trace_builder_finish(cot_trace *trace, cot_trace_builder *builder, cot_error *error);
void cot_trace_builder_close(cot_trace_builder *builder); // NULL is fine

/* How unevenly n things share a load. All 0 when there is no load. */
typedef struct cot_load_spread {
    uint64_t total;
    int64_t unused;         // things without load
    double peak_over_mean;  // the largest load over the mean, 1 when all are equal
    double variation;       // coefficient of variation: (population) standard deviation over mean
    double top_tenth_share; // share of the load on the ceil(n / 10) most loaded things, 0 to 1
} cot_load_spread;

/* Writes to `load` [E] how many (token, expert) activations each expert of the `l`-th recorded layer had. */
void cot_trace_load(uint64_t *load, const cot_trace *trace, int32_t l);
/* The spread of `load` [n]. Errors: OUT_OF_MEMORY. */
cot_status cot_load_measure(cot_load_spread *spread, const uint64_t *load, int64_t n, cot_error *error);

/* The largest of `load` [n] over their mean: the imbalance of ranks; 0 when there is no load. */
double cot_load_peak(const double *load, int64_t n);

/* Activations as the ranks that hold the tokens see them: the one count of locality, of traces as of a running engine.
 * Sums over layers, ranks and steps by adding the fields. */
typedef struct cot_locality {
    int64_t tokens;       // tokens, once for each layer summed
    int64_t activations;  // (token, expert) pairs
    int64_t local;        // those whose expert sits on the token's home rank
    int64_t remote_ranks; // distinct other ranks that a token's experts sit on, summed over tokens
} cot_locality;

/* Counts an activation of a token at home on rank `home` by an expert on `rank`, 0 .. COT_TRACE_MAX_RANKS-1; returns the
 * bit of that rank, 0 at home. Once all activations of a token are counted, cot_locality_token takes these bits together:
 *
 *     for (k...) reached |= cot_locality_call(&locality, home, rank[k]);
 *     cot_locality_token(&locality, reached);
 */
static inline uint64_t cot_locality_call(cot_locality *locality, int32_t home, int32_t rank)
{
    locality->activations++;
    locality->local += rank == home;
    return rank == home ? 0 : (uint64_t)1 << rank;
}
static inline void cot_locality_token(cot_locality *locality, uint64_t reached)
{
    locality->tokens++;
    locality->remote_ranks += __builtin_popcountll(reached);
}
/* The local activation rate (LAR), local / activations, and the other ranks of a mean token; 0 of nothing. */
static inline double cot_locality_lar(const cot_locality *locality)
{
    return locality->activations ? (double)locality->local / (double)locality->activations : 0;
}
static inline double cot_locality_remote_ranks(const cot_locality *locality)
{
    return locality->tokens ? (double)locality->remote_ranks / (double)locality->tokens : 0;
}

/* Where thing i of n is when P = `ranks` ranks take contiguous parts: on the rank r with floor(rn/P) <= i <
 * floor((r+1)n/P). */
static inline int32_t cot_trace_home(int64_t i, int64_t n, int32_t ranks)
{
    return (int32_t)(((i + 1) * ranks - 1) / n);
}

/* Counts the `l`-th recorded layer's local activations among P = `ranks` ranks, 1 .. COT_TRACE_MAX_RANKS,
 * seated as the engine's tensor-parallel mode does: token t of a sequence of T is at home where cot_trace_home says,
 * expert e of E likewise. Errors: INVALID_ARGUMENT (kind counts, ranks or layer out of range), OUT_OF_MEMORY. */
cot_status cot_trace_locality_measure(cot_locality *locality, const cot_trace *trace, int32_t l, int ranks,
                                      cot_error *error);

/* Receives one line without a newline. */
typedef void cot_trace_say(void *context, const char *line);

/* Says, a line each, what is odd about a valid trace: unknown ids, absent weights, tokens whose experts
 * repeat, experts and layers without load, counts that are no multiple of K or differ between layers. Errors:
 * OUT_OF_MEMORY. */
cot_status cot_trace_warn(const cot_trace *trace, cot_trace_say *say, void *context, cot_error *error);

typedef struct cot_trace_import_options {
    size_t size;        // sizeof(cot_trace_import_options)
    const char *from;   // format, one of cot_trace_formats; NULL: recognised by content
    const char *model;  // model name to record; NULL: taken from the folder's name
    int32_t n_experts;  // E; 0: from the data, see the formats
    int32_t top_k;      // K; 0: from the format or the data
    int32_t hidden;     // H to record; 0: as a trace says it, else not known
    cot_trace_say *say; // told what was derived; NULL: nobody
    void (*progress)(void *context, uint64_t done_bytes, uint64_t total_bytes); // now and then; NULL: nobody
    void *context;                                                              // passed to both
} cot_trace_import_options;

/* A format that cot_trace_import reads. */
typedef struct cot_trace_format {
    const char *name; // as `from` names it
    const char *text; // what it is, one line
} cot_trace_format;
/* All of them; ends with a NULL name. */
extern const cot_trace_format cot_trace_formats[];

/* Reads a trace from `path`, a file or folder of any of cot_trace_formats. `options` may be NULL. The caller
 * closes `*trace`. Errors: INVALID_ARGUMENT (options), NOT_FOUND, IO, MALFORMED, UNSUPPORTED (not recognised),
 * OUT_OF_MEMORY. */
cot_status cot_trace_import(cot_trace *trace, const char *path, const cot_trace_import_options *options,
                            cot_error *error);

#ifdef __cplusplus
}
#endif
#endif
