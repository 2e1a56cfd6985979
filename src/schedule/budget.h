/* How one memory is split between pages of the KV cache and replicas of experts: pure. What either saves with any part of it is handed in, and
 * the split comes out, which moves by a few bins at a time, and only where that saves enough. */
#ifndef COT_SCHEDULE_BUDGET_H
#define COT_SCHEDULE_BUDGET_H
#include "schedule/page_worth.h"

enum { COT_BUDGET_BINS = COT_PAGE_WORTH_BINS }; // of the memory, all alike

typedef enum cot_budget_reason {
    COT_BUDGET_BEST,   // no other split saves more
    COT_BUDGET_LITTLE, // another saves more, but too little
    COT_BUDGET_ONCE,   // another saves more, but it did not the last time; but for the first move
    COT_BUDGET_TURNED, // another saves more, on the side that memory has lately come from
    COT_BUDGET_PAGES,  // pages get more
    COT_BUDGET_SLOTS,  // slots get more
    COT_BUDGET_REASONS
} cot_budget_reason;
extern const char *const cot_budget_reason_names[COT_BUDGET_REASONS + 1]; // few words, for people; NULL ends

typedef struct cot_budget {
    int least, pages;     // bins that pages must have, and have
    int direction;        // of the last move: 1 to pages, -1 to slots, 0: there was none
    int wanted;           // the same of what the last look wanted
    int64_t looks, moved; // so far; the look that moved last
    int64_t by_reason[COT_BUDGET_REASONS],
        turns;                // looks; those that moved the other way than the move before
    double gain_ns;           // of a step, by the split that the last look found best
    cot_budget_reason reason; // of the last look
} cot_budget;

/* Looks at what pages and slots save of a step, in ns, where they have so many bins, each [COT_BUDGET_BINS + 1] and rising; -INFINITY:
 * they cannot have so few. A step takes step_ns. budget->pages is then what pages are to have. */
void cot_budget_look(cot_budget *budget, const double *pages_ns, const double *slots_ns, double step_ns);

#endif
