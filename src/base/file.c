#include "base/file.h"

#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static cot_status fail_errno(cot_error *error, const char *what, const char *path)
{
    int code = errno;
    return cot_fail(error,
                    code == ENOENT || code == ENOTDIR ? COT_NOT_FOUND
                    : code == ENOMEM                  ? COT_OUT_OF_MEMORY
                                                      : COT_IO,
                    "cannot %s '%s': %s", what, path, strerror(code));
}

static int open_regular(const char *path, struct stat *info, cot_error *error, cot_status *status)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, info)) {
        *status = fail_errno(error, "open", path);
    } else if (!S_ISREG(info->st_mode)) {
        *status = cot_fail(error, COT_IO, "cannot open '%s': %s", path,
                           S_ISDIR(info->st_mode) ? "it is a directory" : "not a regular file");
    } else {
        *status = COT_OK;
        return fd;
    }
    if (fd >= 0) close(fd);
    return -1;
}

cot_status cot_file_map_open(cot_file_map *map, const char *path, cot_error *error)
{
    struct stat info;
    cot_status status;
    *map = (cot_file_map){0};
    int fd = open_regular(path, &info, error, &status);
    if (fd < 0) return status;
    if (info.st_size > 0) {
        void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED)
            status = fail_errno(error, "map", path);
        else
            *map = (cot_file_map){data, (size_t)info.st_size, fd};
    }
    if (!map->data) close(fd);
    return status;
}

void cot_file_map_close(cot_file_map *map)
{
    if (map->data) {
        munmap((void *)(uintptr_t)map->data, map->bytes);
        close(map->descriptor);
    }
    *map = (cot_file_map){0};
}

void cot_file_map_drop(const cot_file_map *map, size_t offset, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), first = (offset + page - 1) / page * page,
           last = (offset + bytes) / page * page;
    if (last > first) madvise((void *)(uintptr_t)(map->data + first), last - first, MADV_DONTNEED);
}

bool cot_file_map_read(const cot_file_map *map, void *to, size_t offset, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = pread(map->descriptor, (char *)to + done, bytes - done, (off_t)(offset + done));
        if (n <= 0 && !(n < 0 && errno == EINTR)) return false;
        if (n > 0) done += (size_t)n;
    }
    return true;
}

cot_status cot_file_read(char **text, size_t *bytes, const char *path, size_t limit, cot_error *error)
{
    struct stat info;
    cot_status status;
    *text = NULL;
    int fd = open_regular(path, &info, error, &status);
    if (fd < 0) return status;
    size_t size = (size_t)info.st_size, done = 0;
    char *buffer = NULL;
    if (size > limit)
        status = cot_fail(error, COT_MALFORMED, "cannot read '%s': %zu bytes, more than the %zu allowed",
                          path, size, limit);
    else if (!(buffer = malloc(size + 1)))
        status = cot_fail(error, COT_OUT_OF_MEMORY, "cannot read '%s': out of memory", path);
    while (status == COT_OK && done < size) {
        ssize_t n = read(fd, buffer + done, size - done);
        if (n < 0)
            status = fail_errno(error, "read", path);
        else if (n == 0)
            size = done;
        else
            done += (size_t)n;
    }
    close(fd);
    if (status != COT_OK) {
        free(buffer);
        return status;
    }
    buffer[size] = 0;
    *text = buffer;
    *bytes = size;
    return COT_OK;
}

/* ---- writing ---- */

/* Where a path leads when it is written to. */
typedef struct destination {
    char *file;     // the file to make or replace, its links resolved; NULL: the path itself is written to
    int descriptor; // the one of this process that the path stands for; -1: none
} destination;

/* What is behind a name in /proc/self/fd. Opening that name anew would begin at the file's start, over what has
 * been written there: its descriptor is asked for instead. */
static int descriptor_of(const char *folder, const char *name)
{
    char *ours = realpath("/proc/self/fd", NULL), *end;
    long number = strtol(name, &end, 10);
    bool found = ours && !strcmp(folder, ours) && *name >= '0' && *name <= '9' && !*end && number <= INT_MAX;
    free(ours);
    return found ? (int)number : -1;
}

/* "FOLDER" of "FOLDER/NAME", "." of "NAME"; NULL when out of memory. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return !slash ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

/* What the link, which lies in `folder`, holds, as a path; NULL with errno. */
static char *read_link(const char *link, const char *folder)
{
    char text[PATH_MAX], *path;
    ssize_t length = readlink(link, text, sizeof text - 1);
    if (length < 0) return NULL;
    text[length] = 0;
    if (*text == '/') return strdup(text);
    return asprintf(&path, "%s/%s", folder, text) < 0 ? NULL : path;
}

/* One step on the way of `path`: fills `to`, or `*next` with the path that it links to. Returns 0 or an errno. */
static int look(destination *to, char **next, const char *path)
{
    struct stat info;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char *given = folder_of(path), *folder = given ? realpath(given, NULL) : NULL, *file = NULL;
    int error = 0;
    if (!folder || asprintf(&file, "%s/%s", strcmp(folder, "/") ? folder : "", name) < 0) {
        error = errno;
        file = NULL;
    } else if (!strcmp(folder, "/proc") || !strncmp(folder, "/proc/", 6)) {
        to->descriptor = descriptor_of(folder, name);
    } else if (lstat(file, &info)) {
        if (errno == ENOENT)
            to->file = file;
        else
            error = errno;
    } else if (S_ISREG(info.st_mode)) {
        to->file = file;
    } else if (S_ISLNK(info.st_mode) && !(*next = read_link(file, folder))) {
        error = errno;
    }
    if (file != to->file) free(file);
    free(folder);
    free(given);
    return error;
}

