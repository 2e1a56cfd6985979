/* `coterie completions`: what a shell needs to complete commands, options and their values, made from the tables that
 * the parser reads. */
#include "cli/commands.h"

#include <stdio.h>
#include <string.h>

struct completions_settings {
    const char *shell;
};

static bool takes_text(const cli_option *row)
{
    return row->kind == CLI_OPTION_TEXT || row->kind == CLI_OPTION_LIST ||
           row->kind == CLI_OPTION_OPTIONAL_TEXT;
}

static int words(const char *name)
{
    return strchr(name, ' ') ? 2 : 1;
}

/* Whether no command before this one has the same first word, which is `*length` bytes long. */
static bool is_first_of_word(const cli_command *const *command, size_t *length)
{
    *length = strcspn((*command)->name, " ");
    for (const cli_command *const *other = cli_commands; other < command; other++)
        if (strcspn((*other)->name, " ") == *length && !strncmp((*other)->name, (*command)->name, *length))
            return false;
    return true;
}

static bool has_family(const char *word, size_t length)
{
    char family[64];
    snprintf(family, sizeof family, "%.*s", (int)length, word);
    for (const cli_command *const *command = cli_commands; *command; command++)
        if (cli_command_is_of(*command, family)) return true;
    return false;
}

static void put_words(const char *const *choices)
{
    for (int i = 0; choices[i]; i++) printf("%s%s", i ? " " : "", choices[i]);
}

static void put_first_words(void (*put)(const cli_command *command, size_t length))
{
    size_t length;
    for (const cli_command *const *command = cli_commands; *command; command++)
        if (is_first_of_word(command, &length)) put(*command, length);
}

/* ---- bash: which words and whether files may come next, chosen by the command and by the word before */

static void bash_first_word(const cli_command *command, size_t length)
{
    printf("%.*s ", (int)length, command->name);
}

static void bash_family(const cli_command *command, size_t length)
{
    if (!has_family(command->name, length)) return;
    printf("    %.*s) words='", (int)length, command->name);
    for (const cli_command *const *other = cli_commands; *other; other++)
        if (!strncmp((*other)->name, command->name, length) && (*other)->name[length] == ' ')
            printf("%s ", (*other)->name + length + 1);
    puts("' ;;");
}

static void bash_option(const cli_option *row)
{
    if (row->kind == CLI_OPTION_FLAG) return;
    printf("        --%s", row->name);
    if (row->letter) printf(" | -%c", row->letter);
    fputs(row->kind == CLI_OPTION_OPTIONAL_TEXT ? ") [[ $joined ]] && " : ") ", stdout);
    printf("options= files=%s", takes_text(row) ? "1" : "");
    if (row->kind == CLI_OPTION_CHOICE) {
        fputs(" words='", stdout);
        put_words(row->choices);
        putchar('\'');
    }
    puts(" ;;");
}

static void bash_command(const cli_command *command)
{
    const cli_option_group *group = command->options.groups;
    const cli_positional *positional = command->options.positionals;
    printf("    '%s%s)\n        options='--help", command->name, words(command->name) == 1 ? " '*" : "'");
    for (; group && group->title; group++)
        for (const cli_option *row = group->options; row->name; row++) printf(" --%s", row->name);
    puts("'");
    for (; positional && positional->name; positional++) {
        if (!positional->choices) {
            puts("        files=1");
            continue;
        }
        fputs("        words='", stdout);
        put_words(positional->choices);
        puts("'");
    }
    puts("        case $before in");
    for (group = command->options.groups; group && group->title; group++)
        for (const cli_option *row = group->options; row->name; row++) bash_option(row);
    puts("        esac\n"
         "        ;;");
}

static void bash(void)
{
    puts("# Completion for bash; made by coterie completions bash\n"
         "_coterie() {\n"
         "    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} joined= at=1\n"
         "    local words= options= files=\n"
         "    # --option=value arrives as three words.\n"
         "    if [[ $current == '=' ]]; then\n"
         "        current= joined=1\n"
         "    elif [[ $before == '=' ]]; then\n"
         "        before=${COMP_WORDS[COMP_CWORD - 2]} joined=1\n"
         "    fi\n"
         "    [[ ${COMP_WORDS[1]} == @(help|man) ]] && ((COMP_CWORD > 1)) && at=2\n"
         "    if ((COMP_CWORD == at + 1)); then\n"
         "    case ${COMP_WORDS[at]} in");
    put_first_words(bash_family);
    puts("    esac\n"
         "    fi");
    fputs("    if ((COMP_CWORD == at)); then\n"
          "        words='",
          stdout);
    put_first_words(bash_first_word);
    puts("help --help --version'\n"
         "    elif ((at == 1)); then\n"
         "    case \"${COMP_WORDS[1]} ${COMP_WORDS[2]}\" in");
    for (int count = 2; count > 0; count--) // "place convert" before all that begins with "place"
        for (const cli_command *const *command = cli_commands; *command; command++)
            if (words((*command)->name) == count) bash_command(*command);
    puts("    esac\n"
         "    fi\n"
         "    [[ $current == -* || ! $files$words ]] && words+=\" $options\"\n"
         "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
         "    if [[ $files ]] && ((${#COMPREPLY[@]} == 0)); then\n"
         "        compopt -o filenames 2>/dev/null\n"
         "        mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
         "    fi\n"
         "}\n"
         "complete -F _coterie coterie");
}

/* ---- zsh: specifications for _arguments */

/* Text within '...' and within a specification's brackets or colons. */
static void zsh_text(const char *text)
{
    for (; *text; text++) {
        if (*text == '\'') {
            fputs("'\\''", stdout);
            continue;
        }
        if (strchr("[]:\\", *text)) putchar('\\');
        putchar(*text);
    }
}

