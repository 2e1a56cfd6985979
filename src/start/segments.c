#include "start/segments.h"

#include <glob.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef bool holds_function(const char *file, const char *segment);

/* An open file of a process. */
static bool is_open(const char *file, const char *segment)
{
    struct stat one, other;
    return stat(file, &one) == 0 && stat(segment, &other) == 0 && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}

/* What a process has mapped. */
static bool is_mapped(const char *file, const char *segment)
{
    FILE *maps = fopen(file, "r");
    char *line = NULL;
    size_t room = 0;
    bool mapped = false;
    while (maps && !mapped && getline(&line, &room, maps) > 0) mapped = strstr(line, segment) != NULL;
    free(line);
    if (maps) fclose(maps);
    return mapped;
}

static bool any_holds(holds_function *holds, const char *pattern, const char *segment)
{
    glob_t found;
    bool any = false;
    if (glob(pattern, GLOB_NOSORT, NULL, &found) != 0) return false;
    for (size_t i = 0; i < found.gl_pathc && !any; i++) any = holds(found.gl_pathv[i], segment);
    globfree(&found);
    return any;
}

void cot_oshrun_remove_segments(time_t since)
{
    glob_t found;
    if (glob("/dev/shm/ucx_shm_posix_*", GLOB_NOSORT, NULL, &found) != 0) return;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        const char *segment = found.gl_pathv[i];
        struct stat about;
        if (lstat(segment, &about) == 0 && S_ISREG(about.st_mode) && about.st_uid == geteuid() &&
            about.st_ctime >= since && !any_holds(is_open, "/proc/[0-9]*/fd/*", segment) &&
            !any_holds(is_mapped, "/proc/[0-9]*/maps", segment))
            unlink(segment);
    }
    globfree(&found);
}
