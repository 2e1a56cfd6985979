/* Which of many targets a request goes to. A target is a worker, or a home rank in it, by its number. Pure: times and what
 * became of requests are handed in. */
#ifndef COTERIE_ROUTE_H
#define COTERIE_ROUTE_H
#include "coterie/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { COT_ROUTE_MOST_TARGETS = 65535 };

/* ---- which blocks which target holds ---- */

/* A block's key: its sequence hash (coterie/request.h) and the name of the LoRA that computed it; NULL or "": none. */
uint64_t cot_route_key(uint64_t sequence_hash, const char *lora);

/* Blocks of texts by their keys, each with the targets that hold it. One thread may change an index (store, remove, clear) while
 * another looks up; neither waits for the other. */
typedef struct cot_route_index cot_route_index;

typedef struct cot_route_index_figures {
    uint64_t blocks,
        pairs;      /* distinct blocks; (block, target) pairs, each a block held or one before a block held */
    uint64_t bytes; /* of memory */
} cot_route_index_figures;

/* What became of blocks that were to be stored. */
typedef struct cot_route_stored {
    size_t stored; /* not held before, held now */
    size_t again;  /* held before: nothing changes */
    /* Refused, and all blocks behind them: the target does not hold the block before the first, or one stands behind another
     * block than it did (two texts of one key). */
    size_t unknown_parent, collided;
} cot_route_stored;

/* Targets 1 to COT_ROUTE_MOST_TARGETS. Errors: INVALID_ARGUMENT, OUT_OF_MEMORY. */
cot_status cot_route_index_open(cot_route_index **index, size_t targets, cot_error *error);
void cot_route_index_close(cot_route_index *index); /* NULL is fine */

/* The target holds blocks [count] from now on, each behind the one before, the first behind block *parent (NULL: it begins a
 * text). Adds to *stored. OUT_OF_MEMORY: it holds the first few of them alone, and *stored says how many. */
cot_status cot_route_index_store(cot_route_index *index, size_t target, const uint64_t *parent,
                                 const uint64_t *keys, size_t count, cot_route_stored *stored);
/* The target holds these no longer; what it holds behind them counts only when they are stored again. Returns how many it held. */
size_t cot_route_index_remove(cot_route_index *index, size_t target, const uint64_t *keys, size_t count);
void cot_route_index_clear(cot_route_index *index, size_t target); /* the target holds nothing */
/* Whether the target holds the block, whatever it holds of those before. The changing thread's. */
bool cot_route_index_holds(const cot_route_index *index, size_t target, uint64_t key);

/* Blocks that each target can reuse of a text of `count` blocks: depth [targets] is how many it holds from the first on without
 * a gap. Beside a thread that changes the index each number was true at one moment of the call or, where blocks came in the
 * meantime, may be the smaller one from before. */
void cot_route_index_match(cot_route_index *index, uint32_t *depth, const uint64_t *keys, size_t count);
/* The changing thread's: the block and those before it, the deepest first, `most` of them at most, to keys: of more than that the text's first
 * most / 2 and its last. Returns how many; 0: nobody holds it, nor any behind it. */
size_t cot_route_index_path(const cot_route_index *index, uint64_t key, uint64_t *keys, size_t most);
/* The changing thread's. */
void cot_route_index_measure(const cot_route_index *index, cot_route_index_figures *figures);

/* ---- where a request goes ---- */

/* docs/ROUTER.md defines each. */
typedef enum cot_route_policy {
    COT_ROUTE_JOINT, /* the least score */
    COT_ROUTE_KV,    /* the same, without what experts cost */
    COT_ROUTE_LEAST, /* the fewest prompt tokens to be computed still */
    COT_ROUTE_DYNAMO,
    COT_ROUTE_RANDOM,
    COT_ROUTE_ROUND_ROBIN,
    COT_ROUTE_POLICIES
} cot_route_policy;
/* "joint", "kv", "least", "dynamo", "random", "round-robin"; NULL ends. */
extern const char *const cot_route_policy_names[];

/* Which experts a text calls: a cell is an expert of a layer, and its share the part of the text's tokens that call it, in (0, 1]. The cells
 * that count most, by their numbers. */
enum { COT_ROUTE_MOST_CALLS = 160, COT_ROUTE_MOST_CELLS = 6144 };
typedef struct cot_route_calls {
    uint32_t count;
    uint16_t cell[COT_ROUTE_MOST_CALLS];
    float share[COT_ROUTE_MOST_CALLS];
} cot_route_calls;

