#include "coterie/predict_signature.h"

#include "base/error.h"
#include "coterie/layout.h"
#include "predict/arrangement.h"
#include "routing/signature.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double prior_tokens = 4;    // of all texts, which a signature begins with
static const double least_share = 0.001; // calls of an expert by a token of other texts

typedef struct study {
    const cot_trace *trace;
    cot_predict_signature_options options;
    int32_t *request; // [requests] sequences
    int32_t requests;
    cot_evidence by_signature, by_oracle;
    uint16_t *other, *to_come; // tokens of both
    float *ratio;
    int32_t *owner;
} study;

static int64_t length_of(const cot_trace *trace, int64_t s)
{
    return trace->sequence_offsets[s + 1] - trace->sequence_offsets[s];
}

/* experts [L][K] of token t. */
static void copy_token(uint16_t *experts, const cot_trace *trace, int64_t t)
{
    for (int32_t l = 0; l < trace->n_layers; l++)
        for (int32_t k = 0; k < trace->top_k; k++) *experts++ = (uint16_t)cot_trace_expert(trace, l, t, k);
}

static size_t calls_of(const study *s)
{
    return (size_t)s->trace->n_layers * (size_t)s->trace->top_k;
}

/* ---- evidence ---- */

/* `reservoir` tokens at equal distances among all of sequences that are no requests. */
static void keep_others(study *s, int64_t tokens)
{
    const int64_t least = s->options.signature_tokens + s->options.judged_tokens;
    int64_t number = 0, kept = 0;
    for (int64_t q = 0; q < s->trace->n_sequences; q++) {
        const int64_t begin = s->trace->sequence_offsets[q], n = length_of(s->trace, q);
        for (int64_t t = 0; n < least && t < n; t++, number++)
            if (kept < s->by_signature.n_tokens && number == kept * tokens / s->by_signature.n_tokens)
                copy_token(s->other + (size_t)kept++ * calls_of(s), s->trace, begin + t);
    }
}

/* How much likelier than other texts' tokens one of each request calls each expert, as far as its signature tells. */
static void compare_signatures(study *s, const cot_signature_shape *shape, uint8_t *cells, double *share)
{
    const int32_t L = s->trace->n_layers, E = s->trace->n_experts, K = s->trace->top_k;
    const uint16_t *token = s->other;
    for (int32_t i = 0; i < s->by_signature.n_tokens; i++)
        for (int32_t l = 0; l < L; l++)
            for (int32_t k = 0; k < K; k++)
                share[l * E + token[((size_t)i * (size_t)L + (size_t)l) * (size_t)K + (size_t)k]] +=
                    1. / s->by_signature.n_tokens;
    for (int32_t r = 0; r < s->requests; r++) {
        const int64_t begin = s->trace->sequence_offsets[s->request[r]];
        float *ratio = s->ratio + (int64_t)r * L * E;
        memset(cells, 0, (size_t)shape->cells);
        for (int64_t t = 0; t < s->options.signature_tokens; t++) {
            copy_token(s->to_come, s->trace, begin + t); // scratch: what is to come is filled in later
            cot_signature_add(cells, shape, s->to_come, K);
        }
        for (int32_t l = 0; l < L; l++) {
            const uint8_t *cell = cells + l / shape->every * E;
            double tokens = 0;
            for (int32_t e = 0; e < E; e++) tokens += (double)cell[e] / K;
            for (int32_t e = 0; e < E; e++) {
                const double usual = fmax(share[l * E + e], least_share);
                ratio[l * E + e] =
                    l % shape->every
                        ? 1
                        : (float)((cell[e] + prior_tokens * usual) / ((tokens + prior_tokens) * usual));
            }
        }
    }
}

/* Of each request equally many of the tokens that are judged. */
static void look_ahead(study *s)
{
    const int32_t each = s->by_oracle.n_tokens / s->requests;
    for (int32_t r = 0; r < s->requests; r++)
        for (int32_t i = 0; i < each; i++) {
            const int64_t t = s->trace->sequence_offsets[s->request[r]] + s->options.signature_tokens +
                              i * s->options.judged_tokens / each;
            s->owner[r * each + i] = r;
            copy_token(s->to_come + (size_t)(r * each + i) * calls_of(s), s->trace, t);
        }
}

