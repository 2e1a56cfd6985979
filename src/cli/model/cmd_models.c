/* coterie models: the architectures that this build runs. */
#include "cli/commands.h"
#include "coterie/model.h"

#include <jansson.h>
#include <stddef.h>
#include <stdio.h>

typedef struct settings {
    bool json;
} settings;

static int run(const void *context)
{
    const settings *s = context;
    if (!s->json) {
        for (const cot_architecture *a = cot_architectures(); a->name; a++)
            printf("%-34s %-22s %s\n", a->name, a->tested, a->description);
        return CLI_EXIT_OK;
    }
    json_t *list = json_array();
    for (const cot_architecture *a = cot_architectures(); a->name; a++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:s}", "name", a->name, "description",
                                              a->description, "tested", a->tested));
    int failed = json_dumpf(list, stdout, JSON_INDENT(2));
    json_decref(list);
    printf("\n");
    return failed ? CLI_EXIT_FAILURE : CLI_EXIT_OK;
}

static const cli_option options[] = {
    {"json", 0, CLI_OPTION_FLAG, NULL, NULL, "Write a JSON list instead of a table.",
     offsetof(settings, json)},
    {0},
};
static const cli_option_group groups[] = {{"Output", options, 0}, {0}};

static const char *const examples[] = {"coterie models", "coterie models --json", NULL};

const cli_command cli_cmd_models = {
    .name = "models",
    .summary = "list the architectures that this build runs",
    .details = "An architecture is what the first entry of \"architectures\" in a model's config.json names. "
               "Beside it stands what it\n"
               "is tested with: a small checkpoint, or that and the same in GGUF, of which others computed "
               "the logits.",
    .examples = examples,
    .options = {groups, NULL},
    .settings_bytes = sizeof(settings),
    .run = run,
};
