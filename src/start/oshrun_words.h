/* What Open MPI's starter has to say: paragraphs between rulers, of which one line is enough. */
#ifndef COT_START_OSHRUN_WORDS_H
#define COT_START_OSHRUN_WORDS_H
#include <stdbool.h>
#include <stddef.h>

typedef struct cot_oshrun_words {
    bool inside; // between rulers
    bool whole;  // the first paragraph has been read
    char first[256];
} cot_oshrun_words;

/* Whether the line, which ends with a newline, is Open MPI's own. It keeps the first paragraph. */
bool cot_oshrun_says(cot_oshrun_words *words, const char *line);
/* Whether there is such a paragraph, which becomes one line without its end; `hostfile` NULL: there is none. Asks its hosts, where
 * they are to blame. */
bool cot_oshrun_line(char *line, size_t bytes, const cot_oshrun_words *words, const char *hostfile);

#endif
