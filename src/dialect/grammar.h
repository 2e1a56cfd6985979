/* What the parts of a grammar share: its text, which grows, and how texts, tokens and schemas stand in it. */
#ifndef COT_DIALECT_GRAMMAR_H
#define COT_DIALECT_GRAMMAR_H
#include "base/buffer.h"
#include "dialect/dialect.h"

#define COT_DIALECT_ANY "(.|\\n)*" // as a regular expression

typedef struct cot_dialect_writer {
    const cot_dialect *calls;
    cot_buffer *out;
    int32_t (*token)(void *context, const char *marker);
    void *context;
    const char *tool; // whose arguments are written
    cot_error *error;
    cot_status status; // of the first failure, behind which nothing is written
} cot_dialect_writer;

/* Appends texts, the last of which is NULL. */
void cot_dialect_put(cot_dialect_writer *w, ...) __attribute__((sentinel));
#define COT_DIALECT_PUT(w, ...) cot_dialect_put(w, __VA_ARGS__, (char *)NULL)
void cot_dialect_put_number(cot_dialect_writer *w, size_t number);
/* A text as a string of the grammar. */
void cot_dialect_put_text(cot_dialect_writer *w, const char *text);
/* A text that stands for itself within a regular expression. */
void cot_dialect_put_escaped(cot_dialect_writer *w, const char *text);
/* A marker: the token, where the vocabulary has it, or its text. NULL: nothing. */
void cot_dialect_put_marker(cot_dialect_writer *w, const char *marker);
/* JSON that meets a schema, whose references lead into `root`; NULL: into itself. */
void cot_dialect_put_json(cot_dialect_writer *w, const json_t *schema, const json_t *root);
/* The grammar cannot say what `keyword` asks of an argument. */
void cot_dialect_refuse(cot_dialect_writer *w, const char *keyword, const char *argument);

/* The rule args_NUMBER of arguments that meet `parameters` (NULL: there are none): each in tags, and `end` behind them, or as a keyword
 * of Python. */
void cot_dialect_put_tags(cot_dialect_writer *w, size_t number, const json_t *parameters, const char *end);
void cot_dialect_put_keywords(cot_dialect_writer *w, size_t number, const json_t *parameters);

/* What "#/a/b" means in a schema; NULL: nothing. */
const json_t *cot_dialect_follow(const json_t *root, const char *path);

#endif
