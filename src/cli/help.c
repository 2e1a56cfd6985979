/* Help, made from the tables that the parser reads. */
#include "command.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 90, HELP_COLUMN = 30 };

/* Prints `text` word by word from `column` on; later lines begin at `indent`, those after a line break too. */
static void print_wrapped(const char *text, int column, int indent)
{
    bool first = true;
    while (*text) {
        if (*text == '\n') {
            printf("\n%*s", text[1] == '\n' ? 0 : indent, "");
            text++;
            column = indent;
            first = true;
            continue;
        }
        size_t word = strcspn(text, " \n");
        if (!first && column + 1 + (int)word > WIDTH) {
            printf("\n%*s", indent, "");
            column = indent;
            first = true;
        }
        column += printf("%s%.*s", first ? "" : " ", (int)word, text);
        first = false;
        text += word;
        text += strspn(text, " ");
    }
    putchar('\n');
}

static void print_row(const char *left, const char *text)
{
    int column = printf("  %s", left);
    if (column > HELP_COLUMN - 2) {
        putchar('\n');
        column = 0;
    }
    printf("%*s", HELP_COLUMN - column, "");
    print_wrapped(text, HELP_COLUMN, HELP_COLUMN);
}

/* "help text (1 to 64; default 1)" */
static void print_option(const cot_option *row)
{
    char left[128], text[1024], range[256] = "";
    const char *value = row->argument ? row->argument : "";
    snprintf(left, sizeof left, "%c%c%s--%s%s%s%s", row->letter ? '-' : ' ', row->letter ? row->letter : ' ',
             row->letter ? ", " : "  ", row->name,
             row->kind == COT_OPTION_OPTIONAL_TEXT ? "[="
             : row->kind == COT_OPTION_FLAG        ? ""
                                                   : " ",
             value, row->kind == COT_OPTION_OPTIONAL_TEXT ? "]" : "");
    if (row->kind == COT_OPTION_INTEGER) {
        if (row->most != INT64_MAX)
            snprintf(range, sizeof range, "%" PRId64 " to %" PRId64, row->least, row->most);
        else if (row->least != INT64_MIN)
            snprintf(range, sizeof range, "at least %" PRId64, row->least);
    } else if (row->kind == COT_OPTION_REAL) {
        if (!isinf(row->max))
            snprintf(range, sizeof range, "%g to %g", row->min, row->max);
        else if (!isinf(row->min))
            snprintf(range, sizeof range, "at least %g", row->min);
    } else if (row->kind == COT_OPTION_CHOICE) {
        for (int i = 0; row->choices[i]; i++) {
            size_t used = strlen(range);
            snprintf(range + used, sizeof range - used, "%s%s", i ? ", " : "", row->choices[i]);
        }
    } else if (row->kind == COT_OPTION_LIST) {
        snprintf(range, sizeof range, "repeatable");
    }
    const char *open = *range || row->initial ? " (" : "", *between = *range && row->initial ? "; " : "";
    snprintf(text, sizeof text, "%s%s%s%s%s%s%s", row->help, open, range, between,
             row->initial ? "default " : "", row->initial ? row->initial : "", *open ? ")" : "");
    print_row(left, text);
}

void cot_help_command(const cot_command *command)
{
    const cot_option_group *group = command->options.groups;
    const cot_positional *positionals = command->options.positionals;
    printf("coterie %s: %s\n\nusage: coterie %s", command->name, command->summary, command->name);
    for (const cot_positional *row = positionals; row && row->name; row++)
        printf(" %s%s%s%s", row->least ? "" : "[", row->name, row->most > 1 ? "..." : "",
               row->least ? "" : "]");
    puts(group ? " [options]" : "");
    if (command->details) {
        putchar('\n');
        print_wrapped(command->details, 0, 0);
    }
    if (positionals && positionals->name) {
        puts("\narguments:");
        for (const cot_positional *row = positionals; row->name; row++) print_row(row->name, row->help);
    }
    for (; group && group->title; group++) {
        printf("\n%s:\n", group->title);
        for (const cot_option *row = group->options; row->name; row++) print_option(row);
    }
    if (command->examples) {
        puts("\nexamples:");
        for (const char *const *line = command->examples; *line; line++) printf("  %s\n", *line);
    }
}

void cot_help_overview(const cot_command *const *commands)
{
    puts("coterie: runs Mixture-of-Experts language models over a group of ranks\n\n"
         "usage: coterie COMMAND [arguments] [options]\n"
         "       coterie help COMMAND     what a command does and takes\n"
         "       coterie --version        the version");
    if (*commands) puts("\ncommands:");
    for (; *commands; commands++) printf("  %-20s%s\n", (*commands)->name, (*commands)->summary);
    puts("\nData goes to standard output, talk to standard error. Exit status: 0 done, 1 failed, 2 wrong "
         "usage.");
}