static cot_status gather(study *s, cot_predict_signature_study *out, cot_error *error)
{
    const cot_trace *trace = s->trace;
    const int64_t least = s->options.signature_tokens + s->options.judged_tokens;
    cot_signature_shape shape;
    const cot_status status =
        cot_signature_shape_of(&shape, trace->n_layers, trace->n_experts, trace->top_k, error);
    if (status != COT_OK) return status;
    s->request = malloc((size_t)trace->n_sequences * sizeof *s->request + 1);
    for (int64_t q = 0; s->request && q < trace->n_sequences; q++)
        if (length_of(trace, q) >= least)
            s->request[s->requests++] = (int32_t)q;
        else {
            out->other_sequences++;
            out->other_tokens += length_of(trace, q);
        }
    if (s->request && (!s->requests || !out->other_tokens))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "of %" PRId64 " sequences %" PRId32 " have %" PRId64
                        " tokens or more: there must be some, and shorter ones to learn from",
                        trace->n_sequences, s->requests, least);
    int64_t each = (s->options.reservoir + s->requests - 1) / (s->requests ? s->requests : 1);
    if (each > s->options.judged_tokens) each = s->options.judged_tokens;
    cot_evidence e = {trace->n_layers, trace->n_experts, trace->top_k, 0, s->requests, NULL, NULL, NULL};
    s->by_signature = s->by_oracle = e;
    s->by_signature.n_tokens =
        out->other_tokens < s->options.reservoir ? (int32_t)out->other_tokens : s->options.reservoir;
    s->by_oracle.n_tokens = (int32_t)each * s->requests;
    const size_t cells = (size_t)trace->n_layers * (size_t)trace->n_experts;
    s->other = calloc((size_t)s->by_signature.n_tokens * calls_of(s), sizeof *s->other);
    s->to_come = calloc((size_t)s->by_oracle.n_tokens * calls_of(s), sizeof *s->to_come);
    s->ratio = calloc((size_t)s->requests * cells, sizeof *s->ratio);
    s->owner = calloc((size_t)s->by_oracle.n_tokens, sizeof *s->owner);
    uint8_t *signature = malloc((size_t)shape.cells);
    double *share = calloc(cells, sizeof *share);
    const bool good = s->request && s->other && s->to_come && s->ratio && s->owner && signature && share;
    if (good) {
        keep_others(s, out->other_tokens);
        compare_signatures(s, &shape, signature, share);
        look_ahead(s);
    }
    free(signature);
    free(share);
    s->by_signature.token = s->other;
    s->by_signature.ratio = s->ratio;
    s->by_oracle.token = s->to_come;
    s->by_oracle.owner = s->owner;
    out->requests = s->requests;
    out->every = shape.every;
    return good ? COT_OK
                : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %" PRId32 " requests", s->requests);
}

/* ---- judging ---- */

static void judge_layer(cot_predict_signature_figures *figures, const study *s, const cot_arrangement *a,
                        const cot_expert_layout *layout, int32_t l)
{
    const cot_expert_replicas replicas = cot_expert_layout_layer(layout, l);
    double load[COT_TRACE_MAX_RANKS] = {0};
    cot_locality locality = {0};
    for (int32_t r = 0; r < s->requests; r++) {
        const int64_t first = s->options.signature_tokens, begin = s->trace->sequence_offsets[s->request[r]];
        for (int64_t t = first; t < first + s->options.judged_tokens; t++) {
            uint64_t reached = 0;
            for (int32_t k = 0; k < s->trace->top_k; k++) {
                const int32_t e = cot_trace_expert(s->trace, l, begin + t, k);
                const int32_t rank = replicas.rank[cot_expert_replica(&replicas, e, a->home[r], t)];
                load[rank]++;
                reached |= cot_locality_call(&locality, a->home[r], rank);
            }
            cot_locality_token(&locality, reached);
        }
    }
    figures->remote_ranks += cot_locality_remote_ranks(&locality) / s->trace->n_layers;
    figures->peak += cot_load_peak(load, a->map.n_ranks) / s->trace->n_layers;
}

static cot_status judge(cot_predict_signature_figures *figures, const study *s, const cot_arrangement *a,
                        cot_error *error)
{
    cot_expert_layout layout;
    const cot_expert_layout_shape shape = {.n_layers = a->map.n_layers,
                                           .n_experts = a->map.n_experts,
                                           .n_ranks = a->map.n_ranks,
                                           .layers = a->map.layers};
    *figures = (cot_predict_signature_figures){0};
    const cot_status status = cot_expert_layout_of_map(&layout, &shape, &a->map, "the placement", error);
    for (int32_t l = 0; status == COT_OK && l < a->map.n_layers; l++) judge_layer(figures, s, a, &layout, l);
    if (status == COT_OK) cot_expert_layout_free(&layout);
    return status;
}

