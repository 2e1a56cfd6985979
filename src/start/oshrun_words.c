#include "start/oshrun_words.h"

#include "start/hosts.h"

#include <stdio.h>
#include <string.h>

static bool is_ruler(const char *line)
{
    enum { LEAST = 60 };
    const size_t dashes = strspn(line, "-");
    return dashes >= LEAST && line[dashes] == '\n';
}

/* Of what it says of every death, in pieces that others' lines may come between, and now and then of starting on another host. */
static bool is_piece(const char *line)
{
    static const char *const pieces[] = {"PMIX ERROR", "Internal error is appeared", "[pshmem_",
                                         "error during flush", "plm:rsh: Warning: setpgid"};
    bool known = false;
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) known |= strstr(line, pieces[i]) != NULL;
    return known;
}

bool cot_oshrun_says(cot_oshrun_words *words, const char *line)
{
    if (is_ruler(line)) {
        words->whole |= words->first[0] != 0;
        words->inside = !words->inside;
        return true;
    }
    if (!words->inside) return is_piece(line);
    line += strspn(line, " \t");
    const size_t length = strcspn(line, "\n"), used = strlen(words->first);
    words->whole |= !length && used;
    if (!words->whole && length)
        snprintf(words->first + used, sizeof words->first - used, "%s%.*s", used ? " " : "", (int)length,
                 line);
    return true;
}

bool cot_oshrun_line(char *line, size_t bytes, const cot_oshrun_words *words, const char *hostfile)
{
    static const char unreached[] = "ORTE was unable to reliably start one or more daemons";
    char names[512];
    if (!words->first[0]) return false;
    if (hostfile && strncmp(words->first, unreached, sizeof unreached - 1) == 0) {
        cot_hosts_unreached(names, sizeof names, hostfile);
        snprintf(
            line, bytes,
            "%s%s of '%s' cannot be started on: `ssh HOST orted --version` has to work without a question",
            *names ? "" : "a host", names, hostfile);
    } else
        snprintf(line, bytes, "oshrun: %s", words->first);
    return true;
}
