/* Help, made from the tables that the parser reads. */
#include "cli/frame/command.h"
#include "cli/frame/terminal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 90, HELP_COLUMN = 30 };

void cli_print_wrapped(const char *text, int column, int indent)
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
    cli_print_wrapped(text, HELP_COLUMN, HELP_COLUMN);
}

void cli_help_option_value(char *text, size_t bytes, const cli_option *row)
{
    const bool optional = row->kind == CLI_OPTION_OPTIONAL_TEXT;
    snprintf(text, bytes, "%s%s%s",
             optional                       ? "[="
             : row->kind == CLI_OPTION_FLAG ? ""
                                            : " ",
             row->argument ? row->argument : "", optional ? "]" : "");
}

void cli_help_option_text(char *text, size_t bytes, const cli_option *row)
{
    char range[256] = "";
    if (row->kind == CLI_OPTION_INTEGER) {
        if (row->most != INT64_MAX)
            snprintf(range, sizeof range, "%" PRId64 " to %" PRId64, row->least, row->most);
        else if (row->least != INT64_MIN)
            snprintf(range, sizeof range, "at least %" PRId64, row->least);
    } else if (row->kind == CLI_OPTION_REAL) {
        if (!isinf(row->max))
            snprintf(range, sizeof range, "%g to %g", row->min, row->max);
        else if (!isinf(row->min))
            snprintf(range, sizeof range, "at least %g", row->min);
    } else if (row->kind == CLI_OPTION_CHOICE) {
        for (int i = 0; row->choices[i]; i++) {
            size_t used = strlen(range);
            snprintf(range + used, sizeof range - used, "%s%s", i ? ", " : "", row->choices[i]);
        }
    } else if (row->kind == CLI_OPTION_LIST) {
        snprintf(range, sizeof range, "repeatable");
    }
    const char *open = *range || row->initial ? " (" : "", *between = *range && row->initial ? "; " : "";
    snprintf(text, bytes, "%s%s%s%s%s%s%s", row->help, open, range, between, row->initial ? "default " : "",
             row->initial ? row->initial : "", *open ? ")" : "");
}

static void print_option(const cli_option *row)
{
    char left[128], value[96], text[1024];
    cli_help_option_value(value, sizeof value, row);
    snprintf(left, sizeof left, "%c%c%s--%s%s", row->letter ? '-' : ' ', row->letter ? row->letter : ' ',
             row->letter ? ", " : "  ", row->name, value);
    cli_help_option_text(text, sizeof text, row);
    print_row(left, text);
}

void cli_help_command(const cli_command *command)
{
    const cli_option_group *group = command->options.groups;
    const cli_positional *positionals = command->options.positionals;
    cli_heading(stdout, "coterie %s", command->name);
    printf(": %s\n\n", command->summary);
    cli_heading(stdout, "usage:");
    printf(" coterie %s", command->name);
    for (const cli_positional *row = positionals; row && row->name; row++)
        printf(" %s%s%s%s", row->least ? "" : "[", row->name, row->most > 1 ? "..." : "",
               row->least ? "" : "]");
    puts(group ? " [options]" : "");
    if (command->details) {
        putchar('\n');
        cli_print_wrapped(command->details, 0, 0);
    }
    if (positionals && positionals->name) {
        cli_heading(stdout, "\narguments:\n");
        for (const cli_positional *row = positionals; row->name; row++) print_row(row->name, row->help);
    }
    for (; group && group->title; group++) {
        cli_heading(stdout, "\n%s:\n", group->title);
        for (const cli_option *row = group->options; row->name; row++) print_option(row);
    }
    if (command->examples) {
        cli_heading(stdout, "\nexamples:\n");
        for (const char *const *line = command->examples; *line; line++) printf("  %s\n", *line);
    }
}

bool cli_help_family(const cli_command *const *commands, const char *family)
{
    bool found = false;
    for (; *commands; commands++) {
        if (!cli_command_is_of(*commands, family)) continue;
        if (!found) {
            cli_heading(stdout, "usage:");
            printf(" coterie %s COMMAND [arguments] [options]\n"
                   "       coterie help %s COMMAND    what a command does and takes\n",
                   family, family);
            cli_heading(stdout, "\ncommands:\n");
        }
        printf("  %-20s%s\n", (*commands)->name + strlen(family) + 1, (*commands)->summary);
        found = true;
    }
    return found;
}

void cli_help_overview(const cli_command *const *commands)
{
    cli_heading(stdout, "coterie");
    puts(": runs Mixture-of-Experts language models over a group of ranks\n");
    cli_heading(stdout, "usage:");
    puts(" coterie COMMAND [arguments] [options]\n"
         "       coterie help COMMAND     what a command does and takes\n"
         "       coterie --version        the version");
    if (*commands) cli_heading(stdout, "\ncommands:\n");
    for (; *commands; commands++) printf("  %-20s%s\n", (*commands)->name, (*commands)->summary);
    puts("\nData goes to standard output, talk to standard error. Exit status: 0 done, 1 failed, 2 wrong "
         "usage.");
}
