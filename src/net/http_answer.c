/* What a handler says: all of it goes to the exchange's buffer, and cot_http_advance sends it. */
#include "net/http_connection.h"
#include "base/clock.h"
#include <assert.h>
#include <stdarg.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <time.h>

static const char *reason(int status)
{
    static const struct {
        int status;
        const char *text;
    } rows[] = {{100, "Continue"},
                {200, "OK"},
                {201, "Created"},
                {202, "Accepted"},
                {204, "No Content"},
                {301, "Moved Permanently"},
                {302, "Found"},
                {304, "Not Modified"},
                {307, "Temporary Redirect"},
                {308, "Permanent Redirect"},
                {400, "Bad Request"},
                {401, "Unauthorized"},
                {403, "Forbidden"},
                {404, "Not Found"},
                {405, "Method Not Allowed"},
                {406, "Not Acceptable"},
                {408, "Request Timeout"},
                {409, "Conflict"},
                {411, "Length Required"},
                {413, "Content Too Large"},
                {414, "URI Too Long"},
                {415, "Unsupported Media Type"},
                {417, "Expectation Failed"},
                {421, "Misdirected Request"},
                {422, "Unprocessable Content"},
                {429, "Too Many Requests"},
                {431, "Request Header Fields Too Large"},
                {500, "Internal Server Error"},
                {501, "Not Implemented"},
                {502, "Bad Gateway"},
                {503, "Service Unavailable"},
                {504, "Gateway Timeout"},
                {505, "HTTP Version Not Supported"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].status == status) return rows[i].text;
    }
    return "Status";
}

/* Whatever does not fit into memory ends the connection. */
static void put(cot_http_exchange *exchange, const void *bytes, size_t count)
{
    if (!cot_http_buffer_count(&exchange->out)) exchange->progress_ns = cot_now_ns();
    if (!cot_http_buffer_add(&exchange->out, bytes, count)) exchange->broken = true;
}

static void put_text(cot_http_exchange *exchange, const char *text)
{
    put(exchange, text, strlen(text));
}

static __attribute__((format(printf, 2, 3))) void put_line(cot_http_exchange *exchange, const char *format,
                                                           ...)
{
    char line[128];
    va_list arguments;
    va_start(arguments, format);
    const int n = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    assert(n >= 0 && (size_t)n < sizeof line);
    put(exchange, line, (size_t)n);
}

static void put_field(cot_http_exchange *exchange, const char *name, const char *value)
{
    put_text(exchange, name);
    put_text(exchange, ": ");
    const size_t count = strlen(value);
    put(exchange, value, count);
    if (!exchange->broken) { // no value may begin a line of its own
        char *const at = exchange->out.bytes + exchange->out.end - count;
        for (size_t i = 0; i < count; i++) {
            if ((unsigned char)at[i] < ' ' || at[i] == 127) at[i] = ' ';
        }
    }
    put_text(exchange, "\r\n");
}

/* "Sun, 06 Nov 1994 08:49:37 GMT", made once a second. */
static const char *date(cot_http_server *server)
{
    const time_t now = time(NULL);
    if (now != server->date_second || !*server->date) {
        struct tm parts;
        gmtime_r(&now, &parts);
        static const char days[] = "SunMonTueWedThuFriSat", months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
        snprintf(server->date, sizeof server->date, "%.3s, %02u %.3s %u %02u:%02u:%02u GMT",
                 days + 3 * parts.tm_wday, (unsigned)parts.tm_mday % 100, months + 3 * parts.tm_mon,
                 (unsigned)(parts.tm_year + 1900) % 10000, (unsigned)parts.tm_hour % 100,
                 (unsigned)parts.tm_min % 100, (unsigned)parts.tm_sec % 100);
        server->date_second = now;
    }
    return server->date;
}

/* The client's own name for the request, or one that no other has. */
static void name_request(cot_http_exchange *exchange)
{
    cot_http_server *server = exchange->server;
    const char *wished = exchange->has_head ? cot_http_header(exchange, "X-Request-Id") : NULL;
    if (wished && *wished && strlen(wished) < sizeof exchange->request_id) {
        strcpy(exchange->request_id, wished);
        return;
    }
    if (!server->names_drawn && getrandom(&server->names_drawn, sizeof server->names_drawn, 0) < 0)
        server->names_drawn = (uint64_t)cot_now_ns();
    snprintf(exchange->request_id, sizeof exchange->request_id, "req-%016" PRIx64 "%016" PRIx64,
             server->names_drawn, ++server->names);
}

static void put_head(cot_http_exchange *exchange, int status, const char *type, const cot_http_field *fields,
                     size_t count)
{
    bool is_named = false;
    exchange->status = status;
    for (size_t i = 0; i < count; i++) {
        if (strcasecmp(fields[i].name, "X-Request-Id") != 0) continue;
        snprintf(exchange->request_id, sizeof exchange->request_id, "%s", fields[i].value);
        is_named = true;
    }
    if (!is_named) name_request(exchange);
    put_line(exchange, "HTTP/1.1 %d %s\r\n", status, reason(status));
    put_field(exchange, "Date", date(exchange->server));
    if (type) put_field(exchange, "Content-Type", type);
    for (size_t i = 0; i < count; i++) put_field(exchange, fields[i].name, fields[i].value);
    if (!is_named) put_field(exchange, "X-Request-Id", exchange->request_id);
    if (!exchange->keep)
        put_text(exchange, "Connection: close\r\n");
    else if (!exchange->head.minor)
        put_text(exchange, "Connection: keep-alive\r\n");
}

