/* What requests call: popularity of experts over home ranks, and of each request a signature of its prompt and one of its answer
 * (routing/popularity.h, routing/signature.h). Each block of the prefix cache has the signature of the text up to its end, so that
 * a text that begins with it goes on from there.
 *
 * The loop tells it what becomes of requests; all of it is numbers, and of one thread. */
#ifndef COT_ENGINE_PROFILES_H
#define COT_ENGINE_PROFILES_H
#include "coterie/engine.h"
#include "routing/popularity.h"
#include "routing/signature.h"
#include "schedule/scheduler.h"

enum { COT_PROFILE_TOLD = 16 };

typedef struct cot_profiles_options {
    int32_t n_layers, n_experts, top_k; // of the model; 0 layers: nothing is counted
    double half_life_tokens, half_life_seconds;
    int32_t every; // so manieth token of a step is counted
} cot_profiles_options;

typedef struct cot_profiles {
    cot_profiles_options options;
    cot_popularity popularity;
    cot_signature_shape shape; // of 0 cells: nothing is counted
    cot_scheduler *scheduler;
    uint8_t *of_node; // [nodes of the prefix cache][cells] of the text up to the block's end
    int32_t *nodes;   // [blocks that a step can complete] scratch
    cot_profile_events watch;
} cot_profiles;

/* A request's part, in memory of whoever keeps the request. */
typedef struct cot_profile {
    uint8_t *text;   // [cells] so far, as blocks of it inherit it
    uint8_t *prompt; // [cells] of that, when the prompt was fed
    uint8_t *answer; // [cells] of the tokens behind the prompt
    int64_t counted; // positions that prompt and answer have in them
} cot_profile;

/* Errors: INVALID_ARGUMENT, UNSUPPORTED (experts that no signature has room for), OUT_OF_MEMORY. Close either way. */
cot_status cot_profiles_open(cot_profiles *profiles, const cot_profiles_options *options,
                             cot_scheduler *scheduler, cot_error *error);
void cot_profiles_close(cot_profiles *profiles);
size_t cot_profiles_bytes(const cot_profiles_options *options, const cot_scheduler_limits *limits);
static inline bool cot_profiles_count(const cot_profiles *profiles)
{
    return profiles->shape.cells;
}

/* Bytes of a request's cells; lays them out at `memory`, zero. */
size_t cot_profile_bytes(const cot_profiles *profiles);
void cot_profile_begin(cot_profile *profile, const cot_profiles *profiles, void *memory);

/* The request was admitted: its text goes on from what was found of it. */
void cot_profiles_admit(const cot_profiles *profiles, cot_profile *profile, const cot_request_state *request);
/* Says of which tokens of step `number` the experts are wanted: of every n-th, from one on that is drawn for each step, so that each token
 * is as likely to be counted as any other, wherever its sequence stands in steps. */
void cot_profiles_want(const cot_profiles *profiles, cot_step *step, int64_t number);
/* A span of it was fed, whose first token is number `token` of the step, which is routed by experts [layers][stride][K]. */
void cot_profiles_feed(cot_profiles *profiles, cot_profile *profile, const cot_request_state *request,
                       const cot_step *step, const cot_span *span, int64_t token, const uint16_t *experts,
                       int64_t stride);
/* Its text goes on: what the schedule expects of it is told anew, by its signature so far, behind its prompt and then every
 * COT_PROFILE_TOLD tokens; where somebody asks and something is counted. */
void cot_profiles_go_on(const cot_profiles *profiles, const cot_profile *profile, cot_request_state *request,
                        const cot_span *span);
/* It is over, and not released yet: who watches is told, where its prompt was fed. */
void cot_profiles_finish(const cot_profiles *profiles, const cot_profile *profile,
                         const cot_request_state *request, uint64_t epoch);

/* The signature of the longest beginning of a prompt that any home's cache holds; NULL: none does. */
const uint8_t *cot_profiles_find(const cot_profiles *profiles, const cot_request *request);
/* Fills in, by that, the share [L][E] (schedule/overlap.h) of a text that begins so: of the layers that signatures keep and that
 * counted something; others stay. False: none did. */
bool cot_profiles_expect(const cot_profiles *profiles, uint8_t *share, const cot_request *request);

#endif
