/* `coterie eval`: teacher-forced losses, logits and routing. */
#include "cli/commands.h"
#include "cli/run/engine_settings.h"
#include "cli/frame/paths.h"
#include "cli/frame/progress.h"
#include "cli/run/replay.h"
#include "cli/run/stats.h"
#include "cli/frame/terminal.h"
#include "cli/run/windows.h"

#include "coterie/eval.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct eval_settings {
    cli_engine_settings engine;
    cli_replay_settings replay;
    const char *model, *tokens, *output, *compare;
    cli_list texts;
    int64_t prefix, window;
    bool json;
    cli_optional_text stats;
};

/* ---- results ---- */

static int64_t predictions_of(const cot_eval_sequence *s)
{
    return s->tokens - 1 - s->unscored;
}

/* A sequence's domain is what stands before its name's last dot. */
static size_t domain_length(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? (size_t)(dot - name) : 0;
}

static bool same_domain(const char *a, const char *b)
{
    size_t length = domain_length(a);
    return length == domain_length(b) && !strncmp(a, b, length);
}

/* The names that begin with a domain and a dot lie together, as names are sorted; those of a nested domain
 * (x.1.5, which is of x.1) may lie between the domain's own (x.1 and x.2). */
static bool in_domain_or_nested(const char *domain, size_t length, const char *name)
{
    return !strncmp(domain, name, length) && name[length] == '.';
}

static void print_domain(const cot_eval_sequence *s, const double *nats, size_t first, size_t count)
{
    const char *name = s[first].name;
    size_t length = domain_length(name), members = 0, with = 0;
    double sum = 0;
    for (size_t i = first; i < count && in_domain_or_nested(name, length, s[i].name); i++) {
        if (!same_domain(name, s[i].name)) continue;
        members++;
        if (predictions_of(&s[i]) < 1) continue; // nothing to predict
        sum += nats[i];
        with++;
    }
    if (members > 1 && with)
        printf("%-24.*s %8zu sequences %10.4f\n", (int)length, name, with, sum / (double)with);
}

static void print_domains(const cot_eval_sequence *s, const double *nats, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t length = domain_length(s[i].name), before = i;
        while (before > 0 && in_domain_or_nested(s[i].name, length, s[before - 1].name) &&
               !same_domain(s[i].name, s[before - 1].name))
            before--;
        bool first = !before || !in_domain_or_nested(s[i].name, length, s[before - 1].name);
        if (length && first) print_domain(s, nats, i, count);
    }
}

static double overall(const cot_eval_sequence *s, const double *nats, size_t count, int64_t *predictions)
{
    double sum = 0;
    *predictions = 0;
    for (size_t i = 0; i < count; i++) {
        sum += nats[i] * (double)predictions_of(&s[i]);
        *predictions += predictions_of(&s[i]);
    }
    return *predictions ? sum / (double)*predictions : 0;
}

static void print_table(const cot_eval_sequence *s, const double *nats, size_t count)
{
    int64_t predictions, tokens = 0;
    double all = overall(s, nats, count, &predictions);
    for (size_t i = 0; i < count; i++) tokens += s[i].tokens;
    cli_heading(stdout, "%-24s %8s %20s\n", "sequence", "tokens", "nats a token");
    for (size_t i = 0; i < count; i++)
        if (predictions_of(&s[i]) > 0)
            printf("%-24s %8lld %20.4f\n", s[i].name, (long long)s[i].tokens, nats[i]);
        else
            printf("%-24s %8lld %20s\n", s[i].name, (long long)s[i].tokens, "-");
    print_domains(s, nats, count);
    if (predictions)
        printf("%-24s %8lld %20.4f\n", "all", (long long)tokens, all);
    else
        printf("%-24s %8lld %20s\n", "all", (long long)tokens, "-");
}

/* A mean over no predictions is null. */
static json_t *mean_json(int64_t predictions, double nats)
{
    return predictions > 0 ? json_real(nats) : json_null();
}

