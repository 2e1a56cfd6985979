#include "paths.h"

#include "command.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool cot_check_model(const char *path)
{
    struct stat info;
    char *config = NULL;
    if (stat(path, &info))
        cot_complain("cannot open '%s': %s", path, strerror(errno));
    else if (!S_ISDIR(info.st_mode))
        cot_complain("'%s' is a file, expected a model folder", path);
    else if (asprintf(&config, "%s/config.json", path) < 0)
        cot_complain("out of memory");
    else if (stat(config, &info))
        cot_complain("'%s' is no model: there is no config.json in it", path);
    else {
        free(config);
        return true;
    }
    free(config);
    return false;
}

/* The folder that the file goes to must be writable: a regular file is replaced, never written over. */
static int folder_error(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = !slash ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
    int error = !folder ? ENOMEM : access(folder, W_OK | X_OK) ? errno : 0;
    free(folder);
    return error;
}

bool cot_check_output(const char *path)
{
    struct stat info;
    if (!path) return true;
    bool exists = stat(path, &info) == 0;
    int error = !*path                             ? ENOENT
                : exists && S_ISDIR(info.st_mode)  ? EISDIR
                : exists && !S_ISREG(info.st_mode) ? (access(path, W_OK) ? errno : 0)
                                                   : folder_error(path);
    if (error) cot_complain("cannot write '%s': %s", path, strerror(error));
    return !error;
}
