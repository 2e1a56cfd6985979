/* Pages of HTML, one file each with its figures inside, and numbers for people. */
#ifndef COT_CLI_PLAN_PAGE_H
#define COT_CLI_PLAN_PAGE_H
#include <stddef.h>
#include <stdio.h>

/* Begins a page, up to its heading, and ends it. */
void cli_page_begin(FILE *stream, const char *title);
void cli_page_end(FILE *stream);
/* Text with <, > and & spelled out. */
void cli_page_text(FILE *stream, const char *text);

/* A number in few characters: 0.0123, 34,799, 209 million; at most 24 of them, with the end. Returns `text`. */
enum { CLI_PEOPLE_BYTES = 24 };
const char *cli_people_number(char text[CLI_PEOPLE_BYTES], double x);

#endif
