/* Load on a server that speaks OpenAI's completions or chats: requests sent by a clock (open loop) or by a number of clients that
 * each wait for their answer (closed loop), streamed, and the times of every token.
 *
 *     TTFT  from sending a request to its first event with a choice (a server that tells the role of a chat in an event of
 *           its own is taken to do so with the first token)
 *     ITL   between two such events of one request
 *     TPOT  from the first event to the last, over the output tokens but one
 *     e2e   from sending a request to its last event
 *
 * Percentiles are interpolated linearly between the two nearest values. Requests that failed or were rejected count in no
 * time. In an open loop a server that answers 429 does what it should under more load than it can carry: such requests are
 * rejected, not failed. Clients of a closed loop that are sent away have failed. */
#ifndef COTERIE_LOAD_TEST_H
#define COTERIE_LOAD_TEST_H
#include "coterie/status.h"
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { COT_LOAD_TEST_MOST_KINDS = 16 };

/* What is asked, and at which path. */
typedef enum cot_load_test_backend {
    COT_LOAD_TEST_COMPLETIONS, /* /v1/completions: prompts as they are */
    COT_LOAD_TEST_CHATS, /* /v1/chat/completions: a prompt is the message of a user, of random words where it would be of
                            random ids; the model's template adds its own */
} cot_load_test_backend;

typedef struct cot_load_test_options {
    size_t size;     /* of this struct */
    const char *url; /* "http://HOST[:PORT]", with or without /v1 behind it */
    /* [more_url_count] further servers of the same model: requests go to all of them in turn. Default none. */
    const char *const *more_urls;
    size_t more_url_count;
    const char *model; /* NULL: the first that the server names */
    const char *key;   /* sent as "Authorization: Bearer KEY"; NULL: none */
    cot_load_test_backend backend;
    int64_t requests; /* sent in all; of a trace or of prompts at most as many; 0: as many as those have */
    double rate;      /* requests a second, at random (Poisson); 0: closed loop, or the trace's own times */
    int64_t
        concurrency; /* requests at once: in a closed loop so many, and 1 for 0; in an open one at most so many, 0: any */
    const char
        *trace;   /* a file of arrival times and lengths: JSON lines with timestamp (ms), input_length and
                            output_length, with hash_ids or without, or CSV with a heading TIMESTAMP,ContextTokens,GeneratedTokens; NULL: none */
    double speed; /* the trace's clock runs so many times as fast; 0: 1 */
    /* Lengths of a trace are multiplied by this, up to 1; 0: 1. A hash id of a trace, which stands for 512 tokens, becomes as many ids,
     * scaled, that are drawn from it: prompts that begin with the same hash ids begin alike. */
    double length_scale;
    const char *
        prompts; /* a file with a prompt a line, or JSON lines with a "prompt"; taken in turn. NULL: random ids */
    int64_t input_tokens,
        output_tokens;         /* of each request, where neither trace nor prompts say; 0: 128, 64 */
    int64_t most_input_tokens; /* longer ones of a trace are cut; 0: none */
    int64_t most_output_tokens;
    int64_t
        vocabulary; /* random ids lie in its upper nine tenths (ids of control tokens are mostly low); 0: 1,000;
                       chats have none */
    uint64_t seed;
    double slo_ttft_ms,
        slo_tpot_ms; /* a request within both counts towards goodput; 0: that one is no condition */
    const char
        *ca_certs; /* a PEM file of certificates that those of https:// must come from; NULL: the system's */
    int64_t timeout_ms; /* in which nothing comes, then a request has failed; 0: 600,000 */
    void *context;
    void (*progress)(void *context, int64_t done, int64_t total); /* NULL: none */
} cot_load_test_options;

typedef struct cot_load_test_times {
    int64_t count;
    double mean, p50, p90, p99; /* milliseconds; 0 where nothing was counted */
} cot_load_test_times;

typedef struct cot_load_test_report {
    char model[256];
    int64_t sent, completed, failed; /* sent: all of them, the rejected too */
    int64_t rejected;                /* of an open loop: those that were answered 429 */
    char rejection[256];             /* what the server said to the first of them; "" if nothing */
    /* Tokens are those of completed requests, as the server counts them (usage), or else events. */
    int64_t input_tokens, output_tokens;
    int64_t cached_tokens; /* of the input, as the server says */
    /* Of a trace with hash ids, of completed requests: blocks of prompts that the server computed, though a request before had
     * them; and those that none had. */
    int64_t lost_blocks, novel_blocks;
    /* Who computed completed requests, where each answer's head names its worker (X-Worker), or else each of several URLs is one: how many there were, and tokens
     * computed (of prompts but for cached ones, and of answers) by the one that has most, over the mean. 0: not every answer told. */
    int64_t workers;
    double busiest_over_mean;
    int64_t events; /* with a choice, of completed requests */
    int64_t unlike; /* completed requests with another number of output tokens than was asked for */
    double seconds; /* from the first request to the last answer */
    double requests_per_second, output_tokens_per_second, tokens_per_second; /* of completed requests */
    int64_t good; /* completed requests that keep both SLOs; and so many a second */
    double goodput;
    cot_load_test_times ttft, tpot, itl, e2e;
    struct {
        char what[128];  /* "HTTP 429", or an error's line */
        char words[256]; /* what the server said to the first of them; "" if nothing */
        int64_t count;
    } failures
        [COT_LOAD_TEST_MOST_KINDS]; /* in the order in which they came; the rest is counted in the last one */
    size_t kinds;
} cot_load_test_report;

/* Runs the test; returns when every request has its answer or has failed. Failed requests are no error of the test,
 * unless the server cannot be reached to name its model. Errors: INVALID_ARGUMENT (URL, options), NOT_FOUND (host,
 * file), IO, MALFORMED (a trace or file of prompts; the server's list of models), OUT_OF_MEMORY. Uses nothing that
 * other calls use. */
cot_status cot_load_test_run(const cot_load_test_options *options, cot_load_test_report *report,
                             cot_error *error);

/* ---- traces ---- */

enum { COT_LOAD_TEST_HASHED = 512 }; /* tokens that a hash id of a trace stands for */

/* A request of a trace in the form of Mooncake's: JSON lines with timestamp (ms), input_length, output_length and, where prompts have
 * common beginnings, hash_ids, one for each 512 tokens of the prompt and its last part. */
typedef struct cot_load_test_line {
    int64_t at_ns;
    int64_t input_tokens, output_tokens; /* 1 to 16,777,216; 0 to 16,777,216 */
    size_t first_block, blocks;          /* its hash ids, in the list; 0 blocks: it has none */
} cot_load_test_line;

/* Hash ids of many lines, below 2^28. All zero is empty; the caller frees `ids`. */
typedef struct cot_load_test_ids {
    uint32_t *ids; /* [count] */
    size_t count, room;
} cot_load_test_ids;

/* Reads a line, and adds its hash ids to the list. Returns NULL, or what is wrong with it, of which nothing is added then. */
const char *cot_load_test_read_line(cot_load_test_line *line, cot_load_test_ids *list, const char *text);

#ifdef __cplusplus
}
#endif
#endif