static bool print_json(const cot_eval_sequence *s, const double *nats, size_t count)
{
    json_t *each = json_object();
    int64_t predictions;
    double all = overall(s, nats, count, &predictions);
    bool good = true;
    for (size_t i = 0; i < count && good; i++) {
        good = json_object_set_new(each, s[i].name,
                                   json_pack("{s:I, s:o}", "tokens", (json_int_t)s[i].tokens, "nats",
                                             mean_json(predictions_of(&s[i]), nats[i]))) == 0;
        if (!good) cli_complain("'%s' is not UTF-8, which JSON needs", s[i].name);
    }
    json_t *o = json_pack("{s:o, s:{s:I, s:o}}", "sequences", each, "all", "predictions",
                          (json_int_t)predictions, "nats", mean_json(predictions, all));
    if (good) {
        json_dumpf(o, stdout, JSON_INDENT(1));
        printf("\n");
    }
    json_decref(o);
    return good;
}

/* ---- two models ---- */

static void add_difference(cot_eval_difference *sum, const cot_eval_difference *d, double weight)
{
    sum->nats += weight * d->nats;
    sum->other_nats += weight * d->other_nats;
    sum->kl += weight * d->kl;
    sum->same_tokens += weight * d->same_tokens;
    sum->same_experts += weight * d->same_experts;
}

static void print_difference(const char *name, int length, const cot_eval_difference *d)
{
    printf("%-24.*s %10.4f %10.4f %+10.4f %10.5f %9.2f %% %9.2f %%\n", length, name, d->nats, d->other_nats,
           d->nats - d->other_nats, d->kl, 100 * d->same_tokens, 100 * d->same_experts);
}

/* A line for each domain, the mean of its sequences, which lie together; one for a sequence without a domain. */
static void print_differences(const cot_eval_sequence *s, const cot_eval_difference *d, size_t count)
{
    cot_eval_difference all = {0};
    cli_heading(stdout, "%-24s %10s %10s %10s %10s %11s %11s\n", "domain", "nats", "other", "more", "KL",
                "same token", "same expert");
    for (size_t i = 0, next; i < count; i = next) {
        const size_t length = domain_length(s[i].name);
        cot_eval_difference sum = {0};
        for (next = i + 1; length && next < count && same_domain(s[i].name, s[next].name);) next++;
        for (size_t j = i; j < next; j++) add_difference(&sum, &d[j], 1 / (double)(next - i));
        for (size_t j = i; j < next; j++) add_difference(&all, &d[j], 1 / (double)count);
        print_difference(s[i].name, length ? (int)length : (int)strlen(s[i].name), &sum);
    }
    print_difference("all", 3, &all);
}

/* Beside the model of `compare`, whose weights stay as stored. */
static bool compare(const struct eval_settings *s, cot_engine *engine, const cli_engine_needs *needs,
                    const cot_eval_sequence *sequences, size_t count)
{
    cli_engine_settings settings = s->engine;
    settings.options.weights.networks = settings.options.weights.attention = settings.options.weights.head =
        NULL;
    cot_engine *other = NULL;
    cot_error error;
    cot_eval_difference *differences = calloc(count + 1, sizeof *differences);
    if (!differences) cli_complain("out of memory");
    bool good = differences && cli_engine_open(&other, s->compare, &settings, needs);
    if (good && cot_eval_compare(engine, other, sequences, count, differences, &error) != COT_OK) {
        cli_complain_of(&error);
        good = false;
    }
    if (good) print_differences(sequences, differences, count);
    cot_engine_close(other);
    free(differences);
    return good && cli_show_stats(engine, s->stats);
}

/* ---- the command ---- */

