/* NFC through utf8proc's tables. Combining marks are sorted here, not by utf8proc, which exchanges
 * neighbours: quadratic in a long run of them. */
#include "tokenizer/normalize.h"

#include "base/error.h"
#include "tokenizer/utf8.h"

#include <stdint.h>
#include <utf8proc.h>

enum { MOST_PARTS = 8, SHORT_RUN = 16, CLASSES = 256, CHUNK_BYTES = 1 << 16 };

static int class_of(int32_t character)
{
    return utf8proc_get_property(character)->combining_class;
}

/* Characters below U+0300 are their own NFC and combine with nothing before them. */
static bool is_plain(const cot_buffer *text)
{
    for (size_t i = 0; i < text->bytes; i++)
        if ((unsigned char)text->data[i] >= 0xcc) return false;
    return true;
}

/* Sorts marks [count] by combining class, those of one class in their order: by insertion where they are few,
 * else by counting. `spare` has room for as many. */
static void sort_marks(int32_t *marks, size_t count, int32_t *spare)
{
    if (count <= SHORT_RUN) {
        for (size_t i = 1; i < count; i++) {
            int32_t mark = marks[i];
            size_t at = i;
            for (; at && class_of(marks[at - 1]) > class_of(mark); at--) marks[at] = marks[at - 1];
            marks[at] = mark;
        }
        return;
    }
    size_t starts[CLASSES + 1] = {0};
    for (size_t i = 0; i < count; i++) starts[class_of(marks[i]) + 1]++;
    for (int c = 0; c < CLASSES; c++) starts[c + 1] += starts[c];
    for (size_t i = 0; i < count; i++) spare[starts[class_of(marks[i])]++] = marks[i];
    memcpy(marks, spare, count * sizeof *marks);
}

/* Writes the canonical decomposition of text [bytes] to `characters`, with its marks in order; returns how
 * many. */
static size_t decompose(const char *text, size_t bytes, int32_t *characters, int32_t *spare)
{
    size_t count = 0, run = 0; // where the marks at the end begin
    for (size_t at = 0; at < bytes;) {
        int32_t parts[MOST_PARTS];
        int boundary = 0;
        utf8proc_ssize_t n =
            utf8proc_decompose_char(cot_utf8_next(text, &at), parts, MOST_PARTS, UTF8PROC_COMPOSE, &boundary);
        for (utf8proc_ssize_t i = 0; i < n; i++) {
            if (!class_of(parts[i])) {
                sort_marks(characters + run, count - run, spare);
                run = count + 1;
            }
            characters[count++] = parts[i];
        }
    }
    sort_marks(characters + run, count - run, spare);
    return count;
}

static bool compose_chunk(cot_buffer *out, const char *text, size_t bytes)
{
    // A character decomposes to at most four, and to at most twice as many characters as it has bytes.
    int32_t *characters = malloc(bytes * 4 * sizeof *characters);
    if (!characters) return false;
    size_t count = decompose(text, bytes, characters, characters + bytes * 2);
    utf8proc_ssize_t composed =
        utf8proc_normalize_utf32(characters, (utf8proc_ssize_t)count, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    bool appended = true;
    for (utf8proc_ssize_t i = 0; i < composed && appended; i++) {
        char utf8[4];
        appended = cot_buffer_append(out, utf8, cot_utf8_write(utf8, characters[i]));
    }
    free(characters);
    return appended;
}

cot_status cot_nfc(cot_buffer *text, cot_error *error)
{
    if (is_plain(text)) return COT_OK;
    cot_buffer out = {0};
    bool appended = true;
    for (size_t start = 0, end; start < text->bytes && appended; start = end) {
        // Nothing before an ASCII character changes it or what follows it.
        end = text->bytes - start < CHUNK_BYTES ? text->bytes : start + CHUNK_BYTES;
        while (end < text->bytes && (unsigned char)text->data[end] >= 0x80) end++;
        appended = compose_chunk(&out, text->data + start, end - start);
    }
    cot_buffer_free(appended ? text : &out);
    if (!appended) return cot_fail(error, COT_OUT_OF_MEMORY, "out of memory");
    *text = out;
    return COT_OK;
}
