#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

const char *cot_status_text(cot_status status)
{
    switch (status) {
#define COT_STATUS_TEXT(name, text)                                                                          \
    case COT_##name:                                                                                         \
        return text;
        COT_STATUS_LIST(COT_STATUS_TEXT)
#undef COT_STATUS_TEXT
    }
    return "unknown status";
}

cot_status cot_fail(cot_error *error, cot_status status, const char *format, ...)
{
    if (!error) return status;
    va_list args;
    va_start(args, format);
    int length = vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    if (length >= (int)sizeof error->message) { // was cut: drop the last, perhaps incomplete UTF-8 character
        char *end = error->message + sizeof error->message - 1;
        for (int back = 0; back < 3 && (end[-1] & 0xc0) == 0x80; back++) end--;
        if ((unsigned char)end[-1] >= 0xc0) end--;
        *end = 0;
    }
    for (unsigned char *c = (unsigned char *)error->message; *c; c++)
        if (*c < 0x20 || *c == 0x7f) *c = '?';
    error->status = status;
    return status;
}
