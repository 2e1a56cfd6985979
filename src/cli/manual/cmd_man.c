/* `coterie man`: a command's page of the manual, made from the tables that the parser reads. */
#include "cli/commands.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

struct man_settings {
    cli_list words;
};

/* Writes text so that roff takes no character of it for a request, a hyphen or a quotation mark; a line break begins a
 * paragraph. */
static void put_text(const char *text)
{
    bool line_start = true;
    for (; *text; text++) {
        if (line_start && (*text == '.' || *text == '\'')) fputs("\\&", stdout);
        line_start = *text == '\n';
        switch (*text) {
        case '\n':
            fputs("\n.PP\n", stdout);
            text += strspn(text, "\n") - 1;
            break;
        case '\\':
            fputs("\\e", stdout);
            break;
        case '-':
            fputs("\\-", stdout);
            break;
        case '^':
            fputs("\\(ha", stdout);
            break;
        case '~':
            fputs("\\(ti", stdout);
            break;
        case '\'':
            fputs("\\(aq", stdout);
            break;
        case '`':
            fputs("\\(ga", stdout);
            break;
        default:
            putchar(*text);
        }
    }
}

static void put_upper(const char *text)
{
    for (; *text; text++) putchar(toupper((unsigned char)*text));
}

/* "trace info" as a page is called: trace-info. */
static void put_page_name(const char *command)
{
    for (; *command; command++) fputs(*command == ' ' ? "\\-" : (char[]){*command, 0}, stdout);
}

/* .TH, and the NAME section, of coterie (`command` NULL) or of one of its commands. */
static void put_head(const char *command, const char *summary)
{
    fputs(".TH COTERIE", stdout);
    if (command) {
        char upper[64];
        snprintf(upper, sizeof upper, "-%s", command);
        for (char *c = upper; *c; c++) *c = *c == ' ' ? '-' : (char)toupper((unsigned char)*c);
        fputs(upper, stdout);
    }
    printf(" 1 \"\" \"coterie %s\" \"Coterie manual\"\n.SH NAME\ncoterie", COT_VERSION);
    if (command) {
        fputs("\\-", stdout);
        put_page_name(command);
    }
    fputs(" \\- ", stdout);
    put_text(summary);
    fputs("\n.SH SYNOPSIS\n", stdout);
}

static void put_option(const cli_option *row)
{
    char value[96], text[1024];
    cli_help_option_value(value, sizeof value, row);
    cli_help_option_text(text, sizeof text, row);
    fputs(".TP\n", stdout);
    if (row->letter) printf("\\fB\\-%c\\fR, ", row->letter);
    fputs("\\fB\\-\\-", stdout);
    put_text(row->name);
    fputs("\\fR", stdout);
    put_text(value);
    putchar('\n');
    put_text(text);
    putchar('\n');
}

static void put_command(const cli_command *command)
{
    put_head(command->name, command->summary);
    printf(".B coterie %s\n", command->name);
    for (const cli_positional *row = command->options.positionals; row && row->name; row++)
        printf("%s%s%s%s\n", row->least ? "" : "[", row->name, row->most > 1 ? "..." : "",
               row->least ? "" : "]");
    const cli_option_group *group = command->options.groups;
    if (group) puts("[options]");
    if (command->details) {
        puts(".SH DESCRIPTION");
        put_text(command->details);
        putchar('\n');
    }
    if (command->options.positionals) puts(".SH ARGUMENTS");
    for (const cli_positional *row = command->options.positionals; row && row->name; row++) {
        printf(".TP\n%s\n", row->name);
        put_text(row->help);
        putchar('\n');
    }
    for (; group && group->title; group++) {
        fputs(".SH \"", stdout);
        put_upper(group->title);
        puts("\"");
        for (const cli_option *row = group->options; row->name; row++) put_option(row);
    }
    if (command->examples) {
        puts(".SH EXAMPLES\n.nf");
        for (const char *const *line = command->examples; *line; line++) {
            put_text(*line);
            putchar('\n');
        }
        puts(".fi");
    }
    puts(".SH SEE ALSO\n.BR coterie (1)");
}

static void put_program(void)
{
    put_head(NULL, "run Mixture-of-Experts language models over a group of ranks");
    puts(".B coterie\nCOMMAND [arguments] [options]\n.SH COMMANDS");
    for (const cli_command *const *command = cli_commands; *command; command++) {
        fputs(".TP\n.BR coterie\\-", stdout);
        put_page_name((*command)->name);
        puts(" (1)");
        put_text((*command)->summary);
        putchar('\n');
    }
    puts(".SH EXIT STATUS\n0 done, 1 failed, 2 wrong usage. Data goes to standard output, talk to standard "
         "error.");
}

static int man(const void *settings)
{
    const struct man_settings *s = settings;
    char name[64] = "";
    for (size_t i = 0; i < s->words.count && strlen(name) < sizeof name - 1; i++) {
        size_t used = strlen(name);
        snprintf(name + used, sizeof name - used, "%s%s", i ? " " : "", s->words.items[i].text);
    }
    if (!*name) {
        put_program();
        return CLI_EXIT_OK;
    }
    for (const cli_command *const *command = cli_commands; *command; command++)
        if (!strcmp((*command)->name, name)) {
            put_command(*command);
            return CLI_EXIT_OK;
        }
    cli_complain("there is no command '%s' (see coterie --help)", name);
    return CLI_EXIT_USAGE;
}

const cli_command cli_cmd_man = {
    .name = "man",
    .summary = "print the manual page of coterie or of a command",
    .details =
        "The page is in the format that man and groff read; an installed Coterie has the pages where man "
        "finds them.",
    .examples = (const char *const[]){"coterie man run | man -l -",
                                      "coterie man trace info > coterie-trace-info.1", NULL},
    .options = {.positionals =
                    (const cli_positional[]){{"COMMAND", 0, 2,
                                              "a command, of one word or two; default: coterie itself",
                                              offsetof(struct man_settings, words)},
                                             {0}}},
    .settings_bytes = sizeof(struct man_settings),
    .run = man};
