/* Requests and what comes of them, as whoever schedules, computes, serves or routes them says it: what to do, which token
 * came, how a text ended, how much there is to do, and what of texts the KV cache keeps. */
#ifndef COTERIE_REQUEST_H
#define COTERIE_REQUEST_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct cot_constraint; /* coterie/constraint.h */

enum { COT_MAX_BIAS = 1024, COT_MAX_STOP_TOKENS = 64, COT_MAX_LOGPROBS = 20, COT_MAX_LOGPROB_TOKENS = 128 };
/* Of a request that may be held by any rank. */
enum { COT_HOME_ANY = -1 };

/* How tokens are chosen. What a request's constraint does not let come is out before all that follows, and nothing lifts it. What
 * follows works on the logits in this order: bias, repetition penalty, presence and frequency
 * penalties, min_tokens, temperature, top-k, top-p, min-p (or temperature_last). Fill with cot_sampling_init, which sets the defaults, then
 * change what differs. */
typedef struct cot_sampling {
    size_t size; /* sizeof this structure */
    /* 0 to 1e6; 0, the default, is greedy: always the likeliest token. */
    double temperature;
    /* Only the so many likeliest tokens may be drawn; 0, the default: all. */
    int64_t top_k;
    /* Only the likeliest tokens that together reach this chance may be drawn; above 0, up to 1, the default: all. */
    double top_p;
    /* Only tokens that are at least this times as likely as the likeliest may be drawn; 0, the default, to 1. */
    double min_p;
    /* Above 1 it makes tokens of the prompt and the text less likely; 1e-6 to 1e6, default 1. */
    double repetition_penalty;
    /* Of a token that has come n times in the text (not the prompt), presence_penalty + n frequency_penalty is taken off
     * its logit; each -2 to 2, default 0. */
    double presence_penalty, frequency_penalty;
    /* bias[i], -100 to 100, is added to the logit of token bias_tokens[i]; at most COT_MAX_BIAS. Read while a request is
     * submitted. Default none. */
    const int32_t *bias_tokens;
    const float *bias;
    size_t bias_count;
    /* Tokens that end a text as an end-of-sequence token does, with `ignore_eos` too; at most COT_MAX_STOP_TOKENS, 0 or
     * more each: one beyond the vocabulary never comes. Read while a request is submitted. Default none. */
    const int32_t *stop_tokens;
    size_t stop_count;
    /* Before so many tokens no end-of-sequence token and no stop token may be drawn; default 0. Where no other token is
     * left, as behind a text to which a constraint lets nothing be added, one of them is drawn all the same. */
    int64_t min_tokens;
    /* With a token's place in its sequence the seed fixes the draw: from the same logits comes the same token, and a text
     * that is continued goes on as it would have. Logits do not depend on a request's company with attention "dp" and
     * combine "exact", nor on one rank; with heads split over ranks sums go in another order, and in bf16 a text may then
     * differ. Default 0. */
    uint64_t seed;
    uint32_t
        stream; /* which of the seed's sequences of draws; texts of one prompt take one each. Default 0 */
    int64_t max_tokens; /* most tokens to generate; default 256 */
    bool
        ignore_eos; /* whether to go on after an end-of-sequence token; default false. Behind one a constraint lets only such come */
    bool
        temperature_last; /* whether temperature comes behind top-p and min-p, which then cut by the chances of temperature 1; default false */
} cot_sampling;
void cot_sampling_init(cot_sampling *sampling);

/* One sequence. With `forced`, tokens are not sampled: the forced ones are fed, a token at a time. What it
 * points to is read while it is submitted only. Fill with cot_request_init, which sets the defaults (all that is not said
 * otherwise: 0, NULL, false), then change what differs. */
