/* `coterie info`: this machine and this build, or a model on it. */
#include "cli/commands.h"
#include "cli/model/info_model.h"

#include "coterie/engine.h"
#include "coterie/roof.h"
#include "coterie/tokenizer.h"
#include "coterie/version.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

struct info_settings {
    const char *model;
    int64_t ranks;
    bool json;
};

/* A line, or a member of the JSON. */
static void put(json_t *json, const char *name, const char *value)
{
    if (json)
        json_object_set_new(json, name, json_string(value));
    else
        printf("%-12s%s\n", name, value);
}

/* A line that tells `text`, or a member `key` of the JSON that tells `value`. */
static void put_number(json_t *json, const char *name, const char *key, json_int_t value, const char *text)
{
    if (json)
        json_object_set_new(json, key, json_integer(value));
    else
        put(NULL, name, text);
}

static void put_names(json_t *json, const char *name, const char *const *names)
{
    char all[512] = "";
    json_t *list = json_array();
    for (int i = 0; names[i]; i++) {
        const size_t used = strlen(all);
        snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", names[i]);
        json_array_append_new(list, json_string(names[i]));
    }
    if (json)
        json_object_set(json, name, list);
    else
        put(NULL, name, all);
    json_decref(list);
}

static int machine(bool as_json)
{
    json_t *json = as_json ? json_object() : NULL;
    char text[512];
    put(json, "version", cot_version());
    put(json, "cpu", cot_cpu_name());
    const int cores = cot_cores();
    snprintf(text, sizeof text, "%d", cores);
    put_number(json, "cores", "cores", cores, text);
    const double cache = (double)cot_last_level_cache_bytes();
    snprintf(text, sizeof text, "%.1f MiB", cache / (1 << 20));
    put_number(json, "last cache", "last_cache_bytes", (json_int_t)cache, text);
    put_names(json, "isa", cot_isa_names());
    put_names(json, "operators", cot_engine_operators());
    cot_engine_describe_cuda(text, sizeof text);
    put(json, "cuda", text);
    put_names(json, "phases", cot_engine_phases());
    cot_tokenizer_libraries(text, sizeof text);
    put(json, "tokenizer", text);
    put_names(json, "fabrics", cot_engine_fabrics());
    if (!json) return CLI_EXIT_OK;
    json_dumpf(json, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(json);
    return CLI_EXIT_OK;
}

static int info(const void *settings)
{
    const struct info_settings *s = settings;
    if (s->model) return cli_info_model(s->model, (int)s->ranks, s->json);
    if (!s->ranks) return machine(s->json);
    cli_complain("--ranks is of a MODEL, which is missing");
    return CLI_EXIT_USAGE;
}

#define AT(field) offsetof(struct info_settings, field)
const cli_command cli_cmd_info = {
    .name = "info",
    .summary = "show what this machine can use, or what a model is and whether it fits",
    .details =
        "Without MODEL, instruction sets are listed best first; the first is what runs unless --isa caps it. "
        "The "
        "first operator is the default of --op, the first fabric that of --fabric. Tokenizers cut and "
        "compose text by the tables of the "
        "libraries "
        "shown: a character newer than their Unicode is no letter to them, so that text with it may be cut "
        "otherwise than the model's own tokenizer cuts it.\n\n"
        "Of MODEL the configuration and the tokenizer are read, and no weights: they need not be there. "
        "Sizes are "
        "those of the packed weights. Shared is what every rank reads whole, kept once on a host; a rank is "
        "what "
        "the rank with most of the others, experts and attention's heads, holds besides. In all are weights, "
        "KV "
        "cache for a sequence of the whole context, the states of layers that have some in place of keys, "
        "of as many sequences and snapshots as serve has, and buffers: it fits where that is available now. "
        "A "
        "model of "
        "a long context takes less with shorter sequences.",
    .examples = (const char *const[]){"coterie info", "coterie info models/tiny",
                                      "coterie info MODEL --ranks 16 --json", NULL},
    .options = {.positionals =
                    (const cli_positional[]){{"MODEL", 0, 1, "a model folder, or a GGUF file", AT(model)},
                                             {0}},
                .groups =
                    (const cli_option_group[]){
                        {"Options", (const cli_option[]){{"ranks", 'r', CLI_OPTION_INTEGER, "P", NULL,
                                                          "sizes on so many ranks instead of 1, 2, 4 and 8",
                                                          AT(ranks), .least = 1, .most = 64},
                                                         {"json", 0, CLI_OPTION_FLAG, NULL,
                                                          NULL, "print JSON", AT(json)},
                                                         {0}}},
                        {0}}},
    .settings_bytes = sizeof(struct info_settings),
    .run = info};
