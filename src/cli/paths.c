#include "paths.h"

#include "command.h"
#include "coterie/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool cot_check_model(const char *path)
{
    cot_error error;
    if (cot_model_check(path, &error) == COT_OK) return true;
    cot_complain_of(&error);
    return false;
}

bool cot_is_standard_output(const char *path)
{
    return path && !strcmp(path, "-");
}

const char *cot_output_path(const char *path)
{
    return cot_is_standard_output(path) ? "/dev/fd/1" : path;
}

bool cot_check_output(const char *path, const char *data)
{
    cot_error error;
    if (!path || cot_is_other_rank()) return true; // it writes nothing
    if (data && cot_is_standard_output(path)) {
        cot_complain("'-' is standard output, which holds %s: name a file", data);
        return false;
    }
    if (cot_file_writer_check(cot_output_path(path), &error) == COT_OK) return true;
    cot_complain_of(&error);
    return false;
}

FILE *cot_open_output(cot_file_writer *writer, const char *path)
{
    cot_error error;
    if (cot_file_writer_open(writer, cot_output_path(path), &error) != COT_OK) cot_complain_of(&error);
    return writer->stream;
}

bool cot_close_output(cot_file_writer *writer)
{
    cot_error error;
    if (!writer->stream || cot_file_writer_commit(writer, &error) == COT_OK) return true;
    cot_complain_of(&error);
    return false;
}

bool cot_write_json(const char *path, json_t *json)
{
    cot_file_writer writer = {0};
    char *text = json ? json_dumps(json, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(json);
    if (!text)
        cot_complain("cannot write '%s': out of memory", path);
    else if (cot_open_output(&writer, path))
        fprintf(writer.stream, "%s\n", text);
    free(text);
    return writer.stream && cot_close_output(&writer);
}
