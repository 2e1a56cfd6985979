/* Text that reaches a terminal piece by piece, its words whole: one that passes the margin is taken back and begins the next line. */
#ifndef COT_CLI_FRAME_MARGIN_H
#define COT_CLI_FRAME_MARGIN_H
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef struct cli_margin {
    FILE *file;
    int columns;    // of the terminal; 0: all is written as it is
    int column;     // where the cursor stands
    char word[256]; // what has been written of a word, to be written again on the next line
    size_t bytes;
    int width;       // of the word, in columns
    bool stays;      // the word fills a line: the terminal breaks it
    int ticks;       // that the line begins with; -1: it begins with something else
    bool in_a_fence; // of Markdown: lines of code are broken by the terminal, so that one can copy them whole
} cli_margin;

/* Begins at the start of a line of `file`, with as many columns as the terminal has there, or none where it is no terminal. */
void cli_margin_begin(cli_margin *m, FILE *file);

/* Writes UTF-8 in whole characters. The caller flushes the file. */
void cli_margin_write(cli_margin *m, const char *text, size_t bytes);

/* Writes whole lines, of up to 4095 bytes, at the start of a line of `file`. */
void cli_margin_print(FILE *file, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Leaves what was written last where it is, since something else has been written to the terminal behind it. */
void cli_margin_leave(cli_margin *m);

#endif
