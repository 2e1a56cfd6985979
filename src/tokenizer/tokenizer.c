#include "tokenizer/listed.h"

#include "base/error.h"
#include "base/file.h"
#include "base/json_load.h"

#include <stdio.h>
#include <sys/stat.h>
#include <utf8proc.h>

enum { LARGEST_FILE = 1 << 30 };

/* What cot_tokenizer's `longest` says. */
static size_t longest_of(const cot_tokenizer *tokenizer)
{
    size_t longest = 4; // of a character that an unknown token or a byte stands for
    bool alphabet = false;
    for (size_t i = 0; i < tokenizer->pretokenizer.count; i++) {
        const cot_pretokenizer_kind kind = tokenizer->pretokenizer.steps[i].kind;
        if (kind != COT_PRETOKENIZER_SPLIT) alphabet = kind == COT_PRETOKENIZER_BYTES;
    }
    if (!cot_bpe_covers(&tokenizer->bpe, alphabet)) return 0;
    for (size_t id = 0; id < tokenizer->vocab.size; id++) {
        const cot_vocab_entry *entry = cot_vocab_entry_of(&tokenizer->vocab, (int64_t)id);
        if (entry && entry->bytes > longest) longest = entry->bytes;
    }
    return longest;
}

static cot_status load(cot_tokenizer *tokenizer, const json_t *root, cot_error *error)
{
    cot_text version;
    if (!json_is_object(root)) return cot_fail(error, COT_MALFORMED, "it is not an object");
    cot_status status = cot_field_text(&version, root, "version", "tokenizer", error);
    if (status != COT_OK) return status;
    if (version.data && !cot_text_is(version, "1.0"))
        return cot_fail(error, COT_UNSUPPORTED, "version '%s' is not supported, 1.0 alone", version.data);
    static const char *const refused[] = {"truncation", "padding"};
    for (int i = 0; i < 2; i++) {
        const json_t *value = json_object_get(root, refused[i]);
        if (value && !json_is_null(value))
            return cot_fail(error, COT_UNSUPPORTED, "'%s' is not supported", refused[i]);
    }
    status = cot_bpe_load(&tokenizer->bpe, &tokenizer->vocab, json_object_get(root, "model"), error);
    return status == COT_OK ? cot_tokenizer_load_parts(tokenizer, root, error) : status;
}

cot_status cot_tokenizer_load_parts(cot_tokenizer *tokenizer, const json_t *root, cot_error *error)
{
    cot_status status =
        cot_normalizer_load(&tokenizer->normalizer, json_object_get(root, "normalizer"), error);
    if (status == COT_OK)
        status = cot_added_load(&tokenizer->raw, &tokenizer->normalized, &tokenizer->vocab,
                                &tokenizer->normalizer, json_object_get(root, "added_tokens"), error);
    if (status == COT_OK)
        status = cot_pretokenizer_load(&tokenizer->pretokenizer, json_object_get(root, "pre_tokenizer"),
                                       cot_normalizer_moves_start(&tokenizer->normalizer), error);
    if (status == COT_OK)
        status = cot_template_load(&tokenizer->template, &tokenizer->vocab,
                                   json_object_get(root, "post_processor"), error);
    if (status == COT_OK)
        status = cot_decoder_load(&tokenizer->decoder, json_object_get(root, "decoder"), error);
    if (status == COT_OK && !tokenizer->vocab.size)
        status = cot_fail(error, COT_MALFORMED, "its vocabulary is empty");
    if (status == COT_OK) tokenizer->longest = longest_of(tokenizer);
    return status;
}

cot_status cot_tokenizer_parse(cot_tokenizer **out, const char *text, size_t bytes, const char *name,
                               cot_error *error)
{
    json_error_t json_error;
    cot_error why = {.message = "out of memory"};
    cot_status status = COT_OUT_OF_MEMORY;
    cot_tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    *out = NULL;
    json_t *root = tokenizer ? cot_json_load(text, bytes, JSON_ALLOW_NUL, &json_error) : NULL;
    if (root)
        status = load(tokenizer, root, &why);
    else if (tokenizer && json_error_code(&json_error) != json_error_out_of_memory)
        status = cot_fail(&why, COT_MALFORMED, "line %d: %s", json_error.line, json_error.text);
    json_decref(root);
    if (status == COT_OK) {
        *out = tokenizer;
        return COT_OK;
    }
    cot_tokenizer_close(tokenizer);
    return cot_fail(error, status, "cannot read '%s': %s", name, why.message);
}

/* Vocabularies in other forms, which are not read. */
static const struct other {
    const char *file, *what;
    bool stays; // what transformers makes of it is not read either
} others[] = {
    {"tekken.json", "Mistral's tekken", false},
    {"tokenizer.model.v3", "SentencePiece", false},
    {"sentencepiece.bpe.model", "SentencePiece", false},
    {"spiece.model", "SentencePiece", false},
    {"qwen.tiktoken", "tiktoken", false},
    {"vocab.json", "BPE with merges.txt", false},
    {"vocab.txt", "WordPiece", true},
};

