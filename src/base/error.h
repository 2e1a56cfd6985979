/* Filling in a cot_error. Includes nothing of ours but the public status. */
#ifndef COT_BASE_ERROR_H
#define COT_BASE_ERROR_H
#include "coterie/status.h"

/* Stores `status` and the formatted line in `error` (NULL is fine) and returns `status`. Control characters
 * in the line are replaced by '?', so that whatever a file holds, the message stays one line. */
cot_status cot_fail(cot_error *error, cot_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold));

#endif
