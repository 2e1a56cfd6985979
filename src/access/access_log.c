#include "access/access_log.h"

#include "base/error.h"
#include "base/file.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct cot_access_log {
    char *path;
    int file;
    bool fails; // the last line could not be written
};

static cot_status open_file(int *file, const char *path, cot_error *error)
{
    *file = STDOUT_FILENO;
    return strcmp(path, "-") == 0 ? COT_OK : cot_file_append_open(file, path, error);
}

static void close_file(int file)
{
    if (file >= 0 && file != STDOUT_FILENO) close(file);
}

cot_status cot_access_log_open(cot_access_log **out, const char *path, cot_error *error)
{
    cot_access_log *log = *out = calloc(1, sizeof *log);
    if (log) {
        log->file = -1;
        log->path = strdup(path);
    }
    cot_status status =
        log && log->path ? COT_OK : cot_fail(error, COT_OUT_OF_MEMORY, "out of memory for the access log");
    if (status == COT_OK) status = open_file(&log->file, path, error);
    if (status == COT_OK) return COT_OK;
    cot_access_log_close(log);
    *out = NULL;
    return status;
}

cot_status cot_access_log_reopen(cot_access_log *log, cot_error *error)
{
    int fresh;
    const cot_status status = open_file(&fresh, log->path, error);
    if (status != COT_OK) return status;
    close_file(log->file);
    log->file = fresh;
    return COT_OK;
}

/* "2026-01-31T23:59:59.123Z" */
static void write_time(char text[32])
{
    struct timespec now;
    struct tm parts;
    char seconds[24];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    strftime(seconds, sizeof seconds, "%Y-%m-%dT%H:%M:%S", &parts);
    snprintf(text, 32, "%s.%03dZ", seconds, (int)(now.tv_nsec / 1000000) % 1000);
}

static json_t *text_or_null(const char *text)
{
    json_t *value = text && *text ? json_string(text) : NULL;
    return value ? value : json_null(); // also what is no UTF-8
}

bool cot_access_log_write(cot_access_log *log, cot_log_level most, const cot_http_exchange *exchange,
                          const cot_http_outcome *o)
{
    static const char *const names[] = {"error", "warning", "info"};
    const cot_log_level level = o->status >= 500                ? COT_LOG_ERROR
                                : o->status >= 400 || !o->whole ? COT_LOG_WARNING
                                                                : COT_LOG_INFO;
    char now[32];
    if (level > most) return true;
    write_time(now);
    json_t *line =
        json_pack("{s:s,s:s,s:o,s:o,s:o,s:o,s:b,s:I,s:f,s:o}", "time", now, "level", names[level], "client",
                  text_or_null(cot_http_peer(exchange)), "method", text_or_null(o->method), "path",
                  text_or_null(o->path), "status", o->status ? json_integer(o->status) : json_null(), "whole",
                  o->whole, "bytes", (json_int_t)o->body_bytes, "seconds", (double)o->ns / 1e9, "request_id",
                  text_or_null(o->request_id));
    char *text = line ? json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    const bool failed_before = log->fails;
    int reason = ENOMEM;
    log->fails = true;
    if (text) {
        const size_t n = strlen(text);
        text[n] = '\n'; // in one piece: others may append to the file, too
        const ssize_t written = write(log->file, text, n + 1);
        log->fails = written != (ssize_t)n + 1;
        reason = written < 0 ? errno : ENOSPC;
    }
    free(text);
    json_decref(line);
    errno = reason;
    return !log->fails || failed_before;
}

void cot_access_log_close(cot_access_log *log)
{
    if (!log) return;
    close_file(log->file);
    free(log->path);
    free(log);
}
