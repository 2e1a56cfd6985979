#include "cli/model/info_model.h"

#include "cli/frame/command.h"
#include "cli/run/engine_settings.h"
#include "cli/frame/terminal.h"
#include "coterie/engine.h"
#include "coterie/model.h"
#include "coterie/tokenizer.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

static const int usual_ranks[] = {1, 2, 4, 8};
enum { PRECISIONS = 3, USUAL_RANKS = 4, SERVED_BLOCK_TOKENS = 16, SERVED_SEQUENCES = 64 };

/* A model's sizes for every precision and number of ranks that are asked for. */
struct sizes {
    int counts, ranks[USUAL_RANKS];
    cot_engine_sizes of[PRECISIONS * USUAL_RANKS]; // [PRECISIONS][counts]
};

/* For one sequence; where layers have states, which each sequence has from the beginning, for those of `serve`, with the snapshots that it keeps. */
static cot_status measure(struct sizes *sizes, const char *model, int ranks, cot_error *error)
{
    cot_engine_options options[PRECISIONS * USUAL_RANKS];
    const int counts = sizes->counts = ranks ? 1 : USUAL_RANKS;
    for (int r = 0; r < counts; r++) sizes->ranks[r] = ranks ? ranks : usual_ranks[r];
    for (int i = 0; i < PRECISIONS * counts; i++) {
        cot_engine_options_init(&options[i]);
        options[i].batch.sequences = 1;
        options[i].weights.precision = cli_weights_precision_words[i / counts];
        options[i].group.ranks = sizes->ranks[i % counts];
    }
    cot_status status = cot_engine_measure(sizes->of, model, options, (size_t)(PRECISIONS * counts), error);
    if (status != COT_OK || !sizes->of->state_bytes) return status;
    for (int i = 0; i < PRECISIONS * counts; i++) {
        options[i].batch.sequences = SERVED_SEQUENCES;
        options[i].memory.block_tokens = SERVED_BLOCK_TOKENS;
    }
    return cot_engine_measure(sizes->of, model, options, (size_t)(PRECISIONS * counts), error);
}

static bool fits(const cot_engine_sizes *sizes)
{
    return sizes->total_bytes <= sizes->available_bytes;
}

static json_t *bytes_or_null(size_t bytes)
{
    return bytes == SIZE_MAX ? json_null() : json_integer((json_int_t)bytes);
}

/* NULL where there are no files of weights. */
static json_t *json_of_files(const cot_model_files *files)
{
    if (!files->bytes) return json_null();
    json_t *types = json_array();
    for (size_t t = 0; t < files->type_count; t++) {
        const cot_model_type *type = &files->types[t];
        json_array_append_new(types, json_pack("{s:s, s:I, s:s?}", "type", type->name, "bytes",
                                               (json_int_t)type->bytes, "memory", type->memory));
    }
    return json_pack("{s:s, s:s?, s:I, s:I, s:o}", "format", files->gguf ? "gguf" : "safetensors", "name",
                     *files->name ? files->name : NULL, "files", (json_int_t)files->files, "bytes",
                     (json_int_t)files->bytes, "types", types);
}

static void print_files(const cot_model_files *files)
{
    if (!files->bytes) return;
    if (*files->name) printf("name          %s\n", files->name);
    printf("stored as     ");
    for (size_t t = 0; t < files->type_count; t++) {
        const cot_model_type *type = &files->types[t];
        printf("%s%s %.1f %%", t ? ", " : "", type->name, 100 * (double)type->bytes / (double)files->bytes);
        if (type->memory) printf(" (kept: %s)", type->memory);
    }
    printf("; %.3f GB in %zu %s file%s\n", (double)files->bytes / 1e9, files->files,
           files->gguf ? "GGUF" : "safetensors", files->files == 1 ? "" : "s");
}

static int print_json(const cot_model_info *m, const cot_model_files *files, const cot_tokenizer *tokenizer,
                      const struct sizes *sizes)
{
    json_t *rows = json_array();
    for (int p = 0; p < PRECISIONS; p++)
        for (int r = 0; r < sizes->counts; r++) {
            const cot_engine_sizes *s = &sizes->of[p * sizes->counts + r];
            json_array_append_new(
                rows,
                json_pack("{s:s, s:s, s:s, s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b}", "precision",
                          cli_weights_precision_words[p], "weights", s->weights, "weights_attention",
                          s->weights_attention, "weights_head", s->weights_head, "ranks", sizes->ranks[r],
                          "weight_bytes", (json_int_t)s->weight_bytes, "shared_bytes",
                          (json_int_t)s->shared_bytes, "rank_bytes", (json_int_t)s->rank_bytes, "state_bytes",
                          (json_int_t)s->state_bytes, "snapshots", (json_int_t)s->snapshots, "states_bytes",
                          (json_int_t)s->states_bytes, "total_bytes", (json_int_t)s->total_bytes, "fits",
                          fits(s)));
        }
    json_t *o = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s?, s:o, s:o, s:o, s:o}",
        "architecture", m->architecture, "parameters", (json_int_t)m->parameters, "active_parameters",
        (json_int_t)m->active_parameters, "layers", (json_int_t)m->layers, "moe_layers",
        (json_int_t)m->moe_layers, "experts", (json_int_t)m->experts, "top_k", (json_int_t)m->top_k, "hidden",
        (json_int_t)m->hidden, "heads", (json_int_t)m->heads, "kv_heads", (json_int_t)m->kv_heads, "vocab",
        (json_int_t)m->vocab, "context_tokens", (json_int_t)m->context_tokens, "context_field",
        m->context_field, "tokenizer_tokens",
        tokenizer ? json_integer((json_int_t)cot_tokenizer_size(tokenizer)) : json_null(), "available_bytes",
        bytes_or_null(sizes->of[0].available_bytes), "stored", json_of_files(files), "sizes", rows);
    if (!o) return cli_complain("out of memory");
    json_dumpf(o, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(o);
    return CLI_EXIT_OK;
}

