/* The engine: a checkpoint, a group of ranks that hold it, and sequences that go in as tokens and come out as
 * tokens.
 *
 * One engine belongs to one thread at a time: the thread that calls it works as rank 0. Everything the engine
 * returns is owned by the caller unless said otherwise; paths and names passed in are copied or used only
 * during the call.
 */
#ifndef COTERIE_ENGINE_H
#define COTERIE_ENGINE_H
#include "coterie/engine_options.h"
#include "coterie/layout.h"
#include "coterie/request.h"
#include "coterie/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cot_engine cot_engine;

/* Replayed routing. Each request names the trace's sequence whose tokens it feeds (`recorded`): the token at position p takes
 * the experts and weights that were recorded there, 1 / K each where weights were not. Ids may then be -1: such a token is
 * embedded as zeros. */
typedef struct cot_engine_routing {
    /* Of kind tokens, with the model's E and K. NULL: routing is drawn. */
    const struct cot_trace *trace;
    const char *name; /* what messages call the trace */
    /* The trace's first layer that counts, from 0: from there on it has a layer for each of the model's MoE layers. All of its
     * layers must have the model's numbers; with `cut` some of them, whatever their numbers, and tables are then of the whole
     * trace's layers. */
    int32_t first_layer;
    bool cut;
    /* Drawn routing: of the (token, expert) activations of the tokens at home on a rank this share is there, 0 to 1; all experts
     * there are alike, and all that are elsewhere. No expert may have replicas. */
    double lar;
} cot_engine_routing;

/* Loads a model folder and starts the group. `*notes`, where not NULL, receives malloc'd lines about tensors
 * that were skipped, one that begins with "warning: " about what contradicts config.json, one about experts that were rounded to
 * four bits while they were loaded, or NULL; the caller frees it. Errors: what reading the model gives; INVALID_ARGUMENT (an
 * option, named, or a placement or tables of another number of experts or ranks or of other layers); UNSUPPORTED (this CPU
 * or build does not have `isa`); OUT_OF_MEMORY with the bytes needed and available, before anything is loaded; SERVED
 * where the group was started from outside and this process was another rank than 0: it has served until the engine
 * was closed, and exits. On failure `*engine` is NULL. */
cot_status cot_engine_open(cot_engine **engine, const char *folder, const cot_engine_options *options,
                           char **notes, cot_error *error);
/* The same for random weights (a function of `seed`) in the shape that a config.json's text describes. For
 * benchmarks. */
cot_status cot_engine_open_random(cot_engine **engine, const char *config_json, size_t bytes, uint64_t seed,
                                  const cot_engine_options *options, cot_error *error);

/* What opening a model would take. */
typedef struct cot_engine_sizes {
    size_t weight_bytes; /* packed, over all ranks: what cot_engine_describe tells of the opened engine */
    size_t shared_bytes; /* of those: what every rank reads whole, of which a host keeps one copy */
    size_t rank_bytes;   /* the others, experts and attention's heads, on the rank that has most of them */
    /* Of layers that have a state in place of keys: what a sequence's states take, and a snapshot of them as much; all of them
     * together, over all ranks. 0: there are no such layers. */
    size_t state_bytes, states_bytes;
    int64_t snapshots;  /* of those */
    size_t total_bytes; /* weights, KV cache, states and buffers: opening is refused beyond available_bytes */
    /* What of that this host gives: all, or its part where ranks were started on several; weights that ranks share are
     * there once for each process. */
    size_t here_bytes;
    const char *weights, *weights_attention, *weights_head; /* as cot_engine_info has them */
    size_t available_bytes; /* memory that this process may still take now; SIZE_MAX where that is not told */
} cot_engine_sizes;
/* Measures a model folder, which is opened once, for each of `count` options: sizes [count]. Of its weights only is read how they are stored; where they are not there, or
 * not whole, config.json alone tells what they would take, those of FP8 or in groups as if they were bf16; a GGUF file, which has no other, is refused. Errors: as
 * cot_engine_open's, but that a model which is too large is none. Thread-safe. */
cot_status cot_engine_measure(cot_engine_sizes *sizes, const char *folder, const cot_engine_options *options,
                              size_t count, cot_error *error);
