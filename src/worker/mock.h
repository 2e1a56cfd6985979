/* Inside the mock: what a SPEC says (mock_spec.c), and the cache that its workers keep (mock_cache.c). */
#ifndef COT_WORKER_MOCK_H
#define COT_WORKER_MOCK_H
#include "coterie/worker.h"
#include "worker/backend.h"

typedef enum cot_mock_fault_kind {
    COT_MOCK_DIE, // the worker ends, once it has told so many tokens: connections break, without a word
    COT_MOCK_FAIL, // the same, as an engine does of which a rank is lost: what runs is told, and /health says so
    COT_MOCK_STALL,  // nothing more comes of a request after so many of its tokens
    COT_MOCK_REFUSE, // a request is answered 429
    COT_MOCK_LATE,   // a request begins so much later
    COT_MOCK_TWICE,  // the end of a request is told twice
    COT_MOCK_FAULTS
} cot_mock_fault_kind;

typedef struct cot_mock_fault {
    cot_mock_fault_kind kind;
    int64_t worker;       // -1: all
    int64_t every;        // each so many-th request of a worker
    int64_t after_tokens; // DIE and FAIL: of all its requests; STALL: of one
    double ms;            // LATE
} cot_mock_fault;

enum { COT_MOCK_MOST_FAULTS = 32 };

struct cot_mock {
    int64_t workers, homes, sequences; // homes: ranks that each hold a cache; sequences: that run at once
    double ttft_ms, ttft_ms_per_token, tpot_ms;
    int64_t tokens;                                     // behind which a text ends by itself; 0: never
    int64_t seed, block_tokens, blocks, context_tokens; // blocks: of a home's cache, 0: there is none
    cot_mock_fault faults[COT_MOCK_MOST_FAULTS];
    size_t fault_count;
    int64_t vocab;
    int32_t *words; // [word_count] ids that texts are made of
    size_t word_count;
    int32_t eos;
    char fingerprint[24];
};

/* Reads a SPEC into a mock that is zero. Errors: MALFORMED, UNSUPPORTED (a key, a fault that is not known), each named. */
cot_status cot_mock_read_spec(cot_mock *mock, const char *spec, size_t bytes, const char *name,
                              cot_error *error);

/* The blocks of one home's texts, the least recently used of which goes first, and after all that follow it. */
typedef struct cot_mock_cache {
    int home;
    int64_t block_tokens;
    size_t room, count;
    struct cot_mock_node {
        uint64_t hash, parent;
        int32_t next;         // in its bucket
        int32_t newer, older; // -1: none
        bool is_first;
        char *salt; // [salt_bytes] of a first one
        size_t salt_bytes;
    } * node;        // [room]
    int32_t *ids;    // [room][block_tokens]
    int32_t *bucket; // [bucket_mask + 1] -1: empty
    uint64_t bucket_mask;
    int32_t newest, oldest;
    uint64_t evicted;
    cot_cache_events events; // who is told of what comes and goes
} cot_mock_cache;

/* Room for so many blocks; none: nothing is ever kept. False when out of memory. */
bool cot_mock_cache_open(cot_mock_cache *cache, int home, size_t room, int64_t block_tokens);
void cot_mock_cache_close(cot_mock_cache *cache);
/* How many blocks of the text are there from its beginning on. */
size_t cot_mock_cache_find(const cot_mock_cache *cache, const cot_request *text, int64_t tokens);
/* Keeps the whole blocks among the first tokens of a text that begins as the request's prompt and goes on as `more`; the first
 * ones where there is no room for all. What memory is missing for is not kept. */
void cot_mock_cache_store(cot_mock_cache *cache, const cot_request *text, const int32_t *more,
                          int64_t tokens);
/* Tells on_stored of all blocks, each after the one before it. */
void cot_mock_cache_list(const cot_mock_cache *cache, const cot_cache_events *events);

#endif