static bool evaluate(const struct eval_settings *s, cot_engine *engine, const cot_eval_sequence *sequences,
                     size_t count)
{
    cli_routing_recorder recorder;
    cot_error error;
    double *nats = calloc(count + 1, sizeof *nats);
    if (!nats) cli_complain("out of memory");
    bool good = nats && cli_routing_recorder_open(&recorder, s->engine.save_routing,
                                                  s->model ? s->model : s->replay.shape, engine);
    if (good) {
        cli_progress progress = {"evaluating", 0};
        cli_progress_show(&progress, 0, 0);
        good = cot_eval_run(engine, sequences, count, s->output, nats, cli_routing_recorder_take, &recorder,
                            &error) == COT_OK;
        cli_progress_end(&progress);
        if (!good) cli_complain_of(&error);
        good = cli_routing_recorder_finish(&recorder, good) && good;
    }
    if (good && s->json)
        good = print_json(sequences, nats, count);
    else if (good)
        print_table(sequences, nats, count);
    free(nats);
    return good && cli_show_stats(engine, s->stats);
}

static bool eval_sequences(const struct eval_settings *s, const cli_replay *r,
                           const cot_eval_sequence *sequences, size_t count)
{
    cli_engine_needs needs = {.kv_tokens = cli_kv_tokens_of(sequences, count),
                              .sequences = count,
                              .capture_routing = s->output || s->compare};
    cot_engine *engine = NULL;
    cli_replay_need(&needs, r);
    const bool good =
        cli_engine_open(&engine, s->model, &s->engine, &needs) &&
        (s->compare ? compare(s, engine, &needs, sequences, count) : evaluate(s, engine, sequences, count));
    cot_engine_close(engine);
    return good;
}

static bool eval_tokens(const struct eval_settings *s, const cli_replay *r)
{
    cot_eval_set *set;
    cot_error error;
    size_t count;
    if (cot_eval_set_open(&set, s->tokens, &error) != COT_OK) {
        cli_complain_of(&error);
        return false;
    }
    const cot_eval_sequence *sequences = cot_eval_set_sequences(set, &count);
    const bool good = eval_sequences(s, r, sequences, count);
    cot_eval_set_close(set);
    return good;
}

/* As the options say; a text is cut once the engine's context is known. */
static bool cut(const struct eval_settings *s, cli_text_windows *windows, int64_t context)
{
    int64_t most = s->prefix < 0 ? context : context - 1;
    if (s->window > most) {
        cli_complain("--window %lld: the context of %lld tokens allows %lld%s", (long long)s->window,
                     (long long)context, (long long)most, s->prefix < 0 ? "" : " beside the first token");
        return false;
    }
    int64_t length = s->window ? s->window : most;
    return s->prefix < 0 ? cli_text_windows_cut(windows, length) : cli_text_windows_roll(windows, length);
}

static bool eval_texts(const struct eval_settings *s, const cli_replay *r)
{
    cli_text_windows windows = {0};
    cot_engine *engine = NULL;
    bool good = cli_text_windows_read(&windows, s->model, s->texts, s->prefix);
    cli_engine_needs needs = cli_text_windows_need(&windows, &s->engine);
    needs.capture_routing = s->output || s->compare;
    cli_replay_need(&needs, r);
    good = good && cli_engine_open(&engine, s->model, &s->engine, &needs) &&
           cut(s, &windows, cot_engine_describe(engine)->context_tokens) &&
           (s->compare ? compare(s, engine, &needs, windows.sequences, windows.count)
                       : evaluate(s, engine, windows.sequences, windows.count));
    cli_text_windows_free(&windows);
    cot_engine_close(engine);
    return good;
}