/* Whether all ranks are there, as far as this process can see at once: one that was killed on this host is missed before the next
 * step fails for it. Any thread may call it, until the ranks are ended. */
bool cot_engine_lives(const cot_engine *engine);
/* After a step has failed: ends the ranks, and waits until they are gone. What is left to do with the engine is to ask what it is at
 * (cot_engine_describe, cot_engine_layout, cot_engine_get_load, cot_engine_watch_cache), and to close it. */
void cot_engine_end_ranks(cot_engine *engine);
/* Ends the ranks and frees the engine. A process that is forked off has a copy of the engine and none of its ranks: it can
 * do nothing with it but close it, which frees the copy. NULL is fine. */
void cot_engine_close(cot_engine *engine);
/* Names of the MoE operators that are there, the default first, NULL at the end. */
const char *const *cot_engine_operators(void);
/* Sees to it that an operator is there: one of the library's, or "cuda", whose module is opened and then is among the names above.
 * Opening an engine or a benchmark does the same. Errors: INVALID_ARGUMENT (no such operator); NOT_FOUND (no module, no driver, no
 * device), UNSUPPORTED (an old driver, another device), each with what is missing. Thread-safe; no name may be looked up meanwhile. */
cot_status cot_engine_find_operator(const char *name, cot_error *error);
/* One line about "cuda": what its module was built for and what this machine has, or that it was not built. */
void cot_engine_describe_cuda(char *text, size_t bytes);
/* Names of the fabrics, the default first, NULL at the end. Constant. */
const char *const *cot_engine_fabrics(void);

typedef struct cot_engine_info {
    const char *architecture, *isa;
    int64_t vocab, hidden, layers, heads, kv_heads, experts, top_k;
    int64_t context_tokens; /* of a sequence, at most: the model's, or sequence_tokens of the options */
    int64_t moe_layers;
    const int32_t *moe_layer; /* [moe_layers] the model's numbers of its MoE layers */
    /* A hash of what chooses experts: the number of them, and the gates of the first and the last MoE layer, rounded to bf16. It
     * tells traces, tables and placements of one model from another's; coterie convert and --weights leave it as it is. With
     * a replayed trace that of the trace. 0: not known, as of random models and of drawn routing. */
    uint64_t model_hash;
    size_t weight_bytes; /* packed, over all ranks */
    int ranks, threads;
    const char *precision, *payload, *op, *combine,
        *attention;                              /* as the options spell them, defaults filled in */
    const char *a2a, *dedup;                     /* the same; "fused" is one-shot as far as a word says it */
    const char *pipeline, *predict, *collective; /* the same; NULL where attention is "dp" */
    const char *weights; /* what routed experts are kept as: a format's name, "bf16", "int4" ... */
    const char *weights_attention,
        *weights_head;  /* the same of attention's output in the first layer, and of the head */
    const int32_t *eos; /* [eos_count] the model's tokens that end a text */
    size_t eos_count;
    int kv_homes; /* ranks that hold a KV cache of their own; 1 where every rank holds its part of all pages */
    int64_t block_tokens; /* of the prefix cache, as the options say */
    int sequences;        /* that run at once, at most */
    bool movable;         /* as the options say */
    int32_t expert_slots; /* of a rank in each MoE layer */
    int32_t
        transit_places; /* of a rank, beside those: what movable experts come into, one for all layers whose experts have the same size */
} cot_engine_info;
/* Constant while the engine lives; owned by it. */
const cot_engine_info *cot_engine_describe(const cot_engine *engine);

/* A token's chance, as cot_sampled tells it, of `token` in a row of logits [vocab], finite ones, as on_logits shows it; *out is filled but for `ends`. `top`
 * has room for k: of the likeliest, at most COT_MAX_LOGPROBS, or, where `of` is not NULL, of these tokens [k]; out->top points there.
 * Thread-safe; allocates nothing. */
void cot_logprobs_of(const float *logits, int64_t vocab, int32_t token, const int32_t *of, size_t k,
                     cot_sampled *out, cot_logprob *top);

/* What happens to a request, told on the caller's thread during cot_engine_step, cot_engine_run or
 * cot_engine_cancel. Any may be NULL. `request` is what cot_engine_submit called it, or its index in the array of
 * cot_engine_run. A callback may submit and cancel requests, its own too; it may not step, run or close. */
