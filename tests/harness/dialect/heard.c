#include "harness/dialect/heard.h"

#include <assert.h>
#include <stdio.h>

static bool on_content(void *context, const char *text, size_t bytes)
{
    return cot_buffer_append(&((heard *)context)->content, text, bytes);
}

static bool on_reasoning(void *context, const char *text, size_t bytes)
{
    return cot_buffer_append(&((heard *)context)->reasoning, text, bytes);
}

static bool on_call(void *context, const char *name, size_t bytes, const char *id, size_t id_bytes)
{
    heard *h = context;
    void *calls = h->calls;
    if (!cot_grow(&calls, &h->capacity, h->count + 1, sizeof *h->calls)) return false;
    h->calls = calls;
    h->calls[h->count] = (heard_call){.has_id = id != NULL};
    heard_call *call = &h->calls[h->count++];
    return cot_buffer_append(&call->name, name, bytes) &&
           cot_buffer_append(&call->id, id ? id : "", id_bytes) && cot_buffer_append(&call->arguments, "", 0);
}

static bool on_arguments(void *context, const char *text, size_t bytes)
{
    heard *h = context;
    assert(h->count);
    return cot_buffer_append(&h->calls[h->count - 1].arguments, text, bytes);
}

heard heard_parse(const cot_dialect_options *options, const char *text, size_t bytes, const size_t *cuts,
                  size_t cut_count, bool is_cut)
{
    heard h = {0};
    cot_dialect_options own = *options;
    own.listener = (cot_dialect_listener){&h, on_content, on_reasoning, on_call, on_arguments};
    cot_dialect_parser *parser = cot_dialect_open(&own);
    bool good = parser && cot_buffer_append(&h.content, "", 0) && cot_buffer_append(&h.reasoning, "", 0);
    size_t from = 0;
    for (size_t i = 0; i <= cut_count && good; i++) {
        const size_t to = i < cut_count ? cuts[i] : bytes;
        good = cot_dialect_push(parser, text + from, to - from);
        from = to;
    }
    good = good && cot_dialect_finish(parser, is_cut);
    assert(good);
    h.unread = cot_dialect_unread(parser);
    cot_dialect_close(parser);
    return h;
}

static bool same(const cot_buffer *a, const cot_buffer *b)
{
    return a->bytes == b->bytes && memcmp(a->data, b->data, a->bytes) == 0;
}

bool heard_equal(const heard *a, const heard *b)
{
    bool equal = same(&a->content, &b->content) && same(&a->reasoning, &b->reasoning) &&
                 a->count == b->count && a->unread == b->unread;
    for (size_t i = 0; equal && i < a->count; i++)
        equal = same(&a->calls[i].name, &b->calls[i].name) && same(&a->calls[i].id, &b->calls[i].id) &&
                a->calls[i].has_id == b->calls[i].has_id &&
                same(&a->calls[i].arguments, &b->calls[i].arguments);
    return equal;
}

void heard_print(const heard *h)
{
    printf("  content   [%s]\n  reasoning [%s]\n", h->content.data, h->reasoning.data);
    for (size_t i = 0; i < h->count; i++)
        printf("  call      [%s] id [%s] [%s]\n", h->calls[i].name.data, h->calls[i].id.data,
               h->calls[i].arguments.data);
}

void heard_free(heard *h)
{
    cot_buffer_free(&h->content);
    cot_buffer_free(&h->reasoning);
    for (size_t i = 0; i < h->count; i++) {
        cot_buffer_free(&h->calls[i].name);
        cot_buffer_free(&h->calls[i].id);
        cot_buffer_free(&h->calls[i].arguments);
    }
    free(h->calls);
    *h = (heard){0};
}

static bool is_plain(const json_t *plain, size_t at)
{
    size_t i;
    json_t *offset;
    json_array_foreach(plain, i, offset) if ((size_t)json_integer_value(offset) == at) return true;
    return false;
}

cot_buffer heard_mark(const char *text, size_t bytes, const json_t *markers, const json_t *plain)
{
    cot_buffer out = {0};
    bool good = cot_buffer_append(&out, "", 0);
    for (size_t at = 0; at < bytes && good;) {
        size_t longest = 0, i;
        json_t *marker;
        json_array_foreach(markers, i, marker)
        {
            const size_t length = json_string_length(marker);
            if (length > longest && length <= bytes - at &&
                memcmp(text + at, json_string_value(marker), length) == 0)
                longest = length;
        }
        if (is_plain(plain, at)) longest = 0;
        if (longest) {
            const char special =
                text[at] == '[' || text[at + 1] == '|' || (unsigned char)text[at + 1] == 0xef;
            good = cot_buffer_append(&out, special ? "\xff" : "\xfe", 1) &&
                   cot_buffer_append(&out, text + at, longest) && cot_buffer_append(&out, "\xfd", 1);
            at += longest;
        } else {
            good = cot_buffer_append(&out, text + at, 1);
            at++;
        }
    }
    assert(good);
    return out;
}
