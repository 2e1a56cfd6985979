/* The book: per target what waits there and what runs, as scores and policies ask for it. */
#include "base/buffer.h"
#include "base/error.h"
#include "base/rng.h"
#include "coterie/route.h"
#include "route/beginnings.h"
#include "route/book.h"
#include "route/breaker.h"
#include "route/fit.h"
#include "route/sends.h"
#include "route/unions.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const cot_route_policy_names[] = {"joint",  "kv",          "least", "dynamo",
                                              "random", "round-robin", NULL};

enum {
    FEW_ANSWERS = 32,
    PRESUMED_TOKENS = 256,
    WEIGHED = 8 // best targets by other terms, of which experts decide
};
static const double ANSWERS_KEPT = 1 - 1.0 / 64;
static const double NEVER_NS = 1e15; // more than any sum of other terms, and these are told apart beside it

/* A request that is not over. */
typedef struct entry {
    uint32_t target, next; // next: of the free ones
    bool waits;            // for its first token
    bool live;
    bool tries;                  // a target that failed, alone
    double queue_ns;             // that it takes of its target's queue
    double to_compute, expected; // tokens of its prompt; of its answer
    double pages;                // blocks that it will have at its end, but those of its beginning
    double blocks;               // of its prompt
    uint64_t beginning;          // that it shares, 0: none; how many blocks
    double shared;
    uint32_t in_union;      // where its calls count
    cot_route_calls *calls; // NULL: none are known
} entry;

/* Numbers of all targets stand side by side: a score goes through all of them. */
struct cot_route_book {
    size_t targets;
    double block_tokens;
    cot_route_policy policy;
    uint64_t seed, drawn;
    size_t turn;       // where the next search begins
    double *free_ns;   // [targets] when the queue will be empty
    double *queued_ns; // that all that waits takes
    double *prompt_ns, *token_ns, *step_ns, *alone_ns, *room, *slots; // room: pages
    double *tokens;                                                   // to be computed, of what waits
    double *blocks,
        *pages; // of prompts of all that is there; that all will have at their ends, each beginning once
    double *requests, *expected; // of all that is there: how many; tokens of their answers
    double *expert_ns, *send_ns;
    double *score;
    double *memory;                 // all of them
    uint32_t *in_union;             // [targets] whose union a target's requests are in
    cot_route_unions unions;        // of no cells: experts are not looked at
    cot_route_placement *placement; // [targets] of the worker whose first target it is; NULL: of no cells
    cot_route_scales scales;
    bool *usable;
    cot_route_breaker *breaker;
    cot_route_beginnings beginnings;
    cot_route_fit *work, *prompt, *step; // seen from inside; prompts and steps from outside
    cot_route_fit *sent;                 // from inside, with sends in the place of experts
    entry *entry;                        // [entry_count]; 0 is none
    size_t entry_count, entry_room;
    uint32_t free_entry;
    double answer_weight, answer_tokens; // a mean, older ones counting less
    uint64_t answers;
};

enum { ARRAYS = 16 };

