/* One parse or one rendering of a template: its memory, its steps, and the one way out when something fails.
 *
 * All that a template makes lives in the run's memory and goes with it, so that a failure, however deep, is a jump to
 * where the run began: nothing on the way has to be released. */
#ifndef COT_TOKENIZER_JINJA_RUN_H
#define COT_TOKENIZER_JINJA_RUN_H
#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum { COT_JINJA_MOST_DEPTH = 1500 }; // of expressions, statements and macro calls within one another

typedef enum cot_jinja_reason {
    COT_JINJA_GOOD,
    COT_JINJA_SYNTAX,    // the template cannot be read
    COT_JINJA_RAISED,    // the template's own raise_exception; the message is its words alone
    COT_JINJA_UNDEFINED, // something undefined was used
    COT_JINJA_PYTHON,    // what Python or Jinja would refuse: types, names of filters, values
    COT_JINJA_SECURITY,  // what Jinja's sandbox refuses
    COT_JINJA_LIMIT,     // too many steps, too much memory, too deep
    COT_JINJA_NO_MEMORY,
    COT_JINJA_STOPPED, // nobody wants the text any more
} cot_jinja_reason;

typedef struct cot_jinja_failure {
    cot_jinja_reason reason;
    int line; // of the template
    char message[1024];
} cot_jinja_failure;

typedef struct cot_jinja_limits {
    uint64_t steps; // nodes evaluated, items walked, 64 bytes of text moved
    size_t bytes;
    bool (*is_stopped)(void *context); // asked every few thousand steps; NULL: never
    void *context;
} cot_jinja_limits;

struct cot_jinja_template;
struct cot_jinja_builder;

typedef struct cot_jinja_run {
    jmp_buf out; // where cot_jinja_fail goes; set by whoever begins the run
    cot_jinja_limits limits;
    uint64_t steps, look; // beyond `look` it is looked whether the run may go on
    size_t bytes;
    struct cot_jinja_chunk *chunks;
    int depth, line;
    cot_jinja_failure failure;
    // of a rendering alone
    const struct cot_jinja_template *source;
    struct cot_jinja_builder *text; // what printing adds to
    const struct tm *now;           // what strftime_now sees; NULL: the clock
} cot_jinja_run;

/* `bytes` of zeroed memory, 16-aligned, until the run's end; fails at the limit. */
void *cot_jinja_take(cot_jinja_run *run, size_t count, size_t size);
/* Frees all of the run's memory. */
void cot_jinja_end(cot_jinja_run *run);
/* Fills run->failure, at run->line, and jumps to run->out. */
_Noreturn void cot_jinja_fail(cot_jinja_run *run, cot_jinja_reason reason, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));
/* Fails where the run has used its steps up, or is stopped; else it says until when it need not be asked. */
void cot_jinja_look(cot_jinja_run *run) __attribute__((cold));
_Noreturn void cot_jinja_fail_depth(cot_jinja_run *run) __attribute__((cold));

static inline void cot_jinja_step(cot_jinja_run *run, uint64_t steps)
{
    run->steps += steps;
    if (run->steps > run->look) cot_jinja_look(run);
}

/* Around what calls itself; the depth after a failure does not matter. */
static inline void cot_jinja_enter(cot_jinja_run *run)
{
    if (++run->depth > COT_JINJA_MOST_DEPTH) cot_jinja_fail_depth(run);
}

static inline void cot_jinja_leave(cot_jinja_run *run)
{
    run->depth--;
}

#endif