typedef struct cot_request {
    const int32_t *prompt;
    int64_t prompt_tokens; /* at least 1 */
    const int32_t *forced; /* NULL: generate as `sampling` says */
    int64_t forced_tokens;
    bool all_logits; /* on_logits for every token, the prompt's included */
    cot_sampling sampling;
    /* So many tokens at the end of `prompt`, less than all, were generated before: to penalties, max_tokens, min_tokens and
     * the seed they count as text, which goes on as it would have. */
    int64_t output_tokens;
    /* 0 to COT_MAX_LOGPROBS: on_sampled tells the chances of the token and of so many of the likeliest. Default -1: none. */
    int32_t logprobs;
    /* With logprobs 0 or more: on_sampled tells the chances of these tokens, in this order, in place of the likeliest; at most
     * COT_MAX_LOGPROB_TOKENS. Default none. */
    const int32_t *logprob_tokens;
    size_t logprob_count;
    /* Only requests of equal bytes here share what they begin with. Default none. */
    const void *cache_salt;
    size_t cache_salt_bytes;
    /* The text keeps to this constraint: one over the engine's vocabulary that was told of no token yet, and this request's alone; the
     * engine has it from submit until on_finish. Where the text may end, stop tokens may come, and nowhere else. Not with `forced`. */
    struct cot_constraint *constraint;
    /* With routing from a trace: the sequence of it whose tokens these are. Default 0. */
    int32_t recorded;
    /* Not admitted before the request of this number has been fed its prompt or is over; 0: at once. */
    uint64_t after;
} cot_request;
void cot_request_init(cot_request *request);

/* The natural logarithm of a token's chance. */
typedef struct cot_logprob {
    int32_t token;
    float logprob;
} cot_logprob;

/* A token that was drawn. Chances are those of the softmax of the model's logits, before all that cot_sampling does. */
typedef struct cot_sampled {
    int32_t token;
    bool ends; /* it ends the text: an end-of-sequence token or a stop token */
    /* With the request's logprobs >= 0, else 0 and NULL: */
    float logprob;
    int32_t rank;           /* 1 + how many tokens are likelier */
    const cot_logprob *top; /* [top_count] the likeliest, best first, then by number; or logprob_tokens */
    size_t top_count;
} cot_sampled;

typedef enum cot_finish {
    COT_FINISH_LENGTH,    /* max_tokens, or the end of the forced tokens */
    COT_FINISH_EOS,       /* an end-of-sequence token */
    COT_FINISH_STOP,      /* a stop token, or on_token said so */
    COT_FINISH_CONTEXT,   /* it has as many tokens as a sequence may have (cot_engine_info.context_tokens) */
    COT_FINISH_CANCELLED, /* cot_engine_cancel said so */
    COT_FINISH_OVERFLOW, /* its logits, or values before them, are no longer finite: no token could be chosen. Of the step
                           * in which that came about nothing else is told of it. Others are as they would be without. */
    COT_FINISH_CONSTRAINT, /* its constraint let no token come, or failed: cot_constraint_mask says why. Nothing else is told of that
                            * step, either */
} cot_finish;

enum { COT_STEP_CLASSES = 16, COT_RESTART_CLASSES = 22 };

/* What there is to do, and how the cache fares. */
typedef struct cot_engine_load {
    int64_t waiting, running;        /* requests */
    int64_t kv_pages, kv_pages_free; /* of 64 positions; free: those too that only keep blocks */
    int64_t cached_blocks;           /* of block_tokens */
    int64_t cached_states;           /* behind some of those, where layers have a state in place of keys */
    /* Since the engine was opened: tokens of prompts when first admitted, without output_tokens and without those of requests
     * with all_logits, and how many of them were found; requests that started over for want of pages; blocks that went for
     * want of room; states that went for other states. */
    uint64_t queried_tokens, hit_tokens, preemptions, evicted_blocks, evicted_states;
    int64_t steps; /* since then */
    /* Of those, by tokens: classes of at most 1, 2, 4 and so on to 2^14 tokens, and of more. */
    uint64_t steps_of[COT_STEP_CLASSES], step_tokens; /* step_tokens: of all steps */
    /* Requests that are over, by how often they started over: never, once and so on to 20 times, and more often. */
    uint64_t ended[COT_RESTART_CLASSES], ended_restarts; /* ended_restarts: of all of them */
    uint64_t waited_steps;            /* steps that running requests sat out, since the engine was opened */
    int64_t tbt_ns;                   /* the target in force; 0: none, or not known yet */
    double predicted_ns, observed_ns; /* what the last step was expected to take, and took */
    double prediction_error; /* mean of |predicted - observed| / observed over the last hundred steps or so */
} cot_engine_load;

