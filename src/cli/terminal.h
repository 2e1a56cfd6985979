/* What a terminal gets beyond plain text, and nothing else does: lines that are drawn over, and a little colour. */
#ifndef COT_CLI_TERMINAL_H
#define COT_CLI_TERMINAL_H
#include <stdbool.h>
#include <stdio.h>

/* Whether `file` is a terminal that understands control sequences (TERM is set, and not "dumb"). Not where oshrun has
 * started this process: it gives each rank a terminal, wherever what comes out of that goes. */
bool cot_terminal(FILE *file);

typedef enum cot_colour { COT_COLOUR_NONE, COT_COLOUR_BOLD, COT_COLOUR_YELLOW } cot_colour;
/* The sequence that begins a colour on `file`, or ends all; "" where it is no terminal or NO_COLOR is set and not
 * empty (no-color.org). */
const char *cot_colour_on(FILE *file, cot_colour colour);

/* Writes the heading of a table or list, bold on a terminal; what the format says, line break and all. */
void cot_heading(FILE *file, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