cot_status cot_route_book_open(cot_route_book **book, size_t targets, uint64_t block_tokens,
                               cot_route_policy policy, uint64_t seed, cot_error *error)
{
    *book = NULL;
    if (!targets || targets > COT_ROUTE_MOST_TARGETS || !block_tokens || policy >= COT_ROUTE_POLICIES)
        return cot_fail(error, COT_INVALID_ARGUMENT, "a book of %zu targets, with blocks of %llu tokens",
                        targets, (unsigned long long)block_tokens);
    cot_route_book *b = calloc(1, sizeof *b);
    void *entries = NULL;
    if (b) {
        b->targets = targets;
        b->block_tokens = (double)block_tokens;
        b->policy = policy;
        b->seed = seed;
        b->memory = calloc(ARRAYS * targets, sizeof *b->memory);
        b->in_union = calloc(targets, sizeof *b->in_union);
        b->scales = (cot_route_scales){1, 1, 1};
        b->usable = malloc(targets * sizeof *b->usable);
        b->breaker = calloc(targets, sizeof *b->breaker);
        b->work = calloc(targets, sizeof *b->work);
        b->sent = calloc(targets, sizeof *b->sent);
        b->prompt = calloc(targets, sizeof *b->prompt);
        b->step = calloc(targets, sizeof *b->step);
    }
    if (!b || !b->memory || !b->in_union || !b->usable || !b->breaker || !b->work || !b->sent || !b->prompt ||
        !b->step || !cot_grow(&entries, &b->entry_room, 1, sizeof *b->entry)) {
        cot_route_book_close(b);
        return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a book of %zu targets", targets);
    }
    b->entry = entries;
    b->entry_count = 1;
    double **const arrays[ARRAYS] = {&b->free_ns,  &b->prompt_ns, &b->token_ns, &b->step_ns,
                                     &b->room,     &b->tokens,    &b->blocks,   &b->pages,
                                     &b->score,    &b->queued_ns, &b->alone_ns, &b->requests,
                                     &b->expected, &b->expert_ns, &b->send_ns,  &b->slots};
    for (size_t i = 0; i < ARRAYS; i++) *arrays[i] = b->memory + i * targets;
    for (size_t t = 0; t < targets; t++) {
        b->usable[t] = true;
        b->room[t] = b->slots[t] = HUGE_VAL;
        b->in_union[t] = (uint32_t)t;
    }
    *book = b;
    return COT_OK;
}

void cot_route_book_close(cot_route_book *b)
{
    if (!b) return;
    cot_route_beginnings_free(&b->beginnings);
    cot_route_unions_free(&b->unions);
    for (size_t t = 0; b->placement && t < b->targets; t++) free(b->placement[t].ranks_of);
    free(b->placement);
    for (size_t i = 1; i < b->entry_count; i++) free(b->entry[i].calls);
    free(b->memory);
    free(b->in_union);
    free(b->usable);
    free(b->breaker);
    free(b->work);
    free(b->sent);
    free(b->prompt);
    free(b->step);
    free(b->entry);
    free(b);
}

void cot_route_book_set_costs(cot_route_book *b, size_t target, const cot_route_costs *costs)
{
    b->prompt_ns[target] = costs->prompt_ns;
    b->token_ns[target] = costs->token_ns;
    b->step_ns[target] = costs->step_ns;
    b->alone_ns[target] = costs->alone_ns;
    b->expert_ns[target] = costs->expert_ns;
    b->send_ns[target] = costs->send_ns;
    b->room[target] = costs->pages > 0 ? costs->pages : HUGE_VAL;
    b->slots[target] = costs->slots > 0 ? fmax(costs->slots, 1) : HUGE_VAL;
}

void cot_route_book_costs(const cot_route_book *b, size_t target, cot_route_costs *costs)
{
    const double pages = b->room[target] < HUGE_VAL ? b->room[target] : 0,
                 slots = b->slots[target] < HUGE_VAL ? b->slots[target] : 0;
    *costs = (cot_route_costs){.prompt_ns = b->prompt_ns[target],
                               .token_ns = b->token_ns[target],
                               .step_ns = b->step_ns[target],
                               .pages = pages,
                               .slots = slots,
                               .alone_ns = b->alone_ns[target],
                               .expert_ns = b->expert_ns[target],
                               .send_ns = b->send_ns[target]};
}

void cot_route_book_set_scales(cot_route_book *b, const cot_route_scales *scales)
{
    b->scales = *scales;
}

static void forget_cells(cot_route_book *b)
{
    cot_route_unions_free(&b->unions);
    for (size_t i = 1; i < b->entry_count; i++) {
        free(b->entry[i].calls);
        b->entry[i].calls = NULL;
    }
    for (size_t t = 0; b->placement && t < b->targets; t++) {
        free(b->placement[t].ranks_of);
        b->placement[t] = (cot_route_placement){0};
    }
}

