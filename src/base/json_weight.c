#include "base/json_weight.h"

#include <stdbool.h>

/* jansson takes, with the allocator's own share, 224 bytes for an object, 128 for a list, up to 96 for a value in either,
 * 190 for a member, and text up to four times: as it came, twice while a string is read, the string. */
cot_json_weight cot_json_weigh(const char *text, size_t bytes)
{
    enum { OBJECT = 224, LIST = 128, VALUE = 96, MEMBER = 190, TEXT = 4 };
    size_t depth = 0;
    cot_json_weight w = {0, TEXT * bytes};
    bool inside = false;
    for (size_t i = 0; i < bytes; i++) {
        const char c = text[i];
        if (inside) {
            if (c == '\\')
                i++;
            else if (c == '"')
                inside = false;
        } else if (c == '"')
            inside = true;
        else if (c == '{' || c == '[') {
            if (++depth > w.depth) w.depth = depth;
            w.bytes += c == '{' ? VALUE + OBJECT : VALUE + LIST;
        } else if (c == '}' || c == ']')
            depth -= depth > 0;
        else if (c == ',')
            w.bytes += VALUE;
        else if (c == ':')
            w.bytes += MEMBER;
    }
    return w;
}
