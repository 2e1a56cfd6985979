#include "cli/plan/token_ids.h"

#include "cli/frame/command.h"
#include "coterie/tokenizer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct named_id {
    char *text;
    size_t bytes;
    int32_t id;
} named_id;

static int by_text(const void *a, const void *b)
{
    const named_id *x = a, *y = b;
    const int order = memcmp(x->text, y->text, x->bytes < y->bytes ? x->bytes : y->bytes);
    if (order) return order;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Of equal texts the lowest id comes first. */
static int by_text_and_id(const void *a, const void *b)
{
    const int order = by_text(a, b);
    const int32_t x = ((const named_id *)a)->id, y = ((const named_id *)b)->id;
    return order ? order : (x > y) - (x < y);
}

/* The text of every id of the vocabulary; parts of characters, which decode to the replacement character, name nothing. */
static cot_status read_vocabulary(named_id *names, size_t *n, const cot_tokenizer *tokenizer,
                                  cot_error *error)
{
    const size_t size = cot_tokenizer_size(tokenizer);
    *n = 0;
    for (size_t i = 0; i < size; i++) {
        named_id *name = &names[*n];
        name->id = (int32_t)i;
        if (!cot_tokenizer_token(tokenizer, name->id)) continue;
        const cot_status status =
            cot_tokenizer_decode(tokenizer, &name->text, &name->bytes, &name->id, 1, false, error);
        if (status != COT_OK) return status;
        if (strstr(name->text, "\xef\xbf\xbd"))
            free(name->text);
        else
            ++*n;
    }
    qsort(names, *n, sizeof *names, by_text_and_id);
    return COT_OK;
}

/* The first of the names with this text, -1 without. */
static int32_t find(const named_id *names, size_t n, const char *text, size_t bytes)
{
    const named_id wanted = {(char *)text, bytes, 0};
    size_t low = 0, high = n;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (by_text(&names[middle], &wanted) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && by_text(&names[low], &wanted) == 0 ? names[low].id : -1;
}

static bool replace(cot_trace *trace, int32_t *ids, const named_id *names, size_t n)
{
    int32_t *id = malloc((size_t)trace->n_strings * sizeof *id);
    int64_t unknown = 0;
    if (!id) return false;
    for (int64_t s = 0; s < trace->n_strings; s++)
        id[s] = find(names, n, trace->strings + trace->string_offsets[s],
                     (size_t)(trace->string_offsets[s + 1] - trace->string_offsets[s]));
    for (int64_t t = 0; t < trace->n_tokens; t++) {
        const int32_t string = trace->token_ids[t];
        ids[t] = string >= 0 && string < trace->n_strings ? id[string] : -1;
        unknown += ids[t] < 0;
    }
    free(id);
    trace->token_ids = ids;
    trace->n_strings = 0;
    trace->string_offsets = NULL;
    trace->strings = NULL;
    if (unknown)
        cli_complain("note: %" PRId64 " of %" PRId64 " tokens have strings that the tokenizer does not know",
                     unknown, trace->n_tokens);
    return true;
}

int cli_map_token_ids(cot_trace *trace, int32_t **ids, const char *path)
{
    cot_tokenizer *tokenizer = NULL;
    cot_error error = {0};
    size_t n = 0;
    if (!trace->n_strings)
        return cli_complain(
            "--tokenizer: the trace has no token strings, its ids are a vocabulary's already");
    cot_status status = cot_tokenizer_open(&tokenizer, path, &error);
    if (status != COT_OK) return cli_complain_of(&error);
    named_id *names = calloc(cot_tokenizer_size(tokenizer) + 1, sizeof *names);
    *ids = malloc(((size_t)trace->n_tokens + 1) * sizeof **ids);
    if (names && *ids) status = read_vocabulary(names, &n, tokenizer, &error);
    const bool good = names && *ids && (status != COT_OK || replace(trace, *ids, names, n));
    for (size_t i = 0; i < n; i++) free(names[i].text);
    free(names);
    cot_tokenizer_close(tokenizer);
    if (!good) return cli_complain("out of memory for token strings");
    return status == COT_OK ? CLI_EXIT_OK : cli_complain_of(&error);
}