cot_status cot_route_book_set_cells(cot_route_book *b, size_t cells, cot_error *error)
{
    assert(cells && cells <= COT_ROUTE_MOST_CELLS);
    forget_cells(b);
    b->placement = b->placement ? b->placement : calloc(b->targets, sizeof *b->placement);
    return b->placement && cot_route_unions_open(&b->unions, b->targets, cells)
               ? COT_OK
               : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %zu experts of %zu targets", cells,
                          b->targets);
}

cot_status cot_route_book_set_placement(cot_route_book *b, size_t first, size_t homes, size_t experts,
                                        const uint64_t *ranks_of, cot_error *error)
{
    assert(homes && homes <= COT_ROUTE_MOST_HOMES && first + homes <= b->targets && b->unions.cells);
    cot_route_placement *p = &b->placement[first];
    const size_t bytes = b->unions.cells * sizeof *ranks_of;
    uint64_t *copy = ranks_of ? malloc(bytes) : NULL;
    free(p->ranks_of);
    *p = (cot_route_placement){homes, experts, copy};
    if (!ranks_of) return COT_OK;
    if (!copy) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a placement");
    memcpy(copy, ranks_of, bytes);
    return COT_OK;
}

void cot_route_book_set_usual(cot_route_book *b, const float *share)
{
    cot_route_unions_set_usual(&b->unions, share);
}

void cot_route_book_set_worker(cot_route_book *b, size_t target, size_t first)
{
    b->in_union[target] = (uint32_t)first;
}

void cot_route_book_set_usable(cot_route_book *b, size_t target, bool usable)
{
    b->usable[target] = usable;
}

void cot_route_learn_work(cot_route_book *b, size_t target, const cot_route_work *work)
{
    double ns[COT_ROUTE_PARTS];
    cot_route_fit_add(&b->work[target], work);
    if (!cot_route_fit_solve(&b->work[target], false, ns)) return;
    b->prompt_ns[target] = ns[COT_ROUTE_STEP]; // that it takes part in, one at least
    b->token_ns[target] = ns[COT_ROUTE_TOKEN];
    b->step_ns[target] = ns[COT_ROUTE_REQUEST]; // experts that it usually adds among it
    b->alone_ns[target] = ns[COT_ROUTE_STEP];
    if (cot_route_fit_solve(&b->work[target], true, ns)) b->expert_ns[target] = ns[COT_ROUTE_EXPERT];
    if (!(work->sends > 0)) return;
    cot_route_work by_sends = *work;
    by_sends.experts = work->sends;
    cot_route_fit_add(&b->sent[target], &by_sends);
    if (cot_route_fit_solve(&b->sent[target], true, ns)) b->send_ns[target] = ns[COT_ROUTE_EXPERT];
}

/* A prompt has what comes once a prompt, too, in the place of a step. */
void cot_route_learn_prompt(cot_route_book *b, size_t target, uint64_t tokens, double time_ns)
{
    double ns[COT_ROUTE_PARTS];
    cot_route_fit_add(&b->prompt[target],
                      &(cot_route_work){.steps = 1, .prompt_tokens = (double)tokens, .ns = time_ns});
    if (!cot_route_fit_solve(&b->prompt[target], false, ns)) return;
    b->prompt_ns[target] = ns[COT_ROUTE_STEP];
    b->token_ns[target] = ns[COT_ROUTE_TOKEN];
}

void cot_route_learn_step(cot_route_book *b, size_t target, uint64_t requests, double time_ns)
{
    double ns[COT_ROUTE_PARTS];
    cot_route_fit_add(&b->step[target],
                      &(cot_route_work){.steps = 1, .requests = (double)requests, .ns = time_ns});
    if (!cot_route_fit_solve(&b->step[target], false, ns)) return;
    b->step_ns[target] = ns[COT_ROUTE_REQUEST];
    b->alone_ns[target] = ns[COT_ROUTE_STEP];
}

void cot_route_failed(cot_route_book *b, size_t target, int64_t now_ns)
{
    cot_route_breaker_fail(&b->breaker[target], now_ns);
}