typedef struct cot_events {
    void *context;
    /* The request runs from now on. `cached_tokens` of its prompt, whole blocks and not all of it, are in the KV cache
     * already: of those neither logits nor routing are told. Told once, and not of a request of which nothing is
     * computed. */
    void (*on_admit)(void *context, uint64_t request, int64_t cached_tokens);
    /* A sampled token, also one that ends the text; it is there during the call only. on_token follows. */
    void (*on_sampled)(void *context, uint64_t request, const cot_sampled *sampled);
    /* A sampled token (not an end-of-sequence or stop token that ends the text). Returning false ends the sequence.
     */
    bool (*on_token)(void *context, uint64_t request, int32_t token);
    /* Logits [vocab] after the token at `position`. */
    void (*on_logits)(void *context, uint64_t request, int64_t position, const float *logits);
    /* Routing of `token` at `position`: experts and weights [moe_layers][top_k], ascending experts
     * (capture_routing). */
    void (*on_routing)(void *context, uint64_t request, int64_t position, int32_t token,
                       const uint16_t *experts, const float *weights);
    /* The last that is told of a request. */
    void (*on_finish)(void *context, uint64_t request, cot_finish finish);
} cot_events;

/* Takes a request; it and `events` are copied. Steps run it beside others, in the order in which they came as far
 * as rows and pages go; when pages run out, the one that began last starts over later, which nobody is told. `home`, 0 to
 * P - 1, is the rank that holds it under data-parallel attention, COT_HOME_ANY what cot_engine_choose_home says. `*id` is its
 * number for good: from 1, ascending, never given twice; 0 on failure. Errors: INVALID_ARGUMENT (empty prompt, a
 * token that is not in the vocabulary, an option or the home out of range), TOO_LONG (beyond the context),
 * OUT_OF_MEMORY (longer than the KV cache, or no memory), PEER_FAILED (an earlier step failed); nothing has
 * changed then. */
cot_status cot_engine_submit(cot_engine *engine, uint64_t *id, const cot_request *request, int home,
                             const cot_events *events, cot_error *error);

/* The rank on which most of the prompt is in the KV cache, or will be when it is admitted `after` another; among equals, with
 * home_by "experts", of those within one request of the least the one from which it is expected to ask the fewest other ranks, then the one whose requests, waiting ones too, hold the
 * fewest tokens, then the first. The request has been found good. Computes, does not communicate. */
int cot_engine_choose_home(const cot_engine *engine, const cot_request *request);

/* Cheap; does not communicate. */
void cot_engine_get_load(const cot_engine *engine, cot_engine_load *load);

/* Fills in the first `room` of them: those that run, in the order in which they began, then those that wait, in turn.
 * Returns how many there are. Does not communicate; its cost grows with the square of those that run. */
size_t cot_engine_sequences(const cot_engine *engine, cot_engine_sequence *sequences, size_t room);
/* Where the experts are now, a copy, which the caller frees (cot_expert_layout_free); `*epoch`, where not NULL, counts how often
 * that has changed. Thread-safe. Errors: OUT_OF_MEMORY. */
cot_status cot_engine_layout(cot_engine *engine, cot_expert_layout *layout, uint64_t *epoch,
                             cot_error *error);

/* Why an expert did not come where it was to go. X(NAME, "name") */
#define COT_MOVE_OUTCOME_LIST(X)                                                                             \
    X(CANCELLED, "cancelled")                                                                                \
    X(TIMED_OUT, "timed out") /* its copy was not whole within the group's time-out */                       \
    X(DIFFERED, "differed")   /* a chunk came changed as often as it was sent */                             \
    X(NO_SLOT, "no slot")     /* its rank has no free slot in the layer */                                   \
    X(REFUSED,                                                                                               \
      "refused")        /* the placement that would follow is not allowed, as by drawn routing or tables */  \
    X(FAILED, "failed") /* its rank could not take it, as where memory of a device ran out */
typedef enum cot_move_outcome {
#define COT_MOVE_OUTCOME_ENUM(name, text) COT_MOVE_##name,
    COT_MOVE_OUTCOME_LIST(COT_MOVE_OUTCOME_ENUM)
#undef COT_MOVE_OUTCOME_ENUM
        COT_MOVE_OUTCOMES
} cot_move_outcome;

