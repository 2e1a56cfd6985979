#include "base/json_load.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool is_of_number(char c)
{
    return isdigit((unsigned char)c) || (c && strchr("+-.eE", c));
}

/* Whether a number [bytes] of JSON is an integer that int64_t does not hold. */
static bool is_beyond(const char *number, size_t bytes)
{
    const bool negative = *number == '-';
    const char *digits = number + negative, *most = negative ? "9223372036854775808" : "9223372036854775807";
    const size_t count = bytes - negative;
    for (size_t i = 0; i < count; i++)
        if (!isdigit((unsigned char)digits[i])) return false;
    return count > 19 || (count == 19 && memcmp(digits, most, 19) > 0);
}

static size_t end_of_string(const char *text, size_t at, size_t bytes)
{
    for (at++; at < bytes && text[at] != '"'; at++) at += text[at] == '\\';
    return at < bytes ? at + 1 : bytes;
}

/* Copies JSON text, with ".0" behind each integer beyond 64 bits; NULL when memory runs out. */
static char *with_points(const char *text, size_t bytes, size_t *out_bytes)
{
    char *out = malloc(bytes + bytes / 8 + 1); // such an integer has 19 digits or more
    size_t to = 0;
    for (size_t at = 0, end; out && at < bytes; at = end) {
        end = at + 1;
        const bool number = is_of_number(text[at]);
        if (text[at] == '"') end = end_of_string(text, at, bytes);
        while (number && end < bytes && is_of_number(text[end])) end++;
        memcpy(out + to, text + at, end - at);
        to += end - at;
        if (number && is_beyond(text + at, end - at)) {
            memcpy(out + to, ".0", 2);
            to += 2;
        }
    }
    *out_bytes = to;
    return out;
}

json_t *cot_json_load(const char *text, size_t bytes, size_t flags, json_error_t *error)
{
    json_t *json = json_loadb(text, bytes, flags, error);
    if (json || json_error_code(error) != json_error_numeric_overflow) return json;
    size_t pointed_bytes;
    char *pointed = with_points(text, bytes, &pointed_bytes);
    if (pointed)
        json = json_loadb(pointed, pointed_bytes, flags, error);
    else
        error->text[JSON_ERROR_TEXT_LENGTH - 1] = json_error_out_of_memory;
    free(pointed);
    return json;
}