/* "6.92 G" */
static void print_count(int64_t count)
{
    static const char units[] = " kMGT";
    double value = (double)count;
    int unit = 0;
    for (; value >= 1000 && units[unit + 1]; unit++) value /= 1000;
    printf("%.3g%s%.1s", value, unit ? " " : "", unit ? &units[unit] : "");
}

static void print_text(const cot_model_info *m, const cot_model_files *files, const cot_tokenizer *tokenizer,
                       const struct sizes *sizes)
{
    printf("architecture  %s\nparameters    ", m->architecture);
    print_count(m->parameters);
    printf(", of which a token uses ");
    print_count(m->active_parameters);
    printf("\nlayers        %" PRId64 ", of which %" PRId64 " have experts: %" PRId64 " each, %" PRId64
           " a token\n",
           m->layers, m->moe_layers, m->experts, m->top_k);
    printf("hidden        %" PRId64 ", %" PRId64 " query heads, %" PRId64 " KV heads\n", m->hidden, m->heads,
           m->kv_heads);
    printf("context       %" PRId64 " tokens", m->context_tokens);
    if (m->context_field) printf(", cut at its '%s'", m->context_field);
    putchar('\n');
    printf("vocabulary    %" PRId64 ", ", m->vocab);
    if (tokenizer)
        printf("tokenizer of %zu tokens\n", cot_tokenizer_size(tokenizer));
    else
        printf("no tokenizer.json\n");
    print_files(files);
    const cot_engine_sizes *first = sizes->of;
    if (first->state_bytes)
        printf("states        %.2f MB a sequence and a snapshot, of which serve has %d (--max-num-seqs) and "
               "%" PRId64 " (--state-snapshots): %.3f GB\n",
               (double)first->state_bytes / 1e6, SERVED_SEQUENCES, first->snapshots,
               (double)first->state_bytes * (double)(SERVED_SEQUENCES + first->snapshots) / 1e9);
    const size_t available = sizes->of[0].available_bytes;
    if (available != SIZE_MAX) printf("memory        %.2f GB are available now\n", (double)available / 1e9);
    cli_heading(
        stdout,
        "\nprecision  experts  attention  head   ranks  weights GB  shared GB  a rank GB  in all GB  fits\n");
    for (int p = 0; p < PRECISIONS; p++)
        for (int r = 0; r < sizes->counts; r++) {
            const cot_engine_sizes *s = &sizes->of[p * sizes->counts + r];
            printf("%-9s  %-7s  %-9s  %-5s  %5d  %10.3f  %9.3f  %9.3f  %9.3f  %s\n",
                   cli_weights_precision_words[p], s->weights, s->weights_attention, s->weights_head,
                   sizes->ranks[r], (double)s->weight_bytes / 1e9, (double)s->shared_bytes / 1e9,
                   (double)s->rank_bytes / 1e9, (double)s->total_bytes / 1e9, fits(s) ? "yes" : "no");
        }
}

int cli_info_model(const char *model, int ranks, bool json)
{
    cot_model_info info = {0};
    cot_model_files files = {0};
    cot_tokenizer *tokenizer = NULL;
    struct sizes sizes;
    cot_error error;
    cot_status status = cot_model_describe(&info, model, &error);
    if (status == COT_OK && cot_model_describe_files(&files, model, NULL) != COT_OK)
        files = (cot_model_files){0}; // weights need not be there
    if (status == COT_OK) status = measure(&sizes, model, ranks, &error);
    if (status == COT_OK) {
        status = cot_tokenizer_open(&tokenizer, model, &error);
        if (status == COT_NOT_FOUND) status = COT_OK; // it is told
    }
    int result = CLI_EXIT_OK;
    if (status != COT_OK)
        result = cli_complain_of(&error);
    else if (json)
        result = print_json(&info, &files, tokenizer, &sizes);
    else
        print_text(&info, &files, tokenizer, &sizes);
    cot_tokenizer_close(tokenizer);
    cot_model_info_clear(&info);
    return result;
}