/* Names of outcomes [COT_MOVE_OUTCOMES], NULL at the end. Constant. */
const char *const *cot_engine_move_outcomes(void);

typedef struct cot_engine_moves_options {
    double share;       /* of the median step that chunks may take, above 0, at most 1 */
    double bytes_per_s; /* where not 0 a rank sends, and is sent, so much of experts in place of a share */
} cot_engine_moves_options;
void cot_engine_moves_options_init(cot_engine_moves_options *options); /* a share of 0.02 */

/* Experts go where the placement `to` has them while the engine serves: ranks that lack one get a copy of it from a rank that has it,
 * in chunks behind steps, and the copy is used once it is whole and compared; replicas that `to` has not are dropped. Which slots
 * of a rank `to` says does not matter, nor whether it names an expert there twice. A rank that is to get an expert needs a free slot in the layer for it, beside those that are in
 * use then: with one more than `to` needs on every rank, of each layer or, as the option `movable` gives, of all together, nothing is left undone. No text changes, where combine is "exact". What
 * cannot be moved stays where it is, and serving goes on. `options` NULL: what the engine was opened with.
 *
 * cot_engine_step, cot_engine_run do the work, behind each step; with no requests left a step does nothing else, so call it until
 * cot_engine_get_moves says that they are over. Steps may allocate meanwhile. Between two steps. Errors, nothing has begun then:
 * INVALID_ARGUMENT: options, a placement of another model or group, or one that routing or tables do not allow; moves are under way;
 * from within a callback; MALFORMED: the placement; UNSUPPORTED: layers share experts; OUT_OF_MEMORY; PEER_FAILED. `name` is the placement's
 * in messages. */
cot_status cot_engine_move_experts(cot_engine *engine, const cot_expert_map *to, const char *name,
                                   const cot_engine_moves_options *options, uint64_t *id, cot_error *error);

/* A copy that is under way. */
typedef struct cot_engine_copying {
    int32_t layer, expert;   /* layer: the model's number */
    int32_t from, to;        /* ranks */
    int64_t bytes, of_bytes; /* that are there; of the whole */
} cot_engine_copying;
enum { COT_ENGINE_COPIES = 32 }; /* no rank takes part in two */

/* How far experts have moved: the last moves that were asked for. */
typedef struct cot_engine_moves {
    uint64_t id; /* from 1; 0: none were asked for yet */
    bool over;
    int64_t copies, copied; /* replicas that are to be made; that were */
    int64_t drops, dropped; /* that the placement in force has too much; that were dropped */
    int64_t given_up[COT_MOVE_OUTCOMES];
    uint64_t bytes, chunks;    /* that were sent, again too; */
    int64_t epochs;            /* placements that followed one another */
    int64_t copy_ns, place_ns; /* that copying, and agreeing on placements, took beside steps */
    int copying;
    cot_engine_copying copy[COT_ENGINE_COPIES]; /* [copying] */
} cot_engine_moves;
/* Thread-safe, and cheap. */
void cot_engine_get_moves(cot_engine *engine, cot_engine_moves *moves);
/* The moves of that number end: copies that are whole and published stay, others are given up. Between two steps. Errors:
 * NOT_FOUND (there are none of that number, or they are over), PEER_FAILED. */
cot_status cot_engine_cancel_moves(cot_engine *engine, uint64_t id, cot_error *error);

/* Experts that the engine moves by itself (the option `rebalance`): in each cycle it says of each MoE layer whether experts move, and
 * why not. Reasons' names, those of layers where experts move first, NULL at the end. Constant. */
const char *const *cot_engine_rebalance_reasons(void);
enum { COT_ENGINE_REASONS = 7 };

/* A cycle, as it was made or would be. */
typedef struct cot_engine_cycle {
    uint64_t id;           /* of the moves that have begun; 0: none have */
    int64_t copies, drops; /* replicas that are to be made, and that go */
    double before_ns,
        saving_ns; /* what experts take of a step, and so much less with them: as far as costs are known */
    int32_t n_layers;
    struct cot_engine_cycle_layer {
        int32_t layer;              /* the model's number */
        int reason;                 /* of cot_engine_rebalance_reasons */
        int32_t moves;              /* that are to be made; or of the best that were refused */
        double before_ns, after_ns; /* a step's, and with those moves */
    } * layer;                      /* [n_layers] */
    struct cot_engine_cycle_change {
        int32_t layer, expert, rank; /* layer: the model's number */
        bool comes;                  /* to the rank; else goes from there */
    } * change;                      /* [copies + drops] */
} cot_engine_cycle;
void cot_engine_cycle_free(cot_engine_cycle *cycle); /* an empty one is fine */

