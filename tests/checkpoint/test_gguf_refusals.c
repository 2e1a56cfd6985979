/* Malformed GGUF files, each refused in one line by what reads the model or its tokenizer. */
#include "harness/cmocka.h"

#include "checkpoint/checkpoint.h"
#include "coterie/tokenizer.h"
#include "harness/engine/golden.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BAD COT_SHARED "/golden/gguf/bad"

/* What of these files is no harm: it is read as anybody would, or not at all. */
static bool is_harmless(const char *name)
{
    return !strcmp(name, "good.gguf") || !strcmp(name, "bool-2.gguf");
}

/* Parts that are not opened by themselves. */
static bool is_later_part(const char *name)
{
    return strstr(name, "-of-") && !strstr(name, "-00001-of-") && strncmp(name, "split-late-00002", 16) != 0;
}

static cot_status open_all(const char *path, cot_error *error)
{
    cot_checkpoint *checkpoint = NULL;
    cot_tokenizer *tokenizer = NULL;
    char *notes = NULL;
    cot_status status = cot_checkpoint_open(&checkpoint, path, &notes, error);
    if (status == COT_OK) status = cot_tokenizer_open(&tokenizer, path, error);
    cot_checkpoint_close(checkpoint);
    cot_tokenizer_close(tokenizer);
    free(notes);
    return status;
}

static void bad_files(void **state)
{
    (void)state;
    int files = 0;
    DIR *folder = opendir(BAD);
    if (!folder) {
        printf("SKIPPED: there is no '%s'\n", BAD);
        skip();
    }
    for (const struct dirent *entry; (entry = readdir(folder));) {
        char path[600];
        cot_error error = {.message = ""};
        if (entry->d_name[0] == '.' || is_later_part(entry->d_name)) continue;
        snprintf(path, sizeof path, BAD "/%s", entry->d_name);
        const cot_status status = open_all(path, &error);
        if ((status == COT_OK) != is_harmless(entry->d_name))
            fail_msg("'%s' is %s", entry->d_name, status == COT_OK ? "read" : error.message);
        if (status != COT_OK)
            assert_true(error.status == status && strstr(error.message, BAD) && !strchr(error.message, '\n'));
        files++;
    }
    closedir(folder);
    assert_true(files >= 78);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bad_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
