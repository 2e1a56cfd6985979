#include "cli/run/windows.h"

#include "cli/frame/command.h"
#include "coterie/tokenizer.h"
#include "cli/frame/whole_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t cli_kv_tokens_of(const cot_eval_sequence *sequences, size_t count)
{
    enum { AT_ONCE = 64 };
    int64_t longest = 0;
    for (size_t i = 0; i < count; i++)
        if (sequences[i].tokens > longest) longest = sequences[i].tokens;
    return longest * (int64_t)(count < AT_ONCE ? count : AT_ONCE);
}

static bool add_window(cli_text_windows *w, const char *file, size_t number, const int32_t *ids,
                       int64_t tokens, int64_t unscored)
{
    if (w->count == w->room) {
        size_t room = 2 * w->room + 16;
        cot_eval_sequence *sequences = realloc(w->sequences, room * sizeof *sequences);
        char **names = sequences ? realloc(w->names, room * sizeof *names) : NULL;
        if (sequences) w->sequences = sequences;
        if (!names) return false;
        w->names = names;
        w->room = room;
    }
    size_t length = strlen(file) + 24;
    char *name = malloc(length);
    if (!name) return false;
    snprintf(name, length, "%s.%zu", file, number);
    w->names[w->name_count++] = name;
    w->sequences[w->count++] = (cot_eval_sequence){
        .name = name, .ids = ids, .tokens = tokens, .prefill_tokens = tokens, .unscored = unscored};
    return true;
}

/* Windows are named after their files. */
static bool is_new(const cli_text_windows *w, const char *path)
{
    for (size_t f = 0; f < w->files; f++)
        if (!strcmp(w->texts[f].path, path)) {
            cli_complain("'%s' is given twice", path);
            return false;
        }
    return true;
}

/* Puts an id before a text's own. */
static bool put_before(struct cli_text_tokens *t, int64_t prefix)
{
    int32_t *joined = malloc((t->count + 1) * sizeof *joined);
    if (!joined) {
        cli_complain("out of memory for '%s'", t->path);
        return false;
    }
    joined[0] = (int32_t)prefix;
    memcpy(joined + 1, t->ids, t->count * sizeof *joined);
    free(t->ids);
    t->ids = joined;
    t->count++;
    return true;
}

static bool add_file(cli_text_windows *w, const cot_tokenizer *tokenizer, const char *path, int64_t prefix)
{
    size_t bytes;
    struct cli_text_tokens *t = &w->texts[w->files];
    char *text = cli_read_whole(path, &bytes);
    if (!text) return false;
    cot_error error;
    cot_status status = cot_tokenizer_encode(tokenizer, &t->ids, &t->count, text, bytes, prefix < 0, &error);
    free(text);
    if (status != COT_OK) {
        cli_complain("'%s': %s", path, error.message);
        return false;
    }
    w->files++;
    t->path = path;
    if (!bytes || !t->count) {
        cli_complain("'%s' is empty", path);
        return false;
    }
    return prefix < 0 || put_before(t, prefix);
}

bool cli_text_windows_read(cli_text_windows *w, const char *model, cli_list files, int64_t prefix)
{
    cot_tokenizer *tokenizer;
    cot_error error;
    *w = (cli_text_windows){0};
    if (cot_tokenizer_open(&tokenizer, model, &error) != COT_OK) {
        cli_complain_of(&error);
        return false;
    }
    bool good = (w->texts = calloc(files.count + 1, sizeof *w->texts)) != NULL;
    if (!good) cli_complain("out of memory");
    for (size_t i = 0; i < files.count && good; i++)
        good = is_new(w, files.items[i].text) && add_file(w, tokenizer, files.items[i].text, prefix);
    cot_tokenizer_close(tokenizer);
    return good;
}

cli_engine_needs cli_text_windows_need(const cli_text_windows *w, const cli_engine_settings *settings)
{
    enum { WINDOWS_AT_ONCE = 4 };
    cli_engine_needs needs = {0};
    needs.sequences = cli_attention_is_split(settings) ? 1 : WINDOWS_AT_ONCE;
    for (size_t f = 0; f < w->files; f++) needs.kv_tokens += (int64_t)w->texts[f].count;
    return needs;
}

bool cli_text_windows_cut(cli_text_windows *w, int64_t length)
{
    for (size_t f = 0; f < w->files; f++) {
        const struct cli_text_tokens *t = &w->texts[f];
        for (size_t at = 0, n = 0; at < t->count; at += (size_t)length, n++) {
            int64_t rest = (int64_t)(t->count - at);
            if (add_window(w, t->path, n, t->ids + at, rest < length ? rest : length, 0)) continue;
            cli_complain("out of memory for '%s'", t->path);
            return false;
        }
    }
    return true;
}

bool cli_text_windows_roll(cli_text_windows *w, int64_t length)
{
    for (size_t f = 0; f < w->files; f++) {
        const struct cli_text_tokens *t = &w->texts[f];
        int64_t last = (int64_t)t->count - 1, predicted = 0;
        for (size_t n = 0; predicted < last; n++) {
            int64_t now = last - predicted < length ? last - predicted : length, end = predicted + now;
            int64_t from = end > length ? end - length : 0;
            if (!add_window(w, t->path, n, t->ids + from, end - from + 1, end - from - now)) {
                cli_complain("out of memory for '%s'", t->path);
                return false;
            }
            predicted = end;
        }
    }
    return true;
}

void cli_text_windows_free(cli_text_windows *w)
{
    for (size_t i = 0; i < w->files; i++) free(w->texts[i].ids);
    for (size_t i = 0; i < w->name_count; i++) free(w->names[i]);
    free(w->texts);
    free(w->names);
    free(w->sequences);
    *w = (cli_text_windows){0};
}