/* A cycle now, whether or not it is due, whose moves begin; with `dry` nothing is changed. Between two steps. The caller frees *cycle. Errors,
 * nothing has begun then: NOT_FOUND: the model has no experts; UNSUPPORTED: the option `rebalance` is off; INVALID_ARGUMENT: moves are
 * under way; from within a callback; OUT_OF_MEMORY; PEER_FAILED. */
cot_status cot_engine_rebalance(cot_engine_cycle *cycle, cot_engine *engine, bool dry, cot_error *error);

/* How the memory that pages of the KV cache and replicas of experts share (total_bytes) is split, where that moves: with `rebalance`, over ranks that
 * give memory back, and experts that stay where operators read them. */
enum { COT_ENGINE_BUDGET_REASONS = 6 };
typedef struct cot_engine_budget {
    int64_t bytes;          /* all; 0: nothing is shared, or the split does not move */
    int64_t states_bytes;   /* of layers that have a state in place of keys: theirs, always */
    int64_t pages_bytes;    /* of pages that are open */
    int64_t slots_bytes;    /* that replicas in spare slots may take */
    int64_t replicas_bytes; /* and take */
    int64_t looks[COT_ENGINE_BUDGET_REASONS]; /* so far, one a cycle of rebalancing, by what came of them */
    int64_t turns; /* those of them that moved memory the other way than the move before */
    int last;      /* what came of the last of them; -1: there was none */
    double
        gain_ns; /* that a step takes less by the split that the last look found best, as far as is known */
} cot_engine_budget;
/* What comes of looks, in few words; those that move memory last, to pages, then to slots. NULL ends. Constant. */
const char *const *cot_engine_budget_reasons(void);

/* The counts of what rebalancing has done since the engine was opened, dry cycles left out. */
typedef struct cot_engine_rebalancing {
    const char *mode; /* as the options spell it */
    int64_t moved, stayed,
        refused; /* cycles: moves began; there were none to be made; they could not begin */
    int64_t
        turns; /* cycles that left out what was called before the last one, since other experts are called now */
    int64_t layers[COT_ENGINE_REASONS]; /* in all cycles, by reason */
    int64_t last[COT_ENGINE_REASONS];   /* in the last one */
    int64_t given_up; /* of those that moved: moves took longer than their bytes and one time-out should */
    int64_t copies, drops;       /* that were asked for */
    double before_ns, saving_ns; /* of the last cycle */
    /* Moves that were compared: 256 steps before they began, as many when they were over, all else as it was; of the last of them what a step was
     * to take less, and what its time is less by beyond what the cost model says of all but experts, the median of steps. */
    int64_t compared;
    double foreseen_ns, realised_ns;
    int64_t since_ns; /* since the last cycle, or the engine was opened */
    int64_t plan_ns;  /* that cycles took beside steps, moves left out */
    cot_engine_budget budget;
} cot_engine_rebalancing;
/* Thread-safe, and cheap. */
void cot_engine_get_rebalancing(cot_engine *engine, cot_engine_rebalancing *rebalancing);

/* From now on `events` are told, in place of others; copied. NULL: nobody is. */
void cot_engine_watch_cache(cot_engine *engine, const cot_cache_events *events);
/* Tells on_stored of all blocks that are there, each after the one before it, and on_state_stored of those of which the state is kept.
 * Errors: OUT_OF_MEMORY, before any is told. */
cot_status cot_engine_list_cache(const cot_engine *engine, const cot_cache_events *events, cot_error *error);

/* Ends a request now, whether it waits or runs: its on_finish is called and its KV pages are free. Errors:
 * NOT_FOUND (no such request, or it is over), PEER_FAILED (an earlier step failed). */
cot_status cot_engine_cancel(cot_engine *engine, uint64_t id, cot_error *error);

