#include "cli/run/replay.h"

#include "cli/plan/cmd_predict.h"
#include "cli/frame/command.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(cli_replay_settings, field)
const cli_option cli_replay_option_rows[] = {
    {"routing", 0, CLI_OPTION_TEXT, "trace:FILE|lar:X", NULL,
     "in place of what gates choose, which compute all the same; trace: the experts and weights that a trace "
     "has for each "
     "token, whose sequences are the requests (what --tables learnt from the same trace is passed over); "
     "lar: drawn, so that "
     "a share X of a rank's activations stays there",
     AT(routing)},
    {"prompt-tokens", 0, CLI_OPTION_TEXT, "N|all", "all",
     "tokens of a trace's sequence that are fed at once, also where they were recorded in decode; the rest "
     "one by one",
     AT(prompt_tokens)},
    {"trace-layers", 0, CLI_OPTION_TEXT, "A:B", NULL,
     "with --shape: the trace's layers from A to before B, counted from 0", AT(trace_layers)},
    {"shape", 0, CLI_OPTION_TEXT, "NAME", NULL,
     "in place of a model a random one of this shape (" CLI_MODEL_SHAPE_NAMES
     "), with the trace's layers, experts and ids; layers share experts, slot for slot, where theirs exceed "
     "four "
     "times the last-level cache",
     AT(shape)},
    {0}};

static const char *after(const char *text, const char *prefix)
{
    const size_t length = strlen(prefix);
    return !strncmp(text, prefix, length) && text[length] ? text + length : NULL;
}

/* For when all is well: of what is not, one line is said and no other. */
static void add_remark(void *context, const char *line)
{
    cli_replay *r = context;
    cli_growing_text_add(&r->remarks, line, strlen(line));
    cli_growing_text_add(&r->remarks, "\n", 1);
}