void cot_route_succeeded(cot_route_book *b, size_t target)
{
    cot_route_breaker_succeed(&b->breaker[target]);
}

void cot_route_renewed(cot_route_book *b, size_t target)
{
    b->breaker[target] = (cot_route_breaker){0};
}

bool cot_route_is_open(const cot_route_book *b, size_t target, int64_t now_ns)
{
    return cot_route_breaker_is_open(&b->breaker[target], now_ns);
}

/* ---- scores ---- */

static double expected_tokens(const cot_route_book *b, const cot_route_request *r)
{
    const double usual = b->answers < FEW_ANSWERS ? PRESUMED_TOKENS : b->answer_tokens / b->answer_weight;
    return fmin((double)r->max_tokens, usual);
}

/* The last token of a prompt is always computed. */
static double cached_tokens(const cot_route_book *b, const cot_route_request *r, size_t t)
{
    return fmin(b->block_tokens * r->depth[t], (double)(r->tokens - 1));
}

/* Blocks that the request will have at its end. */
static double final_blocks(const cot_route_book *b, const cot_route_request *r)
{
    return ceil(((double)r->tokens + expected_tokens(b, r)) / b->block_tokens);
}

/* The beginning of a request that a target holds, which is in memory once for all that are there with it. 0: none, or none is counted. */
static uint64_t beginning_of(const cot_route_book *b, const cot_route_request *r, size_t t)
{
    const bool counts = r->keys && r->depth[t] && b->room[t] < HUGE_VAL;
    return counts ? cot_route_beginning(r->keys[r->depth[t] - 1], t) : 0;
}

/* Blocks that lack for such a request; 0 or less: none. */
static double lacking_pages(const cot_route_book *b, const cot_route_request *r, size_t t, double wanted)
{
    const double lacking = b->pages[t] + wanted - b->room[t];
    const bool shares = lacking > 0 && cot_route_beginnings_has(&b->beginnings, beginning_of(b, r, t));
    return shares ? lacking - r->depth[t] : lacking;
}

/* Pages, and places of requests that run, are released as fast as they are taken: all that are in use in the time that a request is there. */
static double wait_for_room(const cot_route_book *b, const cot_route_request *r, size_t t, double wanted,
                            double now)
{
    if (wanted > b->room[t]) return NEVER_NS;
    const double pages = lacking_pages(b, r, t, wanted), slots = b->requests[t] + 1 - b->slots[t];
    const double part = fmax(pages > 0 ? pages / b->pages[t] : 0, slots > 0 ? slots / b->requests[t] : 0);
    if (!(part > 0)) return 0;
    const double token_ns = b->alone_ns[t] + b->step_ns[t] * b->requests[t];
    return part * (fmax(b->free_ns[t] - now, 0) + b->expected[t] / b->requests[t] * token_ns);
}

/* What a request sends from each home of a worker. */
typedef struct worker_sends {
    size_t first; // the worker's first target
    double sends[COT_ROUTE_MOST_HOMES], mean;
} worker_sends;

/* Ranks that a token of it is sent to, more than from the worker's homes in the mean; `known` is of a worker, which becomes the target's. */
static double more_sends(const cot_route_book *b, const cot_route_request *r, size_t t, worker_sends *known)
{
    const size_t first = b->in_union[t], homes = b->placement[first].homes;
    if (!b->placement[first].ranks_of || t < first || t >= first + homes) return 0;
    if (known->first != first) {
        *known = (worker_sends){.first = first};
        cot_route_sends(known->sends, &b->placement[first], r->calls);
        for (size_t home = 0; home < homes; home++) known->mean += known->sends[home] / (double)homes;
    }
    return known->sends[t - first] - known->mean;
}

/* What its experts cost beside the usual ones, which are a part of `decode`: of the absolute cost targets with much would always have the
 * least to add, and all would go there. */
