#include "cli/frame/terminal.h"

#include "coterie/started.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool cli_terminal(FILE *file)
{
    const char *kind = getenv("TERM");
    const bool of_starter =
        cot_launch_started().ranks > 0; // whose own, which it passes on from, may be a file
    return !of_starter && isatty(fileno(file)) && kind && *kind && strcmp(kind, "dumb") != 0;
}

const char *cli_colour_on(FILE *file, cli_colour colour)
{
    static const char *const sequences[] = {"\033[0m", "\033[1m", "\033[33m"};
    const char *unwanted = getenv("NO_COLOR");
    return (unwanted && *unwanted) || !cli_terminal(file) ? "" : sequences[colour];
}

void cli_heading(FILE *file, const char *format, ...)
{
    va_list args;
    fputs(cli_colour_on(file, CLI_COLOUR_BOLD), file);
    va_start(args, format);
    vfprintf(file, format, args);
    va_end(args);
    fputs(cli_colour_on(file, CLI_COLOUR_NONE), file);
}
