/* A line of JSON for each request that was answered, or not. */
#ifndef COT_ACCESS_ACCESS_LOG_H
#define COT_ACCESS_ACCESS_LOG_H
#include "net/http_server.h"
#include "coterie/access.h"
#include "coterie/status.h"

typedef struct cot_access_log cot_access_log;

/* Appends to a file ("-": standard output, line by line). `*log` is NULL on failure. Errors: IO, OUT_OF_MEMORY. */
cot_status cot_access_log_open(cot_access_log **log, const char *path, cot_error *error);
/* Goes on in a file of the same name, where somebody has renamed the old one. On failure the old one stays. */
cot_status cot_access_log_reopen(cot_access_log *log, cot_error *error);
/* Writes a line, unless its level (an error from 500 on, a warning from 400 on or where a client has left) is less urgent
 * than `level`. False, with errno, on the first line of a row that could not be written: whose trouble that is hears of it
 * once. */
bool cot_access_log_write(cot_access_log *log, cot_log_level level, const cot_http_exchange *exchange,
                          const cot_http_outcome *outcome);
void cot_access_log_close(cot_access_log *log); // NULL is fine

#endif