static double cost_of_experts(const cot_route_book *b, const cot_route_request *r, size_t t,
                              worker_sends *known)
{
    if (!r->calls || !b->unions.cells) return 0;
    const double tokens = expected_tokens(b, r);
    double cost = 0;
    if (b->expert_ns[t] > 0)
        cost = b->expert_ns[t] * tokens * cot_route_unions_added(&b->unions, b->in_union[t], r->calls);
    if (b->send_ns[t] > 0) cost += b->send_ns[t] * tokens * more_sends(b, r, t, known);
    return cost;
}

static cot_route_terms terms_of(const cot_route_book *b, const cot_route_request *r, size_t t, double now)
{
    worker_sends known; // of nobody yet; the rest is large, and mostly not needed
    known.first = COT_ROUTE_NOBODY;
    return (cot_route_terms){.queue = fmax(b->free_ns[t] - now, 0),
                             .prefill = b->prompt_ns[t] +
                                        b->token_ns[t] * ((double)r->tokens - cached_tokens(b, r, t)),
                             .decode = expected_tokens(b, r) * b->step_ns[t],
                             .pages = wait_for_room(b, r, t, final_blocks(b, r), now),
                             .experts = cost_of_experts(b, r, t, &known)};
}

static void score_all(cot_route_book *b, const cot_route_request *r, double now)
{
    const double expected = expected_tokens(b, r), tokens = (double)r->tokens, most = tokens - 1,
                 wanted = final_blocks(b, r), block = b->block_tokens, kv = b->scales.kv,
                 load = b->scales.load;
    double *restrict score = b->score;
    const double *restrict free_ns = b->free_ns, *restrict prompt_ns = b->prompt_ns,
                           *restrict token_ns = b->token_ns, *restrict step_ns = b->step_ns,
                           *restrict pages = b->pages, *restrict room = b->room, *restrict slots = b->slots,
                           *restrict requests = b->requests;
    const uint32_t *restrict depth = r->depth;
    for (size_t t = 0; t < b->targets; t++) {
        const double queue = free_ns[t] - now, cached = block * (double)(int32_t)depth[t];
        score[t] = load * ((queue > 0 ? queue : 0) + expected * step_ns[t]) +
                   kv * (prompt_ns[t] + token_ns[t] * (tokens - (cached < most ? cached : most)));
    }
    int lacking = 0;
    for (size_t t = 0; t < b->targets; t++)
        lacking |= (pages[t] + wanted > room[t]) | (requests[t] + 1 > slots[t]);
    for (size_t t = 0; lacking && t < b->targets; t++) {
        const double wait = wait_for_room(b, r, t, wanted, now);
        score[t] += wait < NEVER_NS ? load * wait : wait;
    }
}

/* NVIDIA Dynamo's: blocks of prompts to be computed, the new one's with them, less what overlaps; and blocks in use. */
static void score_dynamo(cot_route_book *b, const cot_route_request *r)
{
    for (size_t t = 0; t < b->targets; t++) {
        const double prefill = (b->tokens[t] + (double)r->tokens) / b->block_tokens - r->depth[t];
        b->score[t] = fmax(prefill, 0) + b->blocks[t] + ceil((double)r->tokens / b->block_tokens);
    }
}

static bool may_go(const cot_route_book *b, size_t t, int64_t now_ns)
{
    return b->usable[t] && !cot_route_breaker_is_open(&b->breaker[t], now_ns);
}

/* The least score; of equals the one that comes first behind where the last went, so that none is starved. */
static size_t least(const cot_route_book *b, int64_t now_ns)
{
    size_t best = b->targets;
    for (size_t part = 0; part < 2; part++)
        for (size_t t = part ? 0 : b->turn; t < (part ? b->turn : b->targets); t++)
            if ((best == b->targets || b->score[t] < b->score[best]) && may_go(b, t, now_ns)) best = t;
    return best;
}