/* One step: admits the requests that fit, runs the next tokens of those that are under way, tells what came of
 * it. `*left` counts the requests that are not over yet; with none of them a step looks whether the ranks are alive, and
 * does nothing else. Allocates nothing, but to rebalance, while experts move and for constraints. Errors: IO (the model's file was cut off), TIMED_OUT, PEER_FAILED: the engine must
 * be closed, and requests that are not over are told no more. INVALID_ARGUMENT, from within a callback, changes nothing. */
cot_status cot_engine_step(cot_engine *engine, size_t *left, cot_error *error);

/* Submits requests, request s at home on rank s mod P, and steps until the engine has none left, those that were
 * submitted otherwise included. Errors: cot_engine_submit's, checked for all before anything runs;
 * cot_engine_step's; INVALID_ARGUMENT where one of them has ended with COT_FINISH_OVERFLOW or COT_FINISH_CONSTRAINT, when the others
 * are over too: the engine is as good as before then. `*failed`, where not NULL, is the index of the request that an error is about
 * (of several that ended so the first), or `count`. */
cot_status cot_engine_run(cot_engine *engine, const cot_request *requests, size_t count,
                          const cot_events *events, size_t *failed, cot_error *error);

/* The shape of links between ranks of one host, from now on: a rank's way out, and its way in, let so many bytes a second
 * pass and deliver them so much later; with `groups` of 2 or more what goes from one of so many groups of consecutive ranks to
 * another takes the uplinks of both as well. All 0, as at first: no shape. Errors: INVALID_ARGUMENT; UNSUPPORTED where
 * messages take a real wire; those of cot_engine_stats. */
typedef struct cot_engine_link {
    double bytes_per_s; /* 0: any number */
    int64_t latency_ns;
    int groups;
    double uplink_bytes_per_s;
    int64_t uplink_latency_ns;
} cot_engine_link;
cot_status cot_engine_set_link(cot_engine *engine, const cot_engine_link *link, cot_error *error);

/* The phases that traffic is counted for, NULL at the end. Constant. */
const char *const *cot_engine_phases(void);
enum { COT_STATS_PHASES = 6, COT_STATS_TIMES = 10 };

/* What became of the tokens at home on one rank, over MoE layers, each token counting once a layer; and what its experts did. */
typedef struct cot_rank_routing {
    uint64_t tokens;
    uint64_t activations, local; /* (token, expert); of those served on this rank */
    uint64_t sends;              /* (token, other rank that serves it) */
    uint64_t distinct_experts;   /* experts that were called, each once a layer and step */
    /* What tokens of all ranks gave the experts of this one to do: (token, expert)s; experts that were called, each once a layer and
     * step; rows that came from other ranks. 0 with an operator that does not count that. */
    uint64_t served, served_experts, received;
} cot_rank_routing;

/* What a step was. Counters are those since the step before that was told, or since the engine was opened: what ranks send
 * each other behind a step's results counts for the next. */
typedef struct cot_step_report {
    int64_t step;                  /* its number, from 1 */
    int64_t sequences;             /* that had a part in it */
    int64_t tokens, prompt_tokens; /* that were fed; those of prompts among them */
    int64_t positions,
        pairs;      /* positions whose keys and values were read, each sequence's up to its last token; tokens
                                      and the positions that each saw, summed over tokens */
    uint64_t epoch; /* of the placement that it ran with (cot_engine_layout) */
    double predicted_ns,
        observed_ns; /* what it was expected to take, and took; predicted 0: nothing was known yet */
    int ranks;
    const cot_rank_routing *routing; /* [ranks] */
    int homes;                       /* ranks with a KV cache of their own (cot_engine_info.kv_homes) */
    const cot_home_load
        *home; /* [homes] as the step was over: what ends with it runs, what follows it waits */
    uint64_t bytes[COT_STATS_PHASES]; /* sent from rank to rank, by phase (cot_engine_phases) */
} cot_step_report;
typedef struct cot_step_events {
    void *context;
    /* On the caller's thread, during cot_engine_step or cot_engine_run, before anything that comes of the step is told; it may
     * not call the engine. What is pointed to is there during the call only. */
    void (*on_step)(void *context, const cot_step_report *report);
} cot_step_events;
/* From now on steps are told, in place of what was watched before; copied. NULL: no longer. Ranks then send rank 0 some bytes
 * more with each step. */
