/* From a text to a constraint, by llguidance. */
#include "base/buffer.h"
#include "base/error.h"
#include "base/json_load.h"
#include "base/json_schema.h"
#include "base/json_weight.h"
#include "constrain/constraint.h"
#include "constrain/llguidance.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct cot_constraint_compiler {
    const cot_llguidance *library;
    cot_llguidance_tokenizer *tokenizer;
    size_t words;
    int32_t *eos;
    size_t eos_count;
};

typedef struct guided {
    cot_constraint base;
    const cot_llguidance *library;
    cot_llguidance_matcher *matcher;
} guided;

/* ---- constraints ---- */

/* What the library says of its matcher: the first line, which is all that is for users; where that ends in a colon the reason is
 * further down, behind the text that it is about. Where it is out of ways to go on it says a name of its own, and of one that has too
 * many it says what only its authors know. */
static cot_status fail_of(const guided *g, cot_error *error)
{
    static const char mark[] = "\nerror: ", stuck[] = "NoExtension";
    const char *why = g->library->error(g->matcher);
    unsigned long long there, most;
    if (!why) why = "it failed without a reason";
    if (strncmp(why, stuck, sizeof stuck - 1) == 0)
        return cot_fail(error, COT_INVALID_ARGUMENT, "nothing can meet it");
    const char *row = strstr(why, "Current row has ");
    if (row && sscanf(row, "Current row has %llu items; max is %llu", &there, &most) == 2)
        return cot_fail(
            error, COT_INVALID_ARGUMENT,
            "it is too large: at one place of the text %llu parts of it may come, at most %llu may be", there,
            most);
    const size_t line = strcspn(why, "\n");
    const char *found = line && why[line - 1] == ':' ? strstr(why + line, mark) : NULL;
    const char *reason = found ? found + sizeof mark - 1 : "";
    return cot_fail(error, COT_INVALID_ARGUMENT, "%.*s%s%.*s", (int)line, why, found ? " " : "",
                    (int)strcspn(reason, "\n"), reason);
}

static cot_status compute_mask(cot_constraint *c, uint32_t *words, cot_error *error)
{
    const guided *g = (guided *)c;
    return g->library->mask(g->matcher, words, c->words * sizeof *words) == 0 ? COT_OK : fail_of(g, error);
}

static cot_status commit(cot_constraint *c, int32_t token, cot_error *error)
{
    const guided *g = (guided *)c;
    return g->library->commit(g->matcher, (uint32_t)token) == 0 ? COT_OK : fail_of(g, error);
}

static cot_status roll_back(cot_constraint *c, size_t tokens, cot_error *error)
{
    const guided *g = (guided *)c;
    return g->library->rollback(g->matcher, tokens) == 0 ? COT_OK : fail_of(g, error);
}

static bool may_end(const cot_constraint *c)
{
    const guided *g = (const guided *)c;
    return g->library->accepts(g->matcher);
}

static void close_guided(cot_constraint *c)
{
    guided *g = (guided *)c;
    g->library->free_matcher(g->matcher);
    free(g);
}

static cot_status copy(cot_constraint **out, const cot_constraint *c, cot_error *error)
{
    const guided *from = (const guided *)c;
    guided *g = calloc(1, sizeof *g);
    if (!g) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a constraint");
    *g = *from;
    g->matcher = from->library->copy(from->matcher);
    *out = &g->base;
    return COT_OK;
}

static const cot_constraint_table table = {copy, compute_mask, commit, roll_back, may_end, close_guided};

/* ---- what is compiled ---- */

/* Between the parts of JSON: nothing, a blank, or a new line and what indents it. Of more, models that are unsure write without
 * end. */
#define WHITE_SPACE "\"x-guidance\":{\"whitespace_pattern\":\"( |\\\\r?\\\\n[ \\\\t]{0,40})?\"}"