/* Reads a signature as workers publish it (docs/SERVING.md): 3 bytes a cell. False: it is none of so many cells. An empty one has no
 * calls. */
bool cot_route_calls_read(cot_route_calls *calls, const void *signature, size_t bytes, size_t cells);

/* What is known of a target's speed and room. */
typedef struct cot_route_costs {
    double prompt_ns, token_ns; /* a prompt takes prompt_ns, and token_ns for each token that is not cached */
    double step_ns;             /* so much longer is a decode step for each request that takes part in it */
    double pages;               /* of the KV cache, in blocks of the index; 0: enough */
    double slots;               /* requests that run at once; 0: enough */
    double alone_ns;            /* a decode step takes alone_ns, and step_ns for each request in it */
    double expert_ns;           /* so much longer is a step for each distinct expert that is called in it */
    double send_ns; /* so much longer for each rank that each token in it is sent to, beside its own */
} cot_route_costs;

typedef struct cot_route_request {
    size_t blocks;         /* whole ones, of keys */
    uint64_t tokens;       /* of the prompt, 1 or more */
    uint64_t max_tokens;   /* most that may be answered */
    const uint32_t *depth; /* [targets] blocks that each can reuse, as cot_route_index_match tells */
    const uint64_t *keys;  /* [blocks]; NULL: not known, and what requests share counts for each of them */
    const cot_route_calls *calls; /* of its answer, as foretold; NULL: nothing is known */
    bool of_peer;                 /* another router sends it: it is no trial of a target that failed */
} cot_route_request;

/* Why a target: what the request is expected to cost there, in nanoseconds. */
typedef struct cot_route_terms {
    double queue, prefill, decode, pages;
    /* More, or below 0 less, than a request of the usual calls would cost of steps there; and than this one would at the worker's other ranks,
     * in the mean, of what it sends. */
    double experts;
} cot_route_terms;

/* What terms count, 1 each at first: kv prefill, load the queue, decode and pages. */
typedef struct cot_route_scales {
    double kv, experts, load;
} cot_route_scales;

typedef struct cot_route_decision {
    size_t target;
    uint64_t cached; /* tokens that need not be computed there */
    cot_route_terms terms;
} cot_route_decision;

/* What was sent to each target and is not over: scores are made of it. For one thread. */
typedef struct cot_route_book cot_route_book;

/* Blocks of `block_tokens`; targets can be used from the beginning and cost nothing until told. Errors: INVALID_ARGUMENT,
 * OUT_OF_MEMORY. */
cot_status cot_route_book_open(cot_route_book **book, size_t targets, uint64_t block_tokens,
                               cot_route_policy policy, uint64_t seed, cot_error *error);
void cot_route_book_close(cot_route_book *book); /* NULL is fine */
void cot_route_book_set_costs(cot_route_book *book, size_t target, const cot_route_costs *costs);
void cot_route_book_costs(const cot_route_book *book, size_t target, cot_route_costs *costs);
/* A target that is drained, suspended or gone gets nothing; what it has stays in the book. */
void cot_route_book_set_usable(cot_route_book *book, size_t target, bool usable);

void cot_route_book_set_scales(cot_route_book *book, const cot_route_scales *scales); /* each 0 or more */
/* Calls are of so many cells, 1 to COT_ROUTE_MOST_CELLS; `joint` looks at them from now on. Again: they are of other cells
 * now, and what was known of calls and placements is forgotten. Errors: OUT_OF_MEMORY; `joint` does not look at calls then. */
cot_status cot_route_book_set_cells(cot_route_book *book, size_t cells, cot_error *error);
/* What requests call in the mean: share [cells] of tokens. At first none. */
void cot_route_book_set_usual(cot_route_book *book, const float *share);
/* Which ranks have each cell of the worker of targets first to first + homes - 1, which are its ranks: ranks_of [cells], a bit a rank; `experts`
 * cells are a layer. NULL: it is not known any more, as at first. Cells have been set; 1 to COT_ROUTE_MOST_HOMES homes. Errors: OUT_OF_MEMORY. */
enum { COT_ROUTE_MOST_HOMES = 64 };
cot_status cot_route_book_set_placement(cot_route_book *book, size_t first, size_t homes, size_t experts,
                                        const uint64_t *ranks_of, cot_error *error);
