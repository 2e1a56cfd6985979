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

static void expect_link(const char *link, const char *expected)
{
    char target[256] = "";
    assert_true(readlink(link, target, sizeof target - 1) > 0);
    assert_string_equal(target, expected);
}

static void write_all(const char *path, const char *text)
{
    cot_file_writer writer;
    assert_int_equal(cot_file_writer_check(path, &error), COT_OK);
    assert_int_equal(cot_file_writer_open(&writer, path, &error), COT_OK);
    fputs(text, writer.stream);
    assert_int_equal(cot_file_writer_commit(&writer, &error), COT_OK);
}

static void refuse(const char *path, const char *reason)
{
    cot_file_writer writer;
    char message[128];
    snprintf(message, sizeof message, "cannot write '%s': %s", path, reason);
    assert_int_not_equal(cot_file_writer_check(path, &error), COT_OK);
    assert_string_equal(error.message, message);
    assert_int_not_equal(cot_file_writer_open(&writer, path, &error), COT_OK);
    assert_string_equal(error.message, message);
    assert_null(writer.stream);
}

/* Links stay, whatever they lead to; what they lead to is replaced as a whole, in its own folder. */
static void test_write_links(void **state)
{
    (void)state;
    cot_file_writer writer;
    int before = count_files();
    put("target", "old");
    assert_int_equal(mkdir("deep", 0777) | symlink("target", "one") | symlink("one", "two") |
                         symlink("../two", "deep/three") | symlink("deep/three", "four") |
                         symlink("deep", "folder") | symlink("deep/new", "dangling") |
                         symlink("absent/new", "lost") | symlink("round", "round"),
                     0);
    assert_int_equal(cot_file_writer_open(&writer, "four", &error), COT_OK);
    fputs("new", writer.stream);
    fflush(writer.stream);
    expect_text("target", "old");
    assert_int_equal(cot_file_writer_commit(&writer, &error), COT_OK);
    expect_text("target", "new");
    write_all("folder/../two", "again");
    expect_text("target", "again");
    expect_link("one", "target");
    expect_link("two", "one");
    expect_link("deep/three", "../two");
    expect_link("four", "deep/three");
    write_all("dangling", "made");
    expect_link("dangling", "deep/new");
    expect_text("deep/new", "made");
    refuse("lost", "No such file or directory");
    refuse("round", "Too many levels of symbolic links");
    refuse("folder", "Is a directory");
    refuse("deep/", "Is a directory");
    refuse("target/", "Not a directory");
    refuse("absent/", "No such file or directory");
    refuse("", "No such file or directory");
    expect_link("lost", "absent/new");
    expect_link("round", "round");
    assert_int_equal(count_files(), before + 9); // and nothing beside them
    assert_int_equal(unlink("deep/three") | unlink("deep/new") | rmdir("deep"), 0);
}

/* Chains that Linux follows are followed, longer ones refused. */
static void test_write_many_links(void **state)
{
    (void)state;
    char name[16], next[16];
    put("link0", "old");
    for (int i = 1; i <= 41; i++) {
        snprintf(name, sizeof name, "link%d", i);
        snprintf(next, sizeof next, "link%d", i - 1);
        assert_int_equal(symlink(next, name), 0);
    }
    write_all("link40", "new");
    expect_text("link0", "new");
    refuse("link41", "Too many levels of symbolic links");
}

/* A pipe is written as it goes, and stays a pipe. */
static void test_write_pipe(void **state)
{
    (void)state;
    struct stat info;
    char text[8] = "";
    assert_int_equal(mkfifo("fifo", 0600) | symlink("fifo", "to-fifo"), 0);
    int reader = open("fifo", O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0);
    int before = count_files();
    write_all("fifo", "one");
    assert_int_equal(read(reader, text, 3), 3);
    assert_string_equal(text, "one");
    write_all("to-fifo", "two");
    assert_int_equal(read(reader, text, 3), 3);
    assert_string_equal(text, "two");
    close(reader);
    assert_true(lstat("fifo", &info) == 0 && S_ISFIFO(info.st_mode));
    expect_link("to-fifo", "fifo");
    assert_int_equal(count_files(), before);
}

/* What stands for a descriptor goes on where the descriptor stands. The links are stand-ins for /dev/stdout, which
 * a writer that replaces links would destroy. */
static void test_write_descriptor(void **state)
{
    (void)state;
    char path[64], proc[64];
    int fd = open("log", O_CREAT | O_WRONLY, 0666);
    assert_int_equal(write(fd, "one ", 4), 4);
    snprintf(proc, sizeof proc, "/proc/self/fd/%d", fd);
    assert_int_equal(symlink(proc, "stand-in") | symlink("stand-in", "to-stand-in"), 0);
    write_all("to-stand-in", "two ");
    write_all(proc, "three ");
    snprintf(path, sizeof path, "/dev/fd/%d", fd);
    write_all(path, "four ");
    assert_int_equal(write(fd, "five", 4), 4); // and so does whoever else writes to it
    expect_text("log", "one two three four five");
    close(fd);
    fd = open("log", O_RDONLY);
    snprintf(path, sizeof path, "/dev/fd/%d", fd);
    assert_int_equal(cot_file_writer_check(path, &error), COT_IO);
    assert_non_null(strstr(error.message, "Bad file descriptor"));
    close(fd);
    assert_int_equal(cot_file_writer_check(path, &error), COT_IO);
    expect_link("to-stand-in", "stand-in");
    expect_link("stand-in", proc);
}

/* Where a folder may not be written to, its file cannot be replaced, though it could be written over. */
static void test_write_closed_folder(void **state)
{
    (void)state;
    enum { NOBODY = 65534 };
    assert_int_equal(mkdir("closed", 0777), 0);
    put("closed/file", "kept");
    assert_int_equal(symlink("closed/file", "to-closed") | chmod("closed/file", 0666) |
                         chmod("closed", 0555) | chmod(".", 0755),
                     0);
    pid_t child = fork();
    if (!child) {
        cot_file_writer writer;
        if (!geteuid() && setuid(NOBODY)) _exit(1); // root may do everything
        bool refused = cot_file_writer_check("to-closed", &error) == COT_IO &&
                       !strcmp(error.message, "cannot write 'to-closed': Permission denied") &&
                       cot_file_writer_open(&writer, "to-closed", &error) == COT_IO &&
                       !strcmp(error.message, "cannot write 'to-closed': Permission denied");
        _exit(!refused);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    expect_text("closed/file", "kept");
    expect_link("to-closed", "closed/file");
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

static void test_ends(void **state)
{
    (void)state;
    assert_true(cot_path_ends("a.json", ".json"));
    assert_true(cot_path_ends(".json", ".json"));
    assert_true(cot_path_ends("a", ""));
    assert_false(cot_path_ends("json", ".json"));
    assert_false(cot_path_ends("a.json5", ".json"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_map),
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_write),
        cmocka_unit_test(test_write_killed),
        cmocka_unit_test(test_write_refused),
        cmocka_unit_test(test_write_links),
        cmocka_unit_test(test_write_many_links),
        cmocka_unit_test(test_write_pipe),
        cmocka_unit_test(test_write_descriptor),
        cmocka_unit_test(test_write_closed_folder),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_join),
        cmocka_unit_test(test_ends),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