static cot_status write_schema(cot_buffer *schema, const char *text, size_t bytes, cot_error *error)
{
    if (cot_json_weigh(text, bytes).depth > COT_CONSTRAINT_MAX_DEPTH)
        return cot_fail(error, COT_INVALID_ARGUMENT, "the schema nests deeper than %d",
                        COT_CONSTRAINT_MAX_DEPTH);
    json_error_t reason;
    json_t *json = cot_json_load(text, bytes, JSON_DECODE_ANY, &reason);
    if (!json)
        return cot_fail(error, COT_INVALID_ARGUMENT, "the schema is no JSON: line %d: %s", reason.line,
                        reason.text);
    const char *brace = json_is_object(json) ? memchr(text, '{', bytes) : NULL;
    const bool adds = brace && !json_object_get(json, "x-guidance"), is_empty = !json_object_size(json),
               has_end = cot_json_schema_ends(json);
    json_decref(json);
    if (!has_end)
        return cot_fail(error, COT_INVALID_ARGUMENT,
                        "nothing can meet the schema: what it asks for holds itself without an end");
    const size_t before = adds ? (size_t)(brace + 1 - text) : 0;
    const bool good = cot_buffer_append(schema, text, before) &&
                      (!adds || cot_buffer_text(schema, is_empty ? WHITE_SPACE : WHITE_SPACE ",")) &&
                      cot_buffer_append(schema, text + before, bytes - before);
    return good ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a constraint");
}

/* Appends a text as a regular expression that it alone matches. */
static bool append_escaped(cot_buffer *regex, const char *text)
{
    bool good = true;
    for (; *text && good; text++)
        good = (!strchr("\\/.*+?()[]{}|^$#&~-\"", *text) || cot_buffer_append(regex, "\\", 1)) &&
               cot_buffer_append(regex, text, 1);
    return good;
}

/* A regular expression whose text is one of the strings of a JSON array: in a grammar of them the library takes 2,000 at most. */
static cot_status write_choices(cot_buffer *regex, const char *text, size_t bytes, cot_error *error)
{
    json_error_t reason;
    json_t *list = cot_json_load(text, bytes, 0, &reason);
    const size_t count = json_array_size(list);
    bool good = cot_buffer_append(regex, "", 0), strings = count > 0;
    for (size_t i = 0; i < count && good && strings; i++) {
        const json_t *choice = json_array_get(list, i);
        strings = json_is_string(choice);
        good = !strings ||
               ((!i || cot_buffer_text(regex, "|")) && append_escaped(regex, json_string_value(choice)));
    }
    json_decref(list);
    if (!strings) return cot_fail(error, COT_INVALID_ARGUMENT, "choices are a list of strings, at least one");
    return good ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a constraint");
}

static cot_status check_text(const char *text, size_t bytes, cot_error *error)
{
    if (bytes > COT_CONSTRAINT_MAX_BYTES)
        return cot_fail(error, COT_INVALID_ARGUMENT, "it has %zu bytes, at most %d may be", bytes,
                        COT_CONSTRAINT_MAX_BYTES);
    if (memchr(text, 0, bytes)) return cot_fail(error, COT_INVALID_ARGUMENT, "it has the character U+0000");
    return COT_OK;
}

static int64_t thread_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* What cannot be met shows in the first mask at the latest, if no text is infinite. */
static cot_status try_first_mask(cot_constraint *c, int64_t began_ms, cot_error *error)
{
    const uint32_t *mask;
    const guided *g = (guided *)c;
    if (g->library->error(g->matcher)) return fail_of(g, error);
    const cot_status status = cot_constraint_mask(c, &mask, error);
    const int64_t ms = thread_ms() - began_ms;
    if (status != COT_OK || ms <= COT_CONSTRAINT_COMPILE_MS) return status;
    return cot_fail(error, COT_INVALID_ARGUMENT, "it took %lld ms to compile, at most %d may be",
                    (long long)ms, COT_CONSTRAINT_COMPILE_MS);
}