/* What runs on a target runs in the same steps as what runs on target `first` of its worker; by itself at first. */
void cot_route_book_set_worker(cot_route_book *book, size_t target, size_t first);

/* The target for a request; false: there is none that may be used. Each of a burst is assigned before the next is asked for. */
bool cot_route_choose(cot_route_book *book, const cot_route_request *request, int64_t now_ns,
                      cot_route_decision *decision);
/* What a request would cost at a target, used or not; of policies that look at other things, too. `decision` has that target. */
void cot_route_weigh(const cot_route_book *book, const cot_route_request *request, size_t target,
                     int64_t now_ns, cot_route_decision *decision);
/* What `joint` makes of terms, by its scales; `kv`: the same without experts. */
double cot_route_score(const cot_route_book *book, const cot_route_terms *terms);
/* It was sent there. Returns its number in the book, 0 when memory runs out. */
uint64_t cot_route_assigned(cot_route_book *book, const cot_route_request *request,
                            const cot_route_decision *decision, int64_t now_ns);
/* Its first token came; then it is over, with so many tokens answered (or none, having failed). Each once, of a number that
 * is in the book. */
void cot_route_began(cot_route_book *book, uint64_t number, int64_t now_ns);
void cot_route_ended(cot_route_book *book, uint64_t number, uint64_t answered, int64_t now_ns);

/* Requests [count] that were just sent to where decisions say, under `numbers`, none of which is in a half-open breaker's trial, exchange
 * their targets, two and two, where that costs less in all; decisions and numbers follow. */
void cot_route_exchange(cot_route_book *book, const cot_route_request *requests,
                        cot_route_decision *decisions, uint64_t *numbers, size_t count, int64_t now_ns);

/* Requests [count], COT_ROUTE_MOST_TOGETHER at most, that came together: each in turn goes to where it costs least, where it also finds what
 * those before it will have computed; then those that find nothing of each other exchange their targets as above, where the policy is `joint` or `kv`. depth
 * [count][targets] is what each finds at first (requests[i].depth is set to its row). numbers[i] is 0, and the target COT_ROUTE_NOBODY, where there is none that may be used; 0
 * alone: memory ran out. */
enum { COT_ROUTE_MOST_TOGETHER = 64 };
#define COT_ROUTE_NOBODY SIZE_MAX
void cot_route_choose_together(cot_route_book *book, cot_route_request *requests, uint32_t *depth,
                               cot_route_decision *decisions, uint64_t *numbers, size_t count,
                               int64_t now_ns);

/* What a target computed, and how long that took. */
typedef struct cot_route_work {
    double steps;         /* passes of the network; of 0 nothing is learnt */
    double prompt_tokens; /* that were computed in them */
    double requests;      /* that each had a token decoded, counted once a step */
    double experts;       /* distinct ones that were called, counted once a step and layer; 0: not told */
    double sends;         /* (token, rank beside its own), counted once a layer; 0: not told, or none */
    double ns;
} cot_route_work;

/* Speeds are learnt from what is seen, older observations counting less, in one of two ways for a target. From inside: a step, as the
 * engine reports it, or all steps of a second, as the differences of its counters (/metrics) tell. */
void cot_route_learn_work(cot_route_book *book, size_t target, const cot_route_work *work);
/* From outside, by timing: a prompt of which so many tokens were computed took so long to its first token, less what it waited
 * for; a token of an answer beside so many requests came so long after the one before. */
void cot_route_learn_prompt(cot_route_book *book, size_t target, uint64_t tokens, double ns);
void cot_route_learn_step(cot_route_book *book, size_t target, uint64_t requests, double ns);

/* Breakers: after 3 failures in 10 s, whatever succeeds between them, a target gets nothing for 5 s, then one request; each time that
 * fails, too, twice as long is waited, up to 60 s. A success while that one is on its way closes the breaker, as does that one's end
 * with tokens; before it is sent a success is of what was on its way when the breaker opened, and changes nothing. */
void cot_route_failed(cot_route_book *book, size_t target, int64_t now_ns);
void cot_route_succeeded(cot_route_book *book, size_t target);
void cot_route_renewed(cot_route_book *book,
                       size_t target); /* it is another one from now on: what failed before is forgotten */
bool cot_route_is_open(const cot_route_book *book, size_t target, int64_t now_ns); /* gets nothing now */

#ifdef __cplusplus
}
#endif
#endif
