#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

const char *cot_status_text(cot_status status) {
    switch (status) {
#define COT_STATUS_TEXT(name, text)                                                                          \
    case COT_##name: return text;
        COT_STATUS_LIST(COT_STATUS_TEXT)
#undef COT_STATUS_TEXT
    }
    return "unknown status";
}

cot_status cot_fail(cot_error *error, cot_status status, const char *format, ...) {
    if (!error) return status;
    va_list args;
    va_start(args, format);
    vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    for (unsigned char *c = (unsigned char *)error->message; *c; c++)
        if (*c < 0x20 || *c == 0x7f) *c = '?';
    error->status = status;
    return status;
}
