/* A constraint as a table of functions, so that whoever keeps to one does not know what computes its masks. */
#ifndef COT_CONSTRAIN_CONSTRAINT_H
#define COT_CONSTRAIN_CONSTRAINT_H
#include "coterie/constraint.h"

/* Their contracts are those of the public functions of these names, but for what constraint.c sees to: tokens that end a text,
 * empty masks, time, and that nothing is asked of one that failed. */
typedef struct cot_constraint_table {
    cot_status (*copy)(cot_constraint **copy, const cot_constraint *constraint, cot_error *error);
    cot_status (*mask)(cot_constraint *constraint, uint32_t *words, cot_error *error);
    cot_status (*commit)(cot_constraint *constraint, int32_t token, cot_error *error);
    cot_status (*rollback)(cot_constraint *constraint, size_t tokens, cot_error *error);
    bool (*may_end)(const cot_constraint *constraint);
    void (*close)(cot_constraint *constraint);
} cot_constraint_table;

/* The first member of each implementation's own, which fills in the first part. */
struct cot_constraint {
    const cot_constraint_table *table;
    size_t words;       // of a mask
    const int32_t *eos; // [eos_count] ids that end a text, there as long as the constraint
    size_t eos_count;
    /* constraint.c's. */
    uint32_t *mask;   // [words]; NULL until one is asked for
    size_t committed; // tokens
    size_t ended;     // of those, the last ones: such as end a text
    cot_error failed; // status COT_OK: it has not
};

/* Whether the token is the end of reasoning that comes before what a text has to be (reasoning.c). */
bool cot_constraint_ends_reasoning(const cot_constraint *constraint, int32_t token);

#endif
