#include "start/session.h"

#include <ftw.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *at)
{
    (void)about, (void)kind, (void)at;
    remove(path);
    return 0;
}

static const char *folder_for_such(void)
{
    static const char *const names[] = {"OMPI_MCA_orte_tmpdir_base", "TMPDIR", "TEMP", "TMP"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *folder = getenv(names[i]);
        if (folder && *folder) return folder;
    }
    return "/tmp";
}

void cot_oshrun_remove_session(pid_t oshrun)
{
    enum { MOST_OPEN = 16 };
    char pattern[4096];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/ompi.*.%u/pid.%d", folder_for_such(), (unsigned)geteuid(),
             (int)oshrun);
    if (glob(pattern, GLOB_NOSORT, NULL, &found) != 0) return;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        nftw(found.gl_pathv[i], remove_one, MOST_OPEN, FTW_DEPTH | FTW_PHYS);
        *strrchr(found.gl_pathv[i], '/') = 0;
        rmdir(found.gl_pathv[i]); // other runs' may be there
    }
    globfree(&found);
}
