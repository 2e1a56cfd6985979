#include "net/http_head.h"
#include <string.h>
#include <strings.h>

/* The characters of a token: names of methods and fields. */
static bool is_token(unsigned char c)
{
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

int64_t cot_http_head_end(const char *bytes, size_t count, size_t *at)
{
    for (size_t i = *at; i < count; i++) {
        const unsigned char c = (unsigned char)bytes[i];
        if (c == '\n') {
            if (!i || bytes[i - 1] != '\r') return -1;
            if (i == 1 || (i >= 3 && bytes[i - 2] == '\n')) return (int64_t)i + 1;
        } else if ((i && bytes[i - 1] == '\r') || (c < ' ' && c != '\t' && c != '\r') || c == 127) {
            return -1;
        }
    }
    *at = count;
    return 0;
}

const char *cot_http_head_find(const cot_http_head *head, const char *name)
{
    for (size_t i = 0; i < head->count; i++) {
        if (!strcasecmp(head->fields[i].name, name)) return head->fields[i].value;
    }
    return NULL;
}

/* Whether `word` is in the list of words between commas. */
static bool lists(const char *list, const char *word)
{
    const size_t length = strlen(word);
    while (*list) {
        list += strspn(list, " \t,");
        const size_t n = strcspn(list, ",");
        size_t end = n;
        while (end && (list[end - 1] == ' ' || list[end - 1] == '\t')) end--;
        if (end == length && !strncasecmp(list, word, length)) return true;
        list += n;
    }
    return false;
}

static int refuse(int status, const char **why, const char *message)
{
    *why = message;
    return status;
}

/* Digits alone, and few enough of them. */
static int64_t read_length(const char *text)
{
    int64_t value = 0;
    size_t n = 0;
    for (; text[n] >= '0' && text[n] <= '9' && n < 18; n++) value = value * 10 + (text[n] - '0');
    return n && !text[n] ? value : -1;
}

/* The fields from `line` to the empty line that ends at `end`. */
static int read_fields(char *line, char *end, cot_http_head *head, const char **why)
{
    head->count = 0;
    while (line + 2 < end) {
        char *const stop = memchr(line, '\r', (size_t)(end - line));
        if (*line == ' ' || *line == '\t') return refuse(400, why, "a header line may not be folded");
        if (head->count == COT_HTTP_MAX_FIELDS) return refuse(431, why, "too many header fields");
        char *colon = line;
        while (colon < stop && is_token((unsigned char)*colon)) colon++;
        if (colon == line || *colon != ':') return refuse(400, why, "a header line without a proper name");
        char *value = colon + 1, *last = stop;
        while (value < last && (*value == ' ' || *value == '\t')) value++;
        while (last > value && (last[-1] == ' ' || last[-1] == '\t')) last--;
        *colon = *last = '\0';
        head->fields[head->count++] = (cot_http_field){line, value};
        line = stop + 2;
    }
    return 0;
}

/* What the fields say about the body and the connection. */
static int read_framing(cot_http_head *head, const char **why)
{
    static const char *const single[] = {"content-length", "transfer-encoding", "host", "content-type",
                                         "authorization"};
    bool seen[sizeof single / sizeof *single] = {false};
    head->length = -1;
    head->chunked = head->expects = false;
    head->keep_alive = head->minor == 1;
    for (size_t i = 0; i < head->count; i++) {
        const char *const name = head->fields[i].name, *const value = head->fields[i].value;
        for (size_t s = 0; s < sizeof single / sizeof *single; s++) {
            if (strcasecmp(name, single[s])) continue;
            if (seen[s]) return refuse(400, why, "a header field that may occur once occurs twice");
            seen[s] = true;
        }
        if (!strcasecmp(name, "content-length")) {
            head->length = read_length(value);
            if (head->length < 0) return refuse(400, why, "Content-Length is not a number");
        } else if (!strcasecmp(name, "transfer-encoding")) {
            if (strcasecmp(value, "chunked")) return refuse(501, why, "Transfer-Encoding other than chunked");
            if (!head->minor) return refuse(400, why, "Transfer-Encoding in HTTP/1.0");
            head->chunked = true;
        } else if (!strcasecmp(name, "connection")) {
            if (lists(value, "close")) head->keep_alive = false;
            if (!head->minor && lists(value, "keep-alive")) head->keep_alive = true;
        } else if (!strcasecmp(name, "expect")) {
            if (strcasecmp(value, "100-continue")) return refuse(417, why, "Expect other than 100-continue");
            head->expects = head->minor == 1;
        }
    }
    if (seen[0] && seen[1]) return refuse(400, why, "Content-Length and Transfer-Encoding together");
    for (size_t i = 0; i < head->count; i++) { // `close` beats `keep-alive`, in whichever order
        if (!strcasecmp(head->fields[i].name, "connection") && lists(head->fields[i].value, "close")) {
            head->keep_alive = false;
        }
    }
    return 0;
}

/* "HTTP/1.0" or "HTTP/1.1" and nothing else. */
static int read_version(const char *text, size_t count, cot_http_head *head, const char **why)
{
    if (count != 8 || memcmp(text, "HTTP/", 5) || text[6] != '.' || text[5] < '0' || text[5] > '9' ||
        text[7] < '0' || text[7] > '9') {
        return refuse(400, why, "the first line is not HTTP's");
    }
    if (text[5] != '1' || text[7] > '1')
        return refuse(505, why, "only HTTP/1.0 and HTTP/1.1 are spoken here");
    head->minor = text[7] - '0';
    return 0;
}

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* Length of the UTF-8 character at `s`, NUL-terminated; 0 where there is none. */
static size_t utf8_length(const unsigned char *s)
{
    if (s[0] < 0x80) return 1;
    const size_t n = s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
    }
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) ||
        (s[0] == 0xf4 && s[1] > 0x8f)) {
        return 0;
    }
    return n;
}