static int eval(const void *settings)
{
    const struct eval_settings *s = settings;
    const bool traced = cli_replay_is_of_trace(&s->replay);
    if ((s->tokens != NULL) + (s->texts.count > 0) + traced != 1) {
        cli_complain("give one of --tokens FILE.safetensors, --text FILE and --routing trace:FILE");
        return CLI_EXIT_USAGE;
    }
    if (!cli_replay_check(&s->replay, s->model, traced)) return CLI_EXIT_USAGE;
    if (s->compare && (traced || s->json || s->output || s->engine.save_routing)) {
        cli_complain("--compare is for --tokens and --text, without --json, --output and --save-routing");
        return CLI_EXIT_USAGE;
    }
    if (!s->texts.count && (s->prefix >= 0 || s->window)) {
        cli_complain("--prefix-token and --window are for --text");
        return CLI_EXIT_USAGE;
    }
    if ((s->model && !cli_check_model(s->model)) || (s->compare && !cli_check_model(s->compare)) ||
        !cli_check_output(s->output, "the losses") ||
        !cli_check_output(s->engine.save_routing, "the losses") ||
        !cli_check_output(s->stats.text, "the losses"))
        return CLI_EXIT_FAILURE;
    cli_replay r;
    const bool good =
        cli_replay_open(&r, &s->replay, &s->engine) && (traced ? eval_sequences(s, &r, r.sequences, r.count)
                                                        : s->tokens ? eval_tokens(s, &r)
                                                                    : eval_texts(s, &r));
    cli_replay_close(&r);
    return good ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}

#define AT(field) offsetof(struct eval_settings, field)
static const cli_option eval_options[] = {
    {"tokens", 0, CLI_OPTION_TEXT, "FILE.safetensors", NULL,
     "token sequences: ids.NAME, optionally prefill_tokens.NAME", AT(tokens)},
    {"text", 0, CLI_OPTION_LIST, "FILE", NULL, "text, cut into windows of the context", AT(texts)},
    {"window", 0, CLI_OPTION_INTEGER, "N", NULL, "cut texts into windows of N tokens instead", AT(window),
     .least = 1, .most = INT32_MAX},
    {"prefix-token", 0, CLI_OPTION_INTEGER, "ID", "-1",
     "put ID before each text, and predict every token of the text once, N in a window (one less than the "
     "context), each "
     "window beginning with the token before: as lm-eval's rolling log-likelihoods (-1: none)",
     AT(prefix), .least = -1, .most = INT32_MAX},
    {"output", 'o', CLI_OPTION_TEXT, "OUT.safetensors", NULL,
     "write logits.NAME, experts.NAME.LAYER, weights.NAME.LAYER", AT(output)},
    {"compare", 0, CLI_OPTION_TEXT, "MODEL2", NULL,
     "say by domain how the model differs from MODEL2, whose weights stay as stored: losses, KL divergence "
     "of the next token, "
     "shares of equal most likely tokens and of equal experts; both are in memory, and --tables and "
     "--placement are those of both",
     AT(compare)},
    {"json", 0, CLI_OPTION_FLAG, NULL, NULL, "print the losses as JSON", AT(json)},
    {"stats", 0, CLI_OPTION_OPTIONAL_TEXT, "FILE.json", NULL,
     "show bytes, messages, locality and speed on standard error, or write them to a file", AT(stats)},
    {0}};

const cli_command cli_cmd_eval = {
    .name = "eval",
    .summary = "measure a model's loss on given tokens, and write its logits and routing",
    .details =
        "Each sequence is fed as it is given: its prompt at once, the rest a token at a time, and every "
        "token's logits are "
        "kept. Losses are the mean negative log-likelihood of a sequence's predictions, in nats a token.",
    .examples =
        (const char *const[]){
            "coterie eval models/tiny --tokens models/tiny/heldout.safetensors",
            "coterie eval MODEL --tokens ids.safetensors -o logits.safetensors --precision fp32",
            "coterie eval MODEL --text book.txt --ranks 4",
            "coterie eval models/tiny --tokens models/tiny/heldout.safetensors --weights int4 --compare "
            "models/tiny",
            NULL},
    .options = {.groups =
                    (const cli_option_group[]){{"Options", eval_options, 0},
                                               {"Replayed routing", cli_replay_option_rows, AT(replay)},
                                               {"Group of ranks", cli_replaying_option_rows, AT(engine)},
                                               {"Routing", cli_routing_option_rows, AT(engine)},
                                               {0}},
                .positionals =
                    (const cli_positional[]){{"MODEL", 0, 1, "a model folder, or a GGUF file", AT(model)},
                                             {0}}},
    .settings_bytes = sizeof(struct eval_settings),
    .run = eval};