/* The same of a home: a rank that holds a KV cache of its own, or all ranks where each holds a part of every page. */
typedef struct cot_home_load {
    int64_t waiting, running;      /* requests */
    int64_t waiting_prompt_tokens; /* of the prompts of those that wait */
    /* That it freed last, or where only kept blocks are. A home that has none left takes another's. */
    int64_t free_pages;
} cot_home_load;

/* A request that is not over, as it stands. */
typedef struct cot_engine_sequence {
    uint64_t id;
    int home;              /* the rank that holds it under data-parallel attention */
    bool waiting;          /* it has no part in steps yet, or no longer */
    int64_t prompt_tokens; /* of its prompt */
    int64_t tokens, fed;   /* prompt and text so far; of those the ones that the KV cache holds */
    int64_t pages;         /* of the KV cache that it holds */
    int64_t shared_pages;  /* of those, what it has most in common with another: their first ones */
    uint64_t shared_with;  /* the first such request; 0: none */
} cot_engine_sequence;

/* Hashes of the blocks of a text, those that NVIDIA Dynamo's routers compute: a block's own, of its ids alone, and the
 * sequence's, of the text up to the block's end. A first block's sequence hash is its own hash. With a cache salt the first block
 * has the salt's hash for a parent, so that all hashes of the text differ from those of others. Pure. */
enum { COT_CACHE_SEED = 1337 };
/* XXH3-64 of the ids, 32 bits each, little-endian. */
uint64_t cot_cache_local_hash(const int32_t *ids, size_t tokens);
/* XXH3-64 of 16 bytes, both numbers little-endian: the parent's sequence hash, then the block's own. */
uint64_t cot_cache_sequence_hash(uint64_t parent, uint64_t local);
uint64_t cot_cache_salt_hash(const void *salt, size_t bytes); /* XXH3-64 of the bytes */

/* A block of the prefix cache: so many tokens of a text, behind those of the block before. */
typedef struct cot_cache_block {
    int home;      /* the rank that holds it; 0 where all ranks hold every page */
    bool is_first; /* a text begins with it */
    uint64_t hash,
        parent; /* the sequence hash, and its parent's; of a first one the salt's hash, or 0 without salt */
    const int32_t *ids; /* [tokens] */
    size_t tokens;
    const void *salt; /* of a first one: the request's cache_salt; else NULL and 0 */
    size_t salt_bytes;
    bool
        needs_state; /* layers have a state in place of keys: texts go on from behind it where that is kept, too */
} cot_cache_block;

/* Blocks that come and go, told on the caller's thread as they do: during cot_engine_step, cot_engine_run,
 * cot_engine_cancel and cot_engine_close. Any function may be NULL; none may call the engine. What is pointed to is there
 * during the call only. A block is told after the one before it, and goes before that. */
typedef struct cot_cache_events {
    void *context;
    void (*on_stored)(void *context, const cot_cache_block *block);
    void (*on_removed)(void *context, int home, uint64_t hash); /* of that home's blocks */
    /* The state behind a block, where it needs one, is kept from now on, or no longer. The block is there all the while. */
    void (*on_state_stored)(void *context, const cot_cache_block *block);
    void (*on_state_removed)(void *context, int home, uint64_t hash);
} cot_cache_events;

#ifdef __cplusplus
}
#endif
#endif