static void zsh_value(const char *name, const char *const *choices, bool files)
{
    putchar(':');
    zsh_text(name);
    putchar(':');
    if (choices) {
        putchar('(');
        put_words(choices);
        putchar(')');
    } else {
        fputs(files ? "_files" : " ", stdout);
    }
}

static void zsh_option(const cli_option *row)
{
    const char *joint = row->kind == CLI_OPTION_FLAG            ? ""
                        : row->kind == CLI_OPTION_OPTIONAL_TEXT ? "=-" // never the next word
                                                                : "=";
    for (int form = row->letter ? 0 : 1; form < 2; form++) { // its letter, its name
        fputs("            '", stdout);
        if (row->kind == CLI_OPTION_LIST)
            putchar('*');
        else if (row->letter)
            printf("(-%c --%s)", row->letter, row->name);
        if (form)
            printf("--%s%s[", row->name, joint);
        else
            printf("-%c%s[", row->letter, row->kind == CLI_OPTION_FLAG ? "" : "+");
        zsh_text(row->help);
        putchar(']');
        if (row->kind == CLI_OPTION_OPTIONAL_TEXT) putchar(':'); // the value may be absent
        if (row->kind != CLI_OPTION_FLAG)
            zsh_value(row->argument, row->kind == CLI_OPTION_CHOICE ? row->choices : NULL, takes_text(row));
        puts("' \\");
    }
}

static void zsh_command(const cli_command *command)
{
    const cli_option_group *group = command->options.groups;
    printf("    '%s%s)\n        shift %d words; ((CURRENT -= %d))\n        _arguments -s \\\n", command->name,
           words(command->name) == 1 ? " '*" : "'", words(command->name), words(command->name));
    for (; group && group->title; group++)
        for (const cli_option *row = group->options; row->name; row++) zsh_option(row);
    for (const cli_positional *row = command->options.positionals; row && row->name; row++) {
        fputs("            '", stdout);
        if (row->most > 1)
            putchar('*');
        else if (!row->least)
            putchar(':');
        zsh_value(row->name, row->choices, true);
        puts("' \\");
    }
    puts("            '(- *)'{-h,--help}'[what the command does and takes]'\n        ;;");
}

static void zsh_describe(const char *word, size_t length, const char *summary)
{
    printf("            '%.*s:", (int)length, word);
    zsh_text(summary);
    puts("'");
}

static void zsh_first_word(const cli_command *command, size_t length)
{
    char summary[256];
    bool alone = !command->name[length];
    snprintf(summary, sizeof summary, "%s", command->summary);
    for (const cli_command *const *other = cli_commands; *other && !alone; other++)
        if ((alone = strlen((*other)->name) == length && !strncmp((*other)->name, command->name, length)))
            snprintf(summary, sizeof summary, "%s", (*other)->summary);
    zsh_describe(command->name, length, alone ? summary : "a family of commands");
}

static void zsh_family(const cli_command *command, size_t length)
{
    if (!has_family(command->name, length)) return;
    printf("        %.*s) choices=(\n", (int)length, command->name);
    for (const cli_command *const *other = cli_commands; *other; other++)
        if (!strncmp((*other)->name, command->name, length) && (*other)->name[length] == ' ')
            zsh_describe((*other)->name + length + 1, strlen((*other)->name + length + 1), (*other)->summary);
    puts("        ) ;;");
}

static void zsh(void)
{
    puts("#compdef coterie\n"
         "# Completion for zsh; made by coterie completions zsh\n"
         "_coterie() {\n"
         "    local -a choices\n"
         "    local explained=\n"
         "    if [[ $words[2] == (help|man) ]] && ((CURRENT > 2)); then\n"
         "        shift words; ((CURRENT -= 1)); explained=1\n"
         "    fi\n"
         "    if ((CURRENT == 2)); then\n"
         "        choices=(");
    put_first_words(zsh_first_word);
    puts("            'help:what a command does and takes'\n"
         "        )\n"
         "        _describe command choices\n"
         "        [[ $words[2] == -* ]] && compadd -- --help --version\n"
         "        return\n"
         "    elif ((CURRENT == 3)); then\n"
         "        case $words[2] in");
    put_first_words(zsh_family);
    puts("        esac\n"
         "        ((${#choices})) && _describe command choices\n"
         "    fi\n"
         "    [[ $explained ]] && return\n"
         "    case \"$words[2] $words[3]\" in");
    for (int count = 2; count > 0; count--)
        for (const cli_command *const *command = cli_commands; *command; command++)
            if (words((*command)->name) == count) zsh_command(*command);
    puts("    esac\n"
         "}\n"
         "if [[ $funcstack[1] == _coterie ]]; then _coterie \"$@\"; else compdef _coterie coterie; fi");
}

static int completions(const void *settings)
{
    const struct completions_settings *s = settings;
    if (!strcmp(s->shell, "bash"))
        bash();
    else
        zsh();
    return CLI_EXIT_OK;
}

const cli_command cli_cmd_completions = {
    .name = "completions",
    .summary = "print what a shell needs to complete coterie's commands and options",
    .details = "An installed Coterie has these files where the shells look for them.",
    .examples = (const char *const[]){"source <(coterie completions bash)",
                                      "coterie completions zsh > ~/.zsh/completions/_coterie", NULL},
    .options = {.positionals = (const cli_positional[]){{"SHELL", 1, 1, "bash or zsh",
                                                         offsetof(struct completions_settings, shell),
                                                         (const char *const[]){"bash", "zsh", NULL}},
                                                        {0}}},
    .settings_bytes = sizeof(struct completions_settings),
    .run = completions};