static bool has(const char *folder, const char *name)
{
    struct stat info;
    char *path = cot_path_join(folder, name);
    const bool there = path && stat(path, &info) == 0;
    free(path);
    return there;
}

static const struct other *other_in(const char *folder)
{
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (has(folder, others[i].file)) return &others[i];
    return NULL;
}

static const struct other *other_of(const char *path)
{
    static const struct other model = {".model", "SentencePiece or tiktoken", false},
                              tiktoken = {".tiktoken", "tiktoken", false};
    static const struct other *const endings[] = {&model, &tiktoken};
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const size_t bytes = strlen(name);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(name, others[i].file)) return &others[i];
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const size_t n = strlen(endings[i]->file);
        if (bytes > n && !strcmp(name + bytes - n, endings[i]->file)) return endings[i];
    }
    return NULL;
}

/* Tokenizers that are a model's own Python code have no such file. */
static const char writes_one[] =
    ": transformers' AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) writes one for most "
    "models";

static cot_status fail_other(cot_status status, const char *path, bool folder, cot_error *error)
{
    const struct other *other = folder ? other_in(path) : other_of(path);
    if (!other) return status;
    if (folder)
        return cot_fail(
            error, status,
            "'%s' has %s (%s) and no tokenizer.json, tokenizer.model or tiktoken.model, which are read%s",
            path, other->file, other->what, other->stays ? "" : writes_one);
    return cot_fail(error, COT_UNSUPPORTED,
                    "'%s' is a vocabulary of %s, a tokenizer.json, or a folder with a tokenizer.model or "
                    "tiktoken.model, is read%s",
                    path, other->what, other->stays ? "" : writes_one);
}

cot_status cot_tokenizer_open(cot_tokenizer **tokenizer, const char *path, cot_error *error)
{
    struct stat info;
    bool folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    char *file = folder ? cot_path_join(path, "tokenizer.json") : NULL, *text = NULL;
    size_t bytes = 0;
    *tokenizer = NULL;
    if (!folder && cot_gguf_is_file(path)) return cot_tokenizer_open_gguf(tokenizer, path, error);
    if (folder && !file) return cot_fail(error, COT_OUT_OF_MEMORY, "cannot read '%s': out of memory", path);
    cot_status status = cot_file_read(&text, &bytes, file ? file : path, LARGEST_FILE, error);
    if (status == COT_OK) status = cot_tokenizer_parse(tokenizer, text, bytes, file ? file : path, error);
    free(text);
    free(file);
    if (folder && status == COT_NOT_FOUND && has(path, "tiktoken.model"))
        return cot_tokenizer_open_tiktoken(tokenizer, path, error);
    if (folder && status == COT_NOT_FOUND && has(path, "tokenizer.model"))
        return cot_tokenizer_open_sentencepiece(tokenizer, path, error);
    return status == (folder ? COT_NOT_FOUND : COT_MALFORMED) ? fail_other(status, path, folder, error)
                                                              : status;
}

void cot_tokenizer_close(cot_tokenizer *tokenizer)
{
    if (!tokenizer) return;
    cot_decoder_close(&tokenizer->decoder);
    cot_template_close(&tokenizer->template);
    cot_pretokenizer_close(&tokenizer->pretokenizer);
    cot_added_close(&tokenizer->raw);
    cot_added_close(&tokenizer->normalized);
    cot_normalizer_close(&tokenizer->normalizer);
    cot_bpe_close(&tokenizer->bpe);
    cot_vocab_close(&tokenizer->vocab);
    free(tokenizer);
}

size_t cot_tokenizer_added_before(const cot_tokenizer *tokenizer)
{
    return tokenizer->template.before.bytes / sizeof(int32_t);
}

size_t cot_tokenizer_size(const cot_tokenizer *tokenizer)
{
    return tokenizer->vocab.size;
}

int32_t cot_tokenizer_added_token(const cot_tokenizer *tokenizer, const char *text)
{
    const cot_added_set *sets[] = {&tokenizer->raw, &tokenizer->normalized};
    const size_t bytes = strlen(text);
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < sets[k]->count; i++) {
            const cot_added_token *token = &sets[k]->tokens[i];
            if (!token->blank && token->text.bytes == bytes && memcmp(token->text.data, text, bytes) == 0)
                return token->id;
        }
    return -1;
}

const char *cot_tokenizer_token(const cot_tokenizer *tokenizer, int32_t id)
{
    const cot_vocab_entry *entry = cot_vocab_entry_of(&tokenizer->vocab, id);
    return entry ? tokenizer->vocab.strings.data + entry->offset : NULL;
}

void cot_tokenizer_libraries(char *text, size_t bytes)
{
    char pcre2[64], unicode[64];
    cot_regex_versions(pcre2, unicode);
    snprintf(text, bytes, "PCRE2 %s with Unicode %s, utf8proc %s with Unicode %s", pcre2, unicode,
             utf8proc_version(), utf8proc_unicode_version());
}