cot_status cot_constraint_compile(cot_constraint **out, const cot_constraint_compiler *compiler,
                                  cot_constraint_kind kind, const char *text, size_t bytes, cot_error *error)
{
    static const char *const kinds[] = {[COT_CONSTRAINT_JSON_SCHEMA] = "json_schema",
                                        [COT_CONSTRAINT_REGEX] = "regex",
                                        [COT_CONSTRAINT_LARK] = "lark",
                                        [COT_CONSTRAINT_CHOICE] = "regex"};
    const int64_t began_ms = thread_ms();
    *out = NULL;
    cot_buffer given = {0};
    cot_status status = check_text(text, bytes, error);
    if (status == COT_OK && kind == COT_CONSTRAINT_JSON_SCHEMA)
        status = write_schema(&given, text, bytes, error);
    else if (status == COT_OK && kind == COT_CONSTRAINT_CHOICE)
        status = write_choices(&given, text, bytes, error);
    else if (status == COT_OK && !cot_buffer_append(&given, text, bytes))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a constraint");
    guided *g = status == COT_OK ? calloc(1, sizeof *g) : NULL;
    if (status == COT_OK && !g) status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a constraint");
    if (g) {
        const cot_llguidance *l = compiler->library;
        cot_llguidance_settings settings = {0};
        l->set_defaults(&settings, compiler->tokenizer);
        settings.buffered_log_level = settings.stderr_log_level = 0;
        settings.limits.tells_state = false;
        *g = (guided){.base = {.table = &table,
                               .words = compiler->words,
                               .eos = compiler->eos,
                               .eos_count = compiler->eos_count},
                      .library = l,
                      .matcher = l->new_matcher(&settings, kinds[kind], given.data)};
        status = try_first_mask(&g->base, began_ms, error);
    }
    cot_buffer_free(&given);
    if (status == COT_OK)
        *out = &g->base;
    else if (g)
        cot_constraint_close(&g->base);
    return status;
}

/* ---- vocabularies ---- */

/* Bytes of tokens, one behind the other. */
typedef struct spelling {
    uint32_t *lengths; // [vocab]
    cot_buffer bytes;
    int32_t before; // a token that the others are decoded behind; -1: none
    size_t before_bytes;
} spelling;

static bool has_replacement(const char *text, size_t bytes)
{
    return memmem(text, bytes, "\xef\xbf\xbd", 3) != NULL;
}

/* Tokens of some vocabularies lose a blank where they begin a text: what a token adds to one is asked behind the token "a". */
static void find_before(spelling *s, const cot_tokenizer *tokenizer)
{
    int32_t *ids;
    size_t count;
    s->before = -1;
    if (cot_tokenizer_encode(tokenizer, &ids, &count, "a", 1, false, NULL) != COT_OK) return;
    char *text = NULL;
    if (count == 1 && cot_tokenizer_decode(tokenizer, &text, &s->before_bytes, ids, 1, false, NULL) == COT_OK)
        s->before = *ids;
    free(text);
    free(ids);
}

/* The bytes of a token that is text: malloc'd. NULL: it is none, or memory ran out. */
static char *bytes_of(const spelling *s, const cot_tokenizer *tokenizer, int32_t id, size_t *bytes)
{
    char *text = NULL;
    const int32_t pair[] = {s->before, id};
    const bool behind =
        s->before >= 0 && cot_tokenizer_decode(tokenizer, &text, bytes, pair, 2, false, NULL) == COT_OK &&
        *bytes >= s->before_bytes && !has_replacement(text + s->before_bytes, *bytes - s->before_bytes);
    if (behind) {
        *bytes -= s->before_bytes;
        memmove(text, text + s->before_bytes, *bytes);
        return text;
    }
    free(text);
    return cot_tokenizer_token_bytes(tokenizer, &text, bytes, id, NULL) == COT_OK ? text : NULL;
}