static void remark(cli_replay *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void remark(cli_replay *r, const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    add_remark(r, line);
}

static bool open_trace(cli_replay *r, const char *path)
{
    if (cli_open_trace_saying(&r->trace, path, add_remark, r) != CLI_EXIT_OK) return false;
    if (r->trace.kind == COT_TRACE_TOKENS) return true;
    cli_complain("'%s' has counts, no token's routing", path);
    return false;
}

/* The whole number that begins `text`, and what follows it. */
static const char *whole(int64_t *n, const char *text, int64_t most)
{
    char *end;
    errno = 0;
    *n = strtoll(text, &end, 10);
    return end == text || errno || *n < 0 || *n > most ? NULL : end;
}

/* A and B of --trace-layers A:B. */
static bool parse_layers(int64_t *from, int64_t *to, const char *text)
{
    const char *rest = whole(from, text, INT32_MAX);
    rest = rest && *rest == ':' ? whole(to, rest + 1, INT32_MAX) : NULL;
    return rest && !*rest && *from < *to;
}

/* 0: all. */
static bool parse_prompt(int64_t *tokens, const char *text)
{
    *tokens = 0;
    if (!strcmp(text, "all")) return true;
    const char *rest = whole(tokens, text, INT32_MAX);
    return rest && !*rest && *tokens > 0;
}

static bool parse_rate(double *rate, const char *text)
{
    char *end;
    *rate = strtod(text, &end);
    return end != text && !*end && *rate >= 0 && *rate <= 1; // not a number is neither
}

static bool cut_layers(cli_replay *r, const cli_replay_settings *s)
{
    int64_t from = 0, to = r->trace.n_layers;
    if (s->trace_layers) parse_layers(&from, &to, s->trace_layers);
    if (to > r->trace.n_layers) {
        cli_complain("--trace-layers takes A:B with 0 <= A < B <= %d, not '%s'", (int)r->trace.n_layers,
                     s->trace_layers);
        return false;
    }
    r->first_layer = (int32_t)from;
    r->layers = (int32_t)(to - from);
    return true;
}

/* Which sequences the tables learnt from; `*known` is empty where they learnt from another trace. */
static bool find_known(uint8_t **known, cli_replay *r, const char *tables, const char *trace)
{
    cot_predictor *predictor;
    cot_error error;
    *known = NULL;
    if (cot_predictor_open(&predictor, tables, &error) != COT_OK) {
        cli_complain_of(&error);
        return false;
    }
    cot_predictor_info info;
    cot_predictor_describe(&info, predictor);
    bool good = true;
    if (info.trace_hash != cot_trace_hash(&r->trace))
        remark(r, "note: '%s' learnt from another trace than '%s'", tables, trace);
    else if (!info.chosen) {
        cli_complain("'%s' learnt from all of '%s': nothing is left to replay (coterie group --split)",
                     tables, trace);
        good = false;
    } else if ((*known = malloc((size_t)info.n_sequences + 1)))
        memcpy(*known, info.chosen, (size_t)info.n_sequences);
    else
        cli_complain("out of memory");
    cot_predictor_close(predictor);
    return good && (info.trace_hash != cot_trace_hash(&r->trace) || *known);
}

/* Nothing is told of how well ids are foretold that nobody knows. */
static bool has_unknown(const cot_eval_sequence *s)
{
    for (int64_t t = 1; t < s->tokens; t++)
        if (s->ids[t] < 0) return true;
    return false;
}

enum { NAME_BYTES = 24 };

static bool list_sequences(cli_replay *r, int64_t prompt, const uint8_t *known)
{
    const cot_trace *t = &r->trace;
    const size_t n = (size_t)t->n_sequences;
    r->sequences = calloc(n + 1, sizeof *r->sequences);
    r->names = malloc((n + 1) * NAME_BYTES);
    if (!r->sequences || !r->names) {
        cli_complain("out of memory for %zu sequences", n);
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        const int64_t begin = t->sequence_offsets[i], tokens = t->sequence_offsets[i + 1] - begin;
        if (tokens && known && known[i]) r->learnt++;
        if (!tokens || (known && known[i])) continue;
        char *name = r->names + r->count * NAME_BYTES;
        snprintf(name, NAME_BYTES, "%zu", i);
        cot_eval_sequence *s = &r->sequences[r->count++];
        *s = (cot_eval_sequence){.name = name,
                                 .ids = t->token_ids + begin,
                                 .tokens = tokens,
                                 .prefill_tokens = prompt && prompt < tokens ? prompt : tokens,
                                 .recorded = (int32_t)i};
        if (has_unknown(s)) s->unscored = tokens - 1;
    }
    if (!r->count && r->learnt)
        cli_complain("no sequence is left to replay: the tables learnt from all %zu that hold tokens",
                     r->learnt);
    else if (!r->count)
        cli_complain("'%s' holds no tokens to replay", r->routing.name);
    return r->count > 0;
}

static int64_t highest_id(const cot_trace *t)
{
    int64_t most = 0;
    for (int64_t i = 0; i < t->n_tokens; i++)
        if (t->token_ids[i] > most) most = t->token_ids[i];
    return most;
}

static bool make_shape(cli_replay *r, const cli_replay_settings *s)
{
    enum { MOST_IDS = 1 << 24 };
    cli_model_shape_wanted wanted = {0};
    if (r->recorded) {
        const int64_t highest = highest_id(&r->trace);
        if (highest >= MOST_IDS) {
            cli_complain("'%s' has token id %" PRId64 ", a --shape has ids below %d", r->routing.name,
                         highest, MOST_IDS);
            return false;
        }
        wanted = (cli_model_shape_wanted){r->layers, r->trace.n_experts, r->trace.top_k, highest + 1};
    }
    return cli_model_shape_make(&r->shape, s->shape, &wanted);
}

static bool open_recorded(cli_replay *r, const cli_replay_settings *s, const cli_engine_settings *engine,
                          const char *path)
{
    int64_t prompt;
    parse_prompt(&prompt, s->prompt_tokens);
    r->recorded = true;
    if (!open_trace(r, path) || !cut_layers(r, s)) return false;
    r->routing = (cot_engine_routing){
        .trace = &r->trace, .name = path, .first_layer = r->first_layer, .cut = s->trace_layers || s->shape};
    uint8_t *known = NULL;
    const bool good =
        (!engine->options.experts.tables || find_known(&known, r, engine->options.experts.tables, path)) &&
        list_sequences(r, prompt, known);
    free(known);
    if (good && r->count < (size_t)r->trace.n_sequences)
        remark(r, "note: %zu of %" PRId64 " sequences are replayed%s", r->count, r->trace.n_sequences,
               r->learnt ? ": the tables learnt from the others" : ": the others are empty");
    return good;
}

bool cli_replay_open(cli_replay *r, const cli_replay_settings *s, const cli_engine_settings *engine)
{
    *r = (cli_replay){0};
    const char *path = s->routing ? after(s->routing, "trace:") : NULL,
               *rate = s->routing ? after(s->routing, "lar:") : NULL;
    const bool good = !path || open_recorded(r, s, engine, path);
    r->drawn = rate && parse_rate(&r->routing.lar, rate);
    if (!good || !s->shape) return good;
    if (!make_shape(r, s)) return false;
    cli_engine_needs needs = {.shape = &r->shape};
    const int32_t layers = cli_engine_options_of(engine, &needs).experts.layers;
    if (layers < r->shape.layers)
        remark(r, "note: %" PRId64 " layers share the experts of %d", r->shape.layers, (int)layers);
    return true;
}

void cli_replay_close(cli_replay *r)
{
    cot_trace_close(&r->trace);
    cli_model_shape_free(&r->shape);
    free(r->sequences);
    free(r->names);
    free(r->remarks.text);
    *r = (cli_replay){0};
}

void cli_replay_need(cli_engine_needs *needs, const cli_replay *r)
{
    if (r->drawn || r->recorded) needs->routing = &r->routing;
    if (r->shape.config) needs->shape = &r->shape;
    needs->seed = 1;
    needs->remarks = r->remarks.text;
}

bool cli_replay_is_of_trace(const cli_replay_settings *s)
{
    return s->routing && after(s->routing, "trace:");
}

/* Whether all that is written is something to replay. */
static bool check_routing(const cli_replay_settings *s)
{
    const char *rate = s->routing ? after(s->routing, "lar:") : NULL;
    const bool traced = cli_replay_is_of_trace(s);
    int64_t a, b;
    double x;
    if (s->routing && !rate && !traced)
        cli_complain("--routing takes trace:FILE or lar:X, not '%s'", s->routing);
    else if (rate && !parse_rate(&x, rate))
        cli_complain("--routing lar:X takes X from 0 to 1, not '%s'", rate);
    else if (s->trace_layers && !traced)
        cli_complain("--trace-layers needs --routing trace:FILE");
    else if (s->trace_layers && !s->shape)
        cli_complain("--trace-layers needs --shape: a model has layers of its own");
    else if (s->trace_layers && !parse_layers(&a, &b, s->trace_layers))
        cli_complain("--trace-layers takes A:B with 0 <= A < B, not '%s'", s->trace_layers);
    else if (!parse_prompt(&a, s->prompt_tokens))
        cli_complain("--prompt-tokens takes a number from 1 on, or all, not '%s'", s->prompt_tokens);
    else
        return true;
    return false;
}

bool cli_replay_check(const cli_replay_settings *s, const char *model, bool traced)
{
    if (s->shape && !traced) {
        cli_complain("--shape needs --routing trace:FILE: there are no texts for random models");
        return false;
    }
    if (!model == !s->shape) {
        cli_complain(model ? "give a MODEL or --shape, not both" : "give a MODEL or --shape");
        return false;
    }
    return (!s->shape || cli_model_shape_exists(s->shape)) && check_routing(s);
}