/* The answer is complete: on to the next request, or to the end. */
static void finish(cot_http_exchange *exchange)
{
    cot_http_tell_over(exchange, true);
    cot_http_forget(exchange);
    cot_http_enter(exchange, exchange->keep ? COT_HTTP_HEAD : COT_HTTP_LINGER);
    exchange->answered = true;
    cot_http_wake(exchange);
}

void cot_http_reply(cot_http_exchange *exchange, int status, const char *type, const cot_http_field *fields,
                    size_t count, const void *body, size_t bytes)
{
    assert(exchange->state == COT_HTTP_BODY || exchange->state == COT_HTTP_OWED || !exchange->shown);
    if (exchange->server->stopping) exchange->keep = false;
    if (exchange->state == COT_HTTP_BODY && (exchange->head.chunked || exchange->head.length > 0)) {
        exchange->keep = false; // its body will not be read
    }
    put_head(exchange, status, type, fields, count);
    const bool empty = status == 204 || status == 304;
    if (!empty) put_line(exchange, "Content-Length: %zu\r\n", bytes);
    put_text(exchange, "\r\n");
    if (!empty && !exchange->only_head) {
        put(exchange, body, bytes);
        exchange->answer_bytes = bytes;
    }
    finish(exchange);
}

void cot_http_stream_begin(cot_http_exchange *exchange, int status, const char *type,
                           const cot_http_field *fields, size_t count)
{
    assert(exchange->state == COT_HTTP_OWED);
    exchange->chunked = exchange->head.minor == 1;
    if (!exchange->chunked || exchange->server->stopping) exchange->keep = false;
    put_head(exchange, status, type, fields, count);
    if (exchange->chunked) put_text(exchange, "Transfer-Encoding: chunked\r\n");
    put_text(exchange, "\r\n");
    exchange->pings = type && !strncasecmp(type, "text/event-stream", 17) && !exchange->only_head;
    cot_http_enter(exchange, COT_HTTP_STREAM);
    exchange->sent_ns = cot_now_ns();
    cot_http_wake(exchange);
}

/* A chunk's size in hexadecimal digits, and the line's end. */
static void put_size(cot_http_exchange *exchange, size_t count)
{
    char line[sizeof count * 2 + 2], *at = line + sizeof line - 2;
    memcpy(at, "\r\n", 2);
    do *--at = "0123456789abcdef"[count & 15];
    while (count >>= 4);
    put(exchange, at, (size_t)(line + sizeof line - at));
}

/* Room for a piece of `count` bytes of the stream, its frame begun; NULL where nothing is to be sent. */
static char *begin_piece(cot_http_exchange *exchange, size_t count)
{
    assert(exchange->state == COT_HTTP_STREAM);
    if (!count || exchange->only_head || exchange->broken) return NULL;
    exchange->sent_ns = cot_now_ns();
    if (exchange->chunked)
        put_size(exchange, count);
    else
        put(exchange, "", 0);
    if (!cot_http_buffer_reserve(&exchange->out, count + 2)) exchange->broken = true;
    cot_http_wake(exchange);
    if (exchange->broken) return NULL;
    char *const at = exchange->out.bytes + exchange->out.end;
    exchange->out.end += count;
    exchange->answer_bytes += count;
    return at;
}

static void end_piece(cot_http_exchange *exchange)
{
    if (exchange->chunked) put_text(exchange, "\r\n");
}

void cot_http_stream_send(cot_http_exchange *exchange, const void *bytes, size_t count)
{
    char *const at = begin_piece(exchange, count);
    if (!at) return;
    memcpy(at, bytes, count);
    end_piece(exchange);
}

void cot_http_stream_event(cot_http_exchange *exchange, const char *data, size_t count)
{
    size_t lines = 1;
    for (size_t i = 0; i < count; i++) lines += data[i] == '\n';
    char *at = begin_piece(exchange, count + 6 * lines + 2);
    if (!at) return;
    for (size_t begin = 0; lines--;) {
        const char *const stop = memchr(data + begin, '\n', count - begin);
        const size_t n = stop ? (size_t)(stop - data) - begin : count - begin;
        memcpy(at, "data: ", 6);
        memcpy(at + 6, data + begin, n);
        at[6 + n] = '\n';
        at += 7 + n;
        begin += n + 1;
    }
    *at = '\n';
    end_piece(exchange);
}

size_t cot_http_stream_waiting(const cot_http_exchange *exchange)
{
    return cot_http_buffer_count(&exchange->out);
}

void cot_http_stream_end(cot_http_exchange *exchange)
{
    assert(exchange->state == COT_HTTP_STREAM);
    if (exchange->chunked && !exchange->only_head) put_text(exchange, "0\r\n\r\n");
    finish(exchange);
}

void cot_http_close_after(cot_http_exchange *exchange)
{
    exchange->keep = false;
}

void cot_http_abort(cot_http_exchange *exchange)
{
    cot_http_tell_over(exchange, false);
    cot_http_forget(exchange);
    exchange->broken = true;
    cot_http_wake(exchange);
}

void cot_http_refuse(cot_http_exchange *exchange, int status, const char *message)
{
    const cot_http_server *const server = exchange->server;
    char body[1024];
    size_t bytes = strlen(message);
    const char *type = "text/plain; charset=utf-8";
    if (server->handler.error_body) {
        bytes = server->handler.error_body(server->context, status, message, body, sizeof body);
        type = server->handler.error_type;
        message = body;
    }
    exchange->keep = false;
    const cot_http_field retry = {"Retry-After", "1"};
    cot_http_reply(exchange, status, type, &retry, status == 503, message, bytes);
}
