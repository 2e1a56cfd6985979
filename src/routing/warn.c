#include "routing/store.h"

#include "base/error.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct warner {
    cot_trace_say *say;
    void *context;
} warner;

__attribute__((format(printf, 2, 3))) static void warn(const warner *w, const char *format, ...)
{
    char line[256];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    w->say(w->context, line);
}

/* Collects layer numbers as "1, 2, 5 and 3 more". */
typedef struct layer_text {
    char text[96];
    int n, shown;
} layer_text;

static void add_layer(layer_text *list, int32_t layer)
{
    size_t used = strlen(list->text);
    if (list->n++ < 6) {
        snprintf(list->text + used, sizeof list->text - used, list->shown++ ? ", %" PRId32 : "%" PRId32,
                 layer);
        return;
    }
    char *tail = strstr(list->text, " and ");
    if (tail) used = (size_t)(tail - list->text);
    snprintf(list->text + used, sizeof list->text - used, " and %d more", list->n - list->shown);
}

/* How many (token, layer) pairs name an expert twice. `last` [E] is the last pair that named each, plus one.
 */
static int64_t count_repeats(const cot_trace *trace, int64_t *last)
{
    int64_t repeats = 0, pair = 0;
    for (int32_t l = 0; l < trace->n_layers; l++)
        for (int64_t t = 0; t < trace->n_tokens; t++) {
            bool repeated = false;
            pair++;
            for (int32_t k = 0; k < trace->top_k; k++) {
                int64_t *seen = &last[cot_trace_expert(trace, l, t, k)];
                repeated |= *seen == pair;
                *seen = pair;
            }
            repeats += repeated;
        }
    return repeats;
}

static void warn_counts(const cot_trace *trace, const warner *w)
{
    int64_t odd = 0, differ = 0, E = trace->n_experts;
    for (int64_t t = 0; t < trace->n_tokens; t++) {
        uint64_t first = 0;
        bool same = true, multiple = true;
        for (int32_t l = 0; l < trace->n_layers; l++) {
            uint64_t sum = 0;
            const uint32_t *row = trace->counts + (l * trace->n_tokens + t) * E;
            for (int64_t e = 0; e < E; e++) sum += row[e];
            if (!l) first = sum;
            same &= sum == first;
            multiple &= sum % (uint64_t)trace->top_k == 0;
        }
        odd += !multiple;
        differ += !same;
    }
    if (odd)
        warn(w, "counts of %" PRId64 " token ids sum to no multiple of %" PRId32 " in some layer", odd,
             trace->top_k);
    if (differ) warn(w, "%" PRId64 " token ids are counted more often in some layers than in others", differ);
}

/* Whether tokens `a` and `b` call the same experts in every layer. */
static bool same_everywhere(const cot_trace *trace, int64_t a, int64_t b)
{
    for (int32_t l = 0; l < trace->n_layers; l++)
        for (int32_t k = 0; k < trace->top_k; k++)
            if (cot_trace_expert(trace, l, a, k) != cot_trace_expert(trace, l, b, k)) return false;
    return true;
}

/* Recorders that were on while an engine warmed up begin with rows that say nothing: one routing, repeated. */
static void warn_constant(const cot_trace *trace, const warner *w)
{
    enum { SUSPICIOUS = 8 }; // tokens in a row; two with the same experts in every layer are rare already
    int64_t runs = 0, tokens = 0, first = 0, first_length = 0;
    if (trace->n_layers * trace->top_k < SUSPICIOUS) return; // so little to tell tokens apart by
    for (int64_t begin = 0, end; begin < trace->n_tokens; begin = end) {
        for (end = begin + 1; end < trace->n_tokens && same_everywhere(trace, begin, end); end++)
            ;
        if (end - begin < SUSPICIOUS) continue;
        if (!runs++) {
            first = begin;
            first_length = end - begin;
        }
        tokens += end - begin;
    }
    if (runs)
        warn(w,
             "%" PRId64 " tokens are in constant rows, the same experts in every layer (first: %" PRId64
             " tokens from token %" PRId64 "): a recorder's warm-up?",
             tokens, first_length, first);
}

cot_status cot_trace_warn(const cot_trace *trace, cot_trace_say *say, void *context, cot_error *error)
{
    warner w = {say, context};
    int64_t E = trace->n_experts, unknown = 0, unused = 0;
    uint64_t *load = calloc((size_t)E, sizeof *load);
    if (!load) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for %" PRId64 " experts", E);
    if (!trace->n_tokens) {
        warn(&w, "the trace holds no tokens");
        free(load);
        return COT_OK;
    }
    for (int64_t t = 0; t < trace->n_tokens; t++) unknown += trace->token_ids[t] < 0;
    if (unknown && trace->kind == COT_TRACE_TOKENS)
        warn(&w, "%" PRId64 " of %" PRId64 " tokens have an unknown id", unknown, trace->n_tokens);
    else if (unknown)
        warn(&w, "some counts belong to tokens of unknown id");
    if (trace->kind == COT_TRACE_TOKENS && !trace->weights) warn(&w, "the trace has no weights");
    layer_text idle = {0}, partial = {0};
    for (int32_t l = 0; l < trace->n_layers; l++) {
        uint64_t total = 0;
        int64_t none = 0;
        cot_trace_load(load, trace, l);
        for (int64_t e = 0; e < E; e++) {
            total += load[e];
            none += !load[e];
        }
        if (!total)
            add_layer(&idle, trace->layers[l]);
        else if (none)
            add_layer(&partial, trace->layers[l]);
        if (total) unused += none;
    }
    if (idle.n) warn(&w, "no load in layers %s", idle.text);
    if (unused)
        warn(&w, "%" PRId64 " (layer, expert) pairs are never used, in layers %s", unused, partial.text);
    if (trace->kind == COT_TRACE_COUNTS) {
        warn_counts(trace, &w);
    } else {
        memset(load, 0, (size_t)E * sizeof *load);
        int64_t repeats = count_repeats(trace, (int64_t *)load);
        if (repeats)
            warn(&w, "%" PRId64 " times a token names one expert more than once in a layer", repeats);
        warn_constant(trace, &w);
    }
    free(load);
    return COT_OK;
}