/* The least score with what experts cost, of the targets whose scores without are the least; of equals as above. */
static size_t least_with_experts(const cot_route_book *b, const cot_route_request *r, int64_t now_ns)
{
    size_t best[WEIGHED], count = 0, least = b->targets;
    double least_score = HUGE_VAL;
    worker_sends known; // of nobody yet; the rest is large, and mostly not needed
    known.first = COT_ROUTE_NOBODY;
    for (size_t part = 0; part < 2; part++)
        for (size_t t = part ? 0 : b->turn; t < (part ? b->turn : b->targets); t++) {
            size_t at = count;
            if ((at == WEIGHED && !(b->score[t] < b->score[best[at - 1]])) || !may_go(b, t, now_ns)) continue;
            if (at == WEIGHED) at--;
            count = at + 1;
            for (; at && b->score[t] < b->score[best[at - 1]]; at--) best[at] = best[at - 1];
            best[at] = t;
        }
    for (size_t i = 0; i < count; i++) {
        const double score = b->score[best[i]] + b->scales.experts * cost_of_experts(b, r, best[i], &known);
        if (!(score < least_score)) continue;
        least_score = score;
        least = best[i];
    }
    return least;
}

static size_t any(cot_route_book *b, int64_t now_ns)
{
    size_t usable = 0, t = 0;
    for (size_t i = 0; i < b->targets; i++) usable += may_go(b, i, now_ns);
    if (!usable) return b->targets;
    for (uint64_t skip = cot_random_bits(b->seed, 0, b->drawn++) % usable; !may_go(b, t, now_ns) || skip--;)
        t++;
    return t;
}

void cot_route_weigh(const cot_route_book *b, const cot_route_request *r, size_t t, int64_t now_ns,
                     cot_route_decision *decision)
{
    *decision = (cot_route_decision){t, (uint64_t)cached_tokens(b, r, t), terms_of(b, r, t, (double)now_ns)};
}

double cot_route_score(const cot_route_book *b, const cot_route_terms *t)
{
    const double experts = b->policy == COT_ROUTE_KV ? 0 : b->scales.experts * t->experts;
    return b->scales.load * (t->queue + t->decode + (t->pages < NEVER_NS ? t->pages : 0)) +
           (t->pages < NEVER_NS ? 0 : t->pages) + b->scales.kv * t->prefill + experts;
}

size_t cot_route_book_targets(const cot_route_book *b)
{
    return b->targets;
}

bool cot_route_book_scores(const cot_route_book *b)
{
    return b->policy == COT_ROUTE_JOINT || b->policy == COT_ROUTE_KV;
}

bool cot_route_choose(cot_route_book *b, const cot_route_request *r, int64_t now_ns,
                      cot_route_decision *decision)
{
    size_t t = 0;
    const double now = (double)now_ns;
    switch (b->policy) {
    case COT_ROUTE_RANDOM:
        t = any(b, now_ns);
        break;
    case COT_ROUTE_ROUND_ROBIN:
        for (size_t i = 0; i < b->targets; i++) b->score[i] = 0;
        t = least(b, now_ns);
        break;
    case COT_ROUTE_LEAST:
        for (size_t i = 0; i < b->targets; i++) b->score[i] = b->tokens[i];
        t = least(b, now_ns);
        break;
    case COT_ROUTE_DYNAMO:
        score_dynamo(b, r);
        t = least(b, now_ns);
        break;
    default:
        score_all(b, r, now);
        t = b->policy == COT_ROUTE_JOINT && r->calls && b->unions.cells ? least_with_experts(b, r, now_ns)
                                                                        : least(b, now_ns);
    }
    if (t == b->targets) return false;
    b->turn = (t + 1) % b->targets;
    cot_route_weigh(b, r, t, now_ns, decision);
    return true;
}

/* ---- what was sent ---- */

/* What memory is missing for does not count. */
static void count_calls(cot_route_book *b, entry *e, const cot_route_calls *calls)
{
    e->in_union = b->in_union[e->target];
    e->calls = malloc(sizeof *calls);
    if (e->calls && cot_route_unions_add(&b->unions, e->in_union, calls)) {
        *e->calls = *calls;
        return;
    }
    free(e->calls);
    e->calls = NULL;
}

