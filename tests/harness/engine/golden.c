#include "harness/engine/golden.h"

#include "harness/cmocka.h"

#include <stdio.h>
#include <sys/stat.h>

bool folder_exists(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

bool golden_absent(const char *test)
{
    if (folder_exists(COT_SHARED "/golden")) return false;
    printf("SKIPPED: %s: there is no '%s'\n", test, COT_SHARED "/golden");
    return true;
}

void golden_path(char path[1024], const char *name, const char *file)
{
    assert_true(snprintf(path, 1024, COT_SHARED "/golden/%s%s%s", name, file ? "/" : "", file ? file : "") <
                1024);
}
