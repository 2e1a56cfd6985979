/* Which family's format a served model writes calls and reasoning in: found by what its template writes, or said by the operator. */
#ifndef COT_SERVER_DIALECTS_H
#define COT_SERVER_DIALECTS_H
#include "coterie/chat.h"
#include "dialect/dialect.h"

typedef struct cot_served_dialects {
    const cot_dialect *calls, *reasoning; // NULL: none is known
    int32_t begin, end;  // tokens around the reasoning; -1: it has none, or the vocabulary has no such token
    int32_t openings[2]; // [opening_count] tokens that begin calls
    size_t opening_count;
} cot_served_dialects;

/* Has the template write a call and reasoning, and looks what came around them. NULL: there is no template. */
cot_served_dialects cot_served_dialects_find(const cot_chat_template *chat);
/* The family by a name of the operator's: "auto" is what was found, "none" is none. False: there is no such family, or it has
 * not what is wanted. */
bool cot_served_dialects_name(const cot_dialect **dialect, const char *name, bool reasoning);
/* The names that it takes, comma-separated, cut to `bytes`. */
void cot_served_dialects_list(char *names, size_t bytes, bool reasoning);
/* Whether a rendered prompt ends within reasoning that the template has begun. */
bool cot_served_dialects_opens(const cot_dialect *reasoning, const cot_chat_text *prompt);

#endif