/* Resolves `path`; returns 0 or the errno of what hinders. The caller frees to->file. */
static int find_destination(destination *to, const char *path)
{
    enum { MOST_LINKS = 40 }; // as many as Linux follows
    char *at = NULL, *next = NULL;
    *to = (destination){NULL, -1};
    int error = look(to, &next, path);
    for (int links = 1; next && !error; links++) {
        free(at);
        at = next;
        next = NULL;
        error = links > MOST_LINKS ? ELOOP : look(to, &next, at);
    }
    free(at);
    return error;
}

/* Opens a file that has no name yet in the folder of `file`; -1 where that cannot be. */
static int open_nameless(const char *file)
{
    char *folder = folder_of(file);
    // Only through /proc can it get a name later.
    int fd =
        folder && !access("/proc/self/fd", X_OK) ? open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666) : -1;
    free(folder);
    return fd;
}

/* Opens a file under a temporary name beside the target. */
static int open_temporary(cot_file_writer *writer)
{
    if (asprintf(&writer->temporary, "%s.XXXXXX", writer->target) < 0) {
        writer->temporary = NULL;
        return -1;
    }
    int fd = mkostemp(writer->temporary, O_CLOEXEC), code = errno;
    if (fd < 0) {
        free(writer->temporary);
        writer->temporary = NULL;
        errno = code;
        return -1;
    }
    mode_t mask = umask(0);
    umask(mask);
    fchmod(fd, 0666 & ~mask);
    return fd;
}

/* Gives the nameless file a temporary name. */
static bool name_temporary(cot_file_writer *writer)
{
    char from[64];
    snprintf(from, sizeof from, "/proc/self/fd/%d", fileno(writer->stream));
    for (int attempt = 0; attempt < 1000; attempt++) {
        char *name;
        if (asprintf(&name, "%s.%ld-%d", writer->target, (long)getpid(), attempt) < 0) return false;
        if (!linkat(AT_FDCWD, from, AT_FDCWD, name, AT_SYMLINK_FOLLOW)) {
            writer->temporary = name;
            return true;
        }
        free(name);
        if (errno != EEXIST) break;
    }
    return false;
}

cot_status cot_file_writer_open(cot_file_writer *writer, const char *path, cot_error *error)
{
    destination to;
    *writer = (cot_file_writer){.path = strdup(path)};
    int code = find_destination(&to, path), fd = -1;
    writer->target = to.file;
    if (!writer->path) code = ENOMEM;
    errno = code;
    if (!code && to.descriptor >= 0)
        fd = fcntl(to.descriptor, F_DUPFD_CLOEXEC, 0);
    else if (!code && !to.file)
        fd = open(path, O_WRONLY | O_CLOEXEC);
    else if (!code && (fd = open_nameless(to.file)) < 0)
        fd = open_temporary(writer);
    if (fd >= 0 && (writer->stream = fdopen(fd, "wb"))) return COT_OK;
    cot_status status = fail_errno(error, "write", path);
    if (fd >= 0) close(fd);
    cot_file_writer_abort(writer);
    return status;
}

cot_status cot_file_writer_check(const char *path, cot_error *error)
{
    struct stat info;
    destination to;
    int code = find_destination(&to, path), mode;
    if (!code && to.file) {
        char *folder = folder_of(to.file);
        code = !folder ? ENOMEM : access(folder, W_OK | X_OK) ? errno : 0;
        free(folder);
    } else if (!code && to.descriptor >= 0) {
        mode = fcntl(to.descriptor, F_GETFL);
        code = mode < 0 ? errno : (mode & O_ACCMODE) == O_RDONLY ? EBADF : 0;
    } else if (!code) {
        code = stat(path, &info) || access(path, W_OK) ? errno : S_ISDIR(info.st_mode) ? EISDIR : 0;
    }
    free(to.file);
    errno = code;
    return code ? fail_errno(error, "write", path) : COT_OK;
}

cot_status cot_file_writer_commit(cot_file_writer *writer, cot_error *error)
{
    bool failed = fflush(writer->stream) != 0 || ferror(writer->stream);
    if (!failed && writer->target && !writer->temporary) failed = !name_temporary(writer);
    cot_status status = failed ? fail_errno(error, "write", writer->path) : COT_OK;
    if (fclose(writer->stream) && status == COT_OK) status = fail_errno(error, "write", writer->path);
    writer->stream = NULL;
    if (status == COT_OK && writer->target) {
        if (rename(writer->temporary, writer->target)) {
            status = fail_errno(error, "write", writer->path);
        } else {
            free(writer->temporary);
            writer->temporary = NULL;
        }
    }
    cot_file_writer_abort(writer);
    return status;
}

void cot_file_writer_abort(cot_file_writer *writer)
{
    if (writer->stream) fclose(writer->stream);
    if (writer->temporary) unlink(writer->temporary);
    free(writer->temporary);
    free(writer->target);
    free(writer->path);
    *writer = (cot_file_writer){0};
}

bool cot_path_ends(const char *name, const char *end)
{
    const size_t length = strlen(name), tail = strlen(end);
    return length >= tail && !strcmp(name + length - tail, end);
}

char *cot_path_join(const char *folder, const char *name)
{
    char *path;
    return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

cot_status cot_file_append_open(int *descriptor, const char *path, cot_error *error)
{
    *descriptor = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    if (*descriptor >= 0 && fcntl(*descriptor, F_SETFL, O_APPEND) == 0) return COT_OK;
    if (*descriptor >= 0) close(*descriptor);
    *descriptor = -1;
    return cot_fail(error, COT_IO, "cannot append to '%s': %s", path, strerror(errno));
}