/* ---- rows ---- */

/* Seats that save most with homes as they are say which requests belong together; then homes follow, and seats these. */
static cot_status settle(cot_arrangement *a, const cot_evidence *e, double peak, cot_error *error)
{
    cot_status status = cot_arrangement_choose_seats(a, e, peak, error);
    if (status == COT_OK) status = cot_arrangement_choose_homes(a, e, error);
    if (status == COT_OK) status = cot_arrangement_choose_seats(a, e, peak, error);
    return status;
}

/* Arranges anew as the row says, or, with replica slots, on from where the row before ended. */
static cot_status arrange(cot_arrangement *a, const cot_predict_signature_row *row, const study *s,
                          const cot_evidence *e, cot_error *error)
{
    const double peak = s->options.peak;
    cot_status status = COT_OK;
    if (row->replica_slots) {
        status = cot_arrangement_add_slot(a, e, peak, error);
    } else {
        cot_arrangement_free(a);
        status = cot_arrangement_open(a, e, s->options.ranks, error);
    }
    if (status != COT_OK) return status;
    if (row->homes && row->swaps) return settle(a, e, peak, error);
    if (row->homes) return cot_arrangement_choose_homes(a, e, error);
    return row->swaps ? cot_arrangement_choose_seats(a, e, peak, error) : COT_OK;
}

static cot_status fill_rows(cot_predict_signature_study *out, const study *s, bool oracle, cot_error *error)
{
    const cot_evidence *e = oracle ? &s->by_oracle : &s->by_signature;
    cot_arrangement a = {0};
    cot_status status = COT_OK;
    for (int32_t i = 0; i < out->rows && status == COT_OK; i++) {
        cot_predict_signature_row *row = &out->row[i];
        status = arrange(&a, row, s, e, error);
        if (status == COT_OK) status = judge(oracle ? &row->oracle : &row->judged, s, &a, error);
        if (status == COT_OK && !oracle) status = cot_arrangement_foresee(&row->foreseen, &a, e, error);
    }
    cot_arrangement_free(&a);
    return status;
}

static cot_status check(const cot_predict_signature_options *o, const cot_trace *trace, cot_error *error)
{
    if (trace->kind == COT_TRACE_COUNTS)
        return cot_fail(error, COT_INVALID_ARGUMENT, "counts have no order of tokens, so no signatures");
    if (o->signature_tokens < 1 || o->judged_tokens < 1 || o->reservoir < 1 || o->replica_slots < 0 ||
        o->replica_slots > COT_SIGNATURE_MOST_REPLICAS || !(o->peak >= 1))
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "no signatures of %" PRId64 " tokens can be judged on %" PRId64 ", with %" PRId32
                        " known, %" PRId32 " replica slots and a peak of %g",
                        o->signature_tokens, o->judged_tokens, o->reservoir, o->replica_slots, o->peak);
    return COT_OK;
}

cot_status cot_predict_signatures(cot_predict_signature_study *out, const cot_trace *trace,
                                  const cot_predict_signature_options *options, cot_error *error)
{
    study s = {.trace = trace, .options = *options};
    cot_predict_signature_options *o = &s.options;
    *out = (cot_predict_signature_study){.rows = 4 + o->replica_slots};
    if (!o->ranks) o->ranks = 8;
    if (!o->signature_tokens) o->signature_tokens = 64;
    if (!o->judged_tokens) o->judged_tokens = 192;
    if (!o->reservoir) o->reservoir = 4096;
    if (o->peak == 0) o->peak = 1.35;
    cot_status status = check(o, trace, error);
    for (int32_t i = 0; status == COT_OK && i < out->rows; i++)
        out->row[i] = (cot_predict_signature_row){
            .homes = i == 1 || i > 2, .swaps = i > 1, .replica_slots = i > 3 ? i - 3 : 0};
    if (status == COT_OK) status = gather(&s, out, error);
    if (status == COT_OK) status = fill_rows(out, &s, false, error);
    if (status == COT_OK) status = fill_rows(out, &s, true, error);
    void *owned[] = {s.request, s.other, s.to_come, s.ratio, s.owner};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    return status;
}