/* Special tokens leave no text where those are skipped. */
static bool is_special(const cot_tokenizer *tokenizer, int32_t id)
{
    char *text = NULL;
    size_t bytes = 0;
    const bool silent =
        cot_tokenizer_decode(tokenizer, &text, &bytes, &id, 1, true, NULL) == COT_OK && !bytes;
    free(text);
    if (!silent) return false;
    const bool speaks =
        cot_tokenizer_decode(tokenizer, &text, &bytes, &id, 1, false, NULL) == COT_OK && bytes;
    free(text);
    return speaks;
}

/* An id without a word has no bytes, and is never part of a text; one that is special is 0xff and its name, which no text has. */
static bool spell(spelling *s, const cot_tokenizer *tokenizer, int64_t vocab)
{
    s->lengths = calloc((size_t)vocab + 1, sizeof *s->lengths);
    if (!s->lengths) return false;
    find_before(s, tokenizer);
    for (int32_t id = 0; id < vocab; id++) {
        const size_t begin = s->bytes.bytes;
        const char *name = cot_tokenizer_token(tokenizer, id);
        if (!name) continue;
        if (is_special(tokenizer, id)) {
            if (!cot_buffer_append(&s->bytes, "\xff", 1) || !cot_buffer_text(&s->bytes, name)) return false;
        } else {
            size_t bytes;
            char *text = bytes_of(s, tokenizer, id, &bytes);
            const bool good = !text || cot_buffer_append(&s->bytes, text, bytes);
            free(text);
            if (!good) return false;
        }
        s->lengths[id] = (uint32_t)(s->bytes.bytes - begin);
    }
    return true;
}

static cot_status make_tokenizer(cot_constraint_compiler *c, const spelling *s, int64_t vocab,
                                 cot_error *error)
{
    char why[200] = "";
    const cot_llguidance_vocabulary vocabulary = {.size = sizeof vocabulary,
                                                  .vocab = (uint32_t)vocab,
                                                  .eos = (uint32_t)*c->eos,
                                                  .lengths = s->lengths,
                                                  .bytes = (const uint8_t *)s->bytes.data,
                                                  .tokenizes_greedily = true};
    c->tokenizer = c->library->new_tokenizer(&vocabulary, why, sizeof why);
    if (c->tokenizer) return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT, "llguidance takes no such vocabulary: %.*s",
                    (int)strcspn(why, "\n"), why);
}

/* Ids that the vocabulary has; the first stands for all in the library, constraint.c sees to the others. */
static cot_status take_ends(cot_constraint_compiler *c, int64_t vocab, const int32_t *eos, size_t count,
                            cot_error *error)
{
    c->eos = calloc(count + 1, sizeof *c->eos);
    if (!c->eos) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a vocabulary");
    for (size_t i = 0; i < count; i++)
        if (eos[i] >= 0 && eos[i] < vocab) c->eos[c->eos_count++] = eos[i];
    if (c->eos_count) return COT_OK;
    return cot_fail(error, COT_INVALID_ARGUMENT,
                    "the model has no token that ends a text, which structured "
                    "output needs");
}

cot_status cot_constraint_compiler_open(cot_constraint_compiler **out, const cot_tokenizer *tokenizer,
                                        int64_t vocab, const int32_t *eos, size_t eos_count, cot_error *error)
{
    spelling s = {0};
    *out = NULL;
    cot_constraint_compiler *c = calloc(1, sizeof *c);
    if (!c) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a vocabulary");
    c->words = (size_t)(vocab + 31) / 32;
    cot_status status = cot_llguidance_open(&c->library, error);
    if (status == COT_OK) status = take_ends(c, vocab, eos, eos_count, error);
    if (status == COT_OK && !spell(&s, tokenizer, vocab))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for a vocabulary");
    if (status == COT_OK) status = make_tokenizer(c, &s, vocab, error);
    free(s.lengths);
    cot_buffer_free(&s.bytes);
    if (status == COT_OK)
        *out = c;
    else
        cot_constraint_compiler_close(c);
    return status;
}

void cot_constraint_compiler_close(cot_constraint_compiler *c)
{
    if (!c) return;
    if (c->tokenizer) c->library->free_tokenizer(c->tokenizer);
    free(c->eos);
    free(c);
}
