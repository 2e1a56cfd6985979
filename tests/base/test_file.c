#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64];
static cot_error error;

static int enter_folder(void **state)
{
    (void)state;
    strcpy(folder, "file-XXXXXX");
    return !mkdtemp(folder) || chdir(folder);
}

static int leave_folder(void **state)
{
    (void)state;
    char line[128];
    snprintf(line, sizeof line, "rm -rf '%s'", folder);
    return chdir("..") || system(line);
}

static int count_files(void)
{
    int count = 0;
    DIR *dir = opendir(".");
    for (struct dirent *entry; (entry = readdir(dir));) count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

static void put(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void expect_text(const char *path, const char *expected)
{
    char *text;
    size_t bytes;
    assert_int_equal(cot_file_read(&text, &bytes, path, 100, &error), COT_OK);
    assert_int_equal(bytes, strlen(expected));
    assert_string_equal(text, expected);
    free(text);
}

static void test_map(void **state)
{
    (void)state;
    cot_file_map map;
    put("text", "hello");
    put("empty", "");
    assert_int_equal(symlink("text", "link"), 0);
    assert_int_equal(cot_file_map_open(&map, "link", &error), COT_OK);
    assert_int_equal(map.bytes, 5);
    assert_memory_equal(map.data, "hello", 5);
    cot_file_map_drop(&map, 0, 5);
    assert_memory_equal(map.data, "hello", 5);
    cot_file_map_close(&map);
    assert_null(map.data);
    cot_file_map_close(&map);
    assert_int_equal(cot_file_map_open(&map, "empty", &error), COT_OK);
    assert_null(map.data);
    assert_int_equal(map.bytes, 0);
    cot_file_map_close(&map);
    assert_int_equal(cot_file_map_open(&map, "absent", &error), COT_NOT_FOUND);
    assert_string_equal(error.message, "cannot open 'absent': No such file or directory");
    assert_null(map.data);
    assert_int_equal(cot_file_map_open(&map, ".", &error), COT_IO);
    assert_string_equal(error.message, "cannot open '.': it is a directory");
    assert_int_equal(mkfifo("pipe", 0600), 0);
    assert_int_equal(cot_file_map_open(&map, "pipe", &error), COT_IO); // and does not wait for a writer
    assert_string_equal(error.message, "cannot open 'pipe': not a regular file");
    assert_int_equal(cot_file_map_open(&map, "absent", NULL), COT_NOT_FOUND);
}

static void test_read(void **state)
{
    (void)state;
    char *text = (char *)1;
    size_t bytes;
    put("text", "hello");
    put("empty", "");
    expect_text("text", "hello");
    expect_text("empty", "");
    assert_int_equal(cot_file_read(&text, &bytes, "text", 4, &error), COT_MALFORMED);
    assert_null(text);
    assert_string_equal(error.message, "cannot read 'text': 5 bytes, more than the 4 allowed");
    assert_int_equal(cot_file_read(&text, &bytes, "absent", 4, &error), COT_NOT_FOUND);
    assert_null(text);
}

static void test_write(void **state)
{
    (void)state;
    cot_file_writer writer;
    struct stat info;
    umask(027);
    int before = count_files();
    assert_int_equal(cot_file_writer_open(&writer, "new", &error), COT_OK);
    fputs("one", writer.stream);
    assert_int_equal(access("new", F_OK), -1); // not before it is whole
    assert_int_equal(cot_file_writer_commit(&writer, &error), COT_OK);
    expect_text("new", "one");
    assert_int_equal(stat("new", &info), 0);
    assert_int_equal(info.st_mode & 0777, 0640);

    assert_int_equal(cot_file_writer_open(&writer, "new", &error), COT_OK);
    fputs("two", writer.stream);
    fflush(writer.stream);
    expect_text("new", "one");
    cot_file_writer_abort(&writer);
    cot_file_writer_abort(&writer);
    expect_text("new", "one");

    assert_int_equal(cot_file_writer_open(&writer, "new", &error), COT_OK);
    fputs("three", writer.stream);
    assert_int_equal(cot_file_writer_commit(&writer, &error), COT_OK);
    cot_file_writer_abort(&writer);
    expect_text("new", "three");
    assert_int_equal(count_files(), before + 1); // no temporary file stays
}

/* A program that ends in the middle of writing leaves nothing behind, where files can be without a name. */
static void test_write_killed(void **state)
{
    (void)state;
    int probe = open(".", O_TMPFILE | O_WRONLY, 0600);
    if (probe < 0) {
        print_message("SKIPPED: this file system knows no files without a name\n");
        skip();
    }
    close(probe);
    int before = count_files();
    pid_t child = fork();
    if (!child) {
        cot_file_writer writer;
        if (cot_file_writer_open(&writer, "half", &error) != COT_OK) _exit(1);
        fputs("half of it", writer.stream);
        fflush(writer.stream);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(count_files(), before);
}

static void test_write_refused(void **state)
{
    (void)state;
    cot_file_writer writer;
    int before = count_files();
    assert_int_equal(cot_file_writer_open(&writer, "absent/file", &error), COT_NOT_FOUND);
    assert_string_equal(error.message, "cannot write 'absent/file': No such file or directory");
    assert_null(writer.stream);
    cot_file_writer_abort(&writer);
    assert_int_equal(cot_file_writer_open(&writer, ".", &error), COT_IO);
    assert_string_equal(error.message, "cannot write '.': Is a directory");
    assert_int_equal(count_files(), before);
}

/* A full device is noticed whether the text still sits in the buffer or was flushed long ago. */
static void test_full(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 4096, 1 << 20};
    for (int i = 0; i < 3; i++) {
        cot_file_writer writer;
        assert_int_equal(cot_file_writer_open(&writer, "/dev/full", &error), COT_OK);
        for (size_t n = 0; n < sizes[i]; n++) fputc('x', writer.stream);
        assert_int_equal(cot_file_writer_commit(&writer, &error), COT_IO);
        assert_string_equal(error.message, "cannot write '/dev/full': No space left on device");
        assert_null(writer.stream);
    }
    assert_int_equal(access("/dev/full", F_OK), 0);
}

static void test_join(void **state)
{
    (void)state;
    char *path = cot_path_join("a/b", "c");
    assert_string_equal(path, "a/b/c");
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_map),           cmocka_unit_test(test_read),
        cmocka_unit_test(test_write),         cmocka_unit_test(test_write_killed),
        cmocka_unit_test(test_write_refused), cmocka_unit_test(test_full),
        cmocka_unit_test(test_join),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