/* Decodes %XX in place. false: a broken escape, a control character, no UTF-8. */
static bool decode_path(char *path)
{
    char *out = path;
    for (const char *in = path; *in; in++) {
        char c = *in;
        if (c == '%') {
            const int high = hex(in[1]), low = high < 0 ? -1 : hex(in[2]);
            if (low < 0) return false;
            c = (char)(high << 4 | low);
            in += 2;
        }
        if ((unsigned char)c < ' ' || c == 127) return false;
        *out++ = c;
    }
    *out = '\0';
    for (const unsigned char *s = (const unsigned char *)path; *s;) {
        const size_t n = utf8_length(s);
        if (!n) return false;
        s += n;
    }
    return true;
}

/* A host and perhaps a port; what could be a user, a path or a second host is refused. */
static bool is_host(const char *host)
{
    for (const char *c = host; *c; c++) {
        const bool name = (*c >= '0' && *c <= '9') || ((*c | 32) >= 'a' && (*c | 32) <= 'z');
        if (!name && !strchr("-._~:[]", *c)) return false;
    }
    return true;
}

/* The target: "/path?query", "http://host/path?query", or "*" for OPTIONS. */
static int read_target(char *target, cot_http_head *head, const char **why)
{
    static const char bad[] = "the request's target is not a path";
    for (const char *c = target; *c; c++) {
        if (*c <= ' ' || *c >= 127 || *c == '#' || *c == '"' || *c == '<' || *c == '>')
            return refuse(400, why, bad);
    }
    head->query = "";
    if (!strcmp(target, "*") && !strcmp(head->method, "OPTIONS")) {
        head->path = target;
        return 0;
    }
    if (!strncasecmp(target, "http://", 7)) {
        char *const host = target + 7, *const after = host + strcspn(host, "/?");
        if (after == host) return refuse(400, why, bad);
        // moved one to the left, so that the path keeps its '/' and the host gets a NUL
        memmove(target, host, (size_t)(after - host));
        target[after - host] = '\0';
        head->host = target;
        target = after;
    }
    char *const question = strchr(target, '?');
    if (question) {
        *question = '\0';
        head->query = question + 1;
    }
    head->path = *target || !head->host ? target : "/";
    if (*head->path != '/') return refuse(400, why, bad);
    if (*target && !decode_path(target)) return refuse(400, why, "the path is not UTF-8 in proper escapes");
    return 0;
}

int cot_http_read_request(char *bytes, size_t count, cot_http_head *head, const char **why)
{
    memset(head, 0, sizeof *head);
    char *const end = bytes + count, *const line_end = memchr(bytes, '\r', count);
    char *const target = memchr(bytes, ' ', (size_t)(line_end - bytes));
    char *const version = target ? memchr(target + 1, ' ', (size_t)(line_end - target - 1)) : NULL;
    if (!version || target == bytes) return refuse(400, why, "the first line is not HTTP's");
    for (const char *c = bytes; c < target; c++) {
        if (!is_token((unsigned char)*c)) return refuse(400, why, "the first line is not HTTP's");
    }
    int status = read_version(version + 1, (size_t)(line_end - version - 1), head, why);
    if (status) return status;
    *target = *version = '\0';
    head->method = bytes;
    if ((status = read_target(target + 1, head, why))) return status;
    if ((status = read_fields(line_end + 2, end, head, why))) return status;
    if ((status = read_framing(head, why))) return status;
    const char *const host = cot_http_head_find(head, "host");
    if (!host && head->minor) return refuse(400, why, "no Host");
    if (!head->host) head->host = host ? host : "";
    return is_host(head->host) && (!host || is_host(host)) ? 0 : refuse(400, why, "Host is not a host");
}

int cot_http_read_answer(char *bytes, size_t count, cot_http_head *head, const char **why)
{
    memset(head, 0, sizeof *head);
    char *const end = bytes + count, *const line_end = memchr(bytes, '\r', count);
    const size_t line = (size_t)(line_end - bytes);
    if (line < 12 || bytes[8] != ' ') return refuse(400, why, "the first line is not HTTP's");
    int status = read_version(bytes, 8, head, why);
    if (status) return status;
    for (size_t i = 9; i < 12; i++) {
        if (bytes[i] < '0' || bytes[i] > '9') return refuse(400, why, "the first line has no status");
        head->status = head->status * 10 + (bytes[i] - '0');
    }
    if (head->status < 100 || (line > 12 && bytes[12] != ' '))
        return refuse(400, why, "the first line has no status");
    if ((status = read_fields(line_end + 2, end, head, why))) return status;
    return read_framing(head, why);
}
