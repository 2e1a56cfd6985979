/* What Open MPI's starter has to say: paragraphs between rulers, of which one line is enough. */
#ifndef COT_CLI_OSHRUN_WORDS_H
#define COT_CLI_OSHRUN_WORDS_H
#include <stdbool.h>

typedef struct oshrun_words {
    bool inside; // between rulers
    bool whole;  // the first paragraph has been read
    char first[256];
} oshrun_words;

/* Whether the line, which ends with a newline, is Open MPI's own. It keeps the first paragraph. */
bool cot_oshrun_says(oshrun_words *words, const char *line);
/* Whether there is such a paragraph, which it tells as one line; `hostfile` NULL: there is none. */
bool cot_oshrun_complain(const oshrun_words *words, const char *hostfile);

#endif
