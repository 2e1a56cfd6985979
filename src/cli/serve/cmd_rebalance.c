/* `coterie rebalance`: a server looks now whether its experts should move. */
#include "cli/commands.h"

#include "coterie/client.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

struct rebalance_settings {
    const char *url;
    bool dry;
};

static double microseconds(const json_t *of, const char *name)
{
    return json_number_value(json_object_get(of, name)) * 1e6;
}

static long long whole(const json_t *of, const char *name)
{
    return json_integer_value(json_object_get(of, name));
}

static const char *text(const json_t *of, const char *name)
{
    const char *value = json_string_value(json_object_get(of, name));
    return value ? value : "?";
}

static void print_cycle(const json_t *cycle)
{
    const json_t *row;
    size_t i;
    printf("%6s  %6s  %12s  %12s  %s\n", "layer", "moves", "us a step", "with moves", "");
    json_array_foreach(json_object_get(cycle, "layers"), i, row)
        printf("%6lld  %6lld  %12.2f  %12.2f  %s\n", whole(row, "layer"), whole(row, "moves"),
               microseconds(row, "before_seconds"), microseconds(row, "after_seconds"), text(row, "reason"));
    json_array_foreach(json_object_get(cycle, "changes"), i, row)
        printf("%s: expert %lld of layer %lld, rank %lld\n", text(row, "action"), whole(row, "expert"),
               whole(row, "layer"), whole(row, "rank"));
    printf("experts take %.2f us of a step; %lld copies and %lld drops save %.2f us\n",
           microseconds(cycle, "step_seconds"), whole(cycle, "copies"), whole(cycle, "drops"),
           microseconds(cycle, "saving_seconds"));
    if (json_is_integer(json_object_get(cycle, "id")))
        printf("experts move: GET /rebalance/%lld says how far\n", whole(cycle, "id"));
}

static bool ask(cot_client *client, bool dry, cot_error *error)
{
    char *body;
    size_t bytes;
    if (cot_client_call(client, "/rebalance", dry ? "{\"dry_run\": true}" : "{\"dry_run\": false}", &body,
                        &bytes, error) != COT_OK)
        return false;
    json_t *cycle = json_loadb(body, bytes, 0, NULL);
    free(body);
    const bool good = json_is_array(json_object_get(cycle, "layers"));
    if (good)
        print_cycle(cycle);
    else
        *error = (cot_error){COT_MALFORMED, "the server's answer tells of no layers"};
    json_decref(cycle);
    return good;
}

static int run_command(const void *settings)
{
    const struct rebalance_settings *s = settings;
    const char *key = getenv("COTERIE_API_KEY");
    cot_client *client;
    cot_error error;
    signal(SIGPIPE, SIG_IGN);
    const bool good = cot_client_open(&client, s->url, key && *key ? key : NULL, &error) == COT_OK &&
                      ask(client, s->dry, &error);
    if (!good) cli_complain_of(&error);
    cot_client_close(client);
    return good ? CLI_EXIT_OK : CLI_EXIT_FAILURE;
}

#define AT(field) offsetof(struct rebalance_settings, field)
static const cli_option options[] = {
    {"dry-run", 0, CLI_OPTION_FLAG, NULL, NULL, "only say what would move", AT(dry)}, {0}};

const cli_command cli_cmd_rebalance = {
    .name = "rebalance",
    .summary = "have a server move experts to where steps take less",
    .details = "The server, one of coterie serve --rebalance, looks now and not only when its interval is "
               "over, and is asked with the "
               "key in COTERIE_API_KEY where that is set. It tells of each layer what experts take of a "
               "step, by the costs that it has "
               "seen, with the moves that it makes, or why it makes none.",
    .examples = (const char *const[]){"coterie rebalance http://localhost:8000 --dry-run",
                                      "coterie rebalance http://localhost:8000", NULL},
    .options = {.groups = (const cli_option_group[]){{"Options", options, 0}, {0}},
                .positionals = (const cli_positional[]){{"URL", 1, 1, "a server", AT(url)}, {0}}},
    .settings_bytes = sizeof(struct rebalance_settings),
    .run = run_command};
