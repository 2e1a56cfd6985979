/* `coterie convert`: a model's folder again, in few bits, or the folder of a GGUF file. */
#include "cli/commands.h"
#include "cli/frame/paths.h"
#include "cli/frame/progress.h"

#include "coterie/model.h"

#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

struct convert_settings {
    const char *model, *output;
    int weights, weights_attention, weights_head;
    int64_t threads;
};

static const char *const kinds[] = {"auto", "as-stored", "int4", "int8", "mxfp4", "bf16", NULL};
static const char *const dense_kinds[] = {"auto", "as-stored", "int8", "int4", "mxfp4", "bf16", NULL};

static volatile sig_atomic_t asked; // the signal that asks to end, or 0

static void ask_to_end(int number)
{
    asked = number;
}

static bool show(void *context, size_t done, size_t total)
{
    cli_progress_show(context, done, total);
    return !asked;
}

/* The half of a folder goes before the program does. */
static void listen(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction action;
        sigaction(signals[i], NULL, &action);
        if (action.sa_handler == SIG_IGN) continue; // nohup
        action = (struct sigaction){.sa_handler = ask_to_end, .sa_flags = SA_RESTART};
        sigaction(signals[i], &action, NULL);
    }
}

static void tell_written(const char *folder)
{
    DIR *list = opendir(folder);
    int64_t bytes = 0, files = 0;
    for (const struct dirent *entry; list && (entry = readdir(list));) {
        char path[PATH_MAX];
        struct stat file;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (stat(path, &file) || !S_ISREG(file.st_mode)) continue;
        bytes += file.st_size;
        files++;
    }
    if (list) closedir(list);
    cli_complain("wrote %lld files, %.1f MB, to '%s'", (long long)files, (double)bytes / 1e6, folder);
}

static int convert(const void *settings)
{
    const struct convert_settings *s = settings;
    if (!s->output) {
        cli_complain("give -o FOLDER");
        return CLI_EXIT_USAGE;
    }
    if (!cli_check_model(s->model)) return CLI_EXIT_FAILURE;
    cot_model_convert_options options;
    cli_progress progress = {"converting", 0};
    char *notes = NULL;
    cot_error error;
    cot_model_convert_options_init(&options);
    options.weights = s->weights ? kinds[s->weights] : NULL;
    options.weights_attention = s->weights_attention ? dense_kinds[s->weights_attention] : NULL;
    options.weights_head = s->weights_head ? dense_kinds[s->weights_head] : NULL;
    options.threads = (int)s->threads;
    options.progress = show;
    options.progress_context = &progress;
    listen();
    const cot_status status = cot_model_convert(s->model, s->output, &options, &notes, &error);
    cli_progress_end(&progress);
    if (status != COT_OK && asked) {
        signal(asked, SIG_DFL);
        raise(asked);
    }
    if (status != COT_OK) return cli_complain_of(&error);
    cli_tell_notes(notes);
    free(notes);
    tell_written(s->output);
    return CLI_EXIT_OK;
}

#define AT(field) offsetof(struct convert_settings, field)
const cli_command cli_cmd_convert = {
    .name = "convert",
    .summary = "write a model again in few bits, or a GGUF file as a folder",
    .details =
        "Matrices of experts, of dense networks and shared experts, of attention and the head are rounded, "
        "as "
        "--weights, --weights-attention and --weights-head of other commands round them while they are "
        "loaded: running the new folder gives the same to the bit as a run with the same of each. It is in "
        "the hub's layouts, which other programs read: compressed-tensors' pack-quantized and "
        "mxfp4-pack-quantized, or gpt-oss's own, which has experts in mxfp4 alone: there attention and head "
        "stay as stored, and so does everywhere a head that is the embedding.\n\n"
        "Readers that widen a model while they load it take one kind for all that is no expert's: "
        "attention's. Dense networks and shared experts are of --weights if attention is too, or stays as "
        "stored; else they stay, which a note says.\n\n"
        "Files of the tokenizer, templates, code and licences come along. Other matrices that the files have "
        "in few bits become fp32, or bf16 if they are of dense networks, attention or the head; tensors that "
        "no layer of the model uses are left out.\n\n"
        "Of a GGUF file a folder is written with the file's own numbers: config.json, tokenizer.json, "
        "tokenizer_config.json with chat templates, and weights, which stay bf16 or fp32, or int4, int8 and "
        "mxfp4 where the file's type is one of these in groups of 32; other types become fp32, which is "
        "exact "
        "and large (--weights bf16 halves it, and rounds). Given int4, int8 or mxfp4 rounds as above.\n\n"
        "FOLDER appears whole or not at all: until then it is called FOLDER and a dot and six "
        "letters, which only a "
        "program that is killed without a word leaves behind.",
    .examples = (const char *const[]){"coterie convert models/tiny -o tiny-int4",
                                      "coterie convert models/tiny -o tiny-int8 --weights int8", NULL},
    .options =
        {.positionals =
             (const cli_positional[]){
                 {"MODEL", 1, 1, "a model folder, or a GGUF file (the first of its parts)", AT(model)}, {0}},
         .groups =
             (const cli_option_group[]){
                 {"Options",
                  (const cli_option[]){
                      {"output", 'o', CLI_OPTION_TEXT, "FOLDER", NULL, "the folder to make", AT(output)},
                      {"weights", 0, CLI_OPTION_CHOICE, "TYPE", "auto",
                       "what experts' weights, and dense networks', become: int4, int8 or mxfp4 in 4.5, 8 or "
                       "4.25 bits each, of a GGUF file as-stored or bf16, too; auto: int4, of a GGUF file "
                       "as-stored",
                       AT(weights), .choices = kinds},
                      {"weights-attention", 0, CLI_OPTION_CHOICE, "TYPE", "auto",
                       "what attention's matrices become; auto: int8 if the layout has that, of a GGUF file "
                       "as experts where those stay or become bf16",
                       AT(weights_attention), .choices = dense_kinds},
                      {"weights-head", 0, CLI_OPTION_CHOICE, "TYPE", "auto",
                       "the same of the head; auto: as-stored, for engines do not read it otherwise; bf16 "
                       "where experts of a GGUF file become that",
                       AT(weights_head), .choices = dense_kinds},
                      {"threads", 't', CLI_OPTION_INTEGER, "N", "0", "threads (0: as many as cores)",
                       AT(threads), .least = 0, .most = 1024},
                      {0}}},
                 {0}}},
    .settings_bytes = sizeof(struct convert_settings),
    .run = convert};
