#include "cli/bench/request_trace.h"
#include "cli/frame/command.h"
#include "cli/frame/whole_file.h"

#include <stdlib.h>
#include <string.h>

/* NULL, or what is wrong. */
static const char *read_request(cli_request_trace *t, const char *text)
{
    if (t->count == t->room) {
        const size_t room = t->room ? 2 * t->room : 4096;
        cot_load_test_line *grown = realloc(t->requests, room * sizeof *grown);
        if (!grown) return "out of memory";
        t->requests = grown;
        t->room = room;
    }
    cot_load_test_line *r = &t->requests[t->count];
    const char *const wrong = cot_load_test_read_line(r, &t->blocks, text);
    if (wrong) return wrong;
    if (!r->blocks) return "no hash_ids";
    if (t->count && r->at_ns < r[-1].at_ns) return "its time goes back";
    for (size_t i = r->first_block; i < t->blocks.count; i++)
        if (t->blocks.ids[i] >= t->numbers) t->numbers = t->blocks.ids[i] + 1;
    t->count++;
    return NULL;
}

bool cli_request_trace_read(cli_request_trace *t, const char *path)
{
    *t = (cli_request_trace){0};
    size_t bytes, number = 0;
    char *const text = cli_read_whole(path, &bytes);
    if (!text) return false;
    const char *wrong = NULL;
    if (memchr(text, 0, bytes)) {
        cli_complain("'%s': a byte 0, which no JSON has", path);
        free(text);
        return false;
    }
    for (char *line = text, *next; line && *line && !wrong; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        number++;
        if (*line) wrong = read_request(t, line);
    }
    free(text);
    if (wrong)
        cli_complain("'%s' line %zu: %s", path, number, wrong);
    else if (!t->count)
        cli_complain("'%s': no requests", path);
    if (!wrong && t->count) return true;
    cli_request_trace_free(t);
    return false;
}

void cli_request_trace_free(cli_request_trace *t)
{
    free(t->requests);
    free(t->blocks.ids);
    *t = (cli_request_trace){0};
}