void cot_engine_watch_steps(cot_engine *engine, const cot_step_events *events);

/* What the engine counts of experts, where popularity has a half-life (the options). */
typedef struct cot_engine_popularity_info {
    int32_t n_layers, n_experts, top_k;         /* 0 layers: nothing is counted */
    int32_t n_homes;                            /* as kv_homes */
    double half_life_tokens, half_life_seconds; /* one of them is 0 */
    int32_t every;                              /* so manieth token of a step is counted */
    /* A signature has so many cells, of every so manieth layer: cell (l / layers_every) n_experts + e counts calls of expert e in the
     * l-th MoE layer, 0 to 127. As one comes to 127 all of the signature halve, rounded down. */
    int32_t cells, layers_every;
} cot_engine_popularity_info;
void cot_engine_describe_popularity(cot_engine_popularity_info *info, const cot_engine *engine);
/* What calls of experts by tokens at home on a home (COT_HOME_ANY: on any) are worth now, where one counts 1 when it comes and half as much a half-life later:
 * counts [n_layers][n_experts]. Returns the same of tokens. Between two steps. */
double cot_engine_popularity(double *counts, const cot_engine *engine, int home);
/* Some whole tokens that were counted, likelier those that came last: experts [returned][n_layers][top_k] and homes, which are there until the next
 * step. Between two steps. */
int64_t cot_engine_popular_tokens(const uint16_t **experts, const int16_t **homes, const cot_engine *engine);

/* What a request called that is over, and whose prompt was fed. */
typedef struct cot_profile_told {
    int home;
    uint64_t epoch;      /* of the placement, in its last step */
    bool has_block;      /* the prompt has a whole block of the prefix cache */
    uint64_t block_hash; /* of the last one: the sequence hash (coterie/request.h) */
    int32_t cells;
    const uint8_t *prompt,
        *answer; /* signatures [cells]; what the prefix cache had of the prompt brought its part along */
} cot_profile_told;
typedef struct cot_profile_events {
    void *context;
    /* On the caller's thread, before on_finish is; it may not call the engine. What is pointed to is there during the call only. */
    void (*on_profile)(void *context, const cot_profile_told *profile);
} cot_profile_events;
/* From now on requests' profiles are told, in place of what was watched before; copied. NULL: no longer. */
void cot_engine_watch_profiles(cot_engine *engine, const cot_profile_events *events);

/* Counted since the engine was opened. */
typedef struct cot_stats {
    int ranks;
    uint64_t *bytes[COT_STATS_PHASES], *messages[COT_STATS_PHASES]; /* [source][destination] */
    /* Steps of the network that followed one another, as rank 0 took part in them; of control, a step's plan and results. */
    uint64_t rounds[COT_STATS_PHASES];
    double lar;          /* (token, expert) activations served on the token's home rank / all */
    double remote_ranks; /* distinct other ranks a token needs, mean over tokens and MoE layers */
    uint64_t activations, local_activations;
    cot_rank_routing *routing; /* [ranks] */
    uint64_t *calls;           /* [moe_layers][experts] (token, expert) activations of each expert */
    /* With a2a "padded": rows of the blocks from one rank to all, itself included, over layers and steps. */
    uint64_t padded_rows;
    /* With count_exchanges (else 0 and NULL), of the last step alone: what ranks sent one another in each of its exchanges,
     * which follow one another: those of a layer (allreduce or reduce-scatter; the allreduce's other half, where it is direct; dispatch; combine; allgather), layer after layer, then
     * results. Bytes [exchanges][source][destination]. */
    size_t exchanges;
    uint64_t *exchanged;
    int64_t prefill_tokens, decode_tokens, steps;
    int64_t prefill_ns, decode_ns; /* of steps that hold prompt tokens, and of the others */
    int64_t last_step_ns;
    /* Weights and KV that those steps had to read, once a step each, as they are stored: packed, int8 with its scales;
     * norms, attention's biases and the embedding are left out. 0 without capture_routing. */
    uint64_t prefill_read_bytes, decode_read_bytes;
    struct {
        const char *name; /* heads' sums go by "allreduce", or, with s-moe, "reduce-scatter" */
        int64_t ns;       /* summed over ranks, waiting included; of the fused operator, over threads */
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