uint64_t cot_route_assigned(cot_route_book *b, const cot_route_request *r, const cot_route_decision *d,
                            int64_t now_ns)
{
    const size_t t = d->target;
    const uint64_t beginning = beginning_of(b, r, t);
    const double shared = beginning ? r->depth[t] : 0;
    bool first = true;
    if (beginning && !cot_route_beginnings_add(&b->beginnings, beginning, &first)) return 0;
    uint32_t number = b->free_entry;
    if (!number) {
        void *grown = b->entry;
        if (b->entry_count > UINT32_MAX ||
            !cot_grow(&grown, &b->entry_room, b->entry_count + 1, sizeof *b->entry)) {
            if (beginning) cot_route_beginnings_drop(&b->beginnings, beginning);
            return 0;
        }
        b->entry = grown;
        number = (uint32_t)b->entry_count++;
    } else {
        b->free_entry = b->entry[number].next;
    }
    const double now = (double)now_ns;
    entry *e = &b->entry[number];
    *e = (entry){.target = (uint32_t)t,
                 .waits = true,
                 .live = true,
                 .tries = !r->of_peer && cot_route_breaker_send(&b->breaker[t], now_ns),
                 .queue_ns = d->terms.prefill,
                 .to_compute = (double)(r->tokens - d->cached),
                 .expected = expected_tokens(b, r),
                 .pages = final_blocks(b, r) - shared,
                 .beginning = beginning,
                 .shared = shared,
                 .blocks = ceil((double)r->tokens / b->block_tokens)};
    b->free_ns[t] = fmax(b->free_ns[t], now) + e->queue_ns;
    b->queued_ns[t] += e->queue_ns;
    b->tokens[t] += e->to_compute;
    b->blocks[t] += e->blocks;
    b->pages[t] += e->pages + (first ? shared : 0);
    b->requests[t]++;
    b->expected[t] += e->expected;
    if (r->calls && b->unions.cells) count_calls(b, e, r->calls);
    return number;
}

static entry *entry_of(const cot_route_book *b, uint64_t number)
{
    assert(number && number < b->entry_count && b->entry[number].live);
    return &b->entry[number];
}

bool cot_route_is_trial(const cot_route_book *b, uint64_t number)
{
    return entry_of(b, number)->tries;
}

/* It waits no longer: what the target's queue will take is what the others that wait take. */
static void leave_queue(cot_route_book *b, entry *e, int64_t now_ns)
{
    if (!e->waits) return;
    e->waits = false;
    b->tokens[e->target] -= e->to_compute;
    b->queued_ns[e->target] -= e->queue_ns;
    b->free_ns[e->target] = (double)now_ns + b->queued_ns[e->target];
}

void cot_route_began(cot_route_book *b, uint64_t number, int64_t now_ns)
{
    leave_queue(b, entry_of(b, number), now_ns);
}

void cot_route_ended(cot_route_book *b, uint64_t number, uint64_t answered, int64_t now_ns)
{
    entry *e = entry_of(b, number);
    leave_queue(b, e, now_ns);
    if (e->tries) (answered ? cot_route_breaker_succeed : cot_route_breaker_give_up)(&b->breaker[e->target]);
    b->blocks[e->target] -= e->blocks;
    b->pages[e->target] -= e->pages;
    if (e->beginning && cot_route_beginnings_drop(&b->beginnings, e->beginning))
        b->pages[e->target] -= e->shared;
    b->requests[e->target]--;
    b->expected[e->target] -= e->expected;
    if (e->calls) cot_route_unions_drop(&b->unions, e->in_union, e->calls);
    free(e->calls);
    e->calls = NULL;
    e->live = false;
    e->next = b->free_entry;
    b->free_entry = (uint32_t)number;
    if (!answered) return;
    b->answers++;
    b->answer_weight = b->answer_weight * ANSWERS_KEPT + 1;
    b->answer_tokens = b->answer_tokens * ANSWERS_KEPT + (double)answered;
}
