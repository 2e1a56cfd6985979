/* What a terminal gets beyond plain text, and nothing else does: lines that are drawn over, and a little colour. */
#ifndef COT_CLI_FRAME_TERMINAL_H
#define COT_CLI_FRAME_TERMINAL_H
#include <stdbool.h>
#include <stdio.h>

/* Whether `file` is a terminal that understands control sequences (TERM is set, and not "dumb"). Not where oshrun has
 * started this process: it gives each rank a terminal, wherever what comes out of that goes. */
bool cli_terminal(FILE *file);

typedef enum cli_colour { CLI_COLOUR_NONE, CLI_COLOUR_BOLD, CLI_COLOUR_YELLOW } cli_colour;
/* The sequence that begins a colour on `file`, or ends all; "" where it is no terminal or NO_COLOR is set and not
 * empty (no-color.org). */
const char *cli_colour_on(FILE *file, cli_colour colour);

/* Writes the heading of a table or list, bold on a terminal; what the format says, line break and all. */
void cli_heading(FILE *file, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
