#include "base/file.h"

#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static cot_status fail_errno(cot_error *error, const char *what, const char *path)
{
    int code = errno;
    return cot_fail(error,
                    code == ENOENT   ? COT_NOT_FOUND
                    : code == ENOMEM ? COT_OUT_OF_MEMORY
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
            *map = (cot_file_map){data, (size_t)info.st_size};
    }
    close(fd);
    return status;
}

void cot_file_map_close(cot_file_map *map)
{
    if (map->data) munmap((void *)(uintptr_t)map->data, map->bytes);
    *map = (cot_file_map){0};
}

void cot_file_map_drop(const cot_file_map *map, size_t offset, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), first = (offset + page - 1) / page * page,
           last = (offset + bytes) / page * page;
    if (last > first) madvise((void *)(uintptr_t)(map->data + first), last - first, MADV_DONTNEED);
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

/* Opens a file that has no name yet in the folder of `path`; -1 where that cannot be. */
static int open_nameless(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = !slash ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
    // Only through /proc can it get a name later.
    int fd =
        folder && !access("/proc/self/fd", X_OK) ? open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666) : -1;
    free(folder);
    return fd;
}

/* Gives the nameless file a temporary name. */
static bool name_temporary(cot_file_writer *writer)
{
    char from[64];
    snprintf(from, sizeof from, "/proc/self/fd/%d", fileno(writer->stream));
    for (int attempt = 0; attempt < 1000; attempt++) {
        char *name;
        if (asprintf(&name, "%s.%ld-%d", writer->path, (long)getpid(), attempt) < 0) return false;
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
    struct stat info;
    *writer = (cot_file_writer){.path = strdup(path)};
    if (!writer->path) return cot_fail(error, COT_OUT_OF_MEMORY, "cannot write '%s': out of memory", path);
    bool direct = stat(path, &info) == 0 && !S_ISREG(info.st_mode);
    cot_status status = COT_OK;
    int fd = -1;
    if (direct) {
        if ((fd = open(path, O_WRONLY | O_CLOEXEC)) < 0) status = fail_errno(error, "write", path);
    } else if ((fd = open_nameless(path)) >= 0) {
        writer->nameless = true;
    } else if (asprintf(&writer->temporary, "%s.XXXXXX", path) < 0) {
        writer->temporary = NULL;
        status = cot_fail(error, COT_OUT_OF_MEMORY, "cannot write '%s': out of memory", path);
    } else if ((fd = mkstemp(writer->temporary)) < 0) {
        status = fail_errno(error, "write", path);
        free(writer->temporary);
        writer->temporary = NULL;
    } else {
        mode_t mask = umask(0);
        umask(mask);
        fchmod(fd, 0666 & ~mask);
    }
    if (fd >= 0 && !(writer->stream = fdopen(fd, "wb"))) {
        status = fail_errno(error, "write", path);
        close(fd);
    }
    if (status != COT_OK) cot_file_writer_abort(writer);
    return status;
}

cot_status cot_file_writer_commit(cot_file_writer *writer, cot_error *error)
{
    bool failed = fflush(writer->stream) != 0 || ferror(writer->stream);
    if (!failed && writer->nameless) failed = !name_temporary(writer);
    cot_status status = failed ? fail_errno(error, "write", writer->path) : COT_OK;
    if (fclose(writer->stream) && status == COT_OK) status = fail_errno(error, "write", writer->path);
    writer->stream = NULL;
    if (status == COT_OK && writer->temporary) {
        if (rename(writer->temporary, writer->path)) {
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
    free(writer->path);
    *writer = (cot_file_writer){0};
}

char *cot_path_join(const char *folder, const char *name)
{
    char *path;
    return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}
