/* `coterie <command>`: what a command is, and the frame that finds, explains and runs it. */
#ifndef COT_CLI_FRAME_COMMAND_H
#define COT_CLI_FRAME_COMMAND_H
#include "cli/frame/options.h"
#include "coterie/status.h"

enum { CLI_EXIT_OK = 0, CLI_EXIT_FAILURE = 1, CLI_EXIT_USAGE = 2 };

typedef struct cli_command {
    const char *name;            // one word, or two ("trace info")
    const char *summary;         // one sentence, lowercase, no full stop
    const char *details;         // a paragraph for the help, or NULL
    const char *const *examples; // command lines; NULL ends
    cli_options options;
    size_t settings_bytes;            // size of the struct that the options fill
    int (*run)(const void *settings); // returns a CLI_EXIT_ value; data to stdout, talk to stderr
    /* Before that, and before ranks are started: what rows alone cannot say. False after a line on stderr, for wrong usage. NULL: nothing. */
    bool (*check)(const void *settings);
} cli_command;

/* The program: finds the command in `commands` (NULL ends), or answers help and --version, and returns the
 * exit status. Output that cannot be written turns success into failure, with one line. */
int cli_command_main(const cli_command *const *commands, int argc, char **argv);

/* Writes the line "coterie: ..." on stderr, with control characters replaced by '?'. Returns
 * CLI_EXIT_FAILURE. */
int cli_complain(const char *format, ...) __attribute__((format(printf, 1, 2), cold));
/* The same for an error of the library. */
int cli_complain_of(const cot_error *error);

/* Writes the lines of the library's notes on a model on stderr, warnings as those of cli_complain. NULL: nothing. */
void cli_tell_notes(const char *notes);

/* Whether this process is a rank of a group that the command will open with others, which oshrun has started beside it; and
 * one that is not its first, which alone reads standard input and writes: what others have to complain of it tells. */
bool cli_is_rank(void);
bool cli_is_other_rank(void);
/* Where a group of several hosts was opened, a note of what carries its messages. */
void cli_note_carriers(void);

/* Whether the command's name is two words, of which `family` is the first. */
bool cli_command_is_of(const cli_command *command, const char *family);

/* These write to stdout; the last one, of a family without commands, nothing: it returns false. */
void cli_help_overview(const cli_command *const *commands);
void cli_help_command(const cli_command *command);
bool cli_help_family(const cli_command *const *commands, const char *family);

/* Prints `text` word by word in lines of 90 columns, the first from `column` on; later lines begin at `indent`, those after a
 * line break too. Ends the last line. */
void cli_print_wrapped(const char *text, int column, int indent);

/* What stands after an option's name, " FILE" or "[=FILE]"; and what help says of it: "ranks of the group (1 to 64;
 * default 1)". Both end with 0 and are cut off where `bytes` are too few. */
void cli_help_option_value(char *text, size_t bytes, const cli_option *row);
void cli_help_option_text(char *text, size_t bytes, const cli_option *row);

/* Which of `names` (NULL ends) was probably meant by `word`; NULL when none is near. */
const char *cli_nearest(const char *word, const char *const *names);

#endif
