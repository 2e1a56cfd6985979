#include "terminal.h"

#include "coterie/started.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool cot_terminal(FILE *file)
{
    const char *kind = getenv("TERM");
    const bool of_starter =
        cot_launch_started().ranks > 0; // whose own, which it passes on from, may be a file
    return !of_starter && isatty(fileno(file)) && kind && *kind && strcmp(kind, "dumb") != 0;
}

const char *cot_colour_on(FILE *file, cot_colour colour)
{
    static const char *const sequences[] = {"\033[0m", "\033[1m", "\033[33m"};
    const char *unwanted = getenv("NO_COLOR");
    return (unwanted && *unwanted) || !cot_terminal(file) ? "" : sequences[colour];
}

void cot_heading(FILE *file, const char *format, ...)
{
    va_list args;
    fputs(cot_colour_on(file, COT_COLOUR_BOLD), file);
    va_start(args, format);
    vfprintf(file, format, args);
    va_end(args);
    fputs(cot_colour_on(file, COT_COLOUR_NONE), file);
}
