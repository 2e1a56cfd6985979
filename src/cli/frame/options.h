/* Options as data: a command describes what it takes in tables; parsing, checking and help all read the same
 * rows. */
#ifndef COT_CLI_FRAME_OPTIONS_H
#define COT_CLI_FRAME_OPTIONS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC diagnostic ignored                                                                               \
    "-Wmissing-field-initializers" // rows leave out the fields that their kind does not use

/* What an option takes, and the type of the field it fills. */
typedef enum cli_option_kind {
    CLI_OPTION_FLAG,    // bool: true once given
    CLI_OPTION_INTEGER, // int64_t in [least, most]
    CLI_OPTION_REAL,    // double in [min, max]
    CLI_OPTION_TEXT,    // const char *
    CLI_OPTION_CHOICE,  // int: index into `choices`
    CLI_OPTION_LIST,    // cli_list: may be given several times; rows with one offset share one list, in order
    CLI_OPTION_OPTIONAL_TEXT, // cli_optional_text: `--stats` or `--stats=FILE`
} cli_option_kind;

typedef struct cli_option {
    const char *name; // without the dashes
    char letter;      // short form, or 0
    cli_option_kind kind;
    const char *argument; // what help calls the value; NULL for a flag
    const char *initial;  // parsed as if given, and shown as the default; NULL leaves the field all zero
    const char *help;     // one sentence, with the unit
    size_t offset;        // of the field in the settings
    union {
        struct {
            int64_t least, most;
        };
        struct {
            double min, max;
        };
        const char *const *choices; // NULL ends
    };
    const char *otherwise; // of a CHOICE: what to do for what it does not take; NULL: nothing to say
    bool narrow;           // of an INTEGER: the field is an int32_t
    bool word;             // of a CHOICE: the field is a const char *, the choice itself
    double
        scale; // of a REAL: the field is an int64_t, so many of which make one; below 0 it is -1. 0: a double
} cli_option;

typedef struct cli_list {
    struct cli_list_item {
        const char *text;
        const cli_option *option; // the row that it came through; NULL for a positional argument
    } * items;
    size_t count;
} cli_list;

typedef struct cli_optional_text {
    bool given;
    const char *text; // NULL when given without a value
} cli_optional_text;

/* Rows under one title in the help. A table of common options serves several commands: its rows' offsets
 * count from `offset` in the settings. */
typedef struct cli_option_group {
    const char *title;
    const cli_option *options; // a row without a name ends
    size_t offset;
} cli_option_group;

/* Arguments without dashes, in order. The field is a const char * when most is 1 (NULL when absent), else a
 * cli_list. */
typedef struct cli_positional {
    const char *name;
    int least, most;
    const char *help;
    size_t offset;
    const char *const *choices; // what it may be, NULL ends; NULL: anything
} cli_positional;

/* Everything that one command accepts. */
typedef struct cli_options {
    const cli_option_group *groups;    // a group without a title ends; NULL when the command takes no options
    const cli_positional *positionals; // one without a name ends; NULL when it takes none
    size_t given; // of a cli_list in the settings: the rows that were given, each once; 0: nobody asks
} cli_options;

/* Fills `settings` (all zero at the start) from the initial values, then from argv[0..argc): `--opt value`,
 * `--opt=value`, `-o value` or `-ovalue`; letters of flags may be joined; after `--` all is positional. Returns false
 * after writing one line on stderr that names the option, its value and what it accepts. `*help` becomes true when
 * --help or -h comes first; nothing else is checked then. Texts point into argv; the caller calls cli_options_free
 * either way. */
bool cli_options_parse(const cli_options *options, void *settings, int argc, char **argv, bool *help);
/* Whether the row of that name is in a list of those that were given (cli_options.given). */
bool cli_options_has(const cli_list *given, const char *name);
/* Frees the lists in `settings`. */
void cli_options_free(const cli_options *options, void *settings);

#endif
