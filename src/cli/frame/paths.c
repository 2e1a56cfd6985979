#include "cli/frame/paths.h"

#include "cli/frame/command.h"
#include "coterie/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool cli_check_model(const char *path)
{
    cot_error error;
    if (cot_model_check(path, &error) == COT_OK) return true;
    cli_complain_of(&error);
    return false;
}

bool cli_is_standard_output(const char *path)
{
    return path && !strcmp(path, "-");
}

const char *cli_output_path(const char *path)
{
    return cli_is_standard_output(path) ? "/dev/fd/1" : path;
}

bool cli_check_output(const char *path, const char *data)
{
    cot_error error;
    if (!path || cli_is_other_rank()) return true; // it writes nothing
    if (data && cli_is_standard_output(path)) {
        cli_complain("'-' is standard output, which holds %s: name a file", data);
        return false;
    }
    if (cot_file_writer_check(cli_output_path(path), &error) == COT_OK) return true;
    cli_complain_of(&error);
    return false;
}

FILE *cli_open_output(cot_file_writer *writer, const char *path)
{
    cot_error error;
    if (cot_file_writer_open(writer, cli_output_path(path), &error) != COT_OK) cli_complain_of(&error);
    return writer->stream;
}

bool cli_close_output(cot_file_writer *writer)
{
    cot_error error;
    if (!writer->stream || cot_file_writer_commit(writer, &error) == COT_OK) return true;
    cli_complain_of(&error);
    return false;
}

bool cli_write_json(const char *path, json_t *json)
{
    cot_file_writer writer = {0};
    char *text = json ? json_dumps(json, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(json);
    if (!text)
        cli_complain("cannot write '%s': out of memory", path);
    else if (cli_open_output(&writer, path))
        fprintf(writer.stream, "%s\n", text);
    free(text);
    return writer.stream && cli_close_output(&writer);
}
