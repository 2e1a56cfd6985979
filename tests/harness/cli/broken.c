#include "harness/cli/broken.h"

#include "base/safetensors.h"
#include "harness/cmocka.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const files[] = {"config.json", "generation_config.json", "tokenizer.json",
                                    "model.safetensors"};

void path_in(char path[256], const char *folder, const char *name)
{
    snprintf(path, 256, "%s/m/%s", folder, name);
}

static char *slurp(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*bytes + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *bytes, file), *bytes);
    data[*bytes] = 0;
    fclose(file);
    return data;
}

void spill(const char *path, const void *head, size_t head_bytes, const void *data, size_t bytes)
{
    unlink(path); // the link, not the shipped file
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(head, 1, head_bytes, file), head_bytes);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

void fresh_model(const char *folder)
{
    char command[256], path[256], target[512];
    snprintf(command, sizeof command, "rm -rf '%s/m' && mkdir '%s/m'", folder, folder);
    assert_int_equal(system(command), 0);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        path_in(path, folder, files[i]);
        snprintf(target, sizeof target, "%s/%s", TINY, files[i]);
        assert_int_equal(symlink(target, path), 0);
    }
}

/* `text` with the first `from` turned into `to`; the caller frees. */
static char *replaced(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    if (!at) fail_msg("'%s' is not there to be broken", from);
    char *out = malloc(strlen(text) + strlen(to) + 1);
    assert_non_null(out);
    sprintf(out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return out;
}

/* Replaces in the header of a safetensors file and mends its length. */
static void edit_header(const char *path, const char *from, const char *to)
{
    size_t bytes;
    uint64_t length;
    char *data = slurp(path, &bytes);
    memcpy(&length, data, 8);
    char *header = strndup(data + 8, length), *edited = replaced(header, from, to);
    uint64_t edited_length = (strlen(edited) + 7) / 8 * 8;
    char *head = malloc(8 + edited_length + 1);
    assert_non_null(head);
    memcpy(head, &edited_length, 8);
    sprintf(head + 8, "%-*s", (int)edited_length, edited);
    spill(path, head, 8 + edited_length, data + 8 + length, bytes - 8 - length);
    free(head);
    free(edited);
    free(header);
    free(data);
}

/* Every 16-bit element of one tensor becomes `value`. */
static void fill_tensor(const char *path, const char *name, uint16_t value)
{
    cot_safetensors file;
    size_t bytes;
    char *data = slurp(path, &bytes);
    assert_int_equal(cot_safetensors_parse(&file, data, bytes, path, NULL), COT_OK);
    const cot_tensor *tensor = cot_safetensors_find(&file, name);
    assert_non_null(tensor);
    for (size_t i = 0; i < tensor->bytes; i += 2) memcpy((char *)(uintptr_t)tensor->data + i, &value, 2);
    cot_safetensors_close(&file);
    spill(path, data, bytes, "", 0);
    free(data);
}

void break_model(const char *folder, enum how how, const char *name, const char *from, const char *to,
                 uint64_t n)
{
    char path[256];
    size_t bytes;
    fresh_model(folder);
    if (how == NOTHING) return;
    path_in(path, folder, name);
    char *data = how == REMOVE || how == WHOLE || how == FOLDER ? NULL : slurp(path, &bytes), *edited = NULL;
    switch (how) {
    case NOTHING:
        break;
    case FOLDER:
    case REMOVE:
        assert_int_equal(unlink(path), 0);
        if (how == FOLDER) assert_int_equal(mkdir(path, 0777), 0);
        break;
    case WHOLE: // an index stands in for the single file
        spill(path, to, strlen(to), "", 0);
        path_in(path, folder, "model.safetensors");
        if (strstr(name, ".index.json")) assert_int_equal(unlink(path), 0);
        break;
    case REPLACE:
        edited = replaced(data, from, to);
        spill(path, edited, strlen(edited), "", 0);
        break;
    case HEADER:
        edit_header(path, from, to);
        break;
    case CUT:
        spill(path, data, bytes - n, "", 0);
        break;
    case LENGTH:
        spill(path, &n, 8, data + 8, bytes - 8);
        break;
    case FILL:
        fill_tensor(path, from, (uint16_t)n);
        break;
    }
    free(edited);
    free(data);
}

void shrink_tokenizer(const char *folder, int64_t ids)
{
    char path[256];
    const char *token;
    json_t *id;
    path_in(path, folder, "tokenizer.json");
    json_t *tokenizer = json_load_file(path, 0, NULL), *model = json_object_get(tokenizer, "model"),
           *vocab = json_object();
    assert_non_null(model);
    json_object_foreach(json_object_get(model, "vocab"), token, id) if (json_integer_value(id) < ids)
        json_object_set(vocab, token, id);
    json_object_set_new(model, "vocab", vocab);
    json_object_set_new(model, "merges", json_array());
    char *text = json_dumps(tokenizer, 0);
    spill(path, text, strlen(text), "", 0);
    free(text);
    json_decref(tokenizer);
}

bool broken_folder(char folder[64])
{
    const char *temporary = getenv("TMPDIR");
    snprintf(folder, 64, "%s/coterie.XXXXXX", temporary && strlen(temporary) < 40 ? temporary : "/tmp");
    return mkdtemp(folder);
}

bool broken_folder_remove(const char *folder)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command) == 0;
}
