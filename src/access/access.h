/* Who may call: keys, host names, origins; certificates and the access log; answers as everybody who serves makes them. */
#ifndef COT_ACCESS_ACCESS_H
#define COT_ACCESS_ACCESS_H
#include "access/access_log.h"
#include "access/api_error.h"
#include "coterie/access.h"
#include "net/http_server.h"

struct cot_tls;

/* All zero is closed. */
typedef struct cot_access {
    cot_access_options options; // host and lists are owned copies; names of files are gone
    struct cot_tls *tls;        // NULL: plain
    cot_access_log *access_log; // NULL: none
} cot_access;

/* Replaces a list of texts that NULL ends by a copy of its own, also where memory runs out, which is false; NULL stays NULL. */
bool cot_access_list_copy(const char *const **list);
void cot_access_list_free(const char *const *list); // such a copy; NULL is fine

/* Whether somebody may listen as these options say: on a loopback address, or with keys, or where it was told that none are
 * needed; and whether the certificate's files can be read. Errors: INVALID_ARGUMENT, and of certificates those of
 * cot_tls_open. */
cot_status cot_access_check_options(const cot_access_options *options, cot_error *error);
/* Copies the options, reads certificates, opens the access log. cot_access_close is called either way. Errors: those above, IO,
 * OUT_OF_MEMORY. */
cot_status cot_access_open(cot_access *access, const cot_access_options *options, cot_error *error);
void cot_access_close(cot_access *access);
/* Reads the certificate's files again, and goes on in a new access log. What fails is told, and stays as it was. */
void cot_access_reload(cot_access *access);
/* What an HTTP server is told of it. */
cot_http_server_options cot_access_http_options(const cot_access *access);
/* One line for the operator. */
void cot_access_tell(const cot_access *access, cot_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Whether this exchange's head may go on. False with `error` filled in. */
bool cot_access_check(const cot_access_options *options, const cot_http_exchange *exchange,
                      cot_api_error *error);
/* Whether the exchange bears one of these keys (NULL ends). */
bool cot_access_has_key(const char *const *keys, const cot_http_exchange *exchange);
/* The Origin that an answer must name for a page of it to read the answer; NULL: none. */
const char *cot_access_origin(const cot_access_options *options, const cot_http_exchange *exchange);
/* Whether a body's type is JSON's. */
bool cot_access_is_json(const char *content_type);
/* Answers a browser's question whether a page may call. False: it was none. */
bool cot_access_answer_preflight(const cot_access_options *options, cot_http_exchange *exchange);

enum { COT_ACCESS_FIELDS = 16 };
/* Fields that every answer has; returns how many: 3 at most. `request_id` NULL: what the client sent, if anything. */
size_t cot_access_fields(const cot_access_options *options, const cot_http_exchange *exchange,
                         cot_http_field fields[COT_ACCESS_FIELDS], const char *request_id);
typedef struct cot_access_head {
    int status;
    const char *request_id;  // NULL: what the client sent, if anything
    const char *type;        // NULL: there is no body
    const char *retry_after; // seconds; NULL: not said
    bool is_final;           // clients are told not to try again
} cot_access_head;
/* Replies with those fields and what the head says. */
void cot_access_reply(const cot_access_options *options, cot_http_exchange *exchange,
                      const cot_access_head *head, const void *body, size_t bytes);
/* Replies with a page for a browser, which brings all that it needs, and asks this server alone. */
void cot_access_reply_page(cot_http_exchange *exchange, const char *page, size_t bytes);
/* An HTTP server's callbacks `over` and `error_body`. */
void cot_access_note_over(const cot_access *access, const cot_http_exchange *exchange,
                          const cot_http_outcome *outcome);
size_t cot_access_error_body(void *context, int status, const char *message, char *out, size_t room);

#endif
