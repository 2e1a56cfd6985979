/* `coterie <command>`: what a command is, and the frame that finds, explains and runs it. */
#ifndef COT_CLI_COMMAND_H
#define COT_CLI_COMMAND_H
#include "options.h"
#include "coterie/status.h"

enum { COT_EXIT_OK = 0, COT_EXIT_FAILURE = 1, COT_EXIT_USAGE = 2 };

typedef struct cot_command {
    const char *name;            // one word, or two ("trace info")
    const char *summary;         // one sentence, lowercase, no full stop
    const char *details;         // a paragraph for the help, or NULL
    const char *const *examples; // command lines; NULL ends
    cot_options options;
    size_t settings_bytes;            // size of the struct that the options fill
    int (*run)(const void *settings); // returns a COT_EXIT_ value; data to stdout, talk to stderr
} cot_command;

/* The program: finds the command in `commands` (NULL ends), or answers help and --version, and returns the
 * exit status. Output that cannot be written turns success into failure, with one line. */
int cot_command_main(const cot_command *const *commands, int argc, char **argv);

/* Writes the line "coterie: ..." on stderr, with control characters replaced by '?'. Returns
 * COT_EXIT_FAILURE. */
int cot_complain(const char *format, ...) __attribute__((format(printf, 1, 2), cold));
/* The same for an error of the library. */
int cot_complain_of(const cot_error *error);

/* Writes the lines of the library's notes on a model on stderr, warnings as those of cot_complain. NULL: nothing. */
void cot_tell_notes(const char *notes);

/* Whether this process is a rank of a group that the command will open with others, which oshrun has started beside it; and
 * one that is not its first, which alone reads standard input and writes: what others have to complain of it tells. */
bool cot_is_rank(void);
bool cot_is_other_rank(void);
/* Where a group of several hosts was opened, a note of what carries its messages. */
void cot_note_carriers(void);

/* Whether the command's name is two words, of which `family` is the first. */
bool cot_command_is_of(const cot_command *command, const char *family);

/* These write to stdout; the last one, of a family without commands, nothing: it returns false. */
void cot_help_overview(const cot_command *const *commands);
void cot_help_command(const cot_command *command);
bool cot_help_family(const cot_command *const *commands, const char *family);

/* Prints `text` word by word in lines of 90 columns, the first from `column` on; later lines begin at `indent`, those after a
 * line break too. Ends the last line. */
void cot_print_wrapped(const char *text, int column, int indent);

/* What stands after an option's name, " FILE" or "[=FILE]"; and what help says of it: "ranks of the group (1 to 64;
 * default 1)". Both end with 0 and are cut off where `bytes` are too few. */
void cot_help_option_value(char *text, size_t bytes, const cot_option *row);
void cot_help_option_text(char *text, size_t bytes, const cot_option *row);

/* Which of `names` (NULL ends) was probably meant by `word`; NULL when none is near. */
const char *cot_nearest(const char *word, const char *const *names);

#endif
